"""What is installed: packages, driver, compiler, folders and variables, asked without loading torch."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tracer.allocator.settings import ALLOCATOR_VARIABLES, parse_settings
from tracer.errors import NullGpuError, OutputError, SettingsError
from tracer.exporters.files import check_folder
from tracer.null_gpu.build import NAME, cache_folder, find_toolchain, libraries, read_torch, torch_build, torch_folder
from tracer.null_gpu.process import is_active
from tracer.results.doctor import Outcome, failed, passed, skipped
from tracer.units import MIB, format_bytes
from tracer.user_cache import user_cache
from tracer.working_folder import working_folder

OLDEST_TORCH = (2, 11)
NEWEST_TRIED_TORCH = (2, 15)
SUPPORTED_TORCH = "pip install 'torch>={}.{},<{}.{}'".format(
    *OLDEST_TORCH, NEWEST_TRIED_TORCH[0], NEWEST_TRIED_TORCH[1] + 1
)
OLDEST_DRIVERS = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each major version of CUDA, by its own major number.

Source:
    CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility".
"""
WITHOUT_CACHE = "PYTORCH_NO_CUDA_MEMORY_CACHING"
TRY_NULL_GPU = "torch-timeline doctor --on h100"
SEND_REPORT = "torch-timeline doctor --report doctor.json  # and send it"
_PACKAGE = "torch-timeline-tracer"
_OF_CUDA = r"nvidia-(?!ml-py).*"
_LEAST_FREE_BYTES = 256 * MIB
"""A run's files of a small model take a few MiB, a null GPU's build 5."""


# ---------------------------------------------------------------------------------------------------- torch and driver
def supported_torch() -> Outcome:
    """Is torch here, of a version that is supported, and built for the GPU that is here?"""
    try:
        folder = torch_folder()
    except NullGpuError:
        return failed("torch is not installed.", "pip install torch")
    found = torch_build(folder)
    version, cuda, hip = found.version or importlib.metadata.version("torch"), found.cuda, found.hip
    facts = {"version": version, "cuda": cuda, "hip": hip}
    numbers = _numbers(version)[:2]
    if numbers < OLDEST_TORCH:
        return failed(f"torch {version} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}.", SUPPORTED_TORCH, **facts)
    driver = nvidia_driver()
    if driver is not None and not cuda and not hip:
        return failed(
            f"torch {version} is built for the CPU alone, and this machine has NVIDIA's driver {driver}.",
            "pip install --force-reinstall torch",
            **facts,
        )
    built = f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "the CPU alone"
    newer = "" if numbers <= NEWEST_TRIED_TORCH else "; newer than any that was tried"
    return passed(f"torch {version}, built for {built}{newer}.", **facts)


def _numbers(version: str) -> tuple[int, ...]:
    """`2.15.0+cu132` is (2, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def driver() -> Outcome:
    """Is NVIDIA's driver new enough for the CUDA that torch was built for?"""
    if is_active():
        return skipped("The null GPU has no driver.", "torch-timeline doctor")
    found = nvidia_driver()
    if found is None:
        return skipped("This machine has no NVIDIA driver.", TRY_NULL_GPU)
    cuda = torch_build(torch_folder()).cuda
    facts = {"driver": found, "cuda": cuda}
    if not cuda:
        return skipped(f"NVIDIA's driver {found} is here, and torch is not built for CUDA.", **facts)
    needed = OLDEST_DRIVERS.get(_numbers(cuda)[0])
    if needed is not None and _numbers(found)[0] < needed:
        return failed(
            f"NVIDIA's driver {found} is too old for torch's CUDA {cuda}, which takes {needed} or newer.",
            f"install driver {needed} or newer, or {_older_torch(_numbers(found)[0])}",
            **facts,
        )
    return passed(f"NVIDIA's driver {found}, new enough for CUDA {cuda}.", **facts)


def _older_torch(driver: int) -> str:
    served = max((cuda for cuda, needed in OLDEST_DRIVERS.items() if driver >= needed), default=None)
    build = {12: "12.6", 11: "11.8"}.get(served or 0)
    return "a newer card" if build is None else f"torch's build for CUDA {build} (pytorch.org, Get Started)"


def nvidia_driver() -> str | None:
    """The version of NVIDIA's kernel driver, such as 580.65.06; None where there is none, and on the null GPU."""
    if is_active():
        return None
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        ended = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20)
        said = ended.stdout
    except (OSError, subprocess.SubprocessError):
        said = _kernel_module()
    match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", said)
    return match[0] if match else None


def _kernel_module() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return ""


