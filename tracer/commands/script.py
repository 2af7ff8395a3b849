"""Run a user's script as Python would run it, under a profile."""

from __future__ import annotations

import runpy
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tracer.capture.deferred_handlers import handlers_dropped
from tracer.commands.common import say_all
from tracer.commands.script_modules import modules_of
from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.terminal import say

if TYPE_CHECKING:
    from tracer.sessions.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script


BEFORE_SCRIPT: Final = "Options of this command come before the script's name: what follows it is the script's."


class Script(NamedTuple):
    """The script that a command is about."""

    path: str  # Or a module's name
    arguments: list[str]  # Its own
    is_module: bool = False
    notes: tuple[str, ...] = ()  # Sentences on what it sets in its environment too late

    @property
    def words(self) -> tuple[str, ...]:
        """Words behind `python` that run it."""
        return (*(["-m"] if self.is_module else []), self.path, *self.arguments)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the run: the script and its arguments, quoted for a shell."""
        num_words = 1 + self.is_module
        return {"script": shlex.join(self.words[:num_words]), "arguments": shlex.join(self.words[num_words:])}

    def check(self) -> None:
        """Check that the script or module exists, before anything of it runs."""
        path = Path(self.path)
        if not self.is_module:
            if path.is_dir():
                if not (path / "__main__.py").is_file():
                    raise TracerError(f"{self.path} is a folder without a __main__.py.", hint="Name a script in it.")
            elif not path.is_file():
                raise TracerError(f"There is no file {self.path}.", hint="Name a script, or a module with -m.")
            return
        root = self.path.partition(".")[0]
        if root not in sys.modules and PathFinder.find_spec(root, ["", *sys.path]) is None:
            raise TracerError(f"There is no module {root}.", hint="Name one that Python finds from this folder.")


def no_card_named(arguments: Sequence[str] | None) -> UsageError:
    """Return the error of a command that needs `--on`, which may stand among the script's own arguments."""
    behind = any(word.partition("=")[0] == "--on" for word in arguments or ())
    return UsageError(
        "On which GPU is the script to run? --on is missing.",
        hint=BEFORE_SCRIPT if behind else "Add --on with a GPU, such as --on h100.",
    )


def run_script(
    profile: ScriptProfile,
    script: Script,
    *,
    quiet: bool = False,
    is_answer: Callable[[Exception], bool] = lambda error: False,
    around_answer: AbstractContextManager[None] | None = None,
) -> bool:
    """Run a script under a profile; False if it raised, after its traceback.

    Args:
        is_answer: Whether an exception is what was asked for, so that its traceback is nothing to show.
        around_answer: Entered when the script has ended, before the profile's answer is printed; left before the last
            lines, which say what to do next.

    Raises:
        SystemExit: The script's own, with its status.
        TracerError: It cannot be profiled.
    """
    from tracer.sessions.jobs.ranks import leave_failure
    from tracer.sessions.script_run import FirstStepsDone
    from tracer.sessions.termination import signals_deferred

    with ExitStack() as ended:
        try:
            with profile, _as_main(script), _told_of_end(profile.script_ended):
                try:
                    if script.is_module:
                        runpy.run_module(script.path, run_name="__main__", alter_sys=True)
                    else:
                        runpy.run_path(script.path, run_name="__main__")
                finally:  # a time limit of the script's own is for the script
                    ended.enter_context(handlers_dropped())
        except FirstStepsDone:
            return True
        except TracerError:  # a mistake of the user's, said by whoever called
            raise
        except Exception as error:
            leave_failure(error)
            if not is_answer(error):
                sys.stderr.writelines(traceback.format_exception(type(error), error, _of_script(error)))
            return False
        finally:
            with signals_deferred():
                if not profile.is_in_child:
                    with around_answer or nullcontext():
                        next_lines = _tell(profile, quiet=quiet)
                    say_all(next_lines)
    return True


def _tell(profile: ScriptProfile, *, quiet: bool) -> tuple[str, ...]:
    if not quiet:
        say_all(f"Note: {note}" for note in profile.notes)
    if profile.session is None:
        say("Nothing was recorded.")
    return profile.tell()


@contextmanager
def _as_main(script: Script) -> Iterator[None]:
    before = sys.argv
    sys.argv = [script.path, *script.arguments]
    path = Path(script.path).resolve()
    folder = Path.cwd() if script.is_module else path if path.is_dir() else path.parent
    sys.path.insert(0, "" if script.is_module else str(folder))
    try:
        with modules_of(folder):
            yield
    finally:
        sys.argv = before


@contextmanager
def _told_of_end(ended: Callable[[], None]) -> Iterator[None]:
    """Call back when the script's last line has run: runpy lets go of its variables before it returns."""
    run: Any = runpy._run_code  # type: ignore[attr-defined]

    def run_code(*arguments: Any, **options: Any) -> Any:
        runpy._run_code = run  # type: ignore[attr-defined]  # the script may use runpy, too
        variables = run(*arguments, **options)
        ended()
        return variables

    runpy._run_code = run_code  # type: ignore[attr-defined]
    try:
        yield
    finally:
        runpy._run_code = run  # type: ignore[attr-defined]


def _of_script(error: BaseException) -> TracebackType | None:
    """The traceback from the script's first frame on, without ours.

    What started the script explains nothing, and neither does what computes values behind the null GPU's operators.
    """
    frames = list(_parts(error.__traceback__))
    names = [frame.tb_frame.f_globals.get("__name__") for frame in frames]
    if "__main__" not in names:  # a script that cannot be compiled has no frame, and says its line itself
        return None if isinstance(error, SyntaxError) else error.__traceback__
    shown: TracebackType | None = None
    for frame in reversed(frames[names.index("__main__") :]):
        is_python = frame.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        if not is_python and not frame.tb_frame.f_globals.get("__tracebackhide__"):
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or error.__traceback__


def _parts(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
