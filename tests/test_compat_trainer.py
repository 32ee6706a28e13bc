"""The reference's Trainer on our models: the same losses, weights and folders as with its own models, step by step."""

import copy
import io
import random
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import transformers

import pellucid
from pellucid import compat
from tests.checkpoints import peft_files
from tests.parity import tiny
from tests.test_compat_auto import CASES, SMALL_SIZES, TOKENIZERS, our_model, reference_model

pytestmark = pytest.mark.filterwarnings("ignore")
WITHOUT_DROPOUT: dict[str, dict[str, float]] = {
    **{family: {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} for family in ("bert", "roberta")},
    **{family: {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0} for family in ("mpnet", "albert")},
    "distilbert": {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0, "qa_dropout": 0.0},
    "gpt2": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "bart": {"dropout": 0.0},
    "t5": {"dropout_rate": 0.0},
}
WITHOUT_DROPOUT["albert"]["classifier_dropout_prob"] = 0.0
CASES_WITH_LABELS = [
    (family, task) for family, task in CASES if task and (family, task) != ("bart", "SequenceClassification")
]


def both_models(family: str, task: str, folder: Path, **facts: Any) -> tuple[Any, Any]:
    """Our model and the reference's with the same weights and without dropout."""
    pad = {"pad_token_id": 1} if family == "mpnet" else {}
    theirs = reference_model(family, task, folder, **WITHOUT_DROPOUT.get(family, {}) | pad | facts)
    return our_model(task, folder), theirs


def rows_of(task: str, count: int = 18) -> list[dict[str, Any]]:
    """Texts of several lengths, with labels of which some are ignored."""
    generator, rows = random.Random(3), []
    for _ in range(count):
        ids = [generator.randint(3, 89) for _ in range(generator.randint(4, 9))]
        row: dict[str, Any] = {"input_ids": ids, "attention_mask": [1] * len(ids)}
        if task == "QuestionAnswering":
            row |= {"start_positions": generator.randrange(4), "end_positions": generator.randrange(4)}
        elif task == "SequenceClassification":
            row["labels"] = generator.randrange(3)
        else:
            row["labels"] = [(i % 3 if task[0] == "T" else i) if generator.random() < 0.7 else -100 for i in ids]
        rows.append(row)
    return rows


