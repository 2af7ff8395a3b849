"""CodeOwner memory it is: of several models and optimizers, who received a gradient, mapped files, and torch.func."""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad

from tests.skips import by_default
from tracer.blocks.kinds import Kind
from tracer.capture.device.host_memory import MappedFile, file_at, gaps, mapped_files
from tracer.capture.objects.training_objects import TrainingObjects
from tracer.sessions.observations import Observations
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule
from tracer.sessions.training_profile import TrainingProfile, profile_training

# ---- mapped files ----------------------------------------------------------------------------------------------------


SIDE = 512
WEIGHT_BYTES = 4 * SIDE * SIDE


def trained(model: nn.Module, batch: Tensor | None = None) -> ProfileSession:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with ProfileSession(model, optimizer, device="cpu", schedule=Schedule(1, 1, 1, 1)) as session:
        for _ in range(session.stages.schedule.num_steps):
            optimizer.zero_grad()
            model(torch.randn(4, SIDE) if batch is None else batch).square().mean().backward()
            optimizer.step()
            session.step()
    return session


def bytes_by_kind(session: ProfileSession) -> Counter[Kind]:
    """Bytes at the peak, which are as many as the independent count has."""
    peak, found = session.findings.worst.peak, Counter[Kind]()
    assert (
        int(peak.blocks.size_bytes.sum())
        == peak.peak_bytes
        == session.findings.worst.source.lifetimes.allocator_bytes.max()
    )
    for kind, size_bytes in zip(peak.blocks.kind.tolist(), peak.blocks.size_bytes.tolist(), strict=True):
        found[Kind(kind)] += size_bytes
    return found


def saved(folder: Path, *names: str) -> Path:
    path = folder / "weights.pt"
    torch.save({name: torch.randn(SIDE, SIDE) for name in names}, path)
    return path


def test_parameters_in_a_mapped_file_are_there_once(tmp_path: Path) -> None:
    """As of safetensors: the file is a storage of its own, and each tensor one within it."""
    held_before = bytes_by_kind(trained(nn.Linear(SIDE, SIDE, bias=False)))[Kind.HELD]
    model = nn.Linear(SIDE, SIDE, bias=False)
    model.load_state_dict(torch.load(saved(tmp_path, "weight"), mmap=True), assign=True)
    session = trained(model)
    found = bytes_by_kind(session)
    assert found[Kind.PARAMETER] == WEIGHT_BYTES
    assert found[Kind.HELD] <= held_before + 1000, "the storage of the file is no second copy"
    assert not any("mapped" in note for note in session.notes)


def test_what_of_a_mapped_file_no_model_has_is_said_and_not_counted(tmp_path: Path) -> None:
    model = nn.Linear(SIDE, SIDE, bias=False)
    tensors = torch.load(saved(tmp_path, "weight", "teacher"), mmap=True)
    model.load_state_dict({"weight": tensors["weight"]}, assign=True)
    session = trained(model)
    found = bytes_by_kind(session)
    assert found[Kind.PARAMETER] == WEIGHT_BYTES and found[Kind.HELD] < WEIGHT_BYTES
    (note,) = (note for note in session.notes if "mapped" in note)
    assert note.startswith("1.00 MiB in tensors outside of models are mapped from files (weights.pt).")


def test_a_batch_of_a_mapped_file_is_not_allocated(tmp_path: Path) -> None:
    rows = np.memmap(tmp_path / "rows.bin", np.float32, "w+", shape=(1024, SIDE))
    data = torch.from_numpy(rows)
    session = trained(nn.Linear(SIDE, 8), data[:64])
    found = bytes_by_kind(session)
    assert found[Kind.INPUT] + found[Kind.HELD] < data.nbytes
    assert any("(rows.bin)" in note for note in session.notes)


def test_slices_of_an_array_lie_in_it() -> None:
    rows = np.ones((1024, SIDE), np.float32)
    whole, test = torch.from_numpy(rows), torch.from_numpy(rows[1000:])
    assert test.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    both = bytes_by_kind(trained(nn.Linear(SIDE, 8), whole[:64]))
    del test
    assert bytes_by_kind(trained(nn.Linear(SIDE, 8), whole[:64])).total() == both.total()


