"""Beam search against the reference's: the same texts in the same order, token by token, with the same scores."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import pellucid
from pellucid.errors import InputError
from pellucid.generation import Settings, beam, read_settings
from pellucid.generation.beam import Hypothesis, TextJudge, beam_search
from pellucid.generation.progress import GenerationProgress
from pellucid.generation.reader import DecodingState
from pellucid.generation.rules import Rule
from tests.generation.reference import WRITERS, Pair, beams, late_end_tokens, pair, prompts
from tests.quick import few

STEPS = 100
PENALTIES = (0.0, 1.0, 2.0, -1.0)
EARLY = (True, False, "never")


def search(model: pellucid.Model, prompt_ids: Sequence[Sequence[int]], **options: Any) -> list[list[Hypothesis]]:
    judge = options.pop("judge", None)
    return beam_search(model.loaded, prompt_ids, read_settings(options), judge=judge)


def end_tokens_of(writer: str) -> tuple[int, ...]:
    """End tokens that beam searches meet early and late."""
    return tuple(sorted({*late_end_tokens(writer), *(best[0].ids[9] for best in unconstrained_beams(writer))}))


def unconstrained_beams(writer: str) -> list[list[Any]]:
    return beams(pair(writer), prompts(), max_new_tokens=20, num_beams=4)


def assert_same_as_reference(
    both: Pair, ours: list[list[Hypothesis]], prompt_ids: Sequence[Sequence[int]], **options: Any
) -> None:
    """Asserts that the reference finds the same, except for the empty texts that it adds where rules leave too few."""
    expected = [[text for text in best if text.ids] for best in beams(both, prompt_ids, **options)]
    for mine, theirs in zip(ours, expected, strict=True):
        assert [list(text.ids) for text in mine] == [text.ids for text in theirs]
        for text, other in zip(mine, theirs):
            assert text.score == pytest.approx(other.score, rel=1e-9, abs=1e-12)
            assert text.log_probabilities == pytest.approx(other.log_probabilities, rel=1e-9, abs=1e-9)


def assert_same_hypotheses(first: list[list[Hypothesis]], second: list[list[Hypothesis]]) -> None:
    """Asserts equality up to the rounding of batches."""
    for mine, theirs in zip(first, second, strict=True):
        assert [(text.ids, text.finish_reason) for text in mine] == [(text.ids, text.finish_reason) for text in theirs]
        for text, other in zip(mine, theirs):
            assert text.score == pytest.approx(other.score, rel=1e-12)
            assert text.log_probabilities == pytest.approx(other.log_probabilities, rel=1e-9, abs=1e-12)


# -- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beams, penalty, early", few([(4, 1.0, False), (2, 0.0, True), (5, 2.0, "never")], [4]))
@pytest.mark.parametrize("writer", WRITERS)
def test_every_family_matches_the_reference(writer: str, beams: int, penalty: float, early: bool | str) -> None:
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts()
    options: dict[str, Any] = {"num_beams": beams, "length_penalty": penalty, "early_stopping": early}
    options |= {"num_return_sequences": beams, "max_new_tokens": STEPS}
    ours = search(both.ours, prompt_ids, **options)
    assert_same_as_reference(both, ours, prompt_ids, **options)
    assert_same_hypotheses([search(both.ours, [prompt], **options)[0] for prompt in prompt_ids], ours)


@pytest.mark.parametrize("early", EARLY)
@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("beams", few([2, 4, 5], [4]))
@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "BartForConditionalGeneration"])
def test_every_setting_matches_the_reference(writer: str, beams: int, penalty: float, early: bool | str) -> None:
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts()
    options: dict[str, Any] = {"num_beams": beams, "length_penalty": penalty, "early_stopping": early}
    options |= {"num_return_sequences": beams - 1, "max_new_tokens": 30}
    assert_same_as_reference(both, search(both.ours, prompt_ids, **options), prompt_ids, **options)


def test_settings_lead_to_different_texts() -> None:
    both = pair("LlamaForCausalLM", end_tokens_of("LlamaForCausalLM"))
    texts = {
        (penalty, early): tuple(
            text.ids
            for best in search(
                both.ours, prompts(), num_beams=4, max_new_tokens=30, length_penalty=penalty, early_stopping=early
            )
            for text in best
        )
        for penalty in PENALTIES
        for early in EARLY
    }
    assert len(set(texts.values())) > len(PENALTIES)
    assert len({len(text) for best in texts.values() for text in best}) > len(PENALTIES)


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "T5 gated"])
def test_no_end_token_and_several_end_tokens(writer: str) -> None:
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 12}
    for end_tokens in ((), tuple(range(3, 99, 4))):
        both = pair(writer, end_tokens)
        ours = search(both.ours, prompts(), **options)
        assert_same_as_reference(both, ours, prompts(), **options)
        assert ("end" in {text.finish_reason for best in ours for text in best}) == bool(end_tokens)


def test_stop_tokens_end_a_text_as_end_tokens_do() -> None:
    writer, options = "Qwen2ForCausalLM", {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 40}
    end_tokens = end_tokens_of(writer)
    expected = search(pair(writer, end_tokens).ours, prompts(), **options)
    assert search(pair(writer).ours, prompts(), stop_token_ids=end_tokens, **options) == expected
    assert search(pair(writer, end_tokens[:1]).ours, prompts(), stop_token_ids=end_tokens[1:], **options) == expected
    assert {text.finish_reason for best in expected for text in best} >= {"end"}


@pytest.mark.parametrize("beams, vocabulary", few([(2, 6), (5, 6), (3, 9), (5, 9), (8, 12)], [(5, 6)]))
def test_small_vocabulary_with_many_beams(beams: int, vocabulary: int) -> None:
    """At first there are fewer texts than beams, so some beams follow impossible texts."""
    both = pair("LlamaForCausalLM", (3, 4), vocab_size=vocabulary)
    prompt_ids = prompts((4, 2, 7), vocabulary)
    for penalty, early in itertools.product((*PENALTIES, -0.5), EARLY):
        options: dict[str, Any] = {"num_beams": beams, "length_penalty": penalty, "early_stopping": early}
        options |= {"num_return_sequences": beams, "max_new_tokens": 15}
        assert_same_as_reference(both, search(both.ours, prompt_ids, **options), prompt_ids, **options)


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "GPT2LMHeadModel", "BartForConditionalGeneration", "T5 gated"])
def test_float32_finds_the_same_texts_as_float64(writer: str, tmp_path: Any) -> None:
    """In the usual precision, with the packed blocks."""
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts()
    both.ours.save(tmp_path)
    single = pellucid.load(tmp_path, dtype="float32")
    options = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 30}
    for mine, theirs in zip(
        search(single, prompt_ids, **options), search(both.ours, prompt_ids, **options), strict=True
    ):
        assert [text.ids for text in mine] == [text.ids for text in theirs]
        assert [text.score for text in mine] == pytest.approx([text.score for text in theirs], rel=1e-4)


# -- what a hypothesis is -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("penalty", PENALTIES)
def test_score_is_the_penalized_sum_of_log_probabilities(penalty: float) -> None:
    """In one fresh pass without a cache, the model gives each text the probability that the search reported."""
    both = pair("MistralForCausalLM", end_tokens_of("MistralForCausalLM"))
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 25, "length_penalty": penalty}
    for prompt, best in zip(prompts(), search(both.ours, prompts(), **options), strict=True):
        assert [text.score for text in best] == sorted((text.score for text in best), reverse=True)
        for text in best:
            ids = torch.tensor([*prompt, *text.ids])
            with torch.inference_mode():
                log_probabilities = both.ours.module(ids[None]).logits[0].log_softmax(dim=-1)
            each = log_probabilities[len(prompt) - 1 : -1].gather(1, ids[len(prompt) :, None]).squeeze(1)
            assert text.log_probabilities == pytest.approx(each.tolist(), rel=1e-9, abs=1e-12)
            assert text.score == pytest.approx(each.sum().item() / len(text.ids) ** penalty, rel=1e-9)
            assert (text.ids[-1] in both.ours.config.end_tokens) == (text.finish_reason == "end")


def test_negative_length_penalty_loses_no_text_whatever_its_score() -> None:
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": -6.0, "max_new_tokens": 40}
    [found] = search(pair("LlamaForCausalLM", (8,)).ours, [[5, 6, 3]], **options)
    assert len(found) == 3 and min(text.score for text in found) < -1e9
    for text in found:
        assert text.score == pytest.approx(sum(text.log_probabilities) * len(text.ids) ** 6, rel=1e-5)


def test_whole_length_penalty_may_give_a_power_beyond_64_bits() -> None:
    options = {"num_beams": 2, "length_penalty": 10, "early_stopping": "never", "max_new_tokens": 100}
    [[best]] = search(pair("LlamaForCausalLM", (8,)).ours, [[5, 6, 3]], **options)
    assert best.score == pytest.approx(sum(best.log_probabilities) / len(best.ids) ** 10, rel=1e-6, abs=0)


@pytest.mark.parametrize("penalty", [0.0, 1.0, 2.0])
def test_enough_beams_find_the_best_of_all_texts(penalty: float) -> None:
    vocabulary, steps, end = 5, 4, 3
    both = pair("GPT2LMHeadModel", (end,), vocab_size=vocabulary)
    prompt = [4, 1, 2]
    scores: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(vocabulary), repeat=steps):
        text = ids[: ids.index(end) + 1] if end in ids else ids
        if text not in scores:
            row = torch.tensor([*prompt, *text])
            with torch.inference_mode():
                log_probabilities = both.ours.module(row[None]).logits[0].log_softmax(dim=-1)
            each = log_probabilities[len(prompt) - 1 : -1].gather(1, row[len(prompt) :, None])
            scores[text] = each.sum().item() / len(text) ** penalty
    best = sorted(scores, key=lambda text: scores[text], reverse=True)[:5]
    options: dict[str, Any] = {"num_beams": vocabulary**steps, "num_return_sequences": 5, "max_new_tokens": steps}
    [ours] = search(both.ours, [prompt], length_penalty=penalty, early_stopping="never", **options)
    assert [text.ids for text in ours] == best
    assert [text.score for text in ours] == pytest.approx([scores[text] for text in best], rel=1e-9)


# -- each prompt as if it were alone --------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["MistralForCausalLM", "BartForConditionalGeneration"])
def test_finished_search_leaves_the_batch(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    next_logits = DecodingState.next

    def counted_next(reader: DecodingState, tokens: Tensor) -> Tensor:
        sizes.append(len(tokens))
        return next_logits(reader, tokens)

    monkeypatch.setattr(DecodingState, "next", counted_next)
    both = pair(writer, end_tokens_of(writer))
    options: dict[str, Any] = {"num_beams": 3, "max_new_tokens": STEPS, "early_stopping": True}
    passes = []
    for prompt in prompts():
        search(both.ours, [prompt], **options)
        assert set(sizes) <= {3}
        passes.append(len(sizes))
        sizes.clear()
    assert len(set(passes)) > 1, "searches that end together show nothing"
    search(both.ours, prompts(), **options)
    assert sizes == [3 * sum(count > step for count in passes) for step in range(max(passes))]


@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "T5ForConditionalGeneration", "BartForConditionalGeneration"])
def test_results_do_not_depend_on_order_or_repetition_of_prompts(writer: str) -> None:
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts((9, 9, 4, 12))
    prompt_ids.append(prompt_ids[2])
    options = {"num_beams": 4, "num_return_sequences": 2, "max_new_tokens": 30}
    expected = search(both.ours, prompt_ids, **options)
    assert_same_hypotheses(search(both.ours, prompt_ids[::-1], **options)[::-1], expected)
    assert_same_hypotheses([expected[4]], [expected[2]])


def test_long_prompt_does_not_shorten_the_text_of_a_short_one() -> None:
    both, prompt_ids = pair("LlamaForCausalLM", length=30), prompts((26, 20, 26, 3))
    options: dict[str, Any] = {
        "num_beams": 3,
        "num_return_sequences": 2,
        "max_new_tokens": 50,
        "early_stopping": "never",
    }
    together = search(both.ours, prompt_ids, **options)
    assert [len(best[0].ids) for best in together] == [5, 11, 5, 28]
    assert_same_hypotheses(together, [search(both.ours, [prompt], **options)[0] for prompt in prompt_ids])
    for prompt, best in zip(prompt_ids, together):
        assert_same_as_reference(both, [best], [prompt], **options | {"max_new_tokens": 31 - len(prompt)})


# -- rules ----------------------------------------------------------------------------------------------------------


def forbid_repeats(log_probabilities: Tensor, progress: GenerationProgress) -> Tensor:
    """Forbids repeating a generated token, and halves the log-probability of tokens of the prompt."""
    chosen = progress.ids[:, progress.prompt_length :]
    before = progress.ids[:, : progress.prompt_length].clamp(min=0)
    halved = log_probabilities.scatter(1, before, log_probabilities.gather(1, before) / 2)
    halved[:, 0] = log_probabilities[:, 0] / 2  # where the indices of padding point
    return halved.scatter(1, chosen, -math.inf)


class ReferenceProcessor(transformers.LogitsProcessor):
    """The same rule in the reference's interface."""

    def __init__(self, rule: Rule, prompt_length: int) -> None:
        self.rule, self.prompt_length = rule, prompt_length

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.rule(scores, GenerationProgress(input_ids, self.prompt_length, STEPS))


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "MistralForCausalLM", "BartForConditionalGeneration"])
def test_rules_apply_to_log_probabilities_and_follow_reordered_beams(writer: str) -> None:
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts()
    options: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "max_new_tokens": 40}
    ours = search(both.ours, prompt_ids, rules=(forbid_repeats,), **options)
    for best in ours:
        assert all(len(set(text.ids)) == len(text.ids) for text in best)
    processors = transformers.LogitsProcessorList([ReferenceProcessor(forbid_repeats, 17 if both.decodes_only else 1)])
    assert_same_as_reference(both, ours, prompt_ids, processors=processors, **options)


