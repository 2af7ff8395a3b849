"""Runs all checks: those of the installation here, those that need torch in processes of their own.

A process that dies takes one check with it: another one goes on with the next.
"""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracer.command_line import in_role, program_commit
from tracer.errors import TracerError
from tracer.null_gpu.cards import H100, Card, named_card
from tracer.null_gpu.process import environment, is_active
from tracer.results.doctor import CheckResult, DoctorReport, Fact, Outcome, Status, failed, passed, skipped
from tracer.sessions.doctor.installed import INSTALLED, SEND_REPORT, nvidia_driver
from tracer.sessions.jobs.child_processes import ChildProcesses, Ended
from tracer.units import some

if TYPE_CHECKING:
    import torch

ROLE: Final = "doctor"
"""The part of a role that has the assignment of a process."""
NULL_GPU, BESIDE = "null GPU", "beside the null GPU"
_ONE_PROGRAM = "LSTM"
"""Run on the null GPU where there is no device to compare with: a small one."""
_MOST_OFF = {"allocated": 0.032, "reserved": 0.092}
"""How far the null GPU may be off: the most of 25 trainings on an H100 (benchmarks/results.md)."""
_MOST_PROCESSES = 8
_NUM_FRAMES = 4
_OF_A_TRACEBACK = re.compile(r"\s*File \".*\", line \d+|Fatal |(?:Current t|T)hread |[\w.]*(?:Error|Exception)\b")


@dataclass(frozen=True, slots=True)
class Assignment:
    """The checks that a process makes."""

    file: str  # Takes its answers, a line each
    device: str | None = None  # None for the GPU if there is one, else the CPU
    # Names of the only checks, as the null GPU runs what a device has run; None for all that the device allows.
    names: tuple[str, ...] | None = None
    done: tuple[str, ...] = ()  # Names of the checks that are not asked again


@dataclass(slots=True)
class _Answers:
    about: dict[str, Fact] = field(default_factory=dict)
    installed: list[CheckResult] = field(default_factory=list)
    works: list[CheckResult] = field(default_factory=list)


# ------------------------------------------------------------------------------------------------- this process's part
def examine(device: str | None, tell: Callable[[str], None]) -> DoctorReport:
    """Ask every check.

    Args:
        device: The device as the user named it; None for the GPU if there is one, else the CPU.
        tell: Called with a sentence on what is being done.
    """
    tell("Looking at what is installed ...")
    installed = [_asked(name, check) for name, check in INSTALLED.items()]
    tell("Training small models; this takes half a minute, on a GPU two minutes ...")
    children = ChildProcesses()
    is_on_null_gpu = is_active()
    with ThreadPoolExecutor(1) as pool, tempfile.TemporaryDirectory(prefix="doctor-") as name:
        folder = Path(name)
        early: Future[list[CheckResult]] | None = None
        if not is_on_null_gpu and nvidia_driver() is None:
            early = pool.submit(_on_null_gpu, H100, (_ONE_PROGRAM,), folder, children)
        found = _on_device(Assignment(str(folder / "device"), device), dict(os.environ), children)
        works = [*found.works]
        if early is not None:
            works += _null_gpu_alone(early)
        elif not is_on_null_gpu:
            works += _beside(found, folder, children)
    return DoctorReport(
        about={**_about(), **found.about},
        installed=(*installed, *found.installed),
        works=tuple(works),
        computed=not is_on_null_gpu,
    )


def _asked(name: str, check: Callable[[], Outcome]) -> CheckResult:
    begin = time.perf_counter()
    try:
        outcome = check()
    except Exception as error:  # a check that this machine surprises says so, and the others are asked
        outcome = broken(error)
    return CheckResult(name, outcome, round(time.perf_counter() - begin, 2))


