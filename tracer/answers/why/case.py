"""Causes of full memory, and what they are found in: a device's recording at its last failure, or else its peak.

Shapes: blocks of the device, as its `Lives` have them [lives].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from pathlib import PurePath
from typing import Final

import numpy as np

from tracer.answers.allocator.changed_requests import Changed
from tracer.answers.allocator.modelled import Modelled
from tracer.answers.why.followed import Behind, Followed, Line, followed, peaks_behind
from tracer.answers.why.source import is_without_grad, reaches_backward_behind
from tracer.arrays import Bools, Interned, Ints
from tracer.blocks.from_snapshot.block_facts import calls_of_models
from tracer.blocks.from_snapshot.blocks import ReplayedDevice
from tracer.blocks.from_snapshot.frames import is_label, is_python, is_users, torch_file
from tracer.blocks.from_snapshot.sites import Site, Sites
from tracer.blocks.from_snapshot.stack_facts import Fact, has, is_module_call
from tracer.blocks.kinds import Kind
from tracer.capture.objects.at_failure import SEVERAL, Holder, ObjectsAtFailure
from tracer.snapshot.actions import Action
from tracer.snapshot.columns import DeviceState, Frame, Stacks
from tracer.snapshot.replay import BEFORE, Lives, as_it_failed
from tracer.snapshot.stacks import NO_STACK
from tracer.units import format_bytes, some


class GivesUp(IntEnum):
    """The price of a change to a program; the lower comes first."""

    NOTHING = 0
    """Nothing: only unneeded memory is released."""
    A_LITTLE = 1
    """Little: equal results by another operator, in another order, or in 32 bits in place of 64."""
    TIME_OR_SIZE = 2
    """Time, or a smaller batch, model or length."""
    UNKNOWN = 3
    """A line is named, and not how to change it."""


@dataclass(frozen=True, slots=True, eq=False)
class Cause:
    """A cause of full memory with its change, which is not replayed yet."""

    name: str  # For scripts, such as `graphs kept`
    sentence: str  # The holder and its bytes; empty where the change says it all
    change: str  # The change, as an order: `call torch.cuda.empty_cache()`
    make: Callable[[Modelled], Changed]  # The recorded program with that change
    site: Site | None = None  # The line that it is about; None for none in particular
    gives_up: GivesUp = GivesUp.NOTHING
    grows: str = ""  # Why more memory will be wanted than what this request asks for, as `memory grows`
    postpones: bool = False  # Where that is so, the change serves this request alone
    names_bytes: int = 0  # Bytes in use or asked for that the sentence names: the change has to save half of them
    shortens: bool = False  # Whether blocks that the program makes later only live shorter with it
    behind: Behind | None = None  # What the change leaves of blocks of other lines that the program makes later
    again_bytes: int = 0  # Made again with the change, and there at once, as backward comes to it


_LEAST_PERCENT: Final = 1
_OF_PEAK: Final = 0.8
"""Share of a program's peak, that large blocks come to where it was followed that far."""
_IN_PIECES: Final = 2
MODULES: Final = "nn/modules/module.py"
_SAFETENSORS: Final = "/safetensors/torch.py"


