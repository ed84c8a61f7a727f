package conda

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// registryPackages have the names, versions and formats that the layout of a registry encodes.
func registryPackages() []*testPkg {
	return []*testPkg{
		{name: "a", version: "1!2.0+cu118", files: []testFile{{path: "share/a", text: "A"}}, depends: []string{"_mutex", "b-c.d"}},
		{name: "_mutex", build: "main", files: []testFile{{path: "share/mutex", text: "M"}}},
		{name: "b-c.d", subdir: "noarch", noarch: "generic", format: ".tar.bz2", files: []testFile{{path: "share/b", text: strings.Repeat("B", 1000)}}},
	}
}

// originText matches the channel of a package in its record and in the history, and the MD5, which
// a list may lack.
var originText = regexp.MustCompile(`(?m)^ +"(channel|url|md5)": ".*",?\n|^\+.*/(linux-64|noarch)::`)

// withoutOrigin returns the files of an environment, without the origin of packages.
func withoutOrigin(r *result) string {
	var all []string
	for name, e := range r.files {
		data := e.Data
		if strings.HasPrefix(name, "opt/conda/conda-meta/") {
			data = originText.ReplaceAllString(data, "")
		}
		all = append(all, fmt.Sprintf("%s %o %d %s %d %q\n", name, e.Mode, e.Typeflag, e.Linkname, e.ModTime.Unix(), data))
	}
	slices.Sort(all)
	return strings.Join(all, "")
}

// TestRegistry installs from a channel in a registry the same files as from the same channel in
// a directory. As a mirror of the directory, it gives the same layers.
func TestRegistry(t *testing.T) {
	pkgs := registryPackages()
	dir := newChannel(t, pkgs...)
	registry := condatest.Registry(t, false)
	channel := condatest.PushChannel(t, registry, dir, "mirrors/conda-forge")
	want, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{dir}}})
	testenv.Check(t, err)
	manifest := "/v2/mirrors/conda-forge/linux-64/a/manifests/1__e__2.0__p__cu118-0"
	pushed := registry.Count(manifest)
	for _, text := range []string{export(pkgs...), "name: x\ndependencies: [conda-forge::a]\n", "name: x\nchannels: [CHANNEL]\ndependencies: ['CHANNEL::a', CHANNEL/noarch::b-c.d]\n"} {
		r, err := install(t, condatest.NewStore(t), text, Options{Request: Request{Channels: []string{channel}}, Host: Host{Cache: t.TempDir()}})
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if withoutOrigin(r) != withoutOrigin(want) {
			t.Errorf("%s: other files than from the directory:\n%s\n%s", text, withoutOrigin(r), withoutOrigin(want))
		}
		for _, p := range r.plan.Packages() {
			if !strings.HasPrefix(p.URL, channel+"/") {
				t.Errorf("%s: %s has the URL %s", text, p.Name, p.URL)
			}
		}
	}
	// Packages with digests need no manifest.
	if n := registry.Count(manifest) - pushed; n != 0 {
		t.Errorf("%d requests for the manifest of a package", n)
	}

	missing := condatest.FileURL(filepath.Join(t.TempDir(), "missing"))
	for name, group := range map[string][]string{"first": {missing, channel}, "second": {condatest.FileURL(dir), channel}} {
		r, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: group[:1]}, Host: Host{Mirrors: [][]string{group}}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got, want := condatest.LayerDigests(t, r.layers), condatest.LayerDigests(t, want.layers); got != want {
			t.Errorf("%s: layers %s; the directory has %s", name, got, want)
		}
	}
}

// TestRegistryChannel installs the environment of real programs from testdata/helpers/channel through a
// registry. The layers are those of the directory.
func TestRegistryChannel(t *testing.T) {
	testenv.Slow(t)
	dir := os.Getenv("HPCC_TEST_CHANNEL")
	text, err := os.ReadFile(filepath.Join(dir, "requirements.txt"))
	testenv.Need(t, "a conda channel in HPCC_TEST_CHANNEL (go run ./testdata/helpers/channel makes one)", err)
	rows := strings.Join(regexp.MustCompile(`(?m)^(?:#.*|(?:bzip2|libdb|libffi|libgcc|libzlib|openssl|tzdata)=.*)\n`).FindAllString(string(text), -1), "") // both formats, and noarch
	o := Options{Request: Request{Channels: []string{dir}}, Libc: func() (Libc, error) { return Libc{Glibc: "2.36"}, nil }}
	want, err := install(t, condatest.NewStore(t), rows, o)
	testenv.Check(t, err)
	channel := condatest.PushChannel(t, condatest.Registry(t, false), dir, "debian")
	o.Channels, o.Cache = []string{channel}, t.TempDir()
	direct, err := install(t, condatest.NewStore(t), rows, o)
	testenv.Check(t, err)
	if withoutOrigin(direct) != withoutOrigin(want) {
		t.Error("other files than from the directory")
	}
	missing := condatest.FileURL(filepath.Join(t.TempDir(), "missing"))
	o.Channels, o.Mirrors = []string{missing}, [][]string{{missing, channel}}
	mirror, err := install(t, condatest.NewStore(t), rows, o)
	testenv.Check(t, err)
	if len(mirror.files) < 500 || condatest.LayerDigests(t, mirror.layers) != condatest.LayerDigests(t, want.layers) {
		t.Errorf("other layers than from the directory, or only %d files", len(mirror.files))
	}
}