def broken(error: Exception) -> Outcome:
    """Return the failure of a check that raised, with the last lines of its traceback."""
    frames = traceback.extract_tb(error.__traceback__)[-_NUM_FRAMES:]
    facts: dict[str, Fact] = {"traceback": [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in frames]}
    sentence = next(iter(str(error).strip().splitlines()), "")
    mend = error.hint if isinstance(error, TracerError) and error.hint else SEND_REPORT
    return failed(f"{type(error).__name__}: {sentence}", mend, **facts)


def _on_device(assignment: Assignment, variables: Mapping[str, str], children: ChildProcesses) -> _Answers:
    """Ask in processes, each of which goes on where the one before has died."""
    found = _Answers()
    for _ in range(_MOST_PROCESSES):
        ended = children.run_again({**variables, **in_role(**{ROLE: asdict(assignment)})})
        begun = _read(Path(assignment.file), found)
        if begun is None and ended.status == 0:
            break
        name = begun or ("end of Python" if found.about else "start of Python")
        died = CheckResult(name, _died(name, ended))
        found.works.append(died)
        if begun is None:  # it does not even begin
            break
        done = {check.name for check in (*found.installed, *found.works)}
        assignment = replace(assignment, done=tuple(sorted(done)))
    return found


def _died(name: str, ended: Ended) -> Outcome:
    how = f"by {signal.Signals(-ended.status).name}" if ended.status < 0 else f"with status {ended.status}"
    printed = [line for line in ended.lines if _OF_A_TRACEBACK.match(line)][-12:]  # what a program prints is its own
    last = next((line.strip() for line in reversed(printed)), "no error was printed")
    facts: dict[str, Fact] = {"printed": printed}
    return failed(f"Python ended {how} here: {last}", "python -X faulthandler -c 'import torch'", **facts)


def _read(path: Path, found: _Answers) -> str | None:
    """Add what a process has answered; return the check that it had begun and not ended."""
    begun: str | None = None
    for line in path.read_text("utf-8").splitlines() if path.is_file() else ():
        values = json.loads(line)
        if "about" in values:
            found.about.update(values["about"])
        elif "begin" in values:
            begun = values["begin"]
        else:
            begun = None
            outcome = Outcome(**{**values["outcome"], "status": Status(values["outcome"]["status"])})
            answers = found.installed if values["is_of_installation"] else found.works
            answers.append(CheckResult(values["name"], outcome, values["seconds"]))
    path.unlink(missing_ok=True)
    return begun


# ---------------------------------------------------------------------------------------------------- the null GPU's
def _on_null_gpu(card: Card, names: Sequence[str], folder: Path, children: ChildProcesses) -> list[CheckResult]:
    """Run programs on the null GPU.

    Raises:
        TracerError: It cannot be built here.
    """
    base = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    variables = environment([card], base)  # which heeds that variable too, and is one device
    return _on_device(Assignment(str(folder / "null"), "cuda:0", tuple(names)), variables, children).works


def _null_gpu_alone(answers: Future[list[CheckResult]]) -> list[CheckResult]:
    try:
        return [replace(answer, name=NULL_GPU) for answer in answers.result()]
    except TracerError as error:  # the checks of the compiler and of the cache fail where that can be mended
        return [CheckResult(NULL_GPU, skipped(str(error), error.hint))]


def _beside(found: _Answers, folder: Path, children: ChildProcesses) -> list[CheckResult]:
    """The programs of a device again, on the null GPU of its card."""
    measured = {check.name: check.outcome.facts for check in found.works if "allocated" in check.outcome.facts}
    name = str(found.about.get("name", ""))
    card = named_card(name)
    if not measured or card is None:
        sentence = f"{name or 'The CPU'} is not in the table of cards, so that no null GPU stands beside it."
        return [CheckResult(BESIDE, skipped(sentence, "torch-timeline doctor --on h100"))]
    memory = found.about.get("memory")
    if isinstance(memory, int):
        card = replace(card, memory_bytes=memory)
    try:
        answers = _on_null_gpu(card, tuple(measured), folder, children)
    except TracerError as error:
        return [CheckResult(BESIDE, skipped(str(error), error.hint))]
    return [CheckResult(BESIDE, compare(measured, {check.name: check.outcome.facts for check in answers}))]


