"""What is said after a success can be copied into a shell, and is never more than two commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.command_line import in_role
from tracer.exporters.screen import next_commands
from tracer.exporters.screen.next_commands import (
    UV_RUN,
    after_run,
    program_name,
)

FILES = ("peak.json", "memory_timeline.html")


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_commands, "_CALLED_AS", "/usr/bin/torch-timeline")


@pytest.mark.parametrize(
    ("called", "by_uv", "name"),
    [
        ("/usr/bin/torch-timeline", False, "torch-timeline"),
        ("/usr/bin/torch-timeline", True, "torch-timeline"),
        ("main.py", False, "python main.py"),
        ("/src/main.py", True, "uv run main.py"),
    ],
)
def test_it_is_called_as_it_was(monkeypatch: pytest.MonkeyPatch, called: str, by_uv: bool, name: str) -> None:
    monkeypatch.setattr(next_commands, "_CALLED_AS", called)
    monkeypatch.delenv(UV_RUN, raising=False)
    if by_uv:
        monkeypatch.setenv(UV_RUN, "1")
    assert program_name() == name


def test_a_spawned_child_names_the_program_as_its_parent_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python starts it with `-c`."""
    monkeypatch.setattr(next_commands, "_CALLED_AS", "-c")
    for name, value in in_role(program="python main.py").items():
        monkeypatch.setenv(name, value)
    assert program_name() == "python main.py"


def test_after_a_run() -> None:
    folder = Path("profile")
    page = "Next: open profile/memory_timeline.html in a browser, or "
    compare = "compare with another run by `torch-timeline diff profile OTHER`."
    files = f"Files in profile: {', '.join(FILES)}"
    assert after_run(folder, FILES) == (f"{files}.", page + compare)
    assert after_run(folder, FILES, is_full=False)[0] == f"{files}; --full prints all tables."
    assert after_run(folder, FILES[:1]) == (f"Files in profile: {FILES[0]}.", "Next: " + compare)
    assert after_run(folder, ()) == ()
