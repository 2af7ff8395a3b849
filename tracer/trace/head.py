"""What stands before the events of a trace: the keys of its object, read one after the other.

A value, such as metadata of the user's, may have any name inside it, so that nothing is searched for.
"""

from __future__ import annotations

import json
from typing import Final

EVENTS_KEY: Final = "traceEvents"
_DECODER: Final = json.JSONDecoder(strict=False)


def trace_head(text: str) -> tuple[int, dict[str, object]]:
    """Characters up to and with the bracket that opens the events, and the values before it.

    Raises:
        ValueError: The text is no trace, or ends before that.
        IndexError: It ends before that.
    """
    at = _skip(text, 0)
    if text[at] == "[":  # the events alone
        return at + 1, {}
    at = _expect(text, at, "{")
    values: dict[str, object] = {}
    while True:
        key, at = _DECODER.raw_decode(text, _skip(text, at))
        at = _skip(text, _expect(text, at, ":"))
        if key == EVENTS_KEY:
            at = _expect(text, at, "[")
            text[_skip(text, at)]  # at least one more sign, which tells whether the list is empty
            return at, values
        values[str(key)], at = _DECODER.raw_decode(text, at)
        at = _expect(text, at, ",")


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at


def _expect(text: str, at: int, sign: str) -> int:
    at = _skip(text, at)
    if text[at] != sign:
        raise ValueError(f"{sign} expected")
    return at + 1
