package git

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// gitScript runs a shell script in a new directory, with git that has an author and no
// configuration, and returns the directory.
func gitScript(t *testing.T, script string) string {
	t.Helper()
	testenv.NeedProgram(t, "git")
	dir := t.TempDir()
	cmd := exec.Command("sh", "-euc", `commit() { git -C $1 add -A; git -C $1 commit -qm "$2"; }
serve() { git clone -q --bare $1 www/$1.git; git -C www/$1.git update-server-info; }
mkdir www
`+script)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@b", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@b",
		"GIT_AUTHOR_DATE=2023-11-14T22:13:20Z", "GIT_COMMITTER_DATE=2023-11-14T22:13:20Z", "GIT_ALLOW_PROTOCOL=file:http")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dir
}

// serveGit serves the directory www of dir.
func serveGit(t *testing.T, dir string) *httptest.Server {
	s := httptest.NewServer(http.FileServer(http.Dir(filepath.Join(dir, "www"))))
	t.Cleanup(s.Close)
	return s
}

// output runs git in a directory.
func output(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"-C", dir, "-c", "safe.directory=*"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// TestClone clones references of all kinds.
func TestClone(t *testing.T) {
	for _, format := range []string{"sha1", "sha256"} {
		dir := gitScript(t, `git init -q -b main --object-format=`+format+` work; mkdir work/sub
echo 1 >work/f; commit work one; git -C work tag v1; git -C work tag -a -m note note; git -C work branch old
echo 2 >work/f; echo sub >work/sub/f; ln -s sub work/link; ln -s /etc work/out; ln -s f work/file; commit work two; serve work`)
		first, second, tag := output(t, dir+"/work", "rev-parse", "v1"), output(t, dir+"/work", "rev-parse", "main"), output(t, dir+"/work", "rev-parse", "note")
		url := serveGit(t, dir).URL + "/work.git"
		for i, c := range []struct{ address, checksum, want, err string }{
			{"", "", "2", ""}, {"#main", "", "2", ""}, {"#v1", "", "1", ""}, {"#old", "", "1", ""}, {"#refs/heads/old", "", "1", ""}, {"#refs/tags/v1", "", "1", ""},
			{"#note", "", "1", ""}, {"#note", first, "1", ""}, {"#note", tag, "1", ""}, {"#note", second, "", "expected checksum to match " + second + ", got " + tag + " or " + first},
			{"#" + first, "", "1", ""}, {"?ref=" + first + "&checksum=" + first[:9], "", "1", ""}, {"#" + first[:9], "", "", "does not contain ref " + first[:9]},
			{"?tag=v1", "", "1", ""}, {"?branch=old", "", "1", ""}, {"?branch=v1", "", "", "does not contain ref refs/heads/v1"}, {"?tag=v1&commit=" + first, "", "1", ""},
			{"?checksum=" + strings.ToUpper(second), "", "2", ""}, {"", first, "", "expected checksum"}, {"", "today", "", "invalid checksum"}, {"?checksum=" + first, second, "", "--checksum is"},
			{"?fetch-by-commit=1&checksum=" + first, "", "1", ""}, {"?fetch-by-commit=1", "", "", "complete commit ID"}, {"?fetch-by-commit&ref=x&checksum=" + first, "", "1", ""},
			{"#main:sub", "", "sub", ""}, {"?subdir=sub", "", "sub", ""}, {"#main:link", "", "sub", ""}, {"#main:out", "", "", "no directory"}, {"#main:file", "", "", "not a directory"},
			{"#main:../../..", "", "2", ""}, {"#nothere", "", "", "does not contain ref nothere"}, {"#-x", "", "", "hyphen"}, {"?no=1", "", "", "unexpected query"},
			{"?tag=v1#main", "", "", "ref conflicts"},
		} {
			if format == "sha256" && i%4 > 0 {
				continue
			}
			got, err := Clone(t.Context(), t.TempDir(), Repository{Address: url + c.address, Checksum: c.checksum})
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%s: %q: %v; want %q", format, c.address, err, c.err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %q: %v", format, c.address, err)
				continue
			}
			text, _ := os.ReadFile(filepath.Join(got.Dir, "f"))
			if strings.TrimSpace(string(text)) != c.want || got.Time.Unix() != 1700000000 || (got.Commit != first && got.Commit != second) {
				t.Errorf("%s: %q: file %q, commit %s at %v; want file %q", format, c.address, text, got.Commit, got.Time, c.want)
			}
		}
	}
}

