"""Words: one rule for texts and queries, in every script; queries have no syntax, and mistyped words are found."""

import itertools
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

import pellucid
from pellucid.errors import InputError
from pellucid.search.bm25 import bm25, corpus_statistics
from pellucid.search.entries import Entries, write_entries
from pellucid.search.entry import Entry
from pellucid.search.passages import terms_between, with_terms
from pellucid.search.words import MAX_WORD_CHARACTERS, MAX_WORDS, Vocabulary, parse_query, split_words, terms
from tests.importing import refuse


def made(folder: Path, texts: list[str]) -> Entries:
    write_entries((Entry(str(i), text) for i, text in enumerate(texts)), folder / "entries.sqlite")
    return Entries(folder / "entries.sqlite", len(texts))


def scored(entries: Entries, query: str) -> tuple[np.ndarray, np.ndarray]:
    having = entries.document_frequencies()
    return bm25(entries, parse_query(query, Vocabulary(having)).terms, having, corpus_statistics([entries]))


def found(entries: Entries, query: str) -> list[int]:
    rows, score = scored(entries, query)
    return rows[np.argsort(-score, kind="stable")].tolist()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Apple Inc. Common-Stock", ["apple", "inc", "common", "stock"]),
        ("Société Générale, MÜLLER & Söhne", ["societe", "generale", "muller", "sohne"]),
        ("Straße STRASSE ﬁsh x² Ⅷ", ["strasse", "strasse", "fish", "x2", "viii"]),
        ("İstanbul ISTANBUL", ["istanbul", "istanbul"]),
        ("snake_case AT&T O'Reilly C++", ["snake", "case", "at", "t", "o", "reilly", "c"]),
        ("e\u0301tude étude", ["etude", "etude"]),
        ("ＦＵＬＬｗｉｄｔｈ ｱｯﾌﾟﾙ", ["fullwidth", "アップル"]),
        ("Ελλάς ΕΛΛΑΣ", ["ελλασ", "ελλασ"]),
        ("Йод йод", ["иод", "иод"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("שָׁלוֹם בֵּית־סֵפֶר", ["שלום", "בית", "ספר"]),
        ("مُحَمَّد أحمد سلــــام", ["محمد", "احمد", "سلام"]),
        ("삼성전자 주식회사", ["삼성전자", "주식회사"]),
        ("iPhone手机", ["iphone", "手机"]),
        ("co\u00adoperate zero\u200bwidth\u200d", ["cooperate", "zerowidth"]),
        ("❤\ufe0f Köln\ufe0f ☕\ufe0f", ["koln"]),
        ("1\ufe0f\u20e3 2\u20e3 #\ufe0f\u20e3 x\u1dc4", ["1", "2", "x"]),
        ("葛\U000e0100城市", ["葛城市"]),
        ("", []),
        ("  \0 !? — ☃ ", []),
    ],
)
def test_words_are_runs_of_letters_without_case_or_accents(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_scripts_without_spaces_are_kept_as_letters_and_pairs() -> None:
    assert terms("我们在北京") == ["我们", "们在", "在北", "北京", "我", "们", "在", "北", "京"]
    assert terms("銀") == ["銀"]
    assert terms("plain words") == ["plain", "words"]


def test_a_sentence_without_spaces_is_kept_to_its_end(tmp_path: Path) -> None:
    thai = "ประเทศไทยเป็นประเทศที่ตั้งอยู่ในทวีปเอเชียตะวันออกเฉียงใต้มีพรมแดนติดต่อกับประเทศพม่ามีเมืองหลวงคือกรุงเทพมหานคร"
    han = "".join(chr(0x4E00 + i) for i in range(2 * MAX_WORD_CHARACTERS))
    assert split_words(thai) == [thai] and len(thai) > MAX_WORD_CHARACTERS
    assert len(terms(han)) == 4 * MAX_WORD_CHARACTERS - 1
    entries = made(tmp_path, ["โตเกียว", thai, han])
    assert found(entries, "กรุงเทพมหานคร")[0] == 1
    assert found(entries, han[-2:]) == [2]


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("北京", 0), ("手机", 0), ("自動車", 1), ("トヨタ", 1), ("น้ำมัน", 2), ("삼성전자", 3), ("societe generale", 4),
        ("SOCIÉTÉ", 4), ("strasse", 5), ("Straße", 5), ("车", 0), ("भाषा", 6), ("אפל", 7), ("شركة", 8),
    ],
)  # fmt: skip
def test_a_word_is_found_inside_a_sentence_of_its_language(tmp_path: Path, query: str, row: int) -> None:
    texts = ["我们在北京生产汽车和手机", "トヨタ自動車株式会社", "บริษัทน้ำมันไทย จำกัด", "삼성전자 주식회사"]
    texts += ["Société Générale à Paris", "Lange Straße 5", "हिन्दी भाषा का इतिहास", "חברת אפל בעמ", "شركة النفط"]
    assert found(made(tmp_path, texts), query)[0] == row


