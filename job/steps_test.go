package job

import (
	"fmt"
	"strings"
	"testing"
)

func TestParseArtifact(t *testing.T) {
	for in, want := range map[string]Artifact{
		"model:/out/model": {"", "model", "/out/model"}, "train/model:/out/": {"train", "model", "/out"},
	} {
		if got, err := ParseArtifact(in); err != nil || got != want {
			t.Errorf("ParseArtifact(%q) = %v, %v; want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "model", "model:", "model:out", "model:/", "Mo del:/out", "a b/model:/out", "model:/a/../b"} {
		if got, err := ParseArtifact(in); err == nil {
			t.Errorf("ParseArtifact(%q) = %v; want an error", in, got)
		}
	}
}

// TestArtifactsReplace checks which artifacts a step gets. Each step is NAME, or NAME<STEP,… for the
// steps that it waits for, or NAME?STEP,… to wait for any end.
func TestArtifactsReplace(t *testing.T) {
	for _, tt := range []struct{ name, steps, artifacts, want string }{
		{"one", "train prune<train test<prune", "train/model:/m", "prune: train/model test: train/model"},
		{"each changes it", "train prune<train test<prune", "train/model:/m prune/model:/m", "prune: train/model test: prune/model"},
		{"another path", "train prune<train test<prune", "train/model:/m prune/model:/small", "prune: train/model test: prune/model"},
		{"another name", "train prune<train test<prune", "train/model:/m prune/small:/m", "prune: train/model test: prune/small"},
		{"waits for both", "train prune<train test<train,prune", "train/model:/m prune/model:/m", "prune: train/model test: prune/model"},
		{"any end", "train prune?train test<train,prune", "train/model:/m prune/model:/m", "test: prune/model"},
		{"through a step", "train log<train prune<log test<train,prune", "train/model:/m prune/model:/m", "log: train/model prune: train/model test: prune/model"},
		{"four", "a b<a c<b d<c", "a/m:/m b/m:/m c/m:/m a/log:/log", "b: a/m a/log c: b/m a/log d: c/m a/log"},
		{"branches", "a b<a c<a d<b,c", "a/m:/m b/x:/x c/y:/y", "b: a/m c: a/m d: b/x a/m c/y"},
		{"no order", "a b<a c<a d<b,c", "b/m:/m c/m:/m", "step d would get artifact b/m:/m and artifact c/m:/m, and neither replaces the other; let c wait for b (--after), or change the names and paths"},
		{"one path", "a b c<a,b", "a/m:/m b/n:/m", "step c would get artifact a/m:/m and artifact b/n:/m"},
		{"two of a step", "a b<a", "a/m:/m a/m:/n", "artifact a/m is both /m and /n; give them two names"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var list []*Job
			for _, text := range strings.Fields(tt.steps) {
				s := &Job{}
				text, after, _ := strings.Cut(text, "<")
				name, anyEnd, _ := strings.Cut(text, "?")
				s.Name, s.After, s.AfterAny = name, split(after), split(anyEnd)
				list = append(list, s)
			}
			var artifacts []Artifact
			for _, text := range strings.Fields(tt.artifacts) {
				a, err := ParseArtifact(text)
				if err != nil {
					t.Fatal(err)
				}
				artifacts = append(artifacts, a)
			}
			j, err := NewSteps("w", list, artifacts)
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("NewSteps: %v; want %q", err, tt.want)
				}
				return
			}
			var got []string
			for _, s := range list {
				if in := j.Before(s); len(in) > 0 {
					got = append(got, s.Name+":")
					for _, a := range in {
						got = append(got, fmt.Sprintf("%s/%s", a.Step, a.Name))
					}
				}
			}
			if strings.Join(got, " ") != tt.want {
				t.Errorf("steps get %s; want %s", strings.Join(got, " "), tt.want)
			}
		})
	}
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}
