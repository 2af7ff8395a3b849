"""Time and memory of explaining a large allocator snapshot, beside torch's own text report.

    python -m benchmarks.snapshot                    a synthetic snapshot of a million entries
    python -m benchmarks.snapshot --file FILE        another snapshot

Each program runs in a process of its own, in turns, and the median counts. Memory is that of the largest process, as
the operating system counted it, and beside it the sampled sum over all processes of the program. Exits with 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_TIME_RATIO = 0.4
MAX_MIB = 650
MAX_PAGE_RATIO = 2 * MAX_TIME_RATIO  # "at most twice that"
MAX_PAGE_BYTES = 6_000_000
OURS = """
import sys
from pathlib import Path
from tracer.commands.snapshot import snapshot
snapshot([Path(sys.argv[1])], html=Path(sys.argv[2]) if sys.argv[2:] else None)
"""
PAGE = "page.html"
PLAIN, TORCHS, WITH_PAGE = "ours: load, explain, print", "torch.cuda._memory_viz stats", "ours, with --html"


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one run.

    Attributes:
        seconds: Wall time.
        processor_seconds: Of all its processes.
        process_mib: Peak memory of its largest process.
        tree_mib: Peak of the sum over its processes, sampled.
    """

    seconds: float
    processor_seconds: float
    process_mib: float
    tree_mib: float


def measure(command: Sequence[str], output: Path = Path(os.devnull)) -> Cost:
    """Run a command once; what it prints goes to a file."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # a process between, so that RUSAGE_CHILDREN counts this one command
        _run_and_report(command, writer, output)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = pipe.read().split()
    _, status = os.waitpid(child, 0)
    if status != 0:
        raise SystemExit(f"{' '.join(command[:4])} ... failed")
    return Cost(*map(float, report))


def _run_and_report(command: Sequence[str], writer: int, output: Path) -> None:
    start = time.perf_counter()
    with (
        output.open("w") as file,
        subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.PIPE) as process,
    ):
        sampler = _TreeSampler(process.pid)
        assert process.stderr is not None
        complaint = process.stderr.read()
        status = process.wait()
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    numbers = (seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024, sampler.stop())
    os.write(writer, " ".join(map(str, numbers)).encode())
    if status:
        os.write(2, complaint[-2000:])
    os._exit(bool(status))


class _TreeSampler:
    """Samples the memory of a process and its children, five hundred times a second."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak_kib, self._done = pid, 0, threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> float:
        self._done.set()
        self._thread.join()
        return self._peak_kib / 1024

    def _sample(self) -> None:
        while not self._done.wait(0.002):
            self._peak_kib = max(self._peak_kib, _tree_kib(self._pid))


def _tree_kib(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        tasks = Path(f"/proc/{pid}/task").iterdir()
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return 0
    return pages * resource.getpagesize() // 1024 + sum(_tree_kib(int(child)) for child in children)


def median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.processor_seconds for cost in costs),
        max(cost.process_mib for cost in costs),
        max(cost.tree_mib for cost in costs),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--file", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = arguments.file or Path(folder) / "synthetic.pickle"
        if arguments.file is None:
            make = [sys.executable, "-m", "benchmarks.synthetic_snapshot", str(file), "--entries"]
            subprocess.run([*make, str(arguments.entries)], cwd=ROOT, check=True)
        print(f"{file.stat().st_size / 1e6:.0f} MB, {arguments.repeats} runs each in turns")
        path = str(file.resolve())
        programs = {
            PLAIN: [sys.executable, "-c", OURS, path],
            TORCHS: [sys.executable, "-m", "torch.cuda._memory_viz", "stats", path],
            WITH_PAGE: [sys.executable, "-c", OURS, path, str(Path(folder) / PAGE)],
        }
        costs: dict[str, list[Cost]] = {name: [] for name in programs}
        for _ in range(arguments.repeats):
            for name, command in programs.items():
                costs[name].append(measure(command))
        page_bytes = (Path(folder) / PAGE).stat().st_size
    return report({name: median(found) for name, found in costs.items()}, page_bytes)


def report(costs: dict[str, Cost], page_bytes: int) -> int:
    """Print the table and the verdict; the exit status."""
    print(f"{'':<32}{'s':>8}{'s, cpu':>8}{'MiB':>8}{'MiB, tree':>11}")
    for name, cost in costs.items():
        print(
            f"{name:<32}{cost.seconds:>8.2f}{cost.processor_seconds:>8.2f}{cost.process_mib:>8.0f}{cost.tree_mib:>11.0f}"
        )
    ours, torchs, with_page = costs[PLAIN], costs[TORCHS], costs[WITH_PAGE]
    missed = False
    for name, cost, most in ((PLAIN, ours, MAX_TIME_RATIO), (WITH_PAGE, with_page, MAX_PAGE_RATIO)):
        ratio = cost.seconds / torchs.seconds
        processor = cost.processor_seconds / torchs.processor_seconds
        missed |= ratio > most
        print(f"{name}: time / torch's: {ratio:.2f} (target {most}), processor {processor:.2f}")
    print(f"memory {ours.process_mib:.0f} MiB (target {MAX_MIB}); page {page_bytes:,} B (target {MAX_PAGE_BYTES:,})")
    return int(missed or ours.process_mib > MAX_MIB or page_bytes > MAX_PAGE_BYTES)


if __name__ == "__main__":
    sys.exit(main())
