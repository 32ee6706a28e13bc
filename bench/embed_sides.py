"""The sides of the benchmark of embedding: pellucid, and every peer at its best."""

from collections.abc import Callable, Sequence

import numpy as np
from batches import Batch, pack, pool, token_counts
from convert import bert_with_pooling, converted, example
from embed_interface import WIDTH, BatchSide, EmbeddingSide, ThreadedBatchSide
from side import Setting, UnavailableError, Workspace
from timing import elapsed_seconds, least_disturbed, tune

OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class Pellucid(EmbeddingSide):
    """pellucid as a user calls it; it chooses its batches itself."""

    def prepare(self, workspace: Workspace) -> None:
        import pellucid

        self.model, self.folder = pellucid.load("all-MiniLM-L6-v2"), workspace.model

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        dtype = None if self.precision == "float32" else self.precision
        return self.model.embed(list(texts), dtype=dtype).float().numpy()

    def padding(self, texts: Sequence[str]) -> float | None:
        from pellucid.text import length_batches

        lengths = token_counts(texts, self.folder)
        return 1 - sum(lengths) / sum(len(group) * max(lengths[i] for i in group) for group in length_batches(lengths))


class SentenceTransformers(EmbeddingSide):
    """sentence-transformers: its fastest batch size with ``tuned``, otherwise its default."""

    def __init__(self, precision: str, tuned: bool) -> None:
        super().__init__(precision)
        self.axes = {"batch_size": [32, 16, 64, 128]} if tuned else {}
        self.options: Setting = {}

    def prepare(self, workspace: Workspace) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        options = {"dtype": torch.bfloat16} if self.precision == "bfloat16" else {}
        self.model = SentenceTransformer(str(workspace.model), device="cpu", model_kwargs=options)

    def configure(self, setting: Setting) -> None:
        self.options = setting

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self.model.encode(list(texts), show_progress_bar=False, **self.options)
        return np.asarray(vectors, dtype=np.float32)


class CTranslate2(ThreadedBatchSide):
    """CTranslate2's Encoder; ``precision`` is one of its compute types."""

    def convert(self) -> None:
        import ctranslate2

        if self.precision not in ctranslate2.get_supported_compute_types("cpu"):
            raise UnavailableError(f"CTranslate2 has no {self.precision} on this processor")
        self.folder = converted("ctranslate2", self.workspace.model, self.workspace.scratch)

    def open(self, setting: Setting) -> None:
        import ctranslate2

        self.storage = ctranslate2.StorageView.from_array
        streams = setting["streams"]
        threads = {"inter_threads": streams, "intra_threads": max(1, self.workspace.threads // streams)}
        self.encoder = ctranslate2.Encoder(str(self.folder), compute_type=self.precision, **threads)

    def run(self, batch: Batch) -> np.ndarray:
        lengths = batch.mask.sum(1).astype(np.int32)
        output = self.encoder.forward_batch(self.storage(batch.ids.astype(np.int32)), self.storage(lengths))
        return pool(np.array(output.last_hidden_state, dtype=np.float32, copy=None), batch.mask)


class OnnxRuntime(ThreadedBatchSide):
    """ONNX Runtime on the CPU: the plain, the fused or the 8-bit graph."""

    def convert(self) -> None:
        graphs = ["int8"] if self.precision == "int8" else ["onnx", "fused"]
        self.axes = {"graph": graphs, **self.axes}
        self.files = {graph: converted(graph, self.workspace.model, self.workspace.scratch) for graph in graphs}

    def open(self, setting: Setting) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = max(1, self.workspace.threads // setting["streams"])
        options.log_severity_level = 3
        file = str(self.files[setting["graph"]])
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(self, batch: Batch) -> np.ndarray:
        return np.asarray(self.session.run(None, {"input_ids": batch.ids, "attention_mask": batch.mask})[0])


class OpenVINO(BatchSide):
    """OpenVINO with its own request queue, from PyTorch or from the ONNX graph.

    No 8 bits: they need its compression package, and the 8-bit ONNX graph is slower here than float32.
    """

    def convert(self) -> None:
        import openvino

        self.core = openvino.Core()
        capabilities = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if self.precision == "bfloat16" and "BF16" not in capabilities:
            raise UnavailableError("OpenVINO has no bfloat16 on this processor")
        hints = ["THROUGHPUT", "LATENCY"]
        self.axes = {"source": ["pytorch", "onnx"], "hint": hints, "budget": self.axes["budget"]}
        graph = converted("onnx", self.workspace.model, self.workspace.scratch)
        self.models = {"onnx": self.core.read_model(graph), "pytorch": self._from_pytorch()}

    def _from_pytorch(self):
        """From PyTorch, which keeps the fused attention that an ONNX graph decomposes; dynamic batch and length."""
        import openvino

        inputs = example()
        shapes = [(name, [-1, -1], np.int64) for name in inputs]
        return openvino.convert_model(bert_with_pooling(self.workspace.model), example_input=inputs, input=shapes)

    def open(self, setting: Setting) -> None:
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[self.precision],
            "PERFORMANCE_HINT": setting["hint"],
            "INFERENCE_NUM_THREADS": self.workspace.threads,
        }
        compiled = self.core.compile_model(self.models[setting["source"]], "CPU", options)
        requests = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self.queue = openvino.AsyncInferQueue(compiled, requests)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), WIDTH), dtype=np.float32)

        def store(request, rows: list[int]) -> None:
            vectors[rows] = request.get_output_tensor(0).data

        self.queue.set_callback(store)
        for batch in pack(self.tokenizer, texts, self.budget):
            self.queue.start_async({"input_ids": batch.ids, "attention_mask": batch.mask}, batch.rows)
        self.queue.wait_all()
        return vectors


