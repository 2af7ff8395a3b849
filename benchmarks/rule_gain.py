"""Gain of each rule on the truth: the bytes that are judged worse where it alone is left out.

    python -m benchmarks.rule_gain snapshots FOLDER [--programs 110]
    python -m benchmarks.rule_gain recordings FOLDER [--programs 110] [--on h100]
    python -m benchmarks.rule_gain numbers FOLDER [--programs 110]

Snapshots: the public recordings of `benchmarks.snapshot_kinds`, and the programs that `benchmarks.cut_recordings`
records and cuts: those of tests/truth, those drawn at random, and further ones; whole and begun after a warm-up, and
each of them with C++ frames and with Python's alone; and those of which `max_entries` has pushed out the beginning.
Recordings: the programs of tests/truth beside the bookkeeper, on the CPU, or with `--on` on a card as the null GPU has
it, and there the drawn ones too; compiled programs, beside what autograd saved of them. With both in FOLDER, the table
has both. The same recordings count once more without what a session knows of live tensors, as a profiler of the
program's own has them ("bare").
What is recorded stays in FOLDER. Each program counts the same in its set.

The table has, for each rule and set, how many percent points fewer are right and how many more are wrong without the
rule. Below it are the rules that cost less than 0.1 points of every set, then those of them that go together: rules can
stand in for each other. What each gains goes to rule_gains.json, from which `tests.rule_tables` has it for the
documents.

`numbers`: the same snapshots with other numbers in the place of those that rules have; how many percent points more of
each set are right and wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol
from unittest.mock import patch

os.environ.setdefault("KINETO_LOG_LEVEL", "99")

import numpy as np

from benchmarks import cut_recordings, snapshot_kinds
from benchmarks.further_programs import PROGRAMS as FURTHER
from tests.truth.bookkeeper import Alive, Instant
from tests.truth.catalogue import entry_of, names
from tests.truth.isolate import in_fresh_process
from tests.truth.on_device import on_device, size_there
from tests.truth.program import PROGRAMS, Entry, Provable
from tests.truth.running import first_recorded
from tests.truth.verdict import instants_of, kinds, knows_batch, proven_kind
from tracer.answers.findings import CycleFindings
from tracer.answers.recording_findings import find_in_cycle
from tracer.answers.snapshot_findings import replay_snapshot
from tracer.arrays import Ints
from tracer.blocks.from_recording import blocks as makers
from tracer.blocks.from_recording import classify_blocks as profiles
from tracer.blocks.from_recording.blocks import origin_of
from tracer.blocks.from_snapshot import counting, sizes
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.classify_blocks import PROOFS, RULES
from tracer.blocks.from_snapshot.counting import BlockFacts
from tracer.blocks.from_snapshot.kind_finder import KindFinder
from tracer.blocks.kinds import Evidence, Kind
from tracer.blocks.rules import Rule, apply_rules
from tracer.blocks.table import Phase
from tracer.null_gpu.cards import devices_of
from tracer.null_gpu.process import restart_on
from tracer.snapshot.load import load_snapshot

MIN_GAIN = 0.1
NUMBERS: tuple[tuple[ModuleType, str, tuple[Any, ...]], ...] = (
    (counting, "_NUM_LATEST", (0, 2, 8)),
    (counting, "_LEAST_KEPT", (2, 5)),
    (counting, "_LEAST_SEEN", (0, 6, 24)),
    (counting, "_GONE_PER_HELD", (1, 4, 16)),
    (sizes, "_SHARE_OF_LARGEST", (0.0, 1 / 16)),
    (sizes, "_FEW_PER_LAYER", (0.3, 0.9)),
    (sizes, "_MANY_PER_LAYER", (1.2, 1.9)),
    (sizes, "_MAX_EMBEDDINGS", (0, 1, 1000)),
    (sizes, "_TIMES", ((2,), (3,), (2, 3, 4))),
    (sizes, "_SHARE_OF_SETS", (0.5, 0.99)),
    (sizes, "_MAX_ODD_SIZES", (0, 1)),
)
GAINS = Path(__file__).with_name("rule_gains.json")
RIGHT, WRONG, UNKNOWN = range(3)
CUTS: dict[str, dict[str, bool]] = {
    "": {"without_cpp": False, "steady": False},
    ", warm": {"without_cpp": False, "steady": True},
    ", pushed out": {"without_cpp": False, "steady": True, "keeps_stacks": True},
    ", Python": {"without_cpp": True, "steady": False},
    ", warm, Python": {"without_cpp": True, "steady": True},
}
Said = tuple[tuple[int, int], ...]  # The rules that hold for a block, in their order, and what follows from each
Blocks = tuple[tuple[int, Said, int], ...]  # Bytes, the kinds that the rules say, and what it is without any
IsRight = Callable[[int, Kind], bool]  # Whether a kind is right of a row


class Judged(Protocol):
    """A program of a set of truth."""

    def percent(self, without: Collection[int] = ()) -> tuple[float, float]:
        """Percent of its bytes that are right and that are wrong with some rules left out."""


def first_of(said: Said, without: Collection[int], otherwise: int) -> int:
    """Return the verdict of the first rule that holds and is not left out."""
    return next((what for rule, what in said if rule not in without), otherwise)


class Sums:
    """Bytes of one program's peaks.

    Attributes:
        said: By the verdicts of all rules that hold for a block.
        without: By verdict, where one of the rules that decide facts of others is left out.
    """

    def __init__(self) -> None:
        self.said: Counter[Said] = Counter()
        self.without: dict[int, Counter[int]] = {}

    def add(self, said: Counter[Said], without: Mapping[int, Counter[int]]) -> None:
        """Add those of one peak; a rule that is not in `without` decides nothing there."""
        whole, here = verdicts(self.said), verdicts(said)
        for rule in {*self.without, *without}:
            self.without.setdefault(rule, Counter(whole)).update(without.get(rule, here))
        self.said.update(said)

    def percent(self, without: Collection[int] = ()) -> tuple[float, float]:
        """Right and wrong; of several rules, what they prove of other blocks stays."""
        alone = self.without.get(next(iter(without))) if len(without) == 1 else None
        sums = alone or verdicts(self.said, without)
        return 100 * sums[RIGHT] / sums.total(), 100 * sums[WRONG] / sums.total()


def verdicts(said: Mapping[Said, int], without: Collection[int] = ()) -> Counter[int]:
    """Bytes by verdict of the first rule that holds and is not left out."""
    found: Counter[int] = Counter()
    for rules, size in said.items():
        found[first_of(rules, without, UNKNOWN)] += size
    return found


def said_of(rules: Sequence[Rule[Any]], facts: Sized, rows: Ints, what: Callable[[int, int], int]) -> list[Said]:
    """The rules that hold for each row, and what follows from the kinds that they say."""
    found: list[list[tuple[int, int]]] = [[] for _ in rows]
    for number, rule in enumerate(rules):
        holds, said = rule.holds(facts)[rows], rule.kinds(facts)[rows]
        for at in np.flatnonzero(holds).tolist():
            found[at].append((number, what(int(rows[at]), int(said[at]))))
    return [tuple(one) for one in found]


# ---- snapshots -------------------------------------------------------------------------------------------------------


def judge_device(device: ReplayedDevice, is_right: IsRight, sums: Sums) -> None:
    """Add the peak of one device."""
    lives = device.replay.lives
    rows = lives.alive_after(device.replay.peak_entry)
    sizes = lives.requested_bytes[rows]
    facts, decided = _facts(device.kinds, PROOFS)
    without = {}
    for number in decided:
        others = [rule for each, rule in enumerate(PROOFS) if each != number]
        rules = [rule for each, rule in enumerate(RULES) if each != number]
        kinds, _ = apply_rules(rules, _facts(device.kinds, others)[0])
        without[number] = Counter[int]()
        for row, size in zip(rows.tolist(), sizes.tolist(), strict=True):
            without[number][_verdict(row, int(kinds[row]), is_right)] += size
    said: Counter[Said] = Counter()
    of_rows = said_of(RULES, facts, rows, lambda row, kind: _verdict(row, kind, is_right))
    for rules_of_row, size in zip(of_rows, sizes.tolist(), strict=True):
        said[rules_of_row] += size
    sums.add(said, without)


def _verdict(row: int, kind: int, is_right: IsRight) -> int:
    return UNKNOWN if kind in snapshot_kinds.SILENT else RIGHT if is_right(row, Kind(kind)) else WRONG


def _facts(finder: KindFinder, proofs: Sequence[Rule[Any]]) -> tuple[BlockFacts, set[int]]:
    """The facts that the table is asked of where only some rules prove, and which of those decide a block."""
    facts = replace(finder.facts, proofs=proofs, devices=[])
    is_open, decided = np.ones(len(facts), np.bool_), set()
    for number, rule in enumerate(proofs):
        holds = is_open & rule.holds(facts)
        is_open &= ~holds
        if holds.any():
            decided.add(number)
    return facts, decided


def judge_cuts(path: Path, **how: bool) -> Sums:
    """Judge each cut of one recording."""
    recorded, sums = cut_recordings.record(path.stem, path.parent), Sums()
    for device, true_of in cut_recordings.replayed_cuts(recorded or {}, **how):
        lives = device.replay.lives
        entry, addr = lives.alloc_entry.tolist(), lives.addr.tolist()
        judge_device(device, lambda row, kind: kind in true_of(entry[row], addr[row]), sums)  # noqa: B023
    return sums


def judge_public(name: str, *, without_cpp: bool) -> Sums:
    """One public recording."""
    truth, sums = json.loads(snapshot_kinds.TRUTH.read_text("utf-8"))[name], Sums()
    snapshot = load_snapshot(snapshot_kinds.find(name))
    whole = replay_snapshot(snapshot)
    kept = snapshot_kinds.held_over_backward(
        snapshot_kinds.device_of_peak(whole, truth["peak_requested_bytes"]), whole.sites
    )
    replayed = replay_snapshot(snapshot_kinds.only_python(snapshot)) if without_cpp else whole
    device = snapshot_kinds.device_of_peak(replayed, truth["peak_requested_bytes"])
    words = {(entry, address): word for entry, address, _, word in truth["blocks"]}
    begin, addr = device.replay.lives.begin.tolist(), device.replay.lives.addr.tolist()

    def is_right(row: int, kind: Kind) -> bool:
        block = begin[row], addr[row]
        held = words[block] == "activation" and kind == Kind.HELD and block in kept
        return held or kind in snapshot_kinds.MEANS[words[block]]

    judge_device(device, is_right, sums)
    return sums


# ---- recordings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Beside:
    """A program's peak, as the rules see its blocks, and as the bookkeeper does."""

    name: str
    peak: dict[str, Any]
    blocks: Blocks
    instants: tuple[Instant, ...]
    is_proved: bool = True  # Whether the blocks count of which the bookkeeper proves a kind, or all others

    def percent(self, without: Collection[int] = ()) -> tuple[float, float]:
        """Right of what can be proved, and all else of that is wrong."""
        return self._percent(
            tuple((size, Kind(first_of(said, without, other)).name) for size, said, other in self.blocks)
        )

    @cache  # noqa: B019 most rules decide nothing of a program
    def _percent(self, claims: tuple[tuple[int, str], ...]) -> tuple[float, float]:
        tensors = [size for size, kind in claims if kind != Kind.WORKSPACE.name]
        instants = [
            instant
            for sizes in ([size for size, _ in claims], tensors)
            for instant in instants_of(self.peak, self.instants, sizes)
        ]
        known = {"knows_batch": knows_batch(self.name), "has_failed": entry_of(self.name).fails}
        best = max(instants, key=lambda one: kinds(claims, one.blocks, **known).part)
        if not self.is_proved:
            sums = self._unproved(claims, best)
            of = max(1, sums.total())
            return 100 * sums[RIGHT] / of, 100 * sums[WRONG] / of
        share = kinds(claims, best.blocks, **known)
        silent = sum(size for size, kind in claims if Kind[kind] in snapshot_kinds.SILENT)
        return 100 * share.part, 100 * max(0, share.of - share.right - silent) / max(1, share.of)

    def _unproved(self, claims: Sequence[tuple[int, str]], instant: Instant) -> Counter[int]:
        """Bytes of which the bookkeeper proves no kind, but something else.

        What it has not is no tensor, thus a workspace. What nothing holds by name and was there before is held. What
        autograd has not packed is no activation, and what was made in the recorded steps was not there before.
        """
        told: dict[int, Counter[str]] = {}
        for size, kind in claims:
            told.setdefault(size, Counter())[kind] += 1
        first, batch = first_recorded(instant.step, self.name), knows_batch(self.name)
        alive: dict[int, list[Alive]] = {}
        for block in instant.blocks:
            alive.setdefault(block.bytes, []).append(block)
        found: Counter[int] = Counter()
        for size, kinds_told in told.items():
            there = alive.get(size, [])
            absent = max(0, kinds_told.total() - len(there))
            held = sum(one.step < first and proven_kind(one, knows_batch=batch) is None for one in there)
            of_workspace, of_held = min(absent, kinds_told["WORKSPACE"]), min(held, kinds_told["HELD"])
            packed = sum(one.packed for one in there)
            wrong = kinds_told["BEFORE_RECORDING"] - sum(one.step < first for one in there) - absent
            found[WRONG] += size * max(0, wrong)
            if entry_of(self.name).saves:
                found[WRONG] += size * max(0, kinds_told["ACTIVATION"] - packed)
            found[RIGHT] += size * (of_workspace + of_held)
            found[UNKNOWN] += size * (absent + held - of_workspace - of_held)
        return found


