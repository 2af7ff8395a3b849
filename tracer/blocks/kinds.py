"""The one vocabulary: what a block can be, and how that is known."""

from __future__ import annotations

from enum import IntEnum, unique
from typing import Final

BEFORE_RECORDING: Final = "before recording"
LABEL_BEFORE: Final = f", made {BEFORE_RECORDING}"
"""Last words of a label of a snapshot's block that is older than the recording."""


class Kind(IntEnum):
    """Kinds of blocks, in the order of a drawing's layers, lowest first: finer than torch's where there is evidence.

    Those that torch's categories have too have their names, and hues near those of `_CATEGORY_TO_COLORS` in
    torch/profiler/_memory_profiler.py. Any two colors can be told apart on either ground, also by people who see no
    red, no green or no blue.
    """

    words: str  # In sentences, tables and pages
    meaning: str  # Beside the words in a table, for whoever reads them for the first time; short enough for 80 columns
    colors: tuple[str, str]  # On white, and on black

    def __new__(cls, number: int, words: str = "", meaning: str = "", colors: tuple[str, str] = ("", "")) -> Kind:
        """Return the kind of this number."""
        kind = int.__new__(cls, number)
        kind._value_, kind.words, kind.meaning, kind.colors = number, words, meaning, colors
        return kind

    PARAMETER = 0, "parameter", "weights of the model", ("#0a7410", "#16a751")
    BUFFER = 8, "buffer", "buffers of the model", ("#95eaad", "#62f5c7")
    OPTIMIZER_STATE = 1, "optimizer state", "kept by the optimizer", ("#ceb309", "#f4df32")
    # An engine's, allocated beforehand, or transformers'
    KV_CACHE = 14, "KV cache", "keys and values of tokens", ("#bdf463", "#c8f78d")
    BEFORE_RECORDING = 9, "before recording", "from before, use not known", ("#cecfcf", "#474747")
    INPUT = 2, "input", "the batch and its targets", ("#3cb7c7", "#33767c")
    # And seen as a tensor
    TEMPORARY = 3, "temporary", "made and freed in one phase", ("#ca9dff", "#bc8ace")
    ACTIVATION = 4, "activation", "from forward, for backward", ("#de5241", "#f23738")
    EVALUATION = 11, "evaluation", "forward without gradients", ("#a92b90", "#ab34a3")
    # In a variable, a list or a cache; no backward uses it
    HELD = 12, "held", "kept by Python variables", ("#ea7878", "#fd9693")
    GRADIENT = 5, "gradient", "of the parameters", ("#1a52d8", "#4b68fa")
    # Gradients of activations, intermediate results
    AUTOGRAD_DETAIL = 6, "autograd detail", "made during backward", ("#618ec5", "#3ea0ff")
    # Buffers that FSDP gathers and reduces into, and DDP's buckets
    COMMUNICATION = 13, "communication", "buffers of collectives", ("#74e6ff", "#a5e7fe")
    # Never seen as a tensor
    WORKSPACE = 7, "workspace", "operators' scratch memory", ("#f9a471", "#f37d17")
    UNKNOWN = 10, "not known", "nothing proves what it is", ("#67686b", "#a4b2be")


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
    """Reasons for a block's kind, in words. Numbers are names and no order; each table of rules has its own."""

    text: str

    def __new__(cls, number: int, text: str = "") -> Evidence:
        """Return the evidence of this number."""
        evidence = int.__new__(cls, number)
        evidence._value_, evidence.text = number, text
        return evidence

    HELD_OBJECT = 0, "address of a live, named tensor"
    ACCUMULATED = 1, "allocated or taken over by AccumulateGrad"
    DATA_FLOW = 2, "torch's data flow"
    SAVED = 3, "made before backward, used or freed by backward"
    HELD_AFTER_BACKWARD = 4, "made in forward, not used by backward, alive after it"
    WITHIN_FORWARD = 5, "made in forward, not used by backward, freed before its end"
    MADE_IN_BACKWARD = 6, "made in backward"
    RECOMPUTED = 7, "recomputed in backward by its module"
    OPTIMIZER_KEPT = 8, "made by the optimizer and kept"
    WITHIN_OPTIMIZER = 9, "made and freed by the optimizer"
    WITHIN_FAILED_STEP = 91, "made by the optimizer in the step that failed, not in its state"
    HELD_AS_IT_FAILED = 93, "in use as its backward failed, held by Python and by no graph"
    AWAITS_BACKWARD = 92, "in use as its step failed, before a backward came to it"
    NO_TENSOR = 10, "never seen as a tensor, freed by its own operator"
    SEEN_BEFORE = 11, "allocated before the recording, role unknown"
    OUTSIDE = 12, "made outside forward, backward and optimizer, and kept"
    HISTORY = 13, "allocated before the recording, in the allocator's history"
    UNSEEN = 14, "made by another thread or outside torch, where the profiler does not record"
    # Of allocator snapshots, which have stacks and annotations, and neither data flow nor live tensors.
    SAID_BY_RECORDING = 15, "its kind is stored in the snapshot"
    HELD_BY_PROGRAM = 16, "address of a live, named tensor when the recording began"
    UNPROVED = 17, "nothing in the recording proves what it is"
    WORKSPACE_STACK = 18, "its stack is in code for a library's workspace"
    OPTIMIZER_STATE_STACK = 19, "its stack is where torch's optimizers create their state"
    ACCUMULATE_GRAD_STACK = 20, "its stack is in the node that writes .grad"
    FREED_BY_ZERO_GRAD = 21, "freed by zero_grad"
    BACKWARD_TO_STEP = 22, "made in backward, alive when the optimizer's step ran"
    OUTLIVED_STEP = 23, "made in an optimizer's step, alive after it"
    WITHIN_STEP = 24, "made and freed in an optimizer's step"
    RELEASED_BY_AUTOGRAD = 25, "saved for backward: made outside of backward, freed by autograd"
    WITHIN_BACKWARD = 26, "made and freed in backward"
    MODULE_SETUP_STACK = 27, "its stack is in code that creates or moves parameters and buffers; never freed"
    BEFORE_ANY_BACKWARD = 28, "freed before any backward ran"
    FREED_BY_DATA_ASSIGNMENT = 30, "freed by an assignment to .data"
    REPLACES_PARAMETER = 31, "made in an optimizer's step as the new memory of a parameter"
    FREED_IN_STEP = 32, "likely: allocated before the recording, freed in an optimizer's step"
    STEP_STACK_BEFORE = 33, "allocated before the recording, with a stack in an optimizer's step"
    BACKWARD_STACK_BEFORE = 34, "likely: allocated before the recording, never freed, with a stack in backward"
    RECOMPUTED_STACK = 35, "recomputed in backward by a module or a checkpoint, freed by autograd"
    RELEASED_STACKLESS = 36, "likely: allocated with a Python stack, freed without one, as by autograd's threads"
    STACKLESS_TO_STEP = (
        37,
        "likely: allocated without a Python stack, of a parameter's size, alive when the optimizer's step ran",
    )
    WITHIN_STACKLESS_RUN = 38, "likely: allocated and freed without a Python stack, as by autograd's threads"
    SAME_STACK = 39, "likely: other blocks of the same stack are of this kind"
    GRADIENTS_SIZES = 40, "likely: allocated before the recording, never freed, as many as gradients of its size"
    SETS_OF_SIZES = (
        90,
        "likely: allocated before the recording, never freed, two or three blocks for each gradient of its size",
    )
    MODULE_CALL_STACK = 42, "likely: made in a module's call, alive while backward ran"
    ALIVE_AT_END = 43, "likely, or an output: made in a module's call, never freed, no backward since"
    ONE_SET_OF_SIZES = (
        44,
        "likely: allocated before the recording, never freed; only forward ran, sizes as of a single model",
    )
    COLLECTIVE_STACK = 46, "its stack is in code of FSDP, DDP or a pipeline that creates communication buffers"
    LEFT_BY_BACKWARD = 47, "likely: made in backward, of a parameter's size, never freed"
    HELD_OVER_STEP = 48, "likely: made outside of backward, alive until after an optimizer's step"
    WORKSPACE_BRIEF = 49, "likely: of the size of cuBLAS's workspace, no other event while it was in use"
    WORKSPACE_KEPT = 50, "likely: of the size of cuBLAS's workspace, made once, never freed"
    FROZEN_SET = (
        51,
        "likely: allocated before the recording, never freed, one per layer called, no gradient of its size",
    )
    FED_TO_FORWARD = (
        52,
        "likely: made outside of modules between a step and the next forward, alive when that forward began",
    )
    IN_FLIGHT = 53, "likely: made in a backward that was not over, of a size that no parameter has"
    HELD_OVER_BACKWARD = (
        54,
        "made in a module or a function of torch.nn, alive after a backward, freed by the program's own code",
    )
    COPIED_PARAMETER = 55, "its stack is where copy.deepcopy copies a Parameter"
    SAVED_IN_BACKWARD = 56, "saved for a second derivative: made in backward, alive after it, freed by autograd"
    SAVED_STACKLESS = (
        58,
        "likely: allocated and freed without a Python stack, and the program's own code ran in between, as what a"
        " second derivative needs",
    )
    # Of recordings again.
    LISTED = 60, "a module or an optimizer listed it"
    HELD_BY_GRAPH = 61, "saved for backward by a graph from before the recording"
    UNSEEN_SAVED = 62, "made by another thread or outside torch, used by backward"
    LATER_BACKWARD = 63, "made in backward with gradients on, used by a later backward"
    FROM_OUTSIDE = 64, "made by the training loop outside of modules, used in training"
    WITHOUT_GRAD = 65, "made in forward with gradients off"
    NO_BACKWARD_YET = 67, "made in forward with gradients on, no backward since"
    WITHIN_LOOP = 68, "made and freed outside forward, backward and optimizer"
    COMPILED_SAVED = 69, "saved for backward by a compiled forward"
    COMPILED_TAKEN_OVER = 71, "memory saved by a compiled forward, reused by its backward"
    LIBRARY = 72, "workspace that a library keeps between calls"
    COMPILED_RECOMPUTED = 73, "recomputed by a compiled backward"
    REPLACES_BUFFER = 86, "made by the line that freed a buffer of its size, right before"
    REPLACES_BY_LINE = 88, "made by the line that freed a parameter of its size, right before"
    KEPT_ALONE = 89, "likely: all else that this call of a model made is freed, and the model was called again since"
    OF_COLLECTIVE = 74, "made in code of FSDP, DDP, ZeRO or a pipeline that creates communication buffers"
    FREED_BEHIND_BACKWARD = 76, "made in forward, freed after backward in the same step; uses not recorded"
    AROUND_BACKWARD = 77, "made by the loop before backward, freed after it in the same step; uses not recorded"
    KEPT_BEHIND_BACKWARD = 83, "made in forward, alive after a backward that freed the rest; uses not recorded"
    UNTIL_NEXT_BATCH = (
        84,
        "made by the loop before backward, freed in the next step before its forward; uses not recorded",
    )
    LIBRARY_STATE = 78, "cuDNN's random state for the dropout of recurrent layers"
    FREED_BY_MAKER = 82, "made and freed by one operator; uses not recorded"
    GIVEN_TO_REDUCER = 79, "from before the recording, written and read by DDP's reducer"
    # Of a process that can be asked, or could when its recording began.
    REACHED = 80, "a live tensor in Python, in no module and no optimizer"
    KEPT_BY_GRAPH = 81, "saved for backward by a graph that is still alive"
