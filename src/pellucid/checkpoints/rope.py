"""Config keys of rotary positions in two spellings, older and newer."""

from typing import Any

from pellucid.checkpoints.facts import Computed
from pellucid.config import Config, LinearScaling, Llama3Scaling, Rotary
from pellucid.config.checks import check_count, check_range
from pellucid.errors import InputError, blaming, join_names

_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
_LENGTH = "original_max_position_embeddings"
_KNOWN = {"type", "rope_type", "rope_theta", *_LLAMA3}


def _read_rope(raw: dict[str, Any]) -> dict[str, Any]:
    key = "rope_scaling" if raw.get("rope_scaling") else "rope_parameters"  # with both, the reference takes the older
    settings = {} if raw.get(key) is None else raw[key]
    if not isinstance(settings, dict):
        raise InputError(f"{key} is {str(settings)[:60]!r}, expected an object")
    if raw.get(_LENGTH) is not None:
        check_count(_LENGTH, raw[_LENGTH])
    stated_length = {_LENGTH: raw[_LENGTH]} if _LENGTH in raw else {}  # with both, the reference takes the outer
    default_length = {_LENGTH: raw["max_position_embeddings"]} if "max_position_embeddings" in raw else {}
    with blaming(key, InputError):
        changes: dict[str, Any] = {"rope_scaling": _rope_scaling(default_length | settings | stated_length)}
    ignored = {"partial_rotary_factor"} if settings.get("partial_rotary_factor") == 1 else set()
    if unknown := settings.keys() - _KNOWN - ignored:  # such as partial rotation, or one setting per kind of layer
        raise InputError(f"{key} holds {join_names(map(ascii, sorted(unknown)), 3)}, which would change the numbers")
    theta = settings.get("rope_theta", raw.get("rope_theta"))
    if theta is None:
        return changes
    check_range("rope_theta", theta, above=0.0, maximum=1e12)
    return changes | {"rope_theta": float(theta)}


def _rope_scaling(settings: dict[str, Any]) -> Llama3Scaling | LinearScaling | None:
    match settings.get("rope_type", settings.get("type", "default")):
        case "default":
            return None
        case "linear":
            return LinearScaling(**_settings(settings, ("factor",)))
        case "llama3":
            return Llama3Scaling(**_settings(settings, _LLAMA3))
        case other:
            raise InputError(f"rope_type is {str(other)[:60]!r}, expected default, linear or llama3")


def _settings(settings: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    if missing := [name for name in names if name not in settings]:
        raise InputError(f"it lacks {join_names(missing)}, which its rope_type needs")
    return {name: settings[name] for name in names}


def _write_rope(config: Config) -> dict[str, Any]:
    rotary = config.attention_position
    if not isinstance(rotary, Rotary):
        return {}
    match rotary.rope_scaling:
        case None:
            settings: dict[str, Any] | None = None
        case LinearScaling(factor):
            settings = {"rope_type": "linear", "factor": factor}
        case scaling:
            settings = {"rope_type": "llama3", **{name: getattr(scaling, name) for name in _LLAMA3}}
    return {"rope_theta": rotary.rope_theta, "rope_scaling": settings}


ROPE = Computed(("rope_theta", "rope_scaling", "rope_parameters", _LENGTH), _read_rope, _write_rope)
