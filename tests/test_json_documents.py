"""docs/files.md against what the program writes: every key of every document is described, and no other."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import main
from tests.engines.test_start import READY
from tests.exporters.page.page_samples import peak_row
from tests.exporters.snapshot_samples import out_of_memory
from tests.null_gpu.started import ROOT, called, needs_null_gpu
from tests.snapshot.dumps import write
from tracer.answers.prediction import FitReport, FitTrial
from tracer.answers.rows import ROW_FIELDS
from tracer.capture.device.phase_memory import MemoryLevels, PhaseMemory, ProcessPhases
from tracer.capture.run_facts import LeftOut, ValueRead, ValuesRead
from tracer.commands.doctor import Check, doctor_json
from tracer.engines.answer import engine_json
from tracer.engines.start import engine_start
from tracer.exporters.json_documents.header import UNITS
from tracer.exporters.json_documents.peak import MAX_FRAMES, MAX_STACKS
from tracer.exporters.json_documents.prediction import fit_values
from tracer.exporters.phases import phases_json

HEADER = ("format", "version", "torch", "command", "computed", "units")


@cache
def documented() -> dict[str, tuple[list[str], str]]:
    """Of each heading the keys in the first column of its table, and all of its text."""
    text = (Path(main.__file__).parent / "docs" / "files.md").read_text("utf-8")
    found = {}
    for part in re.split(r"^##+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        keys = [key for line in body.splitlines() if line.startswith("| `")
                for key in re.findall(r"`(\w+)`", line.split(" | ")[0])]  # fmt: skip
        found[heading] = (keys, body)
    return found


def keys(heading: str) -> list[str]:
    return documented()[heading][0]


def answer(*arguments: object) -> Any:
    ended = CliRunner().invoke(main.app, [str(one) for one in arguments], prog_name="main.py")
    assert ended.exit_code in (0, 3), ended.stderr
    return json.loads(ended.stdout)


def undescribed(value: Any, *headings: str) -> list[str]:
    """The keys of every object inside that are in no text below these headings."""
    text = "".join(documented()[heading][1] for heading in headings)
    return [key for key in inner_keys(value) if f"`{key}`" not in text]


def check_header(document: dict[str, Any], name: str, heading: str = "") -> None:
    """Its first keys; below the heading are all others, in their order."""
    if heading:
        assert [key for key in document if key not in HEADER] == keys(heading)
    assert tuple(document)[: len(HEADER)] == HEADER == tuple(keys("The header"))
    assert (document["format"], document["version"]) == (f"torch-timeline {name}", 1)
    assert f"`torch-timeline {name}`" in documented()["The header"][1]
    assert document["units"] == UNITS
    assert all(f"`{ending}`" in documented()["The header"][1] for ending in UNITS)


def inner_keys(value: Any) -> Iterator[str]:
    """Of every object inside."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from inner_keys(one)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "s.pickle", out_of_memory())


def test_every_key_of_a_snapshots_answer_is_described(file: Path) -> None:
    what_if = ("--settings", "expandable_segments:True", "--gpu-memory", "1GiB")
    found = answer("snapshot", file, "--json", *what_if)
    check_header(found, "snapshot", "`snapshot --json`")
    (device,) = found["devices"]
    assert sorted(device) == sorted(keys("A device"))
    assert list(device["groups"][0]) == keys("A group of blocks")
    assert sorted(device["oom"][0]) == sorted(keys("A failed request"))
    assert list(device["allocator"]) == keys("The allocator")
    assert sorted(device["allocator"]["what_if"]["rows"][0]) == sorted(keys("A row of `what_if`"))
    everything = "".join(body for _, body in documented().values())
    settings = set(device["allocator"]["settings"])
    assert [key for key in inner_keys(device) if key not in settings and f"`{key}`" not in everything] == []


def folder(path: Path, size: int) -> Path:
    path.mkdir()
    peak = {"device": "cpu", "peak_bytes": size, "phase": None, "rows": [asdict(peak_row(size))]}
    (path / "peak.json").write_text(json.dumps(peak))
    return path


