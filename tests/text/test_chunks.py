"""Long texts for models that generate: chunks that end with a sentence, and texts truncated at either end."""

import copy
import re
import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pellucid.errors import InputError
from pellucid.text import Tokenizer
from pellucid.text.chunks import PrefixedEncoder, TextChunk, _chunk_end, ending_chunks, sentence_chunks
from tests.generation.writers import TOKENIZERS

VOCABULARY = "license Berlin software 1,5 the, of a"
tokenizers_by_kind: dict[str, Tokenizer] = {name: make() for name, make in TOKENIZERS.items()}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0].ids


def chunk_texts(text: str, found: list[TextChunk]) -> list[str]:
    return [text[start:end] for start, end in (one.span for one in found)]


def without_spaces(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("kind", tokenizers_by_kind)
@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(
        st.sampled_from([*VOCABULARY.split(), "Ends.", "Why?", "“So!”", "\n\n", "终了。", "🙂", "wordofmanyletters"])
    ),
    limit=st.integers(12, 40),
    prefix=st.sampled_from(["", "sum: "]),
)
def test_chunks_cover_the_text_once_within_the_limit(kind: str, words: list[str], limit: int, prefix: str) -> None:
    text, encoder = " ".join(words), PrefixedEncoder(tokenizers_by_kind[kind], prefix)
    found = sentence_chunks(encoder, text, 0, rule="windows", limit=limit)
    assert without_spaces("".join(chunk_texts(text, found))) == without_spaces(text)
    assert all(len(one.ids) <= limit for one in found)
    if len(found) > 1:
        for chunk_text, one in zip(chunk_texts(text, found), found):
            assert (
                one.cut == 0
                and chunk_text == chunk_text.strip()
                and one.ids == ids(tokenizers_by_kind[kind], prefix + chunk_text)
            )


@pytest.mark.parametrize("kind", tokenizers_by_kind)
def test_chunks_end_with_a_sentence_or_a_word(kind: str) -> None:
    encoder = PrefixedEncoder(tokenizers_by_kind[kind])
    text = "One part ends. " * 6 + "and then a sentence has no end for a long time " * 3 + "at all. Last."
    found = chunk_texts(
        text,
        sentence_chunks(
            encoder, text, 0, rule="windows", limit=len(ids(tokenizers_by_kind[kind], "One part ends. " * 3))
        ),
    )
    assert found[0].endswith("ends.") and found[-1].endswith("Last.")
    assert all(re.fullmatch(r"[\w.]+", word) and word in text.split() for one in found for word in one.split())


@pytest.mark.parametrize("prefix", ["", "sum: "])
def test_chunk_may_take_all_of_its_room(prefix: str) -> None:
    tokenizer, text = tokenizers_by_kind["word_pieces"], "the license of a software"
    encoder, limit, long = PrefixedEncoder(tokenizer, prefix), len(ids(tokenizer, prefix + text)), f"{text} {text}"
    assert sentence_chunks(encoder, text, 0, rule="error", limit=limit) == [encoder.whole_chunk(text)]
    assert chunk_texts(long, sentence_chunks(encoder, long, 0, rule="windows", limit=limit)) == [text, text]
    (start,) = ending_chunks(encoder, long, 0, room=limit, rule="truncate", left=False)
    assert chunk_texts(long, [start]) == [text]
    with pytest.raises(InputError, match="the prefix leaves no room"):
        sentence_chunks(encoder, text, 0, rule="windows", limit=len(ids(tokenizer, prefix)))


def test_word_longer_than_the_limit_is_split() -> None:
    encoder = PrefixedEncoder(tokenizers_by_kind["byte_level"])
    text = "x" * 50 + "qz" * 200 + " end."
    found = sentence_chunks(encoder, text, 0, rule="windows", limit=20)
    assert "".join(chunk_texts(text, found)).replace(" ", "") == text.replace(" ", "")
    assert all(len(one.ids) <= 20 for one in found)


def test_chunks_do_not_separate_letters_and_accents() -> None:
    text = "กำแพงน้ำที่นี่" * 30 + "e\u0301\u0323" * 60
    found = chunk_texts(
        text, sentence_chunks(PrefixedEncoder(tokenizers_by_kind["byte_level"]), text, 0, rule="windows", limit=30)
    )
    assert len(found) > 5 and "".join(found) == text
    assert not any(unicodedata.category(one[0])[0] == "M" for one in found)


@pytest.mark.parametrize("end", ["।", "॥", "؟", "۔", "։", "።", "។", "။", "｡"])
def test_sentences_end_in_every_script(end: str) -> None:
    text = f"one word and another one{end} " * 12
    found = chunk_texts(
        text, sentence_chunks(PrefixedEncoder(tokenizers_by_kind["byte_level"]), text, 0, rule="windows", limit=60)
    )
    assert len(found) > 2 and all(one.endswith(end) for one in found)


@pytest.mark.parametrize("sentence", ["这是一句话。）", "二番目の文です．", "这是第二句……”", "圆周率是３．１４吧！"])
def test_sentences_end_without_a_space_after_their_punctuation(sentence: str) -> None:
    found = chunk_texts(
        text := sentence * 12,
        sentence_chunks(PrefixedEncoder(tokenizers_by_kind["byte_level"]), text, 0, rule="windows", limit=60),
    )
    assert len(found) > 2 and all(one.endswith(sentence) for one in found)


