"""Kinds of blocks in recordings that end anywhere, against what the recorded programs held.

    python -m benchmarks.cut_recordings [--programs 12] [--half mended|judging] [--keep FOLDER] [--without-cpp]
    python -m benchmarks.cut_recordings --further [NAME ...] [--keep FOLDER] [--without-cpp]
    python -m benchmarks.cut_recordings --steady ...

Programs of tests/truth and drawn ones (`benchmarks.random_programs`) run on the null GPU under torch's own recording;
`benchmarks.recorded_program` notes beside it what each block is. Each recording is cut at 20 entries: history up to
there, segments as they were then; in four of the cuts, one in each quarter, the next request fails. Judged are the
blocks at each cut's peak, in requested bytes.

`--further` takes the programs of `benchmarks.further_programs` in their place, which the rules were mended with.
`--steady` drops the first iteration, as of a recording that begins after a warm-up, and cuts within those behind it.
`--keep` leaves the recordings in a folder and takes those that are there.
The rules may be mended on the half of the programs named `mended`; the other half judges. Exits with 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import os
import pickle
import subprocess
import sys
import tempfile
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.further_programs import PROGRAMS as FURTHER
from benchmarks.snapshot_kinds import SILENT, only_python
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.kinds import Evidence, Kind
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment
from tracer.snapshot.load import load_snapshot

Row = dict[str, Any]
NAMES = (
    "low_rank_adapters", "teacher_and_student", "closures_for_lbfgs", "accumulated_gradients", "evaluation_in_the_step",
    "inference_only", "gan_two_optimizers", "truncated_lstm", "tied_language_model", "mixture_of_experts",
    "encoder_decoder", "tensors_without_a_module", "average_of_weights", "diffusion_unet", "variational_autoencoder",
    "siamese_triplet", "dataset_in_memory", "leaking_losses", "hooks_on_tensors_and_modules", "graph_network",
)  # fmt: skip
NUM_CUTS, QUARTERS = 20, 4
MIN_RIGHT, MAX_WRONG, MIN_LIKELY = 95.0, 0.5, 99.0
_LIMIT_S = 300
_WORKSPACE = ("orkspace", "CublasHandlePool", "getCurrentCUDABlasHandle")
_BUCKETS = "c10d::Reducer::"


@dataclass
class Sums:
    """Requested bytes: of each verdict, of those worded "likely", and by what was taken for what."""

    verdicts: Counter[str] = field(default_factory=Counter)
    likely: Counter[str] = field(default_factory=Counter)
    taken_for: Counter[tuple[str, str, str]] = field(default_factory=Counter)

    def add(self, other: Sums) -> None:
        """Also count another's."""
        for mine, theirs in ((self.verdicts, other.verdicts), (self.likely, other.likely)):
            mine.update(theirs)
        self.taken_for.update(other.taken_for)

    def percent(self, verdict: str) -> float:
        """Percent of all bytes."""
        return 100 * self.verdicts[verdict] / max(1, self.verdicts.total())

    @property
    def percent_likely(self) -> float:
        """Percent that is right, of what is worded "likely"."""
        return 100 * self.likely["right"] / self.likely.total() if self.likely.total() else 100.0


def names_of(num_programs: int, half: str) -> list[str]:
    """Programs of the harness and drawn ones in turn; every other one of each is for mending."""
    drawn = [f"random:{seed}" for seed in range(num_programs)]
    found = [name for pair in zip(NAMES, drawn, strict=False) for name in pair] + drawn[len(NAMES) :]
    found = found[:num_programs]
    halves = {"mended": (0, 1), "judging": (2, 3)}
    return [name for place, name in enumerate(found) if half == "both" or place % 4 in halves[half]]


