"""The memory report: weights, what every operator invocation saves for backward, and the peak."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.operators.invocation_times import sum_at
from tracer.analysis.operators.invocations import OpInstances, op_instances, short_op_name
from tracer.analysis.operators.saved_tensors import HowSaved, SavedActivations, saved_activations
from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.findings import CycleFindings, Findings
from tracer.analysis.profiles.source_lines import frames_of_op
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.parameter_origins import Parameter
from tracer.capture.recording import OpKind, Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import is_accumulate_grad


@dataclass(frozen=True, slots=True)
class ActivationEntry:
    """Tensors that one operator invocation saves."""

    name: str  # Name of the operator as users write it
    size_bytes: int  # Saved storages that it keeps alive and that no earlier invocation had saved
    input_bytes: int  # The part of them that is the step's batch
    unread_bytes: int  # The part that no backward operator read, known only because the graph let go of it
    num_storages: int
    module: str | None  # Path, or None outside modules
    frames: tuple[SourceLine, ...]  # Lines of user code that called it, innermost first
    # How many times the same line of the same module had called an operator of this name before, in this step; from 0.
    invocation: int
    invocations: int
    input_shapes: tuple[tuple[int, ...], ...]  # One shape per tensor argument


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The answer for one device."""

    device: str  # Name as `str(torch.device)` writes it
    peak_bytes: int  # The largest of the cycles' peaks
    # The step whose activations these are: the last complete one of the cycle with that peak; None if no operator ran
    # in forward.
    step: str | None
    weights: tuple[Weight, ...]  # Parameters in the model's order
    activations: tuple[ActivationEntry, ...]  # Activations in program order
    categories: tuple[tuple[str, int], ...]  # Bytes at the peak by category; they sum to it
    settings: Mapping[str, object]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(weight.size_bytes for weight in self.weights)

    @property
    def grad_bytes(self) -> int:
        """Bytes of all gradients."""
        return sum(weight.grad_size_bytes for weight in self.weights)

    @property
    def activation_bytes(self) -> int:
        """All that is saved."""
        return sum(entry.size_bytes for entry in self.activations)


def memory_report(
    findings: Findings,
    *,
    instances: OpInstances | None = None,
    parameters: Iterable[Parameter] = (),
    known: KnownStorages | None = None,
    settings: Mapping[str, object] | None = None,
) -> MemoryReport:
    """Put the report together."""
    worst = findings.worst
    instances = instances or op_instances(worst.recording, worst.attribution)
    saved = saved_activations(worst, instances)
    step = _step_to_show(worst, instances, saved)
    names = worst.attribution.step_names
    return MemoryReport(
        device=findings.device,
        peak_bytes=worst.peak.peak_bytes,
        step=None if step is None else names[step] if step < len(names) else "all",
        weights=weights(parameters, [(cycle.recording, cycle.attribution) for cycle in findings.cycles], known),
        activations=() if step is None else activation_entries(worst, instances, saved, step),
        categories=tuple(worst.peak.by_category().items()),
        settings=dict(settings or {}),
    )


def _step_to_show(cycle: CycleFindings, instances: OpInstances, saved: SavedActivations) -> int | None:
    """The last step with forward: what earlier ones carried over to it was made in the recording.

    A step that was cut short has no backward and so saves less than others; it is passed over.
    """
    steps = np.unique(instances.step)
    if not len(steps):
        return None
    totals = [int(saved.of_step(step).size_bytes.sum()) for step in steps.tolist()]
    complete = [step for step, total in zip(steps.tolist(), totals, strict=True) if 2 * total >= max(totals)]
    return int(complete[-1])


