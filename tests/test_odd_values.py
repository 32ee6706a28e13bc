"""Arrays, tensors and pandas' NA in place of a single value: each raises one sentence that names the argument."""

import dataclasses
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
from pellucid.config.parts import Attention, DecoderSide
from pellucid.config.pooling import Pooling
from pellucid.config.positions import Learned, Llama3Scaling, RelativeBias, Rotary, Sinusoidal
from pellucid.errors import InputError
from pellucid.tasks.fill_mask import FillMask
from pellucid.tasks.zero_shot import ZeroShotClassification
from pellucid.text.tokenizer_training import train_tokenizer
from pellucid.text.windows import windows
from pellucid.training.classification import TextClassification

Checkpoint = Callable[[str], Path]


class NoTruthValue:
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
    "NA": NoTruthValue(),
    "number": np.array(3),
}
TASK_INPUTS: dict[str, tuple[Any, ...]] = {
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


@pytest.mark.parametrize("mode", ["False", "", None, 0, 1, 1.0, NoTruthValue(), [True]])
def test_train_accepts_only_true_and_false(tiny: pellucid.Model, mode: Any) -> None:
    with pytest.raises(InputError, match=r"^mode is .*, expected true or false$"):
        tiny.train(mode)
    assert not tiny.module.training
    assert tiny.train(np.True_).module.training and not tiny.train(np.False_).module.training
    assert tiny.train().module.training and not tiny.eval().module.training


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest) -> Any:
    return ODD[request.param]


def assert_refused(name: str, call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=name) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("task", "model", "name"), TASKS)
def test_task_options_refuse_odd_values(checkpoint: Checkpoint, odd: Any, task: str, model: str, name: str) -> None:
    items = TASK_INPUTS.get(task, ("A text.",))
    options: dict[str, Any] = {"candidate_labels": ["x", "y"]} if task.startswith("zero") else {}
    assert_refused(
        f"^{name} (is|names)", lambda: pellucid.pipeline(task, checkpoint(model))(*items, **options, **{name: odd})
    )


@pytest.mark.parametrize(("task", "model", "names"), PIPES)
def test_compat_pipelines_refuse_odd_values(checkpoint: Checkpoint, task: str, model: str, names: str) -> None:
    pipe = compat.pipeline(task, model=checkpoint(model))
    for name in names.split():
        for odd in (ODD["array"], ODD["tensor"], ODD["NA"]):
            assert_refused(name, lambda: pipe(*TASK_INPUTS.get(task, ("A text.",)), **{name: odd}))  # noqa: B023
    assert_refused("item 0 is ndarray, expected", lambda: pipe(np.array(3)))


def test_loading_refuses_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    folder = checkpoint("bert-feelings")
    for name in ("head", "attention", "dtype", "device"):
        assert_refused(name, lambda: pellucid.load(folder, **{name: odd}))  # noqa: B023
    for name in ("task", "tokenizer", "device", "dtype"):
        options = {"task": "text-classification"} | {name: odd}
        assert_refused(name, lambda: compat.pipeline(model=str(folder), **options))  # noqa: B023
    for name in ("config", "dtype", "device_map", "attn_implementation", "id2label", "num_labels"):
        expected = {"device_map": "device"}.get(name, name)
        assert_refused(expected, lambda: compat.AutoModel.from_pretrained(folder, **{name: odd}))  # noqa: B023
    assert_refused(
        "num_labels is 10+, expected a whole number",
        lambda: compat.AutoModel.from_pretrained(folder, num_labels=10**30),
    )


