"""The report's activations: those of one whole step, each invocation once, and their sum what the step saves."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from tests.histories import known_of
from tests.skips import by_default
from tests.training_steps import (
    ONE_OF_EACH,
    REPORT_QUICK,
    REPORT_WORKLOADS,
    WORKLOADS,
    Recorded,
    Workload,
    build_workload,
    mlp,
    mlp_batch,
    record,
    recorded_workload,
)
from tracer.answers.findings import RunFindings
from tracer.answers.operators.invocations import OpInstances, op_instances
from tracer.answers.operators.memory_report import (
    MemoryReport,
    SavedActivations,
    activation_entries,
    memory_report,
    saved_activations,
    weights,
)
from tracer.answers.recording_findings import combine_cycles, find_in_cycle
from tracer.blocks.from_recording.cycle import Cycle
from tracer.capture.objects.known_storages import Parameter, Role
from tracer.capture.objects.parameter_origins import describe_parameters
from tracer.capture.objects.storage_observer import StorageObserver, input_tensors
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources.source_line import SourceLine

NAMES = by_default([*WORKLOADS, *REPORT_WORKLOADS], {*ONE_OF_EACH, *REPORT_QUICK})


def findings_of(run: Recorded) -> RunFindings:
    model = run.workload.model
    names = {id(module): path for path, module in model.named_modules()} if model is not None else {}
    return combine_cycles([find_in_cycle(recording, module_names=names) for recording in run.recordings])


@cache
def report(name: str) -> MemoryReport:
    run = recorded_workload(name)
    found, model = findings_of(run), run.workload.model
    return memory_report(found, parameters=describe_parameters(model) if model is not None else ())


@pytest.mark.parametrize("name", NAMES)
def test_laws(name: str) -> None:
    what, run = report(name), recorded_workload(name)
    model, worst = run.workload.model, findings_of(run).worst
    weights = [(name, p.numel() * p.element_size()) for name, p in model.named_parameters()] if model else []
    assert [(weight.name, weight.size_bytes) for weight in what.weights] == weights
    assert what.peak_bytes == worst.peak.peak_bytes
    instances, saved = saved_in(worst.source)
    if not len(instances.op):
        assert what.activations == ()
        return
    # They are of the last step whose forward is whole.
    mine = saved.of_step(int(instances.step.max()))
    assert sum(entry.size_bytes for entry in what.activations) == int(mine.size_bytes.sum())
    assert len(mine.block) == len(np.unique(mine.block))
    assert all(entry.size_bytes > 0 for entry in what.activations)


def test_a_parameter_keeps_its_lines_and_a_gradient_is_no_larger_than_it() -> None:
    lines = (SourceLine("/home/me/net.py", 7), SourceLine("/home/me/run.py", 3))
    parameter = Parameter("fc.weight", 400, True, "fc", lines)
    known = known_of((1, 10, 4096, Role.GRADIENT, "fc.weight"))
    (weight,) = weights([parameter], [], known)
    assert (weight.name, weight.size_bytes, weight.frames) == ("fc.weight", 400, lines)
    assert weight.grad_size_bytes == 400, "it may be a part of a larger buffer"
    (alone,) = weights([parameter], [])
    assert alone.grad_size_bytes == 0


@pytest.mark.parametrize("name", ["zero_grad_at_start", "zero_grad_at_end", "shared_weights", "residual", "lstm"])
def test_gradients_are_those_of_the_step_and_not_what_is_left_of_them(name: str) -> None:
    what = report(name)
    assert [weight.grad_size_bytes for weight in what.weights] == [weight.size_bytes for weight in what.weights]


def test_gradients_that_were_observed_decide() -> None:
    run = recorded_workload("auxiliary_head")
    model = run.workload.model
    assert model is not None
    unobserved = [weight.grad_size_bytes for weight in report("auxiliary_head").weights]
    assert not any(unobserved), "four gradients for six parameters: which four cannot be told"
    observer = StorageObserver()
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    observer.observe((Role.GRADIENT, name, p) for name, p in model.named_parameters() if name in names)
    cycles = [(cycle.source.recording, cycle.source.attribution) for cycle in findings_of(run).parts]
    found = weights(describe_parameters(model), cycles, observer.observations())
    assert {weight.name for weight in found if weight.grad_size_bytes} == names


def test_without_backward_there_are_no_gradients() -> None:
    what = report("inference_no_grad")
    assert not any(weight.grad_size_bytes for weight in what.weights) and what.activations == ()


# A graph through which no backward runs saves for nothing; a recording shows nothing of it.
NO_BACKWARD = {"growing_list", "auxiliary_head"}


@cache
def findings(name: str) -> Cycle:
    return find_in_cycle(recorded_workload(name).recordings[0]).source


def saved_in(cycle: Cycle) -> tuple[OpInstances, SavedActivations]:
    instances = op_instances(cycle.recording, cycle.attribution)
    return instances, saved_activations(cycle, instances)


class _Calls(TorchFunctionMode):
    """Numbers the outermost torch functions that a program calls."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += 1
        return func(*args, **(kwargs or {}))


