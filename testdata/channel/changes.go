package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// placeholder is the prefix that a package was "built" at: 255 bytes, as
// conda-build makes them.
func placeholder(name string) string {
	p := "/home/builder/feedstock/work/" + name + "/_h_env_" + strings.Repeat("placehold_", 30)
	return p[:255]
}

// pythonLayout makes Debian's python one that stands in a prefix. Its frozen
// site module looks for dist-packages, so that name leads to site-packages.
func pythonLayout(t tree, r *recipe, a arch) error {
	lib := "lib/python" + python + "/"
	delete(t, lib+"EXTERNALLY-MANAGED")
	delete(t, lib+"sitecustomize.py")
	usr := regexp.MustCompile(`/usr([/' "])`)
	for p, n := range t {
		if strings.HasPrefix(p, lib+"_sysconfigdata") && n.link == "" {
			n.data = usr.ReplaceAll(n.data, []byte(placeholder(r.name)+"$1"))
		}
		// Modules of libraries that the channel does not have.
		if base := path.Base(p); strings.HasPrefix(base, "nis.") || strings.HasPrefix(base, "_gdbm.") || strings.HasPrefix(base, "_tkinter.") {
			delete(t, p)
		}
	}
	t[lib+"dist-packages"] = &node{link: "site-packages"}
	t[lib+"site-packages/README.txt"] = &node{data: []byte("Packages of the environment are installed here.\n")}
	t["bin/python"], t["bin/python3"] = &node{link: "python" + python}, &node{link: "python" + python}
	return nil
}

// blasNames gives openblas the names that programs are linked with.
func blasNames(t tree, _ *recipe, _ arch) error {
	t["lib/libblas.so.3"], t["lib/liblapack.so.3"] = &node{link: "libopenblas.so.0"}, &node{link: "libopenblas.so.0"}
	return nil
}

// opensslConfig adds a text file with the prefix, and a script that conda would
// source on activation.
func opensslConfig(t tree, r *recipe, _ arch) error {
	t["ssl/openssl.cnf"] = &node{data: []byte("openssl_conf = default\n[default]\n# certificates: " + placeholder(r.name) + "/ssl/cert.pem\n")}
	t["etc/conda/env_vars.d/openssl.json"] = &node{data: []byte(`{"OPENSSL_CONF": "` + placeholder(r.name) + `/ssl/openssl.cnf"}` + "\n")}
	return nil
}

// demoSource prints the prefix that is compiled in, alone and several times in one string.
const demoSource = `#include <stdio.h>
static const char path[] = PREFIX "/lib:" PREFIX "/lib64:" PREFIX "/share";
int main(void) { puts(PREFIX); puts(path); return 0; }
`

// prefixDemo compiles a program that holds the prefix.
func prefixDemo(t tree, r *recipe, a arch) error {
	cc, err := exec.LookPath(a.compiler)
	if err != nil {
		return fmt.Errorf("%s is not there: install Debian's gcc-%s", a.compiler, strings.ReplaceAll(a.triplet, "_", "-"))
	}
	dir, err := os.MkdirTemp("", "channel-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	src, bin := filepath.Join(dir, "prefixdemo.c"), filepath.Join(dir, "prefixdemo")
	if err := os.WriteFile(src, []byte(demoSource), 0o644); err != nil {
		return err
	}
	if _, err := tool(cc, "-O1", "-s", "-Wl,--build-id=none", `-DPREFIX="`+placeholder(r.name)+`"`, "-o", bin, src); err != nil {
		return err
	}
	b, err := os.ReadFile(bin)
	if err != nil {
		return err
	}
	t["bin/prefixdemo"] = &node{exec: true, data: b}
	t["bin/prefixdemo-sh"] = &node{exec: true, data: []byte("#!/bin/sh\nexec " + placeholder(r.name) + "/bin/prefixdemo\n")}
	return nil
}

// legacyFiles is a package as they were before info/paths.json.
func legacyFiles(t tree, r *recipe, _ arch) error {
	t["etc/legacy.conf"] = &node{data: []byte("root=" + placeholder(r.name) + "\n")}
	t["share/legacy/with space.txt"] = &node{data: []byte("root=" + placeholder(r.name) + "\n")}
	return nil
}

// finish gives programs and libraries a search path relative to themselves, and
// scripts an interpreter in the prefix.
func (t tree) finish(r *recipe, a arch) error {
	for p, n := range t {
		switch {
		case n.link != "":
		case bytes.HasPrefix(n.data, []byte(elf.ELFMAG)):
			if r.kind == noarchPython {
				delete(t, p)
				continue
			}
			if err := n.relocate(p, a); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		case path.Dir(p) == "bin" && bytes.HasPrefix(n.data, []byte("#!")):
			line, rest, _ := bytes.Cut(n.data, []byte("\n"))
			if bytes.Contains(line, []byte("python")) {
				n.data = append([]byte("#!"+placeholder(r.name)+"/bin/python"+python+"\n"), rest...)
			}
		}
	}
	return nil
}

// relocate sets the search path of an ELF file.
func (n *node) relocate(p string, a arch) error {
	f, err := elf.NewFile(bytes.NewReader(n.data))
	if err != nil {
		return err
	}
	if libs, _ := f.ImportedLibraries(); len(libs) == 0 {
		return nil
	}
	tmp, err := os.CreateTemp("", "channel-")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(n.data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		_, err = tool("patchelf", "--page-size", a.pageSize, "--set-rpath", "$ORIGIN/"+relative(p, "lib"), tmp.Name())
	}
	if err == nil {
		n.data, err = os.ReadFile(tmp.Name())
	}
	return err
}

// entryPoints reads the commands of a python package and removes the scripts
// that Debian made of them.
func (t tree) entryPoints() []string {
	var out []string
	for p, n := range t {
		if path.Base(p) != "entry_points.txt" {
			continue
		}
		scripts := false
		for _, l := range strings.Split(string(n.data), "\n") {
			l = strings.TrimSpace(l)
			if strings.HasPrefix(l, "[") {
				scripts = l == "[console_scripts]"
			} else if name, what, ok := strings.Cut(l, "="); ok && scripts {
				out = append(out, strings.TrimSpace(name)+" = "+strings.TrimSpace(what))
			}
		}
	}
	for p := range t {
		if path.Dir(p) == "bin" {
			delete(t, p)
		}
	}
	return out
}
