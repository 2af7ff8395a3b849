"""The memory curve of a page that a run wrote, read back to be drawn beside another one."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tracer.analysis.aligned_curves import MemoryCurve, positions_of
from tracer.analysis.snapshots.timeline import Band
from tracer.errors import RecordingError
from tracer.exporters.page.blocks import unpacked
from tracer.exporters.page.html import data_of_html
from tracer.units import MIB

MAX_PAGE_BYTES: Final = 64 * MIB
# Errors of reading a page that is none, or one of another version.
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
