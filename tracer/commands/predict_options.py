"""Options of `predict`: the device, the model or script, and the form of the answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from tracer.commands.on_card import OnOptions
from tracer.commands.options import option
from tracer.commands.run_options import ScreenOptions
from tracer.commands.script import Script
from tracer.commands.usage import DEVICE, QUESTIONS
from tracer.commands.workload_options import PredictedWorkload


@dataclass(frozen=True, kw_only=True)
class _Device:
    device: Annotated[
        Literal["cuda", "cpu"],
        option("Kind of device that the step would run on; none is needed here.", DEVICE),
    ] = "cuda"


@dataclass(frozen=True, kw_only=True)
class PlaceOptions(OnOptions, _Device):
    """The device that the step runs on. The last base class comes first in --help."""

    gpu_memory: Annotated[
        str | None,
        option(
            "The same as --on: 24GiB, or a card such as RTX-4090; exit with 3 if it does not fit.",
            DEVICE,
            metavar="<size or card>",
        ),
    ] = None
    engine: Annotated[
        Literal["null-gpu", "rehearsal"] | None,
        option(
            "Engine: torch's own CUDA code (the default where it can run), or rules on tensors without memory.", DEVICE
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


@dataclass(frozen=True, kw_only=True)
class LargestOptions:
    """The size to maximise on the device."""

    largest_batch: Annotated[
        bool, option("Also find the largest --batch-size that fits.", QUESTIONS, "--largest-batch")
    ] = False
    largest_tokens: Annotated[
        bool, option("Also find the largest --tokens that fit, in steps of 64.", QUESTIONS, "--largest-tokens")
    ] = False
    largest_image: Annotated[
        bool, option("Also find the largest image of --input that fits, in steps of 32.", QUESTIONS, "--largest-image")
    ] = False

    table: Annotated[
        bool,
        option(
            "Also print a table: weights of 32, 16, 8 and 4 bits, in inference and with sgd and adamw.",
            QUESTIONS,
            "--table",
        ),
    ] = False

    @property
    def asked(self) -> str:
        """The option that was given, or the empty string."""
        given = {"batch": self.largest_batch, "tokens": self.largest_tokens, "image": self.largest_image}
        return next((f"--largest-{name}" for name, is_given in given.items() if is_given), "")


@dataclass(frozen=True)
class PredictOptions:
    """All of a prediction's; without a script it is about the workload."""

    context: typer.Context
    script: Script | None
    workload: PredictedWorkload
    place: PlaceOptions
    num_steps: int
    num_batches: int  # That are read ahead; 0 without `--batches`
    largest: LargestOptions
    save_dir: Path | None
    as_json: bool
    screen: ScreenOptions

    @property
    def is_shown(self) -> bool:
        """Whether there is an answer on stdout."""
        return self.as_json or not self.screen.quiet