@contextmanager
def facts_noted() -> Iterator[list[tuple[Any, Ints]]]:
    """The facts that each recording's rules are asked of, and the kinds that they say."""
    noted: list[tuple[Any, Ints]] = []

    def apply(rules: Sequence[Rule[Any]], facts: Any) -> tuple[Ints, Ints]:
        said = apply_rules(rules, facts)
        noted.append((facts, said[0]))
        return said

    with patch.object(makers, "apply_rules", apply):
        yield noted


def _facts_of(cycle: CycleFindings, noted: Sequence[tuple[Any, Ints]]) -> Any:
    return next(facts for facts, said in noted if said is cycle.blocks.kind)


def run_noted(name: str, folder: Path) -> tuple[dict[str, Any], Blocks, Blocks]:
    """The peak that the tracer says, its blocks, and those of the same recording by a profiler of the program's own."""
    from tests.truth import running

    enter(name)
    cycles: list[CycleFindings] = []
    claims_of = running._claims

    def note(session: Any, warned: tuple[str, ...]) -> Any:
        if session.results is not None and session.results.findings is not None:
            cycles.append(session.results.findings.worst)
        return claims_of(session, warned)

    with facts_noted() as noted:
        with patch.object(running, "_claims", note):
            _, claims = running.run_watched(name, folder)
        (cycle,) = cycles
        bare = find_in_cycle(cycle.source.recording, device=cycle.peak.device)
    return claims.peak, _blocks_at_peak(cycle, noted), _blocks_at_peak(bare, noted)


