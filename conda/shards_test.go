package conda

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"hpcc/conda/solve"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// shard replaces a channel's indexes with sharded ones.
func shard(t testing.TB, dir string, info map[string]any) {
	t.Helper()
	for _, sub := range []string{"linux-64", "noarch"} {
		at := filepath.Join(dir, sub)
		b, err := os.ReadFile(filepath.Join(at, "repodata.json"))
		testenv.Check(t, err)
		byName := map[string]any{}
		for kind, rs := range repodata(t, b) {
			for fn, r := range rs {
				for key, n := range map[string]int{"md5": 16, "sha256": 32} {
					d, err := hex.DecodeString(r[key].(string))
					if err != nil || len(d) != n {
						t.Fatalf("%s: %v", key, err)
					}
					r[key] = d
				}
				name, _, _, _ := solve.SplitFile(fn)
				if byName[name] == nil {
					byName[name] = map[string]any{"packages": map[string]any{}, "packages.conda": map[string]any{}, "removed": []any{"x-1-0.conda"}}
				}
				byName[name].(map[string]any)[kind].(map[string]any)[fn] = r
			}
		}
		digests := map[string]any{}
		for name, s := range byName {
			z := zst(packed(t, s))
			sum := sha256.Sum256(z)
			digests[name] = sum[:]
			testenv.Write(t, filepath.Join(at, "shards", hex.EncodeToString(sum[:])+".msgpack.zst"), z)
		}
		testenv.Write(t, filepath.Join(at, shardsName), zst(packed(t, map[string]any{"version": 1, "info": info, "shards": digests})))
		testenv.Check(t, os.Remove(filepath.Join(at, "repodata.json")))
	}
}

// repodata parses an index: the records of .tar.bz2 and of .conda by file name.
func repodata(t testing.TB, b []byte) map[string]map[string]map[string]any {
	t.Helper()
	all := map[string]json.RawMessage{}
	err := json.Unmarshal(b, &all)
	out := map[string]map[string]map[string]any{}
	for _, kind := range []string{"packages", "packages.conda"} {
		var rs map[string]map[string]any
		err = errors.Join(err, json.Unmarshal(all[kind], &rs))
		out[kind] = rs
	}
	testenv.Check(t, err)
	return out
}

func packed(t testing.TB, v any) []byte {
	t.Helper()
	b, err := msgp.AppendIntf(nil, v)
	testenv.Check(t, err)
	return b
}

func shardedChannel(t testing.TB) string {
	t.Helper()
	dir := newChannel(t, &testPkg{name: "a", version: "1", depends: []string{"b", "n"}}, &testPkg{name: "b", version: "2", format: ".tar.bz2"},
		&testPkg{name: "n", subdir: "noarch", noarch: "generic"}, &testPkg{name: "other"})
	shard(t, dir, map[string]any{"base_url": "", "shards_base_url": "./shards/", "subdir": "linux-64"})
	return dir
}

// TestShards uses a channel with only a sharded index: it fetches the needed shards once, and
// the packages from the index's base URL.
func TestShards(t *testing.T) {
	dir := shardedChannel(t)
	want := []string{"a-1-0", "b-2-0", "n-1.0-0"}
	for _, cache := range []string{t.TempDir(), ""} {
		web := condatest.Serve(t, dir, nil)
		for n := range 2 {
			for _, at := range []string{web.URL, dir} {
				p, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0\nb=2=0\nn=1.0=0"), Options{Request: Request{Channels: []string{at}}, Subdir: "linux-64", Host: Host{Cache: cache}})
				if err != nil || !slices.Equal(slices.Sorted(slices.Values(p.Names())), want) {
					t.Fatalf("Resolve = %v, %v; want %v", p, err, want)
				}
				for _, r := range p.pkgs {
					if !strings.Contains(r.URL, "/"+r.Subdir+"/"+r.FileName) || !isHex(r.SHA256, 64) || r.SHA256 == "" || r.MD5 == "" {
						t.Errorf("%s: from %s, sha256 %q, md5 %q", r.FileName, r.URL, r.SHA256, r.MD5)
					}
				}
			}
			if cache == "" {
				continue
			}
			web.Mu.Lock()
			asked := strings.Join(web.Asked, " ")
			web.Mu.Unlock()
			if got := strings.Count(asked, "/shards/"); got != 3 {
				t.Errorf("resolving %d times asked for %d shards: %s", n+1, got, asked)
			}
		}
	}
	o := Options{Request: Request{Channels: []string{dir}}, Subdir: "linux-64"}
	p, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0\nb=2=0\nn=1.0=0"), o)
	testenv.Check(t, err)
	if _, _, err = p.Layers(t.Context(), condatest.NewStore(t), o); err != nil {
		t.Errorf("installing: %v", err)
	}
}

