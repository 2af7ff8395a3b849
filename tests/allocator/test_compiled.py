"""The replay in C beside the one in Python: the same programs, the same answers."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.allocator.recorded import GIB, MIB, Program, device_of, parts, reproduced
from tests.snapshot.fuzz import mutated_file
from tracer.allocator import compiled
from tracer.allocator import replay as replay_module
from tracer.allocator.caching_allocator import CachingAllocator
from tracer.allocator.compiled import ReplayLibrary
from tracer.allocator.history import Need, Op, Requests
from tracer.allocator.replay import program_of, replay
from tracer.allocator.settings import parse_settings
from tracer.allocator.start_state import StartState
from tracer.errors import SnapshotError
from tracer.snapshot.load import load_snapshot

SETTINGS = (
    "",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:12",
    "max_split_size_mb:32,garbage_collection_threshold:0.5",
    "max_split_size_mb:64,max_non_split_rounding_mb:32,roundup_power2_divisions:8",
)


@pytest.fixture(scope="module")
def library() -> ReplayLibrary:
    if shutil.which(os.environ.get("CC") or "cc") is None:
        pytest.skip("no C compiler")
    loaded = compiled.load_library(may_compile=True)
    assert loaded is not None
    return loaded


def both(monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, program: Requests, conf: str, **options: Any) -> Need:
    """The answer of the replay in C, which is also Python's."""
    fraction = options.pop("fraction", 1.0)
    settings = replace(parse_settings(conf), per_process_memory_fraction=fraction)
    outcomes = []

    def in_c(*arguments: Any, **more: Any) -> Need | None:
        outcomes.append(compiled.compiled_replay(*arguments, **more, library=library))
        return outcomes[-1]

    monkeypatch.setattr(replay_module, "compiled_replay", in_c)
    found = replay(program, settings, **options)
    assert outcomes[0] is not None
    monkeypatch.setattr(replay_module, "compiled_replay", lambda *_, **__: None)
    assert replay(program, settings, **options) == found
    return found


def recorded(seed: int, *, keep_from: int = 0, **options: Any) -> tuple[Requests, StartState]:
    """A random program with waits and two streams, and what its recording began with."""
    made = Program(seed, waits=True, streams=2, **options).run(1500)
    loaded = device_of(made.snapshot(keep_from=keep_from))
    _, history, start = parts(*loaded)
    found, _ = reproduced(*loaded)
    return program_of(history, found.releases_by_program), start


@pytest.mark.parametrize("conf", SETTINGS)
@pytest.mark.parametrize("seed", [1, 2])
def test_under_other_settings_and_on_smaller_devices(
    monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, conf: str, seed: int
) -> None:
    program, _ = recorded(seed, capacity=2 * GIB)
    peak = both(monkeypatch, library, program, conf).reserved_peak_bytes
    for capacity in (peak, peak * 9 // 10, peak * 2 // 3, 64 * MIB):
        for version in ((2, 12), (2, 15)):
            options = {"capacity": capacity, "torch_version": version, "goes_on": True}
            both(monkeypatch, library, program, conf, **options)
            both(monkeypatch, library, program, conf, fraction=0.9, **options)


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize("keep_from", [200, 900])
def test_from_what_the_recording_began_with(
    monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, conf: str, keep_from: int
) -> None:
    program, start = recorded(3, keep_from=keep_from, settings=parse_settings(conf))
    assert start.spans
    peak = both(monkeypatch, library, program, conf, start=start).reserved_peak_bytes
    for capacity in (peak, peak * 9 // 10):
        both(monkeypatch, library, program, conf, start=start, capacity=capacity, goes_on=True)


@pytest.mark.parametrize("keep_from", [0, 700])
def test_without_some_blocks_and_with_earlier_frees(
    monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, keep_from: int
) -> None:
    program, start = recorded(4, keep_from=keep_from)
    is_kept = (program.code != Op.ALLOC) | (np.arange(len(program.code)) % 3 > 0)
    fewer = Requests(program.history, program.code[is_kept], program.operand[is_kept], program.entry[is_kept])
    freed = np.flatnonzero(program.code == Op.ALLOC)[::5]
    earlier = Requests(
        program.history,
        np.insert(program.code, freed + 1, int(Op.FREE)),
        np.insert(program.operand, freed + 1, program.operand[freed]),
        np.insert(program.entry, freed + 1, program.entry[freed]),
    )
    for changed in (fewer, earlier):
        both(monkeypatch, library, changed, "", start=start if keep_from else None)


def test_no_numbers_beyond_64_bits(library: ReplayLibrary) -> None:
    """What C could not add up is left to Python."""
    program, _ = recorded(1)
    lives = program.history.lives
    huge = replace(lives, requested_bytes=np.full_like(lives.requested_bytes, 1 << 50))
    allocator = CachingAllocator(parse_settings(""))
    options: dict[str, Any] = {"capacity": None, "goes_on": True, "top": 1 << 62, "start": None, "library": library}
    assert compiled.compiled_replay(program, allocator, **options) is not None
    too_large = replace(program, history=replace(program.history, lives=huge))
    assert compiled.compiled_replay(too_large, allocator, **options) is None
    beyond = replace(program, operand=np.where(program.code == Op.ALLOC, len(lives), program.operand))
    assert compiled.compiled_replay(beyond, allocator, **options) is None


def test_damaged_files_have_the_same_answers(
    monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, tmp_path: Path
) -> None:
    """Mutated files, of which two in three can be read, and streams up to the last number of 64 bits."""
    path, num_replayed = tmp_path / "mutated", 0
    for number in range(60):
        path.write_bytes(mutated_file(7, number))
        try:
            snapshot = load_snapshot(path, isolated=False)
            recordings = [parts(snapshot, state) for state in snapshot.devices if len(state.trace)]
        except SnapshotError:
            continue
        for _, history, start in recordings:
            streams = np.where(np.arange(len(history.stream)) % 2, history.stream, 2**63 - 1 - history.stream)
            for changed in (history, replace(history, stream=streams)):
                num_replayed += 1
                both(monkeypatch, library, program_of(changed), "", capacity=2 * MIB, goes_on=True)
            both(monkeypatch, library, program_of(history), "expandable_segments:True", start=start)
    assert num_replayed > 40


def test_no_compiler_is_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert compiled.load_library.__wrapped__(may_compile=True) is None
    assert not list(tmp_path.rglob("*.so"))


def test_a_library_that_others_can_change_is_not_loaded(
    monkeypatch: pytest.MonkeyPatch, library: ReplayLibrary, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.load_library.__wrapped__(may_compile=False) is None
    assert compiled.load_library.__wrapped__(may_compile=True) is not None
    (tmp_path / "torch-timeline").chmod(0o777)
    assert compiled.load_library.__wrapped__(may_compile=True) is None
