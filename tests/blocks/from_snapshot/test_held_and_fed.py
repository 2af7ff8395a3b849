"""Blocks that a program holds or feeds to a model, and those that replace a buffer or a parameter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.answers.test_snapshot_findings import (
    APPLY,
    BACKWARD,
    BASE,
    ENGINE,
    FREE_BACKWARD,
    IN_STEP,
    MAIN,
    MALLOC,
    MIB,
    MODEL,
    MUL,
    TORCH,
    UNWIND,
    load,
)
from tests.snapshot.dumps import Row, block, entry, frame, freed, segment, snapshot
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.blocks.kinds import Kind

# ---- What a program feeds to a forward and holds of it, and what backward was at work with when a recording ended.
CALL = frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)
LINEAR = frame("forward", f"{TORCH}/nn/modules/linear.py", 130)
MADE_BY_MAIN = [UNWIND, MALLOC, MUL, MAIN]
IN_MODULE = [UNWIND, MALLOC, MUL, MODEL, CALL, MAIN]
IN_LAYER = [UNWIND, MALLOC, MUL, LINEAR, CALL, MODEL, CALL, MAIN]
FREE_BY_MAIN = [UNWIND, MAIN]
WEIGHT, BATCH, HIDDEN, LOGITS, OTHER = (BASE + 64 * MIB * number for number in range(5))
SIZES = {WEIGHT: 3 * MIB, BATCH: 5 * MIB, HIDDEN: 7 * MIB, LOGITS: 9 * MIB, OTHER: 11 * MIB}


def made(address: int, frames: list[Row]) -> Row:
    return entry("alloc", address, SIZES[address], frames=frames)


def gone(address: int, frames: list[Row]) -> list[Row]:
    return freed(address, SIZES[address], frames=frames)


def kinds(tmp_path: Path, trace: list[Row], *at_end: int, more: Sequence[Row] = ()) -> dict[int, list[str]]:
    """Of every address the kinds of its blocks in their order; a weight was there before, and these are at the end."""
    segments = [segment(one, SIZES[one], [block(one, SIZES[one])]) for one in (WEIGHT, *at_end)]
    segments += more
    (device,) = replay_snapshot(load(tmp_path / "s", snapshot(trace, segments))).devices
    lives, found = device.replay.lives, dict[int, list[str]]()
    rows = lives.begin.argsort(kind="stable")
    for row, kind in zip(rows, device.blocks.kind[rows].tolist(), strict=True):
        found.setdefault(int(lives.addr[row]), []).append(Kind(kind).words)
    return found


STEP = [entry("alloc", OTHER, 512, frames=IN_STEP), *freed(OTHER, 512, frames=IN_STEP)]
FORWARD = [made(BATCH, MADE_BY_MAIN), made(HIDDEN, IN_MODULE)]
RAN = [made(OTHER, BACKWARD), *gone(OTHER, FREE_BACKWARD), *gone(HIDDEN, FREE_BACKWARD)]


def test_what_the_program_makes_before_a_forward_is_its_input(tmp_path: Path) -> None:
    assert kinds(tmp_path, FORWARD, BATCH, HIDDEN)[BATCH] == ["input"]
    assert kinds(tmp_path, [*FORWARD, *RAN, *STEP, *gone(BATCH, FREE_BY_MAIN)])[BATCH] == ["input"]


def test_what_a_librarys_loop_moves_before_the_first_forward_is_its_input(tmp_path: Path) -> None:
    """Another function than that which calls the model; if it is the program's own, that proves nothing."""
    moves = frame("send_to_device", "/env/site-packages/accelerate/utils/operations.py", 150)
    loads = frame("load", "/home/me/train.py", 5)
    for function, kind in ((moves, "input"), (loads, "not known")):
        trace = [made(BATCH, [UNWIND, MALLOC, MUL, function]), made(HIDDEN, IN_MODULE)]
        assert kinds(tmp_path, trace, BATCH, HIDDEN)[BATCH] == [kind]


