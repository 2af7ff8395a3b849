"""A program runs as one rank of a job whose other ranks do not: whatever it asks of them is answered."""

from __future__ import annotations

import base64
import json
import pickle
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tracer.capture.torch_private import torch_distributed
from tracer.loaded_modules import when_loaded
from tracer.null_gpu import process
from tracer.null_gpu.job.place import RankPlace, left_by
from tracer.null_gpu.job.store import LoneStore, Objects, ProgramsStore, is_of_numbers
from tracer.null_gpu.nccl_buffers import NcclBuffers


@contextmanager
def lone_rank(place: RankPlace) -> Iterator[None]:
    """Process groups of any backend start at once, and object collectives give what ranks before this one have given.

    So do broadcasts of a few integers, by which libraries compare what ranks have (DeepSpeed's ZeRO 3).

    What ranks after this one read is left in the job's folder in the end, and so are the groups that it was in.
    """
    store = LoneStore(lambda: _left_by_others(place.folder))
    groups: set[tuple[int, ...]] = set()

    def see_groups() -> None:
        groups.update(tuple(group) for group in torch_distributed.process_groups() if place.rank in group)

    try:
        with ExitStack() as stack:
            stack.enter_context(torch_distributed.every_rendezvous(store, place.rank, place.world_size))
            stack.enter_context(torch_distributed.gloo_alone())
            stack.callback(without_vllm_queues())
            objects = Objects(place.folder, place.rank)
            instead = (
                _functions_of_groups(place, see_groups, objects)
                | _functions_of_objects(place, objects, stack)
                | _stores(store, place.world_size)
            )
            stack.enter_context(torch_distributed.called_instead(instead))
            stack.enter_context(torch_distributed.spawned_here(place.local_rank, place.num_local))
            yield
    finally:
        see_groups()
        _leave(place, store, groups)


