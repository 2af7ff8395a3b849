"""The line `Next:` after every success: the two most useful commands, ready to be copied."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from tracer.command_line import role
from tracer.exporters.screen.terminal import is_terminal
from tracer.null_gpu.cards import named_card
from tracer.units import MIB

_CALLED_AS = sys.argv[0] if sys.argv else ""
"""Now: the script that `run` runs has arguments of its own."""
UV_RUN = "UV_RUN_RECURSION_DEPTH"
"""Set by `uv run` for what it starts."""


def program_name() -> str:
    """Command that called this program: installed, as a module, or from a checkout, by uv or another Python."""
    if (of_parent := role("program")) is not None:
        return str(of_parent)
    called = Path(_CALLED_AS)
    if called.name == "main.py":
        return from_checkout()
    return "python -m tracer" if called.name == "__main__.py" else "torch-timeline"


def from_checkout() -> str:
    """Words that call it from a checkout."""
    return "uv run main.py" if UV_RUN in os.environ else "python main.py"


def command_line(*words: object) -> str:
    """A command of this program as a shell takes it, in backticks."""
    return f"`{program_name()} {shlex.join(map(str, words))}`"


def fit_words(settings: Mapping[str, object], device_name: str, capacity_bytes: int | None) -> str:
    """Command that finds the least change with which a script fits, without its GPU; empty where no script is known.

    Args:
        settings: What the run was made with: `script`, `arguments` and, on a null GPU, `on`.
    """
    script, own, card = (str(settings.get(name, "")) for name in ("script", "arguments", "on"))
    if not card and (known := named_card(device_name)) is not None:
        card = known.name
    elif not card and capacity_bytes is not None:
        card = f"{capacity_bytes // MIB}MiB"
    if not script or not card:
        return ""
    command = command_line("fit", "--on", card, *shlex.split(script), *shlex.split(own))
    return f"find the least change with which it fits, without the GPU, by {command}"


def after_run(folder: Path, written: Collection[str], *, fit: str = "", is_full: bool = True) -> tuple[str, ...]:
    """After a run, or a report on one: its files in a line, and what to do next.

    Args:
        fit: How to find what makes it fit; empty where memory did not run out.
    """
    ideas = [fit] if fit else []
    if "memory_timeline.html" in written:
        ideas.append(f"open {folder / 'memory_timeline.html'} in a browser")
    if "peak.json" in written:
        ideas.append(f"compare with another run by {command_line('diff', folder, 'OTHER')}")
    return (*_files(folder, written, is_full=is_full), *_line(ideas))


def after_snapshot(
    path: Path, devices: Sequence[int], *, has_failed: bool, has_page: bool, has_settings: bool
) -> tuple[str, ...]:
    """After the explanation of a snapshot.

    Args:
        has_settings: Whether other settings of the allocator were tried, or cannot be.
    """
    ideas = []
    if len(devices) > 1:
        ideas.append(f"look at one device alone by {command_line('snapshot', path, '--device', devices[0])}")
    if not has_page:
        ideas.append(f"look at it in a browser by {command_line('snapshot', path, '--html', 'snapshot.html')}")
    if not has_settings:
        words = (
            "ask whether other allocator settings would have been enough"
            if has_failed
            else "try other allocator settings"
        )
        ideas.append(f"{words} by {command_line('snapshot', path, '--settings', 'expandable_segments:True')}")
    ideas.append(f"compare with another one by {command_line('diff', path, 'OTHER')}")
    return _line(ideas)


def after_job(worst: str, typical: str, paths: Sequence[Path]) -> tuple[str, ...]:
    """After a job's recordings were put beside each other: the files of the worst rank and of a typical one."""
    ideas = [f"look at the worst rank alone by {command_line('snapshot', worst)}"]
    if typical != worst:
        ideas.append(f"see what it has more than another by {command_line('diff', typical, worst)}")
    return _line([*ideas, f"print all of the answer by {command_line('snapshot', *paths, '--json')}"])


def after_diff(before: Path, after: Path, *, has_page: bool) -> tuple[str, ...]:
    """After a comparison of two sides, each a snapshot or a folder of results."""
    ideas = []
    if not has_page:
        ideas.append(f"look at it in a browser by {command_line('diff', before, after, '--html', 'diff.html')}")
    if (page := after / "memory_timeline.html").is_file():
        ideas.append(f"open {page}")
    elif not after.is_dir():
        ideas.append(f"explain the second one alone by {command_line('snapshot', after)}")
    return _line(ideas)


def after_prediction(
    fits: bool | None, folder: Path | None, written: Collection[str], *, is_full: bool
) -> tuple[str, ...]:
    """After a prediction."""
    ideas = []
    if fits is None:
        ideas.append("add --on 24GiB to ask whether it fits there")
    if folder is None:
        ideas.append("add --save-dir DIR to get the page and the other files of a run")
    elif "memory_timeline.html" in written:
        ideas.append(f"open {folder / 'memory_timeline.html'} in a browser")
    files = () if folder is None else _files(folder, written, is_full=is_full)
    return (*files, *_line(ideas))


def _files(folder: Path, names: Collection[str], *, is_full: bool) -> tuple[str, ...]:
    tables = "" if is_full else "; --full prints all tables"
    return (f"Files in {folder}: {', '.join(names)}{tables}.",) if names else ()


def _line(ideas: Sequence[str]) -> tuple[str, ...]:
    """The first two ideas; on a terminal that is too narrow for both, each has a line of its own."""
    if not ideas:
        return ()
    line = f"Next: {', or '.join(ideas[:2])}."
    is_narrow = is_terminal(sys.stderr) and len(line) > shutil.get_terminal_size().columns
    return (f"Next: {ideas[0]},", f"   or {ideas[1]}.") if is_narrow and len(ideas) > 1 else (line,)
