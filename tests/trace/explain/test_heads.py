"""Head scores match their definitions: on weights made by hand, against a plain loop, and on every family."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

import pellucid
from pellucid import InputError
from pellucid.checkpoints.families import families
from pellucid.checkpoints.load import read_tokenizer
from pellucid.trace import Trace
from pellucid.trace.explain import HeadScores
from pellucid.trace.explain.heads import _repeated_sequences
from tests.trace.explain.models import built_model

TEXT = "time flies like an arrow and fruit flies like a banana"
TOKENIZERS = Path(__file__).parents[2] / "parity" / "golden" / "tokenizers"
NAMES = ("previous", "first", "duplicate", "induction", "entropy")


def model_and_trace_with_weights(model: pellucid.Model, text: str, *heads: Tensor) -> tuple[pellucid.Model, Trace]:
    """A trace whose layers all have these heads."""
    trace = model.trace(text, keep="layers.*.attention.weights")
    return model, replace(trace, points={name: torch.stack(heads)[None] for name in trace})


def one_hot(*targets: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(targets), len(targets)).float()


def test_scores_of_handmade_heads(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "bert", num_attention_heads=4)
    # [CLS] a b c a b c [SEP]: positions 1 to 6 are words; those at 4, 5 and 6 occurred before at 1, 2 and 3
    heads = (
        one_hot(0, 0, 1, 2, 3, 4, 5, 6),  # to the previous token
        one_hot(0, 0, 0, 0, 0, 0, 0, 0),  # to the first token
        one_hot(0, 1, 2, 3, 1, 2, 3, 7),  # to the previous occurrence
        one_hot(0, 1, 2, 3, 2, 3, 3, 7),  # to the token after the previous occurrence, except for the last
    )
    model, trace = model_and_trace_with_weights(model, "a b c a b c", *heads)
    scores = model.explain.head_scores(trace)
    assert scores.previous[0].tolist() == pytest.approx([1, 0, 0, 0])  # token 1 attending to [CLS] does not count
    assert scores.first[0].tolist() == pytest.approx([1 / 6, 1, 0, 0])
    assert scores.duplicate[0].tolist() == pytest.approx([0, 0, 1, 1 / 3])
    assert scores.induction[0].tolist() == pytest.approx([0, 0, 0, 2 / 3])
    assert scores.entropy[0].tolist() == [0, 0, 0, 0]
    assert scores.strongest("previous", 1) == [(0, 0, 1.0)]
    uniform = torch.full((8, 8), 1 / 8)
    scores = model.explain.head_scores(
        model_and_trace_with_weights(model, "a b c a b c", uniform, uniform, uniform, uniform)[1]
    )
    assert scores.entropy[0].tolist() == pytest.approx([math.log(8)] * 4)
    assert scores.duplicate[0].tolist() == pytest.approx([1 / 8] * 4)


def test_scores_equal_a_plain_loop(minilm: pellucid.Model) -> None:
    trace = minilm.trace(TEXT, keep="layers.*.attention.weights")
    scores = minilm.explain.head_scores(trace)
    text_positions = [i for i, special in enumerate(trace.special) if not special]
    for layer, head in ((0, 2), (2, 9), (5, 11)):
        weights = trace[f"layers.{layer}.attention.weights"][0, head]
        expected: dict[str, list[float]] = {name: [] for name in NAMES}
        for q in text_positions:
            same = [k for k in text_positions if k < q and trace.tokens[k] == trace.tokens[q]]
            following = [k + 1 for k in same if k + 1 in text_positions and k + 1 < q]
            expected["entropy"].append(float(-(weights[q] * weights[q].log()).sum()))
            expected["first"].append(float(weights[q, 0]))
            expected["previous"] += [float(weights[q, q - 1])] if q - 1 in text_positions else []
            expected["duplicate"] += [float(weights[q, same].sum())] if same else []
            expected["induction"] += [float(weights[q, following].sum())] if following else []
        for name, numbers in expected.items():
            assert float(getattr(scores, name)[layer, head]) == pytest.approx(sum(numbers) / len(numbers), abs=1e-6)


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_tokens_with_the_same_id_are_duplicates(side: str) -> None:
    """A tokenizer reports characters without a token by the character itself, though all get the unknown token's id."""
    model = built_model(read_tokenizer(TOKENIZERS / "t5"), "t5")
    same, other = (model.trace(f"a {sign} dog \u2603") for sign in "\u2603\u2602")
    assert same.ids == other.ids and same.tokens != other.tokens
    scores, others = (model.explain.head_scores(one, side=side) for one in (same, other))
    assert torch.equal(scores.duplicate, others.duplicate) and not scores.duplicate.isnan().any()


def test_special_tokens_of_a_decoder_are_not_scored(minilm: pellucid.Model) -> None:
    model = built_model(minilm.tokenizer, "bart")
    trace = model.trace(TEXT)
    assert trace.target_tokens[1:3] == ("[CLS]", "time")
    weights = trace["decoder.layers.1.attention.weights"][0, 2]
    previous = weights.diagonal(-1)[2:].mean()  # the start token and [CLS] count neither as queries nor as earlier
    scores = model.explain.head_scores(trace, side="decoder")
    assert float(scores.previous[1, 2]) == pytest.approx(float(previous))