class _Diagonal(nn.Linear):
    """The steps of a diagonal, times their number, reach beyond the storage."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.weight.diagonal()


def test_a_view_in_large_strides_spans_no_more_than_its_storage() -> None:
    found = bytes_by_kind(trained(_Diagonal(SIDE, SIDE, bias=False)))
    assert found[Kind.PARAMETER] == WEIGHT_BYTES


def test_files_and_what_lies_in_them(tmp_path: Path) -> None:
    mapped = np.memmap(tmp_path / "a file of mine", np.uint8, "w+", shape=(100_000,))
    address = mapped.ctypes.data
    files = mapped_files()
    found = file_at(files, address + 99_999)
    assert found is not None and found.path == str(tmp_path / "a file of mine") and found.begin == address
    assert file_at(files, torch.ones(10).data_ptr()) is None
    shared = torch.ones(10).share_memory_()
    assert file_at(files, shared.data_ptr()) is None and not any(".so" in each.path for each in files)
    assert file_at((MappedFile(10, 20, "a"),), 20) is None


def test_gaps() -> None:
    assert gaps(0, 10, []) == [(0, 10)]
    assert gaps(0, 10, [(4, 6), (2, 4)]) == [(0, 2), (6, 10)]
    assert gaps(0, 10, [(0, 3), (8, 20)]) == [(3, 8)]
    assert gaps(0, 10, [(0, 10)]) == []
    assert gaps(0, 10, [(12, 15)]) == [(0, 10)]


# ---- torch.func ------------------------------------------------------------------------------------------------------


BATCH, WIDTH = 256, 64
ACTIVATION_BYTES = BATCH * WIDTH * 4


def train_functionally(folder: Path, schedule: Schedule) -> TrainingProfile:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def loss_of(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(functional_call(model, weights, (x,)), y)

    def step() -> None:
        x, y = torch.randn(BATCH, WIDTH), torch.randn(BATCH, 1)
        gradients = grad(loss_of)({name: one.detach() for name, one in model.named_parameters()}, x, y)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name]
        optimizer.step()
        optimizer.zero_grad()

    leave_out = [output.name for output in OUTPUTS]
    with profile_training(
        model, optimizer, save_dir=folder, schedule=schedule, screen="none", leave_out=leave_out
    ) as session:
        for _ in range(schedule.num_steps):
            step()
            session.step()
    return session


@pytest.mark.parametrize(
    "schedule", by_default([Schedule(1, 0, 3, 1), Schedule(0, 1, 3, 1)], {Schedule(1, 0, 3, 1)}), ids=str
)
def test_the_peak_is_without_what_the_profiler_would_keep(tmp_path: Path, schedule: Schedule) -> None:
    """Of one step at most: kept, there are three of them. What other tests left was there before the recording."""
    session = train_functionally(tmp_path, schedule)
    findings = session.findings
    assert findings.worst.peak.counted.counter_bytes < 9 * ACTIVATION_BYTES
    assert findings.worst.peak.unexplained_bytes == 0
    assert findings.growth is None
    assert [note for note in session.notes if "torch.func" in note]
    of_kind = {"ACTIVATION": 0, "INPUT": 0}
    for row in findings.worst.peak.rows:
        if row.category in of_kind:
            of_kind[row.category] += row.bytes
    assert of_kind["INPUT"] == ACTIVATION_BYTES + BATCH * 4
    assert of_kind["ACTIVATION"] >= 2 * ACTIVATION_BYTES


def test_where_it_is_kept_nothing_that_follows_is_said(tmp_path: Path) -> None:
    """The recording ends before the first transform is seen."""
    session = train_functionally(tmp_path, Schedule(0, 0, 3, 1))
    assert session.findings.worst.peak.counted.counter_bytes > 12 * ACTIVATION_BYTES
    assert session.findings.growth is None
    (note,) = (note for note in session.notes if "torch.func" in note)
    assert "its peak is larger" in note


# ---- several models --------------------------------------------------------------------------------------------------


SHORT = Schedule(1, 1, 2, 1)


def run(session: TrainingProfile, step: Callable[[], object]) -> None:
    with session:
        for _ in range(SHORT.num_steps):
            step()
            session.step()


def by_category(folder: Path, prefix: str) -> Counter[str]:
    """Bytes by category of the rows whose name begins so."""
    found: Counter[str] = Counter()
    for row in json.loads((folder / "peak.json").read_text())["rows"]:
        if (row["name"] or "").startswith(prefix):
            found[row["category"]] += row["bytes"]
    return found


def bytes_of(tensors: object) -> int:
    return sum(each.nbytes for each in tensors)  # type: ignore[attr-defined]


@pytest.mark.usefixtures("alone")
def test_a_student_and_its_teacher_stand_under_their_names(tmp_path: Path) -> None:
    student = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters())

    def step() -> None:
        x = torch.randn(64, 16)
        with torch.no_grad():
            wanted = teacher(x)
        F.mse_loss(student(x), wanted).backward()
        optimizer.step()
        optimizer.zero_grad()

    session = profile_training({"student": student, "teacher": teacher}, optimizer, save_dir=tmp_path, schedule=SHORT)
    run(session, step)
    weights = bytes_of(student.parameters())
    assert by_category(tmp_path, "student.")["PARAMETER"] == weights
    assert by_category(tmp_path, "student.")["OPTIMIZER_STATE"] == 2 * weights + 4 * len(list(student.parameters()))
    assert by_category(tmp_path, "teacher.") == {"PARAMETER": weights}
    assert session.results.unused_parameters == ()
    assert [each.name for each in session.results.parameters] == [
        f"{model}.{layer}.{what}" for model in ("student", "teacher") for layer in (0, 2) for what in ("weight", "bias")
    ]
    modules = {row["module"] for row in json.loads((tmp_path / "peak.json").read_text())["rows"]}
    assert "student.0" in modules


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("named", by_default(["both", "one", "none"], {"one"}))
def test_of_two_optimizers_each_is_judged_at_its_own_step(tmp_path: Path, named: str) -> None:
    """Gradients of one model are let go of before the other's optimizer steps; `idle` takes part in nothing."""
    g, d, idle = nn.Linear(16, 64), nn.Linear(64, 1), nn.Linear(3, 3)
    of_g = torch.optim.Adam([*g.parameters(), *idle.parameters()])
    of_d = torch.optim.Adam(d.parameters())

    def step() -> None:
        fake = g(torch.randn(8, 16))
        (F.softplus(-d(torch.randn(8, 64))).mean() + F.softplus(d(fake.detach())).mean()).backward()
        of_d.step()
        of_d.zero_grad()
        d.requires_grad_(False)
        F.softplus(-d(fake)).mean().backward()
        of_g.step()
        of_g.zero_grad()
        d.requires_grad_(True)

    model = nn.ModuleDict({"g": g, "d": d, "idle": idle})
    optimizers = {"both": [of_g, of_d], "one": of_d, "none": None}[named]
    session = profile_training(model, optimizers, save_dir=tmp_path, schedule=SHORT)  # type: ignore[arg-type]
    run(session, step)
    assert session.results.unused_parameters == ("idle.weight", "idle.bias")
    trained = bytes_of([*g.parameters(), *d.parameters()])
    state = sum(by_category(tmp_path, prefix)["OPTIMIZER_STATE"] for prefix in ("g.", "d."))
    assert state == 2 * trained + 4 * 4


