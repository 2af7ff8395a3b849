"""README.md as the package's long description: at a package index its links and pictures lead to the repository."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_RELATIVE = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?!https?:|#)(?P<target>[^)\s]+)\)")


class LongDescription(MetadataHookInterface):
    """Fills in `readme`."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the long description; links stay relative until `urls` in pyproject.toml has a Source."""
        text = Path(self.root, "README.md").read_text("utf-8")
        source = metadata.get("urls", {}).get("Source")
        text = text if source is None else with_absolute_links(text, source, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_absolute_links(text: str, source: str, tag: str) -> str:
    """Return Markdown whose links to files lead to a tag of a repository, and whose pictures are loaded from there."""

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link["picture"] else "blob"
        return f"{link['picture']}[{link['words']}]({source.rstrip('/')}/{kind}/{tag}/{link['target']})"

    return _RELATIVE.sub(absolute, text)
