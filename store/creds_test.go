package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// secretWord is used as the secret in all places that can hold one.
const secretWord = "hunter2-S3CRET"

func TestParseCreds(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"list", "- name: jfrog\n  url: https://acme.jfrog.io/team\n  username: u\n  password: p\n- name: local\n  url: localhost:5000\n- name: none\n",
			"jfrog acme.jfrog.io team tls u; local localhost:5000  any ; none   any "},
		{"under registries", "registries:\n- {name: a, url: 'http://10.0.0.1:5000'}\n", "a 10.0.0.1:5000  plain "},
		{"map", "a:\n  url: registry.example\nb:\n  name: b\n  url: registry.example/x/y/\n  token: t\n", "a registry.example  tls ; b registry.example x/y tls "},
		{"list under registry", "registry:\n- {name: a, url: 'registry.example:443'}\n", "a registry.example:443  tls "},
		{"entry with the name registry", "registry: {url: 'registry.example:443'}\n", "registry registry.example:443  tls "},
		{"map under registries", "registries:\n  a: {url: 'registry.example:443'}\n", "a registry.example:443  tls "},
		{"one", "name: a\nurl: '[::1]:5000'\n", "a [::1]:5000  any "},
		{"a map with the names of fields", "name: {url: a.example}\nurl: {url: b.example}\n", "name a.example  tls ; url b.example  tls "},
		{"hub", "- {name: hub, url: docker.io/lab}\n", "hub docker.io lab tls "},
		{"https on this machine", "- {name: a, url: 'https://127.0.0.1:5000'}\n", "a 127.0.0.1:5000  tls "},
		{"none with an empty url", "- {name: none, url: }\n- {name: a, url: a.example}\n", "none   any ; a a.example  tls "},
		{"numbers are words", "- {name: 1, url: a.example, username: 007, password: 0123}\n", "1 a.example  tls 007"},
		{"empty", "", ""},
		{"comments", "# nothing yet\n", ""},
		{"null", "~\n", ""},
	} {
		list, err := parseCreds([]byte(c.in))
		var got []string
		for _, r := range list {
			how := map[bool]string{true: "tls"}[r.tls] + map[bool]string{true: "plain"}[r.plainHTTP]
			if how == "" {
				how = "any"
			}
			got = append(got, fmt.Sprintf("%s %s %s %s %s", r.Name, r.Host, r.Path, how, r.username.text))
		}
		if err != nil || strings.Join(got, "; ") != c.want {
			t.Errorf("%s: %q, %v; want %q", c.name, strings.Join(got, "; "), err, c.want)
		}
	}
}

// TestParseCredsRefuses: each mistake is reported with its line, and no error contains a
// possible secret.
func TestParseCredsRefuses(t *testing.T) {
	const S = secretWord
	for _, c := range []struct{ name, in, want string }{
		{"unknown field", "- name: a\n  url: a.example\n  user: " + S, `3: "user" is not a field; known are name, url, username`},
		{"field without a space", "- {name: a, url: a.example, password:" + S + "}", "1: a field that is not known; known are"},
		{"a word in place of fields", "- name:a\n- password:" + S, "1: an entry has the fields"},
		{"two names", "- {name: a, url: a.example}\n- {name: b, url: a.example}\n- {name: a, url: a.example}", `3: registry "a" is already defined in line 1`},
		{"two fields", "- name: a\n  url: a.example\n  password: " + S + "\n  password: " + S, "4: duplicate field"},
		{"two documents", "- {name: a, url: a.example}\n---\n- {name: b, url: a.example}", "a second document"},
		{"no name", "- url: a.example", "1: the entry has no name"},
		{"odd name", "- {name: '" + S + " x', url: a.example}", "1: the entry has no name, or one with other signs"},
		{"other name", "a:\n  name: b\n  url: x.example", "2: the entry has another name"},
		{"no url", "- name: a\n  username: u", `1: registry "a" has no url`},
		{"next to registry", "registry: []\npassword: " + S, `1: no other key`},
		{"next to registries", "registries: []\npassword: " + S, `1: no other key`},
		{"a word", S, "1: neither a list"},
		{"an alias", "- {name: a, url: a.example, username: u, password: *" + S + "}", "invalid YAML"},
		{"an anchor", "- name: a\n  url: a.example\n  password: &" + S + " x", "3: anchors"},
		{"a tag", "- name: a\n  url: a.example\n  username: u\n  password: !" + S, "4: tags"},
		{"a percent sign", "- name: a\n  password: %" + S, "invalid YAML; put a password with characters"},
		{"a colon", "- name: a\n  password: x: " + S, "2: invalid YAML"},
		{"a list in a value", "- name: a\n  url: [" + S + "]", "2: the value of a field"},
		{"user in the url", "- name: a\n  url: https://u:" + S + "@a.example", `2: the url of registry "a": it contains a user; use`},
		{"scheme", "- {name: a, url: 'ftp://a.example'}", "not http or https"},
		{"query", "- {name: a, url: 'a.example/x?y'}", "HOST[:PORT]"},
		{"no host", "- {name: a, url: 'https:///x'}", "HOST[:PORT]"},
		{"capital letters", "- {name: a, url: 'a.example/Team'}", "no capital letters"},
		{"a path that leads up", "- {name: a, url: 'a.example/../x'}", `the url of registry "a"`},
		{"a bare word", "- {name: a, url: registry}", "no dot and no port"},
		{"none with a url", "- {name: none, url: a.example}", `registry "none" is the local store`},
		{"none with a password", "- {name: none, username: u, password: " + S + "}", `registry "none" is the local store`},
		{"two secrets", "- {name: a, url: a.example, username: u, password: " + S + ", token: " + S + "}", "more than one of"},
		{"no user", "- {name: a, url: a.example, password: " + S + "}", "has a password but no username"},
		{"depth", strings.Repeat("[", 50), "1: "},
	} {
		list, err := parseCreds([]byte(c.in))
		if err == nil {
			t.Errorf("%s: no error but %v", c.name, list)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), S) {
			t.Errorf("%s: %q; want %q", c.name, err, c.want)
		}
	}
}

