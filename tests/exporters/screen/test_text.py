"""Lines and tables of the screen: no word is lost or broken, and a table is whole where there is no terminal."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.text import Text

from tracer.exporters.screen.paths import short_path, shorten_paths, source_place
from tracer.exporters.screen.text import print_table, say, say_wrapped, signed, table

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
    filled = table("bytes")
    filled.add_column("where", overflow="fold")
    filled.add_row("1.00 GiB", Text(PATH))
    print_table("By line", filled, made)
    empty, title, _, row = printed(made).splitlines()
    assert (empty, title) == ("", "By line")
    assert row.split() == ["1.00", "GiB", PATH]


def test_a_table_breaks_no_word_on_a_narrow_terminal() -> None:
    made = console(width=60, is_terminal=True)
    filled = table("bytes", "share")
    filled.add_column("where", overflow="fold")
    filled.add_column("why it is there", overflow="fold")
    filled.add_row("1,234,567,890", "12.5 %", Text(PATH), "because of this and that")
    print_table("By line", filled, made)
    assert PATH in printed(made)
    assert {"because", "of", "this", "and", "that"} <= set(printed(made).split())


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
