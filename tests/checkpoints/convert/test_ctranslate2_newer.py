"""Folders as current CTranslate2 writes them: settings are tensors, and config.json holds the rest."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pellucid import load
from pellucid.checkpoints.convert import convert
from pellucid.errors import CheckpointMismatchError

WIDTH, INNER, HEADS = 16, 40, 2
VOCABULARY = ["<blank>", "<unk>", "<s>", "</s>", *(f"w{i}" for i in range(20))]


def random_specification(one_table: bool) -> Any:
    """The specification of a tiny random Transformer; `one_table` ties its embeddings and its output projection."""
    specs = pytest.importorskip("ctranslate2.specs")
    generator = np.random.default_rng(3)
    spec = specs.TransformerSpec.from_config((1, 2), HEADS, pre_norm=True)

    def table(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype("float32") * 0.4

    def linear(part: Any, out: int, into: int = WIDTH) -> None:
        part.weight, part.bias = table(out, into), table(out)

    def norm(part: Any) -> None:
        part.gamma, part.beta = 1 + table(WIDTH), table(WIDTH)

    spec.encoder.embeddings[0].weight = table(len(VOCABULARY), WIDTH)
    for target in (spec.decoder.embeddings, spec.decoder.projection):
        target.weight = spec.encoder.embeddings[0].weight if one_table else table(len(VOCABULARY), WIDTH)
    for side in (spec.encoder, spec.decoder):
        norm(side.layer_norm)
        for layer in side.layer:
            attentions = [layer.self_attention, *([layer.attention] if side is spec.decoder else [])]
            for attention in (*attentions, layer.ffn):
                norm(attention.layer_norm)
            linear(layer.self_attention.linear[0], 3 * WIDTH)
            linear(layer.self_attention.linear[1], WIDTH)
            for i, part in enumerate(attentions[1].linear if attentions[1:] else ()):
                linear(part, WIDTH * (2 if i == 1 else 1))
            linear(layer.ffn.linear_0, INNER)
            linear(layer.ffn.linear_1, WIDTH, INNER)
    spec.register_source_vocabulary(VOCABULARY)
    spec.register_target_vocabulary(VOCABULARY)
    return spec


def save_model(folder: Path, *, one_table: bool = False, kind: str | None = None, epsilon: float | None = None) -> Path:
    """Saves CTranslate2's own files, and their tensors as safetensors, in which each alias is a tensor of its own."""
    spec = random_specification(one_table)
    spec.config.layer_norm_epsilon = epsilon
    spec.validate()
    spec.optimize(quantization=kind)
    folder.mkdir()
    spec.save(str(folder))
    values = dict(spec.variables(ordered=True))
    tensors = {name: value for name, value in values.items() if not isinstance(value, str)}
    for name, alias in values.items():
        if isinstance(alias, str):
            tensors |= {name + end: values[alias + end] for end in ("", "_scale") if alias + end in values}
    save_file({n: torch.from_numpy(np.array(v.numpy())) for n, v in tensors.items()}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("one_table", [True, False])
@pytest.mark.parametrize(("kind", "epsilon"), [(None, None), (None, 1e-2), ("float16", None), ("int8", None)])
def test_scores_equal_ctranslate2(tmp_path: Path, one_table: bool, kind: str | None, epsilon: float | None) -> None:
    library = pytest.importorskip("ctranslate2")
    folder = save_model(tmp_path / "theirs", one_table=one_table, kind=kind, epsilon=epsilon)
    model = load(convert(folder, tmp_path / "ours").folder)
    theirs = library.Translator(str(folder), compute_type="float32", intra_threads=1)
    for source, target in ((["w1", "w7", "w7"], ["w2", "w3"]), (["w9"], ["w1", "w1", "w15", "w4"])):
        expected = theirs.score_batch([source], [target])[0].log_probs
        ids = [VOCABULARY.index(word) for word in ("<s>", *target, "</s>")]
        inputs = {"input_ids": torch.tensor([[VOCABULARY.index(word) for word in source]])}
        with torch.no_grad():
            logits = model.module(**inputs, decoder_input_ids=torch.tensor([ids[:-1]]))["logits"][0]
        found = logits.log_softmax(-1)[range(len(ids) - 1), ids[1:]]
        assert found.tolist() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"add_source_eos": True}, "add_source_eos is True; only False is understood"),
        ({"decoder_start_token": "</s>"}, "decoder_start_token is '</s>'; only '<s>' is understood"),
        ({"layer_norm_epsilon": "small"}, "layer_norm_epsilon is 'small', expected a finite number"),
        ({"layer_norm_epsilon": -1}, "layer_norm_epsilon is -1, expected above 0"),
    ],
)
def test_unsupported_config_values_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    folder = save_model(tmp_path / "theirs")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(CheckpointMismatchError, match=message):
        convert(folder, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


@pytest.mark.parametrize(
    "name", ["decoder/alibi", "encoder/multi_query_attention", "decoder/start_from_zero_embedding"]
)
def test_settings_that_change_numbers_are_refused(tmp_path: Path, name: str) -> None:
    folder = save_model(tmp_path / "theirs")
    tensors = load_file(folder / "model.safetensors")
    tensors[name] = torch.ones_like(tensors[name])
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(CheckpointMismatchError, match=f"{name} is 1, which is not understood"):
        convert(folder, tmp_path / "ours")
