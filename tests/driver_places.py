"""Where CUDA's driver on an H100 placed segments that a training asked for one after the other."""

from __future__ import annotations

# MiB of each, and MiB from the first one's address to its own: torchvision's vit_b_16, driver 580, torch 2.11.
SEGMENTS = (
    (38, 0), (20, 38), (28, -32), (28, -64), (38, -128), (38, -192), (20, -154), (28, -224), (28, -256), (20, -90),
    (38, -320), (38, -384), (20, -346), (28, -416), (28, -448), (38, -512), (38, -576), (20, -538), (28, -608),
    (28, -640), (20, -474),
)  # fmt: skip
