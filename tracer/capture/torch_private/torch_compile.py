"""Graphs that torch.compile keeps, and functions that notify of its work."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from types import FunctionType
from typing import Any

import torch

from tracer.collector import objects_with_type
from tracer.loaded_modules import when_loaded

_DECORATORS = "torch._dynamo.decorators"
"""Every program that compiles loads it first; it takes a second, and one that compiles nothing does without."""


def load_compiler() -> None:
    """Load torch.compile, as the first optimizer of a program does."""
    import_module("torch._dynamo")


def has_compiled() -> bool:
    """True if torch.compile has compiled anything in this process."""
    convert_frame = sys.modules.get("torch._dynamo.convert_frame")
    return convert_frame is not None and bool(getattr(convert_frame, "FRAME_COUNTER", 1))


def never_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that torch.compile calls as it is, with all that it calls.

    `torch.compiler.disable` does so too, and loads torch.compile, which takes a second of a program that compiles
    nothing. This waits until somebody else has loaded it.
    """
    current = function

    def call(*args: Any, **options: Any) -> Any:
        return current(*args, **options)

    code = call.__code__
    vars(call)["_torchdynamo_disable"] = True  # as `torch._dynamo.decorators.skip` marks a function

    def disable(decorators: Any) -> None:
        nonlocal current
        current = decorators.disable(function)
        decorators.skip_code(code)

    weakref.finalize(call, when_loaded(_DECORATORS, disable)).atexit = False
    return call


def on_compile_start(callback: Callable[[], None]) -> Callable[[], None]:
    """Have something called whenever torch.compile begins to compile, before it reads the code."""

    def begin(*_: Any) -> None:
        callback()

    # torch.compile calls back with its eyes open, and would compile what it calls.
    uncompiled = never_compiled(begin)

    def register(module: Any) -> None:
        module.callback_handler.register_start_callback(uncompiled)
        ends.append(lambda: module.callback_handler.remove_start_callback(uncompiled))

    ends: list[Callable[[], None]] = []
    ends.append(when_loaded("torch._dynamo.callback", register))
    return lambda: _call_each(ends)


def _call_each(ends: list[Callable[[], None]]) -> None:
    while ends:
        ends.pop()()


def around_ahead_of_time(block: Callable[[], AbstractContextManager[None]]) -> Callable[[], None]:
    """Have a block around each compilation by `aot_compile`, as vLLM's are, whose beginning torch tells nobody.

    Its code stays as it is, though hooks that it contains have been removed since: vLLM leaves the guards out.
    torch has it since 2.9, in a module that a program which compiles nothing never loads.
    """
    is_on = True

    def surround(aot_compile: Any) -> None:
        original = aot_compile.aot_compile_fullgraph

        def aot_compile_fullgraph(*args: Any, **options: Any) -> Any:
            with block() if is_on else nullcontext():
                return original(*args, **options)

        def take_back() -> None:
            if aot_compile.aot_compile_fullgraph is aot_compile_fullgraph:
                aot_compile.aot_compile_fullgraph = original

        aot_compile.aot_compile_fullgraph = aot_compile_fullgraph
        ends.append(take_back)

    ends: list[Callable[[], None]] = []
    ends.append(when_loaded("torch._dynamo.aot_compile", surround))

    def end() -> None:
        nonlocal is_on
        is_on = False
        _call_each(ends)

    return end


def leave_uncompiled(functions: Iterable[FunctionType]) -> None:
    """Have torch.compile run these as they are, and still compile what they call; the calls cost nothing more."""
    skipped = tuple(functions)

    def skip(decorators: Any) -> None:
        for function in skipped:
            decorators.skip(function)

    when_loaded(_DECORATORS, skip)


def compiled_wrappers(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the results of `torch.compile(model)`, one for each call: modules whose hooks run outside the code."""
    dynamo = sys.modules.get("torch._dynamo")
    wrapper = getattr(dynamo, "OptimizedModule", None)
    if wrapper is None:
        return []
    return [found for found in objects_with_type((wrapper,)) if found._orig_mod is model]


def is_graph_of_compiler(module: torch.nn.Module) -> bool:
    """True if torch.compile made the module of the user's code; it contains all that it was compiled for."""
    return isinstance(module, torch.fx.GraphModule) and "dynamo_compile_id" in module.meta


def reads_hooks_in_compiled_code(model: torch.nn.Module) -> bool:
    """True if a hook on the model would become part of compiled code, or have it compiled again."""
    if getattr(model, "_compiled_call_impl", None) is not None:
        return True
    config = sys.modules.get("torch._dynamo.config")
    return has_compiled() and not getattr(config, "skip_nnmodule_hook_guards", False)


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


def compile_id() -> str:
    """Return the id of the current compilation, such as `0/1`: the first function's second version; empty if none."""
    guards = sys.modules.get("torch._guards")
    current = guards.CompileContext.current_compile_id() if guards is not None else None
    return "" if current is None else str(current)


def cuda_graph_pool(device_index: int) -> tuple[int, int] | None:
    """The private pool of the allocator in which torch.compile's CUDA graphs of a device work; None without one."""
    trees = sys.modules.get("torch._inductor.cudagraph_trees")
    manager = trees.get_manager(device_index, create_if_none_exists=False) if trees is not None else None
    return None if manager is None else tuple(manager.cuda_graphs_thread_pool)


def may_launch_kernels_of_triton() -> bool:
    """True if Triton's driver is loaded, and there are kernels that read tensors which no operator of torch's names.

    Those of torch._native are what some of torch's operators run.
    """
    driver, jit = (sys.modules.get(f"triton.{name}") for name in ("backends.nvidia.driver", "runtime.jit"))
    if driver is None or not hasattr(getattr(driver, "CudaUtils", None), "instance"):
        return False
    kind = getattr(jit, "JITFunction", None)
    kernels = objects_with_type((kind,)) if kind is not None else ()
    return any(not str(kernel.__module__).startswith(_RUN_BY_OPERATORS) for kernel in kernels)


_RUN_BY_OPERATORS = ("torch._native.", "triton.")


def wrapped_modules() -> dict[int, torch.nn.Module]:
    """Return the module inside each wrapper of torch.compile, by `id()` of the wrapper."""
    wrapper = getattr(sys.modules.get("torch._dynamo"), "OptimizedModule", None)
    if wrapper is None or not has_compiled():  # to look through all objects takes a tenth of a second
        return {}
    return {id(thing): thing._orig_mod for thing in objects_with_type((wrapper,))}


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
    return objects_with_type((graph_module,))
