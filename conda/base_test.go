package conda

import (
	"archive/tar"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/conda/input"
	"hpcc/conda/solve"
	"hpcc/store"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// sysrootPkg returns a sysroot package with files below <triplet>/sysroot.
func sysrootPkg(version string, files ...testFile) *testPkg {
	p := &testPkg{name: "sysroot_linux-64", version: version, subdir: "noarch", noarch: "generic", depends: []string{"kernel-headers_linux-64", "tzdata"},
		files: []testFile{{path: "bin/x86_64-conda-linux-gnu.cfg", text: "--sysroot"}}}
	for _, f := range files {
		f.path = "x86_64-conda-linux-gnu/sysroot/" + f.path
		p.files = append(p.files, f)
	}
	return p
}

// sysrootLayouts has the layouts of sysroots in the history of their recipes: the common
// files, and the different ones.
var sysrootLayouts = map[string][]testFile{
	"2.17": {{path: "lib64/ld-2.17.so", text: "LOADER", mode: 0o755}, {path: "lib64/ld-linux-x86-64.so.2", link: "ld-2.17.so"}, {path: "lib64/libc.so.6", text: "LIBC"}, {path: "lib", link: "lib64"},
		{path: "sbin/ldconfig", text: "LDCONFIG", mode: 0o755}, {path: "usr/bin/getconf", text: "GETCONF", mode: 0o755}, {path: "usr/lib", link: "lib64"},
		{path: "usr/lib64/libm.so", link: "../../lib64/libm.so.6"}, {path: "lib64/libm.so.6", text: "LIBM"}, {path: "usr/lib64/libc.a", text: "STATIC"}, {path: "usr/lib64/crt1.o", text: "START"},
		{path: "usr/lib64/libfreebl3.so", link: "../../lib64/libfreebl3.so"}, {path: "lib64/libfreebl3.so", text: "FREEBL"},
		{path: "usr/lib64/gconv/UTF-16.so", text: "GCONV"}, {path: "usr/lib64/locale/locale-archive.tmpl", text: "ARCHIVE"}, {path: "usr/include/stdio.h", text: "HEADER"},
		{path: "usr/share/zoneinfo", link: "../../../../share/zoneinfo"}, {path: "etc/ld.so.conf", text: "include"}, {path: "var/db/Makefile", text: "all:"}},
	"2.28": {{path: "lib64/ld-2.28.so", text: "LOADER", mode: 0o755}, {path: "lib64/ld-linux-x86-64.so.2", link: "ld-2.28.so"}, {path: "lib64/libc.so.6", text: "LIBC"}, {path: "lib", link: "lib64"},
		{path: "sbin/ldconfig", text: "LDCONFIG", mode: 0o755}, {path: "bin/getconf", text: "GETCONF", mode: 0o755}, {path: "bin/ld.so", link: "../lib64/ld-2.28.so"}, {path: "usr/bin", link: "../bin"},
		{path: "usr/lib", link: "lib64"}, {path: "usr/lib64/libm.so", link: "../../lib64/libm.so.6"}, {path: "lib64/libm.so.6", text: "LIBM"}, {path: "lib64/locale/C.utf8/LC_CTYPE", text: "CTYPE"},
		{path: "lib64/gconv/UTF-16.so", text: "GCONV"}, {path: "lib64/libfreebl3.so", text: "FREEBL"}, {path: "share/locale/de/LC_MESSAGES/libc.mo", text: "DE"}, {path: "usr/share/locale", link: "../../share/locale"}},
	"2.39": {{path: "usr/lib64/ld-linux-x86-64.so.2", text: "LOADER", mode: 0o755}, {path: "usr/lib64/libc.so.6", text: "LIBC"}, {path: "usr/lib", link: "lib64"}, {path: "lib64", link: "usr/lib64"},
		{path: "lib", link: "usr/lib64"}, {path: "bin", link: "usr/bin"}, {path: "sbin", link: "usr/sbin"}, {path: "usr/sbin/ldconfig", text: "LDCONFIG", mode: 0o755},
		{path: "usr/bin/getconf", text: "GETCONF", mode: 0o755}, {path: "usr/bin/ld.so", link: "../lib64/ld-linux-x86-64.so.2"}, {path: "usr/lib64/libm.so", link: "libm.so.6"},
		{path: "usr/lib64/libm.so.6", text: "LIBM"}, {path: "usr/lib64/libfreebl3.so", text: "FREEBL"}, {path: "usr/lib64/locale/C.utf8/LC_CTYPE", text: "CTYPE"},
		{path: "usr/lib64/locale/locale-archive.real", text: "ARCHIVE"}, {path: "usr/lib64/gconv/UTF-16.so", text: "GCONV"}, {path: "usr/lib64/.build-id/a", text: "ID"}},
}

func baseChannel() []*testPkg {
	return []*testPkg{
		{name: "bash", version: "5.2", depends: []string{"readline", "__glibc >=2.17,<3.0.a0"}, files: []testFile{{path: "bin/bash", text: "SHELL " + holder + "\x00", mode: 0o755, prefix: holder, binary: true}}},
		{name: "readline", version: "8", files: []testFile{{path: "lib/libreadline.so.8", text: "READLINE"}}},
		{name: "coreutils", version: "9", files: []testFile{{path: "bin/env", text: "ENV", mode: 0o755}}},
		{name: "ca-certificates", subdir: "noarch", noarch: "generic", depends: []string{"__unix"}, files: []testFile{{path: "ssl/cacert.pem", text: "PEM"}, {path: "ssl/cert.pem", link: "cacert.pem"}}},
		{name: "tzdata", subdir: "noarch", noarch: "generic", files: []testFile{{path: "share/zoneinfo/UTC", text: "TZ"}}},
		{name: "libgcc-ng", version: "12", files: []testFile{{path: "lib/libgcc_s.so.1", text: "GCC"}}},
	}
}

// hosts returns conda-forge's sysroot without a C library, which uses the host's.
func hosts() *testPkg {
	return &testPkg{name: "sysroot_linux-64", version: "9999", subdir: "noarch", noarch: "generic", depends: []string{"__linux"}, record: map[string]any{"track_features": "host"},
		files: []testFile{{path: "bin/.sysroot_linux-64-post-link.sh", text: "ln -s /usr"}}}
}

func installBase(t *testing.T, s *store.Store, version string, pkgs ...*testPkg) (*result, error) {
	t.Helper()
	o := Options{Request: Request{Channels: []string{newChannel(t, pkgs...)}}, Subdir: "linux-64"}
	plan, err := ResolveBase(t.Context(), &exports.Export{}, version, o)
	if err != nil {
		return nil, err
	}
	return carryOut(t, s, plan, o)
}

func TestBase(t *testing.T) {
	for version, files := range sysrootLayouts {
		r, err := installBase(t, condatest.NewStore(t), "", append(baseChannel(), sysrootPkg(version, files...), hosts())...)
		if err != nil {
			t.Fatal(version, err)
		}
		if r.plan.Glibc() != version {
			t.Errorf("Glibc() = %q; want %q", r.plan.Glibc(), version)
		}
		for name, want := range map[string]string{
			"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib", "usr/lib64": "lib", "usr/bin/sh": "bash",
			"usr/lib/libc.so.6": "LIBC", "usr/lib/libm.so": "libm.so.6", "usr/lib/libm.so.6": "LIBM", "usr/lib/libfreebl3.so": "FREEBL", "usr/sbin/ldconfig": "LDCONFIG", "usr/bin/getconf": "GETCONF", "usr/lib/gconv/UTF-16.so": "GCONV",
			"usr/bin/bash": "SHELL /usr" + strings.Repeat("\x00", len(holder)-len("/usr")+1), "usr/bin/env": "ENV", "usr/lib/libreadline.so.8": "READLINE", "usr/lib/libgcc_s.so.1": "GCC", "usr/share/zoneinfo/UTC": "TZ",
			"etc/ssl/certs/ca-certificates.crt": "../../../usr/ssl/cacert.pem", "etc/ssl/cert.pem": "../../usr/ssl/cacert.pem", "etc/pki/tls/certs/ca-bundle.crt": "../../../../usr/ssl/cacert.pem", "etc/os-release": "../usr/lib/os-release",
		} {
			if e, ok := r.files[name]; !ok || e.Data+e.Linkname != want {
				t.Errorf("%s: %s is %q; want %q", version, name, e.Data, want)
			}
		}
		loader := r.files["usr/lib/ld-linux-x86-64.so.2"]
		if loader.Header != nil && loader.Typeflag == tar.TypeSymlink {
			loader = r.files["usr/lib/"+loader.Linkname]
		}
		if loader.Data != "LOADER" || loader.Mode != 0o755 {
			t.Errorf("%s: the loader is %q", version, loader.Data)
		}
		if l := r.files["usr/bin/ld.so"]; l.Header != nil && r.files[path.Join("usr/bin", l.Linkname)].Data != "LOADER" {
			t.Errorf("%s: ld.so links to %s", version, l.Linkname)
		}
		for name, e := range r.files {
			if slices.Contains([]string{"STATIC", "START", "HEADER", "ARCHIVE", "ID", "DE", "include", "all:", "--sysroot"}, e.Data) || strings.Contains(name, "sysroot/") {
				t.Errorf("%s: %s is in the image", version, name)
			}
		}
		if utf8 := slices.Contains(r.env.Env, "LANG=C.UTF-8"); utf8 != (version != "2.17") || r.env.Path != "" {
			t.Errorf("%s: variables %q, path %q", version, r.env.Env, r.env.Path)
		}
		if e := r.files["tmp"]; e.Header == nil || e.Mode != 0o1777 {
			t.Errorf("%s: /tmp is %+v", version, e.Header)
		}
		if n := r.notes(); n != "" {
			t.Errorf("%s: notes %q", version, n)
		}
		if _, ok := r.files["usr/conda-meta/sysroot_linux-64-"+version+"-0.json"]; !ok {
			t.Errorf("%s: no record of the sysroot", version)
		}
	}
}

// TestBaseDigest checks that bases in two stores, from two channels, have the same digest.
func TestBaseDigest(t *testing.T) {
	var before string
	for range 2 {
		r, err := installBase(t, condatest.NewStore(t), "2.39", append(baseChannel(), sysrootPkg("2.39", sysrootLayouts["2.39"]...), sysrootPkg("2.17", sysrootLayouts["2.17"]...))...)
		testenv.Check(t, err)
		if got := condatest.LayerDigests(t, r.layers); before != "" && got != before {
			t.Errorf("layers %s and %s", before, got)
		} else {
			before = got
		}
	}
}

// TestBaseWithout builds a base from a channel with only the necessary packages.
func TestBaseWithout(t *testing.T) {
	r, err := installBase(t, condatest.NewStore(t), "", append(baseChannel()[:2], sysrootPkg("2.39", sysrootLayouts["2.39"]...))...)
	testenv.Check(t, err)
	if e := r.files["usr/bin/env"]; !strings.HasPrefix(e.Data, "#!/bin/bash\n") || e.Mode != 0o755 {
		t.Errorf("env is %q", e.Data)
	}
	if _, ok := r.files["etc/ssl/cert.pem"]; ok {
		t.Error("the base has certificates")
	}
	for _, n := range []string{"coreutils", "ca-certificates", "tzdata"} {
		if !strings.Contains(r.notes(), "the channels have no "+n) {
			t.Errorf("notes %q do not name %s", r.notes(), n)
		}
	}
}

// TestEnvScript runs the replacement of env for channels without coreutils.
func TestEnvScript(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "env")
	testenv.Write(t, file, []byte(envScript))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"echo", "a  b", "*"}, "a  b *\n"},
		{[]string{"A=1", "B=x y", "sh", "-c", "echo $A $B"}, "1 x y\n"},
		{[]string{"-S", "A=1 sh -c", `echo $A "$0"`, "*"}, "1 *\n"},
		{[]string{"A=one two"}, "A=one two\n"},
	} {
		cmd := exec.Command(bash, append([]string{file}, c.args...)...)
		cmd.Env = []string{"PATH=/usr/bin:/bin"}
		out, err := cmd.Output()
		if err != nil || !strings.Contains(string(out), c.want) {
			t.Errorf("env %q printed %q, %v; want %q", c.args, out, err, c.want)
		}
	}
}

