"""Commands with `--on`, in processes of their own on the null GPU: what they find, and that nothing is made up."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.null_gpu.started import called, needs_null_gpu
from tracer.answers.null_run import CAVEAT
from tracer.exporters.page.html import data_of_html

ROOT = Path(__file__).resolve().parents[2]
TRAIN = """
import torch
from torch import nn
width = 512
net = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).cuda()
optimizer = torch.optim.AdamW(net.parameters())
for number in range(20):
    loss = net(torch.randn(16384, width, device="cuda")).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print("step", number)
"""
READS = """
import torch
from torch import nn
net = nn.Linear(256, 256).cuda()
head = nn.Linear(256, 4096).cuda()
optimizer = torch.optim.SGD([*net.parameters(), *head.parameters()], lr=0.1)
for number in range(4):
    chosen = (torch.rand(1000, device="cuda") > 0.5).nonzero().squeeze(1)
    loss = head(net(torch.randn(1000, 256, device="cuda"))[chosen]).square().mean()
    if loss.item() > 0.5:
        large = torch.empty(64 << 20, device="cuda")
        del large
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

SMALL_FNO = ("--n-modes", "8", "--batch-size", "2", "--hidden-channels", "16", "--data-size", "16")

pytestmark = [needs_null_gpu, pytest.mark.slow]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("script") / "train.py"
    file.write_text(TRAIN, "utf-8")
    return file


