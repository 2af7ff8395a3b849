"""Shares of the peaks of real snapshots that are named rightly, wrongly or not at all, by their programs' sources.

    python -m benchmarks.snapshot_kinds [--details] [--without-cpp]

Needs ../shared/truth/snapshot_kinds.json and the recordings that it is about, and says so without them. Each block
alive at the peak counts with its requested bytes. `--without-cpp` takes every C++ frame out of the recordings first, as
`stacks="python"` records them; `--details` adds which kind was taken for which. Exits with 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tracer.answers.snapshot_findings import ReplayedSnapshot, replay_snapshot
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.frames import is_python
from tracer.blocks.from_snapshot.sites import Sites
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Evidence, Kind
from tracer.snapshot.columns import DeviceState, Snapshot, Stacks
from tracer.snapshot.load import load_snapshot

SHARED = Path(__file__).resolve().parents[2] / "shared"
TRUTH = SHARED / "truth" / "snapshot_kinds.json"
FOLDERS = (SHARED / "realdata", SHARED / "recordings")
# The truth's words, and which of ours are right. An intermediate result of backward is "temporary" there: it does not
# tell the kinds of short life apart. All that forward made and that is in use in backward is "activation", also logits
# that a variable holds and that no node of autograd saved: "held" is right of what is in use when the backward that
# follows it is over, and is not freed by autograd then or later.
MEANS: Mapping[str, frozenset[Kind]] = {
    "parameter": frozenset({Kind.PARAMETER, Kind.BUFFER}),
    "gradient": frozenset({Kind.GRADIENT}),
    "opt": frozenset({Kind.OPTIMIZER_STATE}),
    "activation": frozenset({Kind.ACTIVATION}),
    "temporary": frozenset({Kind.TEMPORARY, Kind.AUTOGRAD_DETAIL}),
    "workspace": frozenset({Kind.WORKSPACE}),
}
SILENT = frozenset({Kind.UNKNOWN, Kind.BEFORE_RECORDING})
MIN_MEAN, MIN_RIGHT, MAX_WRONG = 75.0, 60.0, 1.0
MIN_WITHOUT_CPP = 2 / 3


@dataclass(frozen=True, slots=True)
class Verdict:
    """One recording's peak, in bytes.

    Attributes:
        name: The file's.
        right: Named as the truth does.
        wrong: Named otherwise.
        unknown: Not named.
        taken_for: Bytes by the truth's word, ours, and how we know it.
    """

    name: str
    right: int
    wrong: int
    unknown: int
    taken_for: Mapping[tuple[str, str, str], int]

    def percent(self, size: int) -> float:
        """Percent of the peak."""
        return 100 * size / (self.right + self.wrong + self.unknown)


def judge(path: Path, truth: Mapping[str, Any], *, without_cpp: bool = False) -> Verdict:
    """Compare one recording's kinds with the truth."""
    snapshot = load_snapshot(path)
    whole = replay_snapshot(snapshot)
    replayed = replay_snapshot(only_python(snapshot)) if without_cpp else whole
    expected = {(entry, address): (size, word) for entry, address, size, word in truth["blocks"]}
    found = _kinds_at_peak(replayed, truth["peak_requested_bytes"])
    kept = held_over_backward(device_of_peak(whole, truth["peak_requested_bytes"]), whole.sites)
    if found.keys() != expected.keys():
        raise SystemExit(f"{path.name}: the blocks at the peak are not those of the truth")
    taken_for: Counter[tuple[str, str, str]] = Counter()
    sums = Counter[str]()
    for block, (size, word) in expected.items():
        kind, evidence = found[block]
        is_right = kind in MEANS[word] or (word == "activation" and kind == Kind.HELD and block in kept)
        sums["unknown" if kind in SILENT else "right" if is_right else "wrong"] += size
        taken_for[word, kind.words, evidence] += size
    return Verdict(path.name, sums["right"], sums["wrong"], sums["unknown"], taken_for)


def held_over_backward(device: ReplayedDevice, sites: Sites) -> set[tuple[int, int]]:
    """Blocks in use when the first backward behind them was over, and not freed by autograd, by entry and address."""
    lives, (start, end) = device.replay.lives, device.kinds.phases.backwards
    ends = np.append(end, np.iinfo(np.int64).max)[np.searchsorted(start, lives.begin)]
    free = sites.facts[device.state.trace.stack[np.maximum(lives.free_entry, 0)]]
    by_autograd = (lives.free_entry >= 0) & has(free, Fact.ENGINE, Fact.RELEASE_SAVED)
    rows = np.flatnonzero((lives.end > ends) & ~by_autograd)
    return set(zip(lives.begin[rows].tolist(), lives.addr[rows].tolist(), strict=True))


