"""bezel serving the demo model, for client tests; and the table of tests that a file runs."""

import pathlib
import re
import subprocess
import sys
import traceback

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Server:
    """The launcher with both programs on a free port, until the end of the with block."""

    def __init__(self, build_dir, *options):
        self.command = [str(pathlib.Path(build_dir) / "deploy" / "bezel"), "serve",
                        str(ROOT / "deploy" / "demo-model"), "--port", "0", "--device", "cpu",
                        *options]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True)
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            match = re.search(r"ready: (https?://\S+)", line)
            if match:
                self.url = match[1]
                self.drain()
                return self
        raise RuntimeError("the server did not start:\n" + "".join(seen[-20:]))

    def drain(self):
        """Keeps the pipe empty, so that logging never blocks the server."""
        import threading
        threading.Thread(target=lambda: [None for _ in self.process.stdout], daemon=True).start()

    def __exit__(self, *_):
        self.process.terminate()
        status = self.process.wait(timeout=60)
        if status != 0:
            raise RuntimeError(f"the server ended with status {status}")


def raises(kind, call, *arguments):
    """The error of that kind that the call ends with."""
    try:
        call(*arguments)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def run_tests(module, *arguments):
    """Runs each function named test_*; prints the closing line; exit status 1 when one failed."""
    passed = failed = 0
    wanted = sys.argv[2] if len(sys.argv) > 2 else ""
    for name, function in vars(module).items():
        if name.startswith("test_") and wanted in name:
            try:
                function(*arguments)
                passed += 1
            except Exception:  # any failure of a test is reported, and the others go on
                failed += 1
                print(f"FAIL {name}")
                traceback.print_exc(file=sys.stdout)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0
