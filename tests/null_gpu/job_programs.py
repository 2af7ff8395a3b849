"""Programs of a rank whose others do not run: `python -m tests.null_gpu.job_programs NAME...`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional_collectives
import torch.distributed._symmetric_memory as symmetric_memory
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleInterleaved1F1B
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]))


def train(net: Any, *size: int) -> None:
    optimizer = torch.optim.AdamW(net.parameters())
    for _ in range(2):
        net(torch.randn(*size, device=DEVICE)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def every_slot_has_this_ranks_own() -> None:
    dist.init_process_group("nccl", device_id=DEVICE)
    own = torch.tensor([RANK, 14], device=DEVICE)
    slots = [torch.empty_like(own) for _ in range(WORLD_SIZE)]
    dist.all_gather(slots, own)
    assert [slot.tolist() for slot in slots] == [[RANK, 14]] * WORLD_SIZE
    one = torch.empty(2 * WORLD_SIZE, dtype=torch.int64, device=DEVICE)
    dist.all_gather_into_tensor(one, own)
    assert one.tolist() == [RANK, 14] * WORLD_SIZE
    objects: list[Any] = [None] * WORLD_SIZE
    dist.all_gather_object(objects, {"rank": RANK})
    assert objects == [{"rank": RANK}] * WORLD_SIZE
    parts = torch.arange(WORLD_SIZE, device=DEVICE)
    exchanged = torch.full_like(parts, -1)
    dist.all_to_all_single(exchanged, parts)
    assert exchanged.tolist() == parts.tolist()
    part: Any = dist.new_group(list(range(RANK, WORLD_SIZE, 2)))
    total = torch.ones(1, device=DEVICE)
    dist.all_reduce(total, group=part)
    dist.barrier()
    dist.destroy_process_group()


def gloo_meets_nobody() -> None:
    dist.init_process_group("gloo")
    slots = [torch.empty(1) for _ in range(WORLD_SIZE)]
    dist.all_gather(slots, torch.tensor([float(RANK)]))
    assert [slot.item() for slot in slots] == [float(RANK)] * WORLD_SIZE
    dist.monitored_barrier()
    dist.destroy_process_group()


def the_first_ranks_objects_are_everybodys() -> None:
    dist.init_process_group("cpu:gloo,cuda:nccl")
    given: list[Any] = [{"seed": 5}, "run-1"] if RANK == 0 else [None, None]
    dist.broadcast_object_list(given, src=0)
    assert given == [{"seed": 5}, "run-1"]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [rank * 10 for rank in range(WORLD_SIZE)] if RANK == 0 else None, src=0)
    assert mine == [RANK * 10]
    for device in (DEVICE, torch.device("cpu")):
        numbers = torch.tensor([7, 8] if RANK == 0 else [-1, -1], device=device)
        dist.broadcast(numbers, src=0)
        assert numbers.tolist() == [7, 8]
    store = dist.distributed_c10d._get_default_store()
    if RANK == 0:
        store.set("port", "1234")
    assert store.get("port") == b"1234"
    dist.destroy_process_group()


def what_one_rank_gathers() -> None:
    dist.init_process_group("nccl", device_id=DEVICE)
    own = torch.tensor([RANK, 14], device=DEVICE)
    slots = [torch.empty_like(own) for _ in range(WORLD_SIZE)] if RANK == 0 else None
    dist.gather(own, slots, dst=0)
    assert slots is None or [slot.tolist() for slot in slots] == [[0, 14]] * WORLD_SIZE
    objects: list[Any] | None = [None] * WORLD_SIZE if RANK == 0 else None
    dist.gather_object({"rank": RANK}, objects, dst=0)
    assert objects is None or objects == [{"rank": 0}] * WORLD_SIZE
    dist.destroy_process_group()


def a_sharded_checkpoint() -> None:
    """Parts of other ranks are missing in it; a rank finds its own, if it is the one that writes what there is."""
    import torch.distributed.checkpoint
    from torch.distributed.checkpoint.state_dict import get_state_dict

    checkpoint: Any = torch.distributed.checkpoint
    dist.init_process_group("cpu:gloo,cuda:nccl")
    net: Any = fully_shard(nn.Linear(64, 64, device=DEVICE))
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(8, 64, device=DEVICE)).sum().backward()
    optimizer.step()
    model, state = get_state_dict(net, optimizer)
    for number in range(2):
        checkpoint.save({"model": model, "optimizer": state}, checkpoint_id=f"checkpoint-{number}")
    checkpoint.load({"model": model, "optimizer": state}, checkpoint_id="checkpoint-0")
    written = Path("checkpoint-0", f"__{RANK}_0.distcp")
    assert (written.stat().st_size > 0) == (RANK == 0)
    dist.destroy_process_group()


def stores_of_the_program() -> None:
    """All have come: nobody is waited for, counted in vain, or asked for a flag that he never sets."""
    stores: Any = dist
    for store in (stores.TCPStore("127.0.0.1", 1, WORLD_SIZE, RANK == 0), stores.FileStore("shared", WORLD_SIZE)):
        store.set(f"ready{RANK}", "yes")
        store.wait([f"ready{rank}" for rank in range(WORLD_SIZE)])
        store.add("arrived", 1)
        while store.add("arrived", 0) < WORLD_SIZE or int(store.get("arrived")) < WORLD_SIZE:
            pass
        store.delete_key("arrived")
        while not store.check([f"done{rank}" for rank in range(WORLD_SIZE)]):
            pass
        dist.init_process_group("nccl", store=store, rank=RANK, world_size=WORLD_SIZE)
        dist.barrier()
        dist.destroy_process_group()


def ranks_that_the_program_starts() -> None:
    began: list[Any] = []
    processes: Any = torch.multiprocessing
    processes.spawn(lambda *given: began.append(given), args=("data",), nprocs=WORLD_SIZE)
    assert began == [(RANK, "data")]
    context = processes.spawn(lambda index: began.append(index), nprocs=WORLD_SIZE, join=False)
    assert context.join() and began[1:] == [RANK]


def data_parallel() -> None:
    dist.init_process_group()
    net = nn.SyncBatchNorm.convert_sync_batchnorm(nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64))).cuda()
    train(nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True), 8, 64)
    dist.destroy_process_group()


def flat_parameters() -> None:
    dist.init_process_group()
    net = FullyShardedDataParallel(nn.Linear(64, 64), device_id=DEVICE, sync_module_states=True)
    assert sum(parameter.numel() for parameter in net.parameters()) == -(-64 * 65 // WORLD_SIZE)
    train(net, 8, 64)
    dist.destroy_process_group()


def the_state_of_flattened_parameters() -> None:
    """Each rank has a part of one weight alone, and the state of all is gathered."""
    dist.init_process_group()
    layers = nn.Sequential(*[nn.Linear(64, 64, bias=False) for _ in range(WORLD_SIZE)])
    net = FullyShardedDataParallel(layers, device_id=DEVICE, use_orig_params=True)
    assert sum(parameter.numel() > 0 for parameter in net.parameters()) == 1
    optimizer = torch.optim.AdamW(net.parameters())
    net(torch.randn(8, 64, device=DEVICE)).sum().backward()
    optimizer.step()
    state = FullyShardedDataParallel.optim_state_dict(net, optimizer)["state"]
    assert [sorted(of) for of in state.values()] == [["exp_avg", "exp_avg_sq", "step"]] * WORLD_SIZE
    assert all(of["exp_avg"].shape == (64, 64) for of in state.values())
    dist.destroy_process_group()


def a_mesh_without_a_group() -> None:
    """The mesh starts the group itself; its rows and columns are groups of their own size."""
    mesh = init_device_mesh("cuda", (WORLD_SIZE // 2, 2), mesh_dim_names=("data", "tensor"))
    assert mesh["tensor"].size() == 2 and mesh["data"].size() == WORLD_SIZE // 2
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)).cuda()
    parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["data"])
    weight: Any = net[0].weight
    assert weight.to_local().numel() == 64 * 128 // WORLD_SIZE
    train(net, 8, 64)
    dist.destroy_process_group()


def stages_of_a_pipeline() -> None:
    dist.init_process_group()
    numbers = [RANK, RANK + WORLD_SIZE]
    parts = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()).cuda() for _ in numbers]
    stages: list[Any] = [
        PipelineStage(part, number, 2 * WORLD_SIZE, DEVICE) for part, number in zip(parts, numbers, strict=True)
    ]
    schedule = ScheduleInterleaved1F1B(
        stages, n_microbatches=2 * WORLD_SIZE, loss_fn=lambda result, wanted: (result - wanted).square().mean()
    )
    inputs = [torch.randn(4 * WORLD_SIZE, 64, device=DEVICE)] if RANK == 0 else []
    wanted: dict[str, Any] = (
        {"target": torch.randn(4 * WORLD_SIZE, 64, device=DEVICE)} if RANK == WORLD_SIZE - 1 else {}
    )
    schedule.step(*inputs, **wanted)
    assert all(parameter.grad is not None for part in parts for parameter in part.parameters())
    dist.destroy_process_group()


def tokens_of_experts() -> None:
    """What is sent is known, so that what is received is, although counts differ."""
    dist.init_process_group("nccl")
    sent = [WORLD_SIZE + 1, *[1] * (WORLD_SIZE - 1)]
    received = [3] * WORLD_SIZE
    tokens = torch.arange(sum(sent), device=DEVICE)
    exchanged = torch.full((sum(received),), -1, device=DEVICE)
    dist.all_to_all_single(exchanged, tokens, received, sent)
    others = [number for number in range(WORLD_SIZE + 1, sum(sent)) for _ in range(3)]
    assert exchanged.tolist() == [0, 1, 2, *others]
    counts = torch.bincount(torch.arange(64, device=DEVICE) % WORLD_SIZE, minlength=WORLD_SIZE)
    theirs = torch.empty_like(counts)
    dist.all_to_all_single(theirs, counts)
    hidden = torch.randn(64, 8, device=DEVICE, requires_grad=True)
    world: Any = dist.group.WORLD
    moved = functional_collectives.all_to_all_single_autograd(hidden, theirs.tolist(), counts.tolist(), world)
    moved.sum().backward()
    assert moved.shape == (64, 8) and hidden.grad is not None
    dist.destroy_process_group()


def attention_over_all_ranks() -> None:
    """Each rank has its part of the sequence, and sees keys and values of all."""
    mesh = init_device_mesh("cuda", (WORLD_SIZE,))
    whole = [torch.randn(1, 4, 1024, 64, device=DEVICE, dtype=torch.bfloat16) for _ in range(3)]
    with (
        torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION),
        context_parallel(mesh, buffers=whole, buffer_seq_dims=[2, 2, 2]),
    ):
        query, key, value = (tensor.detach().requires_grad_() for tensor in whole)
        assert query.shape[2] == 1024 // WORLD_SIZE
        nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()
        assert key.grad is not None and key.grad.shape == key.shape
    assert whole[0].shape[2] == 1024
    dist.destroy_process_group()


def symmetric_workspace() -> None:
    """What ranks map from each other is outside of torch's allocator, and of this device once."""
    dist.init_process_group("nccl", device_id=DEVICE)
    free_bytes, allocated_bytes = torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()
    workspace = symmetric_memory.empty(4 << 20, dtype=torch.uint8, device=DEVICE)
    world: Any = dist.group.WORLD
    shared = symmetric_memory.rendezvous(workspace, world)
    assert (shared.world_size, shared.rank) == (WORLD_SIZE, RANK)
    assert shared.get_buffer((RANK + 1) % WORLD_SIZE, (16,), torch.float32).shape == (16,)
    shared.barrier()
    assert torch.cuda.memory_allocated() - allocated_bytes < 1 << 20
    assert free_bytes - torch.cuda.mem_get_info()[0] in range(4 << 20, 9 << 20)
    part, weight = torch.randn(64, 32, device=DEVICE), torch.randn(32, 16, device=DEVICE)
    _, products = torch.ops.symm_mem.fused_all_gather_matmul(part, [weight], 0, world.group_name)
    assert products[0].shape == (64 * WORLD_SIZE, 16)
    dist.destroy_process_group()


if __name__ == "__main__":
    from tracer.null_gpu.job.place import RankPlace
    from tracer.sessions.jobs.run_ranks import as_rank
    from tracer.sessions.on_null_gpu import values_on

    torch.cuda.set_device(DEVICE)
    place = RankPlace.here()
    assert place is not None
    with values_on({}), as_rank(place):
        for program in sys.argv[1:]:
            globals()[program]()
            print(program, flush=True)
