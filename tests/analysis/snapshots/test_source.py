"""What the source says of a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracer.analysis.snapshots.causes.source import reaches_backward_behind, updates_itself
from tracer.analysis.snapshots.sites import Site

SUM = "total = 0\nfor x in data:\n    out = model(x)\n    total += loss(out)\ntotal.backward()\n"
UNROLLED = (
    "for task in tasks:\n"
    "    for _ in range(5):\n"
    "        value = loss(model(task))\n"
    "        fast = [w - g for w, g in zip(fast, torch.autograd.grad(value, fast, create_graph=True))]\n"
    "    (loss(call(model, fast))).backward()\n"
)

BLOCKS = "for x in data:\n    out = model(x)\n    with lock:\n        kept = out\nif kept:\n    kept.backward()\n"


@pytest.mark.parametrize(
    ("source", "line", "expected"),
    [
        (SUM, 3, True),
        (SUM.replace("total.backward", "other.backward"), 3, False),
        ("for x in data:\n    out = model(x)\n    out.backward()\n", 2, False),
        ("for x in data:\n    self.out['a'].append(model(x))\nscaler.backward(sum(self.out['a']))\n", 2, True),
        ("for x in data:\n    a, (b, *c) = model(x)\ntorch.autograd.grad(c, w)\n", 2, True),
        (UNROLLED, 3, True),
        (f"def one():\n    out = model(x)\n    return out\n\n\n{SUM}", 2, False),
        (BLOCKS, 2, True),
        (f"{SUM.replace('total.backward', 'out = model(y)~out.backward')}".replace("~", "\n"), 3, False),
        ("while data:\n    out = model(x)\n    out.backward()\n", 2, False),
        ("for x in data:\n    out = model(x)\ndef later():\n    out.backward()\n", 2, False),
        ("for x in data:\n    out = model(x)\nself.manual_backward(out)\n", 2, True),
        ("this is no source", 1, False),
    ],
)
def test_whether_a_backward_behind_the_loop_needs_a_value(
    source: str, line: int, expected: bool, tmp_path: Path
) -> None:
    file = tmp_path / "train.py"
    file.write_text(source)
    assert reaches_backward_behind(Site("main", str(file), line)) is expected


@pytest.mark.parametrize("file", ["missing.py", None])
def test_a_file_that_is_not_here_says_nothing(file: str | None) -> None:
    assert not reaches_backward_behind(Site("main", file, 3))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("mean = 0.9 * mean + x.mean()", True),
        ("self.p = self.p - k @ k.t()", True),
        ("total += loss", True),
        ("kept = kept + [x]", False),
        ("mean = other + x.mean()", False),
        ("kept.append(mean + x)", False),
        ("kept[0] = kept[1] + x", False),
    ],
)
def test_a_variable_that_is_computed_from_its_own_value(source: str, expected: bool, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(f"for x in data:\n    {source}\n")
    assert updates_itself(Site("main", str(file), 2)) is expected