@pytest.mark.parametrize(
    ("text", "end"), [("." * 30_000, 29_999), ("…" * 30_000, 29_999), ("a" + "\n" * 60_000 + "b", 60_000)]
)
def test_long_run_of_punctuation_is_scanned_once(text: str, end: int) -> None:
    """A few tokens may hold all of it, and each of its characters could begin the end of a sentence."""
    start = time.process_time()
    assert _chunk_end(text, 0, len(text) - 1) == end
    assert time.process_time() - start < 1


def test_text_within_the_limit_is_unchanged() -> None:
    encoder = PrefixedEncoder(tokenizers_by_kind["byte_level"], "sum: ")
    for rule in ("error", "truncate", "windows"):
        assert sentence_chunks(encoder, " a b ", 0, rule=rule, limit=50) == [
            TextChunk(ids(tokenizers_by_kind["byte_level"], "sum:  a b "), (0, 5))
        ]
        assert sentence_chunks(encoder, "a " * 500, 0, rule=rule, limit=None)[0].span == (0, 1_000)
    assert sentence_chunks(encoder, "", 0, rule="windows", limit=50)[0].ids == ids(
        tokenizers_by_kind["byte_level"], "sum: "
    )
    assert sentence_chunks(PrefixedEncoder(tokenizers_by_kind["byte_level"]), " \n" * 300, 0, rule="windows", limit=50)[
        0
    ].span == (
        0,
        0,
    )


def test_left_truncation_preserves_the_prefix() -> None:
    tokenizer = copy.copy(tokenizers_by_kind["byte_level"])
    tokenizer.settings = tokenizer.settings | {"truncation_side": "left"}
    text = "the license of the software " * 20 + "ends here"
    (chunk,) = sentence_chunks(PrefixedEncoder(tokenizer, "sum: "), text, 0, rule="truncate", limit=30)
    begin, whole = ids(tokenizer, "sum: "), ids(tokenizer, text)
    assert chunk.ids == begin + whole[-(30 - len(begin)) :] and chunk.cut == len(whole) + len(begin) - 30
    assert text[slice(*chunk.span)].endswith("ends here") and chunk.span[0] > 0
    (without_prefix,) = sentence_chunks(PrefixedEncoder(tokenizer), text, 0, rule="truncate", limit=30)
    assert without_prefix.ids == whole[-30:]


def test_rules_for_long_texts() -> None:
    encoder, text = PrefixedEncoder(tokenizers_by_kind["byte_level"], "sum: "), "the license of the software " * 20
    whole = len(ids(tokenizers_by_kind["byte_level"], "sum: " + text))
    with pytest.raises(
        InputError, match=rf"item 4 has {whole - 30} tokens more than the 30 that are read at once: pass long="
    ):
        sentence_chunks(encoder, text, 4, rule="error", limit=30)
    (chunk,) = sentence_chunks(encoder, text, 4, rule="truncate", limit=30)
    assert (len(chunk.ids), chunk.cut, chunk.span[0]) == (30, whole - 30, 0)
    assert ids(tokenizers_by_kind["byte_level"], "sum: " + text[: chunk.span[1]]) == chunk.ids
    for rule in ("truncate", "windows"):
        with pytest.raises(InputError, match="item 4: the prefix leaves no room for the text in 2 tokens"):
            sentence_chunks(encoder, text, 4, rule=rule, limit=2)
        with pytest.raises(InputError, match="item 4: the prefix leaves no room for the text"):
            ending_chunks(encoder, text, 4, room=2, rule=rule)
    with pytest.raises(InputError, match="stride is 90, expected a whole number below"):
        ending_chunks(encoder, text, 4, room=20, rule="windows", stride=90)


@pytest.mark.parametrize("kind", tokenizers_by_kind)
@pytest.mark.parametrize("stride", [0, 5, None])
def test_ending_chunks_overlap_and_the_last_is_full(kind: str, stride: int | None) -> None:
    tokenizer, text = tokenizers_by_kind[kind], ("the license of the software and of its parts " * 12).strip()
    whole, encoder = ids(tokenizer, text), PrefixedEncoder(tokenizer)
    found = ending_chunks(encoder, text, 0, room=24, rule="windows", stride=stride)
    assert len(found[-1].ids) == 24 and found[-1].ids == whole[-24:]
    shared, rows, position = 6 if stride is None else stride, [one.ids for one in found], len(whole)
    for row in reversed(rows):
        assert row == whole[max(position - 24, 0) : position]
        position -= 24 - shared
    assert found[0].span[0] == 0 and found[-1].span[1] == len(text)
    (end,), (start,) = (ending_chunks(encoder, text, 0, room=24, rule="truncate", left=left) for left in (True, False))
    assert (end.ids, start.ids) == (whole[-24:], whole[:24])
    assert end.cut == start.cut == len(whole) - 24
    assert start.span[0] == 0 and end.span[1] == len(text)


def test_each_chunk_begins_with_the_prefix() -> None:
    tokenizer, text = tokenizers_by_kind["byte_level"], "the license of the software " * 12
    before = ids(tokenizer, "So: ")
    found = ending_chunks(PrefixedEncoder(tokenizer, "So: "), text, 0, room=24, rule="windows", stride=0)
    assert all(one.ids[: len(before)] == before for one in found)
    assert [i for one in found for i in one.ids[len(before) :]] == ids(tokenizer, text)
