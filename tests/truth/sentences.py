"""Whether what a run says of holders is so: the program lets go of what was named, and what that frees is counted."""

from __future__ import annotations

import inspect
import re
import tempfile
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.truth.catalogue import entry_of
from tests.truth.program import PROGRAMS, Program, Provable
from tests.truth.running import Loop, begin, num_steps_of, plan_of
from tests.truth.storages import storages_in
from tracer.sessions.training_profile import TrainingProfile

_LEAST, _MOST = 0.99, 1.67
"""What is freed, of what was said: a container that grows in every step has one thing more when the step is over."""
_NOT_A_PERSONS = re.compile(r"mod_globals|_run_module_code|<frozen|<listcomp>")

_AS_WRITTEN = {"retain_graph": r"retain_graph|backward\(create_graph", "copy of the weights": "copy|clone|state_dict"}
"""What a program has to say for a sentence to be about it."""


class _Storages(TorchDispatchMode):
    """Every storage that an operator made, as long as it is there."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[int, tuple[weakref.ref[torch.UntypedStorage], int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.note(result)
        return result

    def note(self, value: object) -> None:
        for storage in storages_in(value):
            self._seen[id(storage)] = weakref.ref(storage), storage.nbytes()

    def bytes_alive(self) -> int:
        return sum(size for reference, size in self._seen.values() if reference() is not None)


def false_sentences(name: str) -> tuple[tuple[str, ...], int]:
    """Run a program until all is recorded, and let go of what the findings name.

    What is compiled cannot be watched by a dispatch mode, with which torch compiles nothing; no such program keeps.

    Returns:
        What is false, a sentence each; and how many findings name a holder.
    """
    storages = _Storages()
    with nullcontext() if entry_of(name).provable is Provable.EAGER_TWIN else storages:
        program, _ = begin(name)
        plan = plan_of(name)
        session = TrainingProfile(
            program.model or torch.nn.Module(), save_dir=tempfile.mkdtemp(), screen="none", schedule=plan,
            leave_out=("memory-timeline", "memory-report", "run-time-report", "memory-snapshot", "max-mem"),
        )  # fmt: skip
        lines: list[str] = []
        num_steps = num_steps_of(name)

        def after_step() -> None:
            session.step()
            if len(loop.losses) == num_steps - 1:  # all is recorded
                lines.extend(line for one in session.waste for line in _judge(one, program, name, storages.bytes_alive))

        with session:
            loop = Loop(program, num_steps if program.loop is not None else num_steps - 1, after_step)
            loop.run()
    return tuple(lines), sum(bool(one.path) for one in session.waste)


def _judge(one: Any, program: Program, name: str, alive: Callable[[], int]) -> list[str]:
    from tracer.changes.unneeded import unneeded_memory, unneeded_sentence

    (found,) = unneeded_memory([one], device="cpu")
    sentence, false = unneeded_sentence(found, 0), []
    try:
        compile("\n".join(found.lines), "lines", "exec")
    except SyntaxError:
        false.append(f"no Python: {found.lines}")
    if _NOT_A_PERSONS.search(sentence):
        false.append(f"no name that a person would write: {sentence}")
    if name in PROGRAMS and not name.startswith("loop_"):  # of the others nobody has the source at hand
        source = inspect.getsource(PROGRAMS[name].build)
        for words, written in _AS_WRITTEN.items():
            if words in sentence and not re.search(written, source):
                false.append(f"the program does not say so: {sentence}")
    if one.path and (name in PROGRAMS and program.keeps):
        false += _not_freed(one, sentence, program, alive)
    return false


def _not_freed(one: Any, sentence: str, program: Program, alive: Callable[[], int]) -> list[str]:
    holder = name_of(one.path)
    if holder != program.keeps:
        return [f"{holder or one.path} is not what holds it: {sentence}"]
    before = alive()
    _container(program).clear()
    freed = before - alive()
    if _LEAST * one.bytes <= freed <= _MOST * one.bytes:
        return []
    return [f"letting go of {holder} frees {freed:,} bytes: {sentence}"]


def _container(program: Program) -> Any:
    """By its name alone: whoever had the object would be one more that holds it."""
    step = program.step
    hooks = [] if program.model is None else [
        hook for module in program.model.modules() for hook in module._forward_hooks.values()
    ]  # fmt: skip
    places = [vars(step.__self__)] if inspect.ismethod(step) else []
    for function in (step.__func__ if inspect.ismethod(step) else step, *hooks):
        found = inspect.getclosurevars(function)
        places += [dict(found.nonlocals), dict(found.globals)]
    return next(place[program.keeps] for place in places if program.keeps in place)


def name_of(path: str) -> str:
    """The last name on a way: `cache` of `self.cache[...]`, `kept` of `step -> closure variable kept of step()`."""
    way = path.partition(" -> graph of")[0]
    closure = re.findall(r"(?:closure|local) variable (\w+) of \w+\(\)([^>]*)$", way)
    text = f"{closure[-1][0]}{closure[-1][1]}" if closure else way
    names = re.findall(r"[^\W\d]\w*", re.sub(r"\[[^\]]*\]", "", text))
    return names[-1] if names else ""
