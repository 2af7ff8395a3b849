"""The search over what a person would change: values of the script's own options, compiling, checkpointing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tracer.changes.recommendation import Group
from tracer.changes.script_changes import ALL_CHANGES, CHECKPOINT, COMPILE
from tracer.results.fit import FitTrial
from tracer.sessions.trials.least_changes import Changes, least_that_fits

Arguments = tuple[str, ...]
TryWith = Callable[[Changes, Arguments], FitTrial]
"""Makes a trial with changes, and with arguments behind the script's own; a costly one, for the script runs anew."""
_CHANGES: tuple[Changes, ...] = ((), (COMPILE,), (CHECKPOINT,), (COMPILE, CHECKPOINT))


def search(make_trial: TryWith, values: Sequence[Arguments]) -> list[FitTrial]:
    """Every one of the values, each as it is, compiled, checkpointed, and both; in the order of the trials.

    Where none fits, the least that makes the last of the values fit is looked for, among all changes.
    """
    trials: list[FitTrial] = []

    def tried(changes: Changes, arguments: Arguments) -> FitTrial:
        trials.append(make_trial(changes, arguments))
        return trials[-1]

    for arguments in values:
        _with_changes(tried, arguments)
    if not any(trial.fits for trial in trials):
        last = values[-1]
        known = {trial.apply: trial for trial in trials if trial.arguments == last}
        least_that_fits(lambda changes: known.get(_names(changes)) or tried(changes, last))
    return trials


def cheapest_first(trials: Iterable[FitTrial]) -> list[FitTrial]:
    """What fits, by what its changes give up, then in the order of its values, the fewest changes first.

    Behind it what does not fit.
    """
    trials = list(trials)
    groups = {change.name: change.group for change in ALL_CHANGES}
    values = list(dict.fromkeys(trial.arguments for trial in trials))

    def cost(trial: FitTrial) -> tuple[bool, int, int, int]:
        given_up = max((groups[name] for name in trial.apply), default=Group.MEMORY)
        return not trial.fits, given_up, values.index(trial.arguments), len(trial.apply)

    return sorted(trials, key=cost)


def _with_changes(tried: TryWith, arguments: Arguments) -> None:
    # What the script does not bear, or has no place for, is of no use beside another change either.
    useless: set[object] = set()
    for changes in _CHANGES:
        if useless.isdisjoint(changes):
            trial = tried(changes, arguments)
            if trial.has_ended_before and not changes:
                return
            if trial.has_ended_before or trial.in_vain:
                useless.update(changes)


def _names(changes: Changes) -> tuple[str, ...]:
    return tuple(change.name for change in changes)
