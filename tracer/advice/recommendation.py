"""Results of changes that were tried: one kind of row for everyone who tries changes or writes them down."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Keeps(IntEnum):
    """What a change leaves as it was, the safest first."""

    BITS = 0
    """Losses and gradients stay the same, bit for bit."""
    ROUNDING = 1
    """They are the same up to rounding."""
    CONVERGENCE = 2
    """Training is another one and may converge differently."""

    @property
    def words(self) -> str:
        """Words for screens: what becomes of the results."""
        return ("same results", "results up to rounding", "other training")[self]


class Group(IntEnum):
    """What a change gives up, in the order in which people weigh it."""

    MEMORY = 0
    """Nothing but memory."""
    COMPUTE = 1
    """Time: something is computed again, or copied to the host and back."""
    ARITHMETIC = 2
    """Digits."""
    TRAINING = 3
    """The training as it is: its batches, its optimizer, what is trained."""

    @property
    def key(self) -> str:
        """Name of the group in JSON."""
        return self.name.lower()

    @property
    def words(self) -> str:
        """A heading over the changes of this group."""
        return (
            "Changes nothing but memory",
            "Costs compute or copies",
            "Changes the arithmetic",
            "Changes the training itself",
        )[self]


@dataclass(frozen=True, slots=True)
class Measured:
    """A change made for real, on copies: before and after.

    Attributes:
        saves_bytes: Bytes saved of the measured peak.
        peak_bytes: The measured peak with it.
        step_ms: Time of a step without the change; None where nothing was computed, which has no losses either.
        changed_step_ms: And with it.
        losses: Losses of the first steps without the change.
        changed_losses: And with it.
    """

    saves_bytes: int
    peak_bytes: int
    step_ms: float | None
    changed_step_ms: float | None
    losses: tuple[float, ...]
    changed_losses: tuple[float, ...]

    @property
    def largest_loss_difference(self) -> float:
        """Relative, over the first steps; 0 where all are equal, bit for bit."""
        pairs = zip(self.losses, self.changed_losses, strict=True)
        return max((abs(first - other) / max(abs(first), 1e-30) for first, other in pairs), default=0.0)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change, or several together, that would lower the peak.

    Attributes:
        change: The change in a few words.
        lines: To paste.
        saves_bytes: Bytes saved of what is allocated at the peak.
        saves_reserved_bytes: Bytes saved of what is reserved; None where nothing is, as on the CPU.
        peak_bytes: Allocated at the peak with it.
        reserved_bytes: Reserved with it, or None.
        results: What becomes of the training's results.
        cost: What it costs, or nothing.
        needs: What has to hold, or nothing.
        how_found: `rehearsed`, `replayed`, or `measured`.
        measured: Where it was made for real.
        group: What it gives up, a key of `Group`; of several together the last of theirs.
    """

    change: str
    lines: tuple[str, ...]
    saves_bytes: int
    saves_reserved_bytes: int | None
    peak_bytes: int
    reserved_bytes: int | None
    results: str
    cost: str
    needs: str
    how_found: str
    measured: Measured | None = None
    group: str = Group.MEMORY.key

    @property
    def known_bytes(self) -> int:
        """What it saves of what is allocated: as measured where it was, else as rehearsed or replayed."""
        return self.saves_bytes if self.measured is None else self.measured.saves_bytes

    @property
    def gain_bytes(self) -> int:
        """What it saves, for a list: of what is allocated, or where that is nothing, of what is reserved."""
        return self.known_bytes or self.saves_reserved_bytes or 0


@dataclass(frozen=True, slots=True)
class UnneededMemory:
    """Memory at the peak that nobody needs, as the recording shows it.

    Attributes:
        what: What it is.
        change: What to do.
        lines: To paste.
        bytes: Held at the peak.
        count: Number of blocks.
        file: File of the line to look at, or None.
        line: Its number, or None.
        held_by: The way to it from a variable; empty where none holds it.
        variable: Where that begins.
        results: What becomes of the training's results.
        how_found: `found in the recording`, or `rehearsed`.
        saves_bytes: What the change saves where it was rehearsed, or None.
    """

    what: str
    change: str
    lines: tuple[str, ...]
    bytes: int
    count: int
    file: str | None
    line: int | None
    held_by: str
    variable: str
    results: str
    how_found: str
    saves_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class AdviceReport:
    """Everything to tell.

    Attributes:
        device: The device that it is about.
        peak_bytes: Allocated at the peak, as it is.
        reserved_bytes: The most reserved, or None.
        rows: What saves something, the best of each family, by group, and in a group the most first.
        others: Further ones.
        together: The best ones together, or None.
        target_bytes: What it should fit into; None where nobody asked.
        fits: Whether it does as it is.
        fit: The cheapest that makes it fit, or None.
        num_tried: How many were tried.
        not_tried: Names of changes that could not be tried, and why.
        found: What the recording of a run shows that nobody needs, the largest first.
        unrehearsed_bytes: How much larger the run's measured peak is than the rehearsed one: a rehearsed saving may be
            off by as much. 0 where nothing was measured.
    """

    device: str
    peak_bytes: int
    reserved_bytes: int | None
    rows: tuple[Recommendation, ...]
    others: tuple[Recommendation, ...] = ()
    together: Recommendation | None = None
    target_bytes: int | None = None
    fits: bool = True
    fit: Recommendation | None = None
    num_tried: int = 0
    not_tried: tuple[tuple[str, str], ...] = ()
    found: tuple[UnneededMemory, ...] = ()
    unrehearsed_bytes: int = 0