func TestReadRegistries(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "creds.yaml")
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte(text), mode))
		testenv.Check(t, os.Chmod(filepath.Join(dir, name), mode))
	}
	t.Setenv("USER_HERE", "alice")
	t.Setenv("SECRET_HERE", secretWord)
	t.Setenv("EMPTY_HERE", "")
	t.Setenv("HOME", dir)
	write("creds.yaml", `
- {name: direct, url: a.example, username: bob, password: '${SECRET_HERE}-$${SECRET_HERE}'}
- {name: file, url: a.example/team, username: '${USER_HERE}', password_file: pw}
- {name: home, url: a.example, username: u, password_file: ~/pw}
- {name: bearer, url: a.example, token: '${SECRET_HERE}'}
- {name: usertoken, url: a.example, username: u, token: '${SECRET_HERE}'}
- {name: docker, url: 'localhost:5000'}
- {name: unset, url: a.example, username: u, password: '${NOT_HERE}'}
- {name: empty, url: a.example, username: u, password: '${EMPTY_HERE}'}
- {name: odd, url: a.example, username: u, password: '${SECRET HERE}'}
- {name: nofile, url: a.example, username: u, password_file: nothere}
- {name: emptyfile, url: a.example, username: u, password_file: emptypw}
- {name: large, url: a.example, username: u, password_file: large}
`, 0o644)
	write("pw", secretWord+"\r\nsecond line\n", 0o600)
	write("emptypw", "\n", 0o600)
	write("large", strings.Repeat("x", maxPassword+1), 0o600)
	rs, err := ReadRegistries(file)
	testenv.Check(t, err)
	for _, c := range []struct{ name, user, password, token, err string }{
		{"direct", "bob", secretWord + "-${SECRET_HERE}", "", ""},
		{"file", "alice", secretWord, "", ""},
		{"home", "u", secretWord, "", ""},
		{"bearer", "", "", secretWord, ""},
		{"usertoken", "u", secretWord, "", ""},
		{"docker", "", "", "", ""},
		{"unset", "", "", "", file + ":8: the variable NOT_HERE is not set"},
		{"empty", "", "", "", file + ":9: the variable EMPTY_HERE is not set"},
		{"odd", "", "", "", file + ":10: ${…} does not contain"},
		{"nofile", "", "", "", file + ":11: open " + dir + "/nothere"},
		{"emptyfile", "", "", "", file + ":12: the first line of"},
		{"large", "", "", "", "more than 65536 bytes"},
	} {
		r, err := rs.Find(c.name)
		testenv.Check(t, err)
		o, err := r.Remote()
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), secretWord) {
				t.Errorf("%s: %v; want %q", c.name, err, c.err)
			}
			continue
		}
		k := o.Credentials
		if err != nil || k.Username != c.user || string(k.Password) != c.password || string(k.Token) != c.token || k.From != fmt.Sprintf("entry %q of %s", c.name, file) {
			t.Errorf("%s: %q %q %q, %v", c.name, k.Username, string(k.Password), string(k.Token), err)
		}
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x"} {
			if got := fmt.Sprintf(verb, *k); strings.Contains(got, secretWord) || strings.Contains(got, fmt.Sprintf("%x", secretWord)) {
				t.Errorf("%s: %s shows the secret: %s", c.name, verb, got)
			}
		}
	}
	if rs.Exposed() != file { // "direct" has a part that stands there
		t.Error("a password in a file that all may read is not seen")
	}
	write("creds.yaml", "- {name: a, url: a.example, username: u, password: x}", 0o600)
	if rs, err = ReadRegistries(file); err != nil || rs.Exposed() != "" {
		t.Errorf("closed to others: exposed, or %v", err)
	}
	write("creds.yaml", "- {name: a, url: a.example, username: u, password: '${X}'}", 0o644)
	if rs, err = ReadRegistries(file); err != nil || rs.Exposed() != "" {
		t.Errorf("without a password of its own: exposed, or %v", err)
	}
	if _, err := rs.Find("b"); err == nil || !strings.Contains(err.Error(), `no registry "b" in `+file+": it has a") {
		t.Errorf("Find: %v", err)
	}
	if r, err := rs.Find(StaysLocal); err != nil || r.Host != "" {
		t.Errorf("Find(%q): %v, %v", StaysLocal, r, err)
	}
	if _, err := (&Registries{}).Find("b"); err == nil || !strings.Contains(err.Error(), "there is no creds.yaml") {
		t.Errorf("Find without a file: %v", err)
	}
	write("creds.yaml", "- {name: a, url: a.example}\n- {name: b, ulr: a.example}", 0o600)
	if _, err := ReadRegistries(file); err == nil || !strings.Contains(err.Error(), file+`:2: "ulr" is not a field`) {
		t.Errorf("a mistake: %v", err)
	}
}

