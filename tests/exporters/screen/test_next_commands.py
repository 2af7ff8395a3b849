"""What is said after a success can be copied into a shell, and is never more than two commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.command_line import in_role
from tracer.exporters.screen import next_commands
from tracer.exporters.screen.next_commands import (
    UV_RUN,
    after_diff,
    after_job,
    after_prediction,
    after_run,
    after_snapshot,
    program_name,
)

FILES = ("peak.json", "memory_timeline.html")
SNAPSHOT = Path("my file.pkl")


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


def test_after_a_snapshot_the_two_most_useful() -> None:
    def said(devices: tuple[int, ...], **options: bool) -> str:
        usual = {"has_failed": False, "has_page": False, "has_settings": False} | options
        (line,) = after_snapshot(SNAPSHOT, devices, **usual)
        return line

    assert said((1, 0)) == (
        "Next: look at one device alone by `torch-timeline snapshot 'my file.pkl' --device 1`, or look at it in a "
        "browser by `torch-timeline snapshot 'my file.pkl' --html snapshot.html`."
    )
    assert "--html" in said((0,)) and "try other allocator settings by" in said((0,))
    assert "would have been enough by" in said((0,), has_failed=True)
    assert "--html" not in said((0,), has_page=True) and "diff" in said((0,), has_page=True)
    assert "--settings" not in said((0,), has_settings=True)


def test_after_a_job_its_worst_rank() -> None:
    (line,) = after_job("ranks/rank 3.pkl", "ranks/rank 0.pkl", [Path("ranks")])
    assert "`torch-timeline snapshot 'ranks/rank 3.pkl'`" in line
    assert "`torch-timeline diff 'ranks/rank 0.pkl' 'ranks/rank 3.pkl'`" in line
    assert "`torch-timeline snapshot ranks --json`" in after_job("rank3.pkl", "rank3.pkl", [Path("ranks")])[0]


def test_after_a_difference(tmp_path: Path) -> None:
    before, after = tmp_path / "a", tmp_path / "b"
    after.mkdir()
    (line,) = after_diff(before, after, has_page=False)
    assert "--html diff.html" in line and ", or" not in line
    (after / "memory_timeline.html").touch()
    assert f"open {after / 'memory_timeline.html'}" in after_diff(before, after, has_page=True)[0]
    (after / "memory_timeline.html").unlink()
    assert after_diff(before, after, has_page=True) == ()
    assert "`torch-timeline snapshot 'my file.pkl'`" in after_diff(before, SNAPSHOT, has_page=True)[0]


@pytest.mark.parametrize(
    ("fits", "said"),
    [(None, ("--on 24GiB", "--save-dir")), (True, ("--save-dir",)), (False, ("--save-dir",))],
)
def test_after_a_prediction(fits: bool | None, said: tuple[str, ...]) -> None:
    (line,) = after_prediction(fits, None, (), is_full=True)
    options = ("--on 24GiB", "--save-dir")
    assert {option for option in options if option in line} == set(said)


def test_after_a_prediction_with_files_its_page() -> None:
    _, line = after_prediction(False, Path("out"), FILES, is_full=True)
    assert line == "Next: open out/memory_timeline.html in a browser."