def test_a_copied_parameter_is_one(tmp_path: Path) -> None:
    """Averaged weights and target networks; a copied tensor may be anything."""
    for file, kind in (("nn/parameter.py", "parameter"), ("_tensor.py", "not known")):
        copies = [UNWIND, MALLOC, frame("__deepcopy__", f"{TORCH}/{file}", 66), MAIN]
        assert kinds(tmp_path, [*FORWARD, *RAN, *STEP, made(LOGITS, copies)], LOGITS)[LOGITS] == [kind]


@pytest.mark.parametrize(
    "trace",
    [
        # What another function made before the first forward may be a data set, which stays.
        [made(BATCH, [UNWIND, MALLOC, MUL, MODEL, frame("load", "/home/me/train.py", 5)]), made(HIDDEN, IN_MODULE)],
        [made(HIDDEN, IN_MODULE), made(BATCH, MADE_BY_MAIN), made(OTHER, BACKWARD)],  # made of what forward returned
        [made(BATCH, MADE_BY_MAIN), made(OTHER, BACKWARD), made(HIDDEN, IN_MODULE)],  # a backward came first
    ],
)
def test_what_is_made_at_another_time_is_no_input(tmp_path: Path, trace: list[Row]) -> None:
    left = {row["addr"] for row in trace}
    assert kinds(tmp_path, trace, *left)[BATCH] == ["not known"]


def test_logits_that_a_variable_holds_over_backward_are_held(tmp_path: Path) -> None:
    """In the next forward, and in the one after that, in which the recording ends; nothing is known of the first."""
    forward = [*FORWARD, made(LOGITS, IN_LAYER)]
    assert kinds(tmp_path, [*forward, made(OTHER, BACKWARD)], BATCH, HIDDEN, LOGITS, OTHER)[LOGITS] == ["not known"]
    whole = [*forward, *RAN, *STEP, *gone(BATCH, FREE_BY_MAIN)]
    again = [*whole, *FORWARD, *gone(LOGITS, FREE_BY_MAIN), made(LOGITS, IN_LAYER)]
    assert kinds(tmp_path, [*again, made(OTHER, BACKWARD)], BATCH, HIDDEN, LOGITS, OTHER)[LOGITS] == ["held", "held"]


@pytest.mark.parametrize(("num_gone", "kind"), [(8, "held"), (7, "not known")])
def test_one_of_few_that_outlive_their_backward_is_held(tmp_path: Path, num_gone: int, kind: str) -> None:
    """Where as many outlive it, they may be another model's, whose backward is to come."""
    others = [OTHER + number * MIB for number in range(num_gone)]
    forward = [entry("alloc", other, MIB, frames=IN_MODULE) for other in others]
    backward = [row for other in others for row in freed(other, MIB, frames=FREE_BACKWARD)]
    ran = [entry("alloc", BATCH, 512, frames=BACKWARD), *freed(BATCH, 512, frames=FREE_BACKWARD)]
    trace = [made(LOGITS, IN_LAYER), *forward, *ran, *backward, *STEP]
    assert kinds(tmp_path, trace, LOGITS)[LOGITS] == [kind]


@pytest.mark.parametrize(("size_bytes", "kind"), [(11 * MIB, "temporary"), (SIZES[WEIGHT], "gradient")])
def test_what_backward_was_at_work_with_has_no_parameters_size(tmp_path: Path, size_bytes: int, kind: str) -> None:
    trace = [*FORWARD, entry("alloc", LOGITS, size_bytes, frames=BACKWARD)]
    segments = [segment(LOGITS, size_bytes, [block(LOGITS, size_bytes)])]
    assert kinds(tmp_path, trace, BATCH, HIDDEN, more=segments)[LOGITS] == [kind]


def test_what_a_checkpoint_computes_again_is_not_what_backward_is_at_work_with(tmp_path: Path) -> None:
    """Outside of modules: what was saved of it is known by what let go of it, and before that by its line."""
    in_checkpoint = [UNWIND, MALLOC, MUL, MODEL, frame("backward", f"{TORCH}/utils/checkpoint.py", 318), ENGINE]
    trace = [*FORWARD, made(OTHER, in_checkpoint)]
    assert kinds(tmp_path, trace, HIDDEN, OTHER)[OTHER] == ["not known"]
    released = [*trace, *gone(OTHER, FREE_BACKWARD)]
    again = [*released, made(OTHER, in_checkpoint)]
    assert kinds(tmp_path, again, HIDDEN, OTHER)[OTHER] == ["activation", "activation"]
    assert kinds(tmp_path, [*trace, *gone(OTHER, [UNWIND, *in_checkpoint[3:]])], HIDDEN)[OTHER] == ["temporary"]


