"""Values that are given for lines of the program, as they are written."""

from __future__ import annotations

from tracer.errors import UsageError

Answer = float | int | bool


def parse_answer(text: str) -> tuple[tuple[str, int], Answer]:
    """`train.py:12=0.5` as file, line and value.

    Raises:
        TracerError: It is not of that form.
    """
    place, equals, value = text.rpartition("=")
    file, colon, number = place.rpartition(":")
    if equals and colon and file and number.isdecimal():
        if value in ("True", "False"):
            return (file, int(number)), value == "True"
        for kind in (int, float):
            try:
                return (file, int(number)), kind(value)
            except ValueError:
                continue
    raise UsageError(f"{text!r} is not an answer.", hint="Write FILE:LINE=VALUE, such as train.py:12=0.5.")
