"""Requests that private pools serve for a while, as when a CUDA graph is captured, and frees that wait for its end."""

from __future__ import annotations

from collections.abc import Container

from tracer.allocator.blocks import DEFAULT_POOL, Block, PoolId


class Captures:
    """The diversions under way, latest last, and the blocks whose streams matter when they have ended."""

    def __init__(self) -> None:
        self._underway: list[tuple[PoolId, frozenset[int] | None]] = []
        self._used: dict[Block, set[int]] = {}

    def __bool__(self) -> bool:
        """Whether any is under way."""
        return bool(self._underway)

    def begin(self, pool: PoolId, streams: frozenset[int] | None) -> None:
        """Divert the requests of these streams, or of all."""
        self._underway.append((pool, streams))

    def end(self, pool: PoolId) -> None:
        """End the last diversion to a pool."""
        at = max(i for i, (name, _) in enumerate(self._underway) if name == pool)
        del self._underway[at]

    def pool_for(self, stream: int) -> PoolId:
        """The pool that requests of a stream go to."""
        found = (pool for pool, only in reversed(self._underway) if only is None or stream in only)
        return next(found, DEFAULT_POOL)

    def note(self, block: Block, stream: int | None = None) -> None:
        """During a capture, a block is used by a stream, or freed."""
        if self._underway:
            streams = self._used.setdefault(block, set())
            if stream is not None:
                streams.add(stream)

    def forget(self, block: Block) -> None:
        """A block is free for another reason."""
        self._used.pop(block, None)

    def ended(self, pending: Container[Block]) -> list[Block]:
        """Of the blocks that wait to be free, those that only captured work used; after the captures they are.

        Source:
            `insert_events_deferred_until_no_capture` and `remove_cudagraph_stream_uses`.
        """
        used, self._used = self._used, {}
        return [
            block
            for block, streams in used.items()
            if block in pending and block.streams is not None and block.streams <= streams
        ]
