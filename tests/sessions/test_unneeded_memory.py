"""What nobody needs is found at its line, in programs that keep it; and programs that keep nothing are told nothing."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.changes.wasteful import PROGRAMS, Profile, each_step, pair, train
from tests.truth.catalogue import entry_of
from tests.truth.isolate import value_in_fresh_process
from tracer.analysis.profiles.waste import WasteKind
from tracer.changes.unneeded import LARGE_SHARE, unneeded_memory, unneeded_sentence
from tracer.exporters.screen.run import short_lines
from tracer.results.run_results import RunResults
from tracer.sessions.output_files import unneeded_of
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile

SCHEDULE = Schedule(1, 1, 2, 1)
FILES = ("max-mem", "memory-timeline", "peak-json", "memory-report", "run-time-report", "memory-snapshot")
QUICK = {"losses_with_graphs", "attribute_with_the_last_result"}
CLEAN = (
    *("encoder_decoder", "mixture_of_experts", "tied_language_model", "graph_network", "average_of_weights"),
    *("data_loader", "low_rank_adapters", "blocks_recomputed", "truncated_lstm", "mixed_precision"),
    *("dataset_in_memory", "inference_only"),
)
QUICK_CLEAN = {"average_of_weights"}


def profiled(folder: Path, run: Callable[[Profile], None]) -> RunResults:
    gc.collect()
    torch.manual_seed(0)
    made = []

    def profile(*trained: Any) -> TrainingProfile:
        made.append(TrainingProfile(*trained, save_dir=folder, screen="none", schedule=SCHEDULE, leave_out=FILES))
        return made[-1]

    run(profile)
    (session,) = made
    assert session.fault is None
    assert session.results is not None
    return session.results


def slow_unless(quick: set[str], names: tuple[str, ...]) -> list[object]:
    return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", slow_unless(QUICK, tuple(PROGRAMS)))
def test_what_a_program_wastes_is_named_with_its_line(name: str, tmp_path: Path) -> None:
    value_in_fresh_process(named_with_its_line, name, tmp_path)


def named_with_its_line(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    results = profiled(tmp_path, program.run)
    first = results.waste[0]
    assert first.kind == WasteKind[program.kind]
    assert first.place is not None
    assert (Path(first.place.file).name, first.place.line) == ("wasteful.py", program.line)
    assert first.path.startswith(program.held)
    assert results.findings is not None
    assert 0 < sum(one.bytes for one in results.waste) <= results.findings.worst.peak.peak_bytes
    (found,) = unneeded_memory([first], device="cpu")
    words = unneeded_sentence(found, results.findings.worst.peak.peak_bytes)
    assert f"wasteful.py:{program.line}" in words
    assert found.lines
    is_large = first.bytes >= LARGE_SHARE * results.findings.worst.peak.peak_bytes
    told = [line for line in short_lines(results, tmp_path, []) if "Not needed at the peak" in line]
    assert bool(told) == is_large
    assert unneeded_of(results)[0] == found


@pytest.mark.parametrize("name", slow_unless(QUICK_CLEAN, CLEAN))
def test_a_program_that_keeps_nothing_is_told_nothing(name: str) -> None:
    value_in_fresh_process(told_nothing, name)


def told_nothing(name: str) -> None:
    program = entry_of(name).build()
    gc.collect()
    session = ProfileSession(program.model or {}, program.optimizers, schedule=SCHEDULE)
    with session:
        for _ in range(SCHEDULE.num_steps):
            program.step()
            session.step()
    assert session.fault is None
    assert session.waste == ()


def loops_variables_until_they_are_set_anew_are_no_waste(tmp_path: Path) -> None:
    def run(profile: Profile) -> None:
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in each_step(profile, model, optimizer):
            x, y = pair()
            hidden = model[:2](x)
            out = model[2](hidden)
            loss = (out - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    assert profiled(tmp_path, run).waste == ()


def a_large_result_in_a_variable_is_named_and_a_batch_is_not(tmp_path: Path) -> None:
    """As logits that the model returns beside its loss: `del` lets go of them before backward."""

    def run(profile: Profile) -> None:
        model = nn.Linear(512, 2048)
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for _ in each_step(profile, model, optimizer):
            batch = torch.randn(512, 512)
            logits = model(batch)
            logits.sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    results = profiled(tmp_path, run)
    (found,) = results.waste
    assert (found.kind, found.path, found.bytes) == (WasteKind.VARIABLE, "logits", 512 * 2048 * 4)
    assert found.variable.startswith("local variable of run()")
    (unneeded,) = unneeded_memory([found], device="cpu")
    assert unneeded.lines[0].startswith("del logits")
    assert "held by `logits`, a local variable of run()" in unneeded_sentence(unneeded, 1)


def who_held_it_is_known_although_the_loop_went_on_and_let_go(tmp_path: Path) -> None:
    """The look is taken when the last cycle has ended, and not when the loop has."""

    def run(profile: Profile) -> None:
        model, kept = nn.Linear(32, 8), []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        with profile(model, optimizer) as session:
            for number in range(8):
                train(model, optimizer)
                if number < 5:
                    kept.append(model(pair()[0]).detach().repeat(1, 16))
                session.step()
            kept.clear()

    (one,) = profiled(tmp_path, run).waste
    assert (one.kind, one.path) == (WasteKind.TENSORS, "kept[...]")


def a_run_that_fails_says_what_its_earlier_steps_have_kept(tmp_path: Path) -> None:
    def run(profile: Profile) -> None:
        model, kept = nn.Linear(32, 8), []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        session = profile(model, optimizer)
        with pytest.raises(MemoryError), session:
            for number in range(5):
                train(model, optimizer)
                kept.append(model(pair()[0]).detach().repeat(1, 16))
                if number == 3:
                    raise MemoryError
                session.step()

    assert [(one.kind, one.path) for one in profiled(tmp_path, run).waste] == [(WasteKind.TENSORS, "kept[...]")]


def each_of_two_holders_from_before_the_recording_has_its_own_bytes(tmp_path: Path) -> None:
    """Of one list few large tensors, of another one many small ones: which has more of them does not matter."""

    def run(profile: Profile) -> None:
        model, few, many = nn.Sequential(nn.Linear(32, 64), nn.Tanh()), [], []
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        for number in each_step(profile, model, optimizer):
            x = pair(64)[0]
            model(x).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if number < 1:
                few.append(model(pair(4096)[0]))
                many += [model(pair(512)[0]) for _ in range(3)]

    found = {one.path.partition("[")[0]: one.bytes for one in profiled(tmp_path, run).waste}
    each = (32 + 64) * 4
    assert found["few"] == pytest.approx(4096 * each, rel=0.4)
    assert found["many"] == pytest.approx(3 * 512 * each, rel=0.4)


_OTHERS = (
    loops_variables_until_they_are_set_anew_are_no_waste,
    a_large_result_in_a_variable_is_named_and_a_batch_is_not,
    who_held_it_is_known_although_the_loop_went_on_and_let_go,
    a_run_that_fails_says_what_its_earlier_steps_have_kept,
    each_of_two_holders_from_before_the_recording_has_its_own_bytes,
)


@pytest.mark.parametrize("claim", _OTHERS, ids=lambda claim: claim.__name__)
def test_of_what_a_variable_or_a_list_holds(claim: Callable[[Path], None], tmp_path: Path) -> None:
    value_in_fresh_process(claim, tmp_path)
