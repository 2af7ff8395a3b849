"""Causes: a loaded checkpoint, copies of weights, a model not trained now; blocks that DDP and FSDP keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import with_earlier_frees, with_smaller_blocks, without_blocks
from tracer.answers.why.case import Case, Cause, GivesUp
from tracer.answers.why.source import calls_on
from tracer.arrays import Bools, Floats, Ints, grouped
from tracer.blocks.from_snapshot.frames import is_python, torch_file
from tracer.blocks.from_snapshot.stack_facts import Fact, has
from tracer.blocks.kinds import Kind
from tracer.snapshot.replay import BEFORE
from tracer.units import format_bytes, some

_LEAST_PERCENT: Final = 10
_LEAST_SETS: Final = 2


def checkpoint_left(case: Case) -> Iterator[Cause]:
    """Blocks of torch.load or safetensors on the device, of which modules and optimizers have copies."""
    is_loaded, is_copy = case.is_loaded[case.in_use], has(case.facts, Fact.MODULE_SETUP, Fact.OPTIMIZER_STATE)
    copies = case.in_use[~is_loaded & (is_copy | (case.kind == Kind.PARAMETER))[case.in_use]]
    rows = _of_sizes_in(case, case.in_use[is_loaded], copies)
    if not len(rows) or not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "checkpoint left",
        f"A loaded checkpoint is still on the device: {case.words(rows)}{case.lines(rows)}, of which the model "
        "(or the optimizer) has a copy of its own.",
        'load it with map_location="cpu", and `del` it (and what holds it) once load_state_dict has copied it',
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
    )


def _of_sizes_in(case: Case, rows: Ints, copies: Ints, each: int = 1) -> Ints:
    """The first of some blocks for which there are copies, for every block `each` of its size."""
    rows = rows[np.argsort(case.lives.requested_bytes[rows], kind="stable")]
    size, copied = case.lives.requested_bytes[rows], np.sort(case.lives.requested_bytes[copies])
    num_alike = np.arange(1, len(rows) + 1) - np.searchsorted(size, size)
    num_copies = np.searchsorted(copied, size, side="right") - np.searchsorted(copied, size)
    return rows[num_alike * each <= num_copies]


def copies_of_weights(case: Case) -> Iterator[Cause]:
    """Copies of whole models: by copy.deepcopy, or a line's blocks of the parameters' sizes, in other bits or not."""
    by_deepcopy = _beside_originals(case)
    by_sizes, bits = _of_weights_sizes(case)
    is_filled = np.isin(case.lives.stack[by_sizes], _filled_stacks(case, by_sizes))
    yield from _state_of_weights_sizes(case, by_sizes[is_filled])
    by_sizes, bits = by_sizes[~is_filled], bits[~is_filled]
    rows = np.union1d(by_deepcopy, by_sizes)
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    are_wider = case.is_share(by_sizes[bits == _WIDER], of=rows, percent=50)
    made = "There are" if len(by_sizes) else "copy.deepcopy has made"
    what = "copies of the weights, or of their gradients, in twice the bits" if are_wider else "copies of the weights"
    yield Cause(
        "copies of weights",
        f"{made} further {what}: {case.words(rows)}{case.lines(rows)}.",
        "train the parameters in float32 under torch.autocast, without a second set, or convert one parameter after "
        "the other as it is updated"
        if are_wider
        else "keep such copies on the host, or in fewer bits (bfloat16), or free those that are not used in a step",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.A_LITTLE,
    )


def _beside_originals(case: Case) -> Ints:
    """Blocks of copy.deepcopy beside a parameter of the size: a model of copied layers alone has no further copies."""
    is_copy, size = has(case.facts, Fact.PARAMETER_COPY), case.lives.requested_bytes
    copies = case.in_use[is_copy[case.in_use]]
    originals = case.in_use[(_is_parameter(case) & ~is_copy)[case.in_use]]
    return copies[np.isin(size[copies], size[originals])]


_FILLED: Final = frozenset({"zeros", "zeros_like", "ones_like", "full_like", "empty_like", "new_zeros"})


def _filled_stacks(case: Case, rows: Ints) -> list[int]:
    """Stacks of lines that make a tensor of a size, and copy none, by their source."""
    return [stack for stack in np.unique(case.lives.stack[rows]).tolist() if calls_on(case.sites.site(stack)) & _FILLED]


def _state_of_weights_sizes(case: Case, rows: Ints) -> Iterator[Cause]:
    """Moments of an optimizer that a program writes by hand, or averages of its weights."""
    if not case.is_much(rows, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "state by hand",
        f"Tensors of the weights' sizes that are made without copying them, as an optimizer's moments are: "
        f"{case.words(rows)}{case.lines(rows)}.",
        "keep them in fewer bits (8-bit or bfloat16), on the host, or in parts on several GPUs",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(rows),
        GivesUp.TIME_OR_SIZE,
        names_bytes=case.bytes(rows),
    )


_WIDER: Final = 2.0
_BITS: Final = (1.0, _WIDER, 0.5)
"""Size of a copy relative to its parameter's: the same, that of float32 for bfloat16, and the reverse."""
_LEAST_COPIES: Final = 4
_LEAST_SIZES: Final = 2
_COVERED: Final = 0.9
"""Share of a line's bytes that are of the parameters' sizes."""
_OF_ALL: Final = 0.5
"""Share of the parameters' bytes that a line has copies of."""
_NOT_COPIED: Final = (Fact.ENGINE, Fact.OPTIMIZER_STEP, Fact.PARAMETER_COPY)


