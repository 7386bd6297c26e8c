# SPDX-License-Identifier: MIT
"""The example plugin, built out of tree against the installed SDK, takes part in all three runs."""
import shutil

from lib import ckpt as codes
from lib import proc
from lib.ckpt import Ckpt
from lib.context import command
from lib.report import expect
from lib.victim import Victim

TEXT = "written by a test"


def install(context, test):
    """Installs ckpt below the test's directory."""
    prefix = test.dir / "prefix"
    command(test, "cmake", "--install", context.build(), "--prefix", prefix)
    return prefix


def with_cmake(context, test, prefix):
    """find_package(ckpt-plugin)"""
    build = test.dir / "plugin-build"
    command(test, "cmake", "-S", context.source / "examples/plugins/note", "-B", build, "-G", "Ninja",
            f"-DCMAKE_PREFIX_PATH={prefix}")
    command(test, "cmake", "--build", build)
    return build / "plugins"


def with_pkg_config(context, test, prefix):
    """pkg-config ckpt-plugin"""
    copy = test.dir / "plugin-source"
    shutil.copytree(context.source / "examples/plugins/note", copy)
    [pc] = prefix.glob("**/ckpt-plugin.pc")
    # a staged installation: the paths in the .pc file are relative to it
    command(test, "make", "-C", copy, "PKG_CONFIG=pkg-config",
            env={"PKG_CONFIG_PATH": str(pc.parent)})
    return copy / "plugins"


def takes_part(context, test, build_plugin):
    """Listed, in the image, in the log of a restore, in a verify."""
    prefix = install(context, test)
    plugins = build_plugin(context, test, prefix)
    [binary] = prefix.glob("*bin/ckpt")
    ckpt = Ckpt(binary)
    option = ("--plugin-path", plugins, "-o", f"note.text={TEXT}")

    listed = ckpt.run(test, "plugins", "--json", *option).json()["plugins"]
    [note] = [plugin for plugin in listed if plugin["name"] == "note"]
    expect(str(plugins) in str(note), f"it was not loaded from {plugins}: {note}")
    names = {plugin["name"] for plugin in listed}
    expect({"pid", "task", "mem", "fd", "sock"} <= names, f"the installed ckpt has {sorted(names)}")
    for run in ("dump", "restore", "verify"):
        expect("note." in ckpt.run(test, "graph", run, *option).out, f"not in the graph of {run}")

    victim = Victim(test, context.scenario("nested"))
    victim.check("built")
    pids, image = proc.tree(victim.pid), test.dir / "image"
    ckpt.dump(test, victim.pid, image, *option)
    proc.wait_gone(pids)
    shown = ckpt.run(test, "show", image, "--plugin", "note", "--json", *option).out
    expect(TEXT in shown, f"show: {shown}")
    pidfile = test.dir / "pid"
    restored = ckpt.run(test, "restore", "-D", image, "-d", "-v", "--pidfile", pidfile, *option)
    victim.pid = int(pidfile.read_text())
    expect(f"{TEXT} ({len(pids)} tasks" in restored.err + restored.out, "the restore shows no note")
    ckpt.verify(test, image, *option)
    other = ckpt.verify(test, image, "--plugin-path", plugins, "-o", "note.text=other",
                        code=codes.DIFFERENT)
    expect(TEXT in other.out and "other" in other.out, f"verify says: {other.out}")
    victim.check("restored")
    refused = ckpt.dump(test, victim.pid, test.dir / "refused", *option, "--without", "note.hostname",
                        code=codes.REFUSED)
    expect("note.hostname" in refused.err + refused.out, "the feature that is off is not named")
    victim.check("refused")


def foreign_image(context, test):
    """An image with messages of a plugin that is not there is refused by its name, exit 4."""
    prefix = install(context, test)
    plugins = with_cmake(context, test, prefix)
    [binary] = prefix.glob("*bin/ckpt")
    ckpt, image = Ckpt(binary), test.dir / "image"
    victim = Victim(test, context.scenario("nested"))
    ckpt.dump(test, victim.pid, image, "-R", "--plugin-path", plugins)
    run = ckpt.run(test, "verify", "-D", image, code=codes.IMAGE)
    expect("note" in run.err, f"the plugin is not named: {run.err}")
    victim.check("at the end")


def tests(context):
    """Both ways to build it."""
    for name, function in (("cmake", with_cmake), ("pkg-config", with_pkg_config)):
        yield (f"plugin/{name}",
               lambda test, function=function: takes_part(context, test, function))
    yield "plugin/missing", lambda test: foreign_image(context, test)
