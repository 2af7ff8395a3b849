"""What a recording shows that nobody needs, as advice: the line, the bytes at the peak, what to write instead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tracer.analysis.profiles.waste import Waste, WasteKind
from tracer.capture.sources.storing_lines import names_on_the_way
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    from tracer.changes.recommendation import Recommendation, UnneededMemory


LARGE_SHARE = 0.05
"""Of the peak: from here on a finding is reported automatically."""
_WHAT = {
    WasteKind.WEIGHTS: "a second copy of the weights, which no recorded step has used",
    WasteKind.GRAPH: "what graphs save for a backward pass, kept beyond the end of their step",
    WasteKind.EVALUATION: "what a call of the model saves for a backward pass that never comes",
    WasteKind.RETAINED: "a graph that its backward pass did not free",
    WasteKind.GRADIENTS: "gradients that the optimizer has used already",
    WasteKind.WIDENED: "a float32 copy of 16-bit logits, kept for backward",
    WasteKind.TENSORS: "results that are kept beyond the end of their step, and that nothing uses",
    WasteKind.VARIABLE: "results that nothing uses any more, in a variable that keeps them until the next step",
}
_CHANGE = {
    WasteKind.WEIGHTS: "keep the copy in a file, or on the host",
    WasteKind.GRAPH: "keep the number, or the tensor without its graph; compute under no_grad what is not trained on",
    WasteKind.EVALUATION: "call the model under no_grad or inference_mode",
    WasteKind.RETAINED: "backward without retain_graph",
    WasteKind.GRADIENTS: "zero_grad(set_to_none=True) right after optimizer.step()",
    WasteKind.WIDENED: "pass the logits to the loss without converting them",
    WasteKind.TENSORS: "keep what is needed of them, or keep them on the host",
    WasteKind.VARIABLE: "del the variable after its last use",
}
_CHANGE_ON_CPU = {
    WasteKind.WEIGHTS: "keep the copy in a file",
    WasteKind.TENSORS: "keep what is needed of them",
}
_REHEARSED_FAMILIES = {WasteKind.GRADIENTS: "zero_grad(set_to_none=True)", WasteKind.EVALUATION: "no_grad"}


def unneeded_memory(
    wastes: Sequence[Waste], *, device: str, rehearsed: Sequence[Recommendation] = ()
) -> tuple[UnneededMemory, ...]:
    """Rows of advice.

    Args:
        device: The device that it was on; on the CPU there is no host to move something to.
    """
    return tuple(_found(waste, device, rehearsed) for waste in wastes)


def _found(waste: Waste, device: str, rehearsed: Sequence[Recommendation]) -> UnneededMemory:
    from tracer.changes.recommendation import Keeps, UnneededMemory

    place = waste.place
    change = _CHANGE_ON_CPU.get(waste.kind, "") if device == "cpu" else ""
    prefix = _REHEARSED_FAMILIES.get(waste.kind)
    tried = next((row for row in rehearsed if prefix is not None and row.change.startswith(prefix)), None)
    return UnneededMemory(
        what=_WHAT[waste.kind],
        change=change or _CHANGE[waste.kind],
        lines=_lines(waste, device),
        bytes=waste.bytes,
        count=waste.count,
        file=place.file if place is not None else None,
        line=place.line if place is not None else None,
        held_by=waste.path,
        variable=waste.variable,
        results=(Keeps.ROUNDING if waste.kind == WasteKind.WIDENED else Keeps.BITS).words,
        how_found="found in the recording" if tried is None else "rehearsed",
        saves_bytes=None if tried is None else tried.saves_bytes,
    )


def _lines(waste: Waste, device: str) -> tuple[str, ...]:
    """Lines to paste; variables have the program's own names where those are known."""
    name = _assignable(waste.path)
    if waste.kind == WasteKind.WEIGHTS:
        if device == "cpu":
            return ('torch.save(model.state_dict(), "best.pt")  # and load it where it is needed',)
        return (f"{name} = {{key: value.cpu() for key, value in model.state_dict().items()}}",)
    if waste.kind == WasteKind.TENSORS:
        return (f"{name} = ...  # the numbers that are needed{'' if device == 'cpu' else ', or value.detach().cpu()'}",)
    if waste.kind == WasteKind.VARIABLE:
        return (f"del {name}  # after its last use, before what follows needs the memory",)
    return _PASTE[waste.kind]


def _assignable(path: str) -> str:
    """What to write before `=`: `self.cache` of `self.cache[...]`, the variable's name of a closure's."""
    name = (names_on_the_way(path) or ["kept"])[-1]
    dotted = path.partition("[")[0]
    parts = dotted.split(".")
    return dotted if all(map(str.isidentifier, parts)) and parts[-1] == name else name


_PASTE = {
    WasteKind.GRAPH: (
        "value = loss.item()  # or loss.detach(), where the tensor is kept",
        "with torch.no_grad():  # where no backward follows",
        "    output = model(inputs)",
    ),
    WasteKind.EVALUATION: ("with torch.no_grad():  # or torch.inference_mode()", "    output = model(inputs)"),
    WasteKind.RETAINED: ("loss.backward()",),
    WasteKind.GRADIENTS: ("optimizer.step()", "optimizer.zero_grad(set_to_none=True)"),
    WasteKind.WIDENED: ("loss = F.cross_entropy(logits, targets)  # which computes in 32 bits by itself",),
}


def unneeded_sentence(unneeded: UnneededMemory, peak_bytes: int) -> str:
    """A finding in words."""
    share = f", {100 * unneeded.bytes / peak_bytes:.0f} %" if peak_bytes else ""
    where = f" at {unneeded.file}:{unneeded.line}" if unneeded.file is not None else ""
    held = f", held by {_way(unneeded)}" if unneeded.held_by else ""
    how = f"Rehearsed, it saves {format_bytes(unneeded.saves_bytes)}." if unneeded.saves_bytes is not None else ""
    text = (
        f"Not needed at the peak: {format_bytes(unneeded.bytes)}{share}, {unneeded.what}{held} "
        f"({some(unneeded.count, 'block')}{where}). Instead: {unneeded.change}. {how}"
    )
    return text.strip()


def _way(unneeded: UnneededMemory) -> str:
    root = unneeded.variable.partition(",")[0] if unneeded.variable else ""
    article = "an" if root.startswith("a") else "a"
    return f"`{unneeded.held_by}`" + (f", {article} {root}" if root else "")


def large(found: Sequence[UnneededMemory], peak_bytes: int) -> tuple[UnneededMemory, ...]:
    """Unneeded memory that is reported automatically: at least `LARGE_SHARE` of the peak."""
    return tuple(unneeded for unneeded in found if unneeded.bytes >= LARGE_SHARE * peak_bytes)
