// Package testenv makes the tests of hpcc independent of the caller's umask, environment,
// home directory and ignored signals, and of the schedulers and optional programs of the machine.
package testenv

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// preparedMark is set in the environment of tests that Run has prepared, and of
// the copies of the test binary that they start.
const preparedMark = "HPCC_TEST_PREPARED"

// kept are the variables of the caller that tests see, besides those with a
// prefix in keptPrefixes. All others are removed.
var kept = []string{
	"PATH", "USER", "LOGNAME", "CI",
	"TMPDIR", "CC", "CXX",
	"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR", // the go command
	"npm_config_registry",
}

var keptPrefixes = []string{"HPCC_TEST_", "HPCC_BENCH_", "GO", "CGO_"}

// Tests is a *testing.M, or a wrapper that adds setup and cleanup.
type Tests interface{ Run() int }

// Run prepares the process, runs the tests of a package and exits with their
// status. TestMain calls it.
//
// Run sets the umask to 022, gives the tests a temporary HOME, a PATH without schedulers
// (see [Scheduler]) and only the variables of the caller that they need, and lets the
// programs that they start receive the signals that the caller ignores (nohup ignores
// SIGHUP). A copy of the test binary that a test starts keeps what that test gave it.
func Run(m Tests) {
	if os.Getenv(preparedMark) != "" {
		os.Exit(m.Run())
	}
	home, err := os.MkdirTemp("", "hpcc-test-home-")
	if err == nil {
		err = prepare(home)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "preparing the tests:", err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(home)
	removeLinks()
	os.Exit(status)
}

func prepare(home string) error {
	syscall.Umask(0o022)
	receiveIgnoredSignals()
	if err := hideSchedulers(); err != nil {
		return err
	}
	settings, err := goSettings()
	if err != nil {
		return err
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !keeps(name) {
			os.Unsetenv(name)
		}
	}
	settings["HOME"] = home
	settings["HPCC_SITE"] = filepath.Join(home, "site.toml") // instead of the machine's
	settings["LC_ALL"] = "C.UTF-8"
	settings[preparedMark] = "1"
	for name, value := range settings {
		if err := os.Setenv(name, value); err != nil {
			return err
		}
	}
	return nil
}

func keeps(name string) bool {
	return slices.Contains(kept, name) ||
		slices.ContainsFunc(keptPrefixes, func(p string) bool { return strings.HasPrefix(name, p) })
}

// receiveIgnoredSignals handles the signals that the caller ignores, by doing
// nothing. A program that this process starts inherits an ignored signal as
// ignored, and a handled one as not ignored.
func receiveIgnoredSignals() {
	for s := syscall.Signal(1); s < 65; s++ {
		if signal.Ignored(s) {
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// goSettings returns the settings of the go command that depend on HOME. The map
// is empty without a go command.
func goSettings() (map[string]string, error) {
	settings := map[string]string{}
	if _, err := exec.LookPath("go"); err != nil {
		return settings, nil
	}
	out, err := exec.Command("go", "env", "-json", "GOCACHE", "GOENV", "GOMODCACHE", "GOPATH").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	if err := json.Unmarshal(out, &settings); err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	return settings, nil
}

// Check fails and ends the test if err is not nil.
func Check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Write writes a file, and the directories above it.
func Write[T string | []byte](t testing.TB, file string, data T) {
	t.Helper()
	Check(t, os.MkdirAll(filepath.Dir(file), 0o755))
	Check(t, os.WriteFile(file, []byte(data), 0o644))
}

// Files writes files into a new directory: name, text, name, text. A name that ends in a
// slash is a directory.
func Files(t testing.TB, nameText ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(nameText); i += 2 {
		file := filepath.Join(dir, nameText[i])
		if strings.HasSuffix(nameText[i], "/") {
			Check(t, os.MkdirAll(file, 0o755))
			continue
		}
		Write(t, file, nameText[i+1])
	}
	return dir
}

// Tree writes files, text by name, into a new directory.
func Tree(t testing.TB, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		Write(t, filepath.Join(dir, name), text)
	}
	return dir
}

// Tar returns an archive with an entry for each line: "d PATH", "f PATH TEXT", "l PATH TARGET", "h PATH TARGET",
// "c PATH", "p PATH", with an octal mode after the letter. Its entries have the time at.
func Tar(t testing.TB, at time.Time, lines ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	kinds := map[byte]byte{'d': tar.TypeDir, 'f': tar.TypeReg, 'l': tar.TypeSymlink, 'h': tar.TypeLink, 'c': tar.TypeChar, 'p': tar.TypeFifo}
	for _, line := range lines {
		f := strings.SplitN(line+"  ", " ", 3)
		h := &tar.Header{Typeflag: kinds[f[0][0]], Name: f[1], ModTime: at, Mode: 0o644}
		text := strings.TrimSpace(f[2])
		switch h.Typeflag {
		case tar.TypeDir:
			h.Mode = 0o755
		case tar.TypeReg:
			h.Size = int64(len(text))
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = text
		}
		if len(f[0]) > 1 {
			_, err := fmt.Sscanf(f[0][1:], "%o", &h.Mode)
			Check(t, err)
		}
		Check(t, w.WriteHeader(h))
		if h.Typeflag == tar.TypeReg {
			_, err := io.WriteString(w, text)
			Check(t, err)
		}
	}
	Check(t, w.Close())
	return buf.Bytes()
}

// Need skips the test if err is not nil, because the machine lacks what. With CI
// in the environment the test fails instead: CI has everything.
func Need(t testing.TB, what string, err error) {
	t.Helper()
	switch {
	case err == nil:
	case os.Getenv("CI") != "":
		t.Fatalf("CI must have %s: %v", what, err)
	default:
		t.Skipf("needs %s: %v", what, err)
	}
}

// NeedProgram skips the test, or fails it in CI, if a program is not on PATH.
func NeedProgram(t testing.TB, name string) {
	t.Helper()
	_, err := exec.LookPath(name)
	Need(t, name, err)
}

// Busybox returns the path of a statically linked busybox, the userland of most
// test images.
func Busybox() (string, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return "", fmt.Errorf("%w (Debian: busybox-static)", err)
	}
	f, err := elf.Open(path)
	if err != nil {
		return "", fmt.Errorf("reading %s: %w", path, err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return "", fmt.Errorf("%s is dynamically linked (Debian: busybox-static)", path)
		}
	}
	return path, nil
}

// BusyboxRoot returns a root directory with a static busybox and links to it. It skips
// the test, or fails it in CI, if there is no busybox or the host lets users create no
// user and mount namespaces.
func BusyboxRoot(t testing.TB) string {
	t.Helper()
	id := os.Getuid()
	trial := exec.Command("true")
	trial.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}}
	Need(t, "user and mount namespaces", trial.Run())
	busybox, err := Busybox()
	Need(t, "a static busybox", err)
	b, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(t.TempDir(), "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bin, "busybox"), b, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "cat", "id", "chown", "mknod", "stat", "ls", "touch", "mkfifo", "ln"} {
		if err := os.Symlink("busybox", filepath.Join(bin, name)); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Dir(bin)
}

// Alone runs the current test again in a separate process with the attributes attr. It
// returns true in that process, which runs the test, and false in the first one.
func Alone(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	const mark = "HPCC_TEST_AGAIN"
	if os.Getenv(mark) != "" {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mark+"=1")
	cmd.SysProcAttr = attr
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	Need(t, "user namespaces", cmd.Start())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("in a process of its own: %v\n%s", err, &out)
	}
	if strings.Contains(out.String(), "--- SKIP: ") {
		Need(t, "the requirements of the test in a separate process", errors.New(out.String()))
	}
	return false
}

// Slow skips a test that takes long under "go test -short", which "make test" uses.
// "make test-all" runs it.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("takes long: make test-all runs it")
	}
}
