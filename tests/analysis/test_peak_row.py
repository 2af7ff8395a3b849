"""The peak by module: by hand, and that what is below sums to what is above, with nothing lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.exporters.page.page_samples import peak_row
from tracer.analysis.peak_row import NO_MODULE, module_tree


def test_nothing_is_a_root_alone() -> None:
    root = module_tree([])
    assert (root.total_bytes, root.children) == (0, [])


PATHS = st.none() | st.lists(st.sampled_from("abc"), min_size=1, max_size=4).map(".".join) | st.just("(training loop)")


@given(st.lists(st.tuples(st.integers(0, 10**12), PATHS), max_size=20))
def test_each_total_is_its_own_bytes_and_its_childrens(drawn: list[tuple[int, str | None]]) -> None:
    root = module_tree([peak_row(size, module=path) for size, path in drawn])
    assert root.total_bytes == sum(size for size, _ in drawn)
    nodes = [node for _, node in root.walk()]
    assert len({node.path for node in nodes}) == len(nodes)
    for node in nodes:
        totals = [child.total_bytes for child in node.children]
        assert node.total_bytes == node.own_bytes + sum(totals)
        assert totals == sorted(totals, reverse=True)
        inside = [size for size, path in drawn if (path or NO_MODULE) == node.path]
        assert node.own_bytes == sum(inside)
