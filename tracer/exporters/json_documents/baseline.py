"""A file of peaks by name, with which later ones are compared: of tests, and of `check`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tracer.analysis.peak_diff import SavedPeak
from tracer.errors import SnapshotError
from tracer.exporters.document import Source, read_document
from tracer.exporters.files import write_json
from tracer.exporters.json_documents.peak import saved_peak_document, saved_peak_from

VERSION = 1
_FORMAT = "torch-timeline baseline"
_HINT = "Name the file that --update wrote, or another one to be written."
_FIRST = "Write it first, with --update, or --gpu-memory-update in pytest; or name another file."


def write_baseline(peaks: Mapping[str, SavedPeak], path: Path) -> None:
    """Write it, in an order that versions of it can be compared line by line."""
    named = {name: saved_peak_document(peaks[name]) for name in sorted(peaks)}
    document = {"format": _FORMAT, "version": VERSION, "peaks": named}
    write_json(path, document)


def read_baseline(path: Path) -> dict[str, SavedPeak]:
    """Read the peaks of a baseline file, by name.

    Raises:
        SnapshotError: It cannot be read, or is something else.
    """
    document = read_document(path, Source(str(path), SnapshotError, _HINT), hint=_FIRST)
    document.check_format(_FORMAT, VERSION, "a baseline of peaks")
    peaks = document.document("peaks")
    return {name: saved_peak_from(peaks.document(name)) for name in peaks.unchecked()}
