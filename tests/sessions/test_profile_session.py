"""A profiled run: it leaves no trace, it switches off what it switched on, and it survives what happens in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.pieces import Pieces, mlp_with_state, noise, raising, random_states, seeded, tiny_fno
from tests.sessions.loops import assert_all_off, plain_run
from tests.skips import by_default
from tracer.answers.failure import Failure
from tracer.answers.run_history import RunHistory
from tracer.answers.run_results import RunResults
from tracer.capture.device import devices
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.errors import RecordingError, TracerError
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.session import device_of
from tracer.sessions.workload_run import run_profile, run_step

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*Profiler clears events", "ignore:.*CUDA is not available", "ignore:Profiler won't be using warmup"
)

SHORT = Schedule(0, 1, 1, 2)
Build = Callable[[], Any]


# ---- observing changes nothing ---------------------------------------------------------------------------------------


def _with(make_optimizer: Callable[[Any], torch.optim.Optimizer] | None) -> Build:
    return lambda: Pieces(make_optimizer=make_optimizer)


BUILDS: dict[str, Build] = {
    "adamw": _with(torch.optim.AdamW),
    "sgd": _with(lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
    "gradients alone": _with(None),
}


def everything(workload: Any) -> dict[str, Any]:
    """All that training has left behind, bit for bit."""

    def bits(value: Any) -> Any:
        if isinstance(value, Tensor):
            return (value.dtype, tuple(value.shape), value.detach().numpy().tobytes())
        if isinstance(value, dict):
            return {key: bits(one) for key, one in value.items()}
        return [bits(one) for one in value] if isinstance(value, list | tuple) else value

    return {
        "parameters and buffers": bits(dict(workload.model.state_dict())),
        "gradients": bits({name: parameter.grad for name, parameter in workload.model.named_parameters()}),
        "optimizer": bits(workload.optimizer.state_dict()) if workload.optimizer is not None else None,
        "training": [module.training for module in workload.model.modules()],
        "random states": random_states(),
    }


@pytest.mark.parametrize("name", by_default(BUILDS, {"adamw"}))
def test_a_profiled_run_ends_bit_for_bit_where_an_unprofiled_one_does(name: str) -> None:
    """Timing pass and analysis included."""
    seeded()
    alone = BUILDS[name]()
    losses = plain_run(alone, SHORT.num_steps)
    left = everything(alone)
    del alone  # a session would look for the names of two models of one class
    seeded()
    watched = BUILDS[name]()
    results = run_profile(watched, schedule=SHORT)
    now = everything(watched)
    assert list(results.losses) == losses
    for part in left:
        assert now[part] == left[part], part
    assert results.timings is not None


def counted_on_cuda(run: Callable[[], object]) -> dict[str, int]:
    """What the allocator counts during a run."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats()
    torch.cuda.reset_peak_memory_stats()
    run()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    names = ("allocation.all.allocated", "allocated_bytes.all.allocated", "allocated_bytes.all.current")
    counts = {name: after[name] - before[name] for name in (*names, "num_ooms", "num_alloc_retries")}
    return counts | {"peak": after["allocated_bytes.all.peak"] - before["allocated_bytes.all.current"]}


@pytest.mark.gpu
def test_the_allocator_counts_the_same_with_and_without_us() -> None:
    """The same loop both times, and once before, since libraries take workspaces when they are first used."""
    workload = tiny_fno(device="cuda:0")
    plain_run(workload, 2)

    def watched() -> None:
        with ProfileSession(workload.model, workload.optimizer, schedule=SHORT) as session:
            for _ in range(SHORT.num_steps):
                plain_run(workload, 1)
                session.step()

    alone = counted_on_cuda(lambda: plain_run(workload, SHORT.num_steps))
    assert alone["allocation.all.allocated"] > 0
    assert counted_on_cuda(watched) == alone


# ---- a run -----------------------------------------------------------------------------------------------------------


@cache
def short_run() -> tuple[RunResults, list[tuple[int, int]]]:
    progress: list[tuple[int, int]] = []
    results = run_profile(
        Pieces(), schedule=SHORT, progress=lambda done, total: progress.append((done, total)), settings={"batch": 8}
    )
    return results, progress


def test_what_a_run_brings_to_light() -> None:
    results, _ = short_run()
    assert results.failure is None
    assert results.num_steps == SHORT.num_steps == 5
    assert len(results.losses) == 5
    assert results.findings is not None
    assert len(results.findings.parts) == 2
    assert results.unused_parameters == ()
    assert results.timings is not None
    assert results.timings.clock == "CPU"
    assert results.snapshot is None
    assert (results.settings, results.notes) == ({"batch": 8}, ())


