"""An interrupted training run resumes where it was, and ends as if undisturbed, bit for bit."""

import copy
import functools
import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.checkpoints.unchanged import changed_files
from pellucid.checksummed import seal
from pellucid.errors import CorruptFileError, InputError
from pellucid.training import training_run
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.log import read_log
from pellucid.training.loop import Event
from pellucid.training.masked import FillMask
from pellucid.training.objective import Objective
from pellucid.training.settings import Settings
from pellucid.training.training_run import Result, RunStart, run_training
from tests.quick import few
from tests.training.small_runs import QUICK, Rows, file_contents, log_lines, same_weights

Sentiments = Callable[..., Rows]


class PowerCut(Exception):  # noqa: N818 - it stands for a power cut
    """Ends a training run at some step."""


def train_small(
    model: "pellucid.Model", rows: Rows, out: Path | None, objective: Objective | None = None, **options: Any
) -> Result:
    """A small run. options: arguments of `run_training`, settings, and `pause`: least seconds between saved states."""
    data = DataArguments(rows, options.pop("validation", None))
    pause = options.pop("pause", 0.0)
    run_options = ("resume", "overwrite", "on_event", "on_start", "on_saved", "progress")
    given_options = {name: options.pop(name) for name in run_options if name in options}
    objective = objective or TextClassification()
    settings = Settings.of(QUICK | options, objective.default_settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "SAVE_INTERVAL", pause)
        return run_training(model.loaded, data, objective, settings, out=out, **{"progress": False} | given_options)


def train_interrupted(*args: Any, step: int, **options: Any) -> None:
    """The same, interrupted at a step without warning."""

    def on_event(event: Event) -> None:
        if event.step == step:
            raise PowerCut

    with pytest.raises(PowerCut):
        train_small(*args, on_event=on_event, **options)


FAST_CASES = [(None, 1), (None, 5), (None, 6), (None, 8), (None, 15), (4, 3), (4, 4), (4, 9)]
SLOW_CASES = [(every, step) for every in (None, 4) for step in range(1, 16) if (every, step) not in FAST_CASES]


@pytest.mark.parametrize(
    ("every", "step"), [*FAST_CASES, *(pytest.param(*one, marks=pytest.mark.slow) for one in SLOW_CASES)]
)
def test_run_interrupted_at_any_step_resumes_bit_for_bit(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, step: int, every: int | None
) -> None:
    """Five steps an epoch, evaluations and states after each epoch or every fourth step. With dropout."""
    settings: dict[str, Any] = {"validation": sentiments(10, seed=9), "save_every": every, "evaluate_every": every}
    uninterrupted = _uninterrupted_run(body, sentiments, tmp_path, **settings)
    train_interrupted(body, sentiments(30), tmp_path / "broken", step=step, **settings)
    starts: list[RunStart] = []
    result = train_small(body, sentiments(30), tmp_path / "broken", resume=True, on_start=starts.append, **settings)
    assert starts[0].step == (step - 1) // (every or 5) * (every or 5)
    assert same_weights(result.loaded, uninterrupted.loaded)
    assert log_lines(result) == log_lines(uninterrupted) and len(result.log) > 15
    assert (result.scores, result.best_step, result.steps) == (
        uninterrupted.scores,
        uninterrupted.best_step,
        uninterrupted.steps,
    )
    assert log_lines(tmp_path / "broken" / "log.jsonl") == log_lines(uninterrupted)
    assert not (tmp_path / "broken" / "training").exists()


UNINTERRUPTED: dict[str, Result] = {}


def _uninterrupted_run(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, **options: Any) -> Result:
    """The uninterrupted run with these options."""
    key = str(sorted(options)) + str(options.get("save_every"))
    if key not in UNINTERRUPTED:
        UNINTERRUPTED[key] = train_small(body, sentiments(30), None, **options)
    return UNINTERRUPTED[key]


