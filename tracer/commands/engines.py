"""Commands of inference engines in the place of a script, such as `vllm serve`; they end when the engine is ready."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

import typer

from tracer.answers.files import ENGINE_JSON, PAGE
from tracer.commands.common import THRESHOLD_EXCEEDED, errors_for_people
from tracer.commands.on_card import Run
from tracer.errors import TracerError
from tracer.exporters.screen.console import Console
from tracer.exporters.screen.terminal import say, screen, show

if TYPE_CHECKING:
    from tracer.engines.start import EngineStart

_SERVERS: Final = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server", "vllm.entrypoints.cli.main")
_COMMAND_MODULE: Final = "vllm.entrypoints.cli.main"
_BENCHES: Final = {("bench", "latency"), ("bench", "throughput")}


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """A command that starts an engine's server."""

    module: str  # Its module
    arguments: tuple[str, ...]  # Its own arguments, as they were given
    words: str  # The command as the user would paste it into a shell
    is_server: bool = True  # Whether it would serve for ever; else it ends when it has answered its own requests

    @property
    def command(self) -> list[str]:
        """Return the command that is run: weights are not read, since none of their values is used."""
        arguments = list(self.arguments)
        if not self._has("--load-format"):
            arguments += ["--load-format", "dummy"]
        if self._has_no_tokenizer and not self._has("--skip-tokenizer-init"):
            arguments.append("--skip-tokenizer-init")
        return [sys.executable, "-m", self.module, *arguments]

    def changed(self, options: Sequence[str]) -> EngineCommand:
        """Return the same command with options that take the place of its own ones of the same names."""
        from tracer.engines.start import replaced_options

        words = shlex.split(self.words)
        program = words[: len(words) - len(self.arguments)]
        arguments = replaced_options(self.arguments, options)
        return replace(self, arguments=arguments, words=shlex.join([*program, *arguments]))

    def _has(self, option: str) -> bool:
        return any(word.partition("=")[0] == option for word in self.arguments)

    @property
    def _has_no_tokenizer(self) -> bool:
        """Return whether the model is a folder with a config.json and no tokenizer, as for a model that is planned."""
        if self._has("--tokenizer"):
            return False
        folders = [Path(word.rpartition("=")[2]) for word in self.arguments]
        models = [folder for folder in folders if (folder / "config.json").is_file()]
        names = {path.name for model in models for path in model.iterdir()}
        return bool(models) and not any("tokenizer" in name or name.startswith("vocab") for name in names)


def _check_installed() -> None:
    """Check that vLLM can be imported here."""
    if find_spec("vllm") is None:
        raise TracerError(
            f"vLLM is not installed for {sys.executable}.",
            hint="It brings a torch of its own: install this program in vLLM's environment, or both in a new one, and "
            "run the command there.",
        )


def engine_command(script: str, arguments: Sequence[str] | None, *, is_module: bool) -> EngineCommand | None:
    """Return the engine's command that stands in the place of a script; None for anything else.

    `vllm serve MODEL` and `-m vllm.entrypoints.openai.api_server --model MODEL` are such commands, and so are
    `vllm bench latency` and `throughput`, which send made-up requests; a script that makes a `vllm.LLM` is a script.
    """
    given = tuple(arguments or ())
    if is_module and script in _SERVERS:
        return EngineCommand(script, given, shlex.join(["python", "-m", script, *given]))
    is_server = given[:1] == ("serve",)
    if not is_module and Path(script).name == "vllm" and (is_server or given[:2] in _BENCHES):
        return EngineCommand(_COMMAND_MODULE, given, shlex.join(["vllm", *given]), is_server)
    return None


def answer_engine(engine: EngineCommand, run: Run, *, status_if_not: int = 1) -> None:
    """Start an engine, say what its memory is for, and exit; engine.json and what it prints are the results."""
    _check_installed()
    run.say_where(run.start())  # before a folder is made: the process begins again
    from tracer.engines.run import OUTPUT, run_engine
    from tracer.exporters.files import check_folder

    with errors_for_people(), _results_folder(run) as name, run.on_null_gpu():
        folder = Path(name)
        check_folder(folder)
        output = folder / OUTPUT
        kept = f"what it prints goes to {output}" if run.save_dir is not None else "--save-dir keeps what it prints"
        run.console.say(f"The engine starts; {kept}.")
        start = run_engine(engine.command, output, is_server=engine.is_server)
        tell_engine(start, folder, run.console, words=engine.words, computed=run.computes)
        if run.save_dir is not None:
            from tracer.engines.answer import write_engine_page

            page = folder / PAGE.file_name
            write_engine_page(start, page, command=engine.words, computed=run.computes)
            run.console.say(f"Wrote {page}  (open with {PAGE.read_with})")
    raise typer.Exit(0 if start.fits else status_if_not)


