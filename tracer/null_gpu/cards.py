"""The one table of GPUs: what torch says that each has, and what its kernels ask for."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from tracer.errors import UsageError
from tracer.units import GIB, KIB, MAX_RANKS, MIB, format_bytes, parse_count, parse_memory, shortened

CONTEXT_BYTES = 700 * MIB
"""Memory of a GPU that a process takes beside torch's allocator: CUDA's context, and the kernels that it loads.

One stated figure for all cards; it depends on driver, GPU and libraries.
"""
MEASURED_CONTEXTS = (
    ("H100", "2.11.0", "13.0", "630 to 766 MiB", "25 trainings"),
    ("H100", "2.11.0", "13.0", "856 MiB", "doctor"),
    ("H100", "2.11.0", "13.0", "916 MiB", "with NCCL"),
    ("RTX-4090", "2.6.0.dev20241002", "12.1", "484 to 505 MiB", "pytorch/torchchat issue 1341"),
)
"""Memory beside torch's allocator as it was measured: card, torch's version, CUDA's, memory, and of what.

Source:
    `benchmarks.beside_null_gpu` and doctor on an H100 with driver 580; torch's message in that issue, with driver 560.
"""
MAX_DEVICES = 16
"""Most devices of one process."""


@dataclass(frozen=True, slots=True)
class _Multiprocessor:
    """Figures of a multiprocessor of one compute capability.

    Source:
        CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
    """

    threads: int
    blocks: int
    shared_kib: int
    shared_of_block_kib: int


_MULTIPROCESSORS = {
    (7, 0): _Multiprocessor(2048, 32, 96, 96),
    (7, 5): _Multiprocessor(1024, 16, 64, 64),
    (8, 0): _Multiprocessor(2048, 32, 164, 163),
    (8, 6): _Multiprocessor(1536, 16, 100, 99),
    (8, 9): _Multiprocessor(1536, 24, 100, 99),
    (9, 0): _Multiprocessor(2048, 32, 228, 227),
    (10, 0): _Multiprocessor(2048, 32, 228, 227),
    (10, 3): _Multiprocessor(2048, 32, 228, 227),
    (12, 0): _Multiprocessor(1536, 24, 100, 99),
}


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU."""

    label: str  # Short name, such as `RTX-4090`; empty if only a size is given
    # All of its memory, as `torch.cuda.get_device_properties` and out-of-memory messages say it: less than is printed
    # on the box by what ECC and the driver keep for themselves.
    memory_bytes: int
    name: str = ""  # torch's name, such as `NVIDIA GeForce RTX 4090`; empty if only a size is given
    capability: tuple[int, int] = (8, 0)  # Compute capability, such as (8, 6)
    num_sms: int = 108  # Multiprocessors, by which some kernels divide their work
    l2_bytes: int = 40 * MIB  # Size of the L2 cache

    @property
    def usable_bytes(self) -> int:
        """Bytes that the caching allocator can reserve."""
        return max(0, self.memory_bytes - CONTEXT_BYTES)

    @property
    def threads_per_sm(self) -> int:
        """Threads that a multiprocessor runs at once."""
        return _MULTIPROCESSORS[self.capability].threads

    @property
    def blocks_per_sm(self) -> int:
        """Thread blocks that a multiprocessor runs at once."""
        return _MULTIPROCESSORS[self.capability].blocks

    @property
    def shared_memory_per_sm_bytes(self) -> int:
        """Shared memory of a multiprocessor."""
        return _MULTIPROCESSORS[self.capability].shared_kib * KIB

    @property
    def shared_memory_bytes(self) -> int:
        """Most of it that one block can opt in to."""
        return _MULTIPROCESSORS[self.capability].shared_of_block_kib * KIB


