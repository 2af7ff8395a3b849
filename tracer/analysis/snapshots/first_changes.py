"""What to try first so that a recorded program needs less: a few changes, each replayed on the allocator's model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.changed_requests import (
    Changed,
    emptying_at,
    with_earlier_frees,
    with_expandable_segments,
    with_smaller_blocks,
    without_blocks,
)
from tracer.analysis.snapshots.findings import ReplayedDevice, ReplayedSnapshot
from tracer.analysis.snapshots.frames import is_python, torch_file
from tracer.analysis.snapshots.groups import group_lives
from tracer.analysis.snapshots.modelled import Modelled
from tracer.analysis.snapshots.sites import NO_FRAMES, Site, Sites
from tracer.analysis.snapshots.stack_facts import Fact, has
from tracer.arrays import Bools, Ints, at
from tracer.snapshot.columns import Frame, Stacks
from tracer.snapshot.replay import BEFORE
from tracer.snapshot.stacks import NO_STACK
from tracer.units import some

MAX_CHANGES: Final = 3
LEAST_PERCENT: Final = 1
_LOSS_PARTS: Final = 4
_FUSED: Final = ("adam.py", "adamw.py", "sgd.py", "adagrad.py")
"""Optimizers of torch.optim that have `fused=True`."""
_DDP: Final = "nn/parallel/distributed.py"
_STAYING: Final = (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.BUFFER, Kind.WORKSPACE, Kind.GRADIENT)
_SHRINKS: Final = {Kind.ACTIVATION: "; a smaller batch, torch.utils.checkpoint or bfloat16 shrinks it"}


@dataclass(frozen=True, slots=True)
class FirstChange:
    """A change that helps, and the peaks of the recorded requests without and with it.

    Attributes:
        site: The line whose blocks it is about; None if it is about none in particular.
        allocated_before_bytes: The most in use, rounded as the allocator does, as recorded.
        allocated_bytes: The same with the change.
        reserved_before_bytes: The most reserved, as recorded.
        reserved_bytes: The same with the change.
        num_served: Requests that failed in the recording and are served with the change.
    """

    words: str
    site: Site | None
    allocated_before_bytes: int
    allocated_bytes: int
    reserved_before_bytes: int
    reserved_bytes: int
    num_served: int = 0

    @property
    def saved_bytes(self) -> int:
        """How much less is reserved, or else allocated, at the peak."""
        reserved = self.reserved_before_bytes - self.reserved_bytes
        return max(reserved, self.allocated_before_bytes - self.allocated_bytes)


@dataclass(frozen=True, slots=True)
class FirstChanges:
    """What to try first on one device.

    Attributes:
        changes: The most helpful first, then what a whole line comes to; `MAX_CHANGES` at most.
        num_failed: Requests that failed in the recording; a change then is one with which more of them are served.
    """

    changes: tuple[FirstChange, ...]
    num_failed: int

    @property
    def nothing_helps(self) -> str:
        """What there is to say without any change."""
        most = "serves a failed request" if self.num_failed else f"lowers the peak by {LEAST_PERCENT} %"
        return f"No change that was tried in a replay {most}."


@dataclass(frozen=True, slots=True, eq=False)
class _Candidate:
    """A change that may help, not replayed yet."""

    words: str
    make: Callable[[Modelled], Changed]
    site: Site | None = None
    is_whole_line: bool = False


def first_changes(
    replayed: ReplayedSnapshot, device: ReplayedDevice, modelled: Modelled | None, *, in_evaluation: bool = False
) -> FirstChanges | None:
    """Try what may help, and keep what does: by a hundredth of the peak at least, or failed requests are served.

    Args:
        in_evaluation: At its end the model was in evaluation mode, and kept much for a backward pass all the same.

    Returns:
        None where nothing can be replayed.
    """
    if modelled is None or not modelled.history.num_allocations:
        return None
    modelled = modelled.as_it_failed
    candidates = [*_of_reserving(device, modelled), *_of_blocks(device, replayed.sites, replayed.snapshot.stacks)]
    if in_evaluation:
        candidates += _kept_in_evaluation(device)
    tried = [(candidate, _tried(candidate, modelled)) for candidate in candidates]
    helping = [(candidate, change) for candidate, change in tried if change is not None and _helps(change, modelled)]
    helping.sort(key=lambda pair: (pair[0].is_whole_line, -pair[1].num_served, -pair[1].saved_bytes))
    changes = tuple(
        change for candidate, change in helping if not (candidate.is_whole_line and _is_said(change, helping))
    )
    return FirstChanges(changes[:MAX_CHANGES], len(modelled.baseline.unserved))


def _is_said(change: FirstChange, helping: list[tuple[_Candidate, FirstChange]]) -> bool:
    """Whether a change that says how to do it comes to the same as one that only names a line."""
    return any(
        (other.allocated_bytes, other.reserved_bytes) == (change.allocated_bytes, change.reserved_bytes)
        for candidate, other in helping
        if not candidate.is_whole_line
    )


def _tried(candidate: _Candidate, modelled: Modelled) -> FirstChange | None:
    """The peaks under a change; None if the replay ends early."""
    before, after = modelled.baseline, candidate.make(modelled).outcome(modelled)
    if after.failure is not None:
        return None
    return FirstChange(
        words=candidate.words,
        site=candidate.site,
        allocated_before_bytes=before.allocated_peak_bytes,
        allocated_bytes=after.allocated_peak_bytes,
        reserved_before_bytes=before.reserved_peak_bytes,
        reserved_bytes=after.reserved_peak_bytes,
        num_served=len(before.unserved) - len(after.unserved),
    )


def _helps(change: FirstChange, modelled: Modelled) -> bool:
    if modelled.baseline.unserved:
        return change.num_served > 0
    return any(
        before and (before - after) * 100 >= before * LEAST_PERCENT
        for before, after in (
            (change.allocated_before_bytes, change.allocated_bytes),
            (change.reserved_before_bytes, change.reserved_bytes),
        )
    )


def _of_reserving(device: ReplayedDevice, modelled: Modelled) -> Iterator[_Candidate]:
    """What lowers the reserved memory alone; only where more is reserved than was ever in use."""
    before = modelled.baseline
    slack = before.reserved_peak_bytes - before.allocated_peak_bytes
    if slack * 100 < before.reserved_peak_bytes * LEAST_PERCENT and not before.unserved:
        return
    if not modelled.settings.expandable_segments and not modelled.is_from_start:
        yield _Candidate("set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", with_expandable_segments)
    steps, backwards = device.kinds.optimizer_runs, device.kinds.backward_runs
    begins = np.unique(np.concatenate([steps[0], steps[1], backwards[0]]))
    begins = begins[(begins > 0) & (begins < len(device.state.trace))]
    if len(begins):
        yield _Candidate(
            f"call torch.cuda.empty_cache() between forward, backward and optimizer step "
            f"({some(len(begins), 'call')} here, each waits for the GPU)",
            lambda modelled: emptying_at(modelled, begins),
        )


def _of_blocks(device: ReplayedDevice, sites: Sites, stacks: Stacks) -> Iterator[_Candidate]:
    """What lowers the memory in use; only blocks that are worth a hundredth of the peak are looked at."""
    lives, steps = device.replay.lives, device.kinds.optimizer_runs
    kind = device.kinds.of(np.arange(len(lives)))
    next_step = np.searchsorted(steps[0], lives.begin, side="right")
    has_step = (next_step < len(steps[0])) & (lives.end > np.append(steps[0], -1)[next_step])
    is_held = (kind == Kind.HELD) | ((kind == Kind.ACTIVATION) & _is_freed_by_program(device, sites))
    yield from _freed_sooner(device, sites, np.flatnonzero(is_held & has_step & device.kinds.met_backward))
    yield from _gradients_freed_sooner(device, kind == Kind.GRADIENT)
    yield from _gradients_beside_buckets(device, stacks, kind)
    yield from _optimizer_temporaries(device, stacks, kind == Kind.TEMPORARY)
    yield from _loss(device, sites, stacks)
    yield from _whole_line(device, sites, kind)


def _is_freed_by_program(device: ReplayedDevice, sites: Sites) -> Bools:
    """Whether a stack says that not autograd, but the program let go of each block last."""
    lives, trace = device.replay.lives, device.state.trace
    stack = at(trace.stack, lives.free_entry, NO_STACK)
    # With `context="alloc"` a free repeats the allocation's stack.
    is_own = (stack != lives.stack) & has(sites.facts[stack], Fact.STACK)
    is_freed: Bools = is_own & ~has(sites.facts[stack], Fact.ENGINE, Fact.RELEASE_SAVED)
    return is_freed


def _freed_sooner(device: ReplayedDevice, sites: Sites, rows: Ints) -> Iterator[_Candidate]:
    """Blocks that variables hold over an optimizer's step."""
    start, lives = device.kinds.optimizer_runs[0], device.replay.lives
    if not len(rows):
        return
    entry = start[np.searchsorted(start, lives.begin[rows], side="right")]
    if not _is_worth(device, end=(rows, entry)):
        return
    largest = rows[np.argmax(lives.requested_bytes[rows])]
    yield _Candidate(
        f"let go of {_blocks(rows)} that variables keep over the optimizer's step (del, .item(), .detach())",
        lambda modelled: with_earlier_frees(modelled, rows, entry),
        sites.site(int(lives.stack[largest])),
    )


