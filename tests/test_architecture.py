"""The house as DESIGN.md draws it: imports go one way and never in a circle, torch's private parts are in one file."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# Room: rooms that it may import, besides itself. The first room that a module's name starts with is its own.
_BASE = {"tracer.arrays", "tracer.errors", "tracer.units", "tracer.collector", "tracer.nested"}
_RECORDS = {*_BASE, "tracer.capture", "tracer.snapshot", "tracer.allocator"}
_MEANS = {*_RECORDS, "tracer.analysis"}
_WRITES = {*_MEANS, "tracer.advice", "tracer.exporters"}
ROOMS: dict[str, set[str]] = {
    "tracer.arrays": set(),
    "tracer.errors": set(),
    "tracer.units": set(),
    "tracer.collector": set(),
    "tracer.nested": set(),
    "tracer.workloads": _BASE,
    "tracer.capture": _BASE,
    "tracer.snapshot": _BASE,
    "tracer.allocator": {*_BASE, "tracer.snapshot"},
    "tracer.analysis": _RECORDS,
    "tracer.rehearsal": {*_BASE, "tracer.workloads", "tracer.capture", "tracer.allocator"},
    "tracer.advice": {*_MEANS, "tracer.rehearsal", "tracer.workloads"},
    "tracer.exporters": {*_MEANS, "tracer.advice"},
    "tracer.timeline_tracer": _WRITES,
    "tracer.runs": {*_WRITES, "tracer.timeline_tracer", "tracer.rehearsal", "tracer.workloads"},
    "tracer.integrations": {"tracer.errors", "tracer.runs"},
    "tracer.commands": {*_WRITES, "tracer.rehearsal", "tracer.runs", "tracer.workloads"},
    "tracer": set(),  # the map of the house; it loads its public names when they are first used
    "models": {"tracer.workloads"},
    "main": {"tracer.commands"},
}
# Inside a room too: folders, from those that know nothing of the others to those that know all before them.
FLOORS: dict[str, tuple[str, ...]] = {
    "tracer.analysis": (
        "tracer.analysis.snapshots",
        "tracer.analysis.compiled",
        "tracer.analysis.profiles",
        "tracer.analysis.operators",
        "tracer.analysis.steps",
    ),
    "tracer.capture": (
        "tracer.capture.sources",
        "tracer.capture.device",
        "tracer.capture.objects",
        "tracer.capture.profiler",
    ),
    "tracer.exporters": (
        "tracer.exporters.sqlite_reports",
        "tracer.exporters.json_documents",
        "tracer.exporters.screen",
        "tracer.exporters.page",
    ),
}
# And inside a folder: files, floor by floor; each may import those of the floors below its own.
STOREYS: dict[str, tuple[set[str], ...]] = {
    "tracer.capture": (
        {
            "device",
            "device.devices",
            "device.host_memory",
            "objects",
            "profiler",
            "sources",
            "sources.notebook_cells",
            "sources.source_line",
            "step_columns",
        },
        {"sources.operator_lines"},
        {"device.device_ledger", "sources.compiled_code"},
        {"sources.source_files"},
        {
            "device.phase_timing",
            "objects.gradients_seen",
            "run_origin",
            "torch_names",
            "torch_private",
        },
        {
            "device.allocator_history",
            "device.device_kernels",
            "device.memory_counters",
            "objects.call_hooks",
            "objects.holder_links",
            "objects.parameter_origins",
            "objects.plain_tensors",
            "profiler.quiet_profiler",
            "sources.error_line",
            "sources.storing_lines",
        },
        {
            "objects.holders",
            "objects.known_storages",
            "profiler.profiler_trace",
            "recording",
            "sources.project_files",
        },
        {
            "compile_watch",
            "device.counter_reading",
            "kept_run",
            "objects.live_tensors",
            "objects.moved_parameters",
            "objects.training_objects",
            "profiler.inline_operators",
        },
        {"objects.reached_tensors", "profiler.event_columns"},
        {"profiler.event_tree"},
    ),
    "tracer.analysis.profiles": (
        {
            "allocator_order",
            "closures",
            "devices_held",
            "frame_ranks",
            "observed_storages",
            "time_spans",
            "torch_categories",
        },
        {"attribution", "memory_timeline"},
        {"backward_passes", "compiled_owners", "source_lines", "unrecorded_storages"},
        {"allocator_count", "storage_uses"},
        {"block_lifetimes"},
        {"allocator_join", "block_facts", "breakdown", "step_phases"},
        {"classify_blocks", "reserved_ranges"},
        {"memory_by_kind", "peak_rows"},
        {"lost_track", "peak", "survivors"},
        {"growth"},
        {"findings"},
        {"caveats", "compiled_words", "eager_comparison", "failed_allocation", "idle_blocks"},
        {"waste"},
    ),
    "tracer.analysis.steps": ({"trend"}, {"step_findings"}, {"watch_report"}),
    "tracer.analysis.compiled": ({"generated_code"}, {"origins"}),
    "tracer.analysis.operators": (
        {"invocations", "kernel_times", "weights"},
        {"invocation_times", "saved_tensors"},
        {"memory_report", "run_times"},
    ),
    "tracer.runs": (
        {"job", "rank_store", "run_history", "termination", "waste"},
        {"job_pages", "session"},
        {"results"},
        {"failure_words", "ranks", "screen", "watch_report", "workload_run"},
        {"advising", "kept", "watched_rank"},
        {"outputs", "prediction", "watch"},
        {"prediction_words", "training", "watched_workload"},
        {"script_run"},
    ),
    "tracer.rehearsal": (
        {
            "cards",
            "cudnn_answers",
            "device_memory",
            "fake_tensors",
            "held_objects",
            "how_many",
            "kernel_results",
            "storage_log",
            "unfilled",
            "unrehearsable",
        },
        {"columns", "open_calls", "spread"},
        {"recorder"},
        {"rule", "cpu_kernels"},
        {"attention", "convolution_workspaces", "cuda_autocast", "kernel_scratch", "recurrent", "saved_on_host"},
        {"cuda_rules"},
        {"rehearse"},
    ),
    "tracer.advice": (
        {"flops", "recommendation", "wrapped"},
        {"change", "found"},
        {"changes"},
        {
            f"changes.{name}"
            for name in ("accumulate", "allocator_settings", "checkpoint", "chunked_loss", "evaluation")
        },
        {f"changes.{name}" for name in ("in_place", "offload", "optimizer_kernels", "optimizer_state")},
        {f"changes.{name}" for name in ("precision", "zero_grad")},
        {"planner"},
        {"report"},
    ),
    "tracer.workloads": (
        {"shipped_models", "supervised", "user_errors", "workload"},
        {"factory", "lora", "random_inputs"},
        {"module_steps"},
        {"compiling", "user_model"},
        {"hf_config"},
    ),
}
# The model of the allocator stands alone; only what reads a recording knows how recordings are stored.
READ_RECORDINGS = {f"tracer.allocator.{name}" for name in ("history", "start_state", "end_state", "reproduce")}
PRIVATE_TORCH = "tracer.capture.torch_private"
TORCH_NAMES = "tracer.capture.torch_names"
# What only torch_names may spell out: names that torch gives in a recording, and files of its own functions.
TORCHS_NAMES = re.compile(
    r"ProfilerStep#|Optimizer\.(step|zero_grad)#|autograd::engine|torch::autograd::|^CompiledFunction|CompiledFxGraph"
    r"|^Torch-Compiled|\btorch/[\w/]+(\.py|/$)"
)
# Snapshots are read without what capture knows: their stacks name functions of torch in Python and C++.
NAMES_OF_STACKS = {
    f"tracer.analysis.snapshots.{name}" for name in ("autograd_frames", "phases", "sites", "stack_facts", "timeline")
}
# The table of a device's differences names the file of torch that each of them comes from.
NAMES_SOURCES = {"tracer.rehearsal.cuda_rules"}
# Private by a leading underscore, and still for everybody: of Python's standard library.
PUBLIC_ENOUGH = {"_fields", "_replace", "_asdict", "_getframe", "_current_frames", "_exit"}


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


def private_attributes(source: str) -> list[str]:
    """Attributes with a leading underscore that are not of the source's own classes, functions and constants."""
    tree = ast.parse(source)
    own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    found = []
    for node in ast.walk(tree):
        name, shown = "", ""
        if isinstance(node, ast.Attribute):
            name, shown = node.attr, ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in _BY_NAME and node.args:
            last = node.args[0] if isinstance(node.func, ast.Attribute) else node.args[min(1, len(node.args) - 1)]
            if isinstance(last, ast.Constant) and str(last.value).isidentifier():
                name, shown = str(last.value), ast.unparse(node)
        elif isinstance(node, ast.ImportFrom):
            private = [alias.name for alias in node.names if _is_private(f"{node.module}.{alias.name}")]
            found += [f"{node.module}.{name}" for name in private if node.module != "__future__"]
        if name and _is_private(name) and name not in own | PUBLIC_ENOUGH:
            found.append(shown)
    return found


