"""Cost of replaying an allocator's history, beside loading the file that it is in.

    python -m benchmarks.allocator                     a modelled recording of a million operations
    python -m benchmarks.allocator --operations 200000
    python -m benchmarks.allocator --recordings DIR    also how many decisions of other people's recordings come out

The recording is made by the model itself, so that every decision in it is one of torch's allocator: a training run of
many layers with its parameters and optimizer state, activations that backward frees in reverse, and temporaries of
many sizes. Each command runs in a process of its own, in turns, and the median counts. Exits with 1 if a target is
missed.
"""

from __future__ import annotations

import argparse
import pickle
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.snapshot import Cost, measure

MAX_REPLAY_TO_LOAD = 1.0
MAX_TABLE_TO_SNAPSHOT = 3.0
MIB = 1 << 20
NUM_LAYERS = 60
ALONE = """
import sys
from pathlib import Path
from tracer.commands.snapshot import snapshot
snapshot([Path(sys.argv[1])], settings=sys.argv[2:])
"""
SIX = (
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:12",
    "large_segment_size_mb:12",
    "max_split_size_mb:512",
    "max_split_size_mb:128",
    "roundup_power2_divisions:8",
)
STAGES = """
import sys, time, resource
from pathlib import Path
from tracer.allocator.history import read_history
from tracer.allocator.replay import program_of, replay
from tracer.allocator.reproduce import reproduce
from tracer.allocator.settings import recorded_settings
from tracer.allocator.start_state import find_start
from tracer.collector import paused_gc
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.replay import replay as lives_of
clock = time.perf_counter
start = clock()
snapshot = load_snapshot(Path(sys.argv[1]))
(state,) = snapshot.devices
loaded = clock()
with paused_gc():
    settings = recorded_settings(snapshot.settings)
    history = read_history(snapshot, state, lives_of(state, snapshot.settings))
    begin = find_start(state, history, settings)
    prepared = clock()
    found = reproduce(state, history, begin, settings)
    reproduced = clock()
    outcome = replay(program_of(history, found.releases_by_program), settings)
    replayed = clock()
print(loaded - start, prepared - loaded, reproduced - prepared, replayed - reproduced, found.is_exact,
      found.addresses.equal, found.addresses.recorded, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


class Training:
    """A modelled training run that records its history."""

    def __init__(self, seed: int, scales: tuple[float, ...] = (1.0, 1.0, 1.0, 0.7, 1.3)) -> None:
        from tests.allocator.recording_allocator import RecordingAllocator

        self._rng, self._scales = random.Random(seed), scales
        self._allocator = RecordingAllocator()
        self._stacks = [_stack(self._rng) for _ in range(400)]
        rng = self._rng
        self._weights = [int(2 ** rng.uniform(10, 24)) for _ in range(NUM_LAYERS * 4)]
        for size in self._weights:
            self._allocator.allocate(size)
        self._num_operations = 0

    def run(self, num_operations: int) -> dict[str, Any]:
        """Train until so many blocks were made and freed; returns the snapshot."""
        while self._num_operations < num_operations:
            self._step()
        snapshot = self._allocator.snapshot()
        for row in snapshot["device_traces"][0]:  # lists of their own, of frames that are shared, as torch writes them
            row["frames"] = list(self._rng.choice(self._stacks))
        return snapshot

    def _step(self) -> None:
        make, free, rng = self._allocator.allocate, self._allocator.free, self._rng
        scale = rng.choice(self._scales)  # sequences of several lengths
        saved = []
        for layer in range(NUM_LAYERS):
            for part in range(4):
                size = int(scale * (1 + layer % 7) * (part + 1) * 300_000)
                temporaries = [make(size // 3), make(1024 * (part + 1))]
                saved.append((make(size), size))
                for block in temporaries:
                    free(block)
        gradients = []
        for number, (block, size) in enumerate(reversed(saved)):
            temporary = make(size)
            gradients.append(make(self._weights[number]))
            free(block)
            free(temporary)
        for size, gradient in zip(self._weights, gradients, strict=True):
            temporary = make(size)
            free(temporary)
            free(gradient)
        self._num_operations += 2 * (4 * len(saved) + 2 * len(saved) + len(gradients)) - len(saved)


def _stack(rng: random.Random) -> list[dict[str, Any]]:
    files = ("/srv/project/train.py", "/srv/project/model.py", "/usr/lib/python3.11/site-packages/torch/nn/module.py")
    return [
        {"name": f"f{rng.randrange(40)}", "filename": rng.choice(files), "line": rng.randrange(900)} for _ in range(12)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recordings", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "training.pickle"
        snapshot = Training(0).run(arguments.operations)
        entries = len(snapshot["device_traces"][0])
        file.write_bytes(pickle.dumps(snapshot, protocol=4))
        del snapshot
        print(f"{entries:,} entries, {file.stat().st_size / 1e6:.0f} MB, about {arguments.operations:,} operations")
        missed = [_stages(file, arguments.rounds), _table(file, arguments.rounds)]
    if arguments.recordings is not None:
        _agreement(arguments.recordings)
    sys.exit(any(missed))


def _stages(file: Path, rounds: int) -> bool:
    """Loading the file and replaying what is in it, in one process."""
    runs = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", STAGES, str(file)], capture_output=True, text=True, check=True)
        runs.append(done.stdout.split())
    load, prepare, reproduce, replay = (median(float(run[column]) for run in runs) for column in range(4))
    print(f"load {load:.2f} s; history and start {prepare:.2f} s; reproduce {reproduce:.2f} s; replay {replay:.2f} s")
    print(
        f"exact: {runs[0][4]}, {runs[0][5]} of {runs[0][6]} addresses; largest {max(int(run[7]) for run in runs)} MiB"
    )
    ratio = replay / load
    print(f"replay to load: {ratio:.2f} (at most {MAX_REPLAY_TO_LOAD})")
    return ratio > MAX_REPLAY_TO_LOAD


def _table(file: Path, rounds: int) -> bool:
    """`snapshot FILE`, and the same with a table of six settings."""
    alone: list[Cost] = []
    table: list[Cost] = []
    for _ in range(rounds):
        alone.append(measure([sys.executable, "-c", ALONE, str(file)]))
        table.append(measure([sys.executable, "-c", ALONE, str(file), *SIX]))
    for name, costs in (("snapshot", alone), ("snapshot with six settings", table)):
        seconds, processor = median(c.seconds for c in costs), median(c.processor_seconds for c in costs)
        print(f"{name}: {seconds:.2f} s, processor {processor:.2f} s, {median(c.process_mib for c in costs):.0f} MiB")
    ratio = median(c.processor_seconds for c in table) / median(c.processor_seconds for c in alone)
    print(f"table to snapshot alone, processor: {ratio:.2f} (at most {MAX_TABLE_TO_SNAPSHOT})")
    return ratio > MAX_TABLE_TO_SNAPSHOT


def _agreement(folder: Path) -> None:
    """Print the number of decisions of real recordings that the model repeats."""
    from tracer.answers.allocator.modelled import model_device
    from tracer.answers.snapshot_findings import replay_snapshot
    from tracer.errors import SnapshotError
    from tracer.snapshot.load import load_snapshot

    for file in sorted(folder.glob("*.p*kl*")):
        begin = time.perf_counter()
        try:
            replayed = replay_snapshot(load_snapshot(file))
        except SnapshotError as error:
            print(f"{file.name}: {error}")
            continue
        for device in replayed.devices:
            modelled = model_device(device)
            if modelled is None or not modelled.history.num_allocations:
                continue
            found = modelled.reproduction
            kinds = (found.addresses, found.segments, found.releases, found.failures, found.end_blocks)
            counts = ", ".join(f"{kind.equal}/{kind.recorded}" for kind in kinds)
            seconds = time.perf_counter() - begin
            print(f"{file.name} {device.state.device}: exact {found.is_exact}; {counts}; {seconds:.2f} s")


if __name__ == "__main__":
    main()
