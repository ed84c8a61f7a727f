package conda

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"hpcc/conda/fetch"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// prefixPackages returns packages whose records differ from those of usual packages:
// without files, with all files clobbered, and corrected by the channel's index.
func prefixPackages() []*testPkg {
	return append(shapesOf(),
		&testPkg{name: "pip", noarch: "python", subdir: "noarch", depends: []string{"python"}, files: []testFile{{path: "site-packages/pip/__init__.py"}}},
		&testPkg{name: "metapackage", depends: []string{"shapes"}},
		&testPkg{name: "clobbered", files: []testFile{{path: "share/all", text: "clobbered's"}}},
		&testPkg{name: "owner", depends: []string{"clobbered"}, files: []testFile{{path: "share/all", text: "owner's"}}},
		&testPkg{name: "patched", number: 3, timestamp: 1_500_000_000_000, depends: []string{"shapes", "removed-by-the-index"}, files: []testFile{{path: "share/patched", text: "x"}},
			record: map[string]any{"depends": []string{"shapes >=1", "owner"}, "constrains": []string{"metapackage <2"}, "license": "BSD-3-Clause", "license_family": "BSD", "track_features": "slow other", "timestamp": 1_600_000_000_000}},
		&testPkg{name: "bare", record: map[string]any{"license": nil, "timestamp": nil, "depends": nil}, depends: []string{"shapes"}, timestamp: 1_400_000_000_000, files: []testFile{{path: "share/bare", text: "x"}}},
	)
}

// TestRecords checks the records of an environment against conda's rules: no value is null,
// no digest is empty, each file has one owner, and the channel's index takes precedence over
// info/index.json.
func TestRecords(t *testing.T) {
	pkgs := prefixPackages()
	web := condatest.Serve(t, newChannel(t, pkgs...), nil)
	s := condatest.NewStore(t)
	r, err := install(t, s, export(pkgs...), Options{Request: Request{Channels: []string{web.URL}}})
	testenv.Check(t, err)
	owners := map[string]string{}
	for _, p := range r.plan.pkgs {
		dist := p.Name + "-" + p.Version + "-" + p.Build
		text := r.files["opt/conda/conda-meta/"+dist+".json"].Data
		for _, bad := range []string{": null", `"md5": ""`, `"sha256": ""`} {
			if strings.Contains(text, bad) {
				t.Errorf("record of %s contains %s: %s", dist, bad, text)
			}
		}
		m := record1(t, r, dist)
		if len(m.Files) != len(m.PathsData.Paths) {
			t.Errorf("record of %s: %d files, %d paths", dist, len(m.Files), len(m.PathsData.Paths))
		}
		for _, f := range m.Files {
			if owners[f] != "" {
				t.Errorf("%s belongs to %s and to %s", f, owners[f], dist)
			}
			if owners[f] = dist; r.files["opt/conda/"+f].Header == nil {
				t.Errorf("record of %s: %s is not installed", dist, f)
			}
		}
	}
	if owners["share/all"] != "owner-1.0-0" {
		t.Errorf("share/all belongs to %q; want the package installed last", owners["share/all"])
	}
	for dist, want := range map[string]map[string]any{
		"patched-1.0-0": {"depends": []any{"shapes >=1", "owner"}, "constrains": []any{"metapackage <2"}, "license": "BSD-3-Clause", "license_family": "BSD",
			"track_features": "slow,other", "timestamp": 1.6e12, "build_number": 3.0, "channel": web.URL, "subdir": "linux-64"},
		"bare-1.0-0":        {"depends": []any{"shapes"}, "constrains": []any{}, "license": "MIT", "license_family": nil, "track_features": nil, "timestamp": 1.4e12},
		"metapackage-1.0-0": {"files": []any{}, "paths_data": map[string]any{"paths": []any{}, "paths_version": 1.0}},
		"clobbered-1.0-0":   {"files": []any{}, "paths_data": map[string]any{"paths": []any{}, "paths_version": 1.0}},
	} {
		var got map[string]any
		testenv.Check(t, json.Unmarshal([]byte(r.files["opt/conda/conda-meta/"+dist+".json"].Data), &got))
		for key, v := range want {
			if !reflect.DeepEqual(got[key], v) {
				t.Errorf("record of %s: %s = %v; want %v", dist, key, got[key], v)
			}
		}
	}
	// An explicit export has no index: its records are those of the packages. The layers of
	// the same packages from the index are not reused.
	r, err = install(t, s, "@EXPLICIT\n"+web.URL+"/linux-64/patched-1.0-0.conda\n", Options{})
	testenv.Check(t, err)
	if m := record1(t, r, "patched-1.0-0"); !slices.Equal(m.Depends, []string{"shapes", "removed-by-the-index"}) || m.Timestamp != 1_500_000_000_000 || m.BuildNumber != 3 {
		t.Errorf("record of an explicit export = %s", mustJSON(m))
	}
}

