"""Several ranks: each writes its own folder, and rank 0 adds what differs between them.

Ranks find each other through files, not through the process group: a rank that has died cannot hold up a collective,
and its neighbours' results are there all the same.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tracer.exporters.files import write_atomically
from tracer.session import RunResults
from tracer.units import format_bytes

RANK_FILE = "rank.json"
SUMMARY_JSON, SUMMARY_TEXT = "ranks.json", "ranks.txt"
WAIT_S = 20.0
"""How long rank 0 waits for the others. torchrun kills what is left of a failed run after 30 seconds."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of several, as torchrun's environment tells it.

    Attributes:
        index: From 0, over all machines.
        world_size: How many there are.
        local_index: From 0, on this machine; the number of its device.
        run: Names this start of the program, so that an earlier one's files are not taken for this one's.
    """

    index: int
    world_size: int
    local_index: int
    run: str

    def folder(self, save_dir: Path) -> Path:
        """Where this rank writes."""
        return rank_folder(save_dir, self.index)


def rank_folder(save_dir: Path, index: int) -> Path:
    """`rank3` below the folder of results."""
    return save_dir / f"rank{index}"


def this_rank(environment: Mapping[str, str] = os.environ) -> Rank | None:
    """This process's rank; None where there is only one, or no environment of torchrun's."""
    try:
        index, world_size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
        local_index = int(environment.get("LOCAL_RANK", index))
    except (KeyError, ValueError):
        return None
    if world_size < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    return Rank(index, world_size, local_index, "/".join(environment.get(name, "") for name in names))


@dataclass(frozen=True, slots=True)
class RankPeak:
    """What one rank has to say.

    Attributes:
        index: Of the rank.
        run: See `Rank.run`.
        device: Name of its device.
        peak_bytes: Its largest peak; None if nothing was recorded.
        categories: Bytes of the peak by category.
        num_steps: Steps that ended.
        failure: What ended its loop early, in words; empty if nothing did.
    """

    index: int
    run: str
    device: str = ""
    peak_bytes: int | None = None
    categories: Mapping[str, int] = field(default_factory=dict)
    num_steps: int = 0
    failure: str = ""


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """All ranks beside each other.

    Attributes:
        ranks: Those that have left results, by index.
        missing: Indices of those that have not.
    """

    ranks: tuple[RankPeak, ...]
    missing: tuple[int, ...]

    @property
    def with_peak(self) -> tuple[RankPeak, ...]:
        """Those that recorded something."""
        return tuple(rank for rank in self.ranks if rank.peak_bytes is not None)

    @property
    def worst(self) -> RankPeak | None:
        """The first of those with the largest peak."""
        return max(self.with_peak, key=lambda rank: rank.peak_bytes or 0, default=None)

    @property
    def spread_bytes(self) -> int:
        """Largest peak less smallest."""
        peaks = [rank.peak_bytes or 0 for rank in self.with_peak]
        return max(peaks) - min(peaks) if peaks else 0

    def differences(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest bytes of each category that is not the same on all ranks, the widest first."""
        names = {name for rank in self.with_peak for name in rank.categories}
        ends = {}
        for name in sorted(names):
            sizes = [rank.categories.get(name, 0) for rank in self.with_peak]
            if min(sizes) != max(sizes):
                ends[name] = (min(sizes), max(sizes))
        return dict(sorted(ends.items(), key=lambda item: item[1][0] - item[1][1]))


def begin(rank: Rank, save_dir: Path) -> None:
    """Forget what an earlier run of the same rank has left."""
    (rank.folder(save_dir) / RANK_FILE).unlink(missing_ok=True)
    if rank.index == 0:
        for name in (SUMMARY_JSON, SUMMARY_TEXT):
            (save_dir / name).unlink(missing_ok=True)


def finish(rank: Rank, results: RunResults, save_dir: Path, *, wait_s: float = WAIT_S) -> RanksSummary | None:
    """Leave this rank's results for rank 0, which puts all together.

    Raises:
        OutputError: A file cannot be written.
    """
    peak = _peak_of(rank, results)
    write_atomically(rank.folder(save_dir) / RANK_FILE, json.dumps(asdict(peak), indent=1) + "\n")
    return write_summary(save_dir, rank.world_size, run=rank.run, wait_s=wait_s) if rank.index == 0 else None


def _peak_of(rank: Rank, results: RunResults) -> RankPeak:
    error = results.failure.error if results.failure is not None else None
    failure = f"{type(error).__name__}: {error}".strip(": ").splitlines()[0] if error is not None else ""
    if results.findings is None:
        return RankPeak(rank.index, rank.run, num_steps=results.num_steps, failure=failure)
    peak = results.findings.worst.peak
    return RankPeak(
        index=rank.index,
        run=rank.run,
        device=peak.device,
        peak_bytes=peak.peak_bytes,
        categories=dict(peak.by_category()),
        num_steps=results.num_steps,
        failure=failure,
    )


