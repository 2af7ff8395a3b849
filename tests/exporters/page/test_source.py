"""The page's source with bytes beside it, in a browser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.exporters.page import page_samples as samples
from tracer.analysis.profiles.line_memory import LineMemory
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.annotated_source import annotated_files


def test_code_is_shown_as_text_and_leaves_with_the_names(opened: Callable[..., Any]) -> None:
    code = f"x = 1  # {samples.SCRIPT} {samples.IMAGE}\n"
    (file,) = annotated_files(
        [LineMemory(SourceLine("/srv/net.py", 1), 9000, 0, 9000, "backward", None)], lambda file: code, 9000
    )
    page = replace(samples.small_page(), sources=(file,))
    with opened(page) as tab:
        assert samples.SCRIPT in tab.locator("#source code").first.inner_text()
        assert "8.79 KiB" in tab.locator("#source .has-bytes").inner_text()
