# SPDX-License-Identifier: MIT
"""What can be judged without running anything."""
import re
import subprocess

from lib.context import command
from lib.report import Failure, expect

FILE_LINES, FUNCTION_LINES = 800, 100
# of a plain C project's kinds of files; the rest (images, licence) carries no SPDX line
MARKED = {".c", ".cc", ".h", ".js", ".S", ".proto", ".py", ".sh", ".cmake", ".conf", ".in", ".map", ".ld",
          ".lds", ".yml"}


def files(context):
    """What belongs to the repository, new files included."""
    # a clone made by a user and tested by root is no reason for git to refuse
    out = subprocess.run(["git", "-c", f"safe.directory={context.source}", "ls-files", "-co",
                          "--exclude-standard"], cwd=context.source, check=True, capture_output=True,
                         text=True).stdout
    return [context.source / name for name in out.splitlines()
            if (context.source / name).is_file()]


def c_files(context):
    """Sources and headers."""
    return [path for path in files(context) if path.suffix in (".c", ".cc", ".h")]


def scripts(context):
    """Shell scripts, by their first line."""
    found = []
    for path in files(context):
        with open(path, "rb") as file:
            first = file.readline(80)
        if re.match(rb"#!\s*/(usr/)?bin/(env )?(ba)?sh", first):
            found.append(path)
    return found


def spdx(context, test):
    """Each file says its licence at its top."""
    missing = []
    for path in files(context):
        with open(path, "rb") as file:
            top = file.read(400)
        marked = path.suffix in MARKED or path.name == "CMakeLists.txt" or top.startswith(b"#!")
        if marked and b"SPDX-License-Identifier: MIT" not in top:
            missing.append(str(path.relative_to(context.source)))
    test.log("\n".join(missing))
    expect(not missing, f"no SPDX line: {', '.join(missing)}")


def clang_format(context, test):
    """The formatter decides the layout."""
    command(test, "clang-format", "--dry-run", "-Werror", *c_files(context))


def shellcheck(context, test):
    """Shell scripts."""
    command(test, "shellcheck", *scripts(context))


def python(context, test):
    """Python compiles, and its lines are not too long."""
    paths = [path for path in files(context) if path.suffix == ".py"]
    for path in paths:
        text = path.read_text()
        compile(text, str(path), "exec")
        long = [n for n, line in enumerate(text.splitlines(), 1) if len(line) > 110]
        test.log(f"{path}: {len(text.splitlines())} lines")
        expect(not long, f"{path.name}: line {long[:1]} is too long")


def cppcheck(context, test):
    """Static analysis, without what it misunderstands."""
    command(test, "cppcheck", "--quiet", "--std=c11", "--error-exitcode=1", "-j2", "--inline-suppr",
            "--enable=warning,portability", "--suppress=missingInclude", "--suppress=unknownMacro",
            "--suppress=invalidPointerCast",
            # it does not know cleanup attributes
            "--suppress=memleak", "--suppress=resourceLeak",
            # symbols of the linker, compound literals, and designated initialisers with macros
            "--suppress=comparePointers", "--suppress=autoVariables", "--suppress=syntaxError",
            "--suppress=internalAstError", "--suppress=nullPointer:*/core/image/compare.c",
            "-D__x86_64__", "-DCKPT_API=", "-I", context.source / "include", "-I", context.source / "core",
            "-I", context.source / "tests/scenario",
            *[path for path in c_files(context) if path.suffix == ".c"])


def functions(path):
    """(name, lines) of each function, by the layout that clang-format guarantees."""
    lines = path.read_text(errors="replace").splitlines()
    begin, signature = None, ""
    for number, line in enumerate(lines):
        if line == "{":
            begin = number
            above = [l for l in lines[max(0, number - 4):number] if "(" in l]
            signature = above[-1] if above else "?"
        elif line.startswith("}") and begin is not None:
            match = re.search(r"(\w+)\s*\(", signature)
            yield (match.group(1) if match else "?"), number - begin + 1
            begin = None


def sizes(context, test):
    """Nothing grows too long to be read."""
    bad = []
    for path in c_files(context):
        name = path.relative_to(context.source)
        lines = len(path.read_text(errors="replace").splitlines())
        if lines > FILE_LINES:
            bad.append(f"{name} has {lines} lines (at most {FILE_LINES})")
        bad += [f"{name}: {function}() has {length} lines (at most {FUNCTION_LINES})"
                for function, length in functions(path) if length > FUNCTION_LINES]
    test.log("\n".join(bad))
    if bad:
        raise Failure("; ".join(bad[:3]))


def points(context, test):
    """Plugin authors are told of each extension point."""
    names = {match for path in (context.source / "include/ckpt").glob("*.h")
             for match in re.findall(r'#define CKPT_\w+_POINT "(\w+)"', path.read_text(encoding="utf-8"))}
    told = (context.source / "docs/plugin-authors.md").read_text(encoding="utf-8")
    missing = sorted(name for name in names if f"\n| `{name}` |" not in told)
    test.log(f"{len(names)} points")
    expect(names and not missing, f"docs/plugin-authors.md says nothing of {', '.join(missing)}")


def tests(context):
    """See the functions."""
    for function in (spdx, clang_format, shellcheck, python, cppcheck, sizes, points):
        name = function.__name__.replace("_", "-")
        yield f"lint/{name}", lambda test, function=function: function(context, test)
