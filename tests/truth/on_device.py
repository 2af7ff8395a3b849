"""A program on a device, watched and not: what it breaks, and what it says of the peak, by the allocator's own count.

A program is put there by torch's default device. On the null GPU its losses say nothing; what watching did to the
program is compared all the same, and there as well nothing may differ.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch.autograd import Variable

from tests.truth.bookkeeper import Instant
from tests.truth.catalogue import entry_of
from tests.truth.isolate import WITHOUT_CACHES, in_fresh_process
from tests.truth.program import Provable
from tests.truth.running import Claims, Effects, first_recorded, run_under_bookkeeper, run_unwatched, run_watched
from tests.truth.verdict import Share, Verdict, differences, instants_of, kinds, knows_batch, wrong_sum
from tracer.answers.beside_torch import NOT_PLACED
from tracer.null_gpu.process import is_active
from tracer.sessions.on_null_gpu import values_on

T = TypeVar("T")
DEVICE = "cuda:0"
_GRANULE_BYTES = 512
"""In which CUDA's caching allocator gives memory out."""


def judge_on_device(name: str, variables: Mapping[str, str] = WITHOUT_CACHES) -> Verdict:
    """Run a program three times on the device, each in a process of its own, two at a time, and compare.

    Args:
        variables: Of these processes, such as those that have them on the null GPU.
    """
    folder = Path(tempfile.mkdtemp())
    of_its_own = {**variables, "NULL_GPU_NODE": ""}  # a card of the null GPU, whose driver counts that process alone
    call = partial(in_fresh_process, on_device, variables=of_its_own)
    try:
        with ThreadPoolExecutor(2) as two:
            runs = [
                two.submit(call, run_and_count, name),
                two.submit(call, watch_and_count, name, folder),
                two.submit(call, run_under_bookkeeper, name, size_there),
            ]
            results: list[Any] = [run.result() for run in runs]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    plain, watched, booked = results
    if plain.value is None:
        return Verdict(name, broken=plain.error)
    effects, counted = plain.value
    if watched.value is None:
        return Verdict(name, crash=watched.error, true_bytes=(counted, counted))
    theirs, claims, beside_bytes = watched.value
    if claims.crash:
        return Verdict(name, crash=claims.crash, true_bytes=(counted, counted))
    claimed = claims.peak["allocator_peak_bytes"]
    is_exact = entry_of(name).provable is Provable.EXACT and booked.value is not None
    return Verdict(
        name,
        changed=tuple(differences(effects, theirs)),
        kept=tuple(what for what, alive in theirs.alive_after.items() if alive and not effects.alive_after.get(what)),
        wrong_sum=wrong_sum(claims.peak) or wrong_beside(name, claims.peak["beside_torch"], beside_bytes),
        wrong_peak="" if claimed == counted else f"{claimed:,}, and the allocator counted {counted:,}",
        claimed_bytes=claimed,
        true_bytes=(counted, counted),
        kinds=kinds_of(name, claims, booked.value[1].instants) if is_exact else None,
        beside=placed(claims.peak["beside_torch"]),
    )


def wrong_beside(name: str, beside: Mapping[str, Any] | None, counted: int) -> str:
    """Rows beside torch's allocator are what the driver counts less what torch has reserved, behind the last step."""
    if beside is None:  # as of a model without parameters, whose device is not known
        return "nothing is said of memory beside torch"
    rows = sum(row["bytes"] for row in beside["rows"])
    is_right = rows == counted == beside["used_bytes"] - beside["reserved_bytes"]
    is_shared = not is_active()  # a GPU's driver counts other programs, which begin and end meanwhile
    return (
        ""
        if is_right or is_shared or entry_of(name).fails
        else f"rows beside torch {rows:,}, by the driver {counted:,}"
    )


def placed(beside: Mapping[str, Any] | None) -> Share:
    """Return the bytes beside torch's allocator that have a place, of all."""
    rows = beside["rows"] if beside is not None else ()
    without = [row for row in rows if row["what"] != NOT_PLACED]
    return Share(sum(row["bytes"] for row in without), sum(row["bytes"] for row in rows))


@contextmanager
def engine_waited_for() -> Iterator[None]:
    """Wait behind every backward pass until the device's thread of the engine has let go of what it gave back.

    It does a moment after the call has returned, and needs Python's lock for it: whether the program or that thread
    goes on first is chance, and with it what is alive where `grad` of torch.func hands out gradients with graphs. What
    it is given to wait for has no bytes, and is in no recording.
    """
    leaf = torch.empty(0, device=DEVICE, requires_grad=True)
    root, gradient = leaf * 1, torch.empty(0, device=DEVICE)
    run_backward = torch.autograd.graph._engine_run_backward

    def and_wait(*args: Any, **kwargs: Any) -> Any:
        returned = run_backward(*args, **kwargs)
        if torch._C._current_graph_task_id() < 0:
            torch._C._autograd._enable_record_function(False)
            try:
                Variable._execution_engine.run_backward((root,), (gradient,), True, False, (leaf,), True, False)
            finally:
                torch._C._autograd._enable_record_function(True)
        return returned

    with patch.object(torch.autograd, "_engine_run_backward", and_wait):
        yield


def on_device(run: Callable[..., T], *arguments: Any) -> T:
    """Call it with the device as torch's default one, and as commands do with `--on`, with values that decide sizes."""
    torch.set_default_device(DEVICE)
    torch.empty(0)  # the context is there, and torch's list of functions that make tensors
    with values_on({}), engine_waited_for():
        return run(*arguments)


def run_and_count(name: str) -> tuple[Effects, int]:
    """As its author runs it, and the most that the allocator counted over the recorded steps."""
    counted = [0]

    index_now = 0

    def before_step(index: int) -> None:
        nonlocal index_now
        index_now = index
        torch.cuda.reset_peak_memory_stats()

    def after_step() -> None:
        if index_now >= first_recorded(index_now, name):
            counted.append(torch.cuda.max_memory_allocated())

    return run_unwatched(name, before_step, after_step), max(counted)


def watch_and_count(name: str, folder: Path) -> tuple[Effects, Claims, int]:
    """Watched, with what the driver counts beside torch's allocator behind the last step."""
    counted = [0]

    def after_step() -> None:
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        counted.append(total_bytes - free_bytes - torch.cuda.memory_reserved())

    return *run_watched(name, folder, after_step), counted[-1]


def size_there(storage: torch.UntypedStorage) -> int:
    """As the device's caching allocator counts it; 0 elsewhere."""
    return -(-storage.nbytes() // _GRANULE_BYTES) * _GRANULE_BYTES if str(storage.device) == DEVICE else 0


def kinds_of(name: str, claims: Any, instants: Iterable[Instant]) -> Share:
    """Of the blocks on the device."""
    chosen = instants_of(claims.peak, instants, [size for size, _ in claims.blocks])
    batch, fails = knows_batch(name), entry_of(name).fails
    shares = (kinds(claims.blocks, each.blocks, knows_batch=batch, has_failed=fails) for each in chosen)
    return max(shares, key=lambda share: share.part)
