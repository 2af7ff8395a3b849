"""What steps leave behind, against a plain loop over the blocks of real recordings, and the total over a cycle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

import pytest

from tests.training_steps import WORKLOADS, Recorded
from tracer.analysis.kinds import Kind

LASTING = {Kind.PARAMETER, Kind.BUFFER, Kind.OPTIMIZER_STATE}


@pytest.mark.parametrize("name", WORKLOADS)
def test_survivors_are_those_of_a_plain_loop(recorded: Callable[[str], Recorded], name: str) -> None:
    for found in recorded(name).cycles:
        lifetimes, attribution = found.lifetimes, found.attribution
        steps = attribution.allocation_step[lifetimes.events].tolist()
        num_steps = len(attribution.step_names)
        last = [
            max((at for at, step in enumerate(steps) if step <= each and step >= 0), default=-1)
            for each in range(num_steps)
        ]

        def step_of(position: int, last: list[int] = last) -> int:
            return next((step for step, end in enumerate(last) if position <= end), len(last))

        expected: dict[int, list[int]] = defaultdict(list)
        for size, made, freed, kind, unseen in zip(
            lifetimes.size_bytes.tolist(),
            lifetimes.made_at.tolist(),
            lifetimes.freed_at.tolist(),
            found.blocks.kind.tolist(),
            lifetimes.made_unseen.tolist(),
            strict=True,
        ):
            if unseen or kind in LASTING:
                continue
            made_in, freed_in = (step_of(made) if made >= 0 else -1), step_of(freed)
            if 0 <= made_in < num_steps - 1 and freed_in > made_in + 1:
                expected[made_in].append(size)
            if 1 <= freed_in <= num_steps - 1 and made_in < freed_in - 1:
                expected[freed_in - 1].append(-size)
        survivors: dict[int, list[int]] = defaultdict(list)
        for step, size in zip(found.survivors.step.tolist(), found.survivors.size_bytes.tolist(), strict=True):
            survivors[step].append(size)
        assert {step: sorted(sizes) for step, sizes in survivors.items()} == {
            step: sorted(sizes) for step, sizes in expected.items()
        }
