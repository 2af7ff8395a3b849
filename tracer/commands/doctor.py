"""`torch-timeline doctor`: what is here, what works, and the command that mends what does not."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tracer.command_line import take_role
from tracer.commands.common import errors_for_people, not_said
from tracer.commands.on_card import start_on
from tracer.commands.options import option
from tracer.commands.run_options import AsJson, Quiet
from tracer.commands.usage import DEVICE, OUTPUTS
from tracer.exporters.screen.terminal import print_json, say, screen


def doctor(
    device: Annotated[
        str | None,
        option("Device to check, such as cuda:1. By default the GPU, else the CPU.", DEVICE, metavar="<device>"),
    ] = None,
    on: Annotated[
        str | None,
        option("Check the null GPU of this card: h100, rtx-4090. Nothing is computed.", DEVICE, metavar="<card>"),
    ] = None,
    report: Annotated[
        Path | None,
        option(
            "Also write all answers as JSON, to be sent: no paths, users or hosts of yours.", OUTPUTS, metavar="<path>"
        ),
    ] = None,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Say what is here and what works, and the command that mends what does not.

    PASS is well, FAIL has the command that mends it, SKIP says why it could not be asked. Small models are trained, and
    every figure that two sources have is compared. Exit status 1 if a check fails.

        torch-timeline doctor --report doctor.json
    """
    from tracer.sessions.doctor.examine import ROLE, answer, examine

    has_failed = False
    with errors_for_people():
        if on is not None:
            start_on(on)
        if (assignment := take_role(ROLE)) is not None:
            answer(assignment)
            return
        if report is not None:
            from tracer.exporters.files import check_folder

            check_folder(report.absolute().parent)
        found = examine(device, not_said if quiet else say)
        has_failed = found.has_failed
        from tracer.exporters.doctor import doctor_json, print_doctor
        from tracer.exporters.files import write_json

        if report is not None:
            write_json(report, doctor_json(found))
            if not quiet:
                say(f"Wrote {report}")
        with screen(is_shown=as_json or not quiet) as console:
            if as_json:
                print_json(doctor_json(found), console)
            else:
                print_doctor(found, console)
    if has_failed:
        raise typer.Exit(1)
