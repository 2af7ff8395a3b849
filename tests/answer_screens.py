"""Answers as a terminal shows them."""

from __future__ import annotations

import io

from rich.console import Console

from tracer.answers.answer import Answer
from tracer.answers.answer_of_findings import answer_of_findings
from tracer.answers.findings import RunFindings
from tracer.exporters.screen.answer import print_answer


def answer_screen(answer: Answer, *, full: bool = True, width: int = 120, top: int = 10) -> str:
    """An answer, all of it by default."""
    out = io.StringIO()
    print_answer(answer, Console(file=out, width=width), full=full, top=top)
    return out.getvalue()


def peak_screen(findings: RunFindings) -> str:
    """Everything that is said of a peak."""
    return answer_screen(answer_of_findings(findings))
