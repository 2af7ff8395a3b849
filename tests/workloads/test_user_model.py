"""`--model`: what a factory may be and return, what a plain module can be told, one sentence for each mistake."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import main
from models import gpt
from tracer.errors import UserModelError
from tracer.sessions.schedule import Schedule
from tracer.sessions.workload_run import run_profile
from tracer.workloads.module_steps import checkpoint_blocks, gradient_scaler, loss_of
from tracer.workloads.step_options import StepOptions
from tracer.workloads.user_model import as_workload, build_user_workload

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
ONE_STEP = Schedule(num_wait_steps=0, num_warmup_steps=1, num_active_steps=1, num_repeats=1)

NETS = """
    import torch
    from torch import nn

    class Net(nn.Module):  # here: class
        def __init__(self, width=4, kind="plain"):
            super().__init__()
            self.first = nn.Linear(8, width)
            self.second = nn.Linear(width, 2)
        def forward(self, x, scale=None):  # here: forward
            x = self.first(x)  # here: first
            return self.second(x) if scale is None else self.second(x) * scale

    class Wrong(Net):
        def forward(self, x):
            return self.first(self.first(x))  # here: wrong

    class Embeds(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(8, 4)
        def forward(self, ids):
            return self.table(ids)  # here: embeds

    class Keywords(Net):
        def forward(self, *args, **kwargs):
            return {"logits": super().forward(kwargs["x"]), "extra": None}  # here: keyword

    class Elsewhere(Net):
        def forward(self, x):
            return self.first(x.to("meta"))  # here: elsewhere

    class Chooses(Net):
        def forward(self, x):  # here: chooses
            return super().forward(x).argmax(-1)

    built = Net()

    def gan():  # here: gan
        return Net(), Net()

    def its_class():  # here: its_class
        return Net

    def told(device, batch_size, seed, width=4):
        net = Net(width)
        net.told = (device, batch_size, seed)
        return net

    def pair():
        net = Net()
        return net, torch.optim.SGD(net.parameters(), lr=0.1)

    def number():  # here: number
        return 3

    def broken():
        raise RuntimeError("no such\\nthing")  # here: broken

    def on_meta():
        with torch.device("meta"):
            return Net()

    class Blocks(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2))
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    def elsewhere():
        from models import gpt
        return gpt.build(batch_size=1, context=8, width=8, vocabulary=8)
"""


@pytest.fixture
def nets(tmp_path: Path) -> str:
    path = tmp_path / "my_nets.py"
    path.write_text(textwrap.dedent(NETS).lstrip())
    return str(path)


@pytest.fixture(autouse=True)
def own_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factory's folder stays on the path as long as its program runs, which here is a test."""
    monkeypatch.setattr(sys, "path", list(sys.path))


def build(place: str, *model_args: str, **options: Any):
    return build_user_workload(place, device=CPU, model_args=model_args, options=StepOptions(**options))


def step(workload) -> float | None:
    loss = workload.forward(workload.next_batch())
    workload.backward(loss)
    workload.optimizer_step()
    return None if loss is None else float(loss.detach())


# ---- what a factory may be, and return -------------------------------------------------------------------------------


def test_a_class_becomes_a_training_step(nets: str) -> None:
    workload = build(f"{nets}:Net", "width=6", inputs=["8"], batch_size=3)
    assert workload.model.first.out_features == 6
    assert workload.next_batch()[0][0].shape == (3, 8)
    assert isinstance(workload.optimizer, torch.optim.AdamW)
    before = workload.model.second.weight.clone()
    assert step(workload) > 0  # type: ignore[operator]
    assert not torch.equal(workload.model.second.weight, before)


def test_a_module_that_is_there_already_is_taken(nets: str) -> None:
    assert step(build(f"{nets}:built", inputs=["8"])) > 0  # type: ignore[operator]
    with pytest.raises(UserModelError, match="is a module already and takes no arguments"):
        build(f"{nets}:built", "width=3")


def test_a_factory_is_told_what_it_asks_for_by_name(nets: str) -> None:
    assert build(f"{nets}:told", inputs=["8"], batch_size=5, seed=7).model.told == (CPU, 5, 7)
    assert build(f"{nets}:told", "seed=1", inputs=["8"], batch_size=5, seed=7).model.told == (CPU, 5, 1)