@pytest.mark.usefixtures("alone")
def test_optimizers_that_step_inside_backward_are_all_seen(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 4))
    optimizers = {one: torch.optim.Adam([one]) for one in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    session = profile_training(model, next(iter(optimizers.values())), save_dir=tmp_path, schedule=SHORT)
    run(session, lambda: model(torch.randn(16, 8)).square().mean().backward())
    assert session.results.unused_parameters == ()
    state = sum(by_category(tmp_path, f"{layer}.")["OPTIMIZER_STATE"] for layer in (0, 2))
    assert state == 2 * bytes_of(model.parameters()) + 4 * 4
    known = session.observed.storages.observations()
    gradients = {known.names[name] for name, role in zip(known.name, known.role, strict=True) if role == 2}
    assert gradients == {"0.weight", "0.bias", "2.weight", "2.bias"}


@pytest.mark.usefixtures("alone")
def test_parameters_that_are_in_no_model_are_named_after_their_optimizer(tmp_path: Path) -> None:
    model, prompt = nn.Linear(16, 4), nn.Parameter(torch.randn(64, 16))
    optimizer = torch.optim.SGD([*model.parameters(), prompt], 0.1, momentum=0.9)

    def step() -> None:
        model(prompt).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    run(profile_training(model, save_dir=tmp_path, schedule=SHORT), step)
    assert by_category(tmp_path, "SGD.2") == dict.fromkeys(("PARAMETER", "GRADIENT", "OPTIMIZER_STATE"), prompt.nbytes)


# ---- who received a gradient -----------------------------------------------------------------------------------------


def test_who_never_had_a_gradient_when_it_had_to_is_named_alone() -> None:
    model = nn.ModuleDict({name: nn.Linear(1, 1, bias=False) for name in "abc"})
    a, b, _ = model.parameters()
    observed = Observations(lambda: TrainingObjects(model), lambda: False)
    a.grad = torch.ones(1, 1)
    found = []
    for are_due in (False, True):
        observed.all_gradients(are_due=are_due)
        found.append(observed.without_gradient)
    a.grad, b.grad = None, torch.ones(1, 1)
    observed.all_gradients(are_due=False)  # a look at another moment clears a parameter and accuses none
    assert [*found, observed.without_gradient] == [None, ("b.weight", "c.weight"), ("c.weight",)]
