"""Cases for the tiny checkpoints: every task, with the arguments of its pipeline and of each call."""

from typing import Any

from tests.parity import cases_writing as writing
from tests.parity.asking import BAD, BERLIN, COUNTRIES, GOOD, LONG, PAIR, PLAIN, ZURICH, Case, ask

CLASSIFIERS = ("bert-feelings", "distilbert-feelings", "roberta-toxic", "albert-similarity", "xlm-roberta-feelings")
CLASSIFIERS += ("camembert-feelings", "mpnet-topics", "gpt2-feelings", "llama-feelings", "mistral-feelings")
CLASSIFIERS += ("qwen2-feelings", "bart-nli", "t5-feelings", "bert-one-label", "albert-three-numbers", "bert-stars")

CLASSIFICATION = [
    *(ask(model, [GOOD, BAD, PLAIN], top_k=None) for model in CLASSIFIERS),
    ask("bert-feelings", GOOD),
    ask("bert-feelings", [GOOD]),
    ask("bert-feelings", [GOOD, BAD, PLAIN]),
    ask("bert-feelings", GOOD, top_k=1),
    ask("bert-feelings", [GOOD, BAD], top_k=1),
    ask("bert-feelings", GOOD, top_k=3),
    ask("bert-feelings", GOOD, top_k=2, function_to_apply="none"),
    ask("bert-feelings", GOOD, top_k=7),
    ask("bert-feelings", GOOD, top_k=None, function_to_apply="sigmoid"),
    ask("bert-feelings", [BAD], function_to_apply="softmax"),
    ask("bert-feelings", GOOD, options={"top_k": None}),
    ask("bert-feelings", [GOOD, BAD], options={"top_k": 2, "function_to_apply": "none"}),
    ask("bert-feelings", GOOD, return_all_scores=True),
    ask("bert-feelings", [GOOD, BAD], return_all_scores=True),
    ask("bert-feelings", GOOD, return_all_scores=False),
    ask("bert-feelings", PAIR),
    ask("bert-feelings", [PAIR, {"text": GOOD}]),
    ask("bert-feelings", [PAIR], top_k=None),
    ask("bert-feelings", [[[PAIR["text"], PAIR["text_pair"]]]]),
    ask("roberta-toxic", PAIR, top_k=2),
    ask("roberta-toxic", GOOD),
    ask("xlm-roberta-feelings", PAIR),
    ask("mpnet-topics", PAIR, top_k=None),
    ask("bart-nli", PAIR, top_k=None),
    ask("bert-feelings", LONG, truncation=True),
    ask("bert-feelings", {"text": LONG, "text_pair": COUNTRIES}, truncation=True, top_k=None),
    ask("bert-feelings", "a typed [SEP] token", top_k=None),
    ask("bert-feelings", [LONG, GOOD], truncation=True, max_length=16, top_k=None),
    ask("albert-similarity", GOOD),
    ask("albert-similarity", PAIR),
    ask("albert-similarity", [PAIR, PAIR], function_to_apply="sigmoid"),
    ask("bert-one-label", GOOD),
    ask("bert-one-label", [GOOD, BAD], function_to_apply="none"),
    ask("distilbert-feelings", [GOOD, BAD], batch_size=2),
]

TAGGERS = ("bert-people", "bert-plain", "distilbert-plain", "roberta-people", "xlm-roberta-people")
TAGGERS += ("camembert-inside", "albert-people", "mpnet-people", "gpt2-inside", "llama-plain")
MORE_TAGGERS = ("mistral-inside", "qwen2-people")
_WORDS = ["My", "name", "is", "Angela", "Merkel,", "in", "Zürich."]
STRATEGIES = ("none", "simple", "first", "average", "max")

