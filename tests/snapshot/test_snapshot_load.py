from __future__ import annotations

import bz2
import contextlib
import gc
import gzip
import io
import json
import lzma
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.snapshot.dumps import block, each_real_file, entry, frame, freed, segment, snapshot, write
from tracer.errors import SnapshotError
from tracer.snapshot.actions import Action, BlockState
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot
from tracer.snapshot.reader import read_raw
from tracer.snapshot.stacks import StackTable

BASE = 1 << 32
ROOT = Path(__file__).resolve().parents[2]


def load(path: Path) -> Snapshot:
    return load_snapshot(path, isolated=False)


def small() -> dict[str, Any]:
    stack = [frame("forward"), frame("main", line=3)]
    trace = [entry("alloc", BASE, 700, time_us=5, frames=stack), *freed(BASE, 700, time_us=6, frames=stack[1:])]
    return snapshot(trace, [segment(BASE, 2048, [block(BASE + 1024, 600, frames=stack)])])


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("isolated", [True, False])
def test_every_protocol_gives_the_same_columns(tmp_path: Path, protocol: int, isolated: bool) -> None:
    loaded = load_snapshot(write(tmp_path / "s.pickle", small(), protocol=protocol), isolated=isolated)
    (device,) = loaded.devices
    assert device.trace.action.tolist() == [Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED]
    assert device.trace.size.tolist() == [700] * 3
    assert device.trace.time_us.tolist() == [5, 6, 6]
    assert [f.name for f in loaded.stacks[int(device.trace.stack[0])]] == ["forward", "main"]
    assert device.blocks.stack[0] == device.trace.stack[0]
    assert device.blocks.size.tolist() == [1024]
    assert device.segments.total_size.tolist() == [2048]


@pytest.mark.parametrize("name", ["s.json", "s.pickle", "nothing"])
@pytest.mark.parametrize("zipped", [False, True])
def test_the_content_decides_and_not_the_name(tmp_path: Path, name: str, zipped: bool) -> None:
    content = pickle.dumps(small())
    (tmp_path / name).write_bytes(gzip.compress(content) if zipped else content)
    assert load(tmp_path / name).devices[0].trace.size.tolist() == [700] * 3


def test_missing_times_and_frames(tmp_path: Path) -> None:
    trace = [{"action": "alloc", "addr": BASE, "size": 1, "stream": 0}]
    (device,) = load(write(tmp_path / "s", snapshot(trace))).devices
    assert device.trace.time_us.tolist() == [-1]
    assert device.trace.stack.tolist() == [0]


def test_a_file_of_torch_2_0_is_refused_with_its_version(tmp_path: Path) -> None:
    """Its blocks have a history in the place of addresses and frames."""
    blocks = [{"size": 512, "requested_size": 300, "state": "active_allocated", "history": [{"addr": BASE}]}]
    with pytest.raises(SnapshotError, match=r"no addresses, as in files of torch 2\.0") as caught:
        load(write(tmp_path / "s", snapshot([], [segment(BASE, 4096, blocks)])))
    assert caught.value.hint == "Take the snapshot with torch 2.1 or newer."


def test_a_block_without_a_requested_size_counts_with_its_own(tmp_path: Path) -> None:
    blocks = [{"address": BASE, "size": 512, "state": "active_allocated"}]
    (device,) = load(write(tmp_path / "s", snapshot([], [segment(BASE, 4096, blocks)]))).devices
    assert device.blocks.requested_size.tolist() == [512]


def test_list_form_and_devices_without_anything(tmp_path: Path) -> None:
    listed = [segment(BASE, 2048, [block(BASE, 5)], device=3)]
    assert [d.device for d in load(write(tmp_path / "list", listed)).devices] == [3]
    traces = {"segments": [], "device_traces": [[], [entry("alloc", BASE, 1)], []]}
    assert [d.device for d in load(write(tmp_path / "traces", traces)).devices] == [1]


