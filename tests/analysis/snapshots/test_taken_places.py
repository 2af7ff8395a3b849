"""What takes the place of a buffer or a parameter, what autograd.grad returns, and what a program keeps of a call."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.analysis.snapshots.test_findings import (
    APPLY,
    BACKWARD,
    BASE,
    FREE_BACKWARD,
    IN_STEP,
    MAIN,
    MALLOC,
    MIB,
    MUL,
    TORCH,
    UNWIND,
)
from tests.analysis.snapshots.test_held_and_fed import (
    BATCH,
    CALL,
    FORWARD,
    HIDDEN,
    IN_LAYER,
    IN_MODULE,
    LOGITS,
    MADE_BY_MAIN,
    OTHER,
    SIZES,
    STEP,
    WEIGHT,
    gone,
    kinds,
    made,
)
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment

NEW, NEWER = BASE + 640 * MIB, BASE + 704 * MIB
SIZE = SIZES[WEIGHT]
LINE, ELSEWHERE = frame("forward", "/home/me/model.py", 9), frame("forward", "/home/me/model.py", 10)
SETATTR = frame("__setattr__", f"{TORCH}/nn/modules/module.py", 2065)
REGISTER = [frame("register_buffer", f"{TORCH}/nn/modules/module.py", 586), SETATTR]
TAKES_DATA = frame("c10::TensorImpl::copy_tensor_metadata(c10::TensorImpl const*, c10::TensorImpl*)", "??", 0)


def of(address: int, line: Row) -> Row:
    return entry("alloc", address, SIZE, frames=[UNWIND, MALLOC, MUL, line, CALL, MAIN])


def let_go(address: int, *inner: Row, line: Row = LINE) -> list[Row]:
    return freed(address, SIZE, frames=[UNWIND, *inner, line, CALL, MAIN])


def left(address: int, size: int = SIZE) -> Row:
    return segment(address, size, [block(address, size)])


@pytest.mark.parametrize(
    ("line", "inner", "old", "new"),
    [
        (LINE, REGISTER, "before recording", "buffer"),
        (ELSEWHERE, REGISTER, "before recording", "not known"),
        (LINE, [SETATTR], "before recording", "not known"),  # an attribute that is no buffer
        (LINE, [TAKES_DATA], "parameter", "parameter"),
        (ELSEWHERE, [TAKES_DATA], "parameter", "not known"),
    ],
)
def test_what_a_line_makes_and_puts_in_anothers_place(
    tmp_path: Path, line: Row, inner: list[Row], old: str, new: str
) -> None:
    """A buffer or a parameter of the same size was there, and backward runs while the new one is in use."""
    trace = [of(NEW, line), *let_go(WEIGHT, *inner), made(OTHER, BACKWARD), *gone(OTHER, FREE_BACKWARD)]
    # Nothing of the first address is left: its place is another segment's.
    found = kinds(tmp_path, [*trace, entry("alloc", WEIGHT, SIZE, frames=MADE_BY_MAIN)], more=[left(NEW)])
    assert [found[WEIGHT][0], *found[NEW]] == [old, new]


@pytest.mark.parametrize(
    ("size", "line", "kind"),
    [
        (2 * SIZE, LINE, "parameter"),
        (SIZE // 2, LINE, "parameter"),
        (3 * SIZE, LINE, "not known"),
        (2 * SIZE, ELSEWHERE, "not known"),
    ],
)
def test_what_a_line_casts_a_parameter_to_is_one(tmp_path: Path, size: int, line: Row, kind: str) -> None:
    """`p.data = p.data.to(dtype)`, of another size than what it takes the place of."""
    cast = entry("alloc", NEW, size, frames=[UNWIND, MALLOC, MUL, line, CALL, MAIN])
    trace = [cast, *let_go(WEIGHT, TAKES_DATA), made(OTHER, BACKWARD), *gone(OTHER, FREE_BACKWARD)]
    found = kinds(tmp_path, [*trace, entry("alloc", WEIGHT, SIZE, frames=MADE_BY_MAIN)], more=[left(NEW, size)])
    assert [found[WEIGHT][0], *found[NEW]] == ["parameter", kind]


def test_what_took_the_place_of_what_took_a_buffers_place(tmp_path: Path) -> None:
    trace = [of(NEW, LINE), *let_go(WEIGHT, *REGISTER), of(NEWER, LINE), *let_go(NEW, *REGISTER)]
    found = kinds(tmp_path, [*trace, entry("alloc", WEIGHT, SIZE, frames=MADE_BY_MAIN)], more=[left(NEWER)])
    assert [found[NEW], found[NEWER]] == [["buffer"], ["buffer"]]


@pytest.mark.parametrize(("line", "expected"), [(LINE, ["parameter"] * 2), (ELSEWHERE, ["temporary"] * 2)])
def test_a_line_that_replaces_what_a_module_set_up(tmp_path: Path, line: Row, expected: list[str]) -> None:
    """Without C++ frames nothing names an assignment to .data: only the line, in every step anew."""
    setup = [entry("alloc", WEIGHT, SIZE, frames=[APPLY, MAIN])]
    steps = []
    for old, new in ((WEIGHT, NEW), (NEW, NEWER), (NEWER, WEIGHT)):
        steps += [entry("alloc", new, SIZE, frames=[line, CALL, MAIN]), *freed(old, SIZE, frames=[LINE, CALL, MAIN])]
    found = kinds(tmp_path, [*setup, *steps])
    assert [*found[NEW], *found[NEWER]] == expected


@pytest.mark.parametrize(("function", "kind"), [("grad", "not known"), ("backward", "gradient")])
@pytest.mark.parametrize("ends", [True, False])
def test_what_autograd_grad_returns_is_no_gradient(tmp_path: Path, function: str, kind: str, ends: bool) -> None:
    """Of a weight's size, over a step or at the end of the recording; the root of the backward tells the call."""
    root = entry(
        "alloc", LOGITS, 4, frames=[UNWIND, MALLOC, frame(function, f"{TORCH}/autograd/__init__.py", 300), MAIN]
    )
    trace = [*FORWARD, root, entry("alloc", NEW, SIZE, frames=BACKWARD), *gone(HIDDEN, FREE_BACKWARD)]
    trace += [*freed(LOGITS, 4, frames=[UNWIND, MAIN]), *([] if ends else STEP)]
    assert kinds(tmp_path, trace, more=[left(NEW)])[NEW] == [kind]


