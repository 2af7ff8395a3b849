"""The options of commands that run a script: which one, and how many steps of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from tracer.commands.launchers import script_named
from tracer.commands.on_card import OnOptions
from tracer.commands.options import number, option
from tracer.commands.script import Script, no_card_named
from tracer.commands.usage import SCHEDULE

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