def test_a_pair_brings_its_optimizer(nets: str) -> None:
    assert isinstance(build(f"{nets}:pair", inputs=["8"]).optimizer, torch.optim.SGD)
    with pytest.raises(UserModelError, match="brings an optimizer, and --optimizer names another"):
        build(f"{nets}:pair", inputs=["8"], optimizer="adam")


def test_an_optimizer_of_another_model_is_refused() -> None:
    model, other = nn.Linear(8, 2), nn.Linear(8, 2)
    pair = model, torch.optim.SGD(other.parameters(), 0.1)
    with pytest.raises(UserModelError, match="SGD updates none of the 2 parameters of Linear"):
        as_workload(pair, device=CPU, options=StepOptions(inputs=("8",)))


def test_a_workload_is_taken_as_it_is(nets: str) -> None:
    workload = build("models.lstm:build", "length=4")
    assert workload.next_batch()[0].shape[1] == 4
    with pytest.raises(UserModelError, match="--amp, --checkpoint have no meaning for a workload"):
        build("models.lstm:build", amp="bfloat16", checkpoint=True)
    with pytest.raises(UserModelError, match="model is on cpu, and --device says cuda:1"):
        build_user_workload(f"{nets}:elsewhere", device="cuda:1", device_named=True)
    assert build_user_workload(f"{nets}:elsewhere", device="cuda:1").device == CPU


@pytest.mark.parametrize("place", ["pair", "Blocks"])
def test_each_kind_is_profiled_and_its_rows_sum_to_the_peak(nets: str, place: str) -> None:
    results = run_profile(build(f"{nets}:{place}", inputs=["8"]), schedule=ONE_STEP)
    assert results.failure is None
    peak = results.findings.worst.peak
    assert sum(row.bytes for row in peak.rows) == peak.peak_bytes > 0
    assert results.timings is not None and results.notes == () and results.unused_parameters == ()


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("alone")
def test_inference_keeps_nothing_for_backward(nets: str) -> None:
    workload = build(f"{nets}:Net", inputs=["8"], inference=True)
    assert not workload.model.training
    assert step(workload) is None
    results = run_profile(workload, schedule=ONE_STEP)
    assert (results.failure, results.losses, results.unused_parameters) == (None, (), None)
    assert not {"GRADIENT", "OPTIMIZER_STATE"} & set(results.findings.worst.peak.by_category())


def test_mixed_precision_computes_in_bfloat16(nets: str) -> None:
    workload = build(f"{nets}:Net", inputs=["8"], amp="bfloat16")
    seen = []
    workload.model.second.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    assert step(workload) > 0  # type: ignore[operator]
    assert seen == [torch.bfloat16]
    assert workload.model.first.weight.dtype == torch.float32


def test_only_float16_on_cuda_scales_its_gradients() -> None:
    assert gradient_scaler("float16", CPU) is None
    assert gradient_scaler("bfloat16", torch.device("cuda")) is None


@pytest.mark.gpu
def test_scaled_gradients_train(nets: str) -> None:
    options = StepOptions(inputs=["8"], amp="float16")
    workload = build_user_workload(f"{nets}:Net", device="cuda", options=options)
    assert isinstance(workload.scaler, torch.amp.GradScaler)
    losses = [step(workload) for _ in range(3)]
    assert all(torch.tensor(losses).isfinite())
    assert workload.copy().scaler is not workload.scaler