def test_devices_that_only_say_that_a_snapshot_was_taken_are_left_out(tmp_path: Path) -> None:
    """As in each process of a job, which sees the GPUs of all others."""
    taken = [entry("snapshot", 0, 0)]
    traces = {"device_traces": [taken, [entry("alloc", BASE, 512), *taken], taken], "segments": []}
    assert [device.device for device in load(write(tmp_path / "job", traces)).devices] == [1]
    idle = {"device_traces": [taken, taken], "segments": []}
    assert [device.device for device in load(write(tmp_path / "idle", idle)).devices] == [0, 1]


@pytest.mark.parametrize(
    "empty", [[], {"segments": []}, {"segments": [], "device_traces": []}, {"device_traces": [[]]}]
)
def test_empty_snapshots_have_no_devices(tmp_path: Path, empty: object) -> None:
    assert load(write(tmp_path / "s", empty)).devices == ()


def test_both_words_for_a_pending_free(tmp_path: Path) -> None:
    blocks = [block(BASE, 1, state="active_pending_free"), block(BASE + 512, 1, state="active_awaiting_free")]
    (device,) = load(write(tmp_path / "s", snapshot([], [segment(BASE, 1024, blocks)]))).devices
    assert set(device.blocks.state.tolist()) == {BlockState.ACTIVE_PENDING_FREE}
    assert device.blocks.is_live.all()


def test_unknown_keys_and_actions_of_a_future_version(tmp_path: Path) -> None:
    trace = [{**entry("alloc", BASE, 1), "colour": [1]}, {"action": "teleport", "frames": []}]
    trace[1]["size"] = 0
    loaded = load(write(tmp_path / "s", snapshot(trace, host_segments=[{}], quantum=object.__name__)))
    assert loaded.devices[0].trace.action.tolist() == [Action.ALLOC, Action.UNKNOWN]


def test_pinned_host_memory_in_use_is_kept(tmp_path: Path) -> None:
    assert load(write(tmp_path / "s", snapshot([], host_segments=None))).pinned_bytes == 0
    blocks = [block(BASE, 5) | {"size": 512}, block(BASE + 512, 9, state="inactive") | {"size": 1024}]
    assert load(write(tmp_path / "t", snapshot([], host_segments=[segment(BASE, 2048, blocks)]))).pinned_bytes == 512


def test_an_oom_entry_has_free_bytes_instead_of_an_address(tmp_path: Path) -> None:
    trace = [{"action": "oom", "device_free": 77, "size": 99, "stream": 0, "time_us": 1, "frames": []}]
    (device,) = load(write(tmp_path / "s", snapshot(trace))).devices
    assert (device.trace.addr[0], device.trace.size[0]) == (77, 99)


def test_labels_appear_where_entries_have_them(tmp_path: Path) -> None:
    trace: list[dict[str, Any]] = [entry("alloc", BASE + 512 * i, 1) for i in range(3000)]
    trace[2500] |= {"category": "PARAMETER", "user_metadata": {"layer": "one"}, "pool_id": (0, 7)}
    loaded = load(write(tmp_path / "s", snapshot(trace)))
    (device,) = loaded.devices
    for column, text in ((device.trace.category, "PARAMETER"), (device.trace.metadata, "layer: one")):
        assert np.flatnonzero(column != -1).tolist() == [2500]
        assert loaded.text(int(column[2500])) == text
    assert loaded.text(int(device.trace.pool[2500])) == "0,7"


def test_equal_stacks_of_different_objects_are_one_stack(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1, frames=[frame("f"), frame("g")]) for i in range(5)]
    loaded = load(write(tmp_path / "s", snapshot(trace)))
    assert len(set(loaded.devices[0].trace.stack.tolist())) == 1
    assert len(loaded.stacks) == 2  # and the empty one
    assert len(loaded.stacks.frames) == 2


def test_stacks_that_differ_outside_of_the_probed_frames_are_told_apart(tmp_path: Path) -> None:
    frames = [frame("f", line=i) for i in range(20)]
    stacks = [[*frames[:7], frames[8 + i % 12]] for i in range(40)]
    trace = [entry("alloc", BASE + 512 * i, 1, frames=stack) for i, stack in enumerate(stacks)]
    loaded = load(write(tmp_path / "s", snapshot(trace)))
    lines = [[f.line for f in loaded.stacks[s]] for s in loaded.devices[0].trace.stack.tolist()]
    assert lines == [[f["line"] for f in stack] for stack in stacks]


