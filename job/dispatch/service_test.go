package dispatch

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"hpcc/job"
	"hpcc/testdata/helpers/testenv"
	"hpcc/text"
)

func TestReportedURL(t *testing.T) {
	for _, tt := range []struct{ name, what, log, want string }{
		{"jupyter", "lab", "[I 2024-05-01 12:00:00.000 ServerApp] http://n1:8888/lab?token=ab12\n[I 2024-05-01 12:00:00.000 ServerApp]     http://127.0.0.1:8888/lab?token=ab12\n", "http://127.0.0.1:8888/lab?token=ab12"},
		{"jupyter", "notebook 6", "[I 12:00:00 NotebookApp] http://n1:8889/?token=ab12\n    Or copy and paste one of these URLs:\n        http://n1:8889/?token=ab12\n     or http://127.0.0.1:8889/?token=ab12\n", "http://127.0.0.1:8889/?token=ab12"},
		{"jupyter", "notebook 5", "        http://(n1 or 127.0.0.1):8890/?token=ab12&token=ab12\n", "http://127.0.0.1:8890/?token=ab12&token=ab12"},
		{"jupyter", "tls", "    https://127.0.0.1:9999/tree?token=x\r\n", "https://127.0.0.1:9999/tree?token=x"},
		{"jupyter", "password", "[ServerApp] Jupyter Server 2.7 is running at:\n[ServerApp] http://localhost:8888/lab\n", "http://localhost:8888/lab"},
		{"jupyter", "begun twice", "http://127.0.0.1:8888/lab?token=old\nhttp://127.0.0.1:8891/lab?token=new\n", "http://127.0.0.1:8891/lab?token=new"},
		{"jupyter", "other addresses", "see http://localhost:3000/docs\nhttp://127.0.0.1:8888/lab?token=t\nhttp://proxy:8080/x\n", "http://127.0.0.1:8888/lab?token=t"},
		{"jupyter", "none", "loading http://example.org/lab\n", ""},
		{"jupyter", "an invalid port", "http://127.0.0.1:99999/lab?token=t\nhttp://u:p@127.0.0.1:80/lab?token=t\n", ""},
		{"tensorboard", "usual", "TensorBoard 2.15.1 at http://localhost:6007/ (Press CTRL+C to quit)\n", "http://localhost:6007/"},
		{"tensorboard", "another", "served at http://localhost:6007/\n", ""},
	} {
		got := ""
		if u := reportedURL(tt.name, []byte(tt.log)); u != nil {
			got = u.String()
		}
		if got != tt.want {
			t.Errorf("%s, %s: %q; want %q", tt.name, tt.what, got, tt.want)
		}
	}
}

func TestService(t *testing.T) {
	dir := t.TempDir()
	s := &Submission{ID: "j", Job: &job.Job{}}
	home := filepath.Join(dir, "j")
	testenv.Check(t, os.Mkdir(home, 0o755))
	log := filepath.Join(dir, "log")
	// The address stands at the head of a long log.
	testenv.Check(t, os.WriteFile(log, []byte("http://127.0.0.1:8899/lab?token=t\n"+strings.Repeat("epoch\n", 1<<20)), 0o644))
	task := &job.Task{Output: filepath.Join(dir, "log")}
	if v, err := s.Service(dir, task, "jupyter"); err != nil || v.Port != 8899 || v.At("127.0.0.1:1") != "http://127.0.0.1:1/lab?token=t" {
		t.Errorf("from the log: %+v, %v", v, err)
	}
	if v, err := s.Service(dir, task, job.Tensorboard); err != nil || v.Port != 6006 || v.At("127.0.0.1:1") != "" {
		t.Errorf("usual port: %+v, %v", v, err)
	}
	b := &job.Companion{Name: job.Tensorboard, Port: 5005, Host: "n1", Output: "out"}
	testenv.Check(t, b.Write(home))
	if v, err := s.Service(dir, task, job.Tensorboard); err != nil || v.Port != 5005 {
		t.Errorf("from the record: %+v, %v", v, err)
	}
	b.End, b.Problem = time.Now(), "status 3"
	testenv.Check(t, b.Write(home))
	if _, err := s.Service(dir, task, job.Tensorboard); err == nil || !strings.Contains(err.Error(), "ended: status 3; its output is in out") {
		t.Errorf("one that ended: %v", err)
	}
	testenv.Check(t, os.WriteFile(filepath.Join(home, "beside."+job.Tensorboard+".json"), []byte(`{"port":70000}`), 0o644))
	if _, err := s.Service(dir, task, job.Tensorboard); err == nil || !strings.Contains(err.Error(), "70000 is not a port") {
		t.Errorf("a record of no port: %v", err)
	}
}

func FuzzService(f *testing.F) {
	f.Add([]byte("http://(n1 or 127.0.0.1):8890/?token=a\nTensorBoard at http://[::1]:6006/\n"), "1 t 'a b' c")
	f.Fuzz(func(t *testing.T, log []byte, line string) {
		for _, name := range []string{job.Tensorboard, "jupyter"} {
			u := reportedURL(name, log)
			if u == nil {
				continue
			}
			v := Service{URL: u.String()}
			if at := v.At("127.0.0.1:1"); !strings.HasPrefix(at, "http") || text.OneLine(at) != at || !strings.Contains(at, "://127.0.0.1:1") {
				t.Errorf("%q: %q", log, at)
			}
		}
		_, name, argv, err := job.ParseCompanion(line)
		if err == nil && line != "" && (len(argv) == 0 || !filepath.IsLocal(name)) {
			t.Errorf("ParseCompanion(%q) = %q %q", line, name, argv)
		}
	})
}
