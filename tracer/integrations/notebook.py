"""`%%memory_timeline`: a notebook's cell, profiled as `torch-timeline run` profiles a script."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

from tracer.errors import UsageError
from tracer.exporters.notebook import Paragraph, display_in_notebook
from tracer.exporters.screen.terminal import show, visible
from tracer.sessions.schedule import Schedule
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.session import ScriptVoice
from tracer.sessions.training_profile import TrainingProfile

_DEFAULT = Schedule(0, 1, 3, 2)


def load(shell: Any) -> None:
    """Register the magic with a running IPython."""
    shell.register_magic_function(partial(memory_timeline, shell), "cell", "memory_timeline")


def memory_timeline(shell: Any, line: str, cell: str) -> None:
    """Run a cell, and display what filled the device at the peak of the steps in it.

    Models, optimizers and steps are found while it runs. In the notebook: `%load_ext tracer`, and in a cell's first
    line `%%memory_timeline`, or `%%memory_timeline --save-dir profile --active 1 --warmup 0`.
    """
    options = _options(line)
    warmup = options.warmup if options.warmup is not None else 0 if options.inference else _DEFAULT.num_warmup_steps
    schedule = Schedule(options.wait, warmup, options.active, options.repeats)
    profile = ScriptProfile(
        partial(TrainingProfile, save_dir=options.save_dir, schedule=schedule, voice=CellVoice()),
        is_inference=options.inference,
    )
    profile.__enter__()
    error: BaseException | None = None
    try:
        with _numbered_as_shown(shell):
            # An empty line in the place of the magic: lines keep their numbers.
            ran = shell.run_cell(f"\n{cell}", store_history=False)
        error = ran.error_before_exec or ran.error_in_exec
    except BaseException as problem:
        error = problem
        raise
    finally:
        profile.__exit__(type(error) if error is not None else None, error, getattr(error, "__traceback__", None))
        for note in profile.notes:
            _tell(note)
        profile.tell()


@contextmanager
def _numbered_as_shown(shell: Any) -> Iterator[None]:
    """Within the block, code has the number of the cell around it, which IPython has counted already."""
    before = shell.execution_count
    shell.execution_count = len(shell.user_ns.get("In", ())) - 1
    try:
        yield
    finally:
        shell.execution_count = before


class CellVoice(ScriptVoice):
    """The voice of a notebook's cell: messages are displayed below the cell."""

    to_record_the_first = "--wait 0 --warmup 0 records from the first one"
    if_too_short = "`%%memory_timeline --warmup 0 --active 1` needs one"

    def warn(self, sentence: str) -> None:
        """Display it."""
        _tell(sentence)


def _tell(sentence: str) -> None:
    if not display_in_notebook(Paragraph(sentence)):
        show(sentence)


class _OptionError(UsageError):
    """A mistake in the magic's line, which IPython shows without a traceback."""

    def _render_traceback_(self) -> list[str]:
        return [visible(f"{self} {self.hint}")]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise _OptionError(
            f"%%memory_timeline: {message}.",
            hint="It takes --save-dir, --wait, --warmup, --active, --repeats, --inference.",
        )


def _options(line: str) -> argparse.Namespace:
    parser = _Parser(prog="%%memory_timeline", add_help=False, allow_abbrev=False)
    parser.add_argument("--save-dir", default="profiler_outputs")
    for name, default in (
        ("wait", _DEFAULT.num_wait_steps),
        ("warmup", None),
        ("active", _DEFAULT.num_active_steps),
        ("repeats", _DEFAULT.num_repeats),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--inference", action="store_true")
    try:
        words = shlex.split(line)
    except ValueError as error:
        parser.error(str(error).lower().rstrip("."))
    return parser.parse_args(words)
