"""Stacks: what a frame is, what a stack proves, which line is to blame, and stretches of entries."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.answers.test_snapshot_findings import (
    BACKWARD,
    BASE,
    EMPTY,
    ENGINE,
    FORWARD,
    LINEAR,
    MAIN,
    MALLOC,
    MODEL,
    MUL,
    TORCH,
    UNWIND,
    load,
)
from tests.snapshot.dumps import Row, block, entry, frame, segment, snapshot
from tracer.answers.history_sections import place
from tracer.blocks.from_snapshot.frames import (
    autograd_frames,
    compiled_graph,
    compiled_region,
    is_label,
    is_python,
    is_users,
    node_name,
    torch_file,
)
from tracer.blocks.from_snapshot.phases import FAR, Stretches, _without, runs_of
from tracer.blocks.from_snapshot.sites import Site, Sites, pool_words, pools_of_graphs
from tracer.blocks.from_snapshot.stack_facts import Fact, calls_backward, constructors_of_stacks, facts_of_stacks, has
from tracer.capture import recording as wrapper
from tracer.capture.torch_private import torch_compile
from tracer.changes.kinds import bf16
from tracer.snapshot.columns import Frame, Stacks

# ---- Which line of a stack is to blame: each class of frames that never is, and what decides without any.
GENERATED = "/tmp/torchinductor_me/ab/cabcdefghij.py"
RUN = frame("run", "/py/site-packages/torch/_inductor/output_code.py", 466)


OWN = frame("go", "/home/me/torch/train.py", 3)
WINDOWS = frame("linear", "C:\\py\\Lib\\site-packages\\torch\\nn\\functional.py", 5)
# torch puts a node's own lines between the generated code and what runs that.
NODE = [LINEAR, frame("gelu", "/home/me/mlp.py", 5), frame("block", "/home/me/mlp.py", 9)]
CALLED = [frame("call", GENERATED, 10), RUN, MODEL, MAIN]
OF_STACKS: dict[str, tuple[list[Row], Site]] = {
    "the user's line": (FORWARD, Site("forward", "/home/me/model.py", 7)),
    "torch's own without one": ([UNWIND, MALLOC, LINEAR], Site("linear", LINEAR["filename"], 20)),
    "the node without Python": (BACKWARD, Site("MmBackward0")),
    "the operation without a node": ([UNWIND, MALLOC, EMPTY, MUL, ENGINE], Site("mul_Tensor")),
    "no stack": ([], Site("no stack recorded")),
    "a folder called torch": ([UNWIND, OWN, MAIN], Site("go", "/home/me/torch/train.py", 3)),
    "Windows": ([UNWIND, WINDOWS, frame("go", "D:\\work\\train.py", 3)], Site("go", "D:\\work\\train.py", 3)),
    "a node's own line in generated code": (
        [UNWIND, CALLED[0], *NODE, *CALLED[1:]],
        Site("gelu, compiled graph cabcdefg", "/home/me/mlp.py", 5),
    ),
    "what generated code calls of the user's": (
        [UNWIND, frame("my_op", "/home/me/ops.py", 3), *CALLED],
        Site("my_op, compiled graph cabcdefg", "/home/me/ops.py", 3),
    ),
}


class TestSites:
    def site(self, tmp_path: Path, frames: list[Row]) -> Site:
        loaded = load(tmp_path / "s", snapshot([entry("alloc", BASE, 1, frames=frames)]))
        return Sites(loaded.stacks).site(int(loaded.devices[0].trace.stack[0]))

    @pytest.mark.parametrize(("frames", "expected"), OF_STACKS.values(), ids=OF_STACKS)
    def test_one_frame_decides(self, tmp_path: Path, frames: list[Row], expected: Site) -> None:
        assert self.site(tmp_path, frames) == expected

    def test_without_python_there_is_no_place(self, tmp_path: Path) -> None:
        assert place(self.site(tmp_path, BACKWARD)) == "MmBackward0  (no Python frame)"

    def test_where_only_the_region_is_known_the_row_says_so(self, tmp_path: Path) -> None:
        """Generated code without a node's lines is named by its graph; the line is the one that called it."""
        lines = [frame("call", GENERATED, n) for n in (10, 20)]
        for behind in ([RUN, MODEL, MAIN], [MODEL, MAIN]):
            sites = [self.site(tmp_path, [UNWIND, line, *behind]) for line in lines]
            assert sites == [Site("compiled graph cabcdefg, called in forward", "/home/me/model.py", 7)] * 2

    def test_the_original_lines_of_torch_fx_decide(self, tmp_path: Path) -> None:
        """As `_snapshot(augment_with_fx_traces=True)` writes them, outermost first."""
        lines = ((9, "block"), (5, "gelu"))
        trace = "".join(f'  File "/home/me/mlp.py", line {line}, in {name}\n    code\n' for line, name in lines)
        fx = frame("forward", "fx_generated__a1b2c3.py", 4) | {"fx_node_name": "gelu_1", "fx_original_trace": trace}
        site = self.site(tmp_path, [UNWIND, fx, RUN, MODEL, MAIN])
        assert site == Site("gelu, compiled graph a1b2c3", "/home/me/mlp.py", 5)
        loaded = load(tmp_path / "t", snapshot([entry("alloc", BASE, 1, frames=[fx, RUN, MAIN])]))
        assert [one.split(" (")[0] for one in Sites(loaded.stacks).readable(int(loaded.devices[0].trace.stack[0]))] == [
            "forward, node gelu_1", "gelu", "block", "run", "main"
        ]  # fmt: skip

    def test_a_compiled_region_is_said_where_no_python_is(self, tmp_path: Path) -> None:
        for frames, site in (
            ([], Site("Torch-Compiled Region: 0/0")),
            ([UNWIND, MALLOC, EMPTY, MUL, ENGINE], Site("mul_Tensor, Torch-Compiled Region: 0/0")),
            ([MODEL, MAIN], Site("Torch-Compiled Region: 0/0, called in forward", "/home/me/model.py", 7)),
        ):
            inside = entry("alloc", BASE, 1, frames=frames) | {"compile_context": "Torch-Compiled Region: 0/0"}
            outside = entry("alloc", BASE + 512, 1, frames=frames) | {"compile_context": "N/A"}
            loaded = load(tmp_path / "s", snapshot([inside, outside]))
            found = [Sites(loaded.stacks).site(stack) for stack in loaded.devices[0].trace.stack.tolist()]
            assert found[0] == site
            assert "Region" not in found[1].frame


