package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/runtime"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

// apptainerFiles are the files of the image $IMG with scripts of Apptainer.
var apptainerFiles = map[string]string{
	"env/10-docker2singularity.sh": "#!/bin/sh\nexport CGO_ENABLED=\"${CGO_ENABLED:-\"0\"}\"\n",
	"env/90-environment.sh":        "#!/bin/sh\nPATH=\"$PATH:/go/bin:/usr/local/go/bin\"\nexport PATH\n",
	"env/99-base.sh":               "LD_LIBRARY_PATH=\"${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}/.singularity.d/libs\"\nexport LD_LIBRARY_PATH\n",
	"runscript":                    "#!/bin/sh\necho \"Running command: $*\"\n[ $# -eq 0 ] || exec \"$@\"\n",
	"test":                         "#!/bin/sh\ntest -d / && echo tested\n",
	"runscript.help":               "Help for the test.\n",
	"Singularity":                  "bootstrap: docker\nfrom: busybox\n",
	"labels.json":                  `{"E2E": "AWESOME", "HI": "\"HELLO WORLD\"", "hi": "\"hello world\""}`,
}

// apptainerFixture creates the files of testdata/corpora/apptainer/facts.txt in a directory, and returns
// the environment of its command lines.
func apptainerFixture(t *testing.T, dir string) []string {
	t.Helper()
	busybox, err := testenv.Busybox()
	testenv.Check(t, err)
	me, err := user.Current()
	testenv.Check(t, err)
	fronts := filepath.Join(dir, "fronts")
	env := append(os.Environ(), "HOME="+me.HomeDir, "HPCC_STORE="+filepath.Join(dir, "store"), "HPCC_NO_CONFIG=1", "PATH="+fronts+":"+bin+":"+os.Getenv("PATH"), "W="+dir,
		"IMG="+filepath.Join(dir, "img"), "BB="+filepath.Join(dir, "bb"), "OLD="+filepath.Join(dir, "old"), "OCI=facts/oci", "LD_LIBRARY_PATH=")
	script := `set -e; umask 022
mkdir -p canary/dir workdir/tmp workdir/var_tmp workdir/home home elsewhere bb/bin bb/etc bb/root bb/tmp ctx
touch canary/file workdir/tmp/inworktmp workdir/var_tmp/inworkvartmp workdir/home/inworkhome elsewhere/mark with,comma with:colon
cp "$1" bb/bin/busybox
for n in sh ls cat echo id env pwd touch mkdir true false test grep printf mount cp; do ln -s busybox bb/bin/$n; done
cp -a bb old; printf 'PATH=/canary/path:$PATH\nexport PATH\n' >old/environment
cp -a bb img; mkdir img/links img/madness; ln -s /etc img/links/one; ln -s /madness img/etc/madness
mkdir -p bb/tmp/x; rmdir bb/tmp/x
printf 'FROM local\nLABEL lab=el\nENV LANG_OF=image\nENTRYPOINT ["echo", "entry"]\nCMD ["cmd"]\n' >ctx/Dockerfile
printf 'Bootstrap: localimage\nFrom: %s/bb\n%%runscript\necho hello "$@"\n' "$W" >x.def
hpcc install-fronts fronts apptainer singularity >/dev/null
hpcc build --build-context local=bb -t facts/oci ctx
hpcc save facts/oci oci.tar; hpcc save facts/oci docker.docker.tar; mv docker.docker.tar docker.tar
mkdir layout; tar xf oci.tar -C layout`
	cmd := exec.Command("sh", "-c", script, "sh", busybox)
	cmd.Dir, cmd.Env = dir, append(env, "W="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("creating the images: %v\n%s", err, out)
	}
	for name, text := range apptainerFiles {
		file := filepath.Join(dir, "img/.singularity.d", name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o755))
	}
	return env
}

// An apptainerFact is a line of testdata/corpora/apptainer/facts.txt.
type apptainerFact struct{ name, command, want string }

// readFacts reads testdata/corpora/apptainer/facts.txt.
func readFacts(t *testing.T) (facts []apptainerFact) {
	t.Helper()
	text, err := os.ReadFile("../../testdata/corpora/apptainer/facts.txt")
	testenv.Check(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		if line == "" || line[0] == '#' {
			continue
		}
		name, rest, ok := strings.Cut(line, ": ")
		command, want, ok2 := strings.Cut(rest, " => ")
		if !ok || !ok2 {
			t.Fatalf("not NAME: COMMAND => RESULT: %s", line)
		}
		facts = append(facts, apptainerFact{name, command, want})
	}
	return facts
}

// TestApptainerFacts runs the test cases of Apptainer's own tests, and compares docs/apptainer.md
// with their number.
func TestApptainerFacts(t *testing.T) {
	testenv.Slow(t)
	needs(t, "busybox", "userns")
	dir, err := filepath.EvalSymlinks(t.TempDir())
	testenv.Check(t, err)
	env := apptainerFixture(t, dir)
	uts, err := os.Readlink("/proc/self/ns/uts")
	testenv.Check(t, err)
	expand := strings.NewReplacer("$$", "$", "$UIDNOW", fmt.Sprint(os.Getuid()), "$UTSNOW", uts, "$P", runtime.StandardPath)
	refused := 0
	facts := readFacts(t)
	for _, f := range facts {
		if strings.HasPrefix(f.want, "refused ") {
			refused++
		}
		cmd := exec.Command("sh", "-c", f.command)
		var stderr strings.Builder
		cmd.Dir, cmd.Env, cmd.Stderr = "/tmp", env, &stderr // as in Apptainer's tests
		out, err := cmd.Output()
		var status *exec.ExitError
		if err != nil && !errors.As(err, &status) {
			t.Fatal(err)
		}
		if why := f.differs(cmd.ProcessState.ExitCode(), strings.TrimSpace(string(out)), stderr.String(), expand); why != "" {
			t.Errorf("%s: %s\n%s: want %s\nstdout: %s\nstderr: %s", f.name, f.command, why, f.want, out, stderr.String())
		}
	}
	page, err := os.ReadFile("../../docs/apptainer.md")
	testenv.Check(t, err)
	if want := fmt.Sprintf("%d cases: %d pass, %d are refused", len(facts), len(facts)-refused, refused); !strings.Contains(strings.Join(strings.Fields(string(page)), " "), want) {
		t.Errorf("docs/apptainer.md does not have %q", want)
	}
}

// differs returns the difference between a result and the expected one, or "".
func (f apptainerFact) differs(status int, stdout, stderr string, expand *strings.Replacer) string {
	if why, ok := strings.CutPrefix(f.want, "refused "); ok {
		if status != text.StatusUsage || !strings.Contains(stderr, why) {
			return fmt.Sprintf("status %d", status)
		}
		return ""
	}
	code, rest, _ := strings.Cut(f.want, " ")
	if fmt.Sprint(status) != code && (code != "fails" || status == 0) {
		return fmt.Sprintf("status %d", status)
	}
	kind, text, _ := strings.Cut(rest, " ")
	text = expand.Replace(text)
	has := strings.Contains(stdout, text)
	if (kind == "=" && stdout != text) || (kind == "~" && !has) || (kind == "!~" && has) {
		return "output"
	}
	return ""
}
