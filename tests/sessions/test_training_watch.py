"""A watched training where there is no allocator with a history: the CPU. tests/on_null_gpu has the rest."""

from __future__ import annotations

import copy
import json
import os
import random
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.exporters.snapshot_samples import out_of_memory
from tests.watched import report_of
from tracer import watch_training
from tracer.answers.failed_allocation import FailedAllocation
from tracer.answers.out_of_memory import last_out_of_memory
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.answers.step_findings import Fragmenting, GrowthOverSteps, StepFindings, Trend
from tracer.answers.watch_report import (
    END_OF_RUN,
    LET_GO,
    Event,
    OutlivedMemory,
    answer_of_watch,
    failure_in_words,
    growth_sentences,
)
from tracer.answers.why.first_changes import FirstChange, FirstChanges
from tracer.capture.sources.source_line import SourceLine
from tracer.capture.step_columns import StepColumns, StepTable
from tracer.errors import Terminated
from tracer.exporters.json_documents.watch import watch_values
from tracer.sessions.training_watch import TrainingWatch
from tracer.snapshot.load import snapshot_in_memory

MIB = 1 << 20


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    optimizer.zero_grad()
    loss = model(torch.randn(2, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.detach()


def watched(folder: Path, **options: Any) -> tuple[TrainingWatch, nn.Module, torch.optim.Optimizer]:
    model, optimizer = model_and_optimizer()
    return watch_training(model, optimizer, save_dir=folder, screen="none", **options), model, optimizer


def saved(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "watch.json").read_text())
    return values


@pytest.mark.parametrize("num_steps", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_all_steps_are_those_of_a_run_without_it_bit_for_bit(tmp_path: Path, num_steps: int) -> None:
    def run(watch: TrainingWatch | None, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        random.seed(0)
        np.random.seed(0)
        torch.manual_seed(1)
        losses = []
        for _ in range(num_steps):
            losses.append(train_step(model, optimizer))
            if watch is not None:
                watch.step()
        return {
            "losses": torch.stack(losses),
            "parameters": torch.cat([one.detach().reshape(-1) for one in model.parameters()]),
            "state": copy.deepcopy(optimizer.state_dict()["state"][0]["exp_avg"]),
            "torch": torch.get_rng_state(),
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False)["state"]["key"].tolist(),
        }

    expected = run(None, *model_and_optimizer())
    watch, model, optimizer = watched(tmp_path)
    with watch:
        watch.write("in the middle of it")
        found = run(watch, model, optimizer)
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, Tensor) else found[name] == value
        assert same, name
    assert watch.num_steps_done == num_steps and watch.fault is None
    assert [event.what for event in watch.report.events] == ["in the middle of it", "the end of the run"]  # type: ignore[union-attr]


def test_nothing_is_found_where_nothing_is_held(tmp_path: Path) -> None:
    watch, model, optimizer = watched(tmp_path)
    with watch:
        for _ in range(60):
            train_step(model, optimizer)
            watch.step()
    values = saved(tmp_path)
    assert values["findings"] == {"num_steps": 60, "growth": None, "fragmenting": None, "num_retries": 0}
    assert values["kept"] == [] and values["out_of_memory"] is None
    assert len(values["steps"]["step"]) == 60
    assert any("The CPU's allocator has neither counters nor a history" in note for note in values["notes"])
    assert not (tmp_path / "memory_snapshot.pkl").exists()


def keep_a_mebibyte_a_step(
    num_steps: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *, cleared_after: int = -1
) -> dict[str, Any]:
    """Resident memory is given: how much of a process is resident is not in a test's hands."""
    history: list[Tensor] = []
    monkeypatch.setattr("tracer.capture.device.memory_counters.resident_bytes", lambda: (100 + len(history)) * MIB)
    watch, model, optimizer = watched(folder)
    with watch:
        for step in range(num_steps):
            train_step(model, optimizer)
            history.append(torch.empty(1 << 18))
            watch.step()
            if step == cleared_after:
                history.clear()
    return saved(folder)


def test_what_grows_on_the_cpu_is_named_by_its_looks_and_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = keep_a_mebibyte_a_step(130, tmp_path, monkeypatch)
    assert [event["what"] for event in values["events"]] == ["memory grows from step to step", "the end of the run"]
    assert values["findings"]["growth"]["trend"]["bytes_per_step"] == MIB
    (kept,) = values["kept"]
    assert kept["what"] == "tensors [262144] float32"
    assert kept["bytes_per_step"] == MIB
    assert (kept["count"], kept["bytes"]) == (130, 130 * MIB)
    assert [holder["path"] for holder in kept["holders"]] == ["history[...]"]
    assert "history[...]" in (tmp_path / "watch.txt").read_text()


def test_the_last_report_repeats_who_held_what_is_gone_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = keep_a_mebibyte_a_step(200, tmp_path, monkeypatch, cleared_after=150)
    assert (values["event"]["step"], values["kept"]) == (200, [])
    (before,) = values["found_before"]
    assert before["event"]["step"] == 64
    assert [holder["path"] for kept in before["kept"] for holder in kept["holders"]] == ["history[...]"]
    (remark,) = (line for line in values["answer"]["remarks"] if line.startswith("After step 64 it was found: "))
    assert "Resident memory grows by 1.00 MiB a step" in remark
    assert "held by history[...] (local variable of keep_a_mebibyte" in remark
    assert remark.replace("/", "")[:60] in (tmp_path / "watch.txt").read_text().replace("/", "")


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(
    ("error", "what", "said"),
    [
        (ValueError("no such label\nmore"), "ended by ValueError", "ValueError: no such label"),
        (KeyboardInterrupt(), "interrupted", "KeyboardInterrupt"),
        (torch.OutOfMemoryError("no memory"), "out of memory", "OutOfMemoryError: no memory"),
    ],
)
def test_what_ends_the_run_is_explained_and_goes_on_its_way(
    tmp_path: Path, error: BaseException, what: str, said: str
) -> None:
    watch, model, optimizer = watched(tmp_path)
    with pytest.raises(type(error)), watch:
        train_step(model, optimizer)
        watch.step()
        raise error
    values = saved(tmp_path)
    assert (values["event"]["what"], values["event"]["step"], values["error"]) == (what, 1, said)
    assert Path(values["error_file"]).name == "test_training_watch.py"
    assert (tmp_path / "watch.txt").read_text().startswith("Step 2, ")


@pytest.mark.usefixtures("usual_signals")
def test_sigterm_ends_the_run_with_its_report(tmp_path: Path) -> None:
    watch, model, optimizer = watched(tmp_path)
    with pytest.raises(Terminated), watch:
        train_step(model, optimizer)
        os.kill(os.getpid(), signal.SIGTERM)
    assert saved(tmp_path)["event"]["what"] == "ended by SIGTERM"


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_a_signal_asks_for_the_report_and_the_run_goes_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGUSR1)
    watch, model, optimizer = watched(tmp_path)
    with watch:
        train_step(model, optimizer)
        watch.step()
        os.kill(os.getpid(), signal.SIGUSR1)
        assert not (tmp_path / "watch.json").exists(), "the signal may have come within somebody's lock"
        train_step(model, optimizer)
        assert saved(tmp_path)["event"]["what"] == "asked for by SIGUSR1"
        (tmp_path / "watch.json").unlink()
        watch.step()
        assert not (tmp_path / "watch.json").exists()
        os.kill(os.getpid(), signal.SIGUSR1)
        watch.step()
        assert saved(tmp_path)["event"] | {"time_ns": 0} == {"what": "asked for by SIGUSR1", "step": 3, "time_ns": 0}
    assert signal.getsignal(signal.SIGUSR1) == before
    assert len(saved(tmp_path)["events"]) == 3


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="there is no such signal here")
def test_a_signal_before_the_end_is_answered(tmp_path: Path) -> None:
    watch, _, _ = watched(tmp_path)
    with watch:
        os.kill(os.getpid(), signal.SIGUSR1)
    assert [event["what"] for event in saved(tmp_path)["events"]] == ["asked for by SIGUSR1"]