def _blocks_at_peak(cycle: CycleFindings, noted: Sequence[tuple[Any, Ints]]) -> Blocks:
    facts, all_blocks, at_peak = _facts_of(cycle, noted), cycle.blocks, cycle.peak.blocks
    columns = [(blocks.row, blocks.made_at, blocks.address) for blocks in (all_blocks, at_peak)]
    of_all, of_peak = (list(zip(*(column.tolist() for column in three), strict=True)) for three in columns)
    row_of = {block: row for row, block in enumerate(of_all)}
    is_one = Counter(of_all)
    said = said_of(profiles.RULES, facts, np.arange(len(of_all)), lambda row, kind: kind)
    blocks = []
    for block, size, kind in zip(of_peak, at_peak.size_bytes.tolist(), at_peak.kind.tolist(), strict=True):
        row = row_of[block] if is_one[block] == 1 else -1
        is_by_rules = row >= 0 and bool(all_blocks.kind[row] == kind)
        blocks.append((size, said[row] if is_by_rules else (), kind))
    return tuple(blocks)


def instants_under_bookkeeper(name: str, *size_of: Any) -> tuple[Instant, ...]:
    """Return the moments that the bookkeeper saw."""
    from tests.truth.running import run_under_bookkeeper

    enter(name)
    return run_under_bookkeeper(name, *size_of)[1].instants