// TestKeepGit keeps a repository that git can use, without what differs between clones.
func TestKeepGit(t *testing.T) {
	dir := gitScript(t, `git init -q -b main work; echo 1 >work/f; commit work one; git -C work tag -a -m note note; serve work`)
	url := strings.Replace(serveGit(t, dir).URL, "//", "//me:hidden@", 1) + "/work.git"
	var keys []string
	for _, address := range []string{url + "#note", url + "#note", url + "?ref=note&keep-git-dir", url} {
		got, err := Clone(t.Context(), t.TempDir(), Repository{Address: address, KeepGit: true})
		testenv.Check(t, err)
		if s := output(t, got.Dir, "status", "-s"); s != "" {
			t.Errorf("git status: %q", s)
		}
		if s := output(t, got.Dir, "config", "remote.origin.url"); strings.Contains(s, "hidden") || !strings.HasSuffix(s, "/work.git") {
			t.Errorf("remote: %q", s)
		}
		keys = append(keys, got.Key)
		testenv.Check(t, filepath.WalkDir(got.Dir, func(p string, d os.DirEntry, err error) error {
			if text, _ := os.ReadFile(p); strings.Contains(string(text), "hidden") {
				t.Errorf("%s has the password", p)
			}
			return err
		}))
	}
	if keys[0] != keys[1] || keys[1] != keys[2] || keys[2] == keys[3] {
		t.Errorf("keys: %q", keys)
	}
}

// TestGitEnvironment checks that git never uses a repository of the user.
func TestGitEnvironment(t *testing.T) {
	dir := gitScript(t, `git init -q -b main work; echo 1 >work/f; commit work one; serve work
git init -q -b mine user; echo user >user/g; commit user mine`)
	user := filepath.Join(dir, "user")
	state := func() string { return output(t, user, "rev-parse", "HEAD") + output(t, user, "status", "-s", "-b") }
	before := state()
	url := serveGit(t, dir).URL + "/work.git"
	for name, value := range map[string]string{"GIT_DIR": user + "/.git", "GIT_WORK_TREE": user, "GIT_INDEX_FILE": user + "/.git/index", "GIT_OBJECT_DIRECTORY": user + "/.git/objects",
		"GIT_COMMON_DIR": user + "/.git", "GIT_NAMESPACE": "x", "GIT_CONFIG_PARAMETERS": "'core.worktree=" + user + "'"} {
		t.Setenv(name, value)
	}
	got, err := Clone(t.Context(), t.TempDir(), Repository{Address: url})
	testenv.Check(t, err)
	for _, name := range []string{"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_CONFIG_PARAMETERS"} {
		testenv.Check(t, os.Unsetenv(name))
	}
	if text, err := os.ReadFile(filepath.Join(got.Dir, "f")); err != nil || string(text) != "1\n" {
		t.Errorf("clone: %q, %v", text, err)
	}
	if after := state(); after != before {
		t.Errorf("the user's repository: %q; before: %q", after, before)
	}
	t.Setenv("GIT_CONFIG_COUNT", "1")
	t.Setenv("GIT_CONFIG_KEY_0", "core.worktree")
	t.Setenv("GIT_CONFIG_VALUE_0", user)
	if _, err := Clone(t.Context(), t.TempDir(), Repository{Address: url}); err != nil {
		t.Error(err)
	}
	if text, _ := os.ReadFile(filepath.Join(user, "f")); len(text) > 0 {
		t.Error("git wrote to a work tree of the user")
	}
}