def test_a_handler_of_somebody_elses_is_left_alone(tmp_path: Path) -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: heard.append(number))
    try:
        watch, _, _ = watched(tmp_path)
        with watch:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert heard == [signal.SIGUSR1]
        assert signal.getsignal(signal.SIGUSR1) is not before
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_report_is_not_written_again_and_again(tmp_path: Path) -> None:
    watch, _, _ = watched(tmp_path)
    with watch:
        written = [watch.write(f"number {number}") is not None for number in range(25)]
    assert written == [True] * 20 + [False] * 5


def test_a_fault_of_the_watch_does_not_reach_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    watch, model, optimizer = watched(tmp_path)
    steps = 0
    with watch:
        monkeypatch.setattr(watch._steps._reader, "end_of_step", lambda *_: 1 / 0)
        for _ in range(5):
            train_step(model, optimizer)
            watch.step()
            steps += 1
    assert capsys.readouterr().err.count("The watch has stopped, and the loop goes on") == 1
    assert steps == 5 and isinstance(watch.fault, ZeroDivisionError)
    assert not (tmp_path / "watch.json").exists()


def test_nothing_of_the_users_is_kept_afterwards(tmp_path: Path) -> None:
    import gc
    import weakref

    watch, model, optimizer = watched(tmp_path)
    with watch:
        train_step(model, optimizer)
        watch.step()
    gone = weakref.ref(model), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [one() for one in gone] == [None, None]


