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

VOCAB, GIVEN, MOST, ENDS = 40, 6, 20, (7, 9, 70)  # the last end token is not in the vocabulary

WRITING: list[dict[str, Any]] = [
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
DRAWING: list[dict[str, Any]] = [
    *({"temperature": value} for value in (0.3, 1.9)),
    *({"top_k": value} for value in (1, 5, 39)),
    *({"top_p": value} for value in (0.05, 0.5, 0.9, 0.99)),
    *({"min_p": value} for value in (0.01, 0.3, 1.0)),
    *({"typical_p": value} for value in (0.1, 0.5, 0.95)),
    *({"epsilon_cutoff": value} for value in (0.003, 0.05, 0.9)),
    *({"eta_cutoff": value} for value in (0.003, 0.05, 0.9)),
]
FIRST: list[dict[str, Any]] = [
    {"forced_bos_token_id": 3},
    {"begin_suppress_tokens": [1, 7, 20]},
    {"begin_suppress_tokens": [1, 7, 20], "forced_bos_token_id": 3},
]
"""Rules whose effect depends on whether the text is a single token so far."""

MILD: list[dict[str, Any]] = [
    *({"temperature": 1.5}, {"top_k": 5}, {"top_k": 12}, {"top_p": 0.8}, {"top_p": 0.95}, {"min_p": 0.03}),
    *({"min_p": 0.2}, {"typical_p": 0.8}, {"typical_p": 0.95}, {"epsilon_cutoff": 0.01}, {"epsilon_cutoff": 0.1}),
]
"""Values of the sampling rules that leave tokens for the next rule; without `eta_cutoff`, with which the reference
fails where the rules before it left none."""

OURS: list[dict[str, Any]] = [
    {"logit_bias": {3: 1.5, "4": -2.0}},
    {"frequency_penalty": 0.4},
    {"presence_penalty": -0.7},
    {"frequency_penalty": -0.3, "presence_penalty": 1.1},
]
"""Rules that the reference does not have."""


def said(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())[:50]


def some_logits(rows: int = 5, vocab: int = VOCAB, seed: int = 1) -> Tensor:
    return 3 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


def texts(new: int, *, given: int = GIVEN, most: int = MOST, rows: int = 5) -> GenerationProgress:
    """Texts of few different tokens, with many repetitions."""
    ids = torch.randint(0, 8, (rows, given + MOST), generator=torch.Generator().manual_seed(2))
    return GenerationProgress(ids[:, : given + new], given, most, ENDS)


@pytest.fixture(scope="module")
def reference() -> Any:
    ends = {"bos_token_id": 1, "eos_token_id": 7}
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=4, n_layer=1, n_head=1, n_positions=64, **ends)
    return transformers.GPT2LMHeadModel(config)


def by_reference(
    model: Any, options: Mapping[str, Any], sampling: bool, logits: Tensor, written: GenerationProgress
) -> Tensor:
    config = transformers.GenerationConfig()
    length = written.prompt_length + written.max_new_tokens
    for name, value in {"top_k": 0, "do_sample": sampling, "max_length": length, **options}.items():
        setattr(config, name, value)  # set afterwards, because the constructor refuses contradictions
    config = model._prepare_generated_length(config, False, False, "input_ids", written.prompt_length, written.ids)
    config._eos_token_tensor = torch.tensor(written.end_tokens)
    processors = model._get_logits_processor(config, input_ids_seq_length=written.prompt_length, device="cpu")
    return processors(written.ids, logits.clone())


def ours(options: Mapping[str, Any], logits: Tensor, written: GenerationProgress, *, sampling: bool = False) -> Tensor:
    for rule in chain(options, sampling=sampling, vocab_size=logits.shape[1]):
        logits = rule(logits, written)
    return logits


# -- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", WRITING, ids=said)
def test_rules_of_writing_are_the_reference(options: dict[str, Any], reference: Any) -> None:
    changed = False
    for new in (0, 1, 2, 5, MOST - 1):
        logits, written = some_logits(), texts(new)
        before = logits.clone()
        found = ours(options, logits, written)
        assert torch.equal(found, by_reference(reference, options, False, logits, written))
        assert torch.equal(logits, before)
        changed |= not torch.equal(found, before)
    assert changed


