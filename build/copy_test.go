package build

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestCopyOntoLinkToHost checks that a copied directory never reaches a directory of the
// host through a link of the image.
func TestCopyOntoLinkToHost(t *testing.T) {
	if !inside(t) {
		return
	}
	host := filepath.Join(t.TempDir(), "host")
	testenv.Check(t, os.Mkdir(host, 0o750))
	dir := testenv.Files(t, "links/", "", "d/sub/f", "text")
	testenv.Check(t, os.Symlink(host, filepath.Join(dir, "links/sub")))
	testenv.Check(t, os.Chmod(filepath.Join(dir, "d/sub"), 0o711))
	if _, _, err := buildText(t, newStore(t), "FROM scratch\nCOPY links /to\nCOPY d /to\n", Options{Context: dir}); err == nil || !strings.Contains(err.Error(), "/to/sub is a link") {
		t.Errorf("copying to a link whose target is not a directory of the image: %v", err)
	}
	fi, err := os.Stat(host)
	if err != nil || fi.Mode().Perm() != 0o750 {
		t.Errorf("the host's directory has %v, %v; want its mode 0750", fi.Mode(), err)
	}
	if left, err := os.ReadDir(host); err != nil || len(left) > 0 {
		t.Errorf("the host's directory holds %v, %v", left, err)
	}
}

// TestLinkedStepIsKept checks that the layer of COPY --link depends only on the copied files.
func TestLinkedStepIsKept(t *testing.T) {
	if !inside(t) {
		return
	}
	s := newStore(t)
	dir := testenv.Files(t, "a", "1", "b", "2")
	const text = "FROM scratch\nCOPY a /a\nCOPY --link b /d/b\nCOPY b /c\n"
	mustBuild(t, s, text, Options{Context: dir, Reproducible: true})
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "a"), []byte("other"), 0o644))
	img, executed := mustBuild(t, s, text, Options{Context: dir, Reproducible: true})
	if got := strings.Join(executed, "; "); got != "COPY a /a; COPY b /c" {
		t.Errorf("after a change in an earlier layer, the steps %q run again; want those without --link", got)
	}
	if got, want := content(t, img), "a 644 other\nc 644 2\nd/ 755\nd/b 644 2"; got != want {
		t.Errorf("the image holds %q; want %q", got, want)
	}
	fresh, _ := mustBuild(t, newStore(t), text, Options{Context: dir, Reproducible: true})
	if digest(t, img) != digest(t, fresh) {
		t.Error("the image with the cached layer has another digest")
	}
}

func TestIsSignal(t *testing.T) {
	for _, c := range []struct {
		in   string
		want bool
	}{
		{"SIGTERM", true}, {"TERM", true}, {"term", true}, {"15", true}, {"64", true}, {"SIGRTMIN", true}, {"RTMIN+3", true}, {"SIGRTMAX-2", true},
		{"", false}, {"0", false}, {"-1", false}, {"SIG", false}, {"SIGNONE", false}, {"SIGRTMIN-1", false}, {"SIGRTMAX+1", false}, {"SIGTERM ", false}, {"RTMIN+x", false},
	} {
		if got := isSignal(c.in); got != c.want {
			t.Errorf("isSignal(%q) = %v; want %v", c.in, got, c.want)
		}
	}
}