CAPTURE = frame("_record", "/py/site-packages/torch/_inductor/cudagraph_trees.py", 5)


@pytest.mark.parametrize(
    ("name", "is_of_graphs", "words"),
    [
        ("2,0", False, "private pool 2,0 of a CUDA graph"),
        ("0,5", True, "private pool 0,5 of CUDA graphs"),
        ("0,5", False, "private pool 0,5"),
        ("1,1", False, "private pool 1,1"),
    ],
)
def test_words(name: str, is_of_graphs: bool, words: str) -> None:
    assert pool_words(name, is_of_graphs=is_of_graphs) == words


@pytest.mark.parametrize("names_pools", [True, False])
def test_a_pool_is_of_graphs_if_one_was_recorded_in_it(tmp_path: Path, names_pools: bool) -> None:
    """By entries that name their pool, or by the blocks in its segments; the default pool is none."""
    trace: list[Row] = []
    segments: list[Row] = []
    for number, (pool, frames) in enumerate({(0, 5): [CAPTURE], (0, 6): FORWARD, (0, 0): [CAPTURE]}.items()):
        at = BASE + 4096 * number
        if names_pools:
            trace.append(entry("alloc", at, 512, frames=frames) | {"pool_id": pool})
        else:
            segments.append(segment(at, 4096, [block(at, 512, frames=frames)]) | {"segment_pool_id": pool})
    loaded = load(tmp_path / "s", snapshot(trace, segments))
    found = pools_of_graphs(loaded.devices[0], Sites(loaded.stacks))
    assert [loaded.text(number) for number in found] == ["0,5"]