@pytest.mark.parametrize("options", FIRST, ids=said)
@pytest.mark.parametrize("given", [1, 2])
def test_rules_of_the_beginning_are_the_reference(options: dict[str, Any], given: int, reference: Any) -> None:
    for new in range(4):
        logits, written = some_logits(), texts(new, given=given)
        found = ours(options, logits, written)
        assert torch.equal(found, by_reference(reference, options, False, logits, written))
        begins = new < 2 if given == 1 and len(options) == 2 else new == 0
        assert torch.equal(found, logits) != (begins and (given == 1 or "begin_suppress_tokens" in options))


@pytest.mark.parametrize("options", DRAWING, ids=said)
@pytest.mark.parametrize("vocab", [VOCAB, 5_000])
def test_rules_of_drawing_are_the_reference(options: dict[str, Any], vocab: int, reference: Any) -> None:
    logits, written = some_logits(vocab=vocab), texts(3)
    logits[1] /= 10  # nearly uniform
    logits[2] *= 5
    logits[3, 3:-1] = -torch.inf  # as after another rule
    found = ours(options, logits, written, sampling=True)
    assert torch.equal(found, by_reference(reference, options, True, logits, written))
    assert not torch.equal(found, logits)
    assert bool((found > -torch.inf).any(dim=1).all())


def test_of_equally_likely_tokens_top_p_keeps_as_many_as_it_needs(reference: Any) -> None:
    logits = torch.zeros(5, VOCAB)
    logits[1, ::2] = 1
    logits[2, :3] = 2
    logits[3, 7] = 9
    logits[4, 4:] = -torch.inf
    for top_p in (0.01, 0.25, 0.3, 0.5, 0.52, 0.77, 0.99):
        found = ours({"top_p": top_p}, logits, texts(3), sampling=True)
        wanted = by_reference(reference, {"top_p": top_p}, True, logits, texts(3))
        assert torch.equal(found.sort().values, wanted.sort().values)  # of equal ones, an arbitrary one is kept
    found = ours({"top_p": 0.49}, logits, texts(3), sampling=True)
    assert (found[0] == 0).nonzero().flatten().tolist() == list(range(20))
    assert (found[1] == 1).nonzero().flatten().tolist() == list(range(0, 28, 2))


@pytest.mark.parametrize("sampling", [False, True])
def test_chains_are_the_reference(sampling: bool, reference: Any) -> None:
    chance = random.Random(4)
    pool: dict[str, list[Any]] = {}
    for options in [*WRITING, *FIRST, {"forced_bos_token_id": 7}, *(MILD if sampling else [])]:
        for name, value in options.items():
            pool.setdefault(name, []).append(value)
    for attempt in range(80):
        options = {name: chance.choice(values) for name, values in pool.items() if chance.random() < 0.5}
        given, new = chance.choice((1, GIVEN)), chance.choice((0, 0, 1, 2, 5))
        logits = some_logits(seed=attempt)
        written = texts(new, given=given, most=chance.choice((new + 1, MOST)))
        wanted = by_reference(reference, options, sampling, logits, written)
        torch.testing.assert_close(ours(options, logits, written, sampling=sampling), wanted, rtol=1e-6, atol=1e-6)


# -- what the reference does not have -------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [options for options in OURS if "logit_bias" not in options], ids=said)
def test_counted_penalties_are_their_formula(options: dict[str, float]) -> None:
    logits, written = some_logits(), texts(9)
    wanted = logits.clone()
    for row, chosen in enumerate(written.ids[:, GIVEN:].tolist()):
        for token, times in Counter(chosen).items():
            wanted[row, token] -= options.get("frequency_penalty", 0) * times + options.get("presence_penalty", 0)
    torch.testing.assert_close(ours(options, logits, written), wanted, rtol=1e-6, atol=1e-6)
    assert torch.equal(ours(options, logits, texts(0)), logits)  # tokens of the prompt do not count


