"""pellucid doctor"""

import importlib.metadata
import platform

import rich_click as click

from pellucid.cli.output import print_table, to_json

PACKAGES = (
    "pellucid torch tokenizers safetensors huggingface-hub numpy transformers numba pyelftools faiss-cpu rapidfuzz "
    "scikit-learn scipy nervaluate sacrebleu tomli-w resvg-py onnx"
).split()


@click.command("doctor")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def command(as_json: bool) -> None:
    """Check this installation.

    Versions, processor, threads, memory, compiled steps, and which models are ready.

    \b
    Examples:
      pellucid doctor
      pellucid doctor --json
    """
    from pellucid.checkpoints.inventory import inventory
    from pellucid.machine import choose_device, dtype_name, fastest_dtype, free_memory, processor_features
    from pellucid.streams import use_threads

    free, devices = free_memory(), dict.fromkeys(map(choose_device, ("cpu", "auto")))
    found = {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        **{name: _version(name) for name in PACKAGES},
        "processor": ", ".join(processor_features()) or "no vector features known",
        **{f"fast dtype on {one.type}": dtype_name(fastest_dtype(one)) for one in devices},
        "threads": str(use_threads()),
        "compiled steps": _compiled_steps(),
        "free memory": f"{free / 2**30:.1f} GiB" if free else "unknown",
        "models ready": ", ".join(e.name for e in inventory() if e.state == "ready") or "none (see: pellucid models)",
    }
    if as_json:
        click.echo(to_json(found, indent=2))
    else:
        print_table(list(found.items()))


def _compiled_steps() -> str:
    from pellucid.blocks.availability import installed, usable_kernels

    if usable_kernels():
        return "ready"
    if platform.system() != "Linux":
        return "none (they are for Linux)"
    if not installed():
        return "none (pip install 'pellucid[fast]')"
    return "none (numba is installed and cannot be used: a warning says why)"


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