def test_model_methods_refuse_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    pipe = pellucid.pipeline("feature-extraction", model)
    for name in ("pooling", "normalize", "dtype", "max_length"):
        assert_refused(name, lambda: model.embed("a", **{name: odd}))  # noqa: B023
    assert_refused("padding", lambda: model.trace("a", padding=odd))
    assert_refused("gradients_of", lambda: model.trace("a", gradients_of=odd))
    assert_refused("progress", lambda: writer.generate("a", progress=odd, max_new_tokens=1))
    for text in ("a", ["a"]):
        assert_refused("progress", lambda: model.embed(text, progress=odd))  # noqa: B023
        assert_refused("progress", lambda: pipe(text, progress=odd))  # noqa: B023
    assert_refused("progress", lambda: pellucid.Index.build(model, ["a"], progress=False).compact(progress=odd))
    if not (isinstance(odd, np.ndarray) and odd.dtype.kind == "U"):
        assert_refused("keep", lambda: model.trace("a", keep=odd))
    expected = list(model.trace("a", keep=["layers.0.attention.weights", "layers.1.attention.output"]))
    assert list(model.trace("a", keep=(name for name in expected))) == expected
    assert list(model.trace("a", keep=np.array(expected))) == expected


def test_compat_tokenizer_refuses_odd_values(checkpoint: Checkpoint) -> None:
    tokenizer = compat.AutoTokenizer.from_pretrained(checkpoint("bert-body"))
    for odd in (ODD["array"], ODD["tensor"], ODD["NA"]):
        assert_refused("padding_side", lambda: tokenizer("a", padding_side=odd))  # noqa: B023
        assert_refused("padding_side", lambda: setattr(tokenizer, "padding_side", odd))  # noqa: B023
        assert_refused("skip_special_tokens", lambda: tokenizer.decode([5], odd))  # noqa: B023
        assert_refused("skip_special_tokens", lambda: tokenizer.convert_ids_to_tokens([5], odd))  # noqa: B023
        assert_refused("clean_up_tokenization_spaces", lambda: tokenizer.batch_decode([[5]], False, odd))  # noqa: B023
        assert_refused("max_length", lambda: tokenizer.pad([{"input_ids": [5]}], max_length=odd))  # noqa: B023
    assert_refused("text_pair is ndarray", lambda: tokenizer("a", np.array(3)))
    assert_refused("the rows to be padded are", lambda: tokenizer.pad(np.arange(2)))
    assert_refused("the rows of ids are", lambda: tokenizer.batch_decode(np.array(3)))
    assert_refused("tokens is", lambda: tokenizer.convert_tokens_to_ids(np.arange(2)))
    for ids in (["a"], [-1], [2**32], [None], np.array([0.5]), np.array(["a"])):
        assert_refused("the ids are", lambda: tokenizer.decode(ids))  # noqa: B023
        assert_refused("the ids are", lambda: tokenizer.convert_ids_to_tokens(ids))  # noqa: B023
    assert tokenizer.decode(np.array([5, 6])) == tokenizer.decode(torch.tensor([5, 6])) == tokenizer.decode([5, 6])
    assert tokenizer.batch_decode(np.array([[5, 6]])) == [tokenizer.decode([5, 6])]


@pytest.fixture(scope="module")
def index(checkpoint: Checkpoint) -> pellucid.Index:
    return pellucid.Index.build(pellucid.load(checkpoint("bert-body")), ["a dog", "a cat"])


def test_index_refuses_odd_values(index: pellucid.Index, odd: Any) -> None:
    hit, is_text_array = index.search("dog", 1)[0], odd is ODD["texts"]
    assert_refused("query", lambda: index.why(odd, hit))
    assert_refused("hit", lambda: index.why("dog", odd))
    assert_refused("sample", lambda: index.verify(odd))
    assert_refused("by", lambda: index.evaluate(["dog"], ["1"], by=odd))
    assert_refused("mode", lambda: index.evaluate(["dog"], ["1"], mode=odd))
    assert_refused("update", lambda: index.add(["a bird"], update=odd))
    if not is_text_array:
        assert_refused("texts", lambda: index.encode(odd))
    if odd is not ODD["array"] and odd is not ODD["tensor"]:  # several integers
        assert_refused("^k is", lambda: index.evaluate(["dog"], ["1"], k=odd))
        assert_refused("^efSearch is", lambda: index.curve(["dog"], 1, efSearch=odd))
    for name in ("queries", "answers"):
        arguments = {"queries": ["dog"], "answers": ["1"]} | {name: odd}
        assert_refused("queries|answers|query|answer", lambda: index.evaluate(**arguments))  # noqa: B023
    assert_refused("skip_bad", lambda: pellucid.Index.build(index.loaded, ["a"], skip_bad=odd))
    known_answers = {"dog": "1", "cat": "2"}
    assert (
        index.evaluate(known_answers, known_answers.values()).recall
        == index.evaluate(list(known_answers), ["1", "2"]).recall
    )
    assert len(index) == 2


