"""README.md, CONTRIBUTING.md and docs/: links lead somewhere, commands are ones that there are, samples of code run.

Every command of this program that stands in a block of code is read by the program's own parser. A block of Python is
compiled, and what it imports of this program must be there. Then each block is run, in a folder with what it names;
`<!-- not run: why -->` before a block says why it is not.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pickle
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

import main
from tests.document_samples import Sample, place_of, printed, samples
from tests.exporters.snapshot_samples import out_of_memory
from tests.null_gpu.started import needs_null_gpu
from tests.processes import run_python

ROOT = Path(main.__file__).parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = ("torch-timeline ", "uv run main.py", "python main.py", "python -m tracer")
_BLOCK = re.compile(r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```", re.M | re.S)
_DUMPS = re.compile(r"\| `(\S+\.pickle)`[^|]*\| `torch-timeline snapshot '?([^`']+)'?` \|")  # written as, read by
_LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
_QUOTED = re.compile(
    r"`((?:torch-timeline|uv|uvx|pip|python|pytest|torchrun|mkdocs) [^`]+|(?:run|predict|fit|check) [^`]*--on [^`]+)`"
)


@dataclass(frozen=True)
class Block:
    document: str
    language: str
    text: str
    why_not_run: str | None

    @property
    def commands(self) -> list[str]:
        """Lines that call this program, without what `uv run` takes itself."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [command for line in lines if (command := command_in(line)) is not None]


def command_in(line: str) -> str | None:
    line = re.sub(r"uv run (?:--\w+ \S+ )+main", "uv run main", line.strip().removeprefix("- run: "))
    for program in PROGRAMS:
        if line.startswith(program):
            return line.removeprefix(program).strip()
    return None


@cache
def blocks() -> list[Block]:
    return [
        Block(path.name, match["language"], match["text"], match["why"])
        for path in DOCUMENTS
        for match in _BLOCK.finditer(path.read_text(encoding="utf-8"))
    ]


@cache
def quoted() -> list[Block]:
    """Commands of sentences and tables: those of this program, and the calls of Python, pytest and others."""
    found = []
    for path in DOCUMENTS:
        text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
        for words in _QUOTED.findall(text) if path.name != "CHANGELOG.md" else ():
            # Names of formats such as `torch-timeline peak`, and `torch-timeline run` in a sentence, are none.
            if not re.search(r"(?!\$)\b[A-Z]+\b|^(torch-timeline|accelerate) [a-z-]+( [a-z]+)?$", words):
                ours = words.startswith(("run ", "predict ", "fit ", "check "))
                found.append(Block(path.name, "", f"torch-timeline {words}" if ours else words, None))
    return found


def all_commands() -> Iterator[tuple[str, str]]:
    for block in (*blocks(), *quoted()):
        if block.language in ("", "bash", "yaml"):
            yield from ((block.document, command) for command in block.commands)


@cache
def program() -> Any:
    return typer.main.get_command(main.app)


def check_command(command: str) -> None:
    """Parse a command as the program does; nothing of it runs."""
    words = shlex.split(command, comments=True)
    context = program().make_context("torch-timeline", words, resilient_parsing=False)
    rest = [*context._protected_args, *context.args]
    if rest:
        name, found, arguments = program().resolve_command(context, rest)
        found.make_context(name, list(arguments), parent=context)


# ---- links -----------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)
    broken = []
    for target in _LINK.findall(text):
        if "://" in target:
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_every_chapter_is_in_the_index() -> None:
    named = set(_LINK.findall((ROOT / "docs/index.md").read_text()))
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"} <= named


def test_the_readme_is_read_in_a_minute_and_its_picture_is_small() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 800
    (picture,) = [ROOT / target for target in _LINK.findall(text) if "pictures/" in target]
    assert picture.stat().st_size < 150_000


def test_the_users_shelf_is_read_in_an_hour() -> None:
    """README.md and the chapters above the developers' in docs/index.md: 9,000 words."""
    users, _, developers = (ROOT / "docs/index.md").read_text().partition("## For developers")
    assert developers
    chapters = set(_LINK.findall(users)) | {"../README.md", "index.md"}
    assert sum(len((ROOT / "docs" / name).read_text().split()) for name in chapters) <= 9_000


def test_the_folders_are_those_on_the_disk() -> None:
    tree = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("## The folders")[2].partition("```\n")[2].partition("```")[0]
    )
    named = set(re.findall(r"^  (\w+)/ ", tree, re.M))
    there = {path.name for path in (ROOT / "tracer").iterdir() if path.is_dir() and not path.name.startswith("_")}
    assert named == there


# ---- commands and samples --------------------------------------------------------------------------------------------


def test_there_are_commands() -> None:
    assert len(list(all_commands())) > 60