# ---- What a frame is, by the path of its file.
SITE = "/usr/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "inside"),
    [
        (f"{SITE}/torch/nn/functional.py", "nn/functional.py"),
        ("C:\\py\\Lib\\site-packages\\torch\\optim\\adam.py", "optim/adam.py"),
        ("/home/me/pytorch/torch/nn/modules/module.py", "nn/modules/module.py"),
        ("/home/me/torch/train.py", None),
        (f"{SITE}/torchvision/models/resnet.py", None),
    ],
)
def test_torchs_own_files(file: str, inside: str | None) -> None:
    assert torch_file(Frame("f", file, 1)) == inside


@pytest.mark.parametrize(
    ("file", "is_theirs"),
    [
        ("/home/me/model.py", True),
        ("<stdin>", True),
        ("/tmp/ipykernel_5/77.py", True),
        (f"{SITE}/transformers/trainer.py", True),
        (f"{SITE}/torch/nn/functional.py", False),
        (f"{SITE}/einops/einops.py", False),
        (torch_compile.__file__, False),
        (bf16.__file__, False),
        (wrapper.__file__, False),
        (f"{SITE}/tracer/capture/recording.py", False),
        (f"{SITE}/tracer/_models/fno.py", True),
        ("/opt/copy/tracer/capture/recording.py", False),
        ("/home/me/tracer/errors.py", True),
        ("/home/me/tracer/capture/train.py", True),
        ("/usr/lib/python3.11/threading.py", False),
        ("<frozen runpy>", False),
        ("/tmp/torchinductor_me/ab/cabcdefgh.py", False),
    ],
)
def test_the_programs_files(file: str, is_theirs: bool) -> None:
    frame = Frame("f", file, 1)
    assert is_python(frame) and is_users(frame) is is_theirs


@pytest.mark.parametrize("name", ["__torch_function__", "__torch_dispatch__"])
def test_the_method_of_a_kind_of_tensor_is_no_line_of_the_programs(name: str) -> None:
    assert not is_users(Frame(name, f"{SITE}/monai/data/meta_tensor.py", 336))


def test_what_inductor_writes_is_named_by_its_graph() -> None:
    assert compiled_graph(Frame("call", "/tmp/torchinductor_me/ab/cabcdefghij.py", 1)) == "cabcdefg"
    assert compiled_graph(Frame("call", "/home/me/cabcdefghij.py", 1)) == ""
    hashed = f"cab{'c2' * 20}"
    assert compiled_graph(Frame("call", f"/scratch/cache/ab/{hashed}.py", 1)) == "cabc2c2c"
    assert compiled_graph(Frame("call", f"D:\\cache\\ab\\{hashed}.py", 1)) == "cabc2c2c"
    assert compiled_graph(Frame("call", f"/scratch/cache/xy/{hashed}.py", 1)) == ""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("<eval_with_key>.12", "fx 12"),
        ("<eval_with_key>.3 from /home/me/net.py:7 in forward", "fx 3"),
        ("fx_generated__0a1b2c3d4e.py", "0a1b2c3d"),
        ("<stdin>", ""),
    ],
)
def test_what_torch_fx_compiles_is_generated_too(file: str, name: str) -> None:
    frame = Frame("forward", file, 1)
    assert is_python(frame) and compiled_graph(frame) == name
    assert is_users(frame) == (not name)


def test_a_compiled_region_is_no_line_of_anybodys() -> None:
    region = Frame("Torch-Compiled Region: 0/0", "??", 0)
    assert compiled_region(region) == region.name and not is_python(region)
    assert compiled_region(Frame("Torch-Compiled Region", "/home/me/net.py", 1)) == ""
    assert compiled_region(Frame("at::mul", "??", 0)) == ""


def test_cpp_and_labels() -> None:
    assert not is_python(Frame("at::mul", "??", 0))
    assert is_label(Frame("x", "<explained as gradient>", 0)) and not is_label(Frame("x", "<stdin>", 1))


