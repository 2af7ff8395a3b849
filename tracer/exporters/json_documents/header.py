"""JSON documents of ours: what each begins with, which is format, command and units, and records as values in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import fields, is_dataclass
from typing import Any

from tracer.blocks.kinds import Kind
from tracer.command_line import this_command

UNITS = {"*bytes": "bytes", "*_us": "microseconds", "*time_us": "microseconds since 1970-01-01 UTC"}
"""Units of keys by their ending, of which the longest decides. Other numbers are counts."""


def json_header(name: str, version: int, *, torch: str | None = None, computed: bool | None = None) -> dict[str, Any]:
    """A document's first keys; docs/files.md describes them.

    Args:
        version: Version of the format. A new key does not change it; a new meaning of a key does.
        computed: Whether the device computed; not so on the null GPU. None where it is not known.
    """
    return {
        "format": f"torch-timeline {name}",
        "version": version,
        "torch": torch,
        "command": this_command(),
        "computed": computed,
        "units": dict(UNITS),
    }


def record_values(record: Any, *, without: Collection[str] = ()) -> dict[str, Any]:
    """The fields of a record, and of records in it, with a kind in words and the parts of a site beside the others."""
    from tracer.blocks.from_snapshot.sites import Site

    values: dict[str, Any] = {}
    for name in getattr(record, "in_documents", [field.name for field in fields(record)]):
        value = getattr(record, name)
        if name == "site":
            values |= {part.name: getattr(value, part.name, None) for part in fields(Site)}
        elif name not in without:
            values[name] = json_value(value)
    return values


def json_value(value: Any) -> Any:
    """A field of a record, or records, as JSON has it."""
    if isinstance(value, Kind):
        return value.words
    if isinstance(value, tuple):
        return list(map(json_value, value))
    return record_values(value) if is_dataclass(value) else value
