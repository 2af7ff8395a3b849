"""`torch-timeline serve`: a page on this machine alone, on which snapshots and traces are dropped to be explained."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from tracer.commands.browser import Open, show
from tracer.commands.common import errors_for_people
from tracer.commands.options import number, option
from tracer.commands.usage import OUTPUTS
from tracer.errors import OutputError, UsageError
from tracer.exporters.screen.terminal import say, screen
from tracer.results.files import PAGE

_MAX_PORT = 65535


def serve(
    files: Annotated[
        list[Path] | None, typer.Argument(help="Snapshots and traces to begin with; others are dropped on the page.")
    ] = None,
    port: Annotated[int, number("Port to listen on; 0 for any that is free.", OUTPUTS, least=0, most=_MAX_PORT)] = 0,
    max_size: Annotated[
        str, option("Most that all dropped files may have together.", OUTPUTS, metavar="<size>")
    ] = "8GiB",
    open_: Open = False,
) -> None:
    """Explain snapshots and traces that are dropped on a page of this machine, and compare two of them.

    The page is at an address of this machine that others cannot guess and other machines cannot reach. Nothing leaves
    the machine, and what was dropped is deleted when this ends, by Ctrl-C.

        torch-timeline serve --open memory_snapshot.pkl
    """
    from tracer.sessions.page_server import PageServer
    from tracer.sessions.termination import Termination
    from tracer.units import parse_size

    with errors_for_people(), tempfile.TemporaryDirectory(prefix="torch-timeline-") as folder:
        try:
            limit_bytes = parse_size(max_size)
        except ValueError as error:
            raise UsageError(f"--max-size: {error}", hint="Write a size as 8GiB.") from error
        try:
            server = PageServer(
                Path(folder), write_page=_write_page, write_comparison=_compare, limit_bytes=limit_bytes, port=port
            )
        except OSError as error:
            raise OutputError(f"Port {port} cannot be used: {error.strerror}.", hint="Leave out --port.") from error
        with server, closing(Termination()) as termination:
            termination.watch()
            for path in files or []:
                server.read(path.name, path.resolve())
            say(f"Serving {server.address} on this machine only. Ctrl-C ends it.")
            if open_:
                show(server.address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                say("Ended; what was dropped is deleted.")


def _write_page(path: Path, page: Path) -> None:
    from tracer.commands.diff import is_trace_file

    if is_trace_file(path):
        from tracer.commands.trace import write_files
        from tracer.results.trace_report import explain_trace

        write_files(explain_trace(path), {PAGE.name: page}, None, quiet=True)
        return
    from tracer.commands.snapshot import show_snapshot

    with screen(is_shown=False) as console:
        show_snapshot(path, console, html=page)


def _compare(before: Path, after: Path, page: Path) -> None:
    from tracer.commands.diff import show_diff

    with screen(is_shown=False) as console:
        show_diff(before, after, console, html=page)
