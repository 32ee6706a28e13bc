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
    ("settings", "message"),
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
    ],
)
def test_invalid_settings_are_refused_by_name(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Settings.of(settings, {})


def test_given_settings_override_the_defaults_of_the_task() -> None:
    found = Settings.of({"epochs": 7}, {"epochs": 2, "learning_rate": 1e-4})
    assert (found.epochs, found.learning_rate, found.seed) == (7, 1e-4, 0)


def test_tokens_per_batch_overrides_the_default_batch_size() -> None:
    defaults = {"batch_size": 32}
    assert Settings.of({"tokens_per_batch": 512}, defaults).batch_size is None
    assert Settings.of({"tokens_per_batch": 512, "batch_size": 4}, defaults).batch_size == 4
    assert Settings.of({}, defaults).batch_size == 32


def test_warmup_is_a_share_or_a_number_of_steps() -> None:
    assert Settings(warmup=0.1).warmup_steps(95) == 10
    assert Settings(warmup=25).warmup_steps(95) == 25
    assert Settings(warmup=0.0).warmup_steps(95) == 0


@pytest.mark.parametrize("warmup", [0.1, 1, 25])
def test_warmup_is_shorter_than_the_training(warmup: float) -> None:
    """The rate starts at 0, so a run that only warms up would not train at all."""
    assert [Settings(warmup=warmup).warmup_steps(steps) for steps in (1, 2)] == [0, 1]


# -- from strings to values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
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
def test_values_are_converted_to_the_type_of_their_field(value: Any, hint: Any, expected: Any) -> None:
    converted = convert_value("it", value, hint)
    assert converted == expected and (
        expected is None or type(converted) is type(expected) or isinstance(value, CommandLineText)
    )
    assert not isinstance(converted, CommandLineText)


@pytest.mark.parametrize(
    ("value", "hint", "message"),
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
def test_values_of_another_type_are_refused(value: Any, hint: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        convert_value("it", value, hint)


def test_options_and_settings_are_separated() -> None:
    objective, settings = objective_and_settings(CLASSIFY, {"max_length": 32, "epochs": 1, "classes": ["no", "yes"]})
    assert (objective.max_length, settings.epochs) == (32, 1)
    assert vars(objective)["classes"] == ("no", "yes")


def test_unknown_option_is_refused_with_suggestions() -> None:
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
def test_every_listed_objective_has_valid_defaults_columns_and_options(name: Any) -> None:
    objective = name.objective()
    assert objective.name == name.name
    assert set(objective.default_settings) <= {field.name for field in fields(Settings)}
    Settings.of({}, objective.default_settings)
    assert all(column in name.reads for column in {*objective.columns} - {"answer_start", "translation"})
    assert options_of(name)


def test_names_of_objectives_are_unique() -> None:
    names = [name for objective in OBJECTIVES for name in (objective.name, *objective.aliases)]
    assert len(names) == len(set(names))


def test_tasks_of_objectives_exist() -> None:
    from pellucid.tasks.names import TASKS

    assert {one.task for one in OBJECTIVES} - {""} <= {task.name for task in TASKS}


def test_unknown_task_is_refused_with_suggestions() -> None:
    with pytest.raises(InputError, match=r"unknown task 'clasify' \(did you mean classify"):
        objective_named("clasify")
    with pytest.raises(InputError, match="unknown task 'qqq': one of text-classification, "):
        objective_named("qqq")


@dataclass(frozen=True)
class _FakeObjective:
    plain: int = 0
    _found: int = 0


def test_private_fields_are_no_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(CLASSIFY), "objective", lambda self: _FakeObjective)
    assert list(options_of(CLASSIFY)) == ["plain"]
