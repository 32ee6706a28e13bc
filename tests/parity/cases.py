"""Cases for the tiny checkpoints: every task, with the arguments of its pipeline and of each call."""

from typing import Any

from tests.parity import cases_writing as writing
from tests.parity.case import BAD, BERLIN, COUNTRIES, GOOD, LONG, PAIR, PLAIN, ZURICH, Case, case

CLASSIFIERS = ("bert-feelings", "distilbert-feelings", "roberta-toxic", "albert-similarity", "xlm-roberta-feelings")
CLASSIFIERS += ("camembert-feelings", "mpnet-topics", "gpt2-feelings", "llama-feelings", "mistral-feelings")
CLASSIFIERS += ("qwen2-feelings", "bart-nli", "t5-feelings", "bert-one-label", "albert-three-numbers", "bert-stars")

CLASSIFICATION = [
    *(case(model, [GOOD, BAD, PLAIN], top_k=None) for model in CLASSIFIERS),
    case("bert-feelings", GOOD),
    case("bert-feelings", [GOOD]),
    case("bert-feelings", [GOOD, BAD, PLAIN]),
    case("bert-feelings", GOOD, top_k=1),
    case("bert-feelings", [GOOD, BAD], top_k=1),
    case("bert-feelings", GOOD, top_k=3),
    case("bert-feelings", GOOD, top_k=2, function_to_apply="none"),
    case("bert-feelings", GOOD, top_k=7),
    case("bert-feelings", GOOD, top_k=None, function_to_apply="sigmoid"),
    case("bert-feelings", [BAD], function_to_apply="softmax"),
    case("bert-feelings", GOOD, options={"top_k": None}),
    case("bert-feelings", [GOOD, BAD], options={"top_k": 2, "function_to_apply": "none"}),
    case("bert-feelings", GOOD, return_all_scores=True),
    case("bert-feelings", [GOOD, BAD], return_all_scores=True),
    case("bert-feelings", GOOD, return_all_scores=False),
    case("bert-feelings", PAIR),
    case("bert-feelings", [PAIR, {"text": GOOD}]),
    case("bert-feelings", [PAIR], top_k=None),
    case("bert-feelings", [[[PAIR["text"], PAIR["text_pair"]]]]),
    case("roberta-toxic", PAIR, top_k=2),
    case("roberta-toxic", GOOD),
    case("xlm-roberta-feelings", PAIR),
    case("mpnet-topics", PAIR, top_k=None),
    case("bart-nli", PAIR, top_k=None),
    case("bert-feelings", LONG, truncation=True),
    case("bert-feelings", {"text": LONG, "text_pair": COUNTRIES}, truncation=True, top_k=None),
    case("bert-feelings", "a typed [SEP] token", top_k=None),
    case("bert-feelings", [LONG, GOOD], truncation=True, max_length=16, top_k=None),
    case("albert-similarity", GOOD),
    case("albert-similarity", PAIR),
    case("albert-similarity", [PAIR, PAIR], function_to_apply="sigmoid"),
    case("bert-one-label", GOOD),
    case("bert-one-label", [GOOD, BAD], function_to_apply="none"),
    case("distilbert-feelings", [GOOD, BAD], batch_size=2),
]

TAGGERS = ("bert-people", "bert-plain", "distilbert-plain", "roberta-people", "xlm-roberta-people")
TAGGERS += ("camembert-inside", "albert-people", "mpnet-people", "gpt2-inside", "llama-plain")
MORE_TAGGERS = ("mistral-inside", "qwen2-people")
_WORDS = ["My", "name", "is", "Angela", "Merkel,", "in", "Zürich."]
STRATEGIES = ("none", "simple", "first", "average", "max")

