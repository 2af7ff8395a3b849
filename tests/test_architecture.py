"""The house as DESIGN.md draws it: imports go one way and never in a circle, torch's private parts are in one room."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tracer import arrays
from tracer.commands.app import COMMANDS

ROOT = Path(__file__).resolve().parent.parent

# Room: rooms that it may import, besides itself. The first room that a module's name starts with is its own.
_BASE = {"tracer.arrays", "tracer.block_sizes", "tracer.errors", "tracer.units", "tracer.collector",
         "tracer.command_line", "tracer.loaded_modules", "tracer.nested", "tracer.user_cache",
         "tracer.working_folder", "tracer.own_files"}  # fmt: skip
_RECORDS = {*_BASE, "tracer.capture", "tracer.snapshot", "tracer.allocator"}
_NULL_GPU = {"tracer.null_gpu", "tracer.null_gpu.job", "tracer.null_gpu.values"}
_FOUND = {*_RECORDS, "tracer.blocks", "tracer.answers", "tracer.null_gpu"}
_WRITES = {*_FOUND, "tracer.changes", "tracer.exporters"}
ROOMS: dict[str, set[str]] = {
    "tracer.arrays": set(),
    "tracer.block_sizes": set(),
    "tracer.errors": set(),
    "tracer.units": set(),
    "tracer.collector": set(),
    "tracer.command_line": set(),
    "tracer.loaded_modules": set(),
    "tracer.nested": set(),
    "tracer.working_folder": set(),
    "tracer.own_files": set(),
    "tracer.user_cache": set(),
    "tracer.null_gpu.values": {"tracer.capture", "tracer.errors", "tracer.null_gpu", "tracer.units"},
    "tracer.null_gpu.job": {
        "tracer.capture",
        "tracer.command_line",
        "tracer.errors",
        "tracer.loaded_modules",
        "tracer.null_gpu",
    },
    "tracer.null_gpu": {
        "tracer.command_line",
        "tracer.errors",
        "tracer.loaded_modules",
        "tracer.units",
        "tracer.user_cache",
    },
    "tracer.workloads": _BASE,
    "tracer.capture": _BASE,
    "tracer.snapshot": _BASE,
    "tracer.allocator": {*_BASE, "tracer.snapshot"},
    "tracer.blocks": _RECORDS,
    "tracer.answers": {*_RECORDS, "tracer.blocks", "tracer.null_gpu"},
    "tracer.changes": {*_FOUND, "tracer.workloads"},
    "tracer.exporters": {*_FOUND, "tracer.changes"},
    "tracer.sessions": {*_WRITES, *_NULL_GPU, "tracer.workloads"},
    "tracer.engines": {*_WRITES, "tracer.null_gpu", "tracer.sessions"},
    "tracer.integrations": {*_WRITES, "tracer.sessions"},
    "tracer.__main__": {"tracer.commands"},
    "tracer.commands": {*_WRITES, *_NULL_GPU, "tracer.engines", "tracer.sessions", "tracer.workloads"},
    "tracer": set(),  # the map of the house; it loads its public names when they are first used
    "models": {"tracer.workloads"},
    "main": {"tracer.commands"},
}
# Inside a room too: folders, from those that know nothing of the others to those that know all before them.
FLOORS: dict[str, tuple[str, ...]] = {
    "tracer.blocks": ("tracer.blocks.from_snapshot", "tracer.blocks.from_recording"),
    "tracer.capture": (
        "tracer.capture.torch_private",
        "tracer.capture.sources",
        "tracer.capture.device",
        "tracer.capture.objects",
        "tracer.capture.profiler",
    ),
    "tracer.exporters": (
        "tracer.exporters.json_documents",
        "tracer.exporters.screen",
        "tracer.exporters.page",
    ),
    "tracer.sessions": ("tracer.sessions.jobs", "tracer.sessions.trials"),
}
# The longest way from a room to the base, in rooms: `commands` to `errors`.
MAX_FLOORS = 10
# The model of the allocator stands alone; only what reads a recording knows how recordings are stored.
READ_RECORDINGS = {
    f"tracer.allocator.{name}" for name in ("fragmentation", "history", "start_state", "statistics", "reproduce")
}
PRIVATE_TORCH = "tracer.capture.torch_private"
TORCH_NAMES = "tracer.capture.torch_names"
# What only torch_names may spell out: names that torch gives in a recording, and files of its own functions.
TORCHS_NAMES = re.compile(
    r"ProfilerStep#|Optimizer\.(step|zero_grad)#|autograd::engine|torch::autograd::|^CompiledFunction|CompiledFxGraph"
    r"|^Torch-Compiled|\btorch/[\w/]+(\.py|/$)"
)
# Snapshots are read without what capture knows: their stacks name functions of torch in Python and C++.
NAMES_OF_STACKS = {
    f"tracer.blocks.from_snapshot.{name}" for name in ("frames", "phases", "sites", "stack_facts", "timeline")
}
# Private by a leading underscore, and still for everybody: of Python's standard library, and of C's.
# `runpy._run_code`: nothing public tells that a script's last line has run while its variables are still there.
# `_target` of a `multiprocessing.Process`: nothing public tells what a process that is about to start will call.
PUBLIC_ENOUGH = {
    "__cxa_atexit",
    "_value_",
    "_fields",
    "_replace",
    "_asdict",
    "_getframe",
    "_current_frames",
    "_exit",
    "_run_code",
    "_target",
}


def modules() -> dict[str, Path]:
    files = [*ROOT.glob("tracer/**/*.py"), *ROOT.glob("models/**/*.py"), *ROOT.glob("main.py")]
    return _by_name(files)


def _by_name(files: Iterable[Path]) -> dict[str, Path]:
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
    nodes = nodes_of(source)
    typing_only = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and getattr(node.test, "attr", getattr(node.test, "id", "")) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in nodes:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= levels, "imports name their module in full"
            module = f"models.{node.module}" if node.level else node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in known else module for name in inner]
        for name in names:
            if name.split(".")[0] in {"tracer", "models", "main", "benchmarks"}:
                yield name, id(node) not in typing_only


@cache
def nodes_of(source: str) -> tuple[ast.AST, ...]:
    """Every node of a module, which several of the tests look through."""
    return tuple(ast.walk(ast.parse(source)))


def private_torch(source: str) -> list[str]:
    """Names with a leading underscore that a source takes from torch."""
    nodes = nodes_of(source)
    found, bound = [], set()
    for node in nodes:
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
    for node in nodes:
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            name = ast.unparse(node)
            found += [name] if name.split(".")[0] in bound else []
        elif isinstance(node, ast.Call) and _called(node) in ("getattr", "hasattr") and len(node.args) > 1:
            owner, attribute = node.args[:2]
            if ast.unparse(owner).split(".")[0] in bound and isinstance(attribute, ast.Constant):
                found += [str(attribute.value)] if _is_private(str(attribute.value)) else []
    return found


def private_attributes(source: str) -> list[str]:
    """Attributes with a leading underscore that are not of the source's own classes, functions and constants."""
    nodes = nodes_of(source)
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            own.add(node.attr)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
    found = []
    for node in nodes:
        name = ""
        if isinstance(node, ast.Attribute):
            name = node.attr
        elif isinstance(node, ast.Call) and _called(node) in _BY_NAME and node.args:
            last = node.args[0] if isinstance(node.func, ast.Attribute) else node.args[min(1, len(node.args) - 1)]
            if isinstance(last, ast.Constant) and str(last.value).isidentifier():
                name = str(last.value)
        elif isinstance(node, ast.ImportFrom):
            private = [alias.name for alias in node.names if _is_private(f"{node.module}.{alias.name}")]
            found += [f"{node.module}.{name}" for name in private if node.module != "__future__"]
        if name and _is_private(name) and name not in own | PUBLIC_ENOUGH:
            found.append(ast.unparse(node))
    return found


