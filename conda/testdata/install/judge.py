#!/usr/bin/python3
"""judge.py PREFIX DEST PACKAGE... - a second opinion on installing conda packages.

Installs packages into the directory DEST as they would stand at PREFIX, and prints
what is there. It has the rules from conda's documents alone: CEP 20 and 34 (packages,
links, prefixes), CEP 32 (records), CEP 17 (site-packages), and what conda, which they
describe, is known to do: encodings of the prefix, .pyc files, link scripts. Archives
are opened by Debian's python3-conda-package-streaming. It checks little: hostile
packages are the business of other tests.

Output, JSON:
  files    below DEST: path -> [kind, mode, what a link leads to or the file's sha256]
  records  package -> {path -> [type, sha256 before, sha256 now]}
  lists    package -> its info/paths.json, null where it has none
  order    of installation
"""
import hashlib, json, os, py_compile, re, shutil, stat, subprocess, sys, tempfile

from conda_package_streaming.extract import extract

OLD_PLACEHOLDER = "/opt/anaconda1anaconda2anaconda3"
ENCODINGS = "utf-8", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


class Package:
    def __init__(self, file, scratch):
        self.dir = tempfile.mkdtemp(dir=scratch)
        extract(file, self.dir)
        self.index = json.loads(self.info("index.json"))
        self.name = self.index["name"]
        self.dist = "-".join((self.name, self.index["version"], self.index["build"]))
        self.link = json.loads(self.info("link.json") or "{}").get("noarch", {})
        text = self.info("paths.json")
        self.listed = json.loads(text) if text else None
        self.noarch = self.index.get("noarch") or self.link.get("type")

    def info(self, name):
        path = os.path.join(self.dir, "info", name)
        if not os.path.exists(path):
            return None
        with open(path, encoding="utf-8", newline="") as f:
            return f.read()

    def paths(self):
        """The files to install: dictionaries as in info/paths.json."""
        if self.listed:
            return self.listed["paths"]
        out = [{"_path": l.strip()} for l in self.info("files").split("\n") if l.strip()]
        prefixes = {}
        for line in (self.info("has_prefix") or "").split("\n"):
            # Fields may stand in quotes; one alone is the path of a text file.
            words = re.findall(r'"[^"]*"|\'[^\']*\'|\S+', line)
            if len(words) == 1:
                words = [OLD_PLACEHOLDER, "text"] + words
            if words:
                placeholder, mode, path = (w.strip("\"'") for w in words)
                prefixes[os.path.normpath(path)] = placeholder, mode
        for p in out:
            if p["_path"] in prefixes:
                p["prefix_placeholder"], p["file_mode"] = prefixes[p["_path"]]
        return out


def in_order(packages):
    """Those that others need first, else by name."""
    left, out, done = sorted(packages, key=lambda p: p.name), [], set()
    names = {p.name for p in left}
    while left:
        for p in left:
            needs = {d.split()[0] for d in p.index.get("depends") or []} & names
            if p.name == "python":
                needs.discard("pip")  # which needs python
            if needs <= done:
                break
        else:
            sys.exit("these packages need each other: " + " ".join(p.name for p in left))
        left.remove(p)
        out.append(p)
        done.add(p.name)
    return out


def replace_binary(data, old, new, zero):
    """Each string that holds old keeps its length: zeros follow it."""
    def one(m):
        text = m.group()
        return text.replace(old, new) + b"\0" * (text.count(old) * (len(old) - len(new)))
    return re.sub(re.escape(old) + b"(?:(?!" + re.escape(zero) + b").)*" + re.escape(zero), one, data, flags=re.DOTALL)


def shebang(data):
    """A first line that the kernel would cut off leaves the search to env."""
    m = re.match(rb"#! *(/(?:\\ |[^ \n\r\t])*)(.*)", data)
    if not m or len(m.group()) <= 127:
        return data
    return b"#!/usr/bin/env " + m[1].rsplit(b"/", 1)[-1] + m[2] + data[m.end():]


def replaced(data, mode, old, new):
    for e in ENCODINGS:
        a, b = old.encode(e), new.encode(e)
        data = data.replace(a, b) if mode == "text" else replace_binary(data, a, b, "\0".encode(e))
    return shebang(data) if mode == "text" else data


