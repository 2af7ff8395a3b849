"""Lines and modules of what compiled regions allocate: those of the node that each buffer stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tracer.analysis.compiled.origins import CompiledOrigins, Origin
from tracer.analysis.profiles.attribution import Attribution
from tracer.analysis.profiles.source_lines import Whose
from tracer.capture.recording import Recording
from tracer.capture.sources.source_line import SourceLine


def with_compiled_owners(
    attribution: Attribution, recording: Recording, origins: CompiledOrigins | None, module_names: Mapping[int, str]
) -> Attribution:
    """The same owners, those of compiled regions by their origins.

    Where no more than the region is known there is no line: the one where it was entered made nothing.
    """
    if origins is None:
        return attribution
    owners = _Owners(attribution, recording, module_names)
    is_compiled = origins.row >= 0
    rows = origins.row[is_compiled]
    frame, caller, module = (np.array(column, np.int64)[rows] for column in owners.columns(origins.origins))
    has_stack = np.array([origin.node is not None and origin.node.has_stack for origin in origins.origins], np.bool_)[
        rows
    ]
    allocation_frame, allocation_caller = attribution.allocation_frame.copy(), attribution.allocation_caller.copy()
    allocation_module = attribution.allocation_module.copy()
    # A node's stack begins where the region was entered: with no line of its own it has that one, as without compiling.
    entered, entered_from = allocation_frame[is_compiled], allocation_caller[is_compiled]
    users = np.where(entered_from >= 0, entered_from, entered)
    is_inside = frame >= 0
    # A recording without Python's calls has no frames at all.
    whose = np.append(attribution.frame_whose, Whose.TORCHS)
    is_librarys = is_inside & (whose[frame] == Whose.LIBRARYS) & (caller < 0)
    allocation_frame[is_compiled] = np.where(is_inside, frame, np.where(has_stack, entered, -1))
    allocation_caller[is_compiled] = np.where(
        is_inside, np.where(is_librarys, users, caller), np.where(has_stack, entered_from, -1)
    )
    allocation_module[is_compiled] = np.where(module >= 0, module, allocation_module[is_compiled])
    return replace(
        attribution,
        modules=tuple(owners.modules),
        allocation_frame=allocation_frame,
        allocation_caller=allocation_caller,
        allocation_module=allocation_module,
        origins=origins,
    )


class _Owners:
    """Frames and modules of origins, by row."""

    def __init__(self, attribution: Attribution, recording: Recording, module_names: Mapping[int, str]) -> None:
        self.modules = {path: row for row, path in enumerate(attribution.modules)}
        self._names = module_names
        self._whose = attribution.frame_whose
        files = [recording.strings[file] for file in recording.frames.file.tolist()]
        lines = zip(files, recording.frames.line.tolist(), strict=True)
        self._frames = {SourceLine(*line): row for row, line in reversed(list(enumerate(lines)))}

    def columns(self, origins: tuple[Origin, ...]) -> tuple[list[int], list[int], list[int]]:
        """Rows of each origin's line, of the user's line that led there, and of its module; -1 for none."""
        frames, callers, modules = [], [], []
        for origin in origins:
            rows = [self._frames[line] for line in origin.node.lines] if origin.node is not None else []
            users = [row for row in rows if self._whose[row] == Whose.USERS]
            frames.append(rows[-1] if rows else -1)
            callers.append(users[-1] if users and users[-1] != rows[-1] else -1)
            modules.append(self._module(origin))
        return frames, callers, modules

    def _module(self, origin: Origin) -> int:
        if origin.node is None:
            return -1
        path = self._names.get(origin.node.module_id) or origin.node.module
        return self.modules.setdefault(path, len(self.modules)) if path else -1
