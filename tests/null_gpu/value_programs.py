"""Programs in which a number of the device decides: each ends well or raises. Run in a process on the null GPU."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import math
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from tracer.null_gpu.values.answers import Answer
from tracer.null_gpu.values.device_reads import MAX_READS, EndlessLoopError
from tracer.null_gpu.values.switch import HostValues

DEVICE = "cuda"


@contextlib.contextmanager
def host_values(
    answers: dict[tuple[str, int], Answer] | None = None, max_reads: int = MAX_READS
) -> Iterator[HostValues]:
    values = HostValues(answers, max_reads)
    try:
        yield values
    finally:
        values.close()


def on_device(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, device=DEVICE)


# ------------------------------------------------------------------------------------------------------- sizes
def values_decide_sizes() -> None:
    with host_values() as values:
        grid = torch.arange(12, device=DEVICE).reshape(3, 4)
        assert (grid > 5).nonzero().tolist() == [[1, 2], [1, 3], [2, 0], [2, 1], [2, 2], [2, 3]]
        assert grid[grid > 5].tolist() == [6, 7, 8, 9, 10, 11]
        assert torch.masked_select(grid, grid % 2 == 0).tolist() == [0, 2, 4, 6, 8, 10]
        assert (grid > 50).nonzero().shape == (0, 2)
        numbers = torch.tensor([3, 1, 3, 2], device=DEVICE)
        unique, inverse, counts = torch.unique(numbers, return_inverse=True, return_counts=True)
        assert (unique.tolist(), inverse.tolist(), counts.tolist()) == ([1, 2, 3], [2, 0, 2, 1], [1, 1, 2])
        rows = torch.tensor([[1, 2], [1, 2], [0, 1]], device=DEVICE)
        assert torch.unique(rows, dim=0).tolist() == [[0, 1], [1, 2]]
        assert torch.unique_consecutive(torch.tensor([1, 1, 2, 2, 1], device=DEVICE)).tolist() == [1, 2, 1]
        assert torch.bincount(numbers).tolist() == [0, 1, 1, 2]
        assert torch.repeat_interleave(torch.tensor([3, 1], device=DEVICE)).tolist() == [0, 0, 0, 1]
        assert torch.histc(numbers, bins=3, min=1, max=3).tolist() == [1, 1, 2]
        slopes = on_device(-1.0, 0.0, 2.0).requires_grad_()
        torch.nn.functional.logsigmoid(slopes).sum().backward()
        expected = torch.sigmoid(-slopes.detach())
        assert slopes.grad is not None and torch.allclose(slopes.grad.cpu(), expected.cpu())
        assert torch.eye(4, device=DEVICE).to_sparse().coalesce().indices().shape == (2, 4)
        places = torch.tensor([[1, 0, 1, 1], [2, 0, 2, 1]], device=DEVICE)
        sparse = torch.sparse_coo_tensor(places, torch.ones(4, 8, device=DEVICE), (2, 3, 8))
        assert sparse.coalesce().indices().tolist() == [[0, 1, 1], [0, 1, 2]]
        assert torch.split(numbers, numbers.bincount()[1:].tolist())[2].tolist() == [3, 2]
        empty = [read for read in values.report().reads if read.num_empty]
        assert [(read.operator, read.num_empty, read.value) for read in empty] == [("aten::nonzero", 1, "0")]


def boxes_are_suppressed() -> None:
    with host_values():
        try:
            from torchvision.ops import nms
        except ImportError:
            return
        boxes = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1.1], [3, 3, 4, 4]], device=DEVICE)
        assert nms(boxes, on_device(0.5, 0.6, 0.7), 0.5).tolist() == [2, 1]


def workspaces_are_asked_for() -> None:
    """`nonzero` allocates a count and two workspaces besides its result, at the size that the mask decides."""
    mask = torch.zeros(1 << 20, dtype=torch.bool, device=DEVICE)
    mask.nonzero()
    alone = peak_of(lambda: mask.nonzero())
    with host_values():
        mask.fill_(True)
        peak = peak_of(lambda: mask.nonzero())
        result = mask.nonzero()
        assert result.shape == (1 << 20, 1)
        assert peak > result.nbytes and alone > 1024, (peak, alone)


def peak_of(run: object) -> int:
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert callable(run)
    run()
    return torch.cuda.max_memory_allocated() - before


# ------------------------------------------------------------------------------------------------------- values
def what_is_read_is_true() -> None:
    with host_values():
        numbers = torch.randn(5, device=DEVICE)
        assert torch.equal(numbers, numbers.clone()) and torch.allclose(numbers, numbers.clone())
        assert not torch.allclose(numbers, numbers + 1) and bool(torch.isfinite(numbers).all())
        assert on_device(1.0, 2.0).mean().item() == 1.5 and on_device(4.0).sqrt().item() == 2
        assert numbers.cpu().tolist() == numbers.tolist()
        grid = torch.arange(12.0, device=DEVICE).reshape(3, 4)
        assert grid[:, 1].tolist() == [1, 5, 9] and grid.t()[1].sum().item() == 15
        assert (torch.ones(2, dtype=torch.complex64, device=DEVICE) * 1j).conj().sum().item() == -2j


def sorts_and_draws() -> None:
    with host_values():
        numbers = torch.randn(100, device=DEVICE)
        ordered, places = numbers.sort()
        assert torch.equal(numbers[places], ordered) and bool((ordered.diff() >= 0).all())
        best, _ = numbers.topk(3)
        assert torch.equal(best, ordered.flip(0)[:3])
        assert torch.randperm(50, device=DEVICE).sort()[0].tolist() == list(range(50))
        assert torch.multinomial(on_device(0.0, 1.0, 0.0), 3, replacement=True).tolist() == [1, 1, 1]
        assert 450_000 < int((torch.randn(1000, 1000, device=DEVICE) > 0).sum()) < 550_000


def a_seed_draws_the_same_again_and_leaves_the_hosts_alone() -> None:
    with host_values():
        host = torch.get_rng_state()
        torch.cuda.manual_seed(1)
        first = torch.rand(3, device=DEVICE)
        second = torch.rand(3, device=DEVICE)
        torch.cuda.manual_seed(1)
        assert torch.equal(first, torch.rand(3, device=DEVICE)) and not torch.equal(first, second)
        assert torch.equal(host, torch.get_rng_state())


def numbers_stand_for_tensors() -> None:
    """Types of results are those of the CPU, also where the dispatcher hands a number on as a number."""
    with host_values():
        for dtype in (torch.int32, torch.int64, torch.float16, torch.float64, torch.bool):
            for shape in ((), (3,)):
                for number in (2, 2.5):
                    there = torch.ones(shape, dtype=dtype, device=DEVICE)
                    for operation in (torch.remainder, torch.mul, torch.sub if dtype != torch.bool else torch.add):
                        expected = operation(there.cpu(), number)
                        found = operation(there, number)
                        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
                        assert torch.equal(found.cpu(), expected)


def numbers_come_before_tensors() -> None:
    """torch hands these numbers on as tensors of the device, which the dispatcher gives to no kernel in Python."""
    with host_values():
        for dtype in (torch.int64, torch.float16, torch.float64):
            for base in (1, 2, 0.5):
                there = torch.tensor([1, 2, 3], dtype=dtype, device=DEVICE)
                expected = torch.pow(base, there.cpu())
                assert torch.equal(torch.pow(base, there).cpu(), expected) and (base**there).dtype == expected.dtype
                assert torch.equal(
                    torch.pow(base, there, out=torch.empty_like(expected, device=DEVICE)).cpu(), expected
                )
        assert torch.isin(3, torch.tensor([1, 3], device=DEVICE)).item() is True
        assert torch.isin(4, torch.tensor([1, 3], device=DEVICE)).item() is False


def weights_are_drawn_within_bounds() -> None:
    """Numbers in place of a kernel's keep to no bounds; torch's loop, which draws those outside again, has to end."""
    weight, bytes_of_one = torch.empty(1 << 20, device=DEVICE), 4 << 20
    with host_values():
        for bounds, at_least in (
            ((-2, 2), bytes_of_one // 4),
            ((-0.06, 0.06), 2 * bytes_of_one),
            ((0.1, 0.2), bytes_of_one),
        ):
            peak = peak_of(lambda bounds=bounds: nn.init.trunc_normal_(weight, 0.0, 0.02, *bounds))
            # torch 2.11 inverts the distribution in place instead, which takes nothing.
            assert peak == 0 or at_least <= peak <= at_least + 4 * bytes_of_one, (bounds, peak)
        small = nn.init.trunc_normal_(torch.empty(1000, device=DEVICE), 0.0, 0.02, -0.04, 0.04)
        assert 0.03 < float(small.abs().max()) <= 0.04


def values_are_in_no_recording() -> None:
    """What computes them takes tens of Python's calls for an operator; a profiler would keep each of them."""
    with host_values():
        numbers = torch.arange(10, device=DEVICE)
        with torch.profiler.profile(with_stack=True, record_shapes=True) as profiler:
            assert numbers[numbers > 4].sum().item() == 35
        names = [event.name for event in profiler.events()]
        assert "aten::nonzero" in names
        calls = [name for name in names if "null_gpu" in name]
        assert len(calls) <= 2 * sum(name.startswith("aten::") for name in names), calls
        assert not any("compute.py" in name for name in calls), calls


