"""Arrays, tensors and pandas' NA in place of a single value: each raises one sentence that names the argument."""

import enum
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pellucid
from pellucid import compat
from pellucid.errors import InputError

Checkpoint = Callable[[str], Path]


class Undecided:
    """Like pandas' NA: comparisons return it, and it has no truth value."""

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")

    __hash__ = object.__hash__


ODD = {
    "array": np.arange(2),
    "texts": np.array(["a", "b"]),
    "tensor": torch.arange(2),
    "NA": Undecided(),
    "number": np.array(3),
}
GIVEN: dict[str, tuple[Any, ...]] = {
    "question-answering": ({"question": "Who?", "context": "Me and you."},),
    "fill-mask": ("A [MASK].",),
    "sentence-similarity": ("a", ["b"]),
}
TASKS = [
    ("token-classification", "bert-people", "boundaries"),
    ("token-classification", "bert-people", "ignore_labels"),
    ("question-answering", "bert-reader", "scores"),
    ("zero-shot-classification", "bert-nli", "roles"),
    ("text-classification", "bert-feelings", "long"),
    ("translation", "t5-tasks", "src_lang"),
    ("translation", "t5-tasks", "tgt_lang"),
]
PIPES = [
    ("text-classification", "bert-feelings", "return_all_scores truncation"),
    ("ner", "bert-people", "grouped_entities aggregation_strategy stride"),
    ("feature-extraction", "bert-body", "truncation return_tensors"),
    ("question-answering", "bert-reader", "max_seq_len top_k"),
    ("text-generation", "gpt2", "return_tensors truncation do_sample num_beams handle_long_generation"),
    ("summarization", "bart", "return_tensors clean_up_tokenization_spaces do_sample num_beams"),
]


@pytest.mark.parametrize("mode", ["False", "", None, 0, 1, 1.0, Undecided(), [True]])
def test_training_is_switched_by_true_and_false_alone(tiny: pellucid.Model, mode: Any) -> None:
    with pytest.raises(InputError, match=r"^mode is .*, expected true or false$"):
        tiny.train(mode)
    assert not tiny.module.training
    assert tiny.train(np.True_).module.training and not tiny.train(np.False_).module.training
    assert tiny.train().module.training and not tiny.eval().module.training


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest) -> Any:
    return ODD[request.param]


def refused(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=name) as caught:
        call()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("task", "model", "name"), TASKS)
def test_a_task_refuses_it(checkpoint: Checkpoint, odd: Any, task: str, model: str, name: str) -> None:
    items = GIVEN.get(task, ("A text.",))
    options: dict[str, Any] = {"candidate_labels": ["x", "y"]} if task.startswith("zero") else {}
    refused(f"^{name} (is|names)", lambda: pellucid.pipeline(task, checkpoint(model))(*items, **options, **{name: odd}))


@pytest.mark.parametrize(("task", "model", "names"), PIPES)
def test_a_pipeline_of_compat_refuses_it(checkpoint: Checkpoint, task: str, model: str, names: str) -> None:
    pipe = compat.pipeline(task, model=checkpoint(model))
    for name in names.split():
        for odd in (ODD["array"], ODD["tensor"], ODD["NA"]):
            refused(name, lambda: pipe(*GIVEN.get(task, ("A text.",)), **{name: odd}))  # noqa: B023
    refused("item 0 is ndarray, expected", lambda: pipe(np.array(3)))


def test_what_opens_a_model_refuses_it(checkpoint: Checkpoint, odd: Any) -> None:
    folder = checkpoint("bert-feelings")
    for name in ("head", "attention", "dtype", "device"):
        refused(name, lambda: pellucid.load(folder, **{name: odd}))  # noqa: B023
    for name in ("task", "tokenizer", "device", "dtype"):
        options = {"task": "text-classification"} | {name: odd}
        refused(name, lambda: compat.pipeline(model=str(folder), **options))  # noqa: B023
    for name in ("config", "dtype", "device_map", "attn_implementation", "id2label", "num_labels"):
        wanted = {"device_map": "device"}.get(name, name)
        refused(wanted, lambda: compat.AutoModel.from_pretrained(folder, **{name: odd}))  # noqa: B023
    refused(
        "num_labels is 10+, expected a whole number",
        lambda: compat.AutoModel.from_pretrained(folder, num_labels=10**30),
    )


