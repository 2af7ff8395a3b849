"""Pages of made-up training runs of any length: what the page's tests and benchmark look at."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tests.exporters.page.page_samples import blocks_of
from tracer.answers.answer import Answer
from tracer.answers.rows import Row
from tracer.answers.tables import Section, Table, columns
from tracer.arrays import Ints
from tracer.blocks.from_snapshot.timeline import Band
from tracer.exporters.page.model import (
    Curve,
    Mark,
    Page,
)

_PHASES = ("forward", "backward", "optimizer")
_PARTS = (0.38, 0.57)
"""Parts of a step's events: forward and backward; the optimizer has the rest."""
_HELD_BLOCKS = 200
_KINDS = ("PARAMETER", "OPTIMIZER_STATE", "ACTIVATION", "AUTOGRAD_DETAIL", "TEMPORARY")


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Blocks by kind, an index into `_KINDS`; rows are events, and the state after one is what is drawn."""

    kind: Ints
    size_bytes: Ints
    made_at: Ints
    freed_at: Ints


def synthetic_page(num_events: int, *, num_steps: int = 3, num_rows: int = 60, seed: int = 0) -> Page:
    """A run whose every step fills activations in forward and lets go of them in backward.

    Args:
        num_events: Rows of the timeline, exactly: each allocates or frees one block.
        num_steps: Steps to divide them among.
        num_rows: Groups of blocks.
        seed: Of sizes and times.
    """
    random = np.random.default_rng(seed)
    bounds = np.linspace(0, num_events, num_steps + 1).astype(int)
    times = 1_700_000_000_000_000_000 + np.cumsum(random.integers(0, 4000, num_events))
    bands, parts = [], [_held(num_events, random)]
    for step, (start, end) in enumerate(pairwise(bounds.tolist())):
        cuts = [start, *(start + int((end - start) * share) for share in np.cumsum(_PARTS)), end]
        parts.append(_step_blocks(*cuts, random=random))
        ends = [int(times[min(cut, num_events - 1)]) for cut in cuts]
        bands.append(Band("step", f"ProfilerStep#{step + 2}", ends[0], ends[3]))
        bands += [Band(kind, kind, ends[i], ends[i + 1]) for i, kind in enumerate(_PHASES)]  # type: ignore[arg-type]
    blocks = _Blocks(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in _Blocks.__dataclass_fields__)
    )
    return _page(times, blocks, bands, num_rows, random)


def _held(num_events: int, random: np.random.Generator) -> _Blocks:
    """Parameters and optimizer state, there before."""
    kind = np.repeat([0, 1], [_HELD_BLOCKS, 2 * _HELD_BLOCKS])
    size = random.integers(1, 2000, len(kind)) * 512
    return _Blocks(kind, size, np.full(len(kind), -1), np.full(len(kind), num_events))


def _step_blocks(start: int, forward_end: int, backward_end: int, end: int, *, random: np.random.Generator) -> _Blocks:
    """One step. Forward: two activations, then a temporary that is freed; backward: an activation goes, and so on."""
    quads = np.arange(start, forward_end - 3, 4)
    made = np.stack([quads, quads + 1], axis=1).reshape(-1)
    triples = np.arange(forward_end, backward_end - 2, 3)
    num = min(len(made), len(triples))
    # Last in, first out; what backward has no time for lives until the step ends.
    freed = np.full(len(made), end)
    freed[len(made) - num :] = triples[:num][::-1]
    pairs = np.arange(backward_end, end - 1, 2)
    short = np.concatenate([quads + 2, triples + 1, pairs])
    kind = np.concatenate(
        [np.full(len(made), 2), np.full(len(quads), 4), np.full(len(triples), 3), np.full(len(pairs), 4)]
    )
    size = random.integers(1, 4096, len(kind)) * 512
    return _Blocks(kind, size, np.concatenate([made, short]), np.concatenate([freed, short + 1]))


def _page(times: Ints, blocks: _Blocks, bands: list[Band], num_rows: int, random: np.random.Generator) -> Page:
    groups, group = _groups(blocks, num_rows, random)
    levels = [_level(blocks, kind, len(times)) for kind in range(len(_KINDS))]
    totals = np.sum(levels, axis=0)
    top, tagged = int(totals.argmax()), totals - levels[3]
    return Page(
        title="Synthetic training run",
        device="cuda:0",
        answer=Answer(
            happened=("Peak of a synthetic run.",),
            remarks=("Blocks that were alive before the recording began have no source line.",),
            sections=(Section("Time", (), (_slow_modules(),)),),
        ),
        subtitle=f"{len(times):,} events, {sum(band.kind == 'step' for band in bands)} steps",
        times=times,
        series=dict(zip(_KINDS, levels, strict=True)),
        lines=(Curve("reserved", times, np.maximum.accumulate(totals) // (2 << 20) * (2 << 20) + (64 << 20)),),
        counted_bytes=totals,
        blocks=blocks_of(blocks.size_bytes, blocks.made_at, blocks.freed_at),
        groups=tuple(groups),
        group=group,
        marks=(
            Mark("peak", "True peak", int(times[top]), int(totals[top]), top),
            Mark("tagged", "Tagged peak", int(times[tagged.argmax()]), int(tagged.max()), int(tagged.argmax())),
        ),
        bands=tuple(bands),
        breakdown={kind: int(level[top]) for kind, level in zip(_KINDS, levels, strict=True)},
        peak_row=top,
        run={
            "command": "python main.py --batch-size 32 --hidden-channels 128 --data-size 128 --n-modes 64",
            "device": "NVIDIA H200",
            "torch": "2.15.0",
            "parameters": "25,165,824 (96.00 MiB)",
            "date": "2026-11-21 07:30",
        },
    )


def _slow_modules() -> Table:
    heads = (*columns("duration", "forward", "backward"), *columns("bytes", "at the peak"), *columns("text", "module"))
    rows = tuple((9e6 / (i + 1), 17e6 / (i + 1), (96 << 20) // (i + 1), f"blocks.{i}.conv") for i in range(8))
    return Table("The slowest modules, in ms", heads, rows)


def _band_at(bands: list[Band], time: int, *, steps: bool) -> str | None:
    """The last one that has begun."""
    return next((b.name for b in reversed(bands) if (b.kind == "step") == steps and b.start <= time), None)


def _level(blocks: _Blocks, kind: int, num_events: int) -> Ints:
    """Bytes of one kind after each event."""
    mine = blocks.kind == kind
    change = np.zeros(num_events + 1, np.int64)
    np.add.at(change, np.maximum(blocks.made_at[mine], 0), blocks.size_bytes[mine])
    np.add.at(change, blocks.freed_at[mine], -blocks.size_bytes[mine])
    return np.cumsum(change)[:num_events]


def _groups(blocks: _Blocks, num_rows: int, random: np.random.Generator) -> tuple[list[Row], Ints]:
    """Groups of every kind, and the group of each block."""
    each = max(1, num_rows // len(_KINDS))
    number = np.where(blocks.kind < 2, np.arange(len(blocks.kind)), random.integers(0, each, len(blocks.kind))) % each
    rows = [_row(kind, i) for kind in _KINDS for i in range(each)]
    return rows, blocks.kind * each + number


def _row(category: str, i: int) -> Row:
    held = category in ("PARAMETER", "OPTIMIZER_STATE")
    return Row(
        bytes=0,
        count=0,
        category=category,
        torch_category=category,
        evidence="address of a live, named tensor" if held else "torch's data flow",
        phase="before" if held else _PHASES[i % 2],
        module=f"blocks.{i % 6}.{('conv', 'mlp', 'skip')[i % 3]}",
        op=None if held else ("aten::convolution", "aten::_fft_r2c", "aten::gelu", "aten::einsum")[i % 4],
        file=None if held else f"/home/me/fno/models/{('fno', 'layers')[i % 2]}.py",
        line=None if held else 40 + 7 * i,
        name=f"blocks.{i % 6}.weight{i}" if held else None,
    )