def _of_weights_sizes(case: Case) -> tuple[Ints, Floats]:
    """Blocks of lines that make one for most parameters, of its size, and the bits of each as a share of those."""
    lives = case.lives
    is_other = ~case.stays & (case.kind != Kind.GRADIENT) & ~case.in_model & ~case.is_set_up & (lives.stack > 0)
    rows = case.in_use[(is_other & ~has(case.facts, *_NOT_COPIED))[case.in_use]]
    is_weight = _is_parameter(case) & ~has(case.facts, Fact.PARAMETER_COPY)
    weights = Counter(lives.requested_bytes[case.in_use[is_weight[case.in_use]]].tolist())
    chosen, bits = [rows[:0]], [np.zeros(0)]
    for mine in _of_lines(case, rows):
        sizes = Counter(lives.requested_bytes[mine].tolist())
        share = next((share for share in _BITS if _are_copies(sizes, weights, share)), 0.0)
        if share and len(mine) >= _LEAST_COPIES:
            chosen.append(mine)
            bits.append(np.full(len(mine), share))
    return np.concatenate(chosen), np.concatenate(bits)


def _of_lines(case: Case, rows: Ints) -> list[Ints]:
    """Some blocks, parted by the lines that made them."""
    return [rows[mine] for mine in grouped([case.lives.stack[rows]], case.sites.site).rows()]


def _are_copies(sizes: Counter[int], weights: Counter[int], share: float) -> bool:
    """True if nearly all sizes are a share of the weights' sizes, and there is one for most of the weights."""
    copied = {size: weights[int(size / share)] for size in sizes if weights[int(size / share)]}
    covered = sum(size * sizes[size] for size in copied)
    of_weights = sum(size / share * min(sizes[size], count) for size, count in copied.items())
    return (
        len(copied) >= _LEAST_SIZES
        and covered >= _COVERED * sum(size * count for size, count in sizes.items())
        and of_weights >= _OF_ALL * sum(size * count for size, count in weights.items())
    )


def are_copies_of_weights(case: Case, rows: Ints) -> bool:
    """True if some blocks are mostly copies of weights."""
    is_copy = has(case.facts[rows], Fact.PARAMETER_COPY) | np.isin(rows, _of_weights_sizes(case)[0])
    return case.is_share(rows[is_copy], of=rows, percent=50)


