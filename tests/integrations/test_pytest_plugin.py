"""Limits of GPU memory in tests: judged by hand, and run by pytest on the null GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

from tests.null_gpu.started import needs_null_gpu
from tests.processes import run_python
from tracer.answers.difference import SavedPeak, diff_peaks
from tracer.answers.rows import Row
from tracer.errors import SnapshotError
from tracer.exporters.diff import write_markdown
from tracer.exporters.json_documents.peak import as_in_checkout, read_baseline, write_baseline
from tracer.integrations.pytest_plugin import MARK, Limits, _judged
from tracer.sessions.process_memory import ProcessPeak, _address
from tracer.units import MIB

ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "tracer.integrations.pytest_plugin"


def peak(*rows: tuple[str, int]) -> SavedPeak:
    made = tuple(
        Row(size, 1, kind, None, "", "", None, "aten::mm", f"net/{kind}.py", line)
        for line, (kind, size) in enumerate(rows, 1)
    )
    return SavedPeak("cuda:0", sum(size for _, size in rows), None, made)


def judged(now: SavedPeak, limits: Limits, before: SavedPeak | None = None, caveat: str = "") -> tuple[list[str], str]:
    return _judged(ProcessPeak(now, now.bytes, caveat), limits, before)


def test_as_much_as_the_limit_is_allowed_and_one_byte_more_is_explained() -> None:
    now = peak(("gradient", MIB), ("parameter", 3 * MIB))
    assert judged(now, Limits(4 * MIB, "h100", "1%")) == (
        [],
        "   4.00 MiB allocated, 4.00 MiB reserved on h100, 4.00 MiB allowed",
    )
    (first, _, *rows), _ = judged(now, Limits(4 * MIB - 1, "h100", "1%"))
    assert first == "4.00 MiB were allocated at most on h100; the limit is 4.00 MiB, 1 B less."
    assert [row.split() for row in rows] == [
        ["3.00", "MiB", "1", "parameter", "net/parameter.py:2"],
        ["1.00", "MiB", "1", "gradient", "net/gradient.py:1"],
        ["4.00", "MiB", "sum"],
    ]


def test_growth_since_the_baseline_fails_above_its_limit_with_what_grew() -> None:
    before, now = peak(("gradient", 100 * MIB), ("input", MIB)), peak(("gradient", 102 * MIB), ("input", MIB))
    assert judged(now, Limits(None, None, "2%"), before)[0] == []
    lines, words = judged(now, Limits(None, None, "1.9%"), before, caveat="Nothing was computed.")
    first, title, _, row, last = lines
    assert (first, last) == ("cuda:0: peak grew 2.0 %, the limit is 1.9 %.", "Nothing was computed.")
    assert title == "By line (1 row without a change left out)"
    assert row.split()[:2] == ["+2.00", "MiB"] and row.endswith("outside modules, aten::mm, net/gradient.py:1")
    assert words.endswith("+2,097,152 B since the baseline")


def test_many_rows_are_cut_and_sum_to_the_peak() -> None:
    (_, _, *rows), _ = judged(peak(*[(f"kind{n}", (20 - n) * MIB) for n in range(12)]), Limits(0, None, "1%"))
    assert len(rows) == 10 and "4 more" in rows[8] and rows[9].split() == ["174.00", "MiB", "sum"]
    assert sum(float(row.split()[0]) for row in rows[:9]) == 174


def test_a_baseline_is_read_as_it_was_written(tmp_path: Path) -> None:
    peaks = {"b": peak(("input", 3)), "a": peak(("gradient", 5), ("input", 1))}
    path = tmp_path / "peaks.json"
    write_baseline(peaks, path)
    assert read_baseline(path) == peaks and list(json.loads(path.read_text())["peaks"]) == ["a", "b"]


HEAD = '{"format": "torch-timeline baseline", "version": '


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", "[" * 100_000, HEAD + '1, "peaks": []}', HEAD + '2, "peaks": {}}'),
        HEAD + '1, "peaks": {"a": {"device": "x", "peak_bytes": 1, "rows": []}}}',
    ],
)
def test_what_is_no_baseline_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "peaks.json").write_text(text)
    with pytest.raises(SnapshotError, match=r"peaks\.json"):
        read_baseline(tmp_path / "peaks.json")


def test_markdown_shows_names_as_they_are(tmp_path: Path) -> None:
    before = peak(("input", MIB))
    now = SavedPeak("cuda:0", 2 * MIB, None, (Row(2 * MIB, 1, "a|b", None, "", "", "<img>", "*@x*", "n.py", 1),))
    write_markdown("train.py on `h100`", diff_peaks(before, now), ["It grew."], tmp_path / "c.md")
    text = (tmp_path / "c.md").read_text()
    assert "a\\|b | \\<img\\> | \\*\\@x\\* | n.py:1 |" in text and "on \\`h100\\`" in text
    assert "peak 1.00 MiB -\\> 2.00 MiB, +1.00 MiB (+1,048,576 B, +100.0 %)." in text and "\nIt grew.\n" in text


def test_one_that_is_not_there_is_to_be_written_first(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="Cannot read") as caught:
        read_baseline(tmp_path / "peaks.json")
    assert "--update" in caught.value.hint and "--gpu-memory-update in pytest" in caught.value.hint


TESTS = """
import pytest, torch

