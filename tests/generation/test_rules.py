"""Every rule against the reference's, and what the reference lacks: padding, rules of our own, errors, no dead end."""

import dataclasses
import functools
import pickle
import random
import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from pellucid.errors import InputError
from pellucid.generation.progress import GenerationProgress
from pellucid.generation.registry import apply_with_max
from pellucid.generation.rules import OPTIONS, apply, chain

VOCAB, PROMPT_LENGTH, MAX_NEW_TOKENS, ENDS = 40, 6, 20, (7, 9, 70)  # the last end token is not in the vocabulary

LOGIT_RULES: list[dict[str, Any]] = [
    {
        "sequence_bias": {
            (1,): 2.5,
            (39,): -1.5,
            (3, 4): -4.0,
            (2, 5): 0.1,
            (5, 2, 6): 7.0,
            (1, 1, 0): 1.0,
            (0,) * 30: 9.0,
        }
    },
    {"sequence_bias": [[[3], 1.5], [[4, 3], -2.0], [[1, 2], 3.0]]},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 0.6},
    {"no_repeat_ngram_size": 1},
    {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3},
    {"bad_words_ids": [[3], [7], [1, 7], [2, 5], [4, 3], [2, 5, 6], [0] * 30]},
    {"min_length": 9},
    {"min_new_tokens": 2},
    {"min_length": 9, "min_new_tokens": 2},
    {"forced_eos_token_id": 7},
    {"forced_eos_token_id": [7, 12]},
    {"suppress_tokens": [0, 3, 12, 39]},
    {"begin_suppress_tokens": [1, 7, 20]},
]
SAMPLING_RULES: list[dict[str, Any]] = [
    *({"temperature": value} for value in (0.3, 1.9)),
    *({"top_k": value} for value in (1, 5, 39)),
    *({"top_p": value} for value in (0.05, 0.5, 0.9, 0.99)),
    *({"min_p": value} for value in (0.01, 0.3, 1.0)),
    *({"typical_p": value} for value in (0.1, 0.5, 0.95)),
    *({"epsilon_cutoff": value} for value in (0.003, 0.05, 0.9)),
    *({"eta_cutoff": value} for value in (0.003, 0.05, 0.9)),
]
FIRST_TOKEN_RULES: list[dict[str, Any]] = [
    {"forced_bos_token_id": 3},
    {"begin_suppress_tokens": [1, 7, 20]},
    {"begin_suppress_tokens": [1, 7, 20], "forced_bos_token_id": 3},
]
"""Rules whose effect depends on whether the text is a single token so far."""

MILD_SAMPLING_RULES: list[dict[str, Any]] = [
    *({"temperature": 1.5}, {"top_k": 5}, {"top_k": 12}, {"top_p": 0.8}, {"top_p": 0.95}, {"min_p": 0.03}),
    *({"min_p": 0.2}, {"typical_p": 0.8}, {"typical_p": 0.95}, {"epsilon_cutoff": 0.01}, {"epsilon_cutoff": 0.1}),
]
"""Values of the sampling rules that leave tokens for the next rule; without `eta_cutoff`, with which the reference
fails where the rules before it left none."""

OWN_RULES: list[dict[str, Any]] = [
    {"logit_bias": {3: 1.5, "4": -2.0}},
    {"frequency_penalty": 0.4},
    {"presence_penalty": -0.7},
    {"frequency_penalty": -0.3, "presence_penalty": 1.1},
]
"""Rules that the reference does not have."""


def options_id(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())[:50]


def random_logits(rows: int = 5, vocab: int = VOCAB, seed: int = 1) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def random_progress(
    new: int, *, prompt_length: int = PROMPT_LENGTH, limit: int = MAX_NEW_TOKENS, rows: int = 5
) -> GenerationProgress:
    """Texts of few different tokens, with many repetitions."""
    ids = torch.randint(0, 8, (rows, prompt_length + MAX_NEW_TOKENS), generator=torch.Generator().manual_seed(2))
    return GenerationProgress(ids[:, : prompt_length + new], prompt_length, limit, ENDS)


