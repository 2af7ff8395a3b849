"""`torch-timeline run`: an unchanged script, profiled while it trains."""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.common import errors_for_people, kept_import_path, say_all
from tracer.commands.on_card import OnOptions, run_ranks, say_where, start_on, values_on
from tracer.commands.options import option, with_options
from tracer.commands.run_options import SAVE_DIR, RequestedFiles, SaveDir, ScreenOptions, ScriptSchedule
from tracer.commands.usage import DEVICE
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say

if TYPE_CHECKING:
    from tracer.runs.script_run import ScriptProfile

__tracebackhide__ = True  # a line of this file explains nothing about the script

LATER = "later"
"""Below the folder of the results: what is said of memory that ends, or grows, after the recorded steps."""
CONTEXT = {"allow_interspersed_args": False, "ignore_unknown_options": False}


@with_options
def run(
    script: Annotated[str, typer.Argument(help="The script; with --module, a module's name.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What follows is the script's own.")] = None,
    module: Annotated[bool, option("SCRIPT names a module, as in `python -m`.", None, "--module", "-m")] = False,
    device: Annotated[
        str | None, option("Device to explain; by default the model's.", DEVICE, metavar="<text>")
    ] = None,
    *,
    on: OnOptions,
    schedule: ScriptSchedule,
    save_dir: SaveDir = SAVE_DIR,
    requested: RequestedFiles,
    watch: Annotated[
        bool,
        option("Watch all of it without a profiler, and explain its memory when something happens.", None, "--watch"),
    ] = False,
    inference: Annotated[
        bool,
        option("The script trains nothing: each call of a model is a step, from the first one on.", None),
    ] = False,
    apply: Annotated[
        str,
        option("Changes made from outside, as `fit` names them: checkpoint,bf16", None, "--apply", metavar="<names>"),
    ] = "",
    screen: ScreenOptions,
) -> None:
    """Run a training script as it is, and explain the memory peak of its first steps.

    Models, optimizers and steps are found while it runs. The files are written as soon as all is recorded; the script
    goes on, and the answer is printed when it ends. Options of this command come before the script's name. With --on it
    needs no GPU.

        torch-timeline run --save-dir profile train.py --epochs 3
    """
    with errors_for_people():
        answers = on.answers
        _check_changes(apply)
        run_ranks(on, save_dir, quiet=screen.quiet)
        devices = start_on(on.on) if on.on is not None else None
    if devices is not None and not screen.quiet:
        say_where(devices)
    from tracer.exporters.files import check_folder
    from tracer.results.null_run import USE_CUDA, elsewhere
    from tracer.runs.script_run import ScriptProfile
    from tracer.runs.script_sessions import LaterWatch, ScriptTraining, ScriptWatch

    settings = {"script": script, "arguments": " ".join(arguments or [])}
    with errors_for_people(), kept_import_path(), values_on(answers), _made(apply) as notes:
        steps = (schedule.of_calls() if inference else schedule).schedule()
        check_folder(save_dir)
        check_script(script, is_module=module)
        profile = ScriptProfile(
            lambda models, optimizers: (
                ScriptWatch(
                    models,
                    optimizers,
                    save_dir=save_dir,
                    device=device,
                    screen="none" if screen.quiet else "short",
                    settings=settings,
                )
                if watch
                else ScriptTraining(
                    models,
                    optimizers,
                    save_dir=save_dir,
                    schedule=steps,
                    device=device,
                    screen="none" if screen.quiet else "full",
                    top=screen.top,
                    trace=requested.trace,
                    keep_recording=requested.keep_recording,
                    settings=settings,
                )
            ),
            make_later=None
            if watch
            else lambda models, optimizers: LaterWatch(
                models,
                optimizers,
                save_dir=save_dir / LATER,
                device=device,
                on_signal=None,
                screen="none" if screen.quiet else "short",
                settings=settings,
            ),
            is_inference=inference,
        )
        succeeded = run_script(profile, script, arguments or [], is_module=module, quiet=screen.quiet)
        say_all(notes() if not screen.quiet else ())
        results = profile.session.results if isinstance(profile.session, ScriptTraining) else None
        if devices is not None and results is not None and (said := elsewhere(results.device)):
            say(f"{said} {USE_CUDA}")
    if not succeeded:
        raise typer.Exit(1)