def test_every_key_of_a_differences_answer_is_described(file: Path, tmp_path: Path) -> None:
    of_runs = answer("diff", folder(tmp_path / "a", 100), folder(tmp_path / "b", 107), "--json", "--fail-above", "5%")
    of_snapshots = answer("diff", file, file, "--json")
    described: set[str] = set()
    for found in (of_runs, of_snapshots):
        check_header(found, "diff", "`diff --json`")
        (device,) = found["devices"]
        described |= set(device)
        assert undescribed(device, "A compared device") == []
        for changes in (value for key, value in device.items() if key.startswith("by_")):
            assert sum(change["after_bytes"] - change["before_bytes"] for change in changes) == device["bytes"]
    assert described == set(keys("A compared device"))


def test_every_key_of_peak_json_is_described() -> None:
    """Its keys are compared with a document of a run in `exporters/test_text_files.py`."""
    assert set(keys("A row")) == {*ROW_FIELDS, "stack"}
    assert f"its {MAX_STACKS} largest rows" in documented()["A row"][1]
    assert f"{MAX_FRAMES} at most" in documented()["A row"][1]


def test_every_key_of_values_that_were_read_is_described() -> None:
    read = ValueRead("train.py", 9, "pick", "aten::nonzero", 3, "7", "drawn", False, True, 0)
    values = ValuesRead((read,), (LeftOut("aten::mm: too large", 2),), 6, ("train.py:99",))
    found = json.loads(json.dumps(asdict(values)))
    assert list(found) == [key for key in keys("Values that were read") if key in found]
    assert undescribed(found, "Values that were read") == []
    assert "values_read" in keys("peak.json")


@needs_null_gpu
def test_every_key_of_a_prediction_is_described() -> None:
    asked = ("predict", "--model", "torch.nn:Linear", "--model-arg", "in_features=16", "--model-arg", "out_features=4")
    fits, lacks = (
        json.loads(called(ROOT, *asked, "--input", "16", "--json", "--on", card).stdout)
        for card in ("h100:1GiB", "h100:701MiB")
    )
    for found in (fits, lacks):
        check_header(found, "prediction")
    slow = {"without_end"}  # a script
    assert {*fits, *lacks, *slow} - set(HEADER) == set(keys("`predict --json`"))
    assert undescribed(lacks["out_of_memory"], "`predict --json`", "A row") == []


def test_every_key_of_a_fit_is_described() -> None:
    trials = (FitTrial((), fits=False), FitTrial(("bf16",), fits=True))
    found = json.loads(json.dumps(fit_values(FitReport("an H100", 1, ("train.py",), trials, trials[1]))))
    check_header(found, "fit")
    assert set(found) - set(HEADER) == set(keys("fit.json"))
    assert all(set(trial) == set(keys("A trial")) for trial in found["trials"])


def test_every_key_of_doctor_is_described() -> None:
    found = doctor_json([Check("torch", "FAIL", "Old.", "pip install torch", 0.1)])
    check_header(found, "doctor")
    assert set(found) - set(HEADER) == set(keys("`doctor --json`"))
    assert all(list(each) == keys("A check") for each in found["checks"])


def test_every_key_of_a_whole_job_is_described(file: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "rank1.pickle", out_of_memory())
    found = answer("snapshot", file, other, "--json")
    check_header(found, "job", "`snapshot --json` of several recordings")


def test_phases_of_a_run() -> None:
    phase = PhaseMemory.of_visit(
        "train", 0, [MemoryLevels(1, 2, 3, 1), MemoryLevels(1, 2, 3, 1)], peak=MemoryLevels(2, 2)
    )
    document = phases_json([ProcessPhases(1, "train.py", (phase,))], computed=False)
    check_header(document, "phases", "phases.json")
    (process,) = document["processes"]
    assert sorted(process) == sorted(keys("A process with phases"))
    assert sorted(process["phases"][0]) == sorted(keys("A phase"))


def test_an_engines_start() -> None:
    start = engine_start([READY], cache_tokens=None, concurrency=None)
    document = engine_json(start, command="vllm serve m", computed=False)
    check_header(document, "engine", "engine.json")
    assert [set(change) for change in document["changes"]] == [{"option", "effect"}]
    (worker,) = document["workers"]
    assert set(worker) == set(keys("A worker"))
    assert undescribed(document, "The header", "engine.json", "A worker") == []
