"""Counts the rows of environment files, with no code in common with hpcc.

usage: count.py DIRECTORY < LIST > JSON

LIST has lines OWNER/NAME COMMIT PATH; DIRECTORY has each file as OWNER/NAME/PATH. The result maps
OWNER/NAME/PATH to its kind and to the numbers of conda rows, pip rows, channels and variables for
linux-64. Rows with selectors and markers count; rows of included files do not. "error" is the
reason why a file is not YAML.
"""
import json
import os
import re
import sys

import yaml

TARGET = "linux-64"
Loader = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
OPTION = re.compile(r"-(?!e\b|-editable\b)")


def count_pip(rows):
    rows = [re.sub(r"(^|\s)#.*", "", r).strip() for r in rows]
    return sum(1 for r in rows if r and not OPTION.match(r))


def environment(d):
    conda = pip = 0
    for row in d.get("dependencies") or []:
        if not isinstance(row, dict):
            if re.search(r"=\s*(pypi_0|dev_0|<pip>)$", row):
                pip += 1
            else:
                conda += 1
            continue
        for key, below in row.items():
            below = below if isinstance(below, list) else [below] if below else []
            if key == "pip":
                pip += sum(count_pip(r.split("\n")) if isinstance(r, str) else 1 for r in below)
            else:
                conda += len(below)
    return {"kind": "environment.yml", "conda": conda, "pip": pip,
            "channels": len(d.get("channels") or []), "variables": len(d.get("variables") or {})}


def platform(have):
    """The platform whose packages an image for TARGET gets."""
    linux = [p for p in have if p.startswith("linux-")]
    return TARGET if TARGET in have else (linux or have or [""])[0]


def conda_lock(d):
    main = [p for p in d["package"]
            if "main" in p.get("categories", [p.get("category", "main")])]
    have = list(dict.fromkeys(p["platform"] for p in main))
    rows = [p["manager"] for p in main if p["platform"] == platform(have)]
    channels = (d.get("metadata") or {}).get("channels") or []
    return {"kind": "conda-lock.yml", "conda": rows.count("conda"), "pip": len(rows) - rows.count("conda"),
            "channels": len(channels), "variables": 0}


def pixi(d):
    environments = d["environments"]
    env = environments.get("default") or next(iter(environments.values()))
    rows = env["packages"]
    rows = rows.get(platform(list(rows))) or []
    return {"kind": "pixi.lock", "conda": sum("pypi" not in r for r in rows), "pip": sum("pypi" in r for r in rows),
            "channels": len(env.get("channels") or []), "variables": 0}


def document(text):
    """The counts of a YAML or JSON file; None if it is not one."""
    head = next((l for l in text.split("\n") if l.strip() and not l.startswith(("#", "---"))), "")
    if not re.match(r'["\w-]+\s*:(\s|$)|[\[{]', head.strip()):
        return None
    try:
        d = yaml.load(text, Loader)
    except yaml.YAMLError as e:
        return {"kind": "broken", "error": str(e).split("\n")[0]}
    if isinstance(d, list):
        pip = sum(r.get("channel") == "pypi" for r in d)
        return {"kind": "conda list --json", "conda": len(d) - pip, "pip": pip, "channels": 0, "variables": 0}
    if not isinstance(d, dict):
        return {"kind": "other"}
    if "environments" in d and "version" in d:
        return pixi(d)
    if "package" in d and "version" in d:
        return conda_lock(d)
    return environment(d) if "dependencies" in d else {"kind": "other"}


def lines(text, name):
    rows = [l.strip() for l in text.split("\n")]
    counts = {"channels": 0, "variables": 0}
    if "@EXPLICIT" in rows:
        rows = [r for r in rows if r and r != "@EXPLICIT"]
        return {"kind": "@EXPLICIT", "conda": sum(r[0] != "#" for r in rows), "pip": sum(r.startswith("# pip ") for r in rows), **counts}
    table = any(re.match(r"#?\s*Name\s+Version\s+Build|# packages in environment|List of packages", r) for r in rows)
    rows = [r for r in rows if r and r[0] != "#"]
    if table:
        rows = [r.split() for r in rows if not re.match(r"Name\s|List of|[-─]+", r)]
        pip = sum(r[-1] == "pypi" or (len(r) > 2 and r[2] == "<pip>") for r in rows)
        return {"kind": "conda list", "conda": len(rows) - pip, "pip": pip, **counts}
    pip_rows = any(re.search(r"\s@\s|\s*;\s", r) or r.startswith("-") for r in rows)
    single = not pip_rows and sum(bool(re.match(r"(\S+::)?[\w.-]+\s*==?\s*[^\s=;]+=[^=]|(\S+::)?[\w.-]+=[^=]|\S+::", r)) for r in rows)
    if single or not (os.path.basename(name).startswith("requirements") or pip_rows):
        pip = sum(bool(re.search(r"=\s*(pypi_0|dev_0|<pip>)$", r)) for r in rows)
        return {"kind": "list", "conda": len(rows) - pip, "pip": pip, **counts}
    return {"kind": "requirements.txt", "conda": 0, "pip": count_pip(re.sub(r"\\\n", "", text).split("\n")), **counts}


def main(directory):
    out = {}
    for entry in sys.stdin:
        if entry.startswith("#"):
            continue
        repository, _, path = entry.split()[:3]
        name = f"{repository}/{path}"
        with open(os.path.join(directory, name), "rb") as f:
            data = f.read()
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = data.decode("utf-16" if utf16 else "utf-8-sig", "replace").replace("\r\n", "\n")
        out[name] = document(text) or lines(text, name)
    json.dump(out, sys.stdout, indent=1)


main(sys.argv[1])
