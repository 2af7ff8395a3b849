"""Paths on the page: none is absolute that could be relative, and none of a home."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.exporters.page import page_samples as samples
from tracer.exporters.page.data import folders_up, readable_text, relative_paths
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.page.model import Page, PagePeak
from tracer.exporters.tables import Place, Section, Table, columns


@pytest.mark.parametrize(
    ("text", "readable"),
    [
        ("/home/ann/net/train.py", "~/net/train.py"),
        ("C:\\Users\\ann\\net\\train.py", "~\\net\\train.py"),
        ("/home/ann/my nets/train.py", "~/my nets/train.py"),
        ("/opt/v/lib/python3.11/site-packages/torch/nn/linear.py", "site-packages/torch/nn/linear.py"),
        ("run (/home/ann/envs/secret/lib/python3.11/threading.py:9)", "run (lib/python3.11/threading.py:9)"),
        ("/usr/lib/python3/dist-packages/a.py", "site-packages/a.py"),
        ("torch/nn/linear.py", "site-packages/torch/nn/linear.py"),
        ("forward (torch/nn/linear.py:7)", "forward (site-packages/torch/nn/linear.py:7)"),
        ("forward (/home/ann/my nets/train.py:7)", "forward (~/my nets/train.py:7)"),
        ("Look at /home/ann/net/train.py:7, and/or at 1/2 of it.", "Look at ~/net/train.py:7, and/or at 1/2 of it."),
        ("main.py --save-dir /home/ann/out/x", "main.py --save-dir ~/out/x"),
        ("/srv/net/train.py", "/srv/net/train.py"),
        ("https://example.org/a/b", "https://example.org/a/b"),
        ("aten::add", "aten::add"),
    ],
)
def test_a_text_loses_homes_and_package_folders(text: str, readable: str) -> None:
    assert readable_text(text) == readable


def test_below_the_working_directory_paths_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert readable_text(str(tmp_path / "src" / "train.py")) == "src/train.py"
    assert readable_text(f"step ({tmp_path / 'src' / 'train.py'}:3)") == "step (src/train.py:3)"


def test_what_the_project_calls_a_file_and_not_its_folders() -> None:
    names = {"/srv/net/a.py": "a.py", "/srv/net/out": "out"}.get
    said = readable_text("Run /srv/net/a.py:3 --save-dir /srv/net/out", names)
    assert said == "Run a.py:3 --save-dir /srv/net/out"
    assert readable_text("f (/srv/net/a.py:3)", names) == "f (a.py:3)"


def test_packed_columns_are_not_texts() -> None:
    packed = {"packed": "/home/ann/x", "rows": 1}
    assert relative_paths([packed, {"file": "/home/ann/x.py"}]) == [packed, {"file": "~/x.py"}]


@pytest.mark.parametrize(("page", "up"), [("out/run/page.html", 2), ("page.html", 0), ("../page.html", None)])
def test_how_far_the_sources_are_above_the_page(
    page: str, up: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    assert folders_up(work / page, Path.cwd()) == up


def test_a_page_names_no_home(tmp_path: Path) -> None:
    home = "/home/ann/net.py"
    table = Table("t", columns("text", "line"), ((Place("f", home, 3),), (f"{home}:3",)))
    page = Page(
        title="x",
        device="cpu",
        alarm=(f"It ended at {home}:3.",),
        peak=PagePeak(9, rows=(samples.peak_row(9, file=home, caller_file=home),)),
        run={"command": f"python {home}"},
        sections=(Section("s", (f"See {home}.",), (table,)),),
    )
    path = tmp_path / "page.html"
    write_pages([page], path)
    text = path.read_text()
    assert "/home/ann" not in text
    assert text.count("~/net.py") == 7
    assert data_of_html(text)["pages"][0]["sections"][0]["tables"][0]["rows"][0][0]["file"] == "~/net.py"
