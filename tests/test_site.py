"""The documents as a site: every page is there, links between pages hold, and nothing is loaded from elsewhere."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("material", reason="needs mkdocs-material, of the group `site`")

ROOT = Path(__file__).resolve().parents[1]
_LOADED = re.compile(r"<(?:script|img|iframe|link)[^>]*(?:src|href)=\"(?:https?:)?//[^\"]*", re.I)


def build(root: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    variables = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False, env=variables, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_every_document_is_a_page(site: Path) -> None:
    documents = [path.name for path in (ROOT / "docs").glob("*.md")]
    pages = [str(Path(name).with_suffix(".html")) for name in (*documents, "CONTRIBUTING.md", "benchmarks/results.md")]
    assert len(documents) > 10 and [page for page in pages if not (site / page).is_file()] == []
    assert not list(site.rglob("*.py"))


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    """A page's own address aside, which has no place here."""
    assert [(path.name, found) for path in site.rglob("*.html") for found in _LOADED.findall(path.read_text())] == []


@pytest.mark.slow
def test_links_lead_from_page_to_page(site: Path) -> None:
    assert 'href="recipes.html"' in (site / "index.html").read_text()
    assert 'href="benchmarks/results.html#the-null-gpu"' in (site / "null-gpu.html").read_text()
    assert 'href="files.html"' in (site / "CONTRIBUTING.html").read_text()


@pytest.mark.slow  # a second site
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path: Path) -> None:
    targets = ("nowhere.md", "recipes.md#no-heading", "../benchmarks/results.md#no-figure")
    for name in ("mkdocs.yml", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "README.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "results.md", tmp_path / "benchmarks")
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    with (tmp_path / "docs" / "index.md").open("a") as document:
        document.writelines(f"\n[there]({target})\n" for target in targets)
    done = build(tmp_path, tmp_path / "made")
    assert done.returncode
    assert all(word in done.stderr for word in ("nowhere.md", "no-heading", "no-figure")), done.stderr
