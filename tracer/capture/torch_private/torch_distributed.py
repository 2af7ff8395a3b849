"""Process groups: who is in them, and other ways to start them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import torch
from torch import nn

from tracer.loaded_modules import before_next_call

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_SCHEMES = ("env", "tcp", "file")


def process_groups() -> list[list[int]]:
    """The ranks of each process group that is known here, also of one that this process is not in."""
    world = torch.distributed.distributed_c10d._world
    return [sorted(ranks) for ranks in world.pg_group_ranks.values()]


def bucket_sizes(modules: Iterable[nn.Module]) -> frozenset[int]:
    """Bytes of the buckets that the DistributedDataParallel modules among some have made.

    Source: their own log; and, for where that is not written, what they begin with in the first step: unless they look
    for unused parameters, one bucket for all gradients of a type (`_ddp_init_helper` of nn/parallel/distributed.py).
    """
    parallel = [vars(module) for module in modules if issubclass(type(module), nn.parallel.DistributedDataParallel)]
    loggers = [logger for attributes in parallel if (logger := attributes.get("logger")) is not None]
    logs = [logger._get_ddp_logging_data().strs_map for logger in loggers]
    texts = [log.get(name, "") for log in logs for name in ("bucket_sizes", "rebuilt_bucket_sizes")]
    logged = [int(size) for text in texts for size in text.split(",") if size.strip()]
    first = [size for attributes in parallel for size in _by_type(attributes.get("_module_parameters", ()))]
    return frozenset((*logged, *first))


def _by_type(parameters: Iterable[torch.Tensor]) -> Iterable[int]:
    sums = Counter[torch.dtype]()
    for parameter in parameters:
        if parameter.requires_grad:
            sums[parameter.dtype] += parameter.nbytes
    return sums.values()


def before_first_group(act: Callable[[], object]) -> Callable[[], None]:
    """Have something called once, right before a process group, which has threads; what is returned ends that."""
    return before_next_call(torch.distributed.distributed_c10d, ("_new_process_group_helper",), act)


@contextmanager
def every_rendezvous(store: Store, rank: int, world_size: int) -> Iterator[None]:
    """Let all process groups that start meanwhile use this store and rank, whatever address they name."""

    def met(url: str, **options: Any) -> Iterator[tuple[Store, int, int]]:
        yield store, rank, world_size

    # Ways to find each other, by the scheme of an address; torch.distributed has a function of the module's name.
    handlers = sys.modules["torch.distributed.rendezvous"]._rendezvous_handlers
    with patch.dict(handlers, dict.fromkeys(_SCHEMES, met)):
        yield


@contextmanager
def gloo_alone() -> Iterator[None]:
    """Let a group with the backend gloo meet nobody: a collective gives each slot this rank's own values."""
    from torch._C._distributed_c10d import FakeProcessGroup

    class AnyFake(type):
        """Says of torch's fake groups that they are gloo's: torch asks for the type."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, FakeProcessGroup)

    class AloneGroup(metaclass=AnyFake):
        """A stand-in for ProcessGroupGloo with one live rank."""

        def __new__(cls, store: Store, rank: int, size: int, **options: Any) -> Any:
            how: Any = FakeProcessGroup.Options()
            if hasattr(how, "simulate_uniform_ranks"):  # without it a collective has no result, which DDP reads
                how.simulate_uniform_ranks = True
            return FakeProcessGroup._create_internal(rank, size, how)

    def nothing(*_: object) -> None:
        """Do nothing, in place of gloo's numbering of collectives and of DDP's log, whose C++ reads gloo's data."""

    logger: Any = vars(torch.distributed)["Logger"]
    with (
        patch.object(torch.distributed.distributed_c10d, "ProcessGroupGloo", AloneGroup),
        patch.object(logger, "set_construction_data_and_log", nothing),
        patch.object(FakeProcessGroup, "_set_sequence_number_for_group", nothing),
    ):
        yield


@contextmanager
def called_instead(functions: dict[str, Callable[..., Any]]) -> Iterator[None]:
    """Replace functions of torch.distributed, in each of its modules that has them."""
    originals = {name: getattr(torch.distributed, name) for name in functions}
    modules = [module for name, module in sys.modules.items() if name.startswith("torch.distributed")]
    with ExitStack() as stack:
        for name, function in functions.items():
            for module in modules:
                if vars(module).get(name) is originals[name]:
                    stack.enter_context(patch.object(module, name, function))
        yield


