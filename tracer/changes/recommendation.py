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
    """A change made for real, on copies: before and after."""

    saves_bytes: int  # Bytes saved of the measured peak
    peak_bytes: int  # The measured peak with it
    # Time of a step without the change; None where nothing was computed, which has no losses either.
    step_ms: float | None
    changed_step_ms: float | None  # And with it
    losses: tuple[float, ...]  # Losses of the first steps without the change
    changed_losses: tuple[float, ...]  # And with it

    @property
    def largest_loss_difference(self) -> float:
        """Relative, over the first steps; 0 where all are equal, bit for bit."""
        pairs = zip(self.losses, self.changed_losses, strict=True)
        return max((abs(first - other) / max(abs(first), 1e-30) for first, other in pairs), default=0.0)


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A change, or several together, that would lower the peak."""

    change: str  # The change in a few words
    lines: tuple[str, ...]  # To paste
    saves_bytes: int  # Bytes saved of what is allocated at the peak
    saves_reserved_bytes: int | None  # Bytes saved of what is reserved; None where nothing is, as on the CPU
    peak_bytes: int  # Allocated at the peak with it
    reserved_bytes: int | None  # Reserved with it, or None
    results: str  # What becomes of the training's results
    cost: str  # What it costs, or nothing
    needs: str  # What has to hold, or nothing
    how_found: str  # `rehearsed`, `replayed`, or `measured`
    measured: Measured | None = None  # Where it was made for real
    group: str = Group.MEMORY.key  # What it gives up, a key of `Group`; of several together the last of theirs

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
    """Memory at the peak that nobody needs, as the recording shows it."""

    what: str  # What it is
    change: str  # What to do
    lines: tuple[str, ...]  # To paste
    bytes: int  # Held at the peak
    count: int  # Number of blocks
    file: str | None  # File of the line to look at, or None
    line: int | None  # Its number, or None
    held_by: str  # The way to it from a variable; empty where none holds it
    variable: str  # Where that begins
    results: str  # What becomes of the training's results
    how_found: str  # `found in the recording`, or `rehearsed`
    saves_bytes: int | None = None  # What the change saves where it was rehearsed, or None


@dataclass(frozen=True, slots=True)
class AdviceReport:
    """Everything to tell."""

    device: str  # The device that it is about
    peak_bytes: int  # Allocated at the peak, as it is
    reserved_bytes: int | None  # The most reserved, or None
    # What saves something, the best of each family, by group, and in a group the most first.
    rows: tuple[Recommendation, ...]
    others: tuple[Recommendation, ...] = ()  # Further ones
    together: Recommendation | None = None  # The best ones together, or None
    target_bytes: int | None = None  # What it should fit into; None where nobody asked
    fits: bool = True  # Whether it does as it is
    fit: Recommendation | None = None  # The cheapest that makes it fit, or None
    num_tried: int = 0  # How many were tried
    not_tried: tuple[tuple[str, str], ...] = ()  # Names of changes that could not be tried, and why
    found: tuple[UnneededMemory, ...] = ()  # What the recording of a run shows that nobody needs, the largest first
    # How much larger the run's measured peak is than the rehearsed one: a rehearsed saving may be off by as much. 0
    # where nothing was measured.
    unrehearsed_bytes: int = 0
