"""Facts that a stack proves about its allocation or free, each frame looked at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntFlag

import numpy as np

from tracer.arrays import Bools, Ints
from tracer.blocks.from_snapshot.frames import is_label, is_python, is_users, torch_file
from tracer.capture.torch_names import makes_buckets, makes_collectives_buffers
from tracer.snapshot.columns import Frame, Stacks


class Fact(IntFlag):
    """Facts that a stack may prove: several, one or none."""

    NONE = 0
    STACK = 1  # there is one at all
    CPP = 2  # it has C++ frames, so that the absence of one means something
    ENGINE = 4  # inside the backward pass, in a node that autograd's engine evaluates
    ACCUMULATE_GRAD = 8  # inside the node that writes a leaf's .grad
    RELEASE_SAVED = 16  # autograd lets go of what a forward operation saved for backward
    OPTIMIZER_STEP = 32  # inside the step of a torch optimizer
    OPTIMIZER_STATE = 64  # where torch's optimizers create their state
    ZERO_GRAD = 128  # inside zero_grad
    WORKSPACE = 256  # a library's workspace (cuBLAS, cuDNN, ...)
    MODULE_SETUP = 512  # where modules create parameters and buffers or move them to a device
    MODULE_FORWARD = 1024  # inside the call of a module
    SET_DATA = 2048  # somebody assigns to a tensor's .data
    SET_BUFFER = 4194304  # a module's buffer gets another tensor
    CONVOLUTION = 16777216  # inside the forward of a convolutional layer
    GRAD_CALL = 8388608  # inside the call of torch.autograd.grad, on the side of the program
    SET_GRAD = 4096  # somebody assigns to a tensor's .grad
    BACKWARD_CALL = 16384  # inside the call of backward, on the side of the program
    CONSTRUCTOR = 32768  # inside a constructor of the program's
    COLLECTIVE = 65536  # where FSDP, DDP or a pipeline makes the buffers of what is sent
    LAYER = 262144  # inside the forward of a linear, convolutional or embedding layer, which has one weight
    FUNCTIONAL = 524288  # inside a function of torch.nn.functional
    PARAMETER_COPY = 1048576  # where copy.deepcopy copies a Parameter
    BATCH_MOVE = 2097152  # where a library's training loop moves a batch to the device
    RECOMPUTE = 33554432  # inside what a checkpoint computes again, or where that is over; in no backward that it runs
    COMPILED_FOR_BACKWARD = 67108864  # inside a compiled forward that a backward is to follow
    CLOSURE = 131072  # inside what an optimizer's step calls to evaluate the model, and so not the step's own


_BACKWARD_NODE = re.compile(r"torch::autograd::Engine::(?:evaluate_function|call_function|thread_main)\b")
_RELEASE = re.compile(r"::release_variables\(|torch::autograd::SavedVariable::")
_WORKSPACE = re.compile(r"[wW]orkspace|getCurrentCUDABlasHandle|CublasHandlePool")
_OF_CPP = (
    (re.compile("::"), Fact.CPP),
    (_BACKWARD_NODE, Fact.ENGINE),
    (re.compile(r"torch::autograd::AccumulateGrad::"), Fact.ACCUMULATE_GRAD),
    (_RELEASE, Fact.RELEASE_SAVED),
    (_WORKSPACE, Fact.WORKSPACE),
    # Only an assignment to .data gives a tensor the memory of another; torch's wheels name no more of it than that.
    (
        re.compile(r"THPVariable_set_data\b|VariableHooks::set_data\b|\bTensorImpl::copy_tensor_metadata\b"),
        Fact.SET_DATA,
    ),
    (re.compile(r"THPVariable_set_grad\b"), Fact.SET_GRAD),
    (re.compile(r"\bc10d::Reducer::initialize_buckets\("), Fact.COLLECTIVE),
)
_OPTIMIZER_STEPS = ("step", "wrapper", "_init_group", "_use_grad", "_multi_tensor_", "_single_tensor_", "_fused_")
_MODULE_SETUP_NAMES = ("__init__", "_apply", "convert", "reset_parameters", "to_empty", "register_buffer")
_MODULE_CALLS = ("_call_impl", "_wrapped_call_impl", "_slow_forward", "__call__")
_LAYERS = ("nn/modules/linear.py", "nn/modules/conv.py", "nn/modules/sparse.py")
# Where libraries move a batch, by the end of the file's path and the function.
_BATCH_MOVES = (
    ("accelerate/utils/operations.py", "send_to_device"),
    ("transformers/trainer.py", "_prepare_input"),
    ("fabric/utilities/apply_func.py", "move_data_to_device"),
    ("lightning_fabric/utilities/apply_func.py", "move_data_to_device"),
)
# Of torch.optim: schedules, and averages of a model, which are copies of its parameters.
_NO_OPTIMIZERS = ("optim/lr_scheduler", "optim/swa_utils")
_BACKWARD_CALLS = (("_tensor.py", "backward"), ("autograd/__init__.py", "backward"), ("autograd/__init__.py", "grad"))
_OF_THE_MODEL = int(Fact.MODULE_FORWARD | Fact.BACKWARD_CALL | Fact.ENGINE)
# What autograd calls on threads of its own: there it is the outermost Python frame.
_CALLED_BY_ENGINE = ("autograd/function.py", "autograd/graph.py", "utils/checkpoint.py", "utils/hooks.py")
_RUNS_OPERATORS = "_native/"
"""Folder of Python code that some of torch's operators run."""
# Where torch.utils.checkpoint, with and without a backward of its own, calls the function again; and its caller.
_RECOMPUTES = (("utils/checkpoint.py", "backward"), ("utils/checkpoint.py", "unpack_hook"))
_CALLS_NODE = ("autograd/function.py", "apply")
# Where a compiled function that is to be differentiated runs its forward; without gradients none is around it.
_COMPILED_FORWARD = ("_functorch/_aot_autograd/runtime_wrappers.py", "forward")
_OF_SUBCLASSES = "__torch_dispatch__"
"""An operator of a tensor subclass; where Python code runs the operator, that code's frame is outside of it."""