def _kept_in_evaluation(device: ReplayedDevice) -> Iterator[_Candidate]:
    """What forward keeps at the end for a backward pass that does not come."""
    lives = device.replay.lives
    at_end = lives.alive_after(len(device.state.trace) - 1)
    rows = at_end[device.kinds.of(at_end) == Kind.ACTIVATION]
    rows = rows[lives.begin[rows] > BEFORE]
    if len(rows) and _is_worth(device, without=rows):
        yield _Candidate(
            f"evaluate under `with torch.no_grad():`, where forward does not keep {_blocks(rows)} for a backward pass",
            lambda modelled: without_blocks(modelled, rows),
        )


def _gradients_freed_sooner(device: ReplayedDevice, is_gradient: Bools) -> Iterator[_Candidate]:
    """Gradients that the optimizer has used, and that are freed only later."""
    lives, (start, end) = device.replay.lives, device.kinds.optimizer_runs
    if not len(start):
        return
    last = np.searchsorted(start, lives.end, side="left") - 1
    is_used = (
        (last >= 0) & (start[last] > lives.begin) & (lives.end > end[last]) & (lives.end < len(device.state.trace))
    )
    rows = np.flatnonzero(is_gradient & is_used)
    if len(rows) and _is_worth(device, end=(rows, end[last[rows]])):
        yield _Candidate(
            f"call zero_grad(set_to_none=True) right after the optimizer's step: {_blocks(rows)} of gradients are "
            "freed only later",
            lambda modelled: with_earlier_frees(modelled, rows, end[last[rows]]),
        )


