"""Categories and timeline of a recording: our time beside that of torch's own analysis, of the same events.

    uv run python -m benchmarks.categories [--models fno16 gpt ...] [--repeats 5]

Torch's `MemoryProfileTimeline` runs once for each model, ours before and after it, of which the median and the range
are printed; the first, which fills caches, is not counted. Seconds are a processor's. Both have to give equal numbers.
Aim: a twelfth of torch's time in each.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.profiler._memory_profiler import MemoryProfile, MemoryProfileTimeline

from benchmarks.tables import as_markdown
from models import gpt, lstm
from models.fno_workload import FnoSettings, build_fno_workload
from models.resnet import build_resnet50
from tracer.blocks.from_recording.memory_timeline import MemoryTimeline
from tracer.workloads.module_steps import SupervisedWorkload

AIM = 12.0
NUM_STEPS = 3
Curves = tuple[list[int], list[list[int]]]


def encoder() -> SupervisedWorkload:
    """Twelve layers of a transformer."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.AdamW(model.parameters()),
        next_batch=lambda: (torch.randn(4, 64, 256), torch.randn(4, 64, 256)),
        loss=nn.functional.mse_loss,
        device=torch.device("cpu"),
    )


MODELS: dict[str, Callable[[], Any]] = {
    "fno16": lambda: build_fno_workload(FnoSettings(n_modes=16), device="cpu"),
    "fno32": lambda: build_fno_workload(FnoSettings(n_modes=32), device="cpu"),
    "transformer": encoder,
    "resnet50": lambda: build_resnet50(batch_size=4, image_size=64),
    "gpt": lambda: gpt.build(device="cpu"),
    "lstm": lambda: lstm.build(device="cpu"),
}


def recorded(workload: Any) -> Any:
    """The events of some steps, as a session records them."""
    kept: list[Any] = []
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=NUM_STEPS, repeat=1),
        on_trace_ready=lambda prof: kept.append(prof.profiler.kineto_results),
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
    ) as running:
        for _ in range(2 + NUM_STEPS):
            workload.backward(workload.forward(workload.next_batch()))
            workload.optimizer_step()
            running.step()
    return kept[0]


def ours(results: Any) -> Curves:
    times, sizes = MemoryTimeline.from_profiler(results, "cpu").coalesce()
    return times.tolist(), sizes.tolist()


def torchs(results: Any) -> Curves:
    times, sizes = MemoryProfileTimeline(MemoryProfile(results))._coalesce_timeline("cpu")
    return times, sizes


def timed(call: Callable[[Any], Curves], results: Any) -> tuple[float, Curves]:
    begin = time.process_time()
    found = call(results)
    return time.process_time() - begin, found


def row(name: str, repeats: int) -> list[str]:
    """Measure one model."""
    torch.manual_seed(0)
    results = recorded(MODELS[name]())
    ours(results)
    before = [timed(ours, results)[0] for _ in range(repeats)]
    torch_s, expected = timed(torchs, results)
    after = [timed(ours, results) for _ in range(repeats)]
    seconds = [*before, *(each for each, _ in after)]
    ratio = torch_s / statistics.median(seconds)
    shown = f"{ratio:.1f}" if ratio >= AIM else f"**{ratio:.1f}**"
    is_equal = after[-1][1] == expected
    spread = f"{statistics.median(seconds):.3f} ({min(seconds):.3f} to {max(seconds):.3f})"
    return [name, f"{len(results.events()):,}", f"{torch_s:.2f}", spread, shown, "equal" if is_equal else "**differ**"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[*MODELS], choices=[*MODELS])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(2)
    header = ["model", "events", "torch, s", "ours, s", "ratio", "numbers"]
    print(as_markdown([header, *(row(name, options.repeats) for name in options.models)]))


if __name__ == "__main__":
    main()
