"""`--on CARD`: the command starts itself again on the null GPU, where torch's CUDA code runs without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated

from tracer.commands.options import option
from tracer.commands.usage import DEVICE
from tracer.errors import TracerError
from tracer.exporters.screen.terminal import say
from tracer.null_gpu import process
from tracer.null_gpu.cards import Devices, devices_of
from tracer.null_gpu.values.answers import Answer, parse_answer


@dataclass(frozen=True, kw_only=True)
class OnOptions:
    """A GPU that is not here, and what its values are."""

    on: Annotated[
        str | None,
        option(
            "Run as on this GPU, without one: h100, rtx-4090, h100:40GiB, 8xh100. Nothing is computed.",
            DEVICE,
            "--on",
            metavar="<card>",
        ),
    ] = None
    answer: Annotated[
        list[str],
        option(
            "With --on: what this line reads of the device, such as train.py:12=0.5. Repeatable.",
            DEVICE,
            "--answer",
            metavar="<file:line=value>",
        ),
    ] = field(default_factory=list)

    @property
    def answers(self) -> dict[tuple[str, int], Answer]:
        """What `--answer` was given, by file and line.

        Raises:
            TracerError: It is not of the form that it must have, or there is no `--on`.
        """
        if self.answer and self.on is None:
            raise TracerError("--answer has a meaning only with --on.", hint="Add --on h100, say.")
        return dict(map(parse_answer, self.answer))


WARNING = "losses and other values that the program prints mean nothing"


def start_on(text: str) -> Devices:
    """Go on in a process that runs on these devices: this one is replaced by it, unless it is that already.

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


def values_on(answers: Mapping[tuple[str, int], Answer]) -> AbstractContextManager[None]:
    """Values that decide sizes are computed meanwhile, where this process runs on the null GPU."""
    from tracer.runs.null_values import values_on as switched_on

    return switched_on(answers)
