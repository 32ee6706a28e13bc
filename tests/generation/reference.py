"""What the reference generates with tiny random models: ours must match, token by token."""

import functools
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

import pellucid
from tests.parity.reference import TINY, in_full, tiny
from tests.parity.test_parity import _GATED, ARCHITECTURES

_HEADS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")

WRITERS: dict[str, tuple[str, dict[str, Any]]] = {
    name: (name, facts) for name, facts in ARCHITECTURES.items() if name.endswith(_HEADS)
} | {"T5 gated": ("T5ForConditionalGeneration", _GATED)}
"""Every architecture that generates, and its differences from the tiny model of its family."""


@dataclass(frozen=True)
class Pair:
    """The reference's model and ours with the same random weights."""

    theirs: Any
    ours: pellucid.Model

    @property
    def decodes_only(self) -> bool:
        return self.ours.config.kind == "decoder"


@functools.lru_cache(maxsize=64)
def pair(writer: str, ends: tuple[int, ...] = (), length: int = 160, **facts: Any) -> Pair:
    """A tiny model with these end tokens and `length` positions, in float64; its weights do not depend on the ends."""
    architecture, own = WRITERS[writer]
    config = getattr(transformers, architecture).config_class
    changes = own | {"eos_token_id": list(ends) or None} | facts
    if hasattr(config(), "max_position_embeddings"):
        changes[config.attribute_map.get("max_position_embeddings", "max_position_embeddings")] = length
    if "bos_token_id" not in TINY[config.model_type]:
        changes["bos_token_id"] = 1
    with tempfile.TemporaryDirectory() as folder:
        theirs = tiny(Path(folder), architecture, dtype=torch.float64, **changes)
        _set_varied_weights(theirs)
        theirs.save_pretrained(folder)
        return Pair(theirs, pellucid.load(folder, dtype="float64"))


def _set_varied_weights(model: Any) -> None:
    """Sets weights with which greedy generation varies; with plain random ones a model repeats one token for ever.

    Gains of either sign, so that a token is not its own most likely successor where input and output embeddings are
    tied; strong positions; and a source that is attended to without dominating everything else.
    """
    torch.manual_seed(11)
    for name, parameter in model.named_parameters():
        noise = torch.randn_like(parameter)
        if parameter.dim() == 1:
            parameter.data = noise.sign() if name.endswith("weight") else parameter.data
        elif len(parameter) == model.config.vocab_size:
            parameter.data = 0.2 * noise
        elif name.endswith(("embed_positions.weight", "wpe.weight")):
            parameter.data = 2 * noise
        else:
            across = name.endswith(("encoder_attn.out_proj.weight", "EncDecAttention.o.weight"))
            parameter.data = (parameter.data + 0.3 * noise) * (0.2 if across else 1)


def prompts(lengths: Sequence[int] = (17, 5, 11), vocabulary: int = 99) -> list[list[int]]:
    """Random prompts of these lengths."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randint(3, vocabulary, (length,), generator=generator).tolist() for length in lengths]


def generate(
    both: Pair, texts: Sequence[Sequence[int]], *, stopping: Any = None, processors: Any = None, **options: Any
) -> Any:
    """The reference's answer. Prompts of decoders are padded on the left, those of encoders on the right."""
    theirs = both.theirs
    padding = 0 if theirs.config.pad_token_id is None else theirs.config.pad_token_id
    longest = max(map(len, texts))
    ids, mask = (torch.full((len(texts), longest), fill) for fill in (padding, 0))
    for row, text in enumerate(texts):
        positions = slice(longest - len(text), None) if both.decodes_only else slice(len(text))
        ids[row, positions], mask[row, positions] = torch.tensor(text), 1
    theirs.generation_config = transformers.GenerationConfig(
        pad_token_id=padding,
        bos_token_id=1,
        eos_token_id=options.pop("eos_token_id", theirs.config.eos_token_id),
        decoder_start_token_id=getattr(theirs.config, "decoder_start_token_id", None),
        return_dict_in_generate=True,
        output_scores=True,
        **({"do_sample": False, "num_beams": 1} | options),
    )
    with in_full():
        return theirs.generate(ids, attention_mask=mask, stopping_criteria=stopping, logits_processor=processors)


def greedy(both: Pair, texts: Sequence[Sequence[int]], ends: Sequence[int] = (), **options: Any) -> list[list[int]]:
    """The greedy continuation of each text, including its end token."""
    sequences = generate(both, texts, **options).sequences
    start = max(map(len, texts)) if both.decodes_only else 1
    found = []
    for row in sequences[:, start:].tolist():
        stops = [position for position, token in enumerate(row) if token in ends]
        found.append(row[: stops[0] + 1] if stops else row)
    return found


@dataclass(frozen=True)
class ReferenceHypothesis:
    """One hypothesis of the reference's beam search."""

    ids: list[int]
    score: float
    log_probabilities: list[float]


def beams(both: Pair, texts: Sequence[Sequence[int]], **options: Any) -> list[list[ReferenceHypothesis]]:
    """The reference's hypotheses for each prompt, the best first."""
    output = generate(both, texts, **options)
    steps = both.theirs.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    start = max(map(len, texts)) if both.decodes_only else 1
    found: list[list[ReferenceHypothesis]] = [[] for _ in texts]
    for row, length in enumerate((output.beam_indices >= 0).sum(dim=1).tolist()):
        ids = output.sequences[row, start : start + length].tolist()
        score = output.sequences_scores[row].item()
        found[row * len(texts) // len(output.sequences)].append(
            ReferenceHypothesis(ids, score, steps[row, :length].tolist())
        )
    return found


@functools.lru_cache(maxsize=64)
def late_end_tokens(writer: str) -> tuple[int, ...]:
    """For each prompt the token that first appears latest in its greedy text; as end tokens they end texts apart."""
    rows = greedy(pair(writer), prompts(), max_new_tokens=100)
    return tuple(sorted({max(row, key=row.index) for row in rows}))
