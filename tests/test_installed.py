"""What `pip install .` gives: the wheel, in an empty environment, used from another folder.

The environment borrows torch and the few other packages from the one that runs the tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tracer

ROOT = Path(tracer.__file__).parent.parent
TINY = [
    *("--hidden-channels", "4", "--data-size", "8", "--n-modes", "4", "--n-layers", "1", "--batch-size", "2"),
    *("--n-wait-steps", "0", "--n-active-steps", "1", "--n-repeats", "1", "--device", "cpu"),
]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("hatchling") is None or shutil.which("uv") is None,
    reason="needs hatchling, which builds the wheel, and uv, which installs it",
)


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel in it, and a folder to work in that is not the checkout."""

    environment: Path
    folder: Path

    @property
    def packages(self) -> Path:
        (found,) = self.environment.glob("lib/python*/site-packages")
        return found

    def run(self, *command: object, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
        """A program of the environment's."""
        name, *arguments = map(str, command)
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [str(self.environment / "bin" / name), *arguments],
            cwd=folder or self.folder, env=variables | {"OMP_NUM_THREADS": "1", "COLUMNS": "80"},
            capture_output=True, text=True, check=False,
        )  # fmt: skip

    def python(self, program: str, folder: Path | None = None) -> list[str]:
        """What a program in Python prints."""
        ended = self.run("python", "-c", textwrap.dedent(program), folder=folder)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    place = tmp_path_factory.mktemp("installed")
    quiet: dict[str, Any] = {"check": True, "capture_output": True}
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", place], cwd=ROOT, **quiet)
    (wheel,) = place.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "env"], **quiet)
    made = Installed(place / "env", place / "elsewhere")
    made.folder.mkdir()
    into = ["--python", place / "env" / "bin" / "python"]
    subprocess.run(["uv", "pip", "install", "--offline", "--no-deps", *into, wheel], cwd=place, **quiet)  # type: ignore[list-item]
    (made.packages / "borrowed.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return made


def test_one_package_is_installed_and_nothing_called_models(installed: Installed) -> None:
    there = {path.name for path in installed.packages.iterdir()} - {"borrowed.pth", "__pycache__", "_virtualenv.py"}
    assert there == {"tracer", f"torch_timeline_tracer-{tracer.__version__}.dist-info"}
    shipped = {path.name for path in (installed.packages / "tracer" / "_models").iterdir()} - {"__pycache__"}
    assert shipped == {path.name for path in (ROOT / "models").glob("*.py")}
    assert installed.python("import importlib.util as i; print(i.find_spec('models'))") == ["None"]


def test_it_is_typed_has_a_version_and_its_names_are_seen_without_torch(installed: Installed) -> None:
    program = """
        import importlib.metadata, sys, tracer
        print(tracer.__file__)
        print(tracer.__version__, importlib.metadata.version("torch-timeline-tracer"))
        print({*tracer.__all__} - {*dir(tracer)}, "torch" in sys.modules)
    """
    file, versions, seen = installed.python(program)
    assert Path(file).is_relative_to(installed.packages)
    assert (Path(file).parent / "py.typed").is_file()
    assert versions == f"{tracer.__version__} {tracer.__version__}"
    assert seen == "set() False"


def test_the_commit_is_known_where_pip_installed_from_a_repository(installed: Installed) -> None:
    (information,) = installed.packages.glob("torch_timeline_tracer-*.dist-info")
    kept = (information / "direct_url.json").read_text()
    assert "commit" not in installed.run("torch-timeline", "--version").stdout
    try:
        origin = {"url": "https://example.org/x.git", "vcs_info": {"vcs": "git", "commit_id": "0123456789abcdef"}}
        (information / "direct_url.json").write_text(json.dumps(origin))
        assert installed.run("torch-timeline", "--version").stdout.endswith(", commit 0123456789ab\n")
    finally:
        (information / "direct_url.json").write_text(kept)


def test_the_command_has_a_help(installed: Installed) -> None:
    ended = installed.run("torch-timeline", "--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Usage: torch-timeline" in ended.stdout
    assert "snapshot" in ended.stdout and "--batch-size" not in ended.stdout
    assert len(ended.stdout.splitlines()) <= 40
    assert "--batch-size" in installed.run("torch-timeline", "--help-all").stdout


@pytest.mark.slow
def test_a_run_leaves_its_files_and_its_snapshot_is_read(installed: Installed) -> None:
    ended = installed.run("torch-timeline", *TINY, "--save-dir", "results")
    assert ended.returncode == 0, ended.stderr
    said = [line for line in ended.stderr.splitlines() if not line.startswith(("Files ", "Next: "))]
    assert [said[0], said[-1]] == ["Loading torch ...", "Writing the files ..."]
    assert not any(line.startswith(("Note: ", "Error: ")) for line in said)
    results = installed.folder / "results"
    written = {path.name for path in results.iterdir()}
    assert {
        "max_mem.txt",
        "peak.json",
        "memory_report.sqlite",
        "memory_snapshot.pkl",
        "memory_timeline.html",
    } <= written
    peak = json.loads((results / "peak.json").read_text())
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] > 0
    lines = {row["file"] for row in peak["rows"] if row["category"] == "ACTIVATION"}
    assert str(installed.packages / "tracer" / "_models" / "fno_layers.py") in lines
    assert not any(str(file).endswith("torch-timeline") for file in lines)
    read = installed.run("torch-timeline", "snapshot", "results")
    assert read.returncode == 0, read.stderr
    assert "tracer/_models/fno_layers.py" in "".join(read.stdout.split())


@pytest.mark.slow
def test_models_by_name_are_the_users_where_they_have_some_and_else_ours(installed: Installed, tmp_path: Path) -> None:
    program = """
        from tracer.workloads.factory import load_factory
        print(load_factory("models.gpt:build").__code__.co_filename)
    """
    assert installed.python(program) == [str(installed.packages / "tracer" / "_models" / "gpt.py")]
    (tmp_path / "models").mkdir()
    assert installed.python(program, tmp_path) == [str(installed.packages / "tracer" / "_models" / "gpt.py")]
    (tmp_path / "models" / "gpt.py").write_text("def build(): ...\n")
    assert installed.python(program, tmp_path) == [str(tmp_path / "models" / "gpt.py")]
    (tmp_path / "models" / "gpt.py").unlink()
    (tmp_path / "models" / "__init__.py").touch()
    ended = installed.run("python", "-c", textwrap.dedent(program), folder=tmp_path)
    assert "There is no module models.gpt" in ended.stderr


@pytest.mark.slow
def test_the_source_distribution_builds_a_wheel_and_passes_its_tests(tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"check": True, "capture_output": True}
    build = [sys.executable, "-m", "hatchling", "build", "-d"]
    subprocess.run([*build, tmp_path, "-t", "sdist"], cwd=ROOT, **quiet)
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path, filter="data")
    unpacked = tmp_path / archive.name.removesuffix(".tar.gz")
    subprocess.run([*build, tmp_path / "wheel", "-t", "wheel"], cwd=unpacked, **quiet)
    assert len(list((tmp_path / "wheel").glob("*.whl"))) == 1
    some = (
        "tests/test_documents.py",
        "tests/test_public_names.py",
        "tests/test_ci.py",
        "tests/commands/test_defaults.py",
    )
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-n", "0", "-q", *some], cwd=unpacked, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stdout[-2000:]


