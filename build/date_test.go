package build

import (
	"archive/tar"
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"hpcc/build/source"
	"hpcc/testdata/helpers/testenv"
)

// tarOf returns an archive with an old and a new file.
func tarOf(t *testing.T, newest int64, files ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	testenv.Check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: "d/", Mode: 0o755, ModTime: time.Unix(newest+100, 0)}))
	for i := 0; i < len(files); i += 2 {
		testenv.Check(t, w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: files[i], Mode: 0o644, Size: int64(len(files[i+1])), ModTime: time.Unix(newest-int64(i), 0)}))
		_, err := w.Write([]byte(files[i+1]))
		testenv.Check(t, err)
	}
	testenv.Check(t, w.Close())
	return buf.Bytes()
}

// TestEpoch takes the date of a build from each of its possible sources.
func TestEpoch(t *testing.T) {
	if !inside(t) {
		return
	}
	var mu sync.Mutex
	requests := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		requests[r.URL.Path]++
		mu.Unlock()
		switch r.URL.Path {
		case "/modified.tar":
			w.Header().Set("Last-Modified", time.Unix(1700000001, 0).UTC().Format(http.TimeFormat))
			_, _ = w.Write(tarOf(t, 1700000099, "Dockerfile", "FROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL e=$SOURCE_DATE_EPOCH\n"))
		case "/plain.tar":
			_, _ = w.Write(tarOf(t, 1700000002, "Dockerfile", "FROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL e=$SOURCE_DATE_EPOCH\n"))
		case "/file":
			_, _ = w.Write([]byte("text"))
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer server.Close()
	const rest = "FROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL e=$SOURCE_DATE_EPOCH\n"
	dated := "FROM scratch AS src\nARG NAME=plain\nADD " + server.URL + "/$NAME.tar /\n" + rest
	for _, c := range []struct {
		name, text, arg, context, named string
		want                            string // value of the ARG, or an error
	}{
		{"none", rest, "", "", "", ""},
		{"number", rest, "1700000003", "", "", "1700000003"},
		{"default", "ARG SOURCE_DATE_EPOCH=1700000004\n" + rest, "", "", "", "1700000004"},
		{"argument before default", "ARG SOURCE_DATE_EPOCH=1700000004\n" + rest, "1700000005", "", "", "1700000005"},
		{"reset", "ARG SOURCE_DATE_EPOCH=1700000004\n" + rest, "-", "", "", ""},
		{"local context", rest, "context", "", "", ""},
		{"context with a header", "", "context", "/modified.tar", "", "1700000001"},
		{"context", "", "context", "/plain.tar", "", "1700000002"},
		{"named context", "ARG SOURCE_DATE_EPOCH=data\n" + rest, "", "", "/modified.tar", "1700000001"},
		{"named archive", rest, "data", "", "/plain.tar", "1700000002"},
		{"named file", rest, "data", "", "/file", ""},
		{"missing named context", rest, "data", "", "/nothere", "finding SOURCE_DATE_EPOCH data: the server returned 404"},
		{"stage", "ARG SOURCE_DATE_EPOCH=src\n" + dated, "", "", "", "1700000002"},
		{"stage that is used", "ARG SOURCE_DATE_EPOCH=src\n" + dated + "COPY --from=src / /\n", "", "", "", "1700000002"},
		{"stage, with an argument", dated, "SRC", "", "", "1700000002"},
		{"stage with COPY", "FROM scratch AS src\nCOPY x /\n" + rest, "src", "", "", "does not meet source-only requirements: it has COPY"},
		{"stage with a base", "FROM nothere AS src\nADD " + server.URL + "/file /\n" + rest, "src", "", "", "must use FROM scratch"},
		{"stage with a local file", "FROM scratch AS src\nADD x /\n" + rest, "src", "", "", "exactly one remote ADD"},
		{"stage with two", "FROM scratch AS src\nADD " + server.URL + "/file /\nADD " + server.URL + "/file /\n" + rest, "src", "", "", "exactly one remote ADD"},
		{"empty stage", "FROM scratch AS src\n" + rest, "src", "", "", "exactly one remote ADD"},
		{"not a date", "ARG SOURCE_DATE_EPOCH=today\n" + rest, "", "", "", "(standard input):1: ARG SOURCE_DATE_EPOCH=today: invalid SOURCE_DATE_EPOCH: today;"},
	} {
		clear(requests)
		o := Options{Context: t.TempDir(), Args: map[string]string{}}
		switch c.arg {
		case "":
		case "-":
			o.Args[epochArg] = ""
		default:
			o.Args[epochArg] = c.arg
		}
		given := strings.Clone(o.Args[epochArg])
		if c.named != "" {
			o.Contexts = map[string]string{"data": server.URL + c.named}
		}
		o.Dockerfile, o.Stdin = "-", strings.NewReader(c.text)
		if c.context != "" {
			o.Context, o.Dockerfile = server.URL+c.context, ""
		}
		img, err := Dockerfile(t.Context(), newStore(t), o)
		when, _, number := source.Date(c.want)
		if number != nil {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v; want %q", c.name, err, c.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		cfg, err := img.ConfigFile()
		testenv.Check(t, err)
		if c.want == "" {
			when = time.Unix(0, 0) // the image has no files
		}
		if got := cfg.Config.Labels["e"]; got != c.want || !cfg.Created.Equal(when) || !cfg.History[0].Created.Equal(when) {
			t.Errorf("%s: ARG %q, created %v, %v; want %q", c.name, got, cfg.Created, cfg.History[0].Created, c.want)
		}
		if o.Args[epochArg] != given {
			t.Errorf("%s: the build changed the options", c.name)
		}
		for path, n := range requests {
			if n != 1 {
				t.Errorf("%s: %s was downloaded %d times", c.name, path, n)
			}
		}
	}
}

// TestEpochOfCommit takes the date of a build from a repository.
func TestEpochOfCommit(t *testing.T) {
	if !inside(t) {
		return
	}
	testenv.NeedProgram(t, "git")
	dir := testenv.Files(t, "work/Dockerfile", "FROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL e=$SOURCE_DATE_EPOCH\n", "work/f", "f")
	cmd := exec.Command("sh", "-ec", `cd work; git init -q -b main; git add .; git -c user.name=a -c user.email=a@b commit -qm a; git update-server-info`)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "GIT_AUTHOR_DATE=2020-01-01T00:00:00Z", "GIT_COMMITTER_DATE=2023-11-14T22:13:20Z", "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(dir + "/work")))
	defer server.Close()
	address := server.URL + "/.git"
	text := "FROM scratch AS src\nADD " + address + "#main /\nFROM scratch\nARG SOURCE_DATE_EPOCH\nLABEL e=$SOURCE_DATE_EPOCH\n"
	for _, o := range []Options{
		{Context: address, Args: map[string]string{epochArg: "context"}},
		{Context: address, Args: map[string]string{epochArg: "context", keepGitArg: "1"}},
		{Context: dir, Dockerfile: "-", Stdin: strings.NewReader(text), Args: map[string]string{epochArg: "src"}},
		{Context: dir, Dockerfile: "-", Stdin: strings.NewReader(text), Args: map[string]string{epochArg: "repo"}, Contexts: map[string]string{"repo": address}},
	} {
		img, err := Dockerfile(t.Context(), newStore(t), o)
		testenv.Check(t, err)
		cfg, err := img.ConfigFile()
		testenv.Check(t, err)
		if cfg.Config.Labels["e"] != "1700000000" || cfg.Created.Unix() != 1700000000 {
			t.Errorf("%v: %v, created %v", o.Args, cfg.Config.Labels, cfg.Created)
		}
	}
}