@pytest.fixture(scope="module")
def reference() -> Any:
    ends = {"bos_token_id": 1, "eos_token_id": 7}
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=4, n_layer=1, n_head=1, n_positions=64, **ends)
    return transformers.GPT2LMHeadModel(config)


def reference_logits(
    model: Any, options: Mapping[str, Any], sampling: bool, logits: Tensor, progress: GenerationProgress
) -> Tensor:
    config = transformers.GenerationConfig()
    length = progress.prompt_length + progress.max_new_tokens
    for name, value in {"top_k": 0, "do_sample": sampling, "max_length": length, **options}.items():
        setattr(config, name, value)  # set afterwards, because the constructor refuses contradictions
    config = model._prepare_generated_length(config, False, False, "input_ids", progress.prompt_length, progress.ids)
    config._eos_token_tensor = torch.tensor(progress.end_tokens)
    processors = model._get_logits_processor(config, input_ids_seq_length=progress.prompt_length, device="cpu")
    return processors(progress.ids, logits.clone())


def our_logits(
    options: Mapping[str, Any], logits: Tensor, progress: GenerationProgress, *, sampling: bool = False
) -> Tensor:
    for rule in chain(options, sampling=sampling, vocab_size=logits.shape[1]):
        logits = rule(logits, progress)
    return logits


# -- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", LOGIT_RULES, ids=options_id)
def test_logit_rules_match_the_reference(options: dict[str, Any], reference: Any) -> None:
    changed = False
    for new in (0, 1, 2, 5, MAX_NEW_TOKENS - 1):
        logits, progress = random_logits(), random_progress(new)
        before = logits.clone()
        found = our_logits(options, logits, progress)
        assert torch.equal(found, reference_logits(reference, options, False, logits, progress))
        assert torch.equal(logits, before)
        changed |= not torch.equal(found, before)
    assert changed


@pytest.mark.parametrize("options", FIRST_TOKEN_RULES, ids=options_id)
@pytest.mark.parametrize("prompt_length", [1, 2])
def test_rules_for_the_first_token_match_the_reference(
    options: dict[str, Any], prompt_length: int, reference: Any
) -> None:
    for new in range(4):
        logits, progress = random_logits(), random_progress(new, prompt_length=prompt_length)
        found = our_logits(options, logits, progress)
        assert torch.equal(found, reference_logits(reference, options, False, logits, progress))
        begins = new < 2 if prompt_length == 1 and len(options) == 2 else new == 0
        assert torch.equal(found, logits) != (begins and (prompt_length == 1 or "begin_suppress_tokens" in options))


@pytest.mark.parametrize("options", SAMPLING_RULES, ids=options_id)
@pytest.mark.parametrize("vocab", [VOCAB, 5_000])
def test_sampling_rules_match_the_reference(options: dict[str, Any], vocab: int, reference: Any) -> None:
    logits, progress = random_logits(vocab=vocab), random_progress(3)
    logits[1] /= 10  # nearly uniform
    logits[2] *= 5
    logits[3, 3:-1] = -torch.inf  # as after another rule
    found = our_logits(options, logits, progress, sampling=True)
    assert torch.equal(found, reference_logits(reference, options, True, logits, progress))
    assert not torch.equal(found, logits)
    assert bool((found > -torch.inf).any(dim=1).all())


def test_top_p_keeps_as_few_of_equally_likely_tokens_as_it_needs(reference: Any) -> None:
    logits = torch.zeros(5, VOCAB)
    logits[1, ::2] = 1
    logits[2, :3] = 2
    logits[3, 7] = 9
    logits[4, 4:] = -torch.inf
    for top_p in (0.01, 0.25, 0.3, 0.5, 0.52, 0.77, 0.99):
        found = our_logits({"top_p": top_p}, logits, random_progress(3), sampling=True)
        expected = reference_logits(reference, {"top_p": top_p}, True, logits, random_progress(3))
        assert torch.equal(found.sort().values, expected.sort().values)  # of equal ones, an arbitrary one is kept
    found = our_logits({"top_p": 0.49}, logits, random_progress(3), sampling=True)
    assert (found[0] == 0).nonzero().flatten().tolist() == list(range(20))
    assert (found[1] == 1).nonzero().flatten().tolist() == list(range(0, 28, 2))


