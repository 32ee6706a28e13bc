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
from tests.training.courses import Rows, lines, same
from tests.training.test_resume import broken, study
from tests.unprivileged import as_nobody, open_folder

Feelings = Callable[..., Rows]


def closed(*given: Any, **named: Any) -> None:
    """Stands in for a writer where the disk is full."""
    raise ResourceError("cannot write it")


def refused_at_once(body: "pellucid.Model", rows: Rows, out: Path, said: str) -> Callable[[], None]:
    """A check that a run is refused with one sentence, before its first step."""

    def check() -> None:
        steps: list[Any] = []
        with pytest.raises(InputError, match=said) as error:
            study(body, rows, out, on_event=steps.append)
        assert not steps and "\n" not in str(error.value)

    return check


def test_a_folder_of_ones_own_in_one_of_somebody_else_is_trained_into(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    study(body, feelings(12), tmp_path / "other")  # imports what another user may not read
    with open_folder() as volume:
        (own := volume / "mine").mkdir()
        base = body.save(volume / "base")
        as_nobody(lambda: study(pellucid.load(base), feelings(12), own), own)
        assert pellucid.load(own).config.head is not None
        assert not [path for path in own.iterdir() if path.name.startswith(".")] and not (own / "training").exists()
        assert sorted(path.name for path in volume.iterdir()) == ["base", "mine"]


def test_a_folder_that_may_not_be_written_is_told_before_the_first_step(
    body: "pellucid.Model", feelings: Feelings
) -> None:
    with open_folder() as place:
        (state := place / "out" / "training").mkdir(parents=True)
        base = pellucid.load(body.save(place / "base"))
        for out in (place / "out", place / "out" / "new"):
            said = rf"cannot write {out}.*: Permission denied in {place / 'out'}: choose another folder"
            as_nobody(refused_at_once(base, feelings(12), out, said), state)


def test_where_the_model_cannot_be_written_what_was_learned_is_kept(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, held = tmp_path / "a", feelings(10, seed=9)
    monkeypatch.setattr("pellucid.training.training_run.save_checkpoint", closed)
    with pytest.raises(
        ResourceError, match=r"cannot write it; the trained weights are kept in .*: resume=True only writes it"
    ):
        study(body, feelings(30), out, validation=held, pause=60.0)  # so that only the error saves a state
    manifest = read_manifest(out / "training")
    assert manifest is not None and manifest.step == manifest.steps == 15
    monkeypatch.undo()
    steps: list[Any] = []
    result = study(body, feelings(30), out, validation=held, resume=True, on_event=steps.append)
    whole = study(body, feelings(30), None, validation=held)
    assert not steps and same(result.loaded, whole.loaded) and lines(result) == lines(whole)
    assert same(pellucid.load(out).loaded, whole.loaded)


def test_a_base_that_may_not_be_looked_at_any_more_is_named(body: "pellucid.Model", feelings: Feelings) -> None:
    with open_folder() as place:
        (own := place / "own").mkdir()
        base = pellucid.load(body.save(place / "closed" / "base"))
        (place / "closed").chmod(0o700)
        said = rf"cannot read {place / 'closed' / 'base'}: Permission denied"
        as_nobody(refused_at_once(base, feelings(12), own, said), own)


def test_where_nothing_can_be_kept_that_is_said(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pellucid.training.training_run.save_checkpoint", closed)
    monkeypatch.setattr("pellucid.training.state.write_bundle", closed)
    with pytest.raises(
        ResourceError, match=rf"cannot write it; the trained weights could not be kept in {tmp_path}/a/train"
    ):
        study(body, feelings(12), tmp_path / "a", pause=60.0)


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1])])
def test_damaged_best_numbers_are_told_before_the_next_step(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    said: dict[str, Any] = {"validation": feelings(10, seed=9), "learning_rate": 1e-12}
    broken(body, feelings(30), tmp_path / "half", step=8, **said)
    damage(tmp_path / "half" / "training" / "best-00000005.safetensors")
    steps: list[Any] = []
    with pytest.raises(CorruptFileError, match=r"best-00000005.safetensors (is missing|was changed)"):
        study(body, feelings(30), tmp_path / "half", resume=True, on_event=steps.append, **said)
    assert not steps


def test_old_states_go_also_where_they_lie_behind_a_link(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    (scratch / "mine.txt").write_text("mine")
    (out := tmp_path / "out").mkdir()
    (out / "training").symlink_to(scratch, target_is_directory=True)
    broken(body, feelings(30), out, step=13, save_every=2)
    assert [path.name for path in scratch.glob("state-*")] == ["state-00000012.safetensors"]
    broken(body, feelings(30), out, step=3, save_every=2, overwrite=True)
    assert [path.name for path in scratch.glob("state-*")] == ["state-00000002.safetensors"]
    study(body, feelings(30), out, save_every=2, resume=True)
    assert [path.name for path in scratch.iterdir()] == ["mine.txt"] and pellucid.load(out).config.head is not None


@pytest.mark.parametrize("kept", [0, 3])
def test_a_log_that_lacks_steps_is_told(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path, caplog: pytest.LogCaptureFixture, kept: int
) -> None:
    broken(body, feelings(30), tmp_path / "half", step=8)
    log = tmp_path / "half" / "training" / "log.jsonl"
    log.write_text("".join(line + "\n" for line in log.read_text().splitlines()[:kept]))
    study(body, feelings(30), tmp_path / "half", resume=True)
    assert f"{log} lacks {5 - kept} of the first 5 steps" in caplog.text
    caplog.clear()
    broken(body, feelings(30), tmp_path / "again", step=8)
    with caplog.at_level(logging.WARNING):
        study(body, feelings(30), tmp_path / "again", resume=True)
    assert "lacks" not in caplog.text


def test_numbers_that_are_none_are_told_before_anything_is_learned_from_them(
    body: "pellucid.Model", feelings: Feelings, tmp_path: Path
) -> None:
    trained = pellucid.train(body, feelings(30), "classify", epochs=1, progress=False)
    with torch.no_grad():
        trained.loaded.module.get_parameter("layers.0.attention.query.weight")[0, 0] = float("nan")
    for work in (
        lambda: pellucid.evaluate(trained, feelings(10)),
        lambda: pellucid.train(trained, feelings(10), "classify", progress=False),
    ):
        with pytest.raises(CorruptFileError, match=r"layers.0.attention.query.weight holds NaN or infinite numbers"):
            work()
