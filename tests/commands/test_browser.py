"""`--open`: the page that was written is shown, and nothing where none was."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import main
from tests.exporters.snapshot_samples import out_of_memory
from tests.snapshot.dumps import write


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Addresses that a browser was started with."""
    addresses: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or True)
    return addresses


def called(*words: object) -> Result:
    return CliRunner().invoke(main.app, list(map(str, words)))


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    return write(tmp_path / "s.pickle", out_of_memory())


def test_the_page_that_was_named_is_shown(snapshot: Path, shown: list[str], tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    for command in (("snapshot", snapshot), ("diff", snapshot, snapshot)):
        assert called(*command, "--html", page, "--open").exit_code == 0
    assert shown == [page.as_uri(), page.as_uri()]


def test_without_a_name_the_page_is_in_a_new_folder(snapshot: Path, shown: list[str], tmp_path: Path) -> None:
    assert called("snapshot", snapshot, "--open").exit_code == 0
    (page,) = tmp_path.glob("torch-timeline-*/page.html")
    assert shown == [page.as_uri()] and page.parent.stat().st_mode & 0o77 == 0


def test_nothing_is_shown_where_nothing_was_written(snapshot: Path, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("of another run")
    assert called("snapshot", tmp_path / "missing", "--html", tmp_path / "old.html", "--open").exit_code == 1
    assert called("snapshot", snapshot, "--html", tmp_path / "new.html").exit_code == 0
    assert shown == []


def test_without_a_display_the_address_is_said(
    snapshot: Path, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    result = called("snapshot", snapshot, "--html", tmp_path / "p.html", "--open")
    assert shown == [] and f"Open {(tmp_path / 'p.html').as_uri()}" in result.stderr
