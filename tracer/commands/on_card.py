"""`--on CARD`: the command starts itself again on the null GPU, where torch's CUDA code runs without a GPU."""

from __future__ import annotations

from typing import Annotated

import typer

from tracer.commands.usage import DEVICE
from tracer.exporters.screen.terminal import say
from tracer.null_gpu import process
from tracer.null_gpu.cards import Devices, devices_of

On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="<card>",
        help="Run as on this GPU, without one: h100, rtx-4090, h100:40GiB, 8xh100. Nothing is computed.",
        rich_help_panel=DEVICE,
    ),
]
WARNING = "losses and other values that the program prints mean nothing"


def start_on(text: str) -> Devices:
    """Go on in a process that runs on these devices: this one is replaced by it, unless it is that already.

    Args:
        text: What `--on` was given.

    Raises:
        TracerError: There is no such card.
        NullGpuError: The null GPU cannot be had here.
    """
    devices = devices_of(text)
    process.restart_on([devices.card] * devices.count)
    return devices


def say_where(devices: Devices) -> None:
    """The first line of such a command."""
    say(f"Null GPU ({devices.words}): memory is torch's own, nothing was computed; {WARNING}.")