# Label, what torch calls it behind "NVIDIA ", GiB that torch says, compute capability, multiprocessors, MiB of L2.
# Source: GiB are what torch's messages say on Linux (with ECC, where a card has it on by default); where none was at
# hand, what nvidia-smi says less the 450 to 600 MiB that it calls reserved. All else: NVIDIA's data sheets.
_Row = tuple[str, str, float, tuple[int, int], int, float]
_TABLE: tuple[_Row, ...] = (
    ("T4", "Tesla T4", 14.56, (7, 5), 40, 4),
    ("V100-16GB", "Tesla V100-SXM2-16GB", 15.77, (7, 0), 80, 6),
    ("V100-32GB", "Tesla V100-SXM2-32GB", 31.73, (7, 0), 80, 6),
    ("RTX-2060", "GeForce RTX 2060", 5.79, (7, 5), 30, 3),
    ("RTX-2060-Super", "GeForce RTX 2060 SUPER", 7.79, (7, 5), 34, 4),
    ("RTX-2070", "GeForce RTX 2070", 7.79, (7, 5), 36, 4),
    ("RTX-2070-Super", "GeForce RTX 2070 SUPER", 7.79, (7, 5), 40, 4),
    ("RTX-2080", "GeForce RTX 2080", 7.79, (7, 5), 46, 4),
    ("RTX-2080-Super", "GeForce RTX 2080 SUPER", 7.79, (7, 5), 48, 4),
    ("RTX-2080-Ti", "GeForce RTX 2080 Ti", 10.75, (7, 5), 68, 5.5),
    ("RTX-3050", "GeForce RTX 3050", 7.79, (8, 6), 20, 2),
    ("RTX-3060", "GeForce RTX 3060", 11.76, (8, 6), 28, 3),
    ("RTX-3060-Ti", "GeForce RTX 3060 Ti", 7.79, (8, 6), 38, 4),
    ("RTX-3070", "GeForce RTX 3070", 7.78, (8, 6), 46, 4),
    ("RTX-3070-Ti", "GeForce RTX 3070 Ti", 7.78, (8, 6), 48, 4),
    ("RTX-3080", "GeForce RTX 3080", 9.77, (8, 6), 68, 5),
    ("RTX-3080-12GB", "GeForce RTX 3080", 11.76, (8, 6), 70, 6),
    ("RTX-3080-Ti", "GeForce RTX 3080 Ti", 11.76, (8, 6), 80, 6),
    ("RTX-3090", "GeForce RTX 3090", 23.68, (8, 6), 82, 6),
    ("RTX-3090-Ti", "GeForce RTX 3090 Ti", 23.68, (8, 6), 84, 6),
    ("RTX-4060", "GeForce RTX 4060", 7.63, (8, 9), 24, 24),
    ("RTX-4060-Ti", "GeForce RTX 4060 Ti", 7.63, (8, 9), 34, 32),
    ("RTX-4060-Ti-16GB", "GeForce RTX 4060 Ti", 15.58, (8, 9), 34, 32),
    ("RTX-4070", "GeForce RTX 4070", 11.60, (8, 9), 46, 36),
    ("RTX-4070-Super", "GeForce RTX 4070 SUPER", 11.60, (8, 9), 56, 48),
    ("RTX-4070-Ti", "GeForce RTX 4070 Ti", 11.60, (8, 9), 60, 48),
    ("RTX-4070-Ti-Super", "GeForce RTX 4070 Ti SUPER", 15.58, (8, 9), 66, 48),
    ("RTX-4080", "GeForce RTX 4080", 15.58, (8, 9), 76, 64),
    ("RTX-4080-Super", "GeForce RTX 4080 SUPER", 15.58, (8, 9), 80, 64),
    ("RTX-4090", "GeForce RTX 4090", 23.64, (8, 9), 128, 72),
    ("RTX-5060", "GeForce RTX 5060", 7.53, (12, 0), 30, 32),
    ("RTX-5060-Ti", "GeForce RTX 5060 Ti", 7.53, (12, 0), 36, 32),
    ("RTX-5060-Ti-16GB", "GeForce RTX 5060 Ti", 15.47, (12, 0), 36, 32),
    ("RTX-5070", "GeForce RTX 5070", 11.49, (12, 0), 48, 48),
    ("RTX-5070-Ti", "GeForce RTX 5070 Ti", 15.47, (12, 0), 70, 48),
    ("RTX-5080", "GeForce RTX 5080", 15.47, (12, 0), 84, 64),
    ("RTX-5090", "GeForce RTX 5090", 31.36, (12, 0), 170, 96),
    ("A4000", "RTX A4000", 15.61, (8, 6), 48, 4),
    ("A5000", "RTX A5000", 23.57, (8, 6), 64, 6),
    ("A6000", "RTX A6000", 47.41, (8, 6), 84, 6),
    ("RTX-6000-Ada", "RTX 6000 Ada Generation", 47.38, (8, 9), 142, 96),
    ("RTX-PRO-6000", "RTX PRO 6000 Blackwell Workstation Edition", 94.97, (12, 0), 188, 128),
    ("A10", "A10", 22.05, (8, 6), 72, 6),
    ("A10G", "A10G", 22.05, (8, 6), 80, 6),
    ("A40", "A40", 44.42, (8, 6), 84, 6),
    ("L4", "L4", 22.03, (8, 9), 58, 48),
    ("L40", "L40", 44.39, (8, 9), 142, 96),
    ("L40S", "L40S", 44.39, (8, 9), 142, 96),
    ("A100-40GB", "A100-SXM4-40GB", 39.39, (8, 0), 108, 40),
    ("A100-80GB", "A100-SXM4-80GB", 79.15, (8, 0), 108, 40),
    ("H100", "H100 80GB HBM3", 79.10, (9, 0), 132, 50),
    ("H100-PCIe", "H100 PCIe", 79.10, (9, 0), 114, 50),
    ("H100-NVL", "H100 NVL", 93.10, (9, 0), 132, 50),
    ("H100-96GB", "H100", 94.99, (9, 0), 132, 50),
    ("H200", "H200", 139.72, (9, 0), 132, 50),
    ("B200", "B200", 178.35, (10, 0), 148, 126),
    ("GB200", "GB200", 184.31, (10, 0), 152, 126),
    ("B300", "B300 SXM6 AC", 267.69, (10, 3), 148, 126),
    ("GB300", "GB300", 276.60, (10, 3), 152, 126),
)