@pytest.mark.parametrize("sampling", [False, True])
def test_chains_match_the_reference(sampling: bool, reference: Any) -> None:
    generator = random.Random(4)
    values_by_name: dict[str, list[Any]] = {}
    for options in [
        *LOGIT_RULES,
        *FIRST_TOKEN_RULES,
        {"forced_bos_token_id": 7},
        *(MILD_SAMPLING_RULES if sampling else []),
    ]:
        for name, value in options.items():
            values_by_name.setdefault(name, []).append(value)
    for attempt in range(80):
        options = {
            name: generator.choice(values) for name, values in values_by_name.items() if generator.random() < 0.5
        }
        prompt_length, new = generator.choice((1, PROMPT_LENGTH)), generator.choice((0, 0, 1, 2, 5))
        logits = random_logits(seed=attempt)
        progress = random_progress(new, prompt_length=prompt_length, limit=generator.choice((new + 1, MAX_NEW_TOKENS)))
        expected = reference_logits(reference, options, sampling, logits, progress)
        torch.testing.assert_close(
            our_logits(options, logits, progress, sampling=sampling), expected, rtol=1e-6, atol=1e-6
        )


# -- what the reference does not have -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [options for options in OWN_RULES if "logit_bias" not in options], ids=options_id)
def test_counted_penalties_match_their_formula(options: dict[str, float]) -> None:
    logits, progress = random_logits(), random_progress(9)
    expected = logits.clone()
    for row, chosen in enumerate(progress.ids[:, PROMPT_LENGTH:].tolist()):
        for token, times in Counter(chosen).items():
            expected[row, token] -= options.get("frequency_penalty", 0) * times + options.get("presence_penalty", 0)
    torch.testing.assert_close(our_logits(options, logits, progress), expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(our_logits(options, logits, random_progress(0)), logits)  # tokens of the prompt do not count


def test_counted_penalties_follow_repetition_penalty() -> None:
    logits, progress = random_logits(), random_progress(9)
    options = {"presence_penalty": 2.0, "repetition_penalty": 1.5}
    after = our_logits({"presence_penalty": 2.0}, our_logits({"repetition_penalty": 1.5}, logits, progress), progress)
    before = our_logits({"repetition_penalty": 1.5}, our_logits({"presence_penalty": 2.0}, logits, progress), progress)
    assert torch.equal(our_logits(options, logits, progress), after) and not torch.equal(after, before)


def test_logit_bias_equals_sequence_bias_of_one_token() -> None:
    logits, progress = random_logits(), random_progress(3)
    biased = our_logits({"logit_bias": {3: 1.5, "4": -2.0}}, logits, progress)
    assert torch.equal(biased, our_logits({"sequence_bias": [[[3], 1.5], [[4], -2]]}, logits, progress))
    assert biased[0, 3] == logits[0, 3] + 1.5


@pytest.mark.parametrize(
    "options", [*LOGIT_RULES, *FIRST_TOKEN_RULES, *OWN_RULES, {"no_repeat_ngram_size": 6}], ids=options_id
)
def test_padding_has_no_effect(options: dict[str, Any]) -> None:
    logits = random_logits()
    for new in (0, 1, 2, 7, MAX_NEW_TOKENS - 1):
        whole = random_progress(new, prompt_length=12).ids
        lengths = (12, 7, 3, 2, 1)
        padded = whole.clone()
        for row, length in enumerate(lengths):
            padded[row, : 12 - length] = -1
        together = our_logits(options, logits, GenerationProgress(padded, 12, MAX_NEW_TOKENS, ENDS))
        for row, length in enumerate(lengths):
            alone = GenerationProgress(whole[row : row + 1, 12 - length :], length, MAX_NEW_TOKENS, ENDS)
            assert torch.equal(together[row], our_logits(options, logits[row : row + 1], alone)[0]), (new, row)


def test_float64_logits_stay_float64() -> None:
    logits, progress = random_logits().double(), random_progress(5)
    for options in LOGIT_RULES + SAMPLING_RULES + FIRST_TOKEN_RULES + OWN_RULES:
        assert our_logits(options, logits, progress, sampling=True).dtype == torch.float64


# -- the chain ------------------------------------------------------------------------------------------------------


def test_every_option_has_tests() -> None:
    assert {
        name for options in LOGIT_RULES + SAMPLING_RULES + FIRST_TOKEN_RULES + OWN_RULES for name in options
    } == set(OPTIONS)
    assert {name for name, _, _ in WRONG} == set(OPTIONS)


def test_default_values_and_none_give_no_rules() -> None:
    assert chain({name: option.default or None for name, option in OPTIONS.items()}, sampling=True) == ()
    off = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "no_repeat_ngram_size": 0}
    assert chain({**off, "max_new_tokens": 9}, sampling=False) == ()