def test_a_sharded_forward_keeps_its_results_though_what_it_gathers_goes(tmp_path: Path) -> None:
    """Ran out of memory in the first forward: of six blocks of each layer one is in use, five were gathered."""
    gathers = frame("allocate", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 70)
    gathering = [UNWIND, MALLOC, gathers, CALL, MODEL, CALL, MAIN]
    trace: list[Row] = []
    kept = [BASE + 64 * MIB * number for number in range(10, 26)]
    for address in kept:
        trace.append(entry("alloc", address, MIB, frames=IN_LAYER))
        for _ in range(5):
            trace += [entry("alloc", HIDDEN, 7 * MIB, frames=gathering), *freed(HIDDEN, 7 * MIB, frames=gathering)]
    found = kinds(tmp_path, trace, more=[segment(address, MIB, [block(address, MIB)]) for address in kept])
    assert [found[address] for address in kept[:-4]] == [["activation"]] * (len(kept) - 4)
    assert set(found[HIDDEN]) == {"communication"}


@pytest.mark.parametrize(("freed_bytes", "kind"), [(2 * MIB, "activation"), (MIB, "not known")])
def test_what_a_line_lets_go_of_says_nothing_of_its_blocks_of_another_size(
    freed_bytes: int, kind: str, tmp_path: Path
) -> None:
    """As `down(act(up(x)))` makes them: `up` made what is kept, `down` what is not, with the same Python frames."""
    trace: list[Row] = []
    kept = [BASE + 64 * MIB * number for number in range(10, 26)]
    for address in kept:
        trace.append(entry("alloc", address, MIB, frames=IN_LAYER))
        trace += [entry("alloc", HIDDEN, freed_bytes, frames=IN_LAYER), *freed(HIDDEN, freed_bytes, frames=IN_LAYER)]
    found = kinds(tmp_path, trace, more=[segment(address, MIB, [block(address, MIB)]) for address in kept])
    assert [found[address] for address in kept[:-4]] == [[kind]] * (len(kept) - 4)


# ---- What takes the place of a buffer or a parameter, what autograd.grad returns, and what a program keeps of a call.
NEW, NEWER = BASE + 640 * MIB, BASE + 704 * MIB
SIZE = SIZES[WEIGHT]
LINE, ELSEWHERE = frame("forward", "/home/me/model.py", 9), frame("forward", "/home/me/model.py", 10)
SETATTR = frame("__setattr__", f"{TORCH}/nn/modules/module.py", 2065)
REGISTER = [frame("register_buffer", f"{TORCH}/nn/modules/module.py", 586), SETATTR]
TAKES_DATA = frame("c10::TensorImpl::copy_tensor_metadata(c10::TensorImpl const*, c10::TensorImpl*)", "??", 0)


def of(address: int, line: Row) -> Row:
    return entry("alloc", address, SIZE, frames=[UNWIND, MALLOC, MUL, line, CALL, MAIN])


def release(address: int, *inner: Row, line: Row = LINE) -> list[Row]:
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
    trace = [of(NEW, line), *release(WEIGHT, *inner), made(OTHER, BACKWARD), *gone(OTHER, FREE_BACKWARD)]
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
    trace = [cast, *release(WEIGHT, TAKES_DATA), made(OTHER, BACKWARD), *gone(OTHER, FREE_BACKWARD)]
    found = kinds(tmp_path, [*trace, entry("alloc", WEIGHT, SIZE, frames=MADE_BY_MAIN)], more=[left(NEW, size)])
    assert [found[WEIGHT][0], *found[NEW]] == ["parameter", kind]


def test_what_took_the_place_of_what_took_a_buffers_place(tmp_path: Path) -> None:
    trace = [of(NEW, LINE), *release(WEIGHT, *REGISTER), of(NEWER, LINE), *release(NEW, *REGISTER)]
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