// TestRegistryLists installs from lists and lock files with oci URLs.
func TestRegistryLists(t *testing.T) {
	pkgs := registryPackages()
	registry := condatest.Registry(t, false)
	channel := condatest.PushChannel(t, registry, newChannel(t, pkgs...), "m/c")
	r, err := install(t, condatest.NewStore(t), export(pkgs...), Options{Request: Request{Channels: []string{channel}}})
	testenv.Check(t, err)
	want := condatest.LayerDigests(t, r.layers)

	var lock bytes.Buffer
	testenv.Check(t, exports.WriteLock(&lock, []string{"env.txt"}, []exports.Locked{r.plan.Lock(nil)}))
	lists := map[string]string{"conda-lock": lock.String()}
	pixi := "version: 6\nenvironments:\n  default:\n    channels:\n    - url: " + channel + "/\n    packages:\n      linux-64:\n"
	rows := "packages:\n"
	for _, p := range r.plan.pkgs {
		lists["sha256"] += p.URL + "#sha256:" + p.SHA256 + "\n"
		lists["md5"] += strings.ReplaceAll(p.URL, "!", "%21") + "#" + p.MD5 + "\n"
		lists["no digest"] += p.URL + "\n"
		pixi += "      - conda: " + p.URL + "\n"
		rows += "- conda: " + p.URL + "\n  sha256: " + p.SHA256 + "\n"
	}
	for name, text := range lists {
		if name != "conda-lock" {
			lists[name] = "@EXPLICIT\n" + text
		}
	}
	lists["pixi"] = pixi + rows
	for name, text := range lists {
		e, err := install(t, condatest.NewStore(t), text, Options{})
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, text)
			continue
		}
		if withoutOrigin(e) != withoutOrigin(r) {
			t.Errorf("%s: other files than from the list", name)
		}
		if got := condatest.LayerDigests(t, e.layers); name == "conda-lock" && got != want {
			t.Errorf("%s: layers %s; want %s", name, got, want)
		}
	}
}

// TestRegistryCache requests only the manifest of an unchanged index again, and only its blob
// after a change.
func TestRegistryCache(t *testing.T) {
	a := &testPkg{name: "a"}
	var many []*testPkg
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 400 { // a compressed index of more than minTable bytes
		text := make([]byte, 1000)
		for i := range text {
			text[i] = byte(random.Uint32())
		}
		many = append(many, &testPkg{name: fmt.Sprintf("p%d", i), record: map[string]any{"summary": text}})
	}
	dir := newChannel(t, append(many, a)...)
	registry := condatest.Registry(t, false)
	push := func() string {
		only := t.TempDir()
		for _, sub := range []string{"linux-64", "noarch"} {
			b, err := os.ReadFile(filepath.Join(dir, sub, "repodata.json"))
			testenv.Check(t, err)
			testenv.Write(t, filepath.Join(only, sub, "repodata.json"), b)
		}
		return condatest.PushChannel(t, registry, only, "c")
	}
	o := Options{Request: Request{Channels: []string{push()}}, Subdir: "linux-64", Host: Host{Cache: t.TempDir()}}
	blobs := func() (n int) {
		registry.Mu.Lock()
		defer registry.Mu.Unlock()
		for _, p := range registry.Asked {
			if strings.Contains(p, "linux-64/repodata.json/blobs/sha256:") {
				n++
			}
		}
		return n
	}
	resolve := func() {
		t.Helper()
		p, err := Resolve(condatest.Quick(t), read(t, "# platform: linux-64\na=1.0=0"), o)
		if err != nil || len(p.pkgs) != 1 {
			t.Fatalf("%v, %v", p, err)
		}
	}
	before := blobs()
	for range 3 {
		resolve()
	}
	if n := blobs() - before; n != 1 {
		t.Errorf("%d requests for an unchanged index; want 1", n)
	}
	if tables, _ := filepath.Glob(filepath.Join(o.Cache, "table-*")); len(tables) != 1 {
		t.Errorf("tables %q; want one", tables)
	}
	channelAt(t, dir, append(many[1:], a)...)
	push()
	before = blobs()
	resolve()
	if n := blobs() - before; n != 1 {
		t.Errorf("%d requests for a changed index; want 1", n)
	}
}

