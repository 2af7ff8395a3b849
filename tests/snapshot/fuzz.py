"""Mutates small snapshots and explains what is left of them: every file must end in a result or in a `SnapshotError`.

    python -m tests.snapshot.fuzz --count 10000 --seed 0

Files are read in forked children, many to a child, which is much faster than a sandbox for each. A file that kills its
child, by a signal or by its memory, is read once more as the product reads it, in the sandbox, which must turn that
into a clean error.
"""

from __future__ import annotations

import argparse
import copy
import json
import mmap
import os
import pickle
import random
import resource
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from tests.answer_screens import answer_screen
from tests.snapshot.allocator_model import AllocatorModel
from tests.snapshot.dumps import block, segment
from tracer.answers.allocator.explained import with_allocator
from tracer.answers.answer_of_snapshot import answer_of_snapshot
from tracer.answers.difference import diff_snapshots
from tracer.answers.findings import SnapshotFindings
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.errors import SnapshotError
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.exporters.page.data import page_data, page_json
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.snapshot.load import load_snapshot

BATCH = 250
MAX_RSS_BYTES = 1 << 30
MAX_SECONDS = 30
ODD_VALUES: tuple[Any, ...] = (
    *(-1, 0, 1, 511, 2**31, 2**50, 2**62, 2**63 - 1, 2**63, 2**64, 2**70, -(2**63), 1 << 4000),
    *(0.5, float("nan"), float("inf"), True, None, "", "x", "alloc", "free_completed", "oom", "active_allocated"),
    *([], {}, (), [[]], [{}], [None], {"segments": []}, {"name": 1}, b"bytes", "\ud800", "a" * 3000),
)


def base_objects(rng: random.Random) -> Any:
    """A small snapshot of one of the known forms."""
    model = AllocatorModel()
    live: list[int] = []
    for number in range(40):
        if number == 8:
            model.start_recording()
        if live and rng.random() < 0.4:
            address = live.pop(rng.randrange(len(live)))
            model.request_free(address)
            if rng.random() < 0.9:
                model.complete_free(address, tick=1)
        else:
            live.append(model.alloc(rng.randint(1, 30_000)))
    objects = model.dump()
    objects["device_traces"][0].append({"action": "oom", "size": 9000, "device_free": 5, "stream": 0, "frames": []})
    objects["external_annotations"] = [
        {"name": "Optimizer.step#A.step", "stage": stage, "device": 0, "time_us": 1000 + 5 * i}
        for i, stage in enumerate(("START", "END", "START"))
    ]
    objects["allocator_settings"] = {"expandable_segments": False, "roundup_power2_divisions": {"1": 4, "2": 0}}
    objects["device_traces"].append(copy.deepcopy(objects["device_traces"][0][:6]))
    form = rng.randrange(6)
    if form == 0:
        return objects["segments"]
    if form == 1:
        objects["segments"].append({**segment(4096, 512, [block(4096, 300)]), "segment_type": "small"})
    if form == 2:
        objects["segments"].append(segment(8192, 1024, [block(8192, 700)], device=1, expandable=True))
    return objects


def mutate_objects(objects: Any, rng: random.Random) -> Any:
    """Change one place of the structure."""
    holder, key = _random_place(objects, rng)
    what = rng.randrange(5)
    if what == 0 and isinstance(holder, dict):
        del holder[key]
    elif what == 1 and isinstance(holder, list):
        holder.extend(copy.deepcopy(holder[: rng.randint(1, 4)]))
    elif what == 2 and isinstance(holder, list):
        rng.shuffle(holder)
    elif what == 3 and type(holder[key]) is int:
        holder[key] += rng.choice((-1, 1, 512, -512, 1 << 20, -(1 << 40)))
    else:
        holder[key] = rng.choice(ODD_VALUES)
    return objects


