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
from tests.generation.reference import WRITERS, greedy, late_ends, pair, prompts
from tests.quick import few

STEPS = 100


def texts(
    model: pellucid.Model, prompt_ids: Sequence[Sequence[int]], **options: Any
) -> tuple[list[list[int]], list[str]]:
    """What is generated for each prompt, and why it ends."""
    settings = read_settings({"max_new_tokens": STEPS} | options)
    count = len(prompt_ids) * settings.num_return_sequences
    written: list[list[int]] = [[] for _ in range(count)]
    why = [""] * count
    for step in write(model.loaded, prompt_ids, settings):
        for row, token in zip(step.rows, step.tokens, strict=True):
            assert not why[row], "a finished text goes on"
            written[row].append(token)
        for row, reason in step.finished.items():
            why[row] = reason
    return written, why


# -- the reference --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", WRITERS)
def test_the_reference_writes_the_same(writer: str) -> None:
    both, prompt_ids = pair(writer), prompts()
    wanted = greedy(both, prompt_ids, max_new_tokens=STEPS)
    assert [len(row) for row in wanted] == [STEPS] * 3
    assert all(len(set(row)) > 4 for row in wanted), "texts of few words show little"
    assert texts(both.ours, prompt_ids) == (wanted, ["length"] * 3)
    for prompt, row in zip(prompt_ids, wanted):
        assert texts(both.ours, [prompt]) == ([row], ["length"])


@pytest.mark.parametrize("writer", few(WRITERS, list(WRITERS)[::2]))
def test_texts_end_where_the_reference_ends_them(writer: str) -> None:
    ends = late_ends(writer)
    both, prompt_ids = pair(writer, ends), prompts()
    wanted = greedy(both, prompt_ids, ends, max_new_tokens=STEPS)
    lengths = [len(row) for row in wanted]
    assert len(set(lengths)) > 1 and min(lengths) < STEPS, "texts that end together leave nobody behind"
    found, why = texts(both.ours, prompt_ids)
    assert found == wanted
    assert why == ["end" if row[-1] in ends else "length" for row in wanted]
    assert [texts(both.ours, [prompt])[0][0] for prompt in prompt_ids] == wanted
    stopped = texts(pair(writer).ours, prompt_ids, stop_token_ids=ends)
    assert stopped == (found, why)


