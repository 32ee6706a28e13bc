"""The sides of the benchmark of recording, and the values by which two sides are compared."""

import contextlib
import functools
import random
from abc import ABC, abstractmethod
from importlib import metadata
from typing import Any

from side import Place

WORDS = """time flies like an arrow and fruit flies like a banana while the quick brown fox jumps over some lazy dog
that nobody in the village had ever seen awake before this long and rather unremarkable afternoon""".split()
VOCABULARY, LAYERS, HEADS, WIDTH, PLACES = 50257, 12, 12, 768, 1024
"""GPT-2's own sizes."""


def sentences(count: int = 64) -> list[str]:
    """Sentences of 5 to 40 words, the same in every run."""
    chance = random.Random(0)
    return [" ".join(chance.choice(WORDS) for _ in range(chance.randint(5, 40))) for _ in range(count)]


def tokens(count: int) -> list[list[int]]:
    """One text of `count` ids."""
    chance = random.Random(1)
    return [[chance.randrange(VOCABULARY) for _ in range(count)]]


# -- every attention of an encoder: from texts to the weights of all layers -------------------------------------------


class Attentions(ABC):
    """A side of the first part."""

    axes: dict[str, list[Any]] = {}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place) -> None:
        self.texts = sentences()

    def configure(self, setting: dict[str, Any]) -> None:
        """There is nothing to configure."""

    @abstractmethod
    def work(self) -> list[Any]:
        """The weights of each layer, [texts, heads, seq, seq]."""

    def told(self) -> list[list[float]]:
        """Values for comparing two sides: of each layer, the weights among the first text's first six tokens."""
        return [layer[0, :, :6, :6].flatten().tolist() for layer in self.work()]


class OwnAttentions(Attentions):
    """pellucid, as a user calls it."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import pellucid

        self.model = pellucid.load(place.model)

    def work(self) -> list[Any]:
        return list(self.model.trace(self.texts, keep="layers.*.attention.weights").values())


class ReferenceAttentions(Attentions):
    """transformers with `output_attentions=True`, which needs its eager attention."""

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(place.threads)
        self.words = AutoTokenizer.from_pretrained(place.model)
        self.model = AutoModel.from_pretrained(place.model, attn_implementation="eager")
        self.inference = torch.inference_mode

    def work(self) -> list[Any]:
        with self.inference():
            batch = self.words(self.texts, padding=True, return_tensors="pt")
            return list(self.model(**batch, output_attentions=True).attentions)


# -- everything inside a decoder with random numbers: from ids to the values by name ----------------------------------

KEPT = ("q", "k", "v", "z", "attn_scores", "pattern", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
KEPT_HOOKS = (*(f"hook_{name}" for name in KEPT), "mlp.hook_pre", "mlp.hook_post")
"""The hooks of a layer that both sides have, by TransformerLens's names; 13 per layer."""


class Everything(ABC):
    """A side of the second part. count: number of tokens of its one text."""

    axes: dict[str, list[Any]] = {}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place, count: int) -> None:
        import torch

        torch.set_num_threads(place.threads)
        self.inference = torch.inference_mode
        self.ids = torch.tensor(tokens(count))

    def configure(self, setting: dict[str, Any]) -> None:
        """There is nothing to configure."""

    @abstractmethod
    def work(self) -> dict[str, Any]:
        """Recorded values by name."""

    def told(self) -> list[list[float]]:
        """The number of values at the hooks that both sides have, and the number of their elements."""
        held = self.common(self.work())
        return [[float(len(held)), float(sum(value.numel() for value in held))]]

    def common(self, values: dict[str, Any]) -> list[Any]:
        return [value for name, value in values.items() if name.startswith("blocks.") and name.endswith(KEPT_HOOKS)]


class OwnEverything(Everything):
    """pellucid, as `Model.trace` records: fused attention with scores and weights beside it, ending after the last
    requested value."""

    def __init__(self, place: Place, count: int) -> None:
        super().__init__(place, count)
        import pellucid
        from pellucid.config import CausalLM
        from pellucid.trace import resolve
        from pellucid.trace.record import AllRecorded, EarlyStopRecorder

        self.model = pellucid.build(pellucid.Config.of("gpt2", head=CausalLM()))
        asked = [f"blocks.{i}.*{name}" for i in range(LAYERS) for name in KEPT_HOOKS]
        self.names = [name for one in asked for name in resolve(one, self.model.config)]
        self.recorder, self.enough = functools.partial(EarlyStopRecorder, self.names), AllRecorded

    def work(self) -> dict[str, Any]:
        recorder = self.recorder()
        with self.inference(), contextlib.suppress(self.enough):
            self.model.module(self.ids, watch=recorder)
        return recorder.recorded

    def common(self, values: dict[str, Any]) -> list[Any]:
        return list(values.values())


class LensEverything(Everything):
    """TransformerLens's `run_with_cache` on its own random model: all hooks or, with a filter, the common ones;
    optionally stopping after the last layer."""

    axes = {"filter": [False, True], "stop": [None, LAYERS]}  # noqa: RUF012 - nobody writes into it

    def __init__(self, place: Place, count: int) -> None:
        super().__init__(place, count)
        self.model = self.made().eval()
        self.filter, self.stop = False, None

    def made(self) -> Any:
        """Its newest model class where there is one (from 4.0), otherwise the older one."""
        facts = {"n_layers": LAYERS, "d_model": WIDTH, "n_ctx": PLACES, "d_head": WIDTH // HEADS, "n_heads": HEADS}
        facts |= {"d_vocab": VOCABULARY, "d_mlp": 4 * WIDTH, "act_fn": "gelu_new", "normalization_type": "LN"}
        if int(metadata.version("transformer-lens").split(".")[0]) >= 4:
            from transformer_lens.model_bridge import TransformerBridge

            return TransformerBridge.boot_native(facts, device="cpu")
        from transformer_lens import HookedTransformer, HookedTransformerConfig

        return HookedTransformer(HookedTransformerConfig(**facts, device="cpu"))

    def configure(self, setting: dict[str, Any]) -> None:
        self.filter, self.stop = setting["filter"], setting["stop"]

    def work(self) -> dict[str, Any]:
        wanted = (lambda name: name.endswith(KEPT_HOOKS)) if self.filter else None
        with self.inference():
            return dict(self.model.run_with_cache(self.ids, names_filter=wanted, stop_at_layer=self.stop)[1])