def activation_entries(
    cycle: CycleFindings, instances: OpInstances, saved: SavedActivations, step: int
) -> tuple[ActivationEntry, ...]:
    """An entry per invocation in a step that saves something, in program order."""
    recording, attribution = cycle.recording, cycle.attribution
    mine = saved.of_step(step)
    counts: dict[tuple[int, int, int], int] = {}
    groups_of_rows: list[tuple[int, tuple[int, int, int], int]] = []
    saving = set(mine.row.tolist())
    for row in np.flatnonzero(instances.step == step).tolist():
        op = int(instances.op[row])
        group = (int(recording.ops.name[op]), int(attribution.op_module[op]), int(attribution.op_frame[op]))
        if row in saving:
            groups_of_rows.append((row, group, counts.get(group, 0)))
        counts[group] = counts.get(group, 0) + 1
    size_bytes, input_bytes, unread_bytes, num_storages = (
        sum_at(mine.row, values, len(instances.op))
        for values in (
            mine.size_bytes,
            np.where(mine.is_input, mine.size_bytes, 0),
            np.where(mine.evidence == HowSaved.FREED_IN_BACKWARD, mine.size_bytes, 0),
            np.ones(len(mine.row), np.int64),
        )
    )
    entries = []
    for row, group, invocation in groups_of_rows:
        op = int(instances.op[row])
        module = int(attribution.op_module[op])
        entries.append(
            ActivationEntry(
                name=short_op_name(recording.strings[recording.ops.name[op]]),
                size_bytes=int(size_bytes[row]),
                input_bytes=int(input_bytes[row]),
                unread_bytes=int(unread_bytes[row]),
                num_storages=int(num_storages[row]),
                module=attribution.modules[module] if module >= 0 else None,
                frames=frames_of_op(recording, attribution, op),
                invocation=invocation,
                invocations=counts[group],
                input_shapes=recording.shapes[recording.ops.input_shapes[op]],
            )
        )
    return tuple(entries)


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the model."""

    name: str
    size_bytes: int  # Bytes of its elements
    grad_size_bytes: int  # Bytes of its gradient as seen during the steps, 0 if it had none
    module: str  # Dotted name of its module, "" for the model itself
    frames: tuple[SourceLine, ...]  # Lines that constructed it, innermost first


def weights(
    parameters: Iterable[Parameter],
    cycles: Sequence[tuple[Recording, Attribution]],
    known: KnownStorages | None = None,
) -> tuple[Weight, ...]:
    """The parameters with their gradients.

    A gradient that was observed has the size observed. Where none was, every parameter that wants one has one of its
    own size if a step accumulated as many gradients as there are such parameters; fewer cannot be told apart.
    """
    listed = tuple(parameters)
    observed = _observed_gradients(known)
    wanting = sum(parameter.wants_gradient for parameter in listed)
    all_have = not observed and wanting > 0 and _most_accumulated(cycles) >= wanting
    return tuple(
        Weight(
            name=parameter.name,
            size_bytes=parameter.size_bytes,
            # A gradient may be a part of a larger buffer.
            grad_size_bytes=min(
                parameter.size_bytes,
                parameter.size_bytes if all_have and parameter.wants_gradient else observed.get(parameter.name, 0),
            ),
            module=parameter.module,
            frames=parameter.lines,
        )
        for parameter in listed
    )


def _observed_gradients(known: KnownStorages | None) -> dict[str, int]:
    """Bytes by name, the largest seen."""
    sizes: dict[str, int] = {}
    if known is not None:
        for row in np.flatnonzero(known.role == Role.GRADIENT).tolist():
            name = known.names[known.name[row]]
            sizes[name] = max(sizes.get(name, 0), int(known.size_bytes[row]))
    return sizes


def _most_accumulated(cycles: Sequence[tuple[Recording, Attribution]]) -> int:
    """The most gradients that one step accumulated."""
    most = 0
    for recording, attribution in cycles:
        nodes = (recording.ops.kind == OpKind.ENGINE) & recording.is_text(is_accumulate_grad)[recording.ops.name]
        steps = attribution.op_step[nodes]
        if len(steps):
            most = max(most, int(np.bincount(steps - steps.min()).max()))
    return most
