package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"hpcc/conda/program"
	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// oneFile returns a layer with one file.
func oneFile(t testing.TB, s *store.Store, name, text string) v1.Layer {
	t.Helper()
	info, err := s.PutLayer(t.Context(), types.OCILayer, func(w io.Writer) error {
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(text))})
		if err == nil {
			_, err = io.WriteString(tw, text)
		}
		return errors.Join(err, tw.Close())
	})
	testenv.Check(t, err)
	l, err := s.Layer(info)
	testenv.Check(t, err)
	return l
}

// stepsOn returns a function that runs steps on a base image. The function appends its events
// to events.
func stepsOn(t testing.TB, s *store.Store, base v1.Image, events *[]Event) program.StepFunc {
	t.Helper()
	_, err := s.Put(t.Context(), "base", base)
	testenv.Check(t, err)
	w := &condaWork{reporter: reporter{total: 3, progress: func(e Event) { *events = append(*events, e) }}, base: func() (v1.Image, error) { return s.Get("base", nil) }, close: func() {}}
	w.Platform = hostPlatform()
	step, why, err := w.runner(s)
	if err != nil || step == nil {
		t.Fatalf("no program can run on the base image: %s, %v", why, err)
	}
	t.Cleanup(func() { w.close() })
	return step
}

// entries lists the name, time and text of each file in a layer, or "nothing" if it is nil.
func entries(t testing.TB, l v1.Layer) string {
	t.Helper()
	if l == nil {
		return "nothing"
	}
	r, err := l.Uncompressed()
	testenv.Check(t, err)
	defer r.Close()
	var out []string
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return strings.Join(out, "; ")
		}
		testenv.Check(t, err)
		b, err := io.ReadAll(tr)
		testenv.Check(t, err)
		out = append(out, fmt.Sprintf("%s %d %s", h.Name, h.ModTime.Unix(), strings.TrimSpace(string(b))))
	}
}

// TestCondaStep runs steps as root. It checks that the changes of a step become a layer, with
// and without an overlay, and that the same step runs only once.
func TestCondaStep(t *testing.T) {
	if os.Getenv(insideMark) == "" {
		for _, ns := range []uintptr{syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, syscall.CLONE_NEWUSER} {
			runInside(t, ns)
		}
		return
	}
	s := newStore(t)
	img, err := mutate.Config(busybox(t), v1.Config{Env: []string{defaultPath, "OF_BASE=1"}, User: "app"})
	testenv.Check(t, err)
	var events []Event
	step := stepsOn(t, s, img, &events)
	x := program.Step{Text: "do it", Below: []v1.Layer{oneFile(t, s, "env/below", "a")}, With: []v1.Layer{oneFile(t, s, "tool/run", "cat /env/below; id -u; echo $OF_BASE $MINE $SOURCE_DATE_EPOCH ${PATH%%:*} $(pwd)")},
		Args: []string{"/bin/sh", "-c", "mkdir -p /.hpcc/tmp && echo x >/.hpcc/tmp/x && sh /tool/run >/env/made"}, Env: []string{"MINE=2"}, Path: "/env/bin", Dir: "/env"}
	want := "env/ 315619200 ; env/made 315619200 a0\n1 2 315619200 /env/bin /env"
	for _, cached := range []bool{false, true} {
		events = nil
		l, err := step(t.Context(), x)
		testenv.Check(t, err)
		if got := entries(t, l); got != want {
			t.Errorf("the layer is %q; want %q", got, want)
		}
		if last := events[len(events)-1]; last.Text != "do it" || !last.Done || last.Cached != cached || last.Total < 4 {
			t.Errorf("the last event is %+v; want the end of the step, cached: %v", last, cached)
		}
	}
	for what, change := range map[string]func(x *program.Step){
		"with":  func(x *program.Step) { x.With = []v1.Layer{oneFile(t, s, "tool/run", "echo other")} },
		"below": func(x *program.Step) { x.Below = []v1.Layer{oneFile(t, s, "env/below", "b")} },
		"env":   func(x *program.Step) { x.Env = []string{"MINE=3"} },
		"dir":   func(x *program.Step) { x.Dir = "/" },
	} {
		y := x
		change(&y)
		if l, err := step(t.Context(), y); err != nil || entries(t, l) == want {
			t.Errorf("a step that differs in %q has the same result, or fails: %v", what, err)
		}
	}
	x.Args = []string{"/bin/sh", "-c", "cat /tool/run >/dev/null; true"}
	if l, err := step(t.Context(), x); err != nil || l != nil {
		t.Errorf("a step that changes nothing returns the layer %s, %v; want none", entries(t, l), err)
	}
	x.Args = []string{"/bin/sh", "-c", "echo oh dear; echo >/env/made; exit 3"}
	var failed *program.Error
	if _, err := step(t.Context(), x); !errors.As(err, &failed) || string(failed.Log) != "oh dear\n" || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("a step that fails: %v; want exit status 3 and its output", err)
	}
}

// TestCondaStepUnavailable checks the reasons that are reported if no program can run.
func TestCondaStepUnavailable(t *testing.T) {
	if !inside(t) {
		return
	}
	s := newStore(t)
	bare, err := mutate.AppendLayers(emptyImage(), oneFile(t, s, "x", "1"))
	testenv.Check(t, err)
	var events []Event
	if _, err := stepsOn(t, s, bare, &events)(context.Background(), program.Step{Text: "x", Args: []string{"/bin/sh"}, Dir: "/"}); !errors.Is(err, program.ErrCannotRun) {
		t.Errorf("an image without a shell: %v; want %v", err, program.ErrCannotRun)
	}
	for want, change := range map[string]func(w *condaWork){
		"--no-run was given":               func(w *condaWork) { w.NoRun = true },
		"there is no C library":            func(w *condaWork) { w.From = "scratch" },
		"no emulator is known for it":      func(w *condaWork) { w.Platform = &v1.Platform{OS: "linux", Architecture: "vax"} },
		"no emulator is known for it; put": func(w *condaWork) { w.Platform = &v1.Platform{OS: "linux", Architecture: "mips"} },
	} {
		w := &condaWork{}
		w.Platform = hostPlatform()
		change(w)
		if step, why, err := w.runner(s); err != nil || step != nil || !strings.Contains(why, want) {
			t.Errorf("the reason is %q (%v), programs can run: %v; want %q", why, err, step != nil, want)
		}
	}
}
