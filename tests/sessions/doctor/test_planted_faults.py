"""Each fault of a machine is a FAIL or SKIP with a sentence that names it, and with the command that mends it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.truth.isolate import value_in_fresh_process
from tracer.allocator.settings import ALLOCATOR_VARIABLES
from tracer.capture.device import devices
from tracer.capture.torch_private import torch_history
from tracer.errors import RecordingError
from tracer.null_gpu.build import torch_folder
from tracer.results.doctor import Outcome, Status
from tracer.sessions.doctor import installed, loaded
from tracer.units import GIB

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
Plant = Callable[[pytest.MonkeyPatch, Path], Outcome]


def no_compiler(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, "13.2"))
    patch.setenv("CC", "no-such-compiler")
    return installed.compiler()


def file_for_cache(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, "13.2"))
    (folder / "cache").write_text("")
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    return installed.null_gpu_cache()


def backend_in_environment(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    return installed.allocator_settings()


def backend_replaced(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    memory = SimpleNamespace(
        _record_memory_history=None, _snapshot=None, get_allocator_backend=lambda: "pluggable allocator"
    )
    patch.setattr(torch_history, "_history_module", lambda device: memory)
    return loaded.allocator(CUDA)


def no_caching(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setenv("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")
    return installed.allocator_settings()


def misspelt_setting(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setenv("PYTORCH_ALLOC_CONF", "expandable_segment:True")
    return installed.allocator_settings()


def history_on(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr(torch_history, "has_allocator_history", lambda device: True)
    patch.setattr(torch_history, "allocator_history_enabled", lambda device: True)
    return loaded.history(CUDA)


def profiler_busy(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        return loaded.profiler(CPU)


def other_profiler(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setenv("CUDA_INJECTION64_PATH", "/opt/nvidia/nsight-systems/libToolsInjection64.so")
    return loaded.profiler(CPU)


def disk_full(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.chdir(folder)
    patch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=GIB, used=GIB, free=4096))
    return installed.disk()


def old_driver(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, "13.2"))
    patch.setattr(installed, "nvidia_driver", lambda: "535.129.03")
    return installed.driver()


def cpu_wheel(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, None))
    patch.setattr(installed, "nvidia_driver", lambda: "580.65.06")
    return installed.supported_torch()


def cpu_wheel_alone(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, None))
    return installed.null_gpu_cache()


def old_torch(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setattr("tracer.sessions.doctor.installed.torch_folder", lambda: built_for(folder, "12.4", "2.4.1"))
    return installed.supported_torch()


def two_packages(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    install(patch, {"nvidia-cudnn-cu12": "9.10.2.21", "nvidia-cudnn-cu13": "9.26.0.51", "numpy": "2.0"})
    return installed.cuda_packages()


def two_copies(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    patch.setenv("LD_LIBRARY_PATH", "/usr/local/cuda/lib64")
    patch.setattr(
        loaded,
        "_maps",
        lambda: (
            "7f00 r-xp 0 08:01 1 /env/lib/python3.11/site-packages/nvidia/cu13/lib/libcudart.so.13\n"
            "7f10 r--p 0 08:01 1 /env/lib/python3.11/site-packages/nvidia/cu13/lib/libcudart.so.13\n"
            "7f20 r-xp 0 08:01 2 /usr/local/cuda/lib64/libcudart.so.12\n"
            "7f30 rw-p 0 00:00 0 [heap]\n"
        ),
    )
    return loaded.cuda_copies(CUDA)


def wrong_package(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    install(patch, {"nvidia-cudnn-cu13": "9.10.2.21"})
    return installed.cuda_packages()


def wrong_cudnn(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    install(patch, {})
    patch.delenv("LD_LIBRARY_PATH", raising=False)
    patch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    patch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    return loaded.cudnn(CUDA)


def refused_cudnn(patch: pytest.MonkeyPatch, folder: Path) -> Outcome:
    def version() -> int:
        raise RuntimeError("cuDNN version incompatibility: compiled against (9, 26, 0), found (8, 9, 7)\nand more")

    wrong_cudnn(patch, folder)
    patch.setattr(torch.backends.cudnn, "version", version)
    return loaded.cudnn(CUDA)


def built_for(folder: Path, cuda: str | None, version: str = "2.15.0") -> Path:
    """A torch's folder with the file that says what it was built for, and no library."""
    name = f"{version}+cpu" if cuda is None else version
    (folder / "torch").mkdir(exist_ok=True)
    (folder / "torch" / "version.py").write_text(f"__version__ = '{name}'\ncuda = {cuda!r}\nhip = None\n")
    return folder / "torch"