def test_training_refuses_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    model, rows = checkpoint("bert-feelings"), [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    for name in ("columns", "from_scratch", "resume", "overwrite", "max_steps", "batch_size", "dropout", "lora"):
        assert_refused(name, lambda: pellucid.train(model, rows, "classify", **{name: odd}))  # noqa: B023
    assert_refused("task", lambda: pellucid.train(model, rows, odd))
    assert_refused("task", lambda: pellucid.evaluate(model, rows, odd))
    assert_refused("columns", lambda: pellucid.evaluate(model, rows, "classify", columns=odd))
    for name in ("data", "validation"):
        arguments = {"data": rows, "validation": rows} | {name: odd}
        assert_refused("data|row|expected", lambda: pellucid.train(model, task="classify", **arguments))  # noqa: B023


def test_numpy_numbers_are_accepted(checkpoint: Checkpoint, index: pellucid.Index, tmp_path: Path) -> None:
    whole, fraction = np.int64(1), np.float32(0.5)
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    assert (model.embed("a dog", max_length=np.int64(3)) == model.embed("a dog", max_length=3)).all()
    assert model.trace("a dog", max_length=np.int64(3)).tokens == model.trace("a dog", max_length=3).tokens
    assert len(pellucid.pipeline("text-ranking", model)("a", ["b", "c"], top_k=whole)) == 1
    assert len(pellucid.pipeline("text-ranking", model, top_k=whole)("a", ["b", "c"])) == 1
    sampled = [
        writer.generate("a", do_sample=True, max_new_tokens=count, temperature=temperature, seed=count)
        for count, temperature in ((np.int64(2), fraction), (2, 0.5))
    ]
    assert sampled[0] == sampled[1]
    assert len(index.search("dog", whole)) == 1 and index.curve(["dog"], whole, efSearch=np.array([16])).k == 1
    assert list(index.evaluate(["dog"], ["1"], k=np.array([1, 2])).recall) == [1, 2]
    assert list(index.evaluate(["dog"], ["1"], k=whole).recall) == [1]
    numpy_index = pellucid.Index.build(
        index.loaded, ["a"], tmp_path / "kept", M=np.int64(8), passage_tokens=np.int64(16)
    )
    assert len(numpy_index) == 1 and pellucid.Index.open(numpy_index.folder).manifest.settings.M == 8
    ids = torch.tensor([[1, 2, 3]])
    assert writer.module(ids, cache=writer.module.new_cache(np.int64(3)), logits_to_keep=whole).logits.shape[1] == 1
    assert model.tokenizer is not None
    reader = model.tokenizer
    for truncation in (True, "only_first"):
        read = [reader("a dog", padding="max_length", truncation=truncation, max_length=n) for n in (np.int64(9), 9)]
        assert read[0] == read[1]
    assert reader.encode(["a dog sleeps"], max_length=np.int64(4)) == reader.encode(["a dog sleeps"], max_length=4)
    first, second, *_ = windows(reader, "a dog " * 9, rule="windows", max_length=np.int64(4), stride=whole)
    assert len(first.ids) == 4 and first.ids[2] == second.ids[1]
    tokenizer = compat.AutoTokenizer.from_pretrained(checkpoint("bert-body"), model_max_length=np.int64(4))
    tokenizer.pad_token_id = np.int64(7)
    assert tokenizer.pad_token_id == 7
    assert tokenizer.model_max_length == len(tokenizer("a dog sleeps", truncation=True).input_ids) == 4
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    assert compat.AutoTokenizer.from_pretrained(tmp_path / "tokenizer").model_max_length == 4


def test_config_may_be_of_numpy_numbers_and_is_saved(tmp_path: Path) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 8, "max_position_embeddings": 9, "num_key_value_heads": 1, "pad_token_id": 1}
    ends = (np.int64(3), 4)
    config = pellucid.Config.of("llama", **{name: np.int64(size) for name, size in sizes.items()}, eos_token_id=ends)
    assert config == pellucid.Config.of("llama", **sizes, eos_token_id=(3, 4))
    pellucid.build(config, seed=np.int64(1)).save(tmp_path / "saved")
    assert pellucid.load(tmp_path / "saved").config == config