def test_each_rank_has_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    watch, model, optimizer = watched(tmp_path)
    left: list[dict[str, Any]] = []
    with watch:
        train_step(model, optimizer)
        watch.step()
        watch.write()
        left.append(json.loads((tmp_path / "rank3" / "rank.json").read_text()))
    left.append(json.loads((tmp_path / "rank3" / "rank.json").read_text()))
    assert (tmp_path / "rank3" / "watch.json").exists()
    assert [(one["index"], one["num_steps"], one["has_ended"]) for one in left] == [(3, 1, False), (3, 1, True)]
    assert left[1]["peak_bytes"] > 0 and left[1]["failure"] == ""


def test_what_a_rank_has_found_is_in_the_summary_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "ranks.txt").write_text("of an earlier run")
    sizes = iter(range(100, 400))
    monkeypatch.setattr("tracer.capture.device.memory_counters.resident_bytes", lambda: next(sizes) * MIB)
    watch, _, _ = watched(tmp_path)
    with pytest.raises(ValueError, match="no such label"), watch:
        assert not (tmp_path / "ranks.txt").exists()
        for _ in range(64):
            watch.step()
        raise ValueError("no such label")
    text = (tmp_path / "ranks.txt").read_text()
    assert "ended in step 65 by ValueError: no such label. Resident memory grows by 1.00 MiB a step" in text
    assert "rank 1: left no results" in text


# ---- the words -------------------------------------------------------------------------------------------------------


def test_each_finding_is_one_sentence() -> None:
    trend = Trend(1.5 * MIB, 20, 400, 700 * MIB)
    answer = answer_of_watch(
        report_of(
            allocated_bytes=700 * MIB,
            limit_bytes=1000 * MIB,
            steps=StepFindings(
                400,
                growth=GrowthOverSteps(trend, 1000 * MIB, 600),
                fragmenting=Fragmenting(trend, 100 * MIB),
                num_retries=1,
            ),
        )
    )
    assert answer.why == (
        "In-use memory grows by 1.50 MiB a step (steps 20 to 400); at this rate 1000.00 MiB are full in step 600.",
    )
    assert [remark[:60] for remark in answer.remarks] == [
        "Reserved memory grows by 1.50 MiB a step to 700.00 MiB, while no more than"[:60],
        "The cache was emptied for a request 1 time: each one waits for the device."[:60],
    ]


LEAK = OutlivedMemory("activation", "train", SourceLine("train.py", 9), 288 * MIB, 24, 24 * MIB, ())