def _ranks_of(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _global_rank(rank: int | None, rank_in_group: int | None, group: Any) -> int:
    """The rank that a call names in either way; the first where it names none."""
    if rank is not None:
        return rank
    return 0 if rank_in_group is None else _ranks_of(group)[rank_in_group]


_Functions = dict[str, Callable[..., Any]]


def _by_name(*functions: Callable[..., Any]) -> _Functions:
    return {function.__name__: function for function in functions}


def _functions_of_groups(place: RankPlace, see_groups: Callable[[], None], objects: Objects) -> _Functions:
    """Return the stand-ins of torch.distributed's functions on groups and tensors."""
    initialise, destroy = dist.init_process_group, dist.destroy_process_group
    broadcast_own, gather_own = dist.broadcast, dist.gather

    def init_process_group(*arguments: Any, **options: Any) -> None:
        initialise(*arguments, **options)
        # A group with a device has its communicators split for others, and NCCL is not told how many ranks share one.
        # torch then says at a barrier that it might have one, which the program cannot mend.
        warnings.filterwarnings("ignore", message=r"barrier\(\): using the device", append=True)
        world: Any = dist.group.WORLD
        world.bound_device_id = None

    def split_group(
        parent_pg: Any = None, split_ranks: list[list[int]] | None = None, timeout: Any = None, pg_options: Any = None,
        group_desc: str | None = None, **more: Any,
    ) -> Any:  # fmt: skip
        parents = _ranks_of(parent_pg)
        split = [[parents[index] for index in part] for part in split_ranks or []]
        groups = [dist.new_group(part, timeout, None, pg_options, group_desc=group_desc) for part in split]
        return next((group for group, part in zip(groups, split, strict=True) if place.rank in part), None)

    def destroy_process_group(group: Any = None) -> None:
        see_groups()
        destroy(group)

    def broadcast(
        tensor: torch.Tensor, src: int | None = None, group: Any = None, async_op: bool = False,
        group_src: int | None = None,
    ) -> Any:  # fmt: skip
        source = _global_rank(src, group_src, group)
        work = broadcast_own(tensor, source, group, async_op)
        if is_of_numbers(tensor) and place.rank in (ranks := _ranks_of(group)):
            objects.share_numbers(tensor, source, ranks)
        return work

    def gather(
        tensor: torch.Tensor, gather_list: list[torch.Tensor] | None = None, dst: int | None = None, group: Any = None,
        async_op: bool = False, group_dst: int | None = None,
    ) -> Any:  # fmt: skip
        work = gather_own(tensor, gather_list, dst, group, async_op, group_dst)
        if gather_list and is_of_numbers(tensor):
            # NCCL receives each slot by itself, and nobody sends.
            for slot in gather_list:
                slot.copy_(tensor)
        return work

    def monitored_barrier(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """Return at once: no other rank is waited for."""

    return _by_name(init_process_group, destroy_process_group, split_group, broadcast, gather, monitored_barrier)


def _functions_of_objects(place: RankPlace, objects: Objects, until_end: ExitStack) -> _Functions:
    """Return the stand-ins of torch.distributed's functions on objects."""
    gather_objects_own = dist.all_gather_object

    def broadcast_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, weights_only: bool = False,
    ) -> None:  # fmt: skip
        objects.share(object_list, _global_rank(src, group_src, group), _ranks_of(group))

    def all_gather_object(object_list: list[Any], obj: Any, group: Any = None, **options: Any) -> None:
        gather_objects_own(object_list, obj, group, **options)
        if (theirs := torch_distributed.state_of_other_shards(obj)) is not None:
            own = dist.get_rank(group)
            object_list[:] = [obj if rank == own else theirs for rank in range(len(object_list))]

    def gather_object(
        obj: Any, object_gather_list: list[Any] | None = None, dst: int | None = None, group: Any = None,
        group_dst: int | None = None, weights_only: bool = False,
    ) -> None:  # fmt: skip
        if place.rank == _global_rank(dst, group_dst, group):
            # Nobody else's part of a checkpoint is there, when torch compares what ranks are going to save.
            until_end.enter_context(torch_distributed.checkpoints_of_one_rank())
            given = pickle.dumps(obj)
            if object_gather_list is None:  # in torch's words
                raise ValueError("Argument ``object_gather_list`` must be specified on destination rank.")
            object_gather_list[:] = [pickle.loads(given) for _ in _ranks_of(group)]

    def scatter_object_list(
        scatter_object_output_list: list[Any], scatter_object_input_list: list[Any] | None = None,
        src: int | None = None, group: Any = None, group_src: int | None = None, weights_only: bool = False,
    ) -> None:  # fmt: skip
        ranks = _ranks_of(group)
        values = list(scatter_object_input_list or [None] * len(ranks))
        objects.share(values, _global_rank(src, group_src, group), ranks, are_needed=True)
        scatter_object_output_list[0] = values[ranks.index(place.rank)]

    def send_object_list(
        object_list: list[Any], dst: int | None = None, group: Any = None, device: Any = None,
        group_dst: int | None = None, use_batch: bool = False,
    ) -> None:  # fmt: skip
        objects.send(object_list, _global_rank(dst, group_dst, group))

    def recv_object_list(
        object_list: list[Any], src: int | None = None, group: Any = None, device: Any = None,
        group_src: int | None = None, use_batch: bool = False, weights_only: bool = False,
    ) -> int:  # fmt: skip
        source = _global_rank(src, group_src, group)
        objects.receive(object_list, source)
        return source

    return _by_name(
        broadcast_object_list, all_gather_object, gather_object, scatter_object_list, send_object_list, recv_object_list
    )


def _stores(jobs: LoneStore, num_ranks: int) -> _Functions:
    """The classes of stores that wait for other processes, with one that does not wait in the place of each."""

    class TCPStore(ProgramsStore):
        """A store without a server: nobody listens at the address."""

        def __init__(
            self, host_name: str, port: int, world_size: int | None = None, *_: object, **options: object
        ) -> None:
            super().__init__(jobs, world_size or num_ranks)
            self.host, self.port = host_name, port

    class FileStore(ProgramsStore):
        """No file is written."""

        def __init__(self, file_name: str, world_size: int = -1) -> None:
            super().__init__(jobs, world_size if world_size > 0 else num_ranks)
            self.path = file_name

    return {"TCPStore": TCPStore, "FileStore": FileStore}


def _leave(place: RankPlace, store: LoneStore, groups: set[tuple[int, ...]]) -> None:
    keys = {key: base64.b64encode(value).decode() for key, value in store.own.items()}
    nccl = NcclBuffers.of_this_process() if process.is_active() else NcclBuffers()
    document = {
        "groups": sorted(map(list, groups)),
        "store": keys,
        "nccl": asdict(nccl),
        "shared_bytes": process.shared_bytes() if process.is_active() else 0,
        "taken": process.taken_bytes() if process.is_active() else {},
    }
    text = json.dumps(document)
    unfinished = left_by(place.folder, place.rank).with_suffix(".part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(left_by(place.folder, place.rank))


def _left_by_others(folder: Path) -> dict[str, bytes]:
    """Keys that ranks before this one have set; the lowest rank's count."""
    values: dict[str, bytes] = {}
    for path in sorted(folder.glob("rank*.json"), key=lambda path: int(path.stem.removeprefix("rank"))):
        for key, text in json.loads(path.read_text(encoding="utf-8"))["store"].items():
            values.setdefault(key, base64.b64decode(text))
    return values


def without_vllm_queues() -> Callable[[], None]:
    """Have vLLM send objects between ranks by torch.distributed, not by queues in shared memory.

    A rank that makes such a queue waits until all others have opened it.

    Returns:
        A function that ends the waiting for vLLM.
    """

    def replace_queues(module: Any) -> None:
        module.MessageQueue.create_from_process_group = staticmethod(lambda *arguments, **options: None)

    return when_loaded("vllm.distributed.device_communicators.shm_broadcast", replace_queues)