TAGGING = [
    *(case(model, [BERLIN, ZURICH], aggregation_strategy=way) for model in TAGGERS for way in STRATEGIES),
    *(case(model, ZURICH, aggregation_strategy=way) for model in MORE_TAGGERS for way in ("none", "first")),
    case("bert-people", BERLIN),
    case("bert-people", "Angela [SEP] Merkel", aggregation_strategy="simple"),
    case("bert-people", [BERLIN]),
    case("bert-people", "the"),
    case("bert-people", BERLIN, ignore_labels=["B-PER", "O"]),
    case("bert-people", BERLIN, ignore_labels=[]),
    case("bert-people", BERLIN, ignore_labels=[], aggregation_strategy="simple"),
    case("bert-people", BERLIN, ignore_labels=["PER"], aggregation_strategy="average"),
    case("bert-people", ZURICH, grouped_entities=True),
    case("bert-people", ZURICH, options={"aggregation_strategy": "first"}),
    case("bert-people", LONG),
    case("bert-people", LONG, aggregation_strategy="simple"),
    *(case("bert-people", LONG, aggregation_strategy=way, stride=12) for way in STRATEGIES[1:]),
    case("roberta-people", LONG, aggregation_strategy="average", stride=20),
    case("xlm-roberta-people", LONG, aggregation_strategy="max", stride=0),
    case("bert-people", BERLIN, aggregation_strategy="simple", stride=8),
    case("bert-people", _WORDS, is_split_into_words=True),
    case("bert-people", [_WORDS, _WORDS[3:]], is_split_into_words=True, aggregation_strategy="simple"),
    case("bert-people", _WORDS, is_split_into_words=True, delimiter="/", aggregation_strategy="first"),
    case("qwen2-people", [_WORDS], is_split_into_words=True, aggregation_strategy="max"),
    case("llama-plain", _WORDS, is_split_into_words=True),
    case("xlm-roberta-people", ["<mask>", "Zürich"], is_split_into_words=True),
    case("bert-people", LONG.split(), is_split_into_words=True, aggregation_strategy="first", stride=9),
    case("mpnet-people", "Angela <mask> Merkel", aggregation_strategy="first"),
    case("xlm-roberta-people", _WORDS, is_split_into_words=True, aggregation_strategy="average"),
    case("albert-people", "  two  spaces,  and  a\nline ", aggregation_strategy="simple"),
]

READERS = [f"{name}-reader" for name in ("bert", "bert-cased", "distilbert", "roberta", "xlm-roberta", "albert")]
READERS += [f"{name}-reader" for name in ("mpnet", "bart", "gpt2", "t5", "camembert", "llama")]
_QUESTION = "Where was Marie Curie born?"
_TOWER = "How tall is the Eiffel Tower?"


def _read(model: str, question: Any, context: Any, **call: Any) -> Case:
    return case(model, question=question, context=context, **call)


READING = [
    *(_read(model, _QUESTION, COUNTRIES, top_k=4) for model in READERS),
    *(_read(model, _TOWER, LONG, top_k=3, handle_impossible_answer=True) for model in READERS),
    *(_read(model, _TOWER, PLAIN) for model in READERS),
    _read("bert-reader", _QUESTION, COUNTRIES),
    _read("bert-reader", _QUESTION, LONG),
    _read("bert-reader", _QUESTION, LONG, top_k=10),
    _read("bert-reader", _QUESTION, LONG, doc_stride=20, max_seq_len=48, top_k=5),
    _read("bert-reader", _QUESTION, LONG, doc_stride=4, max_seq_len=32, top_k=3, max_answer_len=3),
    _read("bert-reader", _QUESTION, COUNTRIES, max_answer_len=1, top_k=3),
    _read("bert-reader", _QUESTION, COUNTRIES, max_answer_len=60, top_k=3),
    _read("bert-reader", _QUESTION, COUNTRIES, align_to_words=False, top_k=5),
    _read("bert-reader", _QUESTION, COUNTRIES, align_to_words=False),
    _read("roberta-reader", _QUESTION, COUNTRIES, align_to_words=False, top_k=5),
    _read("xlm-roberta-reader", _QUESTION, ZURICH, align_to_words=False, top_k=5),
    _read("bert-reader", _QUESTION, PLAIN, handle_impossible_answer=True),
    _read("bert-reader", _QUESTION, PLAIN, handle_impossible_answer=True, top_k=20),
    _read("bert-reader", [_QUESTION, _TOWER], COUNTRIES),
    _read("bert-reader", [_QUESTION, _TOWER], [COUNTRIES, PLAIN], top_k=2),
    _read("bert-reader", [_QUESTION], [COUNTRIES]),
    _read("bert-reader", "Who?", "Nobody."),
    _read("bert-reader", "Who?", "Nobody.", top_k=50),
    case("bert-reader", {"question": _QUESTION, "context": COUNTRIES}),
    case("bert-reader", [{"question": _QUESTION, "context": COUNTRIES}, {"question": _TOWER, "context": PLAIN}]),
    case("bert-reader", _QUESTION, COUNTRIES),
    _read("bert-reader", _QUESTION, COUNTRIES, padding="max_length", top_k=2),
    _read("bert-cased-reader", _QUESTION, "london London LONDON " * 4, top_k=6),
]

