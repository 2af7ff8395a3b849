"""Cost of the engine, beside that of torch's own analysis, on the same recordings in one run.

    uv run python benchmarks/engine.py [--models fno16 transformer] [--quick]

Measured are the analysis of a recording (time, memory, and that both give the same numbers), and how its cost grows
with the length of a recording. `overhead.py` measures a profiled step.

Torch's analysis is run once per model, as it takes most of the time, and ours several times before and after it, of
which the median and the range are printed; the very first, which fills caches, is not counted. Times are the
processor's, since other programs disturb them least; the ratio in wall time stands beside. Memory is what the resident
set of a forked child grows by while it analyses, at its highest (`VmHWM` less `VmRSS` at its start, Linux): neither
analysis finds memory that the other one has left behind. Torch's time is taken in such a child too, ours is not.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler._memory_profiler import MemoryProfile, MemoryProfileTimeline
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # run as a file, Python looks beside it only

from models.fno_workload import FnoSettings, build_fno_workload
from models.resnet import build_resnet50
from tracer.blocks.from_recording.memory_timeline import MemoryTimeline
from tracer.capture.profiler.event_tree import read_recording
from tracer.workloads.module_steps import SupervisedWorkload as Workload

NUM_THREADS = 2
TARGET_RATIO = 10.0
Step = Callable[[], None]
Table = list[list[str]]


# ---- what is profiled ------------------------------------------------------------------------------------------------


def transformer12() -> nn.Module:
    """Twelve encoder layers between an embedding and a head."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(1000, 256), encoder, nn.Linear(256, 1000))


def workload_of(
    model: nn.Module, next_batch: Callable[[], tuple[Tensor, ...]], loss: Any, *, fused: bool = False
) -> Workload:
    return Workload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), fused=fused),
        next_batch=next_batch,
        loss=loss,
        device=torch.device("cpu"),
    )


def fno(n_modes: int) -> Workload:
    return build_fno_workload(FnoSettings(n_modes=n_modes), device="cpu")


def next_token(model: nn.Module, *, fused: bool = False) -> Workload:
    """Trained on texts of 64 tokens out of 1,000."""
    return workload_of(
        model,
        lambda: (torch.randint(1000, (4, 64)), torch.randint(1000, (4, 64))),
        lambda output, target: F.cross_entropy(output.flatten(0, 1), target.flatten()),
        fused=fused,
    )


def transformer() -> Workload:
    return next_token(transformer12())


def convnet() -> Workload:
    return build_resnet50(batch_size=4, image_size=64)


