"""Losses in chunks: the same numbers as torch's and transformers' own, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tracer.changes.applied import AppliedChanges
from tracer.changes.kinds import loss_in_chunks
from tracer.changes.kinds.loss_in_chunks import LossInChunks, plain_head

ROWS, CLASSES = 37, 11


@pytest.fixture(autouse=True)
def _small_is_worthwhile(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loss_in_chunks, "_WORTHWHILE_BYTES", 1)
    own = functional.cross_entropy
    yield
    assert functional.cross_entropy is own


def logits_and_targets() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    targets = torch.randint(CLASSES, (ROWS,))
    targets[3] = -100
    return torch.randn(ROWS, CLASSES, dtype=torch.float64, requires_grad=True), targets


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weight", [None, torch.arange(1.0, CLASSES + 1, dtype=torch.float64)])
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"ignore_index": 5}])
def test_values_and_gradients_are_torchs(reduction: str, weight: Tensor | None, options: dict[str, Any]) -> None:
    logits, targets = logits_and_targets()
    if "ignore_index" in options:
        targets[3] = 0
    losses: list[Tensor] = []
    gradients: list[Tensor | None] = []
    for chunks in (None, LossInChunks()):
        logits.grad = None
        if chunks is None:
            loss = functional.cross_entropy(logits, targets, weight, reduction=reduction, **options)
        else:
            with chunks.early():
                loss = functional.cross_entropy(logits, targets, weight, reduction=reduction, **options)
            assert chunks.num_made == 1
        (3 * loss).backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach())
        gradients.append(logits.grad)
    torch.testing.assert_close(losses[0], losses[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_autocast_computes_the_chunks_in_float32() -> None:
    logits = logits_and_targets()[0].detach().to(torch.bfloat16).requires_grad_()
    chunks = LossInChunks()
    with chunks.early(), torch.autocast("cpu", torch.bfloat16):
        loss = nn.CrossEntropyLoss()(logits, logits_and_targets()[1])
        assert loss.dtype == torch.float32 and chunks.num_made == 1
        own = functional.cross_entropy(logits.float(), logits_and_targets()[1], reduction="none")
    loss.backward()
    torch.testing.assert_close(loss, own.sum() / (ROWS - 1))
    assert logits.grad is not None and logits.grad.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("logits", "targets", "options"),
    [
        (torch.ones(4, 3), torch.ones(4, 3), {}),
        (torch.ones(4, 3, 2), torch.ones(4, 2, dtype=torch.int64), {}),
        (torch.ones(3), torch.tensor(1), {}),
        (torch.ones(4, 3), torch.ones(4, dtype=torch.int64), {"reduction": "none"}),
        (torch.ones(4, 3), torch.ones(4, dtype=torch.int64), {"size_average": False}),
    ],
    ids=["probabilities", "images", "one row", "each row", "old arguments"],
)
@pytest.mark.filterwarnings("ignore:size_average")
def test_other_losses_are_left_alone(logits: Tensor, targets: Tensor, options: dict[str, Any]) -> None:
    own = functional.cross_entropy(logits, targets, **options)
    chunks = LossInChunks()
    with chunks.early():
        assert torch.equal(functional.cross_entropy(logits, targets, **options), own)
    assert chunks.num_made == 0


def test_small_logits_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_in_chunks, "_WORTHWHILE_BYTES", ROWS * CLASSES * 8 + 1)
    chunks = LossInChunks()
    with chunks.early():
        functional.cross_entropy(*logits_and_targets())
    assert chunks.num_made == 0


def llama(**changes: Any) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=50, num_key_value_heads=2, **sizes, **changes)
    return transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize(
    ("wrapped", "more"),
    [
        (True, {}),
        pytest.param(False, {"num_items_in_batch": torch.tensor(7)}, marks=pytest.mark.slow),
        pytest.param(True, {"return_dict": False}, marks=pytest.mark.slow),
    ],
)
def test_a_language_model_makes_its_logits_in_chunks(wrapped: bool, more: dict[str, Any]) -> None:
    class Wrapper(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, **inputs: Any) -> Any:
            return self.model(**inputs)

    plain, changed = llama(), llama()
    tokens = torch.randint(50, (2, 9))
    inputs = {"input_ids": tokens, "labels": tokens, **more}
    whole = plain(**inputs)
    own = whole[0]
    own.backward()
    with AppliedChanges(["chunked-loss"]) as applied:
        for _ in range(2):  # the first call already
            changed.zero_grad()
            output = (Wrapper(changed) if wrapped else changed)(**inputs)
            output[0].backward()
            torch.testing.assert_close(output[0], own)
            if more.get("return_dict", True):
                assert output.logits is None
            else:
                assert len(output) == len(whole) - 1
    assert applied.notes == ()
    for (name, first), second in zip(plain.named_parameters(), changed.parameters(), strict=True):
        torch.testing.assert_close(first.grad, second.grad, msg=name)


def test_without_labels_and_in_evaluation_a_language_model_is_as_before() -> None:
    model = llama()
    tokens = torch.randint(50, (2, 9))
    own = model(input_ids=tokens).logits
    with AppliedChanges(["chunked-loss"]):
        torch.testing.assert_close(model(input_ids=tokens).logits, own)
        torch.testing.assert_close(model(input_ids=tokens, return_dict=False)[0], own)
        model.eval()
        torch.testing.assert_close(model(input_ids=tokens, labels=tokens).logits, own)
        with pytest.raises(ValueError, match="input_ids"):
            model.train()()
    assert "forward" not in vars(model.lm_head)


def test_models_that_do_more_to_their_logits_are_left_alone() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    capped = transformers.Gemma2ForCausalLM(
        transformers.Gemma2Config(vocab_size=50, num_key_value_heads=2, head_dim=8, **sizes)
    )
    scaled = transformers.GraniteForCausalLM(transformers.GraniteConfig(vocab_size=50, num_key_value_heads=2, **sizes))
    model = llama()
    assert plain_head(capped) is plain_head(scaled) is plain_head(nn.Linear(2, 2)) is None
    assert plain_head(model) is model.lm_head
    vars(model.lm_head)["forward"] = nn.Identity()
    assert plain_head(model) is None
