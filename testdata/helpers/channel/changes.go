package main

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// placeholder returns the build prefix of a package: 255 bytes, as with conda-build.
func placeholder(name string) string {
	p := "/home/builder/feedstock/build/" + name + "/_h_env_" + strings.Repeat("placehold_", 30)
	return p[:255]
}

var usr = regexp.MustCompile(`/usr([/' "\n])`)

// inPrefix replaces Debian's directories in a text by those of the prefix.
func inPrefix(text []byte, r recipe, m *machine) []byte {
	text = usr.ReplaceAll(text, []byte(placeholder(r.name)+"$1"))
	return bytes.ReplaceAll(text, []byte("/lib/"+m.triplet), []byte("/lib"))
}

// ownScheme replaces the installation directories of Debian's sysconfig by those of upstream.
var ownScheme = strings.NewReplacer(
	"/local/lib/python{py_version_short}/dist-packages", "/lib/python{py_version_short}/site-packages",
	"/lib/python3/dist-packages", "/lib/python{py_version_short}/site-packages",
	"{base}/local/bin", "{base}/bin",
	"'{base}/local'", "'{base}'")

// pythonLayout changes Debian's python so that it works in a prefix. Its site module
// looks for dist-packages and is frozen into the program, so replacing site.py would have
// no effect. Therefore dist-packages becomes a link to site-packages.
func pythonLayout(t tree, r recipe, m *machine) error {
	lib := "lib/python" + m.python + "/"
	delete(t, lib+"EXTERNALLY-MANAGED")
	delete(t, lib+"sitecustomize.py")
	for p, n := range t {
		base := path.Base(p)
		switch {
		case n.link != "":
		case strings.HasPrefix(p, lib+"_sysconfigdata"):
			n.data = inPrefix(n.data, r, m)
		case p == lib+"sysconfig.py" || p == lib+"sysconfig/__init__.py":
			n.data = []byte(ownScheme.Replace(string(n.data)))
		case strings.HasPrefix(base, "nis.") || strings.HasPrefix(base, "_gdbm.") || strings.HasPrefix(base, "_tkinter."):
			delete(t, p) // needs a library that the channel does not have
		}
	}
	t[lib+"dist-packages"] = &node{link: "site-packages"}
	t[lib+"site-packages/README.txt"] = &node{data: []byte("Packages of the environment are installed here.\n")}
	for _, name := range []string{"python", "pydoc"} {
		t["bin/"+name], t["bin/"+name+"3"] = &node{link: name + m.python}, &node{link: name + m.python}
	}
	return nil
}

// blasNames adds links to openblas under the library names that programs need.
func blasNames(t tree, _ recipe, _ *machine) error {
	t["lib/libblas.so.3"], t["lib/liblapack.so.3"] = &node{link: "libopenblas.so.0"}, &node{link: "libopenblas.so.0"}
	return nil
}

// opensslConfig adds a text file with the prefix, and a variable that conda would
// set on activation.
func opensslConfig(t tree, r recipe, _ *machine) error {
	t["ssl/openssl.cnf"] = &node{data: []byte("openssl_conf = default\n[default]\n# certificates: " + placeholder(r.name) + "/ssl/cert.pem\n")}
	t["etc/conda/env_vars.d/openssl.json"] = &node{data: []byte(`{"OPENSSL_CONF": "` + placeholder(r.name) + `/ssl/openssl.cnf"}` + "\n")}
	return nil
}

// certificates concatenates all certificates into one file, as in conda's package.
func certificates(t tree, _ recipe, _ *machine) error {
	var all []byte
	for _, p := range t.names() {
		if path.Ext(p) == ".crt" {
			all = append(all, t[p].data...)
		}
		delete(t, p)
	}
	t["ssl/cacert.pem"], t["ssl/cert.pem"] = &node{data: all}, &node{link: "cacert.pem"}
	return nil
}

