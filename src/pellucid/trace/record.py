"""Records one pass: every number on the way by the name of the place where it arises."""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import InputError, near
from pellucid.models import EncoderDecoder, count, evaluating
from pellucid.text import Encoded, collate


class Recorder:
    """An onlooker that keeps what it is asked to keep and changes nothing."""

    def __init__(self, patterns: tuple[str, ...], path: str = "", shared: "Recorder | None" = None) -> None:
        self.patterns = patterns
        self.path = path
        self.kept: dict[str, Tensor] = shared.kept if shared else {}
        self.met: dict[str, None] = shared.met if shared else {}

    def __call__(self, name: str, value: Tensor) -> Tensor:
        full = self.path + name
        self.met[full] = None
        if self._keeps(full):
            self.kept[full] = value.detach().clone()
        return value

    def wants(self, name: str) -> bool:
        full = self.path + name
        self.met[full] = None
        return self._keeps(full)

    def inside(self, name: str) -> "Recorder":
        return Recorder(self.patterns, f"{self.path}{name}.", shared=self)

    def _keeps(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.patterns)


@dataclass(frozen=True)
class Trace(Mapping[str, Tensor]):
    """One pass, number by number: `trace["layers.0.attention.weights"]` is a tensor, `trace.names()` lists all.

    points: the tensors by name.  texts: the text, or the two texts of a pair.
    tokens: what the model saw, token by token.  ids, segments: their ids, and 0 or 1 for the text they belong to.
    offsets: where each token stands in its text, in characters.  special: which are no part of the text.
    config, model, parameters: the model's facts, name and size.  cut: how many tokens were cut off.
    """

    points: dict[str, Tensor]
    texts: tuple[str, ...]
    tokens: list[str]
    ids: list[int]
    segments: list[int]
    offsets: list[tuple[int, int]]
    special: list[bool]
    config: Config
    model: str
    parameters: int
    cut: int
    target_tokens: tuple[str, ...] = ()
    """What the decoder of an encoder-decoder had read, token by token."""

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.points:
            raise InputError(f"this trace has no {name!r}{near(name, self.points)}; names() lists what it has")
        return self.points[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.points)

    def __len__(self) -> int:
        return len(self.points)

    def strongest(self, layer: int, head: int, most: int = 5) -> list[tuple[int, int, float]]:
        """The strongest links between real words in one head, as (from, to, weight), the strongest first.

        Of an encoder-decoder, those of the encoder.
        """
        side = "encoder." if self.config.kind == "encoder-decoder" else ""
        weights = self[f"{side}layers.{layer}.attention.weights"][0, head].clone()
        real = torch.tensor([not special for special in self.special])
        weights[~(real[:, None] & real[None, :])] = -1.0
        top = weights.flatten().topk(min(most, int(real.sum()) ** 2))
        return [(int(i) // len(self.tokens), int(i) % len(self.tokens), float(w)) for w, i in zip(*top)]

    def names(self) -> list[str]:
        """The names of everything that was kept, in the order in which it arose."""
        return list(self.points)

    def __repr__(self) -> str:
        size = sum(t.numel() * t.element_size() for t in self.points.values()) / 2**20
        return f"Trace({len(self.tokens)} tokens, {len(self.points)} tensors, {size:.1f} MiB, of {self.model})"


@torch.no_grad()
def record(
    loaded: Loaded,
    text: str,
    pair: str | None = None,
    *,
    target: str | None = None,
    keep: str | Iterable[str] = "all",
    max_length: int | None = None,
) -> Trace:
    """One pass over a text, recorded. See `Model.trace`."""
    if loaded.tokenizer is None:
        raise InputError("this model came without a tokenizer, so it cannot read a text")
    patterns = ("*",) if keep == "all" else (keep,) if isinstance(keep, str) else tuple(keep)
    limit = max_length or loaded.tokenizer.model_max_length
    row = loaded.tokenizer.encode([text], None if pair is None else [pair], max_length=limit)[0]
    recorder = Recorder(patterns)
    batch, read = _batch(loaded, row, target)
    evaluating(loaded.module)(**batch, watch=recorder)
    check_met(patterns, recorder)
    return _trace(loaded, row, text, pair, recorder.kept, read)


def _batch(loaded: Loaded, row: Encoded, target: str | None) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """What the module takes, and the tokens that its decoder reads beside the text."""
    device = loaded.module.embeddings.token.like.device
    takes = loaded.module.forward.__annotations__
    arrays = collate([row.ids], [row.type_ids], 0)
    batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items() if name in takes}
    if not isinstance(loaded.module, EncoderDecoder):
        if target is not None:
            raise InputError(f"a target was given, and a model of kind {loaded.config.kind!r} has no decoder beside it")
        return batch, ()
    ids = batch["input_ids"]
    words = loaded.target_tokenizer or loaded.tokenizer
    if target is not None and words is not None:
        ids = torch.tensor([words.encode([target])[0].ids], device=device)
    batch["decoder_input_ids"] = loaded.module.shifted(ids)
    read = () if words is None else tuple(words.convert_ids_to_tokens(batch["decoder_input_ids"][0].tolist()))
    return batch, read


def _trace(
    loaded: Loaded, row: Encoded, text: str, pair: str | None, kept: dict[str, Tensor], read: tuple[str, ...]
) -> Trace:
    return Trace(
        points=kept,
        texts=(text,) if pair is None else (text, pair),
        tokens=row.tokens,
        ids=row.ids,
        segments=row.type_ids,
        offsets=row.offsets,
        special=[bool(flag) for flag in row.special],
        config=loaded.config,
        model=loaded.source.name if loaded.source else "an untrained model",
        parameters=count(loaded.module),
        cut=row.cut,
        target_tokens=read,
    )


def check_met(patterns: tuple[str, ...], recorder: Recorder) -> None:
    """A name that no point answers to is a mistake, never silence."""
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(name, pattern) for name in recorder.kept):
            raise InputError(f"no point is called {pattern!r}{near(pattern, recorder.met)}")
