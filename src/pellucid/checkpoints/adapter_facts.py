"""`adapter_config.json`: the facts of a low-rank adapter in PEFT's format.

Every key is read, known to change nothing, or reported; unsupported keys that would change the output are refused.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.checkpoints.adapter_targets import KEYS, Targets, read_targets
from pellucid.checkpoints.facts import warn_of_unknown_keys
from pellucid.checkpoints.model_files import ADAPTER_CONFIG, ADAPTER_PICKLED, ADAPTER_SAFETENSORS
from pellucid.config.checks import check_bool, check_choice, check_count, check_range
from pellucid.errors import CheckpointMismatchError, InputError, NotFoundError, blaming, join_names, shorten
from pellucid.files import read_json

FILE = ADAPTER_CONFIG
WEIGHTS_FILES = (ADAPTER_SAFETENSORS, ADAPTER_PICKLED)
"""The weight files, the preferred one first."""

PEFT_TYPE = "LORA"

TASKS = {
    "SEQ_CLS": "sequence-classification",
    "TOKEN_CLS": "token-classification",
    "QUESTION_ANS": "question-answering",
    "CAUSAL_LM": "causal-lm",
    "SEQ_2_SEQ_LM": "sequence-to-sequence-lm",
    "FEATURE_EXTRACTION": None,
}
"""The format's task types, and our names of the heads."""

_READ = frozenset(
    """peft_type base_model_name_or_path revision task_type r lora_alpha rank_pattern alpha_pattern use_rslora bias
    modules_to_save init_lora_weights ensure_weight_tying""".split()
).union(KEYS)
_INERT = frozenset(
    """auto_mapping corda_config eva_config fan_in_fan_out inference_mode loftq_config lora_dropout lora_ga_config
    megatron_config megatron_core peft_version qalora_group_size runtime_config""".split()
)
"""Keys that do not affect a trained adapter; whether matrices are transposed follows from the family."""

_UNSUPPORTED = frozenset(
    """alora_invocation_tokens arrow_config layer_replication lora_bias monteclora_config target_parameters
    trainable_token_indices use_bdlora use_dora use_qalora velora_config""".split()
)
"""Keys that, where set, change the output in unsupported ways."""

_SUPPORTED_INITS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")
"""Initialisations that leave the base's weights as they are."""

MAX_RANK = 100_000


@dataclass(frozen=True)
class AdapterFacts:
    """A low-rank adapter: `scale` x B A is added to some matrices of the base, and some modules are replaced.

    base: the checkpoint, by a name that pellucid finds.  revision: of the base on the hub.
    task: the format's task type; None where it is not given.
    rank, alpha: defaults for all modules; rank_pattern, alpha_pattern: exceptions, by a module's path or its end.
    use_rslora: the scale is alpha / sqrt(rank) (Kalajdzievski, 2023, arXiv:2312.03732), else alpha / rank.
    modules_to_save: modules that are replaced.  targets: modules that may be updated.
    ensure_weight_tying: whether both uses of a shared table are changed together.
    """

    base: str
    revision: str | None = None
    task: str | None = None
    rank: int = 8
    alpha: float = 8
    rank_pattern: dict[str, int] = field(default_factory=dict)
    alpha_pattern: dict[str, float] = field(default_factory=dict)
    use_rslora: bool = False
    modules_to_save: tuple[str, ...] = ()
    ensure_weight_tying: bool = False
    targets: Targets = field(default_factory=Targets)

    def rank_of(self, module: str) -> int:
        """The rank of a module, by its path."""
        return _pattern_value(module, self.rank_pattern, self.rank)

    def scale_of(self, module: str) -> float:
        """The factor of a module's B A product."""
        rank = self.rank_of(module)
        return _pattern_value(module, self.alpha_pattern, self.alpha) / (math.sqrt(rank) if self.use_rslora else rank)


def read_adapter_facts(folder: Path) -> AdapterFacts:
    """The facts in `adapter_config.json`. Raises CheckpointMismatchError for what pellucid does not support."""
    path = folder / FILE
    raw = read_json(path)
    if (kind := raw.get("peft_type")) != PEFT_TYPE:
        raise CheckpointMismatchError(
            f"{path}: peft_type is {shorten(ascii(kind))}, and adapters of kind {PEFT_TYPE} alone are read; merge it "
            "into its base with the library that made it"
        )
    with blaming(path, CheckpointMismatchError):
        _refuse_unsupported(raw)
        found = _parse_facts(raw)
    known = _READ | _INERT | _UNSUPPORTED
    warn_of_unknown_keys(path, (key for key, value in raw.items() if key not in known and value not in _UNSET))
    return found


_UNSET: tuple[Any, ...] = (None, False, "", [], {})


