"""The reference implementation: the one module that calls `transformers`, where it is installed."""

import contextlib
import functools
import importlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.save import save_checkpoint
from pellucid.config import Rotary
from pellucid.errors import join_names, shorten, was_interrupted
from pellucid.files import temporary_folder
from pellucid.machine import NARROWER_FLOATS, no_grad, require_memory
from pellucid.models import count


class NoReference(Exception):  # noqa: N818 - not a fault of anybody
    """The reference is not available for this comparison; the message says why."""


def version() -> str:
    """The installed release of the reference. Raises NoReference where there is none."""
    try:
        return importlib.metadata.version("transformers")
    except importlib.metadata.PackageNotFoundError as error:
        raise NoReference("not installed; pip install 'transformers>=5', and run this again") from error


def open_reference(loaded: Loaded) -> tuple[Any, str]:
    """The same files, opened by the reference in the same dtype, without its kernels; and a remark on them.

    Raises NoReference where it cannot open them.
    """
    if (source := loaded.source) is None:
        raise NoReference("this model was built here and has no files")
    if sys.flags.optimize > 1:
        raise NoReference("it reads its own docstrings, which Python leaves out here: run without -OO")
    if source.base is not None:
        return _open_saved(loaded), f", from a saved copy, with the adapter in the tables of {source.base.name}"
    if source.file is None:
        return _open(loaded, source.folder), ""
    try:
        return _open_gguf(loaded, source.file), ""
    except NoReference as reason:  # fall back to the unpacked weights, in a format that it opens
        return _open_saved(loaded), f", from a saved copy, so that the unpacking itself was not compared: {reason}"


def _open_gguf(loaded: Loaded, file: Path) -> Any:
    with _without_bar():
        model = _open(loaded, file.parent, gguf_file=file.name)
    position = loaded.config.attention_position
    has_rope_scaling = isinstance(position, Rotary) and position.rope_scaling is not None
    rope_parameters = getattr(model.config, "rope_parameters", None) or {}
    if has_rope_scaling and rope_parameters.get("rope_type", "default") == "default":
        raise NoReference("it ignores the file's rope scaling")
    return model


def _open_saved(loaded: Loaded) -> Any:
    with temporary_folder() as folder:
        return _open(loaded, save_checkpoint(loaded, folder / "saved"))


def _open(loaded: Loaded, folder: Path, **form: str) -> Any:
    architecture = loaded.family.page(loaded.config.head).architecture
    kind = loaded.module.dtype
    require_memory(count(loaded.module), kind.itemsize * 8, torch.device("cpu"), NARROWER_FLOATS)
    load_options = {"attn_implementation": "eager", "local_files_only": True, "output_loading_info": True, **form}
    with _quiet() as transformers:
        model_class = getattr(transformers, architecture, None)
        if model_class is None:
            raise NoReference(f"it has no {architecture}")
        try:
            model, report = model_class.from_pretrained(folder, dtype=kind, **load_options)
        except Exception as error:  # another library's errors can be anything
            raise _no_reference_error("it does not open these files", error) from error
    missing = [name for name in report["missing_keys"] if loaded.config.pools or "pooler" not in name]
    if missing:  # it would compute with random weights
        raise NoReference(f"it finds no weights for {join_names(sorted(missing), 3)}")
    return model.eval()


def _no_reference_error(what: str, error: Exception) -> BaseException:
    """Another library's error in one short line; KeyboardInterrupt, if Ctrl-C caused it."""
    first = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return KeyboardInterrupt() if was_interrupted(error) else NoReference(f"{what}: {shorten(first, 160)}")


@contextlib.contextmanager
def _quiet() -> Iterator[Any]:
    """The library, with its logging and progress bars off and its tensors created on the CPU, like ours."""
    import transformers

    reference_logging = transformers.utils.logging
    level, bars = reference_logging.get_verbosity(), reference_logging.is_progress_bar_enabled()
    reference_logging.set_verbosity_error()
    reference_logging.disable_progress_bar()
    try:
        with torch.device("cpu"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield transformers
    finally:
        reference_logging.set_verbosity(level)
        if bars:
            reference_logging.enable_progress_bar()


@contextlib.contextmanager
def _without_bar() -> Iterator[None]:
    """Turns off the progress bar of the library's GGUF reader, for which there is no setting."""
    reader: Any = importlib.import_module("transformers.modeling_gguf_pytorch_utils")

    bar = getattr(reader, "tqdm", None)
    try:
        if bar is not None:
            reader.tqdm = functools.partial(bar, disable=True)
        yield
    finally:
        if bar is not None:
            reader.tqdm = bar


# -- one pass ----------------------------------------------------------------------------------------------------------


class _KeepFloat64(TorchFunctionMode):
    """Keeps float64 throughout: the reference narrows to float32 in norms, softmax and rotary embeddings."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = torch.Tensor.double if func is torch.Tensor.float else func
        named = {name: _float64_for_float32(value) for name, value in (kwargs or {}).items()}
        return func(*map(_float64_for_float32, args), **named)


def _float64_for_float32(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


def reference_forward(model: Any, **inputs: Any) -> Any:
    """One pass of the reference; without its cache, which lays out keys differently and so rounds differently."""
    settings = {"use_cache": False} if getattr(model.config, "use_cache", False) else {}
    is_float64 = next(model.parameters()).dtype == torch.float64
    with no_grad(), _quiet(), _KeepFloat64() if is_float64 else contextlib.nullcontext():
        try:
            return model(**inputs, **settings)
        except Exception as error:  # as above
            raise _no_reference_error("it does not read this input", error) from error
