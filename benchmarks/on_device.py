"""Everything that only a real device can show, in one command, for somebody who has one for an hour.

    python -m benchmarks.on_device [--device cuda:0] [--out on_device] [--parts "peak of fno" ...] [--small]

The parts are in the order of their importance. Each runs in a process of its own, for a few minutes at most, and is
kept in OUT/on_device.json as soon as it has ended: when the time is up, what was done is there, and the same command
goes on with the rest. OUT/on_device.md has the same as one table. A part that failed is tried again.

It needs Python, torch 2.11 or newer and numpy, and nothing from the network; a part that wants more says what is
missing. `--import MODULE` registers a backend first; `--small` is for trying the command where there is no device. On
the null GPU nothing is computed: there are peaks and no times.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from importlib import import_module
from pathlib import Path

import torch

from benchmarks.on_device_options import ROOT, Facts, Options
from tracer.capture.device import devices
from tracer.results.null_run import CAVEAT, caveat_of
from tracer.units import format_bytes

_LIMIT_S = 300.0


def main() -> int:
    """Run the parts that are not done yet; 1 if one failed."""
    given = _arguments()
    for module in given.import_:
        import_module(module)
    options = Options(devices.with_index(torch.device(given.device)), given.small, tuple(given.import_))
    from benchmarks.on_device_parts import PARTS

    if given.one is not None:
        print(json.dumps(PARTS[given.one](options)))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    kept = _kept(given.out, options)
    for name in given.parts or PARTS:
        if "error" in kept["parts"].get(name, {"error": ""}):
            print(f"{name} ...", file=sys.stderr, flush=True)
            kept["parts"][name] = _run_part(name, given)
            _keep(kept, given.out)
    print(as_markdown(kept))
    return int(any("error" in part for part in kept["parts"].values()))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=Path("on_device"))
    parser.add_argument("--parts", nargs="+")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--import", dest="import_", action="append", default=[], metavar="MODULE")
    parser.add_argument("--limit-s", type=float, default=_LIMIT_S)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _run_part(name: str, given: argparse.Namespace) -> Facts:
    """A part in a process of its own: what it takes along in its fall is only itself."""
    command = [sys.executable, "-m", "benchmarks.on_device", "--one", name, "--device", given.device]
    command += ["--small"] * given.small + [word for module in given.import_ for word in ("--import", module)]
    begin = time.perf_counter()
    try:
        ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=given.limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {given.limit_s:.0f} s"}
    seconds = round(time.perf_counter() - begin, 1)
    if ended.returncode:
        return {"error": "\n".join(ended.stderr.strip().splitlines()[-12:]), "seconds": seconds}
    return {**json.loads(ended.stdout.strip().splitlines()[-1]), "seconds": seconds}


def _kept(out: Path, options: Options) -> Facts:
    """What earlier calls have measured on the same device with the same torch."""
    about = {
        "device": str(options.device),
        "name": devices.device_name(options.device) or platform.processor() or platform.machine(),
        "memory": devices.allocator_counters(options.device).get("device", 0),
        "driver": _driver(),
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "small": options.small,
        "computed": not caveat_of(options.device),
    }
    path = out / "on_device.json"
    if path.is_file():
        kept: Facts = json.loads(path.read_text(encoding="utf-8"))
        if kept["about"] == about:
            return kept
        path.rename(out / f"on_device.{int(path.stat().st_mtime)}.json")
    now = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return {"about": about, "command": shlex.join(sys.orig_argv), "begun": now, "parts": {}}


def _driver() -> str:
    """What the driver says of itself; empty where there is none that can be asked."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip().splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return ""


def _keep(kept: Facts, out: Path) -> None:
    """Write both files, each whole or not at all."""
    for name, text in (("on_device.json", json.dumps(kept, indent=1)), ("on_device.md", as_markdown(kept))):
        beside = out / f".{name}"
        beside.write_text(text + "\n", encoding="utf-8")
        beside.replace(out / name)


def as_markdown(kept: Facts) -> str:
    """Everything measured, as one table."""
    about = kept["about"]
    memory = f", {format_bytes(about['memory'])}" if about["memory"] else ""
    driver = f", driver {about['driver']}" if about["driver"] else ""
    lines = [
        *([] if about["computed"] else [CAVEAT, ""]),
        f"`{kept['command']}`: {about['name']} as {about['device']}{memory}{driver}, torch {about['torch']}, "
        f"Python {about['python']}{', small models' if about['small'] else ''}, begun {kept['begun']}.",
        "",
        "| part | found | seconds |",
        "|---|---|---:|",
    ]
    for name, facts in kept["parts"].items():
        lines.append(f"| {name} | {_found(facts)} | {facts.get('seconds', '')} |")
    return "\n".join(lines)


def _found(facts: Facts) -> str:
    if "error" in facts:
        return f"**failed**: {facts['error'].splitlines()[-1] if facts['error'] else 'no reason given'}".replace(
            "|", "/"
        )
    shown = {key: value for key, value in facts.items() if key != "seconds"}
    return ", ".join(f"{key} {_shown(value)}" for key, value in shown.items()).replace("|", "/")


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(str, value)) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