def _check_changes(names: str) -> None:
    """Settings of the allocator are set here, before torch reads them.

    Raises:
        UsageError: There is no such change.
    """
    if names:
        from tracer.runs.script_changes import script_changes, set_allocator

        set_allocator(script_changes(names))


@contextmanager
def _made(names: str) -> Iterator[Callable[[], Sequence[str]]]:
    """Changes are made meanwhile; what is given says what could not be."""
    if not names:
        yield lambda: ()
        return
    from tracer.runs.applied_changes import AppliedChanges
    from tracer.runs.script_changes import script_changes

    with AppliedChanges(script_changes(names)) as applied:
        yield lambda: applied.notes


def check_script(script: str, *, is_module: bool) -> None:
    """Before anything of it runs.

    Raises:
        TracerError: There is no such script or module.
    """
    if not is_module:
        if not Path(script).is_file():
            raise TracerError(f"There is no file {script}.", hint="Name a script, or a module with -m.")
        return
    root = script.partition(".")[0]
    if root not in sys.modules and PathFinder.find_spec(root, ["", *sys.path]) is None:
        raise TracerError(f"There is no module {root}.", hint="Name one that Python finds from this folder.")


def run_script(
    profile: ScriptProfile,
    script: str,
    arguments: list[str],
    *,
    is_module: bool = False,
    quiet: bool = False,
    is_answer: Callable[[Exception], bool] = lambda error: False,
) -> bool:
    """Run a script under a profile; False if it raised, after its traceback.

    Args:
        profile: Looks for models and steps.
        script: Its path, or a module's name.
        arguments: Its own.
        is_module: Which of them.
        quiet: Whether notes are left out.
        is_answer: Whether an exception is what was asked for, so that its traceback is nothing to show.

    Raises:
        SystemExit: The script's own, with its status.
    """
    from tracer.runs.script_run import FirstStepsDone

    try:
        with profile, _as_main(script, arguments, is_module=is_module):
            if is_module:
                runpy.run_module(script, run_name="__main__", alter_sys=True)
            else:
                runpy.run_path(script, run_name="__main__")
    except FirstStepsDone:
        return True
    except Exception as error:
        if not is_answer(error):
            sys.stderr.writelines(traceback.format_exception(type(error), error, _of_script(error)))
        return False
    finally:
        if not quiet and not profile.is_in_child:
            say_all(f"Note: {note}" for note in profile.notes)
        if profile.session is None and not profile.is_in_child:
            say("Nothing was recorded.")
        profile.tell()
    return True


@contextmanager
def _as_main(script: str, arguments: list[str], *, is_module: bool) -> Iterator[None]:
    """The arguments and the import path that the script expects."""
    before = sys.argv
    sys.argv = [script, *arguments]
    sys.path.insert(0, "" if is_module else str(Path(script).resolve().parent))
    try:
        yield
    finally:
        sys.argv = before


def _of_script(error: BaseException) -> TracebackType | None:
    """The traceback from the script's first frame on, without ours.

    What started the script explains nothing, and neither does what computes values behind the null GPU's operators.
    """
    frames = list(_parts(error.__traceback__))
    names = [frame.tb_frame.f_globals.get("__name__") for frame in frames]
    if "__main__" not in names:
        return error.__traceback__
    shown: TracebackType | None = None
    for frame in reversed(frames[names.index("__main__") :]):
        if not frame.tb_frame.f_globals.get("__tracebackhide__"):
            shown = TracebackType(shown, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return shown or error.__traceback__


def _parts(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next