def nothing_is_added_twice() -> None:
    """Operators that are made of others inside torch's own kernel compute once."""
    with host_values():
        for deterministic in (False, True):
            torch.use_deterministic_algorithms(deterministic, warn_only=True)
            counts = torch.zeros(4, dtype=torch.int64, device=DEVICE)
            index = torch.tensor([0, 0, 3], device=DEVICE)
            counts.index_add_(0, index, torch.ones(3, dtype=torch.int64, device=DEVICE))
            assert counts.tolist() == [2, 0, 0, 1]
            counts.index_put_((index,), torch.tensor(1, device=DEVICE), accumulate=True)
            assert counts.tolist() == [4, 0, 0, 2]
            counts.scatter_add_(0, index, torch.ones_like(index))
            assert counts.tolist() == [6, 0, 0, 3]
            counts[counts > 2] = -1
            assert counts.tolist() == [-1, 0, 0, -1]
            counts.cumsum_(0)
            assert counts.tolist() == [-1, -1, -1, -2]
        torch.use_deterministic_algorithms(False)


def slices_hold_their_own() -> None:
    with host_values():
        table = torch.empty(4, 3, dtype=torch.int64, device=DEVICE)
        for column in range(3):
            table[:, column] = torch.arange(4, device=DEVICE) + column
        assert table.tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
        large = torch.randn(1000, 1000, device=DEVICE)
        assert torch.equal(large[3], large[3].clone()) and torch.equal(large[:, 3] > 0, (large > 0)[:, 3])
        assert large[large > 0].shape[0] + large[large <= 0].shape[0] == 1_000_000
        sevens = torch.full((12,), 7, device=DEVICE)
        del sevens
        part = torch.empty(4, 3, dtype=torch.int64, device=DEVICE)
        part[:, 0] = 1
        assert part.sum().item() == 4
        del part
        sevens = torch.full((12,), 7, device=DEVICE)
        del sevens
        part = torch.empty(4, 3, dtype=torch.int64, device=DEVICE)
        part[:, 0] = torch.ones(4, dtype=torch.int64, device=DEVICE)
        assert part.sum().item() == 4
        reused = torch.ones(1000, dtype=torch.int64, device=DEVICE)
        del reused
        assert torch.empty(1000, dtype=torch.int64, device=DEVICE).sum().item() == 0


