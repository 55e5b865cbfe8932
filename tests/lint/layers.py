"""Text rules of the source tree: who may include whom, file limits, comments, words.

usage: layers.py [ROOT]   prints violations, then one closing line; exit 1 when a rule failed
"""

import re
import subprocess
import sys
from pathlib import Path

# Folder -> prefixes of project headers it may include.
PROJECT_HEADERS = {
    "common": ("common/",),
    "proto": ("common/", "proto/"),
    "kernels": ("common/clock.h", "common/err.h", "common/num.h", "kernels/"),
    "frontend": ("common/", "proto/", "frontend/"),
    "worker": ("common/", "proto/", "kernels/", "worker/"),
    "deploy": ("common/", "deploy/"),
    "tests": ("common/", "proto/", "kernels/", "frontend/", "worker/", "deploy/", "tests/"),
}

# Outside library -> the files that may include it.
LIBRARY_FILES = {
    "jansson.h": r"common/json\.c",
    "msgpack": r"proto/wire\.c",
    "nng/": r"(frontend|worker)/link\.c|frontend/link_ask\.c",
    "h2o": r"frontend/(loop|server|sse|http_\w+)\.[ch]",
    "openssl/evp.h": r"common/sha256\.c",
    "openssl/": r"frontend/http_tls\.c|common/sha256\.c",
    "cuda": r"(worker/(device_cuda|graph|gemm)\.c|kernels/cuda/.*)",
    "cublas": r"worker/gemm\.c",
}

SOFT_LINES = 500
HARD_LINES = 800
HEADER_LINES = 200


def tracked(root):
    names = subprocess.run(
        ["git", "-C", root, "ls-files", "--cached", "--others", "--exclude-standard"],
        check=True, capture_output=True, text=True).stdout.split("\n")
    return [Path(n) for n in names if Path(n).suffix in (".c", ".h", ".cu", ".cuh", ".def")
            and (Path(root) / n).is_file()]


def without_texts(source):
    """Strings, character constants and block comments blanked out, line structure kept."""
    pattern = r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|/\*.*?\*/'
    return re.sub(pattern, lambda m: re.sub(r"[^\n]", " ", m[0]), source, flags=re.S)


def check_includes(path, source):
    folder = path.parts[0]
    for number, line in enumerate(source.split("\n"), 1):
        match = re.match(r'\s*#\s*include\s*(["<])([^">]+)[">]', line)
        if not match:
            continue
        quote, name = match.groups()
        if quote == '"':
            if name.endswith(".c"):
                yield number, f"includes a source file {name}"
            elif folder in PROJECT_HEADERS and not name.startswith(PROJECT_HEADERS[folder]):
                yield number, f"{folder}/ may not include {name}"
            elif name.endswith("_internal.h"):
                module = name[: -len("_internal.h")]
                if not str(path).startswith(module):
                    yield number, f"{name} belongs to the files of {module}"
            continue
        for library, files in LIBRARY_FILES.items():
            if name.startswith(library) and folder != "tests" and not re.fullmatch(files, str(path)):
                yield number, f"<{name}> may be included by {files} only"
    if folder == "tests" and path.parts[1] == "unit":
        sides = {side for side in ("frontend", "worker") if f'#include "{side}/' in source}
        if len(sides) == 2:
            yield 1, "a unit test sees one process only"


def check_lines(path, source):
    count = source.count("\n")
    if count > HARD_LINES:
        yield count, f"{count} lines, at most {HARD_LINES}"
    elif count > SOFT_LINES and path.parts[0] != "tests":
        print(f"warning: {path}: {count} lines, better under {SOFT_LINES}")
    if path.suffix == ".h" and count > HEADER_LINES:
        print(f"warning: {path}: header of {count} lines, better under {HEADER_LINES}")


def matching(pattern, message, code_only=True):
    def check(path, source):
        text = without_texts(source) if code_only else source
        for number, line in enumerate(text.split("\n"), 1):
            if re.search(pattern, line):
                yield number, message
    return check


def check_default(path, source):
    lines = source.split("\n")
    for number, line in enumerate(without_texts(source).split("\n"), 1):
        if re.search(r"\bdefault\s*:", line) and "/* foreign */" not in lines[number - 1]:
            yield number, "default: without /* foreign */ (our own enums are listed in full)"


def check_environment(path, source):
    lines = source.split("\n")
    for number, line in enumerate(without_texts(source).split("\n"), 1):
        if not re.search(r"\b(secure_getenv|getenv|environ)\b", line):
            continue
        is_socket_handover = '"LISTEN_PID"' in lines[number - 1] or '"LISTEN_FDS"' in lines[number - 1]
        is_test_child = path.parts[0] in ("deploy", "tests") and "environ" in line
        if not is_socket_handover and not is_test_child:
            yield number, "environment variables configure nothing (LISTEN_FDS excepted)"


def check_guard(path, source):
    if path.suffix != ".h":
        return
    want = re.sub(r"[/.\-]", "_", str(path)).upper()
    if f"#ifndef {want}\n" not in source:
        yield 1, f"header guard is not {want}"


RULES = {
    "includes": check_includes,
    "file-lines": check_lines,
    "line-comments": matching(r"//", "// comment"),
    "environment": check_environment,
    "default-labels": check_default,
    "struct-typedefs": matching(r"\btypedef\s+(struct|enum|union)\b(?!.*\(\s*\*)",
                                "typedef of a struct or enum"),
    "header-guards": check_guard,
    "todo-issues": matching(r"\b(TODO|FIXME|XXX)\b(?!.*#\d)", "TODO without an issue number", False),
}


# One breach per rule: a rule that misses its own example is broken.
EXAMPLES = (
    ("includes", "common/x.c", '#include "worker/pool.h"\n'),
    ("includes", "frontend/x.c", "#include <nng/nng.h>\n"),
    ("includes", "worker/x.c", "#include <jansson.h>\n"),
    ("includes", "frontend/x.c", "#include <openssl/evp.h>\n"),
    ("includes", "tests/unit/x_test.c", '#include "common/buf.c"\n'),
    ("includes", "frontend/detok.c", '#include "frontend/tokenizer_internal.h"\n'),
    ("file-lines", "common/x.c", "\n" * (HARD_LINES + 1)),
    ("line-comments", "common/x.c", 'char *url = "http://x"; // why\n'),
    ("environment", "worker/x.c", 'getenv("BEZEL_FAST");\n'),
    ("default-labels", "common/x.c", "default: break;\n"),
    ("struct-typedefs", "common/x.c", "typedef struct x { int y; } x;\n"),
    ("header-guards", "common/x.h", "#ifndef X_H\n"),
    ("todo-issues", "common/x.c", "/* TODO later */\n"),
)


def check_examples():
    broken = [e for e in EXAMPLES if not list(RULES[e[0]](Path(e[1]), e[2]))]
    for rule, path, source in broken:
        print(f"rule {rule} accepts {source!r} in {path}")
    return not broken


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    files = [(path, (Path(root) / path).read_text(encoding="utf-8")) for path in tracked(root)]
    assert len(files) > 20, "no sources found"
    failed = 0 if check_examples() else 1
    for name, rule in RULES.items():
        violations = [(p, n, text) for p, source in files for n, text in rule(p, source)]
        for path, number, text in violations:
            print(f"{path}:{number}: {text}")
        if violations:
            print(f"FAIL {name}")
            failed += 1
    print(f"{len(RULES) + 1 - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