def test_the_collector_is_left_as_it_was(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good", small()), write(tmp_path / "bad", 3)
    for path in (good, bad):
        with contextlib.suppress(SnapshotError):
            load(path)
        assert gc.isenabled()
    gc.disable()
    try:
        load(good)
        assert not gc.isenabled()
    finally:
        gc.enable()


BAD_ENTRIES = {
    "float size": {"size": 1.5},
    "text size": {"size": "12"},
    "endless size": {"size": 1 << 20_000},
    "overflowing address": {"addr": 1 << 63},
    "no address": {"addr": None},
    "action is a number": {"action": 3},
    "action is nothing": {"action": None},
    "size is nothing": {"size": None},
}


@pytest.mark.parametrize("wrong", BAD_ENTRIES.values(), ids=BAD_ENTRIES)
def test_a_wrong_value_is_one_sentence_with_its_position(tmp_path: Path, wrong: dict[str, Any]) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1) for i in range(2000)]
    trace[1234] |= wrong
    with pytest.raises(SnapshotError) as caught:
        load(write(tmp_path / "s", snapshot(trace)))
    message = str(caught.value)
    assert "1234" in message
    assert message.endswith(".") and message.count("\n") == 0 and len(message) < 300
    assert caught.value.hint


@pytest.mark.parametrize("wrong", [{"size": -5}, {"size": 1 << 60}, {"addr": -1}])
def test_an_entry_that_no_allocator_writes_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1) for i in range(20)]
    trace[12] |= wrong
    ((key, value),) = wrong.items()
    with pytest.raises(SnapshotError, match=f"Entry 12 of device 0 has an? {key} of {value}, which no allocator"):
        load(write(tmp_path / "s", snapshot(trace)))


def test_sizes_that_overflow_only_together(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1 << 50) for i in range(5000)]
    with pytest.raises(SnapshotError, match="sum to more"):
        load(write(tmp_path / "s", snapshot(trace)))


WRONG_FILES = {
    "empty": (b"", "empty"),
    "text": (b"hello, world\n", "no pickle that can be read"),
    "zip": (b"PK\x03\x04" + bytes(100), "zip archive that cannot be read"),
    "xz": (lzma.compress(pickle.dumps(small())), "is packed by xz"),
    "bzip2": (bz2.compress(pickle.dumps(small())), "is packed by bzip2"),
    "Zstandard": (b"\x28\xb5\x2f\xfd" + bytes(20), "is packed by Zstandard"),
    "two snapshots in one dict": (pickle.dumps({"a": small(), "b": small()}), "other data"),
    "truncated pickle": (pickle.dumps(small())[:-20], "truncated"),
    "a snapshot as JSON": (json.dumps(small()).encode(), "is JSON, not an allocator snapshot"),
    "JSON with a byte-order mark, gzipped": (gzip.compress(json.dumps(small()).encode("utf-8-sig")), "is JSON"),
    "truncated gzip": (gzip.compress(pickle.dumps(small()))[:-20], "truncated"),
    "another pickle": (pickle.dumps({"weights": [1, 2]}), "other data"),
    "a number": (pickle.dumps(7), "other data"),
    "a profiler trace": (b'{"traceEvents": []}', "profiler trace"),
    "torch's memory timeline, raw": (b"[[-1, 1, 37888, 7]]", "is torch's memory timeline, not an allocator snapshot"),
    "torch's memory timeline": (b"[[1.5, 2.5], [[1, 2], [3, 4]]]", "is torch's memory timeline"),
    "a peak.json": (b'{"format": "torch-timeline peak", "version": 1}', "is an answer of this program"),
    "a page": (b"<!DOCTYPE html><html></html>", "is a web page"),
    "a database": (b"SQLite format 3\0" + bytes(84), "is an SQLite database"),
    "segments are a number": (pickle.dumps({"segments": 5, "device_traces": []}), "not a list"),
    "traces are a number": (pickle.dumps({"segments": [], "device_traces": 5}), "device_traces"),
    "trace is a dict": (pickle.dumps({"segments": [], "device_traces": [{}]}), "not a list"),
    "entry is a number": (pickle.dumps({"segments": [], "device_traces": [[4]]}), "position 0"),
    "deep json": (b"[" * 100_000, "is JSON"),
}