class FunctionsCalled(TorchFunctionMode):
    """Names of torch's functions that were called."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **kwargs or {})


def _functions_called() -> list[str]:
    with FunctionsCalled() as functions:
        weight = torch.ones(3, device=DEVICE, requires_grad=True)
        torch.autograd.backward((weight * 2).sum())
    return functions.names


def other_contexts() -> None:
    """A default device, inference mode and autocast of the CPU are the program's, and not those of what is computed."""
    alone = _functions_called()
    with host_values():
        with torch.device(DEVICE):
            assert torch.ones(3).sum().item() == 3 and torch.arange(5)[torch.arange(5) > 2].tolist() == [3, 4]
        with torch.inference_mode():
            assert torch.ones(3, device=DEVICE).add_(1).sum().item() == 6
        assert _functions_called() == alone
        with torch.autocast("cpu"):
            assert (torch.ones(2, 2, device=DEVICE) @ torch.ones(2, 2, device=DEVICE)).sum().item() == 8


def backward_reads_in_its_thread() -> None:
    with host_values() as values:
        seen = []
        weight = torch.ones(3, device=DEVICE, requires_grad=True)
        weight.register_hook(lambda gradient: seen.append(gradient.sum().item()))
        (weight * 2).sum().backward()
        assert seen == [6.0]
        assert values.report().reads[0].operator == "aten::_local_scalar_dense"


