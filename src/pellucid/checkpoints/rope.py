"""How configuration files say that queries and keys are turned: two spellings, older and newer."""

from typing import Any

from pellucid.checkpoints.facts import Computed
from pellucid.config import Config, LinearScaling, Llama3Scaling, Rotary
from pellucid.errors import InputError

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _read(raw: dict[str, Any]) -> dict[str, Any]:
    said = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if not isinstance(said, dict):
        raise InputError(f"rope_scaling is {str(said)[:60]!r}, expected an object")
    changes: dict[str, Any] = {"rope_scaling": _scaling(said)}
    theta = said.get("rope_theta", raw.get("rope_theta"))
    return changes if theta is None else changes | {"rope_theta": float(theta)}


def _scaling(said: dict[str, Any]) -> Llama3Scaling | LinearScaling | None:
    match said.get("rope_type", said.get("type", "default")):
        case "default":
            return None
        case "linear":
            return LinearScaling(said.get("factor", 1.0))
        case "llama3":
            return Llama3Scaling(**{name: said[name] for name in _LLAMA3 if name in said})
        case other:
            raise InputError(f"rope_type is {str(other)[:60]!r}, expected default, linear or llama3")


def _write(config: Config) -> dict[str, Any]:
    rotary = config.attention_position
    if not isinstance(rotary, Rotary):
        return {}
    match rotary.rope_scaling:
        case None:
            said: dict[str, Any] | None = None
        case LinearScaling(factor):
            said = {"rope_type": "linear", "factor": factor}
        case scaling:
            said = {"rope_type": "llama3", **{name: getattr(scaling, name) for name in _LLAMA3}}
    return {"rope_theta": rotary.rope_theta, "rope_scaling": said}


ROPE = Computed(("rope_theta", "rope_scaling", "rope_parameters"), _read, _write)