def facts_of_stacks(stacks: Stacks) -> Ints:
    """The `Fact`s of every stack [stacks]."""
    of_frame = np.array([_facts_of(frame) for frame in stacks.frames], dtype=np.int64)
    facts = np.zeros(len(stacks), dtype=np.int64)
    depth = np.diff(stacks.offset)
    np.bitwise_or.at(facts, np.repeat(np.arange(len(stacks)), depth), of_frame[stacks.frame_of])
    for stack in np.flatnonzero(has(facts, Fact.OPTIMIZER_STEP)).tolist():
        if _is_in_closure(stacks.frame_ids(stack), of_frame, stacks.frames):
            facts[stack] += int(Fact.CLOSURE) - int(Fact.OPTIMIZER_STEP)
    for stack in np.flatnonzero(has(facts, Fact.RECOMPUTE)).tolist():
        if not _is_in_recompute(stacks.frame_ids(stack), of_frame, stacks.frames):
            facts[stack] -= int(Fact.RECOMPUTE)
    deep = np.flatnonzero(depth)
    is_engines = np.array(
        [
            is_python(frame)
            and (
                (torch_file(frame) or "").startswith((*_CALLED_BY_ENGINE, _RUNS_OPERATORS))
                or frame.name == _OF_SUBCLASSES
            )
            for frame in stacks.frames
        ],
        dtype=np.bool_,
    )
    outermost = stacks.frame_of[stacks.offset[deep + 1] - 1]
    facts[deep[is_engines[outermost]]] |= int(Fact.ENGINE)
    # Where C++ frames are missing, what the innermost frame of Python's calls in C++ is its own.
    makes = (is_python(frame) and makes_buckets(_named_by_torch(frame), frame.name) for frame in stacks.frames)
    fills = np.array([*makes], dtype=np.bool_)
    facts[deep[fills[stacks.frame_of[stacks.offset[deep]]]]] |= int(Fact.COLLECTIVE)
    return facts


