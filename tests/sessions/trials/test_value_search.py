"""`fit --search`: which trials are made, and the order of the table, over made-up scripts."""

from __future__ import annotations

from collections.abc import Callable

from tracer.changes.script_changes import SCRIPT_CHANGES
from tracer.results.fit import FitTrial
from tracer.sessions.trials.least_changes import Changes
from tracer.sessions.trials.value_search import Arguments, cheapest_first, search

BATCHES: list[Arguments] = [("--batch", "4"), ("--batch", "2")]


def words(trial: FitTrial) -> str:
    return " ".join((*trial.arguments, *trial.apply))


def searched(needs: Callable[[Arguments, tuple[str, ...]], int | None], *, in_vain: str = "") -> list[FitTrial]:
    """The trials of a script that needs so much, of ten, or does not bear it (None)."""

    def make_trial(changes: Changes, arguments: Arguments) -> FitTrial:
        names = tuple(change.name for change in changes)
        size = needs(arguments, names)
        if size is None:
            return FitTrial(names, fits=False, has_ended_before=True, arguments=arguments)
        notes = (f"{in_vain}: there is none.",) if in_vain in names else ()
        return FitTrial(names, fits=size <= 10, allocated_bytes=size, notes=notes, arguments=arguments)

    return search(make_trial, BATCHES)


def test_every_value_comes_as_it_is_compiled_checkpointed_and_both() -> None:
    trials = searched(lambda arguments, names: 4 * int(arguments[1]) - 3 * len(names))
    assert list(map(words, trials)) == [
        "--batch 4",
        "--batch 4 compile",
        "--batch 4 checkpoint",
        "--batch 4 compile checkpoint",
        "--batch 2",
        "--batch 2 compile",
        "--batch 2 checkpoint",
        "--batch 2 compile checkpoint",
    ]
    # 16, 13, 13, 10 and 8, 5, 5, 2 of 10: what computes nothing again comes first, then the values as they were named.
    ordered = cheapest_first(trials)
    assert list(map(words, ordered))[:5] == [
        "--batch 2",
        "--batch 2 compile",
        "--batch 4 compile checkpoint",
        "--batch 2 checkpoint",
        "--batch 2 compile checkpoint",
    ]
    assert list(map(words, ordered))[5:] == ["--batch 4", "--batch 4 compile", "--batch 4 checkpoint"]


def test_what_the_script_does_not_bear_or_has_no_place_for_is_not_tried_beside_another_change() -> None:
    trials = searched(lambda arguments, names: None if "compile" in names else 1)
    assert list(map(words, trials)) == [
        text
        for batch in (4, 2)
        for text in (f"--batch {batch}", f"--batch {batch} compile", f"--batch {batch} checkpoint")
    ]
    trials = searched(lambda arguments, names: 1, in_vain="checkpoint")
    assert [words(trial) for trial in trials if trial.arguments[1] == "4"] == [
        "--batch 4",
        "--batch 4 compile",
        "--batch 4 checkpoint",
    ]
    trials = searched(lambda arguments, names: None if arguments[1] == "4" else 1)
    assert [words(trial) for trial in trials if trial.arguments[1] == "4"] == ["--batch 4"]


def test_where_nothing_fits_all_changes_are_tried_with_the_last_values() -> None:
    trials = searched(lambda arguments, names: 5 if "bf16" in names else 15 + int(arguments[1]))
    best = cheapest_first(trials)[0]
    assert (best.arguments, best.apply) == (("--batch", "2"), ("bf16",))
    more = trials[8:]
    assert {trial.arguments for trial in more} == {("--batch", "2")}
    # The script as it is was tried already.
    assert () not in [trial.apply for trial in more] and len(more[-1].apply) < len(SCRIPT_CHANGES)
