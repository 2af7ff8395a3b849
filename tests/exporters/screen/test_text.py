"""Lines and tables of the screen: no word is lost or broken, and a table is whole where there is no terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tracer.answers.paths import short_path, shorten_paths, source_place
from tracer.answers.tables import ColumnKind, Place, Table, cell_text, columns, signed
from tracer.exporters.screen.text import print_table, say, say_wrapped
from tracer.units import GIB

PATH = "/mnt/data/somebody/project/src/train/a_rather_long_name_of_a_model.py:174"


def console(*, width: int = 40, is_terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=is_terminal, color_system=None, highlight=False)


def printed(made: Console) -> str:
    assert isinstance(made.file, io.StringIO)
    return made.file.getvalue()


@given(st.lists(st.text("ab[]/%", min_size=1, max_size=60), min_size=1, max_size=20), st.integers(0, 8))
def test_prose_keeps_every_word_whole(words: list[str], indent: int) -> None:
    made = console()
    say_wrapped(made, " ".join(words), indent=indent)
    assert printed(made).split() == words
    for line in printed(made).splitlines():
        assert len(line) <= 40 or len(line.split()) == 1


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_line_is_broken_between_words_on_a_terminal_alone(is_terminal: bool) -> None:
    made = console(is_terminal=is_terminal)
    say(made, f"Look first at the line in {PATH} of yours.", indent=2)
    lines = printed(made).splitlines()
    assert (len(lines) > 1) is is_terminal
    assert any(PATH in line for line in lines)
    assert all(line.startswith("  ") for line in lines)


def test_a_table_is_whole_where_there_is_no_terminal() -> None:
    made = console()
    print_table(Table("By line", (*columns("bytes", "bytes"), *columns("text", "where")), ((GIB, PATH),)), made)
    empty, title, _, row = printed(made).splitlines()
    assert (empty, title) == ("", "By line")
    assert row.split() == ["1.00", "GiB", PATH]


def test_a_table_breaks_no_word_on_a_narrow_terminal() -> None:
    made = console(width=60, is_terminal=True)
    heads = (*columns("count", "bytes"), *columns("share", "share"), *columns("text", "where", "why it is there"))
    rows = ((1_234_567_890, 0.125, PATH, "because of this and that"),)
    print_table(Table("By line", heads, rows), made)
    assert "1,234,567,890" in printed(made) and "12.5 %" in printed(made)
    assert PATH in printed(made)
    assert {"because", "of", "this", "and", "that"} <= set(printed(made).split())


def test_rows_beyond_the_first_are_summed_where_that_says_something() -> None:
    heads = (*columns("bytes", "size"), *columns("bytes", "peak", adds_up=False), *columns("text", "where"))
    table = Table("t", heads, tuple((size, size, f"line {size}") for size in (9, 5, 3, 1)))
    assert list(table.first_rows(2)) == [(9, 9, "line 9"), (5, 5, "line 5"), (4, "", "2 more")]
    assert list(table.first_rows(3)) == list(table.rows), "one row is as short as its sum"
    assert list(replace(table, is_whole=True).first_rows(1)) == list(table.rows)


def test_words_share_a_column_on_the_screen() -> None:
    heads = (*columns("bytes", "size"), *columns("text", "module", "line"))
    joined = Table("t", heads, ((9, "net.0", Place("mm", "train.py", 3)), (1, "", "a.py:1")), is_wide=True).joined()
    assert [column.name for column in joined.columns] == ["size", "module, line"]
    assert joined.rows == ((9, "net.0, mm  train.py:3"), (1, "a.py:1"))


def test_a_cell_is_written_by_the_kind_of_its_column() -> None:
    kinds: tuple[tuple[ColumnKind, float], ...] = (
        ("bytes", 2048),
        ("change", 2048),
        ("count", 2048),
        ("duration", 1_500_000),
        ("share", 0.5),
    )
    texts = [cell_text(value, column) for kind, value in kinds for column in columns(kind, "")]
    assert texts == ["2.00 KiB", "+2.00 KiB", "2,048", "1.500", "50.0 %"]
    (words,) = columns("text", "")
    assert cell_text(None, words) == "-"
    assert cell_text(Place("f", "train.py", 3, ("from g",)), words) == "f  train.py:3\n  from g"


def test_changes_have_a_sign() -> None:
    assert [signed(1024), signed(-1024), signed(0)] == ["+1.00 KiB", "-1.00 KiB", "0 B"]


# ---------------------------------------------------------------------------------------------------------------- paths
@pytest.mark.parametrize(
    ("path", "short"),
    [
        ("/home/me/envs/gnn/lib/python3.11/site-packages/torch_geometric/data.py", "torch_geometric/data.py"),
        ("/usr/lib/python3/dist-packages/numpy/core.py", "numpy/core.py"),
        ("C:\\Users\\me\\venv\\Lib\\site-packages\\torch_geometric\\data.py", "torch_geometric\\data.py"),
        ("/home/me/train.py", "~/train.py"),
        ("/Users/me/project/train.py", "~/project/train.py"),
        ("C:\\Users\\me\\train.py", "~\\train.py"),
        ("/mnt/data/train.py", "/mnt/data/train.py"),
        ("train.py", "train.py"),
        ("<string>", "<string>"),
        ("/homes/me.py", "/homes/me.py"),
    ],
)
def test_short_paths(path: str, short: str) -> None:
    assert short_path(path) == short


def test_below_the_working_directory_a_path_is_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert source_place(str(tmp_path / "src" / "train.py"), 14) == "src/train.py:14"
    assert source_place(str(tmp_path / "train.py"), None) == "train.py"
    assert source_place("cell 3", 14) == "cell 3, line 14"


def test_paths_in_a_sentence() -> None:
    said = "Look first at step (/home/me/lib/site-packages/lightning/loop.py:7) with 1/2 of it; and/or a smaller batch."
    assert shorten_paths(said) == "Look first at step (lightning/loop.py:7) with 1/2 of it; and/or a smaller batch."
