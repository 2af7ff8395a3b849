"""How a process was called, as its results name it."""

from __future__ import annotations

import pytest

from tracer.command_line import this_command


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/home/me/bin/torch-timeline", "run", "a b.py"], "torch-timeline run 'a b.py'"),
        (["/home/me/tracer/__main__.py", "run"], "python -m tracer run"),
        (["train.py"], "train.py"),
    ],
)
def test_the_command_is_without_the_folder_of_the_program(
    argv: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", argv)
    assert this_command() == expected
