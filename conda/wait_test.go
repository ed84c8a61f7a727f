package conda

import (
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/conda/pip"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/hostile"
	"hpcc/testdata/helpers/testenv"
	"hpcc/web"
)

// TestServerFaults injects server faults into every kind of transfer. A permanent fault must
// end the transfer with its reason; a transfer must survive a temporary one.
func TestServerFaults(t *testing.T) {
	noise := make([]byte, 80<<10) // incompressible
	_, _ = rand.NewChaCha8([32]byte{}).Read(noise)
	p := testPkg{name: "large", files: []testFile{{path: "share/large", text: string(noise)}}}
	plain := newChannel(t, &p)
	zipped := newChannel(t, &p)
	index := filepath.Join(zipped, "linux-64/repodata.json")
	b, err := os.ReadFile(index)
	testenv.Check(t, err)
	testenv.Write(t, index+".zst", zst(b))
	sharded := newChannel(t, &p)
	shard(t, sharded, map[string]any{"base_url": "", "shards_base_url": "shards/", "created_at": "now"})
	wheels := condatest.ServeIndex(t, true, condatest.SimpleWheel("x", "1"))
	for _, c := range []struct {
		name, dir, suffix string
	}{
		{"index", plain, "linux-64/repodata.json"},
		{"compressed index", zipped, "linux-64/repodata.json.zst"},
		{"sharded index", sharded, "linux-64/" + shardsName},
		{"shard", sharded, ".msgpack.zst"},
		{"package", plain, ".conda"},
		{"pip index", "", "/simple/x/"},
		{"wheel", "", ".whl"},
	} {
		for _, fault := range hostile.Faults() {
			t.Run(c.name+" "+string(fault), func(t *testing.T) {
				t.Parallel()
				files := http.FileServer(http.Dir(c.dir))
				if c.dir == "" {
					files = wheels.Config.Handler
				}
				server := hostile.Serve(files, false)
				defer server.Close()
				var mu sync.Mutex
				messages := ""
				limits := web.Limits{Header: fault.Limit(), Idle: fault.Limit(),
					Attempts: 3, Backoff: time.Millisecond, Notice: func(line string) { mu.Lock(); defer mu.Unlock(); messages += line + "\n" }}
				ctx := web.With(t.Context(), limits)
				do := func() error {
					s := condatest.NewStore(t)
					if c.dir == "" {
						target := pip.Target{Subdir: "linux-64", Python: "3.11.4", Glibc: "2.36", Prefix: "/opt/conda"}
						o := pip.Options{Indexes: pip.Indexes{URL: server.URL + "/simple/"}}
						plan, err := pip.Resolve(ctx, s, []pip.Requirement{{Name: "x"}}, target, o)
						if err == nil {
							_, _, err = plan.Layers(ctx, s, o)
						}
						return err
					}
					o := Options{Request: Request{Channels: []string{server.URL}}, Subdir: "linux-64"}
					plan, err := Resolve(ctx, read(t, export(&p)), o)
					if err == nil {
						_, _, err = plan.Layers(ctx, s, o)
					}
					return err
				}
				match := func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, c.suffix) }
				server.Set(fault, -1, match)
				begun := time.Now()
				err := do()
				if err == nil || strings.Contains(err.Error(), "context") || time.Since(begun) > 30*time.Second {
					t.Errorf("permanent fault: error %v after %v; want the fault's reason within 30s", err, time.Since(begun))
				}
				if faults := server.Set(fault, 2, match); faults < 3 {
					t.Errorf("permanent fault: the server received %d requests; want at least 3 (error %v)", faults, err)
				}
				limits.Attempts = 20 // for slow machines
				ctx = web.With(t.Context(), limits)
				if err := do(); err != nil {
					t.Errorf("temporary fault: %v", err)
				}
				if faults := server.Set("", 0, nil); faults != 2 {
					t.Errorf("temporary fault: the server failed %d times; want 2", faults)
				}
				mu.Lock()
				defer mu.Unlock()
				want := ", attempt 2 of 3"
				if fault == hostile.Busy {
					want = strings.TrimPrefix(server.URL, "http://") + " asks to wait 1s (429), attempt 2 of 3"
				}
				if !strings.Contains(messages, want) {
					t.Errorf("messages to the user: %q; want %q in them", messages, want)
				}
			})
		}
	}
}

// TestSilentMirror checks that two attempts without a response lead to the next mirror.
func TestSilentMirror(t *testing.T) {
	p := small
	dir := newChannel(t, &p)
	bad, good := hostile.Serve(http.FileServer(http.Dir(dir)), false), condatest.Serve(t, dir, nil)
	defer bad.Close()
	bad.Set(hostile.Silent, -1, func(*http.Request) bool { return true })
	ctx := web.With(t.Context(), web.Limits{Header: 200 * time.Millisecond, Backoff: time.Millisecond})
	o := Options{Request: Request{Channels: []string{bad.URL}}, Subdir: "linux-64", Host: Host{Mirrors: [][]string{{bad.URL, good.URL}}}}
	plan, err := Resolve(ctx, read(t, export(&p)), o)
	if err == nil {
		_, _, err = plan.Layers(ctx, condatest.NewStore(t), o)
	}
	testenv.Check(t, err)
	if faults := bad.Set("", 0, nil); faults == 0 || faults > 8 { // at most two attempts for each of four files
		t.Errorf("the silent mirror received %d requests; want 1 to 8", faults)
	}
}
