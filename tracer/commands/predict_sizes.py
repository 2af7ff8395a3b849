"""`--largest-batch`, `--largest-tokens`, `--largest-image` and `--table`: a model in other sizes, each a trial."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import torch

from tracer.commands.predict_on import Engine, build
from tracer.errors import UsageError
from tracer.exporters.screen.terminal import progress_bar
from tracer.results.prediction import LargestSize, TableCell, TableRow
from tracer.sessions.trials.bisections import MOST, Trial, fitting_micro_batches, largest_fitting
from tracer.units import format_bytes
from tracer.workloads.module_tensors import default_dtype, quantized_bytes, weights_bytes

if TYPE_CHECKING:
    from tracer.commands.predict_options import PredictOptions
    from tracer.commands.workload_options import PredictedWorkload
    from tracer.null_gpu.cards import Card
    from tracer.sessions.trials.bisections import Trial


_IMAGE = re.compile(r"^((?:\w+=)?\d+)x(\d+)x(\d+)(?=$|:)")
"""An input of channels, height and width."""
_OPTIMIZERS: Final = ("sgd", "adamw")
_QUANTIZED_BITS: Final = (8, 4)


@dataclass(frozen=True, slots=True)
class _Varied:
    option: str  # As it is written
    name: str  # For people
    start: int  # The size to begin with
    step: int  # Sizes are multiples of it
    most: int  # The largest size that can be asked for
    sized: Callable[[int], PredictedWorkload]  # The workload of a size


def find_largest(options: PredictOptions, engine: Engine, card: Card) -> LargestSize:
    """The largest size that fits; for a smaller batch than asked for, also the micro-batches to use."""
    varied, workload = _varied(options), options.workload
    with progress_bar("", is_shown=not options.screen.quiet, is_counted=False) as update:

        def attempt(size: int) -> Trial:
            update(description=f"{varied.name} {size}")
            return engine.trial(varied.sized(size))

        def tell(size: int, trial: Trial) -> None:
            answer = "fits" if trial.fits else "does not fit"
            options.screen.say(f"{varied.name} {size}: {answer}, {format_bytes(trial.reserved_bytes)} reserved.")

        largest = largest_fitting(
            attempt, card.usable_bytes, varied.start, step=varied.step, most=varied.most, tell=tell
        )
        found = LargestSize(varied.option, largest, is_all=largest + varied.step > varied.most)
        can_accumulate = varied.option == "--batch-size" and workload.is_users and not workload.inference
        if not can_accumulate or not 0 < largest < workload.batch_size:
            return found

        def accumulated(size: int, number: int) -> Trial:
            update(description=f"{number} micro-batches of {size}")
            return engine.trial(replace(workload, batch_size=size, accumulate=number))

        asked = workload.batch_size * workload.accumulate
        return replace(found, accumulated=fitting_micro_batches(accumulated, asked, largest))


def _varied(options: PredictOptions) -> _Varied:
    workload, asked = options.workload, options.largest.asked
    if asked == "--largest-batch":
        return _Varied(
            "--batch-size", "Batch size", workload.batch_size, 1, MOST, lambda size: replace(workload, batch_size=size)
        )
    if asked == "--largest-tokens":
        if workload.hf_config is None:
            raise UsageError("--largest-tokens works only with --hf-config.", hint="Leave it out.")
        return _Varied(
            "--tokens", "Tokens", workload.tokens or 512, 64, _most_tokens(workload),
            lambda size: replace(workload, tokens=size),
        )  # fmt: skip
    images = [match for text in workload.model_input if (match := _IMAGE.match(text))]
    if not images:
        raise UsageError(
            "--largest-image needs an image to vary.", hint="Add --input with an image, such as --input 3x224x224."
        )

    def of_size(size: int) -> PredictedWorkload:
        inputs = [_IMAGE.sub(rf"\g<1>x{size}x{size}", text) for text in workload.model_input]
        return replace(workload, model_input=inputs)

    return _Varied("--input", "Image size", int(images[0][2]), 32, MOST, of_size)


def _most_tokens(workload: PredictedWorkload) -> int:
    """The number of the model's positions: the most tokens to try."""
    from tracer.workloads.hf_config import most_tokens

    assert workload.hf_config is not None  # it has been asked for
    return most_tokens(workload.hf_config, workload.model_arg) or MOST


def weight_table(options: PredictOptions, engine: Engine, card: Card) -> tuple[TableRow, ...]:
    """Run the model with weights of 32 and of 16 bits, for each use; of 8 and 4 bits, infer from the latter."""
    workload = options.workload
    rows = [_measured(workload, engine, dtype) for dtype in (torch.float32, torch.bfloat16)]
    with default_dtype(torch.bfloat16):
        model = build(_with(workload, torch.bfloat16, "none", inference=True)).model
    half = rows[-1]
    for bits in _QUANTIZED_BITS:
        less_bytes = half.weights_bytes - quantized_bytes(model, bits)
        reserved_bytes = half.cells[0].reserved_bytes - less_bytes
        cell = TableCell("inference", reserved_bytes, reserved_bytes <= card.usable_bytes)
        rows.append(TableRow(f"{bits} bits", half.weights_bytes - less_bytes, (cell,)))
    return tuple(rows)


def _measured(workload: PredictedWorkload, engine: Engine, dtype: torch.dtype) -> TableRow:
    """Inference, then training with each optimizer."""
    with default_dtype(dtype):
        inference = _with(workload, dtype, "none", inference=True)
        size_bytes = weights_bytes(build(inference).model)
        cells = [_cell("inference", engine.trial(inference))]
        for optimizer in _OPTIMIZERS:
            trained = _with(workload, dtype, optimizer, inference=False)
            cells.append(_cell(f"training, {optimizer}", engine.trial(trained)))
    return TableRow(str(dtype).removeprefix("torch."), size_bytes, tuple(cells))


def _cell(use: str, trial: Trial) -> TableCell:
    return TableCell(use, trial.reserved_bytes, trial.fits)


def _with(workload: PredictedWorkload, dtype: torch.dtype, optimizer: str, *, inference: bool) -> PredictedWorkload:
    """The workload; a configuration says its own type, which is replaced, and inputs without one have this one."""
    name = str(dtype).removeprefix("torch.")
    inputs = [text if ":" in text else f"{text}:{name}" for text in workload.model_input]
    arguments = [*workload.model_arg, *([f"dtype={name}"] if workload.hf_config is not None else [])]
    return replace(workload, model_arg=arguments, model_input=inputs, optimizer=optimizer, inference=inference)