def test_links_of_the_long_description_lead_to_the_repository() -> None:
    """No link of README.md stays relative, and a link to a part of it stays on the page."""
    from hatch_build import with_absolute_links

    readme = (ROOT / "README.md").read_text("utf-8")
    text = with_absolute_links(readme, "https://example.org/a/b/", "v1.0.0")
    targets = re.findall(r"\]\(([^)\s]+)\)", text)
    assert len(targets) == readme.count("](") and all(target.startswith("https://") for target in targets)
    assert "](https://example.org/a/b/raw/v1.0.0/docs/pictures/page.png)" in text
    assert "](https://example.org/a/b/blob/v1.0.0/benchmarks/results.md#causes-at-first-sight)" in text
    assert with_absolute_links("[a](#b)", "https://example.org/a/b", "v1.0.0") == "[a](#b)"


def test_metadata_is_complete_but_for_what_the_owner_decides() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {"classifiers", "keywords", "description", "requires-python"} <= project.keys()
    assert project["dynamic"] == ["readme", "version"]
    assert "Typing :: Typed" in project["classifiers"] and (ROOT / "tracer/py.typed").exists()
    _, _, for_owner = (ROOT / "CONTRIBUTING.md").read_text().partition("### For the owner")
    release = (ROOT / ".github/workflows/release.yml").read_text() if (ROOT / ".github").is_dir() else ""
    for name in {"license", "authors", "urls"} - project.keys():
        assert f"`{name}`" in for_owner and (not release or f'"{name}"' in release)
