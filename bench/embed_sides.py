"""The sides of the embedding benchmark: pellucid, and every peer at its best."""

from collections.abc import Callable, Sequence

import numpy as np
from batches import Batch, pack, pool, token_counts
from convert import bert_with_pooling, converted, example
from side import CrewEngine, Engine, Place, Setting, Side, UnavailableError
from side_process import clocked, timed, tune

OPENVINO_PRECISIONS = {"float32": "f32", "bfloat16": "bf16"}


class Pellucid(Side):
    """pellucid as a user calls it; it chooses its batches itself."""

    def prepare(self, place: Place) -> None:
        import pellucid

        self.model, self.folder = pellucid.load("all-MiniLM-L6-v2"), place.model

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        choice = None if self.precision == "float32" else self.precision
        return self.model.embed(list(texts), dtype=choice).float().numpy()

    def padding(self, texts: Sequence[str]) -> float | None:
        from pellucid.text import length_batches

        lengths = token_counts(texts, self.folder)
        return 1 - sum(lengths) / sum(len(group) * max(lengths[i] for i in group) for group in length_batches(lengths))


class SentenceTransformers(Side):
    """sentence-transformers: its fastest batch size with ``tuned``, otherwise its default."""

    def __init__(self, precision: str, tuned: bool) -> None:
        super().__init__(precision)
        self.axes = {"batch_size": [32, 16, 64, 128]} if tuned else {}
        self.options: Setting = {}

    def prepare(self, place: Place) -> None:
        import torch
        from sentence_transformers import SentenceTransformer

        kind = {"dtype": torch.bfloat16} if self.precision == "bfloat16" else {}
        self.model = SentenceTransformer(str(place.model), device="cpu", model_kwargs=kind)

    def configure(self, setting: Setting) -> None:
        self.options = setting

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = self.model.encode(list(texts), show_progress_bar=False, **self.options)
        return np.asarray(vectors, dtype=np.float32)


class CTranslate2(CrewEngine):
    """CTranslate2's Encoder; ``precision`` is one of its compute types."""

    def convert(self) -> None:
        import ctranslate2

        if self.precision not in ctranslate2.get_supported_compute_types("cpu"):
            raise UnavailableError(f"CTranslate2 has no {self.precision} on this processor")
        self.folder = converted("ctranslate2", self.place.model, self.place.scratch)

    def open(self, setting: Setting) -> None:
        import ctranslate2

        self.view = ctranslate2.StorageView.from_array
        streams = setting["streams"]
        threads = {"inter_threads": streams, "intra_threads": max(1, self.place.threads // streams)}
        self.encoder = ctranslate2.Encoder(str(self.folder), compute_type=self.precision, **threads)

    def run(self, batch: Batch) -> np.ndarray:
        lengths = batch.mask.sum(1).astype(np.int32)
        output = self.encoder.forward_batch(self.view(batch.ids.astype(np.int32)), self.view(lengths))
        return pool(np.array(output.last_hidden_state, dtype=np.float32, copy=None), batch.mask)


class OnnxRuntime(CrewEngine):
    """ONNX Runtime on the CPU: the plain, the fused or the 8-bit graph."""

    def convert(self) -> None:
        graphs = ["int8"] if self.precision == "int8" else ["onnx", "fused"]
        self.axes = {"graph": graphs, **self.axes}
        self.files = {graph: converted(graph, self.place.model, self.place.scratch) for graph in graphs}

    def open(self, setting: Setting) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.intra_op_num_threads = max(1, self.place.threads // setting["streams"])
        options.log_severity_level = 3
        file = str(self.files[setting["graph"]])
        self.session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])

    def run(self, batch: Batch) -> np.ndarray:
        return np.asarray(self.session.run(None, {"input_ids": batch.ids, "attention_mask": batch.mask})[0])


class OpenVINO(Engine):
    """OpenVINO with its own request queue, from PyTorch or from the ONNX graph.

    No 8 bits: they need its compression package, and the 8-bit ONNX graph is slower here than float32.
    """

    def convert(self) -> None:
        import openvino

        self.core = openvino.Core()
        able = self.core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
        if self.precision == "bfloat16" and "BF16" not in able:
            raise UnavailableError("OpenVINO has no bfloat16 on this processor")
        hints = ["THROUGHPUT", "LATENCY"]
        self.axes = {"source": ["pytorch", "onnx"], "hint": hints, "budget": self.axes["budget"]}
        graph = converted("onnx", self.place.model, self.place.scratch)
        self.models = {"onnx": self.core.read_model(graph), "pytorch": self._from_pytorch()}

    def _from_pytorch(self):
        """From PyTorch, which keeps the fused attention that an ONNX graph decomposes; dynamic batch and length."""
        import openvino

        inputs = example()
        shapes = [(name, [-1, -1], np.int64) for name in inputs]
        return openvino.convert_model(bert_with_pooling(self.place.model), example_input=inputs, input=shapes)

    def open(self, setting: Setting) -> None:
        import openvino

        options = {
            "INFERENCE_PRECISION_HINT": OPENVINO_PRECISIONS[self.precision],
            "PERFORMANCE_HINT": setting["hint"],
            "INFERENCE_NUM_THREADS": self.place.threads,
        }
        compiled = self.core.compile_model(self.models[setting["source"]], "CPU", options)
        requests = compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
        self.queue = openvino.AsyncInferQueue(compiled, requests)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        vectors = np.empty((len(texts), 384), dtype=np.float32)

        def keep(request, rows: list[int]) -> None:
            vectors[rows] = request.get_output_tensor(0).data

        self.queue.set_callback(keep)
        for batch in pack(self.tokenizer, texts, self.budget):
            self.queue.start_async({"input_ids": batch.ids, "attention_mask": batch.mask}, batch.rows)
        self.queue.wait_all()
        return vectors


def sides() -> dict[str, Callable[[], Side]]:
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


class Desk:
    """The commands that the process of a side executes."""

    def __init__(self, name: str) -> None:
        self.side = sides()[name]()

    def prepare(self, place: Place, sample: Sequence[str]) -> Setting:
        self.side.prepare(place)
        return tune(self.side.axes, self.side.configure, lambda: clocked(self.side.embed, sample))

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Embeds all texts once; a warm-up whose result is compared."""
        self.texts = list(texts)
        return self.side.embed(self.texts)

    def measure(self) -> tuple[float, float]:
        return timed(lambda: clocked(self.side.embed, self.texts))

    def padding(self) -> float | None:
        return self.side.padding(self.texts)