@pytest.mark.parametrize("document", sorted({document for document, _ in all_commands()}))
def test_commands_are_ones_that_there_are(document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for command in (command for name, command in all_commands() if name == document):
        try:
            check_command(command)
        except (Exception, SystemExit) as error:
            if getattr(error, "exit_code", getattr(error, "code", 1)) != 0:
                wrong.append(command)
    assert wrong == []


@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.document) for block in blocks() if block.language == "python"]
)
def test_samples_of_python_compile_and_what_they_import_is_there(block: Block) -> None:
    text = re.sub(r"^%.*$", "", block.text, flags=re.M)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "tracer":
            module = importlib.import_module(str(node.module))
            assert all(hasattr(module, name.name) for name in node.names)


TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
model.to("cuda" if torch.cuda.is_available() else "cpu")
optimizer = torch.optim.Adam(model.parameters())
for number in range(12):
    model(torch.randn(128, 64, device=next(model.parameters()).device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
GENERATE = """
import torch
model = torch.nn.Linear(64, 64)
with torch.no_grad():
    for number in range(5):
        model(torch.randn(8, 64))
"""
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 99,
    "max_position_embeddings": 4096,
}
MODEL = "import torch\ndef build(): return torch.nn.Conv2d(3, 4, 3)\n"
LOOP = """
import torch
def steps():
    for _ in range(12):
        model(torch.randn(128, 64)).square().mean().backward()
        optimizer.step(); optimizer.zero_grad()
        yield
model = torch.nn.Linear(64, 8)
optimizer = torch.optim.Adam(model.parameters())
loader = batches = steps()
"""


PROFILED = """
from tracer import Schedule, profile_training
with profile_training(model, optimizer, save_dir="profile_before", schedule=Schedule(0, 0, 1, 1)) as session:
    for _ in range(2):
        next(loader)
        session.step()
"""


def run_here(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return run_python(*words, folder=folder, limit_s=600)


def run_loop(text: str, folder: Path) -> None:
    (folder / "loop.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{LOOP}{text}")
    done = run_here("loop.py", folder=folder)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile."""
    made = tmp_path_factory.mktemp("recorded")
    run_loop(PROFILED, made)
    return made


@pytest.fixture
def folder(recorded: Path, tmp_path: Path) -> Path:
    """Return a folder with the files that the documents name."""
    for name in ("train.py", "grpo.py"):
        (tmp_path / name).write_text(TRAIN)
    (tmp_path / "generate.py").write_text(GENERATE)
    (tmp_path / "file.py").write_text(MODEL)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "recordings").mkdir()
    ranks = [f"{place}rank{rank}.pkl" for place in ("", "recordings/") for rank in range(3)]
    for name in ("memory_snapshot.pkl", "before.pkl", "after.pkl", *ranks):
        (tmp_path / name).write_bytes(pickle.dumps(out_of_memory()))
    for name, target in _DUMPS.findall((ROOT / "docs/recipes.md").read_text()):
        place = tmp_path / target.removeprefix("/tmp/")
        place = place if not place.suffix and "*" not in target else tmp_path
        place.mkdir(parents=True, exist_ok=True)
        (place / Path(name).name).write_bytes(pickle.dumps(out_of_memory()))
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    for name in ("profile_before", "profile_after", "before", "after"):
        shutil.copytree(recorded / "profile_before", tmp_path / name)
    return tmp_path


SMALL_FNO = ("--data-size", "16", "--n-modes", "4", "--hidden-channels", "8")
RUNNABLE = [block for block in blocks() if not block.why_not_run]


ELSEWHERE = {
    # How commands of sentences begin that are not run as they stand there, and the reason.
    "pip install": "it installs packages",
    "uv sync": "it installs packages",
    "uv run pytest": ".ci/run does",
    "uv run ruff": ".ci/run does",
    "uv run --group browser python docs/pictures.py": "test_the_picture_has_the_words_of_a_page_of_today",
    "uv run --group site mkdocs serve": "tests/test_site.py builds it",
    "mkdocs build": "tests/test_site.py does",
    "pytest tests/answers/why": "it is a part of the tests",
    "pytest -m gpu": "it needs a GPU",
    "python -m tests.document_samples": "it writes; test_a_sample_is_what_its_command_prints makes the same",
    "python -m ": "test_calls_of_modules_run, benchmarks with --help",
    "torchrun --nproc-per-node 8 -m tracer run train.py": "test_torchrun_starts_ranks_that_are_explained, two",
    "torch-timeline predict --on rtx-4090 --json vllm ": "it takes vLLM",
    "torch-timeline run --on h100 vllm ": "it takes vLLM",
    "torch-timeline run --inference --on h100 -m sglang": "it takes SGLang",
}


def to_run() -> list[Block]:
    """Blocks of commands, and commands of sentences and tables, each command once."""
    chosen: list[Block] = []
    ours = [block for block in (*RUNNABLE, *quoted()) if block.language in ("", "bash") and block.commands]
    for block in sorted(ours, key=lambda block: -len(block.commands)):
        if not block.text.startswith(tuple(ELSEWHERE)) and not set(block.commands) <= commands_of(chosen):
            chosen.append(block)
    return chosen


def commands_of(some: list[Block]) -> set[str]:
    return {command for block in some for command in block.commands}


def test_each_quoted_command_runs_or_says_why_not() -> None:
    ran = commands_of(to_run())
    left = {block.text for block in quoted() if not block.commands or not set(block.commands) <= ran}
    assert {text for text in left if not text.startswith(tuple(ELSEWHERE))} == set()
    assert [start for start in ELSEWHERE if not any(text.startswith(start) for text in left)] == []


@pytest.mark.slow
@needs_null_gpu
@pytest.mark.parametrize(
    "block", [pytest.param(block, id=f"{block.document}: {block.commands[0]}") for block in to_run()]
)
def test_commands_run(block: Block, folder: Path) -> None:
    """Run the commands of a block one after the other."""
    for command in block.commands:
        words = [word.removeprefix("/tmp/") for word in shlex.split(command, comments=True)]
        if "--hf-config" in words:
            pytest.importorskip("transformers")
        if not words or (words[0].startswith("--") and "--model" not in words):
            words += SMALL_FNO
        if "check" in words and "--update" not in words and not (folder / "peaks.json").exists():
            run_here(str(ROOT / "main.py"), *words[:4], "--update", folder=folder)
        done = run_here(str(ROOT / "main.py"), *words, folder=folder)
        # 3: over a threshold of the command, which is the reader's.
        allowed = (0, 3) if "--gpu-memory" in words else (0,)
        assert done.returncode in allowed, (command, done.stderr[-2000:])
        assert done.stdout or done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", sorted({b.text for b in quoted() if re.match(r"python -m (benchmarks|tests.rule)", b.text)})
)
def test_calls_of_modules_run(text: str) -> None:
    """Benchmarks take minutes, or a GPU: their help."""
    done = run_here(*text.split()[1:], "--help", folder=ROOT)
    assert done.returncode == 0 and done.stdout, done.stderr[-2000:]


@pytest.mark.slow
def test_torchrun_starts_ranks_that_are_explained(folder: Path) -> None:
    words = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tracer", "run", "train.py")
    variables = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(*words, folder=folder, variables=variables)
    assert done.returncode == 0, done.stderr[-2000:]
    assert {path.parent.name for path in folder.glob("profiler_outputs/*/peak.json")} == {"rank0", "rank1"}


@pytest.mark.slow
@needs_null_gpu
@pytest.mark.parametrize(
    "block", [pytest.param(block, id=block.document) for block in RUNNABLE if block.language == "python"]
)
def test_samples_of_python_run(block: Block, folder: Path) -> None:
    run_loop(block.text, folder)


def test_what_is_not_run_says_why() -> None:
    """What installs packages is no command of this program, and is marked too."""
    installing = [block for block in blocks() if block.text.startswith(("pip ", "uvx "))]
    assert installing and all(block.why_not_run for block in installing)


# --------------------------------------------------------------------------------------------------------------- readme
_FIGURE = re.compile(r"\d[\d,]*(?:\.\d+)?")
SAMPLES = [
    pytest.param(sample, id=sample.command, marks=[needs_null_gpu] if " --on " in sample.command else [])
    for sample in samples()
]


def test_there_are_samples() -> None:
    assert len(SAMPLES) == 2


@pytest.mark.slow
@pytest.mark.parametrize("sample", SAMPLES)
def test_a_sample_is_what_its_command_prints(sample: Sample) -> None:
    if sample.recording is not None and not sample.recording.exists():
        pytest.skip("the real recordings are not here")
    with tempfile.TemporaryDirectory() as folder:  # A long path takes a row of the answer, which has 24 lines
        lines = printed(sample, Path(folder))
    for part in sample.parts:
        at = place_of(part, lines)
        for line, expected in zip(lines[at : at + len(part)], part, strict=True):
            assert _without_figures(line) == _without_figures(expected)
            # oneDNN's workspaces differ by processor, and with them the peak by some tenths of a percent.
            if "workspace" not in line:
                assert _figures(line) == pytest.approx(_figures(expected), rel=0.01, abs=0.6)


@pytest.mark.slow
@needs_null_gpu
def test_the_picture_has_the_words_of_a_page_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("playwright.sync_api", reason="needs the package playwright (group `browser`)")
    if shutil.which("chromium") is None:
        pytest.skip("needs Debian's package chromium")
    monkeypatch.syspath_prepend(ROOT / "docs")
    pictures = importlib.import_module("pictures")
    assert f"torch-timeline {' '.join(pictures.RUN)} {pictures.SCRIPT}" in (ROOT / "README.md").read_text()
    assert pictures.words_of(pictures.make_page(tmp_path)) == pictures.WORDS.read_text().splitlines()


def _without_figures(line: str) -> list[str]:
    return _FIGURE.sub("", line).split()


def _figures(line: str) -> list[float]:
    return [float(figure.replace(",", "")) for figure in _FIGURE.findall(line)]