def _called(node: ast.Call) -> str:
    """The name of a called function or method, without what it is of."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# Calls that read an attribute by its name; of methods, `__dict__.get("_parameters")` too.
_BY_NAME = {"getattr", "hasattr", "setattr", "delattr", "attrgetter", "get"}


def names_of_torch(source: str) -> list[str]:
    """Strings in which a name of torch's is spelled out, docstrings aside."""
    nodes = nodes_of(source)
    docstrings = {
        id(node.value) for node in nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    return [
        node.value
        for node in nodes
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in docstrings
        and TORCHS_NAMES.search(node.value)
    ]


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


MODULES = modules()
OUTSIDE = [module for module in MODULES if not module.startswith(f"{PRIVATE_TORCH}.")]


@cache
def source_of(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


@cache
def imports_of(module: str) -> tuple[tuple[str, bool], ...]:
    return tuple(imports(source_of(module), set(MODULES), levels=int(room_of(module) == "models")))


def test_a_module_imports_only_what_its_room_may() -> None:
    assert [module for module in MODULES if room_of(module) is None] == [], "enter it in ROOMS, and in DESIGN's table"
    forbidden = [
        f"{module} imports {name}"
        for module in MODULES
        for name, at_run_time in imports_of(module)
        if (at_run_time or module != "tracer")
        and (room := str(room_of(module)))
        and room_of(name) not in {room, *ROOMS[room]}
    ]
    assert forbidden == []


@pytest.mark.parametrize("room", FLOORS)
def test_inside_a_room_imports_go_one_way_too(room: str) -> None:
    floors = FLOORS[room]

    def floor_of(module: str) -> int | None:
        return next((number for number, floor in enumerate(floors) if module.startswith(f"{floor}.")), None)

    for module in MODULES:
        if (here := floor_of(module)) is not None:
            above = [name for name, _ in imports_of(module) if (there := floor_of(name)) is not None and there > here]
            assert above == [], f"{module} imports {above}"


def test_no_import_cycles_also_of_types_alone() -> None:
    """`tracer` itself names its public parts for type checkers alone, and loads them when they are asked for."""
    graph = {module: {name for name, _ in imports_of(module)} - {module} for module in MODULES if module != "tracer"}
    assert find_cycle(graph) is None


def test_no_import_cycles_in_benchmarks() -> None:
    files = _by_name(ROOT.glob("benchmarks/*.py"))
    graph = {
        module: {name for name, _ in imports(path.read_text("utf-8"), set(files))} for module, path in files.items()
    }
    assert graph["benchmarks.beside_null_gpu"]
    assert find_cycle(graph) is None


def test_the_house_has_few_floors() -> None:
    graph = {room: set[str]() for room in ROOMS}
    for module in MODULES:
        if module != "tracer":
            room = str(room_of(module))
            graph[room] |= {str(room_of(name)) for name, _ in imports_of(module)} - {room}
    assert num_floors(graph) <= MAX_FLOORS


def num_floors(graph: dict[str, set[str]]) -> int:
    """The longest way through a graph without cycles, in nodes."""

    @cache
    def below(name: str) -> int:
        return 1 + max((below(other) for other in graph[name]), default=0)

    return max(below(name) for name in graph)


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


def test_torchs_private_parts_are_in_one_room() -> None:
    assert {module: found for module in OUTSIDE if (found := private_torch(source_of(module)))} == {}


def test_each_file_of_that_room_needs_it() -> None:
    inside = [module for module in MODULES if module.startswith(f"{PRIVATE_TORCH}.")]
    assert inside
    assert [name for name in inside if not private_torch(source_of(name)) + private_attributes(source_of(name))] == []


def test_nobody_elses_private_attributes_are_read() -> None:
    """Of torch's objects in torch_private, of ours nowhere: what a leading underscore says is for the file it is in."""
    ours = [module for module in OUTSIDE if module.startswith("tracer")]
    assert {module: found for module in ours if (found := private_attributes(source_of(module)))} == {}


# The answers of programs to programs.
_OTHER_PRINTERS = {
    "tracer/null_gpu/build.py",
    "tracer/null_gpu/cudnn_answers.py",
    "tracer/null_gpu/nvidia_smi.py",
    "tracer/commands/profile.py",
}


def test_all_that_is_printed_goes_through_one_file() -> None:
    """It spells what a terminal would obey."""
    printing = {"print", "Console", "typer.echo", "typer.secho", "sys.stdout.write", "sys.stderr.write"}
    found = {
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tracer").rglob("*.py"))
        for node in nodes_of(path.read_text(encoding="utf-8"))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in printing
    }
    assert found <= _OTHER_PRINTERS | {"tracer/exporters/screen/terminal.py"}


def test_names_of_torchs_own_are_in_one_file() -> None:
    found = {module for module in MODULES if names_of_torch(source_of(module))}
    assert found == {TORCH_NAMES, *NAMES_OF_STACKS}


def test_the_model_of_the_allocator_knows_recordings_in_few_places() -> None:
    of_allocator = [module for module in MODULES if module.startswith("tracer.allocator.")]
    readers = {m for m in of_allocator if any(room_of(name) == "tracer.snapshot" for name, _ in imports_of(m))}
    assert readers == READ_RECORDINGS


# Tested through what asks them: the causes, and buffers of collectives by the owners in tests of attribution.
TESTED_THROUGH_OTHERS = ("tracer/answers/why/", "tracer/blocks/from_recording/collectives.py")


def files_of_findings() -> list[str]:
    paths = [*ROOT.glob("tracer/blocks/**/*.py"), *ROOT.glob("tracer/answers/**/*.py")]
    files = (path.relative_to(ROOT).as_posix() for path in paths)
    own = (name for name in files if not name.startswith(TESTED_THROUGH_OTHERS))
    return sorted(name for name in own if not name.endswith("__init__.py"))


def test_every_file_of_blocks_and_answers_is_tested() -> None:
    """By a file of its name beside it, or by one that imports it."""
    tests = "".join(path.read_text("utf-8") for path in ROOT.glob("tests/**/*.py"))
    for name in files_of_findings():
        path = ROOT / name.replace("tracer/", "tests/", 1)
        is_beside = path.with_name(f"test_{path.name}").is_file()
        assert is_beside or f"from {_module_name(Path(name))} import" in tests, name


# On a laptop without a GPU, in a moment; torch takes three seconds and 600 MB.
_READ = [m for m in MODULES if room_of(m) in ("tracer.snapshot", "tracer.allocator")]
_OF_SNAPSHOTS = ("tracer.blocks.from_snapshot", "tracer.blocks.table", "tracer.answers.snapshot_",
                 "tracer.answers.peak", "tracer.answers.rows", "tracer.answers.allocator", "tracer.answers.why",
                 "tracer.answers.out_of_memory", "tracer.answers.ranks")  # fmt: skip
WITHOUT_TORCH = {
    "snapshots": ([*_READ, *(m for m in MODULES if m.startswith(_OF_SNAPSHOTS))],
                  "tracer.capture.recording"),
    "commands": ([f"tracer.commands.{name}" for name in ("profile", *COMMANDS)], "numpy"),
}  # fmt: skip


@pytest.mark.parametrize(("names", "other"), WITHOUT_TORCH.values(), ids=WITHOUT_TORCH)
def test_it_is_loaded_without_torch(names: list[str], other: str) -> None:
    assert len(names) > 2
    program = "import sys\n" + "".join(f"import {name}\n" for name in sorted(names))
    program += f"print([name for name in ('torch', {other!r}) if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# ---- the checks see what they are to see -----------------------------------------------------------------------------


SEEN: dict[Callable[[str], list[str]], list[str]] = {
    private_torch: [
        "import torch\ntorch._C",
        "import torch\ntorch.cuda.memory._snapshot()",
        "import torch._C",
        "from torch._C import _profiler",
        "from torch.cuda import memory as m\nm._record_memory_history()",
        "import torch.autograd.profiler as p\np._x.y",
        "import torch\ngetattr(torch, '_C')",
        "def f():\n    from torch._utils import element_size",
    ],
    private_attributes: [
        "tensor._values()",
        "one._orig_mod is model",
        'getattr(parameter, "_local_tensor", parameter)',
        'hasattr(node, "_saved_self")',
        'module.__dict__.get("_parameters")',
        "from somewhere import _hidden",
        "from somewhere._hidden import shown",
        "class A:\n    def f(self, other): return other._theirs",
    ],
    names_of_torch: [
        'name.startswith("ProfilerStep#")',
        'PREFIX = "Optimizer.step#"',
        'name == "torch::autograd::AccumulateGrad"',
        'file.endswith("torch/autograd/__init__.py")',
        '"torch/optim/" in file',
        'f"{x} autograd::engine::evaluate_function: "',
    ],
}


@pytest.mark.parametrize(("check", "source"), [(check, source) for check in SEEN for source in SEEN[check]])
def test_what_is_private_or_a_name_of_torchs_is_found(check: Callable[[str], list[str]], source: str) -> None:
    assert check(source)


def test_cycles_are_found() -> None:
    assert find_cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_cycle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) is None


# ---- the legend of `tracer.arrays`: a letter in brackets, as in `[E]`, names one table everywhere


LETTER = re.compile(r"(?<![\w\])])\[([A-Z])(?:,[^\]]*| \+ 1)?\]")
COMMENT = re.compile(r"^(?:.*  )?\s*# .*$", re.MULTILINE)
# Their tables are named in words: they have other entries, segments and stacks than a recording.
IN_WORDS = (
    *("tracer/snapshot/", "tracer/allocator/", "tracer/blocks/from_snapshot/", "tracer/answers/snapshot_"),
    *("tracer/answers/allocator/", "tracer/answers/why/", "tracer/answers/out_of_memory.py", "tracer/answers/ranks.py"),
)


def letters(source: str) -> Iterator[str]:
    """Yield the letters of all docstrings, those of attributes too, and of comments, which describe fields."""
    for node in nodes_of(source):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from LETTER.findall(node.value.value)
    for comment in COMMENT.findall(source):
        yield from LETTER.findall(comment)


def test_the_legend_has_every_letter_once() -> None:
    legend = re.findall(r"\[([A-Z])\] \w", arrays.__doc__ or "")
    assert legend and len(legend) == len(set(legend))
    used: set[str] = set()
    for path in ROOT.glob("tracer/**/*.py"):
        name = path.relative_to(ROOT).as_posix()
        if name != "tracer/arrays.py":
            found = set(letters(path.read_text("utf-8")))
            assert found <= (set() if name.startswith(IN_WORDS) else set(legend)), name
            used |= found
    assert used == set(legend), "of what is in no docstring, the legend says nothing"
