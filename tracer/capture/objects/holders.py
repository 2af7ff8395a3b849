"""Holders of a tensor: the variable, container or attribute that has to be deleted to free it, in plain words.

All references are read once. From the memory the way goes up until a variable is met: a global one, a local one of a
function that runs, an attribute of a class. A holder is named only if without it no way is left: then letting go of it
frees the memory. Nothing is kept alive by it, and no code of a user's class is called. It looks at all of Python's
objects, so it is for a finding and never for a step of a training.
"""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Collection, Iterable, Sequence
from itertools import pairwise
from typing import Final

import torch

from tracer.capture.objects.at_failure import CYCLE, NOT_PYTHON, SEVERAL, Holder
from tracer.capture.objects.holder_links import ARROW, variables_of
from tracer.capture.objects.reference_graph import ReferenceGraph
from tracer.capture.objects.ways_up import Cut, Way, WaysUp, around, cuts_of, graph_of, place_of, spelled, spelled_cycle
from tracer.capture.torch_private import torch_tensors
from tracer.collector import paused_gc

NOT_FOUND: Final = "a holder that was not found"
_MAX_HOLDERS: Final = 3
_BARE: Final = 2
"""Vertices of a way on which a variable has the tensor itself: tensor and memory."""


def find_holders(
    addresses: Collection[int], *, device: torch.device | None = None, error: BaseException | None = None
) -> tuple[Holder, ...]:
    """Name who holds the memory at some addresses.

    Args:
        error: On its way through the program: the functions that it has left count as running.

    Returns:
        What holds most of them first; addresses that differ in an index alone are one. Nothing for an address that no
        tensor has.
    """
    if not addresses:
        return ()
    with paused_gc(), torch_tensors.as_plain_tensors():
        search = _Search(device, error)
        try:
            return search.holders(addresses)
        finally:
            search.close()


class _Search:
    def __init__(self, device: torch.device | None, error: BaseException | None) -> None:
        variables = variables_of(error)
        self._graph = ReferenceGraph(device)
        self._ways = WaysUp(self._graph, variables)
        self._address = {memory: address for address, memory in self._graph.memory.items()}

    def close(self) -> None:
        """Keep nothing of what was looked at."""
        self._graph.close()
        self._ways.close()

    def holders(self, addresses: Collection[int]) -> tuple[Holder, ...]:
        found = []
        for address in sorted(addresses):
            if (memory := self._graph.memory.get(address)) is not None:
                try:
                    found.append(self._holder(address, memory))
                except Exception:  # a fault of ours costs one holder
                    found.append(Holder(NOT_FOUND, "", (address,)))
                    text = traceback.format_exc()
                    with warnings.catch_warnings():
                        warnings.simplefilter("always")  # it is not the user's, whose program may ignore warnings
                        warnings.warn(f"One holder of memory was not found: an internal fault.\n{text}", stacklevel=2)
        return _merged(found)

    def _holder(self, address: int, memory: int) -> Holder:
        first = self._ways.way(memory, frozenset())
        if first is None:
            return Holder(self._cycle(memory), "", (address,))
        if first.root is None:
            return Holder(NOT_PYTHON, "", (address,))
        for cut in cuts_of(first, self._graph):
            if self._ways.way(memory, frozenset({cut})) is None:
                return self._named([first], frozenset({cut}), address)
        return self._of_several(first, address, memory)

    def _of_several(self, first: Way, address: int, memory: int) -> Holder:
        ways: list[Way] = []
        cuts: frozenset[Cut] = frozenset()
        way: Way | None = first
        while way is not None:
            cut = next(cuts_of(way, self._graph), None)
            if cut is None or way.root is None or len(ways) == _MAX_HOLDERS:
                also = () if first.root is None else (spelled(first, cuts, self._graph),)
                return Holder(SEVERAL, "", (address,), also=also)
            ways.append(way)
            cuts |= {cut}
            way = self._ways.way(memory, cuts)
        # A loop's variable is set anew by itself: what has put it somewhere is the one to name first.
        ways.sort(key=lambda way: len(way.chain) <= _BARE)
        return self._named(ways, cuts, address)

    def _named(self, ways: Sequence[Way], cuts: frozenset[Cut], address: int) -> Holder:
        if not (place := place_of(ways[0], self._graph)):
            return Holder(NOT_FOUND, "", (address,))
        graph = graph_of(ways[0], self._graph)
        return Holder(
            path=spelled(ways[0], cuts, self._graph),
            variable=place,
            addresses=(address,),
            graph_of=None if graph is None else self._address[graph],
            also=tuple(spelled(way, cuts, self._graph) for way in ways[1:]),
        )

    def _cycle(self, memory: int) -> str:
        circle = around(memory, self._graph)
        if not circle:
            return NOT_PYTHON
        objects = [self._graph.objects[vertex] for vertex in circle]
        return f"{CYCLE}{ARROW.join(spelled_cycle(pairwise(objects)))}"


def _merged(holders: Iterable[Holder]) -> tuple[Holder, ...]:
    """Paths that differ in an index alone become one, with `[...]` in its place."""
    alike: dict[tuple[str, str, tuple[str, ...]], list[Holder]] = {}
    for holder in holders:
        key = _without_indices(holder.path), holder.variable, tuple(map(_without_indices, holder.also))
        alike.setdefault(key, []).append(holder)
    merged = []
    for (path, variable, also), same in alike.items():
        first = same[0]
        is_one = {holder.path for holder in same} == {first.path}
        merged.append(
            Holder(
                path=first.path if is_one else path,
                variable=variable,
                addresses=tuple(sorted(address for holder in same for address in holder.addresses)),
                graph_of=next((holder.graph_of for holder in same if holder.graph_of is not None), None),
                also=first.also if is_one else also,
            )
        )
    return tuple(sorted(merged, key=lambda holder: (-len(holder.addresses), holder.path)))


def _without_indices(path: str) -> str:
    text, rest = "", path
    while (at := rest.find("[")) >= 0:
        end = rest.find("]", at)
        if end < 0:
            break
        inner = rest[at + 1 : end]
        text += rest[:at] + ("[...]" if inner.lstrip("-").isdigit() else rest[at : end + 1])
        rest = rest[end + 1 :]
    return text + rest
