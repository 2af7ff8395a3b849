"""The options of commands that record a run or print an answer: which steps, which further files, how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.commands.options import switched_off
from tracer.commands.usage import OUTPUTS, SCHEDULE, SCREEN
from tracer.results.files import OUTPUT_FILES

if TYPE_CHECKING:
    from tracer.runs.session import Schedule

NUM_ROWS = 8
"""Rows of each table of a run's screen, where --top says nothing."""
SAVE_DIR = Path("profiler_outputs")

_WaitSteps = Annotated[
    int, typer.Option(help="Steps before each cycle that are not looked at.", rich_help_panel=SCHEDULE)
]
SaveDir = Annotated[Path, typer.Option(help="Folder for the results.", rich_help_panel=OUTPUTS)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON instead.", rich_help_panel=SCREEN)]
Top = Annotated[
    int, typer.Option(min=0, metavar="<rows>", help="Rows of each table; 0 prints none.", rich_help_panel=SCREEN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=SCREEN)]


@dataclass(frozen=True, kw_only=True)
class ScheduleOptions:
    """Which steps are recorded."""

    n_wait_steps: _WaitSteps = 1
    n_warmup_steps: Annotated[
        int, typer.Option(help="Steps in which the profiler then warms up.", rich_help_panel=SCHEDULE)
    ] = 1
    n_active_steps: Annotated[int, typer.Option(help="Steps that are then recorded.", rich_help_panel=SCHEDULE)] = 3
    n_repeats: Annotated[int, typer.Option(help="How often all of that is done.", rich_help_panel=SCHEDULE)] = 2

    def schedule(self) -> Schedule:
        """The same for a session.

        Raises:
            TracerError: They make no sense together.
        """
        from tracer.runs.session import Schedule

        return Schedule(self.n_wait_steps, self.n_warmup_steps, self.n_active_steps, self.n_repeats)


@dataclass(frozen=True, kw_only=True)
class ScriptSchedule(ScheduleOptions):
    """The same of somebody's script, of which no step needs to pass first."""

    n_wait_steps: _WaitSteps = 0


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """Which of the usual files are left out, by name, and how they name the user's files."""

    project_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of your project, for the reports. By default that of the model's code.",
            rich_help_panel=OUTPUTS,
        ),
    ] = None
    leave_out: frozenset[str] = switched_off(
        {file.name: file.switch_help for file in OUTPUT_FILES if file.switch_help}, panel=OUTPUTS
    )


@dataclass(frozen=True, kw_only=True)
class RequestedFiles:
    """Files that are written only where they are asked for."""

    trace: Annotated[
        bool,
        typer.Option(
            help="Write trace.json.gz, the profiler's trace with memory above the operators.", rich_help_panel=OUTPUTS
        ),
    ] = False
    keep_recording: Annotated[
        bool,
        typer.Option(help="Write recording.npz, from which `report` writes every file again.", rich_help_panel=OUTPUTS),
    ] = False


@dataclass(frozen=True, kw_only=True)
class ScreenOptions:
    """How much is printed of a run's answer."""

    top: Top = NUM_ROWS
    quiet: Quiet = False
