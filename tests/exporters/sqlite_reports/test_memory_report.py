"""memory_report.sqlite: Skyline's own reader gets back what was put in, and nothing half-written stays behind."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.exporters.sqlite_reports.report_readers import R1, R2, R3, dump, query, shape
from tests.report_workloads import REPORT_WORKLOADS
from tests.training_steps import ONE_OF_EACH, Recorded, record, recorded_workload
from tracer.analysis.operators.memory_report import ActivationEntry, MemoryReport, Weight, memory_report
from tracer.analysis.profiles.findings import Findings, find_in_cycle, put_together
from tracer.capture.objects.parameter_origins import ParameterOrigins, describe_parameters
from tracer.capture.profiler.event_tree import read_recording
from tracer.capture.sources.source_files import ProjectFiles, project_root
from tracer.capture.sources.source_line import SourceLine
from tracer.exporters.sqlite_reports.memory_report import write_database, write_memory_report

skyline = pytest.importorskip("skyline.tracking.memory.report", reason="needs the package skyline-cli")

ROOT = Path(__file__).resolve().parents[3]
NAMES = [*ONE_OF_EACH, *REPORT_WORKLOADS]


def findings_of(run: Recorded) -> Findings:
    model = run.workload.model
    names = {id(module): path for path, module in model.named_modules()} if model is not None else {}
    return put_together([find_in_cycle(recording, module_names=names) for recording in run.recordings])


@cache
def report(name: str) -> MemoryReport:
    model = recorded_workload(name).workload.model
    parameters = describe_parameters(model) if model is not None else ()
    return memory_report(findings_of(recorded_workload(name)), parameters=parameters, settings={"batch size": 16})


def written(what: MemoryReport, folder: Path, *, root: Path = ROOT) -> Path:
    path = folder / "memory_report.sqlite"
    write_memory_report(what, path, relative=ProjectFiles(root))
    return path


def by_hand() -> MemoryReport:
    """Two weights, of which one is known by its line; two activations, of which one is called from nowhere."""
    here = str(ROOT / "models" / "net.py")
    frames = (SourceLine(here, 7), SourceLine("/elsewhere/run.py", 3), SourceLine(str(ROOT / "run.py"), 10))
    activation = ActivationEntry("conv2d", 4096, 0, 0, 1, "net.conv", frames, 0, 2, ((8, 3), (4,)))
    nowhere = ActivationEntry("linear", 64, 64, 8, 2, None, (), 1, 2, ())
    weights = (Weight("conv.weight", 100, 100, "conv", frames[:1]), Weight("head.bias", 20, 0, "head", ()))
    return MemoryReport(
        "cpu", 12345, "ProfilerStep#2", weights, (activation, nowhere), (("INPUT", 12345),), {"seed": 0}
    )


# --------------------------------------------------------------------------------------------- what others read from it
def test_a_setting_that_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    """An argument of the command line is bytes; those that are no UTF-8 come as halves of surrogates."""
    path = tmp_path / "report.sqlite"
    write_database(path, (), {}, of=("a test", 1), settings={"command": "main.py \udcff"}, user_version=1)
    assert query(path, "SELECT value FROM settings") == [("main.py ?",)]


def test_structure_is_that_of_skylines_own_file(tmp_path: Path) -> None:
    golden = tmp_path / "golden.sqlite"
    skyline.MemoryReportBuilder(str(golden)).add_misc_entry(skyline.MiscSizeType.PeakUsageBytes, 0).build()
    ours, theirs = shape(written(by_hand(), tmp_path)), shape(golden)
    assert {name: ours.get(name) for name in theirs} == theirs
    assert theirs["user_version"] == 1
    assert set(ours) - set(theirs) == {
        "weight_details", "activation_details", "peak_by_category", "total_sizes", "format", "settings"
    }  # fmt: skip


def test_example_by_hand_comes_back(tmp_path: Path) -> None:
    tables = dump(written(by_hand(), tmp_path))
    assert tables["weight_entries"] == [(1, "conv.weight", 100, 100), (2, "head.bias", 20, 0)]
    assert tables["activation_entries"] == [(1, "conv2d", 4096), (2, "linear", 64)]
    assert tables["entry_types"] == [(1, "Weight"), (2, "Activation")]
    # Weights first; an entry without frames has a number too.
    assert tables["stack_correlation"] == [(1, 1, 1), (2, 2, 1), (3, 1, 2), (4, 2, 2)]
    # Innermost first, without gaps where a file is not of the project.
    assert tables["stack_frames"] == [(1, 0, "models/net.py", 7), (3, 0, "models/net.py", 7), (3, 1, "run.py", 10)]
    assert tables["misc_sizes"] == [("peak_usage_bytes", 12345)]
    assert tables["activation_details"] == [
        (1, "net.conv", "forward", 0, 2, "[[8, 3], [4]]", 1, 0, 0),
        (2, None, "forward", 1, 2, "[]", 2, 64, 8),
    ]
    assert tables["weight_details"] == [(1, "conv"), (2, "head")]
    assert dict(tables["settings"]) == {"device": "cpu", "activations of step": "ProfilerStep#2", "seed": "0"}


@pytest.mark.parametrize("name", NAMES)
def test_skylines_reader_returns_what_was_put_in(name: str, tmp_path: Path) -> None:
    what = report(name)
    path, files = written(what, tmp_path), ProjectFiles(ROOT)

    def first(frames: tuple[SourceLine, ...]) -> tuple[str | None, int | None]:
        return next(((file, frame.line) for frame in frames if (file := files(frame.file)) is not None), (None, None))

    def in_their_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        return sorted(rows, key=lambda row: (row[-2] is not None, row[-2] or "", row[-1] or 0))

    reader = skyline.MemoryReport(sqlite3.connect(path))
    weights = in_their_order([(w.name, w.size_bytes, w.grad_size_bytes, *first(w.frames)) for w in what.weights])
    assert sorted(map(tuple, reader.get_weight_entries()), key=repr) == sorted(weights, key=repr)
    activations = in_their_order([(a.name, a.size_bytes, *first(a.frames)) for a in what.activations])
    assert sorted(map(tuple, reader.get_activation_entries()), key=repr) == sorted(activations, key=repr)
    assert reader.get_misc_entry(skyline.MiscSizeType.PeakUsageBytes) == what.peak_bytes > 0
    assert sorted(query(path, R1), key=repr) == sorted(weights, key=repr)
    assert sorted(query(path, R2), key=repr) == sorted(activations, key=repr)
    assert query(path, R3, "peak_usage_bytes") == [(what.peak_bytes,)]


# ------------------------------------------------------------------------------------------------------------- laws
@pytest.mark.parametrize("name", NAMES)
def test_laws(name: str, tmp_path: Path) -> None:
    what, model = report(name), recorded_workload(name).workload.model
    parameters = list(model.parameters()) if model is not None else []
    assert what.weight_bytes == sum(p.numel() * p.element_size() for p in parameters)
    assert [weight.name for weight in what.weights] == [n for n, _ in model.named_parameters()] if model else True
    assert sum(size for _, size in what.categories) == what.peak_bytes
    path = written(what, tmp_path)
    ((by_module,),) = query(path, "SELECT TOTAL(weight_bytes + grad_bytes + activation_bytes) FROM memory_by_module")
    assert by_module == what.weight_bytes + what.grad_bytes + what.activation_bytes
    assert query(path, "SELECT TOTAL(size_bytes) FROM activations_by_line") == [(what.activation_bytes,)]


# ---------------------------------------------------------------------------------------------- where weights come from
def test_a_model_built_under_watch_knows_its_lines() -> None:
    with ParameterOrigins():
        model = nn.Sequential(
            nn.Linear(2, 3),
            nn.Linear(3, 1),
        )
        model[1].bias = model[0].bias
    parameters = describe_parameters(model)
    source = Path(__file__).read_text().splitlines()
    assert {p.name: source[p.lines[0].line - 1].strip() for p in parameters} == {
        "0.weight": "nn.Linear(2, 3),",
        "0.bias": "nn.Linear(2, 3),",  # shared: where it was made
        "1.weight": "nn.Linear(3, 1),",
    }
    weight = weakref.ref(model[0].weight)
    del model
    assert weight() is None


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList([nn.Linear(2, 2)])
        self.scale = nn.Parameter(torch.ones(1))
        self.register_parameter("hidden", nn.Parameter(torch.ones(1)))


def test_a_model_that_exists_is_searched_for_in_its_source() -> None:
    source = Path(__file__).read_text().splitlines()
    found = {p.name: [source[line.line - 1].strip() for line in p.lines] for p in describe_parameters(Net())}
    assert found["scale"] == ["self.scale = nn.Parameter(torch.ones(1))"]
    assert found["body.0.weight"] == ["self.body = nn.ModuleList([nn.Linear(2, 2)])"]
    assert found["hidden"] == ["class Net(nn.Module):"]


def test_sequential_in_a_script_has_rows_with_lines(tmp_path: Path) -> None:
    """Everything in one file, no class of the user's, which left the originals without a single row."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.Sequential(\n"
        "    torch.nn.Linear(4, 8),\n"
        "    torch.nn.ReLU(),\n"
        ")\n"
        "def step():\n"
        "    model(torch.randn(2, 4)).sum().backward()\n"
        "    model.zero_grad()\n"
    )
    module = ModuleType("script")
    with ParameterOrigins():
        exec(compile(script.read_text(), str(script), "exec"), module.__dict__)
    found = put_together([find_in_cycle(read_recording(one)) for one in record(module.step)])
    what = memory_report(found, parameters=describe_parameters(module.model))
    path = written(what, tmp_path, root=tmp_path)
    assert query(path, R1) == [("0.weight", 128, 128, "script.py", 3), ("0.bias", 32, 32, "script.py", 3)]
    assert query(path, R2) == [("linear", 32, "script.py", 7), ("relu", 64, "script.py", 7)]