def collate(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = {}
    for name in rows[0]:
        column, fill = [row[name] for row in rows], -100 if name == "labels" else 0
        if isinstance(column[0], list):
            longest = max(map(len, column))
            column = [row + [fill] * (longest - len(row)) for row in column]
        batch[name] = torch.tensor(column)
    return batch


def short_training(model: Any, folder: Path, rows: list[dict[str, Any]], **options: Any) -> transformers.Trainer:
    """A Trainer after three steps of plain gradient descent."""
    arguments: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    arguments |= {"optim": "sgd", "learning_rate": 0.05, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    arguments |= {"max_steps": 3, "logging_steps": 1, "per_device_train_batch_size": 2, **options}
    training_arguments = transformers.TrainingArguments(str(folder), **arguments)
    trainer = transformers.Trainer(model, training_arguments, collate, rows, rows[:5])
    trainer.train()
    return trainer


def losses(trainer: transformers.Trainer) -> list[float]:
    return [one["loss"] for one in trainer.state.log_history if "loss" in one] + [trainer.evaluate()["eval_loss"]]


@pytest.mark.parametrize(("family", "task"), CASES_WITH_LABELS)
def test_every_step_matches_the_reference(family: str, task: str, tmp_path: Path) -> None:
    """Also with gradient accumulation: the mean is over all labels of a step, whatever the lengths of its batches.

    For most heads the reference omits the division by the number of batches, so it takes its step in one batch.
    """
    facts: dict[str, Any] = {"pad_token_id": None} if family == "gpt2" else {}  # no padding row without gradient
    one, theirs = both_models(family, task, tmp_path / "one", **facts)
    theirs.config.pad_token_id = 0
    for part in (*one.modules(), *theirs.modules()):
        if isinstance(part, torch.nn.Dropout):  # decoders that label tokens have no key for this dropout
            part.p = 0.0
    accumulated_model = copy.deepcopy(one)
    rows = rows_of(task)
    trainer = short_training(one, tmp_path / "out", rows, per_device_train_batch_size=6)
    reference_trainer = short_training(theirs, tmp_path / "out", rows, per_device_train_batch_size=6)
    if (family, task) != ("gpt2", "CausalLM"):  # it counts each text's first label, which nothing predicts
        assert losses(trainer) == pytest.approx(losses(reference_trainer), abs=3e-5)
    assert [type(one) for one in trainer.predict(rows).predictions] == [
        type(one) for one in reference_trainer.predict(rows).predictions
    ]
    if task != "QuestionAnswering":  # whose labels it does not count
        accumulated = short_training(accumulated_model, tmp_path / "out", rows, gradient_accumulation_steps=3)
        assert losses(accumulated) == pytest.approx(losses(trainer), abs=3e-5)


@pytest.mark.parametrize(("family", "task"), [("llama", "CausalLM"), ("bart", "Seq2SeqLM")])
def test_peft_adapter_trains_and_generates_as_in_the_reference(family: str, task: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    task_type, found = {"CausalLM": "CAUSAL_LM", "Seq2SeqLM": "SEQ_2_SEQ_LM"}[task], []
    for model, module_name in zip(both_models(family, task, tmp_path / "one"), ("query", "q_proj")):
        adapted: Any = peft.get_peft_model(
            model, peft.LoraConfig(task_type=task_type, target_modules=[module_name], r=2)
        )
        for name, parameter in adapted.named_parameters():
            if "lora_A" in name:
                parameter.data = torch.linspace(-0.3, 0.3, parameter.numel()).view_as(parameter).clone()
        step_losses = losses(short_training(adapted, tmp_path / "out", rows_of(task), learning_rate=0.5))
        ids = adapted.eval().generate(input_ids=torch.tensor([[5, 6, 7, 8]]), max_new_tokens=4, do_sample=False)
        found.append((step_losses, ids.tolist()))
    assert found[0][0] == pytest.approx(found[1][0], abs=3e-5) and found[0][1] == found[1][1]


def test_prepare_inputs_for_generation_is_only_on_generators(tmp_path: Path) -> None:
    reference_model("bert", "", tmp_path / "one")
    assert not hasattr(our_model("", tmp_path / "one"), "prepare_inputs_for_generation")
    reference_model("gpt2", "CausalLM", tmp_path / "two")
    with pytest.raises(pellucid.InputError, match="generate has its own loop here, and nothing prepares its inputs"):
        our_model("CausalLM", tmp_path / "two").prepare_inputs_for_generation(torch.tensor([[5]]))


@pytest.mark.parametrize(("family", "task"), [("gpt2", "CausalLM"), ("bert", "MaskedLM"), ("t5", "Seq2SeqLM")])
def test_checkpoints_of_the_trainer_can_be_loaded_again(family: str, task: str, tmp_path: Path) -> None:
    """Trainer saves a state dict with safetensors, which refuses a tensor with two names: saving used to fail there."""
    model, _ = both_models(family, task, tmp_path / "one")
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    trainer = short_training(model, tmp_path / "out", rows_of(task), **options, load_best_model_at_end=True)
    best = min(one["eval_loss"] for one in trainer.state.log_history if "eval_loss" in one)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, abs=1e-6)
    again, saved_state = (
        our_model(task, tmp_path / "one"),
        torch.load(io.BytesIO(serialized(model.state_dict())), weights_only=True),
    )
    expected_state = {name: one.detach().clone() for name, one in model.named_parameters(remove_duplicate=False)}
    for state_dict in (saved_state, expected_state):  # each tensor once, and under every name
        for parameter in again.parameters():
            parameter.data.zero_()
        again.load_state_dict(state_dict)
        assert all(
            torch.equal(one, expected_state[name]) for name, one in again.named_parameters(remove_duplicate=False)
        )
    del saved_state[next(iter(saved_state))]
    with pytest.raises(RuntimeError, match="Missing key"):
        again.load_state_dict(saved_state)


@pytest.mark.parametrize(("family", "task"), [("gpt2", "CausalLM"), ("bert", "SequenceClassification")])
def test_state_dict_saved_by_the_trainer_is_explained(family: str, task: str, tmp_path: Path) -> None:
    """For modules that are not its own, Trainer saves a state dict and no config."""
    model, theirs = both_models(family, task, tmp_path / "one", pad_token_id=0)
    rows, options = rows_of(task), {"save_strategy": "steps", "save_steps": 1}
    trainer = short_training(model, tmp_path / "out", rows, **options)
    trainer.save_model(str(tmp_path / "two"))
    with pytest.raises(
        pellucid.InputError, match=r"config.json is missing: of a model of pellucid.compat, .* save_pret"
    ):
        pellucid.load(tmp_path / "two")
    shutil.copy(tmp_path / "one" / "config.json", tmp_path / "two")
    with pytest.raises(pellucid.CheckpointMismatchError, match=r"unexpected tensors \(network\..*: a state dict of"):
        pellucid.load(tmp_path / "two")
    trainer.model.save_pretrained(tmp_path / "three")
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8, 2]])}
    expected = model.eval()(**inputs)[0]
    torch.testing.assert_close(pellucid.load(tmp_path / "three")(**inputs).logits, expected, rtol=0, atol=1e-4)
    again = type(theirs).from_pretrained(tmp_path / "three", attn_implementation="eager")
    torch.testing.assert_close(again(**inputs)[0], expected, rtol=0, atol=1e-4)
    resumed_model = our_model(task, tmp_path / "one")
    resumed = short_training(resumed_model, tmp_path / "other", rows, max_steps=1)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")).global_step == 3
    for name, one in resumed_model.state_dict().items():  # as in an uninterrupted training
        torch.testing.assert_close(one, model.state_dict()[name], rtol=0, atol=1e-5)