@pytest.mark.parametrize(("content", "words"), WRONG_FILES.values(), ids=WRONG_FILES)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(SnapshotError, match=words) as caught:
        load(path)
    assert caught.value.hint


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="does not exist"):
        load_snapshot(tmp_path / "no")
    with pytest.raises(SnapshotError, match="is a directory"):
        load_snapshot(tmp_path)


def with_frame(**values: Any) -> dict[str, Any]:
    return {"frames": [{**frame("f"), **values}]}


# What an entry has instead, and a word of the sentence with which the file is refused.
ODD_ENTRIES: dict[str, tuple[dict[str, Any], str]] = {
    "line is a float": (with_frame(line=3.5), "no name, file and line"),
    "line is text": (with_frame(line="7"), "no name, file and line"),
    "name is None": (with_frame(name=None), "no name, file and line"),
    "file is bytes": (with_frame(filename=b"\xff"), "no name, file and line"),
    "frame is a number": ({"frames": [3, frame("f")]}, "A stack frame is 3, not a dict"),
    "frames is a dict": ({"frames": {"a": 1}}, "Entry 1234 of device 0 has a stack of type dict"),
    "stream of -1": ({"stream": -1}, "Entry 1234 of device 0 has a stream of -1"),
    "stream is None": ({"stream": None}, "Entry 1234 of device 0 has a stream of type NoneType"),
    "stream is too large": ({"stream": 2**64 - 1}, "Entry 1234 of device 0 has a stream of"),
    "time is a float": ({"time_us": 1.5}, "Entry 1234 of device 0 has a time_us of type float"),
    "time is negative": ({"time_us": -9}, "Entry 1234 of device 0 has a time_us of -9"),
    "address is negative": ({"addr": -9}, "Entry 1234 of device 0 has an addr of -9"),
}


@pytest.mark.parametrize(("odd", "words"), ODD_ENTRIES.values(), ids=ODD_ENTRIES)
def test_a_file_that_is_not_as_torch_writes_it_is_one_sentence(tmp_path: Path, odd: dict[str, Any], words: str) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1, frames=[frame("g")]) for i in range(2000)]
    trace[1234] |= odd
    with pytest.raises(SnapshotError, match=words):
        load(write(tmp_path / "s", snapshot(trace)))


@pytest.mark.parametrize("line", [2**64 - 1, -2])
def test_a_line_that_c_plus_plus_does_not_know_is_zero(tmp_path: Path, line: int) -> None:
    loaded = load(write(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=[frame("f", line=line)])])))
    assert [f.line for f in loaded.stacks[int(loaded.devices[0].trace.stack[0])]] == [0]


def test_times_that_go_back_keep_the_one_before(tmp_path: Path) -> None:
    trace = [entry("alloc", BASE + 512 * i, 1, time_us=t) for i, t in enumerate([-1, 5, 3, -1, 9])]
    loaded = load(write(tmp_path / "s", snapshot(trace)))
    assert loaded.devices[0].trace.time_us.tolist() == [5, 5, 5, 5, 9]
    assert loaded.remarks == ("Of device 0, 3 times are missing or go back: the last one before stands.",)


def test_what_has_no_memory_needs_no_size(tmp_path: Path) -> None:
    trace = [{"action": "snapshot"}, {"action": "teleport"}, entry("alloc", BASE, 7)]
    (device,) = load(write(tmp_path / "s", snapshot(trace))).devices
    assert device.trace.size.tolist() == [0, 0, 7]


