"""`config.json`, checked key by key: every key is read, known to change nothing, or reported."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.checkpoints.generation import LEGACY_KEYS
from pellucid.checkpoints.labels import labels_of, warn_of_label_conflict, without_invalid_labels
from pellucid.config import Config, Head
from pellucid.config.checks import ACTIVATIONS
from pellucid.errors import Argument, CheckpointMismatchError, InputError, blaming, did_you_mean, join_names, shorten

log = logging.getLogger("pellucid")

MAX_LAYERS = 1_000
"""Each layer is built before its weights are looked for; a file must not be able to request a million."""

INERT = frozenset(
    """_name_or_path _num_labels architectures bos_token_id chunk_size_feed_forward dtype eos_token_id finetuning_task
    function_to_apply gradient_checkpointing id2label is_causal is_encoder_decoder label2id model_type num_labels
    output_attentions output_hidden_states output_past prefix problem_type return_all_scores return_dict
    sbert_ce_default_activation_function sentence_transformers sep_token_id task_specific_params tokenizer_class
    torch_dtype torchscript transformers_version use_cache use_return_dict""".split()
).union(LEGACY_KEYS)
"""Keys that do not affect a forward pass in any family; `is_causal` where it states what the family does anyway."""

ARITHMETIC = frozenset(
    """adapters attention_bias attn_logit_softcapping embedding_size final_logit_softcapping head_dim layer_types
    mlp_bias moe num_experts num_hidden_groups num_key_value_heads partial_rotary_factor per_layer_config
    pruned_heads quantization_config rope_scaling rope_theta rotary_pct scale_embedding sliding_window
    use_bias""".split()
)
"""Keys that affect the forward pass: a file that sets one is refused by families that do not read it."""

CODE = frozenset(
    """_attn_implementation _attn_implementation_autoset _attn_implementation_internal attn_implementation auto_map
    custom_generate custom_pipelines trust_remote_code""".split()
)
"""Keys that make other libraries fetch or run code: never followed, and not saved again."""

ACTIVATION_ALIASES = {"gelu_python": "gelu", "gelu_fast": "gelu_new", "swish": "silu"}
"""Other names of activations, equal but for the last bits."""

_TOKEN_ID_KEYS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
"""Ids, or null for no such token, or a list of several: checked by the config itself."""

_NULLABLE = ("sliding_window", "num_key_value_heads")
"""Numbers that may be null even in a family whose default is a number."""

_TYPE_DESCRIPTIONS = {bool: "true or false", int: "a whole number", float: "a number", str: "a name"}


@dataclass(frozen=True)
class Computed:
    """Facts that a file expresses in another form.

    keys: the file's keys.  read: the file's keys -> our changes; write: our config -> the file's keys.
    """

    keys: tuple[str, ...]
    read: Callable[[dict[str, Any]], dict[str, Any]]
    write: Callable[[Config], dict[str, Any]]


@dataclass(frozen=True)
class Keys:
    """The config keys of a family.

    unrenamed: keys whose name is also ours.
    renamed: {the file's key: our name}.
    aliases: our names of renamed facts that a file may use instead of the family's own key, as in the reference.
    fixed: {key: value} of keys for which only this value is supported; any other value is refused.
    inert: further keys that do not affect a forward pass in this family.
    computed: facts expressed in another form.
    """

    unrenamed: tuple[str, ...] = ()
    renamed: dict[str, str] = field(default_factory=dict)
    aliases: tuple[str, ...] = ()
    fixed: dict[str, Any] = field(default_factory=dict)
    inert: tuple[str, ...] = ()
    computed: tuple[Computed, ...] = ()

    @property
    def our_names(self) -> dict[str, str]:
        """{the file's key: our name} of all facts that are copied unchanged."""
        return {key: key for key in self.unrenamed} | self.renamed

    def read(self, raw: dict[str, Any], defaults: Config, heads: dict[str, Head | None], path: Path) -> Config:
        """The facts of a `config.json` as a `Config`; missing keys take the family's defaults."""
        known = {*self.our_names, *self.aliases, *self.fixed, *(key for part in self.computed for key in part.keys)}
        aliases = raw.keys() & self.aliases
        file_keys = {fact: key for key, fact in self.renamed.items() if key in raw or fact not in aliases}
        file_keys |= {key: fact for key, fact in self.renamed.items() if key not in raw and fact in aliases}
        with blaming(path, keys=lambda name: file_keys.get(name, name)):  # the user knows the file's keys
            raw = self._resolve_aliases(raw, path)
            self._check_fixed(raw, path)
            _refuse_bidirectional(raw, defaults, path)
            standard = defaults.facts()
            changes = {
                fact: _checked_value(fact, raw[key], standard) for key, fact in self.our_names.items() if key in raw
            }
            for part in self.computed:
                changes |= part.read(raw)
            self._check_unknown_keys(
                {key: raw[key] for key in raw.keys() - known - set(self.inert)}, standard | changes, path
            )
            inert = {key: value for key, value in raw.items() if key not in known | CODE}
            head = _named_head(raw, heads)
            raw = without_invalid_labels(raw, head, path)
            config = defaults.replace(**changes, head=head, labels=labels_of(raw), inert=inert)
            check_layer_count(config)
            warn_of_label_conflict(raw, config.labels, path)
            return config

    def write(self, config: Config, model_type: str, architecture: str) -> dict[str, Any]:
        """A `Config` as the reference's keys; `read(write(config)) == config`."""
        facts = config.facts()
        labels = {"id2label": {str(i): name for i, name in config.id2label.items()}, "label2id": config.label2id}
        inert = {key: value for key, value in config.inert.items() if key != "num_labels"}  # follows from the labels
        return {
            **inert,
            "architectures": [architecture],
            "model_type": model_type,
            **{key: facts[fact] for key, fact in self.our_names.items()},
            **{key: value for part in self.computed for key, value in part.write(config).items()},
            **self.fixed,
            **labels,
        }

    def _resolve_aliases(self, facts: dict[str, Any], path: Path) -> dict[str, Any]:
        """The file's facts under the family's own keys. An alias stays in addition where the key was absent."""
        raw, file_keys = dict(facts), {fact: key for key, fact in self.renamed.items()}
        for alias in facts.keys() & self.aliases:
            key, value = file_keys[alias], facts[alias]
            if key not in facts:
                raw[key] = value
            elif raw.pop(alias) != facts[key]:  # the reference would follow the alias; whoever wrote the key would not
                both = f"{key} is {shorten(ascii(facts[key]))} and {alias}, the same fact, is {shorten(ascii(value))}"
                raise CheckpointMismatchError(f"{path}: {both}; correct the one that is wrong")
        return raw

    def _check_fixed(self, raw: dict[str, Any], path: Path) -> None:
        """Refuses any but the one supported value of each fixed key."""
        for key, value in self.fixed.items():
            if raw.get(key, value) != value:
                found = shorten(ascii(raw[key]))
                raise CheckpointMismatchError(f"{path}: {key} is {found}; only {value!r} is understood")

    def _check_unknown_keys(self, unknown: dict[str, Any], facts: dict[str, Any], path: Path) -> None:
        """facts: all facts by our names, defaults included."""
        unread = {key: value for key, value in unknown.items() if key not in INERT}
        if packed := unread.get("quantization_config"):
            method = packed.get("quant_method", "some method") if isinstance(packed, dict) else "some method"
            raise CheckpointMismatchError(
                f"{path}: its quantization_config says that the weights are quantised by {str(method)[:40]!r}, which "
                "is not read: take the checkpoint that is not quantised, or a .gguf file of it"
            )
        changing = sorted(k for k, v in unread.items() if k in ARITHMETIC and not _changes_nothing(k, v, facts))
        if changing:
            raise CheckpointMismatchError(
                f"{path}: {join_names(changing)} would change the numbers and is not read in this family"
            )
        if code := sorted(unread.keys() & CODE):
            log.warning("%s: %s may name code; pellucid never runs it, nor writes it again", path, join_names(code))
        warn_of_unknown_keys(path, unread.keys() - ARITHMETIC - CODE)


def _changes_nothing(key: str, value: Any, facts: dict[str, Any]) -> bool:
    """Whether the value of an arithmetic key is equivalent to leaving the key out."""
    match key:
        case "head_dim" if type(value) is int:
            return value * facts["num_attention_heads"] == facts["hidden_size"]
        case "num_key_value_heads" if type(value) is int:  # one per query head
            return value == facts["num_attention_heads"] == facts.get("decoder_attention_heads", value)
        case "embedding_size" if type(value) is int:
            return value == facts["hidden_size"]
        case "attention_bias" if value is True:
            return facts["qkv_bias"]
        case "partial_rotary_factor" | "rotary_pct" if type(value) is not bool:
            return value in (None, 1)
        case "layer_types" if isinstance(value, list) and len(value) == facts["num_hidden_layers"]:
            expected = "full_attention" if facts["sliding_window"] is None else "sliding_attention"
            return all(kind == expected for kind in value)
    return value in (None, False, {}, [])


def warn_of_unknown_keys(path: Path, keys: Iterable[str]) -> None:
    """Warns of keys of a file that are unknown."""
    if other := sorted(keys):
        shown = join_names(ascii(key)[1:-1] for key in other)
        log.warning("%s: these keys are unknown and were ignored: %s", path, shown)


def warn_of_encoder_states(config: Config, encoder_states_only: bool, path: Path) -> None:
    """Warns where sentence-transformers gives other vectors for the same files.  encoder_states_only: see `Family`."""
    if config.decoder is not None and not encoder_states_only:
        log.warning("%s: vectors are of the encoder's states here; sentence-transformers takes the decoder's", path)


def check_layer_count(config: Config) -> None:
    """Refuses more layers than `MAX_LAYERS`."""
    for name in ("num_hidden_layers", "num_decoder_layers"):
        layers = config.facts().get(name, 1)
        if layers > MAX_LAYERS:
            raise InputError(Argument(name), f" is {layers}, expected at most {MAX_LAYERS:,}")


def _checked_value(name: str, value: Any, standard: dict[str, Any]) -> Any:
    """A value of the file, checked against the type of the family's default; the config checks its range."""
    default = standard[name]
    kinds = (int, float) if type(default) is float else (type(default),)
    if name == "pad_token_id" and value == -1 and not standard.get("skip_padding"):
        return None  # LLaMA's first files write "none" so; where positions start at it, it is a number
    if name in _TOKEN_ID_KEYS or (name in _NULLABLE and value is None):
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, str) and default in ACTIVATIONS:
        value = ACTIVATION_ALIASES.get(value, value)
    if default is not None and type(value) not in kinds:
        raise InputError(Argument(name), f" is {shorten(ascii(value))}, expected {_TYPE_DESCRIPTIONS[type(default)]}")
    if type(value) is int and abs(value) >= 2**63:
        raise InputError(Argument(name), f" is {shorten(str(value))}, expected a smaller number")
    return value


def _refuse_bidirectional(raw: dict[str, Any], defaults: Config, path: Path) -> None:
    """Refuses a decoder with bidirectional attention, as in many embedding models."""
    if defaults.kind != "encoder" and not raw.get("is_causal", True):
        raise CheckpointMismatchError(
            f"{path}: is_causal is {shorten(ascii(raw['is_causal']))}, so tokens would attend to later ones as well; "
            f"here {defaults.family} is causal, so the numbers would differ"
        )


def named_architecture(raw: Mapping[str, Any]) -> str | None:
    """The class that a `config.json` names; None where it names none, or not in a list of names."""
    architectures = raw.get("architectures")
    first = architectures[0] if isinstance(architectures, list) and architectures else None
    return first if isinstance(first, str) else None


def _named_head(raw: dict[str, Any], heads: dict[str, Head | None]) -> Head | None:
    architectures = raw.get("architectures") or []
    if not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures):
        raise InputError(f"architectures is {shorten(ascii(architectures))}, expected a list of names")
    name = named_architecture(raw)
    if name is None:
        return None
    if name not in heads:
        log.warning(
            "architecture %r is not known%s; its body is read without a head", name[:80], did_you_mean(name, heads)
        )
    return heads.get(name)
