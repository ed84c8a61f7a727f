package dockerfile

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/client/llb"
	"github.com/moby/buildkit/client/llb/sourceresolver"
	"github.com/moby/buildkit/frontend/dockerfile/dockerfile2llb"
	"github.com/moby/buildkit/frontend/dockerui"
	digest "github.com/opencontainers/go-digest"
	ocispecs "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/stretchr/testify/require"
)

// dockerfilesVariable is the environment variable that names a directory with the repositories
// of dockerfiles.txt, each in OWNER/NAME at its commit.
const dockerfilesVariable = "HPCC_DOCKERFILES"

//go:embed dockerfiles.txt
var dockerfilesList string

// dockerfiles returns the listed files in a directory of repositories.
func dockerfiles(dir string) (files []string) {
	repository := ""
	for _, line := range strings.Split(dockerfilesList, "\n") {
		path, isFile := strings.CutPrefix(line, "\t")
		switch {
		case isFile:
			files = append(files, filepath.Join(dir, repository, path))
		case !strings.HasPrefix(line, "#"):
			repository, _, _ = strings.Cut(line, " ")
		}
	}
	return files
}

// TestDockerfiles compares the warnings of "hpcc build --check" with those of BuildKit's
// linter. For both, each base image exists and sets PATH only.
func TestDockerfiles(t *testing.T) {
	dir := os.Getenv(dockerfilesVariable)
	if dir == "" {
		t.Skipf("%s names no directory of Dockerfiles", dockerfilesVariable)
	}
	store := filepath.Join(t.TempDir(), "store")
	require.NoError(t, exec.Command("cp", "-a", os.Getenv(storeVariable), store).Run())
	context := t.TempDir()
	compared, warnings, errors := 0, 0, 0
	for _, file := range dockerfiles(dir) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		want, ours := buildkitFindings(t, text), hpccFindings(t, store, context, file)
		compared++
		for _, w := range want {
			if w == refused {
				errors++
			} else {
				warnings++
			}
		}
		if !slices.Equal(want, ours) {
			t.Errorf("%s:\n  BuildKit: %s\n  hpcc:     %s", file, strings.Join(want, "\n            "), strings.Join(ours, "\n            "))
		}
	}
	t.Logf("%d Dockerfiles compared: %d warnings of BuildKit, %d refused", compared, warnings, errors)
	require.Greater(t, warnings, 0)
}

// refused stands for an error, whose wording may differ.
const refused = "refused"

// A baseResolver knows every image.
type baseResolver struct{}

func (baseResolver) ResolveImageConfig(_ context.Context, ref string, _ sourceresolver.Opt) (string, digest.Digest, []byte, error) {
	data, err := json.Marshal(ocispecs.Image{
		Platform: ocispecs.Platform{OS: "linux", Architecture: "amd64"},
		Config:   ocispecs.ImageConfig{Env: []string{"PATH=/bin"}},
	})
	return ref, digest.FromBytes(data), data, err
}

// buildkitFindings returns the findings of BuildKit's linter, as LINE RULE TEXT.
func buildkitFindings(t *testing.T, text []byte) (found []string) {
	t.Helper()
	source := llb.NewSourceMap(nil, "Dockerfile", "Dockerfile", text)
	source.Definition = &llb.Definition{}
	res, err := dockerfile2llb.DockerfileLint(t.Context(), text, dockerfile2llb.ConvertOpt{
		SourceMap:    source,
		MetaResolver: baseResolver{},
		Config:       dockerui.Config{BuildPlatforms: []ocispecs.Platform{{OS: "linux", Architecture: "amd64"}}},
	})
	require.NoError(t, err)
	for _, w := range res.Warnings {
		found = append(found, fmt.Sprintf("%d %s %s", w.Location.Ranges[0].Start.Line, w.RuleName, w.Detail))
	}
	slices.Sort(found)
	if res.Error != nil {
		found = append(found, refused)
	}
	return found
}

// hpccFindings returns the findings of hpcc in the same form.
func hpccFindings(t *testing.T, store, context, file string) (found []string) {
	t.Helper()
	for range 3 { // at most: to name the base images, and again without them
		found = nil
		unknown := false
		cmd := exec.Command(os.Getenv(programVariable), "build", "--check", "--progress", "json", "--store", store, "-f", file, context)
		var errs strings.Builder
		cmd.Stderr = &errs
		failed := cmd.Run() != nil
		for _, line := range strings.Split(errs.String(), "\n") {
			var e event
			if json.Unmarshal([]byte(line), &e) != nil {
				continue
			}
			image, _, isNote := strings.Cut(e.text(), " is not in the store")
			switch {
			case e.Type == "note" && isNote:
				unknown = true
				out, err := exec.Command(os.Getenv(programVariable), "tag", "--store", store, "busybox", image).CombinedOutput()
				require.NoError(t, err, "%s", out)
			case e.Type == "warning":
				found = append(found, fmt.Sprintf("%d %s %s", e.line(), e.Rule, e.detail()))
			case e.Type == "error" && failed && !strings.HasPrefix(e.text(), "the Dockerfile has "):
				found = append(found, refused)
			}
		}
		slices.SortFunc(found, func(a, b string) int {
			if (a == refused) != (b == refused) {
				return map[bool]int{true: 1, false: -1}[a == refused]
			}
			return strings.Compare(a, b)
		})
		if !unknown {
			break
		}
	}
	return found
}
