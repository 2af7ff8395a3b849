"""The bookkeeper counts what can be counted by hand."""

from __future__ import annotations

import gc
import threading
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


def test_what_is_resized_counts_as_it_is() -> None:
    def step() -> None:
        a = torch.empty(10)
        a.resize_(1000)
        a.fill_(1.0)

    assert rise(step) == 4000


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


@pytest.mark.parametrize(
    ("make", "size_bytes"),
    [
        # 3 places of 2 numbers of 8 bytes, and 3 values of 4 bytes
        (lambda: torch.sparse_coo_tensor([[0, 1, 2], [0, 1, 2]], torch.ones(3), (3, 3), check_invariants=False), 60),  # type: ignore[arg-type]
        # 7 values of 4 bytes; of each of 2 pieces a size, a stride and an offset of 8 bytes
        (lambda: torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]), 28 + 48),
        # 7 values, 3 offsets of 8 bytes
        (lambda: torch.nested.nested_tensor([torch.ones(3, 1), torch.ones(4, 1)], layout=torch.jagged), 28 + 24),
    ],
)
def test_tensors_that_are_not_plain(make: Callable[[], Tensor], size_bytes: int) -> None:
    held: list[Tensor] = []
    book = watched(lambda: Program(lambda: held.append(make()), held=held), num_steps=0)
    with book.watching():
        before = book.live_bytes
        held.clear()
        assert before - book.live_bytes == size_bytes


def test_every_thread_is_seen() -> None:
    def step() -> None:
        thread = threading.Thread(target=lambda: torch.ones(1000) * 2)
        thread.start()
        thread.join()

    assert rise(step) == 8000


def test_what_was_there_before_belongs_to_the_peak() -> None:
    idle = torch.ones(1000)
    book = watched(lambda: Program(lambda: torch.ones(10)))
    assert book.start_bytes >= idle.nbytes
    assert book.peak_bytes == book.start_bytes + 40


def test_old_memory_that_goes_is_noted() -> None:
    held = [torch.ones(1000)]
    book = watched(lambda: Program(lambda: held.pop() if held else torch.ones(10)), num_before=0, num_steps=2)
    assert [now - after for (_, now), (_, after) in zip(book.old_bytes, book.old_bytes[1:], strict=False)] == [4000]


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


def test_what_backward_let_go_of_is_not_kept() -> None:
    book = watched(_training)
    assert not [block for block in _alive(book, Phase.OPTIMIZER) if block.packed and block.holder is None]


def test_what_hooks_of_the_program_packed_is_kept_for_backward() -> None:
    weight = torch.ones(100, requires_grad=True)
    seen: list[int] = []
    halves: list[Tensor] = []  # what is let go of is not kept for backward, though it is alive

    def pack(x: Tensor) -> Tensor:
        halves.append(x.half())
        return halves[-1]

    def step() -> None:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x.float()):
            loss = (weight * weight.detach().clone()).sum()
        seen.append(sum(block.bytes for block in book._live.values() if block.packed))
        loss.backward()
        weight.grad = None
        seen.append(sum(block.bytes for block in book._live.values() if block.packed))
        seen.append(sum(half.nbytes for half in halves))

    book = Bookkeeper()
    with book.watching():
        book.knows(Program(step))
        step()
    assert seen == [200, 0, 200]


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