// TestShardsHostile refuses invalid sharded indexes, or falls back to the plain index.
func TestShardsHostile(t *testing.T) {
	good := map[string]any{"base_url": "", "shards_base_url": "shards"}
	for name, c := range map[string]struct {
		info  map[string]any
		spoil func(dir string) error
		want  string
	}{
		"no slash":        {good, nil, ""},
		"files from http": {map[string]any{"base_url": "", "shards_base_url": "file:///etc/"}, nil, "points to local files"},
		"packages here":   {map[string]any{"base_url": "file:///etc/", "shards_base_url": "shards"}, nil, "points to local files"},
		"a wrong shard": {good, func(dir string) error {
			return eachShard(dir, func(f string) error { return os.WriteFile(f, zst([]byte{0x80}), 0o644) })
		}, "SHA-256 mismatch"},
		"no zstd": {good, func(dir string) error { return os.WriteFile(dir+"/linux-64/"+shardsName, []byte("<html>"), 0o644) }, "reading " + shardsName},
		"no msgpack": {good, func(dir string) error {
			return os.WriteFile(dir+"/linux-64/"+shardsName, zst([]byte{0xdf, 0xff, 0xff, 0xff, 0xff}), 0o644)
		}, "reading " + shardsName},
		"more behind": {good, func(dir string) error {
			return os.WriteFile(dir+"/linux-64/"+shardsName, zst([]byte{0x80, 0xc1}), 0o644)
		}, "reading " + shardsName},
		"gone shards, no other index": {good, func(dir string) error { return eachShard(dir, os.Remove) }, "the records of a:"},
		"a newer version": {good, func(dir string) error {
			return os.WriteFile(dir+"/linux-64/"+shardsName, zst(packed(t, map[string]any{"version": 2})), 0o644)
		}, "no package of that name"},
		"a short digest": {good, func(dir string) error {
			return os.WriteFile(dir+"/linux-64/"+shardsName, zst(packed(t, map[string]any{"version": 1, "info": good, "shards": map[string]any{"a": []byte("x")}})), 0o644)
		}, "the index has a digest of 1 bytes; want 32"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := newChannel(t, &testPkg{name: "a", version: "1"})
			shard(t, dir, c.info)
			if c.spoil != nil {
				testenv.Check(t, c.spoil(dir))
			}
			keep := t.TempDir()
			_, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0"), Options{Request: Request{Channels: []string{condatest.Serve(t, dir, nil).URL}}, Subdir: "linux-64", Host: Host{Cache: keep}})
			if got := fmt.Sprint(err); (c.want == "" && err != nil) || !strings.Contains(got, c.want) {
				t.Errorf("Resolve: %v; want %q", err, c.want)
			}
			for _, f := range keptFiles(t, keep) {
				if strings.HasPrefix(filepath.Base(f), ".") {
					t.Errorf("%s was left", f)
				}
			}
		})
	}
}

func eachShard(dir string, do func(string) error) error {
	files, err := filepath.Glob(filepath.Join(dir, "*/shards/*"))
	for _, f := range files {
		if err == nil {
			err = do(f)
		}
	}
	return err
}

// TestMaxAge sends no request while an index is fresh according to Cache-Control.
func TestMaxAge(t *testing.T) {
	for _, c := range []struct {
		header string
		asked  int // in two resolutions
	}{
		{"", 2}, {"max-age=600", 1}, {"public, Max-Age=600", 1}, {"max-age=600, no-cache", 2}, {"no-store", 2}, {"max-age=-5", 2}, {"max-age=x", 2},
	} {
		dir := newChannel(t, &testPkg{name: "a", version: "1"})
		web := condatest.Serve(t, dir, func(w http.ResponseWriter, r *http.Request, _ int) bool {
			if c.header != "" {
				w.Header().Set("Cache-Control", c.header)
			}
			return false
		})
		keep := t.TempDir()
		resolve := func() {
			_, err := Resolve(t.Context(), read(t, "# platform: linux-64\na=1=0"), Options{Request: Request{Channels: []string{web.URL}}, Subdir: "linux-64", Host: Host{Cache: keep}})
			testenv.Check(t, err)
		}
		resolve()
		resolve()
		if n := web.Count("/linux-64/repodata.json"); n != c.asked {
			t.Errorf("Cache-Control %q: asked %d times, want %d", c.header, n, c.asked)
		}
		if c.asked == 2 {
			continue
		}
		for _, f := range keptFiles(t, keep) { // an hour later
			old := time.Now().Add(-longestAge)
			testenv.Check(t, os.Chtimes(f, old, old))
		}
		resolve()
		if n := web.Count("/linux-64/repodata.json"); n != c.asked+1 {
			t.Errorf("Cache-Control %q: asked %d times an hour later, want %d", c.header, n, c.asked+1)
		}
	}
}