KERNEL = Frame("at::_ops::mm::redispatch(c10::DispatchKeySet)", "??", 0)
MM = Frame("torch::autograd::VariableType::(anonymous namespace)::mm(c10::DispatchKeySet)", "VariableType_3.cpp", 0)
MM_NODE = Frame("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0)
FOLDED = Frame("torch::autograd::generated::KthvalueBackward0_apply_functional(std::vector<at::Tensor>&&)", "??", 0)
ENGINES = Frame(*ENGINE.values())
LINE = Frame("forward", "/home/me/model.py", 7)
CHECKPOINT = Frame("unpack_hook", "/x/site-packages/torch/utils/checkpoint.py", 9)
FRAMES = (KERNEL, MM, MM_NODE, FOLDED, ENGINES, LINE, CHECKPOINT)


def stacks_of(*stacks: tuple[Frame, ...]) -> Stacks:
    offset = np.cumsum([0, *map(len, stacks)], dtype=np.int64)
    flat = np.array([FRAMES.index(frame) for stack in stacks for frame in stack], dtype=np.int32)
    return Stacks(frames=FRAMES, offset=offset, frame_of=flat)


def test_forward_and_backward_of_one_operation_have_one_name() -> None:
    found = autograd_frames(stacks_of((), (KERNEL, MM, LINE), (KERNEL, MM, MM_NODE, ENGINES)))
    assert found.operation.tolist() == [-1, 0, -1]
    assert found.node.tolist() == [-1, -1, 0]
    assert found.names == ("Mm",)


def test_the_outermost_node_is_the_one_that_the_engine_runs() -> None:
    found = autograd_frames(stacks_of((FOLDED, MM_NODE, ENGINES)))
    assert found.names[found.node[0]] == "Mm"


def test_stacks_that_differ_within_the_operation_are_one_call() -> None:
    found = autograd_frames(stacks_of((KERNEL, MM, LINE), (MM, LINE), (MM, LINE, LINE)))
    assert found.call[0] == found.call[1] != found.call[2]


def test_forward_within_backward_is_a_recomputation_and_no_node_of_its_own() -> None:
    found = autograd_frames(stacks_of((KERNEL, MM, LINE, CHECKPOINT, MM_NODE, ENGINES)))
    assert found.recomputes.tolist() == [True]
    assert found.operation.tolist() == found.node.tolist() == [-1]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        ("mm", "Mm"),
        ("div_Tensor", "Div"),
        ("max_dim", "Max"),
        ("_log_softmax", "LogSoftmax"),
        ("nll_loss_forward", "NllLoss"),
        ("max_pool2d_with_indices", "MaxPool2DWithIndices"),
        ("addmm", "Addmm"),
    ],
)
def test_nodes_are_named_after_their_operations(operation: str, name: str) -> None:
    assert node_name(operation, {"Mm", "Div", "Max", "Log", "LogSoftmax", "NllLoss", name}) == name


def test_the_beginning_of_a_name_is_not_another_operation() -> None:
    assert node_name("log_softmax", {"Log"}) == "log_softmax"
    assert node_name("max_pool2d_with_indices", {"Max"}) == "max_pool2d_with_indices"


# ---- What one frame proves, and what the outermost one does.
def stacks(*found: list[Frame]) -> Stacks:
    frames = [frame for stack in found for frame in stack]
    offset = np.concatenate([[0], np.cumsum([len(stack) for stack in found])])
    return Stacks(tuple(frames), offset.astype(np.int64), np.arange(len(frames), dtype=np.int32))


def cpp(name: str) -> Frame:
    return Frame(name, "??", 0)


