package front

import (
	"errors"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestApptainerOptions checks that each option of Apptainer's commands is either kept or refused
// with a reason, and that the lists of reasons name no others.
func TestApptainerOptions(t *testing.T) {
	read := optionsInCode(t, "apptainer*.go")
	read["--help"], read["--add-caps"], read["--drop-caps"], read["--keep-privs"], read["--no-privs"] = true, true, true, true, true // capabilities.go
	idle := map[[2]string]string{}
	for verb, list := range idleApptainer {
		for names, why := range list {
			idle[[2]string{verb, names}] = why
		}
	}
	checkIdle(t, "apptainer.md", idle)
	for verb, of := range map[string]struct {
		table   map[string]Role
		refused map[string][2]string
	}{
		"exec": {Programs()["apptainer"].options, refusedRunOptions}, "pull": {pullOptions, refusedPullOptions}, "build": {buildOptions, refusedBuildOptions},
	} {
		long := map[string]bool{}
		for name, role := range of.table {
			n := name
			for _, other := range []string{verbNames[verb+" "+name], longNames[name]} {
				if other != "" {
					n = other
					break
				}
			}
			long[n] = true
			if letters := map[string]string{"-s": "--shell", "-d": "--detached"}; letters[n] != "" {
				n = letters[n]
			}
			_, refused := of.refused[n]
			isIdle := role == idleFlag || role == idleValue
			if !refused && !isIdle && !read[n] {
				t.Errorf("%s %s is neither read nor refused", verb, name)
			}
		}
		for _, name := range slices.Sorted(maps.Keys(of.refused)) {
			if why := of.refused[name]; !long[name] || why[0] == "" {
				t.Errorf("%s: the reason for %s is empty, or the option does not exist", verb, name)
			}
		}
	}
	for option := range apptainerRunVariables {
		if _, ok := Programs()["apptainer"].options[option]; !ok && option != "--cwd" {
			t.Errorf("a variable sets %s, which does not exist", option)
		}
	}
}

// TestApptainer checks command lines of workflow tools: snakemake, nextflow and cwltool.
func TestApptainer(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	testenv.Check(t, os.WriteFile("x.def", nil, 0o600))
	for _, tt := range []struct {
		line []string
		want string // parts of the commands, in order
	}{
		{[]string{"pull", "--name", "abc.simg", "docker://debian:12"}, "pull debian:12; save debian:12 DIR/.abc.simg."},
		{[]string{"pull", "--force", "--name", "DIR/x.sif", "docker://debian:12"}, "pull debian:12; save debian:12 DIR/x.sif"},
		{[]string{"pull", "--nohttps", "docker://localhost:5000/a/b"}, "pull --plain-http localhost:5000/a/b; save localhost:5000/a/b DIR/b_latest.sif"},
		{[]string{"pull", "--arch", "arm64", "docker://alpine:3"}, "pull --platform=linux/arm64 alpine:3 apptainer/"},
		{[]string{"--quiet", "--silent", "exec", "--home", "DIR", "docker://debian", "sh", "-c", "true"}, "pull debian; run --action=exec --no-home --set-env=HOME=DIR --inject=TMP= debian -- sh -c true"},
		{[]string{"--quiet", "run", "--contain", "--ipc", "--cleanenv", "--no-eval", "--userns", "--home", "DIR:/out", "--mount=type=bind,source=DIR,target=/tmp", "--pwd", "/out", "--net", "--network", "none", "x", "cat"},
			"run --action=run --ipc --network=none --private-tmp --no-home --mount=type=tmpfs,target=/var/tmp,tmpfs-mode=1777 --bind=DIR:/out --bind=DIR:/tmp --cd=/out --clean-env --set-env=LANG=C --no-eval x -- cat"},
		{[]string{"exec", "-B", "/a b:/c", "x", "sh"}, "run --action=exec --bind=/a b:/c x -- sh"},
		{[]string{"build", "--reproducible", "--notest", "out.sif", "x.def"}, "build --file=DIR/x.def --no-test --reproducible DIR; save"},
		{[]string{"build", "out.sif", "oci-archive:none"}, "refused the file does not exist"},
		{[]string{"cache", "clean", "--days", "3", "--dry-run"}, "gc --age=3d --dry-run"},
	} {
		args := make([]string, len(tt.line))
		for i, a := range tt.line {
			args[i] = strings.ReplaceAll(a, "DIR", dir)
		}
		r, err := Read("singularity", args, []string{"HOME=/home/me", "SINGULARITYENV_TMP="})
		var no *Refusal
		if why, refused := strings.CutPrefix(tt.want, "refused "); refused {
			if !errors.As(err, &no) || !strings.Contains(no.Why, why) {
				t.Errorf("Read(%q): error %v; want %q", tt.line, err, why)
			}
			continue
		}
		if err != nil {
			t.Errorf("Read(%q): %v", tt.line, err)
			continue
		}
		var lines []string
		for _, c := range r.Commands {
			lines = append(lines, strings.Join(c.Args, " "))
		}
		got, rest := strings.ReplaceAll(strings.Join(lines, "; "), dir, "DIR"), ""
		rest = got
		for _, part := range strings.Split(tt.want, " ") {
			i := strings.Index(rest, part)
			if i < 0 {
				t.Errorf("Read(%q) = %s; want %s", tt.line, got, tt.want)
				break
			}
			rest = rest[i+len(part):]
		}
	}
}

func TestParseEnvFile(t *testing.T) {
	for _, tt := range []struct{ in, want, wantErr string }{
		{"A=1\nB=\"two 2\" # comment\nexport C='$D'\n", "A=1|B=two 2|C=$D", ""},
		{"A=x\nB=$A:${HOST}\n", "A=x|B=x:h", ""},
		{"A=\nexport B\n", "A=", ""},
		{`PATH="\$PATH:/"`, "PATH=$PATH:/", ""},
		{"A=$(id)", "", "line 1: "},
		{"A=1\nid\n", "", "line 2: not an assignment"},
		{"A=1 id", "", "line 1: not an assignment"},
		{"A+=1", "", "line 1: not an assignment"},
		{"A='", "", "line 1:"},
	} {
		got, err := parseEnvFile(tt.in, []string{"HOST=h"})
		if (err == nil) != (tt.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tt.wantErr)) || strings.Join(got, "|") != tt.want {
			t.Errorf("parseEnvFile(%q) = %q, %v; want %q, %q", tt.in, got, err, tt.want, tt.wantErr)
		}
	}
}

