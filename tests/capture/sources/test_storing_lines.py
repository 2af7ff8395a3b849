"""Which lines put something into what has a name: by the source, wherever it stands in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tracer.capture.sources.storing_lines import (
    has_keyword,
    in_graph,
    is_bare_variable,
    is_updated,
    lines_that_store,
    names_on_the_way,
)

from tracer.capture.sources.source_line import SourceLine

SOURCE = """\
import copy
losses, seen = [], dict()
losses.append(model(x))
losses += [1.0 * y]
trainer.history["loss"] = y
self.hidden: object = first(x)
seen.setdefault("a", []).append(y)
best = None
best = copy.deepcopy(model)
if (found := y) is not None:
    a, (*b, c.d[0]) = y
losses.sort()
losses.clear()
print(losses, best)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "train.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.mark.parametrize(
    ("name", "lines"),
    [
        ("losses", [2, 3, 4]),
        ("history", [5]),
        ("hidden", [6]),
        ("seen", [2, 7]),
        ("best", [9]),
        ("found", [10]),
        ("b", [11]),
        ("d", [11]),
        ("model", []),
    ],
)
def test_lines_that_store_under_a_name(file: str, name: str, lines: list[int]) -> None:
    assert [found.line for found in lines_that_store(name, file)] == lines


def test_what_a_line_must_have_in_it(file: str) -> None:
    assert [found.line for found in lines_that_store("losses", file, re.compile("append"))] == [3]


def test_what_is_no_python_stores_nothing(tmp_path: Path) -> None:
    (tmp_path / "cell.py").write_text("%matplotlib inline\nx = 1")
    assert lines_that_store("x", str(tmp_path / "cell.py")) == ()
    assert lines_that_store("x", str(tmp_path / "missing.py")) == ()


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("losses[3] -> graph of the tensor -> AddBackward0", ["losses"]),
        ("trainer.outputs[...]", ["trainer", "outputs"]),
        ("self.model._modules['2'].hidden", ["model", "hidden"]),
        ("best['layer.2.bias']", ["best"]),
        ("step -> closure variable kept of step()[0]", ["kept"]),
        ("reference cycle Node.other -> Node.t", ["reference", "cycle", "Node", "other", "Node", "t"]),
    ],
)
def test_the_names_on_a_way(path: str, names: list[str]) -> None:
    assert names_on_the_way(path) == names


def test_a_variable_is_bare_if_it_holds_something_itself() -> None:
    assert is_bare_variable("out")
    assert is_bare_variable("step -> closure variable out of step()")
    assert not is_bare_variable("out[...]")
    assert not is_bare_variable("model.out")
    assert not is_bare_variable("step -> closure variable out of step()[0]")


def test_a_path_ends_with_the_first_graph_and_says_no_numbers() -> None:
    assert in_graph("losses[3][-1] -> graph of the tensor -> graph of the tensor -> X") == (
        "losses[...][...] -> graph of the tensor",
        True,
    )
    assert in_graph("cache['a'][0]") == ("cache['a'][...]", False)


CHANGES = """
average, best, shadow = copy.deepcopy(model), copy.deepcopy(model.state_dict()), Average()
for step in range(1000):
    loss.backward()
    optimizer.zero_grad()
    if step % 10 == 0:
        for slow, fast in zip(average.parameters(), model.parameters()):
            slow.lerp_(fast, 0.1)
        shadow.update(model)
        torch._foreach_lerp_(averages, weights, 0.1)
    elif loss < least:
        best = copy.deepcopy(model.state_dict())
model.load_state_dict(best)
total.backward(
    retain_graph=True,
)
"""


def test_a_moving_average_is_changed_in_place_and_a_copy_is_not(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(CHANGES)
    assert [is_updated(name, str(file)) for name in ("average", "shadow", "averages", "best")] == [True] * 3 + [False]
    assert not is_updated("average", str(tmp_path / "nowhere.py"))


def test_a_call_says_to_keep_its_graph_on_any_of_its_lines_and_no_other_call_does(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(CHANGES)
    lines = {line for line in range(1, 18) if has_keyword(SourceLine(str(file), line), ("retain_graph",))}
    assert lines == {14, 15, 16}
