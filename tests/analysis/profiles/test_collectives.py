"""What FSDP and DDP make for their collectives is told from gradients and activations, with the modules it carries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.truth.isolate import value_in_fresh_process
from tracer.analysis.kinds import Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.findings import CycleFindings
from tracer.capture.objects.training_objects import Models
from tracer.capture.torch_names import makes_buckets, makes_collectives_buffers, modules_of_collective
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch without torch.distributed")
WORLD_SIZE = 4
HIDDEN = 48
# Weight and bias of the layers of one of `blocks`, in bytes.
BLOCK_BYTES = 4 * (32 * HIDDEN + HIDDEN + HIDDEN * 32 + 32)


@contextmanager
def one_of_four() -> Iterator[None]:
    """This process is one of four; collectives do nothing."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=WORLD_SIZE)
    yield
    dist.destroy_process_group()


@pytest.fixture
def four_ranks() -> Iterator[None]:
    with one_of_four():
        yield


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only one."""
    dist.init_process_group("gloo", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def blocks() -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, HIDDEN), nn.Linear(HIDDEN, 32)) for _ in range(3)))


def train(
    model: nn.Module,
    *,
    models: Callable[[nn.Module], Models] = lambda model: model,
    also: Callable[[], object] = lambda: None,
) -> CycleFindings:
    """The findings of two steps, after two that nobody has recorded: DDP makes its buckets anew in the second."""
    optimizer = torch.optim.Adam(model.parameters())

    def step() -> None:
        model(torch.randn(16, 32)).square().mean().backward()
        also()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    with ProfileSession(models(model), optimizer, schedule=Schedule(0, 0, 2, 1)) as session:
        for _ in range(2):
            step()
            session.step()
    return session.findings.worst


def bytes_of(rows: list[PeakRow], category: str) -> int:
    return sum(row.bytes for row in rows if row.category == category)


def modules_of(cycle: CycleFindings, kind: Kind) -> Counter[str]:
    """Bytes of all blocks of a kind by module, alive at the peak or not."""
    found: Counter[str] = Counter()
    chosen = cycle.blocks.kind == kind
    names = [*cycle.attribution.modules, ""]
    for module, size in zip(
        cycle.blocks.module[chosen].tolist(), cycle.blocks.size_bytes[chosen].tolist(), strict=True
    ):
        found[names[module]] += size
    return found


def sharded(model: nn.Sequential, *, only_root: bool = False) -> nn.Sequential:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in () if only_root else model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def test_shards_are_parameters_gradients_and_state() -> None:
    """In a process of its own: other tests keep parameters and optimizers, too."""
    rows, names = value_in_fresh_process(_peak_of_shards)
    local = 3 * BLOCK_BYTES // WORLD_SIZE
    assert bytes_of(rows, "PARAMETER") == local
    assert bytes_of(rows, "OPTIMIZER_STATE") == 2 * local + 4 * len(names)
    assert bytes_of(rows, "HELD") < 64  # losses
    named = {row.name: row.module for row in rows if row.category == "PARAMETER"}
    assert named == {name: name.rpartition(".")[0] for name in names}
    # What gradients are reduced to is the gradients of the shards.
    gradients = [row.name for row in rows if row.category == "GRADIENT" and row.bytes == BLOCK_BYTES // WORLD_SIZE]
    assert set(gradients) <= {"0.0.weight", "1.0.weight", "2.0.weight"} and gradients


def _peak_of_shards() -> tuple[list[PeakRow], list[str]]:
    with one_of_four():
        model = sharded(blocks())
        return list(train(model).peak.rows), [name for name, _ in model.named_parameters()]


@pytest.mark.parametrize("name", ["", "student"])
def test_what_is_gathered_and_reduced_has_the_module_that_it_is_of(four_ranks: None, name: str) -> None:
    model = sharded(blocks())
    cycle = train(model, models=lambda model: {name: model} if name else model)
    found = modules_of(cycle, Kind.COMMUNICATION)
    # Prefetching, one module's are gathered while another's backward runs: all three have as much. The last is not
    # gathered again in backward.
    prefix = f"{name}." if name else ""
    assert set(found) == {f"{prefix}0", f"{prefix}1", f"{prefix}2"}
    assert found[f"{prefix}0"] == found[f"{prefix}1"] >= found[f"{prefix}2"] >= 4 * BLOCK_BYTES


def test_what_the_root_gathers_is_the_models(four_ranks: None) -> None:
    found = modules_of(train(sharded(blocks(), only_root=True)), Kind.COMMUNICATION)
    assert set(found) == {"FSDPSequential"}


def test_one_rank_alone_copies_what_it_would_gather(alone: None) -> None:
    assert set(modules_of(train(sharded(blocks())), Kind.COMMUNICATION)) == {"0", "1", "2"}


def test_ddps_buckets_have_the_module_of_all_whose_gradients_they_carry(alone: None) -> None:
    cycle = train(nn.parallel.DistributedDataParallel(blocks()))
    rows = list(cycle.peak.rows)
    assert {row.module: row.bytes for row in rows if row.category == "COMMUNICATION"} == {"module": 3 * BLOCK_BYTES}
    assert bytes_of(rows, "UNKNOWN") == bytes_of(rows, "BEFORE_RECORDING") == 0


def test_buckets_that_a_communication_hook_has_seen_are_no_variables(alone: None) -> None:
    """C++ then keeps a tensor of Python's of each, and the garbage collector lists it."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = nn.parallel.DistributedDataParallel(blocks())
    model.register_comm_hook(None, allreduce_hook)
    assert modules_of(train(model), Kind.COMMUNICATION) == {"module": 3 * BLOCK_BYTES}