func TestRegistryReference(t *testing.T) {
	for _, c := range []struct{ url, image, want string }{
		{"registry.example/team", "base", "registry.example/team/base:latest"},
		{"registry.example/team", "docker.io/library/debian:12", "registry.example/team/debian:12"},
		{"registry.example/team", "lab/sci:1", "registry.example/team/lab/sci:1"},
		{"registry.example:5000", "base", "registry.example:5000/base:latest"},
		{"registry.example/team", "registry.example/team/base:2", "registry.example/team/base:2"},
		{"docker.io/lab", "base", "docker.io/lab/base:latest"},
		{"registry.example/team", "registry.example/other/base", "! names the registry registry.example"},
		{"registry.example/team", "ghcr.io/a/b:1", "! names the registry ghcr.io"},
		{"registry.example", "localhost/b", "! names the registry localhost"},
		{"registry.example", "base@sha256:" + strings.Repeat("0", 64), "! is a digest"},
		{"registry.example", "0123456789abcdef", "! is a digest"},
	} {
		r := &Registry{Name: "a"}
		testenv.Check(t, r.parseURL(c.url))
		got, err := r.Reference(c.image)
		if err != nil {
			got = "! " + err.Error()
		}
		if want, bad := strings.CutPrefix(c.want, "! "); got != c.want && (!bad || !strings.Contains(got, want)) {
			t.Errorf("Reference(%q) at %q = %q; want %q", c.image, c.url, got, c.want)
		}
	}
}

// FuzzParseCreds: errors contain no text of the file except names of fields and registries,
// and accepted entries are valid.
func FuzzParseCreds(f *testing.F) {
	for _, seed := range []string{"- name: a\n  url: a.example/x\n  username: u\n  password: p\n", "registries:\n  a: {url: b}\n", "registry:\n- {name: a, url: b}\n", "a:\n  url: http://[::1]:1/\n", "name: a\nurl: b:1\n", "- &x {name: *x}\n", "---\n---\n", "- !t {}", "\xff", "a: {<<: {url: x}}"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		list, err := parseCreds(text)
		if err != nil {
			if len(err.Error()) > 400 || strings.ContainsAny(err.Error(), "\n\x1b") {
				t.Errorf("error %q", err)
			}
			return
		}
		for _, r := range list {
			if r.Name == StaysLocal {
				continue
			}
			if ref, err := r.Reference("base"); err == nil {
				if _, err := parseRef(ref); err != nil {
					t.Errorf("registry %q at %q: %v", r.Name, r.Host, err)
				}
			}
		}
	})
}