def test_small_run_depends_on_seed_dropout_and_learning_rate(body: "pellucid.Model", sentiments: Sentiments) -> None:
    first = train_small(body, sentiments(30), None)
    assert not same_weights(first.loaded, train_small(body, sentiments(30), None, seed=1).loaded)
    assert not same_weights(
        first.loaded, train_small(body, sentiments(30), None, dropout=0.0, attention_dropout=0.0).loaded
    )
    assert not same_weights(first.loaded, train_small(body, sentiments(30), None, learning_rate=0.0).loaded)


@pytest.mark.parametrize(
    "kind", few(["masked", "adapters", "pieces", "tokens", "bfloat16", "frozen"], ["masked", "adapters", "pieces"])
)
def test_every_kind_of_training_resumes_bit_for_bit(
    body: "pellucid.Model",
    load_tiny: Callable[..., "pellucid.Model"],
    sentiments: Sentiments,
    tmp_path: Path,
    kind: str,
) -> None:
    model, objective, settings = body, None, {"evaluate_every": 4}
    if kind == "masked":
        model, objective = load_tiny("bert-filler"), FillMask()
    settings |= {
        "adapters": {"lora": 4},
        "pieces": {"accumulation": 3},
        "tokens": {"batch_size": None, "tokens_per_batch": 64},
        "bfloat16": {"precision": "bfloat16"},
        "frozen": {"freeze": ("embeddings.*",)},
    }.get(kind, {})
    uninterrupted = train_small(model, sentiments(30), None, objective, **settings)
    for step in (3, 6, 10):
        train_interrupted(model, sentiments(30), tmp_path / "broken", objective, step=step, resume=True, **settings)
    result = train_small(model, sentiments(30), tmp_path / "broken", objective, resume=True, **settings)
    assert same_weights(result.loaded, uninterrupted.loaded) and log_lines(result) == log_lines(uninterrupted)
    assert result.scores == uninterrupted.scores


