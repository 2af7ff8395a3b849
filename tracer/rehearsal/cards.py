"""A short table of GPUs: what torch says that they have in all, and their compute capability."""

from __future__ import annotations

from dataclasses import dataclass

from tracer.errors import TracerError
from tracer.units import GIB, MIB, parse_memory

CONTEXT_BYTES = 500 * MIB
"""What a process takes of a GPU before it allocates anything: CUDA's context and the kernels that it loads.

One stated figure for all of them; it depends on driver, GPU and libraries. A process that has done little else was
seen with 470 MiB in torch's messages on an RTX 4090; an A100 takes some 420, an H100 some 520.
"""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU.

    Attributes:
        name: As people write it; of a size alone, empty.
        total_bytes: All of its memory, as torch's out-of-memory message says `total capacity`.
        compute_capability: Such as (8, 6).
        num_multiprocessors: Which some kernels divide their work by.
    """

    name: str
    total_bytes: int
    compute_capability: tuple[int, int] = (8, 0)
    num_multiprocessors: int = 108

    @property
    def usable_bytes(self) -> int:
        """What the caching allocator can reserve."""
        return max(0, self.total_bytes - CONTEXT_BYTES)


_CAPACITIES: tuple[tuple[str, float, tuple[int, int], int], ...] = (
    ("T4", 14.56, (7, 5), 40),
    ("V100-16GB", 15.77, (7, 0), 80),
    ("V100-32GB", 31.73, (7, 0), 80),
    ("RTX-3060", 11.76, (8, 6), 28),
    ("RTX-3090", 23.68, (8, 6), 82),
    ("RTX-4060", 7.63, (8, 9), 24),
    ("RTX-4090", 23.64, (8, 9), 128),
    ("RTX-5090", 31.36, (12, 0), 170),
    ("A10G", 22.05, (8, 6), 80),
    ("A6000", 47.41, (8, 6), 84),
    ("L4", 22.03, (8, 9), 58),
    ("L40S", 44.39, (8, 9), 142),
    ("A100-40GB", 39.39, (8, 0), 108),
    ("A100-80GB", 79.15, (8, 0), 108),
    ("H100", 79.10, (9, 0), 132),
    ("H200", 139.72, (9, 0), 132),
)
CARDS = tuple(Card(name, int(gib * GIB), capability, count) for name, gib, capability, count in _CAPACITIES)


def card_of(text: str) -> Card:
    """A card by name, or a size such as `24GiB` as a card without a name.

    Raises:
        TracerError: It is neither.
    """
    wanted = text.strip().lower().replace(" ", "-").removeprefix("nvidia-").removeprefix("geforce-")
    for card in CARDS:
        if card.name.lower() == wanted:
            return card
    try:
        return Card("", parse_memory(text))
    except ValueError as error:
        if "unit" in str(error):
            raise TracerError(str(error), hint=f"Write {text}GiB, {text}MiB or {text}B.") from None
        names = ", ".join(card.name for card in CARDS)
        raise TracerError(
            f"{text} is neither a size nor a card that is known here.", hint=f"Write 24GiB, or one of {names}."
        ) from None
