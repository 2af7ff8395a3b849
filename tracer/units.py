"""Bytes and nanoseconds inside, GiB / MiB / ms for people: the one place where they are converted."""

from __future__ import annotations

import re

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

MAX_BYTES = 1 << 46
"""64 TiB: more than any GPU has, and less than a process has addresses for."""
MAX_COUNT = (1 << 31) - 1
"""Largest number of steps, samples, or elements along one dimension."""
MAX_RANKS = 1 << 17
"""Largest number of ranks of a job."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000


def gib(size_bytes: float) -> float:
    """Bytes as GiB (2**30 bytes), which the file formats of this field call GB."""
    return size_bytes / GIB


def ms(duration_ns: float) -> float:
    """Nanoseconds as milliseconds."""
    return duration_ns / NS_PER_MS


def format_bytes(size_bytes: float) -> str:
    """A size for people: three significant places or so, in the largest binary unit that keeps it at one or above."""
    sign, size = ("-", -size_bytes) if size_bytes < 0 else ("", size_bytes)
    if size < KIB:
        return f"{sign}{size:.0f} B"
    for unit, name in ((KIB, "KiB"), (MIB, "MiB"), (GIB, "GiB")):
        # 1023.995 of a unit would print as 1024.00: the next unit says it better.
        if size < unit * 1023.995:
            return f"{sign}{size / unit:.2f} {name}"
    return f"{sign}{size / (GIB * 1024):.2f} TiB"


def format_range(least_bytes: float, most_bytes: float) -> str:
    """`28.00 MiB to 688.00 MiB`, or one size where both read alike."""
    least, most = format_bytes(least_bytes), format_bytes(most_bytes)
    return least if least == most else f"{least} to {most}"


def format_growth(times: float | None) -> str:
    """`x4`, `x1.98`, `x0.25`: three places at most; the empty text for None."""
    if times is None:
        return ""
    shown = f"{times:,.0f}" if times >= 99.95 else f"{times:.3g}"
    return f"x{shown}"


def some(count: int, noun: str, verb: str = "") -> str:
    """`1 block was`, `2 blocks were`: a number with its noun, and a verb given as `was/were`."""
    singular, _, plural = verb.partition("/")
    ending = "es" if noun.endswith(("ch", "s", "x")) else "s"
    nouns = f"{noun[:-1]}ies" if noun[-1] == "y" and noun[-2] not in "aeou" else f"{noun}{ending}"
    words = (f"{count:,}", noun if count == 1 else nouns, singular if count == 1 else plural)
    return " ".join(word for word in words if word)


def parse_count(text: str, *, most: int = MAX_COUNT) -> int:
    """Read a whole number, of either sign.

    Raises:
        ValueError: The text is none, or the number is beyond `most`.
    """
    if not re.fullmatch(r"\s*[-+]?\d+(_\d+)*\s*", text):
        raise ValueError(f"{text} is not a whole number.")
    digits = re.sub(r"[\s_+-]", "", text).lstrip("0")
    if len(digits) > len(str(most)) or int(digits or "0") > most:
        raise ValueError(f"{shortened(text)} is more than {most:,}, the largest number here.")
    return int(text)


def shortened(text: str) -> str:
    """A text of the user's as a sentence shows it."""
    return text if len(text) <= 40 else f"{text[:20]}...{text[-10:]}"


_SIZE_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB, "T": GIB * 1024}


def parse_size(text: str) -> int:
    """Read `24GiB`, `500 MiB`, `1.5G` or a number of bytes.

    Raises:
        ValueError: The text is no size above zero.
    """
    match = re.fullmatch(r"\s*(\d{1,15}(?:\.\d{1,15})?)\s*([KMGT]?)(?:iB|B)?\s*", text, re.IGNORECASE)
    size = int(float(match[1]) * _SIZE_UNITS[match[2].upper()]) if match else 0
    if not size:
        raise ValueError(f"{shortened(text)} is not a size.")
    if size > MAX_BYTES:
        raise ValueError(f"{text} is more than {format_bytes(MAX_BYTES)}, the largest size here.")
    return size


def parse_memory(text: str) -> int:
    """Read the size of a GPU, or of a part of it: a small number without a unit is a unit forgotten.

    Raises:
        ValueError: The text is no size above zero, or has no unit and would be less than 1 MiB.
    """
    size = parse_size(text)
    if size < MIB and not re.search("[a-zA-Z]", text):
        raise ValueError(f"{text} has no unit.")
    return size