// TestSubmodules fetches submodules of submodules, by relative addresses too.
func TestSubmodules(t *testing.T) {
	dir := gitScript(t, `git init -q -b main deep; echo deep >deep/f; commit deep d; serve deep
git init -q -b main mid; echo mid >mid/f; commit mid m
git -C mid submodule add -q ../www/deep.git in 2>/dev/null || git -C mid submodule add -q $PWD/www/deep.git in
git -C mid config -f .gitmodules submodule.in.url ../deep.git; commit mid s; serve mid
git init -q -b main work; echo top >work/f; commit work t; git -C work submodule add -q $PWD/www/mid.git a/b
git -C work config -f .gitmodules submodule.a/b.url ./../mid.git; commit work s; serve work`)
	url := serveGit(t, dir).URL + "/work.git"
	for query, want := range map[string]string{"": "top mid deep", "?submodules": "top mid deep", "?submodules=false": "top", "?keep-git-dir=1": "top mid deep"} {
		got, err := Clone(t.Context(), t.TempDir(), Repository{Address: url + query})
		if err != nil {
			t.Errorf("%q: %v", query, err)
			continue
		}
		var texts []string
		for _, name := range []string{"f", "a/b/f", "a/b/in/f"} {
			if text, err := os.ReadFile(filepath.Join(got.Dir, name)); err == nil {
				texts = append(texts, strings.TrimSpace(string(text)))
			}
		}
		if s := strings.Join(texts, " "); s != want {
			t.Errorf("%q: files %q; want %q", query, s, want)
		}
		_, err = os.Stat(filepath.Join(got.Dir, "a/b/.git"))
		if keeps := strings.Contains(query, "keep"); (err == nil) != keeps {
			t.Errorf("%q: .git of the submodule: %v", query, err)
		}
		if left, _ := filepath.Glob(filepath.Join(filepath.Dir(got.Dir), "*.config")); len(left) > 0 {
			t.Errorf("files of settings stay: %q", left)
		}
	}
}

// TestHostileSubmodules refuses submodules that would read files of this machine, run programs
// or write outside of the clone.
func TestHostileSubmodules(t *testing.T) {
	for name, c := range map[string]struct{ url, path, err string }{
		"file":             {"file:///etc", "s", "must begin with https://"},
		"local path":       {"/etc", "s", "must begin with https://"},
		"ext":              {"ext::sh -c 'touch $HOME/run'", "s", "must begin with https://"},
		"option":           {"-u./run", "s", "must begin with https://"},
		"option of ssh":    {"ssh://-oProxyCommand=touch/x", "s", "hyphen"},
		"scp option":       {"-o@host:x", "s", "hyphen"},
		"none":             {"", "s", "no URL"},
		"other path":       {"https://127.0.0.1:1/x.git", "../s", "no URL"},
		"unreachable":      {"../nothere.git", "s", "submodule"},
		"relative outside": {"../../../../../../etc", "s", "submodule"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := gitScript(t, `git init -q -b main work; echo 1 >work/f; commit work one; id=$(git -C work rev-parse HEAD)
printf '[submodule "m"]\n\tpath = %s\n\turl = "%s"\n' '`+c.path+`' "`+strings.NewReplacer(`$`, `\$`, `"`, `\"`).Replace(c.url)+`" >work/.gitmodules
git -C work add .gitmodules; git -C work update-index --add --cacheinfo 160000,$id,s; git -C work commit -qm two; serve work`)
			home := t.TempDir()
			t.Setenv("HOME", home)
			_, err := Clone(t.Context(), t.TempDir(), Repository{Address: serveGit(t, dir).URL + "/work.git"})
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%v; want %q", err, c.err)
			}
			if left, _ := os.ReadDir(home); len(left) > 0 {
				t.Errorf("it ran a program")
			}
		})
	}
}

// TestRealDirectory finds no directory behind a link or in .git.
func TestRealDirectory(t *testing.T) {
	dir := testenv.Files(t, "a/b/f", "", ".git/hooks/f", "")
	testenv.Check(t, os.Symlink("a", filepath.Join(dir, "link")))
	for name, ok := range map[string]bool{"a": true, "a/b": true, "a/./b": true, "link": false, "link/b": false, "a/b/f": false, "../x": false, "/etc": false, ".git/hooks": false, "a/.GIT": false, "": false} {
		if got, err := realDirectory(dir, name); (err == nil) != ok {
			t.Errorf("realDirectory(%q) = %q, %v", name, got, err)
		}
	}
}

