"""The failure that ended a rank's script in a job on the null GPU, left for the job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from tracer.capture.sources.error_line import error_line
from tracer.null_gpu.job.place import Place
from tracer.results.failure import is_out_of_memory


@dataclass(frozen=True, slots=True)
class RankFailure:
    """The end of a rank's script."""

    words: str  # The exception, in a line
    out_of_memory: bool  # Whether the device had no memory left
    file: str | None  # File of the line at which it arose; None if there is none
    line: int  # That line, from 1


def leave_failure(error: BaseException) -> None:
    """Leave what ended this process's script; no-op in a process that is no rank of a job on the null GPU."""
    place = Place.here()
    if place is None:
        return
    at = error_line(error)
    failure = RankFailure(
        f"{type(error).__name__}: {error}".strip(": ").splitlines()[0],
        is_out_of_memory(error),
        at.file if at is not None else None,
        at.line if at is not None else 0,
    )
    _path(place.folder, place.rank).write_text(json.dumps(asdict(failure)), encoding="utf-8")


def failure_left(folder: Path, rank: int) -> RankFailure | None:
    """What ended a rank's script; None if it came to its end, or the process was killed."""
    path = _path(folder, rank)
    return RankFailure(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _path(folder: Path, rank: int) -> Path:
    return folder / f"failure{rank}.json"