def _refuse_unsupported(raw: dict[str, Any]) -> None:
    if changing := sorted(key for key in _UNSUPPORTED & raw.keys() if raw[key] not in _UNSET):
        raise InputError(f"{join_names(changing)} would change the numbers in a way that pellucid does not read")
    if (bias := raw.get("bias", "none")) != "none":
        raise InputError(
            f"bias is {shorten(ascii(bias))}, and only 'none' is read: without its biases the adapter would be "
            "incomplete"
        )
    init = raw.get("init_lora_weights", True)
    if init not in _SUPPORTED_INITS:
        raise InputError(
            f"init_lora_weights is {shorten(ascii(init))}, which changes the base as well; save it as a plain adapter"
        )


def _parse_facts(raw: dict[str, Any]) -> AdapterFacts:
    base = raw.get("base_model_name_or_path")
    if not isinstance(base, str) or not base.strip():
        raise InputError(
            f"base_model_name_or_path is {shorten(ascii(base))}, expected the name of the model it belongs to"
        )
    revision = raw.get("revision")
    if revision is not None and (not isinstance(revision, str) or not revision.strip()):
        raise InputError(f"revision is {shorten(ascii(revision))}, expected a branch, a tag or a commit of its base")
    task = raw.get("task_type")
    if task is not None:
        check_choice("task_type", task, tuple(TASKS))
    rank, alpha, use_rslora = raw.get("r", 8), raw.get("lora_alpha", 8), raw.get("use_rslora", False)
    check_count("r", rank, maximum=MAX_RANK)
    check_range("lora_alpha", alpha, maximum=1e9, minimum=-1e9)
    check_bool("use_rslora", use_rslora)
    ensure_weight_tying = raw.get("ensure_weight_tying", False)
    check_bool("ensure_weight_tying", ensure_weight_tying)
    rank_pattern, alpha_pattern = _read_pattern(raw, "rank_pattern"), _read_pattern(raw, "alpha_pattern")
    for module, one in rank_pattern.items():
        check_count(f"the rank of {shorten(module)}", one, maximum=MAX_RANK)
    for module, one in alpha_pattern.items():
        check_range(f"the alpha of {shorten(module)}", one, maximum=1e9, minimum=-1e9)
    modules_to_save = raw.get("modules_to_save") or []
    if not isinstance(modules_to_save, list) or not all(isinstance(name, str) for name in modules_to_save):
        raise InputError(f"modules_to_save is {shorten(ascii(modules_to_save))}, expected a list of names")
    targets = read_targets(raw)
    return AdapterFacts(
        base,
        revision,
        task,
        rank,
        alpha,
        rank_pattern,
        alpha_pattern,
        use_rslora,
        tuple(modules_to_save),
        ensure_weight_tying,
        targets,
    )


def _read_pattern(raw: dict[str, Any], key: str) -> dict[str, Any]:
    found = raw.get(key) or {}
    if not isinstance(found, dict):
        raise InputError(f"{key} is {shorten(ascii(found))}, expected modules with a number each")
    for module in found:
        if not all(part.replace("_", "a").isalnum() for part in module.removeprefix("^").split(".")):
            raise InputError(
                f"{key} names {shorten(ascii(module))}, expected a module's path, since regular expressions are not "
                "supported here: give "
                "each module an entry of its own, or merge the adapter with the library that made it"
            )
    return found


def saved_module(name: str, modules: Iterable[str]) -> str | None:
    """Which of `modules` PEFT saves this tensor with: a module, or one around it, whose path ends as stated, so that
    "norm" also means "input_layernorm"; None for none."""
    return next((one for one in modules if f"{one}." in name), None)


def _pattern_value(module: str, values: dict[str, Any], default: Any) -> Any:
    """The value of the first pattern that is the module's path or, without a `^`, its end."""
    for pattern, value in values.items():
        path = pattern.removeprefix("^")
        if module == path or (path == pattern and module.endswith(f".{path}")):
            return value
    return default


def adapter_config_keys(facts: AdapterFacts, targets: list[str], *, transposed: bool) -> dict[str, Any]:
    """The facts as keys of the file.

    targets: the paths of the updated modules.  transposed: whether their matrices are stored as [in, out].
    """
    return {
        "alpha_pattern": facts.alpha_pattern,
        "auto_mapping": None,
        "base_model_name_or_path": facts.base,
        "bias": "none",
        "fan_in_fan_out": transposed,
        "inference_mode": True,
        "init_lora_weights": True,
        "layers_pattern": None,
        "layers_to_transform": None,
        "lora_alpha": facts.alpha,
        "lora_dropout": 0.0,
        "modules_to_save": list(facts.modules_to_save) or None,
        "peft_type": PEFT_TYPE,
        "r": facts.rank,
        "rank_pattern": facts.rank_pattern,
        "revision": facts.revision,
        "target_modules": sorted(targets),
        "task_type": facts.task,
        "use_dora": False,
        "use_rslora": facts.use_rslora,
    }


def weights_file_name(folder: Path) -> str:
    """The name of an adapter's weight file. Raises NotFoundError where there is none."""
    for name in WEIGHTS_FILES:
        if (folder / name).exists() or (folder / name).is_symlink():
            return name
    raise NotFoundError(f"{folder} holds {FILE} and no weights: expected {' or '.join(WEIGHTS_FILES)}")
