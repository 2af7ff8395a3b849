"""Options declared as fields of dataclasses: typer sees each field, and the command is given the dataclasses whole."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner

from tracer.commands.options import number, option, switched_off, with_options


@dataclass(frozen=True)
class Size:
    width: Annotated[int, number("Width.", "Size", least=1)] = 2
    label: Annotated[str, option("Label.", "Size")] = "plain"


@dataclass(frozen=True)
class Files:
    folder: Annotated[str, option("Folder.", "Files")]
    left_out: frozenset[str] = switched_off({"peak-json": "peak.json.", "page": "The page."}, panel="Files")


def given(*arguments: str) -> tuple[int, list[object]]:
    """The exit status, and what the command was called with."""
    calls: list[object] = []

    @with_options
    def command(name: str, size: Size, files: Files, loud: bool = False) -> None:
        calls.extend((name, size, files, loud))

    app = typer.Typer()
    app.command()(command)
    return CliRunner().invoke(app, arguments).exit_code, calls


def test_a_command_is_given_its_dataclasses_whole() -> None:
    status, calls = given("a", "--folder", "out", "--width", "3", "--loud")
    assert (status, calls) == (0, ["a", Size(3, "plain"), Files("out", frozenset()), True])


def test_a_switch_that_is_off_is_in_the_set_of_its_field() -> None:
    assert given("a", "--folder", "out", "--no-peak-json")[1][2] == Files("out", frozenset({"peak-json"}))
    assert given("a", "--folder", "out", "--page")[1][2] == Files("out", frozenset())


def test_a_field_without_a_default_is_an_option_that_must_be_given() -> None:
    assert given("a") == (2, [])


def test_a_number_that_is_too_small_or_none_is_a_usage_error() -> None:
    assert given("a", "--folder", "out", "--width", "0") == (2, [])
    assert given("a", "--folder", "out", "--width", "x") == (2, [])
