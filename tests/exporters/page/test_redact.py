"""A redacted page: every number of the page, and no name of the program."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from tests.analysis.snapshots.test_findings import load
from tests.exporters.page import page_samples as samples
from tests.exporters.page.test_snapshot_page import page_of
from tests.exporters.snapshot_samples import out_of_memory
from tests.training_steps import Recorded
from tracer.analysis.snapshots.timeline import Band
from tracer.commands.app import app
from tracer.exporters.page.blocks import unpacked
from tracer.exporters.page.data import page_data
from tracer.exporters.page.html import data_of_html, write_pages
from tracer.exporters.page.model import Page, PageBlocks
from tracer.exporters.page.redact import redacted_pages
from tracer.exporters.tables import Place, Section, Table, columns

DATA = '<script type="application/json" id="data">'
LINEAR = "linear (site-packages/torch/nn.py:1)"
SECRETS = ("falcon", "Falcon")


def secret_page() -> Page:
    """A name that must not leave, wherever a page has one; what everybody's program has stays beside it."""
    row = samples.peak_row(
        9000,
        file="models/falcon_net.py",
        caller_file="train_falcon.py",
        caller_line=3,
        module="falcon.blocks.0",
        name="falcon.blocks.0.weight",
        op="aten::mm",
        evidence="reached from falcon.blocks.0",
    )
    rows = (
        row,
        samples.peak_row(1, op="falcon::fused", file=None),
        samples.peak_row(1, op="FalconBackward", file=None),
    )
    small = samples.small_page()
    assert small.peak is not None
    number = np.array([0, 1], np.int64)
    module, recording = "falcon.head", "/x/falcon.pickle"
    lines = Table(
        "In use by falcon.blocks.0",
        (*columns("bytes", "size"), *columns("text", "made by", "module", "region", "line", "recording")),
        (
            (
                9,
                Place("falcon_step", "train_falcon.py", 3, ("from falcon_main",)),
                module,
                "falcon data",
                "train_falcon.py:3",
                recording,
            ),
            (9, Place("MulBackward0 (no Python frame)"), module, "", "falcon_net.py:7", "falcon.pickle"),
            (
                9,
                Place("falcon::gathered"),
                "",
                "",
                "",
                "GRADIENT falcon.head.weight in backward, falcon.head, falcon::g",
            ),
            (9, "optimizer state falcon.head.weight.exp_avg, made before recording", "", "", "", ""),
            (9, "workspace in backward, no module, aten::sum", "", "", "FalconGatherBackward", ""),
        ),
    )
    stack = ("falcon_step (train_falcon.py:3)", LINEAR, "at::empty()", "falcon::alloc()")
    return replace(
        small,
        alarm=("Out of memory in falcon_step (train_falcon.py:3).",),
        notes=(
            "falcon.blocks.0 was not seen; falcon_step was.",
            "+1 MiB  exp < falcon_softmax (falcon/nn.py) < linear (site-packages/torch/nn.py) < ...",
        ),
        headline_notes=("Look at train_falcon.py:3.",),
        peak=replace(small.peak, rows=rows, stacks=(stack, (), ()), row=0),
        blocks=PageBlocks(rows, number, number + 1, number, number + 2, (stack, (), ())),
        bands=(*small.bands, Band("step", "falcon region", 0, 1)),
        run={"command": "python train_falcon.py", "torch": "2.15", "dataset": "falcon", "batch size": 8},
        sections=(Section("falcon.blocks.0", ("By falcon.head in falcon_net.py.",), (lines,)),),
    )


def redacted(page: Page) -> dict[str, Any]:
    return json.loads(json.dumps(redacted_pages([json.loads(json.dumps(page_data(page)))])[0]))


def texts(data: Any) -> list[str]:
    """Every text but packed columns."""
    if isinstance(data, dict):
        return [text for key, value in data.items() if key != "packed" for text in texts(value)]
    if isinstance(data, list):
        return [text for value in data for text in texts(value)]
    return [data] if isinstance(data, str) else []


