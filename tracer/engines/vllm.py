"""The plugin that vLLM calls in each of its processes: the group `vllm.general_plugins` of entry points."""

from __future__ import annotations

from pathlib import Path

from tracer.command_line import role


def register() -> None:
    """Have this process's workers and engine write reports if `run`, `predict` or `fit` has started it, else nothing.

    Nothing else of this package is imported in an engine that is not measured.
    """
    if (folder := role("engine")) is None:
        return
    from tracer.engines.vllm_workers import report_to

    report_to(Path(folder))
