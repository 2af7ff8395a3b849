"""Results of `doctor`: what is installed on this machine and which parts of the program work there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Fact = bool | int | float | str | None | list[str] | list[int] | list[float]
"""A value that JSON has."""


class Status(StrEnum):
    """Outcomes of a check."""

    PASS = "PASS"
    FAIL = "FAIL"
    SKIP = "SKIP"  # It could not be asked here; the sentence says why


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a check."""

    status: Status
    sentence: str
    mend: str = ""  # The command that mends a failure, or with which a skipped check can be asked; empty if none does
    facts: Mapping[str, Fact] = field(default_factory=dict)  # What a bug report needs


@dataclass(frozen=True, slots=True)
class CheckResult:
    """An answer with the check's name."""

    name: str
    outcome: Outcome
    seconds: float = 0.0

    @property
    def status(self) -> Status:
        """The outcome's status."""
        return self.outcome.status


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """All answers, in the order in which they are shown."""

    about: Mapping[str, Fact]  # Versions, the machine, and the environment's values of the allocator and CUDA
    installed: tuple[CheckResult, ...]  # What is here
    works: tuple[CheckResult, ...]  # What works
    computed: bool = True  # Whether the device computes; not so on the null GPU

    @property
    def checks(self) -> tuple[CheckResult, ...]:
        """Both."""
        return self.installed + self.works

    def with_status(self, status: Status) -> tuple[CheckResult, ...]:
        """The checks of one status."""
        return tuple(check for check in self.checks if check.status is status)

    @property
    def has_failed(self) -> bool:
        """Whether a check has failed."""
        return bool(self.with_status(Status.FAIL))


def passed(sentence: str, **facts: Fact) -> Outcome:
    """Return the outcome of a check that found all well."""
    return Outcome(Status.PASS, sentence, facts=facts)


def failed(sentence: str, mend: str, **facts: Fact) -> Outcome:
    """Return the outcome of a check that found a fault, and the command that mends it."""
    return Outcome(Status.FAIL, sentence, mend, facts)


def skipped(sentence: str, mend: str = "", **facts: Fact) -> Outcome:
    """Return the outcome of a check that cannot be asked here."""
    return Outcome(Status.SKIP, sentence, mend, facts)
