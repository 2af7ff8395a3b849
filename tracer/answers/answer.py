"""The answer of a command: what was found, in the order in which every output says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tracer.answers.paths import shorten_paths
from tracer.answers.tables import Section, Table

if TYPE_CHECKING:
    from tracer.answers.out_of_memory import OutOfMemory
    from tracer.answers.why.first_changes import FirstChanges


@dataclass(frozen=True, slots=True)
class Answer:
    """Sentences and tables of an answer; the short form ends with `in_use`, the full one has `sections` instead."""

    happened: tuple[str, ...]  # The failure or the peak: the request, the limit, and how much is missing
    why: tuple[str, ...] = ()  # The cause, with its line
    change: tuple[str, ...] = ()  # What to change: what it saves and gives up, and how that was found
    remarks: tuple[str, ...] = ()  # What changes how a number is read
    in_use: tuple[Table, ...] = ()  # What was in use then, the most important table first
    sections: tuple[Section, ...] = ()  # All tables, and what else there is to say
    caveat: str = ""  # What has to be said before anything else; empty for a run like any other
    is_alarming: bool = False  # Whether memory ran out

    @property
    def parts(self) -> dict[str, tuple[str, ...]]:
        """The sentences by what they tell, in order, with whole paths, which are the same wherever they are read."""
        parts = {"caveat": (self.caveat,) if self.caveat else (), "happened": self.happened, "why": self.why}
        return parts | {"change": self.change, "remarks": self.remarks}

    @property
    def sentences(self) -> tuple[str, ...]:
        """Sentences of the short form, with short file names."""
        return tuple(shorten_paths(sentence) for sentences in self.parts.values() for sentence in sentences)


def answer_values(answer: Answer) -> dict[str, Any]:
    """Return the sentences as JSON values."""
    return {name: list(sentences) for name, sentences in answer.parts.items()}


def cause_and_change(first: FirstChanges | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The decisive cause of a peak and its change, where that saves a good part of it; else nothing.

    Where a request found no memory and the program went on, the cause is that of this moment, which the sentence says.
    """
    if first is None or not first.saves_much:
        return (), ()
    change = first.changes[0]
    when = "Where a request found no memory: " if first.num_failed else ""
    return (when + change.sentence,), (f"{change.order}: {change.effect}.",)


def failure_words(event: OutOfMemory, first: FirstChanges | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Why memory ran out, and what to change; that nothing helps is said, too."""
    change = event.change or (first.words if first is not None else "")
    return event.why, (change,) if change else ()
