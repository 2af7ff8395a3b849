"""Ten ways to hold a tensor too long, each named by the path that a person would give."""

from __future__ import annotations

import gc
import runpy
import sys
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tracer.capture.objects import holders
from tracer.capture.objects.at_failure import Holder
from tracer.capture.objects.holder_links import running_frames
from tracer.capture.objects.holders import find_holders
from tracer.capture.objects.ways_up import around, spelled

HERE = "test_holders.py"


@pytest.fixture(autouse=True)
def what_is_new() -> Iterator[None]:
    """Of all that the test run has loaded nothing is looked through, which is most of the time that a search takes."""
    gc.freeze()
    yield
    gc.unfreeze()


def tensor(size: int = 100) -> Tensor:
    return torch.ones(size)


def place(one: Tensor) -> int:
    return one.untyped_storage().data_ptr()


def only(addresses: list[int], error: BaseException | None = None) -> Holder:
    (found,) = find_holders(addresses, error=error)
    assert set(found.addresses) == set(addresses)
    return found


class Trainer:
    def __init__(self) -> None:
        self.history: list[Tensor] = []
        self.by_name: dict[str, Any] = {}


class Slotted:
    __slots__ = ("last",)

    def __init__(self, last: Tensor) -> None:
        self.last = last


def test_a_list_in_an_attribute() -> None:
    trainer = Trainer()
    trainer.history += [tensor(), tensor(), tensor()]
    found = only([place(one) for one in trainer.history])
    assert found.path == "trainer.history[...]"
    assert found.variable.startswith(f"local variable of test_a_list_in_an_attribute(), {HERE}:")


def test_a_dictionary_and_what_is_in_it() -> None:
    cache: Any = {"step": {"outputs": tensor()}, 3: deque([tensor()])}
    assert only([place(cache["step"]["outputs"])]).path == "cache['step']['outputs']"
    assert only([place(cache[3][0])]).path == "cache[3][0]"


def closure_over(kept: Tensor) -> Callable[[], Tensor]:
    def again() -> Tensor:
        return kept

    return again


def test_a_closure() -> None:
    again = closure_over(tensor())
    assert only([place(again())]).path == "again -> closure variable kept of again()"


def test_an_attribute_also_in_slots_and_of_modules() -> None:
    trainer, slotted, module = Trainer(), Slotted(tensor()), nn.Sequential(nn.Linear(2, 2))
    trainer.last = tensor()  # type: ignore[attr-defined]
    module[0].register_buffer("seen", tensor())
    assert only([place(trainer.last)]).path == "trainer.last"  # type: ignore[attr-defined]
    assert only([place(slotted.last)]).path == "slotted.last"
    assert only([place(module[0].seen)]).path == "module[0].seen"  # type: ignore[arg-type]
    assert only([place(module[0].weight)]).path == "module[0].weight"  # type: ignore[arg-type]


def test_a_global_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    keeper: Any = ModuleType("keeper")
    monkeypatch.setitem(sys.modules, "keeper", keeper)
    keeper.losses = {"kept": [tensor()]}
    found = only([place(keeper.losses["kept"][0])])
    del keeper
    assert (found.path, found.variable) == ("losses['kept'][0]", "global variable of keeper")


def test_an_attribute_of_a_class() -> None:
    class Keeper:
        shared = (tensor(),)
        other = ("two of one kind are no reason to clear a class",)

    assert only([place(Keeper.shared[0])]).path == "Keeper.shared[0]"


def batches(sizes: list[int]) -> Iterator[int]:
    for size in sizes:
        batch = tensor(size)
        yield place(batch)


def test_a_generator_that_waits() -> None:
    loader = batches([5, 6])
    found = only([next(loader)])
    assert found.path.startswith("loader -> local variable batch of batches(), test_holders.py:")


def fresh() -> Iterator[Tensor]:
    """As a loader does: it makes a tensor and keeps none."""
    for _ in range(2):
        yield tensor()


