"""llama.cpp as a side of the benchmark of generation: its C interface, as its own programs use it, and NumPy's argmax.

The Python package's own loop reads one text at a time and copies all logits; this one does neither.
"""

import ctypes
from typing import Any

import numpy as np
from generate_interface import NUMBERS_PER_POSITION, Writer, surprise
from generate_jobs import Job
from side import Place, Setting, UnavailableError


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
            raise UnavailableError(f"llama.cpp makes no context with {options}")
        self.batch = api.llama_batch_init(tokens, 0, 1)
        view = np.ctypeslib.as_array
        self.token, self.position = view(self.batch.token, (tokens,)), view(self.batch.pos, (tokens,))
        self.wanted = view(self.batch.logits, (tokens,))
        view(self.batch.n_seq_id, (tokens,))[:] = 1
        self.text = [self.batch.seq_id[i] for i in range(tokens)]
        self.seen: tuple[Any, np.ndarray] = (None, np.empty(0))

    def clear(self) -> None:
        self.api.llama_memory_clear(self.api.llama_get_memory(self.context), False)

    def put(self, row: int, first: int, start: int, ids: Any, wanted: Any) -> int:
        """Writes ids into the batch from index ``start``, for positions from ``first``; returns the next free index."""
        end = start + len(ids)
        self.token[start:end], self.position[start:end] = ids, range(first, first + len(ids))
        self.wanted[start:end] = wanted
        for place in range(start, end):
            self.text[place][0] = row
        return end

    def read(self, tokens: int, rows: int) -> np.ndarray:
        """One pass over the first ``tokens`` of the batch: logits float32 [rows, vocabulary], not copied."""
        self.batch.n_tokens = tokens
        if code := self.api.llama_decode(self.context, self.batch):
            raise RuntimeError(f"llama_decode says {code}")
        pointer = self.api.llama_get_logits(self.context)
        place = (ctypes.addressof(pointer.contents), rows)
        if place != self.seen[0]:
            self.seen = place, np.ctypeslib.as_array(pointer, (rows, self.vocabulary))
        return self.seen[1]

    def close(self) -> None:
        self.api.llama_batch_free(self.batch)
        self.api.llama_free(self.context)


class LlamaCpp(Writer):
    """llama.cpp on the GGUF file itself."""

    def library(self) -> None:
        import llama_cpp  # noqa: F401

    def prepare(self, place: Place) -> None:
        import llama_cpp as api

        api.llama_backend_init()
        self.api, self.place = api, place
        self.model = api.llama_model_load_from_file(str(place.model).encode(), api.llama_model_default_params())
        if not self.model:
            raise UnavailableError(f"llama.cpp does not open {place.model}")
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
        texts, read = len(job.prompts), sum(map(len, job.prompts))
        room = -(-job.positions // 256) * 256 * texts  # it allocates the cache in steps of 256 positions
        self.context = self._open(
            room,
            max(read, 32),
            n_seq_max=texts,
            n_ubatch=setting.get("ubatch", 512),
            flash_attn_type=int(setting["flash"]),
            kv_unified=setting.get("unified", False),
            n_outputs_max=texts,
        )

    def _open(self, room: int, tokens: int, **options: Any) -> Context:
        return Context(self.api, self.model, self.place.threads, tokens, n_ctx=room, n_batch=tokens, **options)

    def close(self) -> None:
        if self.context is not None:
            self.context.close()
        self.context = None

    def _begin(self, context: Context, prompts: list[list[int]]) -> np.ndarray:
        """Reads the prompts; returns the most likely next token of each."""
        found, end = [], 0
        for row, prompt in enumerate(prompts):
            end = context.put(row, 0, end, prompt, 0)
            context.wanted[end - 1] = 1
            if not self.together:
                found.append(self._likeliest(context.read(end, 1)))
                end = 0
        return np.concatenate(found) if found else self._likeliest(context.read(end, len(prompts)))

    def _likeliest(self, logits: np.ndarray) -> np.ndarray:
        logits[:, self.end] = -np.inf
        return logits.argmax(axis=1)

    def write(self, prompts: list[list[int]], new: int) -> list[list[int]]:
        context, rows = self.context, len(prompts)
        if context is None:
            raise RuntimeError("not configured")
        context.clear()
        written = [self._begin(context, prompts)]
        for row, prompt in enumerate(prompts):
            context.put(row, len(prompt), row, [0], 1)
        for _ in range(new - 1):
            context.token[:rows] = written[-1]
            written.append(self._likeliest(context.read(rows, rows)))
            context.position[:rows] += 1
        return np.stack(written, axis=1).tolist()

    def score(self, windows: list[list[int]]) -> float:
        tokens, total = max(map(len, windows)), 0.0
        context = self._open(tokens, tokens, n_ubatch=512, flash_attn_type=1)
        for ids in windows:
            context.clear()
            total += surprise(context.read(context.put(0, 0, 0, ids, 1), len(ids)), ids)
        context.close()
        return total

    def cache_bytes(self, job: Job) -> int:
        """Half precision, with positions rounded up to a multiple of 256."""
        return -(-job.positions // 256) * 256 * len(job.prompts) * NUMBERS_PER_POSITION * 2
