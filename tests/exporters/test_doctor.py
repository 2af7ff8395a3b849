"""doctor.json and the screen: all answers, read in a minute, and nothing that names a person or a host."""

from __future__ import annotations

import getpass
import io
import json
import os
import socket
from pathlib import Path

import pytest
from rich.console import Console

from tracer.exporters.doctor import doctor_json, print_doctor
from tracer.exporters.json_documents.public_text import public
from tracer.results.doctor import CheckResult, DoctorReport, failed, passed, skipped

ROOT = Path(__file__).resolve().parents[2]
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


def test_the_document_has_every_answer() -> None:
    found = json.loads(json.dumps(doctor_json(REPORT)))
    assert found["format"] == "torch-timeline doctor" and found["computed"] is True
    assert found["counts"] == {"PASS": 1, "FAIL": 1, "SKIP": 1}
    assert [check["status"] for check in found["installed"]] == ["PASS", "FAIL"]
    assert found["installed"][1]["facts"] == {"driver": "470"}
    assert found["works"][0]["mend"].startswith("torch-timeline run")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/home/jane/secret/train.py:3: no", "<path>:3: no"),
        ("/secret", "<path>"),
        ("[Errno 2] No such file: 'runs of jane/x.pt'", "[Errno 2] No such file: '<path>'"),
        ("of /opt/acme/my-project/", "of <path>"),
        (r"C:\Users\jane\x", "<path>"),
        ("/home/jane/env/lib/python3.11/site-packages/torch/lib/libcudart.so", "torch/lib/libcudart.so"),
        ("/data/acme/lib/libcudart-1b2c3d4e.so.12", "<path>/libcudart-1b2c3d4e.so.12"),
        ("/usr/local/cuda/lib64/libcudart.so.12", "/usr/local/cuda/lib64/libcudart.so.12"),
        (f"{ROOT}/tracer/units.py:3 some", "tracer/units.py:3 some"),
        (
            f"chmod -R u+rwX {Path.home()}/.cache/torch-timeline/null-gpu",
            "chmod -R u+rwX ~/.cache/torch-timeline/null-gpu",
        ),
        ("GPU-3f2a9c11-0b1c-4d5e-8f90-123456789abc", "GPU-<number>"),
        ("6.1 and 1/2 of 3/4", "6.1 and 1/2 of 3/4"),
    ],
)
def test_of_a_path_only_what_everybody_has_is_told(text: str, shown: str) -> None:
    assert public(text) == shown
    assert public({"facts": [text]}) == {"facts": [shown]}


def test_nothing_private_is_in_the_document(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each private text is planted where a check could have met it; `secret` is in all of them."""
    home = tmp_path / "people" / "secretuser"
    folder = home / "my secret project"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(getpass, "getuser", lambda: "secretuser")
    monkeypatch.setattr(socket, "gethostname", lambda: "secretnode.lab.example")
    for name, value in {
        "HOME": str(home), "LOGNAME": "Secretlogin", "HOSTNAME": "secretpod-7", "CC": "/opt/secret tools/cc",
        "HF_TOKEN": "hf_secret", "CUDA_API_KEY": "cuda-secret", "CUDA_VISIBLE_DEVICES": "secret-device",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "backend:native, token:hf-secret-too",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    said = (
        f"PYTORCH_CUDA_ALLOC_CONF={os.environ['PYTORCH_CUDA_ALLOC_CONF']}: no setting 'token:hf-secret-too'.",
        f"Files cannot be written to this folder: {folder}/secret.txt", "hf_secret and cuda-secret are refused",
        "secretuser, SECRETLOGIN on secretnode (secretnode.lab.example), secretpod-7", "/opt/secret tools/cc failed",
    )  # fmt: skip
    checks = tuple(CheckResult(f"check {index}", failed(text, text, told=[text])) for index, text in enumerate(said))
    text = json.dumps(doctor_json(DoctorReport(about={**ABOUT, "system": said[3]}, installed=checks, works=checks)))
    assert "secret" not in text.lower()
    assert json.loads(text)["about"]["environment"] == {
        "CUDA_VISIBLE_DEVICES": "<other>",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "PYTORCH_ALLOC_CONF": "expandable_segments:True",
        "PYTORCH_CUDA_ALLOC_CONF": "<other>",
    }
    assert json.loads(text)["installed"][1]["sentence"] == "Files cannot be written to this folder: <path>"