@pytest.mark.parametrize(
    "part",
    [
        Attention(sliding_window=3),
        DecoderSide(decoder_start_token_id=0),
        Learned(9),
        Llama3Scaling(),
        RelativeBias(),
        Rotary(),
        Sinusoidal(9),
    ],
    ids=lambda part: type(part).__name__,
)
def test_part_of_a_config_stores_numbers_of_numpy_as_plain_ones(part: Any) -> None:
    integers = {name: np.int64(value) for name, value in vars(part).items() if type(value) is int}
    found = dataclasses.replace(part, **integers)
    assert integers and all(type(getattr(found, name)) is int for name in integers)


def test_counts_of_explanations_may_be_of_numpy(checkpoint: Checkpoint) -> None:
    two = np.int64(2)
    classifier, writer = pellucid.load(checkpoint("bert-feelings")), pellucid.load(checkpoint("gpt2"))
    assert writer.explain.logit_lens("a dog", k=two).ids.shape[-1] == 2
    assert len(writer.explain.direct_logit_attribution("a dog", 5).strongest(two)) == 2
    assert len(classifier.explain.gradient_x_input("a dog").strongest(two)) == 2
    assert len(classifier.explain.head_scores().strongest("previous", two)) == 2
    assert len(classifier.trace("a dog sleeps").strongest(0, 0, two)) == 2


def test_values_that_only_resemble_numbers_are_refused(checkpoint: Checkpoint) -> None:
    writer, tokenizer = pellucid.load(checkpoint("gpt2")), pellucid.load(checkpoint("bert-body")).tokenizer
    for value in (b"ab", "", bytearray(b"a"), [True]):
        assert_refused(r"^stop_token_ids(\[0\])? is ", lambda: writer.generate("a", stop_token_ids=value))  # noqa: B023
    assert tokenizer is not None
    booleans = (torch.tensor([True, False]), np.array([True]), [True], (5, False), [torch.tensor(True)], [np.True_])
    for ids in (*booleans, b"a", bytearray(b"a"), "", "5"):
        for decode in (tokenizer.decode, tokenizer.convert_ids_to_tokens):
            assert_refused("^the ids are .*, expected the ids of tokens: whole", lambda: decode(ids))  # noqa: B023
    for ids in ([5], torch.tensor([5]), np.array([5]), iter([5]), [np.int32(5)], range(5, 6)):
        assert tokenizer.decode(ids) == tokenizer.decode([5])
    explain = pellucid.load(checkpoint("bert-body")).explain
    for value in (True, np.False_, "0.5", float("nan")):
        assert_refused(
            "^residual is .*, expected (a|at least 0)",
            lambda: explain.attention_rollout("a", residual=value),  # noqa: B023
        )
    assert torch.equal(explain.attention_rollout("a", residual=np.float32(0.5)), explain.attention_rollout("a"))


@pytest.mark.parametrize("seed", ["abc", None, 2.5, -1, 2**32, 2**64, True, np.arange(2)], ids=repr)
def test_set_seed_checks_the_seed(seed: Any) -> None:
    before = torch.random.get_rng_state()
    assert_refused("^seed is .*, expected a whole number from 0 to 4,294,967,295$", lambda: compat.set_seed(seed))
    assert torch.equal(torch.random.get_rng_state(), before)
    compat.set_seed(np.int64(2))


