"""The program: its commands, of which `profile` is what happens without one."""

from __future__ import annotations

import typer

from tracer.commands.check import check
from tracer.commands.diff import diff
from tracer.commands.fit import fit
from tracer.commands.predict import predict
from tracer.commands.profile import profile
from tracer.commands.redact import redact
from tracer.commands.report import report
from tracer.commands.run import CONTEXT, run
from tracer.commands.snapshot import snapshot
from tracer.commands.trace import trace
from tracer.commands.usage import Command, CommandGroup

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(profile)
app.command(cls=Command, short_help="Profile an unchanged training script.", context_settings=CONTEXT)(run)
app.command(cls=Command, short_help="Say whether a step fits on a GPU, without one.")(predict)
app.command(cls=Command, short_help="Find the least change with which a script fits.", context_settings=CONTEXT)(fit)
app.command(cls=Command, short_help="Fail if a script's peak has grown, without a GPU.")(check)
app.command(cls=Command, short_help="Explain an allocator snapshot made anywhere.")(snapshot)
app.command(cls=Command, short_help="Explain a trace that torch.profiler wrote anywhere.")(trace)
app.command(cls=Command, short_help="Say what changed between two peaks.")(diff)
app.command(cls=Command, short_help="Write the files of a kept recording again.")(report)
app.command(cls=Command, short_help="Number the names in a page, to send it.")(redact)