def test_checkpointed_blocks_give_the_same_gradients_and_keep_less() -> None:
    torch.manual_seed(0)
    plain, ids = gpt.GPT(width=16, vocabulary=16, context=8), torch.randint(16, (2, 8))
    checkpointed = gpt.GPT(width=16, vocabulary=16, context=8)
    checkpointed.load_state_dict(plain.state_dict())
    assert checkpoint_blocks(checkpointed) == 2
    assert type(checkpointed.blocks[0]).forward is type(plain.blocks[0]).forward

    def kept(model: nn.Module) -> int:
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.update({t.data_ptr(): t.nbytes}) or t, lambda t: t
        ):
            model(ids).square().mean().backward()
        return sum(sizes.values())

    assert kept(checkpointed) < kept(plain)
    for ours, its in zip(checkpointed.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(ours.grad, its.grad, atol=1e-6)  # type: ignore[arg-type]


def test_a_copy_of_a_checkpointed_model_calls_its_own_blocks(nets: str) -> None:
    workload = build(f"{nets}:Blocks", inputs=["8"], checkpoint=True)
    copy = workload.copy()
    step(copy)
    own = copy.model.blocks[0]
    assert own.forward.args[0].__self__ is own


def test_a_model_without_blocks_says_so(nets: str) -> None:
    with pytest.raises(UserModelError, match="Net has no repeated blocks to checkpoint"):
        build(f"{nets}:Net", inputs=["8"], checkpoint=True)


@pytest.mark.parametrize(
    ("optimizer", "kind"), [("none", None), ("SGD:lr=0.5,momentum=0.9", torch.optim.SGD), ("adam", torch.optim.Adam)]
)
def test_optimizers_go_by_name(nets: str, optimizer: str, kind: type | None) -> None:
    made = build(f"{nets}:Net", inputs=["8"], optimizer=optimizer).optimizer
    assert type(made) is (kind or type(None))
    if kind is torch.optim.SGD:
        assert made.defaults["momentum"] == 0.9  # type: ignore[attr-defined]


# ---- losses ----------------------------------------------------------------------------------------------------------


class Output(dict):
    """Like a transformers ModelOutput."""

    def __getattr__(self, name: str):
        return self[name]


def test_a_loss_of_any_output() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    auto = loss_of("auto")
    assert auto(Output(loss=x.sum(), logits=x)) == 10
    assert auto({"logits": x}) == auto(x) == auto((torch.ones(2), [x])) == 7.5
    assert auto(x.sum()) == 10
    assert auto((x, x)) == 15
    assert loss_of("mean-square")(x.sum()) == 100
    classes = loss_of("cross-entropy")
    assert torch.allclose(classes(x), nn.functional.cross_entropy(x, torch.tensor([0, 1])))
    assert classes(torch.zeros(2, 5, 4, requires_grad=True)).item() == pytest.approx(torch.tensor(4.0).log().item())
    assert classes(torch.zeros(2, 3, 4, 4, requires_grad=True)).item() == pytest.approx(torch.tensor(3.0).log().item())
    with pytest.raises(UserModelError, match=r"no gradient can flow through its output \(2\)"):
        auto(torch.ones(2))
    with pytest.raises(UserModelError, match="classes in axis 1"):
        classes(x[0])


def test_keywords_and_outputs_in_a_mapping_are_trained_on(nets: str) -> None:
    assert step(build(f"{nets}:Keywords", inputs=["x=8"])) > 0  # type: ignore[operator]


# ---- mistakes, at the command line -----------------------------------------------------------------------------------


def command(*arguments: str, save_dir: Path):
    given = ["--n-repeats", "1", "--n-active-steps", "1", "--device", "cpu", "--save-dir", str(save_dir)]
    return CliRunner().invoke(main.app, [*given, *arguments])


MISTAKES = [
    (["{nets}:Wrong", "--input", "8"], "Error: Step 1 raised RuntimeError: ", "wrong"),
    (["{nets}:Net", "--input", "9"], "shapes cannot be multiplied", "first"),
    (["{nets}:broken"], "my_nets.py:broken raised RuntimeError: no such.", "broken"),
    (["{nets}:number"], "returned int", "number"),
    (["{nets}:Net"], "needs `x`: add --input for it.", "--input 3x224x224"),
    (["{nets}:Net", "--input", "8", "--input", "y=3"], "unexpected keyword argument 'y'", "forward"),
    (["{nets}:Net", "--model-arg", "depth=3"], "unexpected keyword argument 'depth'", "class"),
    (["{nets}:Netz"], "has no Netz", "It has Net, Wrong"),
    (["{nets}:on_meta", "--input", "8"], "meta device", "Build it outside"),
    (["{nets}:Net", "--input", "8", "--optimizer", "adamx"], "torch.optim has no adamx", "adamw"),
    (["{nets}:Net", "--input", "8", "--n-modes", "3"], "--n-modes works only without --model", "Leave it out"),
    (["nowhere/at_all.py:Net"], "There is no file nowhere/at_all.py", "path/to/file.py:factory"),
    (["no_such_package_here:Net"], "There is no module no_such_package_here", "Install it"),
    (["models.nothing:Net"], "There is no module models.nothing", "Give the file instead"),
    (["{nets}:Net", "--input", "9"], "shapes cannot", "called with --input 9 and --batch-size 8: check shape"),
    (["{nets}:Embeds", "--input", "8"], "raised RuntimeError: Expected tensor for argument #1 'indices'", "embeds"),
    (["{nets}:Embeds", "--input", "8:int64:0-99"], "raised IndexError: index out of range", "embeds"),
    (["{nets}:Keywords"], "raised KeyError: 'x'", "keyword"),
    (["{nets}:Keywords"], "raised KeyError: 'x'", "describe them with --input"),
    (["{nets}:Elsewhere", "--input", "8"], "meta", "elsewhere"),
    (["{nets}:Chooses", "--input", "8"], "no gradient can flow through its output (8)", "chooses"),
    (["{nets}:Net", "--input", "8", "--optimizer", "lbfgs"], "LBFGS wants a closure", "run train.py"),
    (["{nets}:gan"], "returned (Net, Net)", "gan"),
    (["{nets}:its_class"], "returned the class Net", "its_class"),
    (["{tracers}:x"], "tracers.py imports tracer.mine, and the name tracer is taken", "tracers.py:1)"),
    (["{hides}:x"], "hides.py imports what this program's tracer has not", "hides.py:1)"),
    (["my_nets"], "my_nets does not name a factory", "package.module:factory"),
    (["{needs}:Net"], "needs.py imports not_installed_here, which is not installed", "needs.py:2)"),
    (["{typo}:Net"], "SyntaxError", "typo.py:2)"),
    (["{exits}:Net"], "Importing", "__main__"),
]


def _with_line(more: str) -> str:
    """`wrong` is the place in the file that is marked so."""
    lines = textwrap.dedent(NETS).lstrip().splitlines()
    marked = {line.partition("# here: ")[2]: number for number, line in enumerate(lines, start=1)}
    return f"my_nets.py:{marked[more]})" if more and more in marked else more


@pytest.mark.parametrize(("arguments", "sentence", "more"), MISTAKES, ids=lambda value: str(value)[:40])
def test_a_mistake_is_one_sentence_with_the_users_own_line(
    nets: str, tmp_path: Path, arguments: list[str], sentence: str, more: str
) -> None:
    files = {"nets": nets}
    for name, text in {
        "needs": "\nimport not_installed_here\n",
        "typo": "\nx = (\n",
        "exits": "raise SystemExit(2)\n",
        "tracers": "import tracer.mine\n",
        "hides": "from tracer import Mine\n",
    }.items():
        files[name] = str(tmp_path / f"{name}.py")
        Path(files[name]).write_text(text)
    place, *rest = (argument.format(**files) for argument in arguments)
    result = command("--model", place, *rest, save_dir=tmp_path / "out")
    wrong_usage = ("torch.optim has", "number of micro", "--n-modes works", "LBFGS wants", "my_nets does not name")
    assert result.exit_code == (2 if sentence.startswith(wrong_usage) else 1), result.output
    errors = [line for line in result.output.splitlines() if line.startswith("Error: ")]
    hints = [line for line in result.output.splitlines() if line.startswith("Hint: ")]
    assert len(errors) == len(hints) == 1
    assert sentence in errors[0]
    assert _with_line(more) in errors[0] + hints[0]
    assert "Traceback" not in result.output
    assert not (tmp_path / "out" / "peak.json").exists() or "at=2" in rest


def test_options_of_a_model_have_no_meaning_without_one(tmp_path: Path) -> None:
    result = command("--input", "3x4", save_dir=tmp_path)
    assert result.exit_code == 2
    assert "--input works only with --model" in result.output


def test_our_own_faults_keep_their_traceback(nets: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(*args: object, **kwargs: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("tracer.workloads.user_model.random_batches", fault)
    result = command("--model", f"{nets}:Net", "--input", "8", save_dir=tmp_path)
    assert isinstance(result.exception, ZeroDivisionError)
