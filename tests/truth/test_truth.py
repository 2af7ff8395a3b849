"""Watching changes nothing and the peak is the truth, on programs of many kinds, beside an independent bookkeeper."""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.truth import programs_models, programs_processes, programs_torch, programs_training
from tests.truth.catalogue import entry_of, names
from tests.truth.isolate import in_fresh_process
from tests.truth.program import PROGRAMS
from tests.truth.verdict import Verdict, judge
from tracer.runs.training import profile_training

ROOT = Path(__file__).resolve().parent.parent.parent
COLUMNS = ("crash", "changed", "kept", "wrong_sum", "wrong_peak")

_INSIDE_COMPILED = "hooks are traced into what is compiled"
_FUNCTIONAL = "tensors of torch.func have no storage to look at"
_DIES_UNSEEN = "what was there before the window and goes within it is counted until its address is used again"
_IDLE = "what nothing touches in the window is missing"
_FOREIGN = "memory of other allocators is there from the beginning to the end of the window, or not at all"
_THREADS = "torch records no frees and no allocations of other threads"

# What is known to be wrong: (program, column). One that is right is a failure, so that it is taken out of here.
KNOWN_DEFECTS: dict[tuple[str, str], str] = {
    ("compiled_in_place", "crash"): _INSIDE_COMPILED,
    ("compiled_step_function", "crash"): _INSIDE_COMPILED,
    ("compiled_aot_eager", "changed"): _INSIDE_COMPILED,
    ("compiled_aot_eager", "wrong_peak"): _INSIDE_COMPILED,
    ("compiled_with_graph_break", "changed"): _INSIDE_COMPILED,
    ("compiled_optimizer_step", "changed"): _INSIDE_COMPILED,
    ("compiled_dynamic_shapes", "changed"): _INSIDE_COMPILED,
    ("compiled_dynamic_shapes", "wrong_peak"): _INSIDE_COMPILED,
    ("compiled_inductor", "changed"): _INSIDE_COMPILED,
    ("compiled_inductor", "wrong_peak"): _INSIDE_COMPILED,
    ("scripted_model", "crash"): "a ScriptModule takes no hook",
    ("functional_gradients", "crash"): _FUNCTIONAL,
    ("gradients_of_each_sample", "crash"): _FUNCTIONAL,
    ("forward_mode_derivatives", "crash"): _FUNCTIONAL,
    ("wrapper_subclass", "crash"): "a wrapper subclass has no storage to look at",
    ("ensemble_by_vmap", "wrong_peak"): "torch's profiler with record_shapes keeps what vmap wraps alive",
    ("gan_two_optimizers", "wrong_peak"): _DIES_UNSEEN,
    ("truncated_lstm", "wrong_peak"): _DIES_UNSEEN,
    ("assigned_state_dict", "wrong_peak"): _DIES_UNSEEN,
    ("closures_for_lbfgs", "wrong_peak"): _DIES_UNSEEN,
    ("idle_cache", "wrong_peak"): _IDLE,
    ("leaking_losses", "wrong_peak"): _IDLE,
    ("traced_model", "wrong_peak"): _IDLE,
    ("sparse_adjacency", "wrong_peak"): _IDLE,
    ("workload:growing_list", "wrong_peak"): _IDLE,
    ("data_loader_with_workers", "wrong_peak"): _FOREIGN,
    ("forward_in_a_thread_pool", "wrong_peak"): _THREADS,
    ("replicas_in_threads", "wrong_peak"): _THREADS,
    ("batches_made_in_a_thread", "wrong_peak"): _THREADS,
}
# Wrong in some runs only: which address is handed out again is chance.
WRONG_BY_CHANCE: dict[tuple[str, str], str] = {
    ("replay_buffer_q_learning", "wrong_peak"): _DIES_UNSEEN,
    ("workload:custom_function", "wrong_peak"): _DIES_UNSEEN,
    ("workload:lbfgs", "wrong_peak"): _DIES_UNSEEN,
    ("workload:replaced_data", "wrong_peak"): _DIES_UNSEEN,
    ("arrays_of_numpy", "wrong_peak"): _FOREIGN,
    ("data_loader_with_workers", "wrong_sum"): _FOREIGN,
}
# Wrong of every program, but of those without a model.
KNOWN_OF_ALL = {"kept": "session, profiler and callback hold each other, and the model with them"}
NO_MODEL = {"workload:functional_model", "workload:sparse_and_resize", "workload:replaced_data"}

judged = cache(judge)


def _marks(name: str, column: str) -> Iterator[pytest.MarkDecorator]:
    if entry_of(name).slow:
        yield pytest.mark.slow
    if reason := KNOWN_DEFECTS.get((name, column)):
        yield pytest.mark.xfail(strict=True, reason=reason)
    elif reason := WRONG_BY_CHANCE.get((name, column)):
        yield pytest.mark.xfail(strict=False, reason=reason)
    elif name not in NO_MODEL and (reason := KNOWN_OF_ALL.get(column)):
        yield pytest.mark.xfail(strict=True, reason=reason)


CASES = [
    pytest.param(name, column, marks=list(_marks(name, column)), id=f"{name}-{column}")
    for name in names()
    for column in COLUMNS
]


@pytest.mark.parametrize(("name", "column"), CASES)
def test_the_tracer_tells_the_truth_and_changes_nothing(name: str, column: str) -> None:
    verdict: Verdict = judged(name)
    assert not verdict.broken
    if verdict.crash and column != "crash":
        pytest.skip(f"crashed, so that nothing can be said of {column}")
    assert not getattr(verdict, column)


# ---- by rules, and not by name ---------------------------------------------------------------------------------------


def _names_of_programs() -> set[str]:
    """Names that nobody would choose by chance: of builders, of two words or more, and of classes."""
    builders = {name.rpartition(":")[2] for name in names()}
    modules = (programs_models, programs_processes, programs_torch, programs_training)
    classes = {
        name.strip("_")
        for module in modules
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    return {name for name in builders if "_" in name} | {name for name in classes if not name.islower()}


def test_known_defects_are_of_programs() -> None:
    known = {*KNOWN_DEFECTS, *WRONG_BY_CHANCE}
    assert known <= {(name, column) for name in {*names(), *PROGRAMS} for column in COLUMNS}


def test_no_program_is_known_to_the_tracer() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in ROOT.glob("tracer/**/*.py")}
    names = _names_of_programs()
    assert len(sources) > 50 and len(names) > 80
    found = {(name, path) for name in names for path, source in sources.items() if re.search(rf"\b{name}\b", source)}
    assert found == set()


@pytest.mark.xfail(strict=True, reason="profile_training adds a filter to the process's warnings, and leaves it")
def test_no_warning_filter_is_left() -> None:
    returned = in_fresh_process(_filters_of_profiler_warnings)
    assert returned.error is None
    assert returned.value == 0


def _filters_of_profiler_warnings() -> int:
    """Libraries that the tracer imports add filters of their own; those are not meant."""
    with tempfile.TemporaryDirectory() as folder, profile_training(nn.Linear(2, 2), save_dir=folder) as session:
        for _ in range(session.schedule.num_steps):
            session.model(torch.ones(1, 2))
            session.step()
    return sum("Profiler" in str(pattern) for _, pattern, *_ in warnings.filters)
