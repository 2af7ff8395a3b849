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

from tests.exporters.sqlite_reports.test_memory_report import findings_of, report
from tests.histories import known_of
from tests.report_workloads import REPORT_WORKLOADS
from tests.training_steps import WORKLOADS, Workload, build_workload, mlp, mlp_batch, record, recorded_workload
from tracer.analysis.operators.invocations import OpInstances, op_instances
from tracer.analysis.operators.memory_report import (
    HowSaved,
    SavedActivations,
    activation_entries,
    memory_report,
    saved_activations,
    weights,
)
from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.findings import CycleFindings, find_in_cycle
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.parameter_origins import Parameter, describe_parameters
from tracer.capture.objects.storage_observer import StorageObserver, input_tensors
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.recording import Recording
from tracer.capture.sources.source_line import SourceLine

NAMES = [*WORKLOADS, *REPORT_WORKLOADS]


@pytest.mark.parametrize("name", NAMES)
def test_activations_sum_to_what_their_step_saves(name: str) -> None:
    worst, what = findings_of(recorded_workload(name)).worst, report(name)
    instances = op_instances(worst.recording, worst.attribution)
    saved = saved_activations(worst, instances)
    if what.step is None:
        assert (what.activations, len(instances.op)) == ((), 0)
        return
    step = worst.attribution.step_names.index(what.step)
    mine = saved.of_step(step)
    assert what.activation_bytes == int(mine.size_bytes.sum())
    assert sum(entry.num_storages for entry in what.activations) == len(mine.block) == len(np.unique(mine.block))
    assert sum(entry.input_bytes for entry in what.activations) == int(mine.size_bytes[mine.is_input].sum())
    for entry in what.activations:
        assert 0 <= entry.invocation < entry.invocations
        assert 0 <= entry.unread_bytes <= entry.size_bytes > 0


def test_it_is_about_the_last_step_with_forward() -> None:
    what = report("zero_grad_at_end")
    assert what.step == findings_of(recorded_workload("zero_grad_at_end")).worst.attribution.step_names[-1]


def test_invocations_that_are_known_already_are_not_found_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    found, findings = report("residual"), findings_of(recorded_workload("residual"))
    instances = op_instances(findings.worst.recording, findings.worst.attribution)
    monkeypatch.setattr("tracer.analysis.operators.memory_report.op_instances", None)
    given = memory_report(findings, instances=instances)
    assert given.activations == found.activations


def test_a_parameter_keeps_its_lines_and_a_gradient_is_no_larger_than_it() -> None:
    lines = (SourceLine("/home/me/net.py", 7), SourceLine("/home/me/run.py", 3))
    parameter = Parameter("fc.weight", 400, True, "fc", lines)
    known = known_of((1, 10, 4096, Role.GRADIENT, "fc.weight"))
    (weight,) = weights([parameter], [], known)
    assert (weight.name, weight.size_bytes, weight.module, weight.frames) == ("fc.weight", 400, "fc", lines)
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
    assert report("auxiliary_head").grad_bytes == 0, "four gradients for six parameters: which four cannot be told"
    observer = StorageObserver()
    names = {"0.weight", "0.bias", "1.weight", "1.bias"}
    observer.observe((Role.GRADIENT, name, p) for name, p in model.named_parameters() if name in names)
    what = memory_report(findings_of(run), parameters=describe_parameters(model), known=observer.observations())
    assert {weight.name for weight in what.weights if weight.grad_size_bytes} == names


def test_without_backward_there_are_no_gradients() -> None:
    assert report("inference_no_grad").grad_bytes == report("inference_no_grad").activation_bytes == 0


# A graph through which no backward runs saves for nothing; a recording shows nothing of it.
NO_BACKWARD = {"growing_list", "auxiliary_head"}


@cache
def findings(name: str) -> CycleFindings:
    return find_in_cycle(recorded_workload(name).recordings[0])


def saved_in(cycle: CycleFindings) -> tuple[OpInstances, SavedActivations]:
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
    entries = activation_entries(cycle, instances, saved, 1)
    got = [(entry.name, entry.size_bytes, entry.input_bytes, entry.num_storages) for entry in entries]
    assert got == [("linear", 2048, 2048, 1), ("relu", 4096, 0, 1), ("mse_loss", 1024, 512, 2)]
    assert [entry.unread_bytes for entry in entries] == [0, 0, 0]