@pytest.fixture(scope="module")
def model():
    return torch.nn.Linear(1024, 1024, bias=False).cuda()

def test_plain(): pass

@pytest.mark.gpu_memory("8 MiB", on="h100")
def test_step(model):
    held = torch.empty(FLOATS, device="cuda")

@pytest.mark.gpu_memory(on="t4:1GiB")
@pytest.mark.parametrize("text", ["a::b"])
def test_out_of_memory(model, text):
    torch.empty(1 << 29, device="cuda")

@pytest.mark.gpu_memory("1 GiB")
def test_no_card(): pass

def test_behind(): pass
"""


@needs_null_gpu
@pytest.mark.slow
def test_marked_tests_run_on_the_null_gpu_in_processes_of_their_own(tmp_path: Path) -> None:
    """The layer has 4 MiB. 3 MiB more fit into the limit; 3.5 MiB more as well, and are 7 % more than before."""

    def run(num_floats: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "test_it.py").write_text(TESTS.replace("FLOATS", str(num_floats)))
        options = ("-p", PLUGIN, "-p", "no:cacheprovider", "-rA", "--gpu-memory-baseline", "peaks.json", *arguments)
        variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
        return run_python("-m", "pytest", *options, folder=tmp_path, variables=variables)

    written = run(3 * MIB // 4, "-n", "1", "-k", "step", "--gpu-memory-update")  # by no worker of xdist
    assert "1 passed" in written.stdout, written.stdout + written.stderr
    known = read_baseline(tmp_path / "peaks.json")
    assert {name: one.bytes for name, one in known.items()} == {"test_it.py::test_step": 7 * MIB}
    assert sorted(row.bytes for row in known["test_it.py::test_step"].rows) == [3 * MIB, 4 * MIB]
    every = run(3 * MIB // 4, "-n", "0")
    assert "1 failed, 3 passed, 1 skipped" in every.stdout, every.stdout + every.stderr
    assert "E     " in every.stdout and "torch.OutOfMemoryError" in every.stdout
    assert "test_it.py:17: OutOfMemoryError" in every.stdout  # the test's own line, and none of ours
    assert "7.00 MiB allocated, " in every.stdout and "MiB reserved on h100, 8.00 MiB allowed" in every.stdout
    assert "needs a GPU, or a card in its mark" in every.stdout
    again = run(7 * MIB // 8, "-n", "0", "-k", "step")
    assert "1 failed" in again.stdout and "h100: peak grew 7.1 %, the limit is 1 %." in again.stdout
    assert "512.00 KiB" in again.stdout and "test_it.py:12" in again.stdout


TRAINING = """
import pytest, torch

def net():
    return torch.nn.Sequential(torch.nn.Linear(512, 1024, bias=False), torch.nn.ReLU()).cuda()

@pytest.mark.gpu_memory("1 MiB", on="h100")
def test_backward_alone():
    net()(torch.randn(64, 512, device="cuda")).sum().backward()