def test_sampling_options_without_do_sample_are_refused() -> None:
    for options in SAMPLING_RULES:
        ((name, value),) = options.items()
        with pytest.raises(InputError) as error:
            chain(options, sampling=False)
        expected = f"{name} is {value} and nothing is sampled: pass do_sample=True, or leave {name} out"
        assert str(error.value) == expected


def test_a_chain_can_be_pickled() -> None:
    logits, progress = random_logits(), random_progress(5)
    for options in LOGIT_RULES + SAMPLING_RULES + FIRST_TOKEN_RULES + OWN_RULES:
        for rule in chain(options, sampling=True):
            assert torch.equal(pickle.loads(pickle.dumps(rule))(logits, progress), rule(logits, progress))


def test_contradicting_rules_are_named_at_their_step() -> None:
    rules = chain({"forced_eos_token_id": 7, "suppress_tokens": [7], "repetition_penalty": 1.5}, sampling=False)
    assert torch.equal(
        apply(rules[:1], random_logits(), random_progress(3)), rules[0](random_logits(), random_progress(3))
    )
    apply(rules, random_logits(), random_progress(MAX_NEW_TOKENS - 2))
    with pytest.raises(InputError) as error:
        apply(rules, random_logits(), random_progress(MAX_NEW_TOKENS - 1))
    expected = "after 19 tokens no token is left to choose, because of forced_eos_token_id, suppress_tokens"
    assert str(error.value) == f"{expected}: leave one of them out"
    with_harmless_rule = chain(
        {"no_repeat_ngram_size": 1, "forced_eos_token_id": 7, "suppress_tokens": [7]}, sampling=False
    )
    with pytest.raises(InputError, match="because of forced_eos_token_id, suppress_tokens: leave one"):
        apply(
            with_harmless_rule, random_logits(), random_progress(MAX_NEW_TOKENS - 1)
        )  # leaving out the first option would not help
    with pytest.raises(InputError, match=r"because of suppress_tokens$"):
        apply(chain({"suppress_tokens": list(range(VOCAB))}, sampling=False), random_logits(), random_progress(1))
    logits = random_logits()
    assert apply((), logits, random_progress(3)) is logits


def forbid_some_tokens(logits: Tensor, progress: GenerationProgress) -> Tensor:
    return torch.where(torch.tensor([[0], [0], [1], [0], [0]]) * torch.arange(VOCAB) > 3, -torch.inf, logits)


def forbid_every_token(logits: Tensor, progress: GenerationProgress) -> Tensor:
    return logits.index_fill(0, torch.tensor([1]), -torch.inf)


def test_own_rule_that_forbids_everything_is_named_and_a_harmless_one_is_not() -> None:
    rules = (forbid_some_tokens, forbid_every_token)
    with pytest.raises(InputError, match=r"because of forbid_every_token$"):
        apply(rules, random_logits(), random_progress(3))


