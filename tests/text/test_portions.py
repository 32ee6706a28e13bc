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
from pellucid.text.portions import PrefixedEncoder, TextChunk, _chunk_end, ending_chunks, sentence_chunks
from tests.generation.writers import TOKENIZERS

WORDS = "license Berlin software 1,5 the, of a"
made: dict[str, Tokenizer] = {name: make() for name, make in TOKENIZERS.items()}


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode([text])[0].ids


def stretches(text: str, found: list[TextChunk]) -> list[str]:
    return [text[start:end] for start, end in (one.span for one in found)]


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


@pytest.mark.parametrize("kind", made)
@settings(max_examples=60, deadline=None)
@given(
    words=st.lists(
        st.sampled_from([*WORDS.split(), "Ends.", "Why?", "“So!”", "\n\n", "终了。", "🙂", "wordofmanyletters"])
    ),
    limit=st.integers(12, 40),
    prefix=st.sampled_from(["", "sum: "]),
)
def test_everything_is_read_once_and_fits(kind: str, words: list[str], limit: int, prefix: str) -> None:
    text, encoder = " ".join(words), PrefixedEncoder(made[kind], prefix)
    found = sentence_chunks(encoder, text, 0, rule="windows", limit=limit)
    assert squeezed("".join(stretches(text, found))) == squeezed(text)
    assert all(len(one.ids) <= limit for one in found)
    if len(found) > 1:
        for stretch, one in zip(stretches(text, found), found):
            assert one.cut == 0 and stretch == stretch.strip() and one.ids == ids(made[kind], prefix + stretch)


@pytest.mark.parametrize("kind", made)
def test_a_stretch_ends_with_a_sentence_else_with_a_word(kind: str) -> None:
    encoder = PrefixedEncoder(made[kind])
    text = "One part ends. " * 6 + "and then a sentence has no end for a long time " * 3 + "at all. Last."
    found = stretches(
        text, sentence_chunks(encoder, text, 0, rule="windows", limit=len(ids(made[kind], "One part ends. " * 3)))
    )
    assert found[0].endswith("ends.") and found[-1].endswith("Last.")
    assert all(re.fullmatch(r"[\w.]+", word) and word in text.split() for one in found for word in one.split())


def test_a_word_that_fits_nowhere_is_parted() -> None:
    encoder = PrefixedEncoder(made["byte_level"])
    text = "x" * 50 + "qz" * 200 + " end."
    found = sentence_chunks(encoder, text, 0, rule="windows", limit=20)
    assert "".join(stretches(text, found)).replace(" ", "") == text.replace(" ", "")
    assert all(len(one.ids) <= 20 for one in found)


def test_a_letter_keeps_its_accents_where_nothing_else_parts_a_text() -> None:
    text = "กำแพงน้ำที่นี่" * 30 + "e\u0301\u0323" * 60
    found = stretches(text, sentence_chunks(PrefixedEncoder(made["byte_level"]), text, 0, rule="windows", limit=30))
    assert len(found) > 5 and "".join(found) == text
    assert not any(unicodedata.category(one[0])[0] == "M" for one in found)


@pytest.mark.parametrize("end", ["।", "॥", "؟", "۔", "։", "።", "។", "။", "｡"])
def test_sentences_end_in_every_script(end: str) -> None:
    text = f"one word and another one{end} " * 12
    found = stretches(text, sentence_chunks(PrefixedEncoder(made["byte_level"]), text, 0, rule="windows", limit=60))
    assert len(found) > 2 and all(one.endswith(end) for one in found)


@pytest.mark.parametrize("sentence", ["这是一句话。）", "二番目の文です．", "这是第二句……”", "圆周率是３．１４吧！"])
def test_sentences_end_without_a_space_behind_all_their_signs(sentence: str) -> None:
    found = stretches(
        text := sentence * 12, sentence_chunks(PrefixedEncoder(made["byte_level"]), text, 0, rule="windows", limit=60)
    )
    assert len(found) > 2 and all(one.endswith(sentence) for one in found)


@pytest.mark.parametrize(
    ("text", "end"), [("." * 30_000, 29_999), ("…" * 30_000, 29_999), ("a" + "\n" * 60_000 + "b", 60_000)]
)
def test_a_long_run_of_signs_is_looked_through_once(text: str, end: int) -> None:
    """A few tokens may hold all of it, and each of its characters could begin the end of a sentence."""
    start = time.process_time()
    assert _chunk_end(text, 0, len(text) - 1) == end
    assert time.process_time() - start < 1