# -- who is in the pass ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["MistralForCausalLM", "BartForConditionalGeneration"])
def test_a_finished_text_leaves_the_pass(writer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    reading = DecodingState.next

    def counted(reader: DecodingState, tokens: torch.Tensor) -> torch.Tensor:
        sizes.append(len(tokens))
        return reading(reader, tokens)

    monkeypatch.setattr(DecodingState, "next", counted)
    both = pair(writer, late_ends(writer))
    lengths = [len(text) for text in texts(both.ours, prompts())[0]]
    assert sizes == [sum(length > step for length in lengths) for step in range(1, max(lengths))]


def test_steps_name_their_texts() -> None:
    both = pair("LlamaForCausalLM", late_ends("LlamaForCausalLM"))
    steps = list(write(both.ours.loaded, prompts(), read_settings({"max_new_tokens": STEPS}), log_probabilities=True))
    there = [0, 1, 2]
    for step in steps:
        assert step.rows == there
        assert step.log_probabilities is not None and step.log_probabilities.shape == (len(there), 99)
        assert step.log_probabilities.argmax(dim=1).tolist() == step.tokens  # greedy and without rules
        torch.testing.assert_close(step.log_probabilities.exp().sum(dim=1), torch.ones(len(there)), check_dtype=False)
        there = [row for row in there if row not in step.finished]
    assert not there


def test_a_judge_ends_a_text() -> None:
    both, judged = pair("Qwen2ForCausalLM"), []

    def judge(row: int, token: int) -> str | None:
        judged.append((row, token))
        return "stop" if row == 1 and sum(which == 1 for which, _ in judged) == 4 else None

    steps = list(write(both.ours.loaded, prompts(), read_settings({"max_new_tokens": 6}), judge=judge))
    assert [step.finished for step in steps] == [{}, {}, {}, {1: "stop"}, {}, {0: "length", 2: "length"}]
    assert judged == [pair for step in steps for pair in zip(step.rows, step.tokens)]


# -- drawing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "T5ForConditionalGeneration"])
def test_a_seed_gives_the_same_text_alone_and_in_a_batch(writer: str) -> None:
    both, prompt_ids = pair(writer, late_ends(writer)), prompts()
    options = {"do_sample": True, "seed": 5, "max_new_tokens": 40}
    together, _ = texts(both.ours, prompt_ids, **options)
    assert [texts(both.ours, [prompt], **options)[0][0] for prompt in prompt_ids] == together
    assert texts(both.ours, prompt_ids[::-1], **options)[0] == together[::-1]
    assert texts(both.ours, prompt_ids, **options | {"seed": 6})[0] != together
    assert texts(both.ours, prompt_ids[:1] * 2, **options)[0] == together[:1] * 2


@pytest.mark.usefixtures("steps")
@pytest.mark.parametrize("writer", ["LlamaForCausalLM", "GPT2LMHeadModel", "BartForConditionalGeneration", "T5 gated"])
def test_float32_draws_the_same_alone_and_in_a_batch(writer: str, tmp_path: Path) -> None:
    """In the usual precision, with the packed blocks, whose sums round differently for one row and for many."""
    exact, prompt_ids = pair(writer, late_ends(writer)).ours, prompts()
    single = pellucid.load(exact.save(tmp_path), dtype="float32")
    for options in ({"do_sample": True, "seed": 5}, {"do_sample": False}):
        wanted = texts(exact, prompt_ids, **options, max_new_tokens=40)
        assert texts(single, prompt_ids, **options, max_new_tokens=40) == wanted
        assert [texts(single, [prompt], **options, max_new_tokens=40)[0][0] for prompt in prompt_ids] == wanted[0]


def test_several_texts_are_drawn_for_each_prompt() -> None:
    both, prompt_ids = pair("LlamaForCausalLM", late_ends("LlamaForCausalLM")), prompts()
    options = {"do_sample": True, "seed": 5, "max_new_tokens": 40, "num_return_sequences": 3}
    together, _ = texts(both.ours, prompt_ids, **options)
    assert len({tuple(text) for text in together}) == 9
    for i, prompt in enumerate(prompt_ids):
        assert texts(both.ours, [prompt], **options)[0] == together[3 * i : 3 * i + 3]
        first = texts(both.ours, [prompt], **options | {"num_return_sequences": 1})[0]
        assert first == together[3 * i : 3 * i + 1]


def test_no_seed_draws_anew() -> None:
    both, options = pair("LlamaForCausalLM"), {"do_sample": True, "max_new_tokens": 20}
    before = torch.get_rng_state()
    assert texts(both.ours, prompts(), **options) != texts(both.ours, prompts(), **options)
    assert torch.equal(torch.get_rng_state(), before), "the caller's random numbers are his own"


# -- leaving early --------------------------------------------------------------------------------------------------


class Kept:
    """Watches whether the cache of the last reader still exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache: Any = lambda: None
        beginning = loop.prefill

        def noted(*given: Any) -> Any:
            reader, logits = beginning(*given)
            self.cache = weakref.ref(reader.cache)
            return reader, logits

        monkeypatch.setattr(loop, "prefill", noted)

    def __bool__(self) -> bool:
        gc.collect()
        return self.cache() is not None


def written(steps: int = 50) -> Iterator[Step]:
    return write(pair("LlamaForCausalLM").ours.loaded, prompts(), Settings(max_new_tokens=steps))


def test_a_reader_who_stops_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, threads = Kept(monkeypatch), threading.enumerate()
    going = written()
    assert len(list(itertools.islice(going, 3))) == 3
    assert kept
    del going
    assert not kept
    assert threading.enumerate() == threads


def test_a_closed_text_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, threads = Kept(monkeypatch), threading.enumerate()
    going = written()
    next(going)
    assert kept
    going.close()  # type: ignore[attr-defined]
    assert not kept
    assert threading.enumerate() == threads
    assert list(going) == []


def test_an_error_of_the_reader_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, threads = Kept(monkeypatch), threading.enumerate()
    going = written()
    next(going)
    assert kept
    with pytest.raises(ZeroDivisionError):
        going.throw(ZeroDivisionError())  # type: ignore[attr-defined]
    assert not kept
    assert threading.enumerate() == threads
    assert torch.is_inference_mode_enabled() is False


def test_between_steps_the_caller_may_learn() -> None:
    for _ in written(steps=3):
        assert not torch.is_inference_mode_enabled() and torch.is_grad_enabled()
        weight = torch.ones(2, requires_grad=True)
        (weight * 3).sum().backward()
        assert weight.grad is not None


def test_a_finished_text_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(monkeypatch)
    going = written(steps=3)
    assert len(list(going)) == 3
    assert not kept


# -- how much -------------------------------------------------------------------------------------------------------


def test_time_runs_out(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(1000)  # a second passes at each call
    monkeypatch.setattr(loop.time, "monotonic", lambda: float(next(clock)))
    model = pair("LlamaForCausalLM").ours
    found, why = texts(model, prompts(), max_time=3.5)
    assert [len(text) for text in found] == [4] * 3 and why == ["time"] * 3
    monkeypatch.undo()
    assert found == [text[:4] for text in texts(model, prompts())[0]]


def test_no_time_still_gives_a_token() -> None:
    assert texts(pair("LlamaForCausalLM").ours, prompts(), max_time=1e-9)[1] == ["time"] * 3


@pytest.mark.parametrize("writer", WRITERS)
def test_no_more_is_written_than_the_model_has_positions_for(writer: str) -> None:
    both, prompt_ids = pair(writer, length=30), prompts((17, 5))
    rooms = [
        40 if both.ours.config.max_sequence_length is None else 31 - (len(own) if both.decodes_only else 1)
        for own in prompt_ids
    ]
    found, why = texts(both.ours, prompt_ids, max_new_tokens=40)
    assert [len(text) for text in found] == rooms and why == ["length"] * 2
    assert found == [greedy(both, [own], max_new_tokens=room)[0] for own, room in zip(prompt_ids, rooms)]
    forced = texts(both.ours, prompt_ids, max_new_tokens=40, forced_eos_token_id=5)[0]  # each at its own maximum length
    assert forced == [[*text[:-1], 5] for text in found]


@pytest.mark.parametrize("writer", ["GPT2LMHeadModel", "BartForConditionalGeneration"])
def test_the_longest_prompt_that_fits(writer: str) -> None:
    both = pair(writer, length=30)
    wanted = greedy(both, prompts((30,)), max_new_tokens=1 if both.decodes_only else 30)
    assert texts(both.ours, prompts((30,)))[0] == wanted, "the last token is chosen, and never read"
    with pytest.raises(InputError, match="prompt 1 has 31 tokens, and this model reads 30 in all: cut it"):
        write(both.ours.loaded, prompts((5, 31)), Settings())


def test_a_prompt_needs_a_token() -> None:
    model = pair("LlamaForCausalLM").ours
    with pytest.raises(InputError, match="prompt 1 is empty: a model needs a token to begin with"):
        write(model.loaded, [[5], []], Settings())
    assert list(write(model.loaded, [], Settings())) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"num_beams": 4}, "num_beams is 4, and beam search has its texts only at the end: pass num_beams=1"),
        (
            {"stop": ("END",)},
            r"stop is \('END',\), and ids are not text: give a judge that finds the end, or pass stop_to",
        ),
    ],
)
def test_what_would_be_passed_over_is_refused(asked: dict[str, Any], said: str) -> None:
    loaded = pair("LlamaForCausalLM").ours.loaded
    with pytest.raises(InputError, match=said):
        write(loaded, prompts((5,)), Settings(**asked))


def test_an_encoder_does_not_write() -> None:
    model = pellucid.build(pellucid.Config.of("bert", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="kind 'encoder'"):
        write(model.loaded, [[1, 1, 1]], read_settings({}))
    gpt = pellucid.build(pellucid.Config.of("gpt2", num_hidden_layers=1, hidden_size=12, vocab_size=9))
    with pytest.raises(InputError, match="head for the next token"):
        write(gpt.loaded, [[1, 1, 1]], read_settings({}))