def record(name: str, folder: Path) -> Row | None:
    """The recording of a program and its notes; None, with its error shown, if it does not run."""
    path = folder / f"{name.replace(':', '_')}.pickle"
    if not path.is_file():
        command = [sys.executable, "-m", "benchmarks.recorded_program", name, str(path)]
        variables = environment([H100]) | {"OMP_NUM_THREADS": "1"}
        ran = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_LIMIT_S, check=False)
        if ran.returncode or not path.is_file():
            print(f"{name}: {(ran.stderr.strip().splitlines() or ['no error'])[-1][:150]}", file=sys.stderr)
            return None
    found: Row = pickle.loads(path.read_bytes())
    return found


def cuts(trace: Sequence[Row]) -> Iterator[tuple[int, bool]]:
    """Yield places to cut, and whether the request there fails; never between two entries of a free of one stream."""
    for number in range(1, NUM_CUTS - QUARTERS + 1):
        end = number * len(trace) // (NUM_CUTS - QUARTERS)
        yield end + (end < len(trace) and trace[end]["action"] == "free_completed"), False
    allocations = [at for at, entry in enumerate(trace) if entry["action"] == "alloc"]
    for number in range(QUARTERS):
        yield allocations[int((number + 0.75) * len(allocations) / QUARTERS)], True


