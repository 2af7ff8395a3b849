"""An unchanged script, profiled: what it prints and does stays its own, and its models and steps are found."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import main
from tests.engines.test_start import READY
from tests.processes import run_python
from tests.skips import by_default
from tracer.command_line import role
from tracer.commands.on_card import OnOptions, Run
from tracer.commands.run import followed
from tracer.commands.script import Script, _of_script
from tracer.errors import TracerError
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.next_commands import from_checkout
from tracer.sessions.script_run import ScriptProfile
from tracer.sessions.script_sessions import CountedSteps

ROOT = Path(__file__).resolve().parents[2]

TRAIN = """
import sys, torch
from torch import nn
print("arguments", sys.argv[1:], __name__)
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer = torch.optim.Adam(net.parameters())
for number in range(20):
    loss = net(torch.randn(128, 64)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if sys.argv[1:] == [str(number)]:
        raise ValueError("the data ran out")
print("trained", number)
"""
GAN = """
import torch
import torch.nn.functional as F
from torch import nn
class Generator(nn.Sequential): pass
class Critic(nn.Sequential): pass
g, d = Generator(nn.Linear(16, 64)), Critic(nn.Linear(64, 1))
of_d, of_g, unused = (torch.optim.Adam(one.parameters()) for one in (d, g, g))
for number in range(20):
    fake = g(torch.randn(8, 16))
    (F.softplus(-d(torch.randn(8, 64))).mean() + F.softplus(d(fake.detach())).mean()).backward()
    of_d.step(); of_d.zero_grad()
    F.softplus(-d(fake)).mean().backward()
    of_g.step(); of_g.zero_grad(); of_d.zero_grad()
"""
TENSORS = """
import torch
weight = torch.randn(256, 64, requires_grad=True)
optimizer = torch.optim.Adam([weight])
for number in range(15):
    (torch.randn(128, 256) @ weight).tanh().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
NO_OPTIMIZER = TRAIN.replace("    optimizer.step()\n", "")
NO_MODEL = "print(1 + 1)"
LEAVES = TRAIN.replace('print("trained", number)', "sys.exit(7)")
REPLACES = """
import gc, weakref, torch
from torch import nn
gc.disable()
net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8))
optimizer, old = torch.optim.Adam(net.parameters()), []
for number in range(12):
    optimizer.zero_grad()
    net(torch.randn(32, 64)).square().mean().backward()
    optimizer.step()
    if number % 3 == 1:
        state = optimizer.state[net[0].weight]["exp_avg"].untyped_storage()
        old += [weakref.ref(optimizer), weakref.ref(state)]
        del state
        optimizer = torch.optim.Adam(net.parameters())
    if number == 6:
        old += [weakref.ref(net), weakref.ref(net[2].weight.untyped_storage())]
        net = nn.Sequential(net[0], nn.ReLU(), nn.Linear(256, 16))
        optimizer = torch.optim.Adam(net.parameters())
    print("still there:", sum(one() is not None for one in old))
"""
OLD_NAMES = """
import warnings
import numpy
warnings.filterwarnings("ignore")
numpy.float, numpy.int, numpy.bool = float, int, bool
"""
MODULE = "from . import other\nprint('package', __package__)\n" + TRAIN


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_python(ROOT / "main.py", "run", "--save-dir", folder / "out", *arguments, folder=folder)


def script(folder: Path, text: str) -> str:
    (folder / "train.py").write_text(textwrap.dedent(text).lstrip())
    return "train.py"


def test_a_script_that_compiles_nothing_loads_no_compiler(tmp_path: Path) -> None:
    """Without an optimizer, whose own functions load torch.compile."""
    by_hand = TRAIN.replace("optimizer = torch.optim.Adam(net.parameters())\n", "").replace(
        "    optimizer.step()\n    optimizer.zero_grad()\n",
        "    with torch.no_grad(): [weight.sub_(weight.grad) for weight in net.parameters()]\n    net.zero_grad()\n",
    )
    loaded = by_hand + "print([name for name in ('torch._dynamo', 'torch._inductor') if name in sys.modules])\n"
    # Not by `run`, whose process has what this one has loaded.
    command = [sys.executable, str(ROOT / "main.py"), "run", "--save-dir", "out", script(tmp_path, loaded)]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert "[]" in ended.stdout.splitlines(), ended.stdout
    assert (tmp_path / "out" / "peak.json").is_file()


def peak(folder: Path) -> Any:
    return json.loads((folder / "out" / "peak.json").read_text())


def test_a_script_runs_to_its_end_and_its_peak_is_explained(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, TRAIN), "--epochs", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "arguments ['--epochs', '3'] __main__"
    # Behind the script's last line; one line in the middle of it.
    assert lines[1] == "trained 19"
    assert lines[2].startswith("Peak: ") and len(lines[2:]) <= 22, "with two lines on stderr: 24"
    meanwhile = f"Recorded: 6 files in {tmp_path / 'out'}. The answer follows when the script ends."
    assert done.stderr.splitlines()[0] == meanwhile
    assert done.stderr.splitlines()[-1].endswith(f"`{from_checkout()} diff {tmp_path / 'out'} OTHER`.")
    assert "CPUAllocator" not in done.stderr, "torch says at the first chance that a block is older than the profiler"
    found = peak(tmp_path)
    assert sum(row["bytes"] for row in found["rows"]) == found["peak_bytes"] == found["allocator_peak_bytes"]
    assert {row["name"] for row in found["rows"] if row["category"] == "PARAMETER"} == {
        "0.weight", "0.bias", "2.weight", "2.bias",
    }  # fmt: skip
    lines_of = {row["line"] for row in found["rows"] if row["file"] == str(tmp_path / "train.py")}
    assert 7 in lines_of


@pytest.mark.parametrize("device", by_default(["cuda:9", "xpu:9", "tpu!"], {"cuda:9"}))
def test_a_device_that_is_not_there_is_said_before_the_script_trains(device: str, tmp_path: Path) -> None:
    done = run(tmp_path, "--device", device, script(tmp_path, TRAIN))
    assert done.returncode == (2 if device == "tpu!" else 1)
    assert "trained" not in done.stdout
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()][:2] == ["Error:", "Hint:"], done.stderr
    assert len(done.stderr.splitlines()) == 2
    assert device in done.stderr


