package build

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"hpcc/runtime"
	"hpcc/runtime/process"
	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// TestMain runs the tests. Builds execute this test binary again to start the program of RUN;
// in that process, TestMain becomes the program.
func TestMain(m *testing.M) {
	if child, err := runtime.Init(); child {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(process.ExitFailed)
	}
	testenv.Run(m)
}

// insideMark is an environment variable. It is set if the test binary runs as root of its own
// namespaces.
const insideMark = "HPCC_TEST_INSIDE"

// inside runs the current test again like a build, as root of a new user and mount namespace.
// It returns true in that second run.
func inside(t *testing.T) bool {
	if os.Getenv(insideMark) != "" {
		return true
	}
	out := runInside(t, cloneForBuild)
	t.Log(out)
	return false
}

// cloneForBuild are the clone(2) flags of the namespaces of a build.
const cloneForBuild = syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS

// runInside runs the current test again in new namespaces and returns its output. Without a
// mount namespace, builds cannot mount overlays, so they copy trees instead.
func runInside(t *testing.T, namespaces uintptr, flags ...string) string {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", append([]string{"-test.run=^" + t.Name() + "$", "-test.v"}, flags...)...)
	cmd.Env = append(os.Environ(), insideMark+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  namespaces,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	testenv.Need(t, "user namespaces", cmd.Start())
	if err := cmd.Wait(); err != nil {
		t.Fatalf("running the test in new namespaces: %v\n%s", err, &out)
	}
	return out.String()
}

// newStore returns an empty store.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}

// buildText builds a Dockerfile from its text. If o.Context is "", the build context is empty.
// buildText returns the image, and the steps that were executed because they were not cached.
func buildText(t testing.TB, s *store.Store, text string, o Options) (img v1.Image, executed []string, err error) {
	t.Helper()
	o.Dockerfile, o.Stdin = "-", strings.NewReader(text)
	if o.Context == "" {
		o.Context = t.TempDir()
	}
	o.Progress = func(e Event) {
		if e.Done && !e.Cached {
			executed = append(executed, e.Text)
		}
	}
	img, err = Dockerfile(context.Background(), s, o)
	return img, executed, err
}

// mustBuild is buildText for a Dockerfile without mistakes. It also validates the image.
func mustBuild(t testing.TB, s *store.Store, text string, o Options) (v1.Image, []string) {
	t.Helper()
	img, executed, err := buildText(t, s, text, o)
	if err != nil {
		t.Fatalf("building\n%s\n%v", text, err)
	}
	if err := validate.Image(img); err != nil {
		t.Fatalf("building\n%s\nproduced an invalid image: %v", text, err)
	}
	return img, executed
}

func digest(t testing.TB, img v1.Image) string {
	t.Helper()
	d, err := img.Digest()
	testenv.Check(t, err)
	return d.String()
}

func config(t testing.TB, img v1.Image) v1.Config {
	t.Helper()
	c, err := img.ConfigFile()
	testenv.Check(t, err)
	return c.Config
}

// content lists the files of an image with mutate.Extract: "name mode text", "name/ mode" or
// "name -> target".
func content(t testing.TB, img v1.Image) string {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	var out []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			slices.Sort(out)
			return strings.Join(out, "\n")
		}
		testenv.Check(t, err)
		b, err := io.ReadAll(tr)
		testenv.Check(t, err)
		switch h.Typeflag {
		case tar.TypeDir:
			out = append(out, fmt.Sprintf("%s/ %o", strings.TrimSuffix(h.Name, "/"), h.Mode))
		case tar.TypeReg:
			out = append(out, fmt.Sprintf("%s %o %.40s", h.Name, h.Mode, b))
		default:
			out = append(out, h.Name+" -> "+h.Linkname)
		}
	}
}

