"""The memory of an inference engine that has started: weights, activations, KV cache, and what limits the requests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from tracer.units import format_bytes

KEPT_FREE_BYTES: Final = 150 << 20
"""Bytes of a card that vLLM itself leaves free, in the sizes of `--kv-cache-memory` that it suggests."""

LEAST_OF_DRIVER_BYTES: Final = 276 << 20
MOST_OF_DRIVER_BYTES: Final = 2662 << 20
"""Memory that NVIDIA's driver keeps for the CUDA graphs that vLLM captures: 0.27 to 2.6 GiB in public logs."""

GRAPHS: Final = "capture of CUDA graphs"
"""The part of the warm-up in which memory often ends."""


class StartStage(StrEnum):
    """Stages of an engine's start-up, in order; a worker reports the last one that it has ended."""

    STARTED = "start of the worker"
    WEIGHTS = "loading of the weights"
    PROFILE = "profile of the largest batch"
    CACHE = "allocation of the KV cache"
    READY = "warm-up and capture of CUDA graphs"

    @property
    def following(self) -> StartStage:
        """Return the stage that comes next; after the last one, that one."""
        stages = list(StartStage)
        return stages[min(stages.index(self) + 1, len(stages) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Memory of one worker of an engine on its card, as far as the worker came."""

    engine: str  # Such as vLLM 0.33.0
    model: str  # As the engine names it: a folder, or a name at a hub
    rank: int
    num_workers: int  # Workers of the engine, a card each
    tensor_parallel: int
    device: str  # The card's name
    total_bytes: int  # Memory of the card
    utilization: float  # Share of it that the engine may use
    context_tokens: int  # The longest request, `--max-model-len`
    batched_tokens: int  # Tokens of the profiled batch, `--max-num-batched-tokens`
    max_requests: int  # Requests in a batch, `--max-num-seqs`
    cache_dtype: str
    stage: str = StartStage.STARTED.value  # The last stage that has ended
    weights_bytes: int = 0
    activation_bytes: int = 0  # Allocated by the profiled batch at its peak, and freed after it
    other_bytes: int = 0  # Reserved by torch's allocator after the profile, without the weights
    outside_bytes: int = 0  # On the card and not in torch's allocator, after the profile
    graphs_bytes: int = 0  # What the capture of CUDA graphs took of the card
    driver_graphs_bytes: int = 0  # The least that a driver keeps for these graphs, where the null GPU's takes nothing
    captures_graphs: bool = False
    available_bytes: int | None = None  # For the KV cache, as the engine worked it out; may be negative
    cache_bytes: int = 0  # Allocated for the KV cache
    request_bytes: int | None = None  # KV cache of one request of the longest length, on this card
    cache_tokens: int | None = None
    failure: str = ""  # What the engine or torch said, where the start-up failed
    failed_in: str = ""  # The part of its stage in which it failed, if that is known
    is_out_of_memory: bool = False
    # Allocated and not freed by each stage that has ended
    stage_bytes: Mapping[str, int] = field(default_factory=dict)
    allocated_bytes: int = 0  # By all of these stages and between them, by torch's count
    num_batches: int = 0  # Batches of requests that have run after the start-up
    served_bytes: int = 0  # Allocated at most for these batches beside the rest, or for those of the warm-up

    @property
    def limit_bytes(self) -> int:
        """Return the part of the card that the engine may use."""
        return int(self.total_bytes * self.utilization)

    @property
    def unexplained_bytes(self) -> int:
        """Return the bytes that torch counts beyond those of the stages; below zero if memory is freed between them."""
        return self.allocated_bytes - sum(self.stage_bytes.values())

    @property
    def free_bytes(self) -> int:
        """Return what is left of the card beside all rows; negative where they do not fit on it."""
        return self.total_bytes - (
            self.weights_bytes
            + self.activation_bytes
            + self.other_bytes
            + self.outside_bytes
            + self.graphs_bytes
            + self.driver_graphs_bytes
            + self.cache_bytes
        )


@dataclass(frozen=True, slots=True)
class EngineStart:
    """An engine that has started, or failed to."""

    workers: tuple[WorkerMemory, ...]  # By rank
    cache_tokens: int | None  # As the engine says; None where no KV cache was made
    concurrency: float | None  # Requests of the longest length that the KV cache holds at once
    failure: str = ""  # Of the engine, where its start-up failed

    @property
    def worst(self) -> WorkerMemory:
        """Return the worker with the least memory for the KV cache, which decides for all."""
        return min(self.workers, key=lambda worker: (worker.available_bytes is None, worker.available_bytes or 0))

    @property
    def is_ready(self) -> bool:
        """Return whether all workers have ended all stages."""
        workers = self.workers
        return len(workers) >= workers[0].num_workers and all(worker.stage == StartStage.READY for worker in workers)

    @property
    def fits(self) -> bool:
        """Return whether the engine would serve requests of the asked length."""
        return self.is_ready and self.free_at_capture_bytes >= 0

    @property
    def free_at_capture_bytes(self) -> int:
        """Return what CUDA graphs leave free when they are captured: activations are not in use then."""
        worker = self.worst
        return worker.free_bytes + worker.activation_bytes if worker.driver_graphs_bytes else 0

    @property
    def largest_context(self) -> int | None:
        """Return the longest request, in tokens, whose KV cache fits; None where that is not known.

        It is the engine's own estimate where it said one. Else a cache is taken to grow in proportion to the tokens,
        and one block of tokens is kept back, as vLLM does: 8 GiB for a request of 131,072 tokens, of which 2 GiB are
        there, are 32,752. Windows of attention and states of constant size make it a lower bound.
        """
        worker = self.worst
        if (said := _ESTIMATE.search(f"{self.failure} {worker.failure}")) is not None:
            return int(said[1])
        if not worker.request_bytes or worker.available_bytes is None:
            return None
        share = max(0, worker.available_bytes) / worker.request_bytes
        return max(0, int(share * worker.context_tokens) // _BLOCK_TOKENS - 1) * _BLOCK_TOKENS

    @property
    def limit(self) -> str:
        """Return a sentence on what limits the number of requests, or why the engine does not start."""
        worker = self.worst
        if not self.is_ready:
            return self._why_it_failed
        if not self.fits:
            return (
                f"Memory would run out in the {GRAPHS}: for these the driver keeps "
                f"{format_bytes(LEAST_OF_DRIVER_BYTES)} at least, {format_bytes(-self.free_at_capture_bytes)} more "
                "than is free."
            )
        length = f"{worker.context_tokens:,} tokens"
        if self.concurrency is None:
            return f"The engine did not say how many requests of {length} its KV cache holds."
        if self.concurrency >= worker.max_requests:
            return (
                f"--max-num-seqs limits: {worker.max_requests:,} requests run at once, and the KV cache holds "
                f"{self.concurrency:,.1f} of {length}."
            )
        return (
            f"The KV cache limits: it holds {self.concurrency:,.1f} requests of {length}, and --max-num-seqs would let "
            f"{worker.max_requests:,} run at once."
        )

    @property
    def _why_it_failed(self) -> str:
        worker = self.worst
        at = worker.failed_in or StartStage(worker.stage).following.value
        lacks = worker.available_bytes is not None and worker.stage == StartStage.PROFILE
        if lacks and worker.available_bytes is not None and worker.available_bytes <= 0:
            return (
                f"No memory is left for the KV cache: {format_bytes(-worker.available_bytes)} are lacking in the "
                f"{format_bytes(worker.limit_bytes)} that --gpu-memory-utilization {worker.utilization:g} gives."
            )
        if lacks and worker.request_bytes and worker.available_bytes is not None:
            return (
                f"One request of {worker.context_tokens:,} tokens needs {format_bytes(worker.request_bytes)} of KV "
                f"cache, and {format_bytes(worker.available_bytes)} are there."
            )
        ran_out = "Memory ran out" if worker.is_out_of_memory else "The engine failed"
        said = worker.failure or self.failure
        if _COMPILES.search(said):
            said = (
                "FlashInfer compiles a kernel with CUDA's nvcc, which failed here. Install nvcc; or, if the kernel is "
                "the sampler's, set VLLM_USE_FLASHINFER_SAMPLER=0, and if it is attention's, add --attention-backend "
                "TRITON_ATTN, for older versions of vLLM set VLLM_ATTENTION_BACKEND=TRITON_ATTN "
                f"({said.rstrip(':')})."
            )
        return f"{ran_out} in the {at}{f': {said}' if said else '.'}"

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """Return options that would let it start, or give it more KV cache, each with what it does."""
        worker = self.worst
        if self.fits:
            return self._for_more_requests
        if self.is_ready:
            return self._for_a_warm_up
        failed_in = StartStage(worker.stage).following
        if failed_in is StartStage.CACHE and worker.available_bytes is not None:
            return tuple(self._for_a_cache)
        if failed_in is StartStage.READY and worker.is_out_of_memory:
            return self._for_a_warm_up
        if failed_in is StartStage.PROFILE and worker.is_out_of_memory:
            return ((f"--max-num-batched-tokens {max(1, worker.batched_tokens // 2)}", "halves the profiled batch"),)
        if failed_in is StartStage.WEIGHTS and worker.is_out_of_memory:
            return (
                (f"--tensor-parallel-size {worker.tensor_parallel * 2}", "halves the weights of each card"),
                ("--quantization fp8", "halves weights of 16 bits"),
            )
        return ()

    def _utilization_with(self, more_bytes: int) -> float:
        """Return a utilization that gives so much more, in hundredths; vLLM refuses more than is free at its start."""
        worker = self.worst
        most = 1 - worker.outside_bytes / worker.total_bytes
        return int(min(worker.utilization + more_bytes / worker.total_bytes, most) * 100) / 100

    @property
    def _for_more_requests(self) -> tuple[tuple[str, str], ...]:
        worker = self.worst
        spare = worker.free_bytes - KEPT_FREE_BYTES
        utilization = self._utilization_with(spare)
        if worker.free_bytes < 0:
            lacking = format_bytes(-worker.free_bytes)
            return ((f"--gpu-memory-utilization {utilization:g}", f"leaves a full batch the {lacking} that it lacks"),)
        if utilization - worker.utilization < _LEAST_UTILIZATION_STEP:
            return ()
        return (
            (
                f"--gpu-memory-utilization {utilization:g}",
                f"gives {format_bytes(int((utilization - worker.utilization) * worker.total_bytes))} more to the KV "
                f"cache, less what other programs hold{_OF_DRIVER if worker.captures_graphs else ''}",
            ),
        )

    @property
    def _for_a_warm_up(self) -> tuple[tuple[str, str], ...]:
        """Return the options that leave more beside the KV cache, or need less when graphs are captured."""
        worker = self.worst
        lower = max(0.1, round(worker.utilization - 0.05, 2))
        more = format_bytes(int((worker.utilization - lower) * worker.total_bytes))
        fewer = f"--max-num-seqs {max(1, worker.max_requests // 4)}"
        utilization = f"--gpu-memory-utilization {lower:g}", f"leaves {more} more of the card beside the KV cache"
        if worker.failed_in == GRAPHS or self.is_ready:
            eager = "--enforce-eager", "captures no graphs; each step is slower"
            return utilization, (fewer, "captures fewer and smaller graphs"), eager
        if "sampler" in worker.failure:
            return (fewer, "samples for fewer requests at once when it warms up"), utilization
        tokens = f"--max-num-batched-tokens {max(1, worker.batched_tokens // 2)}"
        return utilization, (tokens, "halves the largest batch of the warm-up")

    @property
    def _for_a_cache(self) -> list[tuple[str, str]]:
        """Return the options of which each alone gives one request its KV cache, by the sizes that were measured."""
        worker, changes = self.worst, list[tuple[str, str]]()
        available, needed = worker.available_bytes or 0, worker.request_bytes or 0
        if self.largest_context:
            changes.append((f"--max-model-len {self.largest_context}", "is the longest request that fits"))
        if "fp8" not in worker.cache_dtype and needed and needed / 2 <= available:
            changes.append(("--kv-cache-dtype fp8", "halves the KV cache of a token"))
        spare = worker.free_bytes - max(0, available) - KEPT_FREE_BYTES
        utilization = self._utilization_with(spare)
        if max(needed, 1) <= available + (utilization - worker.utilization) * worker.total_bytes:
            changes.append((f"--gpu-memory-utilization {utilization:g}", "gives the rest of the card to the KV cache"))
        if max(needed, 1) / 2 <= available + worker.weights_bytes / 2:
            option = f"--tensor-parallel-size {worker.tensor_parallel * 2}"
            changes.append((option, "halves the weights and the KV cache of each card"))
        return changes


_BLOCK_TOKENS: Final = 16
_COMPILES: Final = re.compile(r"\bninja\b|\bnvcc\b", re.IGNORECASE)
_ESTIMATE: Final = re.compile(r"estimated maximum model length is (\d+)")
_LEAST_UTILIZATION_STEP: Final = 0.01
_OF_DRIVER: Final = ", and the driver for CUDA graphs"


def engine_start(
    workers: Sequence[WorkerMemory], *, cache_tokens: int | None, concurrency: float | None, failure: str = ""
) -> EngineStart:
    """Combine the reports of an engine's workers.

    Args:
        cache_tokens: Tokens of the KV cache, as the engine said; None to take what workers know.
        concurrency: As the engine said; None to work it out of the tokens.
    """
    by_rank = tuple(sorted(workers, key=lambda worker: worker.rank))
    if cache_tokens is None:
        known = [worker.cache_tokens for worker in by_rank if worker.cache_tokens is not None]
        cache_tokens = min(known, default=None)
    if concurrency is None and cache_tokens is not None:
        concurrency = cache_tokens / by_rank[0].context_tokens
    return EngineStart(by_rank, cache_tokens, concurrency, failure)


def replaced_options(words: Sequence[str], options: Sequence[str]) -> tuple[str, ...]:
    """Return the words of a command, and behind them options that take the place of its own ones of the same names.

    `serve --seed 1 model` and `--seed -1` become `serve model --seed -1`. An option is said to have a value where
    `options` have one behind it; vLLM reads `_` in a name as `-`.
    """
    following = zip(options, [*options[1:], "--"], strict=True)
    has_value = {_name(word): not _is_option(value) for word, value in following if _is_option(word)}
    kept, is_value = list[str](), False
    for word in words:
        if is_value:
            is_value = False
        elif _is_option(word) and _name(word) in has_value:
            is_value = has_value[_name(word)] and "=" not in word
        else:
            kept.append(word)
    return (*kept, *options)


def _is_option(word: str) -> bool:
    """Return whether a word is an option, as `-tp` is and `-1` is not."""
    return word.startswith("-") and not word[1:2].isdigit()


def _name(option: str) -> str:
    return option.partition("=")[0].replace("_", "-")
