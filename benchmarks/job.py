"""How long it takes to explain a whole job, how much memory, and how that compares with its ranks one by one.

    python -m benchmarks.job                                   64 ranks with a million entries each
    python -m benchmarks.job --ranks 16 --entries 100000       a small one
    python -m benchmarks.job --no-dask                         on processes of this machine alone

A job of two stages of a pipeline, whose recordings are two files that all their ranks are links to; three ranks are
odd and have files of their own, and one file is broken. `snapshot DIR` reads it on processes of this machine and on a
Dask cluster of two workers on loopback; then each of the different files is explained by a `snapshot FILE` of its own,
which counts as often as there are ranks with it. Memory is the sampled sum over all processes, workers and scheduler
included. Exits with 1 if an odd rank is not found, or anything else is called odd.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.synthetic_snapshot import MIB, NUM_LAYERS, Variant, make_snapshot

ROOT = Path(__file__).resolve().parents[1]
FILE = "memory_snapshot.pkl"
STAGES = {"first stage": Variant(), "second stage": Variant(num_layers=3 * NUM_LAYERS // 4)}
ODD = {
    "twice the batch": Variant(batch_factor=2),
    "a second model": Variant(held_bytes=2048 * MIB),
    "keeps what it predicts": Variant(kept_bytes=64 * MIB, runs_out=True),
}
BROKEN = "broken"
_SAMPLE_S = 0.05
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


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
    """What the answer of `snapshot DIR --json` should say and does not, a sentence each."""
    odd = {Path(file).parent.name for group in found["groups"] if group["is_odd"] for file in group["files"]}
    planted = {f"rank{rank}" for rank in job.odd}
    said = []
    if odd != planted:
        said.append(f"odd are {sorted(planted)}, and {sorted(odd)} were found")
    if [one["rank"] for one in found["unreadable"]] != job.broken:
        said.append(f"broken is {job.broken}, and {found['unreadable']} were found")
    if found["worst_rank"] != next(f"rank {rank}" for rank, name in job.odd.items() if ODD[name].runs_out):
        said.append(f"the worst is not {found['worst_rank']}")
    if not any("collect_predictions" in change["stack"][0] for change in found["worst_against_typical"][:3]):
        said.append("what the worst has more is not named")
    usual = [group for group in found["groups"] if not group["is_odd"]]
    if len(usual) != len(STAGES):
        said.append(f"there are {len(STAGES)} stages, and {len(usual)} groups were found")
    return said


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took.

    Attributes:
        seconds: Wall time.
        processor_seconds: Of all processes.
        mib: Peak of the sum over all processes, sampled; memory that they share counts in each.
        output: What it printed.
    """

    seconds: float
    processor_seconds: float
    mib: float
    output: str


def measure(command: Sequence[str], *, beside: int | None = None) -> Cost:
    """Run a command once.

    Args:
        command: What to run.
        beside: A process that works for it, and counts with all that it has started.

    Raises:
        SystemExit: It failed.
    """
    start, used = time.perf_counter(), _waited_seconds() + _tree_seconds(beside)
    with (
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process,
        _sampled([process.pid, *([beside] if beside is not None else [])]) as sampled,
    ):
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} ... ended with {process.returncode}")
    seconds = time.perf_counter() - start
    return Cost(seconds, _waited_seconds() + _tree_seconds(beside) - used, max(sampled, default=0.0), output)


def _waited_seconds() -> float:
    """Processor time of the processes that this one has started and seen end."""
    times = os.times()
    return times.children_user + times.children_system


def _tree_seconds(pid: int | None) -> float:
    """Processor time of a process that runs, of those it has started, and of those that have ended."""
    if pid is None:
        return 0.0
    times = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]
    return sum(map(int, times)) / _TICKS_A_SECOND + sum(map(_tree_seconds, _children(pid)))


def _tree_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB + sum(map(_tree_mib, _children(pid)))


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


@contextmanager
def _sampled(pids: Sequence[int]) -> Iterator[list[float]]:
    """The memory of some processes and all that they start, in MiB, twenty times a second."""
    done, samples = threading.Event(), list[float]()

    def sample() -> None:
        while not done.wait(_SAMPLE_S):
            samples.append(sum(map(_tree_mib, pids)))

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


_CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, int]]:
    """A Dask cluster of two workers on loopback: its address, and the process that started it."""
    script = folder / "cluster.py"
    script.write_text(_CLUSTER)
    command = [sys.executable, str(script)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield process.stdout.readline().strip(), process.pid
        finally:
            process.stdin.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3, help="of the single runs")
    parser.add_argument("--dask", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    snapshot = [sys.executable, "main.py", "snapshot"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "job"
        with ProcessPoolExecutor(1) as maker:  # what it took is given back when it ends
            job = maker.submit(make_job, folder, options.ranks, options.entries).result()
        size = max(job.file(rank).stat().st_size for rank in job.ranks)
        print(f"{options.ranks} ranks of {options.entries:,} entries, {size / 1e6:.0f} MB each at most", flush=True)
        costs = {"processes of this machine": measure([*snapshot, str(folder), "--json"])}
        if options.dask:
            with cluster(Path(name)) as (address, pid):
                costs["Dask, two workers"] = measure([*snapshot, str(folder), "--json", "--dask", address], beside=pid)
        print(
            *(f"{name}: {cost.seconds:.1f} s, {cost.mib:.0f} MiB" for name, cost in costs.items()), sep="\n", flush=True
        )
        single = singles(job, snapshot, options.repeats)
    said = [(name, one) for name, cost in costs.items() for one in complaints(job, json.loads(cost.output))]
    report(costs, single, options.ranks)
    for name, one in said:
        print(f"{name}: {one}")
    return int(bool(said))


def singles(job: Job, snapshot: Sequence[str], repeats: int) -> Cost:
    """What it takes to explain each rank by a command of its own, one after the other: those that can be read."""
    total = Cost(0.0, 0.0, 0.0, "")
    for name in {**STAGES, **ODD}:
        ranks = [rank for rank, its in job.ranks.items() if its == name]
        costs = [measure([*snapshot, str(job.file(ranks[0]))]) for _ in range(repeats)]
        total = Cost(
            total.seconds + len(ranks) * statistics.median(cost.seconds for cost in costs),
            total.processor_seconds + len(ranks) * statistics.median(cost.processor_seconds for cost in costs),
            max(total.mib, *(cost.mib for cost in costs)),
            "",
        )
    return total


def report(costs: Mapping[str, Cost], single: Cost, num_ranks: int) -> None:
    """Print the table."""
    print(f"{'':<28}{'s':>8}{'s, cpu':>9}{'s, rank':>9}{'MiB':>8}{'time / singles':>16}{'cpu / singles':>15}")
    for name, cost in {**costs, "single runs, all told": single}.items():
        ratios = cost.seconds / single.seconds, cost.processor_seconds / single.processor_seconds
        print(
            f"{name:<28}{cost.seconds:>8.1f}{cost.processor_seconds:>9.1f}{cost.seconds / num_ranks:>9.2f}"
            f"{cost.mib:>8.0f}{ratios[0]:>16.2f}{ratios[1]:>15.2f}"
        )


if __name__ == "__main__":
    sys.exit(main())
