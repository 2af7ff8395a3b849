"""`torch-timeline doctor`: versions, compiler, the null GPU's build, and a training whose rows sum on each device."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from tracer.command_line import in_role, take_role
from tracer.commands.common import errors_for_people
from tracer.commands.on_card import start_on
from tracer.commands.options import AsJson, option
from tracer.errors import NullGpuError, SettingsError, TracerError
from tracer.exporters.screen.terminal import print_json, screen
from tracer.exporters.screen.text import say as say_on
from tracer.null_gpu.build import NAME, cache_folder, find_toolchain, libraries, read_torch, torch_build, torch_folder
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment, is_active
from tracer.sessions.jobs.child_processes import ChildProcesses
from tracer.units import format_bytes, some

if TYPE_CHECKING:
    import torch

    from tracer.answers.peak import Peak
    from tracer.sessions.profile_session import ProfileSession

VERSION: Final = 1
"""Version of the JSON document."""
ROLE: Final = "doctor"
"""The part of a role that has the device on which a process trains."""
OLDEST_TORCH, NEWEST_TRIED_TORCH = (2, 7), (2, 15)
_SUPPORTED_TORCH: Final = "pip install 'torch>={}.{},<{}.{}'".format(
    *OLDEST_TORCH, NEWEST_TRIED_TORCH[0], NEWEST_TRIED_TORCH[1] + 1
)
_OLDEST_DRIVERS: Final = {11: 450, 12: 525, 13: 580}
"""The oldest driver of each major version of CUDA, by its own major number.

Source:
    CUDA Toolkit release notes, "CUDA Toolkit and Minimum Required Driver Version for CUDA Minor Version Compatibility".
"""
_NO_CACHING: Final = "PYTORCH_NO_CUDA_MEMORY_CACHING"
_SEND: Final = "torch-timeline doctor --json  # and send it"
_STYLES: Final = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}
_EXPLAINED_PART: Final = 0.99
_NOT_EXPLAINED: Final = ("BEFORE_RECORDING", "UNKNOWN")


@dataclass(frozen=True, slots=True)
class Outcome:
    """The answer of a check."""

    status: Literal["PASS", "FAIL", "SKIP"]
    sentence: str
    mend: str = ""  # The command that mends a failure, or with which a skipped check can be asked; empty if none does


@dataclass(frozen=True, slots=True)
class Check:
    """An answer with the check's name."""

    name: str
    status: Literal["PASS", "FAIL", "SKIP"]
    sentence: str
    mend: str
    seconds: float


