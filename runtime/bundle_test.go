package runtime

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/testdata/helpers/testenv"
)

// TestBundle checks what becomes of an image's configuration in a bundle.
func TestBundle(t *testing.T) {
	const platform = `"os":"linux","architecture":"arm64"`
	plain := map[string]string{"org.opencontainers.image.os": "linux", "org.opencontainers.image.architecture": "arm64"}
	with := func(pairs ...string) map[string]string {
		m := maps.Clone(plain)
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return m
	}
	for _, c := range []struct {
		name, config string
		annotations  map[string]string
		args, env    []string // env: variables that must be set
		cwd, err     string
	}{
		{"nothing", `{` + platform + `}`, plain, []string{"/bin/sh"}, nil, "/", ""},
		{"no configuration", "", map[string]string{"org.opencontainers.image.os": "linux"}, []string{"/bin/sh"}, nil, "/", ""},
		{"program", `{` + platform + `,"config":{"Entrypoint":["a"],"Cmd":["b","c"],"WorkingDir":"work","Env":["X=1","broken","=y"]}}`,
			plain, []string{"a", "b", "c"}, []string{"X=1"}, "/work", ""},
		{"annotations", `{` + platform + `,"variant":"v8","author":"Ann","created":"2024-05-06T07:08:09.5Z",
			"config":{"StopSignal":"SIGINT","ExposedPorts":{"80/tcp":{},"53/udp":{}},"Labels":{"a":"b","org.example.x":"y z"}}}`,
			with("org.opencontainers.image.variant", "v8", "org.opencontainers.image.author", "Ann", "org.opencontainers.image.created", "2024-05-06T07:08:09.5Z",
				"org.opencontainers.image.stopSignal", "SIGINT", "org.opencontainers.image.exposedPorts", "53/udp,80/tcp", "a", "b", "org.example.x", "y z"),
			[]string{"/bin/sh"}, nil, "/", ""},
		{"labels replace annotations", `{` + platform + `,"author":"Ann","config":{"Labels":{"org.opencontainers.image.author":"Bob"}}}`,
			with("org.opencontainers.image.author", "Bob"), []string{"/bin/sh"}, nil, "/", ""},
		{"labels for runtimes", `{` + platform + `,"config":{"Labels":{"hpcc.fakeroot":"1","run.oci.handler":"krun","krun.cpus":"9","module.wasm.image/variant":"compat",
			"org.systemd.property.TasksMax":"1","org.criu.config":"/x","hpcc":"kept"}}}`,
			with("hpcc", "kept"), []string{"/bin/sh"}, nil, "/", ""},
		{"user and volumes", `{` + platform + `,"config":{"User":"nobody:7","Volumes":{"/data":{}}}}`, plain, []string{"/bin/sh"}, nil, "/", ""},
		{"another system", `{"os":"windows"}`, nil, nil, nil, "", "unsupported OS: windows"},
		{"not JSON", `{`, nil, nil, nil, "", "unexpected end of JSON"},
		{"not a time", `{"created":"noon"}`, nil, nil, nil, "", "parsing time"},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			if c.config != "" {
				testenv.Check(t, os.WriteFile(filepath.Join(root, "image.json"), []byte(c.config), 0o600))
			}
			// A link of the image that leads out of it is not followed.
			testenv.Check(t, os.Mkdir(filepath.Join(root, "etc"), 0o755))
			testenv.Check(t, os.Symlink("/nonexistent", filepath.Join(root, "etc/passwd")))
			s, err := Bundle(root, "image.json", Options{})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("Bundle returns %v; want %q", err, c.err)
				}
				return
			}
			testenv.Check(t, err)
			if !maps.Equal(s.Annotations, c.annotations) {
				t.Errorf("annotations %v; want %v", s.Annotations, c.annotations)
			}
			if !slices.Equal(s.Process.Args, c.args) || s.Process.Cwd != c.cwd {
				t.Errorf("runs %q in %s; want %q in %s", s.Process.Args, s.Process.Cwd, c.args, c.cwd)
			}
			for _, e := range c.env {
				if !slices.Contains(s.Process.Env, e) {
					t.Errorf("%s is not in the environment %q", e, s.Process.Env)
				}
			}
			for _, e := range []string{"broken", "=y"} {
				if slices.Contains(s.Process.Env, e) {
					t.Errorf("%q is in the environment", e)
				}
			}
			checkDecisions(t, s)
		})
	}
}

// checkDecisions checks what a bundle has whatever the image says: root inside, no terminal,
// no mounts for volumes.
func checkDecisions(t *testing.T, s *specs.Spec) {
	t.Helper()
	if u, err := json.Marshal(s.Process.User); err != nil || string(u) != `{"uid":0,"gid":0}` {
		t.Errorf("the user is %s, %v", u, err)
	}
	if s.Process.Terminal || s.Version != "1.0.2" || s.Root.Path != BundleRoot || !s.Root.Readonly {
		t.Errorf("terminal %v, version %s, root %+v", s.Process.Terminal, s.Version, s.Root)
	}
	for _, m := range s.Mounts {
		if slices.Contains(m.Options, "noexec") || m.Destination == "/data" {
			t.Errorf("unexpected mount %+v", m)
		}
	}
}
