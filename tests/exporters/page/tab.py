"""What browser tests ask of an open page, and do to it."""

from __future__ import annotations

from typing import Any

TIMEOUT_MS = 90_000
CLIPBOARD = ("clipboard-read", "clipboard-write")
"""Permissions to read and write it."""


def until(tab: Any, expression: str) -> None:
    """Wait for what comes some time after an action; Playwright's own way needs `eval`, which the policy forbids.

    Raises:
        AssertionError: It does not come.
    """
    for _ in range(TIMEOUT_MS // 50):
        if tab.evaluate(expression):
            return
        tab.wait_for_timeout(50)
    raise AssertionError(f"never true: {expression}")


def settled(tab: Any) -> None:
    """Until two frames are drawn: a pointer's moves are handled right before one."""
    tab.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def view(tab: Any) -> tuple[float, float]:
    """What of the horizontal axis is shown."""
    low, high = tab.evaluate("document.querySelector('.plot').dataset.view").split()
    return float(low), float(high)


def picture(tab: Any) -> str:
    """The drawn pixels."""
    return str(tab.evaluate("document.querySelector('.plot canvas').toDataURL()"))


def plot_area(tab: Any) -> dict[str, float]:
    """The timeline without its margins, in the window."""
    box = tab.locator(".plot").bounding_box()
    left = 60 if box["width"] < 560 else 78
    return {"x": box["x"] + left, "y": box["y"] + 6, "width": box["width"] - left - 14, "height": box["height"] - 50}


def labels(tab: Any) -> list[str]:
    """The texts on the drawing."""
    return list(tab.evaluate("[...document.querySelectorAll('.labels span')].map((one) => one.textContent)"))


def hover(tab: Any, share: float) -> str:
    """The tip at a point of the plot, given as a share of its width."""
    tab.locator(".frame").scroll_into_view_if_needed()
    box = plot_area(tab)
    tab.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] / 2)
    settled(tab)
    return str(tab.locator(".frame .tip").inner_text())


def column(tab: Any, number: int) -> list[str]:
    cells = tab.locator(f".blocks tbody td:nth-child({number})")
    return [text.split("\n")[0].strip() for text in cells.all_inner_texts()]


def sum_of_rows(tab: Any) -> int:
    """All rows of the table, to the byte: the tree's status says what the categories' table sums to."""
    cells = tab.locator(".breakdown tbody td:nth-child(3)").all_inner_texts()
    return sum(int(cell.replace(",", "")) for cell in cells)


def rows_text(tab: Any) -> str:
    """Also where the browser does not draw it, as it lies far below."""
    return str(tab.locator(".filters p").text_content()).replace("\u00a0", " ")