def test_rows_that_contain_themselves_are_refused(checkpoint: Checkpoint) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    lists, mapping = list[Any](), dict[str, Any]()
    lists.append(lists)
    mapping["a"] = mapping
    for inner in (lists, mapping):
        for row in ({"text": inner, "label": "a"}, {"text": "a", "label": inner}):
            assert_refused(
                "^row 1 holds a list that contains itself",
                lambda: pellucid.train(model, [{"text": "b", "label": "b"}, row], "classify"),  # noqa: B023
            )


def test_long_values_are_shortened_in_errors(checkpoint: Checkpoint) -> None:
    model, writer = pellucid.load(checkpoint("bert-body")), pellucid.load(checkpoint("gpt2"))
    long_text, long_list = "x" * 100_000, list(range(3_000))
    rows, explain = [{"text": "a", "label": "a"}] * 4, writer.explain
    calls: list[Callable[[], Any]] = [
        lambda: model.freeze(long_text),
        lambda: model.unfreeze(long_text),
        lambda: pellucid.load(checkpoint("bert-body"), head=long_text),
        lambda: model.config.replace(**{long_text: 1}),
        lambda: model.trace("a", keep="pooled")[long_text],
        lambda: model.points()[long_text],
        lambda: pellucid.pipeline(long_text),
        lambda: pellucid.train(model, rows, "classify", columns={"text": long_text}),
        lambda: pellucid.train(model, rows, "classify", **{long_text: 1}),
        lambda: writer.generate("a", **{long_text: 1}),
        lambda: writer.generate("a", length_penalty=long_list),
        lambda: writer.generate("a", early_stopping=long_list),
        lambda: writer.generate("a", num_return_sequences=long_list),
        lambda: explain.direct_logit_attribution("a", long_text),
        lambda: explain.direct_logit_attribution("a", "a", position=long_list),
        lambda: explain.integrated_gradients("a", steps=long_list),
        lambda: explain.logit_lens("a", k=long_list),
        lambda: model.explain.attention_rollout("a", residual=long_list),
        lambda: Pooling(modes=(long_text,)),
        lambda: ZeroShotClassification(hypothesis_template=long_text),
        lambda: FillMask(targets=[long_text, 3]),  # type: ignore[list-item]
        lambda: TextClassification(class_weights=long_text),  # type: ignore[arg-type]
        lambda: TextClassification(classes=(long_text,)),
        lambda: train_tokenizer(None, "bpe", texts=["a"], extra_tokens=long_text),
        lambda: train_tokenizer(None, "bpe", texts=["a"], special_tokens={"unk": long_list}),  # type: ignore[dict-item]
    ]
    for call in calls:
        with pytest.raises(InputError) as error:
            call()
        assert len(str(error.value)) < 1_000


def test_tokenizer_and_pipeline_refuse_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    model = pellucid.load(checkpoint("bert-body"))
    tokenizer, messages = model.loaded.required_tokenizer, [{"role": "user", "content": "x"}]
    for name in ("max_length", "add_special_tokens", "parse_special_tokens"):
        assert_refused(f"^{name} is", lambda: tokenizer.encode(["a"], **{name: odd}))  # noqa: B023
    for name in ("chat_template", "tokenize", "add_generation_prompt", "continue_final_message"):
        options = {"chat_template": "{{ 1 }}", name: odd}
        assert_refused(f"^{name} is", lambda: tokenizer.apply_chat_template(messages, **options))  # noqa: B023
    if odd is not ODD["texts"]:  # an array of two texts
        assert_refused("text", lambda: tokenizer.encode(odd))
        assert_refused("^tokens is", lambda: tokenizer.convert_tokens_to_string(odd))
        assert_refused("^extra_tokens is", lambda: pellucid.train_tokenizer(texts=["a"], extra_tokens=odd))
    assert_refused("^model is", lambda: pellucid.pipeline("feature-extraction", model).on(odd))
    assert_refused("^unknown family", lambda: pellucid.Config.of(odd))


def test_train_tokenizer_refuses_odd_values(odd: Any) -> None:
    if odd is not ODD["texts"]:  # an array of two names
        assert_refused("^files", lambda: pellucid.train_tokenizer(odd))
        assert_refused("^column is", lambda: pellucid.train_tokenizer("rows.csv", column=odd))