def with_progress() -> Iterator[Tensor]:
    """As tqdm does: what it has handed out last is a local variable of its own."""
    for item in fresh():  # noqa: UP028
        yield item


LOOPS: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "itself": (fresh, set()),
    "enumerate": (lambda: enumerate(fresh()), {"the loop's enumerate[1]"}),
    "zip": (lambda: zip(fresh(), range(9), strict=False), {"the loop's zip[0]"}),
    "progress": (with_progress, {"the loop's generator -> local variable item of with_progress()"}),
    "both": (
        lambda: enumerate(zip(fresh(), range(9), strict=False)),
        {"the loop's enumerate -> zip[0]", "the loop's enumerate[1][0]"},
    ),
    "generator": (lambda: (one for one in fresh()), {"the loop's generator -> local variable one of <genexpr>()"}),
    "map": (lambda: map(torch.clone, fresh()), set()),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_iterator_of_a_loop_keeps_its_last_item_beside_the_loops_variable(loop: str) -> None:
    """It is on the stack of the function that loops, and in no variable."""
    go_through, expected = LOOPS[loop]
    for item in go_through():
        batch = item
        while not isinstance(batch, Tensor):
            batch = next(one for one in batch if not isinstance(one, int))
        del item
        found = only([place(batch)])
        assert {path.partition(", ")[0] for path in (found.path, *found.also)} == {"batch", *expected}
        break


def test_a_generator_that_keeps_all_its_items_is_named_though_a_loop_alone_has_it() -> None:
    def remembering() -> Iterator[int]:
        seen = []
        while True:
            seen.append(tensor())
            yield place(seen[-1])

    for at in remembering():
        assert only([at]).path.startswith("the loop's generator -> local variable seen of remembering(), ")
        assert only([at]).variable == "iterator of a loop"
        break


def test_the_variables_of_a_generator_that_runs_are_those_of_a_function_that_runs() -> None:
    def training() -> Iterator[Holder]:
        output = [tensor()]
        yield only([place(output[0])])

    for found in training():
        assert (found.path, found.also) == ("output[0]", ())


def test_a_fault_of_the_search_costs_the_one_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = [tensor()], {"it": tensor()}

    def fails_for_lists(ways: Any, cuts: Any, graph: Any) -> str:
        text = spelled(ways, cuts, graph)
        assert "mine" not in text
        return text

    monkeypatch.setattr(holders, "spelled", fails_for_lists)
    with pytest.warns(UserWarning, match=r"(?s)One holder .* internal fault.*AssertionError"):
        warnings.simplefilter("ignore")
        found = find_holders([place(mine[0]), place(other["it"])])
    assert [holder.path for holder in found] == ["a holder that was not found", "other['it']"]


def test_an_exception_that_somebody_keeps() -> None:
    errors: list[Exception] = []

    def fails() -> None:
        output = tensor()
        errors.append(ValueError(place(output)))
        raise errors[0]

    with pytest.raises(ValueError):
        fails()
    found = only([errors[0].args[0]])
    assert found.path.startswith("errors[0].__traceback__")
    assert "-> local variable output of fails(), test_holders.py:" in found.path


def test_the_exception_that_is_on_its_way_is_no_holder_but_the_function_it_has_left() -> None:
    def fails() -> None:
        outputs = [tensor()]
        raise ValueError(place(outputs[0]))

    try:
        fails()
    except ValueError as error:
        found = only([error.args[0]], error)
        assert found.path == "outputs[0]"
        assert found.variable.startswith("local variable of fails(), ")


def test_a_reference_cycle() -> None:
    def makes_one() -> int:
        parent, child = Trainer(), Trainer()
        parent.by_name["child"], child.by_name["parent"] = child, parent
        parent.last = tensor()  # type: ignore[attr-defined]
        return place(parent.last)  # type: ignore[attr-defined]

    gc.collect()
    gc.disable()
    try:
        found = only([makes_one()])
        assert found.path.startswith("reference cycle Trainer.by_name")
        assert found.path.endswith("Trainer.last") and "['child']" in found.path and "['parent']" in found.path
        assert found.variable == ""
    finally:
        gc.enable()
        gc.collect()


