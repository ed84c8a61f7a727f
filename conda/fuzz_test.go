package conda

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"hpcc/conda/fetch"
	"hpcc/conda/layer"
	"hpcc/conda/solve"
	"hpcc/testdata/helpers/condatest"
	"hpcc/testdata/helpers/testenv"
)

// FuzzPaths parses the file lists of packages.
func FuzzPaths(f *testing.F) {
	p := &testPkg{name: "p", files: []testFile{{path: "bin/x", text: holder, prefix: holder}, {path: "lib/l", link: "x"}, {path: "d", dir: true}}}
	f.Add(p.infoFiles()["paths.json"], "", "", `{"noarch":{"type":"python","entry_points":["x = a.b:c.d"]}}`)
	p.legacy = true
	f.Add("", "bin/x\r\nlib/a b\n", "bin/x\n\"/p q\" text \"lib/a b\"\n'/p' binary bin/x", "")
	f.Add(`{"paths":[{"_path":"../x"}]}`, "../x", "/p text ../x", `{"noarch":"generic"}`)
	f.Add(`{"paths":[{"_path":"a","prefix_placeholder":"\u0000","file_mode":"binary","size_in_bytes":-1}]}`, "", "", "{}")
	f.Fuzz(func(t *testing.T, paths, list, hasPrefix, link string) {
		in := infoFiles{"index.json": []byte(`{"name":"p","version":"1","build":"0"}`), "link.json": []byte(link), "files": []byte(list), "has_prefix": []byte(hasPrefix)}
		if paths != "" {
			in["paths.json"] = []byte(paths)
		}
		m, err := in.parse()
		if err != nil {
			return
		}
		if n := m.unpacked(maxPackage); n < slack || n > maxUnpacked {
			t.Fatalf("unpacked = %d", n)
		}
		if len(m.paths) != len(m.order) {
			t.Fatalf("%d paths, %d in order", len(m.paths), len(m.order))
		}
		pk := &pkg{in: &installer{plan: &Plan{Prefix: "/opt/conda", python: "3.11", site: "lib/python3.11/site-packages"}}, meta: m}
		for _, src := range m.order {
			e := m.paths[src]
			if e == nil || e.Path != src || !filepath.IsLocal(src) || src == "." || !filepath.IsLocal(pk.target(src)) {
				t.Fatalf("path %q: %+v", src, e)
			}
			if e.Placeholder != "" && (strings.ContainsRune(e.Placeholder, 0) || (e.Mode != "text" && e.Mode != "binary")) {
				t.Fatalf("path %q: %+v", src, e)
			}
		}
		commands, err := pk.commands()
		if err != nil {
			return
		}
		for _, c := range commands {
			if filepath.Base(c.name) != c.name || c.name == "." || c.name == ".." || bytes.Count(c.text, []byte("\n")) != 10 {
				t.Fatalf("command %q: %q", c.name, c.text)
			}
		}
	})
}

// FuzzReplaceBinary checks that a replacement keeps all offsets, removes every placeholder,
// and changes no other bytes.
func FuzzReplaceBinary(f *testing.F) {
	f.Add([]byte("\x7fELF\x00/placeholder/lib\x00rest"), "/placeholder", "/opt")
	f.Add([]byte("/placeholder:/placeholder/placeholder"), "/placeholder", "/placeholder")
	f.Add([]byte("aaaa\x00aa"), "aa", "a")
	f.Add([]byte("abab\x00"), "ab", "")
	f.Fuzz(func(t *testing.T, data []byte, placeholder, prefix string) {
		if placeholder == "" || strings.ContainsRune(placeholder, 0) || strings.ContainsRune(prefix, 0) {
			return // the callers of replaceBinary refuse these
		}
		before := bytes.Clone(data)
		got, err := replaceBinary(data, []byte(placeholder), []byte(prefix), 1)
		if !bytes.Equal(before, data) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if len(prefix) <= len(placeholder) {
				t.Fatal(err)
			}
			return
		}
		if len(got) != len(data) {
			t.Fatalf("%d bytes became %d", len(data), len(got))
		}
		// Check each NUL-terminated string with an independent implementation.
		at := 0
		for _, s := range bytes.Split(data, []byte{0}) {
			want := bytes.ReplaceAll(s, []byte(placeholder), []byte(prefix))
			end := at + len(s)
			if g := got[at:end]; !bytes.Equal(g[:len(want)], want) || len(bytes.Trim(g[len(want):], "\x00")) != 0 {
				t.Fatalf("string %q became %q; want %q", s, g, want)
			}
			if end < len(got) && got[end] != 0 {
				t.Fatalf("the bytes after string %q were overwritten", s)
			}
			at = end + 1
		}
	})
}

