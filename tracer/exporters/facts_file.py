"""The file of facts beside a snapshot of a failure: what the program's objects told, which no snapshot has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tracer.capture.objects.at_failure import ObjectsAtFailure
from tracer.errors import RecordingError
from tracer.exporters.document import Source, plain_values, read_document
from tracer.exporters.files import write_atomically

FORMAT: Final = "torch-timeline facts"
VERSION: Final = 1
_MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class FailureFactsFile:
    """Facts of one failure."""

    device: int  # Index of the device that had no memory left
    time_us: int  # Time of its failed request in the snapshot, which tells another snapshot of the same name
    asked_bytes: int  # Size of that request
    objects: ObjectsAtFailure


def facts_path(snapshot: Path) -> Path:
    """Return the file of facts of a snapshot: `oom.facts.json` of `oom.pickle`."""
    return snapshot.with_suffix(".facts.json")


def write_facts(facts: FailureFactsFile, path: Path) -> None:
    """Write a file of facts."""
    document = {"format": FORMAT, "version": VERSION, **plain_values(facts)}
    write_atomically(path, json.dumps(document).encode())


def read_facts(path: Path) -> FailureFactsFile:
    """Read a file of facts.

    Raises:
        RecordingError: It is damaged, or of another program.
    """
    source = Source(str(path), RecordingError, hint="Delete it: the snapshot is explained without it.")
    document = read_document(path, source, at_most=_MOST_BYTES, hint=source.hint)
    document.check_format(FORMAT, VERSION, "a file of facts of this program")
    return document.record(FailureFactsFile)
