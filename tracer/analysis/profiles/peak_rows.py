"""Equal blocks put together, each group with its owner: the rows that people see."""

from __future__ import annotations

from tracer.analysis.compiled.origins import Origin
from tracer.analysis.kinds import EVIDENCE_TEXT, Evidence, Kind
from tracer.analysis.peak_row import PeakRow
from tracer.analysis.profiles.allocator_join import JoinedHistory
from tracer.analysis.profiles.attribution import Attribution, Phase
from tracer.analysis.profiles.classify_blocks import ClassifiedBlocks
from tracer.analysis.profiles.source_lines import line_of_frame
from tracer.analysis.profiles.torch_categories import Category
from tracer.capture.known_storages import KnownStorages
from tracer.capture.recording import Recording
from tracer.capture.torch_names import node_name

# In place of a module's path. No path begins like this.
OPTIMIZER_OWNER = "(optimizer)"
LOOP_OWNER = "(training loop)"


def recorded_op_name(recording: Recording, op: int) -> str | None:
    """An operator's recorded name; for work of the autograd engine the name of the node."""
    return None if op < 0 else node_name(recording.strings[int(recording.ops.name[op])])


def origin_of(attribution: Attribution, allocation: int) -> Origin | None:
    """Where a block of a compiled region comes from; None for any other."""
    origins = attribution.origins
    row = int(origins.row[allocation]) if origins is not None and allocation >= 0 else -1
    return origins.origins[row] if origins is not None and row >= 0 else None


def _fused(origin: Origin | None) -> str | None:
    """The lines that were fused with that of the node which a compiled buffer stands for."""
    return ", ".join(f"{file}:{line}" for file, line in origin.fused) or None if origin is not None else None


def group_rows(
    recording: Recording,
    attribution: Attribution,
    known: KnownStorages | None,
    blocks: ClassifiedBlocks,
    *,
    history: JoinedHistory | None = None,
) -> tuple[PeakRow, ...]:
    """Put equal blocks together: same kind, evidence, phase, owner, name, shape and dtype. Largest first."""
    columns = (
        "kind",
        "torch_category",
        "evidence",
        "phase",
        "step",
        "module",
        "op",
        "frame",
        "caller",
        "name",
        "stack",
        "allocation",
    )
    totals: dict[tuple[object, ...], list[int]] = {}
    of_block = zip(*(getattr(blocks, column).tolist() for column in (*columns, "key")), strict=True)
    sizes = zip(blocks.size_bytes.tolist(), blocks.requested_bytes.tolist(), strict=True)
    for values, (size_bytes, requested_bytes) in zip(of_block, sizes, strict=True):
        kind, tag, evidence, phase, step, module, op, frame, caller, name, stack, allocation, tensor = values
        label = known.names[name] if known is not None and name >= 0 else None
        owner = attribution.modules[module] if module >= 0 else _owner(label, kind) or _outside(phase, frame)
        origin = origin_of(attribution, allocation)
        key = (
            Kind(kind).name,
            Category(tag).name if tag != Category.UNTAGGED else None,
            EVIDENCE_TEXT[Evidence(evidence)],
            Phase(phase).name.lower() if phase >= 0 else _unrecorded_phase(step),
            owner,
            origin.words if origin is not None else recorded_op_name(recording, op),
            *(line_of_frame(recording, frame) or _line_in_history(history, stack)),
            label,
            attribution.step_names[step] if step >= 0 else None,
            *(line_of_frame(recording, caller) or (None, None)),
            _fused(origin),
            origin is not None,
            *_shape_and_dtype(recording, tensor),
        )
        total = totals.setdefault(key, [0, 0, 0])
        total[0] += size_bytes
        total[1] += 1
        # One block of unknown request makes that of its row unknown.
        total[2] = total[2] + requested_bytes if min(total[2], requested_bytes) >= 0 else -1
    rows = [
        PeakRow(total, count, *key, requested if requested >= 0 else None, shape, dtype)  # type: ignore[arg-type, call-arg]
        for (*key, shape, dtype), (total, count, requested) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.bytes))


def _shape_and_dtype(recording: Recording, key: int) -> tuple[tuple[int, ...] | None, str | None]:
    """Of the first tensor of a storage that an operator was given."""
    if key < 0 or recording.keys.shape[key] < 0:
        return None, None
    (shape,) = recording.shapes[recording.keys.shape[key]]
    return shape, recording.strings[recording.keys.dtype[key]]


def _line_in_history(history: JoinedHistory | None, stack: int) -> tuple[str | None, int | None]:
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