// FuzzPackage walks archives: as .tar.bz2 if the data begins with "BZh", else as .conda.
func FuzzPackage(f *testing.F) {
	for _, p := range []*testPkg{
		{name: "p"}, {name: "p", legacy: true, files: []testFile{{path: "x", text: "1"}}},
		{name: "p", files: []testFile{{path: "bin/x", text: holder, prefix: holder}, {path: "l", link: "x"}, {path: "h", hard: "bin/x", text: holder, prefix: holder}}, entryPoints: []string{"a = b:c"}},
	} {
		f.Add(p.bytes(f))
	}
	old, err := os.ReadFile("testdata/packages/cph_test_data-0.0.1-0.tar.bz2")
	testenv.Check(f, err)
	f.Add(old)
	f.Fuzz(func(t *testing.T, data []byte) {
		file := filepath.Join(t.TempDir(), "p.conda")
		if bytes.HasPrefix(data, []byte("BZh")) {
			file = filepath.Join(t.TempDir(), "p.tar.bz2")
		}
		testenv.Write(t, file, data)
		in := infoFiles{}
		n := int64(0)
		const limit = 1 << 20
		err := walk(file, limit, in.take, func(h *tar.Header, r io.Reader) error {
			if !filepath.IsLocal(h.Name) {
				t.Fatalf("entry %q", h.Name)
			}
			m, err := io.Copy(io.Discard, r)
			n += m
			return err
		})
		if n > limit {
			t.Fatalf("walk passed on %d bytes; the limit is %d", n, limit)
		}
		if err == nil {
			_, _ = in.parse()
		}
	})
}

// FuzzInstall installs archives with any file list, and checks that all entries of the layer
// are below the prefix.
func FuzzInstall(f *testing.F) {
	p := &testPkg{name: "p", files: []testFile{
		{path: "bin/x", text: holder, prefix: holder, mode: 0o755}, {path: "lib/l", link: "/etc"}, {path: "d", dir: true}, {path: "h", hard: "bin/x", text: holder, prefix: holder},
		{path: "site-packages/m.py", text: "1"}, {path: "etc/conda/env_vars.d/x.json", text: "{}"},
	}}
	f.Add(p.infoFiles()["paths.json"], tarOf(p.tarFiles), false)
	f.Add(p.infoFiles()["paths.json"], tarOf(p.tarFiles), true)
	f.Add(`{"paths":[{"_path":"lib/l"},{"_path":"lib/l/x"}]}`, tarOf(p.tarFiles), true)
	f.Fuzz(func(t *testing.T, paths string, archive []byte, noarch bool) {
		index := `{"name":"p","version":"1.0","build":"0"}`
		if noarch {
			index = `{"name":"p","version":"1.0","build":"0","noarch":"python"}`
		}
		q := &testPkg{name: "p", info: map[string]string{"paths.json": paths, "index.json": index}}
		q.members = func(m []zipMember) []zipMember { m[1].data = zst(archive); return m }
		file := filepath.Join(t.TempDir(), "p-1.0-0.conda")
		testenv.Write(t, file, q.bytes(t))
		in := &installer{plan: &Plan{Prefix: "/opt/conda", python: "3.11", site: "lib/python3.11/site-packages"}, env: &Environment{}}
		pk := &pkg{in: in, rec: &solve.Record{Name: "p", Version: "1.0", Build: "0", File: fetch.File{FileName: "p-1.0-0.conda"}}, file: file, lost: map[string]bool{}, lostPoints: map[string]bool{}}
		in.packages = []*pkg{pk}
		info := infoFiles{}
		if err := walk(file, 1<<20, info.take, nil); err != nil {
			return
		}
		var err error
		if pk.meta, err = info.parse(); err != nil || in.settle() != nil || pk.meta.unpacked(maxPackage) > slack+1<<20 {
			return
		}
		var out bytes.Buffer
		w := layer.NewWriter(&out, "/opt/conda")
		if pk.install(t.Context(), w) != nil {
			return
		}
		testenv.Check(t, w.Close())
		got := condatest.ReadTar(t, &out)
		for name, e := range got {
			if name != "opt" && name != "opt/conda" && !strings.HasPrefix(name, "opt/conda/") {
				t.Fatalf("%q is not in the prefix", name)
			}
			if strings.HasPrefix(name, "opt/conda/conda-meta/") && name != "opt/conda/conda-meta/p-1.0-0.json" {
				t.Fatalf("%q is in the layer; want only the record of the package itself in conda-meta", name)
			}
			if target := got[e.Linkname]; e.Typeflag == tar.TypeLink && (target.Header == nil || (target.Typeflag != tar.TypeReg && target.Typeflag != tar.TypeLink)) {
				t.Fatalf("%q is a hard link to %q", name, e.Linkname)
			}
		}
	})
}

