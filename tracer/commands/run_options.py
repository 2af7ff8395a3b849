"""The options of commands that run a script, record a run or print an answer: which, how many steps, how much of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.common import not_said, was_given
from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions
from tracer.commands.options import number, option, switched_off
from tracer.commands.script import Script, no_card_named
from tracer.commands.usage import OUTPUTS, SCHEDULE, SCREEN
from tracer.exporters.screen.terminal import say
from tracer.results.files import OUTPUT_FILES

if TYPE_CHECKING:
    from tracer.sessions.schedule import Schedule


NUM_ROWS = 8
"""Rows of each table of a run's screen, where --top says nothing."""
SAVE_DIR = Path("profiler_outputs")

_WaitSteps = Annotated[int, number("Steps to skip before each cycle.", SCHEDULE)]
SaveDir = Annotated[Path, option("Folder for the results.", OUTPUTS, metavar="<path>")]
AsJson = Annotated[bool, option("Print the answer as JSON instead.", SCREEN, "--json")]
Top = Annotated[int, number("Rows of each table; 0 prints none.", SCREEN, least=0, metavar="<rows>")]
Quiet = Annotated[bool, option("Print nothing but errors.", SCREEN, "--quiet", "-q")]


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Options that say which steps are recorded."""

    n_wait_steps: _WaitSteps = 1
    n_warmup_steps: Annotated[int, number("Steps in which the profiler then warms up.", SCHEDULE)] = 1
    n_active_steps: Annotated[int, number("Steps that are then recorded.", SCHEDULE)] = 3
    n_repeats: Annotated[int, number("Number of such cycles.", SCHEDULE)] = 2

    def schedule(self) -> Schedule:
        """The session's schedule with these numbers of steps."""
        from tracer.sessions.schedule import Schedule

        return Schedule(self.n_wait_steps, self.n_warmup_steps, self.n_active_steps, self.n_repeats)


@dataclass(frozen=True, kw_only=True)
class ScriptSchedule(ScheduleOptions):
    """The schedule of a script, which by default has no wait step."""

    n_wait_steps: _WaitSteps = 0

    def chosen(self, context: typer.Context, *, of_calls: bool) -> Schedule:
        """The schedule of a script; one of which no option was given may end early where recording costs much.

        Args:
            of_calls: Whether the script trains nothing, and each call of a model is a step.
        """
        schedule = (self.of_calls() if of_calls else self).schedule()
        return replace(schedule, may_end_early=not any(was_given(context, each.name) for each in fields(self)))

    def of_calls(self) -> ScriptSchedule:
        """The schedule for inference: without warmup, unless more than one warmup step was asked for.

        A first call takes most where it is the one that reads a prompt.
        """
        return replace(self, n_warmup_steps=0) if self.n_warmup_steps == ScriptSchedule.n_warmup_steps else self


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Options that say which of the usual files are left out, and how they name the user's files."""

    project_root: Annotated[
        Path | None,
        option(
            "Folder of your project, for the reports. By default that of the model's code.", OUTPUTS, metavar="<path>"
        ),
    ] = None
    leave_out: frozenset[str] = switched_off(
        {file.name: file.switch_help for file in OUTPUT_FILES if file.switch_help}, panel=OUTPUTS
    )


@dataclass(frozen=True, kw_only=True)
class RequestedFiles:
    """Files that are written only where they are asked for."""

    keep_recording: Annotated[
        bool,
        option("Write recording.npz, from which `report` writes every file again.", OUTPUTS),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """How much is printed of a run's answer."""

    top: Top = NUM_ROWS
    quiet: Quiet = False

    @property
    def say(self) -> Callable[[str], None]:
        """Takes a line that is no error."""
        return not_said if self.quiet else say


Module = Annotated[bool, option("SCRIPT names a module, as in `python -m`.", None, "--module", "-m")]
MixedArguments = Annotated[
    list[str] | None, typer.Argument(help="Arguments for the script; behind -- where one is named as below.")
]
Steps = Annotated[
    int, number("Steps of the script to run; 0 for as many as it takes until memory repeats.", SCHEDULE, least=0)
]


@dataclass(frozen=True)
class ScriptOptions:
    """The script, named in front of its own arguments."""

    script: Annotated[str, typer.Argument(help="An unchanged script; with --module, a module's name.")]
    arguments: Annotated[list[str] | None, typer.Argument(help="Arguments for the script.")] = None
    module: Module = False

    def script_on(self, on: OnOptions) -> Script:
        """The script, or the one that a launcher in its place starts; see `script_named`."""
        return script_named(on, self.script, self.arguments, is_module=self.module)

    def card(self, on: OnOptions) -> str:
        """The GPU that `--on` names."""
        if on.on is None:
            raise no_card_named(self.arguments)
        return on.on


@dataclass(frozen=True)
class MixedScriptOptions(ScriptOptions):
    """The same where options of the command may follow the script's name."""

    arguments: MixedArguments = None
