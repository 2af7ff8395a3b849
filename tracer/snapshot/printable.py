"""Text of a file that somebody else wrote, made safe for terminals and files where it comes in."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text in which everything is escaped that a terminal obeys or no file takes: controls, halves of surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
