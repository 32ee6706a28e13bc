"""Words: one rule for texts and queries, in every script; queries have no syntax, and mistyped words are found."""

import itertools
import sqlite3
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import pellucid
from pellucid.errors import InputError
from pellucid.search.bm25 import bm25, corpus_statistics
from pellucid.search.entries import Entries, write_entries
from pellucid.search.entry import Entry
from pellucid.search.passages import terms_between, with_terms
from pellucid.search.words import MAX_WORD_CHARACTERS, MAX_WORDS, Vocabulary, parse_query, split_words, terms
from tests.failing_imports import fail_import


def write_texts(folder: Path, texts: list[str]) -> Entries:
    write_entries((Entry(str(i), text) for i, text in enumerate(texts)), folder / "entries.sqlite")
    return Entries(folder / "entries.sqlite", len(texts))


def rows_and_scores(entries: Entries, query: str) -> tuple[np.ndarray, np.ndarray]:
    frequencies = entries.document_frequencies()
    return bm25(entries, parse_query(query, Vocabulary(frequencies)).terms, frequencies, corpus_statistics([entries]))


def ranked_rows(entries: Entries, query: str) -> list[int]:
    rows, score = rows_and_scores(entries, query)
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
def test_words_are_letter_runs_without_case_and_accents(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_scripts_without_spaces_are_indexed_by_letters_and_pairs() -> None:
    assert terms("我们在北京") == ["我们", "们在", "在北", "北京", "我", "们", "在", "北", "京"]
    assert terms("銀") == ["銀"]
    assert terms("plain words") == ["plain", "words"]


def test_long_sentence_without_spaces_is_indexed_to_its_end(tmp_path: Path) -> None:
    thai = "ประเทศไทยเป็นประเทศที่ตั้งอยู่ในทวีปเอเชียตะวันออกเฉียงใต้มีพรมแดนติดต่อกับประเทศพม่ามีเมืองหลวงคือกรุงเทพมหานคร"
    han = "".join(chr(0x4E00 + i) for i in range(2 * MAX_WORD_CHARACTERS))
    assert split_words(thai) == [thai] and len(thai) > MAX_WORD_CHARACTERS
    assert len(terms(han)) == 4 * MAX_WORD_CHARACTERS - 1
    entries = write_texts(tmp_path, ["โตเกียว", thai, han])
    assert ranked_rows(entries, "กรุงเทพมหานคร")[0] == 1
    assert ranked_rows(entries, han[-2:]) == [2]


@pytest.mark.parametrize(
    ("query", "row"),
    [
        ("北京", 0), ("手机", 0), ("自動車", 1), ("トヨタ", 1), ("น้ำมัน", 2), ("삼성전자", 3), ("societe generale", 4),
        ("SOCIÉTÉ", 4), ("strasse", 5), ("Straße", 5), ("车", 0), ("भाषा", 6), ("אפל", 7), ("شركة", 8),
    ],
)  # fmt: skip
def test_word_is_found_inside_a_sentence_of_its_language(tmp_path: Path, query: str, row: int) -> None:
    texts = ["我们在北京生产汽车和手机", "トヨタ自動車株式会社", "บริษัทน้ำมันไทย จำกัด", "삼성전자 주식회사"]
    texts += ["Société Générale à Paris", "Lange Straße 5", "हिन्दी भाषा का इतिहास", "חברת אפל בעמ", "شركة النفط"]
    assert ranked_rows(write_texts(tmp_path, texts), query)[0] == row


@pytest.mark.parametrize(
    "query",
    [
        "AND", "OR", "NOT", "NEAR(apple pear, 2)", "*", "app*", "text : apple", "terms:apple", '"', '"apple', '""', "(",
        ")", "^apple", "-apple", "apple + pear", "{terms} : apple", "'; DROP TABLE rows; --", "\0", "apple\0pear", "%",
        "\ud800", "a" * 10_000, "🍎",
    ],
)  # fmt: skip
def test_queries_have_no_syntax(tmp_path: Path, query: str) -> None:
    entries = write_texts(tmp_path, ["apple and pear", "nothing", "not near", "or\0else", "words AND words"])
    expected = {i for i, words in enumerate(WORDS_OF_TEXTS) if set(split_words(query)) & words}
    assert set(ranked_rows(entries, query)) == expected
    assert entries.get([0])[0].text == "apple and pear"


WORDS_OF_TEXTS = [{"apple", "and", "pear"}, {"nothing"}, {"not", "near"}, {"or", "else"}, {"words", "and"}]


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.text(max_size=30), min_size=1, max_size=6), query=st.text(max_size=20))
def test_query_finds_exactly_the_texts_with_one_of_its_words(
    texts: list[str], query: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    entries = write_texts(tmp_path_factory.mktemp("words"), texts)
    terms_of_texts = [set(terms(text)) for text in texts]
    assert entries.document_frequencies() == {
        word: sum(word in one for one in terms_of_texts) for one in terms_of_texts for word in one
    }
    query_terms = set(parse_query(query, Vocabulary(entries.document_frequencies())).terms)
    assert set(ranked_rows(entries, query)) == {i for i, one in enumerate(terms_of_texts) if one & query_terms}
    for text, words in zip(texts, terms_of_texts):  # a text is found by its own words
        assert not words or texts.index(text) in ranked_rows(entries, text)


def test_rows_of_equal_score_are_in_order(tmp_path: Path) -> None:
    entries = write_texts(tmp_path, ["pear tree", "apple pie", "apple pie", "apple pie"])
    assert ranked_rows(entries, "apple") == [1, 2, 3]


def test_scores_match_those_of_sqlite(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    words = [f"w{i}" for i in range(400)]
    texts = [" ".join(generator.choice(words, size)) for size in generator.integers(0, 300, 200)]
    entries = write_texts(tmp_path, texts)
    connection = sqlite3.connect(entries.path)
    for query in ("w1", "w1 w2 w39", "w5 w5 w6"):
        match_expression = " OR ".join(dict.fromkeys(query.split()))
        score = "SELECT rowid, -bm25(words) FROM words WHERE words MATCH ? ORDER BY rowid"
        rows, scores = rows_and_scores(entries, query)
        theirs = np.array(connection.execute(score, (match_expression,)).fetchall())
        assert rows.tolist() == theirs[:, 0].tolist()
        assert np.allclose(scores, theirs[:, 1], rtol=1e-9, atol=0)
    connection.close()
    assert entries.lengths.tolist() == [len(text.split()) for text in texts]


def test_rare_words_count_more_than_common_ones(tmp_path: Path) -> None:
    entries = write_texts(tmp_path, ["acme company"] + ["some company"] * 9)
    assert ranked_rows(entries, "acme company")[0] == 0


def test_number_of_query_words_is_limited(tmp_path: Path) -> None:
    entries = write_texts(tmp_path, ["alpha", "omega"])
    vocabulary = Vocabulary({f"w{i:03}": 1 for i in range(200)} | entries.document_frequencies())
    query_terms = parse_query(" ".join(["alpha", *(f"w{i:03}" for i in range(200)), "omega"]), vocabulary).terms
    assert len(query_terms) == MAX_WORDS
    assert (query_terms[0], query_terms[-1]) == ("alpha", "w062")
    assert len(parse_query("北" + "京" * 100 + "市", Vocabulary({"北京": 1, "京京": 2, "京市": 1})).terms) == 3
    assert split_words("a" * 1_000) == ["a" * MAX_WORD_CHARACTERS]


def test_number_of_unknown_words_compared_is_limited() -> None:
    """Each is compared with every word of the index: a text in another language took minutes."""

    compared: list[str] = []

    class Counted(Vocabulary):
        def nearest_words(self, word: str, limit: int = 3) -> list[str]:
            compared.append(word)
            return super().nearest_words(word, limit)

    unknown_words = " ".join(f"qxzjkvw{i:04}" for i in range(500))
    vocabulary = Counted({"apple": 1, "computers": 1})
    assert parse_query(f"aple {unknown_words} {unknown_words} computers", vocabulary).terms == ("apple", "computers")
    assert len(compared) == MAX_WORDS == len(set(compared))


def test_frequent_words_are_left_out_beside_rare_ones() -> None:
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
def test_mistyped_word_is_corrected_to_the_nearest(typed: str, corrected: str) -> None:
    parsed = parse_query(typed, VOCABULARY)
    assert parsed.corrected == corrected
    assert corrected.split()[0] in parsed.terms


@pytest.mark.parametrize("typed", ["apple", "ape", "apx", "zzzzzz", "北", "东京", "", "1234"])
def test_known_short_and_unlike_words_are_not_corrected(typed: str) -> None:
    assert parse_query(typed, VOCABULARY).corrected is None


def test_missing_rapidfuzz_is_reported_when_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_import(monkeypatch, "rapidfuzz", ModuleNotFoundError("No module named 'rapidfuzz'", name="rapidfuzz"))
    assert parse_query("apple", VOCABULARY).terms == ("apple",)
    with pytest.raises(InputError, match=r"RapidFuzz: pip install 'pellucid\[search\]', or .* pass mode='dense'$"):
        parse_query("appel", VOCABULARY)


def test_more_frequent_of_equally_near_words_is_chosen() -> None:
    assert parse_query("applz", VOCABULARY).terms == ("apple", "apply")
    assert parse_query("applz", Vocabulary({"apple": 1, "apply": 3})).corrected == "apply"
    assert parse_query("applz", Vocabulary({"apply": 1, "apple": 1})).corrected == "apple"
    many = {f"app{chr(letter)}z": 1 for letter in range(0x430, 0x470)}
    assert parse_query("applz", Vocabulary(many | {"zpplz": 2})).corrected == "zpplz"
    assert parse_query("applz", Vocabulary(many | {"zpplz": 1}, 1, "zpplz".__eq__)).corrected == "zpplz"


def test_index_finds_words_in_scripts_without_spaces(minilm: pellucid.Model) -> None:
    texts = ["我们在北京生产汽车", "上海的天气很好", "a plain English sentence", "トヨタ自動車株式会社"]
    index = pellucid.Index.build(minilm, texts, progress=False)
    assert [hit["text"] for hit in index.search("北京", mode="words")] == [texts[0]]
    assert [hit["text"] for hit in index.search("自動車", mode="words")] == [texts[3]]
    first = index.search("北京", k=1)[0]
    assert first["text"] == texts[0] and first.words is not None and np.isfinite(first.similarity)


DIVIDED = "one two three four antidisestablishmentarianism five six seven eight nine ten"


def indexed_words(index: pellucid.Index) -> set[str]:
    return {word for one in index.segments for word in one.entries.document_frequencies()}


def test_words_split_between_passages_are_found_whole(minilm: pellucid.Model) -> None:
    texts = ["the " * 252 + "hijackings again " + "and so on " * 30, "something else"]
    index = pellucid.Index.build(minilm, texts, progress=False)
    hits = index.search("hijackings", k=5, mode="words")
    assert [hit["id"] for hit in hits] == ["1"] and hits.corrected is None
    small = pellucid.Index.build(minilm, [DIVIDED, *texts], passage_tokens=8, progress=False)
    hits = small.search("antidisestablishmentarianism", k=5, mode="words")
    assert [hit["id"] for hit in hits] == ["1"] and hits.corrected is None
    assert "antidisestablishmentarianism" not in hits[0]["text"]  # the hit shows the text that was embedded
    assert hits[0]["text"] == DIVIDED[hits[0]["start"] : hits[0]["end"]]
    assert indexed_words(small) == set(terms(" ".join([DIVIDED, *texts])))


def test_compacting_repairs_words_split_by_older_versions(
    minilm: pellucid.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in older indexes; texts added meanwhile have whole words, and nothing is embedded again."""
    word, path = "antidisestablishmentarianism", tmp_path / "old"
    with monkeypatch.context() as patch:
        patch.setattr("pellucid.search.passages.terms_between", lambda text, *span: terms(text[slice(*span)]))
        pellucid.Index.build(minilm, [("a", DIVIDED), ("b", "else")], path, passage_tokens=8, progress=False)
    index = pellucid.Index.open(path, minilm)
    assert word not in indexed_words(index)
    before = [(entry.text, entry.first, entry.last) for entry in index.segments[0].entries.all() if entry.id == "a"]
    index.delete(["b"])
    index.compact(progress=False)
    assert indexed_words(index) == set(terms(DIVIDED))
    assert [(entry.text, entry.first, entry.last) for entry in index.segments[0].entries.all()] == before
    monkeypatch.setattr("pellucid.search.change.embed_texts", lambda *_, **__: pytest.fail("embedded again"))
    index.add([("a", DIVIDED)], update=True, progress=False)
    assert indexed_words(index) == set(terms(DIVIDED))
    assert [hit["id"] for hit in index.search(word, k=3, mode="words")] == ["a"]


@settings(deadline=None)
@given(st.text("ab1 -éß手机㍾ไทย½\u0301\u00ad", max_size=40), st.lists(st.integers(0, 40), max_size=6))
@example("ab a", [1])
def test_terms_between_cuts_are_the_terms_of_the_text(text: str, cuts: list[int]) -> None:
    """Equally often: a term that is cut belongs to the part in which it begins."""
    boundaries = [0, *sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    parts = [term for span in itertools.pairwise(boundaries) for term in terms_between(text, *span)]
    assert sorted(parts) == sorted(terms(text))


def test_terms_of_overlapping_passages_are_joined_within_each_text() -> None:
    """Two texts with the same id follow each other where the last one stays; a gap is no part of a word."""
    passages = [("x", "alpha be", 0), ("x", "betaga", 6), ("x", "gamma", 10), ("x", "omega ps", 0), ("x", "psi", 6)]
    passages += [("x", "chi", 11)]
    rows = [Entry(id_, text, {}, first, first + len(text)) for id_, text, first in passages]
    terms_of_rows = [words for _, words in with_terms([*rows, Entry("y", "whole"), Entry("z", "on", {}, 0, 2)])]
    assert terms_of_rows == [
        ["alpha", "betagamma"],
        ["betagamma"],
        [],
        ["omega", "psi"],
        ["psi"],
        ["chi"],
        ["whole"],
        ["on"],
    ]


def test_giant_word_is_read_in_linear_time() -> None:
    text = "x" * 400_000
    started = time.process_time()
    parts = [terms_between(text, first, first + 200) for first in range(0, len(text), 200)]
    assert parts[0] == ["x" * MAX_WORD_CHARACTERS] and not any(parts[1:])
    assert time.process_time() - started < 5
