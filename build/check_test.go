package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/build/source"
	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// lintStore returns a store with a base image that has a trigger.
func lintStore(t *testing.T) *store.Store {
	t.Helper()
	s := newStore(t)
	c := v1.Config{Env: []string{"PATH=/bin"}, OnBuild: []string{"ARG TRIGGERED=1"}}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: hostPlatform().Architecture, Config: c, RootFS: v1.RootFS{Type: "layers"}})
	testenv.Check(t, err)
	_, err = s.Put(context.Background(), "base", img)
	testenv.Check(t, err)
	return s
}

// TestLintLeavesInstructions checks that a check does not change the instructions.
func TestLintLeavesInstructions(t *testing.T) {
	text := "FROM base\nARG p=x\nENV a=$p\nCOPY $p ${p}2 /\nRUN --mount=type=cache,target=/$p true\nWORKDIR $p\nCOPY <<E /f\n$p\nE\n"
	print := func(b *builder) string {
		var buf bytes.Buffer
		for _, c := range b.stages[0].Commands {
			fmt.Fprintf(&buf, "%T %+v\n", c, c)
		}
		return buf.String()
	}
	fresh := func() *builder {
		b, err := begin(lintStore(t), Options{Dockerfile: "-", Stdin: strings.NewReader(text), Context: t.TempDir()})
		testenv.Check(t, err)
		if b.source, err = b.read(); err == nil {
			err = errors.Join(b.startLint(), b.parse())
		}
		if err == nil {
			b.context, err = source.Open(b.Context, "")
		}
		testenv.Check(t, err)
		b.needs = map[int]bool{0: true}
		return b
	}
	a, b := fresh(), fresh()
	b.check()
	for i, c := range a.stages[0].Commands {
		if got, want := written(b.stages[0].Commands[i]), written(c); got != want {
			t.Errorf("%q became %q", want, got)
		}
	}
	if got, want := clean(print(b)), clean(print(a)); got != want {
		t.Errorf("check changes instructions:\n%s\nbefore:\n%s", got, want)
	}
}

// clean removes the addresses that %+v prints.
func clean(s string) string {
	fields := strings.Fields(s)
	for i, w := range fields {
		if strings.Contains(w, "0xc0") {
			fields[i] = "ADDRESS"
		}
	}
	return strings.Join(fields, " ")
}

// TestLintNothing reports a Dockerfile that cannot be read.
func TestLintNothing(t *testing.T) {
	for dir, want := range map[string]string{
		t.TempDir(): "opening Dockerfile ", filepath.Join(t.TempDir(), "nowhere"): "opening the build context",
	} {
		if n, _, err := Check(context.Background(), newStore(t), Options{Context: dir}); n != 0 || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check of context %s = %d, %v; want an error with %q", dir, n, err, want)
		}
	}
}

// TestLintInBuild checks that a build reports the same warnings as a check, before its
// steps. Warnings that need the base image follow once the image is known.
func TestLintInBuild(t *testing.T) {
	if !inside(t) {
		return
	}
	s := lintStore(t)
	var reported []string
	o := Options{Dockerfile: "-", Context: t.TempDir(), Host: Host{Progress: func(e Event) {
		switch {
		case e.Rule != "":
			reported = append(reported, fmt.Sprint(e.Line, " ", e.Rule))
		case !e.Done:
			reported = append(reported, e.Text)
		}
	}}}
	text := "FROM base as a\nENV A=$nothing B=$TRIGGERED\nFROM a\nCMD x\n"
	o.Stdin = strings.NewReader(text)
	_, err := Dockerfile(context.Background(), s, o)
	testenv.Check(t, err)
	if got, want := strings.Join(reported[:4], ","), "1 FromAsCasing,2 UndefinedVar,4 JSONArgsRecommended,FROM base as a"; got != want {
		t.Errorf("a build reports %q; want %q", got, want)
	}
	reported = nil
	o.Stdin = strings.NewReader("# check=error=true\n" + text)
	if _, err := Dockerfile(context.Background(), s, o); err == nil || !strings.Contains(err.Error(), ":2: FromAsCasing, ") {
		t.Errorf("a build with check=error=true: %v", err)
	}
	if strings.Contains(strings.Join(reported, ","), "FROM base") {
		t.Errorf("a build with warnings as errors runs steps: %q", reported)
	}
}
