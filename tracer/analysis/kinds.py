"""The one vocabulary: what a block can be, and how that is known, for recordings and snapshots alike.

Which rule gives a block its kind stands in one ordered table for each source: `profiles/classify_blocks.py` for a
recording, `snapshots/classify_blocks.py` for an allocator snapshot.
"""

from __future__ import annotations

from enum import IntEnum


class Kind(IntEnum):
    """What a block is. Finer than torch's categories where there is evidence, and never empty."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3
    """Made and freed in one phase, and seen as a tensor."""
    ACTIVATION = 4
    """Made in forward and kept for backward."""
    GRADIENT = 5
    """Of a parameter."""
    AUTOGRAD_DETAIL = 6
    """Made in backward: gradients of activations, intermediate results."""
    WORKSPACE = 7
    """Never seen as a tensor: an operator's own scratch memory."""
    BUFFER = 8
    BEFORE_RECORDING = 9
    """Allocated before the recording began; its role is unknown."""
    UNKNOWN = 10

    @property
    def words(self) -> str:
        """In plain words, as in a sentence or a column."""
        return "not known" if self is Kind.UNKNOWN else self.name.lower().replace("_", " ")


class Evidence(IntEnum):
    """How a block's kind is known. Numbers are names and no order; each table of rules has its own."""

    HELD_OBJECT = 0
    ACCUMULATED = 1
    DATA_FLOW = 2
    SAVED = 3
    HELD_AFTER_BACKWARD = 4
    WITHIN_FORWARD = 5
    MADE_IN_BACKWARD = 6
    RECOMPUTED = 7
    OPTIMIZER_KEPT = 8
    WITHIN_OPTIMIZER = 9
    NO_TENSOR = 10
    SEEN_BEFORE = 11
    OUTSIDE = 12
    HISTORY = 13
    UNSEEN = 14
    # Of allocator snapshots, which have stacks and annotations, and neither data flow nor live tensors.
    SAID_BY_RECORDING = 15
    HELD_BY_PROGRAM = 16
    UNPROVED = 17
    WORKSPACE_STACK = 18
    OPTIMIZER_STATE_STACK = 19
    ACCUMULATE_GRAD_STACK = 20
    FREED_BY_ZERO_GRAD = 21
    BACKWARD_TO_STEP = 22
    OUTLIVED_STEP = 23
    WITHIN_STEP = 24
    RELEASED_BY_AUTOGRAD = 25
    WITHIN_BACKWARD = 26
    MODULE_SETUP_STACK = 27
    BEFORE_ANY_BACKWARD = 28


EVIDENCE_TEXT = {
    Evidence.HELD_OBJECT: "address of a live, named tensor",
    Evidence.ACCUMULATED: "AccumulateGrad made or took it",
    Evidence.DATA_FLOW: "torch's data flow",
    Evidence.SAVED: "made in forward, freed in backward",
    Evidence.HELD_AFTER_BACKWARD: "made in forward, alive after backward",
    Evidence.WITHIN_FORWARD: "made and freed in forward",
    Evidence.MADE_IN_BACKWARD: "made in backward",
    Evidence.RECOMPUTED: "made again in backward by its module",
    Evidence.OPTIMIZER_KEPT: "made by the optimizer and kept",
    Evidence.WITHIN_OPTIMIZER: "made and freed by the optimizer",
    Evidence.NO_TENSOR: "never seen as a tensor, freed by its own operator",
    Evidence.SEEN_BEFORE: "allocated before the recording, role unknown",
    Evidence.OUTSIDE: "made outside forward, backward and optimizer",
    Evidence.HISTORY: "allocated before the recording, in the allocator's history",
    Evidence.UNSEEN: "made by another thread or outside torch, where the profiler does not record",
    Evidence.SAID_BY_RECORDING: "the recording says so",
    Evidence.HELD_BY_PROGRAM: "address of a live, named tensor when the recording began",
    Evidence.UNPROVED: "nothing in the recording proves what it is",
    Evidence.WORKSPACE_STACK: "its stack is in a library's workspace",
    Evidence.OPTIMIZER_STATE_STACK: "its stack is where torch's optimizers create their state",
    Evidence.ACCUMULATE_GRAD_STACK: "its stack is in the node that writes .grad",
    Evidence.FREED_BY_ZERO_GRAD: "zero_grad freed it",
    Evidence.BACKWARD_TO_STEP: "backward made it, and the optimizer's step found it alive",
    Evidence.OUTLIVED_STEP: "an optimizer's step made it, and it outlived the step",
    Evidence.WITHIN_STEP: "an optimizer's step made and freed it",
    Evidence.RELEASED_BY_AUTOGRAD: "it was made outside of backward, and autograd let go of it",
    Evidence.WITHIN_BACKWARD: "backward made and freed it",
    Evidence.MODULE_SETUP_STACK: (
        "its stack is where modules create or move parameters and buffers, and it was never freed"
    ),
    Evidence.BEFORE_ANY_BACKWARD: "it was freed before any backward ran",
}
