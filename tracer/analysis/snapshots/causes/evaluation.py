"""A validation or an inference that keeps what only a backward needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracer.analysis.kinds import Kind
from tracer.analysis.snapshots.causes.activations import is_of_autoencoder
from tracer.analysis.snapshots.causes.case import Case, Cause
from tracer.analysis.snapshots.changed_requests import without_blocks
from tracer.arrays import Bools, Ints
from tracer.snapshot.replay import BEFORE

_LEAST_BLOCKS: Final = 8
"""That a call of the model made: of fewer it is not certain that they are kept for a backward."""
_KEPT_SHARE: Final = 0.4
"""Of these, at the end of the call: without gradients all but the result, and a cache, is freed on the way."""


@dataclass(frozen=True, slots=True, eq=False)
class _Calls:
    """Calls of models, in order [calls]."""

    line: Ints  # The line that calls, as a number
    first: Ints  # First entry of each
    last: Ints  # Entry at which it is over
    kept: Bools  # Whether it kept at its end a good part of what it had made
    learns: Bools  # Whether a backward ran before that line called again


def evaluation_with_gradients(case: Case) -> Iterator[Cause]:
    """Calls of a model that keep their activations, from a line behind whose calls no backward comes."""
    if case.is_evaluating:
        rows = case.in_use[case.kind[case.in_use] == Kind.ACTIVATION]
        rows = rows[(case.lives.begin[rows] > BEFORE) & case.in_model[rows]]
    else:
        rows = _kept_for_nothing(case)
    held = case.held(rows)
    if not len(rows) or not case.is_much(held) or (not case.is_evaluating and case.is_for_later_backward(held)):
        return
    yield Cause(
        "gradients in evaluation",
        f"The model is called{_by(case, held)} without a backward behind it, and forward keeps {case.words(held)}"
        f"{case.lines(held)} for one.",
        "evaluate under `with torch.no_grad():` (or torch.inference_mode())",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(held),
    )


def untrained_graphs(case: Case) -> Iterator[Cause]:
    """Activations kept for a backward that reaches no parameter of an optimizer, such as those of a teacher."""
    if case.objects is None:
        return
    held, rows = case.alike(case.objects.untrained)
    if not case.is_much(held):
        return
    yield Cause(
        "graph of an untrained model",
        f"The call{_by(case, held)} keeps {case.words(held)}{case.lines(held)} for a backward pass, and no optimizer "
        "updates the parameters that get gradients by it.",
        "call that model under `with torch.no_grad():` (or model.requires_grad_(False))",
        lambda modelled: without_blocks(modelled, rows),
        case.largest_site(held),
    )


def _by(case: Case, rows: Ints) -> str:
    site = case.model_call(int(rows[np.argmax(case.lives.requested_bytes[rows])]))
    return f" at {site.file}:{site.line}" if site is not None else ""


def _kept_for_nothing(case: Case) -> Ints:
    """Blocks that calls kept for a backward that never comes."""
    call, lines = case.calls
    if not len(lines):
        return np.zeros(0, np.int64)
    calls = _calls(case, call, lines)
    learning = np.unique(calls.line[calls.learns])
    idle = (calls.first > case.last_learning) & calls.kept & ~np.isin(calls.line, learning)
    rows = np.flatnonzero(call >= 0)
    rows = rows[case.lives.end[rows] > calls.last[call[rows]]]
    if not len(learning):
        # It may be a training whose first backward is still to come, for one call or for the sum of several losses:
        # certain is a line that has let go of what its calls before had kept. diffusers itself calls the part of an
        # autoencoder that the program asks for: a training calls the whole.
        size = case.lives.requested_bytes
        held = rows[case.lives.end[rows] > case.last_entry]
        kept_bytes, held_bytes = (np.bincount(call[of], size[of], minlength=len(lines)) for of in (rows, held))
        has_let_go = idle & (held_bytes < _KEPT_SHARE * kept_bytes)
        idle &= np.isin(calls.line, calls.line[has_let_go]) | _are_of_a_part(case, call, rows)
    return rows[idle[call[rows]]]


def _are_of_a_part(case: Case, call: Ints, rows: Ints) -> Bools:
    """Which calls are of an autoencoder's decoder or encoder alone, by a library's line [calls]."""
    found = np.zeros(len(case.calls[1]), np.bool_)
    if case.is_training:
        return found
    known, first = np.unique(call[rows], return_index=True)
    sites = map(case.model_call, rows[first].tolist())
    found[known] = [site is not None and is_of_autoencoder(site) for site in sites]
    return found


def _calls(case: Case, call: Ints, lines: Ints) -> _Calls:
    lives, number = case.lives, len(lines)
    rows = np.flatnonzero((call >= 0) & ~case.stays)  # a workspace is neither kept nor let go of
    first, last = np.full(number, case.last_entry + 1), np.zeros(number, np.int64)
    np.minimum.at(first, call[rows], lives.begin[rows])
    np.maximum.at(last, call[rows], lives.begin[rows])
    last = np.minimum(last + 1, case.last_entry)
    stays = rows[lives.end[rows] > last[call[rows]]]
    size = lives.requested_bytes
    made = np.bincount(call[rows], size[rows], minlength=number)
    kept = np.bincount(call[stays], size[stays], minlength=number)
    num_made, num_kept = (np.bincount(call[chosen], minlength=number) for chosen in (rows, stays))
    keeps = (num_made >= _LEAST_BLOCKS) & (kept >= _KEPT_SHARE * made) & (num_kept >= _KEPT_SHARE * num_made)
    return _Calls(lines, first, last, keeps, _learns(case, lines, first))


def _learns(case: Case, line: Ints, first: Ints) -> Bools:
    """Whether a backward began behind each call and before the same line's next one."""
    starts = np.concatenate([case.device.kinds.phases.backwards[0], case.device.kinds.phases.silences[0]])
    starts = np.sort(starts)
    until = np.full(len(first), case.last_entry + 1)
    for number in np.unique(line).tolist():
        mine = np.flatnonzero(line == number)
        mine = mine[np.argsort(first[mine])]
        until[mine[:-1]] = first[mine[1:]]
    learns: Bools = np.searchsorted(starts, until) > np.searchsorted(starts, first)
    return learns