def test_tensors_under_an_optimizer_are_trained_without_a_model(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, TENSORS))
    assert done.returncode == 0, done.stderr
    of_kind = {"PARAMETER": 0, "OPTIMIZER_STATE": 0}
    for row in peak(tmp_path)["rows"]:
        if row["category"] in of_kind:
            of_kind[row["category"]] += row["bytes"]
    weight = 256 * 64 * 4
    assert of_kind == {"PARAMETER": weight, "OPTIMIZER_STATE": 2 * weight + 4}


@pytest.mark.slow
def test_models_and_optimizers_of_a_gan_are_found_by_class_and_an_idle_optimizer_is_not_waited_for(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, script(tmp_path, GAN))
    assert done.returncode == 0, done.stderr
    assert "Note: " not in done.stderr
    found = peak(tmp_path)
    names = {
        row["name"] for row in found["rows"] if row["category"] in ("PARAMETER", "OPTIMIZER_STATE") and row["name"]
    }
    assert {name.partition(".")[0] for name in names} == {"Generator", "Critic"}
    assert found["step"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--watch",)])
def test_what_a_program_replaces_is_not_kept(tmp_path: Path, options: tuple[str, ...]) -> None:
    done = run(tmp_path, "-q", *options, script(tmp_path, REPLACES))
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if line.startswith("still")] == ["still there: 0"] * 12


def test_an_exception_is_the_scripts_own_and_the_files_are_there(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, TRAIN), "3")
    assert done.returncode == 1
    trace = done.stderr[done.stderr.index("Traceback") :].splitlines()
    assert trace[1].strip() == f'File "{tmp_path / "train.py"}", line 12, in <module>', "as Python names it"
    assert "ValueError: the data ran out" in trace
    assert any(line.startswith("Peak: ") for line in done.stdout.splitlines())
    assert not any(line.startswith("Files ") for line in done.stderr.partition("Traceback")[0].splitlines())
    assert "runpy" not in done.stderr
    assert peak(tmp_path)["peak_bytes"] > 0


@pytest.mark.slow
def test_a_script_that_gives_numpy_its_old_names_back_is_explained(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, OLD_NAMES + TRAIN))
    assert done.returncode == 0, done.stderr
    assert peak(tmp_path)["peak_bytes"] > 0


