"""The search for the least that has to change so that a script fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tracer.advice.recommendation import Group
from tracer.results.fit import FitTrial
from tracer.runs.script_changes import SCRIPT_CHANGES, ScriptChange

Changes = tuple[ScriptChange, ...]
Try = Callable[[Changes], FitTrial]
"""Makes a trial; a costly one, for the script runs anew."""


def least_that_fits(make_trial: Try) -> tuple[Changes, FitTrial] | None:
    """The first set that fits, without what it does not need; None if none does.

    Sets grow in the order of what their changes give up: first all that give up nothing but memory, then one by one.
    """
    stages = [(), tuple(change for change in SCRIPT_CHANGES if change.group == Group.MEMORY)]
    stages += [(change,) for change in SCRIPT_CHANGES if change.group != Group.MEMORY]
    changes: Changes = ()
    full: set[Changes] = set()
    for stage in stages:
        tried = (*changes, *stage)
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
