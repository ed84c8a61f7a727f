package job

import (
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