// TestPatchedIndex checks that a change of the index alone changes the record of a package
// whose layer is in the store.
func TestPatchedIndex(t *testing.T) {
	p := &testPkg{name: "x", depends: []string{"y"}}
	y := &testPkg{name: "y"}
	s, dir := condatest.NewStore(t), t.TempDir()
	for _, want := range []string{"y", "y >=1", "y <2"} {
		p.record = map[string]any{"depends": []string{want}}
		channelAt(t, dir, p, y)
		r, err := install(t, s, export(p, y), Options{Request: Request{Channels: []string{dir}}})
		testenv.Check(t, err)
		if m := record1(t, r, "x-1.0-0"); !slices.Equal(m.Depends, []string{want}) {
			t.Errorf("depends = %q; the index has %q", m.Depends, want)
		}
	}
}

// A conda runs the conda program named by HPCC_TEST_CONDA.
type conda struct {
	t               *testing.T
	program, prefix string
}

// newConda writes an installed environment to a directory, in which conda can read it.
func newConda(t *testing.T, r *result) *conda {
	t.Helper()
	program := os.Getenv("HPCC_TEST_CONDA")
	if program == "" {
		t.Skip("needs conda: set HPCC_TEST_CONDA to its program")
	}
	root := t.TempDir()
	for _, name := range slices.Sorted(maps.Keys(r.files)) {
		e, file := r.files[name], filepath.Join(root, name)
		switch e.Typeflag {
		case tar.TypeDir:
			testenv.Check(t, os.MkdirAll(file, 0o755))
		case tar.TypeSymlink:
			testenv.Check(t, os.Symlink(e.Linkname, file))
		case tar.TypeLink:
			testenv.Write(t, file, r.files[e.Linkname].Data)
		default:
			testenv.Write(t, file, e.Data)
		}
	}
	return &conda{t, program, filepath.Join(root, "opt/conda")}
}

// run runs a command of conda on the environment and returns its standard output.
func (c *conda) run(args ...string) []byte {
	c.t.Helper()
	cmd := exec.Command(c.program, append(args, "--prefix", c.prefix)...)
	cache := c.t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+cache, "CONDA_PKGS_DIRS="+filepath.Join(cache, "pkgs"), "CONDA_OVERRIDE_GLIBC=2.36", "CONDA_NOTIFY_OUTDATED_CONDA=false")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		c.t.Errorf("conda %q: %v: %s%s", args, err, stdout.String(), stderr.String())
	}
	return stdout.Bytes()
}

// rows returns the packages of a plan, or of "conda list --json", one a line.
func rows(pkgs []Package, channel string) (out []string) {
	for _, p := range pkgs {
		out = append(out, fmt.Sprintf("%s=%s=%s %s/%s", p.Name, p.Version, p.Build, channel, p.Subdir))
	}
	slices.Sort(out)
	return out
}

// TestRealConda runs conda on environments with packages of all kinds, from a server and from
// a directory. conda lists the packages of hpcc's table, and has nothing to change when asked
// for them.
func TestRealConda(t *testing.T) {
	pkgs := prefixPackages()
	dir := filepath.Join(t.TempDir(), "lab")
	channelAt(t, dir, pkgs...)
	web := condatest.Serve(t, filepath.Dir(dir), nil).URL + "/lab"
	for channel, name := range map[string]string{web: "lab", dir: "<unknown>"} {
		r, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{channel}}})
		testenv.Check(t, err)
		c := newConda(t, r)
		var list []struct {
			Name, Version, Channel, Platform string
			Build                            string `json:"build_string"`
		}
		testenv.Check(t, json.Unmarshal(c.run("list", "--json"), &list))
		var got []string
		for _, x := range list {
			got = append(got, fmt.Sprintf("%s=%s=%s %s/%s", x.Name, x.Version, x.Build, path.Base(x.Channel), x.Platform))
		}
		slices.Sort(got)
		if want := rows(r.plan.Packages(), name); !slices.Equal(got, want) {
			t.Errorf("conda list = %q\nhpcc has %q", got, want)
		}
		c.run("list", "--revisions")
		text := string(c.run("list", "--explicit", "--md5"))
		for _, p := range r.plan.pkgs {
			if u := fetch.Public(p.URL); u != "" && !strings.Contains(text, "\n"+u+"#"+p.MD5+"\n") {
				t.Errorf("conda list --explicit lacks %s#%s: %s", u, p.MD5, text)
			}
		}
		var answer struct {
			Success bool
			Actions struct {
				Link []struct {
					Name string `json:"dist_name"`
				} `json:"LINK"`
			}
		}
		testenv.Check(t, json.Unmarshal(c.run("install", "--dry-run", "--json", "--override-channels", "--channel", web, "patched", "metapackage", "clobber-a", "owner"), &answer))
		for _, l := range answer.Actions.Link { // conda replaces a package of an unknown channel by the same one of a known
			if name == "lab" || !slices.Contains(r.plan.Names(), l.Name) {
				t.Errorf("conda install --dry-run would link %s, which hpcc installed from %s", l.Name, name)
			}
		}
		if !answer.Success {
			t.Errorf("conda install --dry-run = %s", mustJSON(answer))
		}
	}
}
