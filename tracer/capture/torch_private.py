"""Everything of torch that is private, in one place, so that a changed torch breaks here, loudly, and nowhere else.

Two private things are needed. The event tree of a finished recording (`torch._C._profiler`) says what happened; the
schema registry (`torch._C._jit_get_schemas_for_operator`) says which arguments an operator may write to. The caching
allocator's history (`_record_memory_history` and `_snapshot` of `torch.cuda.memory`, or of another backend's module) is
the third.

Source: rules as in `torch/profiler/_memory_profiler.py`, unchanged from torch 2.11 to 2.15.
"""

from __future__ import annotations

import gc
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from types import FunctionType
from typing import Any, Literal

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tracer.errors import RecordingError

_TESTED = "torch 2.11 to 2.15"


def _missing(what: str) -> RecordingError:
    return RecordingError(
        f"torch {torch.__version__} does not offer {what}, which reading a recording needs.",
        hint=f"Use one of the versions that this program was tested with: {_TESTED}.",
    )


try:
    from torch._C import _profiler
except ImportError as error:  # pragma: no cover - only on a torch whose private API has moved
    raise _missing(f"the profiler's event types ({error})") from error


def _profiler_type(name: str) -> Any:
    if not hasattr(_profiler, name):
        raise _missing(f"torch._C._profiler.{name}")
    return getattr(_profiler, name)


OpFields = _profiler_type("_ExtraFields_TorchOp")
AllocationFields = _profiler_type("_ExtraFields_Allocation")
PyCallFields = _profiler_type("_ExtraFields_PyCall")
PyCCallFields = _profiler_type("_ExtraFields_PyCCall")
TensorFields = _profiler_type("_TensorMetadata")
BACKWARD_SCOPE: Any = _profiler_type("RecordScope").BACKWARD_FUNCTION
USER_SCOPE: Any = _profiler_type("RecordScope").USER_SCOPE
STRIDED: Any = torch.strided
HOST_DEVICE_TYPE: Any = torch._C._autograd.DeviceType.CPU

# Every attribute that event_tree.py reads, per type: checked once, so that a renamed field is one sentence.
_FIELDS: dict[Any, tuple[str, ...]] = {
    OpFields: ("name", "inputs", "scope", "sequence_number"),
    AllocationFields: ("ptr", "alloc_size", "allocation_id", "id", "device", "total_allocated", "total_reserved"),
    PyCallFields: ("callsite", "caller", "module", "optimizer"),
    PyCCallFields: ("caller",),
    TensorFields: ("id", "allocation_id", "storage_data_ptr", "device", "dtype", "layout", "sizes", "strides"),
}


@cache
def check_event_types() -> None:
    """Make sure that torch's event types have every field that is read.

    Raises:
        RecordingError: A field is gone; the message names it and torch's version.
    """
    for fields, names in _FIELDS.items():
        for name in names:
            if not hasattr(fields, name):
                raise _missing(f"{fields.__name__}.{name}")


def check_kernel_events() -> None:
    """Make sure that the profiler's list of events has what is read of kernels.

    Raises:
        RecordingError: Something is gone; the message names it and torch's version.
    """
    event = getattr(torch._C._autograd, "_KinetoEvent", None)
    for name in (
        "linked_correlation_id",
        "correlation_id",
        "device_type",
        "start_thread_id",
        "start_ns",
        "duration_ns",
        "is_user_annotation",
        "name",
    ):
        if not hasattr(event, name):
            raise _missing(f"_KinetoEvent.{name}")


def kineto_results(profiler: Any) -> Any:
    """The finished recording of a `torch.profiler.profile`, inside or after `on_trace_ready`.

    Args:
        profiler: A `torch.profiler.profile`, or the recording itself (`prof.profiler.kineto_results`).

    Raises:
        RecordingError: Nothing was recorded yet, or the cycle is still running.
    """
    if hasattr(profiler, "experimental_event_tree"):
        return profiler
    inner = getattr(profiler, "profiler", None)
    results = getattr(inner, "kineto_results", None)
    if results is None or not hasattr(results, "experimental_event_tree"):
        raise RecordingError(
            "The profiler holds no finished recording.",
            hint="Call this from on_trace_ready, or after a cycle of wait, warmup and active steps has ended.",
        )
    return results


def free_an_older_block() -> None:
    """Have the CPU's allocator free a block that was made before a profiler came, under one that keeps nothing."""
    enable = getattr(torch._C._autograd, "_enable_profiler_legacy", None)
    if enable is None:
        return
    older = torch.empty(1, dtype=torch.uint8, device="cpu")
    config = _profiler_type("ProfilerConfig")(
        _profiler_type("ProfilerState").CPU, False, True, False, False, False, _profiler_type("_ExperimentalConfig")()
    )
    try:
        enable(config)
    except RuntimeError:  # somebody's profiler is on
        return
    try:
        del older
    finally:
        torch._C._autograd._disable_profiler_legacy()