def test_a_model_refuses_it(checkpoint: Checkpoint, odd: Any) -> None:
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    pipe = pellucid.pipeline("feature-extraction", model)
    for name in ("pooling", "normalize", "dtype", "max_length"):
        refused(name, lambda: model.embed("a", **{name: odd}))  # noqa: B023
    refused("padding", lambda: model.trace("a", padding=odd))
    refused("gradients_of", lambda: model.trace("a", gradients_of=odd))
    refused("progress", lambda: writer.generate("a", progress=odd, max_new_tokens=1))
    for text in ("a", ["a"]):
        refused("progress", lambda: model.embed(text, progress=odd))  # noqa: B023
        refused("progress", lambda: pipe(text, progress=odd))  # noqa: B023
    refused("progress", lambda: pellucid.Index.build(model, ["a"], progress=False).compact(progress=odd))
    if not (isinstance(odd, np.ndarray) and odd.dtype.kind == "U"):
        refused("keep", lambda: model.trace("a", keep=odd))
    wanted = list(model.trace("a", keep=["layers.0.attention.weights", "layers.1.attention.output"]))
    assert list(model.trace("a", keep=(name for name in wanted))) == wanted
    assert list(model.trace("a", keep=np.array(wanted))) == wanted


def test_a_tokenizer_refuses_it(checkpoint: Checkpoint) -> None:
    tokenizer = compat.AutoTokenizer.from_pretrained(checkpoint("bert-body"))
    for odd in (ODD["array"], ODD["tensor"], ODD["NA"]):
        refused("padding_side", lambda: tokenizer("a", padding_side=odd))  # noqa: B023
        refused("padding_side", lambda: setattr(tokenizer, "padding_side", odd))  # noqa: B023
        refused("skip_special_tokens", lambda: tokenizer.decode([5], odd))  # noqa: B023
        refused("skip_special_tokens", lambda: tokenizer.convert_ids_to_tokens([5], odd))  # noqa: B023
        refused("clean_up_tokenization_spaces", lambda: tokenizer.batch_decode([[5]], False, odd))  # noqa: B023
        refused("max_length", lambda: tokenizer.pad([{"input_ids": [5]}], max_length=odd))  # noqa: B023
    refused("text_pair is ndarray", lambda: tokenizer("a", np.array(3)))
    refused("the rows to be padded are", lambda: tokenizer.pad(np.arange(2)))
    refused("the rows of ids are", lambda: tokenizer.batch_decode(np.array(3)))
    refused("tokens is", lambda: tokenizer.convert_tokens_to_ids(np.arange(2)))
    for ids in (["a"], [-1], [2**32], [None], np.array([0.5]), np.array(["a"])):
        refused("the ids are", lambda: tokenizer.decode(ids))  # noqa: B023
        refused("the ids are", lambda: tokenizer.convert_ids_to_tokens(ids))  # noqa: B023
    assert tokenizer.decode(np.array([5, 6])) == tokenizer.decode(torch.tensor([5, 6])) == tokenizer.decode([5, 6])
    assert tokenizer.batch_decode(np.array([[5, 6]])) == [tokenizer.decode([5, 6])]


@pytest.fixture(scope="module")
def index(checkpoint: Checkpoint) -> pellucid.Index:
    return pellucid.Index.build(pellucid.load(checkpoint("bert-body")), ["a dog", "a cat"])


