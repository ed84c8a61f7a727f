package conda

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// TestWriteLock reads a written lock file again for each platform. It contains no
// credentials.
func TestWriteLock(t *testing.T) {
	e := &exports.Export{File: "env.yml", Variables: map[string]string{"A": "b c", "Z": ""}}
	plan := &Plan{Subdir: "linux-64", export: e, channels: []string{"https://me:pw@c.example/t/tok-en/lab"}, pkgs: []*solve.Record{
		{Name: "b", Version: "2", Build: "0", File: fetch.File{SHA256: shaA, URL: "https://other.example/noarch/b-2-0.conda"}, Origin: "https://other.example"},
		{Name: "a", Version: "1!1.0", Build: "h_1", Depends: []string{"b >=1", "c", "__glibc"},
			File: fetch.File{MD5: md5A, SHA256: shaA, URL: "https://me:pw@c.example/t/tok-en/lab/linux-64/a-1!1.0-h_1.conda"}, Origin: "https://me:pw@c.example/t/tok-en/lab"},
	}}
	amd := plan.Lock([]pip.Wheel{
		{Name: "needed", Version: "3", SHA256: shaA, Address: "https://i.example/needed-3-py3-none-any.whl?sig=pw"},
		{Name: "here", Version: "1", SHA256: shaA, Address: "file:///w/here-1-py3-none-any.whl", Asked: true},
		{Name: "named", Version: "1", SHA256: shaA, Address: "https://i.example/named-1-py3-none-any.whl", Asked: true, Direct: true},
	})
	if got := strings.Join(amd.Hidden, " "); got != "a needed" {
		t.Errorf("addresses with credentials: %q; want a and needed", got)
	}
	plan.Subdir, plan.pkgs = "linux-aarch64", plan.pkgs[:1]
	arm := plan.Lock(nil)
	var b, again bytes.Buffer
	testenv.Check(t, exports.WriteLock(&b, []string{"env.yml"}, []exports.Locked{amd, arm}))
	if err := exports.WriteLock(&again, []string{"env.yml"}, []exports.Locked{amd, arm}); err != nil || again.String() != b.String() {
		t.Errorf("a second lock file differs, %v", err)
	}
	if strings.Contains(b.String(), "pw") || strings.Contains(b.String(), "tok-en") {
		t.Errorf("it contains a credential:\n%s", b.String())
	}
	for subdir, want := range map[string]string{
		"linux-64": "[https://other.example/noarch/b-2-0.conda https://c.example/lab/linux-64/a-1%211.0-h_1.conda] " +
			"[needed @ https://i.example/needed-3-py3-none-any.whl needed=true locked=true here @ file:///w/here-1-py3-none-any.whl needed=false locked=true named @ https://i.example/named-1-py3-none-any.whl needed=false locked=false]",
		"linux-aarch64": "[https://other.example/noarch/b-2-0.conda] []",
	} {
		e, err := exports.Read(strings.NewReader(b.String()), "conda-lock.yml", exports.ReadOptions{Subdir: subdir})
		if err != nil || !e.Explicit {
			t.Fatalf("%s: %v\n%s", subdir, err, b.String())
		}
		var rows []string
		for _, p := range e.Pip {
			rows = append(rows, fmt.Sprintf("%s needed=%v locked=%v", p, p.Needed, p.Locked))
		}
		if got := fmt.Sprint(e.Entries, " ", rows); got != want {
			t.Errorf("%s: %s; want %s", subdir, got, want)
		}
		if fmt.Sprint(e.Variables, e.Channels) != "map[A:b c Z:] [https://c.example/lab https://other.example]" {
			t.Errorf("%s: variables and channels %v, %v", subdir, e.Variables, e.Channels)
		}
	}
}

// TestLockCustom validates custom_metadata.
func TestLockCustom(t *testing.T) {
	const head = "version: 1\nmetadata:\n  custom_metadata:\n    hpcc-variables: '%s'\npackage:\n- {name: a, manager: conda, platform: linux-64, url: https://h/linux-64/a-1-0.conda}\n"
	if e, err := exports.Read(strings.NewReader(strings.Replace(fmt.Sprintf(head, `[]`), "hpcc-variables", "hpcc-built", 1)), "l.yml", exports.ReadOptions{}); err == nil || !strings.Contains(err.Error(), "l.yml:4: hpcc-built is not a JSON object of objects of lists") {
		t.Errorf("hpcc-built that is a list: %v, %v", e, err)
	}
	for text, want := range map[string]string{`[]`: "l.yml:4: hpcc-variables is not a JSON object of strings", `{"a b": "x"}`: `l.yml:4: "a b": invalid variable name or value`, `{"A": "\u0000"}`: "l.yml:4: "} {
		if e, err := exports.Read(strings.NewReader(fmt.Sprintf(head, text)), "l.yml", exports.ReadOptions{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v; want %q", text, e, err, want)
		}
	}
}

// TestDownloads lists downloads with their sizes, without cached packages, and with the
// wheels that conda packages do not provide.
func TestDownloads(t *testing.T) {
	python, six := pythonPkg(), testPkg{name: "six", version: "1.16", depends: []string{"python"}}
	channel := newChannel(t, python, &six)
	o := Options{Request: Request{Channels: []string{channel}, Indexes: pip.Indexes{NoIndex: true, FindLinks: []string{condatest.WheelDir(t, condatest.SimpleWheel("demo", "1", "six"), condatest.SimpleWheel("six", "2"))}}}, Subdir: "linux-64"}
	e, err := exports.Read(strings.NewReader("dependencies:\n- python\n- six\n- pip:\n  - demo\n"), "e.yml", exports.ReadOptions{})
	testenv.Check(t, err)
	plan, err := Resolve(t.Context(), e, o)
	testenv.Check(t, err)
	s := condatest.NewStore(t)
	state := func() (out string) {
		list, notes, err := plan.Downloads(t.Context(), s, o)
		if err != nil || len(notes) == 0 {
			t.Fatal(notes, err)
		}
		for _, d := range list {
			out += fmt.Sprintf("%s %s %v %v\n", d.Name, d.Version, d.Size > 0, d.Cached)
		}
		return out
	}
	if got, want := state(), "python 3.11.4 true false\nsix 1.16 true false\ndemo 1 true false\n"; got != want {
		t.Errorf("to fetch: %s; want %s", got, want)
	}
	if _, _, err := plan.Layers(t.Context(), s, o); err != nil {
		t.Fatal(err)
	}
	// A wheel in a directory without a digest is read again.
	if got, want := state(), "python 3.11.4 true true\nsix 1.16 true true\ndemo 1 true false\n"; got != want {
		t.Errorf("after the installation: %s; want %s", got, want)
	}
}