def write_summary(
    save_dir: Path,
    world_size: int,
    *,
    run: str,
    wait_s: float = WAIT_S,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> RanksSummary:
    """Write ranks.txt and ranks.json at once, and again whenever a further rank is there, until all are.

    Args:
        save_dir: With a folder for each rank.
        world_size: How many ranks there are.
        run: Of which start; files of others are passed over.
        wait_s: For how long, in seconds, to wait for ranks that are missing.
        clock: Seconds.
        pause: Waits for so many seconds.

    Raises:
        OutputError: A file cannot be written.
    """
    deadline, seen = clock() + wait_s, -1
    while True:
        summary = read_ranks(save_dir, world_size, run=run)
        if len(summary.ranks) != seen:
            seen = len(summary.ranks)
            write_atomically(save_dir / SUMMARY_TEXT, summary_text(summary))
            write_atomically(save_dir / SUMMARY_JSON, json.dumps(_as_json(summary), indent=1) + "\n")
        if not summary.missing or clock() >= deadline:
            return summary
        pause(0.1)


def read_ranks(save_dir: Path, world_size: int, *, run: str) -> RanksSummary:
    """What the ranks have left so far."""
    found = []
    for index in range(world_size):
        with suppress(OSError, ValueError, TypeError):
            left = RankPeak(**json.loads((rank_folder(save_dir, index) / RANK_FILE).read_text(encoding="utf-8")))
            if left.run == run:
                found.append(left)
    there = {rank.index for rank in found}
    return RanksSummary(tuple(found), tuple(index for index in range(world_size) if index not in there))


def _as_json(summary: RanksSummary) -> dict[str, Any]:
    return {
        "world_size": len(summary.ranks) + len(summary.missing),
        "worst_rank": summary.worst.index if summary.worst is not None else None,
        "spread_bytes": summary.spread_bytes,
        "missing": list(summary.missing),
        "differences": {name: {"min": low, "max": high} for name, (low, high) in summary.differences().items()},
        "ranks": [asdict(rank) for rank in summary.ranks],
    }


def summary_text(summary: RanksSummary) -> str:
    """Peak per rank, the worst, the spread, and what differs by category."""
    lines = ["Peak memory of each rank:", "-------------------------"]
    for rank in summary.ranks:
        peak = "nothing recorded" if rank.peak_bytes is None else f"{rank.peak_bytes:,} bytes on {rank.device}"
        ended = f"; ended in step {rank.num_steps} by {rank.failure}" if rank.failure else ""
        lines.append(f"rank {rank.index}: {peak}{ended}")
    lines += [f"rank {index}: left no results" for index in summary.missing]
    if summary.worst is not None:
        share = 100 * summary.spread_bytes / (summary.worst.peak_bytes or 1)
        lines += ["", f"Worst: rank {summary.worst.index}, {format_bytes(summary.worst.peak_bytes or 0)}"]
        lines.append(f"Spread: {format_bytes(summary.spread_bytes)}, {share:.1f} % of the worst")
    lines += ["", *_difference_lines(summary)]
    return "\n".join(lines).rstrip() + "\n"


def _difference_lines(summary: RanksSummary) -> list[str]:
    differences = summary.differences()
    if not differences:
        return ["No category differs."] if len(summary.with_peak) > 1 else []
    rows = [f"{name}: {low:,} to {high:,} bytes" for name, (low, high) in differences.items()]
    return ["What differs:", *rows]


class Termination:
    """Lets SIGTERM, by which torchrun ends the ranks beside a failed one, unwind the program like any exception.

    Its default would end the process on the spot, and with it what was recorded. A handler of somebody else's is left
    alone, and the default is put back by `close`.
    """

    def __init__(self) -> None:
        self._is_ours = False
        self._must_wait = False
        self._number: int | None = None

    def watch(self) -> None:
        """From now on SIGTERM raises SystemExit in the main thread."""
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._unwind)
            self._is_ours = True

    def _unwind(self, number: int, frame: FrameType | None) -> None:
        self._number = number
        if not self._must_wait:
            self._must_wait = True
            raise SystemExit(128 + number)

    def hold(self) -> None:
        """From now on it waits until `close`: files are being written."""
        self._must_wait, self._number = True, None

    def close(self) -> None:
        """Put the default back; raises SystemExit if SIGTERM came in the meantime."""
        if self._is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            self._is_ours = False
        if self._number is not None:
            raise SystemExit(128 + self._number)
