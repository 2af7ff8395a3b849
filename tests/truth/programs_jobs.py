"""Programs for the harness: a rank of a sharded job whose other ranks do not run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.utils.checkpoint import checkpoint

from tests.truth.program import Batch, Program, program, supervised, there

_WIDTH, _WORDS, _LENGTH = 256, 2048, 128


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.is_checkpointed = is_checkpointed
        self.norm, self.other_norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.out = nn.Linear(_WIDTH, 3 * _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.up, self.down = nn.Linear(_WIDTH, 4 * _WIDTH), nn.Linear(4 * _WIDTH, _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if self.is_checkpointed:
            return checkpoint(self.compute, x, use_reentrant=False)  # type: ignore[no-any-return]
        return self.compute(x)

    def compute(self, x: Tensor) -> Tensor:
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (-1, 3, 32)).movedim(2, 1).unbind(3)
        attended = F.scaled_dot_product_attention(
            query.contiguous(), key.contiguous(), value.contiguous(), is_causal=True
        )
        x = x + self.out(attended.movedim(1, 2).flatten(2))
        hidden: Tensor = self.down(F.gelu(self.up(self.other_norm(x))))
        return x + hidden


class WordModel(nn.Module):
    """A language model of three blocks."""

    def __init__(self, *, is_checkpointed: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WORDS, _WIDTH)
        self.blocks = nn.ModuleList(Block(is_checkpointed=is_checkpointed) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WORDS, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _start(world_size: int = 4) -> None:
    """This process is rank 0 of a job from now on; on a GPU, whose NCCL waits for every rank, of a job of one."""
    from tracer.null_gpu.job.lone_rank import lone_rank
    from tracer.null_gpu.job.place import RankPlace
    from tracer.null_gpu.process import is_active

    if there().type == "cuda" and not is_active():
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
        dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
        return
    place = RankPlace(0, world_size, world_size, Path(tempfile.mkdtemp()))
    os.environ.update(place.variables())
    job = lone_rank(place)
    job.__enter__()
    _JOBS.append(job)
    if there().type == "cuda":  # else the allocator leaves up to 1 MiB on a block, whose size then says little of it
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    dist.init_process_group("nccl" if there().type == "cuda" else "gloo")


_JOBS: list[Any] = []
"""Never left: the process ends with the program."""


def _mesh(*sizes: int, names: tuple[str, ...]) -> DeviceMesh:
    return init_device_mesh(there().type, sizes, mesh_dim_names=names)


def _tokens() -> tuple[Tensor, Tensor]:
    return torch.randint(_WORDS, (16, _LENGTH)), torch.randint(_WORDS, (16, _LENGTH))


def _cross_entropy(logits: Tensor, tokens: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def _trained(model: nn.Module, make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW) -> Program:
    return supervised(model, make(model.parameters()), _tokens, _cross_entropy)


# ---- sharded parameters ----------------------------------------------------------------------------------------------


def _fully_sharded(model: WordModel, **options: Any) -> WordModel:
    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    return model


@program(on_device=True)
def fsdp2() -> Program:
    _start()
    return _trained(_fully_sharded(WordModel()))


@program(on_device=True)
def fsdp2_in_fewer_bits() -> Program:
    """Gathered in 16 bits, reduced in 32; blocks are computed again."""
    _start()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return _trained(_fully_sharded(WordModel(is_checkpointed=True), mp_policy=policy))


@program(on_device=True)
def fsdp2_kept_gathered() -> Program:
    """Parameters stay whole between forward and backward, and gradients of four micro-batches are not reduced."""
    _start()
    model = _fully_sharded(WordModel(), reshard_after_forward=False)
    optimizer, batch = torch.optim.AdamW(model.parameters()), Batch()
    sharded: Any = model

    def step() -> Tensor:
        for number in range(2):
            sharded.set_requires_gradient_sync(number == 1)
            x, y = batch.of(_tokens())
            loss = _cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return Program(step, model, [optimizer], batch)


@program(on_device=True, of_ranks=True)
def hsdp() -> Program:
    _start()
    return _trained(_fully_sharded(WordModel(), mesh=_mesh(2, 2, names=("copies", "parts"))))


@program(on_device=True)
def fsdp1() -> Program:
    _start()
    model = FullyShardedDataParallel(WordModel(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=there())
    return _trained(model)


@program(on_device=True)
def fsdp1_with_original_parameters() -> Program:
    _start()
    model = FullyShardedDataParallel(
        WordModel(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=there(), use_orig_params=True,
        sharding_strategy=ShardingStrategy.SHARD_GRAD_OP,
    )  # fmt: skip
    return _trained(model)


# ---- copies ----------------------------------------------------------------------------------------------------------


@program(on_device=True)
def data_parallel() -> Program:
    _start()
    return _trained(nn.parallel.DistributedDataParallel(WordModel(), bucket_cap_mb=1))


@program(on_device=True)
def data_parallel_with_views_of_buckets() -> Program:
    _start()
    model = nn.parallel.DistributedDataParallel(WordModel(), bucket_cap_mb=1, gradient_as_bucket_view=True)
    return _trained(model, torch.optim.SGD)


# ---- parts of each layer ---------------------------------------------------------------------------------------------


def _one_by_one(parameters: Any) -> torch.optim.Optimizer:
    """Sharded parameters beside whole ones cannot be stepped in one call."""
    return torch.optim.AdamW(parameters, foreach=False)


def _in_columns_and_rows(model: WordModel, mesh: DeviceMesh) -> WordModel:
    for block in model.blocks:
        plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        parallelize_module(block, mesh, plan)  # type: ignore[arg-type]
    return model


@program(on_device=True, of_ranks=True)
def tensor_parallel() -> Program:
    _start()
    return _trained(_in_columns_and_rows(WordModel(), _mesh(4, names=("parts",))), _one_by_one)


@program(on_device=True, of_ranks=True)
def sequence_parallel() -> Program:
    """Between the layers each rank has a part of the sequence."""
    _start()
    mesh, model = _mesh(4, names=("parts",)), WordModel()
    whole = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
    for block in model.blocks:
        plan: dict[str, Any] = {
            "norm": SequenceParallel(), "other_norm": SequenceParallel(),
            "qkv": ColwiseParallel(input_layouts=Shard(1)), "out": RowwiseParallel(output_layouts=Shard(1)),
            "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
        }  # fmt: skip
        parallelize_module(block, mesh, plan)
    plan = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
        "head": PrepareModuleInput(**whole),  # type: ignore[arg-type]
    }  # fmt: skip
    parallelize_module(model, mesh, plan)
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    return _trained(model, _one_by_one)


@program(on_device=True, of_ranks=True)
def sharded_and_tensor_parallel() -> Program:
    _start()
    mesh = _mesh(2, 2, names=("data", "parts"))
    return _trained(_fully_sharded(_in_columns_and_rows(WordModel(), mesh["parts"]), mesh=mesh["data"]), _one_by_one)


# ---- stages ----------------------------------------------------------------------------------------------------------


def _pipeline(numbers: list[int], schedule_of: Callable[..., Any]) -> Program:
    _start()
    parts = nn.ModuleList(nn.Sequential(Block(), Block()) for _ in numbers)
    num_stages = 4 * len(numbers)
    from torch.distributed.pipelining import PipelineStage  # it keeps a tensor: not where other programs run

    stages = [PipelineStage(part, number, num_stages, there()) for part, number in zip(parts, numbers, strict=True)]
    schedule = schedule_of(stages if len(stages) > 1 else stages[0], n_microbatches=8, loss_fn=F.mse_loss)
    optimizer, batch = torch.optim.AdamW(parts.parameters()), Batch()

    def step() -> None:
        schedule.step(batch.of(torch.randn(16, _LENGTH, _WIDTH)))
        optimizer.step()
        optimizer.zero_grad()

    return Program(step, parts, [optimizer], batch)


@program(on_device=True, of_ranks=True)
def first_stage_of_a_pipeline() -> Program:
    from torch.distributed.pipelining import Schedule1F1B

    return _pipeline([0], Schedule1F1B)


@program(on_device=True, of_ranks=True)
def stages_of_an_interleaved_pipeline() -> Program:
    from torch.distributed.pipelining import ScheduleInterleaved1F1B

    return _pipeline([0, 4], ScheduleInterleaved1F1B)