# ------------------------------------------------------------------------------------------------------- reads
def reads_are_listed() -> None:
    with host_values() as values:
        for number in range(3):
            on_device(number).item()
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        large = torch.randn(2000, 2000, device=DEVICE)
        large.sum().item()
        reads = values.report().reads
        first = reads[0]
        assert (first.line, first.function, first.count, first.value) == (line, "reads_are_listed", 3, "2")
        assert first.file == __file__ and first.known == "exact" and not first.decides_size
        assert [read.known for read in reads] == ["exact", "drawn"]


def answers_are_read() -> None:
    here = inspect.currentframe().f_lineno  # type: ignore[union-attr]
    with host_values({("value_programs.py", here + 3): 7, ("null_gpu/value_programs.py", here + 4): 3}) as values:
        number, rows = on_device(1.5), torch.ones(10, device=DEVICE)
        assert number.item() == 7.0
        assert rows.nonzero().shape == (3, 1)
        assert number.item() == 1.5
        assert [read.answered for read in values.report().reads] == [True, True, False]


def a_loop_without_end_is_ended() -> None:
    with host_values(max_reads=50):
        number = on_device(0.0)
        try:
            while number.item() < 1:
                pass
        except EndlessLoopError as error:
            assert (
                "has read a value of the null GPU 50 times" in str(error)
                and "--answer value_programs.py:" in error.hint
                and error.__notes__ == [f"Hint: {error.hint}"]
            )
            return
    raise AssertionError("The loop ended by itself.")


def torchs_own_kernels_come_back() -> None:
    with host_values():
        pass
    assert torch.arange(4, device=DEVICE).sum().item() == 0


# ------------------------------------------------------------------------------------------------------- programs
def a_scaler_keeps_its_scale() -> None:
    with host_values():
        model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)).to(DEVICE)
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                output = model(torch.randn(64, 512, device=DEVICE))
                loss = F.cross_entropy(output, torch.randint(0, 10, (64,), device=DEVICE))
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert scaler.get_scale() == 65536.0
        assert optimizer.state[next(model.parameters())]["step"].item() == 3


def a_line_search_ends() -> None:
    with host_values():
        inputs = torch.linspace(-1, 1, 20, device=DEVICE)[:, None]
        model = nn.Linear(1, 1).to(DEVICE)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=50, line_search_fn="strong_wolfe")

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(inputs), 3 * inputs + 1)
            loss.backward()
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        assert closure().item() < 1e-6 and abs(model.weight.item() - 3) < 1e-3


def early_stopping_ends() -> None:
    with host_values():
        model = nn.Linear(3000, 3000).to(DEVICE)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        best, worse, steps = math.inf, 0, 0
        while worse < 5:
            loss = (model(torch.randn(32, 3000, device=DEVICE)) - 1).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            best, worse, steps = min(best, loss.item()), 0 if loss.item() < best else worse + 1, steps + 1
            math.sqrt(loss.item())
        assert 5 < steps < 200


def a_masked_loss() -> None:
    with host_values():
        model = nn.Linear(64, 100).to(DEVICE)
        target = torch.randint(0, 100, (16, 128), device=DEVICE)
        target[torch.rand(16, 128, device=DEVICE) < 0.15] = -100
        kept = (target >= 0).nonzero(as_tuple=True)
        assert 0.8 < len(kept[0]) / (16 * 128) < 0.9
        F.cross_entropy(model(torch.randn(16, 128, 64, device=DEVICE))[kept], target[kept]).backward()