def test_view_refuses_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    trace = pellucid.load(checkpoint("bert-body")).trace("A dog sleeps.")
    for name in ("layer", "budget_mb", "show", "theme", "precision"):
        assert_refused(name, lambda: pellucid.view(trace, **{name: odd}))  # noqa: B023
    page = pellucid.view(trace)
    for name in ("view", "layer", "theme", "side", "threshold", "scale"):
        assert_refused(name, lambda: page.svg("a.svg", **{name: odd}))  # noqa: B023
    for one in (1.5, [True], [0.5], ["a"], b"ab") if odd is ODD["array"] or odd is ODD["tensor"] else (odd,):
        assert_refused("head", lambda: page.svg("a.svg", heads=one))  # noqa: B023
    assert_refused("trace has no" if odd is ODD["texts"] else "tensors", lambda: pellucid.view(trace, tensors=odd))
    assert_refused("a trace", lambda: pellucid.view(trace, odd))
    if odd is not ODD["array"] and odd is not ODD["tensor"]:
        assert_refused("heads", lambda: pellucid.view(trace, heads=odd))
        assert_refused("include_layers", lambda: pellucid.view(trace, include_layers=odd))
    wrong = [("heads", one) for one in ([True], [0.0], torch.arange(2) > 0)]
    for name, arguments in (("layer", True), ("include_layers", [False]), *wrong):
        assert_refused(name, lambda: pellucid.view(trace, **{name: arguments}))  # noqa: B023
    weights = trace["layers.0.attention.weights"]
    arguments = {"attention": [weights], "tokens": trace.tokens}
    if odd is not ODD["number"]:  # a single integer
        assert_refused("token", lambda: page.svg("a.svg", token=odd))
        assert_refused("sentence_b_start", lambda: pellucid.view(**arguments, sentence_b_start=odd))
    for name in ("layer", "token"):
        assert_refused(f"{name} is True, expected", lambda: page.svg("a.svg", **{name: True}))  # noqa: B023
    assert_refused("attention", lambda: pellucid.view(attention=odd, tokens=trace.tokens))
    if odd is not ODD["texts"]:
        assert_refused("tokens", lambda: pellucid.view(attention=[weights], tokens=odd))
    assert pellucid.view(trace, layer=np.int64(1), heads=np.arange(2), include_layers=torch.tensor([1])).data.manifest
    assert_refused("log|step", lambda: pellucid.curves(odd)) if odd is ODD["number"] or odd is ODD["NA"] else None


def test_explanations_and_traces_refuse_odd_values(checkpoint: Checkpoint, odd: Any) -> None:
    classifier, writer = pellucid.load(checkpoint("bert-feelings")), pellucid.load(checkpoint("gpt2"))
    trace = classifier.trace("A dog sleeps.")
    assert_refused("target", lambda: classifier.explain.gradient_x_input("a", odd))
    assert_refused("^k is", lambda: writer.explain.logit_lens("a", k=odd))
    for name in ("edit", "point", "over"):
        assert_refused(name, lambda: writer.sweep("a", lambda output: output["logits"].sum(), **{name: odd}))  # noqa: B023
    if odd is not ODD["texts"]:  # two words
        assert_refused("metric|token|string", lambda: writer.sweep("a", odd))
    assert_refused("seed", lambda: pellucid.build(classifier.config, seed=odd))
    assert_refused("config", lambda: pellucid.build(odd))
    assert_refused("most", lambda: trace.strongest(0, 0, odd))
    if odd is not ODD["number"]:  # a single integer
        assert_refused("row", lambda: trace.row(odd))
        assert_refused("head", lambda: trace.strongest(0, odd))
    assert_refused("head 77 is not there", lambda: trace.strongest(0, 77))


