"""What all tests share: each workload is recorded once per test run, and gpu tests skip where there is no GPU."""

from __future__ import annotations

import gc
import importlib
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

# The process that starts pytest-xdist's workers loads this file first and runs no test: it does without torch, which
# takes two seconds and is imported where it is used.
from tests.compiled_cache import forget_temporary_sources, share_compiled
from tests.processes import end_servers, share_servers
from tests.skips import NO_GPU, NO_VALUES, refused

if TYPE_CHECKING:
    from tests.training_steps import Recorded

# Threads of torch's kernels that spin while they wait take the cores from other processes of a test run.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# What `uv run` leaves for what it starts: hints name the command as it was called, and tests read hints.
os.environ.pop("UV_RUN_RECURSION_DEPTH", None)


Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)
SIGNALS = [
    number for number in sorted(signal.valid_signals()) if number < 32
]  # without those of real time, which nobody here uses
ON_NULL_GPU = {
    "needs_values": NO_VALUES,
}


def pytest_configure(config: pytest.Config) -> None:
    share_compiled()
    share_servers()
    # A shell has what it runs in the background ignore the first two, and nohup the last.
    default = signal.SIG_DFL
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, default),
        (signal.SIGHUP, default),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if getattr(config.option, "dist", "no") == "no":  # this process runs tests
        from hypothesis import settings

        # A busy machine is no fault of the code: no test may fail for the time that it took.
        settings.register_profile("untimed", deadline=None, max_examples=50)
        settings.load_profile("untimed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    return _without_refused_skip((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    return _without_refused_skip((yield))


def _without_refused_skip(report: Report) -> Report:
    """Return the report, as a failure where a machine that has everything but a GPU would not skip."""
    if report.skipped and isinstance(report.longrepr, tuple) and (why := refused(report.longrepr[2])):
        report.outcome, report.longrepr = "failed", why
    return report


def pytest_unconfigure() -> None:
    gc.unfreeze()
    end_servers()
    if "PYTEST_XDIST_WORKER" not in os.environ:
        forget_temporary_sources()


def pytest_runtest_setup(item: pytest.Item) -> None:
    import torch

    from tracer.null_gpu.process import is_active

    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip(NO_GPU)
    if (marks := [mark for mark in ON_NULL_GPU if item.get_closest_marker(mark)]) and is_active():
        pytest.skip(ON_NULL_GPU[marks[0]])
    # Kernels take memory by the number of threads, and weights are drawn: both are alike on every machine and in every
    # order of the tests.
    torch.set_num_threads(2)
    torch.default_generator.manual_seed(7)  # none that a program sets


@pytest.fixture(scope="session")
def recorded() -> Callable[[str], Recorded]:
    """`recorded(name)`: two cycles of two steps of a workload, recorded at the first request."""
    from tests.training_steps import recorded_workload

    return recorded_workload


@pytest.fixture
def one_thread() -> None:
    """Small tensors only lose by sharing, and the order of a sum is one."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions do not see what other tests of this process keep alive: a walk finds only what is named anyway."""
    from tracer.capture.objects.live_tensors import LiveTensors

    monkeypatch.setattr("tracer.sessions.observations.live_tensors", lambda models: LiveTensors((), is_complete=True))


@pytest.fixture(autouse=True, scope="module")
def nothing_of_other_tests() -> None:
    """What is alive by now, thousands of tests among it, is no business of a session's walks over all objects.

    A third of the run's time went there. Frozen objects are outside of what the collector lists. What torch loads when
    the first optimizer is made, a million objects, is among them.
    """
    importlib.import_module("torch._dynamo")
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_compiled() -> Iterator[None]:
    """No test compiles in this process: torch would leave hooks off every optimizer of the tests behind it."""
    from tracer.capture.torch_private.torch_compile import has_compiled

    before = has_compiled()
    yield
    assert has_compiled() == before, "torch.compile has compiled here: this test belongs in a process of its own"


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """No test leaves hooks on all optimizers or modules, signals that wait, or a changed path to those behind it."""
    before = _of_the_process()
    yield
    assert _of_the_process() == before, "this test left something behind: undo it, or take a process of its own"


def _of_the_process() -> dict[str, Any]:
    import torch
    from torch.nn.modules import module
    from torch.optim import optimizer

    from tracer.capture import deferred_handlers

    hooks = [
        *(registry for name, registry in vars(optimizer).items() if name.startswith("_global_optimizer_")),
        *(registry for name, registry in vars(module).items() if name.startswith("_global_") and "_hooks" in name),
    ]
    return {
        "hooks": [hook for registry in hooks for hook in registry.values()],
        "path": list(sys.path),
        "folder": Path.cwd(),
        "dtype": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "signals": (len(deferred_handlers._held), {number: signal.getsignal(number) for number in SIGNALS}),
    }


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Python's own handlers, which a test must leave as they are. A shell's `&`, for one, has Ctrl-C ignored."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}  # type: ignore[arg-type]
    yield
    found = {number: signal.getsignal(number) for number in usual}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert found == usual
