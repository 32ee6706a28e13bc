"""Where a training run may not write, and where its folders lie: refused before a step, or else the result is kept."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.errors import CorruptFileError, InputError, ResourceError
from pellucid.training.manifest import read_manifest
from tests.training.small_runs import Rows, log_lines, same_weights
from tests.training.test_resume import train_interrupted, train_small
from tests.unprivileged import as_nobody, open_folder

Sentiments = Callable[..., Rows]


def fail_to_write(*args: Any, **kwargs: Any) -> None:
    """Raises the error of a full disk in place of a writer."""
    raise ResourceError("cannot write it")


def refusal_check(body: "pellucid.Model", rows: Rows, out: Path, message: str) -> Callable[[], None]:
    """A check that a run is refused with one sentence, before its first step."""

    def check() -> None:
        steps: list[Any] = []
        with pytest.raises(InputError, match=message) as error:
            train_small(body, rows, out, on_event=steps.append)
        assert not steps and "\n" not in str(error.value)

    return check


def test_training_works_in_an_own_folder_within_another_user_s(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    train_small(body, sentiments(12), tmp_path / "other")  # imports what another user may not read
    with open_folder() as volume:
        (own := volume / "mine").mkdir()
        base = body.save(volume / "base")
        as_nobody(lambda: train_small(pellucid.load(base), sentiments(12), own), own)
        assert pellucid.load(own).config.head is not None
        assert not [path for path in own.iterdir() if path.name.startswith(".")] and not (own / "training").exists()
        assert sorted(path.name for path in volume.iterdir()) == ["base", "mine"]


def test_unwritable_folder_is_refused_before_the_first_step(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with open_folder() as folder:
        (state := folder / "out" / "training").mkdir(parents=True)
        base = pellucid.load(body.save(folder / "base"))
        for out in (folder / "out", folder / "out" / "new"):
            message = rf"cannot write {out}.*: Permission denied in {folder / 'out'}: choose another folder"
            as_nobody(refusal_check(base, sentiments(12), out, message), state)


def test_trained_weights_are_kept_if_the_model_cannot_be_saved(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, held_out = tmp_path / "a", sentiments(10, seed=9)
    monkeypatch.setattr("pellucid.training.training_run.save_checkpoint", fail_to_write)
    with pytest.raises(
        ResourceError, match=r"cannot write it; the trained weights are kept in .*: resume=True only writes it"
    ):
        train_small(body, sentiments(30), out, validation=held_out, pause=60.0)  # so that only the error saves a state
    manifest = read_manifest(out / "training")
    assert manifest is not None and manifest.step == manifest.steps == 15
    monkeypatch.undo()
    steps: list[Any] = []
    result = train_small(body, sentiments(30), out, validation=held_out, resume=True, on_event=steps.append)
    uninterrupted = train_small(body, sentiments(30), None, validation=held_out)
    assert (
        not steps
        and same_weights(result.loaded, uninterrupted.loaded)
        and log_lines(result) == log_lines(uninterrupted)
    )
    assert same_weights(pellucid.load(out).loaded, uninterrupted.loaded)


def test_unreadable_base_is_refused(body: "pellucid.Model", sentiments: Sentiments) -> None:
    with open_folder() as folder:
        (own := folder / "own").mkdir()
        base = pellucid.load(body.save(folder / "closed" / "base"))
        (folder / "closed").chmod(0o700)
        message = rf"cannot read {folder / 'closed' / 'base'}: Permission denied"
        as_nobody(refusal_check(base, sentiments(12), own, message), own)


def test_error_reports_that_the_trained_weights_could_not_be_kept(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.training.training_run.save_checkpoint", fail_to_write)
    monkeypatch.setattr("pellucid.training.state.write_bundle", fail_to_write)
    with pytest.raises(
        ResourceError, match=rf"cannot write it; the trained weights could not be kept in {tmp_path}/a/train"
    ):
        train_small(body, sentiments(12), tmp_path / "a", pause=60.0)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_damaged_best_weights_are_refused_before_the_next_step(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    settings: dict[str, Any] = {"validation": sentiments(10, seed=9), "learning_rate": 1e-12}
    train_interrupted(body, sentiments(30), tmp_path / "half", step=8, **settings)
    damage(tmp_path / "half" / "training" / "best-00000005.safetensors")
    steps: list[Any] = []
    with pytest.raises(CorruptFileError, match=r"best-00000005.safetensors (is missing|was changed)"):
        train_small(body, sentiments(30), tmp_path / "half", resume=True, on_event=steps.append, **settings)
    assert not steps


def test_old_states_in_a_linked_folder_are_removed(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (scratch / "mine.txt").write_text("mine")
    (out := tmp_path / "out").mkdir()
    (out / "training").symlink_to(scratch, target_is_directory=True)
    train_interrupted(body, sentiments(30), out, step=13, save_every=2)
    assert [path.name for path in scratch.glob("state-*")] == ["state-00000012.safetensors"]
    train_interrupted(body, sentiments(30), out, step=3, save_every=2, overwrite=True)
    assert [path.name for path in scratch.glob("state-*")] == ["state-00000002.safetensors"]
    train_small(body, sentiments(30), out, save_every=2, resume=True)
    assert [path.name for path in scratch.iterdir()] == ["mine.txt"] and pellucid.load(out).config.head is not None


@pytest.mark.parametrize("kept_lines", [0, 3])
def test_missing_log_lines_are_reported(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept_lines: int
) -> None:
    train_interrupted(body, sentiments(30), tmp_path / "half", step=8)
    log = tmp_path / "half" / "training" / "log.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:kept_lines]))
    train_small(body, sentiments(30), tmp_path / "half", resume=True)
    assert f"{log} lacks {5 - kept_lines} of the first 5 steps" in caplog.text
    caplog.clear()
    train_interrupted(body, sentiments(30), tmp_path / "again", step=8)
    with caplog.at_level(logging.WARNING):
        train_small(body, sentiments(30), tmp_path / "again", resume=True)
    assert "lacks" not in caplog.text


def test_nan_weights_are_refused_before_training_and_evaluation(
    body: "pellucid.Model", sentiments: Sentiments, tmp_path: Path
) -> None:
    trained = pellucid.train(body, sentiments(30), "classify", epochs=1, progress=False)
    with torch.no_grad():
        trained.loaded.module.get_parameter("layers.0.attention.query.weight")[0, 0] = float("nan")
    for work in (
        lambda: pellucid.evaluate(trained, sentiments(10)),
        lambda: pellucid.train(trained, sentiments(10), "classify", progress=False),
    ):
        with pytest.raises(CorruptFileError, match=r"layers.0.attention.query.weight holds NaN or infinite numbers"):
            work()