@pytest.mark.parametrize(
    ("frame", "fact"),
    [
        (cpp("torch::autograd::Engine::evaluate_function(x)"), Fact.ENGINE),
        (cpp("torch::autograd::AccumulateGrad::apply(x)"), Fact.ACCUMULATE_GRAD),
        (cpp("torch::autograd::generated::MmBackward0::release_variables()"), Fact.RELEASE_SAVED),
        (cpp("torch::autograd::SavedVariable::reset_data()"), Fact.RELEASE_SAVED),
        (cpp("at::cuda::getNewWorkspace()"), Fact.WORKSPACE),
        (cpp("THPVariable_set_data(THPVariable*, _object*, void*)"), Fact.SET_DATA),
        (cpp("torch::autograd::VariableHooks::set_data(x)"), Fact.SET_DATA),
        (cpp("THPVariable_set_grad(THPVariable*, _object*, void*)"), Fact.SET_GRAD),
        (Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 5), Fact.ENGINE),
        (Frame("backward", f"{TORCH}/_tensor.py", 5), Fact.BACKWARD_CALL),
        (Frame("zero_grad", "/home/me/opt.py", 5), Fact.ZERO_GRAD),
        (Frame("step", f"{TORCH}/optim/sgd.py", 5), Fact.OPTIMIZER_STEP),
        (Frame("__init__", f"{TORCH}/optim/adagrad.py", 5), Fact.OPTIMIZER_STATE),
        (Frame("_init_group", f"{TORCH}/optim/sgd.py", 5), Fact.OPTIMIZER_STATE),
        (Frame("_apply", f"{TORCH}/nn/modules/module.py", 5), Fact.MODULE_SETUP),
        (Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 5), Fact.MODULE_FORWARD),
        (Frame("__init__", "/home/me/model.py", 5), Fact.CONSTRUCTOR),
        (cpp("c10d::Reducer::initialize_buckets(std::vector<std::vector<unsigned long> >&&)"), Fact.COLLECTIVE),
        (Frame("allocate", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 5), Fact.COLLECTIVE),
        (Frame("alloc_storage", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py", 5), Fact.COLLECTIVE),
        (Frame("_reduce_grad", f"{TORCH}/distributed/fsdp/_runtime_utils.py", 5), Fact.COLLECTIVE),
        (Frame("__deepcopy__", f"{TORCH}/nn/parameter.py", 5), Fact.PARAMETER_COPY),
        (Frame("send_to_device", "/a/site-packages/accelerate/utils/operations.py", 5), Fact.BATCH_MOVE),
        (Frame("_prepare_input", "C:\\site-packages\\transformers\\trainer.py", 5), Fact.BATCH_MOVE),
        (Frame("move_data_to_device", "/a/lightning/fabric/utilities/apply_func.py", 5), Fact.BATCH_MOVE),
        (Frame("move_data_to_device", "/a/lightning_fabric/utilities/apply_func.py", 5), Fact.BATCH_MOVE),
        # Of Python's frames alone: C++ below it made the buckets.
        (Frame("_ddp_init_helper", f"{TORCH}/nn/parallel/distributed.py", 5), Fact.COLLECTIVE),
    ],
)
def test_a_frame_and_its_fact(frame: Frame, fact: Fact) -> None:
    found = facts_of_stacks(stacks([frame, Frame("main", "/home/me/train.py", 1)], [Frame("f", "/home/me/a.py", 2)]))
    assert has(found, fact).tolist() == [True, False]
    assert has(found, Fact.STACK).all()