@pytest.mark.gpu_memory("1 MiB", on="h100")
def test_steps():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    for _ in range(3):
        model(torch.randn(64, 512, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_weight_that_is_not_made_yet_has_no_memory() -> None:
    assert _address(torch.nn.LazyLinear(2).weight) == 0


@needs_null_gpu
@pytest.mark.slow
def test_a_parameter_a_gradient_and_optimizer_state_are_called_so(tmp_path: Path) -> None:
    """The layer has 2 MiB: its weights, their gradient and the momentum."""
    (tmp_path / "test_it.py").write_text(TRAINING)
    options = ("-p", PLUGIN, "-p", "no:cacheprovider", "-n", "0", "--gpu-memory-baseline", "peaks.json")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""}
    run_python("-m", "pytest", *options, "--gpu-memory-update", folder=tmp_path, variables=variables)
    known = read_baseline(tmp_path / "peaks.json")

    def sizes(name: str) -> dict[str, int]:
        kinds = ("parameter", "gradient", "optimizer state", "not known")
        rows = known[f"test_it.py::{name}"].rows
        return {kind: sum(row.bytes for row in rows if row.category == kind and row.bytes > MIB) for kind in kinds}

    alone, steps = sizes("test_backward_alone"), sizes("test_steps")
    assert alone == {"parameter": 2 * MIB, "gradient": 2 * MIB, "optimizer state": 0, "not known": 0}
    assert steps == {"parameter": 2 * MIB, "gradient": 2 * MIB, "optimizer state": 2 * MIB, "not known": 0}


@needs_null_gpu
@pytest.mark.slow
def test_check_fails_on_growth_of_three_percent_and_lets_two_through(tmp_path: Path) -> None:
    """The command of docs/ci.md, in a repository of one script."""
    (line,) = re.findall(
        r"^torch-timeline (check .*--fail-above 2% train.py)$", (ROOT / "docs/ci.md").read_text(), re.M
    )

    def check(*arguments: str, width: int) -> subprocess.CompletedProcess[str]:
        (tmp_path / "train.py").write_text(TRAIN.replace("WIDTH", str(width)))
        return run_python(ROOT / "main.py", *line.split()[:-1], *arguments, "train.py", folder=tmp_path)

    assert "peaks.json" in check(width=2048).stderr
    written = check("--update", width=2048)
    assert written.returncode == 0 and "Wrote peaks.json" in written.stderr
    little = check(width=2096)  # more than the 1 % that are allowed without a word
    assert little.returncode == 0 and re.search(r"peak .*, \+1\.\d %\)", little.stdout), little.stdout
    grown = check("--markdown", "memory.md", width=2152)
    assert grown.returncode == 3 and re.search(r"train\.py on \S+: peak grew 3\.\d %", grown.stderr), grown.stderr
    assert "train.py" in (tmp_path / "memory.md").read_text()


TRAIN = """
import torch
net = torch.nn.Linear(2048, WIDTH, device="cuda")
optimizer = torch.optim.AdamW(net.parameters())
for _ in range(6):
    x = torch.randn(64, 2048, device="cuda")
    y = net(x)
    y[y.sum(1) > 0].square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_mark_takes_what_it_says(pytestconfig: pytest.Config) -> None:
    assert Limits._of_mark("20 GiB", on="h100", fail_above="1%") == Limits(20 << 30, "h100", "1%")
    assert Limits._of_mark(on=None, fail_above="2%") == Limits(None, None, "2%")
    assert MARK == "gpu_memory"


def test_a_baseline_has_paths_of_every_checkout_and_nothing_that_no_comparison_reads(tmp_path: Path) -> None:
    repository = tmp_path / "any-name"
    (repository / ".git").mkdir(parents=True)
    file = str(repository / "net" / "model.py")
    rows = tuple(
        Row(4, 1, "INPUT", "Input", f"seen {n}", "forward", "m", "aten::mm", file, 7, caller_file=file, step=str(n))
        for n in range(50)
    )
    library = Row(1, 1, "HELD", None, "", "", None, None, "/x/site-packages/lib/a.py", 1)
    path = tmp_path / "peaks.json"
    saved = as_in_checkout(SavedPeak("cuda:0", 201, None, (*rows, library)), tmp_path)
    write_baseline({"a": saved}, path)
    text = path.read_text()
    assert str(tmp_path) not in text and "site-packages" not in text and len(text) < 600
    known = read_baseline(path)["a"]
    assert [(row.bytes, row.count, row.file) for row in known.rows] == [(200, 50, "net/model.py"), (1, 1, "lib/a.py")]
    assert not any(change.bytes for change in diff_peaks(known, saved).changes["line"])
