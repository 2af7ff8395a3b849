"""The one vocabulary: what a block can be, and how that is known, for recordings and snapshots alike.

Which rule gives a block its kind stands in one ordered table for each source: `profiles/classify_blocks.py` for a
recording, `snapshots/classify_blocks.py` for an allocator snapshot.
"""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final


class Kind(IntEnum):
    """What a block is. Finer than torch's categories where there is evidence, and never empty."""

    PARAMETER = 0
    OPTIMIZER_STATE = 1
    INPUT = 2
    TEMPORARY = 3  # Made and freed in one phase, and seen as a tensor
    ACTIVATION = 4  # Made in forward and kept for backward
    GRADIENT = 5  # Of a parameter
    AUTOGRAD_DETAIL = 6  # Made in backward: gradients of activations, intermediate results
    WORKSPACE = 7  # Never seen as a tensor: an operator's own scratch memory
    BUFFER = 8
    BEFORE_RECORDING = 9  # Allocated before the recording began; its role is unknown
    UNKNOWN = 10
    EVALUATION = 11  # Made in forward with gradients off
    HELD = 12  # Kept by Python, in a variable, a list or a cache; no backward uses it

    COMMUNICATION = 13  # Buffers of collectives: what FSDP gathers and reduces, and DDP's buckets

    @property
    def words(self) -> str:
        """The kind in plain words, for a sentence or a column."""
        return "not known" if self is Kind.UNKNOWN else self.name.lower().replace("_", " ")

    @property
    def meaning(self) -> str:
        """Beside its name in a table, for whoever reads it for the first time; short enough for 80 columns."""
        return _MEANING[self]


_MEANING = {
    Kind.PARAMETER: "weights of the model",
    Kind.OPTIMIZER_STATE: "kept by the optimizer",
    Kind.INPUT: "the batch and its targets",
    Kind.TEMPORARY: "made and freed in one phase",
    Kind.ACTIVATION: "from forward, for backward",
    Kind.GRADIENT: "of the parameters",
    Kind.AUTOGRAD_DETAIL: "made during backward",
    Kind.WORKSPACE: "operators' scratch memory",
    Kind.BUFFER: "buffers of the model",
    Kind.BEFORE_RECORDING: "from before, use not known",
    Kind.UNKNOWN: "nothing proves what it is",
    Kind.EVALUATION: "forward without gradients",
    Kind.HELD: "kept by Python variables",
    Kind.COMMUNICATION: "buffers of collectives",
}


LAYERS: Final = (
    Kind.PARAMETER,
    Kind.BUFFER,
    Kind.OPTIMIZER_STATE,
    Kind.BEFORE_RECORDING,
    Kind.INPUT,
    Kind.TEMPORARY,
    Kind.ACTIVATION,
    Kind.EVALUATION,
    Kind.HELD,
    Kind.GRADIENT,
    Kind.AUTOGRAD_DETAIL,
    Kind.COMMUNICATION,
    Kind.WORKSPACE,
    Kind.UNKNOWN,
)
"""Every kind once, in the order of a drawing's layers, lowest first."""


def kind_named(words: str) -> Kind | None:
    """Return the kind of a name such as `OPTIMIZER_STATE`, `optimizer_state` or `optimizer state`, or None."""
    return _BY_WORDS.get(words, _BY_WORDS.get(words.upper()))


def meaning_of(words: str) -> str:
    """The meaning of a kind by its name, or by its words; empty for what is no kind."""
    return _BY_WORDS[words].meaning if words in _BY_WORDS else ""


def words_of(name: str) -> str:
    """A kind's name as people read it, on every screen and page; what is no kind's name stays as it is."""
    return Kind[name].words if name in Kind.__members__ else name


_BY_WORDS: Final = {word: kind for kind in Kind for word in (kind.name, kind.words)}


