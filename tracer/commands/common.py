"""Helpers of all commands: errors as a line or two, and checks of options and files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import typer

from tracer.answers.files import SNAPSHOT
from tracer.collector import make_all_old, paused_gc
from tracer.errors import OutputError, Terminated, TracerError, UsageError
from tracer.exporters.screen.terminal import say
from tracer.loaded_modules import around_load
from tracer.working_folder import working_folder

SNAPSHOT_NAME = SNAPSHOT.file_name
THRESHOLD_EXCEEDED: Final = 3
"""Exit status of an answer that is over a threshold of the user's, such as the memory of a GPU."""


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Turn a mistake of the user's, or an early end, into a line or two and an exit status."""
    status = 1
    try:
        yield
    except TracerError as error:
        say_all(error.lines)
        status = error.exit_status
    except Terminated as error:
        say(f"Error: Ended by {error.signal_name}.")
    except KeyboardInterrupt:
        say("Error: Interrupted.")
    else:
        return
    raise typer.Exit(status)


@contextmanager
def kept_import_path() -> Iterator[None]:
    """Put `sys.path` back when the block ends: what a user's model imports is looked for in the user's folders."""
    before = list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = before


def say_all(lines: Iterable[str]) -> None:
    """Print lines on stderr."""
    for line in lines:
        say(line)


def was_given(context: typer.Context, parameter: str) -> bool:
    """True if the user named the option, here or in pyproject.toml."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name != "DEFAULT"


def refuse(context: typer.Context, parameters: Iterable[str], where: str, *, hint: str = "Leave it out.") -> None:
    """Refuse options of the command line that would have no effect; those of pyproject.toml are for many commands.

    Args:
        where: Ends the sentence "works only ...".
    """
    names = {option.name: max(option.opts, key=len) for option in context.command.params if option.opts}
    for parameter in parameters:
        source = context.get_parameter_source(parameter)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"{names[parameter]} works only {where}.", hint=hint)


def check_output(out: Path, read: Iterable[Path]) -> None:
    """Check, before anything is read, that a page can be written, and is no input."""
    from tracer.exporters.files import check_folder

    hint = "Name another file with --html."
    if out.is_dir():
        raise OutputError(f"{out} is a folder.", hint=hint)
    # pathlib's `resolve` raises for a link that leads back to itself.
    if os.path.realpath(working_folder() / out) in [os.path.realpath(working_folder() / path) for path in read]:
        raise OutputError(f"{out} is named twice.", hint=hint)
    try:
        check_folder(out.parent)
    except OutputError as error:  # whose hint is about the folder of a run
        raise OutputError(str(error), hint=hint) from error


def snapshot_path(path: Path) -> Path:
    """Return the snapshot itself, or the one in a save directory."""
    return path / SNAPSHOT_NAME if path.is_dir() else path


_SHORT: Final = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}  # Rounds, of libgomp; ms, of libiomp and libomp
_OF_USER: Final = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY")


def load_torch_well() -> None:
    """Have the threads of torch, which is loaded later, spin for a short time, unless the user says for how long.

    By default idle threads spin: two trainings on the same cores take each other's time, and each is three times as
    slow as alone. The libraries read the environment when torch is loaded. Afterwards the environment is restored, for
    the user's script and the processes that it starts.

    Its 180,000 objects are no garbage: the collector, which would walk over them several times, gets them as old ones.

    Source: https://gcc.gnu.org/onlinedocs/libgomp/GOMP_005fSPINCOUNT.html, and KMP_BLOCKTIME of
    https://openmp.llvm.org/design/Runtimes.html.
    """
    if "torch" in sys.modules:
        return

    @contextmanager
    def loading() -> Iterator[None]:
        end()
        chosen = {} if any(name in os.environ for name in _OF_USER) else _SHORT
        os.environ.update(chosen)
        try:
            with paused_gc():
                yield
                make_all_old()
        finally:
            for name in chosen:
                os.environ.pop(name, None)

    end = around_load("torch", loading)
