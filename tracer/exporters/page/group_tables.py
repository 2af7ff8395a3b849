"""Blocks by the line that allocated them, as tables of a section."""

from __future__ import annotations

from collections.abc import Sequence

from tracer.analysis.snapshots.groups import Group
from tracer.analysis.snapshots.sites import BEFORE_RECORDING, NO_FRAMES, NO_PYTHON_FRAME, Site
from tracer.exporters.page.model import FileCell, Table


def groups_table(title: str, groups: Sequence[Group]) -> Table:
    """Size, number, kind and allocation site of each group."""
    rows = tuple((group.bytes, f"{group.count:,}", group.kind_words, site_cell(group.site)) for group in groups)
    return Table(title, ("size", "blocks", "kind", "made by"), rows)


def site_cell(site: Site) -> FileCell:
    """The deciding frame and its line; where it is no line of Python, that is said."""
    if site.file is not None:
        return FileCell(site.frame, site.file, site.line)
    is_named = site.frame not in (BEFORE_RECORDING, NO_FRAMES)
    return FileCell(f"{site.frame} ({NO_PYTHON_FRAME})" if is_named else site.frame)