# ------------------------------------------------------------------------------------------------ variables, compilers
def allocator_settings() -> Outcome:
    """Does torch take the allocator's settings of the environment, and do they leave its own allocator in place?"""
    given = {name: value for name in ALLOCATOR_VARIABLES if (value := os.environ.get(name))}
    facts = {**given, WITHOUT_CACHE: os.environ.get(WITHOUT_CACHE)}
    if facts[WITHOUT_CACHE]:
        sentence = (
            f"{WITHOUT_CACHE} switches torch's caching allocator off, so that no history or reserved memory exists."
        )
        return failed(sentence, f"unset {WITHOUT_CACHE}", **facts)
    if len(set(given.values())) > 1:
        others = list(given)[1:]
        return failed(f"{' and '.join(given)} differ; torch reads one of them.", f"unset {' '.join(others)}", **facts)
    for name, value in given.items():
        if "backend:" in value and "backend:native" not in value:
            return failed(
                f"{name} replaces torch's allocator ({value}): nothing it allocates is recorded.",
                f"unset {name}",
                **facts,
            )
        try:
            parse_settings(value)
        except SettingsError as error:
            return failed(f"{name}={value}: {error}", f"unset {name}", **facts)
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return passed(f"Allocator settings: {words or 'none, so that torch has its defaults'}.", **facts)


def compiler() -> Outcome:
    """Is there a C compiler with the headers that the null GPU and torch.compile need?"""
    try:
        found = find_toolchain(read_torch(torch_folder()))
    except NullGpuError as error:
        is_missing = sys.platform == "linux" and "compiler" in str(error)
        return (failed if is_missing else skipped)(str(error), _command(error.hint))
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if not headers.is_file():
        sentence = "Python.h is missing, which torch.compile's generated code includes."
        return failed(sentence, "apt-get install python3-dev", compiler=found.compiler)
    return passed(
        f"The C compiler is {found.compiler}; Python's and NVIDIA's headers are here.", compiler=found.compiler
    )


def _command(hint: str) -> str:
    """The command of a hint, without the remark behind it: `pip install torch  (or ...)`."""
    return hint.partition("  (")[0]


# ------------------------------------------------------------------------------------------------------------- folders
def null_gpu_cache() -> Outcome:
    """Can the null GPU's libraries be read from the cache, or be built into it?"""
    try:
        torch = read_torch(torch_folder())
    except NullGpuError as error:
        return skipped(str(error), _command(error.hint))
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            built = cache_folder(torch)
        except NullGpuError as error:
            return failed(str(error), error.hint)
        except OSError as error:
            return _unreadable(Path(str(error.filename or "the cache")), error)
    elsewhere = " ".join(str(warning.message) for warning in said)
    if (problem := _cannot_use(built)) is not None:
        return problem
    state = "is built" if (built / NAME).is_file() else "is built with its first use"
    if elsewhere:
        return failed(elsewhere, f"chmod -R go-w {user_cache()}", folder=str(built))
    return passed(f"The null GPU {state}, in {built.parent}.", folder=str(built))


def _cannot_use(built: Path) -> Outcome | None:
    """A failure if a build can be neither read nor made."""
    try:
        if (built / NAME).is_file():
            for path in libraries(built / NAME):
                path.open("rb").close()
            return None
    except OSError as error:
        return _unreadable(built, error)
    nearest = next(path for path in (built, *built.parents) if path.exists())
    if not nearest.is_dir():
        sentence = f"The null GPU cannot be built: {nearest} is a file, not a folder."
        return failed(sentence, "export XDG_CACHE_HOME=$HOME/.cache", folder=str(nearest))
    try:
        with tempfile.TemporaryFile(dir=nearest):
            return None
    except OSError as error:
        return _unreadable(nearest, error)


def _unreadable(folder: Path, error: OSError) -> Outcome:
    reason = error.strerror or str(error)
    sentence = f"The null GPU's cache cannot be used: {folder}: {reason}."
    return failed(sentence, f"chmod -R u+rwX {folder}", folder=str(folder))


def disk() -> Outcome:
    """Can files be written here, into the temporary folder and the cache, and is there room?"""
    folders = {"this folder": working_folder(), "the temporary folder": Path(tempfile.gettempdir())}
    cache = user_cache()
    folders["the cache"] = next((path for path in (cache, *cache.parents) if path.is_dir()), Path("/"))
    facts: dict[str, int] = {}
    for name, folder in folders.items():
        try:
            free = shutil.disk_usage(folder).free
            if free >= _LEAST_FREE_BYTES:
                check_folder(folder)
        except (OSError, OutputError) as error:
            return failed(f"Files cannot be written to {name}: {error}", f"ls -ld {folder}", **facts)
        facts[f"free bytes of {name}"] = free
        if free < _LEAST_FREE_BYTES:
            sentence = f"The disk of {name} is full: {format_bytes(free)} are free, and {folder} needs "
            return failed(f"{sentence}{format_bytes(_LEAST_FREE_BYTES)}.", f"df -h {folder}", **facts)
    return passed(f"Files can be written; at least {format_bytes(min(facts.values()))} are free.", **facts)