def enter(name: str) -> None:
    """Make a drawn program one of the harness."""
    if name.startswith("random:") and name not in PROGRAMS:
        from benchmarks.random_programs import random_program

        PROGRAMS[name] = Entry(name, partial(random_program, int(name.partition(":")[2])))


def run_beside(name: str, *, is_on_device: bool) -> tuple[Beside, Beside] | None:
    """Both runs of a program; None where it does not run, or nothing can be proved."""
    enter(name)
    if entry_of(name).provable is not Provable.EXACT:
        return None
    with tempfile.TemporaryDirectory() as folder:
        around, sizes = ((on_device,), (size_there,)) if is_on_device else ((), ())
        watched = in_fresh_process(*around, run_noted, name, Path(folder))  # type: ignore[arg-type]
        booked = in_fresh_process(*around, instants_under_bookkeeper, name, *sizes)  # type: ignore[arg-type]
    if watched.value is None or booked.value is None:
        print(f"{name}: {(watched.error or booked.error or '').strip().splitlines()[-1][:150]}", flush=True)
        return None
    peak, *blocks = watched.value
    session, bare = (Beside(name, peak, one, booked.value) for one in blocks)
    return session, bare


def judge_compiled(name: str) -> Sums:
    """Judge what compiled code made in the last step: an activation if autograd saved it, and else none.

    Nor is it wrong of what backward makes again, on lines where the same program makes activations again uncompiled.
    """
    from tests import compiled_programs

    build = next(
        one for one in (*compiled_programs.PROGRAMS, *compiled_programs.WITHOUT_INDUCTOR) if one.__name__ == name
    )
    sums = Sums()
    with tempfile.TemporaryDirectory() as folder, facts_noted() as noted:
        program = build()
        eager = compiled_programs.trained(program, program.loss_of, Path(folder))[1].results.findings.worst
        again = compiled_programs.lines_of(eager, Evidence.RECOMPUTED)
        program = build()
        steps, session, _ = compiled_programs.trained(program, program.compiled(), Path(folder))
    cycle, saved = session.results.findings.worst, steps.saved[-2]
    blocks, last = cycle.blocks, cycle.attribution.step_names[-1]
    in_last_step = np.flatnonzero((blocks.step == blocks.values.index(last)) & (blocks.row >= 0)).tolist()
    origins = {row: origin_of(cycle.attribution, int(blocks.row[row])) for row in in_last_step}
    rows = np.array([row for row, origin in origins.items() if origin is not None], np.int64)
    address, size_bytes = blocks.address.tolist(), blocks.size_bytes.tolist()

    def what(row: int, said: int) -> int:
        is_saved = saved.get(address[row]) == size_bytes[row]
        origin = origins[row]
        is_again = (
            blocks.phase[row] == Phase.BACKWARD
            and origin is not None
            and origin.line is not None
            and tuple(origin.line) in again
        )
        return RIGHT if (said == Kind.ACTIVATION) == (is_saved or is_again) else WRONG

    said: Counter[Said] = Counter()
    for rules, row in zip(said_of(profiles.RULES, _facts_of(cycle, noted), rows, what), rows.tolist(), strict=True):
        said[rules] += size_bytes[row]
    sums.add(said, {})
    return sums


