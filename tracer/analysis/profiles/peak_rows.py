"""Equal blocks put together, each group with its owner: the rows that people see."""

from __future__ import annotations

from dataclasses import replace

from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.allocator_join import JoinedHistory
from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.classify_blocks import Blocks
from tracer.analysis.profiles.torch_categories import Category
from tracer.capture.known_storages import KnownStorages
from tracer.capture.recording import Recording

# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"

_ENGINE_PREFIX = "autograd::engine::evaluate_function: "


def op_label(recording: Recording, op: int) -> str | None:
    """An operator's recorded name; for work of the autograd engine the name of the node."""
    return None if op < 0 else recording.strings[int(recording.ops.name[op])].removeprefix(_ENGINE_PREFIX)


def group_rows(
    recording: Recording,
    attribution: Attribution,
    known: KnownStorages | None,
    blocks: Blocks,
    *,
    history: JoinedHistory | None = None,
) -> tuple[PeakRow, ...]:
    """Put equal blocks together: same kind, evidence, phase, owner and name. Largest first."""
    columns = ("kind", "torch_category", "evidence", "phase", "step", "module", "op", "frame", "name", "stack")
    totals: dict[tuple[object, ...], list[int]] = {}
    of_block = zip(*(getattr(blocks, column).tolist() for column in columns), strict=True)
    sizes = zip(blocks.size_bytes.tolist(), blocks.requested_bytes.tolist(), strict=True)
    for (kind, tag, evidence, phase, step, module, op, frame, name, stack), (size_bytes, requested_bytes) in zip(
        of_block, sizes, strict=True
    ):
        label = known.names[name] if known is not None and name >= 0 else None
        owner = attribution.modules[module] if module >= 0 else _owner(label, kind) or _outside(phase, frame)
        key = (
            Kind(kind).name,
            Category(tag).name if tag != Category.UNTAGGED else None,
            EVIDENCE_TEXT[Evidence(evidence)],
            Phase(phase).name.lower() if phase >= 0 else _unrecorded_phase(step),
            owner,
            op_label(recording, op),
            *(_place_in_history(history, stack) if frame < 0 else place(recording, frame)),
            label,
            attribution.step_names[step] if step >= 0 else None,
        )
        total = totals.setdefault(key, [0, 0, 0])
        total[0] += size_bytes
        total[1] += 1
        # One block of unknown request makes that of its row unknown.
        total[2] = total[2] + requested_bytes if min(total[2], requested_bytes) >= 0 else -1
    rows = [
        replace(PeakRow(total, count, *key), requested_bytes=requested if requested >= 0 else None)  # type: ignore[arg-type]
        for key, (total, count, requested) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _place_in_history(history: JoinedHistory | None, stack: int) -> tuple[str | None, int | None]:
    """File and line of what was made before the recording, where the allocator's history reaches back to it."""
    if history is None or stack < 0:
        return None, None
    site = history.sites.site(stack)
    return site.file, site.line


def _unrecorded_phase(step: int) -> str:
    """In place of the phase of what was not seen being made."""
    return "not recorded" if step >= 0 else "before recording"


def _owner(label: str | None, kind: int) -> str | None:
    """The module that a named parameter, buffer or gradient belongs to."""
    owned = (Kind.PARAMETER, Kind.BUFFER, Kind.GRADIENT, Kind.OPTIMIZER_STATE)
    if label is None or kind not in owned:
        return None
    parts = label.split(".")
    # An optimizer's state is named after its parameter: `fc1.weight.exp_avg`.
    depth = 2 if kind == Kind.OPTIMIZER_STATE else 1
    return ".".join(parts[:-depth]) or None


def _outside(phase: int, frame: int) -> str | None:
    """Whose work it is where no module called it."""
    if phase == Phase.OPTIMIZER:
        return OPTIMIZER_OWNER
    return LOOP_OWNER if frame >= 0 else None


def place(recording: Recording, frame: int) -> tuple[str | None, int | None]:
    """File and line of a frame."""
    if frame < 0:
        return None, None
    return recording.strings[int(recording.frames.file[frame])], int(recording.frames.line[frame])