def test_no_name_is_left_and_what_everybody_has_is() -> None:
    page = redacted(secret_page())
    assert [text for text in texts(page) if any(secret in text for secret in SECRETS)] == []
    found = set(texts(page))
    assert {
        "aten::mm",
        "name1.name2.0",
        "name1.name2.0.weight",
        "file1.py",
        "linear (site-packages/torch/nn.py:1)",
    } <= found
    assert {
        "at::empty()",
        "workspace in backward, no module, aten::sum",
        "MulBackward0 (no Python frame)",
        "2.15",
        "8",
        "file1.py:7",
    } <= found


def test_one_name_has_one_number_in_rows_stacks_and_sentences() -> None:
    page = redacted(secret_page())
    assert page["alarm"] == ["Out of memory in function1 (file2.py:3)."]
    assert page["notes"][0] == "name1.name2.0 was not seen; function1 was."
    assert page["sections"][0]["tables"][0]["rows"][0][:3] == [
        9,
        {"words": "function1", "file": "file2.py", "line": 3, "below": []},
        "name1.name4",
    ]
    assert page["blocks"]["stacks"]["frames"][0] == "function1 (file2.py:3)"


def test_all_numbers_stay() -> None:
    before, after = page_data(secret_page()), redacted(secret_page())
    assert json.loads(json.dumps(before["timeline"])) == after["timeline"]
    for name in ("blocks", "changes"):
        assert before["blocks"][name] == after["blocks"][name]
    groups = [unpacked(page["blocks"]["groups"]) for page in (before, after)]
    assert ((groups[0] > 0) == (groups[1] > 0)).all()
    assert groups[0][-2:].tolist() == groups[1][-2:].tolist()


def test_a_real_run_and_a_snapshot_lose_their_files(recorded: Callable[[str], Recorded], tmp_path: Path) -> None:
    run = samples.page_of(recorded("fno_2d_new_zeros").cycles[0])
    snapshot = page_of(load(tmp_path / "s", out_of_memory()))
    path = tmp_path / "page.html"
    write_pages([run, snapshot], path)
    before, after = tmp_path / "page.html", tmp_path / "page.redacted.html"
    result = CliRunner().invoke(app, ["redact", str(path)])
    assert result.exit_code == 0, result.output
    own = re.compile(r"(?:models|tests|tracer|train|fno\w*|lifting|spectral)[/.\w]*")
    assert own.search(" ".join(texts(data_of_html(before.read_text())["pages"])))
    left = [text for text in texts(data_of_html(after.read_text())["pages"]) if own.search(text)]
    assert set(left) == {"(training loop)"}


@pytest.mark.parametrize(
    "content", ["", "<title>x</title>", '<title></title><script type="application/json" id="data">{}']
)
def test_what_is_no_page_is_one_sentence(content: str, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text(content)
    result = CliRunner().invoke(app, ["redact", str(path)])
    assert result.exit_code == 1
    assert "is not a page that this version has written." in result.output
    assert "Traceback" not in result.output
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.html"]


def test_a_page_with_parts_of_another_shape_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text(f'<title></title>{DATA}{{"pages": [{{"run": 3}}]}}</script>')
    assert "is not a page that this version has written." in CliRunner().invoke(app, ["redact", str(path)]).output
    assert "cannot be read" in CliRunner().invoke(app, ["redact", str(tmp_path / "none.html")]).output


def test_a_page_of_an_attacker_stays_text(tmp_path: Path) -> None:
    path, out = tmp_path / "x.html", tmp_path / "y.html"
    write_pages([samples.hostile_page()], path)
    assert CliRunner().invoke(app, ["redact", str(path), "--out", str(out)]).exit_code == 0
    text = out.read_text()
    assert len(re.findall("<script", text)) == len(re.findall("</script", text)) == 2
    assert "<img" not in text