def test_what_fits_is_read_as_it_stands() -> None:
    encoder = PrefixedEncoder(made["byte_level"], "sum: ")
    for rule in ("error", "truncate", "windows"):
        assert sentence_chunks(encoder, " a b ", 0, rule=rule, limit=50) == [
            TextChunk(ids(made["byte_level"], "sum:  a b "), (0, 5))
        ]
        assert sentence_chunks(encoder, "a " * 500, 0, rule=rule, limit=None)[0].span == (0, 1_000)
    assert sentence_chunks(encoder, "", 0, rule="windows", limit=50)[0].ids == ids(made["byte_level"], "sum: ")
    assert sentence_chunks(PrefixedEncoder(made["byte_level"]), " \n" * 300, 0, rule="windows", limit=50)[0].span == (
        0,
        0,
    )


def test_cut_at_the_left_the_prefix_stays() -> None:
    tokenizer = copy.copy(made["byte_level"])
    tokenizer.settings = tokenizer.settings | {"truncation_side": "left"}
    text = "the license of the software " * 20 + "ends here"
    (kept,) = sentence_chunks(PrefixedEncoder(tokenizer, "sum: "), text, 0, rule="truncate", limit=30)
    begin, whole = ids(tokenizer, "sum: "), ids(tokenizer, text)
    assert kept.ids == begin + whole[-(30 - len(begin)) :] and kept.cut == len(whole) + len(begin) - 30
    assert text[slice(*kept.span)].endswith("ends here") and kept.span[0] > 0
    (bare,) = sentence_chunks(PrefixedEncoder(tokenizer), text, 0, rule="truncate", limit=30)
    assert bare.ids == whole[-30:]


def test_rules() -> None:
    encoder, text = PrefixedEncoder(made["byte_level"], "sum: "), "the license of the software " * 20
    whole = len(ids(made["byte_level"], "sum: " + text))
    with pytest.raises(
        InputError, match=rf"item 4 has {whole - 30} tokens more than the 30 that are read at once: pass long="
    ):
        sentence_chunks(encoder, text, 4, rule="error", limit=30)
    (kept,) = sentence_chunks(encoder, text, 4, rule="truncate", limit=30)
    assert (len(kept.ids), kept.cut, kept.span[0]) == (30, whole - 30, 0)
    assert ids(made["byte_level"], "sum: " + text[: kept.span[1]]) == kept.ids
    for rule in ("truncate", "windows"):
        with pytest.raises(InputError, match="item 4: the prefix leaves no room for the text in 2 tokens"):
            sentence_chunks(encoder, text, 4, rule=rule, limit=2)
        with pytest.raises(InputError, match="item 4: the prefix leaves no room for the text"):
            ending_chunks(encoder, text, 4, room=2, rule=rule)
    with pytest.raises(InputError, match="stride is 90, expected a whole number below"):
        ending_chunks(encoder, text, 4, room=20, rule="windows", stride=90)
    with pytest.raises(InputError, match="item 4 is int, expected a string"):
        sentence_chunks(encoder, 5, 4, rule="windows", limit=3)


@pytest.mark.parametrize("kind", made)
@pytest.mark.parametrize("stride", [0, 5, None])
def test_endings_share_tokens_and_the_last_is_full(kind: str, stride: int | None) -> None:
    tokenizer, text = made[kind], ("the license of the software and of its parts " * 12).strip()
    whole, encoder = ids(tokenizer, text), PrefixedEncoder(tokenizer)
    found = ending_chunks(encoder, text, 0, room=24, rule="windows", stride=stride)
    assert len(found[-1].ids) == 24 and found[-1].ids == whole[-24:]
    shared, ids_, at = 6 if stride is None else stride, [one.ids for one in found], len(whole)
    for row in reversed(ids_):
        assert row == whole[max(at - 24, 0) : at]
        at -= 24 - shared
    assert found[0].span[0] == 0 and found[-1].span[1] == len(text)
    (end,), (start,) = (ending_chunks(encoder, text, 0, room=24, rule="truncate", left=left) for left in (True, False))
    assert (end.ids, start.ids) == (whole[-24:], whole[:24])
    assert end.cut == start.cut == len(whole) - 24
    assert start.span[0] == 0 and end.span[1] == len(text)


def test_a_prefix_stands_before_each_stretch() -> None:
    tokenizer, text = made["byte_level"], "the license of the software " * 12
    before = ids(tokenizer, "So: ")
    found = ending_chunks(PrefixedEncoder(tokenizer, "So: "), text, 0, room=24, rule="windows", stride=0)
    assert all(one.ids[: len(before)] == before for one in found)
    assert [i for one in found for i in one.ids[len(before) :]] == ids(tokenizer, text)
