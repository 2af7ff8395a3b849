"""The search for the least that has to change so that a script fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracer.advice.recommendation import Group
from tracer.results.fit import FitTrial
from tracer.runs.script_changes import (
    CHECKPOINT,
    FROZEN_ON_HOST,
    SHARD,
    SPARSE_GRADIENTS,
    STATE_ON_HOST,
    ScriptChange,
    changes_to_apply,
)

Changes = tuple[ScriptChange, ...]
Try = Callable[[Changes], FitTrial]
"""Makes a trial; a costly one, for the script runs anew."""
_NUM_COSTLY = 2
"""How many costly changes come one by one before all of them are tried: where that fails, nothing is left to try."""


def least_that_fits(make_trial: Try, *, is_job: bool = False) -> tuple[Changes, FitTrial] | None:
    """The first set that fits, without what it does not need; None if none does.

    Sets grow in the order of what their changes give up: first all that give up nothing but memory, then one by one.
    """
    changes_there = changes_to_apply(is_job=is_job)
    free = tuple(change for change in changes_there if change.group == Group.MEMORY)
    on_host = (STATE_ON_HOST, FROZEN_ON_HOST)  # of most programs one of them is nothing
    costly = [
        (CHECKPOINT,),
        *([(SHARD,)] if is_job else []),
        on_host,
        *((change,) for change in changes_there if change not in {*free, CHECKPOINT, SHARD, *on_host}),
    ]
    changes: Changes = ()
    known: dict[Changes, FitTrial] = {}
    full: set[Changes] = set()
    for number, stage in enumerate([(), free, *costly]):
        if number == 2 + _NUM_COSTLY and _is_hopeless((*changes, *sum(costly[_NUM_COSTLY:], ())), make_trial, known):
            return None
        tried = (*changes, *stage)
        trial = known.get(tried) or make_trial(tried)
        if trial.has_ended_before and SPARSE_GRADIENTS in stage:  # clipping does not bear them, say
            tried = tuple(change for change in tried if change is not SPARSE_GRADIENTS)
            trial = make_trial(tried)
        if trial.has_ended_before:
            continue
        # What could not be made is of no use in a larger set either.
        changes = tuple(change for change in tried if change.name not in trial.in_vain)
        if trial.fits:
            named = replace(trial, apply=tuple(change.name for change in changes))
            return _without_idle(changes, named, make_trial, full)
        full.add(changes)
    return None


def _is_hopeless(everything: Changes, make_trial: Try, known: dict[Changes, FitTrial]) -> bool:
    trial = known[everything] = make_trial(everything)
    return not trial.fits and not trial.has_ended_before


def _without_idle(changes: Changes, trial: FitTrial, make_trial: Try, full: set[Changes]) -> tuple[Changes, FitTrial]:
    """The same without each change that it fits without, what gives up most first; of `full` it is known already.

    What gives up nothing but memory is tried all together first: mostly none of it is needed.
    """
    cheap = tuple(change for change in changes if change.group == Group.MEMORY)
    dear = [(change,) for change in sorted(changes, key=lambda change: -change.group) if change not in cheap]
    for group in (*dear, *([cheap] if len(cheap) > 1 else []), *[(change,) for change in cheap]):
        fewer = tuple(change for change in changes if change not in group)
        if fewer and fewer != changes and fewer not in full:
            without = make_trial(fewer)
            if without.fits:
                changes, trial = fewer, without
            else:
                full.add(fewer)
    return changes, trial