@contextmanager
def spawned_here(index: int, num_processes: int) -> Iterator[None]:
    """Let a program that starts its ranks by `torch.multiprocessing` go on as one of them, in this process.

    Args:
        num_processes: How many the program starts as ranks; another number is of workers, which start as ever.
    """
    spawning: Any = sys.modules["torch.multiprocessing.spawn"]
    start_own = spawning.start_processes

    def start_processes(
        fn: Callable[..., None], args: tuple[Any, ...] = (), nprocs: int = 1, join: bool = True, *more: Any,
        **options: Any,
    ) -> Any:  # fmt: skip
        if nprocs != num_processes or nprocs == 1:
            return start_own(fn, args, nprocs, join, *more, **options)
        fn(index, *args)
        return None if join else spawning.ProcessContext([], [])

    with (
        patch.object(spawning, "start_processes", start_processes),
        patch.object(torch.multiprocessing, "start_processes", start_processes),
    ):
        yield


@contextmanager
def checkpoints_of_one_rank() -> Iterator[None]:
    """Let torch.distributed.checkpoint take what one rank saves for a whole checkpoint, if it was imported.

    Inside of itself it does nothing. Every rank seems to have the same part of each tensor. So parts are missing, which
    is no error then, and what there is stays with the first rank, and is not shared out as what all ranks have.
    """
    planner: Any = sys.modules.get("torch.distributed.checkpoint.default_planner")
    if planner is None or planner.dedup_save_plans.__module__ == __name__:
        yield
        return
    validate, remove_doubles = planner._validate_global_plan, planner.dedup_save_plans

    def validated(*_: Any) -> Any:
        """Return as for a plan without an error: torch also prints each that it finds."""
        return validate([], planner.Metadata({}))

    def without_doubles(all_plans: list[Any], *_: Any) -> Any:
        return remove_doubles(all_plans, save_to_lowest_rank=True)

    with (
        patch.object(planner, "_validate_global_plan", validated),
        patch.object(planner, "dedup_save_plans", without_doubles),
    ):
        yield


def state_of_other_shards(own: Any) -> Any:
    """Return the optimizer state that another rank would send, of parameters that FSDP has flattened.

    A rank has state only of parameters of which its shard has a part (`use_orig_params=True`); other ranks have the
    rest. Each missing state is returned like one of this rank.

    Returns:
        None for any other value.
    """
    utils: Any = sys.modules.get("torch.distributed.fsdp._optim_utils")
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") != getattr(utils, "__name__", ""):
        frame = frame.f_back
    if frame is None or not own:
        return None
    found = frame.f_locals
    if frame.f_code.co_name == "_map_param_key_to_optim_keys":
        trained = [parameter for parameter in found["param_key_to_param"].values() if parameter.requires_grad]
        names = [tuple(found["param_to_fqns"][parameter]) for parameter in trained]
        is_flattened = found["fqn_to_fsdp_param_info"]
        return [*own, *(utils._OptimStateKey(some, True) for some in names if some[0] in is_flattened)]
    if frame.f_code.co_name == "_allgather_state_info":
        like = next((state for state in own.values() if state.tensors), None)
        return None if like is None else {name: state if state.tensors else like for name, state in own.items()}
    return None


def gradients_of_stage() -> Any:
    """Return the message a pipeline stage is to receive from the next: shapes of the gradients of its outputs.

    Returns:
        None if no stage waits for it, as in versions of torch whose stages ask for no gradients' shapes.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_recv_meta":
        frame = frame.f_back
    if frame is None:
        return None
    stage, source = frame.f_locals["self"], frame.f_locals["src_stage"]
    if source < stage.stage_index:
        return None
    metas = sys.modules["torch.distributed.pipelining._utils"]
    return metas._StageBackwardMeta(backward_metas=metas._derive_grad_metas(stage._stage_meta.outputs))


def is_of_gradients(value: Any) -> bool:
    """True if a value was returned by `gradients_of_stage`."""
    return type(value).__name__ == "_StageBackwardMeta"
