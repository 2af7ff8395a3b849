"""A page without the names of a program: its files, functions, modules and regions are numbered, all numbers stay.

Numbers and not hashes: a hash of a short name is guessed by hashing every short name. One name has one number on the
whole page, so that what belongs together is seen. Names that everybody's programs have stay, as those of torch, of
installed packages and of operators do, for they say what the memory is for.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from tracer.analysis.kinds import LABEL_BEFORE, Kind
from tracer.analysis.profiles.labels import NO_MODULE
from tracer.capture.torch_names import STEP_PREFIX, is_torchs_own
from tracer.exporters.page.blocks import TEXT_FIELDS, packed, unpacked
from tracer.exporters.page.data import mapped
from tracer.results.files import OUTPUT_FILES

_COMMON = frozenset(
    (
        *("forward", "backward", "step", "zero_grad", "main", "train", "evaluate", "loss", "optimizer"),
        *("__call__", "__init__", "<module>", "<lambda>", "<listcomp>", "<genexpr>"),
        # Parameters and buffers of torch's own modules, and what its optimizers keep of each.
        *("weight", "bias", "in_proj_weight", "in_proj_bias", "running_mean", "running_var", "num_batches_tracked"),
        *("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "sum"),
    )
)
_FACTS = frozenset(["computed", "date", "torch", "python", "device", "cycles", "device name", "parameters"])
_LIBRARY = re.compile(r"^(?:site-packages/|<frozen |<string>)|(?:^|/)lib/python3")
_FRAME = re.compile(r"(?P<function>.*) \((?P<file>[^()]*):(?P<line>\d+)\)$")
_OF_LIBRARIES = re.compile(r"\b(?:at|c10|torch|std|pybind11|cuda|caffe2)(?:::|$)|Py|^_?_?(?:libc|start|clone)|^\?*$")
_FILE = re.compile(
    r"(?<![\w/.~\\-])(?:[\w.~@+-]*[/\\])*[\w.@+-]+\.(?:py|ipynb|pyx|pickle|pkl|json|npz|html|gz|zst|xz|zip)\b"
)
# As a diff names the frames of a stack, which may have moved to another line.
_FRAME_WITHOUT_LINE = re.compile(rf"(?P<function>[\w.<>]+) \((?P<file>{_FILE.pattern})\)")
# Operators and functions of autograd wherever they stand: those of a table's cells are in no column of their own.
_OPERATOR = re.compile(r"\b\w+::[\w:.]+|\b\w+Backward\b")
# What a run writes onto the entries of its snapshot, where no frames have been recorded: `labels_of`.
_LABEL = re.compile(
    rf"(?:{'|'.join(word for kind in Kind for word in (kind.words, kind.name))})(?: (?P<name>[^,]+?))?"
    rf"(?:{re.escape(LABEL_BEFORE)}| in \w+, (?P<module>.+), (?P<op>[^,]+))"
)
_KERNEL = re.compile(r"\bat::|cutlass|cudnn|cublas|nccl|rccl|^triton_|^Mem(?:cpy|set)|gemm|_sm\d\d|^flash_|cufft|fft_")
_OURS = frozenset(file.file_name for file in OUTPUT_FILES)
_NOTE = "The names of the program are left out: its files, functions and modules are numbered."
_WORD = r"(?<![\w.]){}(?![\w])"
_SEGMENT = re.compile(r"[^.\[\]]+")
# Fields of rows, and columns of tables, by what stands in them.
_FILES, _MODULES, _PATHS = ("file", "caller_file"), ("module", "name"), ("file", "recording")


def redacted_pages(pages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The data of a page's parts, as `page_data` and `relative_paths` made them, without names of the program."""
    names = _Names()
    for page in pages:
        names.learn(page)
    return [names.page(page) for page in pages]


