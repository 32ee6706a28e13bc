"""Recording: every point once, exact, and unknown names are never silently ignored."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import pellucid
from pellucid import edits
from tests.generation.writers import byte_level
from tests.trace.small_models import small_model

PAIR = ("time flies like an arrow", "fruit flies like a banana")

POINTS = {
    "embeddings.token",
    "embeddings.position",
    "embeddings.type",
    "embeddings.output",
    "pooled",
    *(f"layers.{i}.residual.{p}" for i in range(6) for p in ("pre", "mid", "post")),
    *(
        f"layers.{i}.attention.{p}"
        for i in range(6)
        for p in ("query", "key", "value", "scores", "weights", "heads", "head_outputs", "output")
    ),
    *(f"layers.{i}.feed_forward.{p}" for i in range(6) for p in ("pre", "hidden", "output")),
}


@pytest.fixture(scope="module")
def trace(minilm: "pellucid.Model") -> "pellucid.trace.Trace":
    return minilm.trace(*PAIR)


def test_every_expected_point_is_recorded(trace: "pellucid.trace.Trace") -> None:
    assert set(trace.names()) == POINTS


def test_shapes_of_recorded_points(trace: "pellucid.trace.Trace") -> None:
    assert trace["layers.0.attention.weights"].shape == (1, 12, 13, 13)
    assert trace["layers.0.attention.query"].shape == (1, 12, 13, 32)
    assert trace["layers.0.attention.head_outputs"].shape == (1, 12, 13, 384)
    assert trace["layers.5.feed_forward.hidden"].shape == (1, 13, 1536)
    assert trace["pooled"].shape == (1, 384)
    assert not any(tensor.requires_grad for tensor in trace.points.values())


def test_recorded_points_satisfy_their_identities(trace: "pellucid.trace.Trace") -> None:
    for i in range(6):
        prefix = f"layers.{i}"
        mid = trace[f"{prefix}.residual.pre"] + trace[f"{prefix}.attention.output"]
        assert torch.equal(mid, trace[f"{prefix}.residual.mid"])
        if i:
            assert torch.equal(trace[f"{prefix}.residual.pre"], trace[f"layers.{i - 1}.residual.post"])
        rows = trace[f"{prefix}.attention.weights"].sum(dim=-1)
        torch.testing.assert_close(rows, torch.ones_like(rows))


def test_recording_changes_no_bit(minilm: "pellucid.Model", trace: "pellucid.trace.Trace") -> None:
    with torch.no_grad():
        batch = minilm.tokenizer(*PAIR, return_tensors="pt")
        assert torch.equal(minilm(**batch).last_hidden_state, trace["layers.5.residual.post"])


def test_selected_names_are_recorded(minilm: "pellucid.Model") -> None:
    trace = minilm.trace("time flies", keep=["layers.*.attention.weights", "pooled"])
    assert trace.names() == [f"layers.{i}.attention.weights" for i in range(6)] + ["pooled"]
    assert minilm.trace("time flies", keep="layers.2.residual.post").names() == ["layers.2.residual.post"]


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        ("layers.0.attention.wieghts", "layers.0.attention.weights"),
        ("layers.7.attention.weights", "attention.weights"),
        ("pooler", "pooled"),
    ],
)
def test_unknown_name_lists_similar_ones(minilm: "pellucid.Model", wrong: str, hint: str) -> None:
    with pytest.raises(pellucid.InputError, match=hint):
        minilm.trace("time flies", keep=[wrong])
    with pytest.raises(pellucid.InputError, match="did you mean"):
        minilm.trace("time flies")[wrong]


def test_training_mode_does_not_affect_a_trace(minilm: "pellucid.Model") -> None:
    before = minilm.trace("time flies", keep="pooled")["pooled"]
    minilm.train()
    try:
        assert torch.equal(minilm.trace("time flies", keep="pooled")["pooled"], before)
        assert minilm.module.training
    finally:
        minilm.eval()


def test_trace_states_whether_its_model_was_trained(minilm: "pellucid.Model") -> None:
    model = small_model("bert", minilm)
    assert model.trace("time flies").model == "an untrained model"
    rows = [{"text": "time", "label": "a"}, {"text": "flies", "label": "b"}]
    settings = {"validation": 0, "max_steps": 1, "batch_size": 2, "progress": False}
    assert pellucid.train(model, rows, "classify", **settings).trace("time flies").model == "a model trained here"


def test_tokens_and_offsets(trace: "pellucid.trace.Trace") -> None:
    assert trace.tokens[:3] == ["[CLS]", "time", "flies"]
    assert trace.segments == [0] * 7 + [1] * 6
    words = [
        PAIR[segment][start:end]
        for segment, (start, end), special in zip(trace.segments, trace.offsets, trace.special)
        if not special
    ]
    assert words == [*PAIR[0].split(), *PAIR[1].split()]


def test_lists_of_a_trace_are_copies(minilm: "pellucid.Model", tmp_path: Path) -> None:
    trace = minilm.trace("time flies", keep="pooled")
    for name in ("tokens", "ids", "segments", "offsets", "special"):
        values = getattr(trace, name)
        before = list(values)
        values[1] = "WRONG"
        values.append(values[0])
        assert getattr(trace, name) == before == list(getattr(trace.rows[0], name))
        assert isinstance(getattr(trace.rows[0], name), tuple), "those of a row were lists that the trace has too"
    opened = pellucid.open_trace(trace.save(tmp_path / "a.trace"))
    assert opened.tokens == ["[CLS]", "time", "flies", "[SEP]"] and opened.rows == trace.rows


def test_strongest_links_of_a_head(trace: "pellucid.trace.Trace") -> None:
    links = trace.strongest(0, 8, most=3)
    weights = trace["layers.0.attention.weights"][0, 8]
    assert [weight for *_, weight in links] == sorted((weight for *_, weight in links), reverse=True)
    for source, target, weight in links:
        assert weights[source, target].item() == weight
        assert not trace.special[source] and not trace.special[target]
    assert all(weights[i, j] <= links[0][2] for i in range(1, 6) for j in range(1, 6))


def test_strongest_links_of_an_encoder_decoder_are_those_of_its_encoder(checkpoint: Callable[[str], Path]) -> None:
    trace = pellucid.load(checkpoint("t5-tied")).trace("time flies like an arrow")
    weights = trace["encoder.layers.1.attention.weights"][0, 1]
    text = [i for i, special in enumerate(trace.special) if not special]
    links = trace.strongest(1, 1, most=1_000)
    assert {(i, j): weight for i, j, weight in links} == {(i, j): weights[i, j].item() for i in text for j in text}
    assert [weight for *_, weight in links] == sorted((weight for *_, weight in links), reverse=True)


@pytest.mark.parametrize("window", [None, 2])
def test_masked_links_are_excluded(window: int | None) -> None:
    """They used to be included with a weight of 0."""
    tokenizer = byte_level()
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = pellucid.Config.of("mistral", **sizes, num_key_value_heads=1, intermediate_size=8, sliding_window=window)
    trace = pellucid.build(config, tokenizer=tokenizer).trace("a work of somebody")
    visible = trace["layers.0.attention.weights"][0, 0] > 0
    text_positions = [i for i, special in enumerate(trace.special) if not special]
    links = trace.strongest(0, 0, most=1_000)
    assert {(i, j) for i, j, _ in links} == {(i, j) for i in text_positions for j in text_positions if visible[i, j]}
    assert len(text_positions) > 3 and len(links) < len(text_positions) ** 2


def test_strongest_links_of_negative_weights(minilm: "pellucid.Model") -> None:
    with minilm.edit({"layers.0.attention.weights": edits.scale(-5)}):
        trace = minilm.trace("time flies like")
    for head, weights in enumerate(trace["layers.0.attention.weights"][0]):
        links = trace.strongest(0, head, most=20)
        assert {(i, j) for i, j, _ in links} == {(i, j) for i in range(1, 4) for j in range(1, 4)}
        assert all(weights[i, j].item() == weight for i, j, weight in links)
    trace["layers.0.attention.weights"][0, 0, 1, 1] = math.nan
    assert len(trace.strongest(0, 0, most=20)) == 8


def test_truncation_of_long_texts_is_reported(minilm: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    trace = minilm.trace("word " * 1000, keep="pooled")
    assert len(trace.tokens) == 512
    assert trace.cut == 490
    assert [record.message for record in caplog.records] == ["1 of 1 text was cut to 512 tokens"]
    minilm.trace("word " * 1000, keep="pooled", max_length=8)
    assert len(caplog.records) == 1  # an explicit max_length needs no warning


def test_traces_of_eight_threads_are_separate(minilm: "pellucid.Model") -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts = [f"sentence number {i} " * (i + 1) for i in range(8)]
    alone = [minilm.trace(text) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(minilm.trace, texts))
    for one, other in zip(alone, together):
        assert one.tokens == other.tokens
        torch.testing.assert_close(one["pooled"], other["pooled"], rtol=0, atol=1e-5)


@pytest.fixture
def model_without_layer_3(minilm: "pellucid.Model", monkeypatch: pytest.MonkeyPatch) -> "pellucid.Model":
    """A model whose layer 3 must not be computed."""

    def refuse(*_: object) -> None:
        raise AssertionError("layer 3 was computed")

    monkeypatch.setattr(minilm.module.layers[3], "forward", refuse)
    return minilm


def test_pass_ends_after_the_last_requested_point(model_without_layer_3: "pellucid.Model") -> None:
    trace = model_without_layer_3.trace("time flies", keep="layers.2.residual.post")
    assert trace.names() == ["layers.2.residual.post"]
    with pytest.raises(AssertionError, match="layer 3"):
        model_without_layer_3.trace("time flies", keep="layers.3.residual.post")


def test_attention_is_not_computed_twice_at_the_end_of_a_pass(
    minilm: "pellucid.Model", monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, kernel = [], torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or kernel(*a, **k)
    )
    minilm.trace("time flies", keep="layers.*.attention.weights")
    assert len(calls) == minilm.config.num_hidden_layers - 1
    minilm.trace("time flies", keep=["layers.*.attention.weights", "pooled"])
    assert len(calls) == 2 * minilm.config.num_hidden_layers - 1


def test_edit_after_the_last_requested_point_is_applied(model_without_layer_3: "pellucid.Model") -> None:
    edits = {"layers.4.residual.pre": lambda value: value}
    with pytest.raises(AssertionError, match="layer 3"), model_without_layer_3.edit(edits):
        model_without_layer_3.trace("time flies", keep="layers.2.residual.post")


def test_storage_of_a_recorded_point_is_not_larger_than_the_point(minilm: "pellucid.Model") -> None:
    key = minilm.trace("time flies", keep="layers.0.attention.key")["layers.0.attention.key"]
    assert key.untyped_storage().nbytes() == key.numel() * 4


@pytest.mark.parametrize("dtype", ["int8", "int4", "bfloat16"])
def test_low_bit_models_are_recorded(dtype: str, minilm_folder: Path) -> None:
    model = pellucid.load(minilm_folder, dtype=dtype)
    trace = model.trace(["time flies like an arrow", "hi"])
    assert trace.names() == list(model.points())
    weights = trace.row(1)["layers.3.attention.weights"].float()
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 12, 3), rtol=0, atol=1e-2)