@unique
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
    FREED_BY_GRAD_ASSIGNMENT = 29
    FREED_BY_DATA_ASSIGNMENT = 30
    REPLACES_PARAMETER = 31
    FREED_IN_STEP = 32
    STEP_STACK_BEFORE = 33
    BACKWARD_STACK_BEFORE = 34
    RECOMPUTED_STACK = 35
    RELEASED_IN_SILENCE = 36
    SILENCE_TO_STEP = 37
    WITHIN_SILENCE = 38
    SAME_STACK = 39
    GRADIENTS_SIZES = 40
    AUTOCAST_COPY = 41
    MODULE_CALL_STACK = 42
    ALIVE_AT_END = 43
    ONE_SET_OF_SIZES = 44
    CONSTRUCTED = 45
    COLLECTIVE_STACK = 46
    LEFT_BY_BACKWARD = 47
    HELD_OVER_STEP = 48
    WORKSPACE_BRIEF = 49
    WORKSPACE_KEPT = 50
    FROZEN_SET = 51
    FED_TO_FORWARD = 52
    IN_FLIGHT = 53
    HELD_OVER_BACKWARD = 54
    COPIED_PARAMETER = 55
    SAVED_IN_BACKWARD = 56
    OPTIMIZERS_CONSTRUCTOR = 57
    SAVED_IN_SILENCE = 58
    # Of recordings again.
    LISTED = 60
    HELD_BY_GRAPH = 61
    UNSEEN_SAVED = 62
    LATER_BACKWARD = 63
    FROM_OUTSIDE = 64
    WITHOUT_GRAD = 65
    FREED_IN_FORWARD = 66
    NO_BACKWARD_YET = 67
    WITHIN_LOOP = 68
    COMPILED_SAVED = 69
    COMPILED_INSIDE = 70
    COMPILED_TAKEN_OVER = 71
    LIBRARYS = 72
    COMPILED_RECOMPUTED = 73
    FREED_AS_BUFFER = 85
    REPLACES_BUFFER = 86
    REPLACED_BY_LINE = 87
    REPLACES_BY_LINE = 88
    KEPT_ALONE = 89
    OF_COLLECTIVE = 74
    GIVEN_TO_COLLECTIVE = 75
    FREED_BEHIND_BACKWARD = 76
    AROUND_BACKWARD = 77
    KEPT_BEHIND_BACKWARD = 83
    UNTIL_NEXT_BATCH = 84
    LIBRARYS_STATE = 78
    FREED_BY_MAKER = 82
    GIVEN_TO_REDUCER = 79
    # Of a process that can be asked, or could when its recording began.
    REACHED = 80
    KEPT_BY_GRAPH = 81


