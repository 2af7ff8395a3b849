"""Reads a snapshot file into columns, in this process or as the child process that `load` starts.

The child writes one line of JSON and then the raw columns to its standard output. It imports nothing but the standard
library, sets its own limits of memory and time before it touches the file, and ends without tidying up millions of
objects.
"""

from __future__ import annotations

import json
import os
import sys
from array import array
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import IO, Any, Final

from tracer.collector import paused_gc
from tracer.errors import SnapshotError
from tracer.snapshot.files import HOW_TO_RECORD, packed_factor, read_objects
from tracer.snapshot.rows import Texts, annotation_columns, pinned_columns, segment_columns, trace_columns
from tracer.snapshot.stacks import StackTable

# Measured: 4.2 bytes of memory per byte of pickle with stacks of 15 frames, 8 without stacks.
MEMORY_PER_BYTE = 16
MEMORY_SPARE_BYTES = 512 << 20
# Measured: 40 to 70 MB/s; below 1 % of this rate the file is treated as hostile.
CPU_BYTES_PER_SECOND = 1 << 20
CPU_SPARE_SECONDS = 20
OUT_OF_MEMORY_STATUS = 77
ONLY_OBJECTS: Final = "objects"
"""Option of the child: no columns are taken from the objects."""


@dataclass(slots=True)
class RawSnapshot:
    """The columns by name, and what is not a column."""

    # `trace.<device>.<key>`, `segment.<key>`, `block.<key>`, `annotation.<key>`, `pinned.<key>` and those of
    # `StackTable`.
    columns: dict[str, array[int]]
    strings: list[str]
    texts: list[str]  # Names of annotations, categories, metadata and pools
    devices: list[int]  # Index of every device that has a trace, even an empty one
    settings: dict[str, Any] = field(default_factory=dict)  # What the snapshot says of the allocator's settings


def read_raw(path: Path) -> RawSnapshot:
    """Read a snapshot in this process."""
    with paused_gc():
        return columns_of(read_objects(path), path)


def columns_of(objects: Any, path: Path) -> RawSnapshot:
    """The columns of a snapshot that is in memory."""
    parts = snapshot_parts(objects, path)
    stacks, texts = StackTable(), Texts()
    columns = segment_columns(parts["segments"], stacks=stacks, texts=texts)
    for device, entries in enumerate(parts["device_traces"]):
        trace = trace_columns(entries, device=device, stacks=stacks, texts=texts)
        columns |= {f"trace.{device}.{key}": column for key, column in trace.items()}
    columns |= annotation_columns(parts.get("external_annotations") or [], texts=texts)
    columns |= pinned_columns(parts.get("host_segments") or [])
    table = stacks.by_value()
    strings = table.pop("strings")
    return RawSnapshot(
        columns={**columns, **table},  # type: ignore[dict-item]
        strings=strings,  # type: ignore[arg-type]
        texts=list(texts),
        devices=list(range(len(parts["device_traces"]))),
        settings=settings_of(parts.get("allocator_settings")),
    )


def write_raw(raw: RawSnapshot, out: IO[bytes]) -> None:
    """Write a line of JSON and then the columns, which `load` reads back."""
    head: dict[str, Any] = {entry.name: getattr(raw, entry.name) for entry in fields(raw)}
    head["columns"] = [[name, column.typecode, len(column)] for name, column in raw.columns.items()]
    out.write(json.dumps(head).encode() + b"\n")
    for column in raw.columns.values():
        column.tofile(out)


def limit_resources(path: Path) -> None:
    """Let this process have the memory and the processor time that an honest file of this size needs, and no more.

    Plain unpickling can be made to take any of them with a few bytes: a memo index of 2**31 allocates 16 GiB, and a
    dict key of nested shared tuples hashes for centuries inside one C call. The operating system is the only one to
    stop that. Where there is no `resource` module (Windows) nothing is limited.
    """
    try:
        import resource
    except ImportError:
        return
    size = path.stat().st_size * packed_factor(path)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for kind, limit in (
        (resource.RLIMIT_CPU, CPU_SPARE_SECONDS + size // CPU_BYTES_PER_SECOND),
        (resource.RLIMIT_AS, _address_space_bytes() + MEMORY_SPARE_BYTES + size * MEMORY_PER_BYTE),
    ):
        _, hard = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _address_space_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 256 << 20


def main(path: Path, out: IO[bytes], *options: str) -> int:
    """Read the file under limits and write the columns, or a line of JSON with the error."""
    try:
        limit_resources(path)
        if ONLY_OBJECTS in options:
            with paused_gc():
                read_objects(path)
            write_raw(RawSnapshot({}, [], [], []), out)
        else:
            write_raw(read_raw(path), out)
    except SnapshotError as error:
        out.write(json.dumps({"error": str(error), "hint": error.hint}).encode() + b"\n")
    except MemoryError:
        return OUT_OF_MEMORY_STATUS
    out.flush()
    return 0


# More than any machine has; a list that is longer is no list of devices.
MAX_DEVICES: Final = 4096
_SPELLED_SETTINGS = "PYTORCH_CUDA_ALLOC_CONF"
_SCALAR_SETTINGS = {
    _SPELLED_SETTINGS: str,
    "expandable_segments": bool,
    "max_split_size": int,
    "garbage_collection_threshold": float,
    "per_process_memory_fraction": float,
    "graph_capture_record_stream_reuse": bool,
    "caching_allocator": bool,  # ours, see `tracer.snapshot.columns.CACHING_ALLOCATOR`
}


def snapshot_parts(objects: Any, path: Path) -> dict[str, Any]:
    """The top level of the snapshot; the bare list of `torch.cuda.memory_snapshot()` has only segments."""
    if type(objects) is list:
        return {"segments": objects, "device_traces": []}
    if type(objects) is not dict or not {"segments", "device_traces"} & objects.keys():
        raise SnapshotError(f"{path} holds other data than an allocator snapshot.", hint=HOW_TO_RECORD)
    traces = objects.get("device_traces") or []
    if type(traces) is not list or len(traces) > MAX_DEVICES:
        raise SnapshotError(f"{path} has device_traces that are no list of devices.", hint="The file is damaged.")
    return {**objects, "segments": objects.get("segments") or [], "device_traces": traces}


def settings_of(settings: Any) -> dict[str, Any]:
    """The settings that an explanation uses; all others are ignored."""
    if type(settings) is not dict:
        return {}
    options: dict[str, Any] = {}
    for key, kind in _SCALAR_SETTINGS.items():
        if type(settings.get(key)) is kind:
            options[key] = settings[key]
    if len(options.get(_SPELLED_SETTINGS, "")) > 1000:
        del options[_SPELLED_SETTINGS]
    divisions = settings.get("roundup_power2_divisions")
    if type(divisions) is dict:
        options["roundup_power2_divisions"] = {
            key: value
            for key, value in list(divisions.items())[:64]
            if type(key) is str and len(key) < 20 and type(value) is int and 0 <= value <= 1 << 30
        }
    return options


if __name__ == "__main__":
    # os._exit: taking a million dicts apart again would cost a fifth of the load.
    os._exit(main(Path(sys.argv[1]), sys.stdout.buffer, *sys.argv[2:]))