// FuzzSysroot checks that files and link targets stay below the prefix.
func FuzzSysroot(f *testing.F) {
	for _, files := range sysrootLayouts {
		for _, x := range files {
			f.Add("x86_64-conda-linux-gnu/sysroot/"+x.path, x.link)
		}
	}
	f.Add("a/sysroot/lib/../../x", "../../../../../../etc/shadow")
	f.Fuzz(func(t *testing.T, src, link string) {
		src, err := input.CleanPath(src)
		dst := sysrootPath(src)
		if err != nil || dst == "" {
			return
		}
		if top, _, _ := strings.Cut(dst, "/"); !filepath.IsLocal(dst) || !slices.Contains([]string{"bin", "sbin", "lib", "libexec"}, top) {
			t.Errorf("sysrootPath(%q) = %q", src, dst)
		}
		p := &pkg{dsts: map[string]string{src: dst}}
		if to := p.relink(src, link); to != "" && !path.IsAbs(link) && !filepath.IsLocal(path.Join(path.Dir(dst), to)) {
			t.Errorf("relink(%q, %q) = %q, which leads out of the prefix", src, link, to)
		}
	})
}

func TestBaseRefused(t *testing.T) {
	libc := sysrootPkg("2.39", sysrootLayouts["2.39"]...)
	newer := baseChannel()
	newer[0].depends = []string{"__glibc >=2.40"}
	wide := baseChannel()
	wide[1].files[0].path = "lib64/libreadline.so.8"
	for _, c := range []struct {
		name, version, want string
		pkgs                []*testPkg
	}{
		{"no sysroot", "", "--from conda: the channels have no C library for linux-64 (sysroot_linux-64)", baseChannel()},
		{"the host's", "", "--from conda: the channels have no C library for linux-64", append(baseChannel(), hosts())},
		{"no shell", "", "--from conda: the channels have no shell for linux-64 (bash)", append(baseChannel()[2:], libc)},
		{"no such version", "2.28", "glibc 2.28 is not in the channels for linux-64; available: 2.39", append(baseChannel(), libc)},
		{"no version", "latest", "--from conda:latest: not a glibc version", append(baseChannel(), libc)},
		{"too old", "", "bash 5.2 needs __glibc >=2.40", append(newer, libc)},
		{"no loader", "", "the package has no ld-linux-x86-64.so.2", append(baseChannel(), sysrootPkg("2.39", testFile{path: "lib64/libc.so.6", text: "LIBC"}))},
		{"nothing", "", "the package has no libc.so.6", append(baseChannel(), sysrootPkg("2.39"))},
		{"lib64 of another", "", "has files in lib64", append(wide, libc)},
	} {
		s := condatest.NewStore(t)
		_, err := installBase(t, s, c.version, c.pkgs...)
		refused(t, s, c.name, err, c.want)
	}
	_, err := ResolveBase(t.Context(), &exports.Export{}, "", Options{Subdir: "linux-64"})
	refused(t, nil, "no channel", err, "name one with --channel")
}

