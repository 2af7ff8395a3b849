"""`--table`: a model's memory by the type of its weights, in inference and in training with several optimizers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import torch

from tracer.commands.predict_engines import Engine, build
from tracer.results.prediction import TableCell, TableRow
from tracer.workloads.module_tensors import default_dtype, quantized_bytes, weights_bytes

if TYPE_CHECKING:
    from tracer.commands.predict_options import PredictOptions
    from tracer.commands.workload_options import PredictedWorkload
    from tracer.null_gpu.cards import Card
    from tracer.sessions.trials.largest_fitting import Trial

_OPTIMIZERS: Final = ("sgd", "adamw")
_QUANTIZED_BITS: Final = (8, 4)


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
