"""docs/training.md lists every task and every setting, and its commands are valid."""

import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import click
import pytest

from pellucid.cli.app import app
from pellucid.training.arguments import convert_options
from pellucid.training.names import OBJECTIVES, objective_named
from pellucid.training.recipe import read_recipe
from pellucid.training.settings import Settings
from tests import documents

PAGE = (documents.ROOT / "docs" / "training.md").read_text(encoding="utf-8")


def test_every_task_and_setting_is_listed() -> None:
    assert [one.name for one in OBJECTIVES if f"| `{one.name}` |" not in PAGE] == []
    assert [field.name for field in fields(Settings) if f"`{field.name}`" not in PAGE] == []


def test_tables_of_own_defaults_and_options_are_up_to_date() -> None:
    assert documents.own_defaults() in PAGE
    assert documents.own_options() in PAGE


@pytest.mark.parametrize("line", list(documents.commands(PAGE)))
def test_commands_of_the_page_are_valid(line: str) -> None:
    program, name, *arguments = shlex.split(line)
    command = app.get_command(click.Context(app), name)
    assert program == "pellucid" and command is not None
    with command.make_context(name, arguments) as context:
        assert context.params["output" if name == "train" else "model"]


@pytest.mark.parametrize("text", documents.fenced(PAGE, "toml"))
def test_recipes_of_the_page_are_valid(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    recipe = read_recipe(path)
    assert recipe.task == tomllib.loads(text)["task"]
    assert (
        convert_options(objective_named(recipe.task), recipe.options_and_settings).keys()
        == recipe.options_and_settings.keys()
    )
