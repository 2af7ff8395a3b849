"""Two peaks compared, as a page: sentences, both curves, and what came and went by category, module and line."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tracer.answers.aligned_curves import AlignedCurves, MemoryCurve, highest, positions_of
from tracer.answers.answer import Answer
from tracer.answers.tables import Cell, Section, Table, columns, signed
from tracer.blocks.from_snapshot.timeline import Band
from tracer.blocks.kinds import words_of
from tracer.capture.torch_names import step_words
from tracer.errors import RecordingError
from tracer.exporters.diff import answer_sentences, changes_tables, growth_sentences
from tracer.exporters.page.blocks import unpacked
from tracer.exporters.page.data import BOTH, LESS, MORE
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.page.model import Curve, Mark, Page
from tracer.units import MIB, format_bytes

if TYPE_CHECKING:
    from tracer.answers.difference import PeakDiff

_MOST_NAMED = 3
_TITLE = "Two peaks compared"


def write_diff_page(
    diffs: Sequence[PeakDiff],
    path: Path,
    *,
    before: str,
    after: str,
    curves: Mapping[str, AlignedCurves] | None = None,
    notes: tuple[str, ...] = (),
) -> None:
    """Write the page of two peaks, of all devices; it opens with the one that changed most.

    Args:
        curves: Both recordings by the name of the device, as far as they are known.
        notes: Why there are none.
    """
    shown = max(range(len(diffs)), key=lambda number: abs(diffs[number].bytes), default=0)
    pages = diff_pages(diffs, before=before, after=after, curves=curves, notes=notes)
    write_pages(pages, path, shown=shown)


def diff_pages(
    diffs: Sequence[PeakDiff],
    *,
    before: str,
    after: str,
    curves: Mapping[str, AlignedCurves] | None = None,
    notes: tuple[str, ...] = (),
) -> list[Page]:
    """The content, device by device; a page of its own says that there is none."""
    pages = []
    for diff in diffs:
        tables = tuple(table for table in changes_tables(diff) if table.rows)
        by_category = next(iter(diff.changes.values()))
        most = [change for change in by_category if change.bytes][:_MOST_NAMED]
        named = ", ".join(f"{words_of(change.name[0])} {signed(change.bytes)}" for change in most)
        said = (*answer_sentences(diff), *([f"What changed most: {named}."] if most else []))
        changed = (Section("What changed", growth_sentences(diff), tables),) if tables else ()
        page = Page(_TITLE, diff.after.device, Answer(said, remarks=notes), sections=changed)
        pages.append(_with_curves(page, (curves or {}).get(diff.after.device)))
    nothing = Answer(("Neither snapshot has a device with memory.",), remarks=notes)
    pages = pages or [Page(_TITLE, "no device", nothing)]
    both = {"before": before, "after": after}
    return [replace(page, subtitle=f"{before} and {after}", run=both) for page in pages]


# ------------------------------------------------------------------------------------------------------- both curves
def _with_curves(page: Page, curves: AlignedCurves | None) -> Page:
    """The page with both curves over each other, and the highest points of each phase."""
    if curves is None or not len(curves.position):
        return page
    old, new = curves.totals()
    was, now = int(np.argmax(old)), int(np.argmax(new))
    table = _phases(curves, old, new)
    return replace(
        page,
        source="snapshot",
        axis="entry",
        origin=0,
        times=curves.position,
        series={BOTH: np.minimum(old, new), MORE: np.maximum(new - old, 0), LESS: np.maximum(old - new, 0)},
        lines=(Curve("before", curves.position, old), Curve("after", curves.position, new)),
        compared=curves.levels,
        marks=(
            Mark("tagged", "before", int(curves.position[was]), int(old[was]), was),
            Mark("peak", "after", int(curves.position[now]), int(new[now]), now, detail=_named(curves.growth_at(now))),
        ),
        bands=curves.stretches,
        sections=(*([Section("Step by step", (), (table,))] if table.rows else []), *page.sections),
    )


def _phases(curves: AlignedCurves, old: np.ndarray, new: np.ndarray) -> Table:
    """The most bytes in use in each phase of each step, before and after."""
    steps = [band for band in curves.stretches if band.kind == "step"]
    rows: list[tuple[Cell, ...]] = []
    for band in curves.stretches:
        if band.kind == "step":
            continue
        step = next((step_words(one.name) for one in reversed(steps) if one.start <= band.start <= one.end), "")
        (_, most_before), (row, most_after) = (highest(level, curves.position, band) for level in (old, new))
        rows.append((most_after - most_before, most_before, most_after, step, band.name, _named(curves.growth_at(row))))
    sizes = (*columns("change", "change"), *columns("bytes", "before", "after"))
    return Table("The most in use in each phase", (*sizes, *columns("text", "step", "phase", "what grew")), tuple(rows))


def _named(grown: Sequence[tuple[str, int]]) -> str:
    return ", ".join(f"{words_of(kind)} +{format_bytes(more)}" for kind, more in grown[:_MOST_NAMED])


# ------------------------------------------------------------------------------------ the curve of a page of a run
MAX_PAGE_BYTES: Final = 64 * MIB
# Errors of reading another file than a page, or a page of another version.
NOT_A_PAGE: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError, zlib.error, binascii.Error)
_BANDS: Final = ("step", "forward", "backward", "optimizer")


def read_page(path: Path) -> dict[str, Any]:
    """The data of a page that this program wrote.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is too large, or no such page.
    """
    with path.open("rb") as file:
        content = file.read(MAX_PAGE_BYTES + 1)
    if len(content) > MAX_PAGE_BYTES:
        raise ValueError("too large")
    return data_of_html(content.decode("utf-8"))


def curve_of_page(path: Path, device: str) -> MemoryCurve | None:
    """The curve of a device of a page; None where the page has none of it.

    Raises:
        RecordingError: It is not a page of this version.
    """
    try:
        pages = [page for page in read_page(path)["pages"] if page["device"] == device]
        return _curve(pages[0]) if pages else None
    except OSError as error:
        raise RecordingError(f"{path} cannot be read: {error.strerror}.", hint="Check its permissions.") from None
    except NOT_A_PAGE as error:
        raise RecordingError(
            f"{path} is not a page that this version has written.", hint="Write it again, with `report` or `snapshot`."
        ) from error


def _curve(page: Mapping[str, Any]) -> MemoryCurve | None:
    timeline = page["timeline"]
    position, times, *levels = unpacked(timeline["stack"])
    names = [str(series["name"]) for series in timeline["series"]]
    if not len(position):
        return None
    bands = [
        Band(band["kind"], str(band["name"]), int(band["start"]), int(band["end"]))
        for band in page["bands"]
        if band["kind"] in _BANDS
    ]
    return MemoryCurve(position, dict(zip(names, levels, strict=True)), positions_of(bands, times, position))
