"""The generation loop against the reference's, token by token, and its own guarantees."""

import gc
import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import InputError
from pellucid.generation import Settings, Step, loop, read_settings, write
from pellucid.generation.reader import DecodingState
from tests.generation.reference import WRITERS, greedy, late_end_tokens, pair, prompts
from tests.quick import few

STEPS = 100


def generated_texts(
    model: pellucid.Model, prompt_ids: Sequence[Sequence[int]], **options: Any
) -> tuple[list[list[int]], list[str]]:
    """What is generated for each prompt, and why it ends."""
    settings = read_settings({"max_new_tokens": STEPS} | options)
    count = len(prompt_ids) * settings.num_return_sequences
    ids_by_text: list[list[int]] = [[] for _ in range(count)]
    reasons = [""] * count
    for step in write(model.loaded, prompt_ids, settings):
        for row, token in zip(step.rows, step.tokens, strict=True):
            assert not reasons[row], "a finished text goes on"
            ids_by_text[row].append(token)
        for row, reason in step.finished.items():
            reasons[row] = reason
    return ids_by_text, reasons


# -- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_greedy_texts_match_the_reference(writer: str) -> None:
    both, prompt_ids = pair(writer), prompts()
    expected = greedy(both, prompt_ids, max_new_tokens=STEPS)
    assert [len(row) for row in expected] == [STEPS] * 3
    assert all(len(set(row)) > 4 for row in expected), "texts of few words show little"
    assert generated_texts(both.ours, prompt_ids) == (expected, ["length"] * 3)
    for prompt, row in zip(prompt_ids, expected):
        assert generated_texts(both.ours, [prompt]) == ([row], ["length"])


@pytest.mark.parametrize("writer", few(WRITERS, list(WRITERS)[::2]))
def test_texts_end_where_those_of_the_reference_end(writer: str) -> None:
    ends = late_end_tokens(writer)
    both, prompt_ids = pair(writer, ends), prompts()
    expected = greedy(both, prompt_ids, ends, max_new_tokens=STEPS)
    lengths = [len(row) for row in expected]
    assert len(set(lengths)) > 1 and min(lengths) < STEPS, "texts that end together show nothing"
    found, reasons = generated_texts(both.ours, prompt_ids)
    assert found == expected
    assert reasons == ["end" if row[-1] in ends else "length" for row in expected]
    assert [generated_texts(both.ours, [prompt])[0][0] for prompt in prompt_ids] == expected
    stopped = generated_texts(pair(writer).ours, prompt_ids, stop_token_ids=ends)
    assert stopped == (found, reasons)