RULES: list[dict[str, Any]] = [
    {"repetition_penalty": 1.7},
    {"no_repeat_ngram_size": 2},
    {"min_new_tokens": 12, "early_stopping": True},
    {"forced_bos_token_id": 7, "forced_eos_token_id": 9, "length_penalty": 2.0},
    {
        "suppress_tokens": [*range(10, 30)],
        "begin_suppress_tokens": [*range(30, 60)],
    },
    {"bad_words_ids": [[10], [37, 85], [14]], "repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "num_beams": 5},
]


@pytest.mark.parametrize("rules", RULES, ids=lambda rules: next(iter(rules)))
@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "BartForConditionalGeneration", "T5 gated"])
def test_named_rules_match_the_reference(writer: str, rules: dict[str, Any]) -> None:
    both, prompt_ids = pair(writer, end_tokens_of(writer)), prompts()
    options = {"num_beams": 4, "num_return_sequences": 3, "max_new_tokens": 25} | rules
    ours = search(both.ours, prompt_ids, **options)
    assert_same_as_reference(both, ours, prompt_ids, **options)
    plain = {name: value for name, value in options.items() if name in Settings.__dataclass_fields__}
    assert ours != search(both.ours, prompt_ids, **plain), "a rule that changes nothing shows nothing"


