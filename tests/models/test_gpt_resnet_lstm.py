"""The example models: sizes as published, seeds that decide everything, and that each one learns."""

import pytest
import torch

from models import gpt, lstm, resnet
from models.fno_workload import FnoSettings, build_fno_workload

pytestmark = pytest.mark.usefixtures("one_thread")

SMALL = {
    "gpt": lambda **more: gpt.build(batch_size=2, context=8, width=16, vocabulary=16, **more),
    "resnet": lambda **more: resnet.build(batch_size=4, image_size=32, width=4, **more),
    "lstm": lambda **more: lstm.build(batch_size=2, length=8, width=8, **more),
    "fno": lambda **more: build_fno_workload(
        FnoSettings(batch_size=2, hidden_channels=8, data_size=8, n_modes=4, n_layers=2, **more), device="cpu"
    ),
}


def num_parameters(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_every_parameter_receives_a_gradient_and_the_step_lets_go_of_it(build):
    workload = build()
    workload.backward(workload.forward(workload.next_batch()))
    assert all(parameter.grad is not None for parameter in workload.model.parameters())
    workload.optimizer_step()
    assert all(parameter.grad is None for parameter in workload.model.parameters())


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_the_seed_alone_decides_and_the_global_random_state_stays(build):
    before = torch.get_rng_state()
    first, second, other = build(), build(), build(seed=1)
    assert torch.equal(torch.get_rng_state(), before)
    loss, same, different = (float(each.forward(each.next_batch()).detach()) for each in (first, second, other))
    assert loss == same != different


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_it_learns_a_batch(build):
    workload = build()
    batch, losses = workload.next_batch(), []
    for _ in range(8):
        loss = workload.forward(batch)
        workload.backward(loss)
        workload.optimizer_step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("build", SMALL.values(), ids=SMALL)
def test_a_copy_is_apart(build):
    workload = build()
    copy = workload.copy()
    before = [parameter.detach().clone() for parameter in workload.model.parameters()]
    copy.backward(copy.forward(copy.next_batch()))
    copy.optimizer_step()
    assert all(torch.equal(old, new) for old, new in zip(before, workload.model.parameters(), strict=True))


def test_a_token_sees_none_after_it():
    model = gpt.GPT(vocabulary=16, context=8, width=16)
    ids = torch.randint(16, (1, 8))
    changed = ids.clone()
    changed[0, 5:] = (ids[0, 5:] + 1) % 16
    logits, others = model(ids), model(changed)
    assert torch.allclose(logits[:, :5], others[:, :5], atol=1e-6)
    assert not torch.allclose(logits[:, 5:], others[:, 5:])


def test_sizes_are_those_published():
    with torch.device("meta"):
        small_gpt2 = gpt.GPT(vocabulary=50257, context=1024, width=768, n_layers=12, n_heads=12)
        resnet50 = resnet.ResNet(blocks=(3, 4, 6, 3), width=64, num_classes=1000)
    assert num_parameters(small_gpt2) == 124_439_808
    assert num_parameters(resnet50) == 25_557_032


def test_resnet50_is_a_factory_of_its_own():
    workload = resnet.build_resnet50(batch_size=2, image_size=32)
    assert num_parameters(workload.model) == 25_557_032
    assert workload.forward(workload.next_batch()).isfinite()


def test_heads_must_divide_the_width():
    with pytest.raises(ValueError, match="width of 10 cannot be divided among 4 heads"):
        gpt.build(width=10)
