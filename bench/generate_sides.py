"""The sides of the benchmark of generation: pellucid, and every peer at its best.

A side maps ids to ids: greedily, with its end token forbidden, so that all generate equally many.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from convert import converted
from generate_interface import Writer, surprise
from generate_jobs import Job
from generate_llama_cpp import LlamaCpp
from memory import Meter
from side import Place, Setting, UnavailableError
from side_process import clocked, timed, tune


class Pellucid(Writer):
    """pellucid's own loop, called with ids like every side; nothing is tuned."""

    def library(self) -> None:
        import pellucid.model  # noqa: F401  what `load` imports

    def prepare(self, place: Place) -> None:
        import pellucid

        self.loaded = pellucid.load(place.model, dtype=self.precision).loaded

    def wake(self, place: Place) -> None:
        """Generates with a tiny model, so that everything that the library loads on first use is in memory."""
        import pellucid
        from pellucid.config import CausalLM

        sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
        heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32}
        config = pellucid.Config.of("llama", head=CausalLM(), **sizes, **heads)
        folder = pellucid.build(config).save(place.scratch / "tiny", overwrite=True)
        self.loaded = pellucid.load(folder, dtype=self.precision).loaded
        self.write([[5, 6, 7]], 8)

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        from pellucid.generation import read_settings, write

        texts: list[list[int]] = [[] for _ in prompts]
        for step in write(self.loaded, prompts, read_settings({"max_new_tokens": new, "min_new_tokens": new})):
            for row, token in zip(step.rows, step.tokens):
                texts[row].append(token)
        return texts

    def score(self, windows: list[list[int]]) -> float:
        import torch

        from pellucid.generation.loop import generation_module

        module = generation_module(self.loaded)
        with torch.inference_mode():
            return sum(surprise(module(torch.tensor([ids])).logits[0].float().numpy(), ids) for ids in windows)

    def cache_bytes(self, job: Job) -> int:
        from pellucid.generation.loop import generation_module
        from pellucid.generation.reader import prefill

        reader, _ = prefill(generation_module(self.loaded), job.prompts, job.new)
        return sum(layer.self_attention.memory.nbytes for layer in reader.cache.layers)


class Transformers(Writer):
    """`generate` of transformers, without `torch.compile`, whose compilation takes longer than the whole benchmark."""

    def library(self) -> None:
        from transformers import AutoModelForCausalLM  # noqa: F401

    def prepare(self, place: Place) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(place.threads)
        folder = converted("checkpoint", place.model, place.scratch)
        kind = getattr(torch, self.precision)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind, attn_implementation="sdpa").eval()

    def axes(self, job: Job) -> dict[str, list[Any]]:
        if job.new == 1:
            return {}
        attention = {"attention": ["sdpa", "eager"]} if len(job.prompts) == 1 else {}
        return attention | {"cache": ["dynamic", "static"]}

    def configure(self, setting: Setting, job: Job) -> None:
        self.model.set_attn_implementation(setting.get("attention", "sdpa"))
        self.cache = setting.get("cache", "dynamic")

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        import torch

        longest, pad = max(map(len, prompts)), self.model.config.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "disable_compile": True}
        if self.cache == "static":
            options["cache_implementation"] = "static"
        with torch.inference_mode():
            return self.model.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()

    def score(self, windows: list[list[int]]) -> float:
        import torch

        with torch.inference_mode():
            return sum(surprise(self.model(torch.tensor([ids])).logits[0].float().numpy(), ids) for ids in windows)