@pytest.mark.parametrize(
    "frame",
    [
        Frame("step", f"{TORCH}/optim/lr_scheduler.py", 5),
        Frame("__init__", f"{TORCH}/optim/swa_utils.py", 5),
        Frame("step", "/home/me/train.py", 5),
        Frame("_call_impl", "/home/me/module.py", 5),
        Frame("backward", "/home/me/function.py", 5),
        Frame("__init__", f"{TORCH}/nn/modules/linear.py", 5),
        Frame("pre_forward", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param_group.py", 5),
        Frame("to_sharded", f"{TORCH}/distributed/fsdp/_fully_shard/_fsdp_param.py", 5),
    ],
)
def test_names_of_others_prove_nothing_of_the_kind(frame: Frame) -> None:
    (found,) = facts_of_stacks(stacks([frame])).tolist()
    others = Fact.OPTIMIZER_STATE | Fact.MODULE_FORWARD | Fact.BACKWARD_CALL | Fact.CONSTRUCTOR
    assert not found & (Fact.OPTIMIZER_STEP | others)


def test_what_autograd_calls_on_its_threads_is_outermost_there() -> None:
    apply, own = Frame("apply", f"{TORCH}/autograd/function.py", 9), Frame("backward", "/home/me/f.py", 3)
    dispatch, main = Frame("__torch_dispatch__", "/home/me/subclass.py", 7), Frame("main", "/home/me/train.py", 1)
    found = facts_of_stacks(stacks([own, apply], [own, apply, main], [own, dispatch], [own, dispatch, main]))
    assert has(found, Fact.ENGINE).tolist() == [True, False, True, False]


def test_who_calls_backward_is_told_by_the_outermost_frame() -> None:
    main, hook = Frame("main", "/home/me/train.py", 1), Frame("hook", "/home/me/hooks.py", 3)
    call, later = Frame("backward", f"{TORCH}/_tensor.py", 5), Frame("main", "/home/me/train.py", 9)
    found = stacks([call, main], [hook], [hook, later], [later], [main, hook])
    assert calls_backward(found, facts_of_stacks(found)).tolist() == [False, False, True, True, False]
    assert not calls_backward(stacks([main]), facts_of_stacks(stacks([main]))).any()


def test_our_own_label_proves_nothing() -> None:
    assert facts_of_stacks(stacks([Frame("x", "<explained as gradient>", 0)], [])).tolist() == [0, 0]


def test_constructors_are_told_apart_by_the_outermost() -> None:
    linear, model = Frame("__init__", "/home/me/linear.py", 1), Frame("__init__", "/home/me/model.py", 2)
    other = Frame("__init__", "/home/me/optimizer.py", 3)
    main, later = Frame("main", "/home/me/train.py", 1), Frame("main", "/home/me/train.py", 2)
    found = stacks([linear, model, main], [model, main], [other, main], [main], [model, later])
    numbers = constructors_of_stacks(found, facts_of_stacks(found)).tolist()
    assert numbers[0] == numbers[1] != numbers[2] and numbers[2] >= 0 and numbers[3] == -1
    # Two classes of one file, by the lines that make them.
    assert numbers[4] not in numbers[:4]


STEP = [Frame("step", f"{TORCH}/optim/lbfgs.py", 330), Frame("wrapper", f"{TORCH}/optim/optimizer.py", 500)]
THEIRS = [Frame("step", "/home/me/opt.py", 33), Frame("wrapper", f"{TORCH}/optim/optimizer.py", 500)]
CALL = Frame("_call_impl", f"{TORCH}/nn/modules/module.py", 1500)


@pytest.mark.parametrize(
    ("inner", "fact"),
    [
        ([*STEP], Fact.OPTIMIZER_STEP),
        ([cpp("at::mul(x)"), Frame("_direction", f"{TORCH}/optim/lbfgs.py", 5), *STEP], Fact.OPTIMIZER_STEP),
        ([Frame("closure", "/home/me/train.py", 5), *STEP], Fact.CLOSURE),
        ([Frame("forward", "/home/me/model.py", 5), CALL, *STEP], Fact.CLOSURE),
        ([Frame("update", "/home/me/opt.py", 9), *THEIRS], Fact.OPTIMIZER_STEP),
        ([CALL, Frame("closure", "/home/me/train.py", 5), *THEIRS], Fact.CLOSURE),
        (
            [Frame("backward", f"{TORCH}/_tensor.py", 5), Frame("closure", "/home/me/train.py", 5), *THEIRS],
            Fact.CLOSURE,
        ),
        # An optimizer that steps inside backward, in a hook.
        (
            [*STEP, Frame("hook", "/home/me/train.py", 5), cpp("torch::autograd::Engine::thread_main()")],
            Fact.OPTIMIZER_STEP,
        ),
    ],
)
def test_what_a_step_calls_for_the_model_is_not_the_steps(inner: list[Frame], fact: Fact) -> None:
    (found,) = facts_of_stacks(stacks(inner)).tolist()
    assert found & (Fact.OPTIMIZER_STEP | Fact.CLOSURE) == fact


AGAIN = Frame("backward", f"{TORCH}/utils/checkpoint.py", 318)
APPLY = Frame("apply", f"{TORCH}/autograd/function.py", 452)
ADD, MODELS, CPP_NODE = (
    cpp("at::add(x)"),
    Frame("forward", "/home/me/model.py", 3),
    cpp("torch::autograd::PyNode::apply(x)"),
)
INNER = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 5)
THREAD = cpp("torch::autograd::Engine::evaluate_function(x)")


