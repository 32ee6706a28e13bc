"""What is said to `from_pretrained`: what is understood, what changes nothing here, and what is refused."""

import logging
from collections.abc import Collection, Mapping
from typing import Any

from pellucid.errors import InputError, near

log = logging.getLogger("pellucid")

PLACE = ("revision", "token", "local_files_only", "cache_dir")
"""Arguments that say where a checkpoint lies."""

_SAME = frozenset(
    """use_fast low_cpu_mem_usage resume_download use_safetensors weights_only add_pooling_layer proxies max_memory
    offload_folder offload_state_dict""".split()
)
"""Arguments that change no answer: taken, and followed by nothing."""

_ONLY = {
    "trust_remote_code": False,
    "force_download": False,
    "from_tf": False,
    "from_flax": False,
    "output_loading_info": False,
    "ignore_mismatched_sizes": False,
    "subfolder": "",
    "variant": None,
}
"""Arguments of which one value alone is understood."""

_INSTEAD = dict.fromkeys(
    ("load_in_8bit", "load_in_4bit", "quantization_config"), "pass dtype='int8' or dtype='int4', which need no package"
)
"""Arguments that are said in another way here."""


def accepted(said: dict[str, Any], known: Collection[str] | None, what: str) -> dict[str, Any]:
    """The arguments that mean something here; InputError for one that is not known.

    known: their names; None where the caller checks them himself.
    """
    for name, value in said.items():
        if name in _INSTEAD and value:
            raise InputError(f"{name} is not understood here: {_INSTEAD[name]}")
        if name in _ONLY and value and name != "trust_remote_code":
            raise InputError(f"{name} is {value!r}, which is not understood here: leave it out")
        if known is not None and name not in {*known, *_SAME, *_ONLY, *_INSTEAD}:
            raise InputError(f"there is no argument {name!r} to open {what}{near(name, known)}")
    warn_of_code(said)
    return {name: value for name, value in said.items() if name not in {*_SAME, *_ONLY, *_INSTEAD}}


def warn_of_code(said: Mapping[str, Any]) -> None:
    """Says that `trust_remote_code` is not followed."""
    if said.get("trust_remote_code"):
        log.warning("trust_remote_code=True: pellucid runs no code of a checkpoint, and opens what it knows itself")
