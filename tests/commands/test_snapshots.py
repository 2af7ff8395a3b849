"""`snapshot` and `diff` as a person meets them: files, exit codes, and every way to get it wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import main
from tests.allocator.recorded import Program
from tests.blocks.from_snapshot.recorded_program import full
from tests.commands import test_profile as profile
from tests.exporters.page.page_samples import peak_row
from tests.exporters.snapshot_samples import out_of_memory
from tests.histories import Event, Key, recording_of
from tests.processes import run_python
from tests.snapshot.dumps import block, entry, frame, freed, segment, snapshot, write
from tracer.blocks.from_recording.block_lifetimes import follow_blocks
from tracer.exporters.memory_snapshot import snapshot_of_recording, write_memory_snapshot
from tracer.exporters.page import snapshot_page
from tracer.units import MIB

ROOT = Path(main.__file__).parent


run = partial(profile.run, columns=100)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path / "s.pickle", out_of_memory())


# ---- snapshot --------------------------------------------------------------------------------------------------------


def test_the_files_are_written_and_named(file: Path, tmp_path: Path) -> None:
    page = tmp_path / "new" / "page.html"
    code, out, err = run("snapshot", file, "--html", page, "--full")
    assert code == 0
    # What to do about it stands behind the failure, before all that is about the allocator.
    order = [out.index(words) for words in ("Out of memory on device 0", "The request that failed", "By kind")]
    assert order == sorted(order)
    *files, after = err.splitlines()
    assert [line.split()[:2] for line in files] == [["Wrote", str(page)]]
    assert after.startswith("Next: ") and "--html" not in after
    written = page.read_text("utf-8")
    assert "</html>" in written
    assert (cause := "is what does not fit: 48.00 MiB for a single tensor") in out and cause in written


def test_an_address_is_refused_in_a_sentence() -> None:
    code, _, err = run("snapshot", "https://example.org/rank0.pkl")
    assert (code, err.splitlines()[0]) == (1, "Error: rank0.pkl is named by an address.")


def test_json_goes_to_stdout_alone(file: Path, tmp_path: Path) -> None:
    code, out, _ = run("snapshot", file, "--json", "--html", tmp_path / "page.html")
    assert (code, json.loads(out)["devices"][0]["peak_requested_bytes"]) == (0, 5 * MIB)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, a device of Linux that takes nothing")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_stream_that_takes_nothing_leaves_the_files(stream: str, file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    command = ["main.py", "snapshot", file, "--html", page]
    with Path("/dev/full").open("w") as full:
        streams: dict[str, Any] = {stream: full}
        ended = run_python(*command, folder=ROOT, **streams)
    assert page.is_file()
    if stream == "stderr":
        assert ended.returncode == 0
        assert "Out of memory on device 0" in ended.stdout
    else:
        first, error, _ = ended.stderr.splitlines()
        assert first.startswith(f"Wrote {page}")
        assert error == "Error: The answer could not be printed on stdout: No space left on device."
        assert ended.returncode == 1


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_ends_the_command_while_files_are_written(
    number: signal.Signals, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is whole, and nothing else is left."""
    write_page = snapshot_page.write_snapshot_page

    def signalled(*arguments: Any, **options: Any) -> None:
        os.kill(os.getpid(), number)
        write_page(*arguments, **options)

    monkeypatch.setattr(snapshot_page, "write_snapshot_page", signalled)
    code, out, err = run("snapshot", file, "--html", tmp_path / "a.html")
    assert (code, out) == (1, "")
    assert sorted(path.name for path in tmp_path.iterdir() if path != file) == ["a.html"]
    assert err == ("Error: Interrupted.\n" if number == signal.SIGINT else "Error: Ended by SIGTERM.\n")


