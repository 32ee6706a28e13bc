"""Long texts: every token is in a window, at its position, however the text is split and whatever is beside it."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import transformers

import pellucid
from pellucid.text import RULES, Tokenizer, Window, windows
from pellucid.text.files import open_tokenizer

GOLDEN = Path(__file__).parent.parent / "parity" / "golden" / "tokenizers"
KINDS = ("albert", "bert", "bert-cased", "chat", "gpt2", "llama3", "mistral", "mpnet", "roberta", "t5", "xlm-roberta")
FAMILIES = {"bert-cased": "bert", "chat": "llama", "llama3": "llama"}

TEXT = (
    "Jürgen Müller took the train from Vienna to Zürich; he didn't read 1,500 pages 🙂 of it. "
    "The  Eiffel Tower (330 m) was built between 1887 and 1889 by the engineer Gustave Eiffel!\n"
) * 5
QUESTION = "Who was on the train?"


@pytest.fixture(scope="module", params=KINDS)
def tokenizer_pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, object]:
    """One vocabulary, opened by pellucid and by the reference."""
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(GOLDEN / request.param / "tokenizer.json"))
    return opened_tokenizer(request.param), theirs


@pytest.fixture(scope="module")
def bert() -> Tokenizer:
    return opened_tokenizer("bert")


def opened_tokenizer(kind: str) -> Tokenizer:
    tokenizer = open_tokenizer(GOLDEN / kind, max_length=None, model_type=FAMILIES.get(kind, kind))
    assert tokenizer is not None
    return tokenizer


def text_positions(window: Window, side: int = 0) -> list[int]:
    """The positions of a text's tokens in a window."""
    return [i for i, here in enumerate(window.sequence_ids) if here == side]


@pytest.mark.parametrize("kind", KINDS)
def test_scripts_without_spaces_have_one_word_for_each_token(kind: str) -> None:
    tokenizer, text = opened_tokenizer(kind), "Ada在北京 見到 東京のBobby ร้านที่ ﾊﾟready"
    (whole,) = windows(tokenizer, QUESTION, text, side=1, max_length=500)
    positions = text_positions(whole, 1)
    characters: dict[int | None, set[int]] = {}
    for i in positions:
        characters.setdefault(whole.words[i], set()).update(range(*whole.offsets[i]))
    found = [text[min(one) : max(one) + 1].strip() for one in characters.values()]
    if kind in ("chat", "gpt2", "llama3", "mistral", "roberta"):  # the other vocabularies lack these letters
        assert found == "Ada 在 北 京 見 到 東 京 の Bobby ร้ า น ที่ ﾊﾟ ready".split()
    for stride in (0, 5):
        for one in windows(tokenizer, QUESTION, text, rule="windows", max_length=24, stride=stride, side=1):
            window_positions = text_positions(one, 1)
            assert [one.words[i] for i in window_positions] == [whole.words[i] for i in positions][
                one.tokens_before : one.tokens_before + len(window_positions)
            ]
    assert [whole.words[i] for i in text_positions(whole)] == [whole.word_ids[i] for i in text_positions(whole)]


@pytest.mark.parametrize(("size", "stride"), [(20, 0), (31, 7), (48, 40), (2_000, 5)])
def test_windows_equal_the_reference(tokenizer_pair: tuple[Tokenizer, object], size: int, stride: int) -> None:
    ours, theirs = tokenizer_pair
    found = windows(ours, TEXT, rule="windows", max_length=size, stride=stride)
    settings = {"max_length": size, "stride": stride, "truncation": True, "return_overflowing_tokens": True}
    expected = theirs([TEXT], return_offsets_mapping=True, **settings)
    assert [one.ids for one in found] == expected["input_ids"]
    assert [one.offsets for one in found] == [list(map(tuple, row)) for row in expected["offset_mapping"]]
    assert [one.word_ids for one in found] == [expected.word_ids(i) for i in range(len(found))]
    assert [one.words for one in found] == [one.word_ids for one in found]
    assert [(one.index, one.count) for one in found] == [(i, len(found)) for i in range(len(found))]