def started(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The same where it matters that torch is not loaded yet."""
    command = [sys.executable, str(ROOT / "main.py"), *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300, check=False)


def peak_of(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "peak.json").read_text("utf-8"))
    return document


def bytes_by_category(document: dict[str, Any]) -> Counter[str]:
    """Sum the rows of peak.json, or of the failure in it."""
    sums = Counter[str]()
    for row in document["rows"]:
        sums[row["category"]] += row["bytes"]
    return sums


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Path]:
    folder = tmp_path_factory.mktemp("profiled")
    arguments = (*SMALL_FNO, "--keep-recording", "--save-dir", "out")
    return called(folder, "--on", "h100", *arguments), folder / "out"


def test_a_profile_is_explained_to_the_byte(profiled: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    run, folder = profiled
    assert run.returncode == 0, run.stderr
    peak = peak_of(folder)
    assert peak["device"] == "cuda:0" and peak["unexplained_bytes"] == 0
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
    assert peak["allocator"]["num_joined"] == peak["allocator"]["num_blocks"]
    assert "BEFORE_RECORDING" not in {row["category"] for row in peak["rows"]}


def test_it_says_first_that_nothing_was_computed(profiled: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    run, folder = profiled
    assert run.stdout.strip().startswith(CAVEAT)
    assert run.stderr.startswith("Null GPU (H100, 79.10 GiB): ")
    assert peak_of(folder)["computed"] is False and peak_of(folder)["time_us"] is None
    rows, words = (folder / "max_mem.txt").read_text("utf-8").split("\n\n")[:2]
    assert words == CAVEAT and "Peak total memory" in rows
    page = (folder / "memory_timeline.html").read_text("utf-8")
    assert CAVEAT in page and '"axis":"entry"' in page.replace('": ', '":')


def test_no_time_and_no_loss_stands_anywhere(profiled: tuple[subprocess.CompletedProcess[str], Path]) -> None:
    run, folder = profiled
    said = run.stdout + run.stderr
    assert not re.search(r"\d ms\b|Loss|bit for bit|tokens/s", said)
    names = {path.name for path in folder.iterdir()}
    assert names.isdisjoint({"cuda_timing.txt", "run_time_report.sqlite", "trace.json.gz"})
    explained = called(folder, "snapshot", "memory_snapshot.pkl", "--json")
    device = json.loads(explained.stdout)["devices"][0]
    assert device["entries"] and device["first_time_us"] is None


def test_a_kept_recording_remembers_it(profiled: tuple[subprocess.CompletedProcess[str], Path], tmp_path: Path) -> None:
    _, folder = profiled
    run = called(folder.parent, "report", "out", "--save-dir", str(tmp_path))
    assert run.returncode == 0 and CAVEAT in run.stdout
    for name in ("max_mem.txt", "peak.json", "memory_snapshot.pkl"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()
    assert not (tmp_path / "run_time_report.sqlite").exists()


def test_steps_that_replay_cuda_graphs_are_explained_to_the_byte(tmp_path: Path) -> None:
    """What graphs leave behind is in no row, and what they keep reserved is said."""
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch.nn import Linear, ReLU, Sequential\ndef build():\n"
        "    net = Sequential(Linear(512, 512), ReLU(), Linear(512, 512))\n"
        "    return torch.compile(net, mode='reduce-overhead')\n"
    )
    run = called(tmp_path, "--on", "h100", "--model", "net.py:build", "--input", "512", "--save-dir", "out")
    assert run.returncode == 0, run.stderr
    peak = peak_of(tmp_path / "out")
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
    assert peak["unexplained_bytes"] == 0
    assert "of private pools: in use whenever a graph is replayed" in " ".join(run.stdout.split())
    assert "made where the profiler does not record" not in run.stdout


FORGETS = (
    TRAIN.replace("range(20)", "range(12)")
    + """
kept = []
for number in range(int(__import__("sys").argv[1])):
    kept.append(net(torch.randn(16384, width, device="cuda")))
"""
)


def test_more_memory_after_the_recorded_steps_is_told(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FORGETS, "utf-8")
    run = called(tmp_path, "run", "--on", "rtx4090:8GiB", "--save-dir", "out", "train.py", "2")
    assert run.returncode == 0, run.stderr
    assert "Note: The script used more than the peak below: " in run.stdout
    assert peak_of(tmp_path / "out")["unexplained_bytes"] == 0
    assert not (tmp_path / "out" / "later" / "watch.txt").exists()


GROWS = """
import torch
from torch import nn
net = nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
seen = []
for number in range(100):
    output = net(torch.randn(16384, 1024, device="cuda"))
    output.square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    seen.append(output.detach())
"""


@pytest.mark.parametrize(
    ("program", "arguments", "line", "step"),
    [(FORGETS, ("100",), "    kept.append(net", 13), (GROWS, (), "    output.square()", None)],
    ids=["after the training", "in a later step"],
)
def test_memory_that_runs_out_after_the_recorded_steps_is_the_headline(
    program: str, arguments: tuple[str, ...], line: str, step: int | None, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(program, "utf-8")
    card = "rtx4090:8GiB" if program is FORGETS else "rtx4090:2GiB"
    run = called(tmp_path, "run", "--on", card, "--save-dir", "out", "--keep-recording", "train.py", *arguments)
    assert run.returncode == 1, run.stderr
    number = 1 + next(row for row, text in enumerate(program.splitlines()) if text.startswith(line))
    said = " ".join(run.stdout.split())
    happened = f"Out of memory on cuda:0 at train.py:{number} ("
    assert happened in said and "used more than the peak below" not in said
    assert said.index(happened) < said.index("Peak of the recorded steps: ")
    assert "Why: " in said and "Change: " in said and "behind the recorded steps." in said
    assert "Later steps are explained in out/later/watch.txt" in said
    assert len(run.stdout[run.stdout.index("Null GPU:") :].splitlines()) <= 24
    peak = peak_of(tmp_path / "out")
    assert (peak["failure"]["line"], peak["failure"]["is_peak"], peak["failure"]["rows"]) == (number, False, None)
    assert peak["failure"]["allocated_bytes"] > peak["peak_bytes"]
    assert peak["unexplained_bytes"] == 0 and sum(row["bytes"] for row in peak["rows"]) == peak["peak_bytes"]
    for sentence in (*peak["answer"]["happened"], *peak["answer"]["why"], *peak["answer"]["change"]):
        assert sentence.replace(f"{tmp_path}/", "") in said
    (page,) = data_of_html((tmp_path / "out" / "memory_timeline.html").read_text("utf-8"))["pages"]
    assert page["is_alarming"] and page["peak"]["bytes"] == peak["peak_bytes"]
    answer = peak["answer"]
    sentences = [*answer["happened"], *answer["why"], *answer["change"]]
    assert [each.replace(f"{tmp_path}/", "") for each in page["said"]] == [
        each.replace(f"{tmp_path}/", "") for each in sentences
    ]
    (mark,) = (mark for mark in page["marks"] if mark["kind"] == "oom")
    assert mark["label"].startswith("out of memory after these steps") and mark["bytes"] <= page["peak"]["bytes"]
    # Its history is not in the recording, which has what was found in it.
    called(tmp_path, "report", "out", "--save-dir", "again")
    for name in ("peak.json", "memory_timeline.html"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "out" / name).read_bytes(), name
    told = (tmp_path / "out" / "later" / "watch.txt").read_text("utf-8")
    assert re.search(rf"Step {step or '[0-9]+'}, out of memory", told) and f"train.py:{number}" in told
    assert "out of memory: OutOfMemoryError" not in run.stderr, "the answer has it"


INFERENCE = """
import torch
from torch import nn
net = nn.Sequential(nn.Linear(1000, 5000), nn.GELU(), nn.Linear(5000, 1000)).cuda()
kept = torch.zeros(1 << 20, device="cuda")
with torch.inference_mode():
    for number in range(4):
        net(torch.randn(400 - 10 * number, 1000, device="cuda"))
"""


def test_a_script_without_training_is_explained_from_its_first_call(tmp_path: Path) -> None:
    (tmp_path / "infer.py").write_text(INFERENCE, "utf-8")
    run = called(tmp_path, "run", "--inference", "--on", "h100", "--save-dir", "out", "infer.py")
    assert run.returncode == 0, run.stderr
    peak = peak_of(tmp_path / "out")
    sizes = bytes_by_category(peak)
    assert sum(sizes.values()) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
    assert peak["step"] == "ProfilerStep#0" and {"PARAMETER", "EVALUATION", "INPUT", "HELD"} <= sizes.keys()
    # The weights have sizes that the allocator rounds up, without splitting the rest off: all of a block is theirs.
    assert "BEFORE_RECORDING" not in sizes and sizes["PARAMETER"] > 4 * 1000 * 5000 * 2 + 4 * 6000


ENDS_BETWEEN_CYCLES = """
import torch
from torch import nn
net = nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for number in range(10):
    net(torch.randn(100, 1000, device="cuda")).sum().backward()
    optimizer.step()
    if number == 4:
        torch.empty(1 << 30, device="cuda")
"""


FURTHER_CAUSES = ("outputs_of_an_epoch", "validation")


def cause_program(name: str) -> tuple[str, str, str]:
    """Return a program of `benchmarks.causes`, its card, and the cause that its first line names."""
    text = (ROOT / "benchmarks" / "scripts" / "causes" / f"{name}.py").read_text("utf-8")
    card, cause = re.match(r'""".+; on (\S+): (.+)\."""', text).groups()  # type: ignore[union-attr]
    return text, f"h100:{card}", cause


@pytest.mark.parametrize(
    ("program", "card", "cause"),
    [
        (ENDS_BETWEEN_CYCLES, "h100:2GiB", "made whole"),
        *(pytest.param(*cause_program(name), id=name) for name in FURTHER_CAUSES),
    ],
)
def test_why_memory_ends(program: str, card: str, cause: str, tmp_path: Path) -> None:
    """In a step between two recorded cycles, and in programs of `benchmarks.causes`; torch 2.9 is asked, too."""
    (tmp_path / "ends.py").write_text(program, "utf-8")
    run = called(tmp_path, "run", "--on", card, "--save-dir", "out", "ends.py")
    assert run.returncode == 1 and re.search(r"^Out of memory on cuda:0 at \S+:\d+ \(", run.stdout, re.MULTILINE)
    assert peak_of(tmp_path / "out")["failure"]["decisive"] == cause
    assert ("no_grad" in run.stdout) == (cause == "gradients in evaluation")
    assert "used more than the peak below" not in run.stdout


NAMES = """
import torch
from torch import nn
from tracer import named_memory
net = nn.Linear(1000, 1000).cuda()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
keys = torch.zeros(3 << 20, device="cuda")
named_memory("KV cache", keys)

@named_memory("rollout")
def rollout():
    with named_memory("prompts"):
        prompts = torch.zeros(2 << 20, device="cuda")
    return prompts, torch.zeros(1 << 20, device="cuda")

for step in range(3):
    kept = rollout()
    net(torch.randn(100, 1000, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_what_a_program_calls_its_memory_is_in_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "names.py").write_text(NAMES, "utf-8")
    run = called(tmp_path, "run", "--on", "h100", "--save-dir", "out", "names.py")
    assert run.returncode == 0, run.stderr
    said = called(tmp_path, "snapshot", "--full", "out/memory_snapshot.pkl").stdout
    named = said.partition("By the name that the program gave")[2]
    assert re.search(r"12\.00 MiB +1 +KV cache", named)
    assert re.search(r"\d+\.00 MiB +\d +prompts", named) and re.search(r"\d+\.00 MiB +\d +rollout", named)


def test_out_of_memory_is_torchs_own_and_explained(tmp_path: Path) -> None:
    run = called(tmp_path, "--on", "h100:1GiB", "--batch-size", "64", "--save-dir", "out")
    assert run.returncode == 1
    assert "ran out of memory: CUDA out of memory. Tried to allocate" in run.stderr
    assert "GPU 0 has a total capacity of 1024.00 MiB" in run.stderr
    assert run.stdout.strip().startswith(CAVEAT) and "Out of memory on cuda:0 at" in run.stdout
    assert "\nChange: " in run.stdout
    (page,) = data_of_html((tmp_path / "out" / "memory_timeline.html").read_text("utf-8"))["pages"]
    assert page["caveat"] == CAVEAT
    # The page speaks of the same kinds as the screen; of what the failed operation had made so far, nobody knows more.
    assert ("not known" in run.stdout) == ("not known" in {kind["name"] for kind in page["peak"]["breakdown"]})


def test_a_script_that_is_watched_explains_it(script: Path, tmp_path: Path) -> None:
    run = called(tmp_path, "run", "--watch", "--on", "rtx-4060:900MiB", "--save-dir", "out", str(script))
    assert run.returncode == 1
    assert (tmp_path / "out" / "watch.txt").read_text("utf-8").startswith(CAVEAT)
    document = json.loads((tmp_path / "out" / "watch.json").read_text("utf-8"))
    assert document["computed"] is False and document["event"]["what"] == "out of memory"
    assert document["event"]["time_ns"] is None and "time_ns" not in document["steps"]


def test_a_script_is_predicted_by_its_first_steps(script: Path, tmp_path: Path) -> None:
    fits = called(tmp_path, "predict", "--on", "rtx-4090", "--json", str(script))
    document = json.loads(fits.stdout)  # what the script prints is on stderr
    assert fits.returncode == 0 and document["fits"] is True and document["method"] == "null GPU"
    assert document["peak_allocated_bytes"] <= document["peak_reserved_bytes"]
    assert "step 1" in fits.stderr and "step 3" not in fits.stderr
    lacks = called(tmp_path, "predict", "--on", "rtx-4090:900MiB", str(script))
    assert lacks.returncode == 3 and "Does not fit in RTX-4090 (900.00 MiB): " in lacks.stdout
    assert "in step 1 at" in lacks.stdout
    assert "Traceback" not in lacks.stderr and list(tmp_path.iterdir()) == []


def test_a_prediction_has_the_line_of_what_was_made_before_the_first_step(script: Path, tmp_path: Path) -> None:
    text = script.read_text("utf-8")
    (tmp_path / "table.py").write_text(f'import torch; table = torch.zeros(1 << 24, device="cuda")\n{text}', "utf-8")
    said = called(tmp_path, "predict", "--on", "h100", "--json", "table.py")
    (row,) = (row for row in json.loads(said.stdout)["rows"] if row["bytes"] == 1 << 26)
    assert (row["category"], row["phase"], Path(row["file"]).name, row["line"]) == (
        "HELD",
        "before recording",
        "table.py",
        1,
    )


def test_a_script_that_trains_on_the_cpu_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nnet = torch.nn.Linear(8, 8)\noptimizer = torch.optim.SGD(net.parameters())\n"
        "for _ in range(9):\n    net(torch.ones(2, 8)).sum().backward()\n    optimizer.step()\n"
    )
    done = called(tmp_path, "predict", "--on", "h100", "train.py")
    assert done.returncode == 1
    assert "Error: The script trained on cpu, so nothing was allocated on the GPU." in done.stderr
    assert "Traceback" not in done.stderr
    run = called(tmp_path, "run", "--on", "h100", "train.py")
    assert run.returncode == 0
    assert "The script trained on cpu, so nothing was allocated on the GPU. Make it use cuda" in run.stderr


def test_what_a_script_reads_decides_sizes_and_is_listed(tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text(READS, "utf-8")
    drawn = called(tmp_path, "run", "--on", "h100", "--full", "--n-repeats", "1", "--save-dir", "drawn", "reads.py")
    assert drawn.returncode == 0, drawn.stderr
    assert "the sizes at reads.py:8 were decided by 4 of them. Set one with --answer reads.py:8=VALUE" in " ".join(
        drawn.stdout.split()
    )
    assert "reads.py:10: item, 4 times, a number that is drawn" in drawn.stdout and "Loss" not in drawn.stdout
    read = {one["line"]: one for one in peak_of(tmp_path / "drawn")["values_read"]["reads"]}
    assert 400 < int(read[8]["value"]) < 600 and read[8]["decides_size"] and read[8]["known"] == "drawn"
    answers = ("--answer", "reads.py:8=1000", "--answer", "reads.py:10=0.9", "--answer", "reads.py:99=1")
    given = called(tmp_path, "predict", "--on", "h100", "--json", *answers, "reads.py")
    document = json.loads(given.stdout)
    assert given.returncode == 0 and document["values_read"]["unused_answers"] == ["reads.py:99"]
    read = {one["line"]: one for one in document["values_read"]["reads"]}
    assert (read[8]["value"], read[10]["value"]) == ("1000", "0.9") and read[8]["answered"] and read[10]["answered"]
    assert {row["line"]: row["bytes"] for row in document["rows"]}[11] == 256 << 20


def test_a_module_is_predicted_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(TRAIN.replace("range(20)", "range(int(sys.argv[1]))").replace(
        "import torch", "import sys, torch", 1), "utf-8")  # fmt: skip
    done = called(tmp_path, "predict", "-m", "--on", "h100", "package.train", "9")
    assert done.returncode == 0 and "3 steps ran" in done.stdout, done.stderr


def test_what_a_script_lacks_is_its_own_matter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("open('not-there.bin')", "utf-8")
    done = called(tmp_path, "predict", "--on", "h100", "train.py")
    assert done.returncode == 1 and "train.py itself ended with FileNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("first", "why"),
    [
        ("import torch", "12.00 GiB cannot be allocated before the first step at train.py:2."),
        (  # whose history is its own
            "import torch; torch.cuda.memory._record_memory_history()",
            "out of memory before the first step at train.py:2.",
        ),
    ],
)
def test_a_script_without_room_before_its_first_step_does_not_fit(first: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(f"{first}\ntorch.empty(3 << 30, device='cuda')", "utf-8")
    done = called(tmp_path, "predict", "--on", "h100:2GiB", "train.py")
    assert done.returncode == 3, done.stderr
    assert f"Does not fit in H100 (2.00 GiB): {why}" in done.stdout


EXITS = """
import sys
import torch
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(2 if sys.argv[1] == "0" else 0):
    net(torch.ones(8, 64, device="cuda")).sum().backward()
    optimizer.step()
sys.exit(int(sys.argv[1]))
"""


def test_a_script_that_ends_by_sys_exit_has_an_answer(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(EXITS, "utf-8")
    done = called(tmp_path, "predict", "--on", "h100", "train.py", "0")
    assert done.returncode == 0 and "Fits in H100" in done.stdout, done.stderr
    done = called(tmp_path, "check", "--on", "h100", "--update", "train.py", "2")
    assert done.returncode == 125 and "train.py itself ended with status 2" in done.stderr
    assert not (tmp_path / "peaks.json").exists()


def test_workspaces_that_cublas_keeps_are_workspaces(script: Path, tmp_path: Path) -> None:
    """Of one cycle, in which they are made, and of one before which they were."""
    for num_warmup in (0, 1):
        folder = tmp_path / str(num_warmup)
        arguments = ("--n-repeats", "1", "--n-warmup-steps", str(num_warmup), "--save-dir", str(folder))
        run = called(tmp_path, "run", "--on", "h100", *arguments, str(script), TORCH_CUBLAS_WORKSPACE_CACHE="1")
        assert run.returncode == 0, run.stderr
        rows = peak_of(folder)["rows"]
        kept = sum(row["bytes"] for row in rows if row["evidence"] == "workspace that a library keeps between calls")
        assert kept == 2 * (32 << 20)  # for the threads of forward and of backward, on Hopper
        assert "BEFORE_RECORDING" not in {row["category"] for row in rows}


def test_an_allocator_that_the_script_sets_is_used_and_one_without_a_history_is_a_sentence(tmp_path: Path) -> None:
    first = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'backend:cudaMallocAsync'\n"
    (tmp_path / "train.py").write_text(first + TRAIN, "utf-8")
    ended = started(tmp_path, "run", "--on", "h100", "train.py")
    assert ended.returncode == 1
    assert "Error: The CUDA allocator cudaMallocAsync records no allocations" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "step" not in ended.stdout


LATE = """
import torch
from torch.utils.data import DataLoader
texts = [torch.ones(2048 if number == 37 else 16, 64) for number in range(60)]
net = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.SGD(net.parameters())
for batch in DataLoader(texts):
    net(batch.cuda()).sum().backward()
    optimizer.step()
"""


def test_a_check_on_a_full_card_has_grown(tmp_path: Path) -> None:
    """3, as of growth: `git bisect run` takes it for bad, and a script that does not run can be told apart."""
    step = 'net(batch.cuda()).sum().backward(); torch.empty(3 << 30, device="cuda")'
    (tmp_path / "train.py").write_text(LATE.replace("net(batch.cuda()).sum().backward()", step), "utf-8")
    done = called(tmp_path, "check", "--on", "h100:2GiB", "--update", "train.py")
    assert done.returncode == 3 and "Error: Out of memory: train.py on h100:2GiB." in done.stderr, done.stderr
    assert not (tmp_path / "peaks.json").exists()


# ---- other people's training loops under `run --on`, unchanged: each is explained to the byte


TRAINER = """
import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Tokens(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        ids = torch.randint(0, 1000, (64,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}

sizes = dict(hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4)
arguments = TrainingArguments(
    output_dir="out", max_steps=10, per_device_train_batch_size=4, bf16=True, gradient_checkpointing=True,
    optim="adamw_torch_fused", dataloader_num_workers=1, eval_strategy="steps", eval_steps=5, save_steps=5,
    report_to=[], disable_tqdm=True, logging_steps=2, load_best_model_at_end=True, metric_for_best_model="loss",
)
model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, **sizes))
Trainer(model=model, args=arguments, train_dataset=Tokens(), eval_dataset=Tokens()).train()
"""


def test_it_is_explained_to_the_byte(tmp_path: Path) -> None:
    for package in ("transformers", "accelerate"):
        pytest.importorskip(package)
    (tmp_path / "train.py").write_text(TRAINER)
    ended = called(tmp_path, "run", "--on", "h100", "--save-dir", "found", "train.py")
    assert ended.returncode == 0, ended.stderr
    peak = json.loads((tmp_path / "found" / "peak.json").read_text())
    assert peak["unexplained_bytes"] == 0
    assert sum(row["bytes"] for row in peak["rows"]) == peak["allocator_peak_bytes"] == peak["peak_bytes"]
