"""pellucid: a Transformer that can be read, run and seen.

>>> import pellucid
>>> model = pellucid.load("sentence-transformers/all-MiniLM-L6-v2")   # hub id, folder or installed wheel
>>> model.embed(["Apple Inc.", "Microsoft Corp"]).shape
torch.Size([2, 384])

Public names are resolved on first use, so that `import pellucid` costs nothing: not even torch is loaded.
"""

import gc
import importlib
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from pellucid.checkpoints.families import Config as Config
    from pellucid.errors import CheckpointMismatchError as CheckpointMismatchError
    from pellucid.errors import CorruptFileError as CorruptFileError
    from pellucid.errors import InputError as InputError
    from pellucid.errors import NotFoundError as NotFoundError
    from pellucid.errors import PellucidError as PellucidError
    from pellucid.errors import ResourceError as ResourceError
    from pellucid.errors import UnsafeFileError as UnsafeFileError
    from pellucid.learning import evaluate as evaluate
    from pellucid.learning import train as train
    from pellucid.model import Model as Model
    from pellucid.model import build as build
    from pellucid.model import load as load
    from pellucid.pipeline import Pipeline as Pipeline
    from pellucid.pipeline import pipeline as pipeline
    from pellucid.search import Index as Index
    from pellucid.text.learned import train_tokenizer as train_tokenizer
    from pellucid.trace import open_trace as open_trace
    from pellucid.view import View as View
    from pellucid.view.curves import curves as curves
    from pellucid.view.make import view as view

_HOMES = {
    "load": "pellucid.model",
    "build": "pellucid.model",
    "Model": "pellucid.model",
    "pipeline": "pellucid.pipeline",
    "Pipeline": "pellucid.pipeline",
    "train": "pellucid.learning",
    "evaluate": "pellucid.learning",
    "train_tokenizer": "pellucid.text.learned",
    "Index": "pellucid.search",
    "open_trace": "pellucid.trace",
    "view": "pellucid.view",
    "View": "pellucid.view",
    "curves": "pellucid.view.curves",
    "Config": "pellucid.checkpoints.families",
    "PellucidError": "pellucid.errors",
    "InputError": "pellucid.errors",
    "NotFoundError": "pellucid.errors",
    "UnsafeFileError": "pellucid.errors",
    "CorruptFileError": "pellucid.errors",
    "CheckpointMismatchError": "pellucid.errors",
    "ResourceError": "pellucid.errors",
}
_WITHOUT_TORCH = {"pellucid.errors", "pellucid.checkpoints.families", "pellucid.text.learned"}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'pellucid' has no attribute {name!r}")
    value = getattr(_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def _module(home: str) -> ModuleType:
    """A module of ours. What it brings would have Python's collector walk once over all that torch has made, for more
    than half the time that our modules take themselves; so the collector rests meanwhile, once torch is there."""
    if home in _WITHOUT_TORCH:
        return importlib.import_module(home)
    importlib.import_module("torch")
    collects = gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(home)
    finally:
        if collects:
            gc.enable()


def __dir__() -> list[str]:
    return sorted(__all__)