def test_buckets_that_are_the_gradients_are_gradients(alone: None) -> None:
    cycle = train(nn.parallel.DistributedDataParallel(blocks(), gradient_as_bucket_view=True))
    assert modules_of(cycle, Kind.COMMUNICATION) == {}
    assert bytes_of(list(cycle.peak.rows), "GRADIENT") >= 3 * BLOCK_BYTES


def test_what_python_holds_stays_held_though_it_is_reduced(alone: None) -> None:
    metrics = torch.zeros(1000)
    cycle = train(nn.Linear(32, 8), also=lambda: dist.all_reduce(metrics))
    assert bytes_of(list(cycle.peak.rows), "HELD") >= 4000
    assert modules_of(cycle, Kind.COMMUNICATION) == {}


@pytest.mark.parametrize(
    ("span", "modules"),
    [
        ("FSDP::all_gather (layers.0)", ("layers.0",)),
        ("FSDP::all_gather_copy_out (norm, output) [pg=8]", ("norm", "output")),
        ("FSDP::post_backward_reduce", ("",)),
        ("FSDP::backward_prefetch for layers.0", None),
        ("Optimizer.step#Adam.step", None),
    ],
)
def test_spans_name_modules(span: str, modules: tuple[str, ...] | None) -> None:
    assert modules_of_collective(span) == modules


def test_only_some_functions_of_some_files_make_such_buffers() -> None:
    assert makes_collectives_buffers("torch/distributed/pipelining/_recv_buffers.py", "allocate_buffer")
    assert makes_collectives_buffers("torch/distributed/pipelining/stage.py", "_create_act_recv_info")
    assert not makes_collectives_buffers("torch/distributed/pipelining/stage.py", "forward_one_chunk")
    folder = "torch/distributed/fsdp/_fully_shard"
    assert makes_collectives_buffers(f"{folder}/_fsdp_collectives.py", "anything")
    assert makes_collectives_buffers(f"{folder}/_fsdp_param.py", "alloc_storage")
    assert not makes_collectives_buffers(f"{folder}/_fsdp_param.py", "to_sharded")
    assert not makes_collectives_buffers("/home/me/_reduce.py", "_reduce_grad")
    assert makes_collectives_buffers("deepspeed/runtime/zero/stage_1_and_2.py", "setup_buckets")
    assert not makes_collectives_buffers("deepspeed/runtime/zero/stage_1_and_2.py", "step")
    assert makes_buckets("torch/nn/parallel/distributed.py", "_pre_forward")
    assert not makes_buckets("torch/nn/parallel/distributed.py", "forward")