def test_paths_refuse_odd_values(checkpoint: Checkpoint, index: pellucid.Index, odd: Any) -> None:
    model, rows = pellucid.load(checkpoint("bert-body")), [{"text": "a", "label": "x"}]
    trace = model.trace("A dog sleeps.")
    for call in (
        model.save, trace.save, pellucid.view(trace).save, pellucid.open_trace, index.save, pellucid.Index.open,
        lambda out: pellucid.Index.build(model, ["a"], out),
        lambda out: pellucid.train(model, rows, "classify", out=out),
        lambda recipe: pellucid.train(recipe=recipe),
    ):  # fmt: skip
        assert_refused("expected the path of a file or folder", lambda: call(odd))  # noqa: B023
    assert_refused("encoding", lambda: pellucid.train(model, rows, "classify", encoding=odd))
    assert_refused("pattern|parameter", lambda: model.freeze(odd))


class PathLike:
    """A path-like object around any value."""

    def __init__(self, name: Any) -> None:
        self.name = name

    def __fspath__(self) -> Any:
        return self.name


def _path_forms(path: Path) -> list[Any]:
    """A path in other forms: as bytes, and as the value of an Enum, whose `str` is its name."""
    return [PathLike(bytes(path)), PathLike(str(path)), enum.Enum("Kept", {"FOLDER": str(path)}, type=str).FOLDER]


def test_path_like_objects_of_every_form_are_accepted(
    checkpoint: Checkpoint, index: pellucid.Index, tmp_path: Path
) -> None:
    model, rows = pellucid.load(checkpoint("bert-body")), [{"text": t, "label": t} for t in "abab"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = {"max_steps": 1, "batch_size": 2, "validation": 0, "progress": False}
    for i, path_form in enumerate(_path_forms(tmp_path / "model")):
        assert model.save(path_form, overwrite=i > 0) == tmp_path / "model"
        assert pellucid.load(path_form).config == model.config
        assert compat.AutoTokenizer.from_pretrained(path_form).name_or_path == str(tmp_path / "model")
    for i, (path_form, data) in enumerate(zip(_path_forms(tmp_path / "learned"), _path_forms(tmp_path / "rows.jsonl"))):
        pellucid.train(model, data, "classify", out=path_form, overwrite=i > 0, **settings)
        assert (tmp_path / "learned" / "config.json").is_file() and pellucid.curves(path_form).text()
    for path_form in _path_forms(tmp_path / "rows.jsonl"):
        assert len(pellucid.Index.build(model, path_form, column="text", progress=False)) == 4
    for i, path_form in enumerate(_path_forms(tmp_path / "index")):
        assert index.save(path := path_form if i == 0 else PathLike(f"{tmp_path / 'index'}{i}"))
        assert len(pellucid.Index.open(path)) == 2
    trace = model.trace("A dog sleeps.", keep="pooled")
    assert all(trace.save(path_form) == tmp_path / "a.trace" for path_form in _path_forms(tmp_path / "a.trace"))
    assert sorted(one.name for one in tmp_path.iterdir()) == [
        "a.trace", "index", "index1", "index2", "learned", "model", "rows.jsonl",
    ]  # fmt: skip
    for call in (model.save, pellucid.load, index.save, pellucid.Index.open, pellucid.curves):
        assert_refused("is a path that cannot be made a text", lambda: call(PathLike(5)))  # noqa: B023


def test_index_expands_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, index: pellucid.Index) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert index.save("~/kept") == tmp_path / "kept" and len(pellucid.Index.open("~/kept")) == 2
    assert pellucid.Index.build(index.loaded, ["a dog"], "~/made").folder == tmp_path / "made"


@pytest.mark.parametrize("flag", ["no", "false", 1, 0, None, np.array(True)])
def test_overwrite_accepts_only_true(checkpoint: Checkpoint, tmp_path: Path, flag: Any) -> None:
    model, existing_file = pellucid.load(checkpoint("bert-feelings")), tmp_path / "kept" / "notes.txt"
    existing_file.parent.mkdir()
    existing_file.write_text("mine")
    assert_refused("overwrite", lambda: model.save(existing_file.parent, overwrite=flag))
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert_refused(
        "overwrite", lambda: pellucid.train(model, rows, "classify", out=existing_file.parent, overwrite=flag)
    )
    assert existing_file.read_text() == "mine" and list(existing_file.parent.iterdir()) == [existing_file]
