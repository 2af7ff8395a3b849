"""Pages of made-up training runs of any length: what the page's tests and benchmark look at."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.torch_categories import Category
from tracer.exporters.page import (
    Band,
    Curve,
    KindBytes,
    Mark,
    Page,
    PageLostTrack,
    PagePeak,
    Series,
    SlowModule,
    StepTiming,
)

_PARAMETER_BYTES, _STATE_BYTES, _INPUT_BYTES = 96 << 20, 192 << 20, 6 << 20
_PHASES = ("forward", "backward", "optimizer")


def synthetic_page(num_events: int, *, num_steps: int = 3, num_rows: int = 60, seed: int = 0) -> Page:
    """A run whose every step fills activations, turns them into gradients, and frees those after the update.

    Args:
        num_events: Rows of the timeline, exactly.
        num_steps: Steps to divide them among.
        num_rows: Groups of blocks at the peak.
        seed: Of sizes and times.
    """
    random = np.random.default_rng(seed)
    sizes = np.full((num_events, len(Category)), 0, np.int64)
    sizes[:, Category.PARAMETER], sizes[:, Category.OPTIMIZER_STATE] = _PARAMETER_BYTES, _STATE_BYTES
    bounds = np.linspace(0, num_events, num_steps + 1).astype(int)
    times = 1_700_000_000_000_000_000 + np.cumsum(random.integers(0, 4000, num_events))
    bands = []
    for step, (start, end) in enumerate(pairwise(bounds.tolist())):
        cuts = np.linspace(start, end, 4).astype(int)
        cuts[2] += (end - start) // 6
        _fill_step(sizes, cuts, random)
        ends = [int(times[min(cut, num_events - 1)]) for cut in cuts]
        bands.append(Band("step", f"ProfilerStep#{step + 2}", ends[0], ends[3]))
        bands += [Band(kind, kind, ends[i], ends[i + 1]) for i, kind in enumerate(_PHASES)]  # type: ignore[arg-type]
    return _page(times, sizes, bands, num_rows, random)


def _fill_step(sizes: np.ndarray, cuts: np.ndarray, random: np.random.Generator) -> None:
    start, forward_end, backward_end, end = cuts.tolist()
    sizes[start:end, Category.INPUT] = _INPUT_BYTES
    forward, backward = forward_end - start, backward_end - forward_end
    made = random.integers(1, 4096, max(forward, 1))[:forward] * 512
    # Every fourth event of forward is a workspace that the next one frees.
    made[3::4] = 0
    sizes[start:forward_end, Category.ACTIVATION] = (np.cumsum(made) / max(1, made.sum()) * (700 << 20)).astype(
        np.int64
    )
    sizes[start:forward_end:4, Category.TEMPORARY] = random.integers(0, 24 << 20, len(range(start, forward_end, 4)))
    ramp = np.arange(1, backward + 1)
    level = sizes[forward_end - 1, Category.ACTIVATION] if forward else 0
    sizes[forward_end:backward_end, Category.ACTIVATION] = level - level * ramp // max(1, backward)
    sizes[forward_end:backward_end, Category.GRADIENT] = _PARAMETER_BYTES * ramp // max(1, backward)
    detail = random.integers(0, 90 << 20, backward)
    sizes[forward_end:backward_end, Category.AUTOGRAD_DETAIL] = np.where(ramp % 3 == 0, detail, 8 << 20)
    sizes[forward_end:backward_end, Category.UNTAGGED] = random.integers(0, 30 << 20, backward) * (ramp % 5 == 0)
    sizes[backward_end:end, Category.GRADIENT] = _PARAMETER_BYTES
    sizes[backward_end:end:2, Category.TEMPORARY] = 12 << 20
    if end > backward_end:
        sizes[end - 1, Category.GRADIENT] = 0


def _page(times: np.ndarray, sizes: np.ndarray, bands: list[Band], num_rows: int, random: np.random.Generator) -> Page:
    totals, tagged = sizes.sum(axis=1), sizes[:, : Category.UNTAGGED].sum(axis=1)
    top, tagged_top = int(totals.argmax()), int(tagged.argmax())
    at_peak = sizes[top].tolist()
    return Page(
        title="Synthetic training run",
        device="cuda:0",
        subtitle=f"{len(times):,} events, {sum(band.kind == 'step' for band in bands)} steps",
        times=times,
        series=tuple(Series(category.name, sizes[:, category]) for category in Category),
        lines=(Curve("reserved", times, np.maximum.accumulate(totals) // (2 << 20) * (2 << 20) + (64 << 20)),),
        marks=(
            Mark("peak", "True peak", int(times[top]), int(totals[top])),
            Mark("tagged", "Tagged peak", int(times[tagged_top]), int(tagged[tagged_top])),
        ),
        bands=tuple(bands),
        peak=PagePeak(
            bytes=int(totals[top]),
            time=int(times[top]),
            step=_band_at(bands, int(times[top]), steps=True),
            phase=_band_at(bands, int(times[top]), steps=False),
            breakdown=tuple(KindBytes(c.name, size) for c, size in zip(Category, at_peak, strict=True)),
            rows=_rows(at_peak, num_rows, random),
        ),
        lost_track=tuple(
            PageLostTrack(
                f"aten::_fft_r2c_{i}", (40 - 9 * i) << 20, f"blocks.{i}.conv", "/home/me/fno/layers.py", 90 + i
            )
            for i in range(4)
        ),
        timings=tuple(
            StepTiming(f"ProfilerStep#{i + 2}", 21.4e6 + i * 4e5, 48.1e6 - i * 9e5, 6.2e6, 77e6) for i in range(3)
        ),
        clock="CUDA events",
        slow_modules=tuple(
            SlowModule(f"blocks.{i}.conv", 9e6 / (i + 1), 17e6 / (i + 1), (96 << 20) // (i + 1), 3) for i in range(8)
        ),
        run={
            "command": "python main.py --batch-size 32 --hidden-channels 128 --data-size 128 --n-modes 64",
            "device": "NVIDIA H200",
            "torch": "2.15.0",
            "parameters": "25,165,824 (96.00 MiB)",
            "date": "2026-11-21 07:30",
        },
        notes=("Blocks that were alive before the recording began have no source line.",),
    )


def _band_at(bands: list[Band], time: int, *, steps: bool) -> str | None:
    """The last one that has begun."""
    return next((b.name for b in reversed(bands) if (b.kind == "step") == steps and b.start <= time), None)


def _rows(at_peak: list[int], num_rows: int, random: np.random.Generator) -> tuple[PeakRow, ...]:
    """Each category's bytes, cut into groups of blocks that sum to it."""
    rows = []
    for category, size in zip(Category, at_peak, strict=True):
        pieces = max(1, num_rows // len(Category))
        cuts = np.sort(random.integers(0, size + 1, pieces - 1)) if size else np.zeros(0, np.int64)
        for i, piece in enumerate(np.diff([0, *cuts.tolist(), size]).tolist()):
            held = category in (Category.PARAMETER, Category.OPTIMIZER_STATE)
            rows.append(
                PeakRow(
                    bytes=piece,
                    count=1 + i % 4,
                    category=category.name,
                    torch_category=None if category == Category.UNTAGGED else category.name,
                    evidence="address of a live, named tensor" if held else "torch's data flow",
                    phase="before" if held else _PHASES[i % 2],
                    module=f"blocks.{i % 6}.{('conv', 'mlp', 'skip')[i % 3]}",
                    op=None if held else ("aten::convolution", "aten::_fft_r2c", "aten::gelu", "aten::einsum")[i % 4],
                    file=None if held else f"/home/me/fno/models/{('fno', 'layers')[i % 2]}.py",
                    line=None if held else 40 + 7 * i,
                    name=f"blocks.{i % 6}.weight" if held else None,
                )
            )
    return tuple(sorted((row for row in rows if row.bytes), key=lambda row: -row.bytes))
