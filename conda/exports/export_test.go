package exports

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/solve"
)

const (
	md5A = "2af107b2e8f36bb0fcf3a9cde2b54225"
	shaA = "84f28e19394e6834ba811bcb3c1a55ed84f28e19394e6834ba811bcb3c1a55ed"
)

const header = "# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n# platform: linux-64\n"

func TestRead(t *testing.T) {
	entry := func(line int, name, version, build string) Entry {
		return Entry{Line: line, Name: name, Version: version, Build: build}
	}
	url := func(line int, url, md5, sha string) Entry {
		return Entry{Line: line, Name: "bzip2", Version: "1.0.8", Build: "h5eee18b_6", URL: url, MD5: md5, SHA256: sha}
	}
	const u = "https://conda.example/linux-64/bzip2-1.0.8-h5eee18b_6.conda"
	for _, c := range []struct {
		name, in string
		want     *Export
	}{
		{"list", header + "_libgcc_mutex=0.1=main\nzlib=1.2.13=h5eee18b_1\n",
			&Export{Subdir: "linux-64", Entries: []Entry{entry(4, "_libgcc_mutex", "0.1", "main"), entry(5, "zlib", "1.2.13", "h5eee18b_1")}}},
		{"newer header", "# platform: linux-aarch64\n# created-by: conda 26.7.1\nzlib=1.2.13=h5eee18b_1\n",
			&Export{Subdir: "linux-aarch64", Entries: []Entry{entry(3, "zlib", "1.2.13", "h5eee18b_1")}}},
		{"no header, no newline at the end", "zlib=1.2.13=h5eee18b_1", &Export{Entries: []Entry{entry(1, "zlib", "1.2.13", "h5eee18b_1")}}},
		{"without builds", "zlib=1.2.13\nxz==5.4.6\n", &Export{Entries: []Entry{entry(1, "zlib", "1.2.13", ""), entry(2, "xz", "5.4.6", "")}}},
		{"two equals signs", "zlib==1.2.13=h_1", &Export{Entries: []Entry{entry(1, "zlib", "1.2.13", "h_1")}}},
		{"channel", "conda-forge::zlib=1.2.13=h_1", &Export{Entries: []Entry{{Line: 1, Channel: "conda-forge", Name: "zlib", Version: "1.2.13", Build: "h_1"}}}},
		{"channel with ~", "https://c.example/~me::zlib=1.2.13", &Export{Entries: []Entry{{Line: 1, Channel: "https://c.example/~me", Name: "zlib", Version: "1.2.13"}}}},
		{"channel by URL", "https://c.example/x::zlib=1.2.13=h_1", &Export{Entries: []Entry{{Line: 1, Channel: "https://c.example/x", Name: "zlib", Version: "1.2.13", Build: "h_1"}}}},
		{"CRLF", "# platform: linux-64\r\nzlib=1.2.13=h_1\r\n", &Export{Subdir: "linux-64", Entries: []Entry{entry(2, "zlib", "1.2.13", "h_1")}}},
		{"byte order mark", "\ufeff# platform: linux-64\nzlib=1.2.13=h_1\n", &Export{Subdir: "linux-64", Entries: []Entry{entry(2, "zlib", "1.2.13", "h_1")}}},
		{"byte order mark before a package", "\ufeffzlib=1.2.13=h_1", &Export{Entries: []Entry{entry(1, "zlib", "1.2.13", "h_1")}}},
		{"blank lines and spaces", "\n  \t\n  zlib = 1.2.13 = h_1 \n\n", &Export{Entries: []Entry{entry(3, "zlib", "1.2.13", "h_1")}}},
		{"epoch and local version", "x=1!2.0=0\npytorch=2.1.2+cu118=py3.8_0\n", &Export{Entries: []Entry{entry(1, "x", "1!2.0", "0"), entry(2, "pytorch", "2.1.2+cu118", "py3.8_0")}}},
		{"upper case", "PyYAML=6.0=py_0", &Export{Entries: []Entry{entry(1, "pyyaml", "6.0", "py_0")}}},

		{"explicit, no digest", header + "@EXPLICIT\n" + u, &Export{Subdir: "linux-64", Explicit: true, Entries: []Entry{url(5, u, "", "")}}},
		{"explicit, md5", "@EXPLICIT\n" + u + "#" + md5A, &Export{Explicit: true, Entries: []Entry{url(2, u, md5A, "")}}},
		{"explicit, sha256", "@EXPLICIT\n" + u + "#" + shaA, &Export{Explicit: true, Entries: []Entry{url(2, u, "", shaA)}}},
		{"explicit, sha256 with its name", "@EXPLICIT\n" + u + "#sha256:" + shaA, &Export{Explicit: true, Entries: []Entry{url(2, u, "", shaA)}}},
		{"explicit, old format", "@EXPLICIT\nhttps://conda.example/noarch/bzip2-1.0.8-h5eee18b_6.tar.bz2", &Export{Explicit: true,
			Entries: []Entry{url(2, "https://conda.example/noarch/bzip2-1.0.8-h5eee18b_6.tar.bz2", "", "")}}},
		{"explicit, relative path", " @EXPLICIT \r\npkgs/bzip2-1.0.8-h5eee18b_6.conda\r\n", &Export{Explicit: true, Entries: []Entry{url(2, "pkgs/bzip2-1.0.8-h5eee18b_6.conda", "", "")}}},
		{"explicit, only a file name", "@EXPLICIT\nbzip2-1.0.8-h5eee18b_6.conda", &Export{Explicit: true, Entries: []Entry{url(2, "bzip2-1.0.8-h5eee18b_6.conda", "", "")}}},
		{"explicit, token", "@EXPLICIT\nhttps://conda.example/t/to-ken/ch/linux-64/bzip2-1.0.8-h5eee18b_6.conda", &Export{Explicit: true,
			Entries: []Entry{url(2, "https://conda.example/t/to-ken/ch/linux-64/bzip2-1.0.8-h5eee18b_6.conda", "", "")}}},
		{"explicit, dashes in the name", "@EXPLICIT\nfile:///c/noarch/a-b-c-1.0-0.conda", &Export{Explicit: true,
			Entries: []Entry{{Line: 2, Name: "a-b-c", Version: "1.0", Build: "0", URL: "file:///c/noarch/a-b-c-1.0-0.conda"}}}},
		{"explicit, quoted epoch", "@EXPLICIT\nhttps://c/noarch/a-1%212.0%2Bcpu-0.conda", &Export{Explicit: true,
			Entries: []Entry{{Line: 2, Name: "a", Version: "1!2.0+cpu", Build: "0", URL: "https://c/noarch/a-1%212.0%2Bcpu-0.conda"}}}},
		{"explicit, @EXPLICIT below the URL", u + "\n@EXPLICIT\n", &Export{Explicit: true, Entries: []Entry{url(1, u, "", "")}}},
	} {
		c.want.File = "env.txt"
		c.want.Format = "conda list -e"
		if c.want.Explicit {
			c.want.Format = "@EXPLICIT"
		}
		got, err := Read(strings.NewReader(c.in), "env.txt", ReadOptions{})
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: Read = %+v, %v; want %+v", c.name, got, err, c.want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	many := strings.Repeat("a b\n", 30)
	for _, c := range []struct {
		name, in string
		line     int
		want     []string
	}{
		{"a bad line after a pip row", "torch=2.1=pypi_0\nnon sense\n", 2, []string{`"non sense": not of the form`}},
		{"all bad lines", "zlib=1=0\na b\nx/\n", 2, []string{`"a b": not of the form name=version=build; line 3: "x/"`}},
		{"very many bad lines", many, 1, []string{"and 10 more lines"}},
		{"duplicate package", "zlib=1.2.13=h_1\nxz=1=0\nZlib=1.2.12=h_1\n", 3, []string{"duplicate package zlib, already in line 1"}},
		{"duplicate package, explicit", "@EXPLICIT\nhttps://c/noarch/a-1-0.conda\nhttps://c/noarch/a-2-0.conda", 3, []string{"duplicate package a, already in line 2"}},
		{"empty", "", 1, []string{"lists no package"}},
		{"only comments", header, 3, []string{"lists no package"}},
		{"path as a name", "../x=1=0", 1, []string{`"/" is valid in a channel only`}},
		{"path as a build", "x=1=a/b", 1, []string{`"/" is valid in a channel only`}},
		{"number as a name", "7=1=0", 1, []string{"the name has no letter"}},
		{"URL without @EXPLICIT", "https://c/noarch/a-1-0.conda", 1, []string{"@EXPLICIT"}},
		{"list below @EXPLICIT", "@EXPLICIT\nzlib=1.2.13=h_1", 2, []string{"not the URL of a package"}},
		{"list above @EXPLICIT", "zlib=1.2.13=h_1\n@EXPLICIT\nhttps://c/noarch/a-1-0.conda", 1, []string{"not the URL of a package"}},
		{"wheel", "@EXPLICIT\nhttps://c/a-1-py3-none-any.whl", 2, []string{"not the URL of a package"}},
		{"short digest", "@EXPLICIT\nhttps://c/noarch/a-1-0.conda#abc", 2, []string{"not the URL of a package"}},
		{"placeholder of a token", "@EXPLICIT\nhttps://c/t/<TOKEN>/x/linux-64/a-1-0.conda", 2, []string{"replace <TOKEN> by yours"}},
		{"file name", "@EXPLICIT\nhttps://c/noarch/a-1.conda", 2, []string{"not name-version-build"}},
		{"bad quoting", "@EXPLICIT\nhttps://c/noarch/a-1%2-0.conda", 2, []string{"reading the URL"}},
		{"long line", "zlib=1=0\n" + strings.Repeat("x", maxLine+1), 2, []string{"line longer than"}},
		{"large", strings.Repeat("#"+strings.Repeat("x", 1022)+"\n", maxExport>>10) + "#more\nzlib=1=0\n", maxExport>>10 + 2, []string{"larger than"}},
	} {
		e, err := Read(strings.NewReader(c.in), "dir/env.txt", ReadOptions{})
		var le *LineError
		if e != nil || !errors.As(err, &le) {
			t.Errorf("%s: Read = %v, %v; want a LineError", c.name, e, err)
			continue
		}
		if head := fmt.Sprintf("dir/env.txt:%d: ", c.line); !strings.HasPrefix(err.Error(), head) {
			t.Errorf("%s: Read = %.200q; want it to begin with %q", c.name, err, head)
		}
		found := false
		for _, w := range c.want {
			found = found || strings.Contains(err.Error(), w)
		}
		if !found {
			t.Errorf("%s: Read = %.300q; want %q in it", c.name, err, c.want)
		}
	}
}

func TestReadBroken(t *testing.T) {
	gone := errors.New("the disk is gone")
	if _, err := Read(io.MultiReader(strings.NewReader("a=1=0\n"), iotest.ErrReader(gone)), "f", ReadOptions{}); !errors.Is(err, gone) {
		t.Errorf("Read = %v; want the reader's error", err)
	}
}

func TestEntryString(t *testing.T) {
	for _, c := range []struct {
		in   Entry
		want string
	}{
		{Entry{Name: "a", Version: "1", Build: "0"}, "a=1=0"},
		{Entry{Name: "a", Version: "1"}, "a=1"},
		{Entry{Name: "a", Version: "1", URL: "https://c/a-1-0.conda"}, "https://c/a-1-0.conda"},
	} {
		if got := c.in.String(); got != c.want {
			t.Errorf("String(%+v) = %q; want %q", c.in, got, c.want)
		}
	}
}

func TestSubdir(t *testing.T) {
	for _, c := range []struct{ os, arch, want string }{
		{"linux", "amd64", "linux-64"}, {"linux", "arm64", "linux-aarch64"}, {"linux", "ppc64le", "linux-ppc64le"},
		{"linux", "mips", ""}, {"windows", "amd64", ""},
	} {
		got, err := Subdir(v1.Platform{OS: c.os, Architecture: c.arch})
		if got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("Subdir(%s/%s) = %q, %v; want %q", c.os, c.arch, got, err, c.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, s := range []string{
		header + "zlib=1.2.13=h_1\n", "a=1=pypi_0\r\n", "\ufeffconda-forge::x=1!2.0+cu118=0", "@EXPLICIT\nhttps://c/noarch/a-1-0.conda#" + md5A,
		"@EXPLICIT\npkgs/a-1-0.tar.bz2#sha256:" + shaA, "https://c/t/<TOKEN>/a-1-0.conda\n@EXPLICIT", "a==1==0", "=", "::=1=", "x264 >= 1!152 # y", "*/noarch::a[version='>=1,<2',build=b*]", "blas=*=openblas", "7 8 9", "@EXPLICIT\n#", "a\x00=1=0",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		e, err := Read(strings.NewReader(in), "f", ReadOptions{})
		if (e == nil) != (err != nil) {
			t.Fatalf("Read = %v, %v; want either an export or an error", e, err)
		}
		if err != nil {
			var le *LineError
			if !errors.As(err, &le) || le.Line < 1 || le.Line > strings.Count(in, "\n")+2 {
				t.Fatalf("Read = %v; want a LineError with a line number of the input", err)
			}
			return
		}
		names := map[string]bool{}
		for _, x := range e.Entries {
			if names[x.Name] || !solve.IsName(x.Name) || !solve.IsVersion(x.Version) || isPip(x.Build) || x.Line < 1 {
				t.Fatalf("Read(%q) has entry %+v", in, x)
			}
			if e.Explicit != (x.URL != "") {
				t.Fatalf("Read(%q): explicit %v, entry %+v", in, e.Explicit, x)
			}
			names[x.Name] = true
		}
		// Writing the entries and reading them again gives the same entries.
		if e.Format == "conda list -e" && len(e.Entries) > 0 {
			var b strings.Builder
			for _, x := range e.Entries {
				if x.Channel != "" {
					b.WriteString(x.Channel + "::")
				}
				b.WriteString(x.String() + "\n")
			}
			again, err := Read(strings.NewReader(b.String()), "f", ReadOptions{})
			if err != nil {
				t.Fatalf("Read of the entries of Read(%q): %v", in, err)
			}
			for i := range e.Entries {
				e.Entries[i].Line = i + 1
			}
			if !reflect.DeepEqual(again.Entries, e.Entries) {
				t.Fatalf("Read of the entries of Read(%q) = %+v; want %+v", in, again.Entries, e.Entries)
			}
		}
	})
}

// TestRows reads each row as a line of a list and as a dependency of an environment.
func TestRows(t *testing.T) {
	entry := func(channel, name, version, build string) Entry {
		return Entry{Channel: channel, Name: name, Version: version, Build: build}
	}
	for _, c := range []struct {
		row  string
		want Entry // the entry; empty: a spec
	}{
		{"x264>=1!152", Entry{}},
		{"x264=1!152.20180806=h14c3975_0", entry("", "x264", "1!152.20180806", "h14c3975_0")},
		{"python >= 3.8", Entry{}},
		{"python >= 3.8, < 3.12", Entry{}},
		{"python 3.8.*", Entry{}},
		{"zlib = 1.2.13 = h_1", entry("", "zlib", "1.2.13", "h_1")},
		{"zlib 1.2.13 h_1", entry("", "zlib", "1.2.13", "h_1")},
		{"conda-forge::numpy", Entry{}},
		{"conda-forge/label/dev::numpy>=1", Entry{}},
		{"conda-forge/noarch::six=1.16.0=pyh6c4a22f_0", entry("conda-forge/noarch", "six", "1.16.0", "pyh6c4a22f_0")},
		{"*/noarch::six=1.16.0=pyh6c4a22f_0", Entry{}},
		{"noarch::six", Entry{}},
		{"numpy[version='>=1.8,<2',build=py*]", Entry{}},
		{"numpy[version=1.8, build=py_0]", entry("", "numpy", "1.8", "py_0")},
		{"numpy[version=1.8,build=py_0,channel=c]", entry("c", "numpy", "1.8", "py_0")},
		{"numpy[version=1.8,build=py_0,md5=00]", Entry{}},
		{"numpy=1.8[build_number='>=3']", Entry{}},
		{"blas=*=openblas", Entry{}},
		{"pytorch=1.8.*=*cuda*", Entry{}},
		{"pytorch=1.8.1=*cuda*", Entry{}},
	} {
		for _, file := range []struct{ name, text string }{{"env.txt", c.row}, {"requirements-conda.txt", "conda-forge::a\n" + c.row}, {"environment.yml", "dependencies:\n- " + strconv.Quote(c.row)}} {
			e, err := Read(strings.NewReader(file.text), file.name, ReadOptions{})
			if err != nil {
				t.Errorf("%s: %q: %v", file.name, c.row, err)
				continue
			}
			var got Entry
			if len(e.Entries) > 0 {
				got = e.Entries[0]
				got.Line = 0
			}
			if n := len(e.Specs); got != c.want || (c.want == Entry{} && e.Specs[n-1].Text != c.row) || len(e.Pip) > 0 {
				t.Errorf("%s: %q: entry %+v, specs %v, pip %v; want entry %+v or a spec", file.name, c.row, got, e.Specs, e.Pip, c.want)
			}
		}
	}
}

// TestRequirementsOfConda reads files whose names are pip's and whose rows are conda's.
func TestRequirementsOfConda(t *testing.T) {
	for _, row := range []string{"conda-forge::numpy", "conda-forge::numpy>=1.2", "numpy[version='>=1.2']", "python 3.8.*", "blas=*=openblas", "x264 * h1*"} {
		e, err := Read(strings.NewReader("scipy\n"+row+"\n"), "requirements.txt", ReadOptions{})
		if err != nil || e.Format != "conda list -e" || len(e.Specs) != 2 {
			t.Errorf("requirements.txt with %q: %+v, %v; want two specs of conda", row, e, err)
		}
	}
	e, err := Read(strings.NewReader("scipy\nnumpy[x] >= 1.2\nb @ file:///x::y\n"), "requirements.txt", ReadOptions{})
	if err != nil || len(e.Pip) != 3 {
		t.Errorf("requirements.txt of pip: %+v, %v; want three requirements", e, err)
	}
}

func TestReadRefusesPalettes(t *testing.T) {
	for _, in := range []string{"1b9e77\nd95f02\nffffff\n", "#1b9e77\n1b9e77ff\n", "red #ff0000\ngreen\t#00ff00\n", "255 0 0\n0 128 0 green\n", "JASC-PAL\n0100\n2\n255 0 0\n1 2 3\n", "GIMP Palette\n#\n 0 0 0 black\n"} {
		for _, file := range []string{"palette.txt", "requirements.txt"} {
			if e, err := Read(strings.NewReader(in), file, ReadOptions{}); err == nil && (file == "palette.txt" || len(e.Pip) > 1) {
				t.Errorf("Read(%q) as %s = %+v; want an error", in, file, e)
			}
		}
	}
	if e, err := Read(strings.NewReader("facade\ndecade\n"), "env.txt", ReadOptions{}); err != nil || len(e.Specs) != 2 {
		t.Errorf("Read of names with hexadecimal digits only = %+v, %v; want two specs", e, err)
	}
}
