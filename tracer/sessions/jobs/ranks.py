"""Several ranks: each writes its own folder, and rank 0 adds what differs between them."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tracer.answers.failure import is_out_of_memory
from tracer.answers.files import RANK_JSON, RANKS_JSON, RANKS_TEXT
from tracer.capture.sources.source_line import SourceLine
from tracer.command_line import role
from tracer.errors import RecordingError, error_words
from tracer.exporters.document import Source, plain_values, read_document
from tracer.exporters.files import remove, write_atomically, write_json
from tracer.null_gpu import process
from tracer.null_gpu.job.place import RankPlace
from tracer.units import format_bytes

if TYPE_CHECKING:
    from tracer.answers.jobs import GpuSum, Holding
    from tracer.answers.run_history import RunHistory
    from tracer.answers.run_results import RunResults
    from tracer.answers.watch_report import WatchReport


_RANK = "rank"


@dataclass(frozen=True, slots=True)
class Rank:
    """A process of several, as torchrun's environment describes it."""

    index: int  # Number from 0, over all machines
    world_size: int  # Number of ranks
    local_index: int  # Number from 0, on this machine; also that of its device
    run: str  # Name of this start of the program, so that an earlier one's files are not taken for this one's
    local_world_size: int = 1  # Number of ranks on this machine
    # Folder for its messages where the other ranks do not run beside it; None where they do.
    job_folder: Path | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Number of its node, and its own on that node."""
        return (self.index - self.local_index) // max(self.local_world_size, 1), self.local_index


def rank_folder(folder: Path, index: int) -> Path:
    """`rank3` below the folder of results."""
    return folder / f"{_RANK}{index}"


def this_rank() -> Rank | None:
    """This process's rank; None where there is only one, or no environment of torchrun's.

    A child of the script, which its parent records as a rank, has the number that the parent gave it unless it has one.
    """
    rank = _rank_of_environment()
    if (child := role("child")) is None:
        return rank
    folder, index = child
    if rank is None:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            index = distributed.get_rank()
        rank = Rank(index, index + 1, index, "")
    return replace(rank, job_folder=Path(folder))


def ranks_of_children(folder: Path) -> RanksSummary:
    """Return what children of the script, which were recorded as ranks, have left for their parent."""
    indices = sorted(int(path.parent.name.removeprefix(_RANK)) for path in folder.glob(f"{_RANK}*/{RANK_JSON}"))
    return read_ranks(folder, len(indices), ranks=indices)


def _rank_of_environment() -> Rank | None:
    try:
        index, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_index = int(os.environ.get("LOCAL_RANK", index))
        local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    except (KeyError, ValueError):
        return None
    if world_size < 2:
        return None
    names = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT")
    run = "/".join(os.environ.get(name, "") for name in names)
    place = RankPlace.here()
    return Rank(index, world_size, local_index, run, local_world_size, None if place is None else place.folder)


@dataclass(frozen=True, slots=True)
class GpuPart:
    """Memory of one rank on one GPU."""

    gpu: str  # Its UUID, or on the null GPU its number on the node
    is_own: bool  # Whether it is the GPU of the rank's number on its node, or the only one that the rank sees
    reserved_bytes: int  # Reserved by torch at most
    file: str | None = None  # File of the line that holds most of it; None where it is not known
    line: int | None = None  # That line

    @property
    def source_line(self) -> SourceLine | None:
        """The line; None where it is not known."""
        return SourceLine.known(self.file, self.line)


@dataclass(frozen=True, slots=True)
class RankMessage:
    """Message of one rank."""

    index: int  # Index of the rank
    run: str  # See `Rank.run`
    device: str = ""  # Name of its device
    peak_bytes: int | None = None  # Its largest peak; None if nothing was recorded
    reserved_bytes: int = 0  # Reserved from the driver at that moment; 0 where a device has no such thing
    categories: Mapping[str, int] = field(default_factory=dict)  # Bytes of the peak by category
    num_steps: int = 0  # Steps that ended
    failure: str = ""  # What ended its loop early, in words; empty if nothing did
    out_of_memory: bool = False  # Whether that was the device's memory
    has_ended: bool = True  # Whether its loop has ended; what a rank that is killed leaves behind does not say so
    finding: str = ""  # What its recorder has found, a sentence; empty where that is nothing
    place: tuple[int, int] = (0, 0)  # Number of its node, and its own on that node
    held: tuple[GpuPart, ...] = ()  # Its memory on each GPU
    line: SourceLine | None = None  # Where its script failed; None if it did not, or there is no such line


@dataclass(frozen=True, slots=True)
class RanksSummary:
    """Messages of all ranks of a job."""

    ranks: tuple[RankMessage, ...]  # Ranks that have left results, by index
    missing: tuple[int, ...]  # Indices of those that have not
    num_not_run: int = 0  # How many ranks of the job were not meant to run

    @property
    def ended(self) -> frozenset[int]:
        """Numbers of the finished ranks."""
        return frozenset(rank.index for rank in self.ranks if rank.has_ended)

    @property
    def with_peak(self) -> tuple[RankMessage, ...]:
        """Ranks that recorded something."""
        return tuple(rank for rank in self.ranks if rank.peak_bytes is not None)

    @property
    def worst(self) -> RankMessage | None:
        """The first of those with the largest peak; one that ran out of memory comes before all others."""
        return max(self.with_peak, key=lambda rank: (rank.out_of_memory, rank.peak_bytes or 0), default=None)

    @property
    def spread_bytes(self) -> int:
        """Largest peak less smallest."""
        peaks = [rank.peak_bytes or 0 for rank in self.with_peak]
        return max(peaks) - min(peaks) if peaks else 0

    @property
    def gpus(self) -> tuple[GpuSum, ...]:
        """Memory on each GPU that ranks have reported."""
        from tracer.answers.jobs import Holding, sums_of

        parts = [(rank, part) for rank in self.ranks for part in rank.held]
        places = {(rank.place[0], part.gpu): rank.place for rank, part in reversed(parts) if part.is_own}
        sums: dict[tuple[int, int], list[Holding]] = {}
        for rank, part in parts:
            place = places.get((rank.place[0], part.gpu))
            if place is not None:
                holding = Holding(rank.index, part.is_own, part.reserved_bytes, line=part.source_line)
                sums.setdefault(place, []).append(holding)
        return sums_of(sums)

    def differences(self) -> dict[str, tuple[int, int]]:
        """Smallest and largest bytes of each category that is not the same on all ranks, the widest first.

        Ranks of which nobody knows kinds are left out.
        """
        known = [rank for rank in self.with_peak if rank.categories]
        names = {name for rank in known for name in rank.categories}
        ends = {}
        for name in sorted(names):
            sizes = [rank.categories.get(name, 0) for rank in known]
            if min(sizes) != max(sizes):
                ends[name] = (min(sizes), max(sizes))
        return dict(sorted(ends.items(), key=lambda item: item[1][0] - item[1][1]))


@dataclass(frozen=True, slots=True)
class RankMessages:
    """Files that a rank leaves in the folder of results, for the summary of all ranks."""

    rank: Rank
    folder: Path  # Folder of all ranks' results

    @property
    def own_folder(self) -> Path:
        """The folder that this rank writes to."""
        return rank_folder(self.folder, self.rank.index)

    def begin(self) -> None:
        """Remove what an earlier run of the same rank left."""
        remove(self.own_folder / RANK_JSON)
        if self.rank.index == 0:
            for name in (RANKS_JSON, RANKS_TEXT):
                remove(self.folder / name)

    def leave(self, message: RankMessage) -> None:
        """Leave a rank's words in its own folder."""
        if self.rank.job_folder is not None:
            _write(message, rank_folder(self.rank.job_folder, self.rank.index))
        _write(message, self.own_folder)

    def announce(self, message: RankMessage) -> None:
        """Leave this rank's result so far, which survives the end of any rank, even of rank 0."""
        self.finish(replace(message, has_ended=False))

    def finish(self, message: RankMessage) -> None:
        """Leave this rank's words, and write ranks.txt and ranks.json: as rank 0, and where all have spoken.

        No rank waits for another: each leaves its own words before it reads those of others, so that the last one has
        all.
        """
        self.leave(message)
        written: RanksSummary | None = None
        while self.rank.job_folder is None:
            summary = read_ranks(self.folder, self.rank.world_size, run=self.rank.run)
            if summary == written or (self.rank.index and summary.missing):
                return
            write_ranks(summary, self.folder)
            written = summary  # what has come meanwhile is read again: another rank may have written it before