TAGGING = [
    *(ask(model, [BERLIN, ZURICH], aggregation_strategy=way) for model in TAGGERS for way in STRATEGIES),
    *(ask(model, ZURICH, aggregation_strategy=way) for model in MORE_TAGGERS for way in ("none", "first")),
    ask("bert-people", BERLIN),
    ask("bert-people", "Angela [SEP] Merkel", aggregation_strategy="simple"),
    ask("bert-people", [BERLIN]),
    ask("bert-people", "the"),
    ask("bert-people", BERLIN, ignore_labels=["B-PER", "O"]),
    ask("bert-people", BERLIN, ignore_labels=[]),
    ask("bert-people", BERLIN, ignore_labels=[], aggregation_strategy="simple"),
    ask("bert-people", BERLIN, ignore_labels=["PER"], aggregation_strategy="average"),
    ask("bert-people", ZURICH, grouped_entities=True),
    ask("bert-people", ZURICH, options={"aggregation_strategy": "first"}),
    ask("bert-people", LONG),
    ask("bert-people", LONG, aggregation_strategy="simple"),
    *(ask("bert-people", LONG, aggregation_strategy=way, stride=12) for way in STRATEGIES[1:]),
    ask("roberta-people", LONG, aggregation_strategy="average", stride=20),
    ask("xlm-roberta-people", LONG, aggregation_strategy="max", stride=0),
    ask("bert-people", BERLIN, aggregation_strategy="simple", stride=8),
    ask("bert-people", _WORDS, is_split_into_words=True),
    ask("bert-people", [_WORDS, _WORDS[3:]], is_split_into_words=True, aggregation_strategy="simple"),
    ask("bert-people", _WORDS, is_split_into_words=True, delimiter="/", aggregation_strategy="first"),
    ask("qwen2-people", [_WORDS], is_split_into_words=True, aggregation_strategy="max"),
    ask("llama-plain", _WORDS, is_split_into_words=True),
    ask("xlm-roberta-people", ["<mask>", "Zürich"], is_split_into_words=True),
    ask("bert-people", LONG.split(), is_split_into_words=True, aggregation_strategy="first", stride=9),
    ask("mpnet-people", "Angela <mask> Merkel", aggregation_strategy="first"),
    ask("xlm-roberta-people", _WORDS, is_split_into_words=True, aggregation_strategy="average"),
    ask("albert-people", "  two  spaces,  and  a\nline ", aggregation_strategy="simple"),
]

READERS = [f"{name}-reader" for name in ("bert", "bert-cased", "distilbert", "roberta", "xlm-roberta", "albert")]
READERS += [f"{name}-reader" for name in ("mpnet", "bart", "gpt2", "t5", "camembert", "llama")]
_QUESTION = "Where was Marie Curie born?"
_TOWER = "How tall is the Eiffel Tower?"


def _read(model: str, question: Any, context: Any, **call: Any) -> Case:
    return ask(model, question=question, context=context, **call)


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
    ask("bert-reader", {"question": _QUESTION, "context": COUNTRIES}),
    ask("bert-reader", [{"question": _QUESTION, "context": COUNTRIES}, {"question": _TOWER, "context": PLAIN}]),
    ask("bert-reader", _QUESTION, COUNTRIES),
    _read("bert-reader", _QUESTION, COUNTRIES, padding="max_length", top_k=2),
    _read("bert-cased-reader", _QUESTION, "london London LONDON " * 4, top_k=6),
]

MASKS = {"bert": "[MASK]", "distilbert": "[MASK]", "albert": "[MASK]"}
FILLERS = ("bert", "distilbert", "roberta", "xlm-roberta", "camembert", "albert", "mpnet")


def _fill(name: str, text: Any, **call: Any) -> Case:
    mask = MASKS.get(name, "<mask>")
    texts = text.replace("*", mask) if isinstance(text, str) else [one.replace("*", mask) for one in text]
    return ask(f"{name}-filler", texts, **call)


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
    ask("bert-filler", "The [MASK] is high.", options={"top_k": 2}),
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
    *(ask(model, GOOD, candidate_labels=_TOPICS) for model in JUDGES),
    *(ask(model, [GOOD, BAD], candidate_labels=_TOPICS, multi_label=True) for model in JUDGES),
    *(ask(model, PLAIN, candidate_labels="travel, cooking ,health") for model in JUDGES),
    ask("bert-nli", GOOD, _TOPICS),
    ask("bert-nli", [GOOD], _TOPICS),
    ask("bert-nli", GOOD, candidate_labels="sports"),
    ask("bert-nli", GOOD, candidate_labels=["sports"]),
    ask("bert-nli", GOOD, candidate_labels=_TOPICS, hypothesis_template="The text talks about {}."),
    ask("roberta-nli", GOOD, candidate_labels=_TOPICS, hypothesis_template="{} is the topic", multi_label=True),
    ask("bert-nli", LONG, candidate_labels=_TOPICS),
    ask("bert-nli", GOOD, options={"candidate_labels": _TOPICS, "multi_label": True}),
]

BODIES = [f"{name}-body" for name in (*FILLERS, "gpt2", "llama", "mistral", "qwen2", "bart", "bert-cased")]

FEATURES = [
    *(ask(model, "The dog sleeps.") for model in BODIES),
    *(ask(model, "The dog") for model in ("bert-feelings", "roberta-people", "llama-feelings", "gpt2", "bart-nli")),
    ask("bert-body", ["The dog", "sleeps"]),
    ask("bert-body", ["The dog"]),
    ask("bert-body", "The dog sleeps.", truncation=True, tokenize_kwargs={"max_length": 4}),
    ask("bert-body", "The dog", return_tensors=True),
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
