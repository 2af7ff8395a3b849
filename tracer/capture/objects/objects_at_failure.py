"""Facts from the program's objects at an out of memory, beside the allocator's history; without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ObjectsAtFailure:
    """Facts from models, optimizers and tensors, read while the exception keeps them alive."""

    is_evaluating: bool  # Whether what was called, or what is trained, was in evaluation mode
    is_training: bool  # Whether the call of a model that failed was in training mode
    in_graphs: frozenset[int] | None  # Addresses of all that graphs kept; None for graphs too large to follow
    untrained: frozenset[int]  # Addresses of what graphs kept for parameters that nothing trains
    float64: frozenset[int]  # Addresses of tensors of 64-bit floating point, and of such that graphs kept