def _write(message: RankMessage, folder: Path) -> None:
    write_json(folder / RANK_JSON, plain_values(message))


def peak_of(rank: Rank, results: RunResults) -> RankMessage:
    """A profiled rank's figures for the summary."""
    error = results.failure.error if results.failure is not None else None
    failure = error_words(error) if error is not None else ""
    out_of_memory = results.failure is not None and results.failure.out_of_memory
    message = replace(
        _memory_of(rank, results.history), num_steps=results.num_steps, failure=failure, out_of_memory=out_of_memory
    )
    if results.findings is None:
        return message
    peak = results.findings.worst.peak
    return replace(
        message,
        device=peak.device,
        peak_bytes=peak.peak_bytes,
        reserved_bytes=peak.reserved_bytes,
        categories=dict(peak.by_category()),
    )


def _memory_of(rank: Rank, history: RunHistory | None = None) -> RankMessage:
    """Return a message with the memory of this process on each GPU, and nothing about its loop."""
    import torch  # here alone: a job's command, which reads what ranks left, does without it

    from tracer.capture.device import devices

    own = rank.local_index if devices.num_devices(torch.device("cuda")) > 1 else 0
    lines = {held.device: (held.file, held.line) for held in (history.held(own) if history is not None else ())}
    held = []
    for index, reserved_bytes in devices.reserved_peaks("cuda").items():
        # A name that all processes of a node have in common.
        gpu = process.name_on_node(index) or devices.uuid_of(torch.device("cuda", index)) or str(index)
        held.append(GpuPart(gpu, index == own, reserved_bytes, *lines.get(index, (None, None))))
    return RankMessage(rank.index, rank.run, place=rank.place, held=tuple(held))


