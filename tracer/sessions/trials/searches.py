"""Search by trials: the least that has to change so that a script fits."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from tracer.answers.prediction import FitTrial
from tracer.changes.script_changes import SCRIPT_CHANGES, Group, changes_of

Changes = tuple[str, ...]
MakeTrial = Callable[[Changes], FitTrial]
"""Run one trial (reruns the script)."""


def least_that_fits(make_trial: MakeTrial, *, is_job: bool = False, likely: Collection[str] = ()) -> FitTrial | None:
    """Return the first set of changes that fits, without unneeded ones; None if none fits.

    What gives up nothing but memory comes before what costs time, and that before what costs digits. Of each such group
    all are tried at once, beside those of the groups before: where that does not fit, nothing smaller does. Where it
    does, each of the group is tried alone, then beside all that costs less, and what is not needed is left out.

    Args:
        likely: Names of changes to try alone before all others of their group.
    """
    search = _ChangeSearch(make_trial)
    there = sorted(changes_of(is_job=is_job), key=lambda name: (SCRIPT_CHANGES[name].group, name not in likely))
    before: Changes = ()
    for group in Group:
        of_group = tuple(name for name in there if SCRIPT_CHANGES[name].group == group)
        for change in of_group:
            if change in likely and search.fits((change,)):
                return search.tried((change,))
        everything = search.borne(before, of_group)
        if (alone := search.fitting_alone(of_group)) is not None:
            return search.tried((alone,))
        if search.fits(everything):
            # A change can be useless beside others, and useful alone.
            of_group = of_group if before else everything
            sets = [*((change,) for change in of_group), *((*before, change) for change in of_group), everything]
            return search.tried(search.without_idle(next(changes for changes in sets if search.fits(changes))))
        before = everything
    return None


class _ChangeSearch:
    def __init__(self, make_trial: MakeTrial) -> None:
        self._make_trial = make_trial
        self._known: dict[Changes, FitTrial] = {}

    def fits(self, changes: Changes) -> bool:
        """True if the script fits with these changes; it does not if it failed with these and more."""
        names = set(changes)
        for more, trial in self._known.items():
            if names <= set(more) and not (trial.fits or trial.has_ended_before):
                return False
        return self.tried(changes).fits

    def borne(self, before: Changes, of_group: Changes) -> Changes:
        """Return the changes without those that the script does not bear, or that could not be made.

        Where it does not bear all, each is tried alone, until one fits.
        """
        everything = (*before, *of_group)
        trial = self.tried(everything)
        if trial.has_ended_before:
            alone = []
            for change in of_group:
                if (by_itself := self.tried((change,))).fits:
                    return before
                if not by_itself.has_ended_before:
                    alone.append(change)
            everything = (*before, *alone)
            trial = self.tried(everything)
        if trial.has_ended_before:  # two of them, say, do not bear each other
            everything = before
            for change in alone:
                if not self.tried((*everything, change)).has_ended_before:
                    everything = (*everything, change)
            if everything == before:
                return before
            trial = self.tried(everything)
        useful = tuple(change for change in everything if change not in trial.not_applicable)
        self._known.setdefault(useful, replace(trial, apply=useful))
        return useful

    def fitting_alone(self, of_group: Changes) -> str | None:
        """The first that is known to do by itself."""
        return next((change for change in of_group if (trial := self._known.get((change,))) and trial.fits), None)

    def without_idle(self, changes: Changes) -> Changes:
        """Remove each change without which the script fits, those that give up most first.

        What gives up nothing but memory is tried all together first: mostly none of it is needed.
        """
        cheap = tuple(change for change in changes if SCRIPT_CHANGES[change].group == Group.MEMORY)
        dearest_first = sorted(changes, key=lambda name: -SCRIPT_CHANGES[name].group)
        dear = [(change,) for change in dearest_first if change not in cheap]
        for idle in (*dear, *([cheap] if len(cheap) > 1 else []), *((change,) for change in cheap)):
            fewer = tuple(change for change in changes if change not in idle)
            if fewer and fewer != changes and self.fits(fewer):
                changes = fewer
        return changes

    def tried(self, changes: Changes) -> FitTrial:
        """The trial of these, which is made once."""
        if changes not in self._known:
            self._known[changes] = self._make_trial(changes)
        return self._known[changes]
