"""The null GPU's libraries: built for the torch and compiler at hand when first used, in the user's cache."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tracer.errors import NullGpuError
from tracer.null_gpu.torch_symbols import (
    HEADERS,
    Prototype,
    other_fat_binaries,
    read_prototypes,
    stub_source,
    torch_symbols,
)
from tracer.user_cache import build_once, digest_of, how_others_write, temporary_cache, user_cache

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


OLDEST_TORCH = (2, 9)
"""Oldest with `torch.library.get_kernel`, by which a kernel that computes values calls the one that it stands for."""
_CONTAINER = (
    'Use a container of Linux, which needs no GPU: docker run --rm -it --platform linux/amd64 -v "$PWD:/work" -w /work '
    "python:3.12 bash, and install torch and this program in it."
)


def read_torch(folder: Path) -> Torch:
    """Version and CUDA version of the torch in a folder.

    Raises:
        NullGpuError: Another system than Linux, or a torch that was not built for CUDA.
    """
    if sys.platform != "linux":
        system = {"darwin": "macOS", "win32": "Windows"}.get(sys.platform, sys.platform)
        raise NullGpuError(
            f"The null GPU needs Linux, torch with CUDA and a C compiler, and this is {system}.",
            hint=_CONTAINER,
        )
    torch = torch_build(folder)
    if not torch.version or not torch.cuda:
        name = f"torch {torch.version}" if torch.version else "this torch"
        other = "ROCm" if torch.hip else "the CPU alone"
        raise NullGpuError(
            f"The null GPU runs torch's CUDA build, and {name} is built for {other}.",
            hint="pip install --force-reinstall torch  (PyPI's default for Linux is the CUDA build)",
        )
    if tuple(int(part) for part in re.findall(r"\d+", torch.version)[:2]) < OLDEST_TORCH:
        raise NullGpuError(
            f"The null GPU needs torch {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]} or newer, and this is {torch.version}.",
            hint="pip install 'torch>={}.{}', or leave out --on: `run` works with this torch.".format(*OLDEST_TORCH),
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


NAME = "libnull_gpu.so"
PRELOAD = "preload"
"""A file beside the libraries: their names, in the order in which they are loaded, a line each."""
INDUCTOR, TRITON, VLLM = "inductor", "triton", "vllm"
"""Folders beside the builds, for what compilers make for the null GPU."""
_FLAGS = (
    "-O1",
    "-g0",
    "-fPIC",
    "-std=gnu11",
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-Wno-unused-parameter",
)
_STUB_FLAGS = ("-O0", "-g0", "-fPIC", "-w", "-fvisibility=hidden", "-fno-builtin")


def library(folder: Path) -> Path:
    """The library that has all symbols, for the torch in a folder; built if it was not yet.

    Processes that come while it is built wait for the first. Its folder has the others, `libcudart.so.13` and so on,
    which are empty and depend on it.

    Raises:
        NullGpuError: It cannot be built here.
    """
    torch = read_torch(folder)
    built = cache_folder(torch)
    try:
        return build_once(built, NAME, lambda made: _build(torch, find_toolchain(torch), made), family="torch")
    except OSError as error:
        raise NullGpuError(
            f"The null GPU's libraries cannot be written to {built.parent}: {error.strerror or error}.",
            hint="Set XDG_CACHE_HOME to a folder that can be written.",
        ) from error


def libraries(path: Path) -> list[Path]:
    """Return the libraries in the order in which they must be loaded, beside the first."""
    return [path.parent / name for name in (path.parent / PRELOAD).read_text("utf-8").split()]


def cache_folder(torch: Torch) -> Path:
    """Folder of a torch's built libraries in the user's cache, named after versions and sources."""
    files = [path for path in SOURCES.rglob("*") if path.is_file()]
    files += [SOURCES.parent / f"{name}.py" for name in ("build", "nvidia_smi", "torch_symbols")]
    digest = digest_of([*_FLAGS, str(torch.folder)], files)
    return _private_cache(f"torch{torch.version}-cuda{torch.cuda}-{platform.machine()}-{digest}")


def _private_cache(build: str) -> Path:
    """Folder of a build in the user's cache, or in one below /tmp where others can write to that.

    Raises:
        NullGpuError: Others can write to both.
    """
    wanted = user_cache() / "null-gpu"
    if (problem := _how_others_write(wanted, build)) is None:
        return wanted / build
    elsewhere = temporary_cache() / "null-gpu"
    if (other := _how_others_write(elsewhere, build)) is not None:
        raise NullGpuError(
            f"The null GPU loads no libraries that others can change: {problem}, and {other}.",
            hint="Set XDG_CACHE_HOME to a folder that only you can write.",
        )
    _say_once(f"{problem}, so that the libraries there are not loaded: others are built in {elsewhere}.")
    return elsewhere / build


def _how_others_write(cache: Path, build: str) -> str | None:
    """Check all that a program loads from it: a build, and what compilers leave beside it."""
    of_compilers = (how_others_write(cache / name) for name in (INDUCTOR, TRITON, VLLM))
    return how_others_write(cache / build, with_contents=True) or next(filter(None, of_compilers), None)


@cache
def _say_once(sentence: str) -> None:
    shown = "".join(letter if letter.isprintable() else "?" for letter in sentence)
    warnings.warn(f"null GPU: {shown}", stacklevel=2)


def declared_prototypes(toolchain: Toolchain) -> dict[str, Prototype]:
    """Return the functions of NVIDIA's headers, by name: those that C sees, and those that only C++ sees.

    `cublas_api.h` declares cublasHgemm, which kernels of vLLM call, under `#if defined(__cplusplus)`. What both see is
    as C declares it, without default arguments. Without a compiler of C++, those of C alone are returned.
    """
    headers = [name for name in HEADERS if any((path / name).is_file() for path in toolchain.includes)]
    text = "".join(f"#include <{name}>\n" for name in headers)
    command = [toolchain.compiler, "-E", "-P", *_includes(toolchain)]
    with ThreadPoolExecutor(1) as pool:
        as_cpp = pool.submit(_run, [*command, "-xc++", "-std=c++17", "-"], text)
        as_c = read_prototypes(_run([*command, "-xc", "-"], text))
    with suppress(NullGpuError):
        return read_prototypes(as_cpp.result()) | as_c
    return as_c


def _includes(toolchain: Toolchain) -> list[str]:
    """NVIDIA's headers, and last our own declarations of those that come with no wheel of torch's."""
    return [*(f"-isystem{path}" for path in toolchain.includes), "-idirafter", str(SOURCES / "declarations")]


def _build(torch: Torch, toolchain: Toolchain, folder: Path) -> None:
    symbols = torch_symbols(torch.folder)
    if (problem := other_fat_binaries(torch.folder)) is not None:
        _say_once(problem)
    includes = _includes(toolchain)
    stubs = folder / "stubs.c"
    stubs.write_text(stub_source(declared_prototypes(toolchain), symbols.names), "utf-8")
    compilations = [[toolchain.compiler, *_STUB_FLAGS, "-c", str(stubs), "-o", str(folder / "stubs.o")]]
    for source in sorted(SOURCES.glob("*.c")):
        target = folder / f"{source.stem}.o"
        compilations.append([toolchain.compiler, *_FLAGS, *includes, "-c", str(source), "-o", str(target)])
    _run_all(compilations)
    objects = sorted(str(path) for path in folder.glob("*.o"))
    _run([*_linked(toolchain, NAME, folder), *objects, "-ldl", "-lpthread"])
    empty = folder / "empty.c"
    empty.write_text("")
    _run_all(
        [*_linked(toolchain, name, folder), str(empty), f"-L{folder}", "-Wl,--no-as-needed", f"-l:{NAME}"]
        for name in symbols.sonames
    )
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    (folder / PRELOAD).write_text("\n".join([NAME, *symbols.sonames]) + "\n", "utf-8")
    _write_nvidia_smi(folder / "bin")
    for path in (stubs, empty, *folder.glob("*.o")):
        path.unlink()


def _linked(toolchain: Toolchain, name: str, folder: Path) -> list[str]:
    return [toolchain.compiler, "-shared", f"-Wl,-soname,{name}", "-Wl,-rpath,$ORIGIN", "-o", str(folder / name)]


def _write_nvidia_smi(folder: Path) -> None:
    folder.mkdir()
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "${{0%/*}}/nvidia_smi.py" "$@"\n', "utf-8")
    shutil.copy(SOURCES.parent / "nvidia_smi.py", folder)
    script.chmod(0o755)


def _run_all(commands: Iterable[list[str]]) -> None:
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_run, commands))


def _run(command: list[str], text: str = "") -> str:
    ended = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if ended.returncode:
        lines = ended.stderr.strip().splitlines() or [_how_it_ended(command[0], ended.returncode)]
        problem = next((line for line in lines if "error" in line), lines[-1][:200])
        raise NullGpuError(
            f"The null GPU could not be compiled: {problem}",
            hint="Please report this sentence together with `python -m torch.utils.collect_env`.",
        )
    return ended.stdout


def _how_it_ended(program: str, status: int) -> str:
    name = Path(program).name
    if status == -signal.SIGKILL:
        return f"{name} was killed, as it is where memory runs out."
    return f"{name} ended " + (f"by {signal.Signals(-status).name}." if status < 0 else f"with status {status}.")
