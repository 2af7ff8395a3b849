"""Every line that is shown runs as it stands, where the names are the program's own."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from tests.changes.programs import PROGRAMS
from tests.changes.test_language_models import language_model, naive
from tracer.changes.kinds import bf16
from tracer.changes.planner import _Trials, candidates
from tracer.workloads.module_steps import SupervisedWorkload

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the package transformers")

_PROGRAMS = {"stack": PROGRAMS["stack"], "lstm": PROGRAMS["lstm"], "language model": language_model}


def _names(name: str) -> dict[str, object]:
    """What a program's own names are: pasted lines find nothing else."""
    workload = _PROGRAMS[name]()
    batch = workload.next_batch()
    names: dict[str, object] = {"torch": torch, "model": workload.model, "optimizer": workload.optimizer}
    if isinstance(workload, SupervisedWorkload):
        inputs, targets = batch
        logits = workload.model(inputs)
        names |= {"inputs": inputs, "targets": targets, "loss_fn": workload.loss, "logits": logits, "batch": batch}
        workload.loss(logits, targets).backward()  # type: ignore[no-untyped-call]
    return names


@pytest.mark.parametrize("name", list(_PROGRAMS))
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_pasted_line_runs(name: str, device: str) -> None:
    situation = _Trials(_PROGRAMS[name], device, {}).situation  # type: ignore[arg-type]
    changes = [change for change in candidates(situation) if not change.settings]
    assert len(changes) > 4
    for change in changes:
        names = _names(name)
        if name == "language model" and "loss_fn" in "".join(change.lines):
            continue
        exec("\n".join(change.lines), names)
        assert "..." not in "".join(change.lines), change.name


@pytest.mark.parametrize(
    ("name", "device", "capability", "is_offered"),
    [
        ("lstm", "cpu", "AVX2", False),
        ("lstm", "cpu", "AVX512", True),
        ("lstm", "cuda", "AVX2", True),
        ("stack", "cpu", "AVX2", True),
    ],
)
def test_bfloat16_is_offered_where_the_processor_has_it_for_all_layers(
    name: str, device: str, capability: str, is_offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without AVX-512 oneDNN raises at a recurrent layer in bfloat16."""
    situation = _Trials(PROGRAMS[name], device, {}).situation  # type: ignore[arg-type]
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert bool([*bf16.candidates(situation)]) == is_offered


def test_attention_runs_where_query_key_and_value_are_there() -> None:
    from tracer.changes.kinds import attention

    (change,) = attention.candidates(_Trials(lambda: naive("plain"), "cuda", {}).situation)
    names: dict[str, object] = {"torch": torch, **{word: torch.ones(1, 2, 4, 8) for word in ("query", "key", "value")}}
    exec("\n".join(change.lines), names)
    assert isinstance(names["output"], torch.Tensor)
