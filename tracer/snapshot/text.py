"""Texts of a file made safe for terminals, files and messages."""

from __future__ import annotations


def printable(text: str) -> str:
    """Text in which everything is escaped that a terminal obeys or no file takes: controls, halves of surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


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
    if type(value) is dict:
        return "; ".join(f"{k[:40]}: {v[:40]}" for k, v in list(value.items())[:5] if type(k) is type(v) is str)
    return f"a {type(value).__name__}"