// TestRegistryRefused reports what a registry lacks or damages.
func TestRegistryRefused(t *testing.T) {
	a := &testPkg{name: "a", files: []testFile{{path: "share/a", text: strings.Repeat("A", 10000)}}}
	gone, other, lacking := &testPkg{name: "gone"}, &testPkg{name: "other"}, &testPkg{name: "lacking"}
	dir := newChannel(t, a, gone, other, lacking)
	file := func(p *testPkg) string { return filepath.Join(dir, "linux-64", p.dist()+p.format) }
	testenv.Check(t, os.Remove(file(gone)))
	testenv.Write(t, file(other), []byte(strings.Repeat("x", 100)))
	testenv.Check(t, os.Remove(file(lacking)))
	registry := condatest.Registry(t, false)
	channel := condatest.PushChannel(t, registry, dir, "c")
	condatest.PushArtifact(t, registry, "c/linux-64/lacking:1.0-0", "application/vnd.conda.package.v1", []byte("x"))
	for text, want := range map[string]string{
		"gone=1.0=0":    "gone-1.0-0.conda: " + registry.Host(),
		"lacking=1.0=0": "/linux-64/lacking:1.0-0 has no layer of the media type application/vnd.conda.package.v2",
		"other=1.0=0":   "size mismatch: 100 bytes, expected",
		"@EXPLICIT\nCHANNEL/linux-64/none-1.0-0.conda":                                "none-1.0-0.conda: " + registry.Host(),
		"@EXPLICIT\nCHANNEL/linux-64/other-1.0-0.conda#" + md5A:                       "md5 mismatch",
		"@EXPLICIT\noci://me:s3cret@" + registry.Host() + "/c/linux-64/a-1.0-0.conda": "an oci URL has no user or password; run \"hpcc login " + registry.Host() + "\"",
		"@EXPLICIT\noci://registry/c/linux-64/a-1.0-0.conda":                          `the host "registry" has no domain; add its port, as in oci://registry:443/CHANNEL`,
		"@EXPLICIT\noci://" + registry.Host() + "/C/linux-64/a-1.0-0.conda":           "capital letters are not allowed",
		"@EXPLICIT\noci:///c/linux-64/a-1.0-0.conda":                                  "not of the form oci://HOST/CHANNEL",
	} {
		s := condatest.NewStore(t)
		_, err := install(t, s, text, Options{Request: Request{Channels: []string{channel}}})
		refused(t, s, text, err, want)
		if strings.Contains(fmt.Sprint(err), "s3cret") {
			t.Errorf("%s: %v", text, err)
		}
	}
	_, err := install(t, condatest.NewStore(t), "a=1.0=0", Options{Request: Request{Channels: []string{"oci://" + registry.Host() + "/none"}}})
	refused(t, nil, "no channel", err, "/none has no index for linux-64 or noarch (repodata.json): check the URL, or log in to a private channel with \"hpcc login "+registry.Host()+"\"")

	// The registry sends other bytes than those of the digest, in the index and in a package.
	for _, part := range []string{"/repodata.json/blobs/", "/a/blobs/"} {
		registry.SetAnswer(func(w http.ResponseWriter, r *http.Request, _ int) bool {
			if !strings.Contains(r.URL.Path, part) {
				return false
			}
			fmt.Fprint(w, strings.Repeat(" ", 50)+"{}")
			return true
		})
		s := condatest.NewStore(t)
		_, err := install(t, s, "a=1.0=0", Options{Request: Request{Channels: []string{channel}}, Host: Host{Cache: t.TempDir()}})
		refused(t, s, part, err, "digest mismatch: sha256:")
	}
	// A broken transfer resumes.
	registry.SetAnswer(func(w http.ResponseWriter, r *http.Request, nth int) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || nth > 1 {
			return false
		}
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusOK)
		panic(http.ErrAbortHandler)
	})
	_, err = install(t, condatest.NewStore(t), "a=1.0=0", Options{Request: Request{Channels: []string{channel}}})
	if err != nil {
		t.Errorf("a broken transfer: %v", err)
	}
}

// TestRegistryLogin reads a private channel with docker's credentials.
func TestRegistryLogin(t *testing.T) {
	registry := condatest.Registry(t, true)
	channel := condatest.PushChannel(t, registry, newChannel(t, &testPkg{name: "a"}), "c")
	docker := t.TempDir()
	t.Setenv("DOCKER_CONFIG", docker)
	advice := fmt.Sprintf(`"hpcc login -u NAME %s" saves`, registry.Host())
	for password, want := range map[string]string{"": advice, "wr0ng": advice, condatest.RegistryPassword: ""} {
		config := "{}"
		if password != "" {
			config = fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, registry.Host(), base64.StdEncoding.EncodeToString([]byte(condatest.RegistryUser+":"+password)))
		}
		testenv.Write(t, filepath.Join(docker, "config.json"), config)
		_, err := install(t, condatest.NewStore(t), "a=1.0=0", Options{Request: Request{Channels: []string{channel}}})
		hint := ""
		if advised := (interface{ Advice() string })(nil); errors.As(err, &advised) {
			hint = advised.Advice()
		}
		if (want == "") != (err == nil) || !strings.Contains(hint, want) || (password != "" && strings.Contains(fmt.Sprint(err), password)) {
			t.Errorf("password %q: %v, with advice %q; want %q", password, err, hint, want)
		}
	}
}