def device_of_peak(replayed: ReplayedSnapshot, peak_bytes: int) -> ReplayedDevice:
    return next(one for one in replayed.devices if one.replay.requested_bytes.max() == peak_bytes)


def _kinds_at_peak(replayed: ReplayedSnapshot, peak_bytes: int) -> dict[tuple[int, int], tuple[Kind, str]]:
    """Kind and evidence of each block at the peak, by entry (-1: before the recording) and address."""
    device = device_of_peak(replayed, peak_bytes)
    lives = device.replay.lives
    rows = lives.alive_after(device.replay.peak_entry)
    kinds = zip(*(column[rows].tolist() for column in device.kinds.kinds_and_evidence), strict=True)
    keys = zip(lives.begin[rows].tolist(), lives.addr[rows].tolist(), strict=True)
    return {key: (Kind(kind), Evidence(how).text) for key, (kind, how) in zip(keys, kinds, strict=True)}


def only_python(snapshot: Snapshot) -> Snapshot:
    """The snapshot without its C++ frames; stacks that become equal become one, as they were recorded so."""
    stacks = snapshot.stacks
    keep = np.array([is_python(frame) for frame in stacks.frames], dtype=np.bool_)
    numbers: dict[tuple[int, ...], int] = {(): 0}
    number_of = np.array(
        [
            numbers.setdefault(tuple(i for i in stacks.frame_ids(stack) if keep[i]), len(numbers))
            for stack in range(len(stacks))
        ],
        dtype=np.int32,
    )
    flat = np.array([i for frames in numbers for i in frames], dtype=np.int32)
    offset = np.concatenate([[0], np.cumsum([len(frames) for frames in numbers])]).astype(np.int64)
    return replace(
        snapshot,
        devices=tuple(_renumbered(state, number_of) for state in snapshot.devices),
        stacks=Stacks(frames=stacks.frames, offset=offset, frame_of=flat),
    )


def _renumbered(state: DeviceState, number_of: np.ndarray[Any, np.dtype[np.int32]]) -> DeviceState:
    return replace(
        state,
        trace=replace(state.trace, stack=number_of[state.trace.stack]),
        blocks=replace(state.blocks, stack=number_of[state.blocks.stack]),
    )


def find(name: str) -> Path:
    """The recording of that name."""
    return next(folder / name for folder in FOLDERS if (folder / name).is_file())


def table(verdicts: list[Verdict], *, details: bool) -> str:
    """Percent of the bytes at each peak, and their means."""
    lines = [f"{'recording':<42}{'right':>8}{'wrong':>8}{'unknown':>9}   (% of the bytes at the peak)"]
    for one in verdicts:
        shares = (one.percent(one.right), one.percent(one.wrong), one.percent(one.unknown))
        lines.append(f"{one.name:<42}{shares[0]:>8.1f}{shares[1]:>8.2f}{shares[2]:>9.1f}")
        if details:
            rows = sorted(one.taken_for.items(), key=lambda item: -item[1])
            lines += [f"    {one.percent(size):>6.2f}  {was:<11}-> {ours}: {how}" for (was, ours, how), size in rows]
    lines.append(f"{'mean':<42}{mean(verdicts):>8.1f}")
    return "\n".join(lines)


def mean(verdicts: list[Verdict]) -> float:
    """Percent named rightly, over recordings."""
    return float(np.mean([one.percent(one.right) for one in verdicts]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--details", action="store_true")
    parser.add_argument("--without-cpp", action="store_true")
    arguments = parser.parse_args()
    if not TRUTH.is_file():
        print("The recordings and their truth are not here: nothing is measured.")
        return 0
    truths = json.loads(TRUTH.read_text("utf-8"))
    verdicts = [judge(find(name), truth) for name, truth in truths.items()]
    print(table(verdicts, details=arguments.details and not arguments.without_cpp))
    print("\nWhich of our words are right for the truth's:")
    print("\n".join(f"  {word}: {', '.join(sorted(kind.words for kind in kinds))}" for word, kinds in MEANS.items()))
    print("  activation, in use past its backward and not freed by autograd: held as well")
    missed = mean(verdicts) < MIN_MEAN or any(
        one.percent(one.right) < MIN_RIGHT or one.percent(one.wrong) >= MAX_WRONG for one in verdicts
    )
    if arguments.without_cpp:
        bare = [judge(find(name), truth, without_cpp=True) for name, truth in truths.items()]
        print("\nWithout C++ frames:\n" + table(bare, details=arguments.details))
        missed |= any(
            one.percent(one.right) < MIN_WITHOUT_CPP * whole.percent(whole.right) or one.percent(one.wrong) >= MAX_WRONG
            for one, whole in zip(bare, verdicts, strict=True)
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
