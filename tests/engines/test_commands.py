"""Commands of engines in the place of a script."""

from __future__ import annotations

import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from typer import Exit
from typer.testing import CliRunner

from tests.engines.test_start import GIB, READY
from tracer.commands import engines, on_card
from tracer.commands.app import app
from tracer.commands.engines import engine_command, fit_engine, numbers_of_gpus
from tracer.commands.on_card import OnOptions, Run
from tracer.engines import run as engine_run
from tracer.engines.answer import lacking_sentences, print_engine, print_engines
from tracer.engines.start import EngineStart, StartStage, engine_start
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.terminal import screen
from tracer.null_gpu.cards import devices_of


def test_a_server_is_run_without_its_weights() -> None:
    engine = engine_command("vllm", ["serve", "org/model", "--max-model-len", "8192"], is_module=False)
    assert engine is not None
    assert engine.words == "vllm serve org/model --max-model-len 8192"
    given = ["serve", "org/model", "--max-model-len", "8192", "--load-format", "dummy"]
    assert engine.command == [sys.executable, "-m", "vllm.entrypoints.cli.main", *given]


@pytest.mark.skipif(find_spec("vllm") is not None, reason="this torch is vLLM's")
@pytest.mark.parametrize("command", ["predict", "run", "fit"])
def test_without_vllm_the_answer_is_how_to_install_it_beside(command: str) -> None:
    ended = CliRunner().invoke(app, [command, "--on", "h100", "vllm", "serve", "m"])
    assert ended.exit_code == 1, ended.output
    assert "Error: vLLM is not installed for " in ended.stderr and "install this program in" in ended.stderr


def test_a_benchmark_of_vllms_own_is_left_to_end_by_itself() -> None:
    engine = engine_command("vllm", ["bench", "latency", "--model", "m"], is_module=False)
    assert engine is not None and not engine.is_server
    assert not engine.changed(["--seed", "1"]).is_server


def test_a_format_that_the_user_names_stays() -> None:
    module = "vllm.entrypoints.openai.api_server"
    engine = engine_command(module, ["--model", "m", "--load-format=auto"], is_module=True)
    assert engine is not None and engine.command[2:] == [module, "--model", "m", "--load-format=auto"]


@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_folder_with_a_config_alone_has_no_tokenizer(tmp_path: Path, has_tokenizer: bool) -> None:
    (tmp_path / "config.json").write_text("{}")
    if has_tokenizer:
        (tmp_path / "tokenizer.json").write_text("{}")
    engine = engine_command("/bin/vllm", ["serve", str(tmp_path)], is_module=False)
    assert engine is not None
    assert ("--skip-tokenizer-init" in engine.command) is not has_tokenizer


@pytest.mark.parametrize(
    ("script", "arguments", "is_module"),
    [
        ("train.py", ["serve"], False),
        ("vllm", ["bench", "serve"], False),
        ("vllm", ["serve"], True),
        ("torchrun", [], False),
    ],
)
def test_anything_else_is_a_script(script: str, arguments: list[str], is_module: bool) -> None:
    assert engine_command(script, arguments, is_module=is_module) is None


def test_the_screen_answers_in_24_lines_and_its_rows_sum(capsys: pytest.CaptureFixture[str]) -> None:
    start = engine_start([READY], cache_tokens=442_160, concurrency=53.97)
    with screen() as console:
        print_engine(start, console, command="vllm serve m", computed=False)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert lines[1] == ("vLLM 1, m: KV cache of 54.00 GiB, 442,160 tokens: 54.0 requests of 8,192 tokens at once.")
    table = [line for line in lines if "%" in line and not line.startswith("--")]
    sizes = [int(line.split()[0].replace(",", "")) for line in table]
    assert sum(sizes[:-1]) == sizes[-1] == 80 * GIB
    assert lines[-1] == "Start it with: vllm serve m"


@pytest.mark.parametrize(
    ("num_workers", "computed", "is_said"), [(2, False, True), (1, False, False), (2, True, False)]
)
def test_nccl_is_said_not_to_be_counted_on_several_null_gpus(
    capsys: pytest.CaptureFixture[str], num_workers: int, computed: bool, is_said: bool
) -> None:
    workers = [replace(READY, num_workers=num_workers, rank=rank) for rank in range(num_workers)]
    with screen() as console:
        print_engine(engine_start(workers, cache_tokens=1, concurrency=1.0), console, command="", computed=computed)
    assert ("NCCL is not counted" in capsys.readouterr().out) is is_said


@pytest.mark.parametrize(("allocated_bytes", "words"), [(5, "counts 5 bytes more"), (-5, "counts 5 bytes less")])
def test_bytes_allocated_or_freed_between_stages_are_said(allocated_bytes: int, words: str) -> None:
    start = engine_start([replace(READY, allocated_bytes=allocated_bytes)], cache_tokens=1, concurrency=1.0)
    (said,) = lacking_sentences(start, computed=True)
    assert words in said


