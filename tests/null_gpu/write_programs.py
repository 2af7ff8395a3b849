"""Programs that write files in their folder, for `test_writes.py`: what they see while their files go elsewhere.

Each begins in a folder of its own, with `mine.txt` ("mine"), `data/a.txt` and `data/b.txt`, `data/deep/c.txt`, an empty
folder `empty`, the package `pkg`, the link `link` to `data` and the link `far` to a folder elsewhere.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

ENTRIES = ["data", "empty", "far", "link", "mine.txt", "pkg"]


def makes_files() -> None:
    Path("new.txt").write_text("new")
    os.makedirs("out/deep")
    Path("out/deep/x").write_text("x")
    assert Path("new.txt").read_text() == "new"
    assert sorted(os.listdir()) == sorted([*ENTRIES, "new.txt", "out"])


def replaces_content() -> None:
    Path("mine.txt").write_text("theirs")
    assert Path("mine.txt").read_text() == "theirs"


def appends() -> None:
    with open("mine.txt", "a") as file:
        file.write(" and theirs")
    assert Path("mine.txt").read_text() == "mine and theirs"


def writes_within() -> None:
    with open("data/a.txt", "r+") as file:
        file.seek(1)
        file.write("X")
    assert Path("data/a.txt").read_text() == "aX"
    os.truncate("data/b.txt", 1)
    assert Path("data/b.txt").read_text() == "b"


def lists_no_links() -> None:
    Path("new").write_text("")
    assert [entry.name for entry in os.scandir() if entry.is_symlink()] in (["far", "link"], ["link", "far"])
    assert os.readlink("link") == "data"
    assert sorted(str(path) for path in Path().rglob("*.txt")) == [
        "data/a.txt", "data/b.txt", "data/deep/c.txt", "mine.txt",
    ]  # fmt: skip
    opened = os.open("data", os.O_RDONLY)
    Path("data/late").write_text("")
    assert sorted(os.listdir(opened)) == ["a.txt", "b.txt", "deep"]  # the folder that was opened
    os.close(opened)
    assert "late" in os.listdir("data")


def writes_through_links() -> None:
    Path("link/a.txt").write_text("through")
    assert Path("data/a.txt").read_text() == "through"
    Path("far/new").write_text("far")
    assert Path("far/new").read_text() == "far"
    os.symlink("mine.txt", "own")
    Path("own").write_text("own")
    assert os.path.islink("own")
    assert Path("mine.txt").read_text() == "own"


def renames() -> None:
    os.replace("data/a.txt", "data/z.txt")
    os.replace("mine.txt", "data/b.txt")
    assert sorted(os.listdir("data")) == ["b.txt", "deep", "z.txt"]
    assert (Path("data/z.txt").read_text(), Path("data/b.txt").read_text()) == ("aa", "mine")
    os.rename("data", "other")
    Path("other/deep/c.txt").write_text("C")
    assert not Path("data").exists()
    assert sorted(str(path) for path in Path("other").rglob("*")) == [
        "other/b.txt", "other/deep", "other/deep/c.txt", "other/z.txt",
    ]  # fmt: skip
    assert Path("other/deep/c.txt").read_text() == "C"


def removes() -> None:
    Path("mine.txt").unlink()
    shutil.rmtree("data")
    os.rmdir("empty")
    shutil.rmtree("pkg")
    assert sorted(os.listdir()) == ["far", "link"]
    os.mkdir("data")
    assert os.listdir("data") == []


def copies_trees() -> None:
    shutil.copytree("data", "copy")
    shutil.copy2("mine.txt", "copy/mine.txt")
    shutil.move("copy", "empty/moved")
    Path("empty/moved/deep/c.txt").write_text("C")
    assert Path("data/deep/c.txt").read_text() == "cc"
    assert os.stat("empty/moved/mine.txt").st_mtime == os.stat("mine.txt").st_mtime


def uses_a_database() -> None:
    for number in range(2):
        connection = sqlite3.connect("runs.db")
        connection.execute("create table if not exists runs (number)")
        connection.execute("insert into runs values (?)", (number,))
        connection.commit()
        assert connection.execute("select count(*) from runs").fetchone() == (number + 1,)
        connection.close()


def logs() -> None:
    handler = logging.FileHandler("logs.txt")
    handler.emit(logging.LogRecord("name", 1, "", 1, "a line", (), None))
    handler.close()
    assert Path("logs.txt").read_text() == "a line\n"


def uses_temporary_files() -> None:
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as file:
        file.write(b"1")
    os.replace(file.name, "mine.txt")
    with tempfile.TemporaryFile(dir=".") as unnamed:
        unnamed.write(b"1")
    with tempfile.TemporaryDirectory(dir=".") as folder:
        Path(folder, "x").write_text("x")
    assert not Path(folder).exists()
    with tempfile.NamedTemporaryFile() as file:
        assert _seen_by_others(file.name)
    assert not Path(file.name).exists()
    with tempfile.TemporaryDirectory() as name:
        Path(name, "x").write_text("x")
        assert _seen_by_others(f"{name}/x")
        os.replace(f"{name}/x", "from_there")
        os.replace("data/a.txt", f"{name}/a.txt")
        assert Path(name, "a.txt").read_text() == "aa"
        assert not Path(name, "a.txt").is_symlink()
    assert Path("from_there").read_text() == "x"


def _seen_by_others(path: str) -> bool:
    return not subprocess.run(["env", "-u", "LD_PRELOAD", "test", "-e", path], check=False).returncode


def starts_commands() -> None:
    command = "mkdir -p a/b && echo 1 > a/x && cp -r pkg a/b && mv mine.txt a && rm -r empty && cat a/x a/mine.txt"
    printed = subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout
    assert printed == "1\nmine"
    assert Path("a/b/pkg/__init__.py").exists()
    subprocess.run("sed -i s/a/X/ data/a.txt", shell=True, check=True)
    assert Path("data/a.txt").read_text() == "Xa"
    script = Path("script.sh")
    script.write_text("#!/bin/sh\necho ran > ran\n")
    script.chmod(0o755)
    subprocess.run(["./script.sh"], check=True)
    assert Path("ran").read_text() == "ran\n"
    code = "import os; open('by_child', 'w').write(os.getcwd())"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert Path("by_child").read_text() == os.getcwd()


def starts_commands_with_an_environment_of_their_own() -> None:
    own = {"PATH": "/usr/bin:/bin"}
    subprocess.run(["/bin/sh", "-c", "echo NEW > mine.txt; rm data/a.txt; rm -r empty"], env=own, check=True)
    assert Path("mine.txt").read_text() == "NEW\n" and not Path("data/a.txt").exists() and not Path("empty").exists()
    subprocess.run([sys.executable, "-I", "-c", "open('isolated', 'w').write('x')"], env={}, check=True)
    os.posix_spawn("/bin/sh", ["sh", "-c", "env -i sh -c 'echo NEW > data/b.txt'"], {"LD_PRELOAD": "", **own})
    os.wait()
    assert Path("data/b.txt").read_text() == "NEW\n" and Path("isolated").exists()


def goes_into_a_new_folder() -> None:
    here = os.getcwd()
    os.makedirs("out/deep")
    os.chdir("out/deep")
    assert os.getcwd() == f"{here}/out/deep"
    Path("../up").write_text("up")
    assert os.path.realpath("../../link/a.txt") == f"{here}/data/a.txt"
    assert Path("../../mine.txt").read_text() == "mine"
    os.chdir(here)
    assert sorted(os.listdir("out")) == ["deep", "up"]


def imports_its_package() -> None:
    Path("pkg/written.py").write_text("value = 2")
    sys.path.insert(0, os.getcwd())
    import pkg  # type: ignore[import-not-found]
    import pkg.written  # type: ignore[import-not-found]

    assert (pkg.value, pkg.written.value) == (1, 2)


def changes_modes_and_times() -> None:
    os.chmod("mine.txt", 0o600)
    os.utime("mine.txt", (1, 1))
    os.chmod("data", 0o700)
    status = os.stat("mine.txt")
    assert (status.st_mode & 0o777, status.st_mtime) == (0o600, 1)
    assert os.stat("data").st_mode & 0o777 == 0o700
    os.link("mine.txt", "hard")
    Path("hard").write_text("hard")
    assert Path("mine.txt").read_text() == "hard"


def meets_the_usual_errors() -> None:
    Path("new").write_text("")
    for attempt, error in (
        (lambda: open("none/x", "w"), FileNotFoundError),
        (lambda: open("mine.txt", "x"), FileExistsError),
        (lambda: os.mkdir("data"), FileExistsError),
        (lambda: os.rmdir("data"), OSError),
        (lambda: os.unlink("data"), IsADirectoryError),
        (lambda: os.rmdir("mine.txt"), NotADirectoryError),
        (lambda: os.rename("mine.txt", "data"), IsADirectoryError),
        (lambda: open("mine.txt/x", "w"), NotADirectoryError),
        (lambda: os.chdir("none"), FileNotFoundError),
    ):
        try:
            attempt()  # type: ignore[no-untyped-call]
        except error:
            continue
        raise AssertionError(error)


def writes_to_the_temporary_folder() -> None:
    """A file of that name was there, and is not touched; others of such names are not made there."""
    old = Path(os.environ["OLD_TEMPORARY"])
    old.write_text("theirs")
    old.with_name(f"{old.name}-new").write_text("theirs")
    os.makedirs(f"{old}-folder/x")
    assert old.read_text() == old.with_name(f"{old.name}-new").read_text() == "theirs"


PROGRAMS = (
    makes_files, replaces_content, appends, writes_within, lists_no_links, writes_through_links, renames, removes,
    copies_trees, uses_a_database, logs, uses_temporary_files, starts_commands,
    starts_commands_with_an_environment_of_their_own, goes_into_a_new_folder,
    imports_its_package, changes_modes_and_times, meets_the_usual_errors, writes_to_the_temporary_folder,
)  # fmt: skip

if __name__ == "__main__":
    import traceback

    for program in PROGRAMS:
        os.chdir(Path(sys.argv[1], program.__name__))
        try:
            program()
        except Exception:
            print(program.__name__, traceback.format_exc().replace("\n", "  "), flush=True)
