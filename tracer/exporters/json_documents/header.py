"""What every JSON document of ours begins with: which format, of what, made by which command, in which units."""

from __future__ import annotations

from typing import TypedDict

UNITS = {"*bytes": "bytes", "*_us": "microseconds", "*time_us": "microseconds since 1970-01-01 UTC"}
"""Of keys by what they end in; the longer ending decides. Other numbers are counts."""


class Header(TypedDict):
    """The first keys of a document; docs/files.md describes them."""

    format: str
    version: int
    torch: str | None
    command: str | None
    computed: bool | None
    units: dict[str, str]


def json_header(
    name: str, version: int, *, torch: str | None, command: str | None, computed: bool | None = None
) -> Header:
    """A document's first keys.

    Args:
        version: Version of the format. A new key does not change it; a new meaning of a key does.
        computed: Whether the device computed; not so on the null GPU, nor in a rehearsal. None where it is not known.
    """
    return {
        "format": f"torch-timeline {name}",
        "version": version,
        "torch": torch,
        "command": command,
        "computed": computed,
        "units": dict(UNITS),
    }
