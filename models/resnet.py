"""A residual network of bottleneck blocks on random images, the example of a convnet to profile.

Shape letters: B batch, C channels, S side of the image, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tracer.workloads.module_steps import SupervisedWorkload

EXPANSION = 4
"""Channels out of a bottleneck for each channel inside it."""


def convolution(channels_in: int, channels_out: int, *, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution without bias, and the norm that has one."""
    conv = nn.Conv2d(channels_in, channels_out, size, stride=stride, padding=size // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(channels_out))


class Bottleneck(nn.Module):
    """Narrow, convolve, widen; beside a skip, which is convolved where the shape changes."""

    def __init__(self, channels_in: int, width: int, *, stride: int) -> None:
        super().__init__()
        channels_out = EXPANSION * width
        self.narrow = convolution(channels_in, width, size=1)
        self.convolve = convolution(width, width, size=3, stride=stride)
        self.widen = convolution(width, channels_out, size=1)
        self.skip: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels_out:
            self.skip = convolution(channels_in, channels_out, size=1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        """[B, C, S, S] to [B, EXPANSION * width, S / stride, S / stride]."""
        y = F.relu(self.narrow(x), inplace=True)
        y = F.relu(self.convolve(y), inplace=True)
        return F.relu(self.widen(y) + self.skip(x), inplace=True)


class ResNet(nn.Module):
    """Images [B, 3, S, S] to logits [B, K]."""

    def __init__(self, *, blocks: Sequence[int] = (1, 1, 1, 1), width: int = 16, num_classes: int = 10) -> None:
        super().__init__()
        self.stem = convolution(3, width, size=7, stride=2)
        channels, stages = width, []
        for stage, num_blocks in enumerate(blocks):
            inner = width * 2**stage
            strides = [1 if stage == 0 else 2] + [1] * (num_blocks - 1)
            layers = []
            for stride in strides:
                layers.append(Bottleneck(channels, inner, stride=stride))
                channels = EXPANSION * inner
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """The logits of each class."""
        x = F.max_pool2d(F.relu(self.stem(images), inplace=True), 3, stride=2, padding=1)
        logits: Tensor = self.head(self.stages(x).mean(dim=(2, 3)))
        return logits


def build(
    *,
    batch_size: int = 8,
    blocks: Sequence[int] = (1, 1, 1, 1),
    width: int = 16,
    num_classes: int = 10,
    image_size: int = 64,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> SupervisedWorkload:
    """Build the training of a residual network with SGD and momentum on random images.

    Args:
        batch_size: Images B of a batch.
        blocks: Bottlenecks of each stage.
        width: Channels inside the first stage's bottlenecks; each further stage has twice as many.
        num_classes: Classes K.
        image_size: Side S of the images.
        device: Where to train.
        seed: Seed of weights and images.
    """
    device = torch.device(device)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        model = ResNet(blocks=blocks, width=width, num_classes=num_classes)
    model.to(device)
    generator = torch.Generator().manual_seed(seed)

    def next_batch() -> tuple[Tensor, ...]:
        images = torch.randn(batch_size, 3, image_size, image_size, generator=generator)
        labels = torch.randint(num_classes, (batch_size,), generator=generator)
        return images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    return SupervisedWorkload(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        next_batch=next_batch,
        loss=F.cross_entropy,
        device=device,
    )


def build_resnet50(
    *, batch_size: int = 8, image_size: int = 224, device: torch.device | str = "cpu", seed: int = 0
) -> SupervisedWorkload:
    """Build the training of a network with the 25.6 million parameters of ResNet-50.

    Source:
        Table 1 of "Deep Residual Learning for Image Recognition" (He et al., 2015); strides as torchvision has them.
    """
    return build(
        batch_size=batch_size,
        blocks=(3, 4, 6, 3),
        width=64,
        num_classes=1000,
        image_size=image_size,
        device=device,
        seed=seed,
    )
