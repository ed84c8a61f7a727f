package definition

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"hpcc/testdata/helpers/testenv"
)

func TestMain(m *testing.M) { testenv.Run(m) }

// TestParse compares the Dockerfiles of definition files. A line that begins with "~" must be in
// the Dockerfile, others must be equal to it.
func TestParse(t *testing.T) {
	dir := t.TempDir()
	testenv.Check(t, os.MkdirAll(filepath.Join(dir, "data"), 0o755))
	for _, name := range []string{"a.txt", "b.txt", "with space"} {
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	const head = "Bootstrap: docker\nFrom: debian:12\n"
	for _, tt := range []struct {
		name, in string
		args     map[string]string
		want     []string // parts of the Dockerfile
		wantErr  string
	}{
		{"header", "bootstrap:docker\nFROM: debian:12 # comment\n", nil, []string{"FROM debian:12 AS stage-1\nUSER root\nWORKDIR /\n"}, ""},
		{"registry", "Bootstrap: docker\nRegistry: quay.io\nNamespace: lab\nFrom: x:1\n", nil, []string{"FROM quay.io/lab/x:1 AS"}, ""},
		{"post", head + "%post\n    echo $HOME\n", nil, []string{"RUN <<'HPCC'\n#!/bin/sh -e\nmkdir -p /.singularity.d/env; export", "set -x\n    echo $HOME\nHPCC\n"}, ""},
		{"post of another program", head + "%post -c /usr/bin/python3\nprint(1)\n", nil, []string{"RUN <<'HPCC'\n#!/usr/bin/python3\nprint(1)\nHPCC\n"}, ""},
		{"delimiter", head + "%post\nHPCC\n", nil, []string{"RUN <<'HPCC_2'\n", "\nHPCC\nHPCC_2\n"}, ""},
		{"empty post", head + "%post\n# nothing\n", nil, []string{"WORKDIR /\nCOPY --chmod=755 <<'HPCC' /.singularity.d/Singularity\n"}, ""},
		{"two posts", head + "%post\na\n%post\nb\n", nil, []string{"a\nb\nHPCC"}, ""},
		{"files", head + "%files\n  a.txt /opt/\n data\n \"with space\" /x\n", nil, []string{
			"RUN --mount=type=bind,from=files-0,source=a.txt,target=/.singularity.d/files/a.txt mkdir -p /opt && cp -fLr /.singularity.d/files/a.txt /opt/\n",
			"source=data,target=/.singularity.d/files/data mkdir -p / && cp -fLr /.singularity.d/files/data /data\n",
			"RUN --mount=type=bind,from=files-0,target=/.singularity.d/files mkdir -p / && cp -fLr '/.singularity.d/files/with space' /x\n"}, ""},
		{"pattern", head + "%files\n*.txt /opt\n", nil, []string{"source=a.txt,", "source=b.txt,"}, ""},
		{"files of a stage", "Bootstrap: docker\nFrom: golang\nStage: Build\n%post\nmake\n\nBootstrap: scratch\n%files from build\n/bin/app /app\n", nil,
			[]string{"FROM golang AS build\n", "FROM scratch AS stage-2\n", `COPY --from=build ["/bin/app","/app"]`}, ""},
		{"pattern of a stage", "Bootstrap: docker\nFrom: golang\nStage: one\n\nBootstrap: docker\nFrom: debian\n%files from one\n/out/* /opt\n", nil,
			[]string{"RUN --mount=type=bind,from=one,source=/,target=/.singularity.d/files mkdir -p / && cp -fLr /.singularity.d/files/out/* /opt\n"}, ""},
		{"files in scratch", "Bootstrap: scratch\n%files\na.txt /\n", nil, []string{`COPY --from=files-0 ["a.txt","/"]`}, ""},
		{"environment", head + "%environment\n  export A=1\n", nil, []string{"COPY --chmod=755 <<'HPCC' /.singularity.d/env/90-environment.sh\n#!/bin/sh\n  export A=1\nHPCC\n", "/.singularity.d/actions/exec\n"}, ""},
		{"runscript", head + "%runscript\n  echo $@\n", nil, []string{"/.singularity.d/runscript\n#!/bin/sh\n\n  echo $@\nHPCC\nENTRYPOINT [\"/.singularity.d/runscript\"]\nCMD []\n"}, ""},
		{"test", head + "%test\ntrue\n", nil, []string{"/.singularity.d/test\n#!/bin/sh\n\ntrue\nHPCC\nRUN [\"/.singularity.d/test\"]\n"}, ""},
		{"help", head + "%help\nHelp\n", nil, []string{"/.singularity.d/runscript.help\nHelp\nHPCC\n"}, ""},
		{"labels", head + "%labels\n  A \"b c\" $d\n", nil, []string{`LABEL A="\"b c\" \$d"`, "/.singularity.d/labels.json\n"}, ""},
		{"templates", head + "%arguments\n V=1\n%post\necho {{ V }} {{W}}\n", map[string]string{"W": "two"}, []string{"echo 1 two\n"}, ""},
		{"template in the header", "Bootstrap: docker\nFrom: debian:{{ V }}\n%arguments\nV=\"12\"\n", map[string]string{"V": "13"}, []string{"FROM debian:13 AS"}, ""},

		{"template without value", head + "%post\necho {{ V }}\n", nil, nil, "x.def:4: the template {{ V }} has no value"},
		{"unused argument", head, map[string]string{"V": "1"}, nil, "does not use the build argument V"},
		{"setup", head + "\n%setup\ntouch x\n", nil, nil, "x.def:4: hpcc runs no programs on the host; copy files with %files"},
		{"startscript", head + "%startscript\nx\n", nil, nil, "x.def:3: hpcc has no services"},
		{"app", head + "%apprun foo\nx\n", nil, nil, "x.def:3: hpcc does not support apps"},
		{"unknown section", head + "%nosuch\nx\n", nil, nil, "x.def:3: unknown section %nosuch"},
		{"library", "Bootstrap: library\nFrom: x\n", nil, nil, "x.def:1: hpcc does not pull images of library"},
		{"debootstrap", "Bootstrap: debootstrap\nFrom: x\n", nil, nil, "x.def:1: hpcc does not support Bootstrap: debootstrap"},
		{"header that is not supported", "Bootstrap: docker\nOSVersion: 7\nFrom: x\n", nil, nil, "x.def:2: hpcc does not support osversion:"},
		{"no image", "Bootstrap: docker\n%post\nx\n", nil, nil, "x.def:1: the stage has no From"},
		{"missing file", head + "%files\n\nmissing /x\n", nil, nil, "x.def:5: copying missing: file does not exist"},
		{"pattern of directories", head + "%files\n/*/*/x /x\n", nil, nil, "x.def:4: copying /*/*/x: file does not exist; only the last part of a path can be a pattern"},
		{"missing stage", head + "%files from one\n/x\n", nil, nil, "x.def:3: no earlier stage is named one"},
		{"three paths", head + "%files\na b c\n", nil, nil, `x.def:4: "a b c" is not SOURCE [DESTINATION]`},
		{"interpreter", head + "%post -c sh\nx\n", nil, nil, "x.def:3: \"-c sh\" is not -c PROGRAM"},
		{"empty", "# nothing\n", nil, nil, "x.def:1: the file has no stage"},
		{"large", strings.Repeat("#", MaxSize+1), nil, nil, "larger than"},
		{"name of a label", head + "%labels\na=b c\n", nil, nil, "x.def:4: \"a=b\" is not the name of a label"},
	} {
		r, err := Parse("x.def", []byte(tt.in), Options{Dir: dir, Args: tt.args})
		if tt.wantErr != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("%s: error %v; want %q", tt.name, err, tt.wantErr)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		for _, part := range tt.want {
			if !strings.Contains(string(r.Text), part) {
				t.Errorf("%s: the Dockerfile lacks %q:\n%s", tt.name, part, r.Text)
			}
		}
	}
}

// TestOrigin checks the lines of the definition file for lines of the Dockerfile.
func TestOrigin(t *testing.T) {
	r, err := Parse("x.def", []byte("Bootstrap: docker\nFrom: debian\n\n%post\n  one\n  two\n%labels\n  A b\n"), Options{})
	testenv.Check(t, err)
	for line, text := range strings.Split(string(r.Text), "\n") {
		want := map[string][2]int{"FROM": {1, 1}, "RUN ": {4, 6}, "LABE": {8, 8}}
		for head, w := range want {
			if first, last := r.Origin(line + 1); strings.HasPrefix(text, head) && [2]int{first, last} != w {
				t.Errorf("Origin of %q = %d, %d; want %v", text, first, last, w)
			}
		}
	}
}

func TestIs(t *testing.T) {
	for text, want := range map[string]bool{
		"Bootstrap: docker\n": true, "# c\n\n  bootstrap : docker": true, "From: x\nBootstrap: docker": true, "%post\n": true,
		"FROM debian\n": false, "": false, "# syntax=x\nFROM debian": false, "ARG A=Bootstrap:": false,
	} {
		if got := Is([]byte(text)); got != want {
			t.Errorf("Is(%q) = %v; want %v", text, got, want)
		}
	}
}

// FuzzParse checks that each Dockerfile is one that BuildKit's parser reads, and that no section
// of a definition file becomes another instruction.
func FuzzParse(f *testing.F) {
	f.Add("Bootstrap: docker\nFrom: debian\n%arguments\nA=1\n%post\nx {{ A }}\n%labels\na b\n%files from x\n%runscript\nHPCC\n%test\n%help\nh\n%environment\nexport A=1")
	f.Add("Bootstrap: scratch\nStage: a\n\nBootstrap: scratch\n%files from a\n/x \"/y z\"\n")
	f.Fuzz(func(t *testing.T, in string) {
		r, err := Parse("x.def", []byte(in), Options{Dir: "/nonexistent"})
		if err != nil {
			return
		}
		d, err := parser.Parse(strings.NewReader(string(r.Text)))
		if err != nil {
			t.Fatalf("BuildKit's parser: %v\n%s", err, r.Text)
		}
		for _, n := range d.AST.Children {
			switch strings.ToUpper(n.Value) {
			case "FROM", "USER", "WORKDIR", "RUN", "COPY", "ENTRYPOINT", "CMD", "LABEL":
			default:
				t.Fatalf("instruction %s\n%s", n.Value, r.Text)
			}
		}
	})
}
