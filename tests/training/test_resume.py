"""An interrupted training run resumes where it was, and ends as if undisturbed, bit for bit."""

import copy
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
from pellucid.errors import CorruptFileError, InputError
from pellucid.training import training_run
from pellucid.training.classification import TextClassification
from pellucid.training.inputs import DataArguments
from pellucid.training.log import read_log
from pellucid.training.loop import Event
from pellucid.training.manifest import read_manifest
from pellucid.training.masked import FillMask
from pellucid.training.objective import Objective
from pellucid.training.settings import Settings
from pellucid.training.training_run import Result, RunStart, run_training
from tests.quick import few
from tests.training.courses import QUICK, Rows, lines, listing, same

Feelings = Callable[..., Rows]


class Broken(Exception):  # noqa: N818 - it stands for a power cut
    """Ends a training run at some step."""


def study(
    model: "pellucid.Model", rows: Rows, out: Path | None, objective: Objective | None = None, **options: Any
) -> Result:
    """A small run. options: arguments of `run_training`, settings, and `pause`: least seconds between saved states."""
    given = DataArguments(rows, options.pop("validation", None))
    pause = options.pop("pause", 0.0)
    own = ("resume", "overwrite", "on_event", "on_start", "on_saved", "progress")
    asked = {name: options.pop(name) for name in own if name in options}
    objective = objective or TextClassification()
    settings = Settings.of(QUICK | options, objective.default_settings)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_run, "SAVE_INTERVAL", pause)
        return run_training(model.loaded, given, objective, settings, out=out, **{"progress": False} | asked)


def broken(*given: Any, step: int, **options: Any) -> None:
    """The same, interrupted at a step without warning."""

    def on_event(one: Event) -> None:
        if one.step == step:
            raise Broken

    with pytest.raises(Broken):
        study(*given, on_event=on_event, **options)


QUICKLY = [(None, 1), (None, 5), (None, 6), (None, 8), (None, 15), (4, 3), (4, 4), (4, 9)]
ANYWHERE = [(every, step) for every in (None, 4) for step in range(1, 16) if (every, step) not in QUICKLY]


@pytest.mark.parametrize(
    ("every", "step"), [*QUICKLY, *(pytest.param(*one, marks=pytest.mark.slow) for one in ANYWHERE)]
)
def test_broken_off_at_any_step_it_ends_the_same_bit_for_bit(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, step: int, every: int | None
) -> None:
    """Five steps an epoch, evaluations and states after each epoch or every fourth step. With dropout."""
    said: dict[str, Any] = {"validation": feelings(10, seed=9), "save_every": every, "evaluate_every": every}
    whole = _whole(body, feelings, tmp_path, **said)
    broken(body, feelings(30), tmp_path / "broken", step=step, **said)
    begun: list[RunStart] = []
    result = study(body, feelings(30), tmp_path / "broken", resume=True, on_start=begun.append, **said)
    assert begun[0].step == (step - 1) // (every or 5) * (every or 5)
    assert same(result.loaded, whole.loaded)
    assert lines(result) == lines(whole) and len(result.log) > 15
    assert (result.scores, result.best_step, result.steps) == (whole.scores, whole.best_step, whole.steps)
    assert lines(tmp_path / "broken" / "log.jsonl") == lines(whole)
    assert not (tmp_path / "broken" / "training").exists()


WHOLE: dict[str, Result] = {}


def _whole(body: "pellucid.Model", feelings: Feelings, tmp_path: Path, **options: Any) -> Result:
    """The uninterrupted run with these options."""
    key = str(sorted(options)) + str(options.get("save_every"))
    if key not in WHOLE:
        WHOLE[key] = study(body, feelings(30), None, **options)
    return WHOLE[key]


def test_it_learns_and_drops_out_or_the_above_says_nothing(body: "pellucid.Model", feelings: Feelings) -> None:
    first = study(body, feelings(30), None)
    assert not same(first.loaded, study(body, feelings(30), None, seed=1).loaded)
    assert not same(first.loaded, study(body, feelings(30), None, dropout=0.0, attention_dropout=0.0).loaded)
    assert not same(first.loaded, study(body, feelings(30), None, learning_rate=0.0).loaded)


