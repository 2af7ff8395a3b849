"""Will it fit: a rehearsed step, explained, on a device of some capacity, and the largest batch that fits there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tracer.allocator.settings import AllocatorSettings
from tracer.analysis.profiles.attribution import Phase, attribute
from tracer.analysis.profiles.findings import find_in_cycle, put_together
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.run_origin import RunOrigin
from tracer.capture.sources.project_files import project_root
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import TracerError
from tracer.null_gpu.cards import CONTEXT_BYTES, UNNAMED, Card
from tracer.rehearsal.convolution_workspaces import cudnn_of
from tracer.rehearsal.device_memory import DeviceMemory
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.rehearsal.spread import reserved_spread
from tracer.results.prediction import Place, Prediction, ShapeNeed
from tracer.results.run_history import RunHistory
from tracer.results.run_results import RunResults
from tracer.units import format_bytes, some
from tracer.workloads.workload import Workload

Build = Callable[[int], Workload]
"""From a batch size to a workload on the CPU, new each time."""
_MAX_BATCH = 1 << 20
_NUM_STEPS = 3


def predict(
    workload: Workload,
    *,
    card: Card | None = None,
    settings: AllocatorSettings | None = None,
    device: str = "cuda",
    num_steps: int = _NUM_STEPS,
) -> Prediction:
    """Rehearse a workload, explain its peak and see whether it fits.

    Args:
        workload: On the CPU; it holds no numbers any more afterwards.
        card: The device it is to fit on.
        settings: Of its allocator.
        device: `cuda`, or `cpu` for the CPU's own behaviour.
        num_steps: More where the shapes of batches vary.

    Raises:
        RehearsalError: It cannot be rehearsed.
    """
    done, cudnn_version = _rehearsed(workload, card, device, num_steps)
    cycle = find_in_cycle(done.recording, known=done.known, module_names=done.module_names)
    capacity = card.usable_bytes if card is not None else None
    unlimited = done.memory if settings is None else done.on_device(settings)
    memory = unlimited
    if capacity is not None and unlimited.peak_reserved_bytes > capacity:
        memory = done.on_device(settings, capacity_bytes=capacity)
    return Prediction(
        rehearsal=done,
        findings=put_together([cycle]),
        card=card,
        memory=memory,
        unlimited=unlimited,
        spread=reserved_spread(done.requests, unlimited, settings),
        failed_at=_place(done, memory),
        assumptions=tuple(_assumptions(workload, done, card, cudnn_version)),
    )


def _rehearsed(workload: Workload, card: Card | None, device: str, num_steps: int) -> tuple[Rehearsal, int]:
    """The rehearsal, and the version of cuDNN that was asked; 0 for none, as where no card is named."""
    if device != "cuda":
        return rehearse(workload, device="cpu", num_steps=num_steps), 0
    with cudnn_of(card) as cudnn:
        done = rehearse(workload, card=card or UNNAMED, cudnn=cudnn, num_steps=num_steps)
        return done, cudnn.version if cudnn is not None else 0


def _place(rehearsal: Rehearsal, memory: DeviceMemory) -> Place | None:
    if memory.failure is None:
        return None
    row = memory.failure.request
    step, op = int(rehearsal.requests.step[row]), int(rehearsal.requests.op[row])
    if op < 0:
        return Place(step, "before the first step" if step < 0 else "other", "", "", None)
    whole = rehearsal.whole
    found = attribute(whole, module_names=rehearsal.module_names)
    frame, module = int(found.op_frame[op]), int(found.op_module[op])
    line = None
    if frame >= 0:
        line = SourceLine(whole.strings[whole.frames.file[frame]], int(whole.frames.line[frame]))
    return Place(
        step=step,
        phase=Phase(int(found.op_phase[op])).name.lower(),
        module=found.modules[module] if module >= 0 else "",
        op=whole.strings[whole.ops.name[op]],
        line=line,
    )


def _assumptions(workload: Workload, rehearsal: Rehearsal, card: Card | None, cudnn_version: int) -> list[str]:
    said = [f"{rehearsal.num_steps} steps rehearsed with torch {torch.__version__}; every step is like the second."]
    if rehearsal.device == "cpu":
        return [*said, "As the CPU runs it, without what kernels take for themselves."]
    capability = ".".join(map(str, (card or UNNAMED).capability))
    said.append(
        f"{some(len(rehearsal.rules), 'rule')} from torch's sources for what a GPU of compute capability {capability} "
        "does otherwise than the CPU; docs/predict.md lists them."
    )
    if any("conv" in name for name in _operators(rehearsal)):
        said.append(_on_workspaces(card, cudnn_version))
    if any(isinstance(module, torch.nn.RNNBase) for module in workload.model.modules()):
        said.append(
            "Recurrent layers keep what any backward needs, gates and cell states; cuDNN's own reserve and workspace "
            "may be larger."
        )
    if card is not None:
        said.append(
            f"{format_bytes(CONTEXT_BYTES)} of the GPU are set aside for CUDA's context and kernels; no peak has them."
        )
    reads = [read for read in rehearsal.value_reads if read.file]
    if reads:
        first, count = reads[0], sum(read.count for read in reads)
        said.append(
            f"The program read {some(count, 'value')} out of tensors, first at {Path(first.file).name}:{first.line}; "
            f"it was told {first.answer}, and what it decides by that may differ."
        )
    if any(type(module).__name__ == "OptimizedModule" for module in workload.model.modules()):
        said.append("Compiled parts were rehearsed as eager ones, which need more.")
    return said


def shape_need(workload: Workload, inputs: tuple[str, ...], *, card: Card | None, device: str) -> ShapeNeed:
    """What a workload of one shape needs.

    Args:
        workload: On the CPU; it holds no numbers any more afterwards.
        inputs: As `--input` has them.
        card: The device it is to fit on.
        device: As in `predict`.
    """
    done, _ = _rehearsed(workload, card, device, _NUM_STEPS)
    return ShapeNeed(inputs, done.memory.peak_allocated_bytes, done.memory.peak_reserved_bytes)


def _operators(rehearsal: Rehearsal) -> set[str]:
    whole = rehearsal.whole
    return {whole.strings[name] for name in set(whole.ops.name.tolist())}


def _on_workspaces(card: Card | None, cudnn_version: int) -> str:
    if card is not None and cudnn_version:
        major, minor = divmod(cudnn_version // 100, 100)
        return (
            f"Convolutions' workspaces are what cuDNN {major}.{minor} said that it would take on {card.label}; another "
            "version chooses otherwise."
        )
    if card is not None and card.label:
        return "Convolutions' workspaces are not counted: there is no cuDNN 9.8 or newer here to be asked for them."
    return "Convolutions' workspaces are not counted: cuDNN is asked for them where a card is named."


def results_of(
    prediction: Prediction, workload: Workload, *, settings: Mapping[str, object], root: Path | None = None
) -> RunResults:
    """A prediction as the results of a run, for every output that needs no times.

    Args:
        prediction: Of the workload.
        workload: For the names of its parameters.
        settings: What to remember of it.
        root: The folder from which reports name files.
    """
    notes = ("This is a prediction: nothing has run, and times are positions in the order of events.",)
    return RunResults(
        findings=prediction.findings,
        timings=None,
        history=RunHistory(None),
        known=prediction.rehearsal.known,
        unused_parameters=None,
        losses=(),
        num_steps=prediction.rehearsal.num_steps,
        failure=None,
        settings={"predicted": prediction.rehearsal.device, **settings},
        notes=(*notes, *prediction.assumptions),
        parameters=describe_parameters(workload.model, {}),
        project_root=root or project_root(workload.model),
        module_names=prediction.rehearsal.module_names,
        origin=RunOrigin.here(),
        device=prediction.rehearsal.device,
        is_predicted=True,
    )


def largest_batch(
    build: Build,
    card: Card,
    *,
    start: int,
    settings: AllocatorSettings | None = None,
    tell: Callable[[int, bool], None] = lambda batch, fits: None,
) -> int:
    """The largest batch that fits, by bisection; each answer is a rehearsal of that batch.

    Args:
        build: Makes the workload of a batch size.
        card: The device.
        start: The batch size to begin with.
        settings: Of the device's allocator.
        tell: Called with every batch size that was tried, and whether it fits.

    Returns:
        0 where not even one sample fits.

    Raises:
        TracerError: The batch size changes nothing.
    """
    peaks: dict[int, int] = {}

    def fits(batch: int) -> bool:
        answer, peaks[batch] = _fits(build(batch), card, settings)
        tell(batch, answer)
        if len(set(peaks.values())) == 1 and len(peaks) > 1:
            raise TracerError(
                "The batch size changes nothing of what this needs.",
                hint="Give the factory a parameter batch_size, or --input with the shape of one sample.",
            )
        return answer

    low, high = (start, 0) if fits(start) else (0, start)
    while not high:
        if low >= _MAX_BATCH:
            return low
        probe = min(_MAX_BATCH, _guess(peaks, card) if len(peaks) > 1 else 2 * low)
        probe = max(low + 1, min(probe, 8 * low))
        low, high = (probe, 0) if fits(probe) else (low, probe)
    while high - low > 1:
        probe = _guess(peaks, card) if len(peaks) > 1 else (low + high) // 2
        # By a line through two answers, but never less than a tenth of the way in from either side.
        margin = max(1, (high - low) // 10)
        probe = max(low + margin, min(probe, high - margin))
        low, high = (probe, high) if fits(probe) else (low, probe)
    return low


def fitting_micro_batches(
    build: Callable[[int, int], Workload],
    card: Card,
    num_samples: int,
    largest: int,
    *,
    settings: AllocatorSettings | None = None,
) -> tuple[int, int] | None:
    """The largest micro-batches of one size that together are so many samples and fit; None where none do.

    With them, gradients are there already during a forward pass: what fits as a whole batch may not as a part of one.

    Args:
        build: Makes the workload of a micro-batch's size and a number of them.
        card: The device.
        num_samples: Of all micro-batches of a step together.
        largest: Batch that fits.
        settings: Of the device's allocator.
    """
    sizes = (size for size in range(min(largest, num_samples - 1), 0, -1) if num_samples % size == 0)
    for size in sizes:
        # The third micro-batch finds what the second found.
        workload = build(size, min(num_samples // size, _DIFFERENT_MICRO_BATCHES))
        if _fits(workload, card, settings)[0]:
            return size, num_samples // size
    return None


_DIFFERENT_MICRO_BATCHES = 3


def _fits(workload: Workload, card: Card, settings: AllocatorSettings | None) -> tuple[bool, int]:
    """Whether a workload runs on a device, and its peak allocated without a limit."""
    done, _ = _rehearsed(workload, card, "cuda", _NUM_STEPS)
    unlimited = done.memory if settings is None else done.on_device(settings)
    is_small = unlimited.peak_reserved_bytes <= card.usable_bytes
    answer = is_small or done.on_device(settings, capacity_bytes=card.usable_bytes).failure is None
    return answer, done.memory.peak_allocated_bytes


def _guess(peaks: Mapping[int, int], card: Card) -> int:
    """Where a line through the smallest and the largest batch tried reaches the capacity."""
    first, last = min(peaks), max(peaks)
    slope = (peaks[last] - peaks[first]) / (last - first)
    return int(first + (card.usable_bytes - peaks[first]) / slope) if slope > 0 else 2 * last