def save_trace(results: Any, path: Path) -> None:
    """Write the profiler's trace of a recording, in the trace-event format; torch allows it once a recording.

    Raises:
        RecordingError: It was written before, or torch wrote nothing.
    """
    if not hasattr(results, "save"):
        raise _missing("the profiler's trace")
    try:
        results.save(str(path))
    except RuntimeError as error:
        raise RecordingError(
            f"The profiler does not give its trace: {str(error).splitlines()[0]}",
            hint="torch writes it once a cycle: leave out export_chrome_trace and tensorboard_trace_handler.",
        ) from error
    if not path.is_file() or not path.stat().st_size:
        raise RecordingError(
            "The profiler wrote an empty trace.", hint=f"Is there room in the temporary folder {path.parent.parent}?"
        )


def device_text(device: Any) -> str:
    """A device as `str(torch.device)` writes it; what ROCm's events call HIP has the name CUDA everywhere else."""
    text = str(device)
    return f"cuda{text.removeprefix('hip')}" if text.startswith("hip") else text


# ------------------------------------------------------------------------------------------------ operator schemas
# What a recorded argument was, as far as matching needs it. A scalar is its Python type.
TENSOR, NONE, TENSOR_LIST, MIXED_LIST = "tensor", "none", "tensor list", "mixed list"
_NOT_SCALARS = (TENSOR, NONE, TENSOR_LIST, MIXED_LIST)


@cache
def _schemas(name: str) -> tuple[Any, ...]:
    if "::" not in name:
        return ()
    try:
        return tuple(torch._C._jit_get_schemas_for_operator(name))
    except RuntimeError:
        return ()


def _fits(kind: Any, schema_type: Any) -> bool:
    """Whether a recorded argument can be what the schema asks for.

    Source: `SchemaMatcher._types_match`.
    """
    c = torch._C
    if isinstance(schema_type, c.OptionalType):
        return kind == NONE or _fits(kind, schema_type.getElementType())
    if isinstance(schema_type, c.AnyType):
        return True
    if schema_type.isSubtypeOf(c.ListType.ofTensors()):
        return bool(kind == TENSOR_LIST)
    if isinstance(schema_type, c.TensorType):
        return bool(kind == TENSOR)
    scalars: tuple[tuple[Any, tuple[Any, ...]], ...] = (
        (c.NoneType, (NONE,)),
        (c.BoolType, (bool,)),
        (c.IntType, (int, bool)),
        (c.FloatType, (float,)),
        (c.ComplexType, (complex,)),
        (c.NumberType, (bool, int, float, complex)),
    )
    for jit_type, kinds in scalars:
        if isinstance(schema_type, jit_type):
            return kind in kinds
    # The profiler records no other types, so such an argument has to be None.
    return bool(kind == NONE)


def match_schema(name: str, kinds: tuple[Any, ...]) -> tuple[bool, tuple[bool | None, ...]]:
    """Whether an operator of this name takes these arguments, and which of them it may write to.

    Args:
        name: The recorded name; overloads are not recorded.
        kinds: One per argument: TENSOR, NONE, TENSOR_LIST, MIXED_LIST, or the type of a scalar.

    Returns:
        Whether any overload matches, and per argument True if a matching overload writes to it, False if none does,
        None for all when nothing matches.

    Source:
        `SchemaMatcher.inputs_are_mutable`.
    """
    mutable: list[bool] | None = None
    for schema in _schemas(name):
        arguments = schema.arguments
        if len(arguments) != len(kinds):
            continue
        if all(_fits(kind, argument.type) for kind, argument in zip(kinds, arguments, strict=True)):
            mutable = mutable or [False] * len(kinds)
            for index, argument in enumerate(arguments):
                mutable[index] |= bool(getattr(argument.alias_info, "is_write", False))
    return mutable is not None, tuple(mutable) if mutable is not None else (None,) * len(kinds)


# ------------------------------------------------------------------------------------------- the allocator's history
def _history_module(device: torch.device) -> Any:
    """Where a device's history is switched on and dumped, such as `torch.cuda.memory`; None where there is none."""
    try:
        memory = getattr(torch.get_device_module(device), "memory", None)
    except RuntimeError:
        return None
    return memory if hasattr(memory, "_record_memory_history") and hasattr(memory, "_snapshot") else None


def has_allocator_history(device: torch.device) -> bool:
    """Whether the allocator of a device can record what it does."""
    return _history_module(device) is not None