def _random_place(objects: Any, rng: random.Random) -> tuple[Any, Any]:
    holder, key = {"all": objects}, "all"
    while isinstance(inner := holder[key], (dict, list)) and inner and rng.random() < 0.93:
        holder = inner  # type: ignore[assignment]
        key = rng.choice(list(inner)) if isinstance(inner, dict) else rng.randrange(len(inner))  # type: ignore[assignment]
    return holder, key


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """Change some bytes: flip, cut, insert, repeat, or write an opcode with a large argument."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(data) + 1)
        what = rng.randrange(6)
        if what == 0:
            del data[at : at + rng.randint(1, 200)]
        elif what == 1:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        elif what == 2:
            data[at:at] = data[at : at + rng.randint(1, 400)]
        elif what == 3:
            opcode = rng.choice(b"rj\x8b\x8d\x8e\x95\x96TXB")
            data[at : at + 5] = bytes([opcode]) + struct.pack("<I", rng.choice((2**20, 2**28, 2**31 - 1, 2**32 - 1)))
        elif data:
            data[min(at, len(data) - 1)] = rng.randrange(256)
        if not data:
            break
    return bytes(data)


def mutated_file(seed: int, number: int) -> bytes:
    """The content of one mutated file; the same for the same arguments."""
    rng = random.Random(f"{seed} {number}")
    objects = base_objects(rng)
    by_structure = rng.random() < 0.5
    for _ in range(rng.choice((1, 1, 2, 4)) if by_structure else 0):
        objects = mutate_objects(objects, rng) or []
    content = pickle.dumps(objects, protocol=rng.choice((0, 1, 2, 4, 4, 5)))
    if not by_structure:
        content = mutate_bytes(content, rng)
    return content


def explain(path: Path, *, isolated: bool) -> str:
    """Everything that the product does with a snapshot; says how it ended."""
    try:
        snapshot = load_snapshot(path, isolated=isolated)
        replayed = replay_snapshot(snapshot)
        finding = explain_replayed(replayed)
        tried = with_allocator(finding, settings=("expandable_segments:True",), gpu_memory=1 << 21)
        answer_screen(answer_of_snapshot(tried, file="file"))
        json.dumps(snapshot_json(tried, file="file"))
        diff_snapshots(snapshot, snapshot)
        draw_and_report(finding, path.with_suffix(".sqlite"))
    except SnapshotError as error:
        if len(str(error)) > 1000 or "\n" in str(error):
            raise AssertionError(f"not one sentence: {str(error)[:2000]}") from error
        return "error"
    for device in finding.parts:
        assert sum(group.bytes for group in device.peak.rows) == device.peak.peak_bytes
    for found in (device.allocator for device in tried.parts):
        assert found is not None
        for moment in (found.at_peak, found.at_end):
            assert moment is None or sum(row.bytes for row in moment.rows) == moment.bytes
    return "result"


def draw_and_report(finding: SnapshotFindings, path: Path) -> None:
    """The page's data and the database of every device."""
    for device in finding.parts:
        page = snapshot_page(device, run={})
        page_json({"pages": [page_data(page)]})
        peak_bytes = sum(page.breakdown.values())
        assert not page.series or max(np.sum(list(page.series.values()), axis=0)) == peak_bytes


def run(count: int, seed: int) -> tuple[Counter[str], int]:
    """Explain that many mutated files.

    Returns:
        How many ended in a result, in an error, and in the sandbox; and the largest memory of any child in bytes.

    Raises:
        AssertionError: A file ended in anything else.
    """
    tally: Counter[str] = Counter()
    memory, number = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mutated"
        while number < count:
            done, status, rss, batch = _batch(path, seed, number, min(number + BATCH, count))
            tally += batch
            memory = max(memory, rss)
            number = done
            if status == 0:
                continue
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 1:
                raise AssertionError(f"file {number} of seed {seed} ended in an exception")
            path.write_bytes(mutated_file(seed, number))
            assert explain(path, isolated=True) == "error", f"file {number} of seed {seed} killed its reader"
            tally["sandbox"] += 1
            number += 1
    assert memory <= MAX_RSS_BYTES, f"{memory} bytes"
    return tally, memory


def _batch(path: Path, seed: int, first: int, last: int) -> tuple[int, int, int, Counter[str]]:
    """Explain files in a forked child: the number of the next file, exit status, peak memory, and how they ended."""
    shared = mmap.mmap(-1, 24)
    child = os.fork()
    if child == 0:
        os._exit(_explain_all(path, seed, first, last, shared))
    _, status, usage = os.wait4(child, 0)
    done, results, errors = struct.unpack("<QQQ", shared[:])
    return first + done, status, usage.ru_maxrss * 1024, Counter(result=results, error=errors)


def _explain_all(path: Path, seed: int, first: int, last: int, shared: mmap.mmap) -> int:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_SECONDS * 4, resource.RLIM_INFINITY))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (512 << 20), resource.RLIM_INFINITY))
    tally: Counter[str] = Counter()
    for number in range(first, last):
        content = mutated_file(seed, number)
        path.write_bytes(content)
        start = time.process_time()
        try:
            tally[explain(path, isolated=False)] += 1
        except MemoryError:
            return 2
        except BaseException:
            print(f"file {number} of seed {seed}: {content[:200]!r}", file=sys.stderr)
            traceback.print_exc()
            return 1
        if time.process_time() - start > MAX_SECONDS:
            print(f"file {number} of seed {seed} took too long", file=sys.stderr)
            return 1
        shared[:] = struct.pack("<QQQ", number - first + 1, tally["result"], tally["error"])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    start = time.perf_counter()
    tally, memory = run(arguments.count, arguments.seed)
    seconds = time.perf_counter() - start
    print(f"{arguments.count} mutated files: {dict(tally)}, at most {memory >> 20} MiB, {seconds:.0f} s")


if __name__ == "__main__":
    main()
