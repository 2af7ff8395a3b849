"""Generated code is read as it runs: what a line makes, what a storage holds after reuse, which kernel writes it."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracer.analysis.compiled.generated_code import END, Function, function_at, functions_of

# As Inductor writes it; the lines of `call` are numbered from 1 in the comments.
INDUCTOR = textwrap.dedent(
    """\
    def call(self, args):                                                   # 1
        primals_1, primals_2 = args                                         # 2
        args.clear()                                                        # 3
        assert_size_stride_grouped((primals_1,), ((8, 4),), ((4, 1),))      # 4
        with torch.cuda._DeviceGuard(0):                                    # 5
            buf0 = empty_strided_cpu((8, 4), (4, 1), torch.float32)         # 6
            # [Provenance debug handles] extern_kernels.addmm:1             # 7
            extern_kernels.addmm(primals_2, reinterpret_tensor(primals_1, (8, 4), (4, 1), 0), out=buf0)  # 8
            buf1 = empty_strided_cpu((8, 4), (4, 1), torch.float32)         # 9
            buf2 = buf1; del buf1  # reuse                                  # 10
            cpp_fused_gelu_0(buf0, buf2)                                    # 11
            buf3 = reinterpret_tensor(buf0, (4, 8), (8, 1), 0); del buf0  # reuse   # 12
            triton_poi_fused_add_1.run(buf3, buf2, 32, stream=stream0)      # 13
            buf4 = torch.ops.aten.topk.default(buf2, 2)                     # 14
            buf5 = buf4[0]                                                  # 15
            del buf4                                                        # 16
        return (reinterpret_tensor(buf3, (8, 4), (4, 1), 0), primals_1, buf2, buf5, 7)    # 17
    """
)


def call() -> Function:
    (function,) = functions_of(INDUCTOR)
    return function


@pytest.mark.parametrize(
    ("line", "name"),
    [(6, "buf0"), (9, "buf1"), (14, "buf4"), (8, "buf0"), (13, "buf2"), (2, None), (4, None), (10, None)],
)
def test_a_line_makes_what_it_assigns_or_what_its_kernel_writes(line: int, name: str | None) -> None:
    assert call().made_at(line) == name


def test_memory_that_a_kernel_asks_for_by_itself_is_scratch() -> None:
    assert [line for line in range(1, 18) if call().is_scratch(line)] == [3, 8, 11, 13]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("buf0", "extern_kernels.addmm"),
        ("buf2", "cpp_fused_gelu_0"),
        ("buf3", "triton_poi_fused_add_1"),
        ("buf4", "torch.ops.aten.topk"),
        ("buf9", None),
    ],
)
def test_the_first_kernel_that_is_given_a_buffer_writes_it(name: str, kernel: str | None) -> None:
    assert call().kernel_of(name) == kernel


def test_a_view_takes_nothing_over() -> None:
    text = textwrap.dedent(
        """\
        def call(args):
            buf2 = empty_strided_cpu((4, 3), (3, 1), torch.float32)
            buf0 = reinterpret_tensor(buf2, (4, 1), (3, 1), 0)  # alias
            cpp_fused_cat_0(primals_1, buf0)
            buf3 = torch.ops.aten.permute.default(buf2, [1, 0])
            buf4 = empty_strided_cpu((4, 3), (3, 1), torch.float32)
            buf4.copy_(buf3, False)
            return (buf3, )
        """
    )
    (function,) = functions_of(text)
    assert function.holds("buf2", END) == "buf2"
    assert function.shown_by("buf2") == {"buf2", "buf0", "buf3"}
    assert function.shown_by("buf4") == {"buf4"}
    assert function.kernel_of("buf4") == "copy_"


def test_what_is_returned_and_given_is_named_by_its_storage() -> None:
    assert call().returned == ("buf3", "primals_1", "buf2", "buf5", "")
    assert call().items_of("buf4") == ("buf5",)
    assert call().parameters == ("args", "primals_1", "primals_2")


def test_graphs_that_python_runs_have_the_same_form() -> None:
    text = textwrap.dedent(
        """\
        def forward(self, primals_1, primals_2):
            addmm = torch.ops.aten.addmm.default(primals_1, primals_2, primals_2);  primals_1 = None
            view = torch.ops.aten.view.default(addmm, [4]);  addmm = None
            return (view, primals_2)
        """
    )
    (function,) = functions_of(text)
    assert function.made_at(2) == "addmm"
    assert function.kernel_of("addmm") == "torch.ops.aten.addmm"
    assert function.holds("addmm", END) == "addmm"
    assert function.returned == ("view", "primals_2")


def test_the_innermost_function_around_a_line_is_meant() -> None:
    text = "def outer():\n    def inner():\n        buf0 = empty_strided_cpu(1)\n    return inner\n"
    functions = functions_of(text)
    assert [function_at(functions, line) for line in (1, 3, 4, 9)] == [*functions, functions[0], None]


@pytest.mark.parametrize("text", ["", "def", "\0", "x = 1"])
def test_what_is_no_python_has_no_functions(text: str) -> None:
    assert functions_of(text) == ()


class Machine:
    """Runs the statements one by one, as naively as can be: which name shows each storage."""

    def __init__(self) -> None:
        self.shows: dict[int, str] = {}

    def run(self, statements: list[tuple[str, str]]) -> None:
        for action, name in statements:
            if action == "alloc":
                self.shows[len(self.shows)] = name
            elif action != "write":
                (storage,) = [one for one, shown in self.shows.items() if shown == action]
                self.shows[storage] = name


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Allocations, kernels that write each new name, and reuses; every name is written before it is reused."""
    statements: list[tuple[str, str]] = []
    alive: list[str] = []
    for number in range(draw(st.integers(1, 12))):
        name = f"buf{number}"
        old = draw(st.sampled_from(alive)) if alive and draw(st.booleans()) else None  # type: ignore[arg-type]
        if old is not None:
            alive.remove(old)
        statements += [("alloc" if old is None else old, name), ("write", name)]
        alive.append(name)
    return statements


@given(programs(), st.data())
def test_any_chain_of_reuses_is_followed_as_running_it_would(
    statements: list[tuple[str, str]], data: st.DataObject
) -> None:
    lines = []
    for action, name in statements:
        if action == "alloc":
            lines.append(f"    {name} = empty_strided_cpu((1,), (1,), torch.float32)")
        elif action == "write":
            lines.append(f"    kernel({name})")
        else:
            lines.append(f"    {name} = {action}; del {action}  # reuse")
    (function,) = functions_of("\n".join(["def call(args):", *lines]))
    now = data.draw(st.integers(0, len(statements) - 1))
    machine = Machine()
    machine.run(statements[: now + 1])
    allocated = [name for action, name in statements[: now + 1] if action == "alloc"]
    assert [function.holds(name, now + 2) for name in allocated] == list(machine.shows.values())
