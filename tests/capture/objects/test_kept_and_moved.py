"""Frozen objects, parameters that get other memory, names of models: found, and nothing is kept alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from torch import Tensor, nn

from tests.truth.catalogue import entry_of
from tests.truth.isolate import value_in_fresh_process
from tracer.blocks.kinds import Kind
from tracer.capture.objects.known_storages import Role
from tracer.capture.objects.live_tensors import FrozenObjects, objects_of
from tracer.capture.objects.model_names import names_of
from tracer.capture.objects.storage_columns import MovedParameters
from tracer.sessions.profile_session import ProfileSession
from tracer.sessions.schedule import Schedule


def _times_noted_and_found_dead() -> tuple[int, bool, bool]:
    before, frozen = gc.freeze, FrozenObjects()
    frozen.start()
    cache = torch.empty(3)
    gc.freeze()
    gc.freeze()
    times = sum(thing is cache for thing in frozen.alive())
    reference = weakref.ref(cache)
    del cache
    is_dead = reference() is None
    frozen.stop()
    return times, is_dead, gc.freeze == before


def test_a_frozen_tensor_is_noted_once_and_not_kept_alive() -> None:
    assert value_in_fresh_process(_times_noted_and_found_dead) == (1, True, True)


def _noted_after_unfreezing() -> int:
    frozen = FrozenObjects()
    frozen.start()
    gc.freeze()
    gc.unfreeze()
    return len(frozen.alive())


def test_what_was_unfrozen_is_on_the_collectors_list_again() -> None:
    assert value_in_fresh_process(_noted_after_unfreezing) == 0


def _seen_by_a_session() -> tuple[bool, bool]:
    before, model = gc.freeze, nn.Linear(4, 4)
    with ProfileSession(model, None, schedule=Schedule(0, 0, 1, 1)) as session:
        cache = torch.empty(1234)
        gc.freeze()
        is_found = any(thing is cache for thing in objects_of((torch.Tensor,)))
        model(torch.ones(1, 4))
        session.step()
    return is_found, gc.freeze == before


def test_a_session_sees_a_cache_that_the_program_froze() -> None:
    """As vLLM does when its engine has started."""
    assert value_in_fresh_process(_seen_by_a_session) == (True, True)


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
        for _ in range(session.stages.schedule.num_steps):
            program.step()
            session.step()
    assert session.fault is None
    peak = session.findings.worst.peak
    assert peak.unexplained_bytes == 0
    blocks = peak.blocks
    named = [blocks.value(row) or "" for row in blocks.name.tolist()]
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


class Encoder(nn.Linear):
    def __init__(self) -> None:
        super().__init__(1, 1)


class Decoder(Encoder):
    pass


class Branch:
    """A class of the program's that is no module."""

    def __init__(self) -> None:
        self.encoder = Encoder()


def test_a_class_names_its_only_model() -> None:
    encoder, decoder = Encoder(), Decoder()
    assert names_of([encoder, decoder]) == {id(encoder): "Encoder", id(decoder): "Decoder"}


def test_attributes_name_models_of_one_class() -> None:
    class Learner:
        def __init__(self) -> None:
            self.online, self.target = Encoder(), Encoder()

        def names(self) -> dict[int, str]:
            return names_of([self.online, self.target])

    learner = Learner()
    assert learner.names() == {id(learner.online): "online", id(learner.target): "target"}


def test_names_are_told_apart_by_a_number() -> None:
    """Attributes of one name, and items of a list, which have none; a key of a dictionary is a name."""
    online, target = Branch(), Branch()
    assert list(names_of([online.encoder, target.encoder]).values()) == ["encoder", "encoder_2"]
    nets, by_key = [Encoder(), Encoder()], {"actor": Decoder(), "critic": Decoder()}
    assert list(names_of([*nets, *by_key.values()]).values()) == ["Encoder", "Encoder_2", "actor", "critic"]


def test_a_name_that_a_model_has_is_no_other_models() -> None:
    first, second = Encoder(), Encoder()
    assert names_of([first, second], {"second": first}) == {id(first): "second", id(second): "second_2"}
    assert list(names_of({Encoder()}, {"": first}).values()) == ["", "Encoder_2"]


def test_nothing_of_the_users_is_called() -> None:
    class Odd:
        def __init__(self) -> None:
            self.inner = {"a": Encoder(), "b": Encoder()}

        def __getattribute__(self, name: str) -> object:
            raise AssertionError(name)

        __iter__ = __len__ = __eq__ = __hash__ = __bool__ = None  # type: ignore[assignment]

    odd = Odd()
    models = list(object.__getattribute__(odd, "inner").values())
    assert sorted(names_of(models).values()) == ["a", "b"]