def allow_next_id_only(log_probabilities: Tensor, progress: GenerationProgress) -> Tensor:
    """Allows only the next token id, modulo 9."""
    ruled = torch.full_like(log_probabilities, -math.inf)
    return ruled.scatter(1, (progress.ids[:, -1:] + 1) % 9, log_probabilities.gather(1, (progress.ids[:, -1:] + 1) % 9))


@pytest.mark.parametrize("penalty", [1.0, -1.0])
def test_rules_that_allow_one_text_return_one(penalty: float) -> None:
    """Where the reference repeats the same text, or returns one without a token."""
    both = pair("LlamaForCausalLM", (8,))
    options = {"num_beams": 3, "num_return_sequences": 3, "length_penalty": penalty}
    [best] = search(both.ours, [[5, 6, 3]], rules=(allow_next_id_only,), **options)
    assert [(text.ids, text.finish_reason) for text in best] == [((4, 5, 6, 7, 8), "end")]


def allow_six_or_seven_then_nine(log_probabilities: Tensor, progress: GenerationProgress) -> Tensor:
    """Allows 6 or 7 first, then 9 after 7 and nothing after 6."""
    allowed = [9] if progress.new else [6, 7]
    ruled = torch.full_like(log_probabilities, -math.inf)
    ruled[:, allowed] = log_probabilities[:, allowed]
    return ruled.masked_fill(progress.ids[:, -1:] == 6, -math.inf) if progress.new else ruled