MASKS = {"bert": "[MASK]", "distilbert": "[MASK]", "albert": "[MASK]"}
FILLERS = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")


def _fill(name: str, text: Any, **call: Any) -> Case:
    mask = MASKS.get(name, "<mask>")
    texts = text.replace("*", mask) if isinstance(text, str) else [entry.replace("*", mask) for entry in text]
    return case(f"{name}-filler", texts, **call)


FILLING = [
    *(_fill(name, "The capital of France is *, and it is old.") for name in FILLERS),
    *(_fill(name, ["Time * like an *.", "The dog * in the sun."], top_k=3) for name in FILLERS),
    *(_fill(name, "London is the * of England.", targets=["capital", " capital", "city", "river"]) for name in FILLERS),
    _fill("bert", ["The * is high."]),
    _fill("bert", "The * is high.", top_k=1),
    _fill("bert", "The * is high.", targets="house"),
    _fill("bert", "The * is high.", targets=["zzz", "tokenization", "Berlin"]),
    _fill("bert", "* is *.", targets=["he", "she", "it"], top_k=2),
    _fill("bert", "* and * and *!", top_k=2),
    _fill("roberta", "I live in*, near the sea.", top_k=2),
    _fill("bert", "The * is high. " + LONG, tokenizer_kwargs={"truncation": True, "max_length": 90}),
    case("bert-filler", "The [MASK] is high.", options={"top_k": 2}),
]

JUDGES = (
    "bert-nli",
    "roberta-nli",
    "bart-nli",
    "mpnet-nli",
    "albert-nli",
    "distilbert-nli",
    "xlm-roberta-nli",
    "t5-nli",
)
_TOPICS = ["politics", "sports", "science and technology"]

ZERO_SHOT = [
    *(case(model, GOOD, candidate_labels=_TOPICS) for model in JUDGES),
    *(case(model, [GOOD, BAD], candidate_labels=_TOPICS, multi_label=True) for model in JUDGES),
    *(case(model, PLAIN, candidate_labels="travel, cooking ,health") for model in JUDGES),
    case("bert-nli", GOOD, _TOPICS),
    case("bert-nli", [GOOD], _TOPICS),
    case("bert-nli", GOOD, candidate_labels="sports"),
    case("bert-nli", GOOD, candidate_labels=["sports"]),
    case("bert-nli", GOOD, candidate_labels=_TOPICS, hypothesis_template="The text talks about {}."),
    case("roberta-nli", GOOD, candidate_labels=_TOPICS, hypothesis_template="{} is the topic", multi_label=True),
    case("bert-nli", LONG, candidate_labels=_TOPICS),
    case("bert-nli", GOOD, options={"candidate_labels": _TOPICS, "multi_label": True}),
]

BODIES = [f"{name}-body" for name in (*FILLERS, "gpt2", "llama", "mistral", "qwen2", "bart", "bert-cased")]

FEATURES = [
    *(case(model, "The dog sleeps.") for model in BODIES),
    *(case(model, "The dog") for model in ("bert-feelings", "roberta-people", "llama-feelings", "gpt2", "bart-nli")),
    case("bert-body", ["The dog", "sleeps"]),
    case("bert-body", ["The dog"]),
    case("bert-body", "The dog sleeps.", truncation=True, tokenize_kwargs={"max_length": 4}),
    case("bert-body", "The dog", return_tensors=True),
]

CASES: dict[str, list[Case]] = {
    "text-classification": CLASSIFICATION,
    "token-classification": TAGGING,
    "question-answering": READING,
    "fill-mask": FILLING,
    "zero-shot-classification": ZERO_SHOT,
    "feature-extraction": FEATURES,
    "text-generation": writing.WRITING + writing.STOPPED,
    "text2text-generation": writing.TEXT_TO_TEXT,
    "summarization": writing.SUMMARIES,
    "translation": writing.TRANSLATION,
    "translation_en_to_de": writing.TO_GERMAN,
    "translation_en_to_fr": writing.TO_FRENCH,
}
"""The cases of each task, by its name."""