def other_models(case: Case) -> Iterator[Cause]:
    """Parameters and optimizer state of models that are not trained in the latest steps."""
    lives = case.lives
    state = case.in_use[case.kind[case.in_use] == Kind.OPTIMIZER_STATE]
    starts, ends = case.device.kinds.phases.steps
    made_in = np.searchsorted(starts, lives.begin[state], side="right") - 1
    # State from before the recording may be of the model that is trained now, unless that one was made since.
    is_new = _is_parameter(case)[case.in_use] & (case.lives.alloc_entry[case.in_use] >= 0)
    steps = np.unique(made_in if is_new.any() else made_in[made_in >= 0])
    if len(steps) < _LEAST_SETS or np.diff(steps).min() < _LEAST_SETS:
        return  # of several optimizers that step in turn each belongs to every iteration
    latest = int(steps[-1])
    of_step = [case.sites.site(stack) for stack in case.state.trace.stack[starts].tolist()]
    # An optimizer that steps at a line of its own, there again since, is in use.
    still = {site for site in of_step[latest:] if site != of_step[latest]}
    is_idle = np.array([at < 0 or of_step[at] not in still for at in made_in.tolist()], np.bool_)
    rows = state[(made_in < latest) & is_idle]
    parameters = case.in_use[_is_parameter(case)[case.in_use]]
    idle = np.concatenate([rows, _of_sizes_in(case, parameters, rows, each=_LEAST_SETS)])
    if case.followed is not None and case.is_share(case.followed.read_again(idle), of=idle):
        return
    if not case.is_much(idle, percent=_LEAST_PERCENT):
        return
    over = np.full(len(idle), min(int(ends[latest - 1]), case.entry))
    yield Cause(
        "other models",
        "State of optimizers that no longer step stays on the device: "
        f"{format_bytes(case.bytes(rows))} made in earlier steps, with parameters of its sizes "
        f"{case.words(idle)}{case.lines(idle)} in all.",
        "`del` model and optimizer and all that holds them when their training is over (gc.collect() where these hold "
        'each other), or move them to the host (.to("cpu"))',
        lambda modelled: with_earlier_frees(modelled, idle, over),
        case.largest_site(idle),
    )


_LEAST_MADE: Final = 8


def made_again(case: Case) -> Iterator[Cause]:
    """A model that was being made as memory ran out, where another one has the same parameters in the same order."""
    if not case.has_failed or not has(case.sites.facts[case.asked_stack], Fact.MODULE_SETUP):
        return
    lives, line = case.lives, case.own_line(case.asked_stack)
    rows = case.in_use[case.is_set_up[case.in_use] & (lives.begin[case.in_use] > BEFORE)]
    rows = rows[[case.own_line(stack) == line for stack in lives.stack[rows].tolist()]]
    rows = rows[np.argsort(lives.begin[rows], kind="stable")]
    size = [*lives.requested_bytes[rows].tolist(), case.asked_bytes]
    called = np.flatnonzero(case.sites.model_calls[case.state.trace.stack] >= 0)
    # Layers that are alike follow each other at once; between two models one of them is called.
    after = np.flatnonzero(np.diff(np.searchsorted(called, lives.begin[rows]), prepend=0))
    first = next((at for at in after.tolist() if at and size[at:] == size[: len(size) - at]), len(rows))
    again, there = rows[first:], rows[: len(rows) - first]
    if len(again) < _LEAST_MADE or not case.is_much(again, percent=_LEAST_PERCENT):
        return
    yield Cause(
        "made again",
        f"The model that is being made looks like one that is there: {case.words(again)}{case.lines(again)} have, in "
        f"order, the sizes of {case.words(there)} from before.",
        'use the model that is there (pass it on), or keep it on the host while the other is used (.to("cpu"))',
        lambda modelled: without_blocks(modelled, again),
        case.largest_site(again),
        GivesUp.A_LITTLE,
        grows="the rest of that model is to come",
    )


def _is_parameter(case: Case) -> Bools:
    is_parameter: Bools = (case.kind == Kind.PARAMETER) | has(case.facts, Fact.MODULE_SETUP)
    return is_parameter


_FROZEN_PERCENT: Final = 25
_FROZEN_BITS: Final = 4
_NOT_TRAINED: Final = 0.2
"""Share of the bytes of a line's parameters that has a gradient."""
_MOST_STEPS: Final = 4
"""Number of optimizers that step in turn."""


def frozen_models(case: Case) -> Iterator[Cause]:
    """Parameters of whole models without gradients, beside those of one that is trained, such as a reward model."""
    lives = case.lives
    parameters = case.in_use[_is_parameter(case)[case.in_use] & (case.lives.stack[case.in_use] > 0)]
    trained = _gradients_of_last_steps(case)
    models = _of_lines(case, parameters)
    # A model that has all gradients of its sizes is the trained one; of two that are alike the earlier.
    models.sort(
        key=lambda mine: (-case.bytes(_of_sizes_in(case, trained, mine)) / case.bytes(mine), lives.begin[mine].min())
    )
    rest, shares = trained, []
    for mine in models:
        gradients = _of_sizes_in(case, rest, mine)
        rest = np.setdiff1d(rest, gradients)
        shares.append(case.bytes(gradients) / case.bytes(mine))
    idle = [mine for mine, share in zip(models, shares, strict=True) if share <= _NOT_TRAINED]
    rows = np.concatenate([parameters[:0], *idle])
    if max(shares, default=0.0) < _OF_ALL or not case.is_much(rows, percent=_FROZEN_PERCENT):
        return
    yield Cause(
        "frozen models",
        f"Models that are not trained here stay on the device: {case.words(rows)}{case.lines(rows)} of parameters "
        "without gradients.",
        'keep them in fewer bits (bfloat16, 8 or 4 bits), or on the host while they are not called (.to("cpu")); a '
        "reference of a model with adapters is that model without them: this is with a quarter",
        lambda modelled: with_smaller_blocks(modelled, rows, _FROZEN_BITS),
        case.largest_site(rows),
        GivesUp.TIME_OR_SIZE,
    )