def test_a_cycle_is_found_beside_what_nothing_holds() -> None:
    """Memory -1 is of a storage (1), which somebody looks at, and of a tensor (2), which a node (3) holds: 2, 3, 2."""

    class References:
        def referrers(self, vertices: Iterable[int]) -> Iterator[tuple[int, int]]:
            holders = {-1: [1, 2], 2: [4, 3], 3: [2]}
            return ((vertex, holder) for vertex in vertices for holder in holders.get(vertex, []))

    references: Any = References()
    assert around(-1, references) == [2, 3, 2] and around(1, references) == []


def test_a_loss_whose_graph_has_tensors_of_its_own_objects() -> None:
    """The object of an intermediate tensor stays as long as the graph has the tensor, and nothing refers to it."""
    weight, losses, places, objects = torch.ones(50, requires_grad=True), [], [], []
    for _ in range(3):
        hidden = (weight * 2).exp()
        places.append(place(hidden))
        objects.append(id(hidden))
        losses.append((hidden * 3).exp().sum())
        del hidden
    assert {id(one) for one in gc.get_objects() if type(one) is Tensor} & set(objects), "or there is nothing to test"
    found = only(places)
    assert found.path == "losses[...] -> graph of the tensor"
    assert found.graph_of in [place(loss) for loss in losses]


def test_a_hook() -> None:
    model = nn.Linear(3, 3)
    places = []

    def watch() -> None:
        outputs = []

        def keep(module: nn.Module, args: object, output: Tensor) -> None:
            outputs.append(output.detach().clone())
            places.append(place(outputs[-1]))

        model.register_forward_hook(keep)

    watch()
    for _ in range(2):
        model(torch.ones(2, 3))
    found = only(places)
    assert found.path.startswith("model._forward_hooks[")
    assert found.path.endswith(" -> closure variable outputs of keep()[...]")


def test_a_partial_and_a_bound_method() -> None:
    trainer = Trainer()
    trainer.history.append(tensor())
    address, callback = place(trainer.history[0]), [trainer.history.append]
    del trainer
    assert "[0]" in only([address]).path
    other = partial(print, tensor())
    assert only([place(other.args[0])]).path == "other -> args of the partial[0]"
    del callback


def test_optimizers_and_gradients_have_paths_too() -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    state = optimizer.state[model.weight]["momentum_buffer"]
    address = place(state)
    del state
    assert only([address]).path == "optimizer.state[<Parameter>]['momentum_buffer']"
    assert model.weight.grad is not None
    assert only([place(model.weight.grad)]).path == "model.weight.grad"


def test_what_a_list_and_a_variable_hold_is_held_by_both() -> None:
    """The variable alone is shorter, and without it the list has the tensor still."""
    kept, places = [], []
    for _ in range(3):
        x = tensor()
        places.append(place(x))
        kept.append(x)
    found = {holder.addresses: holder for holder in find_holders(places)}
    alone, both = found[tuple(sorted(places[:2]))], found[(places[2],)]
    assert (alone.path, alone.also) == ("kept[...]", ())
    assert (both.path, both.also) == ("kept[2]", ("x",))
    del x


def test_a_graph_is_held_by_what_lets_go_of_it_and_not_by_a_graph_that_shares_its_leaf() -> None:
    weight = torch.ones(50, requires_grad=True)
    mine, other = (weight * 2).exp(), (weight * 3).exp()
    address, loss, unrelated = place(mine), mine.sum(), other.sum()
    unrelated.backward()
    del mine, other
    found = only([address])
    assert (found.path, found.graph_of) == ("loss -> graph of the tensor", place(loss))


