"""Options of `predict`: the device, the model or script, and the form of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from tracer.commands.on_card import OnOptions
from tracer.commands.options import option
from tracer.commands.run_options import ScreenOptions
from tracer.commands.script import Script
from tracer.commands.usage import DEVICE
from tracer.commands.workload_options import PredictedWorkload


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(OnOptions):
    """The device that the step runs on."""

    gpu_memory: Annotated[
        str | None,
        option(
            "The same as --on: 24GiB, or a card such as RTX-4090; exit with 3 if it does not fit.",
            DEVICE,
            metavar="<size or card>",
        ),
    ] = None
    settings: Annotated[
        str | None,
        option(
            "Allocator settings, as in PYTORCH_CUDA_ALLOC_CONF: expandable_segments:True.", DEVICE, metavar="<settings>"
        ),
    ] = None

    @property
    def card_text(self) -> str | None:
        """Text of `--on` or `--gpu-memory`."""
        return self.on or self.gpu_memory


@dataclass(frozen=True)
class PredictOptions:
    """All of a prediction's; without a script it is about the workload."""

    context: typer.Context
    script: Script | None
    workload: PredictedWorkload
    place: PlaceOptions
    num_steps: int
    largest_batch: bool
    save_dir: Path | None
    as_json: bool
    screen: ScreenOptions

    @property
    def is_shown(self) -> bool:
        """Whether there is an answer on stdout."""
        return self.as_json or not self.screen.quiet
