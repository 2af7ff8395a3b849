"""Hostile and mutated files: nothing in them is executed, and they end in results or in one sentence."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.skips import by_default
from tests.snapshot.dumps import entry, frame, snapshot, write
from tracer.errors import SnapshotError
from tracer.snapshot.load import load_snapshot


class Runs:
    """Pickles into a call that would leave a trace."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("isolated", [True, False])
def test_nothing_of_a_file_is_executed(tmp_path: Path, isolated: bool) -> None:
    path = write(tmp_path / "s", snapshot([Runs(tmp_path / "ran")]))  # type: ignore[list-item]
    with pytest.raises(SnapshotError, match="asks for the Python object"):
        load_snapshot(path, isolated=isolated)
    assert not (tmp_path / "ran").exists()


def nested_tuple_key(depth: int) -> bytes:
    """A dict whose key is a tuple of two equal tuples of two equal tuples ...: hashing it takes 2**depth steps."""
    return b"\x80\x04})" + b"2\x86" * depth + b"K\x01s."


def tall_tuple_key(height: int) -> bytes:
    """A dict whose key is a tuple in a tuple in a tuple ...: hashing it recurses in C."""
    return b"\x80\x04})" + b"\x85" * height + b"K\x01s."


HOSTILE = {
    "memo index": b"\x80\x04]r\xff\xff\xff\x7f.",
    "memo index, eight times": b"\x80\x04" + b"]r\xff\xff\xff\xf0" * 8 + b".",
    "bytes of 2**40": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b"x",
    "bytearray of 2**40": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b"x",
    "text of 2**40": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b"x",
    "frame of 2**40": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"x",
    "integer of 2**31 - 1 bytes": b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b"x",
    "a million sets": b"\x80\x04(" + b"\x8f" * 5_000_000 + b"l.",
    "deep lists": b"\x80\x04" + b"]" * 1_000_000 + b"a" * 999_999 + b".",
    "extension code": b"\x80\x04\x82\x01.",
    "persistent id": b"\x80\x04K\x01Q.",
    "deep tuple as key": tall_tuple_key(2_000_000),
    "a million billion laughs": b"\x80\x04" + b"](hh2222e" * 3 + b".",
}


# Each is read by a process: an index, a size, a count and a depth.
QUICK = {"memo index", "bytes of 2**40", "a million sets", "deep tuple as key"}


@pytest.mark.parametrize("name", by_default(HOSTILE, QUICK))
def test_hostile_pickles_are_refused_within_bounds(tmp_path: Path, name: str) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(HOSTILE[name])
    peak = MaxMemory()
    with peak, pytest.raises(SnapshotError) as caught:
        load_snapshot(path)
    assert len(str(caught.value)) < 400
    assert peak.bytes < 1 << 30


def test_a_file_that_would_be_read_for_centuries_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hostile"
    path.write_bytes(nested_tuple_key(60))
    import tracer.snapshot.load as sandbox

    quick = sandbox._CHILD.replace("import runpy, sys", "import resource, runpy, sys")
    quick = quick.replace("runpy.run_module", "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))\nrunpy.run_module")
    monkeypatch.setattr(sandbox, "_CHILD", quick)
    with pytest.raises(SnapshotError, match=r"far longer|signal"):
        load_snapshot(path)


class MaxMemory:
    """The most memory that any child of this process had while the context was open.

    A child is this process itself, with all that other tests have filled, until it runs a program of its own.
    """

    bytes = 0

    def __enter__(self) -> MaxMemory:
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        children = Path(f"/proc/self/task/{threading.main_thread().native_id}/children")
        own = Path("/proc/self/cmdline").read_bytes()
        while not self._done.wait(0.01):
            try:
                for child in children.read_text().split():
                    if Path(f"/proc/{child}/cmdline").read_bytes() == own:
                        continue
                    pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
                    self.bytes = max(self.bytes, pages * 4096)
            except OSError:
                continue


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    objects = snapshot([entry("alloc", 512, 1, frames=[frame("XXname")])])
    path.write_bytes(pickle.dumps(objects, protocol=4).replace(b"XXname", b"X\xffname"))
    with pytest.raises(SnapshotError, match=r"is no pickle that can be read \(UnicodeDecodeError\)"):
        load_snapshot(path)


ROOT = Path(__file__).resolve().parents[2]
# SNAPSHOT_FUZZ_COUNT=10000 for the long run; SNAPSHOT_FUZZ_SEED for other files.
COUNT = os.environ.get("SNAPSHOT_FUZZ_COUNT", "20")
SEED = os.environ.get("SNAPSHOT_FUZZ_SEED", "0")


def test_mutated_files_end_in_a_result_or_in_a_clean_error() -> None:
    # A process of its own, because it forks, and other tests leave threads behind.
    command = [sys.executable, "-m", "tests.snapshot.fuzz", "--count", COUNT, "--seed", SEED]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    assert "'result'" in done.stdout and "'error'" in done.stdout
