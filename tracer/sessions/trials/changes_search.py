"""The search for the least that has to change so that a script fits, and over values of the script's own options."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from tracer.changes.script_changes import SCRIPT_CHANGES, Group, changes_of
from tracer.results.fit import FitTrial

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
        """Whether the script fits with these; it does not with fewer than did not do."""
        names = set(changes)
        for more, trial in self._known.items():
            if names <= set(more) and not (trial.fits or trial.has_ended_before):
                return False
        return self.tried(changes).fits

    def borne(self, before: Changes, of_group: Changes) -> Changes:
        """All of them, but for those that the script does not bear, or that could not be made.

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
        useful = tuple(change for change in everything if change not in trial.in_vain)
        self._known.setdefault(useful, replace(trial, apply=useful))
        return useful

    def fitting_alone(self, of_group: Changes) -> str | None:
        """The first that is known to do by itself."""
        return next((change for change in of_group if (trial := self._known.get((change,))) and trial.fits), None)

    def without_idle(self, changes: Changes) -> Changes:
        """The same without each change that it fits without, what gives up most first.

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


Arguments = tuple[str, ...]
MakeTrialWith = Callable[[Changes, Arguments], FitTrial]
"""Makes a trial with changes, and with arguments behind the script's own; a costly one, for the script runs anew."""


def search(make_trial: MakeTrialWith, values: Sequence[Arguments]) -> list[FitTrial]:
    """Try every one of the values, as it is and checkpointed; in the order of the trials.

    Where none fits, the least that makes the last of the values fit is looked for, among all changes.
    """
    trials: list[FitTrial] = []

    def tried(changes: Changes, arguments: Arguments) -> FitTrial:
        trials.append(make_trial(changes, arguments))
        return trials[-1]

    for arguments in values:
        if not tried((), arguments).has_ended_before:
            tried(("checkpoint",), arguments)
    if not any(trial.fits for trial in trials):
        last = values[-1]
        known = {trial.apply: trial for trial in trials if trial.arguments == last}
        least_that_fits(lambda changes: known.get(changes) or tried(changes, last))
    return trials


def cheapest_first(trials: Iterable[FitTrial]) -> list[FitTrial]:
    """Order trials that fit by what their changes give up, then by their values, the fewest changes first.

    Behind it what does not fit.
    """
    trials = list(trials)
    values = list(dict.fromkeys(trial.arguments for trial in trials))

    def cost(trial: FitTrial) -> tuple[bool, int, int, int]:
        given_up = max((SCRIPT_CHANGES[name].group for name in trial.apply), default=Group.MEMORY)
        return not trial.fits, given_up, values.index(trial.arguments), len(trial.apply)

    return sorted(trials, key=cost)
