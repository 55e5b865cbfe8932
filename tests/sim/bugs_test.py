"""Plants each bug of tests/sim/bugs into the simulator; every one of them must be found.

usage: bugs_test.py BUILD_DIR SOURCE_DIR [NAME...]   all bugs, or those named

Only the source files that a patch changes are compiled again; their objects come first in the link
of the simulator, so that the archives' own are left out.  Also run without a bug: that must pass.
The last line is `N passed, N failed, N skipped`.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

STEPS = "150000"  # most are found within a few thousand
SEED = "1"
SECONDS = 300


class Build:
    """How the build folder compiles a source file and links the simulator."""

    def __init__(self, folder, source):
        self.folder = folder
        self.source = source
        commands = json.loads((folder / "compile_commands.json").read_text())
        self.compiles = {}
        for entry in commands:
            path = os.path.relpath(Path(entry["directory"], entry["file"]).resolve(), source)
            self.compiles.setdefault(path, shlex.split(entry["command"]))
        lines = subprocess.run(["ninja", "-C", folder, "-t", "commands", "tests/sim/sim"],
                               check=True, capture_output=True, text=True).stdout.splitlines()
        self.link = shlex.split(lines[-1])

    def compile(self, name, tree):
        """Compiles tree/name instead of the source of that name; the object."""
        out = tree / (name.replace("/", "_") + ".o")
        command = list(self.compiles[name])
        at = command.index("-o")
        command[at + 1] = str(out)
        command[command.index("-c") + 1] = str(tree / name)
        command[command.index("-MF") + 1] = str(out) + ".d"
        # A planted bug may leave something unused.
        command += ["-Wno-error", "-w"]
        run(command, self.folder)
        return str(out)

    def link_with(self, objects, out):
        command = list(self.link)
        at = command.index("-o")
        command[at + 1] = str(out)
        command[at + 2:at + 2] = objects
        run(command, self.folder)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{command[0]}: {done.stdout}{done.stderr}"[-2000:])


def simulate(program, folder):
    """Whether the simulator passed, and what it said of a failure."""
    done = subprocess.run([program, "--no-shrink", "--steps", STEPS, "--seed", SEED], cwd=folder,
                          capture_output=True, text=True, timeout=SECONDS, check=False)
    told = re.search(r"^seed \d+ failed.*", done.stdout, re.M)
    if done.returncode == 1 and told:
        return False, told[0]
    if done.returncode == 0:
        return True, ""
    raise RuntimeError(f"exit {done.returncode}: {done.stdout}{done.stderr}"[-2000:])


def try_bug(build, patch):
    """None when the bug is found, otherwise why not; and what was said."""
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name)
        changed = re.findall(r"^\+\+\+ b/(\S+)", patch.read_text(), re.M)
        if not changed or not all(path.endswith(".c") for path in changed):
            return "a bug changes source files only", ""
        for path in changed:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(build.source / path, tree / path)
        applied = subprocess.run(["git", "apply", "-p1", patch], cwd=tree, capture_output=True,
                                 text=True, check=False)
        if applied.returncode != 0:
            return f"does not apply: {applied.stderr}", ""
        objects = [build.compile(path, tree) for path in changed]
        build.link_with(objects, tree / "sim")
        passed, told = simulate(tree / "sim", tree)
        return ("not found" if passed else None), told


def attempt(build, patch):
    try:
        return try_bug(build, patch)
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        return str(error), ""


def main():
    build = Build(Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve())
    patches = sorted((build.source / "tests/sim/bugs").glob("*.patch"))
    patches = [p for p in patches if len(sys.argv) == 3 or p.stem in sys.argv[3:]]
    assert len(patches) >= (20 if len(sys.argv) == 3 else 1), "bugs are missing"
    failed = 0
    sound, told = simulate(build.folder / "tests/sim/sim", tempfile.gettempdir())
    if not sound:
        print(f"FAIL without a bug: {told}")
        failed += 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for patch, (why, told) in zip(patches, pool.map(lambda p: attempt(build, p), patches)):
            print(f"{'ok  ' if why is None else 'FAIL'} {patch.stem}: {why or told}")
            failed += why is not None
    print(f"{len(patches) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
