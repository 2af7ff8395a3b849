"""For mkdocs: documents that lie beside this folder are pages of the site, too, and links between all of them hold."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
BESIDE = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/results.md")
_LINK = re.compile(r"(?<=\]\()(?P<up>\.\./)?(?P<docs>docs/)?(?P<target>[^)#\s]+\.md)")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents beside this folder."""
    for name in BESIDE:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Links as they are from the page's place in the site, where this folder is the root."""
    depth = page.file.src_uri.count("/")
    is_here = page.file.src_uri not in BESIDE

    def moved(link: re.Match[str]) -> str:
        if is_here or link["docs"]:
            return "../" * depth + link["target"] if "://" not in link["target"] else link[0]
        return link[0]

    return _LINK.sub(moved, markdown)
