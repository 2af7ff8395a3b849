"""The bookkeeper counts what can be counted by hand, and the rules by which a tracer is judged can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.truth.bookkeeper import Alive, Bookkeeper, HeldBy, Phase
from tests.truth.program import Batch, Program
from tests.truth.running import Effects
from tests.truth.verdict import Share, differences, kinds, wrong_sum


class _Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 16, bias=False)
        self.register_buffer("scale", torch.ones(16))

    def forward(self, x: Tensor) -> Tensor:
        return (self.inner(x) * self.scale).tanh()


def _training() -> Program:
    model, batch = _Scaled(), Batch()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step() -> None:
        x = batch.of(torch.randn(4, 8))
        model(x).sum().backward()
        optimizer.step()

    return Program(step, model, [optimizer], batch)


def _watched() -> Bookkeeper:
    """The second step of the training is in the window."""
    book = Bookkeeper()
    with book.watching():
        program = _training()
        book.knows(program)
        for book.step in (0, 1):
            if book.step == 1:
                book.begin()
            program.step()
        book.end()
    return book


def test_holders_and_what_is_kept_for_backward() -> None:
    book = _watched()
    there = [each for each in book.instants if (each.step, each.phase) == (1, Phase.OTHER)]
    after_forward = max(there, key=lambda each: each.bytes).blocks
    weight = 8 * 16 * 4
    assert {block.holder: block.bytes for block in after_forward if block.holder is not None} == {
        HeldBy.PARAMETER: weight,
        HeldBy.GRADIENT: weight,
        HeldBy.BUFFER: 64,
        HeldBy.OPTIMIZER_STATE: weight,
        HeldBy.INPUT: 128,
    }
    (kept,) = (block for block in after_forward if block.packed and block.holder is None and block.step == 1)
    assert (kept.bytes, kept.module, kept.phase, kept.op) == (256, "_Scaled", Phase.FORWARD, "aten.tanh.default")
    assert (kept.file, kept.line) == (__file__, _Scaled.forward.__code__.co_firstlineno + 1)


def test_each_rule_of_the_verdict_can_fail() -> None:
    peak = {"rows": [{"bytes": 60}, {"bytes": 40}], "peak_bytes": 100, "allocator_peak_bytes": 100}
    assert not wrong_sum({**peak, "unexplained_bytes": 0})
    assert wrong_sum({**peak, "unexplained_bytes": 9})
    assert wrong_sum({**peak, "unexplained_bytes": 0, "peak_bytes": 99})
    kept = Alive(100, None, None, True, Phase.FORWARD, 2, "a", "op", "f.py", 1)
    assert kinds([(100, "ACTIVATION")], [kept], knows_batch=True) == Share(100, 100)
    assert kinds([(100, "TEMPORARY")], [kept], knows_batch=True) == Share(0, 100)
    left = Alive(100, None, None, False, Phase.FORWARD, 2, "a", "op", "f.py", 1, is_left=True)
    assert kinds([(100, "ACTIVATION")], [left], knows_batch=True, has_failed=True) == Share(0, 100)
    assert kinds([(100, "HELD")], [left], knows_batch=True, has_failed=True) == Share(100, 100)


@pytest.mark.parametrize(
    "changes",
    [
        {"losses": ("b",)},
        {"tensors": {"w": "b"}},
        {"random_states": "b"},
        {"compilations": {"frames": 2}},
        {"torch_state": {"profiler": True}},
        {"batches_alive": ((True,), (True, True))},
    ],
)
def test_every_difference_is_one(changes: dict[str, Any]) -> None:
    plain = Effects(("a",), {"w": "a"}, "a", {"frames": 1}, {}, ((True,), (False, True)), {})
    assert differences(plain, plain) == []
    assert len(differences(plain, replace(plain, **changes))) == 1