// A creds.yaml from a cloned repository sends none of the user's secrets anywhere, and does
// not replace the user's own.
func TestFindRegistries(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	t.Chdir(dir)
	t.Setenv("HOME", home)
	t.Setenv("XDG_CONFIG_HOME", filepath.Join(home, ".config"))
	t.Setenv("GITHUB_TOKEN", secretWord)
	own := filepath.Join(home, ".config/hpcc/creds.yaml")
	write := func(file, text string) {
		t.Helper()
		testenv.Check(t, os.MkdirAll(filepath.Dir(file), 0o755))
		testenv.Check(t, os.WriteFile(file, []byte(text), 0o600))
	}
	find := func() *Registries {
		t.Helper()
		rs, err := ReadRegistries("")
		testenv.Check(t, err)
		return rs
	}
	if rs := find(); len(rs.Files) > 0 {
		t.Errorf("without files: %v", rs.Files)
	}
	write("creds.yaml", `
- {name: variable, url: evil.example, username: u, password: '${GITHUB_TOKEN}'}
- {name: user, url: evil.example, username: '${GITHUB_TOKEN}', password: x}
- {name: bearer, url: evil.example, token: 'a${GITHUB_TOKEN}'}
- {name: file, url: evil.example, username: u, password_file: ~/.ssh/id_rsa}
- {name: clear, url: 'http://ours.example'}
- {name: here, url: 'http://127.0.0.1:5000', username: u, password: x}
- {name: plain, url: evil.example, username: u, password: '$${x}'}
- {name: work, url: evil.example}
`)
	for round := range 2 {
		rs := find()
		for name, line := range map[string]int{"variable": 2, "user": 3, "bearer": 4, "file": 5, "clear": 6} {
			r, err := rs.Find(name)
			testenv.Check(t, err)
			want := fmt.Sprintf("%s:%d: a creds.yaml found", filepath.Join(dir, "creds.yaml"), line)
			if o, err := r.Remote(); err == nil || !strings.Contains(err.Error(), want) || o.Credentials != nil {
				t.Errorf("%s: %+v, %v; want %q", name, o, err, want)
			}
		}
		for _, name := range []string{"here", "plain"} {
			r, err := rs.Find(name)
			testenv.Check(t, err)
			if _, err := r.Remote(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		r, err := rs.Find("work")
		want, shadowed := "evil.example", "[]"
		if round == 1 {
			want, shadowed = "ours.example", "[work]"
		}
		if err != nil || r.Host != want || fmt.Sprint(rs.Shadowed) != shadowed {
			t.Errorf("work leads to %+v (%v), shadowed %v; want %s, %s", r, err, rs.Shadowed, want, shadowed)
		}
		if round == 1 {
			if o, err := r.Remote(); err != nil || string(o.Credentials.Password) != secretWord {
				t.Errorf("the user's own entry: %v", err)
			}
		}
		write(own, "- {name: work, url: ours.example, username: u, password: '${GITHUB_TOKEN}'}\n")
	}
	// A file given by name is trusted.
	rs, err := ReadRegistries("creds.yaml")
	testenv.Check(t, err)
	r, err := rs.Find("variable")
	testenv.Check(t, err)
	if o, err := r.Remote(); err != nil || string(o.Credentials.Password) != secretWord {
		t.Errorf("a file that was named: %v", err)
	}
	// An unreadable file is skipped if the user has their own.
	for _, spoil := range []func() error{
		func() error { return os.WriteFile("creds.yaml", []byte("a: [b"), 0o600) },
		func() error { return errors.Join(os.Remove("creds.yaml"), syscall.Mkfifo("creds.yaml", 0o600)) },
	} {
		testenv.Check(t, spoil())
		rs := find()
		if _, err := rs.Find("work"); err != nil || rs.Skipped == nil {
			t.Errorf("work: %v, skipped %v", err, rs.Skipped)
		}
		if _, err := rs.Find("other"); err == nil || !strings.Contains(err.Error(), "creds.yaml") {
			t.Errorf("other: %v", err)
		}
	}
}