@pytest.mark.parametrize("side", [0, 1])
def test_windows_of_pairs_equal_the_reference(tokenizer_pair: tuple[Tokenizer, object], side: int) -> None:
    ours, theirs = tokenizer_pair
    pair = (TEXT, QUESTION) if side == 0 else (QUESTION, TEXT)
    found = windows(ours, *pair, rule="windows", max_length=40, stride=9, side=side)
    rule = "only_first" if side == 0 else "only_second"
    expected = theirs(
        [pair[0]],
        [pair[1]],
        max_length=40,
        stride=9,
        truncation=rule,
        return_overflowing_tokens=True,
        return_token_type_ids=True,
    )
    assert len(found) > 5
    assert [one.ids for one in found] == expected["input_ids"]
    assert [one.sequence_ids for one in found] == [expected.sequence_ids(i) for i in range(len(found))]
    assert found[0].type_ids == expected["token_type_ids"][0]
    for one in found:  # for some kinds the library changes types from the second window on, unlike in the whole pair
        assert set(zip(one.sequence_ids, one.type_ids)) == set(zip(found[0].sequence_ids, found[0].type_ids))
    for one in found:
        other = pair[1 - side]
        assert other[slice(*one.span(1 - side))].strip() == other, "the other text stays whole"


@pytest.mark.parametrize(("size", "stride"), [(20, 0), (31, 7), (48, None)])
def test_tokens_before_a_window_are_counted(
    tokenizer_pair: tuple[Tokenizer, object], size: int, stride: int | None
) -> None:
    ours, _ = tokenizer_pair
    (whole,) = windows(ours, TEXT, rule="truncate", max_length=None if ours.model_max_length is None else 96)
    (row,) = ours.encode([TEXT])
    ids = [i for i, special in zip(row.ids, row.special) if not special]
    ids_by_position: dict[int, int] = {}
    for one in windows(ours, TEXT, rule="windows", max_length=size, stride=stride):
        assert len(one.ids) <= size and one.cut == 0
        for nth, i in enumerate(text_positions(one)):
            assert ids_by_position.setdefault(one.tokens_before + nth, one.ids[i]) == one.ids[i]
    assert [ids_by_position[i] for i in range(len(ids_by_position))] == ids
    assert whole.tokens_before == 0 and whole.ids[: len(text_positions(whole))] == row.ids[: len(text_positions(whole))]


def test_spans_cover_the_text_without_gaps(tokenizer_pair: tuple[Tokenizer, object]) -> None:
    ours, _ = tokenizer_pair
    spans = [one.span() for one in windows(ours, TEXT, rule="windows", max_length=24, stride=6)]
    assert TEXT[: spans[0][0]].strip() == "" and TEXT[spans[-1][1] :].strip() == ""
    for (_, end), (start, _) in itertools.pairwise(spans):
        assert start <= end, "neighbours share a stride"
    for (start, end), one in zip(spans, windows(ours, TEXT, rule="windows", max_length=24, stride=6)):
        assert all(start <= one.offsets[i][0] <= one.offsets[i][1] <= end for i in text_positions(one))


def test_windows_without_overlap_join_to_the_text(tokenizer_pair: tuple[Tokenizer, object]) -> None:
    ours, _ = tokenizer_pair
    found = windows(ours, TEXT, rule="windows", max_length=24, stride=0)
    ends = [one.span()[1] for one in found]
    for one, end in zip(found[1:], ends):
        assert TEXT[end : one.span()[0]].strip() == ""