def test_an_exception_goes_to_the_scripts_own_hook(tmp_path: Path) -> None:
    text = "import sys\nsys.excepthook = lambda kind, error, trace: print('hook', kind.__name__, error)\n"
    done = run(tmp_path, "-q", script(tmp_path, text + "raise ValueError('mine')"))
    assert (done.returncode, done.stdout) == (1, "hook ValueError mine\n")
    assert "Traceback" not in done.stderr


def test_an_exception_that_is_no_exception_is_without_our_frames(tmp_path: Path) -> None:
    text = "class Stop(BaseException): pass\nraise Stop('here')"
    done = run(tmp_path, "-q", script(tmp_path, text))
    assert done.returncode == 1
    first = f'  File "{tmp_path / "train.py"}", line 2, in <module>\n'
    assert done.stderr.startswith(f"Traceback (most recent call last):\n{first}")
    assert "tracer" not in done.stderr


@pytest.mark.slow
def test_the_profile_function_of_a_script_is_given_back(tmp_path: Path) -> None:
    own = "import sys\ndef own(*call): pass\nsys.setprofile(own)\n"
    done = run(tmp_path, "-q", script(tmp_path, own + TRAIN + "print(sys.getprofile() is own)"))
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "True"), done.stderr
    assert peak(tmp_path)["peak_bytes"] > 0


SHORT_TRAIN = TRAIN.replace("range(20)", "range(3)")


@pytest.mark.slow
def test_a_script_that_ends_at_once_is_explained(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, SHORT_TRAIN + "import os; os._exit(5)"))
    assert done.returncode == 5, done.stderr
    assert "Peak: " in done.stdout and "Traceback" not in done.stderr
    assert peak(tmp_path)["peak_bytes"] > 0


def test_a_program_that_a_script_puts_in_its_place_runs_behind_the_answer(tmp_path: Path) -> None:
    program = "[sys.executable, '-c', 'print(7 * 6)']"
    other = f"import os; os.execve(sys.executable, argv={program}, env={{**os.environ}})"
    done = run(tmp_path, script(tmp_path, SHORT_TRAIN + other))
    assert done.returncode == 0, done.stderr
    assert "Note: The script has put another program in its place. To explain that one, give it: " in done.stderr
    assert "Peak: " in done.stdout and done.stdout.endswith("42\n")


def test_frames_that_are_hidden_are_not_in_a_traceback() -> None:
    """As those behind the null GPU's operators; what started the script is not there either."""
    script, hidden = {"__name__": "__main__"}, {"__name__": "hidden", "__tracebackhide__": True}
    for name, of in (("train.py", script), ("kernels.py", hidden)):
        exec(compile("def call(function, *rest): function(*rest)", name, "exec"), of)
    with pytest.raises(ZeroDivisionError) as caught:
        script["call"](hidden["call"], script["call"], hidden["call"], lambda: 1 / 0)  # type: ignore[operator]
    files = [Path(frame.filename).name for frame in traceback.extract_tb(_of_script(caught.value))]
    assert files == ["train.py", "train.py", Path(__file__).name]


def test_quiet_prints_nothing_of_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, "--quiet", script(tmp_path, TRAIN))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["arguments [] __main__", "trained 19"]


@pytest.mark.slow
def test_the_scripts_exit_status_is_its_own(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, LEAVES))
    assert done.returncode == 7, done.stderr
    assert peak(tmp_path)["peak_bytes"] > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"), [(NO_MODEL, "No training was found: "), (NO_OPTIMIZER, "No optimizer of torch's kind")]
)
def test_what_cannot_be_found_is_said(tmp_path: Path, text: str, sentence: str) -> None:
    done = run(tmp_path, script(tmp_path, text))
    assert done.returncode == 0, done.stderr
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


IN_A_THREAD = """
import sys, threading, torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())
def train(num_steps):
    for _ in range(num_steps):
        model(torch.randn(32, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
train(int(sys.argv[1]))
thread = threading.Thread(target=train, args=(int(sys.argv[2]),))
thread.start()
thread.join()
print("trained")
"""