def test_an_index_refuses_it(index: pellucid.Index, odd: Any) -> None:
    hit, texts = index.search("dog", 1)[0], odd is ODD["texts"]
    refused("query", lambda: index.why(odd, hit))
    refused("hit", lambda: index.why("dog", odd))
    refused("sample", lambda: index.verify(odd))
    refused("by", lambda: index.evaluate(["dog"], ["1"], by=odd))
    refused("mode", lambda: index.evaluate(["dog"], ["1"], mode=odd))
    refused("update", lambda: index.add(["a bird"], update=odd))
    if not texts:
        refused("texts", lambda: index.encode(odd))
    if odd is not ODD["array"] and odd is not ODD["tensor"]:  # several integers
        refused("^k is", lambda: index.evaluate(["dog"], ["1"], k=odd))
        refused("^efSearch is", lambda: index.curve(["dog"], 1, efSearch=odd))
    for name in ("queries", "answers"):
        arguments = {"queries": ["dog"], "answers": ["1"]} | {name: odd}
        refused("queries|answers|query|answer", lambda: index.evaluate(**arguments))  # noqa: B023
    refused("skip_bad", lambda: pellucid.Index.build(index.loaded, ["a"], skip_bad=odd))
    known = {"dog": "1", "cat": "2"}
    assert index.evaluate(known, known.values()).recall == index.evaluate(list(known), ["1", "2"]).recall
    assert len(index) == 2


