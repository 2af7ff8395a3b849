"""Run a user's script as Python would run it, under a profile."""

from __future__ import annotations

import os
import re
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
from tracer.errors import TracerError, UsageError
from tracer.exporters.screen.console import SHORT, Console
from tracer.exporters.screen.next_commands import program_name
from tracer.exporters.screen.terminal import say

if TYPE_CHECKING:
    from tracer.sessions.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script


BEFORE_SCRIPT: Final = "Options of this command come before the script's name: what follows it is the script's."


_PACKAGE: Final = "tracer"
_OURS: Final = Path(__file__).parents[1] / "__init__.py"
_PYTHON: Final = re.compile(r"(?:.*/)?python[\d.]*")


class Script(NamedTuple):
    """The script that a command is about."""

    path: str  # Or a module's name
    arguments: list[str]  # Its own
    is_module: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """Words behind `python` that run it."""
        return (*(["-m"] if self.is_module else []), self.path, *self.arguments)

    @property
    def settings(self) -> dict[str, str]:
        """Settings of the run: the script and its arguments, quoted for a shell."""
        num_words = 1 + self.is_module
        return {"script": shlex.join(self.words[:num_words]), "arguments": shlex.join(self.words[num_words:])}

    @property
    def folder(self) -> Path:
        """The folder in which it finds its own modules."""
        path = Path(self.path).resolve()
        return Path.cwd() if self.is_module else path if path.is_dir() else path.parent

    def check(self) -> None:
        """Check that the script or module exists and is one, before anything of it runs."""
        path, own = Path(self.path), PathFinder.find_spec(_PACKAGE, [str(self.folder)])
        if own is not None and own.origin is not None and not Path(own.origin).samefile(_OURS):
            named = f"The folder of {self.path} has a module `{_PACKAGE}`, the name of this program's own."
            raise TracerError(named, hint="Rename it: `import tracer` finds one of them alone.")
        if not self.is_module:
            if path.is_dir():
                if not (path / "__main__.py").is_file():
                    raise TracerError(f"{self.path} is a folder without a __main__.py.", hint="Name a script in it.")
            elif not path.is_file():
                if path.name in ("bash", "sh", "zsh") and self.arguments:
                    hint = f"Write `{program_name()} run` in what it runs, in the place of `python`."
                    raise TracerError(f"{self.path} is no script, but starts one.", hint=hint)
                if rest := _behind_python((self.path, *self.arguments)):
                    hint = f"Leave it out: {program_name()} run {shlex.join(rest)}"
                    raise TracerError(f"{self.path} is no script, but starts one.", hint=hint)
                raise TracerError(f"There is no file {self.path}.", hint="Name a script, or a module with -m.")
            else:
                _check_text(self.path, path.read_bytes()[:_MOST_LOOKED_AT])
            return
        root = self.path.partition(".")[0]
        if root not in sys.modules and PathFinder.find_spec(root, ["", *sys.path]) is None:
            raise TracerError(f"There is no module {root}.", hint="Name one that Python finds from this folder.")


_MOST_LOOKED_AT: Final = 4096
_SHELL: Final = re.compile(rb"#!.*\b(ba|da|fi|k|z)?sh\b")
_NO_SCRIPTS: Final = (".yaml", ".yml", ".json", ".toml", ".ini", ".cfg", ".txt", ".md")


def _check_text(name: str, begin: bytes) -> None:
    """Check, by its name and its first bytes, that a file can be a Python script."""
    suffix, first_line = Path(name).suffix, begin.partition(b"\n")[0]
    if suffix == ".ipynb":
        hint = "`%load_ext tracer` gives its cells %%memory_timeline; `jupyter nbconvert --to script` makes a script."
        raise TracerError(f"{name} is a notebook and no script.", hint=hint)
    if suffix in (".sh", ".bash") or (suffix != ".py" and _SHELL.match(first_line)):
        hint = f"Write `{program_name()} run` in it in the place of `python`, or name the Python script that it starts."
        raise TracerError(f"{name} is a script of another program.", hint=hint)
    if suffix in _NO_SCRIPTS:
        raise TracerError(f"{name} is no Python script.", hint="Name the script first, then its arguments.")
    if not begin.strip():
        raise TracerError(f"{name} is empty.", hint="Name a script that trains.")


def _behind_python(words: Sequence[str]) -> Sequence[str]:
    """The script and its arguments of `python -u train.py` or `uv run train.py`; nothing of other words."""
    if words[:2] == ("uv", "run"):
        return _behind_python(words[2:]) or words[2:]
    if not words or not _PYTHON.fullmatch(words[0]):
        return ()
    behind = list(words[1:])
    while behind and behind[0].startswith("-") and behind[0] != "-m":
        del behind[: 2 if behind[0] in ("-X", "-W") else 1]
    return behind


def no_card_named(arguments: Sequence[str] | None) -> UsageError:
    """Return the error of a command that needs `--on`, which may stand among the script's own arguments."""
    behind = any(word.partition("=")[0] == "--on" for word in arguments or ())
    return UsageError(
        "On which GPU is the script to run? --on is missing.",
        hint=BEFORE_SCRIPT if behind else "Add --on with a GPU, such as --on h100; --on help lists them.",
    )