def record_recordings(folder: Path, num_programs: int, *, is_on_device: bool) -> None:
    """Run what is not in the folder yet, two at a time."""
    from tests import compiled_programs

    jobs: list[tuple[str, str, Callable[[], Any]]] = []
    drawn = [f"random:{seed}" for seed in range(num_programs - len(cut_recordings.NAMES))]
    label = "null GPU" if is_on_device else "CPU"
    for name in names(on_device=is_on_device):
        jobs.append((label, name, partial(run_beside, name, is_on_device=is_on_device)))
    for name in drawn if is_on_device else ():
        jobs.append(("random", name, partial(run_beside, name, is_on_device=True)))
    if not is_on_device:
        builds = (*compiled_programs.PROGRAMS, *compiled_programs.WITHOUT_INDUCTOR)
        jobs += [("compiled", build.__name__, partial(_judged_compiled, build.__name__)) for build in builds]

    def run(job: tuple[str, str, Callable[[], Any]]) -> None:
        label, name, ask = job
        path = folder / f"{label} {name.replace(':', '_')}.judged"
        if not path.is_file():
            path.write_bytes(pickle.dumps(ask()))

    with ThreadPoolExecutor(2) as two:
        for _ in two.map(run, jobs):
            pass


def _judged_compiled(name: str) -> Sums | None:
    returned = in_fresh_process(judge_compiled, name)
    if returned.value is None:
        print(f"{name}: {(returned.error or '').strip().splitlines()[-1][:150]}", flush=True)
    return returned.value


