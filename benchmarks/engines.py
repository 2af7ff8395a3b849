"""Both engines of `predict` on the same programs: torch's own CUDA code, and the rules of a rehearsal.

    python -m benchmarks.engines                          60 programs drawn at random over torch.nn
    python -m benchmarks.engines --first 1000 --num 20    others
    python -m benchmarks.engines --first 2000 --num 30    convolution networks on several cards, in two layouts
    python -m benchmarks.engines --seed 7 --operators     one of them, and where the two differ in what is asked for

Where the two differ torch's own code is right, and the rule is to be mended.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from statistics import median
from typing import Any

from benchmarks.random_programs import card_of
from tracer.null_gpu.cards import H100, devices_of
from tracer.null_gpu.process import environment, restart_on


def main() -> None:
    """Print a row for each program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--num", type=int, default=60)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--operators", action="store_true")
    parser.add_argument("--on", help="a card for all of them; by default the one that each seed draws")
    asked = parser.parse_args()
    restart_on([H100])  # the libraries alone: the card is read when a process first asks for one
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.num)
    differences: list[float] = []
    print(
        f"{'seed':>5} {'on':9} {'family':9} {'optimizer':22} {'amp':9} {'null GPU':>15} {'rehearsal':>15} "
        f"{'':>9} {'reserved':>9}"
    )
    for seed in seeds:
        card = asked.on or card_of(seed)
        differences += _in_a_process_of_its_own(seed, card, with_operators=asked.operators)
    sizes = [abs(each) for each in differences]
    if sizes:
        same, near = sum(size == 0 for size in sizes), sum(size <= 0.1 for size in sizes)
        print(
            f"{len(sizes)} programs: {same} the same to the byte, {near} within 0.1 %; "
            f"median {median(sizes):.3f} %, largest {max(sizes):.2f} %"
        )


def _in_a_process_of_its_own(seed: int, card: str, *, with_operators: bool) -> list[float]:
    """Some memory is kept for as long as a process lives, such as cuDNN's random state for dropout."""
    import torch  # noqa: F401 before the fork, since each would import it again

    forking = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(1, forking) as pool:
        return pool.submit(_compare, seed, card, with_operators=with_operators).result()


def _compare(seed: int, card: str, *, with_operators: bool) -> list[float]:
    from benchmarks.random_programs import build, family_of, workload
    from tracer.commands.predict_on import OnNullGpu, Rehearsed

    asked, devices = workload(seed), devices_of(card)
    os.environ.update(environment([devices.card]))
    what = f"{seed:5} {card:9} {family_of(seed):9} {asked.optimizer:22} {asked.amp:9}"
    sizes, reserved = [], []
    for engine in (OnNullGpu(devices), Rehearsed(devices.card, None, "cuda")):
        try:
            answer = engine.predict(asked)
        except Exception as error:
            print(f"{what} {type(engine).__name__}: {type(error).__name__}: {str(error)[:150]}", flush=True)
            return []
        sizes.append(answer.need.peak_allocated_bytes)
        reserved.append(answer.need.peak_reserved_bytes)
        if with_operators:
            _print_rows(answer)
        del answer
        gc.collect()
    true, rehearsed = sizes
    difference = 100 * (rehearsed - true) / true
    of_reserved = 100 * (reserved[1] - reserved[0]) / reserved[0]
    print(f"{what} {true:15,} {rehearsed:15,} {difference:+8.3f} % {of_reserved:+7.2f} %", flush=True)
    if with_operators:
        print(build(seed))
    return [difference]


def _print_rows(answer: Any) -> None:
    peak = answer.results.findings.worst.peak
    rows: Counter[tuple[str, str, str]] = Counter()
    for row in peak.rows:
        rows[row.category, row.phase or "", row.op or ""] += row.bytes
    print(f"  {answer.engine}: peak in {peak.phase}", file=sys.stdout)
    for (category, phase, op), size in rows.most_common(25):
        print(f"    {size:14,} {category:16} {phase:10} {op}")


if __name__ == "__main__":
    main()
