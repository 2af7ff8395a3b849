"""The page of an inference engine answers in its first sentences, in the words of the screen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.engines.test_start import GIB, READY
from tests.exporters.page import page_samples as samples
from tracer.engines.answer import print_engine
from tracer.engines.page import engine_page, put_engine_first, write_engine_page
from tracer.engines.start import EngineStart, engine_start
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.screen.terminal import screen
from tracer.exporters.tables import Section


@pytest.fixture
def start() -> EngineStart:
    ready = replace(READY, num_batches=3, served_bytes=GIB)
    return engine_start([ready], cache_tokens=442_160, concurrency=53.97)


def test_the_page_says_what_the_screen_says(
    start: EngineStart, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with screen() as console:
        print_engine(start, console, command="vllm serve m", computed=False)
    lines = capsys.readouterr().out.splitlines()
    path = tmp_path / "page.html"
    write_engine_page(start, path, command="vllm serve m", computed=False)
    (page,) = data_of_html(path.read_text())["pages"]
    (of_card,) = (sentence for sentence in page["headline"] if sentence not in lines)
    assert of_card == (
        "Of the card's 80.00 GiB: KV cache 54.00 GiB, weights 15.00 GiB, activations 2.00 GiB, outside of torch's "
        "allocator 1.00 GiB, free 8.00 GiB."
    )
    assert [sentence.split()[0] for sentence in page["headline"]] == [
        "vLLM", "The", "3", "Of", "--gpu-memory-utilization", "Start"
    ]  # fmt: skip
    table = page["sections"][0]["tables"][0]
    assert sum(row[0] for row in table["rows"]) == table["footer"][0] == 80 * GIB


def test_a_command_with_a_path_of_the_working_folder_is_for_that_folder(
    start: EngineStart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "page.html"
    write_engine_page(start, path, command=f"vllm serve {tmp_path}/llama8b", computed=False)
    (page,) = data_of_html(path.read_text())["pages"]
    assert page["headline"][-1] == "Start it, in the folder of the run, with: vllm serve llama8b"


def test_the_page_of_a_script_begins_with_the_engine_that_it_has_made(start: EngineStart, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    write_pages((replace(samples.small_page(), sections=(Section("Memory of the script", (), ()),)),), path)
    (before,) = data_of_html(path.read_text())["pages"]
    put_engine_first(start, path, computed=True)
    (page,) = data_of_html(path.read_text())["pages"]
    first = engine_page(start, command="", computed=True)
    assert page["headline"] == [*first.answer, *before["headline"]]
    assert page["sections"][0]["title"] == "Memory of the engine" and page["sections"][1:] == before["sections"]
    assert {**page, **{name: before[name] for name in ("headline", "sections", "title")}} == before


def test_a_card_that_is_too_small_lacks_memory() -> None:
    full = engine_start([replace(READY, cache_bytes=63 * GIB)], cache_tokens=1, concurrency=1.0)
    assert engine_page(full, command="", computed=False).answer[2].endswith("allocator 1.00 GiB; 1.00 GiB are lacking.")


def test_of_several_workers_each_card_has_a_row(start: EngineStart) -> None:
    workers = [replace(READY, num_workers=2, rank=rank) for rank in range(2)]
    page = engine_page(engine_start(workers, cache_tokens=1, concurrency=1.0), command="", computed=False)
    assert [row[0] for row in page.sections[0].tables[1].rows] == [0, 1]
    assert any("NCCL is not counted" in sentence for sentence in page.answer)