@pytest.mark.parametrize(
    ("in_main", "in_thread", "is_explained"), [(2, 4, True), pytest.param(2, 2, False, marks=pytest.mark.slow)]
)
def test_a_loop_that_goes_on_in_another_thread_is_recorded_there_or_said_to_be_too_short(
    in_main: int, in_thread: int, is_explained: bool, tmp_path: Path
) -> None:
    """torch records one thread, and ends a recording in that alone."""
    done = run(tmp_path, script(tmp_path, IN_A_THREAD), str(in_main), str(in_thread))
    assert done.returncode == 0 and "trained" in done.stdout, done.stderr
    assert "fault" not in done.stderr and "torch.profiler of the program's own" not in done.stderr
    assert ("recording began anew there" if is_explained else "this one is left out") in " ".join(done.stdout.split())
    if is_explained:
        document = peak(tmp_path)
        assert (
            document["peak_bytes"] == document["allocator_peak_bytes"] == sum(row["bytes"] for row in document["rows"])
        )
        state = sum(row["bytes"] for row in document["rows"] if row["category"] == "OPTIMIZER_STATE")
        assert state == 2 * 64 * 65 * 4 + 2 * 4


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nb.ipynb", '{"cells": [], "nbformat": 4}', "nb.ipynb is a notebook and no script."),
        ("launch.sh", "python train.py", "launch.sh is a script of another program."),
        ("launch", "#!/bin/bash\npython train.py", "launch is a script of another program."),
        ("conf.yaml", "lr: 1", "conf.yaml is no Python script."),
        ("empty.py", "\n", "empty.py is empty."),
        ("launch.sh", "python train.py", "bash is no script, but starts one."),
    ],
)
def test_a_file_that_is_no_script_is_a_sentence(
    name: str, text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(
        main.app, ["run", *(["bash"] if words.startswith("bash") else []), name], prog_name="main.py"
    )
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr.startswith(f"Error: {words}\nHint: ")


def test_a_script_may_name_what_runs_it(tmp_path: Path) -> None:
    """As `uv run` does, with the packages in comments."""
    done = run(tmp_path, script(tmp_path, "#!/usr/bin/env uv run\nprint('ran')"))
    assert done.returncode == 0 and done.stdout == "ran\n"


def test_a_script_that_fails_before_it_trains_is_not_advised_to_use_inference(tmp_path: Path) -> None:
    text = "import torch\ntorch.nn.Linear(4, 4).requires_grad_(False)(torch.ones(2, 4))\nraise ValueError('no data')"
    done = run(tmp_path, script(tmp_path, text))
    assert done.returncode == 1 and "ValueError: no data" in done.stderr
    assert "Note: The script ended by ValueError before a training was found.\n" in done.stderr
    assert "inference" not in done.stderr


CHILDREN = """
import torch, torch.multiprocessing as mp
def work(rank, size, fails):
    model = torch.nn.Linear(size, size)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(6):
        model(torch.randn(4, size)).sum().backward()
        optimizer.step()
        if fails and rank == 1 and number == 4:
            raise ValueError("the data ran out")
def idle():
    pass
if __name__ == "__main__":
    alone = mp.get_context("fork").Process(target=idle)
    alone.start()
    alone.join()
    mp.start_processes(work, (256, False), nprocs=2, start_method="fork")
    mp.start_processes(work, (16, True), nprocs=2, start_method="fork")
"""


def test_children_that_train_are_ranks_and_of_several_groups_the_first(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, CHILDREN))
    assert done.returncode == 1 and "ValueError: the data ran out" in done.stderr
    assert "No training" not in done.stderr and "Nothing was recorded" not in done.stderr
    assert f"2 processes of the script trained: rank0, rank1 in {tmp_path / 'out'}, compared in" in done.stderr
    assert done.stdout.count("Peak: ") == 1
    ranks = json.loads((tmp_path / "out" / "ranks.json").read_text("utf-8"))["ranks"]
    of_weights = 256 * 257 * 4
    assert [(rank["failure"], rank["categories"]["PARAMETER"]) for rank in ranks] == [("", of_weights)] * 2
    for rank in (0, 1):
        document = json.loads((tmp_path / "out" / f"rank{rank}" / "peak.json").read_text("utf-8"))
        assert sum(row["bytes"] for row in document["rows"]) == document["peak_bytes"] == ranks[rank]["peak_bytes"]