def allocator_history_enabled(device: torch.device) -> bool:
    """Whether somebody records the allocator's history already.

    Raises:
        RecordingError: The allocator is not torch's own, which alone has a history and tells the profiler of its work.
    """
    memory = _history_module(device)
    backend = memory.get_allocator_backend() if hasattr(memory, "get_allocator_backend") else "native"
    if backend != "native":
        raise RecordingError(
            f"The {device.type.upper()} allocator {backend} records no allocations, neither for the profiler nor in a "
            "history.",
            hint="Use torch's own: leave out PYTORCH_CUDA_ALLOC_CONF=backend:... and change_current_allocator.",
        )
    enabled = getattr(torch._C, f"_{device.type}_isHistoryEnabled", None)
    if enabled is not None:
        return bool(enabled())
    if device.type != torch._C._get_privateuse1_backend_name():
        return False
    # A backend from outside torch does not say; what is off has no entries.
    return any(memory._snapshot(device).get("device_traces", ()))


def start_allocator_history(device: torch.device, max_entries: int, *, stacks_of_frees: bool = True) -> None:
    """Record allocations and frees of the caching allocator, with Python stacks.

    C++ stacks are left out: reading them took minutes on real runs, and the profiler knows the operators.

    Args:
        device: Any whose allocator has a history.
        max_entries: How many are kept; the oldest go first.
        stacks_of_frees: Whether to take the stack of a free too, which costs as much as that of an allocation.
    """
    context = "all" if stacks_of_frees else "alloc"
    _record_history(device, enabled="all", context=context, stacks="python", max_entries=max_entries, device=device)


def stop_allocator_history(device: torch.device) -> None:
    """Stop recording; what was recorded is dropped."""
    _record_history(device, enabled=None, device=device)


def _record_history(of: torch.device, **options: Any) -> None:
    """Switch it with those of the options that the backend knows: XPU's, for one, takes no device."""
    record = _history_module(of)._record_memory_history
    known = inspect.signature(record).parameters
    takes_all = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    record(**{name: value for name, value in options.items() if takes_all or name in known})


def cublas_workspaces(device: torch.device) -> list[tuple[int, int]]:
    """Address and size of each block in use that is exactly as large as a workspace that torch allocates for cuBLAS.

    Torch keeps one for each handle and stream, as no tensor, and tells nobody where. With a workspace for every call,
    as from 2.15 on, there is none between two operators.

    Args:
        device: Any; other devices than CUDA's have none.

    Source:
        aten/src/ATen/cuda/CublasHandlePool.cpp.
    """
    names = ("_cuda_getCublasWorkspaceSize", "_cuda_getCublasLtWorkspaceSize")
    has_workspaces = device.type == "cuda" and all(hasattr(torch._C, name) for name in names)
    if not has_workspaces or not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return []
    sizes = {int(getattr(torch._C, name)()) for name in names} - {0}
    snapshot: Any = torch.cuda.memory_snapshot
    is_light = "include_traces" in inspect.signature(snapshot).parameters
    found = []
    for segment in snapshot(include_traces=False) if is_light else snapshot():
        address = int(segment["address"])
        for block in segment["blocks"]:
            is_in_use = block["state"] == "active_allocated" and segment["device"] == device.index
            if is_in_use and block.get("requested_size") in sizes:
                found.append((address, int(block["requested_size"])))
            address += int(block["size"])
    return found


def allocator_snapshot(device: torch.device) -> dict[str, Any]:
    """What `torch.cuda.memory._snapshot()` returns: segments as they are, and the recorded history."""
    snapshot: dict[str, Any] = _history_module(device)._snapshot(device)
    return snapshot


def on_out_of_memory(device: torch.device, callback: Callable[[], None]) -> bool:
    """Have something called right before an allocator raises that there is no memory left; False where that is not.

    torch has no way to take it back: register once in a process.
    """
    attach = getattr(torch._C, f"_{device.type}_attach_out_of_memory_observer", None)
    if attach is None:
        return False
    attach(lambda *_: callback())
    return True


def allocator_statistics(device: torch.device) -> Mapping[str, Any]:
    """The allocator's counters as they are kept, nested by name; empty where it has none.

    What `torch.cuda.memory_stats` puts in one flat dictionary of a hundred entries, at ten times the cost.
    """
    ask = _statistics_of(device)
    try:
        return ask() if ask is not None else {}
    except (RuntimeError, NotImplementedError):  # an allocator without counters
        return {}


@cache
def _statistics_of(device: torch.device) -> Callable[[], Mapping[str, Any]] | None:
    """Who is asked, found out once: a step of training asks several times."""
    nested = getattr(torch.get_device_module(device), "memory_stats_as_nested_dict", None)
    if nested is not None:
        return partial(nested, device)
    ask = getattr(torch._C, "_accelerator_getDeviceStats", None)
    accelerator = torch.accelerator.current_accelerator()
    if ask is None or accelerator is None or accelerator.type != device.type:
        return None
    return partial(ask, device.index)


def has_next_functions(kind: type) -> bool:
    """Whether the objects of a class are nodes of an autograd graph."""
    return hasattr(kind, "next_functions") and hasattr(kind, "register_hook")


# ------------------------------------------------------------------------------------------------ tensors from within
def as_plain_tensors() -> Any:
    """A context in which nothing that a subclass of Tensor does when it is looked at is asked for."""
    return torch._C.DisableTorchFunctionSubclass()


