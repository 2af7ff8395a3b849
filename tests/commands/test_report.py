"""`--keep-recording` and `report` as a person meets them: the same files again, and every way to get it wrong."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

import main
from tests.commands.test_profile import SHORT, TINY, own_state, run
from tests.exporters.recording_file.samples import kept_on_cpu
from tests.pieces import Pieces, raising
from tests.processes import run_python
from tracer.exporters.recording_file.kept_run_file import save_kept_run
from tracer.sessions.output_files import OUTPUTS
from tracer.sessions.schedule import Schedule
from tracer.sessions.stored_results import kept_run
from tracer.sessions.workload_run import run_profile

ROOT = Path(main.__file__).parent
FILES = {output.file_name for output in OUTPUTS}

pytestmark = pytest.mark.filterwarnings("ignore:.*Profiler clears events")


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording alone in its folder."""
    folder = tmp_path_factory.mktemp("kept")
    save_kept_run(folder / "recording.npz", kept_on_cpu())
    return folder


def test_a_run_by_the_command_line_is_written_again_to_the_byte(tmp_path: Path) -> None:
    """By another process, in another folder."""
    first, again = tmp_path / "first", tmp_path / "again"
    with own_state():
        code, out, err = run(*TINY, *SHORT, "--keep-recording", "--full", "--save-dir", first)
    assert code == 0
    assert names_in(first) == FILES
    assert "recording.npz" in err.splitlines()[-2]
    variables = {**os.environ, "COLUMNS": "80"}
    command = [ROOT / "main.py", "report", "first", "--save-dir", "again", "--full"]
    ended = run_python(*command, folder=tmp_path, variables=variables)
    assert (ended.returncode, names_in(again)) == (0, FILES - {"recording.npz"}), ended.stderr
    assert [name for name in names_in(again) if (again / name).read_bytes() != (first / name).read_bytes()] == []
    # Paths are shown from the working directory, which is another one here; what they say is the same.
    assert out.split("By line")[0] == ended.stdout.split("By line")[0]
    assert [line.split()[0] for line in ended.stderr.splitlines()] == ["Files", "Next:"]


def test_nothing_is_kept_that_was_not_asked_for(tmp_path: Path) -> None:
    with own_state():
        run(*TINY, *SHORT, "--no-cuda-timing", "--save-dir", tmp_path)
    assert "recording.npz" not in names_in(tmp_path)


def test_without_a_folder_the_files_lie_beside_the_recording(tmp_path: Path) -> None:
    save_kept_run(tmp_path / "recording.npz", kept_on_cpu())
    content = (tmp_path / "recording.npz").read_bytes()
    code, out, _ = run("report", tmp_path, "--full")
    assert (code, names_in(tmp_path)) == (0, FILES)
    assert "What filled it" in out and "Loss: " in out and "no profiler" in out
    assert (tmp_path / "recording.npz").read_bytes() == content


def test_what_ended_the_run_is_told(tmp_path: Path) -> None:
    failing = Pieces(before=raising(ValueError("no such batch"), piece="forward", step=2))
    save_kept_run(tmp_path / "recording.npz", kept_run(run_profile(failing, schedule=Schedule(0, 1, 1, 2))))
    code, out, err = run("report", tmp_path)
    assert (code, "At the peak" in out) == (0, True)
    assert err.startswith("Of that run: Error: Step 3 raised ValueError: no such batch (")
    assert "Of that run: Hint: " in err


# ---- every way to get it wrong ---------------------------------------------------------------------------------------


def sentence(*arguments: object) -> str:
    """The error of a command that writes nothing, one line and a hint."""
    code, out, err = run("report", *arguments)
    assert (code, out) == (1, "")
    error, hint = err.splitlines()
    assert hint.startswith("Hint: ")
    return error


def test_a_folder_without_a_recording_is_told_so(tmp_path: Path) -> None:
    assert sentence(tmp_path) == f"Error: There is no {tmp_path}/recording.npz."
    assert sentence(tmp_path / "nothing") == f"Error: There is no {tmp_path}/nothing."


def test_a_snapshot_is_the_command_snapshots(tmp_path: Path) -> None:
    path = tmp_path / "x.pickle"
    path.write_bytes(b"\x80\x04}.")
    assert sentence(path) == f"Error: {path} is an allocator snapshot by its name, not a kept recording."
    hint = run("report", path)[2].splitlines()[1]
    assert f"snapshot {path}` explains it." in hint and "again" not in hint


@pytest.mark.parametrize("content", [b"", b"GIF89a", b"PK\x03\x04 and no more", b"{}"])
def test_a_file_of_something_else(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "recording.npz").write_bytes(content)
    assert "recording.npz is no recording that can be read" in sentence(tmp_path)
    assert names_in(tmp_path) == {"recording.npz"}


def test_a_recording_of_which_nothing_can_be_said(tmp_path: Path) -> None:
    """Nothing of it is on the device that it names."""
    save_kept_run(tmp_path / "recording.npz", dataclasses.replace(kept_on_cpu(), device="cuda:3"))
    assert sentence(tmp_path) == "Error: Nothing was allocated on cuda:3 while the profiler recorded."
