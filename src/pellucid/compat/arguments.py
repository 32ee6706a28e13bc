"""The reference's arguments: which are supported, which have no effect here, and which are refused."""

import logging
import os
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from pellucid.checkpoints.folder import check_folder_link
from pellucid.checkpoints.location import HubOptions
from pellucid.config.checks import is_one_of, plain_number
from pellucid.errors import InputError, did_you_mean
from pellucid.files import cannot_write
from pellucid.paths import path_of

log = logging.getLogger("pellucid")

HUB_ARGUMENTS = tuple(field.name for field in fields(HubOptions))
"""Arguments that locate a checkpoint."""

UnsupportedArguments = Mapping[str, str | None]
"""Unsupported arguments: what to do instead of each; None where no value changes the result."""

_LOAD_ARGUMENTS: UnsupportedArguments = {
    **dict.fromkeys(
        """use_fast low_cpu_mem_usage resume_download use_safetensors weights_only add_pooling_layer proxies max_memory
        offload_folder offload_state_dict trust_remote_code""".split()
    ),
    **dict.fromkeys(
        "force_download from_tf from_flax output_loading_info subfolder variant".split(),
        "leave it out",
    ),
    "use_auth_token": "pass token, its present name",
    **dict.fromkeys(
        ("load_in_8bit", "load_in_4bit", "quantization_config"),
        "pass dtype='int8' or dtype='int4', which need no package",
    ),
}

_SAVE_ARGUMENTS: UnsupportedArguments = {
    **dict.fromkeys("max_shard_size save_function token legacy_format save_peft_format save_original_format".split()),
    **dict.fromkeys(("variant", "filename_prefix"), "files have one name each here: leave it out"),
    "state_dict": "what the model holds is written: load_state_dict(...) first, and leave it out",
    "push_to_hub": "the hub's own command `hf upload NAME FOLDER` sends what was written: leave it out",
}

_MULTI_DEVICE_MAPS = ("balanced", "balanced_low_0", "sequential")
"""Device maps that spread a model over several devices; here it is placed on the fastest one."""


def accepted_arguments(arguments: dict[str, Any], known: Collection[str] | None, what: str) -> dict[str, Any]:
    """The arguments that have an effect when `what` is opened; InputError for an unknown one.

    known: their names; None where the caller checks them itself.
    """
    for name in arguments:
        if known is not None and name not in known and name not in _LOAD_ARGUMENTS:
            raise InputError(f"there is no argument {name!r} to open {what}{did_you_mean(name, known)}")
    warn_of_remote_code(arguments)
    return without_unsupported(arguments, _LOAD_ARGUMENTS)


def pop_hub_options(arguments: dict[str, Any]) -> HubOptions:
    """The options that locate a checkpoint, removed from the arguments."""
    return HubOptions(**{key: arguments.pop(key) for key in HUB_ARGUMENTS if key in arguments})


def check_save_arguments(arguments: Mapping[str, Any]) -> None:
    """Checks the arguments of saving besides the folder; InputError for an unsupported one."""
    for name in arguments:
        if name not in _SAVE_ARGUMENTS:
            raise InputError(f"there is no argument {name!r} for saving{did_you_mean(name, _SAVE_ARGUMENTS)}")
    without_unsupported(arguments, _SAVE_ARGUMENTS)


@contextmanager
def output_folder(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to write into, created where it is missing; raises our errors in place of the system's."""
    path = path_of(folder)
    check_folder_link(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
        yield path
    except OSError as error:
        raise cannot_write(path, error) from error


def without_unsupported(arguments: Mapping[str, Any], unsupported: UnsupportedArguments) -> dict[str, Any]:
    """The arguments without unsupported ones; InputError for the first of these whose value has an effect."""
    for name, value in arguments.items():
        is_unset = value is None or value is False or (isinstance(value, str | list) and not value)
        if unsupported.get(name) is not None and not is_unset:
            short = " ".join(reprlib.repr(value).split())
            raise InputError(f"{name} is {short}, which is not supported here: {unsupported[name]}")
    return {name: value for name, value in arguments.items() if name not in unsupported}


def warn_of_remote_code(arguments: Mapping[str, Any]) -> None:
    """Warns that `trust_remote_code` is ignored."""
    if arguments.get("trust_remote_code"):
        log.warning(
            "trust_remote_code=True: pellucid runs no code of a checkpoint, and opens only the families that it knows"
        )


def resolve_device(name: str, value: Any, default: str) -> str | torch.device:
    """The device for the reference's `device` or `device_map`.

    value: a device, a number (that of a GPU, or a negative one for the CPU), a map of parts to one of these; None is
        `default`.
    Raises InputError for a map that names several, or none.
    """
    value = plain_number(value)
    if isinstance(value, Mapping):
        found = [resolve_device(name, one, default) for one in value.values()]
        devices = {"cuda:0" if str(one) == "cuda" else str(one): one for one in found}
        if len(devices) != 1:
            raise InputError(f"{name} names {len(devices)} devices, and a model is on one: pass {name}='auto'")
        (value,) = devices.values()
    if type(value) is int:
        return "cpu" if value < 0 else f"cuda:{value}"
    return default if value is None else "auto" if is_one_of(value, *_MULTI_DEVICE_MAPS) else value


def missing_attribute_error(what: str, name: str, known: Iterable[str], elsewhere: str) -> AttributeError:
    """The error that `what` has no attribute `name`.  elsewhere: the end of the message, with where else to look."""
    if name == "push_to_hub":
        elsewhere = ": save_pretrained(folder) writes it, and the hub's own command `hf upload NAME FOLDER` sends it"
    return AttributeError(f"{what} has no {name!r}{did_you_mean(name, known)}{elsewhere}")


def check_not_exported() -> None:
    """Refuses a pass within torch.export or torch.jit.trace, which cannot follow its checks of ids and masks."""
    if torch.compiler.is_exporting() or torch.jit.is_tracing():
        raise InputError(
            "a pass checks the values of its ids and masks, which neither torch.export nor torch.jit.trace can follow: "
            "save_pretrained(folder) writes a folder for transformers, whose models can be exported"
        )


def no_architecture_error(kind: type) -> InputError:
    """The error for a model class without an architecture, such as the base class."""
    return InputError(
        f"{kind.__name__} has no architecture: derive from a class that has one, such as BertModel, or hold what "
        "AutoModel.from_pretrained opens in an nn.Module"
    )
