"""A file of peaks by name, with which later ones are compared: of tests, and of `check`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tracer.analysis.peak_diff import SavedPeak
from tracer.errors import SnapshotError
from tracer.exporters.files import write_atomically
from tracer.exporters.json_documents.peak import saved_peak_document, saved_peak_from

VERSION = 1
_FORMAT = "torch-timeline baseline"
_HINT = "Name the file that --update wrote, or another one to be written."
_FIRST = "Write it first, with --update, or --gpu-memory-update in pytest; or name another file."


def write_baseline(peaks: Mapping[str, SavedPeak], path: Path) -> None:
    """Write it, in an order that versions of it can be compared line by line.

    Raises:
        OutputError: It cannot be written.
    """
    named = {name: saved_peak_document(peaks[name]) for name in sorted(peaks)}
    document = {"format": _FORMAT, "version": VERSION, "peaks": named}
    write_atomically(path, json.dumps(document, indent=1) + "\n")


def read_baseline(path: Path) -> dict[str, SavedPeak]:
    """Read a baseline file.

    Returns:
        Peaks by name.

    Raises:
        SnapshotError: It cannot be read, or is something else.
    """
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise SnapshotError(f"Cannot read {path}: {error.strerror or error}.", hint=_FIRST) from error
    except (ValueError, RecursionError) as error:
        raise SnapshotError(f"{path} is not JSON that can be read.", hint=_HINT) from error
    peaks = document.get("peaks") if isinstance(document, dict) and document.get("format") == _FORMAT else None
    if not isinstance(peaks, dict) or not all(isinstance(peak, dict) for peak in peaks.values()):
        raise SnapshotError(f"{path} is no baseline of peaks.", hint=_HINT)
    if document.get("version") != VERSION:
        raise SnapshotError(f"{path} is of another version of this program.", hint=_HINT)
    return {name: saved_peak_from(path, peak) for name, peak in peaks.items()}
