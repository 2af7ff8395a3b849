"""A parameter that gets other memory is told once, and nothing of it is kept alive."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.truth.catalogue import entry_of
from tracer.analysis.kinds import Kind
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.storage_columns import MovedParameters
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule


def names(moved: MovedParameters, model: nn.Module) -> list[str]:
    found = list(moved.among(list(model.named_parameters())))
    assert all(role == Role.PARAMETER for role, _, _ in found)
    return [name for _, name, _ in found]


def test_each_storage_of_a_parameter_is_told_once() -> None:
    model, moved = nn.Linear(3, 2), MovedParameters()
    assert names(moved, model) == ["weight", "bias"]
    assert names(moved, model) == []
    with torch.no_grad():
        model.weight.add_(1)
    assert names(moved, model) == []
    model.weight.data = model.weight.data * 2
    assert names(moved, model) == ["weight"]


def test_another_storage_at_the_same_address_is_another() -> None:
    model, moved = nn.Linear(300, 1, bias=False), MovedParameters()
    names(moved, model)
    old = weakref.ref(model.weight.untyped_storage())
    address = model.weight.data_ptr()
    model.weight.data = torch.empty(0)
    assert old() is None, "nothing was kept alive"
    spare = [torch.zeros(1, 300) for _ in range(8)]
    model.weight.data = next((one for one in spare if one.data_ptr() == address), spare[0])
    assert names(moved, model) == ["weight"]


def test_tensors_without_memory_of_their_own_are_passed_over() -> None:
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.ones(2), (5,), check_invariants=True)
    assert list(MovedParameters().among([("sparse", sparse)])) == []


@pytest.mark.parametrize(("name", "kind"), [("momentum_encoder", Kind.PARAMETER), ("collocation_points", Kind.INPUT)])
def test_what_a_program_replaces_or_differentiates_by(name: str, kind: Kind) -> None:
    """The key encoder is PARAMETER under its name, whatever its memory; collocation points are INPUT."""
    torch.manual_seed(0)
    program = entry_of(name).build()
    with ProfileSession(program.model or nn.Module(), program.optimizers[0], schedule=Schedule(1, 1, 2, 1)) as session:
        for _ in range(session.schedule.num_steps):
            program.step()
            session.step()
    assert session.fault is None
    peak = session.findings.worst.peak
    assert peak.unexplained_bytes == 0
    blocks, of_names = peak.blocks, session.known.names
    named = [of_names[row] if row >= 0 else "" for row in blocks.name.tolist()]
    told = [(one, Kind(which)) for one, which in zip(named, blocks.kind.tolist(), strict=True)]
    wanted: list[Tensor] = program.batch.storages() if kind is Kind.INPUT and program.batch else []  # type: ignore[assignment]
    if kind is Kind.PARAMETER:
        assert {which for one, which in told if one.startswith("key.")} == {kind}
        assert {one for one, _ in told if one.startswith("key.")} >= {"key.0.weight", "key.2.weight", "key.4.weight"}
    else:
        places = [one.data_ptr() for one in wanted]
        kinds = [
            Kind(which) for at, which in zip(blocks.address.tolist(), blocks.kind.tolist(), strict=True) if at in places
        ]
        assert kinds == [kind, kind]