def test_reading_a_snapshot_does_not_wait_for_torch(file: Path, tmp_path: Path) -> None:
    program = (
        "import sys, main; from pathlib import Path\n"
        "from tracer.commands.diff import diff\nfrom tracer.commands.snapshot import snapshot\n"
        "file, folder = map(Path, sys.argv[1:])\n"
        "snapshot([file], html=folder / 'a.html')\n"
        "diff(file, file)\n"
        "import tracer.sessions.jobs.read_recordings  # what each process of a job's readers imports\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program, file, tmp_path], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("target", "complaint"),
    [("s.pickle", "named twice"), ("folder", "is a folder"), ("s.pickle/page", "is a file, not a folder")],
)
def test_a_target_that_cannot_be_is_refused(file: Path, tmp_path: Path, target: str, complaint: str) -> None:
    (tmp_path / "folder").mkdir()
    before = file.read_bytes()
    code, out, err = run("snapshot", file, "--html", tmp_path / target)
    assert (code, out) == (1, "")
    assert complaint in err and "Hint: Name another file with --html." in err
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folder", "s.pickle"]


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    file = write(tmp_path / "s.pickle", {"segments": [], "device_traces": [[]]})
    code, _, err = run("snapshot", file, "--html", tmp_path / "page.html")
    assert code == 1 and "nothing to draw" in err
    assert not (tmp_path / "page.html").exists()


def test_signs_that_a_terminal_obeys_are_shown(tmp_path: Path) -> None:
    text = json.dumps(out_of_memory()).replace("/home/me/model.py", "/home/\\u001b[2J\\ud800model.py")
    file = write(tmp_path / "s", json.loads(text))
    code, out, _ = run("snapshot", file, "--html", tmp_path / "a")
    assert code == 0
    assert "\x1b" not in out
    assert "/home/\\x1b[2J\\ud800model.py" in out.replace("\n", "").replace(" ", "")


def test_the_device_that_failed_comes_first(tmp_path: Path) -> None:
    objects = out_of_memory()
    objects["device_traces"].insert(0, [entry("alloc", 1 << 40, 9 * MIB), *freed(1 << 40, 9 * MIB)])
    objects["segments"][0]["device"] = 1
    code, out, _ = run("snapshot", write(tmp_path / "s", objects), "--full")
    assert code == 0
    assert out.index("\nDevice 1:") < out.index("\nDevice 0:")


# ---- diff ------------------------------------------------------------------------------------------------------------


def results(folder: Path, size: int | None, *, snapshot: bool = True, content: str | None = None) -> Path:
    """A folder of results with a peak.json of that many bytes, and a snapshot."""
    folder.mkdir()
    if size is not None:
        document: dict[str, Any] = {
            "device": "cpu",
            "peak_bytes": size,
            "phase": None,
            "rows": [asdict(peak_row(size))],
        }
        (folder / "peak.json").write_text(content or json.dumps(document))
    if snapshot:
        write(folder / "memory_snapshot.pkl", out_of_memory())
    return folder


def test_two_runs_are_compared_by_category(tmp_path: Path) -> None:
    code, out, _ = run("diff", results(tmp_path / "a", 100), results(tmp_path / "b", 107))
    assert code == 0
    assert "cpu: peak 100 B -> 107 B, +7 B (+7 B, +7.0 %)" in out
    assert "By category" in out and "By module" in out
    full = run("diff", tmp_path / "a", tmp_path / "b", "--full")[1]
    assert "By operator" in full and "By line" in full


@pytest.mark.parametrize(("threshold", "code"), [("5%", 3), ("7%", 0), ("6B", 3), ("7B", 0)])
def test_the_exit_status_for_ci(tmp_path: Path, threshold: str, code: int) -> None:
    arguments = (results(tmp_path / "a", 100), results(tmp_path / "b", 107), "--fail-above", threshold)
    assert run("diff", *arguments)[0] == code


def test_why_a_threshold_is_exceeded_is_said(tmp_path: Path) -> None:
    folders = results(tmp_path / "a", 100), results(tmp_path / "b", 107)
    code, _, err = run("diff", *folders, "--fail-above", "5%")
    assert code == 3 and err.splitlines()[-1] == "cpu: peak grew 7.0 %, the limit is 5 %."


def test_the_same_run_twice_is_no_change_and_no_table(tmp_path: Path) -> None:
    folder = results(tmp_path / "a", 100)
    code, out, _ = run("diff", folder, folder / "peak.json", "--fail-above", "0%")
    assert code == 0
    assert out.splitlines()[2].startswith("No change. cpu: peak 100 B (100 B) in both")
    assert "By " not in out