def install(patch: pytest.MonkeyPatch, versions: Mapping[str, str]) -> None:
    """Have these packages be the installed ones, and torch want one cuDNN."""
    found = [SimpleNamespace(metadata={"Name": name}, version=version) for name, version in versions.items()]
    patch.setattr(importlib.metadata, "distributions", lambda: iter(found))
    wanted = ["nvidia-cudnn-cu13==9.26.0.51; platform_system == 'Linux'", "numpy"]
    patch.setattr(importlib.metadata, "requires", lambda name: wanted)


PLANTED: dict[Plant, tuple[Status, str, str]] = {
    no_compiler: (Status.FAIL, "no C compiler `no-such-compiler`", "apt-get install gcc libc6-dev"),
    file_for_cache: (Status.FAIL, "is a file, not a folder", "export XDG_CACHE_HOME=$HOME/.cache"),
    backend_in_environment: (Status.FAIL, "replaces torch's allocator", "unset PYTORCH_CUDA_ALLOC_CONF"),
    backend_replaced: (Status.FAIL, "pluggable allocator records no", "unset PYTORCH_CUDA_ALLOC_CONF PYTORCH"),
    no_caching: (Status.FAIL, "switches torch's caching allocator off", "unset PYTORCH_NO_CUDA_MEMORY_CACHING"),
    misspelt_setting: (Status.FAIL, "expandable_segment", "unset PYTORCH_ALLOC_CONF"),
    history_on: (Status.FAIL, "history is on already", "_record_memory_history(None)"),
    profiler_busy: (Status.FAIL, "Another torch.profiler is recording", "python -X importtime"),
    other_profiler: (Status.FAIL, "Another profiler of CUDA", "unset CUDA_INJECTION64_PATH"),
    disk_full: (Status.FAIL, "is full", "df -h "),
    old_driver: (Status.FAIL, "535.129.03 is too old for torch's CUDA 13.2, which takes 580", "build for CUDA 12.6"),
    cpu_wheel: (Status.FAIL, "built for the CPU alone", "pip install --force-reinstall torch"),
    cpu_wheel_alone: (Status.SKIP, "2.15.0+cpu is built for the CPU alone", "pip install --force-reinstall torch"),
    old_torch: (Status.FAIL, "torch 2.4.1 is older than 2.11", "pip install 'torch>=2.11,<2.16'"),
    two_packages: (Status.FAIL, "cudnn is installed in 2 copies", "pip uninstall -y nvidia-cudnn-cu12"),
    two_copies: (Status.FAIL, "libcudart is loaded in 2 copies", "unset LD_LIBRARY_PATH"),
    wrong_package: (Status.FAIL, "9.10.2.21 in the place of 9.26.0.51", "pip install nvidia-cudnn-cu13==9.26.0.51"),
    wrong_cudnn: (Status.FAIL, "9.10.2 is loaded, and torch was built with 9.26.0", "pip install nvidia-cudnn-cu13=="),
    refused_cudnn: (Status.FAIL, "version incompatibility", "pip install nvidia-cudnn-cu13=="),
}  # fmt: skip


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_fault_is_named_with_the_command_that_mends_it(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in (*ALLOCATOR_VARIABLES, *loaded.INJECTION_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    status, sentence, mend = PLANTED[plant]
    outcome = plant(monkeypatch, tmp_path)
    assert outcome.status is status
    assert sentence in outcome.sentence and outcome.sentence.endswith((".", "7)"))
    assert mend in outcome.mend and "\n" not in outcome.mend


def unreadable_cache(folder: str) -> Any:
    """As a user who is not root, to whom a folder without permissions is closed."""
    os.environ["XDG_CACHE_HOME"] = folder
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    outcome = installed.null_gpu_cache()
    return str(outcome.status), outcome.sentence, outcome.mend


@pytest.fixture
def closed_folder() -> Iterator[Path]:
    """A folder below /tmp, which everybody can reach, that its owner cannot read and others cannot either."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    (folder / "torch-timeline").mkdir(mode=0)
    folder.chmod(0o755)
    yield folder
    (folder / "torch-timeline").chmod(0o700)
    shutil.rmtree(folder)


def test_a_cache_that_cannot_be_read_is_named(closed_folder: Path) -> None:
    if not (torch.version.cuda and os.name == "posix" and Path("/proc").is_dir()):
        pytest.skip("needs torch's CUDA build on Linux")
    status, sentence, mend = value_in_fresh_process(unreadable_cache, str(closed_folder))
    assert status == "FAIL"
    assert "cannot be used" in sentence and "Permission denied" in sentence
    assert mend.startswith("chmod -R u+rwX ") and str(closed_folder) in mend


def test_what_is_well_here_passes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same checks on this machine as it is, so that none of them fails whatever it finds."""
    for name in (*ALLOCATOR_VARIABLES, installed.WITHOUT_CACHE, *loaded.INJECTION_VARIABLES):
        monkeypatch.delenv(name, raising=False)
    outcomes = {name: check() for name, check in installed.INSTALLED.items()}
    outcomes |= {"profiler": loaded.profiler(CPU), "copies": loaded.cuda_copies(CPU), "cuDNN": loaded.cudnn(CPU)}
    outcomes |= {"parts": loaded.torch_parts(CPU), "card": loaded.card(CPU), "allocator": loaded.allocator(CPU)}
    assert {name: outcome.sentence for name, outcome in outcomes.items() if outcome.status is Status.FAIL} == {}
    assert outcomes["torch"].facts["version"] == torch.__version__
    assert torch_folder().name == "torch"


def test_settings_that_torch_takes_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "backend:native,expandable_segments:True")
    assert installed.allocator_settings().status is Status.PASS
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:512")
    outcome = installed.allocator_settings()
    assert outcome.status is Status.FAIL and outcome.mend == "unset PYTORCH_CUDA_ALLOC_CONF"


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
    monkeypatch.setattr(installed, "_kernel_module", lambda: module)
    assert installed.nvidia_driver() == version


def test_libraries_of_the_null_gpu_are_no_copies() -> None:
    maps = (
        "7f00 r-xp 0 08:01 1 /env/nvidia/cu13/lib/libcublasLt.so.13\n"
        "7f10 r-xp 0 08:01 2 /tmp/torch-timeline-1000/null-gpu/torch2.15.0/libcublasLt.so.13\n"
        "7f10 r-xp 0 08:01 4 /tmp/torch-timeline-1000/null-gpu/torch2.15.0/libnull_gpu.so\n"
        "7f20 r-xp 0 08:01 3 /env/nvidia/cu13/lib/libcublas.so.13 (deleted)\n"
        "7f30 r-xp 0 08:01 3 /env/lib/libcudart-1b2c3d4e.so.12\n"
    )
    assert loaded.loaded_libraries(maps) == {
        "cublasLt": ["/env/nvidia/cu13/lib/libcublasLt.so.13"],
        "cublas": ["/env/nvidia/cu13/lib/libcublas.so.13"],
        "cudart": ["/env/lib/libcudart-1b2c3d4e.so.12"],
    }


@pytest.mark.parametrize(
    ("capability", "built", "is_served"),
    [
        ((8, 9), ["sm_80", "sm_90"], True),  # code of 8.0 runs on 8.9
        ((7, 5), ["sm_80", "sm_90"], False),
        ((12, 0), ["sm_90", "sm_100a"], False),
        ((12, 0), ["sm_90", "compute_90"], True),  # PTX is compiled for newer cards
        ((9, 0), [], True),
    ],
)
def test_a_card_without_code_is_seen(
    capability: tuple[int, int], built: list[str], is_served: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = {"device_memory": lambda device: (79 * GIB, 80 * GIB), "device_name": lambda device: "NVIDIA H100"}
    for name, ask in {**memory, "num_devices": lambda device: 1}.items():
        monkeypatch.setattr(devices, name, ask)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
    assert (loaded.card(CUDA).status is Status.PASS) == is_served


def test_a_torch_whose_private_parts_have_moved_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def moved() -> None:
        raise RecordingError("torch 3.0 does not offer the profiler's event types.")

    monkeypatch.setattr("tracer.capture.torch_private.torch_profiler.check_event_types", moved)
    outcome = loaded.torch_parts(CPU)
    assert outcome.status is Status.FAIL and "3.0" in outcome.sentence and "pip install" in outcome.mend
