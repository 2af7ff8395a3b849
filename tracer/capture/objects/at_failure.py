"""Facts of the program's objects at an out of memory, which no recording has; without torch."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.capture.objects.later_uses import SecondRun


@dataclass(frozen=True, slots=True)
class Holder:
    """A reference to let go of, and the memory that it frees."""

    # As `trainer.history[...]`; a reference cycle where no variable leads to it; `SEVERAL` where so many hold it that
    # no one of them is worth a name; `NOT_FOUND` where the search failed, or
    # ended in a function of torch's.
    path: str
    variable: str  # Where the path begins: `local variable of main(), train.py:88`; empty where it is no variable
    addresses: tuple[int, ...]  # Addresses of the part of the memory asked about that is held this way
    graph_of: int | None = None  # The address of the tensor whose graph keeps it; None where it is held itself
    also: tuple[str, ...] = ()  # Further paths that have to be let go of as well


CYCLE = "reference cycle "
"""Begin of the path of a holder that no variable leads to."""
GRAPH_OF = " -> graph of the tensor"
"""In the path to what only the graph of a tensor keeps, behind that tensor."""
SEVERAL = "more than one holder"
"""Path of a holder of memory that so many have that all of them are not named; its `also` has one of them."""
NOT_PYTHON = "no Python object"
"""Path of a holder of memory that no object of Python's has, such as what nodes of autograd keep."""
FUNCTOOLS = " -> functools cache"
"""In the path to what a function under `functools.lru_cache` was called with, or has returned."""


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor, or a collection of tensors, that the line of a frame names on the way to the failure."""

    name: str  # As the line has it: `batch`, `self.weight`
    file: str
    line: int
    size_bytes: int  # Of its elements; of an expanded tensor those of its memory
    shape: tuple[int, ...]  # Of a collection that of the largest tensor
    dtype: str  # As `float32`
    count: int = 1  # Tensors, for a collection


@dataclass(frozen=True, slots=True)
class Padding:
    """A batch whose rows are filled up with one value."""

    name: str  # Of the variable, or its key in a dictionary
    num_rows: int
    num_columns: int
    num_used: int  # Columns in which a row has another value than that


@dataclass(frozen=True, slots=True)
class ListedState:
    """Tensors that an optimizer's state has in a list, as the history of L-BFGS."""

    optimizer: str  # Class
    key: str  # As `old_dirs`
    addresses: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class IdleModel:
    """A model on the device that is not part of the call that failed, and that no optimizer trains."""

    name: str  # Class
    path: str  # Who holds it, as `pipeline.text_encoder`; empty where that was not found
    addresses: tuple[int, ...]  # Of its parameters and buffers


@dataclass(frozen=True, slots=True)
class ObjectsAtFailure:
    """Facts from models, optimizers and tensors, read while the exception keeps them alive."""

    is_evaluating: bool  # Whether what was called, or what is trained, was in evaluation mode
    is_training: bool  # Whether the call of a model that failed was in training mode
    in_graphs: frozenset[int] | None  # Addresses of all that graphs kept; None for graphs too large to follow
    untrained: frozenset[int]  # Addresses of what graphs kept for parameters that nothing trains
    float64: frozenset[int]  # Addresses of tensors of 64-bit floating point, and of such that graphs kept
    # Of gradients whose parameters are in no optimizer though there is one, and a name of such a parameter.
    unowned_gradients: frozenset[int] = frozenset()
    unowned_name: str = ""
    holders: tuple[Holder, ...] = ()  # Of the largest memory, most of it first
    operands: tuple[Operand, ...] = ()  # Of the frames on the way to the failure, the innermost first
    seen: frozenset[int] = frozenset()  # Addresses of all that Python and graphs had as the objects were looked at
    num_raised: int = 0  # Errors of full memory that reached Python so far; 0 where they were not counted
    collected_bytes: int = 0  # Bytes that Python's collector freed between the failure and that look
    listed_states: tuple[ListedState, ...] = ()
    dense_embeddings: frozenset[int] = frozenset()  # Of gradients and state of embeddings without sparse=True
    idle_models: tuple[IdleModel, ...] = ()
    parameters: frozenset[int] = frozenset()  # Addresses of all nn.Parameters, whoever holds them
    gradients: frozenset[int] = frozenset()  # Addresses of their gradients
    float32: frozenset[int] = frozenset()  # Of the parameters, those of 32-bit floating point
    buffers: frozenset[int] = frozenset()  # Addresses of modules' buffers of floating point, and of masks
    padding: Padding | None = None  # Of a batch that frames on the way to the failure have
    second_run: SecondRun | None = None  # With memory that does not end, where there was one
