"""The program: its commands, of which `profile` is what happens without one."""

from __future__ import annotations

import typer

from tracer.commands.diff import diff
from tracer.commands.predict import predict
from tracer.commands.profile import profile
from tracer.commands.report import report
from tracer.commands.run import CONTEXT, run
from tracer.commands.snapshot import snapshot

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.callback(invoke_without_command=True)(profile)
app.command()(predict)
app.command()(snapshot)
app.command()(diff)
app.command()(report)
app.command(context_settings=CONTEXT)(run)