// TestSysrootLinks checks links whose target is outside the image: they are omitted, or keep
// a target inside the image.
func TestSysrootLinks(t *testing.T) {
	files := append(slices.Clone(sysrootLayouts["2.39"]),
		testFile{path: "usr/lib64/out", link: "../../../../../../etc/shadow"}, testFile{path: "usr/lib64/self", link: "self"}, testFile{path: "usr/lib64/dir", link: "../lib64"},
		testFile{path: "usr/lib64/abs", link: "/etc/hosts"}, testFile{path: "usr/lib64/header", link: "../include/stdio.h"}, testFile{path: "usr/lib64/other", link: "../../../../share/zoneinfo/UTC"})
	r, err := installBase(t, condatest.NewStore(t), "", append(baseChannel(), sysrootPkg("2.39", files...))...)
	testenv.Check(t, err)
	for name, want := range map[string]string{"out": "", "self": "", "dir": "", "header": "", "abs": "/etc/hosts", "other": "../share/zoneinfo/UTC"} {
		e, ok := r.files["usr/lib/"+name]
		if ok != (want != "") || (ok && e.Linkname != want) {
			t.Errorf("%s is %+v; want a link to %q", name, e.Header, want)
		}
	}
}

func TestChooseSysroot(t *testing.T) {
	rec := func(version, build, origin string, number int, features ...string) *solve.Record {
		return &solve.Record{Name: "sysroot_linux-64", Version: version, Build: build, BuildNumber: number, TrackFeatures: features, Origin: origin}
	}
	all := []*solve.Record{rec("2.12", "a", "x", 9), rec("2.39", "features", "x", 9, "f"), rec("2.39", "plain", "x", 1), rec("2.39", "old", "x", 0), rec("2.9", "b", "x", 0), rec("9999", "host", "x", 1),
		rec("3.0", "c", "x", 1), rec("2.17.1", "d", "x", 1), rec("2.40", "second", "y", 1), {Name: "sysroot_linux-aarch64", Version: "2.41", Origin: "x"}}
	for _, c := range []struct{ version, want string }{{"", "plain"}, {"2.12", "a"}, {"2.9", "b"}, {"2.40", ""}, {"9999", ""}} {
		r, err := chooseSysroot(all, c.version, "linux-64")
		if (err == nil && r.Build != c.want) || (err != nil && c.want != "") {
			t.Errorf("chooseSysroot(%q) = %+v, %v; want %q", c.version, r, err, c.want)
		}
	}
}
