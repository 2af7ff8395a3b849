"""engine.json: what an inference engine's memory is for when it has started; docs/serving.md describes the keys."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from tracer.command_line import this_command
from tracer.exporters.json_documents.header import json_header
from tracer.results.engine_start import EngineStart

FILE_NAME: Final = "engine.json"
VERSION: Final = 1


def engine_json(start: EngineStart, *, command: str, computed: bool) -> dict[str, Any]:
    """Return the document of an engine's start.

    Args:
        command: The engine's own command; the empty text where a script made the engine.
        computed: Whether a real GPU computed.
    """
    return {
        **json_header("engine", VERSION, torch=None, command=this_command(), computed=computed),
        "engine_command": command or None,
        "fits": start.fits,
        "limit": start.limit,
        "kv_cache_tokens": start.cache_tokens,
        "concurrency": start.concurrency,
        "largest_context": start.largest_context,
        "changes": [{"option": option, "effect": effect} for option, effect in start.changes],
        "workers": [
            asdict(worker) | {"limit_bytes": worker.limit_bytes, "free_bytes": worker.free_bytes}
            for worker in start.workers
        ],
    }