// demoSource is a program that prints its compiled-in prefix, alone and several times in one string.
const demoSource = `#include <stdio.h>
static const char path[] = PREFIX "/lib:" PREFIX "/lib64:" PREFIX "/share";
int main(void) { puts(PREFIX); puts(path); return 0; }
`

// errNoCompiler reports that this host lacks the compiler for a package.
var errNoCompiler = errors.New("no compiler")

// prefixDemo compiles a program that contains the prefix.
func prefixDemo(t tree, r recipe, m *machine) error {
	cc, err := exec.LookPath(m.compiler)
	if err != nil {
		return fmt.Errorf("%w: %s comes with Debian's gcc-%s", errNoCompiler, m.compiler, strings.ReplaceAll(m.triplet, "_", "-"))
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
	if err := tool(cc, "-O1", "-s", "-Wl,--build-id=none", `-DPREFIX="`+placeholder(r.name)+`"`, "-o", bin, src); err != nil {
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

// legacyFiles adds the files of a package without info/paths.json, as older packages are.
func legacyFiles(t tree, r recipe, _ *machine) error {
	t["etc/legacy.conf"] = &node{data: []byte("root=" + placeholder(r.name) + "\n")}
	t["share/legacy/with space.txt"] = &node{data: []byte("root=" + placeholder(r.name) + "\n")}
	return nil
}

var pythonLine = regexp.MustCompile(`^#!\s*\S*python[\d.]*`)

// finish sets relative library search paths in programs and libraries, and replaces the
// interpreter of scripts by one in the prefix. It returns the needed libraries, each with
// a file that needs it.
func (t tree) finish(r recipe, m *machine) (map[string]string, error) {
	needs := map[string]string{}
	for _, p := range t.names() {
		n := t[p]
		switch {
		case n.link != "":
		case bytes.HasPrefix(n.data, []byte(elf.ELFMAG)):
			if r.kind == noarchPython {
				delete(t, p)
				continue
			}
			libs, err := n.relocate(p, m)
			if err != nil {
				return nil, fmt.Errorf("relocating %s: %w", p, err)
			}
			for _, l := range libs {
				needs[l] = r.name + ": " + p
			}
		case path.Base(path.Dir(p)) == "pkgconfig":
			n.data = inPrefix(n.data, r, m)
		case path.Dir(p) == "bin":
			n.data = pythonLine.ReplaceAll(n.data, []byte("#!"+placeholder(r.name)+"/bin/python"+m.python))
		}
	}
	return needs, nil
}

// relocate sets the search path of an ELF file, and returns the libraries that it needs.
func (n *node) relocate(p string, m *machine) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(n.data))
	if err != nil {
		return nil, err
	}
	libs, err := f.ImportedLibraries()
	if err != nil || len(libs) == 0 {
		return nil, err
	}
	tmp, err := os.CreateTemp("", "channel-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(n.data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = tool("patchelf", "--page-size", m.pageSize, "--set-rpath", "$ORIGIN/"+relative(p, "lib"), tmp.Name())
	}
	if err == nil {
		n.data, err = os.ReadFile(tmp.Name())
	}
	return libs, err
}

// entryPoints returns the entry points of a python package, and removes the scripts that
// Debian generated from them.
func (t tree) entryPoints() []string {
	out := []string{}
	for _, p := range t.names() {
		if path.Dir(p) == "bin" {
			delete(t, p)
		}
		if path.Base(p) != "entry_points.txt" {
			continue
		}
		section := ""
		for _, l := range strings.Split(string(t[p].data), "\n") {
			l = strings.TrimSpace(l)
			if strings.HasPrefix(l, "[") {
				section = l
			} else if name, what, ok := strings.Cut(l, "="); ok && section == "[console_scripts]" {
				what, _, _ = strings.Cut(what, "[") // extras
				out = append(out, strings.TrimSpace(name)+" = "+strings.TrimSpace(what))
			}
		}
	}
	return out
}
