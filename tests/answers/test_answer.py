"""An answer's short form in 45 cases: 24 lines of 100 columns, no sentence twice, the same on screen, page and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.answer_screens import answer_screen
from tests.answers.test_answer_of_job import FIRST, LAST, job
from tests.answers.test_ranks import peak as rank_peak
from tests.answers.test_snapshot_findings import BACKWARD, BASE, FORWARD, IN_STEP, MIB
from tests.engines.test_start import READY, start
from tests.exporters.page.test_diff_page import AFTER, BEFORE
from tests.exporters.recording_file.samples import kept_on_cuda, on_cpu, on_cuda
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import REAL_FILES, block, entry, segment, snapshot
from tests.training_steps import ONE_OF_EACH, recorded_workload
from tests.watched import report_of
from tracer.answers.allocator.explained import Explanation, with_allocator
from tracer.answers.answer import Answer, answer_values
from tracer.answers.answer_of_fit import answer_of_fit
from tracer.answers.answer_of_job import answer_of_job, answer_of_null_job
from tracer.answers.answer_of_prediction import answer_of_prediction
from tracer.answers.answer_of_snapshot import answer_of_snapshot, answers_of_devices
from tracer.answers.difference import diff_peaks, diff_snapshots
from tracer.answers.findings import SnapshotFindings
from tracer.answers.paths import shorten_paths
from tracer.answers.prediction import FitReport, FitTrial, OutOfMemoryAt, Prediction, Sizes
from tracer.answers.ranks import explain_job
from tracer.answers.recording_findings import combine_cycles
from tracer.answers.run_results import RunResults
from tracer.answers.snapshot_findings import explain_replayed, replay_snapshot
from tracer.answers.step_findings import GrowthOverSteps, StepFindings, Trend
from tracer.answers.watch_report import OutlivedMemory, answer_of_watch
from tracer.capture.sources.source_line import SourceLine
from tracer.changes.script_changes import SCRIPT_CHANGES, change_sentences
from tracer.engines.answer import engine_page
from tracer.engines.start import StartStage
from tracer.exporters.diff import answer_of_diffs
from tracer.exporters.json_documents.peak import peak_document
from tracer.exporters.json_documents.snapshot import snapshot_json
from tracer.exporters.page.data import page_data
from tracer.exporters.page.snapshot_page import snapshot_page
from tracer.exporters.page.timeline_page import timeline_page
from tracer.null_gpu.cards import H100
from tracer.sessions.stored_results import kept_run, results_of
from tracer.snapshot.columns import Snapshot
from tracer.snapshot.load import load_snapshot, snapshot_in_memory

LINES, WIDTH = 24, 100
GIB = 1 << 30
SHARED = Path(__file__).resolve().parents[3] / "shared"
FILES = {
    path.stem: path for folder in ("recordings", "repro/why") for path in sorted((SHARED / folder).glob("*.pickle"))
} | {path.stem: path for path in REAL_FILES}


def explained(loaded: Snapshot, **asked: Any) -> SnapshotFindings:
    return with_allocator(explain_replayed(replay_snapshot(loaded)), **asked)


def failing(frames: list[dict[str, Any]]) -> Snapshot:
    """A snapshot whose first failing request was made in these frames, before anything is freed again."""
    objects = out_of_memory()
    trace = objects["device_traces"][0]
    objects["device_traces"][0] = [*trace[:3], trace[3] | {"frames": frames}]
    return snapshot_in_memory(objects)


def state() -> Snapshot:
    return snapshot_in_memory(snapshot([], [segment(BASE, MIB, [block(BASE, 700)])]))


def two_devices() -> Snapshot:
    objects = out_of_memory()
    objects["segments"].append(segment(BASE, 64 * MIB, [block(BASE, 60 * MIB)], device=1))
    return snapshot_in_memory(objects)


def growing() -> Snapshot:
    trace = [entry("alloc", BASE + n * MIB, MIB, time_us=n, frames=FORWARD) for n in range(9)]
    return snapshot_in_memory(
        snapshot(trace, [segment(BASE, 16 * MIB, [block(BASE + n * MIB, MIB) for n in range(9)])])
    )


def of_file(path: Path) -> SnapshotFindings:
    return explained(load_snapshot(path))


SNAPSHOTS: dict[str, Callable[[], SnapshotFindings]] = {
    "fails in forward": lambda: explained(failing(FORWARD)),
    "fails in backward": lambda: explained(failing(BACKWARD)),
    "fails in the optimizer": lambda: explained(failing(IN_STEP)),
    "fails twice": lambda: explained(snapshot_in_memory(out_of_memory())),
    "fails on one of two devices": lambda: explained(two_devices()),
    "a state without history": lambda: explained(state()),
    "grows": lambda: explained(growing()),
    "nothing": lambda: explained(snapshot_in_memory(snapshot([]))),
    "other settings": lambda: explained(growing(), settings=["expandable_segments:True"], gpu_memory=4 * MIB),
    **{name: partial(of_file, path) for name, path in FILES.items()},
}


def of_workload(name: str) -> RunResults:
    return RunResults(combine_cycles(recorded_workload(name).cycles))


RUNS: dict[str, Callable[[], RunResults]] = {
    "on the CPU": on_cpu,
    "on a GPU": on_cuda,
    "runs out of memory": lambda: replace(
        on_cuda(oom=True), failed_allocation=results_of(kept_on_cuda()).failed_allocation
    ),
    "nothing recorded": lambda: replace(on_cpu(), findings=None, timings=None),
    "without parameters' gradients": lambda: replace(on_cpu(), unused_parameters=tuple(f"net.{n}" for n in range(99))),
    **{name: partial(of_workload, name) for name in ONE_OF_EACH},
}


def predicted(*, fits: bool | None) -> Answer:
    sizes = Sizes(3 * GIB, 3 * GIB, 4 * GIB, 0)
    at = OutOfMemoryAt(GIB, 3, SourceLine("/home/me/train.py", 7)) if fits is False else None
    card = None if fits is None else H100
    return answer_of_prediction(Prediction(on_cuda(), card, sizes, sizes, at, ("4 steps ran.",)))


def watched() -> Iterator[Answer]:
    grown = OutlivedMemory("activation", "forward", SourceLine("/home/me/train.py", 7), 9 * MIB, 9, MIB, ())
    trend = GrowthOverSteps(Trend(1e6, 3, 90, GIB), 2 * GIB, 1000)
    yield answer_of_watch(report_of(allocated_bytes=GIB, reserved_bytes=2 * GIB, limit_bytes=8 * GIB))
    yield answer_of_watch(report_of(allocated_bytes=GIB, outlived=(grown,), steps=StepFindings(90, growth=trend)))
    yield answer_of_watch(report_of(error="CUDA out of memory", notes=("The history is gone.",)))
    yield answer_of_watch(report_of(error="CUDA out of memory", failed=RUNS["runs out of memory"]().failed_allocation))


def diffs() -> Iterator[Answer]:
    names = {"before": "a", "after": "b"}
    yield answer_of_diffs([diff_peaks(BEFORE, AFTER)], **names)
    yield answer_of_diffs([diff_peaks(BEFORE, BEFORE)], **names)
    yield answer_of_diffs([], **names)
    yield answer_of_diffs(diff_snapshots(growing(), failing(FORWARD)), **names)


def fitted(*, fits: bool, is_each: bool = False) -> Answer:
    names = [(), *((name,) for name in SCRIPT_CHANGES), tuple(SCRIPT_CHANGES)]
    trials = tuple(
        FitTrial(apply, fits and bool(apply), 9 * GIB, 9 * GIB, (f"{apply}: not made.",), flops=9) for apply in names
    )
    why = Explanation("Activations of 12 calls of Block are kept for backward. Checkpoint each. " * 3, "repeated parts")
    base = replace(trials[0], failed_in=2, failed_at_bytes=8 * GIB, explanation=why)
    best, changes = (trials[-1], change_sentences(trials[-1].apply)) if fits and not is_each else (None, ())
    return answer_of_fit(FitReport("an H100", 8 * GIB, ("t.py",), (base, *trials[1:]), best, changes, is_each))


NO_CACHE = replace(
    READY, stage=StartStage.PROFILE, weights_bytes=75 * GIB, available_bytes=-6 * GIB, cache_bytes=0, cache_tokens=None
)


def nth(answers: Callable[[], Iterator[Answer]], number: int) -> Answer:
    return list(answers())[number]


OTHERS: dict[str, Callable[[], Answer]] = {
    "a job whose ranks are alike": lambda: answer_of_job(explain_job([rank_peak(rank, 1000) for rank in range(64)])),
    "a job with an odd rank that failed": lambda: answer_of_job(
        explain_job([rank_peak(9, 2000, oom="train.py:7: it ran out"), *(rank_peak(rank, 1000) for rank in range(8))])
    ),
    "a job that cannot be read": lambda: answer_of_job(explain_job([rank_peak(3, 0, problem="It is damaged.")])),
    "a predicted job": lambda: answer_of_null_job(job(FIRST, LAST)),
    "a predicted job that fails": lambda: answer_of_null_job(
        job(replace(FIRST, out_of_memory=True, failure="CUDA out of memory", line=SourceLine("train.py", 7)), LAST)
    ),
    "fits": partial(predicted, fits=True),
    "does not fit": partial(predicted, fits=False),
    "needs": partial(predicted, fits=None),
    "the least that fits": partial(fitted, fits=True),
    "nothing fits": partial(fitted, fits=False),
    "each change": partial(fitted, fits=True, is_each=True),
    "an engine that starts": lambda: engine_page(start(READY), command="vllm serve m", computed=True).answer,
    "an engine without a cache": lambda: (
        engine_page(start(NO_CACHE, failure="ValueError"), command="", computed=False).answer
    ),
    **{f"watched {n}": partial(nth, watched, n) for n in range(4)},
    **{f"difference {n}": partial(nth, diffs, n) for n in range(4)},
}


def check(answer: Answer) -> None:
    lines = [line.rstrip() for line in answer_screen(answer, full=False, width=WIDTH).splitlines()]
    assert len(lines) <= LINES
    long = [line for line in lines if len(line) > WIDTH]
    assert all("/" in line or "\\" in line for line in long), long or "only a path, which is never broken, is longer"
    assert len(set(answer.sentences)) == len(answer.sentences)
    text = " ".join(" ".join(lines).split())
    for part in (answer.happened, answer.why, answer.change):
        assert all(text.count(" ".join(shorten_paths(sentence).split())) == 1 for sentence in part)
    whole = " ".join(answer_screen(answer, full=True, width=WIDTH).split())
    assert all(" ".join(sentence.split()) in whole for sentence in answer.sentences)


def said_by(answer: Answer) -> list[str]:
    return [*answer.happened, *answer.why, *answer.change]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_says_the_same_on_screen_and_page_in_json_and_in_report(name: str) -> None:
    results = RUNS[name]()
    answer = results.answer
    check(answer)
    if (findings := results.findings) is not None:
        page = page_data(timeline_page(findings, answer, run={}, failed=results.failed_allocation))
        assert (page["said"], page["notes"]) == (said_by(answer), list(answer.remarks))
        assert peak_document(results)["answer"] == answer_values(answer)
    again = results_of(kept_run(results)).answer
    assert (said_by(again), again.remarks) == (said_by(answer), answer.remarks)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_says_the_same_on_screen_and_page_and_in_json(name: str) -> None:
    finding = SNAPSHOTS[name]()
    answer = answer_of_snapshot(finding, file="s.pickle")
    check(answer)
    assert answer.is_alarming == any(device.failures for device in finding.parts)
    assert snapshot_json(finding, file="s.pickle")["answer"] == answer_values(answer)
    for device, of_device in zip(finding.parts, answers_of_devices(finding), strict=True):
        said = page_data(snapshot_page(device, of_device, run={}))["said"]
        assert list(said) == said_by(of_device) and (
            device is not finding.worst or said_by(of_device) == said_by(answer)
        )


@pytest.mark.parametrize("name", OTHERS)
def test_every_other_answer_fits(name: str) -> None:
    check(OTHERS[name]())


def test_there_are_more_than_forty_cases() -> None:
    """Beside the recordings of others."""
    assert len(RUNS) + len(SNAPSHOTS) - len(FILES) + len(OTHERS) == 45


def test_memory_that_ran_out_is_the_headline() -> None:
    answer = answer_of_snapshot(SNAPSHOTS["fails twice"](), file="s.pickle")
    assert answer.is_alarming and answer.happened[0].startswith("Out of memory on device 0 at ")
    assert answer_screen(answer, full=False).splitlines()[0].startswith("Out of memory on device 0 at ")
