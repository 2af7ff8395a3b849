"""The options of commands that record a run or print an answer: which steps, which further files, how much of it."""

from __future__ import annotations

from typing import Annotated

import typer

from tracer.commands.usage import OUTPUTS, SCHEDULE, SCREEN

NUM_ROWS = 8
"""Rows of each table of a run's screen, where --top says nothing."""

WaitSteps = Annotated[
    int, typer.Option(help="Steps before each cycle that are not looked at.", rich_help_panel=SCHEDULE)
]
WarmupSteps = Annotated[int, typer.Option(help="Steps in which the profiler then warms up.", rich_help_panel=SCHEDULE)]
ActiveSteps = Annotated[int, typer.Option(help="Steps that are then recorded.", rich_help_panel=SCHEDULE)]
Repeats = Annotated[int, typer.Option(help="How often all of that is done.", rich_help_panel=SCHEDULE)]

Trace = Annotated[
    bool,
    typer.Option(
        help="Write trace.json.gz, the profiler's trace with memory above the operators.", rich_help_panel=OUTPUTS
    ),
]
KeepRecording = Annotated[
    bool,
    typer.Option(help="Write recording.npz, from which `report` writes every file again.", rich_help_panel=OUTPUTS),
]

Top = Annotated[
    int, typer.Option(min=0, metavar="<rows>", help="Rows of each table; 0 prints none.", rich_help_panel=SCREEN)
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.", rich_help_panel=SCREEN)]