func TestBinds(t *testing.T) {
	a := &apptainer{&commandLine{program: "apptainer exec", dir: "/d"}}
	for _, tt := range []struct{ in, want string }{
		{"/a", "/a=/a"}, {"a:/b", "/d/a=/b"}, {"/a:/b:ro,/c", "/a=/b ro|/c=/c"}, {`/a\,b:/c\:d`, "/a,b=/c:d"}, {"/a:/b:ro,rw", "/a=/b"},
		{"/a::ro", "/a=/a ro"}, {"", "error"}, {"/a:b", "error"}, {"/a:/b:x", "error"}, {"/a:/b:/c:ro", "error"}, {"/a:/b:image-src=/", "error"},
	} {
		list, err := a.binds(tt.in)
		var out []string
		for _, m := range list {
			text := m.source + "=" + m.at
			if m.readOnly {
				text += " ro"
			}
			out = append(out, text)
		}
		if got := strings.Join(out, "|"); (err != nil) != (tt.want == "error") || (err == nil && got != tt.want) {
			t.Errorf("binds(%q) = %q, %v; want %q", tt.in, got, err, tt.want)
		}
	}
}

// FuzzApptainer checks that no command line makes the reader panic, and that each result runs
// hpcc with an image.
func FuzzApptainer(f *testing.F) {
	f.Add("exec\x00--bind\x00a:/b,c:/d:ro\x00--env\x00A=1\x00x\x00sh")
	f.Add("build\x00-s\x00x\x00docker://y\x00--arch=arm64")
	f.Add("run\x00-C\x00-W\x00w\x00--scratch\x00s\x00x")
	f.Add("inspect\x00-jl\x00x")
	f.Fuzz(func(t *testing.T, in string) {
		r, err := Read("apptainer", strings.Split(in, "\x00"), nil)
		if err == nil && r.Output == "" && len(r.Commands) == 0 {
			t.Errorf("%q does nothing", in)
		}
	})
}
