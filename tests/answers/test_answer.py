"""An answer's short form: 24 lines of 100 columns with what follows them, and no sentence twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.answer_screens import answer_screen
from tests.exporters.recording_file.samples import on_cpu, on_cuda
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import REAL_FILES
from tracer.answers.allocator.allocator_finding import explain_allocator, with_model
from tracer.answers.answer import Answer
from tracer.answers.answer_of_snapshot import answer_of_snapshot
from tracer.answers.difference import diff_snapshots
from tracer.answers.paths import shorten_paths
from tracer.answers.run_results import RunResults
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.exporters.diff import answer_of_diffs
from tracer.sessions.stored_results import kept_run, results_of
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot, snapshot_in_memory

LINES, WIDTH = 24, 100
SHARED = Path(__file__).resolve().parents[3] / "shared"
FILES = [
    *REAL_FILES,
    *sorted((SHARED / "recordings").glob("*.pickle")),
    *sorted((SHARED / "repro/why").glob("*.pickle")),
]


def of_snapshot(snapshot: Snapshot) -> Answer:
    replayed = replay_snapshot(snapshot)
    allocator = explain_allocator(replayed)
    return answer_of_snapshot(with_model(explain_replayed(replayed), allocator), allocator, file="s.pickle")


def check(answer: Answer) -> None:
    lines = [line.rstrip() for line in answer_screen(answer, full=False, width=WIDTH).splitlines()]
    assert len(lines) <= LINES
    long = [line for line in lines if len(line) > WIDTH]
    assert all("/" in line or "\\" in line for line in long), long or "only a path, which is never broken, is longer"
    assert len(set(answer.sentences)) == len(answer.sentences)
    text = " ".join(" ".join(lines).split())
    for part in (answer.happened, answer.why, answer.change):
        assert all(text.count(" ".join(sentence.split())) <= 1 for sentence in part)
    assert all(word in text for word in shorten_paths(answer.happened[0]).split())


def test_memory_that_ran_out_is_the_headline() -> None:
    answer = of_snapshot(snapshot_in_memory(out_of_memory()))
    check(answer)
    assert answer.is_alarming and answer.happened[0].startswith("Out of memory on device 0 at ")
    assert answer_screen(answer, full=False).splitlines()[0].startswith("Out of memory on device 0 at ")


@pytest.mark.parametrize("results", [on_cpu, on_cuda], ids=["cpu", "cuda"])
def test_the_short_form_of_a_run_fits_and_its_report_says_the_same(results: Callable[[], RunResults]) -> None:
    answer = results().answer
    check(answer)
    again = results_of(kept_run(results())).answer
    assert (again.happened, again.why, again.change) == (answer.happened, answer.why, answer.change)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_short_form_of_a_recording_fits(path: Path) -> None:
    check(of_snapshot(load_snapshot(path)))


def test_the_short_form_of_a_difference_fits() -> None:
    sides = [path for path in FILES if path.stem.startswith("train_423M")]
    if len(sides) < 2:
        pytest.skip("the real recordings are not here")
    before, after = map(load_snapshot, sides)
    check(answer_of_diffs(diff_snapshots(before, after), before="before", after="after"))