def test_progress_counts_the_steps_of_both_passes() -> None:
    _, progress = short_run()
    assert progress == [(done, 5 + 8) for done in range(1, 14)]


def test_every_role_is_observed() -> None:
    known = short_run()[0].known
    others = {Role.HELD, Role.LEAF, Role.ARGUMENT, Role.SAVED}  # of walks and calls
    others |= {Role.WORKSPACE, Role.IDLE, Role.BUCKET}  # of CUDA's allocator
    others |= {Role.KV_CACHE}  # of inference
    assert {Role(role) for role in known.role.tolist()} | others == set(Role)
    assert {"0.weight", "1.running_var", "0.bias.exp_avg", "batch[0]", "batch[1]"} <= set(known.names)


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "schedule", [Schedule(0, 0, 1, 2), Schedule(0, 0, 2, 1), Schedule(2, 0, 1, 1), Schedule(1, 2, 2, 2)]
)
def test_any_schedule_gives_its_cycles_and_exact_parameters(schedule: Schedule) -> None:
    workload = Pieces()
    results = run_profile(workload, schedule=schedule, timing=False)
    assert results.findings is not None
    assert len(results.findings.parts) == schedule.num_repeats
    parameter_bytes = sum(p.numel() * p.element_size() for p in workload.model.parameters())
    for peak in results.findings.peaks:
        assert peak.by_category()["PARAMETER"] == parameter_bytes
        assert peak.peak_bytes == peak.allocator_peak_bytes
    assert results.num_steps == schedule.num_steps


def test_a_run_has_all_cycles_and_one_more_step() -> None:
    """NUM_BATCHES of the guide is 9, which cuts the second cycle."""
    assert Schedule().num_steps == 11
    assert Schedule(0, 0, 1, 1).num_steps == 2


@pytest.mark.parametrize("numbers", [(-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 0, 1), (0, 0, 1, 0)])
def test_schedules_that_cannot_be_are_refused(numbers: tuple[int, ...]) -> None:
    with pytest.raises(TracerError) as caught:
        Schedule(*numbers)
    assert caught.value.hint


def elsewhere(device: str, num_bytes: int) -> nn.Module:
    """A model that says that its parameter is on a device, which need not be there."""
    model = nn.Identity()
    parameter = SimpleNamespace(device=torch.device(device), numel=lambda: num_bytes, element_size=lambda: 1)
    model.parameters = lambda: iter([parameter])  # type: ignore[assignment, method-assign, misc]
    return model


def test_a_model_is_where_an_accelerator_holds_most_of_it() -> None:
    """An embedding on the CPU, however large, and a small first layer elsewhere take the run nowhere."""
    assert device_of(TrainingObjects(nn.Identity())) == torch.device("cpu")
    assert device_of(TrainingObjects(nn.Linear(1, 1, device="meta"))) == torch.device("cpu")
    large, small, other = elsewhere("cpu", 999), elsewhere("cuda:0", 8), elsewhere("cuda:1", 9)
    assert device_of(TrainingObjects({"a": large, "b": small})) == torch.device("cuda:0")
    assert device_of(TrainingObjects({"a": large, "b": small, "c": other})) == torch.device("cuda:1")
    again = elsewhere("cuda:0", 2)
    assert device_of(TrainingObjects({"a": large, "b": small, "c": other, "d": again})) == torch.device("cuda:0")


def test_a_model_that_lies_on_the_cpu_is_where_the_accelerator_in_use_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """FSDP keeps parameters on the CPU, and brings them to the device in parts."""
    monkeypatch.setattr(devices, "device_in_use", lambda: torch.device("cuda:1"))
    assert device_of(TrainingObjects(nn.Linear(1, 1))) == torch.device("cuda:1")
    assert device_of(TrainingObjects(elsewhere("cuda:0", 8))) == torch.device("cuda:0")


# ---- unused parameters -----------------------------------------------------------------------------------------------


