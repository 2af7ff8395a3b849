"""`torch-timeline mcp`: this program's answers for coding assistants, by the Model Context Protocol over stdio."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tracer.commands.common import errors_for_people
from tracer.errors import MissingPackageError

_PACKAGES: Final = ("mcp", "anyio", "pydantic")
"""The package and those that it brings, which the tools import."""


def mcp() -> None:
    """Answer coding assistants, by the Model Context Protocol.

    An assistant starts this in the folder of a project, and speaks over stdin and
    stdout. Its tools are the commands that have --json. Files outside the folder
    are refused. Needs the extra `mcp`.

    torch-timeline mcp
    """
    with errors_for_people():
        try:
            import anyio

            from tracer.commands.mcp_tools import serve
        except ImportError as error:  # an older mcp has other names
            if str(error.name).partition(".")[0] not in _PACKAGES:
                raise
            raise MissingPackageError(
                "The package mcp, 2.0 or newer, is not installed.", hint="Install the extra `mcp`: pip install mcp"
            ) from None
        try:
            anyio.run(serve, Path.cwd())
        except* BrokenPipeError:
            pass  # the assistant has ended
