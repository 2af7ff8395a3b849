"""Each fault of a machine is a FAIL or SKIP with a sentence that names it, and with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tracer.allocator.settings import ALLOCATOR_VARIABLES
from tracer.commands import doctor

ROOT = Path(__file__).resolve().parents[2]
Plant = Callable[[pytest.MonkeyPatch, Path], doctor.Outcome]


def built_for(patch: pytest.MonkeyPatch, folder: Path, cuda: str | None, version: str = "2.15.0") -> None:
    """Have torch's folder hold the file that says what it was built for, and no library."""
    name = f"{version}+cpu" if cuda is None else version
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(f"__version__ = '{name}'\ncuda = {cuda!r}\nhip = None\n")
    patch.setattr(doctor, "torch_folder", lambda: folder / "torch")


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, "13.2")
    patch.setenv("CC", "no-such-compiler")
    return doctor.compiler()


def file_for_cache(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, "13.2")
    (folder / "cache").write_text("")
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return doctor.null_gpu_build()


def other_backend(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    return doctor.allocator_settings()


def no_caching(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    patch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    return doctor.allocator_settings()


def misspelt_setting(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    patch.setenv("PYTORCH_ALLOC_CONF", "expandable_segment:True")
    return doctor.allocator_settings()


def differing_settings(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    patch.setenv("PYTORCH_ALLOC_CONF", "backend:native,expandable_segments:True")
    assert doctor.allocator_settings().status == "PASS"
    patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    return doctor.allocator_settings()


def old_driver(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, "13.2")
    patch.setattr(doctor, "nvidia_driver", lambda: "535.129.03")
    return doctor.driver()


def cpu_wheel(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, None)
    patch.setattr(doctor, "nvidia_driver", lambda: "580.65.06")
    return doctor.supported_torch()


def cpu_wheel_alone(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, None)
    return doctor.null_gpu_build()


def old_torch(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    built_for(patch, folder, "12.4", "2.4.1")
    return doctor.supported_torch()


def wrong_package(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    patch.setattr(importlib.metadata, "requires", lambda name: ["nvidia-cudnn-cu13==9.26.0.51; os_name == 'posix'"])
    patch.setattr(importlib.metadata, "version", lambda name: "9.10.2.21")
    return doctor.cuda_packages()


def dying_python(patch: pytest.MonkeyPatch, folder: Path) -> doctor.Outcome:
    ended = SimpleNamespace(status=-11, text="half a line", errors="warning\nSegmentation fault\n")
    patch.setattr("tracer.sessions.jobs.child_processes.ChildProcesses.run_again", lambda *_, **__: ended)
    return next(check for check in doctor.examine() if check.name == "CPU")  # type: ignore[return-value]


PLANTED: dict[Plant, tuple[str, str, str]] = {
    no_compiler: ("FAIL", "no C compiler `no-such-compiler`", "apt-get install gcc libc6-dev"),
    file_for_cache: ("FAIL", "is a file, not a folder", "export XDG_CACHE_HOME=$HOME/.cache"),
    other_backend: ("FAIL", "replaces torch's allocator", "unset PYTORCH_CUDA_ALLOC_CONF"),
    no_caching: ("FAIL", "switches torch's caching allocator off", "unset PYTORCH_NO_CUDA_MEMORY_CACHING"),
    misspelt_setting: ("FAIL", "expandable_segment", "unset PYTORCH_ALLOC_CONF"),
    differing_settings: ("FAIL", "differ; torch reads one of them", "unset PYTORCH_CUDA_ALLOC_CONF"),
    old_driver: ("FAIL", "535.129.03 is too old for torch's CUDA 13.2, which takes 580", "install driver 580"),
    cpu_wheel: ("FAIL", "built for the CPU alone", "pip install --force-reinstall torch"),
    cpu_wheel_alone: ("SKIP", "2.15.0+cpu is built for the CPU alone", "pip install --force-reinstall torch"),
    old_torch: ("FAIL", "torch 2.4.1 is older than 2.7", "pip install 'torch>=2.7,<2.16'"),
    wrong_package: ("FAIL", "9.10.2.21 in the place of 9.26.0.51", "pip install nvidia-cudnn-cu13==9.26.0.51"),
    dying_python: ("FAIL", "Python ended with status -11: Segmentation fault", "python -X faulthandler"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_with_the_command_that_mends_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    status, sentence, mend = PLANTED[plant]
    outcome = plant(monkeypatch, tmp_path)
    assert outcome.status == status and sentence in outcome.sentence
    assert mend in outcome.mend and "\n" not in outcome.mend


@pytest.mark.parametrize(
    ("module", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.129.03  Thu Oct 19 18:56:32 UTC 2023", "535.129.03"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build", "580.65.06"),
        ("", None),
    ],
)
def test_the_driver_is_the_kernels_where_nvidia_smi_is_missing(
    module: str, version: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(doctor, "_kernel_module", lambda: module)
    assert doctor.nvidia_driver() == version


def test_each_assumption_names_a_file_that_there_is() -> None:
    text = (ROOT / "docs" / "assumptions.md").read_text("utf-8")
    rows = re.findall(r"^\| .* \| `([^`]+)` \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) >= 30
    for where, asked in rows:
        assert (ROOT / where).is_file(), where
        assert asked in ("not checked", "`doctor`", "`pytest -m gpu`", "`beside_null_gpu`")