// slowScan reads an index with encoding/json alone.
func slowScan(in []byte, wanted map[string]bool) (map[string][]string, error) {
	d := json.NewDecoder(bytes.NewReader(in))
	open := func() error {
		if t, err := d.Token(); err != nil || t != json.Delim('{') {
			return errors.Join(err, errors.New("not an object"))
		}
		return nil
	}
	if err := open(); err != nil {
		return nil, err
	}
	out := map[string][]string{}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		var raw json.RawMessage
		if err := d.Decode(&raw); err != nil {
			return nil, err
		}
		if (key != "packages" && key != "packages.conda") || string(raw) == "null" {
			continue
		}
		list := json.NewDecoder(bytes.NewReader(raw))
		if t, err := list.Token(); err != nil || t != json.Delim('{') {
			return nil, errors.Join(err, errors.New("not an object"))
		}
		for list.More() {
			fn, err := list.Token()
			if err != nil {
				return nil, err
			}
			var rec json.RawMessage
			if err := list.Decode(&rec); err != nil {
				return nil, err
			}
			name, _, _, ok := solve.SplitFile(fn.(string))
			if ok && wanted[name] && !strings.Contains(fn.(string), "/") && string(rec) != "null" {
				out[fn.(string)] = append(out[fn.(string)], string(rec))
			}
		}
	}
	_, err := d.Token()
	return out, err
}

// FuzzScan compares the scanner with encoding/json: it accepts at least the same input, and
// finds the same records.
func FuzzScan(f *testing.F) {
	const rec = `{"name":"a","version":"1.0","build":"0"}`
	for _, s := range []string{
		`{"info":{"subdir":"x"},"packages":{"b-1-0.tar.bz2":{"x":"}\\\"{"},"a-1.0-0.tar.bz2":` + rec + `},"packages.conda":{"a-1.0-0.conda":` + rec + `},"removed":["a",1,null],"n":-1.5e3,"t":true}`,
		`{"packages":null}`, `{}`, ` { "\u0070ackages" : { "\u0061-1-0.conda" : null , "a-1-1.conda":7 } } `, `{"packages":{"a-1-0.conda":{},"a-1-0.conda":{}}}`, `{"x":"\"","y":"\\"}`,
	} {
		f.Add([]byte(s), uint8(1))
		f.Add([]byte(s), uint8(200))
	}
	wanted := map[string]bool{"a": true}
	f.Fuzz(func(t *testing.T, in []byte, piece uint8) {
		got := map[string][]string{}
		s := newScanner(&pieces{in, int(piece) + 1})
		s.buf = make([]byte, 1+int(piece)%64) // so that the buffer moves and grows often
		list := func(key []byte) error {
			fn, err := unquote(key)
			if err != nil {
				return err
			}
			if name, _, _, ok := solve.SplitFile(fn); !ok || !wanted[name] {
				return s.skip()
			}
			v, err := s.value()
			if err == nil && string(v) != "null" {
				got[fn] = append(got[fn], string(v))
			}
			return err
		}
		err := s.object(func(key []byte) error {
			if name, err := unquote(key); err != nil || (name != "packages" && name != "packages.conda") {
				return errors.Join(err, s.skip())
			}
			if c, err := s.next(); err != nil || c != '{' {
				return s.null()
			}
			return s.object(list)
		})
		want, slow := slowScan(in, wanted)
		if slow != nil {
			return // the scanner may accept more than JSON
		}
		if err != nil {
			t.Fatalf("scanning %q: %v; encoding/json accepts it", in, err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("scanning %q found %q; encoding/json found %q", in, got, want)
		}
	})
}

// FuzzShard parses shards, and the index of shards.
func FuzzShard(f *testing.F) {
	r := map[string]any{"name": "a", "version": "1", "build": "0", "build_number": 0, "depends": []any{"b >=1"}, "md5": make([]byte, 16), "sha256": make([]byte, 32), "size": 1}
	f.Add(packed(f, map[string]any{"packages": map[string]any{"a-1-0.tar.bz2": r}, "packages.conda": map[string]any{"a-1-0.conda": r}, "removed": []any{}}))
	f.Add(packed(f, map[string]any{"version": 1, "info": map[string]any{"base_url": ""}, "shards": map[string]any{"a": make([]byte, 32)}}))
	f.Add([]byte{0xdf, 0xff, 0xff, 0xff, 0xff, 0xa1, 'a'})
	f.Fuzz(func(t *testing.T, raw []byte) {
		text, err := unpackShard(zst(raw))
		if err != nil {
			return
		}
		rs, err := (channel{url: "https://c.example/ch"}).scan(bytes.NewReader(text), "linux-64", "https://c.example/ch/linux-64/", map[string]bool{"a": true})
		for _, r := range rs {
			if err == nil && (r.Name != "a" || !isHex(r.MD5, 32) || !isHex(r.SHA256, 64)) {
				t.Errorf("record %+v", r)
			}
		}
		_ = json.Unmarshal(text, &shardIndex{})
	})
}