def ran_out_later(rank: Rank, failure: str, allocated_bytes: int) -> RankMessage:
    """Return the message of a rank of a job whose memory ended after its recorded steps, with the peak of these."""
    assert rank.job_folder is not None, "only ranks of a job are told of from their own folder"
    recorded = message_of(rank.job_folder, rank.index) or RankMessage(rank.index, rank.run)
    said = f"{failure}, after the recorded steps, with {format_bytes(allocated_bytes)} allocated"
    return replace(recorded, failure=said, out_of_memory=True)


def write_ranks(summary: RanksSummary, folder: Path) -> None:
    """Write ranks.txt and ranks.json."""
    write_atomically(folder / RANKS_TEXT, summary_text(summary))
    write_json(folder / RANKS_JSON, _as_json(summary))


def read_ranks(
    folder: Path, world_size: int, *, run: str | None = None, ranks: Collection[int] | None = None
) -> RanksSummary:
    """Return the last message of each rank so far: of a start of the program, or in a job's own folder of any."""
    indices = range(world_size) if ranks is None else sorted(ranks)
    messages = {index: message for index in indices if (message := message_of(folder, index)) is not None}
    found = {index: message for index, message in messages.items() if run in (None, message.run)}
    missing = tuple(index for index in indices if index not in found)
    return RanksSummary(tuple(found.values()), missing, world_size - len(indices))


def message_of(folder: Path, index: int) -> RankMessage | None:
    """Return the message that a rank has left; None where there is none that can be read."""
    path = rank_folder(folder, index) / RANK_JSON
    with suppress(RecordingError):
        return read_document(path, Source(str(path), RecordingError, ""), hint="").record(RankMessage)
    return None


