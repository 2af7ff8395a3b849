"""`torch-timeline snapshot`: what filled each device, from an allocator snapshot made anywhere."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracer.answers.files import PAGE
from tracer.commands import options as opt
from tracer.commands.common import THRESHOLD_EXCEEDED, check_output, errors_for_people, say_all, snapshot_path
from tracer.commands.options import checked_size, number, option
from tracer.errors import SnapshotError, TracerError
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.next_commands import after_job, after_snapshot
from tracer.exporters.screen.terminal import say
from tracer.sessions.termination import signals_deferred
from tracer.snapshot.actions import Action
from tracer.snapshot.load import load_snapshot

if TYPE_CHECKING:
    from tracer.answers.findings import SnapshotFindings
    from tracer.capture.objects.at_failure import ObjectsAtFailure
    from tracer.exporters.facts_file import FailureFactsFile
    from tracer.snapshot.columns import Snapshot


ALLOCATOR = "Other allocator settings, another GPU"


def snapshot(
    file: Annotated[list[Path], typer.Argument(help="Snapshots, folders, or patterns in quotes.")],
    device: Annotated[int | None, number("Look at this device alone.", least=0)] = None,
    settings: Annotated[
        list[str] | None, option("Replay with: expandable_segments:True.", ALLOCATOR, metavar="<settings>")
    ] = None,
    gpu_memory: Annotated[
        str | None, option("Replay on a GPU of this size: 16GiB.", ALLOCATOR, metavar="<size>")
    ] = None,
    dask: Annotated[str | None, option("Read on the workers of a Dask scheduler.", metavar="<address>")] = None,
    html: opt.Html = None,
    open_: Annotated[bool, option("Show the page in the browser.", opt.OUTPUTS, "--open")] = False,
    as_json: opt.AsJson = False,
    full: opt.Full = False,
) -> None:
    """Explain an allocator snapshot made anywhere.

    The answer says what filled each device at its peak, why it ran out, and what
    to try first. Several recordings are compared as the ranks of a job.

    torch-timeline snapshot memory_snapshot.pkl

    torch-timeline snapshot recordings/
    """
    with errors_for_people():
        for path in file:
            if str(path).startswith(("http:/", "https:/", "s3:/", "gs:/")):
                raise SnapshotError(f"{path.name} is named by an address.", hint="Download it, and name the file.")
        if is_job(file):
            about_one = {"html": html, "open": open_ or None, "gpu-memory": gpu_memory}
            for name, value in about_one.items():
                if value is not None:
                    raise TracerError(f"--{name} is about one recording.", hint="Name the file of one rank.")
            _answer_job(file, device=device, dask=dask, as_json=as_json, full=full)
            return
        if open_ and html is None:
            html = Path(tempfile.mkdtemp(prefix="torch-timeline-")) / "page.html"
        (path,) = file
        if html is not None:
            check_output(html, [snapshot_path(path)])
        found = _explained(path, device, settings or (), gpu_memory)
        if html is not None:
            _write_page(found, html, path)
        from tracer.answers.answer_of_snapshot import answer_of_snapshot
        from tracer.exporters.json_documents.snapshot import snapshot_json
        from tracer.exporters.screen.answer import print_answer

        parts = sorted(found.parts, key=lambda part: not part.failures)
        tried = [part.allocator for part in parts if part.allocator is not None]
        last = after_snapshot(
            path,
            [part.source.state.device for part in parts],
            has_failed=any(part.failures for part in parts),
            has_page=html is not None,
            has_settings=all(one.modelled is None or one.what_if is not None for one in tried),
        )
        last = () if as_json else last
        if html is not None:
            say(f"Wrote {html}  (open with {PAGE.read_with})")
        Console.of(as_json=as_json).answer(
            lambda: snapshot_json(found, file=str(path)),
            lambda rich: print_answer(answer_of_snapshot(found, file=str(path)), rich, full=full, last=last, top=10),
        )
        if html is not None and open_:
            import webbrowser

            address = html.resolve().as_uri()
            # A browser in text would take the terminal, and runs no scripts.
            has_window = sys.platform in ("darwin", "win32") or any(
                map(os.environ.get, ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"))
            )
            if not (has_window and webbrowser.open(address)):
                say(f"No browser can be started here. Open {address}")
        say_all(last)
    # Each device of the recording has to run on the GPU of --gpu-memory.
    if not all(one.what_if is None or one.what_if.runs for one in tried):
        raise typer.Exit(THRESHOLD_EXCEEDED)


def _answer_job(paths: Sequence[Path], *, device: int | None, dask: str | None, as_json: bool, full: bool) -> None:
    """Explain the recordings of a job."""
    from tracer.answers.answer_of_job import answer_of_job
    from tracer.answers.ranks import explain_job
    from tracer.exporters.json_documents.job import job_json
    from tracer.exporters.screen.answer import print_answer
    from tracer.sessions.jobs.read_recordings import read_job, recordings

    files = recordings(paths)
    finding = explain_job(read_job(files, device=device, dask=dask))
    if finding.worst is None or finding.typical is None:
        first = finding.unreadable[0]
        which = "The recording cannot" if len(files) == 1 else f"None of {len(files):,} recordings can"
        raise SnapshotError(f"{which} be read. {first.file}: {first.problem}")
    last = () if as_json else after_job(finding.worst.file, finding.typical.file, paths)
    Console.of(as_json=as_json).answer(
        lambda: job_json(finding),
        lambda rich: print_answer(answer_of_job(finding), rich, full=full, last=last, top=10),
    )
    say_all(last)


def is_job(paths: Sequence[Path]) -> bool:
    """True for the recordings of several ranks: several paths, a pattern, or a folder of recordings."""
    if len(paths) != 1:
        return True
    (path,) = paths
    return (
        not snapshot_path(path).exists()
        if path.is_dir()
        else not path.exists() and set(path.name) & set("*?[") != set()
    )


def _explained(path: Path, device: int | None, settings: Sequence[str], gpu_memory: str | None) -> SnapshotFindings:
    """Return what was found in a snapshot, with what the allocator's model says of each device."""
    from tracer.allocator.settings import parse_settings

    memory = checked_size(gpu_memory)
    for text in settings:  # before a large file is read
        parse_settings(text)
    snapshot = load_snapshot(snapshot_path(path))
    from tracer.answers.allocator.explained import with_allocator
    from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
    from tracer.exporters.facts_file import facts_path, read_facts

    facts = facts_path(snapshot_path(path))
    objects = _objects(read_facts(facts), facts, snapshot) if facts.is_file() else {}
    settings = list(dict.fromkeys(settings))
    found = explain_replayed(replay_snapshot(snapshot, device=device))
    return with_allocator(found, settings=settings, gpu_memory=memory, objects=objects)


def _objects(facts: FailureFactsFile, path: Path, snapshot: Snapshot) -> dict[int, ObjectsAtFailure]:
    """Return what the program's objects told at a failure, by device; nothing where that is another snapshot's."""
    for state in snapshot.devices:
        failures = state.trace.where(Action.OOM)
        if state.device == facts.device and len(failures):
            last = failures[-1]
            if (facts.time_us, facts.asked_bytes) == (int(state.trace.time_us[last]), int(state.trace.size[last])):
                return {facts.device: facts.objects}
    say(f"Note: {path} is of another failure, and is left out.")
    return {}


def _write_page(found: SnapshotFindings, page: Path, file: Path) -> None:
    from tracer.exporters.page.snapshot_page import write_snapshot_page

    if not found.parts:
        raise SnapshotError(
            f"{file} has no device with memory, so there is nothing to draw.",
            hint="Take the snapshot while the program runs.",
        )
    devices = ", ".join(str(part.source.state.device) for part in found.parts)
    num_entries = sum(part.source.num_events for part in found.parts)
    run = {"file": str(file), "devices": devices, "entries": f"{num_entries:,}"}
    with signals_deferred():
        write_snapshot_page(found, page, run=run)
