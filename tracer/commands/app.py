"""The program: its commands, of which `profile` is what happens without one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import typer

from tracer.commands.profile import profile
from tracer.commands.usage import CommandGroup


class Program(CommandGroup):
    """All commands by name, in the order of --help: each is a function of that name in a file of that name."""

    summaries: ClassVar[Mapping[str, str]] = {
        "run": "Profile an unchanged training script.",
        "predict": "Say whether a step fits on a GPU, without one.",
        "fit": "Find the least change with which a script fits.",
        "check": "Fail if a script's peak has grown, without a GPU.",
        "snapshot": "Explain an allocator snapshot made anywhere.",
        "diff": "Say what changed between two peaks.",
        "mcp": "Answer coding assistants, by the Model Context Protocol.",
        "report": "Write the files of a kept recording again.",
        "doctor": "Say what works here, and how to mend the rest.",
    }
    with_script = ("run", "fit")


app = typer.Typer(
    cls=Program,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(profile)