@pytest.mark.parametrize("other", ["folder", "file"])
def test_where_one_has_no_peak_the_snapshots_are_compared(tmp_path: Path, other: str) -> None:
    before, after = results(tmp_path / "a", 100), results(tmp_path / "b", None)
    code, out, _ = run("diff", before, after if other == "folder" else after / "memory_snapshot.pkl")
    assert code == 0
    assert "No change. Device 0: peak 5.00 MiB (5,242,880 B) in both" in out


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ((100, False), (None, True), "peak.json cannot be compared because"),
        ((None, True), (100, False), "peak.json cannot be compared because"),
        ((None, False), (100, True), "has no memory_snapshot.pkl and no peak.json."),
    ],
)
def test_nothing_in_common_is_said(
    tmp_path: Path, before: tuple[int | None, bool], after: tuple[int | None, bool], complaint: str
) -> None:
    folders = [
        results(tmp_path / name, size, snapshot=snapshot)
        for name, (size, snapshot) in {"a": before, "b": after}.items()
    ]
    code, out, err = run("diff", *folders)
    assert (code, out) == (1, "")
    assert complaint in err and "Hint: " in err


def test_folders_of_ranks_are_named(tmp_path: Path) -> None:
    before = results(tmp_path / "a", None, snapshot=False)
    results(before / "rank0", 100)
    code, _, err = run("diff", before, results(tmp_path / "b", 100))
    assert code == 1 and "a folder for each rank" in err


# ---- the allocator, replayed -----------------------------------------------------------------------------------------


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """60 MiB twice, one after the other freed, and 80 MiB: 140 MiB with a cache, 80 without."""
    program = Program(0)
    for size in (60, 80):
        program.allocator.free(program.allocator.allocate(size * MIB))
    return write(tmp_path / "modelled.pickle", program.snapshot())


def test_a_recording_is_replayed_at_its_own_settings(recorded: Path) -> None:
    code, out, _ = run("snapshot", recorded, "--full")
    assert code == 0
    assert "repeats every decision in this recording: 2 of 2 addresses, 2 of 2 segments" in " ".join(out.split())
    assert "Why so much is reserved" in out


def test_other_settings_are_a_table(recorded: Path) -> None:
    code, out, _ = run("snapshot", recorded, "--settings", "expandable_segments:True", "--settings", "backend:native")
    assert code == 0
    assert "as recorded" in out and "expandable_segments:True" in out and "backend:native" in out


def test_a_gpu_that_is_too_small_is_exit_status_3(recorded: Path) -> None:
    assert run("snapshot", recorded, "--gpu-memory", "140MiB")[0] == 0
    assert run("snapshot", recorded, "--gpu-memory", "80MiB")[0] == 0, "the cache is emptied for the second request"
    code, out, err = run("snapshot", recorded, "--gpu-memory", "79MiB")
    assert (code, len(err.splitlines())) == (3, 1) and err.startswith("Next: ")
    assert "As recorded: a request for 80.00 MiB fails at entry 5 of 8" in out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--settings", "max_split_size_mb:1"), "Error: max_split_size_mb is 1, and torch takes only 20 or more."),
        (("--settings", "nonsense"), "Error: The setting 'nonsense' is not a name, a colon and a value."),
        (("--gpu-memory", "much"), "Error: much is not a size."),
        (("--gpu-memory", "0"), "Error: 0 is not a size."),
    ],
)
def test_wrong_questions_are_refused_before_reading(tmp_path: Path, options: tuple[str, str], message: str) -> None:
    code, out, err = run("snapshot", tmp_path / "missing.pickle", *options)
    assert (code, out, err.splitlines()[0]) == (2, "", message)
    assert err.splitlines()[1].startswith("Hint: ")


# ---- a run without the caching allocator -----------------------------------------------------------------------------


def test_a_snapshot_of_a_cpu_run_tells_of_no_allocator(tmp_path: Path) -> None:
    """Address ranges of malloc stand in for segments there: nothing is reserved, and nothing can be replayed."""
    recording = recording_of([Event(50, 4096, 2), Event(50, -4096, 2), Event(9000, 70000, 3)], [Key(0, 50, 1)])
    path = tmp_path / "memory_snapshot.pkl"
    write_memory_snapshot(snapshot_of_recording(recording, follow_blocks(recording, None, 0)), path)
    page = tmp_path / "page.html"
    code, out, _ = run("snapshot", path, "--html", page)
    assert code == 0
    for words in ("reserved", "Reserved", "allocator", "What to try first", "taken from the device"):
        assert words not in out
    assert "reserved." not in page.read_text("utf-8")
    (device,) = json.loads(run("snapshot", path, "--json")[1])["devices"]
    assert device["peak_requested_bytes"] == 70050
    assert device["reserved_at_peak_bytes"] is device["fragmentation_at_end"] is device["allocator"]["settings"] is None
    code, out, err = run("snapshot", path, "--gpu-memory", "8GiB")
    assert code == 0 and "without torch's caching allocator" in " ".join(out.split())
    assert "--settings" not in err


