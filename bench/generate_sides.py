"""The sides of the benchmark of generation: pellucid, and every peer at its best.

A side maps ids to ids: greedily, with its end token forbidden, so that all generate equally many tokens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from convert import converted
from generate_interface import GenerationSide, negative_log_likelihood
from generate_jobs import Job
from generate_llama_cpp import LlamaCpp
from memory import MemoryMeter
from side import Setting, UnavailableError, Workspace
from timing import elapsed_seconds, first_values, least_disturbed, tune


class Pellucid(GenerationSide):
    """pellucid's own loop, which is called with ids like every side; nothing is tuned."""

    def import_library(self) -> None:
        import pellucid.model  # noqa: F401 - what `load` imports

    def prepare(self, workspace: Workspace) -> None:
        import pellucid

        self.loaded = pellucid.load(workspace.model, dtype=self.precision).loaded

    def use_library(self, workspace: Workspace) -> None:
        """Generates with a tiny model, so that everything that the library loads on first use is in memory."""
        import pellucid
        from pellucid.config import CausalLM

        sizes = {"vocab_size": 64, "hidden_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}
        heads = {"num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 32}
        config = pellucid.Config.of("llama", head=CausalLM(), **sizes, **heads)
        folder = pellucid.build(config).save(workspace.scratch / "tiny", overwrite=True)
        self.loaded = pellucid.load(folder, dtype=self.precision).loaded
        self.generate([[5, 6, 7]], 8)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        from pellucid.generation import read_settings, write

        generated: list[list[int]] = [[] for _ in prompts]
        settings = read_settings({"max_new_tokens": new_tokens, "min_new_tokens": new_tokens})
        for step in write(self.loaded, prompts, settings):
            for row, token in zip(step.rows, step.tokens):
                generated[row].append(token)
        return generated

    def negative_log_likelihood(self, windows: list[list[int]]) -> float:
        import torch

        from pellucid.generation.loop import generation_module

        module = generation_module(self.loaded)
        with torch.inference_mode():
            rows = ((module(torch.tensor([ids])).logits[0].float().numpy(), ids) for ids in windows)
            return sum(negative_log_likelihood(logits, ids) for logits, ids in rows)

    def cache_bytes(self, job: Job) -> int:
        from pellucid.generation.loop import generation_module
        from pellucid.generation.reader import prefill

        reader, _ = prefill(generation_module(self.loaded), job.prompts, job.new_tokens)
        return sum(layer.self_attention.memory.nbytes for layer in reader.cache.layers)


class Transformers(GenerationSide):
    """`generate` of transformers, without `torch.compile`, whose compilation takes longer than the whole benchmark."""

    def import_library(self) -> None:
        from transformers import AutoModelForCausalLM  # noqa: F401

    def prepare(self, workspace: Workspace) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(workspace.threads)
        folder = converted("checkpoint", workspace.model, workspace.scratch)
        dtype = getattr(torch, self.precision)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()

    def axes(self, job: Job) -> dict[str, list[Any]]:
        if job.new_tokens == 1:
            return {}
        attention = {"attention": ["sdpa", "eager"]} if len(job.prompts) == 1 else {}
        return attention | {"cache": ["dynamic", "static"]}

    def configure(self, setting: Setting, job: Job) -> None:
        self.model.set_attn_implementation(setting.get("attention", "sdpa"))
        self.cache = setting.get("cache", "dynamic")

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        import torch

        longest, pad = max(map(len, prompts)), self.model.config.pad_token_id
        ids = torch.tensor([[pad] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        options: dict[str, Any] = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens}
        options |= {"do_sample": False, "disable_compile": True}
        if self.cache == "static":
            options["cache_implementation"] = "static"
        with torch.inference_mode():
            return self.model.generate(ids, attention_mask=mask, **options)[:, longest:].tolist()

    def negative_log_likelihood(self, windows: list[list[int]]) -> float:
        import torch

        with torch.inference_mode():
            rows = ((self.model(torch.tensor([ids])).logits[0].float().numpy(), ids) for ids in windows)
            return sum(negative_log_likelihood(logits, ids) for logits, ids in rows)


class CTranslate2(GenerationSide):
    """CTranslate2's Generator; ``precision`` "int8" means the fastest of its int8 compute types."""

    environments = ({"CT2_USE_MKL": "0"}, {"CT2_USE_MKL": "1"})  # read once per process, hence two environments

    def import_library(self) -> None:
        import ctranslate2  # noqa: F401

    def prepare(self, workspace: Workspace) -> None:
        import ctranslate2
        from tokenizers import Tokenizer

        supported = sorted(ctranslate2.get_supported_compute_types("cpu"), key=len, reverse=True)
        # Plain "int8" leaves the other compute type to the library, which then picks one of the longer names.
        int8_types = [name for name in supported if name.startswith("int8_")]
        requested = int8_types if self.precision == "int8" else [self.precision]
        self.compute_types = [name for name in requested if name in supported]
        if not self.compute_types:
            raise UnavailableError(f"CTranslate2 has no {self.precision} on this processor")
        self.workspace, self.opened = workspace, {}
        decoder = "ctranslate2-decoder-int8" if self.precision == "int8" else "ctranslate2-decoder"
        self.folder = converted(decoder, workspace.model, workspace.scratch)
        checkpoint = converted("checkpoint", workspace.model, workspace.scratch)
        self.token_of_id = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).id_to_token

    def axes(self, job: Job) -> dict[str, list[Any]]:
        if len(job.prompts) == 1:
            return {"compute_type": self.compute_types, "streams": [1], "batch": [1]}
        return {"compute_type": self.compute_types, "streams": self.workspace.parallel_batches(), "batch": [16, 8, 4]}

    def configure(self, setting: Setting, job: Job) -> None:
        self.batch = setting["batch"]
        self._open(setting["compute_type"], setting["streams"])

    def _open(self, compute_type: str, streams: int = 1) -> None:
        import ctranslate2

        opened = {"compute_type": compute_type, "inter_threads": streams}
        if opened != self.opened:
            threads = max(1, self.workspace.threads // streams)
            self.generator = ctranslate2.Generator(str(self.folder), intra_threads=threads, **opened)
            self.opened = opened

    def _tokens(self, rows: list[list[int]]) -> list[list[str]]:
        return [[self.token_of_id(token) or "" for token in row] for row in rows]

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        options = {"max_length": new_tokens, "min_length": new_tokens, "include_prompt_in_result": False}
        results = self.generator.generate_batch(self._tokens(prompts), max_batch_size=self.batch, **options)
        return [result.sequences_ids[0] for result in results]

    def negative_log_likelihood(self, windows: list[list[int]]) -> float:
        self._open(self.compute_types[0])
        results = self.generator.score_batch(self._tokens(windows), max_batch_size=1)
        return -sum(sum(result.log_probs) for result in results)


def sides() -> dict[str, Callable[[], GenerationSide]]:
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


class GenerationCommands:
    """The commands that the process of a side executes."""

    def __init__(self, name: str) -> None:
        self.side = sides()[name]()

    def prepare(self, workspace: Workspace) -> None:
        self.side.prepare(workspace)

    def trial_seconds(self, job: Job) -> float:
        """The time of the job, or of a shorter one in its place, with the first value of every axis."""
        self.side.configure(first_values(self.side.axes(job)), job)
        self.seconds(job.shortened())
        return least_disturbed(lambda: self.seconds(job.for_tuning()), job.attempts)[0]

    def tune_for(self, job: Job) -> tuple[Setting, list[list[int]]]:
        """Tunes for a job and runs it once; returns the setting and the tokens."""
        self.job, trial = job, job.for_tuning()
        setting = tune(
            self.side.axes(job),
            lambda candidate: self.side.configure(candidate, job),
            lambda: self.seconds(trial),
            warm_up=lambda: self.seconds(job.shortened()),
            repeats=1 if trial.new_tokens > job.shortened().new_tokens else 2,
            attempts=job.attempts,
        )
        tokens = self.side.generate(job.prompts, job.new_tokens)
        if wrong := [len(row) for row in tokens if len(row) != job.new_tokens]:
            raise UnavailableError(f"it generated {wrong[0]} tokens instead of {job.new_tokens}")
        return setting, tokens

    def seconds(self, job: Job) -> float:
        """The seconds that count: of the whole job, or without its first steps."""
        fewer = job.subtracted_tokens
        first = elapsed_seconds(self.side.generate, job.prompts, fewer) if fewer else 0.0
        whole = elapsed_seconds(self.side.generate, job.prompts, job.new_tokens)
        return max(whole - first, whole / 2)  # the first steps are few; a larger share is a disturbance, and capped

    def measure(self) -> tuple[float, float]:
        return least_disturbed(lambda: self.seconds(self.job), self.job.attempts)

    def perplexity(self, windows: list[list[int]]) -> float:
        """Perplexity over every token of a window but its first."""
        return float(np.exp(self.side.negative_log_likelihood(windows) / sum(len(ids) - 1 for ids in windows)))

    def memory(self, workspace: Workspace, job: Job, setting: Setting, used: bool = False) -> dict[str, int]:
        """Peak bytes above the imported library, for loading the model and generating.

        used: above a library that has already generated.
        """
        self.side.import_library()
        if used:
            self.side.use_library(workspace)
        meter = MemoryMeter()
        self.side.prepare(workspace)
        self.side.configure(setting or first_values(self.side.axes(job)), job)
        self.side.generate(job.prompts, job.new_tokens)
        return meter.read() | {"cache": self.side.cache_bytes(job)}