@pytest.mark.parametrize(("function", "kind"), [("grad", "not known"), ("backward", "gradient")])
def test_what_autograd_grad_returns_without_a_stack(tmp_path: Path, function: str, kind: str) -> None:
    root = entry("alloc", LOGITS, 4, frames=[frame(function, f"{TORCH}/autograd/__init__.py", 300), MAIN])
    trace = [entry("alloc", HIDDEN, MIB, frames=[LINE, CALL, MAIN]), root, entry("alloc", NEW, SIZE)]
    trace += [*freed(HIDDEN, MIB), *freed(LOGITS, 4, frames=[MAIN])]
    trace += [entry("alloc", OTHER, 512, frames=[IN_STEP[-2], MAIN]), *freed(OTHER, 512, frames=[IN_STEP[-2], MAIN])]
    trace += [entry("alloc", BATCH, 512, frames=[MAIN])]
    assert kinds(tmp_path, trace, more=[left(NEW), left(BATCH, 512)])[NEW] == [kind]


def test_a_gradient_without_a_stack_is_freed_by_zero_grad(tmp_path: Path) -> None:
    """Of whatever size: that of a recurrent layer's weights is one for all of them."""
    zero = [frame("zero_grad", f"{TORCH}/optim/optimizer.py", 900), MAIN]
    trace = [entry("alloc", HIDDEN, MIB, frames=[LINE, CALL, MAIN]), entry("alloc", NEW, 13 * MIB), *freed(HIDDEN, MIB)]
    assert kinds(tmp_path, [*trace, *freed(NEW, 13 * MIB, frames=zero)])[NEW] == ["gradient"]


@pytest.mark.parametrize(("is_over", "kind"), [(True, "gradient"), (False, "temporary")])
def test_gradients_that_others_were_added_to(tmp_path: Path, is_over: bool, kind: str) -> None:
    """Without zero_grad: once its backward is over, the first one is no part of a sum that waits for another."""
    trace = [*FORWARD, entry("alloc", NEW, SIZE, frames=BACKWARD), *gone(HIDDEN, FREE_BACKWARD)]
    added = [entry("alloc", NEWER, SIZE, frames=BACKWARD), *freed(NEWER, SIZE, frames=FREE_BACKWARD)]
    between = [made(HIDDEN, IN_MODULE)] if is_over else []
    trace += [*between, *added, *(gone(HIDDEN, FREE_BACKWARD) if is_over else [])]
    assert kinds(tmp_path, trace, more=[left(NEW)])[NEW] == [kind]


@pytest.mark.parametrize(
    ("num_gone", "num_kept", "again", "kind"),
    [(8, 1, True, "held"), (7, 1, True, "not known"), (8, 2, True, "not known"), (8, 1, False, "not known")],
)
def test_what_alone_is_left_of_a_call_is_kept(
    tmp_path: Path, num_gone: int, num_kept: int, again: bool, kind: str
) -> None:
    """Outputs of an evaluation, which a list collects."""
    trace = [made(BATCH, MADE_BY_MAIN)]
    for _ in range(num_gone):
        trace += [made(HIDDEN, IN_MODULE), *gone(HIDDEN, IN_MODULE)]
    kept = [NEW, NEWER][:num_kept]
    trace += [entry("alloc", one, SIZE, frames=IN_LAYER) for one in kept]
    trace += [*gone(BATCH, [UNWIND, MAIN]), made(BATCH, MADE_BY_MAIN), *([made(HIDDEN, IN_MODULE)] if again else [])]
    at_end = [BATCH, HIDDEN] if again else [BATCH]
    assert kinds(tmp_path, trace, *at_end, more=[left(one) for one in kept])[NEW] == [kind]


@pytest.mark.parametrize(("outlives", "kind"), [(False, "activation"), (True, "not known")])
def test_the_last_that_a_call_leaves_may_be_its_output(tmp_path: Path, outlives: bool, kind: str) -> None:
    """Such as a teacher's, which backward does not need; of what is made later in the call, nothing is left."""
    trace = [made(BATCH, MADE_BY_MAIN), made(HIDDEN, IN_MODULE)]
    trace += [made(LOGITS, IN_MODULE), *([] if outlives else [entry("alloc", NEW, SIZE, frames=IN_MODULE)])]
    trace += [entry("alloc", NEWER, 512, frames=MADE_BY_MAIN), made(OTHER, BACKWARD)]
    at_end = [BATCH, HIDDEN, LOGITS, OTHER]
    more = [left(NEWER, 512), *([] if outlives else [left(NEW)])]
    assert kinds(tmp_path, trace, *at_end, more=more)[LOGITS] == [kind]
