"""Builds one wheel of the sources beside this file, by the hooks of PEP 517.

Each hook is called in a process of its own. What the backend wants besides
the requirements that are there is written down instead of a wheel.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys

ROOT = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(ROOT, "out")
WORK = "/.hpcc/source"  # nothing below /.hpcc outlives the step


def order():
    with open(os.path.join(ROOT, "order.json")) as f:
        return json.load(f)


def backend(what):
    """The object that has the hooks; imports find its directories first."""
    sys.path[0:1] = [os.path.join(os.getcwd(), p) for p in what["path"] or []]
    module, _, attributes = what["backend"].partition(":")
    found = importlib.import_module(module)
    for name in filter(None, attributes.split(".")):
        found = getattr(found, name)
    return found


def requires():
    what = order()
    hook = getattr(backend(what), "get_requires_for_build_wheel", None)
    more = [r for r in (hook({}) if hook else []) if r not in what["known"]]
    if more:
        with open(os.path.join(OUT, "requires.json"), "w") as f:
            json.dump(sorted(more), f)


def wheel():
    backend(order()).build_wheel(OUT, {}, None)


def main():
    for directory in (OUT, os.environ["HOME"], os.environ["TMPDIR"]):
        os.makedirs(directory, exist_ok=True)
    shutil.copytree(os.path.join(ROOT, "source"), WORK, symlinks=True)
    os.chdir(os.path.join(WORK, order()["subdir"]))
    for hook in ("wheel",) if order()["asked"] else ("requires", "wheel"):
        status = subprocess.call([sys.executable, __file__, hook])
        if status:
            sys.exit(status)
        if os.listdir(OUT):
            break


if __name__ == "__main__":
    {"requires": requires, "wheel": wheel}.get("".join(sys.argv[1:]), main)()