@pytest.mark.parametrize("bytes_per_step", [1 << 40, 0])
def test_a_failure_has_what_grew_until_then_and_no_other_change_than_to_let_go_of_it(bytes_per_step: int) -> None:
    (device,) = replay_snapshot(snapshot_in_memory(out_of_memory())).devices
    failed = FailedAllocation(last_out_of_memory(device), None, None)
    report = report_of(
        events=(Event("out of memory", 14, 5),),
        error="OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB. GPU 0 has expandable_segments",
        failed=failed,
        outlived=(replace(LEAK, bytes_per_step=bytes_per_step),),
    )
    said, answer = failure_in_words(report), answer_of_watch(report)
    assert said is not None and failure_in_words(report_of()) is None
    assert answer.is_alarming and answer.happened == (
        "Step 15, out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 32.00 MiB",
        failed.event.happened("cuda:0"),
    )
    if not bytes_per_step:
        assert said == failed and answer.change == (failed.event.change,) * bool(failed.event.change)
        return
    assert [line.split(":")[0] for line in said.event.why] == [
        "Each step leaves 1.00 TiB more in use than the one before",
        "1.00 TiB more in each step",
    ]
    assert answer.why == said.event.why and answer.change == (LET_GO,)
    assert said.event.asked_bytes == failed.event.asked_bytes


@pytest.mark.parametrize("is_cause", [True, False])
def test_line_and_holder_of_what_grows_are_said_once(is_cause: bool) -> None:
    (device,) = replay_snapshot(snapshot_in_memory(out_of_memory())).devices
    cause = FirstChange("keep less", None, 9, 4, 10, 5, grows=is_cause, sentence="A list keeps results.")
    event = replace(last_out_of_memory(device), why=(cause.sentence,), decisive="results kept")
    growth = GrowthOverSteps(Trend(1.5 * MIB, 20, 400, 700 * MIB), 1000 * MIB, 600)
    failed = FailedAllocation(event, FirstChanges((cause,), 1), None)
    report = report_of(
        allocated_bytes=700 * MIB, failed=failed, outlived=(LEAK,), steps=StepFindings(400, growth=growth)
    )
    cause_words, counted, *held = answer_of_watch(report).why
    assert (cause_words, counted) == (cause.sentence, "In-use memory grows by 1.50 MiB a step (steps 20 to 400).")
    assert bool(held) != is_cause


def test_small_change_is_not_listed_beside_a_leak() -> None:
    small = replace(LEAK, bytes_per_step=4, what="held")
    sentences = growth_sentences(report_of(allocated_bytes=MIB, outlived=(LEAK, small)))
    assert len(sentences) == 2 and "of kind activation" in sentences[1]


@pytest.mark.parametrize("grows", [True, False])
def test_a_run_that_has_ended_says_its_peak_and_what_was_found_while_it_was_there(grows: bool) -> None:
    growth = GrowthOverSteps(Trend(8 * MIB, 5, 40, 400 * MIB), None, None) if grows else None
    table = StepTable()
    for step, peak_bytes in enumerate((470 * MIB, 476 * MIB)):
        table.add({"step": step + 1, "peak_bytes": peak_bytes})
    before = report_of(events=(Event("memory grows from step to step", 32, 5),), outlived=(LEAK,))
    answer = answer_of_watch(
        report_of(
            events=(Event(END_OF_RUN, 40, 5),),
            columns=table.columns(),
            allocated_bytes=0,
            limit_bytes=1000 * MIB,
            reserved_bytes=494 * MIB,
            steps=StepFindings(40, growth=growth),
            found_before=before if grows else None,
        )
    )
    assert answer.happened == (
        "After step 40, the end of the run",
        "Peak on cuda:0: 476.00 MiB of 1000.00 MiB allocated; 0 B at the end, reserved 494.00 MiB.",
    )
    said = [remark for remark in answer.remarks if remark.startswith("After step 32 it was found: ")]
    assert len(said) == grows and all("train.py:9" in remark for remark in said)


def test_every_column_is_described() -> None:
    described = (Path(__file__).parents[2] / "docs" / "files.md").read_text()
    missing = [name for name in (*watch_values(report_of()), *StepColumns.__slots__) if f"`{name}`" not in described]
    assert missing == []
