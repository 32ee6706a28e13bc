"""pellucid: a Transformer that can be read, run and seen.

>>> import pellucid
>>> model = pellucid.load("sentence-transformers/all-MiniLM-L6-v2")   # hub id, folder or installed wheel
>>> model.embed(["Apple Inc.", "Microsoft Corp"]).shape
torch.Size([2, 384])

Public names are resolved on first use, so that `import pellucid` costs nothing: not even torch is loaded.
"""

import importlib
from typing import TYPE_CHECKING

from pellucid.lazy import lazy_attributes

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
    from pellucid.text.tokenizer_training import train_tokenizer as train_tokenizer
    from pellucid.trace import open_trace as open_trace
    from pellucid.view import View as View
    from pellucid.view.curves import curves as curves
    from pellucid.view.make import view as view

_HOMES = {
    "load": "model",
    "build": "model",
    "Model": "model",
    "pipeline": "pipeline",
    "Pipeline": "pipeline",
    "train": "learning",
    "evaluate": "learning",
    "train_tokenizer": "text.tokenizer_training",
    "Index": "search",
    "open_trace": "trace",
    "view": "view",
    "View": "view",
    "curves": "view.curves",
    "Config": "checkpoints.families",
    "PellucidError": "errors",
    "InputError": "errors",
    "NotFoundError": "errors",
    "UnsafeFileError": "errors",
    "CorruptFileError": "errors",
    "CheckpointMismatchError": "errors",
    "ResourceError": "errors",
}
_WITHOUT_TORCH = {"errors", "checkpoints.families", "text.tokenizer_training"}
_bring = lazy_attributes(__name__, _HOMES)[0]
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> object:
    if name in _HOMES and _HOMES[name] not in _WITHOUT_TORCH:
        importlib.import_module("torch")  # first, so that the garbage collector is paused for our modules alone
    return _bring(name)


def __dir__() -> list[str]:
    return sorted(__all__)