def test_counted_penalties_follow_that_of_repetition() -> None:
    logits, written = some_logits(), texts(9)
    options = {"presence_penalty": 2.0, "repetition_penalty": 1.5}
    after = ours({"presence_penalty": 2.0}, ours({"repetition_penalty": 1.5}, logits, written), written)
    before = ours({"repetition_penalty": 1.5}, ours({"presence_penalty": 2.0}, logits, written), written)
    assert torch.equal(ours(options, logits, written), after) and not torch.equal(after, before)


def test_a_bias_of_a_token_is_one_of_a_sequence_of_one() -> None:
    logits, written = some_logits(), texts(3)
    both = ours({"logit_bias": {3: 1.5, "4": -2.0}}, logits, written)
    assert torch.equal(both, ours({"sequence_bias": [[[3], 1.5], [[4], -2]]}, logits, written))
    assert both[0, 3] == logits[0, 3] + 1.5


@pytest.mark.parametrize("options", [*WRITING, *FIRST, *OURS, {"no_repeat_ngram_size": 6}], ids=said)
def test_padding_is_not_there(options: dict[str, Any]) -> None:
    logits = some_logits()
    for new in (0, 1, 2, 7, MOST - 1):
        whole = texts(new, given=12).ids
        lengths = (12, 7, 3, 2, 1)
        padded = whole.clone()
        for row, length in enumerate(lengths):
            padded[row, : 12 - length] = -1
        together = ours(options, logits, GenerationProgress(padded, 12, MOST, ENDS))
        for row, length in enumerate(lengths):
            alone = GenerationProgress(whole[row : row + 1, 12 - length :], length, MOST, ENDS)
            assert torch.equal(together[row], ours(options, logits[row : row + 1], alone)[0]), (new, row)


def test_double_precision_stays() -> None:
    logits, written = some_logits().double(), texts(5)
    for options in WRITING + DRAWING + FIRST + OURS:
        assert ours(options, logits, written, sampling=True).dtype == torch.float64


# -- the chain ------------------------------------------------------------------------------------------------------


def test_no_option_is_without_its_tests() -> None:
    assert {name for options in WRITING + DRAWING + FIRST + OURS for name in options} == set(OPTIONS)
    assert {name for name, _, _ in WRONG} == set(OPTIONS)