# ------------------------------------------------------------------------------------------------------ project files
def test_the_projects_own_files_and_libraries_are_named(tmp_path: Path) -> None:
    root = tmp_path / "project"
    for file in ("a.py", "pkg/b.py", "env/lib/site-packages/c.py", "venv/d.py", "data/site-packages/e.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    (root / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "project2").mkdir()
    files = ProjectFiles(root)
    assert files(str(root / "a.py")) == "a.py"
    assert files(str(root / "pkg" / "b.py")) == "pkg/b.py"
    assert files(str(root / "venv/d.py")) is None
    # A library's are named from the folder of packages, wherever that lies; torch's are not named.
    assert files(str(root / "env/lib/site-packages/c.py")) == "c.py"
    assert files(str(root / "data/site-packages/pkg/e.py")) == "pkg/e.py"
    assert files(torch.__file__) is None
    # A name that begins alike is no part of the path.
    assert files(str(tmp_path / "project2" / "f.py")) is None
    assert files("<string>") is None
    assert files("torch/nn/modules/linear.py") is None


def test_a_project_inside_a_virtual_environment_is_one(tmp_path: Path) -> None:
    (tmp_path / "pyvenv.cfg").touch()
    root = tmp_path / "src"
    root.mkdir()
    (root / "a.py").touch()
    assert ProjectFiles(root)(str(root / "a.py")) == "a.py"


def test_the_root_is_the_folder_of_the_models_code() -> None:
    # This module is in `tests`, and `models.fno` was imported from the same folder.
    assert project_root(nn.Sequential(Net(), nn.ReLU())) == ROOT
    model = recorded_workload("fno_1d_new_zeros").workload.model
    assert model is not None
    assert project_root(model) == ROOT
    assert project_root(nn.Linear(1, 1)) == Path.cwd()


# --------------------------------------------------------------------------------------------------- files come whole


def test_watching_construction_changes_nothing() -> None:
    def made() -> tuple[Any, ...]:
        torch.manual_seed(0)
        model = nn.Linear(3, 3)
        loss: Callable[..., Any] = F.mse_loss
        return *map(float, model.weight.detach().flatten()), float(loss(model(torch.ones(1, 3)), torch.ones(1, 3)))

    plain = made()
    with ParameterOrigins():
        watched = made()
    assert plain == watched