class _Names:
    """Replacements of names."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.num_files = 0
        self.others: dict[str, dict[str, str]] = {
            what: {} for what in ("function", "name", "region", "operator", "kernel")
        }
        self.phrases: re.Pattern[str] | None = None
        self.in_words: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------------- single names
    def file(self, path: str) -> str:
        """A file; those of packages, cells of notebooks and what this program writes stay."""
        if not path or path in _OURS or _LIBRARY.search(path) or re.fullmatch(r"cell \d+", path):
            return path
        name = re.split(r"[/\\]", path)[-1]
        if path not in self.files:
            suffix = re.search(r"\.\w+$", name)
            self.num_files += 1
            self.files[path] = f"file{self.num_files}{suffix[0] if suffix else ''}"
            # A sentence has the last name only.
            self.files.setdefault(name, self.files[path])
        return self.files[path]

    def number(self, sort: str, name: str) -> str:
        """The number that stands for a name; names that every program has stay."""
        if name in _COMMON or name.isdigit():
            return name
        table = self.others[sort]
        return table.setdefault(name, f"{sort}{len(table) + 1}")

    def module(self, path: str) -> str:
        """Names between dots; what stands in brackets is this program's word for no module."""
        return path if path.startswith("(") else _SEGMENT.sub(lambda match: self.number("name", match[0]), path)

    def operator(self, name: str, *, file: str | None) -> str:
        """An operator's or function's name; the program's own are numbered."""
        if " " in name:
            return self.words(name)
        if is_torchs_own(name):
            return name
        if "::" in name or name.endswith("Backward"):
            return self.number("operator", name)
        return name if file is None or _LIBRARY.search(file) else self.number("function", name)

    def called(self, name: str) -> str:
        """An operator, a function of C++ or of autograd; those of torch and of libraries stay."""
        return name if _OF_LIBRARIES.search(name) else self.operator(name, file=None)

    def kernel(self, name: str) -> str:
        """Replace a kernel's name, unless the kernel is of torch or of a vendor's library."""
        return name if _KERNEL.search(name) else self.number("kernel", name)

    def frame(self, text: str) -> str:
        """A frame of a stack: of Python with its file, or a function of C++."""
        match = _FRAME.match(text)
        if match is None:
            return text if _OF_LIBRARIES.search(text) else self.number("function", text)
        function = self.operator(match["function"], file=match["file"])
        return f"{function} ({self.file(match['file'])}:{match['line']})"

    def _without_line(self, match: re.Match[str]) -> str:
        return f"{self.operator(match['function'], file=match['file'])} ({match['file']})"

    # ---------------------------------------------------------------------------------------------------- sentences
    def words(self, text: str) -> str:
        """A sentence: frames, files, and every name that stands in a column somewhere."""
        if _FRAME.match(text):
            return self.frame(text)
        text = _FRAME_WITHOUT_LINE.sub(self._without_line, text)
        text = _FILE.sub(lambda match: self.file(match[0]), text)
        text = _OPERATOR.sub(lambda match: self.called(match[0]), text)
        return text if self.phrases is None else self.phrases.sub(lambda match: self.in_words[match[0]], text)

    def learn(self, page: Mapping[str, Any]) -> None:
        """Every name that stands in a column, so that sentences lose it too."""
        for row in _rows(page):
            self.row(row)
        for stacks in (part["stacks"] for part in (page["peak"], page["blocks"]) if part):
            for frame in stacks["frames"]:
                self.frame(frame)
        for label in filter(None, map(_LABEL.fullmatch, _texts(page))):
            names = [name for name in (label["name"], label["module"]) if name and name != NO_MODULE]
            self.in_words |= {name: self.module(name) for name in names}
        for name in _modules(page):
            self.in_words[name] = self.module(name)
        for table in self.others.values():
            self.in_words |= {name: label for name, label in table.items() if len(name) > 2}
        phrases = sorted((name for name, label in self.in_words.items() if name != label), key=len, reverse=True)
        self.phrases = re.compile(_WORD.format(f"(?:{'|'.join(map(re.escape, phrases))})")) if phrases else None

    # -------------------------------------------------------------------------------------------------- parts of it
    def row(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """A row with a file, a module and an operator."""
        changed = dict(row)
        for key in _FILES:
            if row.get(key):
                changed[key] = self.file(row[key])
        for key in _MODULES:
            if row.get(key):
                changed[key] = self.module(row[key])
        if row.get("op"):
            changed["op"] = self.operator(row["op"], file=row.get("file"))
        if row.get("evidence"):
            changed["evidence"] = self.words(row["evidence"])
        if "fused_with" in row:
            changed["fused_with"] = None
        return changed

    def page(self, page: Mapping[str, Any]) -> dict[str, Any]:
        """The JSON value of one device or rank, with its names numbered."""
        peak, blocks = page["peak"], page["blocks"]
        own = {
            "peak": peak and {**peak, "rows": [*map(self.row, peak["rows"])], "stacks": self.stacks(peak["stacks"])},
            "blocks": blocks and self.blocks(blocks),
            "run": [(name, value) for name, value in page["run"] if name in _FACTS or _is_number(value)],
            "bands": [{**band, "name": self.band(band)} for band in page["bands"]],
            "lanes": [{**lane, "labels": [*map(self.kernel, lane["labels"])]} for lane in page.get("lanes", ())],
            "sections": [self.section(section) for section in page["sections"]],
            "ranks": mapped([{**rank, "file": self.file(rank["file"])} for rank in page["ranks"]], self.words),
            "sources": [],
            "notes": [*mapped(page["notes"], self.words), _NOTE],
            **{name: page[name] for name in ("timeline", "space", "categories")},
        }
        return {name: own[name] if name in own else mapped(value, self.words) for name, value in page.items()}

    def band(self, band: Mapping[str, Any]) -> str:
        """Steps and phases keep their names, other regions have none."""
        name = str(band["name"])
        return name if name == band["kind"] or name.startswith(STEP_PREFIX) else self.number("region", name)

    def section(self, section: Mapping[str, Any]) -> dict[str, Any]:
        """Sentences and tables."""
        return {**mapped(dict(section), self.words), "tables": [self.table(table) for table in section["tables"]]}

    def table(self, table: Mapping[str, Any]) -> dict[str, Any]:
        """Cells by their columns."""
        names = [column["name"] for column in table["columns"]]
        rows = [[self.cell(*cell) for cell in zip(names, row, strict=True)] for row in table["rows"]]
        return {
            **mapped({**table, "rows": []}, self.words),
            "rows": rows,
        }

    def cell(self, column: str, value: Any) -> Any:
        """A cell of a table, redacted by its column."""
        if isinstance(value, dict):
            file = value["file"]
            words = self.operator(value["words"], file=file) if file else self.words(value["words"])
            return {**value, "words": words, "file": self.file(file) if file else None, "below": []}
        if not isinstance(value, str) or not value:
            return value
        if column in _MODULES:
            return self.module(value)
        if column == "kernel":
            return self.kernel(value)
        if column == "region":
            return self.number("region", value)
        return self.file(value) if column in _PATHS else self.words(value)

    def stacks(self, stacks: Mapping[str, Any]) -> dict[str, Any]:
        """Frames by number, as they were."""
        return {**stacks, "frames": [self.frame(frame) for frame in stacks["frames"]]}

    def blocks(self, blocks: Mapping[str, Any]) -> dict[str, Any]:
        """The table of groups, whose texts are numbered, anew; everything else of the blocks is numbers."""
        columns, number = list(unpacked(blocks["groups"])), dict[str, int]()
        rows = [self.row(row) for row in _groups(blocks)]
        for position, name in enumerate(TEXT_FIELDS):
            texts = [row[name] for row in rows]
            columns[position][:] = [0 if text is None else number.setdefault(text, len(number)) + 1 for text in texts]
        return {**blocks, "texts": list(number), "groups": packed(columns), "stacks": self.stacks(blocks["stacks"])}


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[\d.,x ]+|True|False", value) is not None


def _groups(blocks: Mapping[str, Any]) -> list[dict[str, Any]]:
    texts = blocks["texts"]
    columns = unpacked(blocks["groups"])[: len(TEXT_FIELDS)].tolist()
    return [
        {name: texts[number - 1] if number else None for name, number in zip(TEXT_FIELDS, row, strict=True)}
        for row in zip(*columns, strict=True)
    ]


def _texts(value: Any) -> Iterable[str]:
    """Every text but packed columns."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            if name != "packed":
                yield from _texts(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _texts(inner)


def _rows(page: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    """All that have a file, a module or an operator."""
    if page["peak"]:
        yield from page["peak"]["rows"]
    if page["blocks"]:
        yield from _groups(page["blocks"])


def _modules(page: Mapping[str, Any]) -> Iterable[str]:
    return (row[key] for row in _rows(page) for key in _MODULES if row.get(key) and not row[key].startswith("("))