@pytest.mark.parametrize(
    ("rule", "fragment"),
    [
        (lambda logits, progress: None, "gives NoneType, expected logits (5, 40)"),
        (lambda logits, progress: logits[0], "gives (40,) of torch.float32, expected logits (5, 40)"),
        (lambda logits, progress: logits[:, :5], "gives (5, 5) of torch.float32, expected logits (5, 40)"),
        (lambda logits, progress: logits.argsort(), "gives (5, 40) of torch.int64, expected logits (5, 40)"),
        (lambda logits, progress: logits.to_sparse(), "gives (5, 40) of torch.float32, torch.sparse_coo, on cpu"),
        (lambda logits, progress: logits.to("meta"), "gives (5, 40) of torch.float32, torch.strided, on meta"),
        (lambda logits, progress: logits / (torch.arange(VOCAB) > 0) * 0, "gives NaN or inf after 3 tokens"),
        (lambda logits, progress: logits.index_fill(1, torch.tensor(3), torch.inf), "gives NaN or inf after 3 tokens"),
    ],
)
def test_rule_that_returns_no_logits_is_named(rule: Any, fragment: str) -> None:
    for rules in ((rule,), (forbid_some_tokens, rule), (rule, forbid_some_tokens)):
        for apply_rules in (apply, apply_with_max):
            with pytest.raises(InputError, match=re.escape(f"the rule <lambda> {fragment}")):
                apply_rules(rules, random_logits(), random_progress(3))


@dataclasses.dataclass
class NanRule:
    """A user's own rule that is not hashable."""

    def __call__(self, logits: Tensor, progress: GenerationProgress, strength: float = 1.0) -> Tensor:
        return logits * float("nan")


def test_callable_object_is_named_in_the_error() -> None:
    for rule in (NanRule(), functools.partial(NanRule(), strength=2.0)):
        with pytest.raises(InputError, match=r"the rule NanRule\(\) gives NaN or inf after 3 tokens"):
            apply((rule,), random_logits(), random_progress(3))


def test_infinite_logits_of_the_model_are_not_blamed_on_a_rule() -> None:
    logits_with_inf = random_logits().index_fill(1, torch.tensor(3), torch.inf)
    assert torch.equal(apply((lambda logits, progress: logits,), logits_with_inf, random_progress(3)), logits_with_inf)


def test_lowest_temperature_samples_the_most_likely_token() -> None:
    cold = apply(chain({"temperature": 1e-30}, sampling=True), random_logits(), random_progress(3))
    assert torch.equal(cold.softmax(dim=-1), torch.eye(VOCAB)[random_logits().argmax(dim=-1)])