// TestLineErrors checks that errors in a Dockerfile name the file, the line and the cause.
func TestLineErrors(t *testing.T) {
	s := newStore(t)
	for _, c := range []struct {
		name, text string
		line       int
		want       string // part of the error
	}{
		{"unknown instruction", "FROM scratch\n\nBOGUS x\n", 3, "BOGUS"},
		{"after comments and continuations", "# one\nFROM scratch\nLABEL a=b \\\n  # inside\n  c=d\nBOGUS x\n", 6, "BOGUS"},
		{"no FROM", "LABEL a=b\n", 1, "FROM"},
		{"FROM with two arguments", "FROM a b\n", 1, "FROM"},
		{"empty base", "ARG B\nFROM $B\n", 2, "--build-arg"},
		{"stage copies from itself", "FROM scratch AS a\nCOPY --from=a /x /y\n", 2, "is the stage itself"},
		{"stage comes later", "FROM scratch AS a\nCOPY --from=b /x /y\nFROM scratch AS b\nFROM a\n", 2, "no earlier stage"},
		{"number comes later", "FROM scratch AS a\nCOPY --from=1 /x /y\nFROM scratch\nFROM a\n", 2, "no earlier stage"},
		{"ENV without value", "FROM scratch\nENV A\n", 2, "ENV"},
		{"required variable", "FROM scratch\nLABEL a=\"${X:?must be given}\"\n", 2, "must be given"},
		{"unclosed brace", "FROM scratch\nLABEL a=${X\n", 2, ""},
		{"port", "FROM scratch\nEXPOSE 99999\n", 2, "99999"},
		{"invalid port range", "FROM scratch\nEXPOSE 80-90x\n", 2, "80-90x"},
		{"protocol", "FROM scratch\nEXPOSE 80/icmp\n", 2, "icmp"},
		{"mode", "FROM scratch\nCOPY --chmod=u~x . /\n", 2, "not an octal mode"},
		{"checksum of a file", "FROM scratch\nADD --checksum=sha256:0000000000000000000000000000000000000000000000000000000000000000 x /x\n", 2, "--checksum needs a URL"},
		{"variable in --from", "FROM scratch AS a\nFROM scratch\nCOPY --from=$X /x /y\n", 3, "variables are not expanded"},
		{"mount without a target", "FROM scratch\nRUN --mount=type=tmpfs true\n", 2, "target"},
		{"network", "FROM scratch\nRUN --network=moon true\n", 2, "moon"},
		{"no such file", "FROM scratch\nCOPY nothere /\n", 2, "not found in the build context"},
		{"path outside the context", "FROM scratch\nCOPY a/../../x /\n", 2, "leads out of the build context"},
		{"platform", "FROM --platform=a/b/c/d scratch\n", 1, "--platform=a/b/c/d"},
		{"unterminated heredoc", "FROM scratch\nCOPY <<EOF /x\ntext\n", 2, "heredoc"},
		{"ONBUILD ONBUILD", "FROM scratch\nONBUILD ONBUILD LABEL a=b\n", 2, "ONBUILD"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, err := buildText(t, s, c.text, Options{})
			var le *LineError
			if !errors.As(err, &le) {
				t.Fatalf("building %q: %v; want a LineError", c.text, err)
			}
			head := fmt.Sprintf("Dockerfile (standard input):%d: ", c.line)
			if !strings.HasPrefix(err.Error(), head) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("building %q: %q; want an error that begins with %q and contains %q", c.text, err, head, c.want)
			}
		})
	}
	if left, err := os.ReadDir(filepath.Join(s.Dir(), "tmp")); err != nil || len(left) > 0 {
		t.Errorf("failed builds leave temporary files %v (%v)", left, err)
	}
}

