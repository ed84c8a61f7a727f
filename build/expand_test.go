package build

import (
	"context"
	"errors"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/moby/buildkit/frontend/dockerfile/instructions"

	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// changesFiles reports whether an instruction is a step.
func changesFiles(c instructions.Command) bool {
	switch c.(type) {
	case *instructions.RunCommand, *instructions.CopyCommand, *instructions.AddCommand, *instructions.WorkdirCommand:
		return true
	}
	return false
}

// TestVariables checks the scopes of variables (Dockerfile reference, "ARG" and "ENV").
func TestVariables(t *testing.T) {
	for _, c := range []struct {
		name, text string
		args       map[string]string
		want       string // of the label "got"
	}{
		{"before FROM, in FROM", "ARG B=scratch\nFROM $B\nLABEL got=x$B", nil, "x"},
		{"before FROM, declared again", "ARG V=1\nFROM scratch\nARG V\nLABEL got=$V", nil, "1"},
		{"before FROM, given and declared again", "ARG V=1\nFROM scratch\nARG V\nLABEL got=$V", map[string]string{"V": "2"}, "2"},
		{"before FROM, of another", "ARG A=1\nARG V=${A}2\nFROM scratch\nARG V\nLABEL got=$V", nil, "12"},
		{"before FROM without a value", "ARG V\nFROM scratch\nARG V\nLABEL got=${V-none}", nil, "none"},
		{"before FROM, required and given", "ARG V=${X:?needed}\nFROM scratch\nARG V\nLABEL got=$V", map[string]string{"V": "2"}, "2"},
		{"default in the stage", "ARG V=1\nFROM scratch\nARG V=3\nLABEL got=$V", nil, "3"},
		{"default in the stage, given", "FROM scratch\nARG V=3\nLABEL got=$V", map[string]string{"V": "2"}, "2"},
		{"given and not declared", "FROM scratch\nLABEL got=x$V", map[string]string{"V": "2"}, "x"},
		{"given and declared later", "FROM scratch\nLABEL got=x$V\nARG V", map[string]string{"V": "2"}, "x"},
		{"given empty", "FROM scratch\nARG V=3\nLABEL got=x${V-none}", map[string]string{"V": ""}, "x"},
		{"of another ARG", "FROM scratch\nARG A=1\nARG V=${A}2\nLABEL got=$V", nil, "12"},
		{"of another on the line", "FROM scratch\nARG A=1 V=${A}2\nLABEL got=$V", nil, "12"},
		{"required and given", "FROM scratch\nARG V=${X:?needed}\nLABEL got=$V", map[string]string{"V": "2"}, "2"},
		{"ENV above ARG", "FROM scratch\nARG V=1\nENV V=2\nLABEL got=$V", map[string]string{"V": "3"}, "2"},
		{"ENV of ARG", "FROM scratch\nARG V=1\nENV W=${V}x\nLABEL got=$W", nil, "1x"},
		{"one line sees the old", "FROM scratch\nENV V=1\nENV V=2 W=$V\nLABEL got=$W", nil, "1"},
		{"another stage", "FROM scratch AS a\nARG V=1\nFROM scratch\nLABEL got=x$V", nil, "x"},
		{"a stage on another", "FROM scratch AS a\nARG V=1\nENV W=2\nFROM a\nLABEL got=$V$W", nil, "12"},
		{"platform in FROM alone", "FROM --platform=linux/$TARGETARCH scratch\nLABEL got=x$TARGETARCH", nil, "x"},
		{"platform declared", "FROM scratch\nARG TARGETARCH BUILDOS\nLABEL got=$TARGETARCH/$BUILDOS", nil, goruntime.GOARCH + "/linux"},
		{"default", "FROM scratch\nENV E=\nLABEL got=${X:-a}${X-b}${E:-c}${E-d}", nil, "abc"},
		{"alternative", "FROM scratch\nENV E= S=1\nLABEL got=${X:+a}${X+b}${E:+c}${E+d}${S:+e}", nil, "de"},
		{"nested", "FROM scratch\nENV S=1\nLABEL got=${X:-${Y:-$S}}", nil, "1"},
		{"trimmed", "FROM scratch\nENV S=a.b.c\nLABEL got=${S#*.}_${S##*.}_${S%.*}_${S%%.*}_${S/./-}_${S//./-}", nil, "b.c_c_a.b_a_a-b.c_a-b-c"},
		{"quotes", `FROM scratch` + "\nENV S=1\n" + `LABEL got="$S"'$S'\$S`, nil, "1$S$S"},
		{"escape directive", "# escape=`\nFROM scratch\nENV S=1\nLABEL got=`$S\\$S", nil, `$S\1`},
	} {
		t.Run(c.name, func(t *testing.T) {
			img, _ := mustBuild(t, newStore(t), c.text, Options{Args: c.args})
			if got := config(t, img).Labels["got"]; got != c.want {
				t.Errorf("got=%q; want %q", got, c.want)
			}
		})
	}
}

// TestConfiguration checks the configuration that instructions set.
func TestConfiguration(t *testing.T) {
	const text = `FROM scratch
ENV P=81 U=me V=/a
MAINTAINER x
USER $U
EXPOSE $P 90-91/udp 0.0.0.0:1:2
VOLUME $V /b
STOPSIGNAL 9
SHELL ["/bin/x", "-e"]
HEALTHCHECK --interval=3s CMD true
CMD echo $P
ENTRYPOINT ["/e", "$P"]
ONBUILD LABEL a=$P
LABEL a=1 b="2 $P"
LABEL a=3`
	img, _ := mustBuild(t, newStore(t), text, Options{})
	c := config(t, img)
	for _, x := range []struct{ name, got, want string }{
		{"Env", strings.Join(c.Env, " "), defaultPath + " P=81 U=me V=/a"},
		{"User", c.User, "me"},
		{"ExposedPorts", keys(c.ExposedPorts), "2/tcp 81/tcp 90/udp 91/udp"},
		{"Volumes", keys(c.Volumes), "/a /b"},
		{"StopSignal", c.StopSignal, "9"},
		{"Cmd", strings.Join(c.Cmd, "|"), "/bin/x|-e|echo $P"},
		{"Entrypoint", strings.Join(c.Entrypoint, "|"), "/e|$P"},
		{"OnBuild", strings.Join(c.OnBuild, "|"), "LABEL a=$P"},
		{"Labels", c.Labels["a"] + " " + c.Labels["b"], "3 2 81"},
		{"Healthcheck", strings.Join(c.Healthcheck.Test, " "), "CMD-SHELL true"},
	} {
		if x.got != x.want {
			t.Errorf("%s is %q; want %q", x.name, x.got, x.want)
		}
	}
}

func keys(m map[string]struct{}) string {
	var out []string
	for k := range m {
		out = append(out, k)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// TestEntrypointAndCmd checks that a new ENTRYPOINT resets the CMD of the base image, but
// not the stage's own.
func TestEntrypointAndCmd(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"FROM a\nENTRYPOINT [\"e\"]", ""},
		{"FROM a\nCMD [\"c\"]\nENTRYPOINT [\"e\"]", "c"},
		{"FROM a\nENTRYPOINT [\"e\"]\nCMD [\"c\"]", "c"},
		{"FROM a\nCMD [\"c\"]", "c"},
		{"FROM a", "base"},
	} {
		img, _ := mustBuild(t, newStore(t), "FROM scratch AS a\nCMD [\"base\"]\n"+c.text, Options{})
		if got := strings.Join(config(t, img).Cmd, " "); got != c.want {
			t.Errorf("%q has CMD %q; want %q", c.text, got, c.want)
		}
	}
}

// triggering stores an image that has only triggers.
func triggering(t *testing.T, s *store.Store, name string, triggers ...string) {
	t.Helper()
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{OnBuild: triggers}})
	testenv.Check(t, err)
	_, err = s.Put(context.Background(), name, img)
	testenv.Check(t, err)
}