def test_truncated_tokens_are_counted(tokenizer_pair: tuple[Tokenizer, object]) -> None:
    ours, _ = tokenizer_pair
    (row,) = ours.encode([TEXT])
    (one,) = windows(ours, TEXT, rule="truncate", max_length=24)
    assert len(one.ids) == 24 and one.cut == len(row.ids) - 24 and one.count == 1
    assert one.ids == ours.encode([TEXT], max_length=24)[0].ids
    (pair,) = windows(ours, QUESTION, TEXT, rule="truncate", max_length=50, side=1)
    (whole,) = ours.encode([QUESTION], [TEXT])
    assert len(pair.ids) == 50 and pair.cut == len(whole.ids) - 50


def test_pairs_are_truncated_longest_first(tokenizer_pair: tuple[Tokenizer, object]) -> None:
    ours, theirs = tokenizer_pair
    for pair in ((TEXT, QUESTION), (QUESTION, TEXT), (TEXT, TEXT)):
        for size in (15, 40):
            (one,) = windows(ours, *pair, rule="truncate", max_length=size, side=None)
            expected = theirs(
                [pair[0]], [pair[1]], max_length=size, truncation="longest_first", return_token_type_ids=True
            )
            assert [one.ids] == expected["input_ids"] and [one.type_ids] == expected["token_type_ids"]
            assert one.cut == len(ours.encode([pair[0]], [pair[1]])[0].ids) - size


@pytest.mark.parametrize("side", [None, 0, 1])
def test_left_truncation_keeps_the_end(tokenizer_pair: tuple[Tokenizer, Any], side: int | None) -> None:
    plain, theirs = tokenizer_pair
    ours = copy.copy(plain)
    ours.settings = plain.settings | {"truncation_side": "left"}
    theirs.truncation_side = "left"
    strategy = {None: "longest_first", 0: "only_first", 1: "only_second"}[side]
    pair = {None: (TEXT, TEXT), 0: (TEXT, QUESTION), 1: (QUESTION, TEXT)}[side]
    (one,) = windows(ours, *pair, rule="truncate", max_length=50, side=side)
    assert one.ids == theirs(*pair, max_length=50, truncation=strategy)["input_ids"]
    assert one.ids == ours.encode([pair[0]], [pair[1]], max_length=50, strategy=strategy)[0].ids
    (whole,) = ours.encode([pair[0]], [pair[1]])
    assert one.cut == len(whole.ids) - 50 and one.tokens_before == (
        one.cut if side is not None else one.cut - one.cut // 2
    )
    assert one.span(side or 0)[0] > 0 and one.span(side or 0)[1] >= len(TEXT.rstrip())
    assert side is None or one.span(1 - side)[0] == 0
    theirs.truncation_side = "right"
    (alone,) = windows(ours, TEXT, rule="truncate", max_length=24)
    assert alone.ids == ours.encode([TEXT], max_length=24)[0].ids
    assert (
        alone.tokens_before == alone.cut > 0
        and alone.ids != windows(plain, TEXT, rule="truncate", max_length=24)[0].ids
    )
    stretches = windows(ours, TEXT, rule="windows", max_length=24)
    assert stretches == windows(plain, TEXT, rule="windows", max_length=24)  # all is read, in the order of the text


@pytest.mark.parametrize("rule", RULES)
def test_text_within_the_limit_is_one_window(tokenizer_pair: tuple[Tokenizer, object], rule: str) -> None:
    ours, _ = tokenizer_pair
    for pair in (None, "by train"):
        (one,) = windows(ours, QUESTION, pair, rule=rule, max_length=40)
        (row,) = ours.encode([QUESTION], None if pair is None else [pair])
        assert (
            one.ids == row.ids and one.special == row.special and (one.cut, one.count, one.tokens_before) == (0, 1, 0)
        )


def test_text_of_exactly_the_limit_fits(bert: Tokenizer) -> None:
    size = len(bert.encode([QUESTION])[0].ids)
    assert len(windows(bert, QUESTION, max_length=size)[0].ids) == size
    with pytest.raises(pellucid.InputError, match=r"item 7 has 1 token more than the \d+ that are read at once"):
        windows(bert, QUESTION, index=7, max_length=size - 1)