@pytest.mark.parametrize("family", sorted(families()))
def test_scores_of_every_family(minilm: pellucid.Model, family: str) -> None:
    model = built_model(minilm.tokenizer, family)
    pair = model.config.kind == "encoder-decoder"
    for side in ("encoder", "decoder") if pair else (None,):
        shape = (2, 3) if side == "decoder" else (3, 4)
        for scores in (
            model.explain.head_scores(TEXT, side=side),
            model.explain.head_scores(side=side, length=6, rows=2),
        ):
            for name in NAMES:
                values = getattr(scores, name)
                assert values.shape == shape and not values.isnan().any()
                assert (values >= 0).all() and (name == "entropy" or (values <= 1).all())
        if side == "decoder" or model.config.kind == "decoder":
            longest = len(model.tokenizer.encode([TEXT])[0].ids)
            assert (scores.entropy < math.log(longest)).all()


def test_models_without_a_tokenizer_are_scored_on_random_tokens(minilm: pellucid.Model) -> None:
    config = built_model(minilm.tokenizer, "gpt2").config.replace(vocab_size=50)
    scores = pellucid.build(config, seed=1).explain.head_scores(length=10)
    again = pellucid.build(config, seed=1).explain.head_scores(length=10)
    assert torch.equal(scores.induction, again.induction)  # the seed has a fixed default
    assert not torch.equal(
        scores.induction, pellucid.build(config, seed=1).explain.head_scores(length=10, seed=1).induction
    )
    with pytest.raises(InputError, match="came without a tokenizer"):
        pellucid.build(config).explain.head_scores("a text")


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False)])
def test_random_tokens_keep_the_special_tokens_of_a_text(bos: bool, eos: bool) -> None:
    marks = {"pad": "<pad>", "bos": "<s>", "eos": "</s>"}
    tokenizer = pellucid.train_tokenizer(
        texts=[TEXT], kind="bpe", vocab_size=300, special_tokens=marks, add_bos=bos, add_eos=eos
    )
    ids, real = _repeated_sequences(built_model(tokenizer, "t5").loaded, 3, 2, 0)
    assert real.tolist() == [[*[False] * bos, *[True] * 6, *[False] * eos]] * 2
    assert all(row[~real[0]].tolist() == tokenizer.encode([""])[0].ids for row in ids)


def test_known_heads_of_a_real_model(smollm: pellucid.Model) -> None:
    scores = smollm.explain.head_scores(rows=2)
    fresh = pellucid.build(smollm.config, seed=0).explain.head_scores(length=16, rows=1)
    assert scores.strongest("induction", 1)[0][2] > 0.7 and float(fresh.induction.max()) < 0.15
    assert scores.strongest("previous", 1)[0][2] > 0.7 and float(fresh.previous.max()) < 0.35
    assert scores.strongest("previous", 1)[0][0] < scores.strongest("induction", 1)[0][0]  # it feeds the induction head
    assert "induction" in repr(scores) and "30 layers, 9 heads" in repr(scores)


def test_text_without_repetition_has_no_induction_scores(minilm: pellucid.Model) -> None:
    scores = minilm.explain.head_scores("time flies like an arrow")
    assert scores.duplicate.isnan().all() and scores.induction.isnan().all()
    assert scores.strongest("induction") == [] and not scores.previous.isnan().any()
    assert repr(scores).count("this text has no token to score by") == 2


def test_repr_of_explain_lists_its_methods(minilm: pellucid.Model) -> None:
    names = "logit_lens, direct_logit_attribution, attention_rollout, gradient_x_input, integrated_gradients"
    assert repr(minilm.explain) == f"Explain({names}, head_scores)"


def test_invalid_arguments_are_refused(minilm: pellucid.Model) -> None:
    score = minilm.explain.head_scores
    with pytest.raises(InputError, match="the text is empty"):
        score("")
    with pytest.raises(InputError, match="length is 0, expected a whole number from 1"):
        score(length=0)
    with pytest.raises(InputError, match="rows is -1, expected"):
        score(rows=-1)
    for seed in (-1, 2**63, "a", True):
        with pytest.raises(InputError, match=r"seed is .*, expected a whole number from 0"):
            score(seed=seed)
    for name in ("length", "rows", "seed"):
        with pytest.raises(InputError, match=f"{name} is for random tokens, and a text was given: leave {name} out"):
            score("time flies", **{name: 2})
    with pytest.raises(InputError, match="length 300 makes 602 tokens, and this model reads 512"):
        score(length=300)
    with pytest.raises(InputError, match=r"there is no score 'induktion' \(did you mean induction\?\)"):
        score("time flies").strongest("induktion")
    with pytest.raises(InputError, match="there is no score 3: choose one of"):
        score("time flies").strongest(3)
    with pytest.raises(InputError, match="most is 'two', expected a whole number"):
        score("time flies").strongest("previous", "two")
    with pytest.raises(InputError, match="the text has one token, expected two"):
        built_model(minilm.tokenizer, "bert").explain.head_scores(one_token_trace(minilm))
    assert isinstance(score("time flies"), HeadScores)


def one_token_trace(model: pellucid.Model) -> Trace:
    """A trace of a single token, as of a decoder without special tokens."""
    small = built_model(model.tokenizer, "bert")
    whole = small.trace("time", keep="layers.*.attention.weights")
    return replace(
        whole,
        points={name: weights[:, :, 1:2, 1:2] for name, weights in whole.points.items()},
        rows=(replace(whole.rows[0], tokens=["time"], ids=whole.ids[1:2], special=[False]),),
    )