def speaks_for_all(rank: Rank, summary: RanksSummary, folder: Path) -> bool:
    """True if this rank prints the sentences on all ranks: the last one to end, or rank 0 where a rank has failed.

    Each rank leaves its message before it reads those of others, so that exactly one finds that it came last.
    """
    if summary.missing or len(summary.ended) < rank.world_size:
        return rank.index == 0 and any(each.failure for each in summary.ranks)
    times = {index: (rank_folder(folder, index) / RANK_JSON).stat().st_mtime_ns for index in summary.ended}
    return rank.index == max(times, key=lambda index: (times[index], index))


def _as_json(summary: RanksSummary) -> dict[str, Any]:
    from tracer.exporters.json_documents.job import gpus_json

    return {
        "world_size": len(summary.ranks) + len(summary.missing) + summary.num_not_run,
        "worst_rank": summary.worst.index if summary.worst is not None else None,
        "spread_bytes": summary.spread_bytes,
        "missing": list(summary.missing),
        "differences": {name: {"min": low, "max": high} for name, (low, high) in summary.differences().items()},
        "ranks": [asdict(rank) for rank in summary.ranks],
        "gpus": gpus_json(summary.gpus),
    }


def summary_text(summary: RanksSummary) -> str:
    """Peak per rank, the worst, the spread, and what differs by category."""
    lines = ["Peak memory of each rank:", "-------------------------"]
    for rank in summary.ranks:
        peak = "nothing recorded" if rank.peak_bytes is None else f"{rank.peak_bytes:,} bytes on {rank.device}"
        lines.append(f"rank {rank.index}: {peak}{_end(rank)}")
    lines += [f"rank {index}: left no results" for index in summary.missing]
    if summary.num_not_run:
        lines.append(f"{summary.num_not_run:,} more ranks were not run.")
    if summary.worst is not None:
        share = 100 * summary.spread_bytes / (summary.worst.peak_bytes or 1)
        lines += ["", f"Worst: rank {summary.worst.index}, {format_bytes(summary.worst.peak_bytes or 0)}"]
        lines.append(f"Spread: {format_bytes(summary.spread_bytes)}, {share:.1f} % of the worst")
    if differences := summary.differences():
        rows = [f"{name}: {low:,} to {high:,} bytes" for name, (low, high) in differences.items()]
        lines += ["", "What differs:", *rows]
    elif len(summary.with_peak) > 1:
        lines += ["", "No category differs."]
    if shared := shared_sentences(summary):
        # The job's own answer has the sums of GPUs where some ranks were not run.
        lines += ["", *(shared[1:] if summary.num_not_run else shared)]
    return "\n".join(lines).rstrip() + "\n"


def shared_sentences(summary: RanksSummary) -> tuple[str, ...]:
    """Return sentences on the fullest GPU with memory of several ranks."""
    from tracer.answers.answer_of_job import gpu_sentences

    return gpu_sentences(summary.gpus)


def _end(rank: RankMessage) -> str:
    finding = f". {rank.finding}" if rank.finding else ""
    if rank.failure:
        return f"; ended in step {rank.num_steps + 1} by {rank.failure}{finding}"
    return finding if rank.has_ended else f"; has not ended so far, after step {rank.num_steps}{finding}"


def peak_of_watched(rank: Rank, report: WatchReport, *, has_ended: bool) -> RankMessage:
    """The report of a watched rank: its peak so far, the memory in use now by kind, and the findings."""
    from tracer.answers.watch_report import growth_sentences, other_sentences

    finding = " ".join(islice((*growth_sentences(report), *other_sentences(report)), 2))
    return replace(
        _memory_of(rank),
        device=report.device,
        peak_bytes=report.most_bytes or None,
        categories=report.by_kind(),
        num_steps=report.event.step,
        failure=report.error,
        has_ended=has_ended,
        finding=finding,
    )


def leave_failure(error: BaseException) -> None:
    """Leave what ended this process's script; no-op in a process that is no rank of a job on the null GPU."""
    from tracer.capture.sources.source_files import error_line

    place = RankPlace.here()
    if place is None:
        return
    left = message_of(place.folder, place.rank) or RankMessage(place.rank, "")
    message = replace(
        left,
        failure=left.failure or error_words(error),
        out_of_memory=left.out_of_memory or is_out_of_memory(error),
        line=error_line(error),
    )
    _write(message, rank_folder(place.folder, place.rank))