def test_what_has_more_holders_than_anybody_would_read_has_no_name() -> None:
    one = tensor()
    many = [{"it": one} for _ in range(5)]
    a, b, c, d, e = many
    del many
    found = only([place(one)])
    assert found.path == "more than one holder" and found.also == ("one",)
    del a, b, c, d, e


def test_the_variables_of_a_script_are_its_globals_and_not_those_of_who_runs_it(tmp_path: Path) -> None:
    """Under `runpy` a script's variables are a local variable of a function that nobody has written."""
    script = tmp_path / "leak.py"
    script.write_text(
        "import torch\nfrom tracer.capture.objects.holders import find_holders\n"
        "hist = [torch.ones(9) for _ in range(3)]\n"
        "found = find_holders([one.untyped_storage().data_ptr() for one in hist])\n"
    )
    (found,) = runpy.run_path(str(script), run_name="__main__")["found"]
    assert (found.path, found.variable) == ("hist[...]", "global variable of leak.py")


def test_the_variables_of_a_script_that_has_ended_are_its_globals_and_not_attributes_of_its_functions() -> None:
    """Neither a module nor a frame has them any more, but what the script has defined keeps them."""
    variables: dict[str, Any] = {"__name__": "__main__", "__file__": "/somewhere/leak.py"}
    variables["hist"] = [tensor() for _ in range(3)]
    exec("class Net:\n    def forward(self): ...", variables)
    kept, places = variables["Net"], [place(one) for one in variables["hist"]]
    del variables
    found = only(places)
    assert (found.path, found.variable) == ("hist[...]", "global variable of leak.py")
    del kept


def test_an_attribute_of_the_object_at_work_names_its_class() -> None:
    class Worker(Trainer):
        def work(self) -> Holder:
            self.history += [tensor(), tensor()]
            return only([place(one) for one in self.history])

    (found,) = [Worker().work()]
    assert found.path == "self.history[...]"
    assert found.variable.startswith("attribute of Worker, local variable of work(), ")


def test_nobody_holds_what_is_gone_and_nobody_is_asked_of_nothing() -> None:
    gone = tensor()
    address = place(gone)
    del gone
    assert find_holders([address]) == ()
    assert find_holders([]) == ()


def test_another_devices_address_is_not_looked_for() -> None:
    here = tensor()
    assert find_holders([place(here)], device=torch.device("meta")) == ()


def test_nothing_is_kept_alive_by_it() -> None:
    """Also not by the dictionary of local variables that a frame is given when somebody asks for them."""
    trainer = Trainer()
    trainer.history.append(tensor())
    local = tensor()
    gone = weakref.ref(local), weakref.ref(trainer.history[0]), weakref.ref(trainer)
    find_holders([place(trainer.history[0]), place(local)])
    gc.disable()
    try:
        del local, trainer
        assert [one() for one in gone] == [None, None, None]
    finally:
        gc.enable()


def test_a_programs_own_dictionary_of_its_variables_stays() -> None:
    kept = tensor()
    mine = locals()
    find_holders([place(kept)])
    assert mine["kept"] is kept


class Loud:
    """Whoever touches it from outside is heard."""

    def __init__(self) -> None:
        self.__dict__["inner"] = tensor()

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")

    def __eq__(self, other: object) -> bool:
        raise AssertionError("it was compared")

    def __hash__(self) -> int:
        return 7


def test_no_code_of_a_users_class_is_called() -> None:
    loud = object.__new__(Loud)
    inner = tensor()
    object.__setattr__(loud, "inner", inner)
    address = place(inner)
    del inner
    assert only([address]).path == "loud.inner"


def test_a_look_at_the_functions_that_run_keeps_none_of_them() -> None:
    """A frame that holds itself would keep the tensors of all that called it until the garbage is collected."""

    class Kept:
        pass

    def look() -> weakref.ref[Kept]:
        kept = Kept()
        list(running_frames(None))
        return weakref.ref(kept)

    gc.disable()
    try:
        assert look()() is None
    finally:
        gc.enable()
