"""Normal numbers within bounds: how often torch draws again until all of them are there."""

from __future__ import annotations

import math


def rounds(count: int, mean: float, std: float, low: float, high: float) -> int:
    """How often `torch.nn.init.trunc_normal_` draws again for numbers that were outside its bounds, as expected.

    torch takes normal numbers and draws those outside again; where less than three in ten would be inside, uniform ones
    that it keeps by the height of the curve.

    Source:
        torch/nn/init.py, `_no_grad_trunc_normal_`, of torch 2.15.
    """
    inside = _below((high - mean) / std) - _below((low - mean) / std)
    kept_share = inside
    if inside <= 0.3:
        mode = max(low, min(mean, high))
        height = math.exp(-0.5 * ((mode - mean) / std) ** 2) / (std * math.sqrt(2 * math.pi))
        kept_share = inside / (height * (high - low)) if height and high > low else 1.0
    lost_share = min(max(1.0 - kept_share, 0.0), 0.99)
    num_rounds, left = 0, count * lost_share
    while left >= 0.5:
        num_rounds, left = num_rounds + 1, left * lost_share
    return num_rounds


def _below(deviations: float) -> float:
    return (1.0 + math.erf(deviations / math.sqrt(2.0))) / 2.0