def test_training_refuses_it(checkpoint: Checkpoint, odd: Any) -> None:
    model, rows = checkpoint("bert-feelings"), [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    for name in ("columns", "from_scratch", "resume", "overwrite", "max_steps", "batch_size", "dropout", "lora"):
        refused(name, lambda: pellucid.train(model, rows, "classify", **{name: odd}))  # noqa: B023
    refused("task", lambda: pellucid.train(model, rows, odd))
    refused("task", lambda: pellucid.evaluate(model, rows, odd))
    refused("columns", lambda: pellucid.evaluate(model, rows, "classify", columns=odd))
    for name in ("data", "validation"):
        arguments = {"data": rows, "validation": rows} | {name: odd}
        refused("data|row|expected", lambda: pellucid.train(model, task="classify", **arguments))  # noqa: B023


def test_a_number_of_numpy_is_a_number(checkpoint: Checkpoint, index: pellucid.Index, tmp_path: Path) -> None:
    one, half = np.int64(1), np.float32(0.5)
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    assert (model.embed("a dog", max_length=np.int64(3)) == model.embed("a dog", max_length=3)).all()
    assert model.trace("a dog", max_length=np.int64(3)).tokens == model.trace("a dog", max_length=3).tokens
    assert len(pellucid.pipeline("text-ranking", model)("a", ["b", "c"], top_k=one)) == 1
    assert len(pellucid.pipeline("text-ranking", model, top_k=one)("a", ["b", "c"])) == 1
    drawn = [
        writer.generate("a", do_sample=True, max_new_tokens=two, temperature=warm, seed=two)
        for two, warm in ((np.int64(2), half), (2, 0.5))
    ]
    assert drawn[0] == drawn[1]
    assert len(index.search("dog", one)) == 1 and index.curve(["dog"], one, efSearch=np.array([16])).k == 1
    assert list(index.evaluate(["dog"], ["1"], k=np.array([1, 2])).recall) == [1, 2]
    assert list(index.evaluate(["dog"], ["1"], k=one).recall) == [1]
    kept = pellucid.Index.build(index.loaded, ["a"], tmp_path / "kept", M=np.int64(8), passage_tokens=np.int64(16))
    assert len(kept) == 1 and pellucid.Index.open(kept.folder).manifest.settings.M == 8


def test_what_only_counts_as_a_number_is_no_token(checkpoint: Checkpoint) -> None:
    writer, words = pellucid.load(checkpoint("gpt2")), pellucid.load(checkpoint("bert-body")).tokenizer
    for said in (b"ab", "", bytearray(b"a"), [True]):
        refused(r"^stop_token_ids(\[0\])? is ", lambda: writer.generate("a", stop_token_ids=said))  # noqa: B023
    assert words is not None
    truths = (torch.tensor([True, False]), np.array([True]), [True], (5, False), [torch.tensor(True)], [np.True_])
    for ids in (*truths, b"a", bytearray(b"a"), "", "5"):
        for read in (words.decode, words.convert_ids_to_tokens):
            refused("^the ids are .*, expected the ids of tokens: whole", lambda: read(ids))  # noqa: B023
    for ids in ([5], torch.tensor([5]), np.array([5]), iter([5]), [np.int32(5)], range(5, 6)):
        assert words.decode(ids) == words.decode([5])
    judge = pellucid.load(checkpoint("bert-body")).explain
    for said in (True, np.False_, "0.5", float("nan")):
        refused("^residual is .*, expected (a|at least 0)", lambda: judge.attention_rollout("a", residual=said))  # noqa: B023
    assert torch.equal(judge.attention_rollout("a", residual=np.float32(0.5)), judge.attention_rollout("a"))


@pytest.mark.parametrize("seed", ["abc", None, 2.5, -1, 2**32, 2**64, True, np.arange(2)], ids=repr)
def test_a_seed_of_compat_is_one_that_every_source_takes(seed: Any) -> None:
    before = torch.random.get_rng_state()
    refused("^seed is .*, expected a whole number from 0 to 4,294,967,295$", lambda: compat.set_seed(seed))
    assert torch.equal(torch.random.get_rng_state(), before)
    compat.set_seed(np.int64(2))


def test_rows_that_hold_themselves_are_refused(checkpoint: Checkpoint) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    lists, names = list[Any](), dict[str, Any]()
    lists.append(lists)
    names["a"] = names
    for inner in (lists, names):
        for row in ({"text": inner, "label": "a"}, {"text": "a", "label": inner}):
            refused(
                "^row 1 holds a list that contains itself",
                lambda: pellucid.train(model, [{"text": "b", "label": "b"}, row], "classify"),  # noqa: B023
            )


def test_a_long_value_is_not_said_whole(checkpoint: Checkpoint) -> None:
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    long, many = "x" * 100_000, list(range(3_000))
    rows, why = [{"text": "a", "label": "a"}] * 4, writer.explain
    calls: list[Callable[[], Any]] = [
        lambda: model.freeze(long),
        lambda: model.unfreeze(long),
        lambda: pellucid.load(checkpoint("bert-body"), head=long),
        lambda: model.config.replace(**{long: 1}),
        lambda: model.trace("a", keep="pooled")[long],
        lambda: model.points()[long],
        lambda: pellucid.pipeline(long),
        lambda: pellucid.train(model, rows, "classify", columns={"text": long}),
        lambda: pellucid.train(model, rows, "classify", **{long: 1}),
        lambda: writer.generate("a", **{long: 1}),
        lambda: writer.generate("a", length_penalty=many),
        lambda: writer.generate("a", early_stopping=many),
        lambda: writer.generate("a", num_return_sequences=many),
        lambda: why.direct_logit_attribution("a", long),
        lambda: why.direct_logit_attribution("a", "a", position=many),
        lambda: why.integrated_gradients("a", steps=many),
        lambda: why.logit_lens("a", k=many),
        lambda: model.explain.attention_rollout("a", residual=many),
    ]
    for call in calls:
        with pytest.raises(InputError) as caught:
            call()
        assert len(str(caught.value)) < 1_000


def test_our_own_tokenizer_and_a_pipeline_refuse_it(checkpoint: Checkpoint, odd: Any) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    tokenizer, messages = model.loaded.required_tokenizer, [{"role": "user", "content": "x"}]
    for name in ("max_length", "add_special_tokens", "parse_special_tokens"):
        refused(f"^{name} is", lambda: tokenizer.encode(["a"], **{name: odd}))  # noqa: B023
    for name in ("chat_template", "tokenize", "add_generation_prompt", "continue_final_message"):
        options = {"chat_template": "{{ 1 }}", name: odd}
        refused(f"^{name} is", lambda: tokenizer.apply_chat_template(messages, **options))  # noqa: B023
    if odd is not ODD["texts"]:  # an array of two texts
        refused("text", lambda: tokenizer.encode(odd))
        refused("^tokens is", lambda: tokenizer.convert_tokens_to_string(odd))
        refused("^extra_tokens is", lambda: pellucid.train_tokenizer(texts=["a"], extra_tokens=odd))
    refused("^model is", lambda: pellucid.pipeline("feature-extraction", model).on(odd))
    refused("^unknown family", lambda: pellucid.Config.of(odd))


def test_a_new_tokenizer_refuses_it(odd: Any) -> None:
    if odd is not ODD["texts"]:  # an array of two names
        refused("^files", lambda: pellucid.train_tokenizer(odd))
        refused("^column is", lambda: pellucid.train_tokenizer("rows.csv", column=odd))


def test_a_view_refuses_it(checkpoint: Checkpoint, odd: Any) -> None:
    trace = pellucid.load(checkpoint("bert-body")).trace("A dog sleeps.")
    for name in ("layer", "budget_mb", "show", "theme", "precision"):
        refused(name, lambda: pellucid.view(trace, **{name: odd}))  # noqa: B023
    page = pellucid.view(trace)
    for name in ("view", "layer", "theme", "token", "side", "threshold", "scale"):
        refused(name, lambda: page.svg("a.svg", **{name: odd}))  # noqa: B023
    for one in (1.5, [True], [0.5], ["a"], b"ab") if odd is ODD["array"] or odd is ODD["tensor"] else (odd,):
        refused("head", lambda: page.svg("a.svg", heads=one))  # noqa: B023
    refused("trace has no" if odd is ODD["texts"] else "tensors", lambda: pellucid.view(trace, tensors=odd))
    refused("a trace", lambda: pellucid.view(trace, odd))
    if odd is not ODD["array"] and odd is not ODD["tensor"]:
        refused("heads", lambda: pellucid.view(trace, heads=odd))
        refused("include_layers", lambda: pellucid.view(trace, include_layers=odd))
    wrong = [("heads", one) for one in ([True], [0.0], torch.arange(2) > 0)]
    for name, arguments in (("layer", True), ("include_layers", [False]), *wrong):
        refused(name, lambda: pellucid.view(trace, **{name: arguments}))  # noqa: B023
    weights = trace["layers.0.attention.weights"]
    arguments = {"attention": [weights], "tokens": trace.tokens}
    if odd is not ODD["number"]:  # a single integer
        refused("sentence_b_start", lambda: pellucid.view(**arguments, sentence_b_start=odd))
    refused("attention", lambda: pellucid.view(attention=odd, tokens=trace.tokens))
    if odd is not ODD["texts"]:
        refused("tokens", lambda: pellucid.view(attention=[weights], tokens=odd))
    assert pellucid.view(trace, layer=np.int64(1), heads=np.arange(2), include_layers=torch.tensor([1])).data.manifest
    refused("log|step", lambda: pellucid.curves(odd)) if odd is ODD["number"] or odd is ODD["NA"] else None


def test_explanations_and_traces_refuse_it(checkpoint: Checkpoint, odd: Any) -> None:
    judge, writer = pellucid.load(checkpoint("bert-feelings")), pellucid.load(checkpoint("gpt2"))
    trace = judge.trace("A dog sleeps.")
    refused("target", lambda: judge.explain.gradient_x_input("a", odd))
    refused("^k is", lambda: writer.explain.logit_lens("a", k=odd))
    for name in ("edit", "point", "over"):
        refused(name, lambda: writer.sweep("a", lambda output: output["logits"].sum(), **{name: odd}))  # noqa: B023
    if odd is not ODD["texts"]:  # two words
        refused("metric|token|string", lambda: writer.sweep("a", odd))
    refused("seed", lambda: pellucid.build(judge.config, seed=odd))
    refused("config", lambda: pellucid.build(odd))
    refused("most", lambda: trace.strongest(0, 0, odd))
    if odd is not ODD["number"]:  # a single integer
        refused("row", lambda: trace.row(odd))
        refused("head", lambda: trace.strongest(0, odd))
    refused("head 77 is not there", lambda: trace.strongest(0, 77))


def test_a_path_is_none_of_these(checkpoint: Checkpoint, index: pellucid.Index, odd: Any) -> None:
    model, rows = pellucid.load(checkpoint("bert-body")), [{"text": "a", "label": "x"}]
    trace = model.trace("A dog sleeps.")
    for call in (
        model.save, trace.save, pellucid.view(trace).save, pellucid.open_trace, index.save, pellucid.Index.open,
        lambda out: pellucid.Index.build(model, ["a"], out),
        lambda out: pellucid.train(model, rows, "classify", out=out),
        lambda recipe: pellucid.train(recipe=recipe),
    ):  # fmt: skip
        refused("expected the path of a file or folder", lambda: call(odd))  # noqa: B023
    refused("encoding", lambda: pellucid.train(model, rows, "classify", encoding=odd))
    refused("pattern|parameter", lambda: model.freeze(odd))


class Named:
    """A path-like object around any value."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __fspath__(self) -> Any:
        return self.name


def _forms(path: Path) -> list[Any]:
    """A path in other forms: as bytes, and as the value of an Enum, whose `str` is its name."""
    return [Named(bytes(path)), Named(str(path)), enum.Enum("Kept", {"FOLDER": str(path)}, type=str).FOLDER]


def test_a_path_is_taken_by_its_characters(checkpoint: Checkpoint, index: pellucid.Index, tmp_path: Path) -> None:
    model, rows = pellucid.load(checkpoint("bert-body")), [{"text": t, "label": t} for t in "abab"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"max_steps": 1, "batch_size": 2, "validation": 0, "progress": False}
    for i, at in enumerate(_forms(tmp_path / "model")):
        assert model.save(at, overwrite=i > 0) == tmp_path / "model"
        assert pellucid.load(at).config == model.config
        assert compat.AutoTokenizer.from_pretrained(at).name_or_path == str(tmp_path / "model")
    for i, (at, data) in enumerate(zip(_forms(tmp_path / "learned"), _forms(tmp_path / "rows.jsonl"))):
        pellucid.train(model, data, "classify", out=at, overwrite=i > 0, **settings)
        assert (tmp_path / "learned" / "config.json").is_file() and pellucid.curves(at).text()
    for at in _forms(tmp_path / "rows.jsonl"):
        assert len(pellucid.Index.build(model, at, column="text", progress=False)) == 4
    for i, at in enumerate(_forms(tmp_path / "index")):
        assert index.save(path := at if i == 0 else Named(f"{tmp_path / 'index'}{i}"))
        assert len(pellucid.Index.open(path)) == 2
    trace = model.trace("A dog sleeps.", keep="pooled")
    assert all(trace.save(at) == tmp_path / "a.trace" for at in _forms(tmp_path / "a.trace"))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "a.trace", "index", "index1", "index2", "learned", "model", "rows.jsonl",
    ]  # fmt: skip
    for call in (model.save, pellucid.load, index.save, pellucid.Index.open, pellucid.curves):
        refused("is a path that cannot be made a text", lambda: call(Named(5)))  # noqa: B023


def test_the_home_is_a_place_for_an_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: pellucid.Index
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index.save("~/kept") == tmp_path / "kept" and len(pellucid.Index.open("~/kept")) == 2
    assert pellucid.Index.build(index.loaded, ["a dog"], "~/made").folder == tmp_path / "made"


@pytest.mark.parametrize("said", ["no", "false", 1, 0, None, np.array(True)])
def test_what_only_counts_as_true_writes_over_nothing(checkpoint: Checkpoint, tmp_path: Path, said: Any) -> None:
    model, kept = pellucid.load(checkpoint("bert-feelings")), tmp_path / "kept" / "notes.txt"
    kept.parent.mkdir()
    kept.write_text("mine")
    refused("overwrite", lambda: model.save(kept.parent, overwrite=said))
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    refused("overwrite", lambda: pellucid.train(model, rows, "classify", out=kept.parent, overwrite=said))
    assert kept.read_text() == "mine" and list(kept.parent.iterdir()) == [kept]