# ------------------------------------------------------------------------------------------------------------ packages
def extras() -> Outcome:
    """Which optional packages are here, and are they new enough?"""
    wanted = list(_wanted_by_extras())
    if not wanted:
        return skipped(f"The package {_PACKAGE} is not installed, only its files are here.", "pip install .")
    found = _installed()
    facts = {name: found.get(name) for name, _, _ in wanted}
    old = [f"{name}>={least}" for name, least, _ in wanted if name in found and _numbers(found[name]) < _numbers(least)]
    if old:
        words = ", ".join(f"{name} {found[name]}" for name, least, _ in wanted if f"{name}>={least}" in old)
        return failed(f"Optional packages are too old: {words}.", f"pip install {_quoted(old)}", **facts)
    missing = [f"{name}>={least}" for name, least, _ in wanted if name not in found]
    here = ", ".join(f"{name} {version}" for name, version in facts.items() if version) or "none"
    if missing:
        names = ", ".join(name.partition(">")[0] for name in missing)
        return skipped(f"Optional packages: {here}; not here: {names}.", f"pip install {_quoted(missing)}", **facts)
    return passed(f"Optional packages: {here}.", **facts)


def _quoted(requirements: list[str]) -> str:
    return " ".join(f"'{requirement}'" for requirement in requirements)


def _wanted_by_extras() -> Iterator[tuple[str, str, str]]:
    """Package, least version and extra, as the installed metadata has them."""
    try:
        requirements = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return
    for requirement in requirements:
        match = re.match(r"([\w.-]+)\s*>=\s*([\d.]+)\s*;.*extra == ['\"](\w+)", requirement)
        if match is not None:
            yield normal_name(match[1]), match[2], match[3]


def cuda_packages() -> Outcome:
    """Is each of NVIDIA's packages here once, in the version that torch was built with?"""
    found = {name: version for name, version in _installed().items() if re.fullmatch(_OF_CUDA, name)}
    facts = dict(found)
    by_base: dict[str, list[str]] = {}
    for name in sorted(found):
        by_base.setdefault(re.sub(r"-cu\d+$", "", name), []).append(name)
    pins = torch_pins()
    for base, names in by_base.items():
        if len(names) > 1 and any(name in pins or not pins for name in names):
            odd = [name for name in names if name not in pins] or names[:-1]
            return failed(
                f"{base.removeprefix('nvidia-')} is installed in {len(names)} copies: {', '.join(names)}. They share a "
                "folder, and torch loads whichever came last.",
                f"pip uninstall -y {' '.join(odd)}  &&  "
                f"pip install --force-reinstall --no-deps {_pin_words(names, pins)}",
                **facts,
            )
    wrong = [name for name, version in pins.items() if name in found and found[name] != version]
    if wrong:
        words = ", ".join(f"{name} {found[name]} in the place of {pins[name]}" for name in wrong)
        return failed(
            f"torch was built with other packages: {words}.", f"pip install {_pin_words(wrong, pins)}", **facts
        )
    if not found:
        return skipped("None of NVIDIA's packages are installed beside torch.", **facts)
    return passed(f"{len(found)} of NVIDIA's packages, each in one copy.", **facts)


def _pin_words(names: list[str], pins: Mapping[str, str]) -> str:
    return " ".join(f"{name}=={pins[name]}" for name in names if name in pins) or "torch"


def torch_pins() -> dict[str, str]:
    """Return the versions of NVIDIA's packages that torch was built with, by name: `nvidia-cudnn-cu13`: `9.26.0.51`."""
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    found = (re.match(r"(nvidia-[\w.-]+?)\s*==\s*([\d.]+)\s*(?:;|$)", requirement) for requirement in requirements)
    return {normal_name(match[1]): match[2] for match in found if match is not None}


def _installed() -> dict[str, str]:
    """Versions of the installed packages, by name; of a name that is there twice the first on the path."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if name := distribution.metadata["Name"]:
            found.setdefault(normal_name(name), distribution.version)
    return found


INSTALLED: dict[str, Callable[[], Outcome]] = {
    "torch": supported_torch,
    "driver": driver,
    "allocator settings": allocator_settings,
    "compiler": compiler,
    "null GPU cache": null_gpu_cache,
    "disk": disk,
    "CUDA packages": cuda_packages,
    "extras": extras,
}
"""The checks of this file, by name."""


def normal_name(package: str) -> str:
    """Return the spelling of a package's name in which names are compared.

    Source:
        packaging.python.org, "Names and normalization".
    """
    return re.sub(r"[-_.]+", "-", package).lower()