def test_a_recording_that_ended_by_the_failure_gives_a_bound(tmp_path: Path) -> None:
    """The program would have asked for more: no size of a GPU is one on which it runs."""
    path = write(tmp_path / "full.pickle", full().snapshot())
    code, out, _ = run("snapshot", path, "--gpu-memory", "8GiB")
    words = " ".join(out.split())
    assert code == 0
    assert "it is no whole run" in words and "gets past the failure" in words and "runs" not in words
    found = json.loads(run("snapshot", path, "--gpu-memory", "8GiB", "--json")[1])["devices"][0]["allocator"]["what_if"]
    assert (found["runs"], found["ends_by_failure"]) == (None, True)
    assert run("snapshot", path, "--gpu-memory", "100MiB")[0] == 3, "what was recorded does not fit there"


def test_a_recording_that_went_on_after_a_failure_is_a_whole_run(tmp_path: Path) -> None:
    program = full()
    program.allocator.allocate(10 * MIB)
    path = write(tmp_path / "on.pickle", program.snapshot())
    found = json.loads(run("snapshot", path, "--gpu-memory", "8GiB", "--json")[1])["devices"][0]["allocator"]["what_if"]
    assert (found["runs"], found["ends_by_failure"]) == (True, False)


def test_a_state_without_history_has_lines_and_kinds_by_its_stacks_and_nothing_from_before(tmp_path: Path) -> None:
    """As of a process that recorded stacks and was asked once: there is no recording that anything is before."""
    forward = [
        frame("forward", "/home/me/unet.py", 12),
        frame("_call_impl", "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", 1500),
    ]
    setup = [
        frame("__init__", "/usr/lib/python3.11/site-packages/torch/nn/modules/linear.py", 106),
        frame("__init__", "/home/me/unet.py", 5),
    ]
    base = 0x7F0000000000
    blocks = [
        block(base, 4 * MIB, frames=forward),
        block(base + 4 * MIB, 2 * MIB, frames=setup),
        block(base + 6 * MIB, MIB),
    ]
    path = write(
        tmp_path / "state.pickle",
        snapshot([], [segment(base, 8 * MIB, [*blocks, block(base + 7 * MIB, MIB, state="inactive")])]),
    )
    code, out, _ = run("snapshot", path)
    assert code == 0 and "before" not in out
    assert "forward  ~/unet.py:12" in out and "no stack recorded" in out
    (device,) = json.loads(run("snapshot", path, "--json")[1])["devices"]
    assert device["before_recording_bytes"] == 0
    kinds = {group["line"]: group["kind"] for group in device["groups"]}
    assert kinds[5] == "parameter" and not any(group["is_before_recording"] for group in device["groups"])


# ---- --open ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Addresses that a browser was started with."""
    addresses: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or True)
    return addresses


def test_the_page_that_was_named_is_shown(file: Path, shown: list[str], tmp_path: Path) -> None:
    page = tmp_path / "a page.html"
    assert run("snapshot", file, "--html", page, "--open")[0] == 0
    assert shown == [page.as_uri()]


def test_without_a_name_the_page_is_in_a_new_folder(file: Path, shown: list[str], tmp_path: Path) -> None:
    assert run("snapshot", file, "--open")[0] == 0
    (page,) = tmp_path.glob("torch-timeline-*/page.html")
    assert shown == [page.as_uri()] and page.parent.stat().st_mode & 0o77 == 0


def test_nothing_is_shown_where_nothing_was_written(file: Path, shown: list[str], tmp_path: Path) -> None:
    (tmp_path / "old.html").write_text("of another run")
    assert run("snapshot", tmp_path / "missing", "--html", tmp_path / "old.html", "--open")[0] == 1
    assert run("snapshot", file, "--html", tmp_path / "new.html")[0] == 0
    assert shown == []


def test_without_a_display_the_address_is_said(
    file: Path, shown: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    _, _, err = run("snapshot", file, "--html", tmp_path / "p.html", "--open")
    assert shown == [] and f"Open {(tmp_path / 'p.html').as_uri()}" in err