def _card(row: _Row) -> Card:
    label, called, gib, capability, num_sms, l2_mib = row
    name = called if called.startswith("Tesla") else f"NVIDIA {called}"
    return Card(label, int(gib * GIB), name, capability, num_sms, int(l2_mib * MIB))


CARDS = tuple(_card(row) for row in _TABLE)
H100 = next(card for card in CARDS if card.label == "H100")
A100 = next(card for card in CARDS if card.label == "A100-80GB")

# Other spellings, once spaces, dashes, makers' words and a "GB" at the end are gone.
_ALSO = {
    "a100": "A100-80GB",
    "a100sxm": "A100-80GB",
    "a100pcie": "A100-80GB",
    "a100pcie40": "A100-40GB",
    "a100pcie80": "A100-80GB",
    "a10080pcie": "A100-80GB",
    "v100": "V100-16GB",
    "v100pcie16": "V100-16GB",
    "v100pcie32": "V100-32GB",
    "h10080": "H100",
    "h100sxm": "H100",
    "h100sxm5": "H100",
    "h100sxm80": "H100",
    "h100pcie80": "H100-PCIe",
    "h100nvl94": "H100-NVL",
    "h10094": "H100-NVL",
    "rtx6000ada": "RTX-6000-Ada",
    "6000ada": "RTX-6000-Ada",
    "pro6000": "RTX-PRO-6000",
    "rtxpro6000blackwell": "RTX-PRO-6000",
}


@dataclass(frozen=True, slots=True)
class Devices:
    """Devices of a process: one or more cards of a kind."""

    card: Card  # Kind of the devices, with the memory that was asked for
    count: int = 1  # Number of devices

    @property
    def words(self) -> str:
        """The devices in words, for screens."""
        size, name = format_bytes(self.card.memory_bytes), self.card.label or "a GPU"
        return f"{self.count} x {name}, {size} each" if self.count > 1 else f"{name}, {size}"


def devices_of(text: str) -> Devices:
    """Parse `--on`: `h100`, `RTX 4090`, `h100:40GiB` for another capacity, `8xh100` for eight of them, `24GiB`.

    Raises:
        TracerError: There is no such card, size or number.
    """
    match = re.fullmatch(r"\s*(?:(\d+)\s*[xX*\u00d7]\s*)?([^:]*?)\s*(?::(.*))?", text, re.DOTALL)
    assert match is not None  # every text has this form
    count, name, size = _count(text, match[1] or "1"), match[2], match[3]
    card = named_card(name)
    if card is None and size is None:
        card = _sized(name)
    if card is None and (maker := _other_maker(text) or _other_maker(name)):
        raise UsageError(
            f"{text} is {maker}, and what answers here is torch's code for NVIDIA's cards.",
            hint="A size alone, such as 24GiB, asks for an NVIDIA A100 with that memory.",
        )
    if card is None:
        raise UsageError(f"There is no card {name or text} in the table of GPUs.", hint=_which(name))
    try:
        return Devices(card if size is None else replace(card, memory_bytes=parse_memory(size)), count)
    except ValueError as error:
        raise UsageError(str(error), hint="Write the memory of the card as in h100:40GiB.") from None