def cut(trace: Sequence[Row], end: int, *, fails: bool, start: int = 0, keeps_stacks: bool = False) -> Row:
    """A recording from an entry of a process's on, by default the first, as it would have been had it ended there.

    Args:
        keeps_stacks: Whether blocks from before have one, as where `max_entries` has pushed their entries out.
    """
    kept = list(trace[:end])
    segments: dict[int, Row] = {}
    blocks: dict[int, Row] = {}
    for at, entry in enumerate(kept):
        action, address, size = entry["action"], entry.get("addr", 0), entry["size"]
        if action == "segment_alloc":
            segments[address] = {
                "device": 0, "address": address, "total_size": size, "stream": entry["stream"], "is_expandable": False,
                "segment_type": "large" if size > 2 << 20 else "small", "segment_pool_id": (0, 0), "frames": [],
            }  # fmt: skip
        elif action == "segment_free":
            del segments[address]
        elif action == "alloc":
            rounded = max(512, -(-size // 512) * 512)
            blocks[address] = {
                "address": address, "size": rounded, "requested_size": size, "state": "active_allocated",
                "frames": entry["frames"] if at >= start or keeps_stacks else [],
            }  # fmt: skip
        elif action == "free_completed":
            blocks.pop(address, None)
    if fails:
        kept.append({**trace[end], "action": "oom", "addr": 0, "device_free": 0})
    for segment in segments.values():
        begin, past = segment["address"], segment["address"] + segment["total_size"]
        segment["blocks"] = list(_filled(begin, past, [blocks[at] for at in sorted(blocks) if begin <= at < past]))
    return {"segments": list(segments.values()), "device_traces": [kept[start:]]}


def _filled(begin: int, past: int, blocks: Sequence[Row]) -> Iterator[Row]:
    """The blocks of a segment and the free ranges between them."""
    at = begin
    for block in [*blocks, {"address": past, "size": 0}]:
        if at < block["address"]:
            yield {"address": at, "size": block["address"] - at, "requested_size": 0, "state": "inactive", "frames": []}
        if block["size"]:
            yield block
        at = block["address"] + block["size"]


def true_kinds(recorded: Row) -> dict[int, frozenset[Kind]]:
    """Return the kinds that each block may have, by its alloc entry; from what was seen of the whole program."""
    trace = recorded["snapshot"]["device_traces"][0]
    entries = [at for at, entry in enumerate(trace) if entry["action"] == "alloc"]
    served_at: dict[int, list[int]] = {}
    for served, at in enumerate(entries):
        served_at.setdefault(trace[at]["addr"], []).append(served)
    seen: dict[int, set[str]] = {}
    for when, address, kind in recorded["seen"]:
        mine = served_at.get(address, [])
        if place := bisect_right(mine, when - 1):
            seen.setdefault(mine[place - 1], set()).add(kind)
    ends = _ends(trace, entries)
    return {
        entry: _true_kind(trace[entry], served, ends[served], seen.get(served, set()), recorded)
        for served, entry in enumerate(entries)
    }


def _ends(trace: Sequence[Row], entries: Sequence[int]) -> list[int]:
    """Number of allocations served when each block was freed; past all where it never was."""
    open_at: dict[int, int] = {}
    ends, served = [len(entries) + 1] * len(entries), 0
    for entry in trace:
        if entry["action"] == "alloc":
            open_at[entry["addr"]], served = served, served + 1
        elif entry["action"] == "free_completed" and entry["addr"] in open_at:
            ends[open_at.pop(entry["addr"])] = served
    return ends


def _true_kind(entry: Row, served: int, end: int, seen: set[str], recorded: Row) -> frozenset[Kind]:
    """One block's; what was seen in several roles may be called by each of them, but for a parameter."""
    if any(word in frame["name"] for frame in entry["frames"] for word in _WORKSPACE):
        return frozenset({Kind.WORKSPACE})
    if end <= recorded["seen"][0][0]:
        # Gone before the program was first looked at: a weight that was moved, or a copy on the way to one.
        return frozenset({Kind.PARAMETER, Kind.BUFFER, Kind.TEMPORARY, Kind.HELD})
    if not seen and any(_BUCKETS in frame["name"] for frame in entry["frames"]):
        return frozenset({Kind.COMMUNICATION, Kind.TEMPORARY})
    if seen & {"parameter", "buffer"}:
        return frozenset({Kind.PARAMETER, Kind.BUFFER})
    if seen:
        # A variable may hold what was saved for longer than autograd.
        extra = {Kind.HELD} if "activation" in seen else set[Kind]()
        # A batch that no backward meets is temporary as well: inference frees it in the iteration that made it.
        if "input" in seen and not any(served <= begin < end for begin, _ in recorded["backwards"]):
            extra.add(Kind.TEMPORARY)
        return frozenset({Kind[kind.upper().replace(" ", "_")] for kind in seen} | extra)
    if any(begin <= served < past for begin, past in recorded["backwards"]):
        return frozenset({Kind.TEMPORARY, Kind.AUTOGRAD_DETAIL})
    iteration = next((past for past in recorded["iterations"] if served < past), recorded["iterations"][-1])
    if end > iteration:
        return frozenset({Kind.HELD})
    return frozenset({Kind.TEMPORARY, Kind.HELD, Kind.EVALUATION})


def judge(recorded: Row, *, without_cpp: bool, steady: bool) -> Sums:
    """Judge each cut of one recording."""
    sums = Sums()
    for device, true_of in replayed_cuts(recorded, without_cpp=without_cpp, steady=steady):
        sums.add(_judge_peak(device, true_of))
    return sums


def replayed_cuts(
    recorded: Row, *, without_cpp: bool, steady: bool, keeps_stacks: bool = False
) -> Iterator[tuple[ReplayedDevice, Callable[[int, int], frozenset[Kind]]]]:
    """The device in each cut, and what the block of an entry, or from before at an address, may be called."""
    trace, truth = recorded["snapshot"]["device_traces"][0], true_kinds(recorded)
    if steady and len(recorded["iterations"]) == 1:
        return  # it failed in its first one
    start = _end_of_first_iteration(recorded) if steady else 0
    before = {entry["addr"]: at for at, entry in enumerate(trace[:start]) if entry["action"] == "alloc"}
    with tempfile.TemporaryDirectory() as folder:
        for end, fails in cuts(trace):
            if end <= start:
                continue
            path = Path(folder) / "cut.pickle"
            path.write_bytes(pickle.dumps(cut(trace, end, fails=fails, start=start, keeps_stacks=keeps_stacks)))
            snapshot = load_snapshot(path, isolated=False)
            device = replay_snapshot(only_python(snapshot) if without_cpp else snapshot).devices[0]
            yield device, lambda entry, addr: truth[entry + start if entry >= 0 else before[addr]]


def _end_of_first_iteration(recorded: Row) -> int:
    """The entry of the first allocation behind it."""
    trace = recorded["snapshot"]["device_traces"][0]
    served = [at for at, entry in enumerate(trace) if entry["action"] == "alloc"]
    return served[recorded["iterations"][0]]


def _judge_peak(device: ReplayedDevice, true_of: Callable[[int, int], frozenset[Kind]]) -> Sums:
    lives, sums = device.replay.lives, Sums()
    rows = lives.alive_after(device.replay.peak_entry)
    kinds, evidences = device.blocks.kind[rows], device.blocks.evidence[rows]
    columns = (kinds, evidences, lives.requested_bytes[rows], lives.alloc_entry[rows], lives.addr[rows])
    for number, how, size, entry, addr in zip(*(column.tolist() for column in columns), strict=True):
        kind, evidence, right = Kind(number), Evidence(how).text, true_of(entry, addr)
        verdict = "unknown" if kind in SILENT else "right" if kind in right else "wrong"
        sums.verdicts[verdict] += size
        if evidence.startswith("likely") and kind not in SILENT:
            sums.likely[verdict] += size
        sums.taken_for[" or ".join(sorted(one.words for one in right)), kind.words, evidence] += size
    return sums


def table(found: dict[str, Sums], *, details: bool) -> str:
    """Percent of the bytes at the peaks of all cuts, each program counting the same."""
    lines = [f"{'program':<34}{'right':>8}{'wrong':>8}{'unknown':>9}{'likely, right':>15}"]
    for name, sums in found.items():
        shares = "".join(
            f"{sums.percent(word):>{width}.2f}" for word, width in (("right", 8), ("wrong", 8), ("unknown", 9))
        )
        lines.append(f"{name:<34}{shares}{sums.percent_likely:>15.2f}")
        if details:
            rows = [(size, row) for row, size in sums.taken_for.items() if row[1] not in row[0].split(" or ")]
            for size, (was, ours, how) in sorted(rows, reverse=True)[:8]:
                lines.append(f"    {100 * size / sums.verdicts.total():>6.2f}  {was} -> {ours}: {how}")
    means = mean(found)
    lines.append(f"{'mean':<34}{means[0]:>8.2f}{means[1]:>8.2f}{means[2]:>9.2f}{means[3]:>15.2f}")
    return "\n".join(lines)


def mean(found: dict[str, Sums]) -> tuple[float, float, float, float]:
    """Right, wrong, not known; and right of what is likely."""
    number = max(1, len(found))
    right, wrong, unknown = (
        sum(sums.percent(word) for sums in found.values()) / number for word in ("right", "wrong", "unknown")
    )
    likely = Sums()
    for sums in found.values():
        whole = max(1, sums.verdicts.total())
        likely.likely.update({word: int(1e9 * size / whole) for word, size in sums.likely.items()})
    return right, wrong, unknown, likely.percent_likely


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=12)
    parser.add_argument("--half", choices=("mended", "judging", "both"), default="both")
    parser.add_argument("--further", nargs="*", metavar="NAME")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--without-cpp", action="store_true")
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--details", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        names = (
            names_of(arguments.programs, arguments.half)
            if arguments.further is None
            else [f"further:{name}" for name in arguments.further or FURTHER]
        )
        with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as workers:
            recordings = dict(zip(names, workers.map(lambda name: record(name, folder), names), strict=True))
    found = {
        name: judge(one, without_cpp=arguments.without_cpp, steady=arguments.steady)
        for name, one in recordings.items()
        if one
    }
    found = {name: sums for name, sums in found.items() if sums.verdicts}
    print(table(found, details=arguments.details))
    right, wrong, _, likely = mean(found)
    return int(right < MIN_RIGHT or wrong >= MAX_WRONG or likely < MIN_LIKELY)


if __name__ == "__main__":
    sys.exit(main())
