"""Which assumption about torch breaks in which version: tests that ask its private parts, and doctor, side by side.

    python -m benchmarks.torch_versions                      the oldest that is supported and the newest that was tried
    python -m benchmarks.torch_versions 2.11 2.13 2.15       these
    python -m benchmarks.torch_versions nightly --index URL  the newest build there, before it is released

Each version takes an environment of its own in a temporary folder, some 6 GB, which uv makes and which is deleted. The
table has a row for each file of tests and for each check of `doctor --on h100` that fails somewhere, a column for each
version; below it stand the sentences that do not hold, and calls of NVIDIA's that the first version did not make and
that return something the null GPU does not know. Exits with 1 if anything fails.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.engine import as_markdown
from tracer.commands.doctor import NEWEST_TRIED_TORCH, OLDEST_TORCH

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/null_gpu",
    "tests/on_null_gpu",
    "tests/capture",
    "tests/sessions/test_profile_session.py",
    "tests/commands/test_doctor.py",
)
_UNANSWERED = (
    "import json; from tracer.null_gpu.build import read_torch, torch_folder, unanswered_calls; "
    "print(json.dumps(sorted(unanswered_calls(read_torch(torch_folder())))))"
)


@dataclass(frozen=True, slots=True)
class Answers:
    """The results of one version of torch."""

    version: str  # With the build, such as 2.15.0+cu132
    passed: dict[str, int]  # By file of tests: how many tests passed
    failures: dict[str, list[str]]  # By file of tests or check of doctor: the sentences that do not hold
    unanswered: frozenset[str]  # Functions of NVIDIA's that return something unknown

    def cell(self, row: str) -> str:
        """Return the words of a row of the table."""
        failed = len(self.failures.get(row, ()))
        if row in self.passed:
            return f"**{failed} of {self.passed[row] + failed} fail**" if failed else f"{self.passed[row]}"
        return "**FAIL**" if failed else "PASS"


def answers_of(version: str, index: str | None, tests: Sequence[str], folder: Path) -> Answers:
    """Make the environment of a version and ask everything there."""
    python = make_environment(version, index, folder / "environment")
    file = folder / "tests.xml"
    variables = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={file}", *tests],
        cwd=ROOT, env=variables, stdout=sys.stderr, check=False,
    )  # fmt: skip
    passed, failures = read_results(file)
    said = _output([python, "main.py", "doctor", "--on", "h100", "--json", "--quiet"])
    failures |= read_doctor(said)
    return Answers(
        version=_output([python, "-c", "import torch; print(torch.__version__)"]).strip(),
        passed=passed,
        failures=failures,
        unanswered=frozenset(json.loads(_output([python, "-c", _UNANSWERED]) or "[]")),
    )


def make_environment(version: str, index: str | None, folder: Path) -> str:
    """Install a version of torch with the packages of the tests; return its Python."""
    python = str(folder / "bin" / "python")
    subprocess.run(["uv", "venv", "--quiet", folder], check=True)
    wanted = ["--prerelease", "allow", "torch"] if version == "nightly" else [f"torch=={version}.*"]
    install = ["uv", "pip", "install", "--quiet", "--python", python, "-r", "pyproject.toml", "--group", "dev", *wanted]
    subprocess.run([*install, *(["--index", index] if index else [])], cwd=ROOT, check=True)
    return python


def read_results(file: Path) -> tuple[dict[str, int], dict[str, list[str]]]:
    """Return how many tests of each file passed, and the sentences of those that failed, from pytest's XML."""
    passed: dict[str, int] = {}
    failures: dict[str, list[str]] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py"
        problem = next((child for child in case if child.tag in ("failure", "error")), None)
        if problem is not None:
            first = next(iter((problem.get("message") or "").splitlines()), "")[:160]
            sentence = case.get("name", "").removeprefix("test_").replace("_", " ")
            failures.setdefault(name, []).append(f"{sentence}: {first}")
        elif case.find("skipped") is None:
            passed[name] = passed.get(name, 0) + 1
    return passed | {name: passed.get(name, 0) for name in failures}, failures


def read_doctor(text: str) -> dict[str, list[str]]:
    """Return the sentences of the checks that failed, by `doctor: ` and their name."""
    try:
        report = json.loads(text)
    except ValueError:
        return {"doctor": ["It gave no answer."]}
    return {f"doctor: {check['name']}": [check["sentence"]] for check in report["checks"] if check["status"] == "FAIL"}


def table(found: Sequence[Answers]) -> str:
    """Return the table, a row for each file of tests and for each check that fails somewhere."""
    rows = sorted({name for answers in found for name in (*answers.passed, *answers.failures)})
    cells = [[name, *(answers.cell(name) for answers in found)] for name in rows]
    return as_markdown([["assumption", *(answers.version for answers in found)], *cells])


def sentences(found: Sequence[Answers]) -> Iterator[str]:
    """Yield what does not hold in which version, and the calls that are new since the first."""
    for answers in found:
        for name, broken in answers.failures.items():
            yield from (f"{answers.version}: {name}: {sentence}" for sentence in broken)
        for call in sorted(answers.unanswered - found[0].unanswered):
            yield f"{answers.version}: calls {call}, which torch {found[0].version} does not; its answer stays unset."


def _output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = [".".join(map(str, numbers)) for numbers in (OLDEST_TORCH, NEWEST_TRIED_TORCH)]
    parser.add_argument("versions", nargs="*", default=default)
    parser.add_argument("--index", help="where a version that is not released is to be had")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="files of tests in the place of all")
    options = parser.parse_args()
    found = []
    for version in options.versions:
        with tempfile.TemporaryDirectory(prefix=f"torch-{version}-") as folder:
            Path(folder).chmod(0o755)  # a test reads it as another user
            found.append(answers_of(version, options.index, options.tests, Path(folder)))
    print(table(found), *sentences(found), sep="\n")
    return int(any(answers.failures for answers in found))


if __name__ == "__main__":
    sys.exit(main())