def _count(text: str, number: str) -> int:
    try:
        count = parse_count(number, most=MAX_RANKS)
    except ValueError:
        count = 0
    if not count:
        raise UsageError(
            f"{shortened(text)}: a job has 1 to {MAX_RANKS:,} devices.", hint="Write, for example, 8xh100."
        )
    return count


def _sized(text: str) -> Card | None:
    """A card of which only the memory is named; None for what is no size."""
    try:
        return Card("", parse_memory(text))
    except ValueError as error:
        if "unit" in str(error):
            raise UsageError(str(error), hint=f"Write {text}GiB, {text}MiB or {text}B.") from None
        if "more than" in str(error):
            raise UsageError(str(error), hint="Write, for example, 24GiB.") from None
        return None


_MAKERS = {
    "AMD's": r"(amd)?(instinct|radeon|mi\d{2,3}|rx\d{4}|w\d{4}|[679]\d00xtx?$|[679]\d[05]0xt)",
    "Intel's": r"(intel)?(arc|gaudi|max\d{4}|pvc)",
    "Google's": r"(google)?tpu",
    "Amazon's": r"(aws)?(trainium|inferentia|trn\d|inf\d)",
    "Apple's": r"(apple)?m[1-4](pro|max|ultra)?$",
}


def _other_maker(text: str) -> str | None:
    return next((maker for maker, names in _MAKERS.items() if re.match(names, _spelling(text))), None)


def named_card(text: str) -> Card | None:
    """A card by any of its spellings, with or without the memory on its box; None if it has none of that name."""
    card = _BY_SPELLING.get(_spelling(text))
    if card is not None:
        return card
    name, size = _without_size(text)
    spelling = _spelling(name)
    plain = re.sub(r"(sxm\d?|pcie|nvl)$", "", spelling)
    found = (_BY_SPELLING.get(spelled) for spelled in (f"{plain}{size or ''}", spelling, plain))
    return next((card for card in found if card is not None and (size is None or _is_sold_with(card, size))), None)


def _without_size(text: str) -> tuple[str, int | None]:
    """`RTX 4090 24GB` is an RTX 4090 with 24."""
    words = text.lower().replace("_", " ")
    match = re.search(r"\b(\d{1,3})\s*g(?:b|ib)?\b", words)
    return (words, None) if match is None else (words[: match.start()] + words[match.end() :], int(match[1]))


def _is_sold_with(card: Card, gigabytes: int) -> bool:
    """Return True if a card is sold with so much: ECC, the driver and decimal gigabytes leave up to a tenth less."""
    return 0.9 * gigabytes * GIB <= card.memory_bytes <= gigabytes * GIB


def _spelling(text: str) -> str:
    words = re.sub(r"\b(nvidia|geforce|tesla|quadro|gpu)\b", " ", text.lower())
    letters = re.sub(r"[^a-z0-9]", "", words)
    return re.sub(r"(?<=\d)(gb|gib)$", "", letters)


def _spellings() -> dict[str, Card]:
    """Every spelling's card; of two that torch calls the same, the first has that name."""
    by_label = {card.label: card for card in CARDS}
    by_spelling = {spelling: by_label[label] for spelling, label in _ALSO.items()}
    for card in CARDS:
        label = _spelling(card.label)
        for spelling in (label, label.removeprefix("rtx"), _spelling(card.name)):
            by_spelling.setdefault(spelling, card)
    return by_spelling


_BY_SPELLING = _spellings()


def _which(text: str) -> str:
    """The card with that memory, the nearest names, or where none is near, as for `help`, all."""
    name, size = _without_size(text)
    if size is not None and (card := named_card(name)) is not None:
        return f"The {card.label} has {format_bytes(card.memory_bytes)}; one with {size} GiB is {card.label}:{size}GiB."
    near = get_close_matches(_spelling(text), _BY_SPELLING, n=8, cutoff=0.6)
    labels = list(dict.fromkeys(_BY_SPELLING[spelling].label for spelling in near))[:4]
    labels = labels or [card.label for card in CARDS]
    return f"Cards are written as {', '.join(labels)}; another memory as {labels[0]}:40GiB."