def compare(device: Mapping[str, Mapping[str, Fact]], null: Mapping[str, Mapping[str, Fact]]) -> Outcome:
    """Compare peaks of programs by name, on a device and on its null GPU: `allocated` and `reserved`, in bytes."""
    facts: dict[str, Fact] = {}
    wrong: list[str] = []
    differing: list[str] = []
    for name, figures in device.items():
        theirs = null.get(name, {})
        for measure, most in _MOST_OFF.items():
            real, other = figures.get(measure), theirs.get(measure)
            if not isinstance(real, int):
                continue
            if not isinstance(other, int):
                wrong.append(f"{name} does not run on the null GPU")
                break
            facts[f"{name}, {measure}"] = [real, other]
            if real != other:
                off = other / max(1, real) - 1
                differing.append(f"{name} {measure} {off:+.2%}")
                if abs(off) > most:
                    wrong.append(differing[-1])
    if wrong:
        return failed(f"The null GPU is further off than on any card before: {', '.join(wrong)}.", SEND_REPORT, **facts)
    equal = f"{some(len(facts) - len(differing), 'peak')} of {len(facts)} equal to the byte"
    return passed(f"The null GPU of this card has {equal}{''.join(f'; {one}' for one in differing)}.", **facts)


# ------------------------------------------------------------------------------------------- of a process with torch
def answer(values: Mapping[str, Any]) -> None:
    """Ask the checks of an assignment, in a process of the role `doctor`, and leave each answer at once."""
    import torch

    from tracer.capture.device import devices
    from tracer.sessions.doctor.checks import checks_for
    from tracer.sessions.doctor.trained import let_go
    from tracer.sessions.on_null_gpu import values_on

    given = Assignment(**{**values, "names": values["names"] and tuple(values["names"])})
    named = given.device or ("cuda:0" if torch.cuda.is_available() else "cpu")
    device = devices.with_index(torch.device(named))
    if device.type == "cpu":
        torch.set_num_threads(1)  # small models only lose by sharing
    with Path(given.file).open("a", encoding="utf-8") as file, values_on({}):

        def write(**line: object) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        write(about=_about_device(device))
        # The null GPU runs by name what a device has run.
        for check in checks_for(device, is_real=given.names is not None or not is_active()):
            if check.name in given.done or (given.names is not None and check.name not in given.names):
                continue
            write(begin=check.name)
            result = _asked(check.name, lambda ask=check.ask: ask(device))  # type: ignore[misc]
            let_go(device)
            write(
                name=check.name,
                outcome=asdict(result.outcome),
                seconds=result.seconds,
                is_of_installation=check.is_of_installation,
            )


def _about_device(device: torch.device) -> dict[str, Fact]:
    import torch

    from tracer.capture.device import devices

    memory = devices.device_memory(device)
    return {
        "device": str(device),
        "name": devices.device_name(device),
        "memory": memory[1] if memory is not None else None,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": _cudnn_version(),
    }


def _about() -> dict[str, Fact]:
    return {
        "program": import_module("tracer").__version__,
        "commit": program_commit() or None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()).strip(),
        "processors": os.cpu_count(),
        "is WSL": "microsoft" in platform.release().lower(),
        "is in a container": Path("/.dockerenv").exists() or Path("/run/.containerenv").exists(),
        "is a virtual environment": sys.prefix != sys.base_prefix,
        "LD_LIBRARY_PATH is set": bool(os.environ.get("LD_LIBRARY_PATH")),
        "driver": nvidia_driver(),
    }


def _cudnn_version() -> int | None:
    import torch

    try:
        version: int | None = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    except RuntimeError:  # a wrong one, of which the check of cuDNN says more
        return None
    return version