def hooked(built: Workload) -> list[tuple[int, int, int]]:
    """Address, bytes and number of the calling function of every tensor saved in the forward of one step."""
    found: list[tuple[int, int, int]] = []
    alive: list[Tensor] = []  # so that no address is used twice
    calls = _Calls()

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if torch._C._current_graph_task_id() < 0:  # not the recomputation of a checkpoint inside backward
            found.append((storage.data_ptr(), storage.nbytes(), calls.number))
            alive.append(tensor)
        return tensor

    def own() -> set[int]:
        tensors = [*built.model.parameters(), *built.model.buffers()] if built.model is not None else []
        return {tensor.untyped_storage().data_ptr() for tensor in tensors}

    built.step()
    excluded = own()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), calls:
        built.step()
    return [row for row in found if row[0] not in excluded | own()]


def hooked_bytes(built: Workload) -> int:
    return sum({address: size for address, size, _ in hooked(built)}.values())


def hooked_by_call(built: Workload) -> list[int]:
    """Bytes of each function that saves something that none before it saved, in program order."""
    seen: set[int] = set()
    by_call: dict[int, int] = {}
    for address, size, call in hooked(built):
        if address not in seen:
            seen.add(address)
            by_call[call] = by_call.get(call, 0) + size
    return [by_call[call] for call in sorted(by_call)]


# --------------------------------------------------------------------------------------------------------- by hand
def test_example_by_hand() -> None:
    """16 samples of 32, hidden 64, out 8, floats of 4 bytes.

    The first linear keeps the batch, 16 x 32 x 4 = 2048. ReLU keeps its result, 16 x 64 x 4 = 4096, and is the first
    to; the second linear keeps the same one and so nothing new. The loss keeps output and target, 2 x 16 x 8 x 4.
    """
    cycle = findings("zero_grad_at_end")
    instances, saved = saved_in(cycle)
    entries = activation_entries(cycle, instances, saved.of_step(1))
    sizes = {"linear": 2048, "relu": 4096, "mse_loss": 1024}
    assert [(entry.name, entry.size_bytes) for entry in entries] == [*sizes.items()]


# ------------------------------------------------------------------------------------------------------------- laws
@pytest.mark.parametrize("name", [name for name in NAMES if name.values[0] not in NO_BACKWARD])
def test_sum_is_what_hooks_count(name: str) -> None:
    _, saved = saved_in(findings(name))
    want = hooked_bytes(build_workload(name))
    # The first recorded step is the second of the program, as the hooked one is.
    steps = (0,) if name == "every_other_step" else (0, 1)
    assert [int(saved.of_step(step).size_bytes.sum()) for step in steps] == [want] * len(steps)


@pytest.mark.parametrize("name", sorted(NO_BACKWARD))
def test_a_graph_without_backward_saves_for_nothing(name: str) -> None:
    _, saved = saved_in(findings(name))
    assert int(saved.of_step(1).size_bytes.sum()) < hooked_bytes(build_workload(name))


@pytest.mark.parametrize(
    "name",
    ["zero_grad_at_end", "residual", "loop", "backward_function", "retain_graph", "held_output", "shared_weights",
     "convnet", "fno_1d_new_zeros", "fno_2d_new_zeros", "fno_3d_torch_zeros", "gradient_accumulation", "lbfgs",
     "mixed_precision_clipping"],
)  # fmt: skip
def test_every_operator_keeps_what_hooks_saw_it_save_first(name: str) -> None:
    cycle = findings(name)
    instances, saved = saved_in(cycle)
    got = [entry.size_bytes for entry in activation_entries(cycle, instances, saved.of_step(1))]
    assert got == hooked_by_call(build_workload(name))


# ---------------------------------------------------------------------------------------------- what broke originals
def test_loops_are_not_collapsed() -> None:
    cycle = findings("loop")
    instances, saved = saved_in(cycle)
    tanh = [entry for entry in activation_entries(cycle, instances, saved.of_step(1)) if entry.name == "tanh"]
    assert [entry.size_bytes for entry in tanh] == [16 * 32 * 4] * 5


def test_a_batch_from_before_the_recording_counts_if_it_was_observed() -> None:
    model, (inputs, target) = mlp(), mlp_batch()
    observer = StorageObserver()

    def step() -> None:
        F.mse_loss(model(inputs), target).backward()
        model.zero_grad()

    observer.observe(input_tensors((inputs, target)))
    recording = read_recording(record(step, n_active=2)[0])
    for known, input_bytes in ((None, 0), (observer.observations(), 2048 + 512)):
        cycle = find_in_cycle(recording, known=known).source
        instances = op_instances(recording, cycle.attribution)
        both = saved_activations(cycle, instances)
        for number in range(len(cycle.attribution.step_names)):  # the same batch is saved in each step
            assert int(both.of_step(number).size_bytes.sum()) == input_bytes + 4096 + 512


def test_nothing_is_saved_without_autograd() -> None:
    for name in ("inference_no_grad", "inference_mode", "sparse_and_resize"):
        _, saved = saved_in(findings(name))
        assert len(saved.block) == 0