def _is_in_closure(frame_ids: Sequence[int], of_frame: Ints, frames: Sequence[Frame]) -> bool:
    """Return True if an optimizer's step has called for the model: a module, backward, or a closure.

    torch's own optimizers call nobody else's code in `step`, but for another optimizer's.
    """
    python = [number for number in frame_ids if is_python(frames[number])]
    at = next(place for place, number in enumerate(python) if of_frame[number] & Fact.OPTIMIZER_STEP)
    inner, step = python[:at], frames[python[at]]
    called = frames[inner[-1]] if inner else step
    is_others = torch_file(called) is None and called.name != "step"
    return (step.name == "step" and is_others) or any(of_frame[number] & _OF_THE_MODEL for number in inner)


def _is_in_recompute(frame_ids: Sequence[int], of_frame: Ints, frames: Sequence[Frame]) -> bool:
    """Return True if a checkpoint's node runs, or has left its Python code, and no backward runs within it."""
    python = next(number for number in frame_ids if is_python(frames[number]))
    inner = next(number for number in frame_ids if of_frame[number] & int(Fact.ENGINE | Fact.RECOMPUTE))
    is_checkpoint = (torch_file(frames[inner]), frames[inner].name) != _CALLS_NODE
    return not of_frame[inner] & Fact.ENGINE and (is_checkpoint or inner == python)


def constructors_of_stacks(stacks: Stacks, facts: Ints) -> Ints:
    """Number of each stack's outermost constructor in user code, -1 where there is none [stacks].

    Modules are made in constructors that call each other; the outermost is the model's, or an optimizer's. Of two in
    one file, the line that calls them tells which is which.
    """
    numbers: dict[tuple[Frame | str, ...], int] = {}
    constructor = np.full(len(stacks), -1, dtype=np.int64)
    for stack in np.flatnonzero(has(facts, Fact.CONSTRUCTOR)).tolist():
        outer: list[Frame] = []
        for frame in reversed(stacks[stack]):
            if is_python(frame) and _python_facts(frame) & Fact.CONSTRUCTOR:
                break
            outer += [frame] * is_python(frame)
        constructor[stack] = numbers.setdefault((frame.name, frame.file, *outer[-1:]), len(numbers))
    return constructor


def calls_backward(stacks: Stacks, facts: Ints) -> Bools:
    """Mark stacks of a thread that calls backward, outside of that call [stacks].

    Hooks that autograd calls on threads of its own have other outermost frames.
    """
    outermost: dict[int, tuple[str, str]] = {}
    for stack in np.flatnonzero(has(facts, Fact.STACK)).tolist():
        if python := [number for number in stacks.frame_ids(stack) if is_python(stacks.frames[number])]:
            frame = stacks.frames[python[-1]]
            outermost[stack] = frame.name, frame.file
    callers = {outermost[stack] for stack in outermost if facts[stack] & Fact.BACKWARD_CALL}
    calls = np.zeros(len(stacks), dtype=np.bool_)
    calls[[stack for stack, frame in outermost.items() if frame in callers]] = True
    return calls & ~has(facts, Fact.BACKWARD_CALL, Fact.ENGINE)


def model_calls_of_stacks(stacks: Stacks, facts: Ints) -> Ints:
    """A number for the line that calls every stack's outermost module; -1 where none does, and in backward [stacks]."""
    numbers: dict[Frame, int] = {}
    call = np.full(len(stacks), -1, dtype=np.int64)
    for stack in np.flatnonzero(has(facts, Fact.MODULE_FORWARD) & ~has(facts, Fact.ENGINE)).tolist():
        outer = [frame for frame in reversed(stacks[stack]) if is_python(frame)]
        at = next(place for place, frame in enumerate(outer) if is_module_call(frame))
        if at:
            call[stack] = numbers.setdefault(outer[at - 1], len(numbers))
    return call


