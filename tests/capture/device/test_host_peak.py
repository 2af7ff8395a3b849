"""Host memory of a process and all that it has started: the most, whose it is, and that the process sees nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.processes import run_python
from tracer.capture.device.host_peak import HostPart, HostPeak
from tracer.capture.device.process_tree import Looks

MIB = 1 << 20
pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")

TREE = """
import multiprocessing, os
from tracer.capture.device.host_peak import followed_peak, host_followed

def hold(kept, own_mib, ready, end):
    own = b"x" * (own_mib << 20)
    ready.release()
    end.acquire()

def start(context, kept, sizes):
    ready, end = context.Semaphore(0), context.Semaphore(0)
    children = [context.Process(target=hold, args=(kept, size, ready, end)) for size in sizes]
    for child in children:
        child.start()
    for child in children:
        ready.acquire()
    return children, end

assert followed_peak() is None
context = multiprocessing.get_context("fork")
with host_followed():
    before = followed_peak()
    kept = b"x" * (256 << 20)
    children, end = start(context, kept, [64, 64])
    most = followed_peak()
    for child in children:
        end.release()
    for child in children:
        child.join()
    del kept
    last = followed_peak()
    try:
        os.wait()
    except ChildProcessError:
        print("no child")
assert followed_peak() is None
assert last.others == most.others and last.bytes >= most.bytes and last.num_looks > most.num_looks
print(before.bytes >> 20, len(before.others), most.bytes >> 20)
print([[part.num_processes, part.bytes >> 20] for part in most.others])
"""


def test_workers_count_and_what_they_share_with_their_parent_counts_once(tmp_path: Path) -> None:
    """256 MiB of the process, which two forked workers share, and 64 MiB of each worker's own."""
    ended = run_python("-c", TREE, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    no_child, sizes, parts = ended.stdout.splitlines()
    assert no_child == "no child"
    before, num_before, most = map(int, sizes.split())
    assert num_before == 0
    # The process itself shares pages with the one that it was forked from.
    assert 256 + 2 * 64 < most <= before + 256 + 2 * 64 + 64
    ((num_workers, workers_mib),) = json.loads(parts)
    assert num_workers == 2 and 2 * 64 < workers_mib < most - 128


def test_the_parts_sum_to_the_peak() -> None:
    peak = HostPeak(5 * MIB, (HostPart("pt_data_worker", 2, 7 * MIB),), unwritten_bytes=MIB, pinned_bytes=3 * MIB)
    assert peak.bytes == 13 * MIB


def test_of_a_process_that_has_ended_nothing_is_looked_at() -> None:
    looks = Looks(os.getppid())
    assert looks.look() and looks.peak_bytes > 0
    assert not Looks(2**22 + 1).look()