def doctor(
    on: Annotated[
        str | None, option("Train on the null GPU of this card: h100, rtx-4090. Nothing is computed.", metavar="<card>")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what works here, and how to mend the rest.

    PASS is well, FAIL has the command that mends it, SKIP says why it could not
    be asked. A small model is trained on the CPU, on the null GPU, and on a GPU
    if there is one. Exits with 1 if a check fails.

    torch-timeline doctor
    """
    checks: list[Check] = []
    with errors_for_people():
        if on is not None:
            start_on(on)
        if (device := take_role(ROLE)) is not None:
            with screen() as console:
                print_json(asdict(_asked(device, lambda: train(device))), console)
            return
        for check in examine():
            checks.append(check)
            if not as_json:
                with screen() as console:
                    console.print(f"{check.status}", style=_STYLES[check.status], end="", markup=False)
                    console.print(f"  {check.name:{_WIDTH}}  {check.sentence}", soft_wrap=True, markup=False)
                    if check.mend and check.status != "PASS":
                        console.print(f"{'':{_WIDTH + 8}}{check.mend}", soft_wrap=True, markup=False)
        with screen() as console:
            if as_json:
                print_json(doctor_json(checks), console)
            else:
                counts = ", ".join(f"{sum(check.status == status for check in checks)} {status}" for status in _STYLES)
                failed = ", ".join(check.name for check in checks if check.status == "FAIL")
                mend = f" Mend first: {failed}." if failed else ""
                say_on(console, f"{some(len(checks), 'check')}: {counts}.{mend}")
    if any(check.status == "FAIL" for check in checks):
        raise typer.Exit(1)


def examine() -> Iterator[Check]:
    """Yield the answer of each check: of what is installed, and of a training on each device that is here."""
    for name, ask in INSTALLED.items():
        yield _asked(name, ask)
    if is_active():
        yield _asked("null GPU", lambda: _trained("cuda:0", os.environ))
        return
    yield _asked("CPU", lambda: _trained("cpu", os.environ))
    yield _asked("null GPU", _on_null_gpu)
    yield _asked("GPU", _on_gpu)


def _asked(name: str, ask: Callable[[], Outcome]) -> Check:
    begin = time.perf_counter()
    try:
        outcome = ask()
    except Exception as error:  # a check that this machine surprises says so, and the others are asked
        sentence = next(iter(str(error).strip().splitlines()), "")
        mend = error.hint if isinstance(error, TracerError) and error.hint else _SEND
        outcome = Outcome("FAIL", f"{type(error).__name__}: {sentence}", mend)
    return Check(name, outcome.status, outcome.sentence, outcome.mend, round(time.perf_counter() - begin, 2))


def doctor_json(checks: Sequence[Check]) -> dict[str, Any]:
    """Return the answers as values for JSON; docs/files.md describes them."""
    from tracer.exporters.json_documents.header import json_header

    return {
        **json_header("doctor", VERSION, computed=not is_active()),
        "counts": {status: sum(check.status == status for check in checks) for status in _STYLES},
        "checks": [asdict(check) for check in checks],
    }


# -------------------------------------------------------------------------------------------------- what is installed
def versions() -> Outcome:
    """Which program, Python and system is this?"""
    program = import_module("tracer").__version__
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Outcome("PASS", f"torch-timeline {program}, Python {platform.python_version()}, {system}.")


def supported_torch() -> Outcome:
    """Is torch here, of a version that is supported, and built for the GPU that is here?"""
    try:
        found = torch_build(torch_folder())
    except NullGpuError:
        return Outcome("FAIL", "torch is not installed.", "pip install torch")
    version = found.version or importlib.metadata.version("torch")
    numbers = _numbers(version)[:2]
    if numbers < OLDEST_TORCH:
        return Outcome("FAIL", f"torch {version} is older than {OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}.", _SUPPORTED_TORCH)
    driver = nvidia_driver()
    if driver is not None and not found.cuda and not found.hip:
        sentence = f"torch {version} is built for the CPU alone, and this machine has NVIDIA's driver {driver}."
        return Outcome("FAIL", sentence, "pip install --force-reinstall torch")
    built = f"CUDA {found.cuda}" if found.cuda else f"ROCm {found.hip}" if found.hip else "the CPU alone"
    newer = "" if numbers <= NEWEST_TRIED_TORCH else "; newer than any that was tried"
    return Outcome("PASS", f"torch {version}, built for {built}{newer}.")


def _numbers(version: str) -> tuple[int, ...]:
    """`2.15.0+cu132` is (2, 15, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.partition("+")[0]))


def driver() -> Outcome:
    """Is NVIDIA's driver new enough for the CUDA that torch was built for?"""
    found = nvidia_driver()
    cuda = torch_build(torch_folder()).cuda
    if found is None:
        return Outcome("SKIP", "The null GPU has no driver." if is_active() else "This machine has no NVIDIA driver.")
    if not cuda:
        return Outcome("SKIP", f"NVIDIA's driver {found} is here, and torch is not built for CUDA.")
    needed = _OLDEST_DRIVERS.get(_numbers(cuda)[0], 0)
    if _numbers(found)[0] < needed:
        sentence = f"NVIDIA's driver {found} is too old for torch's CUDA {cuda}, which takes {needed} or newer."
        older = "torch's build for an older CUDA (pytorch.org, Get Started)"
        return Outcome("FAIL", sentence, f"install driver {needed} or newer, or {older}")
    return Outcome("PASS", f"NVIDIA's driver {found}, new enough for CUDA {cuda}.")


def nvidia_driver() -> str | None:
    """Return the version of NVIDIA's driver, such as 580.65.06; None where there is none, and on the null GPU."""
    if is_active():
        return None
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        said = _kernel_module()
    match = re.search(r"\b\d{3}\.\d+(?:\.\d+)?\b", said)
    return match[0] if match else None


def _kernel_module() -> str:
    try:
        return Path("/proc/driver/nvidia/version").read_text("utf-8")
    except OSError:
        return ""


def cuda_packages() -> Outcome:
    """Is each of NVIDIA's packages the one that torch was built with?"""
    try:
        requirements = importlib.metadata.requires("torch") or []
    except importlib.metadata.PackageNotFoundError:
        requirements = []
    matches = (re.match(r"(nvidia-[\w.-]+?)==([\d.]+)", line) for line in requirements)
    pins = {match[1]: match[2] for match in matches if match is not None}
    found = {name: version for name in pins if (version := _version_of(name)) is not None}
    wrong = [name for name, version in found.items() if version != pins[name]]
    if wrong:
        words = ", ".join(f"{name} {found[name]} in the place of {pins[name]}" for name in wrong)
        mend = f"pip install {' '.join(f'{name}=={pins[name]}' for name in wrong)}"
        return Outcome("FAIL", f"torch was built with other packages: {words}.", mend)
    if not found:
        return Outcome("SKIP", "None of NVIDIA's packages are installed beside torch.")
    return Outcome("PASS", f"{some(len(found), 'package')} of NVIDIA, of the versions that torch was built with.")


def _version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def allocator_settings() -> Outcome:
    """Does torch take the allocator's settings of the environment, and do they leave its own allocator in place?"""
    from tracer.allocator.settings import ALLOCATOR_VARIABLES, parse_settings

    if os.environ.get(_NO_CACHING):
        sentence = f"{_NO_CACHING} switches torch's caching allocator off, so that there is no history."
        return Outcome("FAIL", sentence, f"unset {_NO_CACHING}")
    given = {name: value for name in ALLOCATOR_VARIABLES if (value := os.environ.get(name))}
    if len(set(given.values())) > 1:
        sentence = f"{' and '.join(given)} differ; torch reads one of them."
        return Outcome("FAIL", sentence, f"unset {' '.join(list(given)[1:])}")
    for name, value in given.items():
        if "backend:" in value and "backend:native" not in value:
            sentence = f"{name} replaces torch's allocator ({value}): nothing it allocates is recorded."
            return Outcome("FAIL", sentence, f"unset {name}")
        try:
            parse_settings(value)
        except SettingsError as error:
            return Outcome("FAIL", f"{name}={value}: {error}", f"unset {name}")
    words = ", ".join(f"{name}={value}" for name, value in given.items())
    return Outcome("PASS", f"Allocator settings: {words or 'none, so that torch has its defaults'}.")


def compiler() -> Outcome:
    """Is there a C compiler with the headers that the null GPU and torch.compile need?"""
    try:
        found = find_toolchain(read_torch(torch_folder()))
    except NullGpuError as error:
        is_missing = sys.platform == "linux" and "compiler" in str(error)
        return Outcome("FAIL" if is_missing else "SKIP", str(error), error.hint.partition("  (")[0])
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        sentence = "Python.h is missing, which torch.compile's generated code includes."
        return Outcome("FAIL", sentence, "apt-get install python3-dev")
    return Outcome("PASS", f"The C compiler is {found.compiler}; Python's and NVIDIA's headers are here.")


def null_gpu_build() -> Outcome:
    """Can the null GPU's libraries be read from the cache, or be built into it?"""
    try:
        built = cache_folder(read_torch(torch_folder()))
        is_built = (built / NAME).is_file()
        for path in libraries(built / NAME) if is_built else ():
            path.open("rb").close()
        nearest = next(path for path in (built, *built.parents) if path.exists())
        if not nearest.is_dir():
            sentence = f"The null GPU cannot be built: {nearest} is a file, not a folder."
            return Outcome("FAIL", sentence, "export XDG_CACHE_HOME=$HOME/.cache")
        if not is_built:
            tempfile.TemporaryFile(dir=nearest).close()
    except NullGpuError as error:
        return Outcome("SKIP", str(error), error.hint.partition("  (")[0])
    except OSError as error:
        folder = error.filename or "the cache"
        sentence = f"The null GPU's cache cannot be used: {folder}: {error.strerror or error}."
        return Outcome("FAIL", sentence, f"chmod -R u+rwX {folder}")
    return Outcome("PASS", f"The null GPU is built{'' if is_built else ' with its first use'}, in {built.parent}.")


INSTALLED: dict[str, Callable[[], Outcome]] = {
    "versions": versions,
    "torch": supported_torch,
    "driver": driver,
    "CUDA packages": cuda_packages,
    "settings": allocator_settings,
    "compiler": compiler,
    "build": null_gpu_build,
}
"""The checks without torch, by name."""
_WIDTH: Final = max(map(len, INSTALLED))


# -------------------------------------------------------------------------------------------------------- what works
def _on_null_gpu() -> Outcome:
    base = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    try:
        variables = environment([H100], base)
    except TracerError as error:
        return Outcome("SKIP", str(error), error.hint)
    return _trained("cuda:0", variables)


def _on_gpu() -> Outcome:
    if nvidia_driver() is None and not Path("/dev/kfd").exists():
        return Outcome("SKIP", "This machine has no driver of a GPU.", "torch-timeline doctor --on h100")
    return _trained("cuda:0", os.environ)


def _trained(device: str, variables: Mapping[str, str]) -> Outcome:
    """Train in a process of its own, so that one that dies takes nothing else with it."""
    ended = ChildProcesses().run_again({**variables, **in_role(**{ROLE: device})}, are_errors_apart=True)
    try:
        said = json.loads(ended.text)
        return Outcome(said["status"], said["sentence"], said["mend"])
    except (KeyError, TypeError, ValueError):
        last = next((line for line in reversed(ended.errors.strip().splitlines()) if line.strip()), "nothing was said")
        return Outcome(
            "FAIL", f"Python ended with status {ended.status}: {last}", "python -X faulthandler -c 'import torch'"
        )


def train(name: str) -> Outcome:
    """Train a small transformer for a few recorded steps; compare every figure of its peak that two sources have."""
    import torch

    from tracer.capture.device import devices
    from tracer.sessions.on_null_gpu import values_on
    from tracer.sessions.profile_session import ProfileSession
    from tracer.sessions.schedule import Schedule
    from tracer.workloads.step_options import StepOptions
    from tracer.workloads.user_model import build_user_workload
    from tracer.workloads.workload import train_step

    if name != "cpu" and not torch.cuda.is_available():
        return Outcome("FAIL", "torch sees no GPU here.", "python -c \"import torch; torch.zeros(1, device='cuda')\"")
    device = devices.with_index(torch.device(name))
    with values_on({}):
        workload = build_user_workload(
            "models.gpt:build", device=device, options=StepOptions(batch_size=4, seed=0), device_named=True
        )
        session = ProfileSession(workload.model, workload.optimizer, device=device, schedule=Schedule(1, 1, 2, 1))
        counted = record(session, lambda: train_step(workload), device)
    peak = session.findings.worst.peak
    if wrong := list(wrong_peak(peak, counted, session.notes)):
        return Outcome("FAIL", f"{'; '.join(wrong)}.", _SEND)
    where = devices.device_name(device) or "CPU"
    same = ", as memory_stats has it" if counted else ""
    return Outcome("PASS", f"{where}: a peak of {format_bytes(peak.allocator_peak_bytes)}; the rows sum to it{same}.")


def record(session: ProfileSession, step: Callable[[], object], device: torch.device) -> int:
    """Run the session's steps; return the allocator's largest count in the recorded ones, 0 where it counts none."""
    import torch

    from tracer.capture.device import devices

    counted = [0]
    first = session.stages.schedule.num_wait_steps + session.stages.schedule.num_warmup_steps
    with session:
        for index in range(session.stages.schedule.num_steps):
            if devices.is_accelerator(device):
                torch.accelerator.reset_peak_memory_stats(device)
            step()
            if index >= first:
                counted.append(devices.peak_allocated_bytes(device) or 0)
            session.step()
    if session.fault is not None:
        raise session.fault
    return max(counted)


def wrong_peak(peak: Peak, counted: int, notes: Sequence[str]) -> Iterator[str]:
    """Yield each figure of a peak that two sources have and that differs; `counted` is 0 where nothing counts."""
    total, rows = peak.allocator_peak_bytes, sum(row.bytes for row in peak.rows)
    if rows != total:
        yield f"the rows sum to {rows:,} bytes, and the peak is {total:,}"
    if counted and counted != total:
        yield f"memory_stats has a peak of {counted:,} bytes, and the recording {total:,}"
    explained = sum(row.bytes for row in peak.rows if row.category not in _NOT_EXPLAINED)
    if explained < _EXPLAINED_PART * total:
        yield f"{100 * explained / max(1, total):.1f} % of the peak is explained"
    history = peak.allocator
    if history is None:
        if counted:
            yield " ".join(["the allocator's history is missing.", *notes]).removesuffix(".")
        return
    if history.num_joined != history.num_blocks:
        yield f"{history.num_blocks - history.num_joined:,} of {history.num_blocks:,} blocks are not in the history"
    if history.reserved_bytes != peak.reserved_bytes:
        yield f"the history has {history.reserved_bytes:,} bytes reserved, and the recording {peak.reserved_bytes:,}"
    requested = sum(row.requested_bytes or 0 for row in peak.rows)
    if history.requested_bytes != requested:
        yield f"{history.requested_bytes:,} bytes were requested, and the rows have {requested:,}"
    free = peak.reserved_bytes - peak.peak_bytes - history.pending_bytes
    if history.free_bytes != free:
        yield f"the history has {history.free_bytes:,} free bytes, and the recording {free:,}"