def made_by(tensor: torch.Tensor) -> Any:
    """The autograd node that made a tensor, or None; of a view that of its base, as a changed view makes a new one."""
    try:
        if tensor._is_view():
            return None if tensor._base is None else tensor._base.grad_fn
        return tensor.grad_fn
    except RuntimeError:  # torch does not tell the history of every tensor that was changed in place
        return None


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether no autograd node made a tensor; one that torch does not tell it of is none.

    So it is with a view that was made with gradients off, after its base was changed with gradients on.
    """
    try:
        return tensor.is_leaf
    except RuntimeError:
        return False


_is_leaf, _grad = attrgetter("is_leaf"), attrgetter("grad")


def gradient_of(tensor: torch.Tensor) -> torch.Tensor | None:
    """A tensor's gradient where it keeps one; to ask any other tensor for it makes torch warn."""
    return tensor.grad if is_leaf(tensor) or tensor.retains_grad else None


def gradients_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
    """The same of many, without a call that Python makes for each: a profiler would record it."""
    with as_plain_tensors():
        try:
            are_leaves = all(map(_is_leaf, tensors))
        except RuntimeError:  # see `is_leaf`
            are_leaves = False
        return list(map(_grad, tensors)) if are_leaves else list(map(gradient_of, tensors))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd knows a tensor as a view of another one."""
    return bool(tensor._is_view())


def is_wrapped_by_transform(tensor: torch.Tensor) -> bool:
    """Whether a transform of torch.func (grad, vmap) has wrapped a tensor."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and bool(functorch.is_functorch_wrapped_tensor(tensor))