def sides() -> dict[str, Callable[[], EmbeddingSide]]:
    """Every side by name; ratios refer to the plain sentence-transformers."""
    return {
        "pellucid-float32": lambda: Pellucid("float32"),
        "pellucid-bfloat16": lambda: Pellucid("bfloat16"),
        "sentence-transformers": lambda: SentenceTransformers("float32", tuned=False),
        "sentence-transformers-best": lambda: SentenceTransformers("float32", tuned=True),
        "sentence-transformers-bfloat16": lambda: SentenceTransformers("bfloat16", tuned=True),
        "ctranslate2-float32": lambda: CTranslate2("float32"),
        "ctranslate2-bfloat16": lambda: CTranslate2("bfloat16"),
        "ctranslate2-int8": lambda: CTranslate2("int8_float32"),
        "ctranslate2-int8-bfloat16": lambda: CTranslate2("int8_bfloat16"),
        "onnxruntime-float32": lambda: OnnxRuntime("float32"),
        "onnxruntime-int8": lambda: OnnxRuntime("int8"),
        "openvino-float32": lambda: OpenVINO("float32"),
        "openvino-bfloat16": lambda: OpenVINO("bfloat16"),
    }


class EmbeddingCommands:
    """The commands that the process of a side executes."""

    def __init__(self, name: str) -> None:
        self.side = sides()[name]()

    def prepare(self, workspace: Workspace, sample: Sequence[str]) -> Setting:
        """Loads the model and tunes on a sample of the texts; returns the chosen setting."""
        self.side.prepare(workspace)
        return tune(self.side.axes, self.side.configure, lambda: elapsed_seconds(self.side.embed, sample))

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Embeds all texts once; a warm-up whose result is compared."""
        self.texts = list(texts)
        return self.side.embed(self.texts)

    def measure(self) -> tuple[float, float]:
        """Seconds of embedding all texts, and the share of the processor that other processes used meanwhile."""
        return least_disturbed(lambda: elapsed_seconds(self.side.embed, self.texts))

    def padding(self) -> float | None:
        return self.side.padding(self.texts)