def _results_folder(run: Run) -> AbstractContextManager[str | Path]:
    """Return the user's folder, or one that is deleted at the end of the block."""
    return nullcontext(run.save_dir) if run.save_dir is not None else tempfile.TemporaryDirectory()


def fit_engine(engine: EngineCommand, run: Run, tried: Sequence[tuple[str, ...]], *, is_first_enough: bool) -> None:
    """Start an engine with each of some options, print a table, and the command with the most requests at once.

    Args:
        run: Its folder has engine.json of each start, in folders 1, 2, ...
        tried: Options of each start, in the order of the table.
        is_first_enough: The first that starts ends the search.
    """
    _check_installed()
    run.say_where(run.start())
    from tracer.engines.answer import change_sentences, print_engines

    with _results_folder(run) as folder, run.on_null_gpu():
        rows = _starts(engine, tried, Path(folder), is_first_enough=is_first_enough)
    with screen() as console:
        print_engines(rows, console)
    fitting = [(start.concurrency or 0, options) for options, start in rows if start.fits]
    if not fitting:
        for sentence in change_sentences(rows[-1][1]) if is_first_enough else ():
            say(sentence)
        raise typer.Exit(THRESHOLD_EXCEEDED)
    _, best = max(fitting, key=lambda row: row[0])
    show(engine.changed(best).words)
    raise typer.Exit(0)


def _starts(
    engine: EngineCommand, tried: Sequence[tuple[str, ...]], folder: Path, *, is_first_enough: bool
) -> list[tuple[tuple[str, ...], EngineStart]]:
    """Start an engine with each of some options, and write engine.json of each to a folder of its own."""
    from tracer.engines.answer import engine_json
    from tracer.engines.run import OUTPUT, run_engine
    from tracer.exporters.files import check_folder, write_json

    rows = list[tuple[tuple[str, ...], "EngineStart"]]()
    for number, options in enumerate(tried, start=1):
        own, changed = folder / str(number), engine.changed(options)
        check_folder(own)
        start = run_engine(changed.command, own / OUTPUT, is_server=engine.is_server)
        write_json(own / ENGINE_JSON, engine_json(start, command=changed.words, computed=False))
        rows.append((options, start))
        say(f"{number} of {len(tried)}: {shlex.join(options)}: {'starts' if start.fits else 'does not start'}")
        if is_first_enough and start.fits:
            break
    return rows


def numbers_of_gpus(most: int) -> list[tuple[str, ...]]:
    """Return the options that divide an engine over more and more of so many GPUs: 1, 2, 4 and 6 of 6."""
    powers = [1 << number for number in range(most.bit_length()) if 1 << number < most]
    return [("--tensor-parallel-size", str(number)) for number in (*powers, most)]


def tell_reports(reports: Path, folder: Path, page: Path | None, console: Console, *, computed: bool) -> None:
    """Print the memory of the engine that a script has made, also on its page; no-op without an engine."""
    from tracer.engines.run import read_reports

    if (start := read_reports(reports)) is None:
        return
    if page is not None:
        from tracer.engines.answer import put_engine_first

        put_engine_first(start, page, computed=computed)
    tell_engine(start, folder, console, words="", computed=computed)


def tell_engine(start: EngineStart, folder: Path, console: Console, *, words: str, computed: bool) -> None:
    """Print an engine's memory, and write it to engine.json."""
    from tracer.engines.answer import engine_json, print_engine
    from tracer.exporters.files import write_json

    document = engine_json(start, command=words, computed=computed)
    write_json(folder / ENGINE_JSON, document)
    console.answer(lambda: document, lambda rich: print_engine(start, rich, command=words, computed=computed))
