"""A model or its name, as many options accept."""

import os
from typing import Any

from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError


def resolve_model(model: Any, what: str = "model", **how: Any) -> Loaded:
    """The given model, or the one of a given name or folder, which is opened.

    what: the option, for the error about anything else.  how: passed on to `open_checkpoint`.
    """
    if isinstance(model, str | os.PathLike):
        return open_checkpoint(model, **how)
    found = getattr(model, "loaded", model)
    if not isinstance(found, Loaded):
        raise InputError(f"{what} is {type(model).__name__}, expected a model, or its name or folder")
    return found
