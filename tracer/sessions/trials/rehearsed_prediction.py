"""Will it fit, by rehearsal: steps on tensors without memory, explained, and the allocator's model of a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from tracer.allocator.settings import AllocatorSettings
from tracer.analysis.profiles.attribution import Phase, attribute
from tracer.analysis.profiles.findings import Findings, find_in_cycle, put_together
from tracer.capture.kept_run import RunOrigin
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.sources.source_files import project_root
from tracer.capture.sources.source_line import SourceLine
from tracer.null_gpu.cards import CONTEXT_BYTES, UNNAMED, Card
from tracer.null_gpu.cudnn import cudnn_of, said_of_workspaces
from tracer.rehearsal.device_memory import DeviceMemory, reserved_spread
from tracer.rehearsal.rehearse import Rehearsal, rehearse
from tracer.results.prediction import OutOfMemoryAt, Prediction, ShapeNeed, Sizes
from tracer.results.run_results import RunResults
from tracer.sessions.trials.bisections import Trial
from tracer.units import format_bytes, some
from tracer.workloads.workload import Workload

Build = Callable[[], Workload]
"""Makes the workload, on the CPU, new each time."""
NUM_STEPS = 3
"""The first two have state and cache settled."""


def predict(
    build: Build,
    *,
    card: Card | None = None,
    settings: AllocatorSettings | None = None,
    device: str = "cuda",
    num_steps: int = NUM_STEPS,
    remember: Mapping[str, object] | None = None,
) -> Prediction:
    """Rehearse a workload, explain its peak and see whether it fits.

    Args:
        build: Its workload holds no numbers any more afterwards.
        device: `cuda`, or `cpu` for the CPU's own behaviour.
        num_steps: More where the shapes of batches vary.

    Raises:
        RehearsalError: It cannot be rehearsed.
    """
    workload = build()
    rehearsal, cudnn_version = _rehearsed(workload, card, device, num_steps)
    cycle = find_in_cycle(rehearsal.recording, known=rehearsal.known, module_names=rehearsal.module_names)
    capacity = card.usable_bytes if card is not None else None
    unlimited = rehearsal.memory if settings is None else rehearsal.on_device(settings)
    memory = unlimited
    if capacity is not None and unlimited.peak_reserved_bytes > capacity:
        memory = rehearsal.on_device(settings, capacity_bytes=capacity)
    assumptions = tuple(_assumptions(workload, rehearsal, card, cudnn_version))
    is_measured = rehearsal.device == "cpu"
    return Prediction(
        engine="rehearsal",
        results=_results(rehearsal, put_together([cycle]), workload, remember or {}, assumptions),
        card=card,
        need=_sizes(unlimited),
        memory=_sizes(memory),
        spread=reserved_spread(rehearsal.requests, unlimited, settings),
        spread_is_about="" if is_measured else "if operators or libraries take other scratch memory",
        failed_at=_place(rehearsal, memory),
        assumptions=assumptions,
    )


def trial(workload: Workload, card: Card, settings: AllocatorSettings | None = None) -> Trial:
    """Whether a workload fits on a card, and what it takes where memory does not end.

    Args:
        workload: On the CPU; it holds no numbers any more afterwards.
    """
    rehearsal, _ = _rehearsed(workload, card, "cuda", NUM_STEPS)
    unlimited = rehearsal.memory if settings is None else rehearsal.on_device(settings)
    is_small = unlimited.peak_reserved_bytes <= card.usable_bytes
    fits = is_small or rehearsal.on_device(settings, capacity_bytes=card.usable_bytes).failure is None
    return Trial(fits, unlimited.peak_allocated_bytes, unlimited.peak_reserved_bytes)


def _sizes(memory: DeviceMemory) -> Sizes:
    return Sizes(
        memory.peak_allocated_bytes, memory.peak_requested_bytes, memory.peak_reserved_bytes, memory.num_retries
    )


def _rehearsed(workload: Workload, card: Card | None, device: str, num_steps: int) -> tuple[Rehearsal, int]:
    """The rehearsal, and the version of the cuDNN that knows its convolutions' workspaces; 0 for none."""
    if device != "cuda":
        return rehearse(workload, device="cpu", num_steps=num_steps), 0
    with cudnn_of(card) as cudnn:
        rehearsal = rehearse(workload, card=card or UNNAMED, cudnn=cudnn, num_steps=num_steps)
        return rehearsal, cudnn.version if _has_convolutions(rehearsal) else 0


