package argo

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/job"
	"hpcc/job/batch"
	"hpcc/job/results"
	"hpcc/testdata/helpers/testenv"
)

// TestArtifactOfOneFile: a file of a known size is not copied to a local file. One of an unknown size is,
// in the directory of the result and up to the limit.
func TestArtifactOfOneFile(t *testing.T) {
	for _, c := range []struct {
		name     string
		sized    bool
		temp     bool
		max      int64
		tooLarge bool
	}{
		{name: "known size, no directory", sized: true},
		{name: "unknown size", temp: true},
		{name: "unknown size, at the limit", temp: true, max: 3000},
		{name: "unknown size, above the limit", temp: true, max: 2999, tooLarge: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if !strings.HasPrefix(r.URL.Path, "/artifacts/") {
					io.WriteString(w, `{"metadata":{"name":"w"},"status":{"phase":"Succeeded","nodes":{"n":{"id":"n","type":"Pod","displayName":"train","outputs":{"artifacts":[{"name":"model","archive":{"none":{}}}]}}}}}`)
					return
				}
				if c.sized {
					w.Header().Set("Content-Length", "3000")
				}
				io.WriteString(w, strings.Repeat("x", 1000))
				http.NewResponseController(w).Flush()
				io.WriteString(w, strings.Repeat("y", 2000))
			}))
			defer server.Close()
			missing := filepath.Join(t.TempDir(), "missing")
			t.Setenv(ServerVariable, server.URL)
			t.Setenv("TMPDIR", missing)
			f := &batch.Fetch{Submitted: &batch.Submitted{ID: "w", Natives: []string{"w"}, Job: &job.Job{}}, Path: "model", Max: c.max, Temp: missing}
			if c.temp {
				f.Temp = t.TempDir()
			}
			got := ""
			err := New().Fetch(t.Context(), f, func(_ string, r io.ReadCloser) error {
				defer r.Close()
				in := tar.NewReader(r)
				_, err := in.Next()
				testenv.Check(t, err)
				b, err := io.ReadAll(in)
				got = string(b)
				return err
			})
			if tooLarge := errors.As(err, new(*results.TooLargeError)); tooLarge != c.tooLarge || (err != nil && !tooLarge) {
				t.Fatal(err)
			}
			if want := strings.Repeat("x", 1000) + strings.Repeat("y", 2000); got != want && !c.tooLarge {
				t.Errorf("received %d bytes; want %d", len(got), len(want))
			}
		})
	}
}
