"""Lines and modules of what compiled regions allocate: those of the node that each buffer stands for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tracer.blocks.from_recording.attribution import Attribution
from tracer.blocks.from_recording.origins import CompiledOrigins
from tracer.blocks.from_recording.source_lines import CodeOwner
from tracer.capture.recording import Recording
from tracer.capture.sources.source_line import SourceLine


def with_compiled_owners(
    attribution: Attribution, recording: Recording, origins: CompiledOrigins | None, module_names: Mapping[int, str]
) -> Attribution:
    """Return the attribution with the origins of compiled regions as owners of what these allocated.

    An allocation of which only the region is known has no line: the line that entered the region made nothing.
    """
    if origins is None:
        return attribution
    modules = {path: row for row, path in enumerate(attribution.modules)}
    files = [recording.strings[file] for file in recording.frames.file.tolist()]
    lines = zip(files, recording.frames.line.tolist(), strict=True)
    frame_of = {SourceLine(*line): row for row, line in reversed(list(enumerate(lines)))}
    # A recording without Python's calls has no frames at all.
    whose = np.append(attribution.frame_owner, CodeOwner.TORCH)
    # Columns of origins: rows of the line, of the user's line that led there and of the module; whether it has a stack.
    owners = []
    for origin in origins.origins:
        node = origin.node
        rows = [frame_of[line] for line in node.lines] if node is not None else []
        own = [row for row in rows if whose[row] == CodeOwner.USER]
        user = own[-1] if own and own[-1] != rows[-1] else -1
        path = (module_names.get(node.module_id) or node.module) if node is not None else None
        of_module = modules.setdefault(path, len(modules)) if path else -1
        owners.append((rows[-1] if rows else -1, user, of_module, node is not None and node.has_stack))
    is_compiled = origins.row >= 0
    frame, caller, module, has_stack = np.array(owners, np.int64).reshape(-1, 4)[origins.row[is_compiled]].T
    allocation_frame, allocation_caller = attribution.allocation_frame.copy(), attribution.allocation_caller.copy()
    allocation_module = attribution.allocation_module.copy()
    # A node's stack begins where the region was entered: with no line of its own it has that one, as without compiling.
    entered, entered_from = allocation_frame[is_compiled], allocation_caller[is_compiled]
    users = np.where(entered_from >= 0, entered_from, entered)
    is_inside = frame >= 0
    is_librarys = is_inside & (whose[frame] == CodeOwner.LIBRARY) & (caller < 0)
    allocation_frame[is_compiled] = np.where(is_inside, frame, np.where(has_stack, entered, -1))
    allocation_caller[is_compiled] = np.where(
        is_inside, np.where(is_librarys, users, caller), np.where(has_stack, entered_from, -1)
    )
    allocation_module[is_compiled] = np.where(module >= 0, module, allocation_module[is_compiled])
    return replace(
        attribution,
        modules=tuple(modules),
        allocation_frame=allocation_frame,
        allocation_caller=allocation_caller,
        allocation_module=allocation_module,
        origins=origins,
    )