def _gradients_beside_buckets(device: ReplayedDevice, stacks: Stacks, kind: Ints) -> Iterator[_Candidate]:
    """Gradients of which DistributedDataParallel has a second copy in its buckets.

    Source: `gradient_as_bucket_view` in torch/nn/parallel/distributed.py; gradients that are views have no blocks.
    """
    lives = device.replay.lives
    if not any(torch_file(frame) == _DDP for frame in stacks.frames):
        return
    at_peak = lives.alive_after(device.replay.peak_entry)
    gradients, buckets = (
        int(lives.requested_bytes[at_peak[kind[at_peak] == of]].sum()) for of in (Kind.GRADIENT, Kind.COMMUNICATION)
    )
    rows = np.flatnonzero(kind == Kind.GRADIENT)
    if 0 < gradients <= buckets and _is_worth(device, without=rows):
        yield _Candidate(
            f"give DistributedDataParallel gradient_as_bucket_view=True: {_blocks(rows)} of gradients are copies of "
            "what lies in its buckets",
            lambda modelled: without_blocks(modelled, rows),
        )


def _optimizer_temporaries(device: ReplayedDevice, stacks: Stacks, is_temporary: Bools) -> Iterator[_Candidate]:
    """What the optimizer's foreach implementation makes for all parameters at once."""
    lives = device.replay.lives
    files = {stack: _foreach_file(stacks[stack]) for stack in np.unique(lives.stack[is_temporary]).tolist()}
    made_by = np.array([files.get(stack) in _FUSED for stack in lives.stack.tolist()], dtype=np.bool_)
    rows = np.flatnonzero(is_temporary & made_by)
    if len(rows) and _is_worth(device, without=rows):
        yield _Candidate(
            f"give the optimizer fused=True: its foreach implementation makes {_blocks(rows)} for all parameters at "
            "once, and the fused one none",
            lambda modelled: without_blocks(modelled, rows),
        )