@pytest.mark.slow
def test_an_error_of_a_child_that_torch_starts_ends_its_rank(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, CHILDREN.replace("(256, False)", "(256, True)")))
    assert done.returncode == 1
    of_rank_1 = (tmp_path / "out" / "ranks.txt").read_text("utf-8").splitlines()[3]
    assert of_rank_1.startswith("rank 1: ") and of_rank_1.endswith("by ValueError: the data ran out")


def test_processes_that_train_nothing_are_told(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, CHILDREN.replace("mp.start_processes", "(lambda *_, **options: None)")))
    assert "The script started 1 process by multiprocessing. No training was found there either." in done.stderr


@pytest.mark.parametrize(
    ("before", "status"),
    [
        ("import sys; sys.argv = []\n", 0),
        *(
            pytest.param(f"import {words}\n", status, marks=pytest.mark.slow)
            for words, status in (
                ("io, sys, tqdm; sys.stderr = io.StringIO(); sys.stderr.close()", 0),
                ("sys; sys.stderr = None", 1),
            )
        ),
    ],
)
def test_a_script_may_empty_argv_and_close_stderr(before: str, status: int, tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, before + TRAIN + ("raise ValueError" if status else "")))
    assert done.returncode == status, done.stderr
    assert "internal fault" not in done.stderr and peak(tmp_path)["peak_bytes"] > 0


BESIDE = """
from concurrent.futures import ThreadPoolExecutor
import torch

def train(seed):
    model = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(12):
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return "trained"

with ThreadPoolExecutor(2) as pool:
    print(*pool.map(train, range(2)))
"""


@pytest.mark.slow
def test_of_two_threads_that_train_at_once_one_is_recorded(tmp_path: Path) -> None:
    done = run(tmp_path, script(tmp_path, BESIDE))
    assert done.returncode == 0 and "internal fault" not in done.stderr, done.stderr
    assert done.stdout.startswith("trained trained\n") and peak(tmp_path)["peak_bytes"] > 0


@pytest.mark.slow
def test_a_module_is_run_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "other.py").touch()
    (tmp_path / "pkg" / "train.py").write_text(MODULE)
    done = run(tmp_path, "-m", "pkg.train", "x")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("package pkg\narguments ['x'] __main__\n")
    assert peak(tmp_path)["peak_bytes"] > 0


def test_a_script_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    done = run(tmp_path, "nowhere.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: There is no file nowhere.py.\nHint: ")


@pytest.mark.parametrize(
    "words", [("python", "-u", "-X", "dev"), ("python3.11",), ("uv", "run"), ("uv", "run", "python")]
)
def test_a_python_before_the_script_is_to_be_left_out(words: tuple[str, ...]) -> None:
    script = Script(words[0], [*words[1:], "train.py", "--lr", "a b"])
    with pytest.raises(TracerError) as caught:
        script.check()
    assert str(caught.value) == f"{words[0]} is no script, but starts one."
    assert caught.value.hint.endswith(" run train.py --lr 'a b'")


def test_a_script_has_one_name_in_all_of_its_code_and_the_typed_one_among_its_arguments(tmp_path: Path) -> None:
    """As of Python itself; a file with two names has its bytes in two places of each page."""
    (tmp_path / "named.py").write_text(
        "import sys\ndef inner(): return inner.__code__.co_filename\n"
        "print(sys._getframe().f_code.co_filename == inner() == __file__, __file__, sys.argv)\n"
    )
    done = run(tmp_path, "named.py", "x")
    assert done.stdout.splitlines()[0] == f"True {tmp_path / 'named.py'} ['named.py', 'x']", done.stderr


def test_the_engine_of_each_rank_is_in_its_folder_and_on_the_first_ones_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        profile = ScriptProfile(CountedSteps.of)
        run = Run(place=OnOptions(), save_dir=tmp_path, console=Console())
        with followed(Script("grpo.py", []), profile, run) as told:
            reports = Path(role("engine") or "")
            reports.mkdir()
            (reports / "worker-1.json").write_text(json.dumps(asdict(READY) | {"rank": rank}), "utf-8")
            with told:
                pass
        (worker,) = json.loads((tmp_path / f"rank{rank}" / "engine.json").read_text("utf-8"))["workers"]
        assert worker["rank"] == rank
        assert ("KV cache of" in capsys.readouterr().out) == (rank == 0)