@pytest.mark.parametrize(
    "query",
    [
        "AND", "OR", "NOT", "NEAR(apple pear, 2)", "*", "app*", "text : apple", "terms:apple", '"', '"apple', '""', "(",
        ")", "^apple", "-apple", "apple + pear", "{terms} : apple", "'; DROP TABLE rows; --", "\0", "apple\0pear", "%",
        "\ud800", "a" * 10_000, "🍎",
    ],
)  # fmt: skip
def test_nothing_that_is_typed_is_syntax(tmp_path: Path, query: str) -> None:
    entries = made(tmp_path, ["apple and pear", "nothing", "not near", "or\0else", "words AND words"])
    expected = {i for i, words in enumerate(WORDS_OF) if set(split_words(query)) & words}
    assert set(found(entries, query)) == expected
    assert entries.get([0])[0].text == "apple and pear"


WORDS_OF = [{"apple", "and", "pear"}, {"nothing"}, {"not", "near"}, {"or", "else"}, {"words", "and"}]


@settings(max_examples=100, deadline=None)
@given(texts=some.lists(some.text(max_size=30), min_size=1, max_size=6), query=some.text(max_size=20))
def test_any_query_finds_exactly_the_texts_with_one_of_its_words(
    texts: list[str], query: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = made(tmp_path_factory.mktemp("words"), texts)
    held = [set(terms(text)) for text in texts]
    assert entries.document_frequencies() == {word: sum(word in one for one in held) for one in held for word in one}
    asked = set(parse_query(query, Vocabulary(entries.document_frequencies())).terms)
    assert set(found(entries, query)) == {i for i, one in enumerate(held) if one & asked}
    for text, words in zip(texts, held):  # a text is found by its own words
        assert not words or texts.index(text) in found(entries, text)


def test_of_equal_scores_the_first_row_comes_first(tmp_path: Path) -> None:
    entries = made(tmp_path, ["pear tree", "apple pie", "apple pie", "apple pie"])
    assert found(entries, "apple") == [1, 2, 3]


def test_scores_are_those_of_sqlite_where_there_is_one_segment(tmp_path: Path) -> None:
    chance = np.random.default_rng(0)
    words = [f"w{i}" for i in range(400)]
    texts = [" ".join(chance.choice(words, size)) for size in chance.integers(0, 300, 200)]
    entries = made(tmp_path, texts)
    connection = sqlite3.connect(entries.path)
    for query in ("w1", "w1 w2 w39", "w5 w5 w6"):
        asked = " OR ".join(dict.fromkeys(query.split()))
        score = "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"
        rows, scores = scored(entries, query)
        theirs = np.array(connection.execute(score, (asked,)).fetchall())
        assert rows.tolist() == theirs[:, 0].tolist()
        assert np.allclose(scores, theirs[:, 1], rtol=1e-9, atol=0)
    connection.close()
    assert entries.lengths.tolist() == [len(text.split()) for text in texts]


def test_rare_words_count_more_than_common_ones(tmp_path: Path) -> None:
    entries = made(tmp_path, ["acme company"] + ["some company"] * 9)
    assert found(entries, "acme company")[0] == 0


def test_of_many_words_the_first_are_looked_for(tmp_path: Path) -> None:
    entries = made(tmp_path, ["alpha", "omega"])
    vocabulary = Vocabulary({f"w{i:03}": 1 for i in range(200)} | entries.document_frequencies())
    asked = parse_query(" ".join(["alpha", *(f"w{i:03}" for i in range(200)), "omega"]), vocabulary).terms
    assert len(asked) == MAX_WORDS
    assert (asked[0], asked[-1]) == ("alpha", "w062")
    assert len(parse_query("北" + "京" * 100 + "市", Vocabulary({"北京": 1, "京京": 2, "京市": 1})).terms) == 3
    assert split_words("a" * 1_000) == ["a" * MAX_WORD_CHARACTERS]


def test_a_query_of_words_that_stand_nowhere_is_no_burden() -> None:
    """Each is compared with every word of the index: a text in another language took minutes."""

    compared: list[str] = []

    class Counted(Vocabulary):
        def nearest_words(self, word: str, limit: int = 3) -> list[str]:
            compared.append(word)
            return super().nearest_words(word, limit)

    strange = " ".join(f"qxzjkvw{i:04}" for i in range(500))
    vocabulary = Counted({"apple": 1, "computers": 1})
    assert parse_query(f"aple {strange} {strange} computers", vocabulary).terms == ("apple", "computers")
    assert len(compared) == MAX_WORDS == len(set(compared))


def test_words_that_stand_nearly_everywhere_are_left_out_beside_rare_ones() -> None:
    vocabulary = Vocabulary({"inc": 900_000, "the": 800_000, "apple": 40, "computers": 45_000, "records": 4_960})
    assert parse_query("the apple computers records inc", vocabulary).terms == ("apple", "computers", "records")
    assert parse_query("the inc", vocabulary).terms == ("the",)
    assert parse_query("inc", vocabulary).terms == ("inc",)


VOCABULARY = Vocabulary({"microsoft": 2, "micron": 5, "apple": 3, "apply": 1, "ape": 1, "amazon": 1, "北京": 4})


@pytest.mark.parametrize(
    ("typed", "corrected"),
    [
        ("Microsfot", "microsoft"),
        ("microsft windows", "microsoft windows"),
        ("Micorn", "micron"),
        ("appel", "apple"),
        ("amazn 北京", "amazon 北京"),
        ("AMAZONN", "amazon"),
    ],
)
def test_a_mistyped_word_is_taken_for_the_nearest(typed: str, corrected: str) -> None:
    said = parse_query(typed, VOCABULARY)
    assert said.corrected == corrected
    assert corrected.split()[0] in said.terms


@pytest.mark.parametrize("typed", ["apple", "ape", "apx", "zzzzzz", "北", "东京", "", "1234"])
def test_a_known_a_short_and_a_strange_word_is_left_alone(typed: str) -> None:
    assert parse_query(typed, VOCABULARY).corrected is None


def test_without_what_finds_near_words_there_is_a_way(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "rapidfuzz", ModuleNotFoundError("No module named 'rapidfuzz'", name="rapidfuzz"))
    assert parse_query("apple", VOCABULARY).terms == ("apple",)
    with pytest.raises(InputError, match=r"RapidFuzz: pip install 'pellucid\[search\]', or .* pass mode='dense'$"):
        parse_query("appel", VOCABULARY)


def test_of_equally_near_words_the_more_common_is_taken() -> None:
    assert parse_query("applz", VOCABULARY).terms == ("apple", "apply")
    assert parse_query("applz", Vocabulary({"apple": 1, "apply": 3})).corrected == "apply"
    assert parse_query("applz", Vocabulary({"apply": 1, "apple": 1})).corrected == "apple"


def test_a_language_without_spaces_is_searched_through_an_index(minilm: pellucid.Model) -> None:
    texts = ["我们在北京生产汽车", "上海的天气很好", "a plain English sentence", "トヨタ自動車株式会社"]
    index = pellucid.Index.build(minilm, texts, progress=False)
    assert [hit["text"] for hit in index.search("北京", mode="words")] == [texts[0]]
    assert [hit["text"] for hit in index.search("自動車", mode="words")] == [texts[3]]
    first = index.search("北京", k=1)[0]
    assert first["text"] == texts[0] and first.words is not None and np.isfinite(first.similarity)


DIVIDED = "one two three four antidisestablishmentarianism five six seven eight nine ten"


def vocabulary(index: pellucid.Index) -> set[str]:
    return {word for one in index.segments for word in one.entries.document_frequencies()}


def test_words_that_passages_divide_are_found_whole_and_their_pieces_are_not(minilm: pellucid.Model) -> None:
    texts = ["the " * 252 + "hijackings again " + "and so on " * 30, "something else"]
    index = pellucid.Index.build(minilm, texts, progress=False)
    hits = index.search("hijackings", k=5, mode="words")
    assert [hit["id"] for hit in hits] == ["1"] and hits.corrected is None
    small = pellucid.Index.build(minilm, [DIVIDED, *texts], passage_tokens=8, progress=False)
    hits = small.search("antidisestablishmentarianism", k=5, mode="words")
    assert [hit["id"] for hit in hits] == ["1"] and hits.corrected is None
    assert "antidisestablishmentarianism" not in hits[0]["text"]  # the hit shows the text that was embedded
    assert hits[0]["text"] == DIVIDED[hits[0]["start"] : hits[0]["end"]]
    assert vocabulary(small) == set(terms(" ".join([DIVIDED, *texts])))


def test_words_of_passages_that_were_written_in_pieces_are_whole_once_compacted(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in older indexes; texts added meanwhile have whole words, and nothing is embedded again."""
    word, path = "antidisestablishmentarianism", tmp_path / "old"
    with monkeypatch.context() as patched:
        patched.setattr("pellucid.search.passages.terms_between", lambda text, *place: terms(text[slice(*place)]))
        pellucid.Index.build(minilm, [("a", DIVIDED), ("b", "else")], path, passage_tokens=8, progress=False)
    index = pellucid.Index.open(path, minilm)
    assert word not in vocabulary(index)
    before = [(entry.text, entry.first, entry.last) for entry in index.segments[0].entries.all() if entry.id == "a"]
    index.delete(["b"])
    index.compact(progress=False)
    assert vocabulary(index) == set(terms(DIVIDED))
    assert [(entry.text, entry.first, entry.last) for entry in index.segments[0].entries.all()] == before
    monkeypatch.setattr("pellucid.search.change.embed_texts", lambda *_, **__: pytest.fail("embedded again"))
    index.add([("a", DIVIDED)], update=True, progress=False)
    assert vocabulary(index) == set(terms(DIVIDED))
    assert [hit["id"] for hit in index.search(word, k=3, mode="words")] == ["a"]


@settings(deadline=None)
@given(some.text("ab1 -éß手机㍾ไทย½\u0301\u00ad", max_size=40), some.lists(some.integers(0, 40), max_size=6))
def test_stretches_of_a_text_have_its_terms_and_no_others(text: str, cuts: list[int]) -> None:
    """Equally often: a term that is cut belongs to the part in which it begins."""
    places = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    found = [term for place in itertools.pairwise(places) for term in terms_between(text, *place)]
    assert sorted(found) == sorted(terms(text))


def test_overlapping_passages_of_texts_in_turn_are_put_together_each_for_itself() -> None:
    """Two texts with the same id follow each other where the last one stays."""
    given = [("x", "alpha be", 0), ("x", "betaga", 6), ("x", "gamma", 10), ("x", "omega ps", 0), ("x", "psi", 6)]
    rows = [Entry(id_, text, {}, first, first + len(text)) for id_, text, first in given]
    found = [words for _, words in with_terms([*rows, Entry("y", "whole"), Entry("z", "on", {}, 0, 2)])]
    assert found == [["alpha", "betagamma"], ["betagamma"], [], ["omega", "psi"], ["psi"], ["whole"], ["on"]]


def test_a_giant_word_is_looked_at_once() -> None:
    text = "x" * 400_000
    started = time.process_time()
    found = [terms_between(text, first, first + 200) for first in range(0, len(text), 200)]
    assert found[0] == ["x" * MAX_WORD_CHARACTERS] and not any(found[1:])
    assert time.process_time() - started < 5