def _foreach_file(frames: tuple[Frame, ...] | list[Frame]) -> str | None:
    """The file of torch.optim whose foreach implementation a stack is in."""
    for frame in frames:
        if is_python(frame) and frame.name.startswith("_multi_tensor_"):
            return (torch_file(frame) or "").removeprefix("optim/")
    return None


def _loss(device: ReplayedDevice, sites: Sites, stacks: Stacks) -> Iterator[_Candidate]:
    """What cross entropy makes of the logits, in forward and in backward."""
    lives = device.replay.lives
    number = max(int(lives.stack.max(initial=0)) + 1, 1)
    is_loss = np.array([any(map(_is_cross_entropy, stacks[stack])) for stack in range(number)], dtype=np.bool_)
    if not is_loss.any():
        return
    forward = device.kinds.backward_lines.forward_stacks(np.arange(len(lives)))
    rows = np.flatnonzero(is_loss[lives.stack] | at(is_loss, forward, False))
    of_forward = rows[is_loss[lives.stack[rows]]]
    if len(rows) and _is_worth(device, without=rows):
        yield _Candidate(
            f"compute the cross entropy in {_LOSS_PARTS} parts of the batch, each recomputed in backward: "
            f"{_blocks(rows)} of a quarter of their size",
            lambda modelled: with_smaller_blocks(modelled, rows, _LOSS_PARTS),
            sites.site(int(lives.stack[of_forward[0]])) if len(of_forward) else None,
        )


def _is_cross_entropy(frame: Frame) -> bool:
    return is_python(frame) and ("cross_entropy" in frame.name or frame.name == "ForCausalLMLoss")


def _whole_line(device: ReplayedDevice, sites: Sites, kind: Ints) -> Iterator[_Candidate]:
    """The line whose blocks fill most of the peak, of those that do not stay from step to step."""
    lives = device.replay.lives
    at_peak = lives.alive_after(device.replay.peak_entry)
    groups, group_of_row = group_lives(lives, at_peak, kinds=device.kinds, sites=sites)
    passing = [
        (group.bytes, number)
        for number, group in enumerate(groups)
        if group.kind not in _STAYING and not group.is_before_recording and group.site.frame != NO_FRAMES
    ]
    if not passing:
        return
    group = groups[max(passing)[1]]
    forward = device.kinds.backward_lines.forward_stacks(np.arange(len(lives)))
    key = lives.stack.astype(np.int64) * (int(forward.max(initial=0)) + 2) + forward + 1
    mine = at_peak[group_of_row == max(passing)[1]]
    rows = np.flatnonzero(np.isin(key, key[mine]) & (kind == kind[mine[0]]) & (lives.begin > BEFORE))
    if _is_worth(device, without=rows):
        yield _Candidate(
            f"look at the line that fills most of the peak: this is without its {some(group.count, 'block')} there "
            f"({group.kind.words}), and those that it makes at other times{_SHRINKS.get(group.kind, '')}",
            lambda modelled: without_blocks(modelled, rows),
            group.site,
            is_whole_line=True,
        )


def _blocks(rows: Ints) -> str:
    return some(len(rows), "block")


def _is_worth(device: ReplayedDevice, *, without: Ints | None = None, end: tuple[Ints, Ints] | None = None) -> bool:
    """Whether the most in use falls by a hundredth without some blocks, or with earlier frees of some.

    A sum over blocks, which tells in a moment what a replay would take long to.
    """
    lives, before = device.replay.lives, int(device.replay.requested_bytes.max())
    rows, past = (without, lives.begin[without]) if without is not None else end or (np.zeros(0, np.int64),) * 2
    change = np.zeros(len(device.replay.requested_bytes) + 1, dtype=np.int64)
    size = lives.requested_bytes[rows]
    np.add.at(change, np.minimum(np.maximum(past, -1) + 1, len(change) - 1), -size)
    np.add.at(change, np.minimum(lives.end[rows] + 1, len(change) - 1), size)
    after = int((device.replay.requested_bytes + np.cumsum(change)[:-1]).max())
    return (before - after) * 100 >= before * LEAST_PERCENT