def run_script(
    profile: ScriptProfile,
    script: Script,
    console: Console = SHORT,
    *,
    is_answer: Callable[[BaseException], bool] = lambda error: False,
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
    from tracer.arrays import numpys_own_names
    from tracer.commands.early_ends import ends_noticed
    from tracer.sessions.jobs.ranks import leave_failure
    from tracer.sessions.script_run import FirstStepsDone
    from tracer.sessions.termination import signals_deferred

    has_begun = False
    with _pythons_hook(), ExitStack() as ended:
        try:
            with profile, _as_main(script), ends_noticed(profile, console), _told_of_end(profile.script_ended, script):
                has_begun = True
                try:
                    if script.is_module:
                        runpy.run_module(script.path, run_name="__main__", alter_sys=True)
                    else:
                        # As Python names a script in its code; relative, its lines would be of two files (bpo-20443).
                        path = os.path.abspath(script.path)  # noqa: PTH100 - links stay
                        runpy.run_path(path, run_name="__main__")
                finally:  # a time limit of the script's own is for the script
                    ended.enter_context(handlers_dropped())
        except FirstStepsDone:
            return True
        except (TracerError, SystemExit, KeyboardInterrupt):  # said by the caller
            raise
        except BaseException as error:
            if not has_begun:  # no error of the script
                raise
            leave_failure(error)
            if not is_answer(error):
                _show(error, sys.excepthook)
            return False
        finally:
            with signals_deferred():
                if has_begun and not profile.is_in_child:
                    with numpys_own_names(), around_answer or nullcontext():
                        next_lines = _tell(profile, console)
                    say_all(next_lines)
    return True


def _tell(profile: ScriptProfile, console: Console) -> tuple[str, ...]:
    console.say_all(f"Note: {note}" for note in profile.notes)
    if profile.session is None and not profile.facts.children_recorded:
        say("Nothing was recorded.")
    return profile.tell()


@contextmanager
def child_profiled(make_profile: Callable[[], ScriptProfile], console: Console) -> Iterator[None]:
    """Profile a training within the block, in a process that the script has started; the first rank prints its answer.

    A process that trains nothing is silent.
    """
    from tracer.arrays import numpys_own_names
    from tracer.sessions.termination import signals_deferred

    profile = make_profile()
    try:
        with profile:
            yield
    finally:
        if profile.session is not None or profile.is_incomplete:
            with signals_deferred(), numpys_own_names():
                say_all(_tell(profile, console))


def _show(error: BaseException, hook: Callable[..., object]) -> None:
    """Show an exception of the script as Python does: by the script's own hook, if it has one."""
    trace = _of_script(error)
    if hook is not sys.__excepthook__:
        try:
            hook(type(error), error, trace)
        except Exception as fault:
            say("Error in sys.excepthook:")
            _print_trace(fault, _of_script(fault))
        else:
            return
    _print_trace(error, trace)


def _print_trace(error: BaseException, trace: TracebackType | None) -> None:
    if sys.stderr is not None and not getattr(sys.stderr, "closed", False):
        sys.stderr.writelines(traceback.format_exception(type(error), error, trace))


@contextmanager
def _pythons_hook() -> Iterator[None]:
    """While active, the hook for exceptions is Python's, as a script finds it, until the script sets its own."""
    before = sys.excepthook
    sys.excepthook = sys.__excepthook__
    try:
        yield
    finally:
        sys.excepthook = before


@contextmanager
def _as_main(script: Script) -> Iterator[None]:
    before = sys.argv
    sys.argv = [script.path, *script.arguments]
    sys.path.insert(0, "" if script.is_module else str(script.folder))
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _told_of_end(ended: Callable[[], None], script: Script) -> Iterator[None]:
    """Call back when the script's last line has run: runpy lets go of its variables before it returns.

    The script finds its name in `sys.argv` as it was typed.
    """
    run: Any = runpy._run_code  # type: ignore[attr-defined]

    def run_code(*arguments: Any, **options: Any) -> Any:
        runpy._run_code = run  # type: ignore[attr-defined]  # the script may use runpy, too
        if not script.is_module:
            sys.argv[0] = script.path
        try:
            variables = run(*arguments, **options)
        finally:
            if not (isinstance(sys.argv, list) and sys.argv):  # runpy puts its first word back
                sys.argv = [script.path, *script.arguments]
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
    frames, trace = list[TracebackType](), error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    names = [frame.tb_frame.f_globals.get("__name__") for frame in frames]
    if "__main__" not in names:  # a script that cannot be compiled has no frame, and says its line itself
        return None if isinstance(error, SyntaxError) else error.__traceback__
    shown: TracebackType | None = None
    for frame in reversed(frames[names.index("__main__") :]):
        is_python = frame.tb_frame.f_code.co_filename.startswith("<frozen importlib")
        if not is_python and not frame.tb_frame.f_globals.get("__tracebackhide__"):
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or error.__traceback__