def test_search_that_reaches_max_new_tokens_returns_what_it_has() -> None:
    both = pair("LlamaForCausalLM", (8,))
    [best] = search(
        both.ours,
        [[5, 6, 3]],
        rules=(allow_six_or_seven_then_nine,),
        num_beams=2,
        num_return_sequences=2,
        max_new_tokens=2,
    )
    assert [(text.ids, text.finish_reason) for text in best] == [((7, 9), "length")]


def test_rules_that_allow_no_text_return_none() -> None:
    both = pair("LlamaForCausalLM", (8,))

    def none(log_probabilities: Tensor, progress: GenerationProgress) -> Tensor:
        return torch.full_like(log_probabilities, -math.inf) if progress.new == 3 else log_probabilities

    nothing, something = [search(both.ours, [[5], [6, 7]], rules=rules, num_beams=3) for rules in ((none,), ())]
    assert nothing == [[], []] and all(something)


def forbid_after_multiples_of_three(log_probabilities: Tensor, progress: GenerationProgress) -> Tensor:
    """Forbids all tokens after one that is divisible by three."""
    return (
        log_probabilities.masked_fill(progress.ids[:, -1:] % 3 == 0, -math.inf) if progress.new else log_probabilities
    )


@pytest.mark.parametrize("beams", [3, 5])
def test_beam_without_allowed_token_is_dropped(beams: int) -> None:
    both, prompt_ids = pair("MistralForCausalLM", (7, 8)), prompts()
    options: dict[str, Any] = {"num_beams": beams, "num_return_sequences": 2, "max_new_tokens": 12}
    ours = search(both.ours, prompt_ids, rules=(forbid_after_multiples_of_three,), **options)
    assert sum(map(len, ours)) > 3, "where all beams are left, little is shown"
    for best in ours:
        assert all(token % 3 for text in best for token in text.ids[:-1])
    processors = transformers.LogitsProcessorList([ReferenceProcessor(forbid_after_multiples_of_three, 17)])
    assert_same_as_reference(both, ours, prompt_ids, processors=processors, **options)