def sets_of_recordings(folder: Path) -> dict[str, list[Judged]]:
    """Return every set of recordings in the folder."""
    sets: dict[str, list[Judged]] = {}
    for path in sorted(folder.glob("*.judged")):
        judged = pickle.loads(path.read_bytes())
        label = next(one for one in ("null GPU", "CPU", "random", "compiled") if path.name.startswith(one))
        if isinstance(judged, Sums) and judged.said:
            sets.setdefault(label, []).append(judged)
        elif isinstance(judged, tuple):
            enter(judged[0].name)
            home = getattr(entry_of(judged[0].name).build, "__module__", "").rpartition(".")[2]
            label = {"programs_jobs": "jobs", "programs_failing": "failing"}.get(home, label)
            for one, how in zip(judged, ("", ", bare"), strict=True):
                sets.setdefault(f"{label}{how}", []).append(one)
                sets.setdefault(f"{label}{how}, others", []).append(replace(one, is_proved=False))
    return sets


def sets_of_snapshots(folder: Path, num_programs: int) -> dict[str, list[Judged]]:
    """The programs' sums in each set of truth."""
    drawn = cut_recordings.names_of(num_programs, "both")
    all_names = [*drawn, *(f"further:{name}" for name in FURTHER)]
    kinds = {"": "named", "random": "random", "further": "further"}
    sets: dict[str, list[Judged]] = {}
    with ProcessPoolExecutor(2) as pool:
        waiting = []
        for name in all_names:
            if cut_recordings.record(name, folder) is None:
                continue
            path = folder / f"{name.replace(':', '_')}.pickle"
            kind = kinds[name.partition(":")[0] if ":" in name else ""]
            for label, how in CUTS.items():
                run = pool.submit(judge_cuts, path, **how)
                waiting.append((f"{kind}{label}", run))
        if snapshot_kinds.TRUTH.is_file():
            for name in json.loads(snapshot_kinds.TRUTH.read_text("utf-8")):
                for without_cpp in (False, True):
                    run = pool.submit(judge_public, name, without_cpp=without_cpp)
                    waiting.append((f"public{', Python' if without_cpp else ''}", run))
        for label, run in waiting:
            sums = run.result()
            if sums.said:
                sets.setdefault(label, []).append(sums)
    return sets


# ---- sums ------------------------------------------------------------------------------------------------------------


def mean_cost(found: Sequence[Judged], rules: Collection[int]) -> tuple[float, float]:
    """Return the points fewer that are right without some rules, and the points more that are wrong; means."""
    pairs = [(one.percent(), one.percent(rules)) for one in found]
    lost, gained = np.mean([(right - less, more - wrong) for (right, wrong), (less, more) in pairs], axis=0).tolist()
    return lost, gained