def test_patience_is_restored_on_resume(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    settings = {
        "evaluate_every": 2,
        "patience": 3,
        "epochs": 20,
        "learning_rate": 0.0,
        "validation": sentiments(10, seed=9),
    }
    uninterrupted = train_small(body, sentiments(30), None, **settings)
    assert uninterrupted.steps == 8 and uninterrupted.best_step == 2
    train_interrupted(body, sentiments(30), tmp_path / "a", step=5, **settings)
    result = train_small(body, sentiments(30), tmp_path / "a", resume=True, **settings)
    assert (result.steps, result.best_step, log_lines(result)) == (8, 2, log_lines(uninterrupted))


def test_run_killed_after_its_last_step_only_saves_its_model(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    def on_saved(out: Path, result: Result) -> None:
        raise PowerCut

    uninterrupted = train_small(body, sentiments(30), None)
    with pytest.raises(PowerCut):
        train_small(body, sentiments(30), tmp_path / "a", on_saved=on_saved)
    assert (tmp_path / "a" / "model.safetensors").is_file() and (
        tmp_path / "a" / "training" / "manifest.json"
    ).is_file()
    events: list[Event] = []
    result = train_small(body, sentiments(30), tmp_path / "a", resume=True, on_event=events.append)
    assert (
        events == []
        and same_weights(result.loaded, uninterrupted.loaded)
        and log_lines(result) == log_lines(uninterrupted)
    )
    assert same_weights(pellucid.load(tmp_path / "a").loaded, uninterrupted.loaded)


def test_resume_without_a_state_starts_from_the_beginning(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    uninterrupted = train_small(body, sentiments(30), None)
    for state in ("none", "empty", "log alone"):
        folder = tmp_path / state / "training"
        if state != "none":
            folder.mkdir(parents=True)
        if state == "log alone":
            (folder / "log.jsonl").write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "lo')
        result = train_small(body, sentiments(30), tmp_path / state, resume=state != "empty")
        assert same_weights(result.loaded, uninterrupted.loaded) and log_lines(result) == log_lines(uninterrupted)


def test_unreadable_log_line_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + "[" * 60_000 + '\n{"step": 2}\n')
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2]


# -- what cannot be resumed -------------------------------------------------------------------------------------------


@pytest.fixture
def interrupted_folder(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> Path:
    """A run of three epochs, interrupted in the second."""
    train_interrupted(body, sentiments(30), tmp_path / "half", step=8, validation=sentiments(10, seed=9))
    return tmp_path / "half"


def test_unfinished_training_is_not_overwritten(
    body: "pellucid.Model", sentiments: Sentiments, interrupted_folder: Path
) -> None:
    before = file_contents(interrupted_folder)
    with pytest.raises(
        InputError, match=r"holds a training that is not finished, 5 of 15 steps are done: continue with "
    ):
        train_small(body, sentiments(30), interrupted_folder)
    with pytest.raises(InputError, match="leave one of them out"):
        train_small(body, sentiments(30), interrupted_folder, resume=True, overwrite=True)
    assert file_contents(interrupted_folder) == before
    result = train_small(body, sentiments(24, seed=3), interrupted_folder, overwrite=True)
    assert result.steps == 12 and sorted(path.name for path in interrupted_folder.iterdir()).count("training") == 0


def test_folder_with_files_is_not_overwritten(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    train_small(body, sentiments(30), tmp_path / "a")
    for resume, reason in ((False, "already holds files"), (True, "that has ended: there is nothing to resume")):
        with pytest.raises(InputError, match=rf"{reason}[:;] choose a new folder,? or start again with overwrite=True"):
            train_small(body, sentiments(30), tmp_path / "a", resume=resume)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        train_small(body, sentiments(30), tmp_path / "file")
    with pytest.raises(InputError, match="resume needs the folder"):
        train_small(body, sentiments(30), None, resume=True)
    other = train_small(body, sentiments(24, seed=3), tmp_path / "a", overwrite=True)
    assert same_weights(pellucid.load(tmp_path / "a").loaded, other.loaded)


CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "batch": (
        {"batch_size": 5},
        r"cannot continue: batch_size was 6 and is 5; give what it started with, or start again",
    ),
    "seed": ({"seed": 1}, "seed was 0 and is 1"),
    "rate": ({"learning_rate": 0.1}, r"learning_rate was 0\.003 and is 0\.1"),
    "epochs": ({"epochs": 4}, "epochs was 3 and is 4"),
    "several": ({"seed": 1, "clip": 0.5}, r"clip was 1\.0 and is 0\.5, seed was 0 and is 1"),
    "length": ({"objective": TextClassification(max_length=20)}, "max_length was null and is 20"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_settings_are_refused_on_resume(
    body: "pellucid.Model", sentiments: Sentiments, interrupted_folder: Path, change: str
) -> None:
    before, (settings, message) = file_contents(interrupted_folder), CHANGES[change]
    with pytest.raises(InputError, match=message) as error:
        train_small(
            body, sentiments(30), interrupted_folder, resume=True, validation=sentiments(10, seed=9), **settings
        )
    assert "\n" not in str(error.value)
    assert file_contents(interrupted_folder) == before


def test_changed_model_and_data_are_refused_on_resume(
    body: "pellucid.Model", scratch: "pellucid.Model", sentiments: Sentiments, interrupted_folder: Path
) -> None:
    held_out, before = sentiments(10, seed=9), file_contents(interrupted_folder)
    other = pellucid.build(body.config, seed=8, tokenizer=body.loaded.tokenizer)
    for model in (scratch, other):
        with pytest.raises(InputError, match="cannot continue: its base model is another one; give"):
            train_small(model, sentiments(30), interrupted_folder, resume=True, validation=held_out)
    with pytest.raises(InputError, match="cannot continue: the data differ; give"):
        train_small(body, sentiments(30, seed=2), interrupted_folder, resume=True, validation=held_out)
    with pytest.raises(InputError, match="the held-out data differ"):
        train_small(body, sentiments(30), interrupted_folder, resume=True, validation=held_out[:-1])
    with pytest.raises(InputError, match='name was "text-classification" and is "fill-mask"'):
        train_small(body, sentiments(30), interrupted_folder, FillMask(), resume=True, validation=held_out)
    assert file_contents(interrupted_folder) == before


def test_changed_teacher_is_refused_on_resume(
    body: "pellucid.Model", load_tiny: Callable[..., "pellucid.Model"], sentiments: Sentiments, tmp_path: Path
) -> None:
    teacher_model, folder = load_tiny("bert-feelings"), tmp_path / "teacher"
    rows = [row | {"label": teacher_model.config.labels[i % 3]} for i, row in enumerate(sentiments(30))]
    teacher_model.save(folder)
    shutil.copytree(folder, tmp_path / "kept")
    train_interrupted(body, rows, tmp_path / "half", TextClassification(teacher=str(folder)), step=7)
    with torch.no_grad():
        next(teacher_model.loaded.module.parameters()).mul_(2.0)
    teacher_model.save(folder, overwrite=True)
    with pytest.raises(InputError, match="cannot continue: teacher was "):
        train_small(body, rows, tmp_path / "half", TextClassification(teacher=str(folder)), resume=True)
    with_copied_teacher = TextClassification(teacher=pellucid.load(tmp_path / "kept"))
    assert train_small(body, rows, tmp_path / "half", with_copied_teacher, resume=True).log[0]["step"] == 1


def test_changed_tokenizer_is_refused_on_resume(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    train_interrupted(body, sentiments(30), tmp_path / "a", step=8)
    tokenizer = copy.copy(body.loaded.required_tokenizer)
    tokenizer.settings = tokenizer.settings | {"truncation_side": "left"}
    other = pellucid.Model(replace(body.loaded, tokenizer=tokenizer))
    with pytest.raises(InputError, match="cannot continue: its tokenizer differs; give what it started with"):
        train_small(other, sentiments(30), tmp_path / "a", resume=True)


def test_accumulation_and_save_every_may_change_on_resume(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    no_dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    uninterrupted = train_small(body, sentiments(30), None, **no_dropout)
    train_interrupted(body, sentiments(30), tmp_path / "a", step=8, **no_dropout)
    result = train_small(body, sentiments(30), tmp_path / "a", resume=True, accumulation=2, save_every=2, **no_dropout)
    for ours, theirs in zip(log_lines(result), log_lines(uninterrupted), strict=True):
        assert ours.get("loss", 0.0) == pytest.approx(theirs.get("loss", 0.0), abs=1e-5)


def test_damaged_state_is_refused_and_left_unchanged(
    body: "pellucid.Model", sentiments: Sentiments, interrupted_folder: Path
) -> None:
    held_out, folder = sentiments(10, seed=9), interrupted_folder / "training"
    names = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    assert names == ["best-00000005.safetensors", "log.jsonl", "manifest.json", "state-00000005.safetensors"]
    copy = interrupted_folder.with_name("copy")

    def assert_refused(
        name: str, damage: Callable[[bytes], bytes | None], message: str, kind: type = CorruptFileError
    ) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(interrupted_folder, copy)
        content = damage((copy / "training" / name).read_bytes())
        (copy / "training" / name).unlink()
        if content is not None:
            (copy / "training" / name).write_bytes(content)
        before = file_contents(copy)
        with pytest.raises(kind, match=message) as error:
            train_small(body, sentiments(30), copy, resume=True, validation=held_out)
        assert "\n" not in str(error.value) and str(copy) in str(error.value)
        after = file_contents(copy)
        assert {one: after[one] for one in before} == before

    def flip_bit(content: bytes) -> bytes:
        return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]

    assert_refused(
        "state-00000005.safetensors", flip_bit, "was changed since it was written: restore it, or start again"
    )
    assert_refused("state-00000005.safetensors", lambda content: content[:-1], "was changed since it was written")
    assert_refused("state-00000005.safetensors", lambda content: None, "is missing: restore it, or start again")
    assert_refused(
        "manifest.json", lambda content: content.replace(b'"step": 5', b'"step": 6'), "digest does not match"
    )
    assert_refused("manifest.json", lambda content: content[:100], "is damaged")
    assert_refused("manifest.json", lambda content: b"[]", "is damaged")

    def resealed(content: bytes, change: dict[str, Any]) -> bytes:
        body = json.loads(content)
        del body["digest"]
        return seal(body | change)

    for change, reason in (
        ({"files": {}}, "no state"),
        ({"format": 0}, "no state"),
        ({"files": {"../log.jsonl": [1, 64 * "0"]}}, "the files"),
    ):
        assert_refused("manifest.json", functools.partial(resealed, change=change), rf"is damaged \(it names {reason}")
    for version, advice in ((1, "start again"), (3, "upgrade pellucid, or start again")):
        assert_refused(
            "manifest.json",
            lambda content, version=version: content.replace(b'"format": 2', b'"format": %d' % version),
            rf"is of format {version}, written by pellucid \S+, and this pellucid reads format 2: {advice}",
            InputError,
        )


def test_damaged_best_weights_are_refused(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "validation": sentiments(10, seed=9),
        "learning_rate": 1e-12,
    }  # no later evaluation is better
    train_interrupted(body, sentiments(30), tmp_path / "half", step=8, **settings)
    path = tmp_path / "half" / "training" / "best-00000005.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=r"best-00000005.safetensors was changed since it was written"):
        train_small(body, sentiments(30), tmp_path / "half", resume=True, **settings)


def test_files_of_the_user_in_the_state_folder_are_kept(
    body: "pellucid.Model", sentiments: Sentiments, interrupted_folder: Path
) -> None:
    (interrupted_folder / "training" / "notes.txt").write_text("mine")
    (interrupted_folder / "training" / ".state-00000007.safetensors-ab12").mkdir()
    (interrupted_folder / "training" / "state-00000007.safetensors").write_bytes(b"of a process that was killed")
    train_small(body, sentiments(30), interrupted_folder, resume=True, validation=sentiments(10, seed=9))
    assert [path.name for path in (interrupted_folder / "training").iterdir()] == ["notes.txt"]


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_training_after_the_step_and_saves_its_state(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    def on_event(event: Event) -> None:
        if event.step == 6 and not event.is_evaluation:
            signal.raise_signal(signal.SIGINT)

    uninterrupted = train_small(body, sentiments(30), None, validation=sentiments(10, seed=9))
    with pytest.raises(KeyboardInterrupt) as interrupt:
        train_small(body, sentiments(30), tmp_path / "a", on_event=on_event, validation=sentiments(10, seed=9))
    assert str(interrupt.value).startswith("interrupted after step 7 of 15; it is kept in ")
    assert str(interrupt.value).endswith("run the same again with resume=True to continue from there")
    assert json.loads((tmp_path / "a" / "training" / "manifest.json").read_text())["progress"]["step"] == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    result = train_small(body, sentiments(30), tmp_path / "a", resume=True, validation=sentiments(10, seed=9))
    assert same_weights(result.loaded, uninterrupted.loaded) and log_lines(result) == log_lines(uninterrupted)


def test_ctrl_c_without_a_folder_reports_that_nothing_is_saved(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"after step 3 of 15; nothing is kept, since it has no folder"):
        train_small(
            body,
            sentiments(30),
            None,
            on_event=lambda one: signal.raise_signal(signal.SIGINT) if one.step == 2 else None,
        )


def test_ctrl_c_in_the_last_step_interrupts(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    uninterrupted = train_small(body, sentiments(30), None, validation=0.0)
    with pytest.raises(KeyboardInterrupt, match="interrupted after step 15 of 15; it is kept in"):
        train_small(
            body, sentiments(30), tmp_path / "a", validation=0.0,
            on_event=lambda one: signal.raise_signal(signal.SIGINT) if one.step == 14 else None,
        )  # fmt: skip
    assert same_weights(
        train_small(body, sentiments(30), tmp_path / "a", validation=0.0, resume=True).loaded, uninterrupted.loaded
    )


def test_ctrl_c_in_the_last_evaluation_interrupts(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, calls = TextClassification.score, list[int]()

    def score(self: TextClassification, *args: Any) -> dict[str, float]:
        calls.append(1)
        if len(calls) == last:
            signal.raise_signal(signal.SIGINT)
        return original(self, *args)

    monkeypatch.setattr(TextClassification, "score", score)
    last, held_out = 0, {"validation": sentiments(10, seed=9)}
    uninterrupted = train_small(body, sentiments(30), None, **held_out)
    last = len(calls)
    calls.clear()
    with pytest.raises(KeyboardInterrupt, match="interrupted after step 15 of 15; it is kept in"):
        train_small(body, sentiments(30), tmp_path / "a", **held_out)
    calls.clear()
    result = train_small(body, sentiments(30), tmp_path / "a", resume=True, **held_out)
    assert (
        same_weights(result.loaded, uninterrupted.loaded)
        and log_lines(result) == log_lines(uninterrupted)
        and not calls
    )


def test_second_ctrl_c_ends_training_at_once(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    def on_event(event: Event) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as interrupt:
        train_small(body, sentiments(30), tmp_path / "a", on_event=on_event)
    assert str(interrupt.value) == "" and not (tmp_path / "a" / "training" / "manifest.json").exists()


def test_optimizer_state_is_restored(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of the state, compared between saving and restoring."""
    from pellucid.training.state import State, _state_tensors

    saved: list[dict[str, torch.Tensor]] = []
    original_save, original_restore = State.save, State.restore

    def save(state: Any, loop: Any, *args: Any, **kwargs: Any) -> None:
        original_save(state, loop, *args, **kwargs)
        saved.append({name: tensor.detach().clone() for name, tensor in _state_tensors(loop).items()})

    def checked_restore(state: Any, loop: Any) -> None:
        original_restore(state, loop)
        found, last = _state_tensors(loop), saved[-1]
        assert found.keys() == last.keys() and all(torch.equal(found[name], last[name]) for name in last)
        assert sum(name.startswith("moments/exp_avg_sq/") for name in found) == len(loop.parameters)
        saved.append({})

    monkeypatch.setattr(training_run.State, "save", save)
    monkeypatch.setattr(training_run.State, "restore", checked_restore)
    train_interrupted(body, sentiments(30), tmp_path / "a", step=8)
    train_small(body, sentiments(30), tmp_path / "a", resume=True)
    assert {} in saved


def test_result_contains_folder_source_and_plan(body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path) -> None:
    result = train_small(body, sentiments(30), tmp_path / "a", validation=sentiments(10, seed=9))
    assert result.folder == tmp_path / "a" and result.loaded.untrained == () and result.before == {}
    assert result.loaded.source is not None and result.loaded.source.folder == (tmp_path / "a").resolve()
    assert result.loaded.source.file_stamps and not changed_files(result.loaded.source)
    plan = result.start.plan
    assert len(plan.examples) == 30 and len(plan.held_out_examples) == 10 and result.start.steps == 15
    retrained = train_small(
        pellucid.Model(replace(result.loaded)), sentiments(30, seed=1), None, validation=sentiments(10, seed=9)
    )
    assert retrained.before == result.scores and retrained.start.plan.base.source == result.loaded.source
