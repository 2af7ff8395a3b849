"""Shows what filled GPU memory at the peak of a training run, down to the line of code.

A tour of twelve names:

    profile_training    a block around your loop: records some steps, writes the files, says what filled the device
    watch_training      the same for a whole training, without a profiler: explains what grows, and what ran out
    dump_on_oom         one line: where memory runs out, a snapshot, and the facts that it cannot have
    named_memory        what a block, or tensors, are called in every snapshot: with named_memory("rollout"): ...
    Schedule            which steps are recorded: Schedule(wait, warmup, active, repeats)
    ProfileSession      what profile_training is made of, without files
    TimelineTracer      an `on_trace_ready` callback for a torch.profiler of your own
    MemoryTimeline      bytes by category over time, as torch's own memory timeline
    TracerError         what a mistake raises; its `hint` says what to do
    integrations.transformers.TimelineCallback, integrations.lightning.TimelineCallback    for other people's trainers
    integrations.pytest_plugin    `@pytest.mark.gpu_memory("20 GiB", on="h100")`
    `%load_ext tracer`            gives a notebook the cell magic `%%memory_timeline`

    with profile_training(model, optimizer, save_dir="profile") as session:
        for batch in loader:
            ...
            session.step()
    session.peak_bytes, session.rows

On the command line: `torch-timeline --help`, or `python -m tracer --help`.

The folders are the data flow: what happened, what it means, who wants to know.

    errors, units      the two things that everybody may use
    arrays             the columns that everybody may use, by what a row of them is: events, blocks, operators
    block_sizes        how the caching allocator rounds requests, and how much it reserves for one
    collector          Python's garbage collector, paused where both readers run
    command_line       how this process was called
    nested             the walk over nested inputs and outputs
    user_cache         what is compiled for this user: kept, and deleted when no longer used
    null_gpu/          a GPU that computes nothing: how it is built for the torch at hand, and how a process runs on it
    workloads/         how a model, or a file:factory, becomes a training step
    capture/           what happened: the only rooms that touch a running torch
    snapshot/          what happened, from a file: allocator snapshots of any age and machine
    allocator/         the caching allocator as a model: settings, allocate and free, replay of a history
    blocks/            the blocks and what each is: from_recording/ and from_snapshot/, by one set of kinds
    answers/           what they mean: rows, peak, growth, difference, ranks, failure, allocator, operators
      why/             what filled the memory, and the change that empties it
    changes/           what lowers the peak of a script, made from outside; each is tried first
    exporters/         who wants to know: one file per output format
    sessions/          around a loop, a script or a workload: its steps, files, signals; what a watched training does
      jobs/            several ranks: run on the null GPU, their results merged, their recordings read
      trials/          does it fit, what makes it fit, how much would it need: found by running it
    engines/           inference engines: how vLLM is started, what its workers report, the answer
    integrations/      the same as callbacks of other people's trainers
    commands/          the command line, one file a command

Imports point one way, from the bottom of this list to the top. The public names are loaded when they are first used, so
that reading a snapshot does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracer.blocks.from_recording.memory_timeline import MemoryTimeline
    from tracer.capture.named_memory import named_memory
    from tracer.errors import TracerError
    from tracer.sessions.oom_dump import dump_on_oom
    from tracer.sessions.profile_session import ProfileSession
    from tracer.sessions.schedule import Schedule
    from tracer.sessions.timeline_tracer import TimelineTracer
    from tracer.sessions.training_profile import profile_training
    from tracer.sessions.training_watch import watch_training

__version__ = "0.2.0.dev0"
__all__ = [
    "MemoryTimeline",
    "ProfileSession",
    "Schedule",
    "TimelineTracer",
    "TracerError",
    "dump_on_oom",
    "named_memory",
    "profile_training",
    "watch_training",
]

_HOMES = {
    "MemoryTimeline": "tracer.blocks.from_recording.memory_timeline",
    "ProfileSession": "tracer.sessions.profile_session",
    "Schedule": "tracer.sessions.schedule",
    "TimelineTracer": "tracer.sessions.timeline_tracer",
    "TracerError": "tracer.errors",
    "dump_on_oom": "tracer.sessions.oom_dump",
    "named_memory": "tracer.capture.named_memory",
    "profile_training": "tracer.sessions.training_profile",
    "watch_training": "tracer.sessions.training_watch",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tracer' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext tracer`: gives a notebook the cell magic `%%memory_timeline`."""
    import_module("tracer.integrations.notebook").load(shell)


def __dir__() -> list[str]:
    loaded = (name for name, value in globals().items() if name.startswith("__") or isinstance(value, ModuleType))
    return sorted({*__all__, *loaded})
