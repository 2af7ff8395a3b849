"""Options that several commands have: annotations of their parameters, which typer reads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from tracer.errors import UsageError
from tracer.units import MAX_COUNT, parse_count, parse_memory
from tracer.workloads import step_options

# Panels of --help.
MODEL: Final = "Model"
STEP: Final = "How a model of your own is trained"
FNO: Final = "The built-in model, an FNO, where --model names no other"
DEVICE: Final = "Device"
SCHEDULE: Final = "Schedule"
OUTPUTS: Final = "Outputs"
SAVE_DIR: Final = Path("profiler_outputs")


def option(help: str, panel: str | None = None, *names: str, **more: Any) -> Any:
    """An option in a panel of --help; by default it is called as its parameter."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **more)


def number(
    help: str, panel: str | None = None, *names: str, least: int | None = None, most: int = MAX_COUNT, **more: Any
) -> Any:
    """An option that is a whole number, of some size at least."""

    def parse(text: str | int) -> int:
        try:
            value = parse_count(str(text), most=most)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
        if least is not None and value < least:
            raise typer.BadParameter(f"{text} is less than {least}.")
        return value

    return option(help, panel, *names, **{"metavar": "<number>", **more}, parser=parse)


def checked_size(text: str | None) -> int | None:
    """The bytes of a size that an option names; None without one."""
    try:
        return parse_memory(text) if text is not None else None
    except ValueError as error:
        raise UsageError(str(error), hint="Write the GPU's memory as 16GiB, 80GiB or 8192MiB.") from None


# ----------------------------------------------------------------------------------------------------------- the script
ScriptName = Annotated[str, typer.Argument(help="A script, or with -m a module.")]
Arguments = Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")]
Module = Annotated[bool, option("Run a module, as `python -m` does.", None, "--module", "-m")]

# ----------------------------------------------------------------------------------------------------------- the device
On = Annotated[str | None, option("Run as on this GPU: h100, h100:40GiB, 8xh100.", DEVICE, metavar="<card>")]
NeededOn = Annotated[
    str | None, option("Required: h100, h100:40GiB, 8xh100; help lists all.", DEVICE, "--on", metavar="<card>")
]
Answers = Annotated[list[str] | None, option("What a line reads there: train.py:12=0.5.", DEVICE, metavar="<value>")]
PerNode = Annotated[
    int, number("With --on 128xh100: how many GPUs, and ranks, a node has.", DEVICE, least=1, hidden=True)
]
Rank = Annotated[
    str | None,
    option(
        "With --on 128xh100: the ranks to run, such as 0,7,64; by default those that can differ.",
        DEVICE,
        metavar="<numbers>",
        hidden=True,
    ),
]
OneProcess = Annotated[
    bool,
    option(
        "With --on 8xh100: one process with eight GPUs, instead of eight ranks.", DEVICE, "--one-process", hidden=True
    ),
]

# ------------------------------------------------------------------------------------------------------------ the model
Model = Annotated[str, option("Factory: module:name, or file.py:name.", MODEL, metavar="<where:what>")]
ModelArgs = Annotated[
    list[str] | None, option("Argument of it: width=256.", MODEL, "--model-arg", metavar="<name=value>")
]
ModelInputs = Annotated[
    list[str] | None, option("A sample: 3x224x224, ids=128:int64:0-50257.", MODEL, "--input", metavar="<size>")
]
BatchSize = Annotated[int, number("Samples in a batch.", MODEL)]
Optimizer = Annotated[str, option("Of torch.optim: adamw, sgd:lr=0.1, none.", STEP, metavar="<text>")]
Loss = Annotated[step_options.Loss, option("auto, mean-square or cross-entropy.", STEP, metavar="<loss>")]
Amp = Annotated[step_options.Amp, option("Autocast: off, bfloat16 or float16.", STEP, metavar="<dtype>")]
Checkpoint = Annotated[bool, option("Recompute repeated blocks in backward.", STEP, "--checkpoint")]
Inference = Annotated[bool, option("Forward only, without gradients.", STEP, "--inference")]

# --------------------------------------------------------------------------------------------- the steps and the answer
WaitSteps = Annotated[int, number("Steps to skip before each cycle.", SCHEDULE, hidden=True)]
WarmupSteps = Annotated[int, number("Steps in which the profiler then warms up.", SCHEDULE, hidden=True)]
ActiveSteps = Annotated[int, number("Steps that are then recorded.", SCHEDULE, hidden=True)]
Repeats = Annotated[int, number("Number of such cycles.", SCHEDULE, hidden=True)]
SaveDir = Annotated[Path, option("Folder for the results.", OUTPUTS, metavar="<path>")]
KeepRecording = Annotated[bool, option("Write recording.npz, which `report` reads.", OUTPUTS, "--keep-recording")]
Html = Annotated[Path | None, option("Also write an HTML page.", OUTPUTS, metavar="<path>")]
AsJson = Annotated[bool, option("Print the answer as JSON instead.", OUTPUTS, "--json")]
Full = Annotated[bool, option("Print all tables.", OUTPUTS, "--full")]
Quiet = Annotated[bool, option("Print nothing but errors.", OUTPUTS, "--quiet", "-q")]