def layers_of_stacks(stacks: Stacks, facts: Ints) -> Ints:
    """A number for every stack in the forward of a layer with one weight, by its Python frames; else -1 [stacks]."""
    numbers: dict[tuple[int, ...], int] = {}
    layer = np.full(len(stacks), -1, dtype=np.int64)
    for stack in np.flatnonzero(has(facts, Fact.LAYER)).tolist():
        python = tuple(number for number in stacks.frame_ids(stack) if is_python(stacks.frames[number]))
        layer[stack] = numbers.setdefault(python, len(numbers))
    return layer


def has(facts: Ints, *wanted: Fact) -> Bools:
    """Mark stacks that prove one of these facts."""
    has_fact: Bools = (facts & sum(map(int, wanted))) != 0
    return has_fact


def _facts_of(frame: Frame) -> int:
    """The facts of one frame; nothing has run in our own label on top of a stack."""
    if is_label(frame):
        return 0
    return int((_python_facts(frame) if is_python(frame) else _cpp_facts(frame.name)) | Fact.STACK)


def is_module_call(frame: Frame) -> bool:
    """Return True if a Python frame is torch's own around the forward of a module."""
    return frame.name in _MODULE_CALLS and torch_file(frame) == "nn/modules/module.py"


def _named_by_torch(frame: Frame) -> str:
    """The file as torch's profiler shortens its path; empty for other files than torch's."""
    path = torch_file(frame)
    return f"torch/{path}" if path is not None else ""


def _cpp_facts(name: str) -> Fact:
    facts = Fact.NONE
    for pattern, fact in _OF_CPP:
        if pattern.search(name):
            facts |= fact
    return facts


def _python_facts(frame: Frame) -> Fact:
    facts = Fact.ZERO_GRAD if frame.name == "zero_grad" else Fact.NONE
    path = torch_file(frame)
    if path is None:
        return facts | _others_facts(frame)
    if frame.name == "_engine_run_backward":
        facts |= Fact.ENGINE
    if (path, frame.name) in (*_RECOMPUTES, _CALLS_NODE):
        facts |= Fact.RECOMPUTE
    if (path, frame.name) in _BACKWARD_CALLS:
        facts |= Fact.BACKWARD_CALL
    if (path, frame.name) == ("autograd/__init__.py", "grad"):
        facts |= Fact.GRAD_CALL
    if makes_collectives_buffers(_named_by_torch(frame), frame.name):
        facts |= Fact.COLLECTIVE
    if path.startswith("optim/"):
        facts |= _optimizer_facts(frame.name, path)
    if path.startswith(("nn/modules/", "nn/init.py")) and frame.name in _MODULE_SETUP_NAMES:
        facts |= Fact.MODULE_SETUP
    if (path, frame.name) == ("nn/modules/module.py", "register_buffer"):
        facts |= Fact.SET_BUFFER
    if path in _LAYERS and frame.name in ("forward", "_conv_forward"):
        facts |= Fact.LAYER | (Fact.CONVOLUTION if path == "nn/modules/conv.py" else Fact.NONE)
    if (path, frame.name) == ("nn/parameter.py", "__deepcopy__"):
        facts |= Fact.PARAMETER_COPY
    if path == "nn/functional.py":
        facts |= Fact.FUNCTIONAL
    if (path, frame.name) == _COMPILED_FORWARD:
        facts |= Fact.COMPILED_FOR_BACKWARD
    if is_module_call(frame):
        facts |= Fact.MODULE_FORWARD
    return facts


def _others_facts(frame: Frame) -> Fact:
    """Return the facts that a line of Python outside of torch proves."""
    if frame.name == "__init__" and is_users(frame):
        return Fact.CONSTRUCTOR
    path = frame.file.replace("\\", "/")
    is_move = any(frame.name == name and path.endswith(f"/{end}") for end, name in _BATCH_MOVES)
    return Fact.BATCH_MOVE if is_move else Fact.NONE


def _optimizer_facts(name: str, path: str) -> Fact:
    facts = Fact.NONE
    if path.startswith(_NO_OPTIMIZERS):
        return facts
    if name.startswith(_OPTIMIZER_STEPS):
        facts |= Fact.OPTIMIZER_STEP
    if name in ("__init__", "_init_group", "load_state_dict"):
        facts |= Fact.OPTIMIZER_STATE
    return facts