@pytest.mark.parametrize(("max_length", "read"), [(None, 96), (40, 40), (110, 110)])
def test_limit_of_the_tokenizer_is_the_default(bert: Tokenizer, max_length: int | None, read: int) -> None:
    assert bert.model_max_length == 96
    assert max(len(one.ids) for one in windows(bert, TEXT * 3, rule="windows", max_length=max_length)) == read
    assert len(windows(bert, TEXT * 3, rule="truncate", max_length=max_length)[0].ids) == read


def test_windows_cover_ten_thousand_words(bert: Tokenizer) -> None:
    words = [f"w{i}" for i in range(10_000)]
    text = " ".join(words)
    found = windows(bert, text, rule="windows")
    assert found[-1].span()[1] == len(text)
    read_words = {word for one in found for word in text[slice(*one.span())].split()}
    assert set(words) <= read_words
    assert sum(len(text_positions(one)) for one in found) < 1.4 * (
        found[-1].tokens_before + len(text_positions(found[-1]))
    )


@pytest.mark.parametrize("text", ["", "   ", "\n"])
@pytest.mark.parametrize("rule", RULES)
def test_empty_text_has_only_special_tokens(bert: Tokenizer, rule: str, text: str) -> None:
    (one,) = windows(bert, text, rule=rule, max_length=8)
    assert one.tokens == ["[CLS]", "[SEP]"] and one.span() == (0, 0) and one.sequence_ids == [None, None]


def test_typed_special_tokens_are_plain_text(bert: Tokenizer) -> None:
    plain, parsed = (windows(bert, "a [SEP] b", parse_special_tokens=parse)[0] for parse in (False, True))
    assert plain.tokens.count("[SEP]") == 1 and parsed.tokens.count("[SEP]") == 2
    plain, parsed = (windows(bert, "a", "[SEP] b", parse_special_tokens=parse)[0] for parse in (False, True))
    assert plain.tokens.count("[SEP]") == 2 and parsed.tokens.count("[SEP]") == 3


def test_text_with_room_for_one_token_is_refused_as_too_long(bert: Tokenizer) -> None:
    with pytest.raises(pellucid.InputError, match="more than the 3 that are read at once"):
        windows(bert, TEXT, max_length=3)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"stride": 22}, "stride is 22, expected a whole number below the 22 tokens"),
        ({"stride": -1}, "stride is -1"),
        ({"stride": 1.5}, "stride is 1.5"),
        ({"max_length": 0}, "max_length is 0"),
        ({"max_length": True}, "max_length is True"),
        ({"max_length": 2}, "item 3: the rest of the input leaves no room for the text in 2 tokens"),
    ],
)
def test_invalid_settings_are_refused(bert: Tokenizer, options: dict[str, object], match: str) -> None:
    with pytest.raises(pellucid.InputError, match=match):
        windows(bert, TEXT, index=3, rule="windows", **({"max_length": 24} | options))


def test_window_without_room_for_the_text_is_refused(bert: Tokenizer) -> None:
    with pytest.raises(
        pellucid.InputError, match="leaves no room for the text in 20 tokens: allow more, or shorten it"
    ):
        windows(bert, TEXT, QUESTION, rule="windows", max_length=20, side=1)


@pytest.mark.parametrize("text", [None, 5, b"bytes", ["a"]])
def test_invalid_text_is_named_by_its_index(bert: Tokenizer, text: object) -> None:
    with pytest.raises(pellucid.InputError, match="item 4"):
        windows(bert, text, index=4)


@pytest.mark.parametrize("words", [[], ["a"], ["a", "train"]])
def test_second_text_after_words_has_its_offsets(bert: Tokenizer, words: list[str]) -> None:
    (found,) = windows(bert, words, QUESTION, is_split_into_words=True)
    sides = ["", ""]
    for side, (start, end) in zip(found.sequence_ids, found.offsets):
        if side is not None:
            sides[side] += (QUESTION if side else " ".join(words))[start:end]
    assert sides == ["".join(words), QUESTION.replace(" ", "")]
