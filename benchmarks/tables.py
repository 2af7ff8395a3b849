"""Tables of figures."""

from __future__ import annotations

Table = list[list[str]]


def as_markdown(table: Table) -> str:
    header, *rows = table
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])
