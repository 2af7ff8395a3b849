"""The model's parameters with the gradients that the profiled steps gave them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from tracer.analysis.profiles.attribution import Attribution
from tracer.capture.objects.known_storages import KnownStorages, Role
from tracer.capture.objects.parameter_origins import Parameter
from tracer.capture.recording import OpKind, Recording
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.torch_names import is_accumulate_grad


@dataclass(frozen=True, slots=True)
class Weight:
    """A parameter of the model.

    Attributes:
        name: Dotted name.
        size_bytes: Bytes of its elements.
        grad_size_bytes: Bytes of its gradient as seen during the steps, 0 if it had none.
        module: Dotted name of its module, "" for the model itself.
        frames: Lines that constructed it, innermost first.
    """

    name: str
    size_bytes: int
    grad_size_bytes: int
    module: str
    frames: tuple[SourceLine, ...]


def weights(
    parameters: Iterable[Parameter],
    cycles: Sequence[tuple[Recording, Attribution]],
    known: KnownStorages | None = None,
) -> tuple[Weight, ...]:
    """The parameters with their gradients.

    A gradient that was observed has the size observed. Where none was, every parameter that wants one has one of its
    own size if a step accumulated as many gradients as there are such parameters; fewer cannot be told apart.

    Args:
        parameters: Parameters of the model, in its order.
        cycles: Recordings with their owners.
        known: What was observed.
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
