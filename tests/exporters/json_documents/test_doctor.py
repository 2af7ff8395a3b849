"""doctor.json and the screen: all answers, read in a minute, and nothing that names a person or a host."""

from __future__ import annotations

import getpass
import io
import json
import socket
from pathlib import Path

import pytest
from rich.console import Console

from tracer.exporters.json_documents.doctor import doctor_json, public, write_doctor_json
from tracer.exporters.screen.doctor import print_doctor
from tracer.results.doctor import CheckResult, DoctorReport, failed, passed, skipped

ABOUT = {"program": "0.2.0", "torch": "2.15.0", "device": "cuda:0", "name": "NVIDIA H100 80GB HBM3"}
REPORT = DoctorReport(
    about=ABOUT,
    installed=(
        CheckResult("torch", passed("torch 2.15.0, built for CUDA 13.2."), 0.1),
        CheckResult("driver", failed("The driver is too old.", "install driver 580 or newer", driver="470"), 0.2),
    ),
    works=(CheckResult("DDP", skipped("One device is here.", "torch-timeline run --on 2xh100 train.py")),),
)


def test_the_screen_has_a_line_for_each_check_and_below_it_the_command() -> None:
    text = io.StringIO()
    print_doctor(REPORT, Console(file=text, width=200, highlight=False))
    assert [line.rstrip() for line in text.getvalue().splitlines()] == [
        "torch-timeline 0.2.0, torch 2.15.0, NVIDIA H100 80GB HBM3, as cuda:0.",
        "",
        "What is here",
        "  PASS  torch   torch 2.15.0, built for CUDA 13.2.",
        "  FAIL  driver  The driver is too old.",
        "                install driver 580 or newer",
        "",
        "What works",
        "  SKIP  DDP     One device is here.",
        "                torch-timeline run --on 2xh100 train.py",
        "",
        "3 checks: 1 PASS, 1 FAIL, 1 SKIP.",
        "Mend first: driver.",
    ]


def test_the_document_has_every_answer(tmp_path: Path) -> None:
    write_doctor_json(REPORT, tmp_path / "doctor.json")
    found = json.loads((tmp_path / "doctor.json").read_text("utf-8"))
    assert found == json.loads(doctor_json(REPORT))
    assert found["format"] == "torch-timeline doctor" and found["computed"] is True
    assert found["counts"] == {"PASS": 1, "FAIL": 1, "SKIP": 1}
    assert [check["status"] for check in found["installed"]] == ["PASS", "FAIL"]
    assert found["installed"][1]["facts"] == {"driver": "470"}
    assert found["works"][0]["mend"].startswith("torch-timeline run")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/jane/secret/train.py:3: no", "~/...:3: no"),
        ("chmod -R u+rwX /home/jane/.cache/torch-timeline/null-gpu", "chmod -R u+rwX ~/.cache/torch-timeline/null-gpu"),
        ("/home/jane/env/lib/python3.11/site-packages/torch/lib/libcudart.so", "torch/lib/libcudart.so"),
        ("/Users/jane/x/y", "~/..."),
        ("of /data/jane-project/model/train.py", "of /.../train.py"),
        ("/usr/local/cuda/lib64/libcudart.so.12", "/usr/local/cuda/lib64/libcudart.so.12"),
        ("GPU-3f2a9c11-0b1c-4d5e-8f90-123456789abc", "GPU-<number>"),
        ("6.1 and 1/2 of 3/4", "6.1 and 1/2 of 3/4"),
    ],
)
def test_paths_and_numbers_of_devices_are_left_out(text: str, shown: str) -> None:
    assert public(text) == shown
    assert public({"facts": [text]}) == {"facts": [shown]}


def test_names_of_user_and_host_are_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "jane")
    monkeypatch.setattr(socket, "gethostname", lambda: "node17.lab.example")
    monkeypatch.setenv("HOME", "/scratch/people/jane")
    said = public("jane on node17 (node17.lab.example) at /scratch/people/jane/runs, janes")
    assert said == "<user> on <host> (<host>) at ~/..., janes"
