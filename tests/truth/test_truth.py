"""Watching changes nothing and the peak is the truth, on programs of many kinds, beside an independent bookkeeper."""

from __future__ import annotations

import inspect
import re
import tempfile
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.truth import catalogue
from tests.truth.catalogue import entry_of, names
from tests.truth.isolate import value_in_fresh_process
from tests.truth.program import PROGRAMS
from tests.truth.verdict import COLUMNS, judge
from tracer.sessions.training_profile import profile_training

ROOT = Path(__file__).resolve().parent.parent.parent

_KEPT_BY_STACKS = "torch.profiler, if it records stacks, keeps what functional_call put in a module at its first call"
_COMPILE_WORKERS = "inductor's own threads, which compile, are there at the end or not"
_MADE_ELSEWHERE = "what nobody recorded counts within the steps that use it, and not before; a note says so"

# What is known to be wrong: (program, column). One that is right is a failure, so that it is taken out of here.
KNOWN_DEFECTS: dict[tuple[str, str], str] = {
    ("functional_gradients", "wrong_peak"): _KEPT_BY_STACKS,
    ("arrays_of_numpy", "wrong_peak"): _MADE_ELSEWHERE,
    ("batches_made_in_a_thread", "wrong_peak"): _MADE_ELSEWHERE,
}
# Wrong in some runs only.
WRONG_BY_CHANCE: dict[tuple[str, str], str] = {
    ("data_loader_with_workers", "wrong_peak"): "how many batches have come from the workers is chance",
    ("compiled_inductor_fullgraph", "changed"): _COMPILE_WORKERS,
    ("workload:growing_list", "wrong_peak"): "the bookkeeper finds some KB more than a count by hand, in some runs",
}

# What the profiler does not record has no module and no line.
_THREADS = "other threads call the model, and torch does not record what they do"
_ANOTHER_MODEL = "the program goes on with another model than the one that was named, whose modules have no names"
UNKNOWN_PLACES: dict[str, str] = {
    "forward_in_a_thread_pool": _THREADS,
    "replicas_in_threads": _THREADS,
    "network_that_grows": _ANOTHER_MODEL,
}
LEAST_PART = 0.95
"""Of the bytes whose kind is proved, in each program."""
LOWER_PARTS = {
    # Batches of a list that is there before training: those of the recorded steps are inputs, whosever turn it is.
    "loop_list_of_batches": 0.90,
    # Operators on wrapped tensors name no address: what the program keeps behind backward is called not known.
    "ensemble_by_vmap": 0.90,
    # Nothing has used the targets before the step failed.
    "failing_in_forward": 0.94,
    "forward_mode_derivatives": 0.84,
}

# Of the other tests' workloads those that judge something of their own; `python -m benchmarks.truth` judges all.
WORKLOADS = {"workload:growing_list", "workload:checkpointing_reentrant", "workload:lbfgs", "workload:fno_2d_new_zeros"}

# Judged by `python -m benchmarks.truth` alone: each is much like another one here, and dear. What an
# iterator of a loop holds is tests/capture/objects/test_holders.py's.
_LOOPS = (
    *("whole_batch_enumerated", "enumerated_zip", "with_progress", "batches_of_a_generator", "while_there_is_a_next"),
    *("dictionaries_of_an_iterator", "evaluation_in_the_step", "accumulated", "callbacks_of_a_trainer", "mapped"),
    *("comprehension", "loop_in_a_generator", "best_model_kept"),
)
LEFT_TO_THE_BENCHMARK = {
    *("compiled_fullgraph", "compiled_graph_break_eager", "compiled_step_function", "compiled_dynamic_shapes"),
    *("compiled_layers_of_torch", "library_t5", "library_resnet"),
    *(f"loop_{name}" for name in _LOOPS),
}

# One of each class of programs, for the quick run; the others take some seconds each. Of compiled ones, quicker tests
# are tests/blocks/from_recording/test_origins.py and, for what watching changes,
# tests/capture/objects/test_call_hooks.py.
QUICK = {"gan_two_optimizers", "loop_enumerated"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if entry_of(name).slow or name not in QUICK else [], id=name)
        for name in names()
        if name in PROGRAMS.keys() - LEFT_TO_THE_BENCHMARK | WORKLOADS
    ],
)
def test_the_tracer_tells_the_truth_and_changes_nothing(name: str) -> None:
    verdict = judge(name)
    assert not verdict.broken
    known = {column for program, column in KNOWN_DEFECTS if program == name}
    by_chance = {column for program, column in WRONG_BY_CHANCE if program == name}
    assert {column: found for column, found in verdict.wrong.items() if column not in known | by_chance} == {}
    assert known <= set(verdict.wrong), "what is right now is no known defect: take it out"
    if verdict.kinds is not None:
        # A batch that has come before its turn has nothing yet that tells what it is.
        assert verdict.kinds.right + entry_of(name).chance_bytes >= LOWER_PARTS.get(name, LEAST_PART) * verdict.kinds.of
    if name not in UNKNOWN_PLACES:
        assert verdict.modules is None or verdict.modules.part == 1
        assert verdict.lines is None or verdict.lines.part == 1


# ---- by rules, and not by name ---------------------------------------------------------------------------------------


def _names_of_programs() -> set[str]:
    """Names that nobody would choose by chance: of builders, of two words or more, and of classes."""
    builders = {name.rpartition(":")[2] for name in names()}
    classes = {
        name.strip("_")
        for module in vars(catalogue).values()
        if inspect.ismodule(module) and module.__name__.startswith("tests.truth.programs_")
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    }
    words = {name for name in builders if "_" in name} | {name for name in classes if not name.islower()}
    return {name for name in words if not hasattr(torch, name)}  # torch's own words, such as inference_mode


def test_known_defects_are_of_programs() -> None:
    known = {*KNOWN_DEFECTS, *WRONG_BY_CHANCE}
    assert known <= {(name, column) for name in {*names(), *PROGRAMS} for column in COLUMNS}
    assert set(PROGRAMS) >= QUICK | LEFT_TO_THE_BENCHMARK


def test_no_program_is_known_to_the_tracer() -> None:
    sources = [path.read_text(encoding="utf-8") for path in ROOT.glob("tracer/**/*.py")]
    names = _names_of_programs()
    assert len(sources) > 50 and len(names) > 80
    assert all(name.isidentifier() for name in names)
    assert not names & {word for source in sources for word in re.findall(r"\w+", source)}


def test_no_warning_filter_is_left() -> None:
    assert value_in_fresh_process(_filters_of_profiler_warnings) == 0


def _filters_of_profiler_warnings() -> int:
    """Libraries that the tracer imports add filters of their own; those are not meant."""
    model = nn.Linear(2, 2)
    with tempfile.TemporaryDirectory() as folder, profile_training(model, save_dir=folder) as session:
        for _ in range(session.stages.schedule.num_steps):
            model(torch.ones(1, 2))
            session.step()
    return sum("Profiler" in str(pattern) for _, pattern, *_ in warnings.filters)
