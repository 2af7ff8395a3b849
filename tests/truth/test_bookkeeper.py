"""The bookkeeper counts what can be counted by hand."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.truth.bookkeeper import Alive, Bookkeeper, Holder, Phase
from tests.truth.program import Batch, Program


@pytest.fixture(autouse=True)
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def watched(build: Callable[[], Program], *, num_steps: int = 1, num_before: int = 1) -> Bookkeeper:
    """A program's steps under the bookkeeper, the first of them outside the window."""
    book = Bookkeeper()
    with book.watching():
        program = build()
        book.knows(program)
        for index in range(num_before + num_steps):
            book.step = index
            if index == num_before:
                book.begin()
            program.step()
        book.end()
    return book


def rise(step: Callable[[], object]) -> int:
    """Bytes of the peak above the start."""
    book = watched(lambda: Program(step))
    return book.peak_bytes - book.start_bytes


def test_tensors_that_are_alive_together_count_and_views_do_not() -> None:
    def step() -> None:
        a = torch.ones(100)  # 400 B
        b = a.view(10, 10)[2:]
        c = b * 2  # 320 B
        del a, b
        torch.ones(50)  # 200 B, beside c alone: 520 B
        del c

    assert rise(step) == 720


def test_one_piece_of_memory_in_two_storages_counts_once() -> None:
    array = np.ones(1000, np.float32)

    def step() -> None:
        one, other = torch.from_numpy(array), torch.from_numpy(array)
        assert one.untyped_storage()._cdata != other.untyped_storage()._cdata
        one.add_(other)

    assert rise(step) == 4000


def test_memory_that_no_operator_made_is_foreign() -> None:
    def step() -> None:
        torch.from_numpy(np.ones(1000, np.float32)).add_(1)
        torch.ones(10)

    book = watched(lambda: Program(step))
    assert book.foreign_bytes == 4000


# ---- what holds it, what made it -------------------------------------------------------------------------------------


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


def _alive(book: Bookkeeper, phase: Phase) -> tuple[Alive, ...]:
    there = [each for each in book.instants if (each.step, each.phase) == (1, phase)]
    return max(there, key=lambda each: each.bytes).blocks


def test_holders_and_what_is_kept_for_backward() -> None:
    book = watched(_training)
    after_forward = _alive(book, Phase.OTHER)
    held = {block.holder: block.bytes for block in after_forward if block.holder is not None}
    weight = 8 * 16 * 4
    assert held == {
        Holder.PARAMETER: weight,
        Holder.GRADIENT: weight,
        Holder.BUFFER: 64,
        Holder.OPTIMIZER_STATE: weight,
        Holder.INPUT: 128,
    }
    (kept,) = (block for block in after_forward if block.packed and block.holder is None and block.step == 1)
    assert (kept.bytes, kept.module, kept.phase, kept.op) == (256, "_Scaled", Phase.FORWARD, "aten.tanh.default")
    assert kept.file == __file__
    assert kept.line == _Scaled.forward.__code__.co_firstlineno + 1


def test_a_watched_program_computes_the_same() -> None:
    def weights(watch: bool) -> Tensor:
        torch.manual_seed(0)
        if watch:
            book = watched(_training, num_steps=3)
            assert book.program is not None and book.program.model is not None
            return next(book.program.model.parameters())
        program = _training()
        for _ in range(4):
            program.step()
        assert program.model is not None
        return next(program.model.parameters())

    assert torch.equal(weights(watch=True), weights(watch=False))