class WithTopLayer(compat.BertModel):
    """A derived class with a layer that no file of its family contains."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.top = torch.nn.Linear(24, 3)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **options: Any) -> Any:
        logits = self.top(super().forward(input_ids, attention_mask).last_hidden_state[:, 0])
        loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
        return {"logits": logits} if loss is None else {"loss": loss, "logits": logits}


def test_layer_of_a_subclass_is_in_every_checkpoint(tmp_path: Path) -> None:
    both_models("bert", "SequenceClassification", tmp_path / "one")
    config, rows = compat.AutoConfig.from_pretrained(tmp_path / "one"), rows_of("SequenceClassification")
    model = WithTopLayer(config)
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1}
    trainer = short_training(model, tmp_path / "out", rows, **options, load_best_model_at_end=True, learning_rate=2.0)
    best = min(one["eval_loss"] for one in trainer.state.log_history if "eval_loss" in one)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, abs=1e-6)
    saved = safetensors.torch.load_file(tmp_path / "out" / "checkpoint-3" / "model.safetensors")
    assert {"top.weight", "top.bias"} < saved.keys()
    with pytest.raises(
        pellucid.InputError, match=r"^this WithTopLayer has numbers .* \(top.weight, top.bias\): keep state_dict"
    ):
        model.save_pretrained(tmp_path / "two")
    assert not (tmp_path / "two").exists()
    resumed = short_training(WithTopLayer(config), tmp_path / "other", rows, max_steps=1, learning_rate=2.0)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")).global_step == 3
    for name, one in resumed.model.state_dict().items():  # as in an uninterrupted training
        torch.testing.assert_close(one, saved[name], rtol=0, atol=1e-5)


CHANGED_LAYERS = [
    ("bert", "SequenceClassification", lambda: torch.nn.Sequential(torch.nn.Dropout(0.1), torch.nn.Linear(24, 3))),
    ("gpt2", "CausalLM", lambda: torch.nn.Linear(24, 90, bias=False)),
    ("llama", "SequenceClassification", lambda: torch.nn.Linear(24, 3, bias=True)),
]


@pytest.mark.parametrize(("family", "task", "part"), CHANGED_LAYERS)
def test_changed_network_is_saved_as_state_dict(family: str, task: str, part: Any, tmp_path: Path) -> None:
    """As for any module; this used to abort the training."""

    def changed_model() -> Any:
        model, _ = both_models(family, task, tmp_path / "one", pad_token_id=0)
        name_of_layer = "decoder" if task == "CausalLM" else "classifier"
        setattr(model.network.head, name_of_layer, part())
        return model

    model, rows = changed_model(), rows_of(task)
    short_training(model, tmp_path / "out", rows, save_strategy="steps", save_steps=1)
    saved = safetensors.torch.load_file(tmp_path / "out" / "checkpoint-3" / "model.safetensors")
    assert saved.keys() == model.state_dict().keys()
    assert all(torch.equal(one, saved[name]) for name, one in model.state_dict().items())
    resumed = short_training(changed_model(), tmp_path / "other", rows, max_steps=1)
    assert resumed.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-2")).global_step == 3
    for name, one in resumed.model.state_dict().items():
        torch.testing.assert_close(one, saved[name], rtol=0, atol=1e-5)
    with pytest.raises(pellucid.InputError, match=r"^this model cannot be saved"):
        model.save_pretrained(tmp_path / "two")


def test_reference_pipeline_generates_with_our_model(tmp_path: Path) -> None:
    model, theirs = both_models("llama", "CausalLM", tmp_path / "one", vocab_size=600)
    tokenizer = transformers.AutoTokenizer.from_pretrained(TOKENIZERS / "gpt2")
    found, expected = (
        transformers.pipeline("text-generation", model=one, tokenizer=tokenizer)(
            "it is", max_new_tokens=4, do_sample=False
        )
        for one in (model, theirs)
    )
    assert found == expected


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"target_modules": ["token"]}, "embeddings.token is a Embedding"),
        ({"target_modules": ["query"], "modules_to_save": ["head"]}, "head is a ModulesToSaveWrapper"),
    ],
)
def test_peft_adapter_on_unsupported_modules_is_refused(options: dict[str, Any], path: str, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model, _ = both_models("bert", "SequenceClassification", tmp_path / "one")
    adapted: Any = peft.get_peft_model(model, peft.LoraConfig(r=2, **options))
    with pytest.raises(pellucid.InputError, match=f"^{path} of PEFT, .* put adapters on linear layers alone"):
        adapted(input_ids=torch.tensor([[5, 6]]))


@pytest.mark.parametrize(
    ("family", "task", "targets"),
    [
        ("bert", "SequenceClassification", ["query", "value"]),
        ("bert", "SequenceClassification", "all-linear"),
        ("gpt2", "CausalLM", ["query", "value", "up"]),
        ("llama", "CausalLM", "all-linear"),
        ("t5", "Seq2SeqLM", ["key", "down"]),
    ],
)
def test_peft_adapter_over_our_model_can_be_opened(family: str, task: str, targets: Any, tmp_path: Path) -> None:
    """For GPT-2, whose files join query, key and value in one matrix, the adapter trains two of the three."""
    peft = pytest.importorskip("peft")
    task_types = {"SequenceClassification": "SEQ_CLS", "CausalLM": "CAUSAL_LM"}
    both_models(family, task, tmp_path / "one")
    config = peft.LoraConfig(task_type=task_types.get(task, "SEQ_2_SEQ_LM"), target_modules=targets, r=2)
    adapted: Any = peft.get_peft_model(our_model(task, tmp_path / "one"), config)
    assert config.base_model_name_or_path == str(tmp_path / "one")
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(tmp_path / "two")
    inputs = {"input_ids": torch.tensor([[5, 6, 7, 8]])}
    inputs |= {"decoder_input_ids": torch.tensor([[4, 9]])} if task == "Seq2SeqLM" else {}
    found, plain = pellucid.load(tmp_path / "two"), pellucid.load(tmp_path / "one")(**inputs).logits
    torch.testing.assert_close(found(**inputs).logits, adapted.eval()(**inputs).logits, rtol=0, atol=1e-4)
    assert (found(**inputs).logits - plain).abs().max() > 1e-2


@pytest.mark.parametrize("family", ["roberta", "distilbert", "xlm-roberta", "camembert", "mpnet", "bart", "bert"])
def test_new_head_is_trained_with_a_peft_adapter(family: str, tmp_path: Path) -> None:
    """PEFT recognizes a head by the endings of its names; half of one stayed random, and was saved nowhere."""
    peft = pytest.importorskip("peft")
    base = tiny.write(f"{family}-body", tmp_path / "one")
    config = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"], r=2)

    def base_model() -> Any:
        return compat.AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)

    adapted: Any = peft.get_peft_model(base_model(), config).train()
    trained_names = {name for name, one in adapted.named_parameters() if one.requires_grad and "lora_" not in name}
    parts = {name.split(".head.")[1].split(".")[0] for name in trained_names}
    assert parts == ({"classifier"} if family == "bert" else {"pre_classifier", "classifier"})
    inputs = {"input_ids": torch.tensor([[0, 5, 6, 7, 2]])}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapted(**inputs, labels=torch.tensor([2])).loss.backward()
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data.add_(torch.randn_like(parameter) * 0.2)
    adapted.save_pretrained(tmp_path / "two")
    expected = adapted.eval()(**inputs).logits
    compat_model = compat.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    peft_model = peft.PeftModel.from_pretrained(base_model(), tmp_path / "two").eval()
    for found in (pellucid.load(tmp_path / "two"), compat_model, peft_model):
        torch.testing.assert_close(found(**inputs).logits, expected, rtol=0, atol=1e-4)


def test_head_of_a_reference_adapter_is_loaded(tmp_path: Path) -> None:
    base = tiny.write("roberta-body", tmp_path / "one")
    theirs = peft_files.write_adapter(base, tmp_path / "two", "sequence-classification", labels=3)
    inputs = {"input_ids": torch.tensor([[0, 5, 6, 7, 2]])}
    found = compat.AutoModelForSequenceClassification.from_pretrained(tmp_path / "two")
    torch.testing.assert_close(found(**inputs).logits, theirs(**inputs).logits, rtol=0, atol=1e-4)


def test_untrained_new_head_is_reported(tmp_path: Path) -> None:
    """PEFT looks for `qa_outputs`, and what the warning says to pass makes the adapter one that opens."""
    peft = pytest.importorskip("peft")
    base = tiny.write("bert-body", tmp_path / "one")
    inputs: dict[str, Any] = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]])}
    positions = {name: torch.tensor([1]) for name in ("start_positions", "end_positions")}

    def adapted(**options: Any) -> Any:
        model = compat.AutoModelForQuestionAnswering.from_pretrained(base)
        config = peft.LoraConfig(task_type="QUESTION_ANS", target_modules=["query"], r=2, **options)
        return peft.get_peft_model(model, config).train()

    with pytest.warns(
        UserWarning, match=r"^the random weights of head\.classifier are .*to_save=\['head.classifier'\]"
    ):
        adapted()(**inputs, **positions)
    model = adapted(modules_to_save=["head.classifier"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model(**inputs, **positions)
        adapted().eval()(**inputs, **positions)
    model.save_pretrained(tmp_path / "two")
    expected = model.eval()(**inputs).start_logits
    torch.testing.assert_close(pellucid.load(tmp_path / "two")(**inputs).logits[..., 0], expected, rtol=0, atol=1e-4)


def test_fully_trained_part_of_a_joined_matrix_is_refused(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    both_models("gpt2", "CausalLM", tmp_path / "one")
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules=["up"], modules_to_save=["query"], r=2)
    peft.get_peft_model(our_model("CausalLM", tmp_path / "one"), config).save_pretrained(tmp_path / "two")
    with pytest.raises(
        pellucid.errors.CheckpointMismatchError, match=r"query.* take merge_and_unload\(\) of the model"
    ):
        pellucid.load(tmp_path / "two")


def serialized(state: Any) -> bytes:
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


@pytest.mark.parametrize("kind", ["regression", "single_label_classification", "multi_label_classification"])
def test_problem_type_is_inferred_and_saved(kind: str, tmp_path: Path) -> None:
    """A folder without `problem_type` would be answered with another activation."""
    count = 1 if kind == "regression" else 3
    theirs = transformers.BertForSequenceClassification(
        transformers.BertConfig(**SMALL_SIZES, vocab_size=600, num_labels=count)
    )
    theirs.eval().save_pretrained(tmp_path / "one")
    model = our_model("SequenceClassification", tmp_path / "one")
    labels = {"regression": torch.tensor([0.5, -1.0]), "single_label_classification": torch.tensor([2, 0])}
    batch = {"input_ids": torch.tensor([[5, 9], [7, 3]]), "labels": labels.get(kind, torch.eye(3)[:2])}
    assert torch.equal(model(**batch).loss, theirs(**batch).loss)
    assert model.config.problem_type == theirs.config.problem_type == kind
    for one, name in ((model, "ours"), (theirs, "theirs")):
        shutil.copytree(TOKENIZERS / "bert", tmp_path / name)
        one.save_pretrained(tmp_path / name)
    texts = ["a", "so it is"]
    found, expected = (
        compat.pipeline("text-classification", model=tmp_path / name, top_k=None)(texts) for name in ("ours", "theirs")
    )
    assert found == expected


def test_reference_trainer_trains_our_model(tmp_path: Path) -> None:
    reference_model("bert", "SequenceClassification", tmp_path / "one")
    model = our_model("SequenceClassification", tmp_path / "one")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "one")
    assert model.num_parameters(exclude_embeddings=True) == theirs.num_parameters(exclude_embeddings=True)
    before = [one.detach().clone() for one in model.parameters()]
    arguments = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True, save_strategy="no"
    )
    rows = [{"input_ids": [5, 9, 14, 33, 21], "attention_mask": [1] * 5, "labels": i % 2} for i in range(16)]
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        TOKENIZERS / "bert"
    )  # Trainer requires its special tokens in the config
    result = transformers.Trainer(model=model, args=arguments, train_dataset=rows, processing_class=tokenizer).train()
    assert result.global_step == 2 and 0 < result.training_loss < 5
    assert any(not torch.equal(one, old) for one, old in zip(model.parameters(), before))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("smooth", [0.0, 0.1])
def test_seq2seq_trainer_matches_the_reference(smooth: float, tmp_path: Path) -> None:
    """With label smoothing it passes no labels to the model, whose decoder must not read the source in their place."""
    reference_model("bart", "Seq2SeqLM", tmp_path / "one", dropout=0.0, decoder_start_token_id=2)
    options: dict[str, Any] = {"use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no"}
    options |= {"label_smoothing_factor": smooth, "max_steps": 2}
    rows = [{"input_ids": [5, 9, 14, i], "attention_mask": [1] * 4, "labels": [i, 7, 8, -100]} for i in range(3, 7)]
    tokenizer = compat.AutoTokenizer.from_pretrained(TOKENIZERS / "roberta")
    found = []
    for model in (
        our_model("Seq2SeqLM", tmp_path / "one"),
        transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "one"),
    ):
        arguments = transformers.Seq2SeqTrainingArguments(str(tmp_path / "out"), **options)
        collator = transformers.DataCollatorForSeq2Seq(tokenizer, model=model)
        trainer = transformers.Seq2SeqTrainer(model=model, args=arguments, train_dataset=rows, data_collator=collator)
        loss, batch = trainer.train().training_loss, collator(copy.deepcopy(rows))
        del batch["decoder_input_ids"]
        found.append((loss, model.eval().generate(**batch, max_new_tokens=5, do_sample=False).tolist()))
    assert found[0][0] == pytest.approx(found[1][0], abs=1e-4) and found[0][1] == found[1][1]


def test_seq2seq_trainer_needs_its_own_generation_config(tmp_path: Path) -> None:
    found = []
    for model in both_models("bart", "Seq2SeqLM", tmp_path / "one", decoder_start_token_id=2, eos_token_id=2):
        options: dict[str, Any] = {
            "use_cpu": True,
            "report_to": [],
            "disable_tqdm": True,
            "predict_with_generate": True,
        }
        options |= {"generation_max_length": 9, "generation_num_beams": 2}
        rows = rows_of("Seq2SeqLM", 5)
        if not found:
            without_settings = transformers.Seq2SeqTrainingArguments(str(tmp_path / "out"), **options)
            trainer = transformers.Seq2SeqTrainer(model, without_settings, collate, eval_dataset=rows)
            with pytest.raises(AttributeError, match="Seq2SeqTrainingArguments take generation_config=transformers"):
                trainer.predict(rows)
        options |= {"generation_config": transformers.GenerationConfig.from_pretrained(tmp_path / "one")}
        arguments = transformers.Seq2SeqTrainingArguments(str(tmp_path / "out"), **options)
        found.append(transformers.Seq2SeqTrainer(model, arguments, collate).predict(rows).predictions.tolist())
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("family", "task"), [("gpt2", "CausalLM"), ("gpt2", "TokenClassification"), ("t5", "Seq2SeqLM")]
)
def test_gradient_of_the_padding_token_matches_the_reference(family: str, task: str, tmp_path: Path) -> None:
    """GPT-2 and T5 train it like any other token, since files may use the end token for padding."""
    model, theirs = both_models(family, task, tmp_path, pad_token_id=2, tie_word_embeddings=False)
    ids = torch.tensor([[5, 2, 9, 2, 7]])
    for one in (model, theirs):
        one.double()(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids % 3).loss.backward()
    gradient, expected = (one.get_input_embeddings().weight.grad[2] for one in (model, theirs))
    assert expected.abs().max() > 1e-4 and torch.allclose(gradient, expected, rtol=1e-3, atol=1e-5)
