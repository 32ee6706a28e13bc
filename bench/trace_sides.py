"""The sides of the benchmark of tracing, and the values by which two sides are compared."""

import contextlib
import random
from abc import abstractmethod
from functools import partial
from importlib import metadata
from typing import Any

from comparison import WorkloadSide
from side import Setting, Workspace

WORDS = """time flies like an arrow and fruit flies like a banana while the quick brown fox jumps over some lazy dog
that nobody in the village had ever seen awake before this long and rather unremarkable afternoon""".split()
VOCABULARY, LAYERS, HEADS, WIDTH, POSITIONS = 50257, 12, 12, 768, 1024
"""GPT-2's own sizes."""


def sentences(count: int = 64) -> list[str]:
    """Sentences of 5 to 40 words, the same in every run."""
    generator = random.Random(0)
    return [" ".join(generator.choice(WORDS) for _ in range(generator.randint(5, 40))) for _ in range(count)]


def token_ids(count: int) -> list[list[int]]:
    """One text of ``count`` ids, the same in every run."""
    generator = random.Random(1)
    return [[generator.randrange(VOCABULARY) for _ in range(count)]]


# -- every attention of an encoder: from texts to the weights of all layers -------------------------------------------


class AttentionSide(WorkloadSide):
    """A side of the first part."""

    def __init__(self, workspace: Workspace) -> None:
        self.texts = sentences()

    @abstractmethod
    def run(self) -> list[Any]:
        """The weights of each layer, [texts, heads, seq, seq]."""

    def details(self) -> list[list[float]]:
        """Of each layer, the weights among the first text's first six tokens."""
        return [layer[0, :, :6, :6].flatten().tolist() for layer in self.run()]


class PellucidAttention(AttentionSide):
    """pellucid, as a user calls it."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        import pellucid

        self.model = pellucid.load(workspace.model)

    def run(self) -> list[Any]:
        return list(self.model.trace(self.texts, keep="layers.*.attention.weights").values())


class TransformersAttention(AttentionSide):
    """transformers with `output_attentions=True`, which needs its eager attention."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(workspace.threads)
        self.tokenizer = AutoTokenizer.from_pretrained(workspace.model)
        self.model = AutoModel.from_pretrained(workspace.model, attn_implementation="eager")
        self.inference_mode = torch.inference_mode

    def run(self) -> list[Any]:
        with self.inference_mode():
            batch = self.tokenizer(self.texts, padding=True, return_tensors="pt")
            return list(self.model(**batch, output_attentions=True).attentions)


# -- the activations of a decoder with random weights: from ids to the values by name ---------------------------------

COMMON = ("q", "k", "v", "z", "attn_scores", "pattern", "resid_pre", "resid_mid", "resid_post", "attn_out", "mlp_out")
COMMON_HOOKS = (*(f"hook_{name}" for name in COMMON), "mlp.hook_pre", "mlp.hook_post")
"""The hooks of a layer that both sides have, by TransformerLens's names; 13 per layer."""


class ActivationSide(WorkloadSide):
    """A side of the second part. count: number of tokens of its one text."""

    def __init__(self, workspace: Workspace, count: int) -> None:
        import torch

        torch.set_num_threads(workspace.threads)
        self.inference_mode = torch.inference_mode
        self.ids = torch.tensor(token_ids(count))

    @abstractmethod
    def run(self) -> dict[str, Any]:
        """Recorded values by name."""

    def details(self) -> list[list[float]]:
        """The number of values at the hooks that both sides have, and the number of their elements."""
        values = self.common_values(self.run())
        return [[float(len(values)), float(sum(value.numel() for value in values))]]

    @abstractmethod
    def common_values(self, recorded: dict[str, Any]) -> list[Any]:
        """The recorded values at the hooks that both sides have."""


class PellucidActivations(ActivationSide):
    """pellucid, as `Model.trace` records: fused attention with scores and weights beside it, ending after the last
    requested value."""

    def __init__(self, workspace: Workspace, count: int) -> None:
        super().__init__(workspace, count)
        import pellucid
        from pellucid.config import CausalLM
        from pellucid.trace import resolve
        from pellucid.trace.record import AllRecorded, EarlyStopRecorder

        self.model = pellucid.build(pellucid.Config.of("gpt2", head=CausalLM()))
        patterns = [f"blocks.{i}.*{name}" for i in range(LAYERS) for name in COMMON_HOOKS]
        names = [name for pattern in patterns for name in resolve(pattern, self.model.config)]
        self.make_recorder, self.all_recorded = partial(EarlyStopRecorder, names), AllRecorded

    def run(self) -> dict[str, Any]:
        recorder = self.make_recorder()
        with self.inference_mode(), contextlib.suppress(self.all_recorded):
            self.model.module(self.ids, observer=recorder)
        return recorder.recorded

    def common_values(self, recorded: dict[str, Any]) -> list[Any]:
        return list(recorded.values())


class TransformerLensActivations(ActivationSide):
    """TransformerLens's `run_with_cache` on its own random model: all hooks or, with a filter, the common ones;
    optionally stopping after the last layer."""

    def __init__(self, workspace: Workspace, count: int) -> None:
        super().__init__(workspace, count)
        self.model = self.random_model().eval()

    def axes(self) -> dict[str, list[Any]]:
        return {"filter": [False, True], "stop": [None, LAYERS]}

    def random_model(self) -> Any:
        """Its newest model class where there is one (from 4.0), otherwise the older one."""
        sizes = {"n_layers": LAYERS, "d_model": WIDTH, "n_ctx": POSITIONS, "d_head": WIDTH // HEADS, "n_heads": HEADS}
        sizes |= {"d_vocab": VOCABULARY, "d_mlp": 4 * WIDTH}
        options: dict[str, Any] = {"act_fn": "gelu_new", "normalization_type": "LN", **sizes}
        if int(metadata.version("transformer-lens").split(".")[0]) >= 4:
            from transformer_lens.model_bridge import TransformerBridge

            return TransformerBridge.boot_native(options, device="cpu")
        from transformer_lens import HookedTransformer, HookedTransformerConfig

        return HookedTransformer(HookedTransformerConfig(**options, device="cpu"))

    def configure(self, setting: Setting) -> None:
        super().configure(setting)
        self.names_filter = (lambda name: name.endswith(COMMON_HOOKS)) if setting["filter"] else None

    def run(self) -> dict[str, Any]:
        stop = self.setting["stop"]
        with self.inference_mode():
            return dict(self.model.run_with_cache(self.ids, names_filter=self.names_filter, stop_at_layer=stop)[1])

    def common_values(self, recorded: dict[str, Any]) -> list[Any]:
        names = [name for name in recorded if name.startswith("blocks.") and name.endswith(COMMON_HOOKS)]
        return [recorded[name] for name in names]
