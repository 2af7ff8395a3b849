"""docs/assumptions.md: each assumption has a place in the code and a check that there is, or says that none asks it."""

from __future__ import annotations

import re
from pathlib import Path

from tracer.sessions.doctor.checks import DEVICE_CHECKS
from tracer.sessions.doctor.examine import BESIDE, NULL_GPU
from tracer.sessions.doctor.installed import INSTALLED

ROOT = Path(__file__).resolve().parents[3]
# Checks of this machine's software alone, of which no device is assumed to be one way or the other.
_OF_NO_DEVICE = {"compiler", "null GPU cache", "disk", "extras", "history", "lines and kinds", "watch", "files",
                 "autocast", NULL_GPU}  # fmt: skip


def rows() -> list[list[str]]:
    text, _, _ = (ROOT / "docs" / "assumptions.md").read_text("utf-8").partition("## Limits")
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:2] == "| "]
    return [row for row in cells[1:] if not row[0].startswith("**")]


def test_each_names_a_file_that_there_is_and_a_check_or_says_that_none_asks() -> None:
    assert len(rows()) >= 30
    names = {*INSTALLED, *(check.name for check in DEVICE_CHECKS), NULL_GPU, BESIDE}
    for assumption, where, asked in rows():
        assert (ROOT / where.strip("`")).is_file(), where
        found = re.findall(r"`([^`]+)`", asked)
        assert set(found) <= names and bool(found) != (asked == "not checked"), assumption


def test_every_check_of_a_device_is_about_one_of_them() -> None:
    named = {name for *_, asked in rows() for name in re.findall(r"`([^`]+)`", asked)}
    asked = {*INSTALLED, *(check.name for check in DEVICE_CHECKS), BESIDE}
    assert asked - named == _OF_NO_DEVICE - {NULL_GPU}