class GPTBlock(nn.Module):
    """Attention, written out, and a feed-forward network, each behind a norm."""

    def __init__(self, width: int, num_heads: int, length: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.register_buffer("future", torch.ones(length, length, dtype=torch.bool).triu(1))

    def attention(self, x: Tensor) -> Tensor:
        """Attend from each position to itself and those before it."""
        heads = (part.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        query, key, value = heads
        scores = (query @ key.transpose(-2, -1)) * key.shape[-1] ** -0.5
        weights = self.dropout(F.softmax(scores.masked_fill(self.future, -torch.inf), dim=-1))
        return self.dropout(self.projection((weights @ value).transpose(1, 2).flatten(2)))

    def forward(self, x: Tensor) -> Tensor:  # noqa: D102
        x = x + self.attention(self.norm_1(x))
        return x + self.dropout(self.narrow(F.gelu(self.widen(self.norm_2(x)))))


class GPT(nn.Module):
    """Twelve blocks, every third checkpointed, between an embedding and a head that share their weights."""

    def __init__(self, vocabulary: int = 1000, length: int = 64, width: int = 192) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([GPTBlock(width, 6, length) for _ in range(12)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:  # noqa: D102
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for number, block in enumerate(self.blocks):
            x = checkpoint(block, x, use_reentrant=False) if number % 3 == 2 else block(x)
        return self.head(self.norm(x))


def gpt() -> Workload:
    return next_token(GPT(), fused=True)


class ConvLSTM(nn.Module):
    """Convolutions over frames of a film, and an LSTM over what they see in each frame."""

    def __init__(self) -> None:
        super().__init__()
        widths = (3, 16, 32, 64, 64)
        layers = [
            nn.Sequential(nn.Conv2d(i, o, 3, stride=2, padding=1), nn.BatchNorm2d(o), nn.ReLU())
            for i, o in itertools.pairwise(widths)
        ]
        self.frames = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.lstm, self.head = nn.LSTM(64, 128, num_layers=2, batch_first=True), nn.Linear(128, 10)

    def forward(self, film: Tensor) -> Tensor:  # noqa: D102
        seen = self.frames(film.flatten(0, 1)).unflatten(0, film.shape[:2])
        return self.head(self.lstm(seen)[0][:, -1])


def convnet_lstm() -> Workload:
    return workload_of(ConvLSTM(), lambda: (torch.randn(4, 16, 3, 32, 32), torch.randint(10, (4,))), F.cross_entropy)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, and how many of its steps make a recording that torch analyses in a quarter of a minute."""

    title: str
    build: Callable[[], Workload]
    num_active: int = 3


MODELS = {
    "fno16": Subject("FNO, 16 modes", lambda: fno(16)),
    "fno32": Subject("FNO, 32 modes", lambda: fno(32), num_active=1),
    "transformer": Subject("transformer, 12 layers", transformer),
    "resnet50": Subject("ResNet-50", convnet),
    "gpt": Subject("GPT, 12 blocks, tied weights, checkpointing", gpt),
    "convnet_lstm": Subject("convnet with LSTM", convnet_lstm),
}


def active_steps_of(name: str, *, quick: bool) -> int:
    return 1 if quick else MODELS[name].num_active


def step_of(workload: Workload) -> Step:
    def step() -> None:
        workload.backward(workload.forward(workload.next_batch()))
        workload.optimizer_step()

    return step


# ---- recording -------------------------------------------------------------------------------------------------------


@contextmanager
def profiler(
    num_active: int, ready: Callable[[Any], None], *, num_cycles: int = 1, device: str = "cpu"
) -> Iterator[Any]:
    """torch.profiler with the flags that memory questions need: the same as in a session of ours."""
    with profile(
        activities=[ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * (device == "cuda"),
        schedule=schedule(wait=1, warmup=1, active=num_active, repeat=num_cycles),
        on_trace_ready=ready,
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as running:
        yield running


def record(step: Step, num_active: int) -> Any:
    """The `kineto_results` of one cycle."""
    kept: list[Any] = []
    with profiler(num_active, lambda prof: kept.append(prof.profiler.kineto_results)) as running:
        for _ in range(2 + num_active):
            step()
            running.step()
    return kept[0]


def ours(results: Any) -> tuple[list[int], list[list[int]]]:
    """Read, categorize, lay out, merge by microsecond."""
    times, sizes = MemoryTimeline.from_profiler(results, "cpu").coalesce()
    return times.tolist(), sizes.tolist()


def torchs(results: Any) -> tuple[list[int], list[list[int]]]:
    """Return peaks and categories by torch's own analysis."""
    times, sizes = MemoryProfileTimeline(MemoryProfile(results))._coalesce_timeline("cpu")
    return times, sizes


# ---- measuring -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one call: on the wall clock, and of the processor."""

    wall_s: float
    processor_s: float


def cost_of(call: Callable[[], Any]) -> Cost:
    wall, processor = time.perf_counter(), time.process_time()
    call()
    return Cost(time.perf_counter() - wall, time.process_time() - processor)


def median(costs: Sequence[Cost]) -> Cost:
    """The middle of either kind of time."""
    return Cost(statistics.median(cost.wall_s for cost in costs), statistics.median(cost.processor_s for cost in costs))


def in_child(call: Callable[[], Any]) -> tuple[Any, Cost, int]:
    """Return the result and the cost of a call in a forked child, and the growth of its resident set."""

    def child(pipe: Any) -> None:
        kept: list[Any] = []
        before = status_bytes("VmRSS")
        cost = cost_of(lambda: kept.append(call()))
        pipe.send((kept[0], cost, status_bytes("VmHWM") - before))

    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=child, args=(send,))
    process.start()
    send.close()
    result, cost, grown_bytes = receive.recv()
    process.join()
    return result, cost, grown_bytes


def status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call in a fresh interpreter, so that one model's leftovers do not weigh on the next."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_seeded, function, *arguments).result()


def _seeded(function: Callable[..., Any], *arguments: Any) -> Any:
    torch.set_num_threads(NUM_THREADS)
    torch.manual_seed(0)
    return function(*arguments)


# ---- 1. the analysis -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Analysis:
    """One model's recording, analysed both ways."""

    num_events: int
    ours: list[Cost]
    torch: Cost
    ours_bytes: int
    torch_bytes: int
    equal: bool

    def ratios(self) -> str:
        """Factor between torch's processor time and ours: the median, and the range."""
        found = [self.torch.processor_s / cost.processor_s for cost in self.ours]
        return f"{statistics.median(found):.1f} ({min(found):.1f} to {max(found):.1f})"


def measure_analysis(name: str, quick: bool) -> Analysis:
    """Torch's own analysis takes its time, so it runs once, for time, memory and numbers; ours before and after it."""
    results = record(step_of(MODELS[name].build()), active_steps_of(name, quick=quick))
    num_times = 1 if quick else 3
    ours(results)  # the first of a process looks up operators' schemas and whose files there are, for torch's as well
    our_costs = [cost_of(lambda: ours(results)) for _ in range(num_times)]
    our_numbers, _, ours_bytes = in_child(lambda: ours(results))
    torch_numbers, torch_cost, torch_bytes = in_child(lambda: torchs(results))
    our_costs += [cost_of(lambda: ours(results)) for _ in range(num_times)]
    num_events = read_recording(results).num_events
    return Analysis(num_events, our_costs, torch_cost, ours_bytes, torch_bytes, equal=our_numbers == torch_numbers)


def analysis_table(names: Sequence[str], *, quick: bool) -> Table:
    table = [["model", "events", "torch", "ours", "ratio, wall", "ratio", "torch's memory", "ours", "numbers"]]
    for name in names:
        found = in_own_process(measure_analysis, name, quick)
        middle = median(found.ours)
        table.append([
            MODELS[name].title,
            f"{found.num_events:,}",
            f"{found.torch.processor_s:.2f} s",
            f"{middle.processor_s:.3f} s",
            f"{found.torch.wall_s / middle.wall_s:.1f}",
            found.ratios(),
            f"{found.torch_bytes / 2**20:.0f} MiB",
            f"{found.ours_bytes / 2**20:.0f} MiB",
            "equal" if found.equal else "DIFFERENT",
        ])  # fmt: skip
    return table


# ---- 2. growth -------------------------------------------------------------------------------------------------------


def measure_growth(numbers_of_steps: Sequence[int]) -> list[tuple[int, int, Cost]]:
    """Steps, events and cost of ours."""
    step = step_of(fno(16))
    rows = []
    for num_steps in numbers_of_steps:
        results = record(step, num_steps)
        costs = [cost_of(lambda results=results: ours(results)) for _ in range(3)]  # type: ignore[misc]
        rows.append((num_steps, read_recording(results).num_events, median(costs)))
    return rows


def growth_table(*, quick: bool) -> tuple[Table, str]:
    rows = in_own_process(measure_growth, (1, 2) if quick else (1, 2, 4))
    table = [["active steps", "events", "ours", "per event"]]
    for num_steps, num_events, cost in rows:
        per_event_us = cost.processor_s / num_events * 1e6
        table.append([str(num_steps), f"{num_events:,}", f"{cost.processor_s:.3f} s", f"{per_event_us:.2f} us"])
    events = np.array([row[1] for row in rows], float)
    seconds = np.array([row[2].processor_s for row in rows])
    exponent = np.polyfit(np.log(events), np.log(seconds), 1)[0]
    statement = f"Processor time grows with the number of events to the power of {exponent:.2f}."
    return table, statement


# ---- on the screen ---------------------------------------------------------------------------------------------------


def as_markdown(table: Table) -> str:
    header, *rows = table
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--quick", action="store_true", help="one active step, fewer repetitions")
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {NUM_THREADS} threads, on the CPU")
    print(f"\nAnalysis of one recording, processor time (aim: ratio {TARGET_RATIO:.0f} or more)\n", flush=True)
    print(as_markdown(analysis_table(options.models, quick=options.quick)))
    print("\nGrowth with the length of a recording, FNO of 16 modes, processor time\n", flush=True)
    table, statement = growth_table(quick=options.quick)
    print(f"{as_markdown(table)}\n\n{statement}")


if __name__ == "__main__":
    main()