def any_is_wrapped_by_transform(tensors: Iterable[torch.Tensor]) -> bool:
    """Whether a transform of torch.func has wrapped one of them."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and any(map(functorch.is_functorch_wrapped_tensor, tensors))


def is_inside_transform() -> bool:
    """Whether a transform of torch.func (grad, vmap, jvp) is at work on this thread."""
    functorch = getattr(torch._C, "_functorch", None)
    return functorch is not None and functorch.peek_interpreter_stack() is not None


def below_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that the transforms of torch.func have wrapped; any other is returned as it is."""
    while is_wrapped_by_transform(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def is_made_of_tensors(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no storage of its own, but names the tensors inside it (DTensor, jagged, quantized)."""
    return bool(is_traceable_wrapper_subclass(tensor))


def parts_of_sparse(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and indices of a sparse COO tensor, coalesced or not."""
    return tensor._values(), tensor._indices()


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """The part of a sharded tensor (DTensor) that lies here; any other is returned as it is."""
    local: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return local


@cache
def _saved_names(node_type: type) -> tuple[str, ...]:
    return tuple(name for name in dir(node_type) if name.startswith("_raw_saved"))


def saved_by(node: Any) -> Iterator[torch.Tensor]:
    """The tensors that an autograd node keeps for backward, as they are kept: no hook unpacks or recomputes anything.

    Args:
        node: A `grad_fn`, or one of its `next_functions`.
    """
    node_type: type = type(node)
    for name in _saved_names(node_type):
        try:
            saved = getattr(node, name)
        except RuntimeError:  # freed by a backward
            continue
        for each in saved if isinstance(saved, tuple | list) else (saved,):
            if isinstance(kept := getattr(each, "data", None), torch.Tensor):
                yield kept


def accumulates_into(node: Any) -> Iterator[torch.Tensor]:
    """The leaf whose gradient an autograd node accumulates, which the node keeps alive; nothing of any other node."""
    if isinstance(leaf := getattr(node, "variable", None), torch.Tensor):
        yield leaf


def parameters_and_buffers(module: torch.nn.Module) -> Iterator[tuple[str, bool, torch.Tensor]]:
    """Name, whether it is a parameter, and tensor of a module's own, without calling a method that it may override."""
    if isinstance(module, torch.jit.ScriptModule):
        yield from ((name, True, tensor) for name, tensor in module.named_parameters(recurse=False))
        yield from ((name, False, tensor) for name, tensor in module.named_buffers(recurse=False))
        return
    for attribute, is_parameter in (("_parameters", True), ("_buffers", False)):
        for name, tensor in (module.__dict__.get(attribute) or {}).items():
            if isinstance(tensor, torch.Tensor):
                yield str(name), is_parameter, tensor


_of_parameters, _of_modules = itemgetter("_parameters"), itemgetter("_modules")


def parameters_by_id(modules: Iterable[torch.nn.Module]) -> dict[int, torch.nn.Parameter] | None:
    """Every parameter in some modules by `id()`, level by level; None where one keeps them elsewhere, as in scripts.

    What `Module.named_parameters` gives takes some forty calls of Python's for a module, which a profiler records; this
    takes some ten for a level.
    """
    level, seen = list(modules), set[int]()
    found: dict[int, torch.nn.Parameter] = {}
    while level:
        try:
            inside = list(map(vars, level))
            own = list(chain.from_iterable(map(dict.values, map(_of_parameters, inside))))
            children = list(chain.from_iterable(map(dict.values, map(_of_modules, inside))))
        except (KeyError, TypeError):
            return None
        found |= zip(map(id, own), own, strict=True)
        by_id = dict(zip(map(id, children), children, strict=True))
        level = [child for number, child in by_id.items() if child is not None and number not in seen]
        seen |= by_id.keys()
    found.pop(id(None), None)
    return found


def child_modules(module: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """A module's children by name, without calling a method that it may override."""
    if isinstance(module, torch.jit.ScriptModule):
        return dict(module.named_children())
    children = module.__dict__.get("_modules") or {}
    return {str(name): child for name, child in children.items() if isinstance(child, torch.nn.Module)}


# --------------------------------------------------------------------------------------------------- torch.compile
def has_compiled() -> bool:
    """Whether torch.compile has compiled anything in this process."""
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    return convert_frame is not None and bool(getattr(convert_frame, "FRAME_COUNTER", 1))


def calls_hooks_of_all_optimizers(optimizer: object) -> bool:
    """Whether an optimizer's step calls the hooks that are registered for every optimizer: torch has wrapped it."""
    return hasattr(getattr(type(optimizer), "step", None), "hooked")


def on_compile_start(callback: Callable[[], None]) -> Callable[[], None]:
    """Have something called whenever torch.compile begins to compile, before it reads the code.

    Returns:
        What ends that.
    """
    from torch._dynamo.callback import callback_handler

    # torch.compile calls back with its eyes open, and would compile what it calls.
    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def begin(*_: Any) -> None:
        callback()

    callback_handler.register_start_callback(begin)
    return lambda: callback_handler.remove_start_callback(begin)


def leave_uncompiled(functions: Iterable[FunctionType]) -> None:
    """Have torch.compile run these as they are, and still compile what they call; the calls cost nothing more."""
    from torch._dynamo.decorators import skip

    for function in functions:
        skip(function)


def compiled_wrappers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """What `torch.compile(model)` returned, for each time it was called: modules whose hooks run outside the code."""
    dynamo = sys.modules.get("torch._dynamo")
    wrapper = getattr(dynamo, "OptimizedModule", None)
    if wrapper is None:
        return []
    return [one for one in gc.get_objects() if type(one) is wrapper and one._orig_mod is model]


def reads_hooks_in_compiled_code(model: torch.nn.Module) -> bool:
    """Whether a hook on the model would become part of compiled code, or have it compiled again."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return True
    config = sys.modules.get("torch._dynamo.config")
    return has_compiled() and not getattr(config, "skip_nnmodule_hook_guards", False)


def let_go_of_recording(profiler: Any) -> None:
    """Free what a `torch.profiler.profile` holds of the cycle that has ended, which it keeps until the next begins."""
    profiler.profiler.kineto_results = None


def is_recorded_by_profiler() -> bool:
    """Whether a profiler of torch's records now, whoever has started it."""
    return bool(torch._C._autograd._profiler_enabled())


def record_no_shapes(profiler: Any) -> None:
    """Have a `torch.profiler.profile` record no operator's tensors from its next cycle on, or from the one prepared."""
    profiler.record_shapes = False
    if getattr(profiler, "profiler", None) is not None:
        profiler.profiler.record_shapes = False


def let_go_of(profiler: Any) -> None:
    """Break the circles in a stopped `torch.profiler.profile`, so that it goes without a garbage collection."""
    profiler.on_trace_ready = None
    profiler.profiler = None
    if isinstance(getattr(profiler, "action_map", None), dict):
        profiler.action_map = {}


# Of both the caches are left alone while Inductor is watched: a graph from a cache comes without its nodes.
_GRAPH_CACHES = (
    ("torch._inductor.config", "fx_graph_cache"),
    ("torch._functorch.config", "enable_autograd_cache"),
)


def watch_inductor(callback: Callable[[Any, str, int | None], None]) -> Callable[[], None]:
    """Be told of every graph that Inductor has written code for, while its nodes are still there.

    The code is the same as without: nothing is asked of Inductor but what it knows.

    Args:
        callback: Given Inductor's graph, the path of the generated file, and how many of a forward graph's outputs
            are the caller's, those behind them being kept for backward; None where that is not known.

    Returns:
        What ends that.
    """
    from torch._guards import TracingContext
    from torch._inductor.graph import GraphLowering

    original: Any = GraphLowering.compile_to_module
    configs = [(sys.modules[name], option) for name, option in _GRAPH_CACHES if name in sys.modules]
    before = [(config, option, getattr(config, option)) for config, option in configs if hasattr(config, option)]

    def compile_to_module(lowering: Any) -> Any:
        generated = original(lowering)
        context = TracingContext.try_get()
        metadata = getattr(context, "fw_metadata", None)
        callback(lowering, str(generated.__file__), getattr(metadata, "num_forward", None))
        return generated

    def end() -> None:
        if GraphLowering.compile_to_module is compile_to_module:
            GraphLowering.compile_to_module = original  # type: ignore[method-assign]
        for config, option, value in before:
            setattr(config, option, value)

    GraphLowering.compile_to_module = compile_to_module  # type: ignore[method-assign, assignment]
    for config, option, _ in before:
        setattr(config, option, False)
    return end


def watch_compiled_buffers(callback: Callable[[torch.Tensor], None]) -> Callable[[], None]:
    """Be told of every buffer that Inductor's code for CUDA allocates, before a kernel writes to it.

    Of code that is generated, or loaded from a cache, from now on.

    Args:
        callback: Given the buffer.

    Returns:
        What ends that.
    """
    guards: Any = torch._C._dynamo.guards
    original: Any = guards._empty_strided_cuda

    def empty_strided_cuda(*args: Any) -> torch.Tensor:
        buffer: torch.Tensor = original(*args)
        callback(buffer)
        return buffer

    def end() -> None:
        guards._empty_strided_cuda = original

    guards._empty_strided_cuda = empty_strided_cuda
    return end


BytesByNode = dict[Any, int]


def watch_memory_budget(
    callback: Callable[[float, Callable[[], tuple[BytesByNode, BytesByNode]]], None],
) -> Callable[[], None]:
    """Be told of every graph of which `activation_memory_budget` decides what its forward keeps for backward.

    What is kept is the same as without. torch is asked a second time, what it would have kept by default.

    Args:
        callback: Given the budget, and what says with bytes by node what forward keeps and what it would keep by
            default: results of its own, in the joint graph of forward and backward.

    Returns:
        What ends that.
    """
    from torch._functorch import partitioners

    original: Any = getattr(partitioners, "choose_saved_values_set", None)
    if original is None:
        return lambda: None

    def choose_saved_values_set(joint_graph: Any, node_info: Any, memory_budget: float = 1) -> Any:
        kept = original(joint_graph, node_info, memory_budget)
        if memory_budget != 1:
            callback(float(memory_budget), lambda: (sizes_of(kept), sizes_of(original(joint_graph, node_info, 1))))
        return kept

    def sizes_of(nodes: Any) -> BytesByNode:
        return {node: int(partitioners._size_of(node)) for node in nodes if node.op != "placeholder"}

    def end() -> None:
        if partitioners.choose_saved_values_set is choose_saved_values_set:
            partitioners.choose_saved_values_set = original

    partitioners.choose_saved_values_set = choose_saved_values_set
    return end


def compile_id() -> str:
    """What torch.compile is compiling now: `0/1` is the second version of its first function; empty if it is not."""
    guards = sys.modules.get("torch._guards")
    current = guards.CompileContext.current_compile_id() if guards is not None else None
    return "" if current is None else str(current)


def compiled_functions() -> list[tuple[str, str, str, int, str]]:
    """Of the last compilations: id, name, file and first line of the function, and why it was compiled again."""
    utils = sys.modules.get("torch._dynamo.utils")
    metrics = utils.get_compilation_metrics() if utils is not None else []
    return [
        (
            str(one.compile_id),
            str(one.co_name or ""),
            str(one.co_filename or ""),
            int(one.co_firstlineno or 0),
            str(getattr(one, "recompile_reason", None) or ""),
        )
        for one in metrics
        if getattr(one, "is_forward", True) is not False
    ]


def cuda_graphs_left_out() -> tuple[int, list[str]]:
    """How often CUDA graphs were asked for and not made so far, and torch's reasons, as far as it gives them."""
    utils = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        return 0, []
    reasons = (getattr(one, "cudagraph_skip_reason", None) for one in utils.get_compilation_metrics())
    count = utils.counters.get("inductor", {}).get("cudagraph_skips", 0)
    return int(count), [str(reason) for reason in reasons if reason]


def graph_breaks() -> list[tuple[str, Any]]:
    """Torch's reason for every break of a graph so far, and the user's stack there, outermost first."""
    utils = sys.modules.get("torch._dynamo.utils")
    found = utils.graph_break_reasons if utils is not None else []
    return [(str(one.reason), one.user_stack) for one in found]


def wrapped_modules() -> dict[int, torch.nn.Module]:
    """What each wrapper that torch.compile has put around a module wraps, by `id()` of the wrapper."""
    wrapper = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)
    if wrapper is None or not has_compiled():  # to look through all objects takes a tenth of a second
        return {}
    return {id(one): one._orig_mod for one in gc.get_objects() if type(one) is wrapper}


def unwrapped(model: Any) -> Any:
    """The module that torch.compile has wrapped; any other object is returned as it is."""
    wrapper = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)
    while wrapper is not None and type(model) is wrapper:
        model = model._orig_mod
    return model


def graph_modules() -> list[Any]:
    """Graphs that Python runs as they are, as the backend aot_eager leaves them."""
    fx = sys.modules.get("torch.fx.graph_module")
    graph_module = getattr(fx, "GraphModule", None)
    if graph_module is None:
        return []
    return [one for one in gc.get_objects() if issubclass(type(one), graph_module)]


# ------------------------------------------------------------------------------------- operators without their kernels
def fake_tensors() -> Any:
    """A mode in which operators make tensors with a shape and a device, and with no memory behind them."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode(allow_non_fake_inputs=True)


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no memory behind it, as those of `fake_tensors`."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(tensor, FakeTensor)


def fake_copy(mode: Any, tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor that stands for a real one as long as that lives."""
    fake: torch.Tensor = mode.from_tensor(tensor, static_shapes=True)
    return fake


def turn_fake(mode: Any, tensor: torch.Tensor, base: torch.Tensor) -> bool:
    """Let go of a tensor's memory and leave the object a fake one, with all that refers to it.

    Args:
        mode: Of `fake_tensors`.
        tensor: A leaf, such as a parameter, a buffer, an optimizer's state.
        base: Bytes on the meta device, as many as the tensor's storage has; tensors of one storage share them.

    Returns:
        Whether it could be done: not where a weak reference or a graph holds on to the tensor.
    """
    from torch._subclasses.fake_tensor import FakeTensor

    with torch.no_grad():
        meta = torch.empty(0, dtype=tensor.dtype, device="meta")
        meta.set_(base.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
        fake = FakeTensor(mode, meta, torch.device("cpu"))
    fake.requires_grad_(tensor.requires_grad)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    hooks, hooks_after = tensor._backward_hooks, tensor._post_accumulate_grad_hooks
    try:
        torch.utils.swap_tensors(tensor, fake)  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError):
        return False
    # What calls them hangs on what was swapped away; to set them is to make it anew.
    if hooks:
        tensor._backward_hooks = hooks
    if hooks_after:
        tensor._post_accumulate_grad_hooks = hooks_after
    if is_parameter:
        tensor._is_param = True
    return True


def schema_name(operator: Any) -> str:
    """The name of an operator with its namespace, such as `aten::addmm`, without the overload."""
    return str(operator._schema.name)


def written_arguments(operator: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Positions, and names, of the arguments that an operator writes to."""
    arguments = operator._schema.arguments
    written = [n for n, each in enumerate(arguments) if each.alias_info is not None and each.alias_info.is_write]
    return tuple(written), tuple(arguments[n].name for n in written)


def operator(name: str, overload: str = "default") -> Any:
    """One of torch's operators by name, such as `_flash_attention_forward`; None where this torch has none."""
    packet = getattr(torch.ops.aten, name, None)
    return getattr(packet, overload, None)


def operator_with_overload(name: str) -> Any:
    """The same by a name such as `pow.Tensor_Scalar`."""
    packet, _, overload = name.partition(".")
    return operator(packet, overload or "default")


def operator_by_full_name(name: str) -> Any:
    """An operator by the name that it is registered under, such as `aten::add.Tensor` or `torchvision::nms`."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")


def operators_with_kernel(dispatch_key: str) -> tuple[str, ...]:
    """Full names of the operators that have a kernel of their own for a key such as `CUDA`."""
    return tuple(torch._C._dispatch_get_registrations_for_dispatch_key(dispatch_key))


def runs_on_host(name: str) -> bool:
    """Whether an operator, by its full name, can be called with tensors of the CPU."""
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))


def generator_argument(operator: Any) -> tuple[int, str] | None:
    """Position and name of the argument of an operator that is a generator; position -1 where it needs its name."""
    for n, argument in enumerate(operator._schema.arguments):
        if "Generator" in str(argument.type):
            return (-1 if argument.kwarg_only else n), argument.name
    return None


def tensor_arguments(operator: Any) -> tuple[tuple[int, str], ...]:
    """Positions and names of the arguments of an operator that are one tensor, and not optional."""
    arguments = operator._schema.arguments
    return tuple((n, argument.name) for n, argument in enumerate(arguments) if str(argument.type) == "Tensor")


def written_by_name_alone(operator: Any) -> bool:
    """Whether all that an operator writes to is given as `out=` or the like, so that it does not read it."""
    written = [argument for argument in operator._schema.arguments if argument.is_out]
    return bool(written) and len(written) == len(written_arguments(operator)[1])


def device_kernel(name: str, dispatch_key: str) -> Callable[..., Any]:
    """What an operator, by its full name, calls for a key such as `CUDA` now, also when that is replaced later."""
    kernel = torch.library.get_kernel(name, dispatch_key)
    keys = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, dispatch_key))
    return partial(kernel.call_boxed, keys)


def kernel_library(namespace: str) -> torch.library.Library:
    """Where kernels of operators are registered; they are in use as long as it is not given to `remove_library`."""
    return torch.library.Library(namespace, "IMPL")  # type: ignore[no-untyped-call]


def add_kernel(library: torch.library.Library, name: str, kernel: Callable[..., Any], dispatch_key: str) -> None:
    """Register a kernel in place of torch's own, by the operator's name without its namespace."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        library.impl(name, kernel, dispatch_key)  # type: ignore[no-untyped-call]


def remove_library(library: torch.library.Library) -> None:
    """Have torch's own kernels again."""
    library._destroy()  # type: ignore[no-untyped-call]


class BelowOperators:
    """A context in which operators run as in a kernel: no autograd, no mixed precision, no events of the profiler."""

    __slots__ = ("_guards",)

    def __enter__(self) -> None:
        """Begin."""
        self._guards = (
            torch._C._AutoDispatchBelowAutograd(),
            below_autocast(),
        )
        for guard in self._guards:
            guard.__enter__()
        torch._C._autograd._enable_record_function(False)

    def __exit__(self, *error: object) -> None:
        """End."""
        torch._C._autograd._enable_record_function(True)
        for guard in reversed(self._guards):
            guard.__exit__(*error)


def autocast_operators(device_type: str) -> frozenset[str]:
    """The operators of torch that a device's mixed precision has a kernel for, as `pow.Tensor_Scalar`.

    Args:
        device_type: `CPU` or `CUDA`; both are asked for in any build.
    """
    names = torch._C._dispatch_get_registrations_for_dispatch_key(f"Autocast{device_type}")
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def below_autocast() -> Any:
    """A context in which the CPU's mixed precision is passed by, as inside one of its kernels."""
    return torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU))


