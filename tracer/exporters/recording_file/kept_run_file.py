"""recording.npz: a `KeptRun` as named columns and one document, and back."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from tracer.capture.kept_run import (
    PHASES,
    KeptCycle,
    KeptRun,
    PhaseTimings,
    RunOrigin,
    SourceFile,
    ValuesRead,
)
from tracer.capture.objects.known_storages import ObjectsAtFailure
from tracer.capture.objects.parameter_origins import Parameter
from tracer.capture.sources.source_line import SourceLine
from tracer.errors import RecordingError, SnapshotError
from tracer.exporters.document import Document
from tracer.exporters.json_documents.peak import graph_pool_from
from tracer.exporters.recording_file.checked_columns import (
    DAMAGED,
    RECORDING,
    Columns,
    read_columns,
    text_columns,
    write_columns,
)
from tracer.exporters.recording_file.recording_columns import (
    Arrays,
    compiled_columns,
    compiled_from,
    known_columns,
    known_from,
    recording_columns,
    recording_from,
)
from tracer.snapshot.load import checked_objects

FORMAT, VERSION = "torch-timeline recording", 2
_HISTORY = "history.pickle"
MAX_CYCLES = 10_000
_DEVICE = re.compile(r"cpu|[a-z]+(:\d{1,4})?")


def save_kept_run(path: Path, kept: KeptRun) -> None:
    """Write recording.npz, whole or not at all."""
    write_columns(path, kept_run_columns(kept))


def kept_run_columns(kept: KeptRun) -> Arrays:
    """The columns of a run, by the names that docs/recording.md has."""
    columns: Arrays = {"run": np.frombuffer(json.dumps(_document(kept)).encode(), np.uint8)}
    for number, cycle in enumerate(kept.cycles):
        columns |= recording_columns(cycle.recording, f"cycle{number}")
    columns |= {**known_columns(kept.known), **_module_columns(kept), **_source_columns(kept)}
    columns |= compiled_columns(kept.compiled)
    columns |= {**_parameter_columns(kept), "losses": np.array(kept.losses, np.float64)}
    if kept.at_failure is not None:
        for name in ("in_graphs", "untrained", "float64"):
            if (addresses := getattr(kept.at_failure, name)) is not None:
                columns[name] = np.array(sorted(addresses), np.int64)
    if kept.timings is not None:
        columns |= {f"timings.{name}": np.array(kept.timings.durations_ms[name], np.float64) for name in PHASES}
    if kept.snapshot is not None:
        columns[_HISTORY] = np.frombuffer(pickle.dumps(kept.snapshot, protocol=4), np.uint8)
    return columns


def _document(kept: KeptRun) -> dict[str, Any]:
    """All that is no column."""
    timings, origin = kept.timings, kept.origin
    return {
        "format": FORMAT,
        "version": VERSION,
        "device": kept.device,
        "cycles": [{"is_whole": cycle.is_whole, "num_events": cycle.recording.num_events} for cycle in kept.cycles],
        "num_later": kept.num_later,
        "num_steps": kept.num_steps,
        "command": origin.command,
        "date": origin.date,
        "torch": origin.torch,
        "python": origin.python,
        "device_name": origin.device_name,
        "caveat": origin.caveat,
        "settings": {str(name): _plain(value) for name, value in kept.settings.items()},
        "notes": list(kept.notes),
        "failure": list(kept.failure),
        "ran_out_of_memory": kept.ran_out_of_memory,
        "device_bytes": kept.device_bytes,
        "was_evaluating": kept.at_failure is not None and kept.at_failure.is_evaluating,
        "was_training": kept.at_failure is not None and kept.at_failure.is_training,
        "unused_parameters": None if kept.unused_parameters is None else list(kept.unused_parameters),
        "timings": None if timings is None else {"device": timings.device, "clock": timings.clock},
        "values_read": None if kept.values_read is None else asdict(kept.values_read),
        "cuda_graphs": list(kept.graph_pools),
    }


def _plain(value: object) -> object:
    """A setting as JSON has it; a tuple is a list there, and what is neither is its text."""
    if isinstance(value, tuple):
        return [_plain(entry) if not isinstance(entry, tuple) else str(entry) for entry in value]
    return value if value is None or type(value) in (bool, int, float, str) else str(value)


def _module_columns(kept: KeptRun) -> Arrays:
    return {
        "modules.id": np.array(list(kept.module_names), np.int64),
        **text_columns("modules.name", kept.module_names.values()),
    }


def _source_columns(kept: KeptRun) -> Arrays:
    sources = kept.sources
    return {
        **text_columns("sources.path", [source.path for source in sources]),
        **text_columns("sources.project_name", [source.project_name or "" for source in sources]),
        **text_columns("sources.text", [source.text or "" for source in sources]),
        "sources.is_of_project": np.array([source.project_name is not None for source in sources], np.bool_),
        "sources.has_text": np.array([source.text is not None for source in sources], np.bool_),
    }


def _parameter_columns(kept: KeptRun) -> Arrays:
    parameters, row = kept.parameters, {source.path: row for row, source in enumerate(kept.sources)}
    lines = [line for parameter in parameters for line in parameter.lines]
    return {
        **text_columns("parameters.name", [parameter.name for parameter in parameters]),
        **text_columns("parameters.module", [parameter.module for parameter in parameters]),
        "parameters.size_bytes": np.array([parameter.size_bytes for parameter in parameters], np.int64),
        "parameters.wants_gradient": np.array([parameter.wants_gradient for parameter in parameters], np.bool_),
        "parameters.line_ends": np.cumsum([len(parameter.lines) for parameter in parameters], dtype=np.int64),
        "parameter_lines.source": np.array([row[line.file] for line in lines], np.int64),
        "parameter_lines.line": np.array([line.line for line in lines], np.int64),
    }


# ------------------------------------------------------------------------------------------------------------ reading
def load_kept_run(path: Path) -> KeptRun:
    """Read recording.npz of this version. Nothing in it is executed, and every index is checked.

    Raises:
        RecordingError: It cannot be read, is damaged, of another version, or another program's.
    """
    return kept_run_from(Columns(read_columns(path)))


def kept_run_from(columns: Columns) -> KeptRun:
    """The run of which these are the columns."""
    document = Document(columns.blob("run"), RECORDING)
    document.check_format(FORMAT, VERSION, "a recording of this program")
    if (version := document.number("version")) < VERSION:
        raise RecordingError(
            f"The recording is of format version {version}, which is not read any more.",
            hint="Use the version of this program that wrote it, or profile again with --keep-recording.",
        )
    cycles = document.documents("cycles", at_most=MAX_CYCLES)
    device = document.text("device")
    if not _DEVICE.fullmatch(device):
        raise RecordingError(f"{device[:80]!r} is not the name of a device.", hint=DAMAGED)
    sources = _sources_from(columns)
    return KeptRun(
        cycles=tuple(_cycle_from(columns, number, cycle) for number, cycle in enumerate(cycles)),
        device=device,
        known=known_from(columns),
        module_names=_module_names_from(columns),
        snapshot=_snapshot_from(columns, device),
        parameters=_parameters_from(columns, sources),
        timings=_timings_from(columns, document),
        unused_parameters=document.or_none("unused_parameters", Document.texts),
        losses=tuple(columns.floats("losses").tolist()),
        num_later=document.or_none("num_later", Document.number),
        num_steps=document.number("num_steps"),
        failure=document.texts("failure"),
        ran_out_of_memory=document.truth("ran_out_of_memory"),
        device_bytes=document.or_none("device_bytes", Document.number),
        at_failure=_at_failure_from(columns, document),
        notes=document.texts("notes"),
        settings=document.settings("settings"),
        origin=RunOrigin(
            **{name: document.text(name) for name in ("command", "date", "torch", "python", "device_name", "caveat")},
            device_bytes=document.or_none("device_bytes", Document.number),
        ),
        sources=sources,
        compiled=compiled_from(columns),
        values_read=found.record(ValuesRead) if (found := document.or_none("values_read", Document.document)) else None,
        graph_pools=_graph_pools_from(document),
    )


def _graph_pools_from(document: Document) -> tuple[dict[str, Any], ...]:
    pools = document.documents("cuda_graphs", at_most=MAX_CYCLES)
    for pool in pools:
        graph_pool_from(pool)
    return tuple(pool.unchecked() for pool in pools)


def _cycle_from(columns: Columns, number: int, document: Document) -> KeptCycle:
    num_events = document.number("num_events")
    return KeptCycle(recording_from(columns, f"cycle{number}", num_events=num_events), document.truth("is_whole"))


def _module_names_from(columns: Columns) -> Mapping[int, str]:
    names = columns.texts("modules.name")
    return dict(zip(columns.ints("modules.id", length=len(names)).tolist(), names, strict=True))


def _sources_from(columns: Columns) -> tuple[SourceFile, ...]:
    paths = columns.texts("sources.path")
    names = columns.texts("sources.project_name", length=len(paths))
    texts = columns.texts("sources.text", length=len(paths), as_is=True)
    in_project = columns.bools("sources.is_of_project", length=len(paths)).tolist()
    has_text = columns.bools("sources.has_text", length=len(paths)).tolist()
    rows = zip(paths, names, texts, in_project, has_text, strict=True)
    return tuple(
        SourceFile(path, name if is_in else None, text if has else None) for path, name, text, is_in, has in rows
    )


def _parameters_from(columns: Columns, sources: tuple[SourceFile, ...]) -> tuple[Parameter, ...]:
    names = columns.texts("parameters.name")
    modules = columns.texts("parameters.module", length=len(names))
    sizes = columns.bytes_column("parameters.size_bytes", length=len(names)).tolist()
    wanting = columns.bools("parameters.wants_gradient", length=len(names)).tolist()
    file = columns.ints("parameter_lines.source", low=0, high=len(sources) - 1).tolist()
    line = columns.ints("parameter_lines.line", length=len(file)).tolist()
    ends = columns.ends("parameters.line_ends", total=len(file), length=len(names)).tolist()
    lines = [SourceLine(sources[at].path, number) for at, number in zip(file, line, strict=True)]
    rows = zip(names, sizes, wanting, modules, [0, *ends], ends, strict=False)
    return tuple(Parameter(name, size, wants, of, tuple(lines[a:b])) for name, size, wants, of, a, b in rows)


def _snapshot_from(columns: Columns, device: str) -> dict[str, Any] | None:
    if _HISTORY not in columns:
        return None
    try:
        snapshot = checked_objects(columns.blob(_HISTORY))
    except SnapshotError as error:
        raise RecordingError("The recording's allocator data is damaged.", hint=DAMAGED) from error
    lists = ("segments", "device_traces")
    if isinstance(snapshot, dict) and ":" in device and all(isinstance(snapshot.get(name), list) for name in lists):
        return snapshot
    raise RecordingError("The recording's allocator data is damaged.", hint=DAMAGED)


def _at_failure_from(columns: Columns, document: Document) -> ObjectsAtFailure | None:
    if "untrained" not in columns:
        return None
    return ObjectsAtFailure(
        is_evaluating=document.truth("was_evaluating"),
        is_training=document.truth("was_training"),
        in_graphs=frozenset(columns.ints("in_graphs").tolist()) if "in_graphs" in columns else None,
        **{name: frozenset(columns.ints(name).tolist()) for name in ("untrained", "float64")},
    )


def _timings_from(columns: Columns, document: Document) -> PhaseTimings | None:
    timings = document.or_none("timings", Document.document)
    if timings is None:
        return None
    durations_ms = {name: tuple(columns.floats(f"timings.{name}").tolist()) for name in PHASES}
    if not np.isfinite([value for values in durations_ms.values() for value in values]).all():
        raise RecordingError("Times of phases are not all numbers.", hint=DAMAGED)
    if len({len(values) for values in durations_ms.values()}) > 1 or not durations_ms[PHASES[0]]:
        raise RecordingError("Phases were not timed equally often.", hint=DAMAGED)
    return PhaseTimings(timings.text("device"), timings.text("clock"), durations_ms)