func TestTriggers(t *testing.T) {
	s := newStore(t)
	triggering(t, s, "base", "ARG V=1", "LABEL got=$V", "ENV E=2")
	for _, c := range []struct {
		name, text, want string // want: labels "got" and "own"
	}{
		{"of an image", "FROM base\nLABEL own=$E", "1/2"},
		{"of an image, once", "FROM base AS a\nLABEL got=x\nFROM a\nLABEL own=$E", "x/2"},
		{"of a stage", "FROM scratch AS a\nONBUILD LABEL own=y\nLABEL got=x\nFROM a", "x/y"},
		{"of a stage, not for itself", "FROM scratch AS a\nONBUILD LABEL own=y\nLABEL got=x", "x/"},
		{"of a stage, once", "FROM scratch AS a\nONBUILD LABEL own=y\nFROM a AS b\nLABEL own=z\nFROM b", "/z"},
	} {
		img, _ := mustBuild(t, s, c.text, Options{})
		l := config(t, img).Labels
		if got := l["got"] + "/" + l["own"]; got != c.want {
			t.Errorf("%s: labels %q; want %q", c.name, got, c.want)
		}
		if got, want := len(config(t, img).OnBuild), strings.Count(c.text, "ONBUILD")*(2-strings.Count(c.text, "FROM")); want >= 0 && got != want {
			t.Errorf("%s: the image has %d triggers itself; want %d", c.name, got, want)
		}
	}
	for _, trigger := range []string{"ONBUILD LABEL a=b", "BOGUS", "FROM scratch", "", "# nothing", "RUN --mount=type=ssh x", "COPY --from=nothere:1@ a b"} {
		triggering(t, s, "bad", trigger)
		_, _, err := buildText(t, s, "\nFROM bad\n", Options{})
		var le *LineError
		if !errors.As(err, &le) || le.Line != 2 {
			t.Errorf("trigger %q: %v; want an error in line 2", trigger, err)
		}
	}
}