def worst(costs: Mapping[str, tuple[float, float]]) -> float:
    """The most that a set loses."""
    return max(max(pair) for pair in costs.values())


def greedily(sets: Mapping[str, Sequence[Judged]], alone: Mapping[int, float]) -> list[int]:
    """The rules that cost less than `MIN_GAIN` together, the cheapest first."""
    gone: list[int] = []
    for rule in sorted((each for each in alone if alone[each] < MIN_GAIN), key=lambda each: alone[each]):
        together = {name: mean_cost(found, {*gone, rule}) for name, found in sets.items()}
        if worst(together) < MIN_GAIN:
            gone.append(rule)
    return gone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", choices=("snapshots", "recordings", "numbers"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--programs", type=int, default=110)
    parser.add_argument("--on", metavar="CARD")
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    if asked.table == "numbers":
        print_numbers(asked.folder, asked.programs)
        return
    if asked.table == "snapshots":
        print_table(sets_of_snapshots(asked.folder, asked.programs), RULES, asked.table)
        return
    if asked.on is not None:
        devices = devices_of(asked.on)
        restart_on([devices.card] * devices.count)
    record_recordings(asked.folder, asked.programs, is_on_device=asked.on is not None)
    print_table(sets_of_recordings(asked.folder), profiles.RULES, asked.table)


def print_sets(sets: Mapping[str, Sequence[Judged]]) -> None:
    """A row for each set."""
    for name, found in sets.items():
        right, wrong = np.mean([one.percent() for one in found], axis=0)
        print(f"{name:<24} {len(found):>4} programs: {right:6.2f} right, {wrong:5.2f} wrong")


def print_numbers(folder: Path, num_programs: int) -> None:
    """A row for each number that a rule might have instead: points more that are right / wrong of each set."""

    def shares() -> dict[str, Any]:
        found = sets_of_snapshots(folder, num_programs)
        return {name: np.mean([one.percent() for one in judged], axis=0) for name, judged in found.items()}

    before = shares()
    for module, name, others in NUMBERS:
        for other in others:
            with patch.object(module, name, other):
                changes = {each: share - before[each] for each, share in shares().items()}
            shown = {each: change for each, change in changes.items() if abs(change).max() >= 0.005}
            cells = "; ".join(f"{each} {right:+.2f}/{wrong:+.2f}" for each, (right, wrong) in shown.items())
            print(f"{name} {getattr(module, name)} -> {other}: {cells or 'no change'}", flush=True)


def print_table(sets: Mapping[str, Sequence[Judged]], rules: Sequence[Rule[Any]], table: str) -> None:
    """A row for each rule: the most that a set loses, and points fewer right / more wrong of each set.

    The first goes to `GAINS`, from which the documents have it.
    """
    print_sets(sets)
    alone: dict[int, float] = {}
    for number, rule in enumerate(rules):
        costs = {name: mean_cost(found, {number}) for name, found in sets.items()}
        alone[number] = worst(costs)
        shown = {name: pair for name, pair in costs.items() if max(map(abs, pair)) >= 0.005}
        cells = "; ".join(f"{name} {lost:.2f}/{more:.2f}" for name, (lost, more) in shown.items())
        print(f"{number:>3} {Evidence(rule.evidence).name:<26} {alone[number]:7.3f}  {cells}")
    gains = json.loads(GAINS.read_text("utf-8"))
    gains[table] = [[rule.evidence.name, round(max(0.0, alone[number]), 2)] for number, rule in enumerate(rules)]
    GAINS.write_text(json.dumps(gains).replace("], [", "],\n[") + "\n", "utf-8")
    print("alone:", [number for number, cost in alone.items() if cost < MIN_GAIN])
    print("together:", sorted(greedily(sets, alone)))


if __name__ == "__main__":
    import_module("benchmarks.rule_gain").main()  # what is pickled is found there by other processes