def test_defaults_and_none_ask_for_nothing() -> None:
    assert chain({name: option.default or None for name, option in OPTIONS.items()}, sampling=True) == ()
    off = {"temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "repetition_penalty": 1, "no_repeat_ngram_size": 0}
    assert chain({**off, "max_new_tokens": 9}, sampling=False) == ()


def test_where_nothing_is_drawn_there_is_nothing_to_draw_from() -> None:
    for options in DRAWING:
        ((name, value),) = options.items()
        with pytest.raises(InputError) as caught:
            chain(options, sampling=False)
        wanted = f"{name} is {value} and nothing is sampled: pass do_sample=True, or leave {name} out"
        assert str(caught.value) == wanted


def test_a_chain_can_be_pickled() -> None:
    logits, written = some_logits(), texts(5)
    for options in WRITING + DRAWING + FIRST + OURS:
        for rule in chain(options, sampling=True):
            assert torch.equal(pickle.loads(pickle.dumps(rule))(logits, written), rule(logits, written))


def test_contradictions_are_named_at_their_step() -> None:
    rules = chain({"forced_eos_token_id": 7, "suppress_tokens": [7], "repetition_penalty": 1.5}, sampling=False)
    assert torch.equal(apply(rules[:1], some_logits(), texts(3)), rules[0](some_logits(), texts(3)))
    apply(rules, some_logits(), texts(MOST - 2))
    with pytest.raises(InputError) as caught:
        apply(rules, some_logits(), texts(MOST - 1))
    wanted = "after 19 tokens no token is left to choose, because of forced_eos_token_id, suppress_tokens"
    assert str(caught.value) == f"{wanted}: leave one of them out"
    innocent = chain({"no_repeat_ngram_size": 1, "forced_eos_token_id": 7, "suppress_tokens": [7]}, sampling=False)
    with pytest.raises(InputError, match="because of forced_eos_token_id, suppress_tokens: leave one"):
        apply(innocent, some_logits(), texts(MOST - 1))  # leaving out the first option would not help
    with pytest.raises(InputError, match=r"because of suppress_tokens$"):
        apply(chain({"suppress_tokens": list(range(VOCAB))}, sampling=False), some_logits(), texts(1))
    logits = some_logits()
    assert apply((), logits, texts(3)) is logits


def harmless(logits: Tensor, written: GenerationProgress) -> Tensor:
    return torch.where(torch.tensor([[0], [0], [1], [0], [0]]) * torch.arange(VOCAB) > 3, -torch.inf, logits)


def nothing_at_all(logits: Tensor, written: GenerationProgress) -> Tensor:
    return logits.index_fill(0, torch.tensor([1]), -torch.inf)


def test_a_rule_of_ones_own_is_named_too_and_who_did_no_harm_is_not() -> None:
    rules = (harmless, nothing_at_all)
    with pytest.raises(InputError, match=r"because of nothing_at_all$"):
        apply(rules, some_logits(), texts(3))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (lambda logits, written: None, "gives NoneType, expected logits (5, 40)"),
        (lambda logits, written: logits[0], "gives (40,) of torch.float32, expected logits (5, 40)"),
        (lambda logits, written: logits[:, :5], "gives (5, 5) of torch.float32, expected logits (5, 40)"),
        (lambda logits, written: logits.argsort(), "gives (5, 40) of torch.int64, expected logits (5, 40)"),
        (lambda logits, written: logits.to_sparse(), "gives (5, 40) of torch.float32, torch.sparse_coo, on cpu"),
        (lambda logits, written: logits.to("meta"), "gives (5, 40) of torch.float32, torch.strided, on meta"),
        (lambda logits, written: logits / (torch.arange(VOCAB) > 0) * 0, "gives NaN or inf after 3 tokens"),
        (lambda logits, written: logits.index_fill(1, torch.tensor(3), torch.inf), "gives NaN or inf after 3 tokens"),
    ],
)
def test_a_rule_that_gives_no_logits_is_named(rule: Any, said: str) -> None:
    for rules in ((rule,), (harmless, rule), (rule, harmless)):
        for ask in (apply, apply_with_max):
            with pytest.raises(InputError, match=re.escape(f"the rule <lambda> {said}")):
                ask(rules, some_logits(), texts(3))


@dataclasses.dataclass
class Nothing:
    """A user's own rule that is not hashable."""

    def __call__(self, logits: Tensor, written: GenerationProgress, strength: float = 1.0) -> Tensor:
        return logits * float("nan")


def test_a_rule_is_named_by_itself_whatever_it_is() -> None:
    for rule in (Nothing(), functools.partial(Nothing(), strength=2.0)):
        with pytest.raises(InputError, match=r"the rule Nothing\(\) gives NaN or inf after 3 tokens"):
            apply((rule,), some_logits(), texts(3))


def test_no_rule_is_blamed_for_what_the_model_gives() -> None:
    given = some_logits().index_fill(1, torch.tensor(3), torch.inf)
    assert torch.equal(apply((lambda logits, written: logits,), given, texts(3)), given)


def test_the_least_temperature_still_draws_the_likeliest() -> None:
    cold = apply(chain({"temperature": 1e-30}, sampling=True), some_logits(), texts(3))
    assert torch.equal(cold.softmax(dim=-1), torch.eye(VOCAB)[some_logits().argmax(dim=-1)])


WRONG: list[tuple[str, Any, str]] = [
    ("sequence_bias", {}, "sequence_bias is {}, expected pairs of token ids and their bias, one at least"),
    ("sequence_bias", 3.0, "sequence_bias is 3.0, expected pairs of token ids and their bias, one at least"),
    ("sequence_bias", [[1]], "sequence_bias[0] is [1], expected a pair of a list of token ids and their bias"),
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
def test_wrong_values_are_refused_when_the_chain_is_made(name: str, value: Any, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        chain({name: value}, sampling=True, vocab_size=VOCAB)
    assert str(caught.value) == sentence


def test_ids_are_whole_numbers_where_the_vocabulary_is_not_known() -> None:
    assert chain({"suppress_tokens": [123_456]}, sampling=False)
    with pytest.raises(InputError, match="expected the id of a token"):
        chain({"suppress_tokens": [2**40]}, sampling=False)
