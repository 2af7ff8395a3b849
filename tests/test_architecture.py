"""The house as DESIGN.md draws it: imports go one way and never in a circle, torch's private parts are in one file."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Room: rooms that it may import, besides itself. The first room that a module's name starts with is its own.
_BASE = {"tracer.errors", "tracer.units", "tracer.collector", "tracer.nested"}
_RECORDS = {*_BASE, "tracer.capture", "tracer.snapshot", "tracer.allocator"}
_MEANS = {*_RECORDS, "tracer.analysis"}
_WRITES = {*_MEANS, "tracer.exporters"}
ROOMS: dict[str, set[str]] = {
    "tracer.errors": set(),
    "tracer.units": set(),
    "tracer.collector": set(),
    "tracer.nested": set(),
    "tracer.workloads": _BASE,
    "tracer.capture": _BASE,
    "tracer.snapshot": _BASE,
    "tracer.allocator": {*_BASE, "tracer.snapshot"},
    "tracer.analysis": _RECORDS,
    "tracer.exporters": _MEANS,
    "tracer.timeline_tracer": _WRITES,
    "tracer.runs": {*_WRITES, "tracer.timeline_tracer", "tracer.workloads"},
    "tracer.integrations": {"tracer.errors", "tracer.runs"},
    "tracer.commands": {*_WRITES, "tracer.runs", "tracer.workloads"},
    "tracer": set(),  # the map of the house; it loads its public names when they are first used
    "models": {"tracer.workloads"},
    "main": {"tracer.commands"},
}
# Inside a room too: folders, from those that know nothing of the others to those that know all before them.
FLOORS: dict[str, tuple[str, ...]] = {
    "tracer.analysis": ("tracer.analysis.snapshots", "tracer.analysis.profiles", "tracer.analysis.operators"),
}
# The model of the allocator stands alone; only what reads a recording knows how recordings are stored.
READ_RECORDINGS = {f"tracer.allocator.{name}" for name in ("history", "start_state", "end_state", "reproduce")}
PRIVATE_TORCH = "tracer.capture.torch_private"


def modules() -> dict[str, Path]:
    files = [*ROOT.glob("tracer/**/*.py"), *ROOT.glob("models/**/*.py"), *ROOT.glob("main.py")]
    return {_module_name(path.relative_to(ROOT)): path for path in files}


def _module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str | None:
    return next(
        (room for room in ROOMS if module == room or (module.startswith(f"{room}.") and room != "tracer")), None
    )


def imports(source: str, known: set[str], *, levels: int = 0) -> Iterator[tuple[str, bool]]:
    """Modules of ours that a source imports anywhere in it, and whether it does so at run time.

    Models import each other relatively, so that their folder can have any name.
    """
    tree = ast.parse(source)
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= levels, "imports name their module in full"
            module = f"models.{node.module}" if node.level else node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in known else module for name in inner]
        for name in names:
            if name.split(".")[0] in {"tracer", "models", "main"}:
                yield name, id(node) not in typing_only


def private_torch(source: str) -> list[str]:
    """Names with a leading underscore that a source takes from torch."""
    tree = ast.parse(source)
    found, bound = [], set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    bound.add((alias.asname or alias.name).split(".")[0])
                    found += [alias.name] if _is_private(alias.name) else []
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                bound.add(alias.asname or alias.name)
                name = f"{node.module}.{alias.name}"
                found += [name] if _is_private(name) else []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if name.split(".")[0] in bound and node.attr.startswith("_") and _is_private(node.attr):
                found.append(name)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr") and len(node.args) > 1:
            owner, attribute = node.args[:2]
            if ast.unparse(owner).split(".")[0] in bound and isinstance(attribute, ast.Constant):
                found += [str(attribute.value)] if _is_private(str(attribute.value)) else []
    return found


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


MODULES = modules()


def imports_of(module: str) -> list[tuple[str, bool]]:
    source = MODULES[module].read_text(encoding="utf-8")
    return list(imports(source, set(MODULES), levels=int(room_of(module) == "models")))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    room = room_of(module)
    assert room is not None, f"{module} is in no room: enter it in ROOMS, and in DESIGN's table"
    for name, at_run_time in imports_of(module):
        if module == "tracer" and not at_run_time:
            continue
        assert room_of(name) in {room, *ROOMS[room]}, f"{module} imports {name}"


@pytest.mark.parametrize("room", FLOORS)
def test_inside_a_room_imports_go_one_way_too(room: str) -> None:
    floors = FLOORS[room]

    def floor_of(module: str) -> int | None:
        return next((number for number, floor in enumerate(floors) if module.startswith(f"{floor}.")), None)

    for module in MODULES:
        if (here := floor_of(module)) is not None:
            above = [name for name, _ in imports_of(module) if (there := floor_of(name)) is not None and there > here]
            assert above == [], f"{module} imports {above}"


def test_no_import_cycles() -> None:
    graph = {module: {name for name, at_run_time in imports_of(module) if at_run_time} for module in MODULES}
    assert find_cycle(graph) is None


def find_cycle(graph: dict[str, set[str]]) -> list[str] | None:
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str] | None:
        if module in path:
            return [*path[path.index(module) :], module]
        if module not in done:
            for name in sorted(graph.get(module, ())):
                if cycle := visit(name, [*path, module]):
                    return cycle
            done.add(module)
        return None

    return next((cycle for module in graph if (cycle := visit(module, []))), None)


@pytest.mark.parametrize("module", MODULES)
def test_torchs_private_parts_are_in_one_file(module: str) -> None:
    if module != PRIVATE_TORCH:
        assert private_torch(MODULES[module].read_text(encoding="utf-8")) == []


def test_that_one_file_does_use_them() -> None:
    assert private_torch(MODULES[PRIVATE_TORCH].read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("tracer.allocator.")])
def test_the_model_of_the_allocator_knows_recordings_in_few_places(module: str) -> None:
    names = {name for name, _ in imports(MODULES[module].read_text(encoding="utf-8"), set(MODULES))}
    reads = {name for name in names if room_of(name) == "tracer.snapshot"}
    assert bool(reads) == (module in READ_RECORDINGS)


def test_snapshots_are_read_without_torch() -> None:
    """On a laptop without a GPU, in a moment."""
    rooms = ("tracer.snapshot", "tracer.allocator")
    names = [m for m in MODULES if room_of(m) in rooms or m.startswith("tracer.analysis.snapshots.")]
    assert names
    program = "import importlib, sys\n" + "".join(f"importlib.import_module({name!r})\n" for name in sorted(names))
    program += "print([name for name in ('torch', 'tracer.capture.recording') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---- the checks see what they are to see -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._C",
        "import torch\ntorch.cuda.memory._snapshot()",
        "import torch._C",
        "from torch._C import _profiler",
        "from torch.cuda import memory as m\nm._record_memory_history()",
        "import torch.autograd.profiler as p\np._x.y",
        "import torch\ngetattr(torch, '_C')",
        "def f():\n    from torch._utils import element_size",
    ],
)
def test_private_parts_are_found(source: str) -> None:
    assert private_torch(source)


@pytest.mark.parametrize("source", ["import torch\ntorch.__version__", "import numpy\nnumpy._core", "self._torch"])
def test_what_is_public_or_not_torchs_is_not(source: str) -> None:
    assert private_torch(source) == []


def test_rooms_and_imports_are_told_apart() -> None:
    known = {"tracer.capture", "tracer.capture.recording", "models"}
    source = (
        "import numpy, models\nfrom tracer.capture import recording\nfrom tracer.capture.recording import Keys\n"
        "if TYPE_CHECKING:\n    import main"
    )
    assert list(imports(source, known)) == [
        ("models", True),
        ("tracer.capture.recording", True),
        ("tracer.capture.recording", True),
        ("main", False),
    ]
    assert room_of("tracer.capture.recording") == "tracer.capture"
    assert room_of("tracer") == "tracer"
    assert room_of("tracer.new_module") is None
    assert "tracer.capture" not in ROOMS["tracer.snapshot"]
    assert "tracer.snapshot" not in ROOMS["tracer.capture"]
    assert all("models" not in may for room, may in ROOMS.items() if room.startswith("tracer"))


def test_cycles_are_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None
