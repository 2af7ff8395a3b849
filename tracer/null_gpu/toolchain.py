"""The compiler and the headers that a build needs, or one sentence on which of them is missing and how to get it."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from tracer.null_gpu.errors import NullGpuError

SOURCES = Path(__file__).parent / "sources"
# A wheel of NVIDIA's brings each of them: (header, wheel for CUDA 13, wheel for CUDA 12).
_REQUIRED = (
    ("cuda_runtime_api.h", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    ("cuda.h", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"),
    ("cublasLt.h", "nvidia-cublas", "nvidia-cublas-cu12"),
    ("cufftXt.h", "nvidia-cufft", "nvidia-cufft-cu12"),
    ("cudnn.h", "nvidia-cudnn-cu13", "nvidia-cudnn-cu12"),
    ("nccl.h", "nvidia-nccl-cu13", "nvidia-nccl-cu12"),
    ("nvrtc.h", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"),
    ("cupti.h", "nvidia-cuda-cupti", "nvidia-cuda-cupti-cu12"),
)


@dataclass(frozen=True, slots=True)
class Torch:
    """An installed torch."""

    folder: Path  # The package's folder
    version: str  # Such as 2.15.0+cu132
    cuda: str  # The version of CUDA that it was built for, such as 13.2; empty for none
    hip: str = ""  # The same of ROCm


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Inputs of a build."""

    compiler: str  # The C compiler
    includes: tuple[Path, ...]  # Folders with NVIDIA's headers, and last our own few declarations


def torch_folder() -> Path:
    """Folder of the torch that this Python would import; it is not imported.

    Raises:
        NullGpuError: There is none.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise NullGpuError(
            "The null GPU runs torch's CUDA build, and torch is not installed.", hint="pip install torch"
        )
    return Path(spec.origin).parent


def torch_build(folder: Path) -> Torch:
    """Return the version of the torch in a folder, empty if its version.py says none, and its build."""
    text = (folder / "version.py").read_text("utf-8") if (folder / "version.py").is_file() else ""
    found = (
        re.search(rf"^{name}[^=]*= *['\"]([^'\"]+)", text, re.MULTILINE) for name in ("__version__", "cuda", "hip")
    )
    return Torch(folder, *(match[1] if match else "" for match in found))


def read_torch(folder: Path) -> Torch:
    """Version and CUDA version of the torch in a folder.

    Raises:
        NullGpuError: Another system than Linux, or a torch that was not built for CUDA.
    """
    if sys.platform != "linux":
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise NullGpuError(
            f"The null GPU runs torch's CUDA build for Linux, and this is {system}.",
            hint="`predict` without --on rehearses the step on any system.",
        )
    torch = torch_build(folder)
    if not torch.version or not torch.cuda:
        name = f"torch {torch.version}" if torch.version else "this torch"
        other = "ROCm" if torch.hip else "the CPU alone"
        raise NullGpuError(
            f"The null GPU runs torch's CUDA build, and {name} is built for {other}.",
            hint="pip install --force-reinstall torch  (PyPI's default for Linux is the CUDA build)",
        )
    return torch


def find_toolchain(torch: Torch) -> Toolchain:
    """The compiler and the headers.

    Raises:
        NullGpuError: One is missing.
    """
    if platform.machine() not in {"x86_64", "aarch64"}:
        raise NullGpuError(
            f"The null GPU is for x86-64 and ARM processors of 64 bits, and this is {platform.machine()}."
        )
    compiler = os.environ.get("CC") or "cc"
    path = shutil.which(compiler)
    if path is None:
        raise NullGpuError(
            f"The null GPU is compiled when it is first used, and there is no C compiler `{compiler}` here.",
            hint="apt-get install gcc libc6-dev  (or your system's package of a C compiler)",
        )
    includes = tuple(_nvidia_includes(torch.folder.parent))
    for header, *wheels in _REQUIRED:
        if not any((folder / header).is_file() for folder in includes):
            wheel = wheels[0] if torch.cuda.startswith("13") else wheels[1]
            raise NullGpuError(
                f"The null GPU is compiled with NVIDIA's headers, and {header} is not among the packages beside torch.",
                hint=f"pip install {wheel}",
            )
    return Toolchain(path, includes)


def _nvidia_includes(packages: Path) -> list[Path]:
    roots = dict.fromkeys([packages, *(Path(entry) for entry in sys.path if entry)])
    return [folder for root in roots for folder in sorted((root / "nvidia").glob("*/include")) if folder.is_dir()]