def test_free_memory_that_is_not_told_is_not_zero(tmp_path: Path) -> None:
    trace = [{"action": "oom", "size": 99, "stream": 0, "time_us": 1, "frames": []}]
    assert load(write(tmp_path / "s", snapshot(trace))).devices[0].trace.addr.tolist() == [-1]


def zipped(content: bytes, name: str) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
        if name.endswith("data.pkl"):  # as torch.save does
            archive.writestr("snapshot/version", "3")
    return out.getvalue()


PACKED = {
    "zip": zipped(pickle.dumps(small()), "dump.pickle"),
    "torch.save": zipped(pickle.dumps(small(), protocol=2), "snapshot/data.pkl"),
}


@pytest.mark.parametrize("content", PACKED.values(), ids=PACKED)
def test_packed_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "packed"
    path.write_bytes(content)
    loaded = load_snapshot(path)
    assert loaded.devices[0].trace.size.tolist() == [700] * 3
    assert loaded.remarks == ()


def test_a_file_with_several_pickles_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "two"
    path.write_bytes(pickle.dumps(small()) + pickle.dumps(small()))
    with pytest.raises(SnapshotError, match="More follows the first pickle"):
        load(path)


def test_torch_saves_a_snapshot_that_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(small(), tmp_path / "saved")
    assert load(tmp_path / "saved").devices[0].trace.size.tolist() == [700] * 3


@pytest.mark.slow
def test_thousands_of_devices_take_no_longer_than_each_alone(tmp_path: Path) -> None:
    """Counted in looks at columns and not in time: each column of a file is looked at a few times, however many."""
    from tracer.snapshot import assemble

    path = write(tmp_path / "s", {"segments": [], "device_traces": [[entry("alloc", BASE, 1)]] * 4000})
    raw = read_raw(path)
    looks = Looks(raw.columns)
    raw.columns = looks
    assert len(assemble.assemble(raw, path).devices) == 4000
    assert looks.count < 3 * len(looks)


class Looks(dict[str, Any]):
    """A dict that counts how often its items are listed."""

    count = 0

    def items(self) -> Any:
        for item in super().items():
            self.count += 1
            yield item


def test_a_stack_shared_by_itself_does_not_recurse(tmp_path: Path) -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(SnapshotError, match="A stack frame is a list, not a dict"):
        load(write(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=loop)])))


def test_the_child_needs_the_standard_library_alone() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r}); import tracer.snapshot.reader; "
        "print([m for m in ('numpy', 'torch', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@each_real_file
def test_a_real_recording_loads_alike_in_both_ways(path: Path) -> None:
    ours, theirs = load_snapshot(path), load_snapshot(path, isolated=False)
    assert ours.devices
    for one, other in zip(ours.devices, theirs.devices, strict=True):
        assert np.array_equal(one.trace.stack, other.trace.stack)
        assert np.array_equal(one.blocks.address, other.blocks.address)


def test_our_own_kernels_are_in_no_stack() -> None:
    ours = {"name": "kernel", "filename": "/home/me/tracer/null_gpu/values/kernels.py", "line": 151}
    users = {"name": "step", "filename": "/home/me/tracer/values.py", "line": 8}
    table = StackTable()
    ids = table.ids([[ours, users], [ours], [users]])
    columns = table.by_value()
    strings: Any = columns["strings"]
    files: Any = columns["frame_file"]
    stack_of: Any = columns["stack_of_id"]
    assert [strings[file] for file in files] == ["/home/me/tracer/values.py"]
    with_ours, alone, without = (stack_of[number] for number in ids)
    assert with_ours == without != alone == stack_of[0]


def test_what_is_no_file_says_what_it_is(tmp_path: Path) -> None:
    loop, pipe = tmp_path / "loop", tmp_path / "pipe"
    loop.symlink_to(loop)
    os.mkfifo(pipe)
    for path, what in ((loop, "leads back to itself"), (pipe, "a pipe or"), (Path(os.devnull), "a device")):
        with pytest.raises(SnapshotError, match=what):
            load_snapshot(path)
