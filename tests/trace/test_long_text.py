"""A long text is recorded without its weights: the other values equal those of a full trace, bit for bit."""

import pytest
import torch
import torch.nn.functional as F

import pellucid
from pellucid import edits
from pellucid.trace import long_text
from pellucid.trace.long_text import is_long, record_long
from tests.trace.odd_sized_models import FAMILIES, model_of

TEXT = "time flies like an arrow and fruit flies like a banana"


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_equal_the_recorded_weights(family: str, minilm: "pellucid.Model") -> None:
    model = model_of(family, minilm.tokenizer)
    whole, sampled = model.trace(TEXT, keep="view"), record_long(model.loaded, TEXT)
    assert set(sampled) == {name for name in whole if not name.endswith("weights")}
    assert all(torch.equal(sampled[name], whole[name]) for name in sampled)
    assert set(sampled.samples) == {name.removesuffix(".weights") for name in whole if name.endswith("weights")}
    for name, sample in sampled.samples.items():
        weights = whole[f"{name}.weights"][0]
        assert torch.equal(sample.weights, weights[:, sample.rows])
        assert torch.equal(sample.picture, weights)  # the picture of so short a text is not reduced


def test_sampled_rows_are_spread_and_thumbnails_keep_maxima() -> None:
    weights = torch.rand(3, 200, 150)
    found = long_text.sample(weights)
    assert len(found.rows) == long_text.SAMPLED_ROWS and found.rows[0] == 0 and found.rows[-1] == 199
    assert found.rows.unique().numel() == long_text.SAMPLED_ROWS
    assert torch.equal(found.weights, weights[:, found.rows])
    assert found.picture.shape == (3, 64, 64)
    assert torch.equal(found.picture.amax((1, 2)), weights.amax((1, 2)))
    assert torch.equal(found.picture, F.adaptive_max_pool2d(weights, 64))


def test_edited_weights_are_not_recomputed_by_a_page(minilm: "pellucid.Model") -> None:
    with minilm.edit({"layers.1.attention.weights": edits.zero(head=1, position=5)}):
        sampled = record_long(minilm.loaded, TEXT)
    with pytest.raises(pellucid.InputError, match=r"zero\(.*changed the weights that layers.1.attention computes from"):
        pellucid.view(sampled)


def test_other_points_can_be_recorded_too(minilm: "pellucid.Model") -> None:
    trace = record_long(minilm.loaded, TEXT, also=("*residual.post",))
    assert torch.equal(trace["layers.5.residual.post"], minilm.trace(TEXT)["layers.5.residual.post"])
    with pytest.raises(pellucid.InputError, match="residual"):
        record_long(minilm.loaded, TEXT, also=("layers.0.residual.pots",))


def test_text_that_is_cut_is_reported(minilm: "pellucid.Model", caplog: pytest.LogCaptureFixture) -> None:
    record_long(minilm.loaded, TEXT, max_length=4)
    assert not caplog.records
    assert len(record_long(minilm.loaded, "word " * 600).tokens) == 512
    assert [record.getMessage() for record in caplog.records] == ["1 of 1 text was cut to 512 tokens"]


def test_text_is_long_if_its_weights_are_large(minilm: "pellucid.Model") -> None:
    assert not is_long(minilm.loaded, TEXT)
    assert not is_long(minilm.loaded, "word " * 500)  # 6 layers x 12 heads x 500 x 500 x 4 bytes
    model = pellucid.build(minilm.config.replace(num_hidden_layers=40), tokenizer=minilm.tokenizer)
    assert is_long(model.loaded, "word " * 500) and not is_long(model.loaded, "word " * 500, max_length=100)


def test_text_that_exceeds_memory_is_refused(minilm: "pellucid.Model", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_text, "free_memory", lambda: 1000)
    with pytest.raises(pellucid.errors.ResourceError, match=r"13 tokens need 0.0 GiB .* max_length"):
        record_long(minilm.loaded, TEXT)
