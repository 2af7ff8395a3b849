"""`torch-timeline redact`: a page without the names of the program, to be sent."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracer.commands.common import errors_for_people
from tracer.commands.options import option
from tracer.commands.run_options import Quiet
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say
from tracer.results.files import PAGE


def redact(
    page: Annotated[Path, typer.Argument(help="A page that this program wrote, or a --save-dir.")],
    out: Annotated[
        Path | None, option("The file to write; by default NAME.redacted.html beside it.", metavar="<path>")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Write a page again without the names of your program, so that you can share it.

    Files, functions, modules and regions are numbered, the command and the settings are left out. All bytes and times
    stay, as do the names of operators, and of what lies in installed packages.
    """
    with errors_for_people():
        source = page / PAGE.file_name if page.is_dir() else page
        target = out or source.with_suffix(".redacted.html")
        from tracer.exporters.files import write_atomically

        write_atomically(target, redacted_page(source).encode())
        if not quiet:
            say(f"Wrote {target}  (open with a browser)")


def redacted_page(path: Path) -> str:
    """The text of a page without names."""
    from tracer.exporters.page.html import html_of_data
    from tracer.exporters.page.page_curves import NOT_A_PAGE, read_page
    from tracer.exporters.page.redact import redacted_pages

    try:
        data = read_page(path)
        return html_of_data({**data, "up": None, "pages": redacted_pages(data["pages"])})
    except OSError as error:
        raise TracerError(
            f"{path} cannot be read: {error.strerror}.", hint=f"Name a {PAGE.file_name}, or the folder of a run."
        ) from None
    except NOT_A_PAGE as error:
        raise TracerError(
            f"{path} is not a page that this version has written.", hint="Write it again, with `report` or `snapshot`."
        ) from error