@pytest.mark.parametrize("outer", [[], [CPP_NODE, THREAD]], ids=["Python", "C++"])
@pytest.mark.parametrize(
    ("inner", "is_recompute"),
    [
        ([ADD, MODELS, AGAIN, APPLY], True),
        ([MODELS, Frame("unpack_hook", f"{TORCH}/utils/checkpoint.py", 9)], True),
        ([INNER, AGAIN, APPLY], False),
        ([ADD, THREAD, INNER, AGAIN, APPLY], False),
        ([APPLY], True),  # the checkpoint is over
        ([ADD, Frame("backward", "/home/me/function.py", 5), APPLY], False),
    ],
)
def test_what_a_checkpoint_computes_again_is_told_from_its_backward(
    inner: list[Frame], outer: list[Frame], is_recompute: bool
) -> None:
    assert has(facts_of_stacks(stacks([*inner, *outer])), Fact.RECOMPUTE).tolist() == [is_recompute]


# ---- Stretches of entries: by hand, and beside a loop that walks them one by one.
ENTRIES = st.lists(st.sampled_from(["in", "out", "silent"]), max_size=20)


def plain_runs(entries: list[str]) -> list[set[int]]:
    """Silent entries belong to the run that they lie in, also those right behind it."""
    found: list[set[int]] = []
    is_open = False
    for number, one in enumerate(entries):
        if one == "in" and not is_open:
            found.append(set())
        is_open = one == "in" or (is_open and one == "silent")
        if is_open:
            found[-1].add(number)
    return found


@given(ENTRIES)
def test_runs_are_those_of_a_loop(entries: list[str]) -> None:
    runs = runs_of(
        np.array([entry == "in" for entry in entries], dtype=np.bool_),
        np.array([entry != "silent" for entry in entries], dtype=np.bool_),
    )
    found = [
        {number for number in range(start, end) if number < len(entries)}
        for start, end in zip(runs.start.tolist(), runs.end.tolist(), strict=True)
    ]
    assert found == plain_runs(entries)


def test_where_an_entry_lies() -> None:
    two = Stretches(start=np.array([2, 8]), end=np.array([4, 9]))
    entries = np.arange(-1, 10)
    assert two.containing(entries).tolist() == [-1, -1, -1, 0, 0, -1, -1, -1, -1, 1, -1]
    assert two.next_start(entries).tolist() == [2, 2, 2, 8, 8, 8, 8, 8, 8, FAR, FAR]
    assert two.end_after(np.array([1, 3, 8])).tolist() == [FAR, 4, 9]


def test_without_any_no_entry_lies_in_one() -> None:
    none = Stretches(start=np.zeros(0, dtype=np.int64), end=np.zeros(0, dtype=np.int64))
    assert none.containing(np.array([0, 5])).tolist() == [-1, -1]
    assert none.next_start(np.array([0])).tolist() == [FAR]


def test_a_stretch_without_what_lies_in_it() -> None:
    """Two closures in one, and a stretch that a closure fills: its end stays as a step; the last has none."""
    steps = Stretches(start=np.array([0, 10, 20]), end=np.array([9, 15, 25]))
    calls = Stretches(start=np.array([0, 5, 10, 22]), end=np.array([3, 7, 15, 24]))
    left = _without(steps, calls, np.array([1, 5, 12]))
    assert (left.start.tolist(), left.end.tolist()) == ([3, 7, 15, 20], [5, 9, 15, 25])
