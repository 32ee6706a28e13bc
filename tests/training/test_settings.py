"""Training settings: each value is converted to its type, and each error names the setting."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest

from pellucid.errors import InputError
from pellucid.training.arguments import CommandLineText, convert_value, objective_and_settings, options_of
from pellucid.training.names import OBJECTIVES, objective_named
from pellucid.training.settings import Settings

CLASSIFY = objective_named("classify")


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"epochs": 0}, "epochs is 0, expected a whole number from 1"),
        ({"epochs": 2.5}, "epochs is 2.5"),
        ({"epochs": True}, "epochs is True"),
        ({"learning_rate": -1e-4}, "learning_rate is -0.0001, expected at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan, expected a finite number"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"warmup": 1.5}, "warmup is 1.5, expected a share below 1, or a whole number of steps"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"schedule": "linnear"}, r"schedule is 'linnear' \(did you mean linear\?\)"),
        ({"precision": "float16"}, "precision is 'float16'"),
        ({"seed": -1}, "seed is -1"),
        ({"keep_best": 1}, "keep_best is 1, expected true or false"),
        ({"freeze": "embeddings.*"}, "freeze is 'embeddings.*', expected names of parameters"),
        ({"freeze": ("",)}, "freeze is"),
        ({"learning_rat": 1.0}, r"unknown setting 'learning_rat' \(did you mean learning_rate"),
    ],
)
def test_what_cannot_be_is_refused_by_name(said: dict[str, Any], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        Settings.of(said, {})


def test_what_is_said_goes_before_the_defaults_of_a_task() -> None:
    found = Settings.of({"epochs": 7}, {"epochs": 2, "learning_rate": 1e-4})
    assert (found.epochs, found.learning_rate, found.seed) == (7, 1e-4, 0)


def test_positions_that_are_said_go_before_a_task_s_own_rows() -> None:
    own = {"batch_size": 32}
    assert Settings.of({"tokens_per_batch": 512}, own).batch_size is None
    assert Settings.of({"tokens_per_batch": 512, "batch_size": 4}, own).batch_size == 4
    assert Settings.of({}, own).batch_size == 32


def test_warm_up_is_a_share_or_a_number_of_steps() -> None:
    assert Settings(warmup=0.1).warmup_steps(95) == 10
    assert Settings(warmup=25).warmup_steps(95) == 25
    assert Settings(warmup=0.0).warmup_steps(95) == 0


@pytest.mark.parametrize("warmup", [0.1, 1, 25])
def test_warm_up_is_never_all_there_is(warmup: float) -> None:
    """The rate starts at 0, so a run that only warms up would not train at all."""
    assert [Settings(warmup=warmup).warmup_steps(steps) for steps in (1, 2)] == [0, 1]


# -- from strings to values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint", "found"),
    [
        (3, float, 3.0),
        (["a", "b"], tuple[str, ...], ("a", "b")),
        ("a, b,", tuple[str, ...], ("a", "b")),
        ("none", int | None, None),
        (None, int | None, None),
        ("none", str, "none"),
        (np.int64(3), int, 3),
        (np.int64(3), float, 3.0),
        (np.float32(0.5), float, 0.5),
        (np.array([1, 2]), tuple[int, ...], (1, 2)),
        (CommandLineText("3"), int, 3),
        (CommandLineText("3"), float, 3.0),
        (CommandLineText("1e-4"), float, 1e-4),
        (CommandLineText("true"), bool, True),
        (CommandLineText("3"), str, "3"),
        (CommandLineText("all"), str, "all"),
        (CommandLineText("3"), int | str, 3),
        (CommandLineText("[1, 2]"), tuple[int, ...], (1, 2)),
        (CommandLineText("layers.0.*"), tuple[str, ...], ("layers.0.*",)),
        (CommandLineText("none"), float | None, None),
        (CommandLineText("somewhere/model"), Any, "somewhere/model"),
        (CommandLineText('{"good": 2.5}'), Any, {"good": 2.5}),
        (CommandLineText("3"), Any, "3"),
    ],
)
def test_a_value_becomes_what_its_field_wants(value: Any, hint: Any, found: Any) -> None:
    made = convert_value("it", value, hint)
    assert made == found and (found is None or type(made) is type(found) or isinstance(value, CommandLineText))
    assert not isinstance(made, CommandLineText)


@pytest.mark.parametrize(
    ("value", "hint", "complaint"),
    [
        ("3", int, "it is '3', expected a whole number"),
        (3.5, int, "it is 3.5, expected a whole number"),
        (True, float, "it is True, expected a number"),
        (1, bool, "it is 1, expected true or false"),
        (CommandLineText("yes"), bool, "expected true or false"),
        (CommandLineText("x"), int | None, "it is 'x', expected a whole number or 'none'"),
        ([1, "a"], tuple[int, ...], "expected a list, each a whole number"),
        ({"a": 1}, tuple[str, ...], "expected a list, each a text"),
    ],
)
def test_a_value_of_another_type_is_refused(value: Any, hint: Any, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        convert_value("it", value, hint)


def test_options_and_settings_are_told_apart() -> None:
    objective, settings = objective_and_settings(CLASSIFY, {"max_length": 32, "epochs": 1, "classes": ["no", "yes"]})
    assert (objective.max_length, settings.epochs) == (32, 1)
    assert vars(objective)["classes"] == ("no", "yes")


def test_a_name_that_is_neither_is_met_by_near_ones() -> None:
    with pytest.raises(InputError, match=r"text-classification has no setting 'epoch' \(did you mean epochs"):
        objective_and_settings(CLASSIFY, {"epoch": 1})
    with pytest.raises(InputError, match=r"its options are .*max_length.*; the settings are .*learning_rate"):
        objective_and_settings(CLASSIFY, {"qqqq": 1})
    with pytest.raises(
        InputError, match=r"no setting 'teacher', which is an option of text-classification, .*, fill-mask"
    ):
        objective_and_settings(objective_named("translation"), {"teacher": "m"})


# -- the list of objectives --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OBJECTIVES, ids=lambda one: one.name)
def test_every_objective_is_there_and_can_be_asked_for(name: Any) -> None:
    kind = name.objective()
    assert kind.name == name.name
    assert set(kind.default_settings) <= {field.name for field in fields(Settings)}
    Settings.of({}, kind.default_settings)
    assert all(word in name.reads for word in {*kind.columns} - {"answer_start", "translation"})
    assert options_of(name)


def test_no_name_stands_for_two_objectives() -> None:
    names = [word for one in OBJECTIVES for word in (one.name, *one.aliases)]
    assert len(names) == len(set(names))


def test_tasks_of_objectives_are_tasks() -> None:
    from pellucid.tasks.names import TASKS

    assert {one.task for one in OBJECTIVES} - {""} <= {task.name for task in TASKS}


def test_an_unknown_task_is_met_by_near_ones() -> None:
    with pytest.raises(InputError, match=r"unknown task 'clasify' \(did you mean classify"):
        objective_named("clasify")
    with pytest.raises(InputError, match="unknown task 'qqq': one of text-classification, "):
        objective_named("qqq")


@dataclass(frozen=True)
class _Row:
    plain: int = 0
    _found: int = 0


def test_what_is_found_in_the_data_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(CLASSIFY), "objective", lambda self: _Row)
    assert list(options_of(CLASSIFY)) == ["plain"]
