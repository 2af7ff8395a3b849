"""Files that programs write on the null GPU: they read them back, and nothing of the user's changes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.null_gpu import write_programs
from tests.null_gpu.started import called, needs_null_gpu
from tracer.null_gpu import writes
from tracer.null_gpu.cards import H100
from tracer.null_gpu.process import environment

Tree = dict[str, tuple[int, int, bytes]]


def tree_of(folder: Path) -> Tree:
    """Mode, time and content of all that is in a folder, without Python's bytecode."""
    found = {}
    for path in [folder, *folder.rglob("*")]:
        status = path.lstat()
        content = bytes(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        if "__pycache__" not in path.parts:
            time_ns = 0 if path.name == "pkg" else status.st_mtime_ns
            found[str(path.relative_to(folder))] = (status.st_mode, time_ns, content)
    return found


def make_tree(folder: Path, far: Path) -> None:
    (folder / "data" / "deep").mkdir(parents=True)
    (folder / "empty").mkdir()
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("value = 1")
    (folder / "mine.txt").write_text("mine")
    for name, text in (("a.txt", "aa"), ("b.txt", "bb"), ("deep/c.txt", "cc")):
        (folder / "data" / name).write_text(text)
    (folder / "link").symlink_to("data")
    (folder / "far").symlink_to(far)


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """By program what it complained of, and what of its tree had changed; run once, in one process without torch."""
    work, far, folder = (tmp_path_factory.mktemp(name) for name in ("work", "far", "writes"))
    names = [program.__name__ for program in write_programs.PROGRAMS]
    for name in names:
        make_tree(work / name, far)
    before, far_before = {name: tree_of(work / name) for name in names}, tree_of(far)
    with tempfile.NamedTemporaryFile(delete=False) as old:
        old.write(b"mine")
    probe = tmp_path_factory.mktemp("clock") / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns <= Path(old.name).stat().st_ctime_ns:  # the run begins in a later tick of the clock
        probe.touch()
    zones = "\n".join([f"+{work}", f"+{far}", f"~{os.path.realpath(tempfile.gettempdir())}"])
    variables = {"NULL_GPU_WRITES": str(folder), "NULL_GPU_WRITES_ZONES": zones, "OLD_TEMPORARY": old.name}
    ended = subprocess.run(
        [sys.executable, write_programs.__file__, str(work)], env=environment([H100]) | variables,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    found = dict(line.partition(" ")[::2] for line in ended.stdout.splitlines())
    for name in names:
        if tree_of(work / name) != before[name]:
            found[name] = f"{found.get(name, '')} its folder is another one: {sorted((work / name).iterdir())}"
    if tree_of(far) != far_before:
        found["writes_through_links"] = f"the folder elsewhere has {sorted(far.iterdir())}"
    entries = [path.name for path in Path(old.name).parent.glob(f"{Path(old.name).name}*")]
    if entries != [Path(old.name).name] or Path(old.name).read_text() != "mine":
        found["writes_to_the_temporary_folder"] = f"it has {entries}"
    Path(old.name).unlink()
    yield found


@needs_null_gpu
@pytest.mark.parametrize("name", [program.__name__ for program in write_programs.PROGRAMS])
def test_a_program_reads_back_its_files_and_the_users_stay(name: str, complaints: dict[str, str]) -> None:
    assert name not in complaints, complaints[name]


def test_tidying_follows_no_link(tmp_path: Path) -> None:
    real, root = tmp_path / "real", tmp_path / "root"
    (real / "empty").mkdir(parents=True)
    (root / "a" / "empty").mkdir(parents=True)
    (root / "a" / "file").write_text("")
    (root / ".null-gpu-real").symlink_to(f"/.//{str(real)[1:]}")
    (root / "a" / "link").symlink_to(f"/.//{str(real)[1:]}")
    (root / "a" / "own").symlink_to("file")
    (root / writes.LOCK).touch()
    assert writes.written(root) == [root / "a" / "file"]
    writes.tidy(root)
    assert sorted(str(path.relative_to(root)) for path in root.rglob("*")) == [writes.LOCK, "a", "a/file", "a/own"]
    assert [path.name for path in real.iterdir()] == ["empty"]


TRAIN = """
import logging, os, sys
import numpy as np, torch
from torch import nn
logging.basicConfig(filename="train.log", force=True)
if os.path.exists("out/model.ckpt"):
    print("resumed from", torch.load("out/model.ckpt")["step"])
net = nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(6):
    net(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    logging.warning("step %d", step)
    os.makedirs("out", exist_ok=True)
    torch.save({"net": net.state_dict(), "step": step}, "out/model.ckpt.part")
    os.replace("out/model.ckpt.part", "out/model.ckpt")
    np.save("results.npy", np.zeros(3))
assert torch.load("out/model.ckpt")["step"] == 5
os.chdir("out")
os.chdir("..")
if "--libraries" in sys.argv:
    from safetensors.torch import load_file, save_file
    from torch.utils.tensorboard import SummaryWriter
    save_file({"weight": net.weight.cpu()}, "model.safetensors")
    assert load_file("model.safetensors")["weight"].shape == (64, 64)
    with SummaryWriter("runs") as writer:
        writer.add_scalar("loss", 0.0, 1)
    assert os.listdir("runs")
if "--leaves" in sys.argv:
    os.chdir("/")
sys.exit(3 if "--fails" in sys.argv else 0)
"""
WRITTEN = {"train.log", "results.npy", "out/model.ckpt"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN, "utf-8")
    (folder / "results.npy").write_text("mine", "utf-8")
    (folder / "train.log").write_text("mine", "utf-8")
    return folder


def left_in(results: Path, project: Path) -> set[str]:
    """Files that the script left below the results, as from its own folder."""
    folder = results / "null-gpu-writes" / str(project)[1:]
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@needs_null_gpu
def test_run_leaves_the_project_as_it_was(project: Path) -> None:
    before, results = tree_of(project), project.parent / "results"
    for _ in range(2):  # the second does not resume from the first
        ended = called(project, "run", "--on", "h100", "--save-dir", str(results), "train.py", "--libraries", "--fails")
        assert ended.returncode == 3, ended.stderr
        assert "resumed" not in ended.stdout
        assert tree_of(project) == before
        where = results / "null-gpu-writes" / str(project)[1:]
        assert f"went to {where}, not over yours." in ended.stderr
        assert "Static programs and raw system calls write in place all the same.\n" in ended.stderr
    left = left_in(results, project)
    assert {*WRITTEN, "model.safetensors"} < left
    assert [path.startswith("runs/events") for path in sorted(left - WRITTEN)] == [False, True]
    assert (results / "peak.json").exists()


@pytest.mark.slow
@needs_null_gpu
def test_results_in_the_project_itself_are_no_exception(project: Path) -> None:
    ended = called(project, "run", "--on", "h100", "--save-dir", ".", "train.py", "--leaves")
    assert ended.returncode == 0, ended.stderr
    assert (project / "results.npy").read_text() == (project / "train.log").read_text() == "mine"
    assert not (project / "out").exists()
    assert (project / "peak.json").exists()
    assert left_in(project, project) == WRITTEN
    assert "3 files went to null-gpu-writes/" in ended.stderr


@pytest.mark.slow
@needs_null_gpu
@pytest.mark.parametrize("command", ["check", "fit"])
def test_other_commands_leave_nothing_of_the_script(command: str, project: Path) -> None:
    before = tree_of(project)
    temporary = project.parent / "temporary"
    temporary.mkdir()
    arguments = {
        "check": ["check", "--on", "h100", "--update", "--baseline", str(project.parent / "peaks.json"), "train.py"],
        "fit": ["fit", "--each", "--on", "h100", "train.py"],
    }[command]
    ended = called(project, *arguments, TMPDIR=str(temporary))
    assert ended.returncode == 0, ended.stderr
    assert "resumed" not in ended.stdout + ended.stderr
    assert tree_of(project) == before
    assert list(temporary.iterdir()) == []
    assert ("went to a folder that is deleted" in ended.stderr) == (command != "fit")


JOB = """
import os, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
print("found", os.path.exists("checkpoint"))
if dist.get_rank() == 0:
    os.mkdir("data")
    torch.save([1], "data/prepared.pt")
dist.barrier()
assert os.listdir("data") == ["prepared.pt"] and torch.load("data/prepared.pt") == [1]
model = torch.nn.Linear(64, 64, bias=False).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dcp.save({"model": model.state_dict()}, checkpoint_id="checkpoint")
print("saved", f"__{dist.get_rank()}_0.distcp" in os.listdir("checkpoint"), open("checkpoint/.metadata", "rb").read(1))
dist.destroy_process_group()
"""


@pytest.mark.slow
@needs_null_gpu
def test_ranks_of_a_job_do_not_see_what_others_left(project: Path) -> None:
    (project / "train.py").write_text(JOB, "utf-8")
    before, results = tree_of(project), project.parent / "results"
    ended = called(project, "run", "--on", "2xh100", "--save-dir", str(results), "train.py")
    assert ended.returncode == 0, ended.stderr
    assert tree_of(project) == before
    others = (results / "rank1" / "output.txt").read_text("utf-8")
    for printed in (ended.stdout, others):
        assert "found False" in printed
        assert "saved True" in printed
    assert left_in(results / "rank1", project) == {"checkpoint/__1_0.distcp"}