// TestFileNames checks that errors name the Dockerfile as the user did.
func TestFileNames(t *testing.T) {
	dir := testenv.Files(t, "lower/dockerfile", "BOGUS\n", "both/dockerfile", "\nBOGUS\n", "both/Dockerfile", "BOGUS\n", "none/f", "", "ctx/sub/mine", "FROM scratch\nBOGUS\n", "ctx/Dockerfile", "BOGUS\n", "ctx/big", strings.Repeat("#\n", maxDockerfile/2)+"#\n")
	t.Chdir(dir)
	for _, c := range []struct{ name, file, want string }{
		{"named", "ctx/sub/mine", "ctx/sub/mine:2: "},
		{"default", "", "ctx/Dockerfile:1: "},
		{"lower case", "in lower", "lower/dockerfile:1: "},
		{"both cases", "in both", "both/Dockerfile:1: "},
		{"neither", "in none", "opening Dockerfile none/Dockerfile: no such file"},
		{"missing", "ctx/nothere", "opening Dockerfile ctx/nothere: no such file or directory; name it with -f"},
		{"directory", "ctx/sub", "reading ctx/sub: "},
		{"too large", "ctx/big", "reading ctx/big: larger than"},
	} {
		o := Options{Dockerfile: c.file, Context: "ctx"}
		if dir, ok := strings.CutPrefix(c.file, "in "); ok {
			o = Options{Context: dir}
		}
		_, err := Dockerfile(context.Background(), newStore(t), o)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v; want an error that begins with %q", c.name, err, c.want)
		}
	}
}

func TestTarget(t *testing.T) {
	const text = "FROM scratch AS one\nLABEL n=1\nFROM scratch AS Two\nLABEL n=2\nFROM nothere:1\n"
	for _, c := range []struct{ target, want, err string }{
		{"one", "1", ""}, {"two", "2", ""}, {"TWO", "2", ""}, {"1", "2", ""}, {"four", "", `no stage "four"; the stages are one, two, 2`}, {"3", "", "no stage"}, {"-1", "", "no stage"},
	} {
		img, _, err := buildText(t, newStore(t), text, Options{Target: c.target})
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("target %q: %v; want %q", c.target, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("target %q: %v", c.target, err)
		} else if got := config(t, img).Labels["n"]; got != c.want {
			t.Errorf("target %q has label %q; want %q", c.target, got, c.want)
		}
	}
}

// FuzzDockerfile checks that parsing any text does not panic, and that errors name the file.
func FuzzDockerfile(f *testing.F) {
	for _, text := range []string{"FROM scratch\nLABEL a=b\n", "ARG A=1\nFROM ${A:-x} AS b\nENV A=$A B=${A%%x}\nEXPOSE $A 80-90/udp\n", "# escape=`\nFROM a`\nb\n",
		"FROM scratch\nCOPY <<EOF <<-'X' /a/\n$A\nEOF\n\ttext\n\tX\n", "FROM scratch\nONBUILD RUN --mount=type=bind x\nHEALTHCHECK --interval=1s CMD x\nSHELL [\"a\"]\nUSER $X\n",
		"FROM --platform=$BUILDPLATFORM a AS b\nFROM b\nCOPY --from=b --chmod=$X --exclude=*.a x y z/\nVOLUME [\"/a\"]\nSTOPSIGNAL 9\nCMD a\nENTRYPOINT [\"b\"]\n"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		b := &builder{Options: Options{Dockerfile: "-", Stdin: strings.NewReader(text), Platform: hostPlatform()}}
		var err error
		if b.source, err = b.read(); err == nil {
			err = b.startLint()
		}
		if err == nil {
			err = b.parse()
		}
		if err == nil {
			_, err = b.needed(len(b.stages) - 1)
		}
		for i := 0; err == nil && i < len(b.stages); i++ {
			if _, err = b.expandMeta(b.stages[i].BaseName); err != nil {
				err = b.at(b.stages[i].Location, "", err)
			}
			st := &stage{b: b, index: i, state: state{config: &v1.ConfigFile{}, buildArgs: map[string]string{}}}
			for _, c := range b.stages[i].Commands {
				if err == nil {
					if err = st.expand(c); err == nil && !changesFiles(c) {
						err = st.configure(c, written(c))
					}
					err = b.at(c.Location(), written(c), err)
				}
			}
		}
		if err != nil && !strings.HasPrefix(err.Error(), b.file+":") && !strings.HasPrefix(err.Error(), "reading "+b.file) {
			t.Errorf("%q: the error %q does not name the file", text, err)
		}
	})
}