@contextmanager
def kernels_replaced(
    kernels: Mapping[str, Callable[..., Any] | None], key: Literal["AutocastCPU", "AutogradCPU"]
) -> Iterator[None]:
    """Replace operators' kernels for tensors of the CPU, however the operators are called.

    Args:
        kernels: By operator and overload; None for one that is passed by.
        key: The dispatch key: mixed precision, or autograd, where operators that are made of others are seen whole.
    """
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    try:
        for name, kernel in kernels.items():
            by = torch.library.fallthrough_kernel if kernel is None else kernel
            library.impl(name, by, key, allow_override=True)  # type: ignore[no-untyped-call]
        yield
    finally:
        library._destroy()  # type: ignore[no-untyped-call]


def made_of_others(operator: Any) -> Callable[..., Any]:
    """The kernel of an operator that calls other operators, such as `dropout`, whatever was put in its place."""
    return partial(operator._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


def storage_key(storage: torch.UntypedStorage) -> int:
    """What tells storages apart that are alive at one time."""
    return int(storage._cdata)


def num_storage_users(storage: torch.UntypedStorage) -> int:
    """How many tensors and Python objects hold on to a storage."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def num_tensor_users(tensor: torch.Tensor) -> int:
    """How many variables of C++ hold on to a tensor, those of the call that asks among them."""
    return int(tensor._use_count())


def running_node() -> Any:
    """The autograd node at work on this thread, or None."""
    return torch._C._current_autograd_node()


def node_number(node: Any) -> int:
    """The node's sequence number, -1 for one that has none."""
    number = int(node._sequence_nr())
    return -1 if number >= 1 << 63 else number


def next_node_number() -> int:
    """The sequence number that the next node made on this thread will have."""
    return int(torch._C._autograd._get_sequence_nr())


def dispatched_to(handle: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any]) -> Any:
    """A context in which every operator, below autograd, goes to a function instead: operator, arguments, keywords."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatched(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return handle(func, args, kwargs or {})

    return Dispatched()  # type: ignore[no-untyped-call]


def without_modes() -> Any:
    """A context in which operators run as if nobody watched: below `dispatched_to` and `fake_tensors`."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


BEFORE_CALL_HOOKS = "_forward_pre_hooks", "_forward_pre_hooks_with_kwargs"
"""Where a module keeps the hooks that are called before it, and which of them are given its keywords."""
AFTER_CALL_HOOKS = "_forward_hooks"
STEP_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"
"""Where an optimizer keeps the hooks that are called before and after its step."""


def leave_profiler_of_parent() -> None:
    """In a forked child: record nothing more, without a word to the profiler, whose threads are not here."""
    if torch._C._autograd._profiler_enabled():
        sys.setprofile(None)
        torch._C._autograd._enable_record_function(False)


def process_group_store() -> Any:
    """A connection of its own to the store that the default process group was started with; None where there is none.

    A clone neither keeps the store's server alive nor shares the lock under which the program waits in the original.
    """
    distributed = torch.distributed
    if not distributed.is_available() or not distributed.is_initialized():
        return None
    store = distributed.distributed_c10d._get_default_store()
    return store.clone() if hasattr(store, "clone") else None