def test_a_command_that_does_not_start_is_printed_with_the_first_change(capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(READY, stage=StartStage.PROFILE, request_bytes=64 * GIB, cache_bytes=0, cache_tokens=None)
    start = engine_start([failed], cache_tokens=None, concurrency=None, failure="ValueError")
    with screen() as console:
        print_engine(start, console, command="vllm serve m --max-model-len 8192 --enforce-eager", computed=False)
    out = capsys.readouterr().out
    assert "vLLM 1, m: does not start." in out
    assert out.splitlines()[-1] == "Start it with: vllm serve m --enforce-eager --max-model-len 6896"


@pytest.mark.parametrize(
    ("given", "options", "expected"),
    [
        (["m", "--a", "1", "--b"], ["--c", "2"], ["m", "--a", "1", "--b", "--c", "2"]),
        (["m", "--a", "1", "--b"], ["--a", "2"], ["m", "--b", "--a", "2"]),
        (["m", "--a=1", "--b", "3"], ["--a", "2"], ["m", "--b", "3", "--a", "2"]),
        (["--b", "3", "--flag", "m"], ["--flag"], ["--b", "3", "m", "--flag"]),
        (["--a", "1", "m", "--b", "3"], ["--a", "-1"], ["m", "--b", "3", "--a", "-1"]),
        (["--a_long", "1", "m"], ["--a-long", "2"], ["m", "--a-long", "2"]),
    ],
)
def test_options_that_are_tried_take_the_place_of_the_commands_own(
    given: list[str], options: list[str], expected: list[str]
) -> None:
    engine = engine_command("vllm", ["serve", *given], is_module=False)
    assert engine is not None
    changed = engine.changed(options)
    assert changed.arguments == ("serve", *expected)
    assert changed.words == shlex.join(["vllm", "serve", *expected])


def test_a_table_of_options_says_what_starts_and_what_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    failed = replace(READY, stage=StartStage.PROFILE, request_bytes=64 * GIB, cache_bytes=0, cache_tokens=None)
    starts = [
        engine_start([READY], cache_tokens=442_160, concurrency=53.97),
        engine_start([failed], cache_tokens=None, concurrency=None, failure="ValueError"),
    ]
    with screen() as console:
        print_engines([(("--a", "1"), starts[0]), (("--a", "2"), starts[1])], console)
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "KV cache on card, by options"
    assert lines[3].split() == ["54.00", "GiB", "442,160", "54.0", "442,352", "8.00", "GiB", "--a", "1"]
    assert lines[4].split("--a 2")[1].strip().startswith("One request of 8,192 tokens needs 64.00 GiB")


@pytest.mark.parametrize(("most", "expected"), [(1, "1"), (6, "1 2 4 6"), (8, "1 2 4 8")])
def test_numbers_of_gpus_double_up_to_those_that_are_there(most: int, expected: str) -> None:
    assert [options[1] for options in numbers_of_gpus(most)] == expected.split()


@pytest.mark.parametrize("fits_on", [2, 16])
def test_the_search_for_a_number_of_gpus_ends_with_the_first_that_fits(
    fits_on: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = replace(READY, stage=StartStage.PROFILE, request_bytes=64 * GIB, cache_bytes=0, cache_tokens=None)
    numbers = list[int]()

    def run_engine(command: list[str], output: Path, *, is_server: bool) -> EngineStart:
        numbers.append(int(command[command.index("--tensor-parallel-size") + 1]))
        return engine_start([READY if numbers[-1] >= fits_on else failed], cache_tokens=None, concurrency=None)

    monkeypatch.setattr(engine_run, "run_engine", run_engine)
    monkeypatch.setattr(on_card, "start_on", devices_of)
    monkeypatch.setattr(engines, "_check_installed", lambda: None)
    monkeypatch.setattr(Run, "on_null_gpu", lambda run: nullcontext())
    engine = engine_command("vllm", ["serve", "m"], is_module=False)
    assert engine is not None
    with pytest.raises(Exit) as ended:
        run = Run(place=OnOptions(on="4xh100"), console=Console())
        fit_engine(engine, run, numbers_of_gpus(4), is_first_enough=True)
    printed = capsys.readouterr()
    if fits_on == 2:
        assert ended.value.exit_code == 0 and numbers == [1, 2]
        assert printed.out.splitlines()[-1] == "vllm serve m --tensor-parallel-size 2"
    else:
        assert ended.value.exit_code == 3 and numbers == [1, 2, 4]
        assert "--max-model-len 6896  is the longest request that fits." in printed.err
