"""The search over changes, over made-up scripts: what each trial is asked, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tracer.answers.prediction import FitReport, FitTrial
from tracer.changes.script_changes import SCRIPT_CHANGES, changes_of, script_changes
from tracer.errors import UsageError
from tracer.exporters.files import write_json
from tracer.exporters.json_documents.prediction import fit_values, read_fit_json
from tracer.sessions.trials.searches import Changes, least_that_fits

GIB = 1 << 30
NAMES = changes_of(is_job=False)


MEMORY = "expandable-segments,fused-optimizer,free-gradients,chunked-loss"
COMPUTE = "checkpoint,saved-on-host"


def searched(
    needs: int,
    saves: dict[str, int],
    not_applicable: str = "",
    not_borne: str = "",
    *,
    is_job: bool = False,
    likely: tuple[str, ...] = (),
) -> tuple[tuple[str, ...] | None, list[str]]:
    """Names of the answer, and of each trial, of a script that needs so much, where each change saves so much."""
    asked: list[str] = []

    def make_trial(names: Changes) -> FitTrial:
        asked.append(",".join(names))
        if set(not_borne.split(",")) <= set(names):
            return FitTrial(names, fits=False, has_ended_before=True)
        notes = (f"{not_applicable}: there is none.",) if not_applicable in names else ()
        left = needs - sum(saves.get(name, 0) for name in names)
        return FitTrial(names, fits=left <= 10, allocated_bytes=left, notes=notes)

    found = least_that_fits(make_trial, is_job=is_job, likely=likely)
    return None if found is None else found.apply, asked


def test_of_a_group_each_is_tried_alone_when_all_of_it_fit() -> None:
    names, asked = searched(15, {"chunked-loss": 3, "checkpoint": 5, "bf16": 100})
    assert names == ("checkpoint",)
    assert asked == [MEMORY, f"{MEMORY},{COMPUTE}", "checkpoint"]


def test_what_a_cause_names_is_tried_first_and_no_more_where_it_is_enough() -> None:
    assert searched(15, {"chunked-loss": 5}, likely=("chunked-loss",)) == (("chunked-loss",), ["chunked-loss"])
    names, asked = searched(15, {"saved-on-host": 5, "free-gradients": 5}, likely=("saved-on-host",))
    # What costs time comes behind what does not, whatever the cause.
    assert names == ("free-gradients",) and asked[0] == MEMORY and "saved-on-host" not in asked


def test_what_is_only_for_jobs_is_tried_in_jobs() -> None:
    names, asked = searched(15, {"bucket-views": 5}, is_job=True)
    assert names == ("bucket-views",) and asked[0] == f"{MEMORY},bucket-views"
    names, asked = searched(100, {"shard": 95}, is_job=True)
    assert names == ("shard",) and asked[1].endswith("bucket-views,checkpoint,shard,saved-on-host")
    assert "shard" not in NAMES


def test_of_a_set_what_is_needed_stays() -> None:
    names, asked = searched(18, {"chunked-loss": 3, "checkpoint": 5})
    assert names == ("chunked-loss", "checkpoint")
    assert asked == [
        MEMORY,
        f"{MEMORY},{COMPUTE}",
        *COMPUTE.split(","),
        f"{MEMORY},checkpoint",
        "fused-optimizer,free-gradients,chunked-loss,checkpoint",
        "free-gradients,chunked-loss,checkpoint",
        "chunked-loss,checkpoint",
    ]


def test_of_what_fits_together_alone_all_that_is_needed_is_found() -> None:
    names, _ = searched(30, {"checkpoint": 8, "saved-on-host": 8, "bf16": 4, "bf16-weights": 4})
    assert names == ("checkpoint", "saved-on-host", "bf16")


def test_what_cannot_be_made_is_in_no_larger_set() -> None:
    names, asked = searched(100, {"bf16-weights": 95}, not_applicable="chunked-loss")
    assert names == ("bf16-weights",)
    assert not any("chunked-loss" in names for names in asked[1:])


def test_what_the_script_does_not_bear_is_found_alone_and_left_out() -> None:
    names, asked = searched(15, {"chunked-loss": 5}, not_borne="free-gradients")
    rest = "expandable-segments,fused-optimizer,chunked-loss"
    assert names == ("chunked-loss",) and asked == [MEMORY, *MEMORY.split(",")]
    names, asked = searched(19, {"chunked-loss": 5, "fused-optimizer": 5}, not_borne="free-gradients")
    assert names == ("fused-optimizer", "chunked-loss") and asked[:6] == [MEMORY, *MEMORY.split(","), rest]
    names, asked = searched(100, {"bf16": 95}, not_borne="bf16-weights")
    assert names == ("bf16",) and sum("bf16-weights" in names for names in asked) == 1


def test_changes_that_do_not_bear_each_other_are_each_in_a_set() -> None:
    names, _ = searched(15, {"shard": 5}, not_borne="checkpoint,saved-on-host", is_job=True)
    assert names == ("shard",)
    names, _ = searched(19, {"checkpoint": 5, "shard": 5}, not_borne="checkpoint,saved-on-host", is_job=True)
    assert names == ("checkpoint", "shard")


def test_where_nothing_helps_each_group_was_tried_once() -> None:
    names, asked = searched(1000, {})
    assert names is None and asked == [MEMORY, f"{MEMORY},{COMPUTE}", ",".join(NAMES)]


def test_the_document_has_the_table_of_changes() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "fit.md").read_text("utf-8")
    rows = [
        f"| `{name}` | {change.words} | {change.group.words.split(' ', 1)[1].removeprefix('the training')} |"
        for name, change in SCRIPT_CHANGES.items()
    ]
    assert "\n".join(rows) in text


def test_a_report_is_written_and_its_changes_are_applied(tmp_path: Path) -> None:
    trials = (FitTrial((), fits=False, allocated_bytes=GIB), FitTrial(("checkpoint",), fits=True))
    path = tmp_path / "fit.json"
    write_json(path, fit_values(FitReport("an RTX 4090", 23 * GIB, ("train.py", "--epochs", "3"), trials, trials[1])))
    document = json.loads(path.read_text("utf-8"))
    assert document["trials"][0]["allocated_bytes"] == GIB and document["script"] == ["train.py", "--epochs", "3"]
    assert script_changes(",".join(read_fit_json(path))) == ("checkpoint",)
    path.write_text(json.dumps({**document, "apply": ["fp8"]}), "utf-8")
    with pytest.raises(UsageError, match="There is no change fp8"):
        script_changes(",".join(read_fit_json(path)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "Cannot read"),
        ("{", "is not JSON that can be read"),
        ("[" * 100_000, "is not JSON that can be read"),
        ("[]", "holds a list"),
        ('{"format": "torch-timeline advice", "version": 1}', "is not what fit wrote"),
        ('{"format": "torch-timeline fit", "version": 2}', "of format version 2"),
        ('{"format": "torch-timeline fit", "version": 1, "apply": null}', "says that nothing fits"),
        ('{"format": "torch-timeline fit", "version": 1, "apply": [1]}', "apply.0 is not a text"),
        ('{"format": "torch-timeline fit", "version": 1, "apply": "bf16"}', "apply is not a list"),
        (" " * (1 << 24) + "[]", "is larger than any"),
    ],
)
def test_another_file_is_refused(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "fit.json"
    if text is not None:
        path.write_text(text, "utf-8")
    with pytest.raises(UsageError, match=said):
        read_fit_json(path)