# -- which texts are in the pass --------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["MistralForCausalLM", "BartForConditionalGeneration"])
def test_finished_text_leaves_the_batch(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    next_logits = DecodingState.next

    def counted_next(reader: DecodingState, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return next_logits(reader, tokens)

    monkeypatch.setattr(DecodingState, "next", counted_next)
    both = pair(writer, late_end_tokens(writer))
    lengths = [len(text) for text in generated_texts(both.ours, prompts())[0]]
    assert sizes == [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def test_steps_list_the_rows_of_their_texts() -> None:
    both = pair("LlamaForCausalLM", late_end_tokens("LlamaForCausalLM"))
    steps = list(write(both.ours.loaded, prompts(), read_settings({"max_new_tokens": STEPS}), log_probabilities=True))
    unfinished = [0, 1, 2]
    for step in steps:
        assert step.rows == unfinished
        assert step.log_probabilities is not None and step.log_probabilities.shape == (len(unfinished), 99)
        assert step.log_probabilities.argmax(dim=1).tolist() == step.tokens  # greedy and without rules
        torch.testing.assert_close(
            step.log_probabilities.exp().sum(dim=1), torch.ones(len(unfinished)), check_dtype=False
        )
        unfinished = [row for row in unfinished if row not in step.finished]
    assert not unfinished


def test_judge_ends_a_text() -> None:
    both, judged = pair("Qwen2ForCausalLM"), []

    def judge(row: int, token: int) -> str | None:
        judged.append((row, token))
        return "stop" if row == 1 and sum(other_row == 1 for other_row, _ in judged) == 4 else None

    steps = list(write(both.ours.loaded, prompts(), read_settings({"max_new_tokens": 6}), judge=judge))
    assert [step.finished for step in steps] == [{}, {}, {}, {1: "stop"}, {}, {0: "length", 2: "length"}]
    assert judged == [pair for step in steps for pair in zip(step.rows, step.tokens)]


# -- drawing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_seed_gives_the_same_text_alone_and_in_a_batch(writer: str) -> None:
    both, prompt_ids = pair(writer, late_end_tokens(writer)), prompts()
    options = {"do_sample": True, "seed": 5, "max_new_tokens": 40}
    together, _ = generated_texts(both.ours, prompt_ids, **options)
    assert [generated_texts(both.ours, [prompt], **options)[0][0] for prompt in prompt_ids] == together
    assert generated_texts(both.ours, prompt_ids[::-1], **options)[0] == together[::-1]
    assert generated_texts(both.ours, prompt_ids, **options | {"seed": 6})[0] != together
    assert generated_texts(both.ours, prompt_ids[:1] * 2, **options)[0] == together[:1] * 2


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "GPT2LMHeadModel", "BartForConditionalGeneration", "T5 gated"])
def test_float32_samples_the_same_alone_and_in_a_batch(writer: str, tmp_path: Path) -> None:
    """In the usual precision, with the packed blocks, whose sums round differently for one row and for many."""
    exact, prompt_ids = pair(writer, late_end_tokens(writer)).ours, prompts()
    single = pellucid.load(exact.save(tmp_path), dtype="float32")
    for options in ({"do_sample": True, "seed": 5}, {"do_sample": False}):
        expected = generated_texts(exact, prompt_ids, **options, max_new_tokens=40)
        assert generated_texts(single, prompt_ids, **options, max_new_tokens=40) == expected
        assert [
            generated_texts(single, [prompt], **options, max_new_tokens=40)[0][0] for prompt in prompt_ids
        ] == expected[0]


def test_num_return_sequences_samples_several_texts_per_prompt() -> None:
    both, prompt_ids = pair("LlamaForCausalLM", late_end_tokens("LlamaForCausalLM")), prompts()
    options = {"do_sample": True, "seed": 5, "max_new_tokens": 40, "num_return_sequences": 3}
    together, _ = generated_texts(both.ours, prompt_ids, **options)
    assert len({tuple(text) for text in together}) == 9
    for i, prompt in enumerate(prompt_ids):
        assert generated_texts(both.ours, [prompt], **options)[0] == together[3 * i : 3 * i + 3]
        first = generated_texts(both.ours, [prompt], **options | {"num_return_sequences": 1})[0]
        assert first == together[3 * i : 3 * i + 1]


def test_without_seed_samples_differ_and_the_global_generator_is_unchanged() -> None:
    both, options = pair("LlamaForCausalLM"), {"do_sample": True, "max_new_tokens": 20}
    before = torch.get_rng_state()
    assert generated_texts(both.ours, prompts(), **options) != generated_texts(both.ours, prompts(), **options)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are his own"


# -- leaving early --------------------------------------------------------------------------------------------------


class CacheWatcher:
    """Watches whether the cache of the last reader still exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache: Any = lambda: None
        prefill = loop.prefill

        def recorded_prefill(*arguments: Any) -> Any:
            reader, logits = prefill(*arguments)
            self.cache = weakref.ref(reader.cache)
            return reader, logits

        monkeypatch.setattr(loop, "prefill", recorded_prefill)

    def __bool__(self) -> bool:
        gc.collect()
        return self.cache() is not None


def generation_steps(steps: int = 50) -> Iterator[Step]:
    return write(pair("LlamaForCausalLM").ours.loaded, prompts(), Settings(max_new_tokens=steps))


def test_dropping_the_iterator_frees_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_exists, threads = CacheWatcher(monkeypatch), threading.enumerate()
    steps = generation_steps()
    assert len(list(itertools.islice(steps, 3))) == 3
    assert cache_exists
    del steps
    assert not cache_exists
    assert threading.enumerate() == threads


def test_closing_the_iterator_frees_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_exists, threads = CacheWatcher(monkeypatch), threading.enumerate()
    steps = generation_steps()
    next(steps)
    assert cache_exists
    steps.close()  # type: ignore[attr-defined]
    assert not cache_exists
    assert threading.enumerate() == threads
    assert list(steps) == []


def test_error_thrown_into_the_iterator_frees_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_exists, threads = CacheWatcher(monkeypatch), threading.enumerate()
    steps = generation_steps()
    next(steps)
    assert cache_exists
    with pytest.raises(ZeroDivisionError):
        steps.throw(ZeroDivisionError())  # type: ignore[attr-defined]
    assert not cache_exists
    assert threading.enumerate() == threads
    assert torch.is_inference_mode_enabled() is False


def test_caller_may_compute_gradients_between_steps() -> None:
    for _ in generation_steps(steps=3):
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
        weight = torch.ones(2, requires_grad=True)
        (weight * 3).sum().backward()
        assert weight.grad is not None


def test_finished_generation_frees_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    cache_exists = CacheWatcher(monkeypatch)
    steps = generation_steps(steps=3)
    assert len(list(steps)) == 3
    assert not cache_exists


# -- how much -------------------------------------------------------------------------------------------------------


def test_max_time_ends_the_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1000)  # a second passes at each call
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    model = pair("LlamaForCausalLM").ours
    found, reasons = generated_texts(model, prompts(), max_time=3.5)
    assert [len(text) for text in found] == [4] * 3 and reasons == ["time"] * 3
    monkeypatch.undo()
    assert found == [text[:4] for text in generated_texts(model, prompts())[0]]


def test_expired_max_time_still_gives_one_token() -> None:
    assert generated_texts(pair("LlamaForCausalLM").ours, prompts(), max_time=1e-9)[1] == ["time"] * 3


@pytest.mark.parametrize("writer", WRITERS)
def test_texts_end_at_the_last_position_of_the_model(writer: str) -> None:
    both, prompt_ids = pair(writer, length=30), prompts((17, 5))
    limits = [
        40 if both.ours.config.max_sequence_length is None else 31 - (len(prompt) if both.decodes_only else 1)
        for prompt in prompt_ids
    ]
    found, reasons = generated_texts(both.ours, prompt_ids, max_new_tokens=40)
    assert [len(text) for text in found] == limits and reasons == ["length"] * 2
    assert found == [greedy(both, [prompt], max_new_tokens=limit)[0] for prompt, limit in zip(prompt_ids, limits)]
    forced = generated_texts(both.ours, prompt_ids, max_new_tokens=40, forced_eos_token_id=5)[
        0
    ]  # each at its own maximum length
    assert forced == [[*text[:-1], 5] for text in found]


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "BartForConditionalGeneration"])
def test_longest_prompt_gives_one_token_and_a_longer_one_is_refused(writer: str) -> None:
    both = pair(writer, length=30)
    expected = greedy(both, prompts((30,)), max_new_tokens=1 if both.decodes_only else 30)
    assert generated_texts(both.ours, prompts((30,)))[0] == expected, "the last token is chosen, and never read"
    with pytest.raises(InputError, match="prompt 1 has 31 tokens, and this model reads 30 in all: cut it"):
        write(both.ours.loaded, prompts((5, 31)), Settings())


def test_empty_prompt_is_refused() -> None:
    model = pair("LlamaForCausalLM").ours
    with pytest.raises(InputError, match="prompt 1 is empty: a model needs a token to begin with"):
        write(model.loaded, [[5], []], Settings())
    assert list(write(model.loaded, [], Settings())) == []


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({"num_beams": 4}, "num_beams is 4, and beam search has its texts only at the end: pass num_beams=1"),
        (
            {"stop": ("END",)},
            r"stop is \('END',\), and ids are not text: give a judge that finds the end, or pass stop_to",
        ),
    ],
)
def test_options_that_would_be_ignored_are_refused(options: dict[str, Any], fragment: str) -> None:
    loaded = pair("LlamaForCausalLM").ours.loaded
    with pytest.raises(InputError, match=fragment):
        write(loaded, prompts((5,)), Settings(**options))


def test_models_without_language_model_head_are_refused() -> None:
    model = pellucid.build(pellucid.Config.of("bert", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="kind 'encoder'"):
        write(model.loaded, [[1, 1, 1]], read_settings({}))
    gpt = pellucid.build(pellucid.Config.of("gpt2", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="head for the next token"):
        write(gpt.loaded, [[1, 1, 1]], read_settings({}))
