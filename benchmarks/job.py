"""Time and memory of explaining a whole job, beside those of its ranks one by one.

    python -m benchmarks.job                                   64 ranks with a million entries each
    python -m benchmarks.job --ranks 16 --entries 100000       a small one

A job of two stages of a pipeline, whose recordings are two files that all their ranks are links to; three ranks are
odd and have files of their own, and one file is broken. `snapshot DIR` reads it on processes of this machine; then each
of the different files is explained by a `snapshot FILE` of its own, which counts as often as there are ranks with it.
Memory is the sampled sum over all processes. Exits with 1 if an odd rank is not found, or anything else is called odd.
"""

from __future__ import annotations

import argparse
import json
import pickle
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.snapshot import Cost, measure, median
from benchmarks.synthetic_snapshot import MIB, NUM_LAYERS, Variant, make_snapshot

FILE = "memory_snapshot.pkl"
STAGES = {"first stage": Variant(), "second stage": Variant(num_layers=3 * NUM_LAYERS // 4)}
ODD = {
    "twice the batch": Variant(batch_factor=2),
    "a second model": Variant(held_bytes=2048 * MIB),
    "keeps what it predicts": Variant(kept_bytes=64 * MIB, runs_out=True),
}
BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Job:
    """A job's folder.

    Attributes:
        folder: With a folder for each rank.
        ranks: What is in each rank's recording, by rank.
    """

    folder: Path
    ranks: Mapping[int, str]

    @property
    def odd(self) -> dict[int, str]:
        """The ranks that are unlike the others."""
        return {rank: name for rank, name in self.ranks.items() if name in ODD}

    @property
    def broken(self) -> list[int]:
        """The ranks whose files cannot be read."""
        return [rank for rank, name in self.ranks.items() if name == BROKEN]

    def file(self, rank: int) -> Path:
        """One rank's recording."""
        return self.folder / f"rank{rank}" / FILE


def make_job(folder: Path, num_ranks: int, num_entries: int, *, num_stacks: int = 2000) -> Job:
    """Write the recordings of a job.

    Args:
        folder: Where to.
        num_ranks: At least 16, so that one is few.
        num_entries: Of each recording.
        num_stacks: Different stacks in each.
    """
    ranks = dict.fromkeys(range(num_ranks), "first stage")
    ranks |= dict.fromkeys(range(num_ranks // 2, num_ranks), "second stage")
    ranks |= {num_ranks // 6: "twice the batch", num_ranks - 2: "a second model"}
    ranks |= {num_ranks // 2 - 1: "keeps what it predicts", num_ranks // 4: BROKEN}
    job = Job(folder, ranks)
    written: dict[str, Path] = {}
    for name, variant in {**STAGES, **ODD}.items():
        path = written[name] = job.file(next(rank for rank, its in ranks.items() if its == name))
        path.parent.mkdir(parents=True)
        with path.open("wb") as file:
            pickle.dump(make_snapshot(num_entries, num_stacks=num_stacks, variant=variant), file, protocol=4)
    for rank, name in ranks.items():
        path = job.file(rank)
        path.parent.mkdir(exist_ok=True)
        if name == BROKEN:  # the end is missing: all of it is read before that is known
            content = written["first stage"].read_bytes()
            path.write_bytes(content[: -len(content) // 100])
        elif path != written[name]:
            path.hardlink_to(written[name])
    return job


def complaints(job: Job, found: Mapping[str, Any]) -> list[str]:
    """Return a sentence for each thing that the answer of `snapshot DIR --json` should say and does not."""
    odd = {Path(file).parent.name for group in found["groups"] if group["is_odd"] for file in group["files"]}
    planted = {f"rank{rank}" for rank in job.odd}
    said = []
    if odd != planted:
        said.append(f"odd are {sorted(planted)}, and {sorted(odd)} were found")
    if [one["rank"] for one in found["unreadable"]] != job.broken:
        said.append(f"broken is {job.broken}, and {found['unreadable']} were found")
    if found["worst_rank"] != next(f"rank {rank}" for rank, name in job.odd.items() if ODD[name].runs_out):
        said.append(f"the worst is not {found['worst_rank']}")
    usual = [group for group in found["groups"] if not group["is_odd"]]
    if len(usual) != len(STAGES):
        said.append(f"there are {len(STAGES)} stages, and {len(usual)} groups were found")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="of the single runs")
    options = parser.parse_args()
    snapshot = [sys.executable, "main.py", "snapshot"]
    with tempfile.TemporaryDirectory() as name:
        with ProcessPoolExecutor(1) as maker:  # what it took is given back when it ends
            job = maker.submit(make_job, Path(name) / "job", options.ranks, options.entries).result()
        size = max(job.file(rank).stat().st_size for rank in job.ranks)
        print(f"{options.ranks} ranks of {options.entries:,} entries, {size / 1e6:.0f} MB each at most", flush=True)
        answer = Path(name) / "answer.json"
        whole = measure([*snapshot, str(job.folder), "--json"], output=answer)
        said = complaints(job, json.loads(answer.read_text()))
        single = singles(job, snapshot, options.repeats)
    print(f"{'':<24}{'s':>8}{'s, cpu':>9}{'s, rank':>9}{'MiB':>8}")
    for label, cost in {"the job": whole, "single runs, all told": single}.items():
        print(
            f"{label:<24}{cost.seconds:>8.1f}{cost.processor_seconds:>9.1f}{cost.seconds / options.ranks:>9.2f}"
            f"{cost.tree_mib:>8.0f}"
        )
    print(*said, sep="\n")
    return int(bool(said))


def singles(job: Job, snapshot: Sequence[str], repeats: int) -> Cost:
    """Return the cost of explaining each readable rank by a command of its own, one after the other."""
    found = []
    for name in {**STAGES, **ODD}:
        ranks = [rank for rank, its in job.ranks.items() if its == name]
        middle = median([measure([*snapshot, str(job.file(ranks[0]))]) for _ in range(repeats)])
        found += [middle] * len(ranks)
    return Cost(
        sum(cost.seconds for cost in found),
        sum(cost.processor_seconds for cost in found),
        max(cost.process_mib for cost in found),
        max(cost.tree_mib for cost in found),
    )


if __name__ == "__main__":
    sys.exit(main())