@dataclass(frozen=True, eq=False)
class Case:
    """The moment, with all that is known of it."""

    device: ReplayedDevice
    objects: ObjectsAtFailure | None = None  # None where nothing but the recording is known

    @cached_property
    def _parts(self) -> tuple[DeviceState, Lives]:
        return as_it_failed(self.device.state, self.device.replay.lives)

    @property
    def state(self) -> DeviceState:
        """The device, as it was when its last request failed."""
        return self._parts[0]

    @property
    def lives(self) -> Lives:
        """Its blocks, likewise [lives]."""
        return self._parts[1]

    @property
    def sites(self) -> Sites:
        """Lines of the stacks."""
        return self.device.sites

    @property
    def stacks(self) -> Stacks:
        """Stacks of the blocks."""
        return self.device.snapshot.stacks

    @cached_property
    def failures(self) -> Ints:
        """Entries of failed requests, in order."""
        return self.state.trace.where(Action.OOM)

    @property
    def has_failed(self) -> bool:
        """True if a request failed."""
        return bool(len(self.failures))

    @cached_property
    def entry(self) -> int:
        """The moment: the entry after which all this was in use."""
        return int(self.failures[-1]) if self.has_failed else self.device.replay.peak_entry

    @property
    def last_entry(self) -> int:
        """The last entry that tells of what has come to be: that of the failure, else the recording's last."""
        return self.entry if self.has_failed else len(self.state.trace) - 1

    @property
    def asked_bytes(self) -> int:
        """Bytes that were asked for then; 0 at a peak."""
        return int(self.state.trace.size[self.entry]) if self.has_failed else 0

    @cached_property
    def _unlabelled(self) -> Ints:
        """The first stack with the same frames but for our own label on top, for every stack [stacks]."""
        is_ours = [is_label(frame) for frame in self.frames]
        if not any(is_ours):
            return np.arange(len(self.stacks))
        first: dict[tuple[int, ...], int] = {}
        frames = (
            tuple(at for at in self.stacks.frame_ids(stack) if not is_ours[at]) for stack in range(len(self.stacks))
        )
        return np.array([first.setdefault(key, stack) for stack, key in enumerate(frames)], np.int64)

    @cached_property
    def stack(self) -> Ints:
        """The stack of every block, the same where the same lines made it [lives]."""
        return self._unlabelled[self.lives.stack]

    @cached_property
    def maker(self) -> Ints:
        """A number for the stack of every block, and for its size where a thread of autograd's has no stack [lives]."""
        sizes = np.unique(self.lives.requested_bytes, return_inverse=True)[1].reshape(-1)
        numbers: Ints = np.where(self.stack == NO_STACK, len(self.stacks) + 1 + sizes, self.stack)
        return numbers

    @cached_property
    def _inner(self) -> Ints:
        """A number of each stack's frames inside of the model that is called; of all frames, where none is [stacks].

        Without those of torch's that call a module: others where it has hooks, as while a profiler records.
        """
        numbers = Interned()
        is_call = [is_module_call(frame) for frame in self.frames]
        is_around = [torch_file(frame) == MODULES for frame in self.frames]
        inner = np.zeros(len(self.stacks), np.int64)
        for stack in range(len(self.stacks)):
            frames = [number for number in self.stacks.frame_ids(stack) if is_python(self.frames[number])]
            depth = max((at for at, number in enumerate(frames) if is_call[number]), default=len(frames))
            inner[stack] = numbers[tuple(number for number in frames[:depth] if not is_around[number])]
        return inner

    @cached_property
    def inner_stack(self) -> Ints:
        """The stack of every block, the same where the same lines of a model made it, whoever calls the model [lives].

        One of the step before and one of a validation are the same then.
        """
        return self._inner[self.stack]

    @property
    def asked_inner_stack(self) -> int:
        """The request's own; see `inner_stack`."""
        return int(self._inner[self.asked_stack])

    @property
    def asked_stack(self) -> int:
        """Stack of that request; 0, the empty one, at a peak."""
        return int(self._unlabelled[self.state.trace.stack[self.entry]]) if self.has_failed else 0

    @cached_property
    def kind(self) -> Ints:
        """The `Kind` of every block [lives]; of nn.Parameters and their gradients it is that, whatever made them."""
        kind = self.device.blocks.kind
        if self.objects is None or not self.objects.parameters:
            return kind
        kind = kind.copy()
        kind[self.at_addresses(self.objects.parameters)] = Kind.PARAMETER
        kind[self.at_addresses(self.objects.gradients)] = Kind.GRADIENT
        return kind

    @cached_property
    def facts(self) -> Ints:
        """The `Fact`s of the stack of every block [lives]."""
        return self.sites.facts[self.lives.stack]

    @cached_property
    def forward(self) -> Ints:
        """The stack of a backward block's operation of forward, where it is certain; else -1 [lives]."""
        return self.device.blocks.forward

    @cached_property
    def in_use(self) -> Ints:
        """Rows in use at the moment."""
        return self.lives.alive_after(self.entry)

    @cached_property
    def in_use_bytes(self) -> int:
        """Bytes in use then, as requested, with what was asked for."""
        return self.bytes(self.in_use) + self.asked_bytes

    @cached_property
    def stays(self) -> Bools:
        """True for each block of a kind that stays from step to step [lives]."""
        return np.isin(self.kind, (Kind.PARAMETER, Kind.OPTIMIZER_STATE, Kind.BUFFER, Kind.WORKSPACE))

    @cached_property
    def is_loaded(self) -> Bools:
        """True for each block that torch.load or safetensors made [lives]."""

        def is_loading(frame: Frame) -> bool:
            return torch_file(frame) == "serialization.py" or frame.file.replace("\\", "/").endswith(_SAFETENSORS)

        return self.with_frame(is_loading)[self.lives.stack]

    @cached_property
    def is_set_up(self) -> Bools:
        """True for each block that was loaded from a file, or made or moved by modules during their setup [lives]."""
        return self.is_loaded | has(self.facts, Fact.MODULE_SETUP)

    @cached_property
    def in_model(self) -> Bools:
        """True for each block made in a module's forward; not every recording has torch's call of it [lives]."""
        is_named = self.with_frame(lambda frame: frame.name == "forward" and is_python(frame))
        return (has(self.facts, Fact.MODULE_FORWARD) | is_named[self.lives.stack]) & ~has(self.facts, Fact.ENGINE)

    @cached_property
    def calls(self) -> tuple[Ints, Ints]:
        """The call of a model that every block was made in, or -1 [lives]; and the line of each call, as a number.

        Each begins as the first call of its line did: what frees or fails in between may be of somewhere else.
        """
        calls, lines = calls_of_models(self.sites.model_calls[self.state.trace.stack])
        inside = has(self.facts, Fact.MODULE_FORWARD) & ~has(self.facts, Fact.ENGINE) & (self.lives.begin > BEFORE)
        call = np.where(inside, np.append(calls, -1)[np.maximum(self.lives.begin, 0)], -1)
        rows = np.flatnonzero(call >= 0)
        rows = rows[np.argsort(self.lives.begin[rows], kind="stable")]
        known, first = np.unique(call[rows], return_index=True)
        head = np.full(len(lines), -1)
        head[known] = self.inner_stack[rows[first]]
        _, earliest = np.unique(lines[known], return_index=True)
        of_line = dict(zip(lines[known[earliest]].tolist(), head[known[earliest]].tolist(), strict=True))
        begins = np.append(True, lines[1:] != lines[:-1])[: len(lines)]
        begins |= head == np.array([of_line.get(line, -2) for line in lines.tolist()], np.int64)
        number = np.cumsum(begins) - 1
        return np.where(call >= 0, np.append(number, -1)[call], -1), lines[begins]

    @property
    def is_evaluating(self) -> bool:
        """True if the model is known to be in evaluation mode, and yet keeps much for a backward pass."""
        return self.objects is not None and self.objects.is_evaluating

    @property
    def is_training(self) -> bool:
        """True if the call that ran out of memory is known to be of a model in training mode."""
        return self.objects is not None and self.objects.is_training

    @property
    def holders(self) -> tuple[Holder, ...]:
        """Holders of the largest memory; none where nothing but the recording is known."""
        return self.objects.holders if self.objects is not None else ()

    @cached_property
    def asked_about(self) -> Ints:
        """Blocks in use whose holder is known."""
        return self.at_addresses(address for holder in self.holders for address in holder.addresses)

    def holder_of(self, rows: Ints) -> Holder | None:
        """Return the variable that holds most of some blocks; None if none is known of half, or of their lines.

        Holders are looked for of a few blocks of each size: what it holds of a line tells of that line alone.
        """
        sizes = [
            (self.bytes(np.intersect1d(rows, self.at_addresses(holder.addresses))), holder) for holder in self.holders
        ]
        most, holder = max(sizes, key=lambda pair: pair[0], default=(0, None))
        known = np.intersect1d(rows, self.asked_about)
        if holder is None or not holder.variable or not most or most * 2 < self.bytes(known):
            return None
        return holder if self._is_known_of_lines(rows) else None

    def _is_known_of_lines(self, rows: Ints) -> bool:
        """True if holders are known of a block of each of the lines that made half of some blocks."""
        stack = self.lives.stack
        lines = {self.own_line(each) for each in np.unique(stack[np.intersect1d(rows, self.asked_about)]).tolist()}
        of_lines = [each for each in np.unique(stack[rows]).tolist() if self.own_line(each) in lines]
        return self.is_share(rows[np.isin(stack[rows], of_lines)], of=rows, percent=50)

    def holder_words(self, rows: Ints) -> str:
        """The holder of some blocks, as `self.stash[...] (attribute of Net, ...)`; empty if it is not known."""
        holder = self.holder_of(rows)
        if holder is None:
            return ""
        known = np.intersect1d(rows, self.asked_about)
        is_all = self.is_share(np.intersect1d(known, self.at_addresses(holder.addresses)), of=known, percent=90)
        return f"{holder.path} ({holder.variable}){'' if is_all else ' and others'}"

    def several_words(self, rows: Ints) -> str:
        """Words for holders that are too many to be named, with one of them; empty where these hold less than half."""
        path = self.one_of_several(rows)
        return f"{SEVERAL} ({path} is one)" if path else ""

    def one_of_several(self, rows: Ints) -> str:
        """The path of one of holders that are too many to be named; empty where these hold less than half."""
        many = [holder for holder in self.holders if holder.path == SEVERAL and holder.also]
        held = self.at_addresses(at for holder in many for at in holder.addresses)
        known, held = np.intersect1d(rows, self.asked_about), np.intersect1d(rows, held)
        if not len(held) or not self.is_share(held, of=known, percent=50) or not self._is_known_of_lines(rows):
            return ""
        return max(many, key=lambda holder: self.bytes(self.at_addresses(holder.addresses))).also[0]

    def one_of_holders(self, rows: Ints) -> str:
        """The variable that holds most of some blocks, though others may hold more; empty if none is known."""
        named = [holder for holder in self.holders if holder.variable and self.is_any(rows, holder.addresses)]
        named = named if self._is_known_of_lines(rows) else []
        sizes = [self.bytes(np.intersect1d(rows, self.at_addresses(holder.addresses))) for holder in named]
        return f"{(largest := named[int(np.argmax(sizes))]).path} ({largest.variable})" if named else ""

    @property
    def missing_bytes(self) -> int:
        """Bytes that the program needs beyond those that there are, as a second run showed; 0 where not known."""
        second = self.objects.second_run if self.objects is not None else None
        return second.missing_bytes if second is not None else 0

    @property
    def usable_bytes(self) -> int:
        """Bytes that there are for the blocks of a program that needs more; 0 where that is not known."""
        second = self.objects.second_run if self.objects is not None else None
        return second.peak_bytes - second.missing_bytes if second is not None and second.peak_bytes else 0

    @property
    def is_in_pieces(self) -> bool:
        """True if a second run showed that what the program needs fits, and that far more is reserved for it."""
        second = self.objects.second_run if self.objects is not None else None
        if second is None or second.missing_bytes or second.grows:
            return False
        return 0 < _IN_PIECES * second.peak_bytes <= second.reserved_bytes

    @cached_property
    def followed(self) -> Followed | None:
        """The blocks in use as a second run had and used them; None where there was none of the same blocks."""
        second = self.objects.second_run if self.objects is not None else None
        if second is None or second.uses is None:
            return None
        rows = self.in_use[self.lives.begin[self.in_use] > BEFORE]
        made = self.state.trace.where(Action.ALLOC)
        distance = np.searchsorted(made, self.entry) - np.searchsorted(made, self.lives.begin[rows])
        lines = [self.own_line(stack) for stack in self.lives.stack[rows].tolist()]
        return followed(second.uses, rows, distance, lines, self.lives.requested_bytes[rows], self.asked_bytes)

    def needed_bytes(self, changes: Sequence[tuple[Changed, Behind | None]]) -> int:
        """The bytes that the program needs at once with changes; 0 where a second run was not followed to its peak.

        Large blocks become smaller, as far as the second run was followed; all else counts as it is.
        """
        second = self.objects.second_run if self.objects is not None else None
        if second is None or second.uses is None or self.followed is None or not second.peak_bytes:
            return 0
        each_left = [changed.left(self.in_use, self.entry) for changed, _ in changes]
        left, asked_bytes = np.minimum.reduce([of for of, _ in each_left]), min(asked for _, asked in each_left)
        sizes = defaultdict[tuple[Line, int], list[int]](lambda: [0, 0])
        for stack, size, left_bytes in zip(
            [*self.lives.stack[self.in_use].tolist(), self.asked_stack],
            [*self.lives.requested_bytes[self.in_use].tolist(), self.asked_bytes],
            [*left.tolist(), asked_bytes],
            strict=True,
        ):
            both = sizes[self.own_line(stack), size]
            both[0] += size
            both[1] += left_bytes
        shares = {key: min(after / max(before, 1), 1.0) for key, (before, after) in sizes.items()}
        share = left / np.maximum(self.lives.requested_bytes[self.in_use], 1)
        own = dict(zip(self.in_use.tolist(), share.tolist(), strict=True))
        distance = np.array(second.uses.distance, np.int64)[self.followed.places].tolist()
        there = {ago: own[row] for ago, row in zip(distance, self.followed.rows.tolist(), strict=True) if row in own}
        behind = [of for _, of in changes if of is not None]
        before, after = peaks_behind(second.uses, there, shares, behind)
        is_seen = before >= _OF_PEAK * second.peak_bytes  # else the peak is behind what was followed
        return second.peak_bytes - before + after if is_seen else 0

    @cached_property
    def _own_lines(self) -> dict[int, Line]:
        return {}

    def own_line(self, stack: int) -> Line:
        """File name and line of the innermost function of a stack outside of torch; nothing where there is none."""
        if stack not in self._own_lines:
            frames = (frame for frame in self.stacks[stack] if is_python(frame) and not is_label(frame))
            own = next((frame for frame in frames if torch_file(frame) is None), None)
            self._own_lines[stack] = (PurePath(own.file).name, own.line) if own is not None else ("", 0)
        return self._own_lines[stack]

    @cached_property
    def in_graphs(self) -> Ints | None:
        """Blocks in use that graphs are known to keep; None where that is not known."""
        addresses = None if self.objects is None else self.objects.in_graphs
        if addresses is None:
            return None
        return self.in_use[np.isin(self.lives.addr[self.in_use], [*addresses])]

    @property
    def saved(self) -> Ints:
        """Blocks in use that graphs keep, as the objects say; else those of a kind that graphs keep."""
        return self.in_use[self.kind[self.in_use] == Kind.ACTIVATION] if self.in_graphs is None else self.in_graphs

    @cached_property
    def kept_for_backward(self) -> Ints:
        """Blocks in use that forward made and a graph keeps, as autograd freed such blocks or as its objects say."""
        is_kept = self.kind[self.in_use] == Kind.ACTIVATION
        if self.in_graphs is not None:
            is_kept |= np.isin(self.in_use, self.in_graphs) & ~self.stays[self.in_use]
        kept: Ints = self.in_use[is_kept]
        return kept

    @cached_property
    def reaches_backward(self) -> bool:
        """True if a second run showed a backward that reads much of what graphs keep, so that it is no evaluation."""
        if self.followed is None or self.in_graphs is None:
            return False
        kept = np.intersect1d(self.in_graphs, self.followed.rows)
        read = self.followed.used_next(lambda use: use is not None and use.in_backward)
        return self.is_much(kept) and self.is_share(np.intersect1d(kept, read), of=kept)

    def are_used(self, rows: Ints, *, in_backward: bool = False) -> bool:
        """True if a second run showed that the program, or a backward, reads most of some blocks next."""
        if self.followed is None:
            return False
        used = self.followed.used_next(
            lambda use: use is not None and not use.overwrites and use.in_backward == in_backward
        )
        return self.is_share(np.intersect1d(used, rows), of=rows, percent=50)

    @property
    def trains_now(self) -> bool:
        """True if a model in training mode failed, or graphs keep blocks and no model is known to evaluate."""
        return self.is_training or bool(self.in_graphs is not None and len(self.in_graphs) and not self.is_evaluating)

    def is_without_grad(self, rows: Ints) -> bool:
        """True if the source shows that the largest of some blocks was made without recording gradients."""
        row = int(rows[np.argmax(self.lives.requested_bytes[rows])])
        return any(map(is_without_grad, self.own_lines(int(self.lives.stack[row]))))

    @property
    def has_no_graph(self) -> bool:
        """True if it is known that nothing is kept for a backward.

        A compiled forward, or one by a torch.autograd.Function, has its graph only after its end.
        """
        if self.is_training or self.in_graphs is None or len(self.in_graphs):
            return False
        return not has(self.facts[self.in_use], Fact.COMPILED_FOR_BACKWARD).any()

    def alike(self, addresses: frozenset[int]) -> tuple[Ints, Ints]:
        """Return the blocks in use at some addresses; and these with those that the same lines make at other times."""
        held = self.in_use[np.isin(self.lives.addr[self.in_use], list(addresses))]
        key = self.stack * (max(Kind) + 1) + self.kind
        rows = np.flatnonzero(np.isin(key, key[held]) & (self.lives.begin > BEFORE))
        return held, np.union1d(rows, held)

    def at_addresses(self, addresses: Iterable[int]) -> Ints:
        """The blocks in use that begin at some addresses."""
        return self.in_use[np.isin(self.lives.addr[self.in_use], np.array([*addresses], np.int64))]

    def is_any(self, rows: Ints, addresses: Iterable[int]) -> bool:
        """True if one of some blocks begins at one of some addresses."""
        return bool(np.isin(self.lives.addr[rows], np.array([*addresses], np.int64)).any())

    def held(self, rows: Ints) -> Ints:
        """Keep the blocks that were in use at the moment."""
        return rows[(self.lives.begin[rows] <= self.entry) & (self.lives.end[rows] > self.entry)]

    def bytes(self, rows: Ints) -> int:
        """Bytes of some blocks, as requested."""
        return int(self.lives.requested_bytes[rows].sum())

    def words(self, rows: Ints) -> str:
        """Their bytes and number, as `1.50 GiB in 3 blocks`."""
        return f"{format_bytes(self.bytes(rows))} in {some(len(rows), 'block')}"

    def with_asked(self, held: Ints, asked_bytes: int, most: int = 2) -> str:
        """Their words and lines and a request, as `1.50 GiB in 3 blocks, and 2.00 GiB more were asked for`."""
        if not len(held):
            return format_bytes(asked_bytes)
        more = f", and {format_bytes(asked_bytes)} more were asked for" if asked_bytes else ""
        return f"{self.words(held)}{self.lines(held, most)}{more}"

    def is_much(self, rows: Ints, *, asked_bytes: int = 0, percent: int = 5) -> bool:
        """True if blocks and the bytes asked for are a share of the bytes in use that is worth a sentence."""
        much_bytes = self.bytes(rows) + asked_bytes
        return much_bytes > 0 and much_bytes * 100 >= self.in_use_bytes * percent

    def is_share(self, rows: Ints, *, of: Ints, percent: int = 20) -> bool:
        """True if some blocks are a good part of others."""
        return self.bytes(rows) * 100 >= self.bytes(of) * percent

    def _bytes_of_sites(self, rows: Ints) -> dict[Site, int]:
        pairs, of_pair = np.unique(
            np.stack([self.lives.stack[rows].astype(np.int64), self.forward[rows]]), axis=1, return_inverse=True
        )
        size = np.zeros(pairs.shape[1], np.int64)
        np.add.at(size, of_pair.reshape(-1), self.lives.requested_bytes[rows])
        sums: dict[Site, int] = {}
        for stack, forward, number in zip(*pairs.tolist(), size.tolist(), strict=True):
            site = self.sites.site_of_backward(stack, forward)
            sums[site] = sums.get(site, 0) + number
        return dict(sorted(sums.items(), key=lambda item: -item[1]))

    def largest_site(self, rows: Ints) -> Site | None:
        """The line that made most of some blocks; None for no blocks."""
        return next(iter(self._bytes_of_sites(rows)), None)

    def lines(self, rows: Ints, most: int = 2) -> str:
        """The lines that made most of some blocks, as ` (train.py:7, model.py:9)`; empty where none is known.

        A file may be named by its whole path and as the command named it: its name tells.
        """
        sums: dict[tuple[str, int | None], int] = {}
        shown: dict[tuple[str, int | None], str] = {}
        for site, size in self._bytes_of_sites(rows).items():
            if site.file is not None:
                line = PurePath(site.file).name, site.line
                shown.setdefault(line, f"{site.file}:{site.line}")
                sums[line] = sums.get(line, 0) + size
        chosen = sorted(sums, key=lambda line: -sums[line])[:most]
        return f" ({', '.join(map(shown.__getitem__, chosen))})" if chosen else ""

    def model_call(self, row: int) -> Site | None:
        """The line that calls the outermost module in whose forward a block was made, through torch's code or not."""
        return self.model_call_of(int(self.lives.stack[row]))

    def model_call_of(self, stack: int) -> Site | None:
        """The line that calls the outermost module of a stack, likewise."""
        frames = [frame for frame in self.stacks[stack] if is_python(frame)]
        inside = [at for at, frame in enumerate(frames) if is_module_call(frame)]
        callers = frames[inside[-1] + 1 :] if inside else []
        frame = next((frame for frame in callers if torch_file(frame) is None), None)
        return Site(frame.name, frame.file, frame.line) if frame is not None else None

    def own_lines(self, stack: int) -> list[Frame]:
        """The program's own lines of a stack, outermost first."""
        return [frame for frame in reversed(self.stacks[stack]) if is_python(frame) and is_users(frame)]

    def is_for_later_backward(self, rows: Ints) -> bool:
        """True if the source shows that one backward after a loop needs the results of the loop's calls of a model."""
        rows = rows[self.in_model[rows]]
        called = self.model_call(int(rows[np.argmax(self.lives.requested_bytes[rows])])) if len(rows) else None
        return called is not None and reaches_backward_behind(called)

    @property
    def frames(self) -> tuple[Frame, ...]:
        """Distinct frames of all stacks."""
        return self.stacks.frames

    def with_frame(self, holds: Callable[[Frame], bool]) -> Bools:
        """True for each stack with a frame that meets a condition [stacks]."""
        return self.stacks.with_one_of([*map(holds, self.frames)])

    @cached_property
    def last_learning(self) -> int:
        """The last entry of a backward or of an optimizer's step before the moment; -1 where there is none."""
        kinds = self.device.kinds
        runs = kinds.phases.backwards, kinds.phases.stackless_runs, kinds.phases.steps
        starts, ends = (np.concatenate([run[at] for run in runs]) for at in (0, 1))
        past = np.minimum(ends[starts <= self.entry], self.entry + 1)
        return int(past.max()) - 1 if len(past) else BEFORE

    def is_worth(self, *, without: Ints | None = None, end: tuple[Ints, Ints] | None = None) -> bool:
        """True if the most in use falls by a hundredth without some blocks, or with earlier frees of some.

        Sums over blocks, which is much faster than a replay.

        Args:
            end: Blocks, and for each the entry at which it is freed.
        """
        requested, lives = self.device.replay.requested_bytes, self.device.replay.lives
        before = int(requested.max())
        rows, past = (without, lives.begin[without]) if without is not None else end or (np.zeros(0, np.int64),) * 2
        change = np.zeros(len(requested) + 1, dtype=np.int64)
        size = lives.requested_bytes[rows]
        np.add.at(change, np.minimum(np.maximum(past, -1) + 1, len(change) - 1), -size)
        np.add.at(change, np.minimum(lives.end[rows] + 1, len(change) - 1), size)
        after = int((requested + np.cumsum(change)[:-1]).max())
        return (before - after) * 100 >= before * _LEAST_PERCENT