def _place(rehearsal: Rehearsal, memory: DeviceMemory) -> OutOfMemoryAt | None:
    if memory.failure is None:
        return None
    row, size_bytes = memory.failure.request, memory.failure.size_bytes
    step, op = int(rehearsal.requests.step[row]), int(rehearsal.requests.op[row])
    if op < 0:
        return OutOfMemoryAt(size_bytes, step, "before the first step" if step < 0 else "other", "", "", None)
    whole = rehearsal.whole
    attribution = attribute(whole, module_names=rehearsal.module_names)
    frame, module = int(attribution.op_frame[op]), int(attribution.op_module[op])
    line = None
    if frame >= 0:
        line = SourceLine(whole.strings[whole.frames.file[frame]], int(whole.frames.line[frame]))
    return OutOfMemoryAt(
        size_bytes=size_bytes,
        step=step,
        phase=Phase(int(attribution.op_phase[op])).name.lower(),
        module=attribution.modules[module] if module >= 0 else "",
        op=whole.strings[whole.ops.name[op]],
        line=line,
    )


def _assumptions(workload: Workload, rehearsal: Rehearsal, card: Card | None, cudnn_version: int) -> list[str]:
    """Return the assumptions of this program: its options, what a rule left out, and the GPU."""
    sentences = [
        f"{rehearsal.num_steps} steps rehearsed with torch {torch.__version__}; every step is like the second."
    ]
    if rehearsal.device == "cpu":
        return [*sentences, "As the CPU runs it, without what kernels take for themselves."]
    sentences += on_card(card)
    if _has_convolutions(rehearsal):
        sentences.append(_on_workspaces(card, cudnn_version))
    if any(isinstance(module, torch.nn.RNNBase) for module in workload.model.modules()):
        sentences.append(
            "Recurrent layers keep what any backward needs, gates and cell states; cuDNN's own reserve and workspace "
            "may be larger."
        )
    reads = [read for read in rehearsal.value_reads if read.file]
    if reads:
        first, count = reads[0], sum(read.count for read in reads)
        sentences.append(
            f"The program read {some(count, 'value')} out of tensors, first at {Path(first.file).name}:{first.line}; "
            f"it was told {first.answer}, and what it decides by that may differ."
        )
    return [*sentences, *of_model(workload.model, is_rehearsed=True)]


def on_card(card: Card | None) -> list[str]:
    """Sentences on the GPU that was assumed, and the memory set aside on it."""
    if card is None:
        return ["No GPU is named: kernels are chosen as on an A100."]
    sentences = [] if card.label else [f"{format_bytes(card.memory_bytes)} is taken as an A100 with that memory."]
    aside = (
        f"{format_bytes(CONTEXT_BYTES)} of the GPU are set aside for CUDA's context and kernels; they are in no peak."
    )
    return [*sentences, aside]


def of_model(model: torch.nn.Module, *, is_rehearsed: bool) -> list[str]:
    """Sentences on what is known of a model without running its steps."""
    sentences = []
    kinds = {type(module).__name__ for module in model.modules()}
    if "OptimizedModule" in kinds and is_rehearsed:
        sentences.append("Compiled parts were rehearsed as eager ones, which need more.")
    if "DistributedDataParallel" in kinds and is_rehearsed:
        trained = sum(
            parameter.numel() * parameter.element_size() for parameter in model.parameters() if parameter.requires_grad
        )
        sentences.append(
            f"DistributedDataParallel's buckets are not rehearsed: {format_bytes(trained)} more, as the gradients."
        )
    return sentences


def shape_need(build: Build, inputs: tuple[str, ...], *, card: Card | None, device: str) -> ShapeNeed:
    """Return the memory that a workload of one shape needs."""
    rehearsal, _ = _rehearsed(build(), card, device, NUM_STEPS)
    return ShapeNeed(inputs, rehearsal.memory.peak_allocated_bytes, rehearsal.memory.peak_reserved_bytes)


def _operators(rehearsal: Rehearsal) -> set[str]:
    whole = rehearsal.whole
    return {whole.strings[name] for name in set(whole.ops.name.tolist())}


def _has_convolutions(rehearsal: Rehearsal) -> bool:
    return any("conv" in name for name in _operators(rehearsal))


def _on_workspaces(card: Card | None, cudnn_version: int) -> str:
    if cudnn_version:
        return said_of_workspaces(cudnn_version, card.label if card is not None and card.label else "an A100")
    return "Convolutions' workspaces are not counted: there is no cuDNN 9.8 or newer here to be asked for them."


def _results(
    rehearsal: Rehearsal,
    findings: Findings,
    workload: Workload,
    settings: Mapping[str, object],
    assumptions: tuple[str, ...],
) -> RunResults:
    """A rehearsal as the results of a run, for every output that needs no times."""
    notes = ("This is a prediction: nothing has run, and times are positions in the order of events.",)
    return RunResults(
        findings=findings,
        known=rehearsal.known,
        num_steps=rehearsal.num_steps,
        settings={"predicted": rehearsal.device, **settings},
        notes=(*notes, *assumptions),
        parameters=describe_parameters(workload.model),
        project_root=project_root(workload.model),
        module_names=rehearsal.module_names,
        origin=RunOrigin.here(),
        device=rehearsal.device,
        is_predicted=True,
    )