class TwoHeads(nn.Module):
    """One head is never used, a parameter wants no gradient, and another has no element, as in a shard of others."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.used, self.unused = nn.Linear(12, 4), nn.Linear(4, 3), nn.Linear(4, 3)
        self.empty = nn.Parameter(torch.empty(0))
        self.body.bias.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.used(self.body(x))  # type: ignore[no-any-return]


@pytest.mark.parametrize("make_optimizer", by_default([torch.optim.AdamW, None], {None}))
def test_parameters_without_a_gradient_are_named(make_optimizer: Any) -> None:
    results = run_profile(Pieces(TwoHeads(), make_optimizer), schedule=SHORT, timing=False)
    assert results.unused_parameters == ("unused.weight", "unused.bias")


def test_where_nobody_looked_nothing_is_claimed() -> None:
    results = run_profile(Pieces(before=raising(KeyError(), piece="forward", step=0)), schedule=SHORT, timing=False)
    assert results.unused_parameters is None


# ---- failure ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("piece", "step", "cycles"),
    [
        *(("forward", 0, 0), ("backward", 3, 1)),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("next_batch", 3, 1), ("optimizer_step", 3, 1), ("forward", 4, 2))
        ),
    ],
)
def test_what_was_recorded_before_a_failure_is_explained(piece: str, step: int, cycles: int) -> None:
    """Steps 1 and 3 are recorded. One that fails before it allocated anything adds nothing, and takes nothing."""
    results = run_profile(Pieces(before=raising(KeyError("bug"), piece=piece, step=step)), schedule=SHORT)
    assert results.failure is not None
    assert isinstance(results.failure.error, KeyError)
    assert (results.failure.step, results.num_steps, len(results.losses)) == (step, step, step)
    assert results.timings is None
    if cycles == 0:
        assert results.findings is None
    else:
        assert results.findings is not None
        cut = step == 3 and piece != "next_batch"
        assert len(results.findings.parts) == cycles + cut
        for peak in results.findings.peaks:
            assert sum(row.bytes for row in peak.rows) == peak.peak_bytes == peak.allocator_peak_bytes


def test_a_failure_before_the_first_allocation_is_told_by_itself() -> None:
    results = run_profile(Pieces(before=raising(KeyError("bug"), piece="next_batch", step=1)), schedule=SHORT)
    assert results.failure is not None
    assert results.failure.step == 1
    assert results.findings is None
    assert "Nothing was allocated" in results.notes[0]


def _out_of_cpu_memory(piece: str, step: int) -> None:
    if (piece, step) == ("forward", 3):
        torch.empty(2**50)


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory."), MemoryError(), None],
    ids=["as on CUDA", "Python's", "a real one on the CPU"],
)
def test_out_of_memory_is_told_apart_and_explained(error: BaseException | None) -> None:
    before = _out_of_cpu_memory if error is None else raising(error, piece="forward", step=3)
    results = run_profile(Pieces(before=before), schedule=SHORT)
    assert results.failure is not None
    assert results.failure.out_of_memory
    assert results.failure.step == 3
    assert results.failure.allocator == {}
    assert results.findings is not None
    assert len(results.findings.parts) == 2, "the step that failed is explained as far as it came"


@pytest.mark.parametrize(
    ("kind", "words", "is_out_of_memory"),
    [
        (getattr(torch, "AcceleratorError", RuntimeError), "CUDA error: out of memory", True),  # there since 2.8
        (RuntimeError, "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", True),
        (RuntimeError, "cuDNN error: CUDNN_STATUS_ALLOC_FAILED", True),
        (RuntimeError, "shapes cannot be multiplied", False),
        (ValueError, "DefaultCPUAllocator", False),
    ],
)
def test_memory_that_the_driver_or_a_library_lacks_is_out_of_memory_too(
    kind: type[Exception], words: str, is_out_of_memory: bool
) -> None:
    assert Failure(kind(words), 0, {}).out_of_memory is is_out_of_memory


@pytest.mark.parametrize("num_ooms", [0, 31])
def test_a_convolution_without_an_algorithm_is_out_of_memory_if_a_workspace_was_refused(
    num_ooms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = RuntimeError("GET was unable to find an engine to execute this computation")
    assert not Failure(error, 0, {}).out_of_memory, "CUDA has not begun here"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_ooms": num_ooms})
    assert Failure(error, 0, {}).out_of_memory is bool(num_ooms)


@pytest.mark.parametrize("error", [KeyError("bug"), KeyboardInterrupt()])
def test_a_failure_in_the_timing_pass_keeps_the_findings(error: BaseException) -> None:
    results = run_profile(Pieces(before_in_copy=raising(error, piece="forward", step=2)), schedule=SHORT)
    assert results.findings is not None
    assert results.timings is None
    assert results.failure is not None
    assert results.failure.error is error
    assert results.failure.in_timing_pass


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (torch.OutOfMemoryError(), "copy"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "copy"),
        (torch.OutOfMemoryError(), "step"),
    ],
)
def test_no_memory_for_a_second_copy_is_a_note(error: BaseException, where: str) -> None:
    hook = raising(error, piece="copy", step=4) if where == "copy" else raising(error, piece="forward", step=1)
    workload = Pieces(before=hook) if where == "copy" else Pieces(before_in_copy=hook)
    results = run_profile(workload, schedule=SHORT)
    assert results.failure is None
    assert results.timings is None
    assert "no memory left" in results.notes[0]


@pytest.mark.parametrize(
    ("num_more", "is_timed"), [(0, False), pytest.param(1, True, marks=pytest.mark.slow), (3, True)]
)
def test_the_timing_pass_makes_do_with_the_batches_that_are_left(num_more: int, is_timed: bool) -> None:
    batches = iter([noise() for _ in range(SHORT.num_steps + num_more)])
    results = run_profile(Pieces(batch=lambda: next(batches)), schedule=SHORT)
    assert results.failure is None
    assert (results.timings is not None) == is_timed
    assert results.notes == (() if is_timed else ("The phases were not timed: the workload had no batch left.",))


# ---- switched off afterwards -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "step"), [(None, 0), (KeyError("bug"), 0), (KeyboardInterrupt(), 1), (SystemExit(), 2)]
)
def test_hooks_and_profiler_are_off_afterwards(error: BaseException | None, step: int) -> None:
    workload = Pieces()
    try:
        with ProfileSession(workload.model, workload.optimizer, schedule=SHORT) as session:
            for index in range(SHORT.num_steps):
                plain_run(workload, 1)
                if index == step and error is not None:
                    raise error
                session.step()
    except BaseException as caught:
        assert caught is error
    assert_all_off(workload)


def test_a_session_by_hand_explains_any_loop() -> None:
    model = mlp_with_state()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ProfileSession(model, optimizer, schedule=SHORT) as session:
        for _ in range(SHORT.num_steps):
            x, y = noise()
            session.observe_batch({"x": x, "y": y})
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
            session.step()
    assert session.observed.without_gradient == ()
    rows = {(row.category, row.name) for row in session.findings.worst.peak.rows}
    assert {("INPUT", "batch.x"), ("PARAMETER", "0.weight")} <= rows
    assert Role.GRADIENT in session.observed.storages.observations().role


def test_a_session_without_a_step_has_nothing_to_say() -> None:
    with ProfileSession(mlp_with_state(), schedule=SHORT) as session:
        pass
    assert session.cycles.number == 0
    with pytest.raises(RecordingError):
        _ = session.findings


def test_cuda_is_the_current_device_as_everywhere_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    assert ProfileSession(nn.Linear(1, 1), device="cuda").device == torch.device("cuda:3")
    assert ProfileSession(nn.Linear(1, 1), device="cuda:1").device == torch.device("cuda:1")
    assert ProfileSession(nn.Linear(1, 1), device="cpu").device == torch.device("cpu")


def test_what_we_look_at_in_a_recorded_step_is_hardly_in_the_recording() -> None:
    """The profiler records every call of Python's, ours too: a look at each of 200 parameters would be 20,000 events.

    Some two hundred are ours in a step, whatever the number of parameters.
    """
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(100)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with ProfileSession(model, optimizer, schedule=Schedule(0, 1, 2, 1)) as session:
        for _ in range(4):
            optimizer.zero_grad()
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
            session.step()
    (cycle,) = session.findings.parts
    recording = cycle.source.recording
    ours = recording.frames.own[recording.calls.frame]
    assert 10 < np.count_nonzero(ours) < 1_000


def test_notes_are_the_same_whoever_asked_for_findings_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        RunHistory, "joined", lambda _, findings, *known: replace(findings, other_devices={"cuda:1": 5})
    )
    workload = Pieces()
    with ProfileSession(workload.model, workload.optimizer, schedule=SHORT) as session:
        for _ in range(SHORT.num_steps):
            run_step(workload, session)
            session.step()
    first = session.notes
    assert any("cuda:1 up to 5" in note for note in first)
    assert session.findings.other_devices and session.notes == first


def test_neither_model_nor_optimizer_is_a_sentence() -> None:
    with pytest.raises(TracerError, match="neither a model nor an optimizer"):
        ProfileSession(None)