# -- other ends -----------------------------------------------------------------------------------------------------


class ReferenceCriterion(transformers.StoppingCriteria):
    """The same criterion in the reference's interface."""

    def __init__(self, judge: TextJudge, prompt_length: int) -> None:
        self.judge, self.prompt_length = judge, prompt_length

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.tensor([self.judge(0, row[self.prompt_length :]) is not None for row in input_ids.tolist()])


@pytest.mark.parametrize("writer", ["Qwen2ForCausalLM", "T5ForConditionalGeneration"])
def test_judge_ends_texts_in_every_beam(writer: str) -> None:
    both = pair(writer, late_end_tokens(writer))

    def judge(prompt: int, ids: list[int]) -> str | None:
        return "stop" if len(ids) > 2 and sum(ids[-2:]) % 5 == 0 else None

    options: dict[str, Any] = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 30}
    reasons = set()
    for prompt in prompts():
        [best] = search(both.ours, [prompt], judge=judge, **options)
        stopping = transformers.StoppingCriteriaList(
            [ReferenceCriterion(judge, len(prompt) if both.decodes_only else 1)]
        )
        assert_same_as_reference(both, [best], [prompt], stopping=stopping, **options)
        for text in best:
            by_judge = text.ids[-1] not in both.ours.config.end_tokens and judge(0, list(text.ids)) is not None
            assert (text.finish_reason == "stop") == by_judge
            reasons.add(text.finish_reason)
    assert "stop" in reasons


def test_judge_receives_the_number_of_the_prompt() -> None:
    both, prompt_ids = pair("LlamaForCausalLM", length=30), prompts((26, 5, 26))

    def judge(prompt: int, ids: list[int]) -> str | None:
        return "stop" if len(ids) == (2, 5, 3)[prompt] else None

    best = search(both.ours, prompt_ids, judge=judge, num_beams=2)
    assert [(len(texts[0].ids), texts[0].finish_reason) for texts in best] == [(2, "stop"), (5, "stop"), (3, "stop")]


def test_max_time_ends_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    both, options = pair("LlamaForCausalLM"), {"num_beams": 3, "num_return_sequences": 3}
    expected = search(both.ours, prompts(), max_new_tokens=7, **options)
    clock = itertools.count(1000)  # a second passes at each call
    monkeypatch.setattr(beam.time, "monotonic", lambda: float(next(clock)))
    timed_out = search(both.ours, prompts(), max_time=6.5, max_new_tokens=50, **options)
    assert [[text.ids for text in best] for best in timed_out] == [[text.ids for text in best] for best in expected]
    assert {text.finish_reason for best in timed_out for text in best} == {"time"}
    assert {text.finish_reason for best in expected for text in best} == {"length"}


def test_invalid_searches_are_refused() -> None:
    model = pair("LlamaForCausalLM", length=30).ours
    with pytest.raises(InputError, match="num_beams is 1, and beam search needs at least 2 beams"):
        beam_search(model.loaded, [[1]], Settings())
    with pytest.raises(InputError, match="prompt 1 is empty"):
        search(model, [[5], []], num_beams=2)
    with pytest.raises(InputError, match="prompt 1 has 31 tokens, and this model reads 30 in all"):
        search(model, prompts((5, 31)), num_beams=2)
    assert search(model, [], num_beams=2) == []
    encoder = pellucid.build(pellucid.Config.of("bert", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="kind 'encoder'"):
        search(encoder, [[1]], num_beams=2)