EVIDENCE_TEXT = {
    Evidence.HELD_OBJECT: "address of a live, named tensor",
    Evidence.ACCUMULATED: "allocated or taken over by AccumulateGrad",
    Evidence.DATA_FLOW: "torch's data flow",
    Evidence.SAVED: "made before backward, used or freed by backward",
    Evidence.HELD_AFTER_BACKWARD: "made in forward, not used by backward, alive after it",
    Evidence.WITHIN_FORWARD: "made in forward, not used by backward, freed before its end",
    Evidence.MADE_IN_BACKWARD: "made in backward",
    Evidence.RECOMPUTED: "recomputed in backward by its module",
    Evidence.OPTIMIZER_KEPT: "made by the optimizer and kept",
    Evidence.WITHIN_OPTIMIZER: "made and freed by the optimizer",
    Evidence.NO_TENSOR: "never seen as a tensor, freed by its own operator",
    Evidence.FREED_BY_MAKER: "made and freed by one operator; uses not recorded",
    Evidence.SEEN_BEFORE: "allocated before the recording, role unknown",
    Evidence.OUTSIDE: "made outside forward, backward and optimizer, and kept",
    Evidence.LISTED: "a module or an optimizer listed it",
    Evidence.HELD_BY_GRAPH: "saved for backward by a graph from before the recording",
    Evidence.LIBRARYS: "workspace that a library keeps between calls",
    Evidence.LIBRARYS_STATE: "cuDNN's random state for the dropout of recurrent layers",
    Evidence.OF_COLLECTIVE: "made in code of FSDP, DDP, ZeRO or a pipeline that creates communication buffers",
    Evidence.GIVEN_TO_REDUCER: "from before the recording, written and read by DDP's reducer",
    Evidence.GIVEN_TO_COLLECTIVE: "from before the recording, no tensor of Python's, passed to a collective",
    Evidence.UNSEEN_SAVED: "made by another thread or outside torch, used by backward",
    Evidence.LATER_BACKWARD: "made in backward with gradients on, used by a later backward",
    Evidence.FROM_OUTSIDE: "made by the training loop outside of modules, used in training",
    Evidence.WITHOUT_GRAD: "made in forward with gradients off",
    Evidence.FREED_IN_FORWARD: "made and freed in forward, without a backward",
    Evidence.FREED_BEHIND_BACKWARD: "made in forward, freed after backward in the same step; uses not recorded",
    Evidence.KEPT_BEHIND_BACKWARD: "made in forward, alive after a backward that freed the rest; uses not recorded",
    Evidence.UNTIL_NEXT_BATCH: (
        "made by the loop before backward, freed in the next step before its forward; uses not recorded"
    ),
    Evidence.AROUND_BACKWARD: "made by the loop before backward, freed after it in the same step; uses not recorded",
    Evidence.NO_BACKWARD_YET: "made in forward with gradients on, no backward since",
    Evidence.WITHIN_LOOP: "made and freed outside forward, backward and optimizer",
    Evidence.COMPILED_SAVED: "saved for backward by a compiled forward",
    Evidence.COMPILED_TAKEN_OVER: "memory saved by a compiled forward, reused by its backward",
    Evidence.COMPILED_RECOMPUTED: "recomputed by a compiled backward",
    Evidence.COMPILED_INSIDE: "made and freed inside a compiled graph",
    Evidence.REACHED: "a live tensor in Python, in no module and no optimizer",
    Evidence.KEPT_BY_GRAPH: "saved for backward by a graph that is still alive",
    Evidence.HISTORY: "allocated before the recording, in the allocator's history",
    Evidence.UNSEEN: "made by another thread or outside torch, where the profiler does not record",
    Evidence.SAID_BY_RECORDING: "its kind is stored in the snapshot",
    Evidence.HELD_BY_PROGRAM: "address of a live, named tensor when the recording began",
    Evidence.UNPROVED: "nothing in the recording proves what it is",
    Evidence.WORKSPACE_STACK: "its stack is in code for a library's workspace",
    Evidence.OPTIMIZER_STATE_STACK: "its stack is where torch's optimizers create their state",
    Evidence.COLLECTIVE_STACK: "its stack is in code of FSDP, DDP or a pipeline that creates communication buffers",
    Evidence.ACCUMULATE_GRAD_STACK: "its stack is in the node that writes .grad",
    Evidence.FREED_BY_ZERO_GRAD: "freed by zero_grad",
    Evidence.BACKWARD_TO_STEP: "made in backward, alive when the optimizer's step ran",
    Evidence.OUTLIVED_STEP: "made in an optimizer's step, alive after it",
    Evidence.WITHIN_STEP: "made and freed in an optimizer's step",
    Evidence.RELEASED_BY_AUTOGRAD: "saved for backward: made outside of backward, freed by autograd",
    Evidence.WITHIN_BACKWARD: "made and freed in backward",
    Evidence.MODULE_SETUP_STACK: "its stack is in code that creates or moves parameters and buffers; never freed",
    Evidence.SAVED_IN_BACKWARD: "saved for a second derivative: made in backward, alive after it, freed by autograd",
    Evidence.COPIED_PARAMETER: "its stack is where copy.deepcopy copies a Parameter",
    Evidence.BEFORE_ANY_BACKWARD: "freed before any backward ran",
    Evidence.FREED_BY_GRAD_ASSIGNMENT: "freed by an assignment to .grad",
    Evidence.FREED_BY_DATA_ASSIGNMENT: "freed by an assignment to .data",
    Evidence.REPLACES_PARAMETER: "made in an optimizer's step as the new memory of a parameter",
    Evidence.FREED_AS_BUFFER: "freed as a module's buffer got another tensor",
    Evidence.REPLACES_BUFFER: "made by the line that freed a buffer of its size, right before",
    Evidence.REPLACED_BY_LINE: (
        "its stack is in code that creates parameters; freed by the line that made another of its size"
    ),
    Evidence.REPLACES_BY_LINE: "made by the line that freed a parameter of its size, right before",
    Evidence.FREED_IN_STEP: "likely: allocated before the recording, freed in an optimizer's step",
    Evidence.STEP_STACK_BEFORE: "allocated before the recording, with a stack in an optimizer's step",
    Evidence.BACKWARD_STACK_BEFORE: "likely: allocated before the recording, never freed, with a stack in backward",
    Evidence.RECOMPUTED_STACK: "recomputed in backward by a module, freed by autograd",
    Evidence.RELEASED_IN_SILENCE: "likely: allocated with a Python stack, freed without one, as by autograd's threads",
    Evidence.SILENCE_TO_STEP: (
        "likely: allocated without a Python stack, of a parameter's size, alive when the optimizer's step ran"
    ),
    Evidence.SAVED_IN_SILENCE: (
        "likely: allocated and freed without a Python stack, and the program's own code ran in between, as what a "
        "second derivative needs"
    ),
    Evidence.WITHIN_SILENCE: "likely: allocated and freed without a Python stack, as by autograd's threads",
    Evidence.SAME_STACK: "likely: other blocks of the same stack are of this kind",
    Evidence.GRADIENTS_SIZES: "likely: allocated before the recording, never freed, as many as gradients of its size",
    Evidence.AUTOCAST_COPY: "likely: a weight cast by autocast",
    Evidence.MODULE_CALL_STACK: "likely: made in a module's call, alive while backward ran",
    Evidence.ALIVE_AT_END: "likely, or an output: made in a module's call, never freed, no backward since",
    Evidence.OPTIMIZERS_CONSTRUCTOR: "likely: made in the constructor of the program's own optimizer, never freed",
    Evidence.CONSTRUCTED: "likely: made in a constructor, never freed, except by an optimizer's step",
    Evidence.LEFT_BY_BACKWARD: "likely: made in backward, of a parameter's size, never freed",
    Evidence.WORKSPACE_BRIEF: "likely: of the size of cuBLAS's workspace, no other event while it was in use",
    Evidence.WORKSPACE_KEPT: "likely: of the size of cuBLAS's workspace, made once, never freed",
    Evidence.HELD_OVER_STEP: "likely: made outside of backward, alive until after an optimizer's step",
    Evidence.FED_TO_FORWARD: (
        "likely: made outside of modules between a step and the next forward, alive when that forward began"
    ),
    Evidence.HELD_OVER_BACKWARD: (
        "made in a module or a function of torch.nn, alive after a backward, freed by the program's own code"
    ),
    Evidence.KEPT_ALONE: (
        "likely: all else that this call of a model made is freed, and the model was called again since"
    ),
    Evidence.IN_FLIGHT: "likely: made in a backward that was not over, of a size that no parameter has",
    Evidence.FROZEN_SET: (
        "likely: allocated before the recording, never freed, one per layer called, no gradient of its size"
    ),
    Evidence.ONE_SET_OF_SIZES: (
        "likely: allocated before the recording, never freed; only forward ran, sizes as of a single model"
    ),
}