def _gradients_of_last_steps(case: Case) -> Ints:
    """The gradients that the latest steps of optimizers found, each size as often as one of these steps did."""
    lives, starts = case.lives, case.device.kinds.phases.steps[0]
    gradients = np.flatnonzero(case.kind == Kind.GRADIENT)
    chosen = gradients[:0]
    for start in starts[starts <= case.entry][-_MOST_STEPS:].tolist():
        found = gradients[(lives.begin[gradients] < start) & (lives.end[gradients] > start)]
        chosen = np.concatenate([chosen, np.setdiff1d(found, _of_sizes_in(case, found, chosen))])
    return chosen


_DDP: Final = "nn/parallel/distributed.py"
_IN_BUCKETS: Final = 0.9
"""Share of what counts as gradients that buckets hold at least: some are of no parameter of the model."""
_FSDP: Final = ("distributed/fsdp/", "distributed/_composable/fsdp/")
_LEAST_GATHERED_PERCENT: Final = 20
_MOST_GATHERS: Final = 2
"""Number of that size in a call of the model: one that is wrapped block by block makes as many as it has blocks."""
_GATHERED_PARTS: Final = 4


def gathered_whole(case: Case) -> Iterator[Cause]:
    """Weights that FSDP gathers for the whole model at once, where it shards no block on its own."""
    of_fsdp = case.with_frame(lambda frame: is_python(frame) and (torch_file(frame) or "").startswith(_FSDP))
    rows = np.flatnonzero((case.kind == Kind.COMMUNICATION) & of_fsdp[case.lives.stack])
    held = case.held(rows)
    if not case.is_much(held, percent=_LEAST_GATHERED_PERCENT):
        return
    size = case.lives.requested_bytes
    large = rows[size[rows] * 2 >= size[held].max()]
    calls = case.calls[0][large]
    if not (calls >= 0).any() or np.bincount(calls[calls >= 0]).max() > _MOST_GATHERS:
        return
    yield Cause(
        "gathered whole",
        f"FSDP gathers the weights of the whole model at once: {case.words(held)}{case.lines(held)}.",
        "shard each repeated block on its own, so that one is gathered at a time (auto_wrap_policy="
        "ModuleWrapPolicy({Block}) of FSDP, or fully_shard(block) for each before fully_shard(model)): this is with "
        f"{_GATHERED_PARTS} parts",
        lambda modelled: with_smaller_blocks(
            modelled, rows, _GATHERED_PARTS, with_last_failure=bool(of_fsdp[case.asked_stack])
        ),
        case.largest_site(held),
    )


def gradients_beside_buckets(case: Case) -> Iterator[Cause]:
    """Gradients of which DistributedDataParallel has a second copy in its buckets.

    Source: `gradient_as_bucket_view` in torch/nn/parallel/distributed.py; gradients that are views have no blocks.
    """
    if not any(torch_file(frame) == _DDP for frame in case.frames):
        return
    at_peak = case.device.replay.lives.alive_after(case.device.replay.peak_entry)
    gradients, buckets = (case.bytes(at_peak[case.kind[at_peak] == of]) for of in (Kind.GRADIENT, Kind.COMMUNICATION))
    rows = np.flatnonzero(case.kind == Kind.GRADIENT)
    if 0 < gradients * _IN_BUCKETS <= buckets and case.is_worth(without=rows):
        yield Cause(
            "gradients beside buckets",
            f"{some(len(rows), 'block')} of gradients are copies of what lies in DistributedDataParallel's buckets.",
            "give DistributedDataParallel gradient_as_bucket_view=True",
            lambda modelled: without_blocks(modelled, rows),
        )
