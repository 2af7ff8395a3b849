"""What one frame proves, and what the outermost one does."""

from __future__ import annotations

import numpy as np
import pytest

from tests.analysis.snapshots.test_findings import TORCH
from tracer.analysis.snapshots.stack_facts import Fact, calls_backward, constructors_of_stacks, facts_of_stacks, has
from tracer.snapshot.columns import Frame, Stacks


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
ADD, MODEL, NODE = cpp("at::add(x)"), Frame("forward", "/home/me/model.py", 3), cpp("torch::autograd::PyNode::apply(x)")
INNER = Frame("_engine_run_backward", f"{TORCH}/autograd/graph.py", 5)
THREAD = cpp("torch::autograd::Engine::evaluate_function(x)")


@pytest.mark.parametrize("outer", [[], [NODE, THREAD]], ids=["Python", "C++"])
@pytest.mark.parametrize(
    ("inner", "is_recompute"),
    [
        ([ADD, MODEL, AGAIN, APPLY], True),
        ([MODEL, Frame("unpack_hook", f"{TORCH}/utils/checkpoint.py", 9)], True),
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