def packed_sequences() -> None:
    with host_values():
        lengths = torch.randint(1, 20, (8,), device=DEVICE)
        packed = nn.utils.rnn.pack_padded_sequence(
            torch.randn(8, 20, 16, device=DEVICE), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        assert len(packed.data) == int(lengths.sum()) > 8
        output, _ = nn.LSTM(16, 32, batch_first=True).to(DEVICE)(packed)
        padded, back = nn.utils.rnn.pad_packed_sequence(output, batch_first=True)
        assert padded.shape == (8, int(lengths.max()), 32) and back.tolist() == lengths.tolist()
        padded.sum().backward()


def messages_on_a_graph() -> None:
    with host_values():
        edges = torch.randint(0, 1000, (2, 5000), device=DEVICE)
        edges = edges[:, edges[0] != edges[1]]
        num_edges = edges.shape[1]
        assert 4950 < num_edges < 5000
        degree = torch.zeros(1000, device=DEVICE).scatter_add_(0, edges[1], torch.ones(num_edges, device=DEVICE))
        assert degree.sum().item() == num_edges
        features = torch.randn(1000, 32, device=DEVICE, requires_grad=True)
        torch.zeros(1000, 32, device=DEVICE).index_add_(0, edges[1], features[edges[0]]).sum().backward()
        graphs = torch.randint(0, 16, (1000,), device=DEVICE).sort()[0]
        sizes = torch.bincount(graphs, minlength=16).tolist()
        assert sum(sizes) == 1000 and len(torch.split(features, sizes)) == 16


def a_matching_on_the_host() -> None:
    try:
        from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]
    except ImportError:
        return
    with host_values():
        classes, boxes = torch.randn(2, 100, 10, device=DEVICE), torch.rand(2, 100, 4, device=DEVICE)
        labels, targets = torch.tensor([1, 2, 3, 4], device=DEVICE), torch.rand(4, 4, device=DEVICE)
        cost = torch.cdist(boxes.flatten(0, 1), targets, p=1) - classes.flatten(0, 1).softmax(-1)[:, labels]
        for part in cost.view(2, 100, -1).cpu().split([3, 1], -1):
            queries, objects = linear_sum_assignment(part[0])
            assert len(set(queries.tolist())) == part.shape[-1] == len(objects) and len(set(objects.tolist())) == len(
                objects
            )


def distributions_check_what_is_drawn() -> None:
    with host_values():
        probabilities = torch.softmax(torch.randn(4, 50257, device=DEVICE), -1)
        assert torch.multinomial(probabilities, 5).shape == (4, 5)
        sampled = torch.distributions.Categorical(probabilities).sample()
        assert len(set(sampled.tolist())) > 1
        torch.distributions.Normal(torch.zeros(3, device=DEVICE), torch.rand(3, device=DEVICE) + 0.1).sample()


def memory_is_the_same() -> None:
    """No value decides a size in the models of models/: peaks and numbers of allocations are those without values."""
    from models.fno_workload import build_fno_workload
    from models.gpt import build as build_gpt
    from models.lstm import build as build_lstm
    from models.resnet import build as build_resnet

    def measured(build: object) -> tuple[int, int, int]:
        assert callable(build)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_stats()["allocation.all.allocated"]
        workload = build(device="cuda:0")
        for _ in range(3):
            workload.backward(workload.forward(workload.next_batch()))
            workload.optimizer_step()
        stats = torch.cuda.memory_stats()
        return (
            stats["allocated_bytes.all.peak"],
            stats["reserved_bytes.all.peak"],
            (stats["allocation.all.allocated"] - before),
        )

    for build in (build_gpt, build_fno_workload, build_resnet, build_lstm):
        measured(build)
        alone = measured(build)
        with host_values() as values:
            assert measured(build) == alone
            assert values.report().left_out == ()


# ------------------------------------------------------------------------------------------------------- large programs
def experts_in_a_loop() -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    peaks = {}
    for implementation in ("eager", "grouped_mm"):
        config = MixtralConfig(
            vocab_size=1000, hidden_size=512, intermediate_size=1792, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=4, num_local_experts=8, num_experts_per_tok=2,
        )  # fmt: skip
        config._experts_implementation = implementation
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        with host_values():
            model: nn.Module = MixtralForCausalLM(config)
            model.to(DEVICE)
            optimizer = torch.optim.AdamW(model.parameters())
            for _ in range(2):
                tokens = torch.randint(0, 1000, (8, 512), device=DEVICE)
                model(input_ids=tokens, labels=tokens).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            peaks[implementation] = torch.cuda.max_memory_allocated()
        del model, optimizer, tokens
    assert abs(peaks["eager"] / peaks["grouped_mm"] - 1) < 0.03, peaks