PROGRAM = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {first}

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit({function}())
"""


class Prefix:
    def __init__(self, prefix, dest, packages):
        self.prefix, self.dest, self.records = prefix, dest, {}
        for p in packages:
            if p.name == "python":
                self.xy = ".".join(p.index["version"].split(".")[:2])
                self.site = p.index.get("python_site_packages_path") or f"lib/python{self.xy}/site-packages"

    def place(self, p, path):
        if p.noarch == "python":
            path = re.sub("^site-packages/", self.site + "/", path)
            path = re.sub("^python-scripts/", "bin/", path)
        return os.path.normpath(path)

    def free(self, path):
        """Makes room: what was there gives way, directories above are made."""
        full = os.path.join(self.dest, path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        if os.path.isdir(full) and not os.path.islink(full):
            os.rmdir(full)
        elif os.path.lexists(full):
            os.remove(full)
        return full

    def install(self, p):
        record = self.records[p.dist] = {}
        self.script(p, "pre-link")
        for e in p.paths():
            src, path = os.path.join(p.dir, e["_path"]), self.place(p, e["_path"])
            if e.get("path_type") == "directory":
                full = os.path.join(self.dest, path)
                os.makedirs(full, exist_ok=True)
                if os.path.isdir(src):
                    shutil.copystat(src, full)
                record[path] = "directory", None, None
                continue
            full = self.free(path)
            if os.path.islink(src):
                os.symlink(os.readlink(src), full)
                record[path] = "softlink", e.get("sha256"), None
                continue
            if e.get("prefix_placeholder"):
                with open(src, "rb") as f:
                    data = f.read()
                with open(full, "wb") as f:
                    f.write(replaced(data, e["file_mode"], e["prefix_placeholder"], self.prefix))
                os.chmod(full, stat.S_IMODE(os.stat(src).st_mode))
            else:
                os.link(src, full)
            record[path] = "hardlink", sha256(src), sha256(full)
        if p.noarch == "python":
            self.commands(p, record)
            self.compile(p, record)
        self.script(p, "post-link")

    def commands(self, p, record):
        for point in p.link.get("entry_points") or []:
            command, function = point.rsplit("=", 1) if point.count(":") < 2 else point.split("=", 1)
            module, function = (w.strip() for w in function.rsplit(":", 1))
            path = "bin/" + command.strip()
            full = self.free(path)
            with open(full, "w", encoding="utf-8") as f:
                f.write(PROGRAM.format(python=f"{self.prefix}/bin/python{self.xy}", module=module, first=function.split(".")[0], function=function))
            os.chmod(full, 0o755)
            record[path] = "unix_python_entry_point", None, sha256(full)

    def compile(self, p, record):
        tag = ".cpython-" + self.xy.replace(".", "") + ".pyc"
        for path in [r for r in record if r.startswith(self.site + "/") and r.endswith(".py")]:
            d, base = os.path.split(path)
            pyc = os.path.join(d, "__pycache__", base[:-3] + tag)
            try:
                py_compile.compile(os.path.join(self.dest, path), cfile=os.path.join(self.dest, pyc), dfile=os.path.join(self.prefix, path), doraise=True)
            except py_compile.PyCompileError:
                continue  # of another python's language
            record[pyc] = "pyc_file", None, None

    def script(self, p, kind):
        """Link scripts, of which conda runs the first from the package itself."""
        script = os.path.join(self.dest if kind == "post-link" else p.dir, "bin", f".{p.name}-{kind}.sh")
        if not os.path.isfile(script):
            return
        env = {"PATH": "/usr/bin:/bin", "PREFIX": self.dest, "PKG_NAME": p.name, "PKG_VERSION": p.index["version"], "PKG_BUILDNUM": str(p.index["build_number"]), "SOURCE_DIR": p.dir}
        subprocess.run(["/bin/bash", script], env=env, check=True, stdout=subprocess.DEVNULL)


def listing(dest):
    out = {}
    for d, dirs, files in os.walk(dest):
        for n in dirs + files:
            full = os.path.join(d, n)
            st, path = os.lstat(full), os.path.relpath(full, dest)
            mode = f"{stat.S_IMODE(st.st_mode):o}"
            if stat.S_ISLNK(st.st_mode):
                out[path] = "softlink", "777", os.readlink(full)
            elif stat.S_ISDIR(st.st_mode):
                out[path] = "directory", mode, ""
            else:
                out[path] = "file", mode, sha256(full)
    return out


def main():
    os.umask(0o022)
    prefix, dest = sys.argv[1:3]
    os.makedirs(dest)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(dest)) as scratch:
        packages = in_order([Package(f, scratch) for f in sys.argv[3:]])
        env = Prefix(prefix, dest, packages)
        for p in packages:
            env.install(p)
        files = listing(dest)
    json.dump({"files": files, "records": env.records, "lists": {p.dist: p.listed for p in packages}, "order": [p.dist for p in packages]}, sys.stdout)


main()