func TestRelativeAddress(t *testing.T) {
	for _, c := range []struct{ base, address, want string }{
		{"https://h/a/b.git", "../c.git", "https://h/a/c.git"}, {"https://h/a/b.git", "./c", "https://h/a/b.git/c"}, {"https://h/b.git", "../../../etc", "https://h/etc"},
		{"git@h:a/b.git", "../c.git", "git@h:a/c.git"}, {"git@h:a/b.git", "../../../c.git", ""}, {"ssh://git@h/a/b", "../c", "ssh://git@h/a/c"},
	} {
		if got, err := relativeAddress(c.base, c.address); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("relativeAddress(%q, %q) = %q, %v; want %q", c.base, c.address, got, err, c.want)
		}
	}
}

// TestGitLogin authenticates with user and password of the address or with build secrets, which
// stay off command lines.
func TestGitLogin(t *testing.T) {
	dir := gitScript(t, `git init -q -b main other; echo o >other/f; commit other o; serve other
git init -q -b main work; echo 1 >work/f; commit work one; git -C work submodule add -q $PWD/www/other.git s
git -C work config -f .gitmodules submodule.s.url ../other.git; commit work s; serve work`)
	files := http.FileServer(http.Dir(filepath.Join(dir, "www")))
	var mu sync.Mutex
	var user, password, seen string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if strings.Contains(r.URL.Path, "info/refs") {
			seen += commandLines()
		}
		if u, p, ok := r.BasicAuth(); !ok || u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		files.ServeHTTP(w, r)
	}))
	defer server.Close()
	host := strings.TrimPrefix(server.URL, "http://")
	for _, c := range []struct {
		name, address, user, password string
		secrets                       map[string]string
		err                           string
	}{
		{"address", "http://me:s3cret@" + host + "/work.git", "me", "s3cret", nil, ""},
		{"token", server.URL + "/work.git?submodules=false", "x-access-token", "s3cret", map[string]string{"GIT_AUTH_TOKEN": "s3cret\n"}, ""},
		{"token of the host", server.URL + "/work.git?submodules=0", "x-access-token", "s3cret", map[string]string{"GIT_AUTH_TOKEN": "wrong", "GIT_AUTH_TOKEN." + host: "s3cret"}, ""},
		{"header", server.URL + "/work.git?submodules=0", "me", "s3cret", map[string]string{"GIT_AUTH_HEADER": basicHeader("me:s3cret")}, ""},
		{"token is not for other repositories", server.URL + "/work.git", "x-access-token", "s3cret", map[string]string{"GIT_AUTH_TOKEN": "s3cret"}, `submodule "s"`},
		{"several lines", server.URL + "/work.git", "me", "s3cret", map[string]string{"GIT_AUTH_HEADER": "a\nX: s3cret"}, "several lines"},
		{"wrong password", "http://me:s3cret@" + host + "/work.git", "me", "other", nil, "work.git"},
	} {
		mu.Lock()
		user, password = c.user, c.password
		mu.Unlock()
		secret := func(id string) ([]byte, bool, error) {
			v, ok := c.secrets[id]
			return []byte(v), ok, nil
		}
		_, err := Clone(t.Context(), t.TempDir(), Repository{Address: c.address, Secret: secret})
		if (c.err == "") != (err == nil) || (err != nil && (!strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "s3cret"))) {
			t.Errorf("%s: %v; want %q", c.name, err, c.err)
		}
	}
	if !strings.Contains(seen, "remote-http") || strings.Contains(seen, "s3cret") || strings.Contains(seen, strings.TrimPrefix(basicHeader("me:s3cret"), "basic ")) {
		t.Errorf("command lines: %q", seen)
	}
}

// commandLines returns the command lines of all processes of git.
func commandLines() string {
	var out strings.Builder
	names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil && strings.Contains(string(text), "git") {
			out.WriteString(strings.ReplaceAll(string(text), "\x00", " ") + "\n")
		}
	}
	return out.String()
}

// TestCloneEnds stops git when the context ends.
func TestCloneEnds(t *testing.T) {
	testenv.NeedProgram(t, "git")
	hang := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-hang }))
	defer server.Close()
	defer close(hang)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	started := time.Now()
	if _, err := Clone(ctx, t.TempDir(), Repository{Address: server.URL + "/x.git"}); err == nil || time.Since(started) > 10*time.Second {
		t.Errorf("%v after %v", err, time.Since(started))
	}
}