def text_is_generated() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    gpt = GPT2LMHeadModel(GPT2Config(vocab_size=1000, n_embd=64, n_layer=2, n_head=4))
    llama = LlamaForCausalLM(
        LlamaConfig(vocab_size=1000, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    )
    with host_values():
        for model in (gpt, llama):
            nn.Module.to(model, DEVICE).eval()
            for how in ({"do_sample": False}, {"do_sample": True, "top_k": 20}, {"num_beams": 3}):
                tokens = torch.randint(5, 1000, (2, 8), device=DEVICE)
                generate = partial(model.generate, tokens, max_new_tokens=10)  # type: ignore[misc]
                found = generate(pad_token_id=0, eos_token_id=3, **how)
                assert found.shape[0] == 2 and 8 < found.shape[1] <= 18
                assert len(set(found[0].tolist())) > 10


def objects_are_detected() -> None:
    from torchvision.models.detection import fasterrcnn_resnet50_fpn

    with host_values() as values:
        model = fasterrcnn_resnet50_fpn(weights=None, weights_backbone=None, min_size=320, max_size=640, num_classes=5)
        model.to(DEVICE).train()
        images = [torch.rand(3, 320, 384, device=DEVICE) for _ in range(2)]
        boxes = torch.tensor([[10.0, 10, 100, 120], [50, 60, 200, 210]], device=DEVICE)
        losses = model(images, [{"boxes": boxes, "labels": torch.tensor([1, 2], device=DEVICE)}] * 2)
        sum(losses.values()).backward()
        nms = next(read for read in values.report().reads if read.operator == "torchvision::nms")
        assert nms.decides_size and int(nms.value) > 10
        assert values.report().left_out == ()


def compiled_code_stays_compiled() -> None:
    from torch._dynamo.utils import counters

    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to(DEVICE)

    @torch.compile
    def step(inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = model(inputs).sin().exp()
        return output, output.sum(-1) > 0

    with host_values() as values:
        stale = [torch.ones(512, dtype=torch.bool, device=DEVICE) for _ in range(100)]
        del stale  # what was known of these blocks is not what compiled kernels leave there
        output, mask = step(torch.randn(8, 64, device=DEVICE))
        output.sum().backward()
        assert counters["stats"]["unique_graphs"] == 1
        assert mask.sum().item() == 0, "what compiled kernels hold is not known"
        assert values.report().num_compiled_buffers > 2


def a_profile_has_the_same_rows() -> None:
    import json
    import tempfile
    from pathlib import Path

    from tracer.commands.app import app

    def rows(folder: str) -> list[tuple[object, ...]]:
        options = ["--model", "models.gpt:build", "--device", "cuda:0", "--n-repeats", "1", "--quiet"]
        app([*options, "--save-dir", folder], standalone_mode=False)
        document = json.loads((Path(folder) / "peak.json").read_text(encoding="utf-8"))
        assert document["unexplained_bytes"] == 0
        names = ("bytes", "count", "category", "phase", "module", "op", "file", "line")
        return sorted(tuple(str(row[name]) for name in names) for row in document["rows"])

    with tempfile.TemporaryDirectory() as alone, tempfile.TemporaryDirectory() as with_values:
        rows(alone)  # what the first profile of a process leaves behind
        expected = rows(alone)
        with host_values():
            found = rows(with_values)
        assert found == expected, set(found) ^ set(expected)


def what_was_read() -> None:
    """All reads of a program, as one number: the same in each run."""
    with host_values() as values:
        model = nn.Linear(3000, 300).to(DEVICE)
        for _ in range(3):
            output = model(torch.randn(64, 3000, device=DEVICE))
            kept = output[(output > 0).any(-1) & (torch.rand(64, device=DEVICE) > 0.5)]
            kept.pow(2).mean().backward()
            torch.multinomial(torch.rand(10, device=DEVICE), 3).tolist()
            kept.mean().item()
        text = repr(values.report().reads)
    print(hashlib.sha256(text.encode()).hexdigest(), file=sys.stderr)


if __name__ == "__main__":
    for program in sys.argv[1:]:
        globals()[program]()
        print(program, flush=True)
