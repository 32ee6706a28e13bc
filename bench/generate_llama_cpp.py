"""llama.cpp as a side of the benchmark of generation: its C interface, as its own programs use it, and NumPy's argmax.

The loop of its Python package reads one text at a time and copies all logits; this one does neither.
"""

import ctypes
from typing import Any

import numpy as np
from generate_interface import ELEMENTS_PER_POSITION, GenerationSide, negative_log_likelihood
from generate_jobs import Job
from side import Setting, UnavailableError, Workspace


class Context:
    """A llama.cpp context for several texts side by side, and one batch of tokens that is refilled for every pass."""

    def __init__(self, api: Any, model: Any, threads: int, tokens: int, **options: Any) -> None:
        self.api, self.vocabulary = api, api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        parameters = api.llama_context_default_params()
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        for name, value in options.items():
            setattr(parameters, name, value)
        self.context = api.llama_init_from_model(model, parameters)
        if not self.context:
            raise UnavailableError(f"llama.cpp cannot create a context with {options}")
        self.batch = api.llama_batch_init(tokens, 0, 1)
        view = np.ctypeslib.as_array
        self.token, self.position = view(self.batch.token, (tokens,)), view(self.batch.pos, (tokens,))
        self.wants_logits = view(self.batch.logits, (tokens,))
        view(self.batch.n_seq_id, (tokens,))[:] = 1
        self.text_of_token = [self.batch.seq_id[i] for i in range(tokens)]
        self.logits: tuple[Any, np.ndarray] = (None, np.empty(0))  # address and rows, and a view of them

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def add_to_batch(self, row: int, first: int, start: int, ids: Any, wants_logits: Any) -> int:
        """Writes ids into the batch from index ``start``, for positions from ``first``; returns the next free index."""
        end = start + len(ids)
        self.token[start:end], self.position[start:end] = ids, range(first, first + len(ids))
        self.wants_logits[start:end] = wants_logits
        for i in range(start, end):
            self.text_of_token[i][0] = row
        return end

    def read(self, tokens: int, rows: int) -> np.ndarray:
        """One pass over the first ``tokens`` of the batch: logits float32 [rows, vocabulary], not copied."""
        self.batch.n_tokens = tokens
        if code := self.api.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode failed with code {code}")
        pointer = self.api.llama_get_logits(self.context)
        key = (ctypes.addressof(pointer.contents), rows)
        if key != self.logits[0]:
            self.logits = key, np.ctypeslib.as_array(pointer, (rows, self.vocabulary))
        return self.logits[1]

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)


class LlamaCpp(GenerationSide):
    """llama.cpp on the GGUF file itself."""

    def import_library(self) -> None:
        import llama_cpp  # noqa: F401

    def prepare(self, workspace: Workspace) -> None:
        import llama_cpp as api

        api.llama_backend_init()
        self.api, self.workspace = api, workspace
        self.model = api.llama_model_load_from_file(str(workspace.model).encode(), api.llama_model_default_params())
        if not self.model:
            raise UnavailableError(f"llama.cpp cannot open {workspace.model}")
        self.end = api.llama_vocab_eos(api.llama_model_get_vocab(self.model))
        self.context: Context | None = None

    def axes(self, job: Job) -> dict[str, list[Any]]:
        """flash: fused attention.  ubatch: tokens per product.  unified: one cache for all texts.

        reading: all prompts in one batch, or each in its own.
        """
        axes: dict[str, list[Any]] = {"flash": [True, False]}
        if sum(map(len, job.prompts)) > 512:
            axes["ubatch"] = [512, 1024, 2048]
        if len(job.prompts) > 1:
            axes |= {"unified": [False, True], "reading": ["together", "apart"]}
        return axes

    def configure(self, setting: Setting, job: Job) -> None:
        self.together = setting.get("reading", "together") == "together"
        self.close()
        texts, prompt_tokens = len(job.prompts), sum(map(len, job.prompts))
        positions = -(-job.positions // 256) * 256 * texts  # it allocates the cache in steps of 256 positions
        self.context = self._open(
            positions,
            max(prompt_tokens, 32),
            n_seq_max=texts,
            n_ubatch=setting.get("ubatch", 512),
            flash_attn_type=int(setting["flash"]),
            kv_unified=setting.get("unified", False),
            n_outputs_max=texts,
        )

    def _open(self, positions: int, tokens: int, **options: Any) -> Context:
        return Context(self.api, self.model, self.workspace.threads, tokens, n_ctx=positions, n_batch=tokens, **options)

    def close(self) -> None:
        if self.context is not None:
            self.context.close()
        self.context = None

    def _read_prompts(self, context: Context, prompts: list[list[int]]) -> np.ndarray:
        """Reads the prompts; returns the most likely next token of each."""
        next_tokens, end = [], 0
        for row, prompt in enumerate(prompts):
            end = context.add_to_batch(row, 0, end, prompt, 0)
            context.wants_logits[end - 1] = 1
            if not self.together:
                next_tokens.append(self._most_likely(context.read(end, 1)))
                end = 0
        return np.concatenate(next_tokens) if next_tokens else self._most_likely(context.read(end, len(prompts)))

    def _most_likely(self, logits: np.ndarray) -> np.ndarray:
        logits[:, self.end] = -np.inf
        return logits.argmax(axis=1)

    def generate(self, prompts: list[list[int]], new_tokens: int) -> list[list[int]]:
        context, rows = self.context, len(prompts)
        if context is None:
            raise RuntimeError("call configure first")
        context.clear()
        generated = [self._read_prompts(context, prompts)]
        for row, prompt in enumerate(prompts):
            context.add_to_batch(row, len(prompt), row, [0], 1)
        for _ in range(new_tokens - 1):
            context.token[:rows] = generated[-1]
            generated.append(self._most_likely(context.read(rows, rows)))
            context.position[:rows] += 1
        return np.stack(generated, axis=1).tolist()

    def negative_log_likelihood(self, windows: list[list[int]]) -> float:
        tokens, total = max(map(len, windows)), 0.0
        context = self._open(tokens, tokens, n_ubatch=512, flash_attn_type=1)
        for ids in windows:
            context.clear()
            logits = context.read(context.add_to_batch(0, 0, 0, ids, 1), len(ids))
            total += negative_log_likelihood(logits, ids)
        context.close()
        return total

    def cache_bytes(self, job: Job) -> int:
        """Half precision, with positions rounded up to a multiple of 256."""
        return -(-job.positions // 256) * 256 * len(job.prompts) * ELEMENTS_PER_POSITION * 2
