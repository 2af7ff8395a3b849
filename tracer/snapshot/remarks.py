"""Oddities of a file that can be read all the same, each once; and its texts made safe for terminals and files."""

from __future__ import annotations

from dataclasses import dataclass, field


def printable(text: str) -> str:
    """Text in which everything is escaped that a terminal obeys or no file takes: controls, halves of surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


# A hostile file cannot make this list long: the kinds of oddities are ours, not its own.
_MAX_VALUE = 100


@dataclass(slots=True)
class Remarks:
    """Collects oddities while a file is read."""

    _found: dict[str, tuple[int, str]] = field(default_factory=dict)

    def add(self, what: str, place: str, value: object) -> None:
        """Note something odd."""
        self.add_many(what, 1, f"{place}: {spelled(value)[:_MAX_VALUE]}")

    def add_many(self, what: str, count: int, first: str) -> None:
        """Note something odd that occurs several times."""
        before, description = self._found.get(what, (0, first))
        self._found[what] = (before + count, description)

    def sentences(self) -> list[str]:
        """A sentence for each kind of oddity, in the order of first appearance."""
        return [
            f"{oddity}: {count:,} {'time' if count == 1 else 'times'}, first {description}."
            for oddity, (count, description) in self._found.items()
        ]


def spelled(value: object) -> str:
    """A value for a message; nothing in a hostile file may make this expensive or raise."""
    if value is None:
        return "None"
    if type(value) is int:
        return str(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
    if type(value) in (float, bool):
        return str(value)
    if type(value) is str:
        return repr(value[:200])
    if type(value) is bytes:
        return repr(value[:50])
    if type(value) is dict:
        return "; ".join(f"{k[:40]}: {v[:40]}" for k, v in list(value.items())[:5] if type(k) is type(v) is str)
    return f"a {type(value).__name__}"