WRONG: list[tuple[str, Any, str]] = [
    ("sequence_bias", {}, "sequence_bias is {}, expected pairs of token ids and their bias, one at least"),
    ("sequence_bias", 3.0, "sequence_bias is 3.0, expected pairs of token ids and their bias, one at least"),
    ("sequence_bias", [[1]], "sequence_bias[0] is [1], expected a pair of a list of token ids and their bias"),
    ("sequence_bias", [5], "sequence_bias[0] is 5, expected a pair of a list of token ids and their bias"),
    ("sequence_bias", {5: 1.0}, "the ids of sequence_bias[0] is 5, expected a list of token ids that is not empty"),
    ("sequence_bias", {(): 1.0}, "the ids of sequence_bias[0] is (), expected a list of token ids that is not empty"),
    ("sequence_bias", {(1, 40): 1.0}, "the ids of sequence_bias[0][1] is 40, expected the id of a token, 0 to 39"),
    ("sequence_bias", {(1,): float("-inf")}, "the bias of sequence_bias[0] is -inf, expected a finite number"),
    ("sequence_bias", [[[1], 2], [[1], 3]], "sequence_bias holds [1] twice, expected one bias for each sequence"),
    ("logit_bias", [3], "logit_bias is [3], expected a mapping from token ids to their bias, one at least"),
    ("logit_bias", {}, "logit_bias is {}, expected a mapping from token ids to their bias, one at least"),
    ("logit_bias", {40: 1.0}, "a key of logit_bias is 40, expected the id of a token, 0 to 39"),
    ("logit_bias", {"a": 1.0}, "a key of logit_bias is 'a', expected the id of a token, 0 to 39"),
    (
        "logit_bias",
        {"\N{ARABIC-INDIC DIGIT THREE}": 1.0},
        "a key of logit_bias is '٣', expected the id of a token, 0 to 39",
    ),
    ("logit_bias", {None: 1.0}, "a key of logit_bias is None, expected the id of a token"),
    ("logit_bias", {3: "1"}, "logit_bias[3] is '1', expected a finite number"),
    ("logit_bias", {3: 1e10}, "logit_bias[3] is 10000000000.0, expected at least -1e+09 and at most 1e+09"),
    ("logit_bias", {3: 1.0, "3": 2.0}, "logit_bias holds 3 twice, expected one bias for each token"),
    ("repetition_penalty", 0, "repetition_penalty is 0, expected above 0 and at most 1000"),
    ("repetition_penalty", float("nan"), "repetition_penalty is nan, expected a finite number"),
    ("frequency_penalty", 2.5, "frequency_penalty is 2.5, expected at least -2 and at most 2"),
    ("presence_penalty", -2.5, "presence_penalty is -2.5, expected at least -2 and at most 2"),
    ("no_repeat_ngram_size", -1, "no_repeat_ngram_size is -1, expected a whole number from 0 to 100,000,000"),
    ("no_repeat_ngram_size", 2.0, "no_repeat_ngram_size is 2.0, expected a whole number from 0 to 100,000,000"),
    ("bad_words_ids", [], "bad_words_ids is [], expected a list of lists of token ids that is not empty"),
    ("bad_words_ids", [3], "bad_words_ids[0] is 3, expected a list of token ids that is not empty"),
    ("bad_words_ids", [[1], []], "bad_words_ids[1] is [], expected a list of token ids that is not empty"),
    ("bad_words_ids", [[1], [-1]], "bad_words_ids[1][0] is -1, expected the id of a token, 0 to 39"),
    ("min_length", True, "min_length is True, expected a whole number from 0 to 100,000,000"),
    ("min_new_tokens", "2", "min_new_tokens is '2', expected a whole number from 0 to 100,000,000"),
    ("forced_bos_token_id", 40, "forced_bos_token_id is 40, expected the id of a token, 0 to 39"),
    ("forced_bos_token_id", [3], "forced_bos_token_id is [3], expected the id of a token, 0 to 39"),
    ("forced_eos_token_id", 40, "forced_eos_token_id is 40, expected the id of a token, 0 to 39"),
    ("forced_eos_token_id", [3, None], "forced_eos_token_id[1] is None, expected the id of a token"),
    ("suppress_tokens", [], "suppress_tokens is [], expected a list of token ids that is not empty"),
    ("suppress_tokens", [1, True], "suppress_tokens[1] is True, expected the id of a token, 0 to 39"),
    ("suppress_tokens", "12", "suppress_tokens is '12', expected a list of token ids that is not empty"),
    ("begin_suppress_tokens", [1.0], "begin_suppress_tokens[0] is 1.0, expected the id of a token, 0 to 39"),
    (
        "temperature",
        0,
        "temperature is 0, expected at least 1e-30 and at most 1000; to take the likeliest token, leave temperature "
        "out and pass do_sample=False",
    ),
    (
        "temperature",
        "warm",
        "temperature is 'warm', expected a finite number; to take the likeliest token, leave temperature out and pass "
        "do_sample=False",
    ),
    ("top_k", -1, "top_k is -1, expected a whole number from 0 to 100,000,000"),
    ("top_k", 2.5, "top_k is 2.5, expected a whole number from 0 to 100,000,000"),
    ("top_p", 0, "top_p is 0, expected above 0 and at most 1"),
    ("top_p", 1.5, "top_p is 1.5, expected above 0 and at most 1"),
    ("min_p", -0.1, "min_p is -0.1, expected at least 0 and at most 1"),
    ("typical_p", 0.0, "typical_p is 0.0, expected above 0 and at most 1"),
    ("epsilon_cutoff", 1, "epsilon_cutoff is 1, expected at least 0 and below 1"),
    ("eta_cutoff", -0.1, "eta_cutoff is -0.1, expected at least 0 and below 1"),
]


@pytest.mark.parametrize(("name", "value", "sentence"), WRONG, ids=lambda part: str(part)[:20])
def test_invalid_values_are_refused_when_the_chain_is_made(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        chain({name: value}, sampling=True, vocab_size=VOCAB)
    assert str(error.value) == sentence


def test_ids_are_checked_without_a_vocabulary_size() -> None:
    assert chain({"suppress_tokens": [123_456]}, sampling=False)
    with pytest.raises(InputError, match="expected the id of a token"):
        chain({"suppress_tokens": [2**40]}, sampling=False)