def test_what_a_function_saves_and_does_not_read_is_known_by_its_life() -> None:
    _, saved = saved_in(findings("saved_unread"))
    unread = saved.of_step(0).evidence == HowSaved.FREED_IN_BACKWARD
    assert saved.of_step(0).size_bytes[unread].tolist() == [16 * 64 * 4]


# ------------------------------------------------------------------------------------------------------------- laws
@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_BACKWARD])
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
    got = [entry.size_bytes for entry in activation_entries(cycle, instances, saved, 1)]
    assert got == hooked_by_call(build_workload(name))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NO_BACKWARD])
def test_plain_loop_over_what_nodes_read(name: str) -> None:
    """Every storage that an operator outside the optimizer made and a numbered node reads later, one by one."""
    cycle = findings(name)
    _, saved = saved_in(cycle)
    assert naive_read(cycle.recording, cycle.attribution) == {
        int(cycle.lifetimes.key[block])
        for block, evidence in zip(saved.block.tolist(), saved.evidence.tolist(), strict=True)
        if evidence == HowSaved.READ_IN_BACKWARD
    }


def naive_read(recording: Recording, attribution: Attribution) -> set[int]:
    made: dict[int, tuple[int, bool]] = {}
    spans = recording.spans
    stepping = [
        (int(spans.start_ns[row]), int(spans.end_ns[row]))
        for row, name in enumerate(spans.name)
        if recording.strings[name].startswith("Optimizer.step") and "LBFGS" not in recording.strings[name]
    ]
    rows = recording.allocations
    for row in range(len(rows.size_bytes)):
        if rows.size_bytes[row] > 0 and rows.key[row] >= 0 and rows.op[row] >= 0:
            when = int(rows.time_ns[row])
            made[int(rows.key[row])] = (when, not any(start <= when < end for start, end in stepping))
    op_at = {int(start): op for op, start in enumerate(recording.ops.start_ns.tolist())}
    flow, found = recording.flow, set()
    for edge in range(len(flow.edge_node)):
        key, time_ns = int(flow.edge_key[edge]), int(flow.node_time_ns[flow.edge_node[edge]])
        if not flow.node_backward[flow.edge_node[edge]] or flow.edge_allocated[edge] or key not in made:
            continue
        op = op_at.get(time_ns, -1)
        forward = int(attribution.op_forward[op]) if op >= 0 else -1
        while forward >= 0 and attribution.op_node[forward] >= 0:  # made by a node itself, or recomputed in one
            forward = int(attribution.op_forward[forward])
        if op < 0 or forward < 0 or recording.ops.sequence_number[op] < 0:
            continue
        when, good = made[key]
        if good and when <= recording.ops.end_ns[forward]:
            found.add(key)
    return found


# ---------------------------------------------------------------------------------------------- what broke originals


def test_loops_are_not_collapsed() -> None:
    cycle = findings("loop")
    instances, saved = saved_in(cycle)
    tanh = [entry for entry in activation_entries(cycle, instances, saved, 1) if entry.name == "tanh"]
    assert [(entry.invocation, entry.invocations, entry.size_bytes) for entry in tanh] == [
        (number, 5, 16 * 32 * 4) for number in range(5)
    ]


def test_a_batch_from_before_the_recording_counts_if_it_was_observed() -> None:
    model, (inputs, target) = mlp(), mlp_batch()
    observer = StorageObserver()

    def step() -> None:
        F.mse_loss(model(inputs), target).backward()
        model.zero_grad()

    observer.observe(input_tensors((inputs, target)))
    recording = read_recording(record(step, n_active=2)[0])
    for known, input_bytes in ((None, 0), (observer.observations(), 2048 + 512)):
        cycle = find_in_cycle(recording, known=known)
        instances = op_instances(recording, cycle.attribution)
        both = saved_activations(cycle, instances)
        for number in range(len(cycle.attribution.step_names)):  # the same batch is saved in each step
            saved = both.of_step(number)
            assert int(saved.size_bytes[saved.is_input].sum()) == input_bytes
            assert int(saved.size_bytes[~saved.is_input].sum()) == 4096 + 512


def test_nothing_is_saved_without_autograd() -> None:
    for name in ("inference_no_grad", "inference_mode", "sparse_and_resize"):
        _, saved = saved_in(findings(name))
        assert len(saved.block) == 0