class CTranslate2(Writer):
    """CTranslate2's Generator; ``precision`` "int8" means the fastest of its int8 compute types."""

    environments = ({"CT2_USE_MKL": "0"}, {"CT2_USE_MKL": "1"})  # read once per process, hence two environments

    def library(self) -> None:
        import ctranslate2  # noqa: F401

    def prepare(self, place: Place) -> None:
        import ctranslate2
        from tokenizers import Tokenizer

        able = sorted(ctranslate2.get_supported_compute_types("cpu"), key=len, reverse=True)
        # Plain "int8" leaves the other compute type to the library, which then picks one of the longer names.
        wanted = [kind for kind in able if kind.startswith("int8_")] if self.precision == "int8" else [self.precision]
        self.kinds = [kind for kind in wanted if kind in able]
        if not self.kinds:
            raise UnavailableError(f"CTranslate2 has no {self.precision} on this processor")
        self.place, self.opened = place, {}
        self.folder = converted("writer8" if self.precision == "int8" else "writer", place.model, place.scratch)
        checkpoint = converted("checkpoint", place.model, place.scratch)
        self.words = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).id_to_token

    def axes(self, job: Job) -> dict[str, list[Any]]:
        if len(job.prompts) == 1:
            return {"kind": self.kinds, "streams": [1], "batch": [1]}
        return {"kind": self.kinds, "streams": self.place.streams(), "batch": [16, 8, 4]}

    def configure(self, setting: Setting, job: Job) -> None:
        self.batch = setting["batch"]
        self._open(setting["kind"], setting["streams"])

    def _open(self, kind: str, streams: int = 1) -> None:
        import ctranslate2

        opened = {"compute_type": kind, "inter_threads": streams}
        if opened != self.opened:
            threads = max(1, self.place.threads // streams)
            self.generator = ctranslate2.Generator(str(self.folder), intra_threads=threads, **opened)
            self.opened = opened

    def _tokens(self, rows: list[list[int]]) -> list[list[str]]:
        return [[self.words(token) or "" for token in row] for row in rows]

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        options = {"max_length": new, "min_length": new, "include_prompt_in_result": False}
        results = self.generator.generate_batch(self._tokens(prompts), max_batch_size=self.batch, **options)
        return [result.sequences_ids[0] for result in results]

    def score(self, windows: list[list[int]]) -> float:
        self._open(self.kinds[0])
        results = self.generator.score_batch(self._tokens(windows), max_batch_size=1)
        return -sum(sum(result.log_probs) for result in results)


def sides() -> dict[str, Callable[[], Writer]]:
    """Every side by name."""
    return {
        "transformers-float32": lambda: Transformers("float32"),
        "transformers-bfloat16": lambda: Transformers("bfloat16"),
        "ctranslate2-float32": lambda: CTranslate2("float32"),
        "ctranslate2-bfloat16": lambda: CTranslate2("bfloat16"),
        "ctranslate2-int8": lambda: CTranslate2("int8"),
        "llama.cpp": lambda: LlamaCpp("int4"),
        "pellucid-float32": lambda: Pellucid("float32"),
        "pellucid-bfloat16": lambda: Pellucid("bfloat16"),
        "pellucid-int8": lambda: Pellucid("int8"),
        "pellucid-int4": lambda: Pellucid("int4"),
    }


def likeliest(axes: dict[str, list[Any]]) -> Setting:
    """The first value of every axis."""
    return {axis: values[0] for axis, values in axes.items()}


class Desk:
    """The commands that the process of a side executes."""

    def __init__(self, name: str) -> None:
        self.writer = sides()[name]()

    def prepare(self, place: Place) -> None:
        self.writer.prepare(place)

    def trial(self, job: Job) -> float:
        """The time of the job, or of a shorter one in its place, with the first value of every axis."""
        self.writer.configure(likeliest(self.writer.axes(job)), job)
        self.seconds(job.short())
        return timed(lambda: self.seconds(job.tried()), job.turns)[0]

    def ready(self, job: Job) -> tuple[Setting, list[list[int]]]:
        """Tunes for a job and runs it once; returns the setting and the tokens."""
        self.job, tried = job, job.tried()
        setting = tune(
            self.writer.axes(job),
            lambda chosen: self.writer.configure(chosen, job),
            lambda: self.seconds(tried),
            warm=lambda: self.seconds(job.short()),
            times=1 if tried.new > job.short().new else 2,
            most=job.turns,
        )
        tokens = self.writer.write(job.prompts, job.new)
        if wrong := [len(row) for row in tokens if len(row) != job.new]:
            raise UnavailableError(f"it wrote {wrong[0]} tokens where {job.new} were asked for")
        return setting, tokens

    def seconds(self, job: Job) -> float:
        """The counted seconds: of the whole job, or without its first steps."""
        first = clocked(self.writer.write, job.prompts, job.less) if job.less else 0.0
        whole = clocked(self.writer.write, job.prompts, job.new)
        return max(whole - first, whole / 2)  # the first steps are few; a larger share is a disturbance, and capped

    def measure(self) -> tuple[float, float]:
        return timed(lambda: self.seconds(self.job), self.job.turns)

    def perplexity(self, windows: list[list[int]]) -> float:
        """Perplexity over every token of a window but its first."""
        return float(np.exp(self.writer.score(windows) / sum(len(ids) - 1 for ids in windows)))

    def memory(self, place: Place, job: Job, setting: Setting, awake: bool = False) -> dict[str, int]:
        """Peak bytes above the imported library, for loading the model and generating.

        awake: above a library that has already generated.
        """
        self.writer.library()
        if awake:
            self.writer.wake(place)
        meter = Meter()
        self.writer.prepare(place)
        self.writer.configure(setting or likeliest(self.writer.axes(job)), job)
        self.writer.write(job.prompts, job.new)
        return meter.read() | {"cache": self.writer.cache_bytes(job)}