@pytest.mark.parametrize(
    "kind", few(["masked", "adapters", "pieces", "tokens", "bfloat16", "frozen"], ["masked", "adapters", "pieces"])
)
def test_whatever_is_learned_it_goes_on_bit_for_bit(
    body: "pellucid.Model", opened: Callable[..., "pellucid.Model"], feelings: Feelings, tmp_path: Path, kind: str
) -> None:
    model, objective, said = body, None, {"evaluate_every": 4}
    if kind == "masked":
        model, objective = opened("bert-filler"), FillMask()
    said |= {
        "adapters": {"lora": 4},
        "pieces": {"accumulation": 3},
        "tokens": {"batch_size": None, "tokens_per_batch": 64},
        "bfloat16": {"precision": "bfloat16"},
        "frozen": {"freeze": ("embeddings.*",)},
    }.get(kind, {})
    whole = study(model, feelings(30), None, objective, **said)
    for step in (3, 6, 10):
        broken(model, feelings(30), tmp_path / "broken", objective, step=step, resume=True, **said)
    result = study(model, feelings(30), tmp_path / "broken", objective, resume=True, **said)
    assert same(result.loaded, whole.loaded) and lines(result) == lines(whole)
    assert result.scores == whole.scores


def test_patience_is_remembered(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    said = {"evaluate_every": 2, "patience": 3, "epochs": 20, "learning_rate": 0.0, "validation": feelings(10, seed=9)}
    whole = study(body, feelings(30), None, **said)
    assert whole.steps == 8 and whole.best_step == 2
    broken(body, feelings(30), tmp_path / "a", step=5, **said)
    result = study(body, feelings(30), tmp_path / "a", resume=True, **said)
    assert (result.steps, result.best_step, lines(result)) == (8, 2, lines(whole))


def test_one_that_was_killed_after_its_last_step_only_writes_its_model(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    def done(out: Path, result: Result) -> None:
        raise Broken

    whole = study(body, feelings(30), None)
    with pytest.raises(Broken):
        study(body, feelings(30), tmp_path / "a", on_saved=done)
    assert (tmp_path / "a" / "model.safetensors").is_file() and (
        tmp_path / "a" / "training" / "manifest.json"
    ).is_file()
    told: list[Event] = []
    result = study(body, feelings(30), tmp_path / "a", resume=True, on_event=told.append)
    assert told == [] and same(result.loaded, whole.loaded) and lines(result) == lines(whole)
    assert same(pellucid.load(tmp_path / "a").loaded, whole.loaded)


def test_where_there_is_nothing_to_go_on_from_it_begins(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    whole = study(body, feelings(30), None)
    for state in ("none", "empty", "log alone"):
        folder = tmp_path / state / "training"
        if state != "none":
            folder.mkdir(parents=True)
        if state == "log alone":
            (folder / "log.jsonl").write_text('{"step": 1, "loss": 9.0}\n{"step": 2, "lo')
        result = study(body, feelings(30), tmp_path / state, resume=state != "empty")
        assert same(result.loaded, whole.loaded) and lines(result) == lines(whole)


def test_a_line_of_a_log_that_nests_without_end_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text('{"step": 1}\n' + "[" * 60_000 + '\n{"step": 2}\n')
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2]


# -- what cannot be resumed -------------------------------------------------------------------------------------------


@pytest.fixture
def half(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> Path:
    """A run of three epochs, interrupted in the second."""
    broken(body, feelings(30), tmp_path / "half", step=8, validation=feelings(10, seed=9))
    return tmp_path / "half"


def test_an_unfinished_training_is_not_written_over(body: "pellucid.Model", feelings: Feelings, half: Path) -> None:
    before = listing(half)
    with pytest.raises(
        InputError, match=r"holds a training that is not finished, 5 of 15 steps are done: continue with "
    ):
        study(body, feelings(30), half)
    with pytest.raises(InputError, match="leave one of them out"):
        study(body, feelings(30), half, resume=True, overwrite=True)
    assert listing(half) == before
    result = study(body, feelings(24, seed=3), half, overwrite=True)
    assert result.steps == 12 and sorted(path.name for path in half.iterdir()).count("training") == 0


def test_a_folder_with_files_is_not_written_over(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    study(body, feelings(30), tmp_path / "a")
    for resume, why in ((False, "already holds files"), (True, "that has ended: there is nothing to resume")):
        with pytest.raises(InputError, match=rf"{why}[:;] choose a new folder,? or start again with overwrite=True"):
            study(body, feelings(30), tmp_path / "a", resume=resume)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="is a file"):
        study(body, feelings(30), tmp_path / "file")
    with pytest.raises(InputError, match="resume needs the folder"):
        study(body, feelings(30), None, resume=True)
    other = study(body, feelings(24, seed=3), tmp_path / "a", overwrite=True)
    assert same(pellucid.load(tmp_path / "a").loaded, other.loaded)


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
def test_other_settings_are_refused_by_name(
    body: "pellucid.Model", feelings: Feelings, half: Path, change: str
) -> None:
    before, (said, sentence) = listing(half), CHANGES[change]
    with pytest.raises(InputError, match=sentence) as error:
        study(body, feelings(30), half, resume=True, validation=feelings(10, seed=9), **said)
    assert "\n" not in str(error.value)
    assert listing(half) == before


def test_another_model_and_other_data_are_refused(
    body: "pellucid.Model", scratch: "pellucid.Model", feelings: Feelings, half: Path
) -> None:
    held, before = feelings(10, seed=9), listing(half)
    other = pellucid.build(body.config, seed=8, tokenizer=body.loaded.tokenizer)
    for model in (scratch, other):
        with pytest.raises(InputError, match="cannot continue: its base model is another one; give"):
            study(model, feelings(30), half, resume=True, validation=held)
    with pytest.raises(InputError, match="cannot continue: the data differ; give"):
        study(body, feelings(30, seed=2), half, resume=True, validation=held)
    with pytest.raises(InputError, match="the held-out data differ"):
        study(body, feelings(30), half, resume=True, validation=held[:-1])
    with pytest.raises(InputError, match='name was "text-classification" and is "fill-mask"'):
        study(body, feelings(30), half, FillMask(), resume=True, validation=held)
    assert listing(half) == before


def test_a_teacher_whose_folder_holds_others_by_now_is_refused(
    body: "pellucid.Model", opened: Callable[..., "pellucid.Model"], feelings: Feelings, tmp_path: Path
) -> None:
    feels, folder = opened("bert-feelings"), tmp_path / "teacher"
    rows = [row | {"label": feels.config.labels[i % 3]} for i, row in enumerate(feelings(30))]
    feels.save(folder)
    shutil.copytree(folder, tmp_path / "kept")
    broken(body, rows, tmp_path / "half", TextClassification(teacher=str(folder)), step=7)
    with torch.no_grad():
        next(feels.loaded.module.parameters()).mul_(2.0)
    feels.save(folder, overwrite=True)
    with pytest.raises(InputError, match="cannot continue: teacher was "):
        study(body, rows, tmp_path / "half", TextClassification(teacher=str(folder)), resume=True)
    moved = TextClassification(teacher=pellucid.load(tmp_path / "kept"))
    assert study(body, rows, tmp_path / "half", moved, resume=True).log[0]["step"] == 1


def test_a_tokenizer_that_reads_otherwise_is_refused(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    broken(body, feelings(30), tmp_path / "a", step=8)
    words = copy.copy(body.loaded.required_tokenizer)
    words.settings = words.settings | {"truncation_side": "left"}
    other = pellucid.Model(replace(body.loaded, tokenizer=words))
    with pytest.raises(InputError, match="cannot continue: its tokenizer differs; give what it started with"):
        study(other, feelings(30), tmp_path / "a", resume=True)
    manifest = read_manifest(tmp_path / "a" / "training")
    assert manifest is not None and manifest.about.tokenizer_digest
    older = replace(manifest, about=replace(manifest.about, words=""))  # as saved before this was recorded
    older.check(manifest.about, tmp_path / "a")


def test_pieces_and_how_often_it_is_kept_may_differ(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    whole = study(body, feelings(30), None, **still)
    broken(body, feelings(30), tmp_path / "a", step=8, **still)
    result = study(body, feelings(30), tmp_path / "a", resume=True, accumulation=2, save_every=2, **still)
    for ours, theirs in zip(lines(result), lines(whole), strict=True):
        assert ours.get("loss", 0.0) == pytest.approx(theirs.get("loss", 0.0), abs=1e-5)


def test_damage_is_told_and_nothing_is_lost(body: "pellucid.Model", feelings: Feelings, half: Path) -> None:
    held, folder = feelings(10, seed=9), half / "training"
    names = sorted(path.name for path in folder.iterdir() if path.name != "lock")
    assert names == ["best-00000005.safetensors", "log.jsonl", "manifest.json", "state-00000005.safetensors"]
    copy = half.with_name("copy")

    def refused(name: str, damage: Callable[[bytes], bytes | None], said: str, kind: type = CorruptFileError) -> None:
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(half, copy)
        content = damage((copy / "training" / name).read_bytes())
        (copy / "training" / name).unlink()
        if content is not None:
            (copy / "training" / name).write_bytes(content)
        before = listing(copy)
        with pytest.raises(kind, match=said) as error:
            study(body, feelings(30), copy, resume=True, validation=held)
        assert "\n" not in str(error.value) and str(copy) in str(error.value)
        after = listing(copy)
        assert {one: after[one] for one in before} == before

    def flipped(content: bytes) -> bytes:
        return content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]

    refused("state-00000005.safetensors", flipped, "was changed since it was written: restore it, or start again")
    refused("state-00000005.safetensors", lambda content: content[:-1], "was changed since it was written")
    refused("state-00000005.safetensors", lambda content: None, "is missing: restore it, or start again")
    refused("manifest.json", lambda content: content.replace(b'"step": 5', b'"step": 6'), "digest does not match")
    refused("manifest.json", lambda content: content[:100], "is damaged")
    refused("manifest.json", lambda content: b"[]", "is damaged")
    later = rb'"format": 2'
    refused("manifest.json", lambda content: content.replace(b'"format": 1', later), "reads up to 1", InputError)


def test_the_best_numbers_are_checked_where_they_are_needed(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    said: dict[str, Any] = {"validation": feelings(10, seed=9), "learning_rate": 1e-12}  # no later evaluation is better
    broken(body, feelings(30), tmp_path / "half", step=8, **said)
    path = tmp_path / "half" / "training" / "best-00000005.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptFileError, match=r"best-00000005.safetensors was changed since it was written"):
        study(body, feelings(30), tmp_path / "half", resume=True, **said)


def test_what_somebody_puts_there_stays(body: "pellucid.Model", feelings: Feelings, half: Path) -> None:
    (half / "training" / "notes.txt").write_text("mine")
    (half / "training" / ".state-00000007.safetensors-ab12").mkdir()
    (half / "training" / "state-00000007.safetensors").write_bytes(b"of a process that was killed")
    study(body, feelings(30), half, resume=True, validation=feelings(10, seed=9))
    assert [path.name for path in (half / "training").iterdir()] == ["notes.txt"]


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def test_ctrl_c_ends_the_step_and_keeps_its_state(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    def on_event(one: Event) -> None:
        if one.step == 6 and not one.is_evaluation:
            signal.raise_signal(signal.SIGINT)

    whole = study(body, feelings(30), None, validation=feelings(10, seed=9))
    with pytest.raises(KeyboardInterrupt) as stop:
        study(body, feelings(30), tmp_path / "a", on_event=on_event, validation=feelings(10, seed=9))
    assert str(stop.value).startswith("interrupted after step 7 of 15; it is kept in ")
    assert str(stop.value).endswith("run the same again with resume=True to continue from there")
    assert json.loads((tmp_path / "a" / "training" / "manifest.json").read_text())["progress"]["step"] == 7
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    result = study(body, feelings(30), tmp_path / "a", resume=True, validation=feelings(10, seed=9))
    assert same(result.loaded, whole.loaded) and lines(result) == lines(whole)


def test_ctrl_c_without_a_folder_says_that_nothing_is_kept(body: "pellucid.Model", feelings: Feelings) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"after step 3 of 15; nothing is kept, since it has no folder"):
        study(
            body, feelings(30), None, on_event=lambda one: signal.raise_signal(signal.SIGINT) if one.step == 2 else None
        )


def test_ctrl_c_in_the_last_step_is_heard_as_well(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    whole = study(body, feelings(30), None, validation=0.0)
    with pytest.raises(KeyboardInterrupt, match="interrupted after step 15 of 15; it is kept in"):
        study(
            body, feelings(30), tmp_path / "a", validation=0.0,
            on_event=lambda one: signal.raise_signal(signal.SIGINT) if one.step == 14 else None,
        )  # fmt: skip
    assert same(study(body, feelings(30), tmp_path / "a", validation=0.0, resume=True).loaded, whole.loaded)


def test_ctrl_c_in_the_last_look_is_heard_as_well(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest, looks = TextClassification.score, list[int]()

    def score(self: TextClassification, *given: Any) -> dict[str, float]:
        looks.append(1)
        if len(looks) == last:
            signal.raise_signal(signal.SIGINT)
        return honest(self, *given)

    monkeypatch.setattr(TextClassification, "score", score)
    last, held_out = 0, {"validation": feelings(10, seed=9)}
    whole = study(body, feelings(30), None, **held_out)
    last = len(looks)
    looks.clear()
    with pytest.raises(KeyboardInterrupt, match="interrupted after step 15 of 15; it is kept in"):
        study(body, feelings(30), tmp_path / "a", **held_out)
    looks.clear()
    result = study(body, feelings(30), tmp_path / "a", resume=True, **held_out)
    assert same(result.loaded, whole.loaded) and lines(result) == lines(whole) and not looks


def test_a_second_ctrl_c_ends_it_at_once(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    def on_event(one: Event) -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as stop:
        study(body, feelings(30), tmp_path / "a", on_event=on_event)
    assert str(stop.value) == "" and not (tmp_path / "a" / "training" / "manifest.json").exists()


def test_moments_and_steps_of_the_optimizer_come_back(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value of the state, compared between saving and restoring."""
    from pellucid.training.state import State, _state_tensors

    kept: list[dict[str, torch.Tensor]] = []
    real, restore = State.save, State.restore

    def save(state: Any, loop: Any, *given: Any, **named: Any) -> None:
        real(state, loop, *given, **named)
        kept.append({name: tensor.detach().clone() for name, tensor in _state_tensors(loop).items()})

    def back(state: Any, loop: Any) -> None:
        restore(state, loop)
        found, last = _state_tensors(loop), kept[-1]
        assert found.keys() == last.keys() and all(torch.equal(found[name], last[name]) for name in last)
        assert sum(name.startswith("moments/exp_avg_sq/") for name in found) == len(loop.parameters)
        kept.append({})

    monkeypatch.setattr(training_run.State, "save", save)
    monkeypatch.setattr(training_run.State, "restore", back)
    broken(body, feelings(30), tmp_path / "a", step=8)
    study(body, feelings(30), tmp_path / "a", resume=True)
    assert {} in kept


def test_facts_of_a_result(body: "pellucid.Model", feelings: Feelings, tmp_path: Path) -> None:
    result = study(body, feelings(30), tmp_path / "a", validation=feelings(10, seed=9))
    assert result.folder == tmp_path / "a" and result.loaded.untrained == () and result.before == {}
    assert result.loaded.source is not None and result.loaded.source.folder == (tmp_path / "a").resolve()
    assert result.loaded.source.file_stamps and not changed_files(result.loaded.source)
    plan = result.start.plan
    assert len(plan.examples) == 30 and len(plan.held_out_examples) == 10 and result.start.steps == 15
    again = study(pellucid.Model(replace(result.loaded)), feelings(30, seed=1), None, validation=feelings(10, seed=9))
    assert again.before == result.scores and again.start.plan.base.source == result.loaded.source