# Calls that read an attribute by its name; of methods, `__dict__.get("_parameters")` too.
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "get"}


def names_of_torch(source: str) -> list[str]:
    """Strings in which a name of torch's is spelled out, docstrings aside."""
    tree = ast.parse(source)
    docstrings = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and TORCHS_NAMES.search(node.value)
    ]


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


def storey_of(module: str, folder: str) -> int | None:
    """Its floor in its folder; a folder's own file has none, and a module of no floor at all is the last."""
    name = module.removeprefix(f"{folder}.")
    return None if name == module else next((n for n, files in enumerate(STOREYS[folder]) if name in files), None)


@pytest.mark.parametrize("folder", STOREYS)
def test_inside_a_folder_each_file_has_a_floor_and_imports_only_what_lies_below(folder: str) -> None:
    files = [module for module in MODULES if module.startswith(f"{folder}.")]
    assert sorted(name for floor in STOREYS[folder] for name in floor) == sorted(
        module.removeprefix(f"{folder}.") for module in files
    ), "enter a new file in STOREYS, on the floor above what it imports"
    for module in files:
        here = storey_of(module, folder)
        for name, _ in imports_of(module):
            there = storey_of(name, folder) if name in files and name != module else None
            assert there is None or here is None or there < here, f"{module} imports {name}"


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


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("tracer")])
def test_nobody_elses_private_attributes_are_read(module: str) -> None:
    """Of torch's objects in torch_private, of ours nowhere: what a leading underscore says is for the file it is in."""
    if module != PRIVATE_TORCH:
        assert private_attributes(MODULES[module].read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("module", MODULES)
def test_names_of_torchs_own_are_in_one_file(module: str) -> None:
    found = names_of_torch(MODULES[module].read_text(encoding="utf-8"))
    assert bool(found) == (module in {TORCH_NAMES, *NAMES_OF_STACKS, *NAMES_SOURCES}), found


def test_that_one_file_does_use_them() -> None:
    assert private_torch(MODULES[PRIVATE_TORCH].read_text(encoding="utf-8"))


@pytest.mark.parametrize("module", [module for module in MODULES if module.startswith("tracer.allocator.")])
def test_the_model_of_the_allocator_knows_recordings_in_few_places(module: str) -> None:
    names = {name for name, _ in imports(MODULES[module].read_text(encoding="utf-8"), set(MODULES))}
    reads = {name for name in names if room_of(name) == "tracer.snapshot"}
    assert bool(reads) == (module in READ_RECORDINGS)


# Files of analysis that are tested elsewhere, each with where: the folder of snapshots has not been mirrored yet.
TESTED_ELSEWHERE: dict[str, str] = {
    "tracer/analysis/profiles/compiled_owners.py": "tests/analysis/compiled/test_origins.py",
    "tracer/analysis/peak_diff.py": "tests/exporters/json_documents/test_peak_diff.py",
    "tracer/analysis/peak_row.py": "tests/exporters/json_documents/test_row.py",
}
NOT_MIRRORED = "tracer/analysis/snapshots/"


def files_of_analysis() -> list[str]:
    files = (path.relative_to(ROOT).as_posix() for path in ROOT.glob("tracer/analysis/**/*.py"))
    return sorted(name for name in files if not name.endswith("__init__.py") and not name.startswith(NOT_MIRRORED))


@pytest.mark.parametrize("name", files_of_analysis())
def test_every_file_of_analysis_has_its_test_beside_it(name: str) -> None:
    path = ROOT / name.replace("tracer/", "tests/", 1)
    beside = path.with_name(f"test_{path.name}")
    elsewhere = TESTED_ELSEWHERE.get(name)
    assert beside.is_file() != (elsewhere is not None), f"{name}: it has a test beside it, or one named above"
    if elsewhere is not None:
        assert f"from {_module_name(Path(name))} import" in (ROOT / elsewhere).read_text("utf-8")


def test_each_test_of_analysis_is_of_a_file() -> None:
    for path in [*ROOT.glob("tests/analysis/profiles/test_*.py"), *ROOT.glob("tests/analysis/operators/test_*.py")]:
        tested = path.with_name(path.name.removeprefix("test_")).relative_to(ROOT / "tests")
        assert (ROOT / "tracer" / tested).is_file(), path


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


@pytest.mark.parametrize(
    "source",
    [
        "tensor._values()",
        "one._orig_mod is model",
        'getattr(parameter, "_local_tensor", parameter)',
        'hasattr(node, "_saved_self")',
        'module.__dict__.get("_parameters")',
        "from somewhere import _hidden",
        "from somewhere._hidden import shown",
        "class A:\n    def f(self, other): return other._theirs",
    ],
)
def test_private_attributes_of_others_are_found(source: str) -> None:
    assert private_attributes(source)


@pytest.mark.parametrize(
    "source",
    [
        "class A:\n    def f(self): return self._mine",
        "class A:\n    def _f(self): return A()._f()",
        "class A:\n    def __init__(self): self._x = 1\n\ndef f(a): return a._x",
        "sys._getframe(1)",
        "x.__class__",
        'settings.get("name")',
    ],
)
def test_private_attributes_of_ones_own_are_not(source: str) -> None:
    assert private_attributes(source) == []


@pytest.mark.parametrize(
    "source",
    [
        'name.startswith("ProfilerStep#")',
        'PREFIX = "Optimizer.step#"',
        'name == "torch::autograd::AccumulateGrad"',
        'file.endswith("torch/autograd/__init__.py")',
        '"torch/optim/" in file',
        'f"{x} autograd::engine::evaluate_function: "',
    ],
)
def test_names_of_torch_are_found(source: str) -> None:
    assert names_of_torch(source)


@pytest.mark.parametrize(
    "source", ['"""As in torch/profiler/profiler.py."""', "# ProfilerStep#1", '"torch"', '"aten::add"']
)
def test_other_names_are_not(source: str) -> None:
    assert names_of_torch(source) == []


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
