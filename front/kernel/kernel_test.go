package kernel

import (
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/testenv"
)

// image creates an image's directory with files.
func image(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		name = filepath.Join(dir, name)
		testenv.Check(t, os.MkdirAll(filepath.Dir(name), 0o755))
		testenv.Check(t, os.WriteFile(name, []byte(text), 0o755))
	}
	return dir
}

const python = `{"argv": ["python", "-m", "ipykernel_launcher", "-f", "{connection_file}", "{resource_dir}/x"], "display_name": "Python 3", "language": "python", "metadata": {"debugger": true}}`

// TestFind reads kernelspecs of several prefixes: the first of a name is used.
func TestFind(t *testing.T) {
	tree := image(t, map[string]string{
		"opt/conda/share/jupyter/kernels/python3/kernel.json": python,
		"opt/conda/bin/python":                                "",
		"usr/share/jupyter/kernels/python3/kernel.json":       `{"argv": ["/missing", "{connection_file}"]}`,
		"usr/local/share/jupyter/kernels/ir/kernel.json":      `{"argv": ["R", "--args", "{connection_file}"], "display_name": "R"}`,
		"usr/local/share/jupyter/kernels/empty/logo.png":      "",
		"usr/local/share/jupyter/kernels/README":              "",
		"usr/bin/R":                                           "",
		"elsewhere/share/jupyter/kernels/none/kernel.json":    python,
	})
	found, err := Find(tree, []string{"/opt/conda/bin", "/usr/bin"})
	testenv.Check(t, err)
	if len(found) != 2 || found[0].Name != "ir" || found[1].Name != "python3" {
		t.Fatalf("found %+v", found)
	}
	if got := strings.Join(found[1].Argv, " "); got != "python -m ipykernel_launcher -f {connection_file} /opt/conda/share/jupyter/kernels/python3/x" {
		t.Errorf("argv %q", got)
	}
}

// TestFindRefused checks kernelspecs that cannot start a kernel, or are not those of the image.
func TestFindRefused(t *testing.T) {
	const dir = "usr/share/jupyter/kernels/x/kernel.json"
	for text, want := range map[string]string{
		`{"argv": ["missing", "{connection_file}"]}`: `its program "missing" is not in the image`,
		`{"argv": ["sh"]}`:                           "argv does not name {connection_file}",
		`{"argv": []}`:                               "argv does not name {connection_file}",
		`{"argv": 3}`:                                "cannot unmarshal number",
		`{`:                                          "unexpected end of JSON input",
		strings.Repeat(" ", maxFile+1):               "more than 1048576 bytes",
	} {
		_, err := Find(image(t, map[string]string{dir: text}), []string{"/usr/bin"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v; want %q", text, err, want)
		}
	}
	// A link to a file of the host leads to the same path in the image.
	outside := image(t, map[string]string{"kernel.json": python})
	tree := image(t, map[string]string{"usr/share/jupyter/kernels/x/README": ""})
	testenv.Check(t, os.Symlink(filepath.Join(outside, "kernel.json"), filepath.Join(tree, dir)))
	if found, err := Find(tree, []string{"/usr/bin"}); err != nil || len(found) > 0 {
		t.Errorf("read %+v, %v through a link out of the image", found, err)
	}
	// Debian has no program "python".
	found, err := Find(image(t, map[string]string{dir: python, "usr/bin/python3": ""}), []string{"/usr/bin"})
	if err != nil || len(found) != 1 || found[0].Argv[0] != "python3" {
		t.Errorf("without python: %+v, %v", found, err)
	}
}

// TestWrite checks the files of a kernelspec, and that hpcc replaces only its own.
func TestWrite(t *testing.T) {
	tree := image(t, map[string]string{
		"usr/share/jupyter/kernels/python3/kernel.json":    python,
		"usr/share/jupyter/kernels/python3/logo-64x64.png": "logo",
		"usr/share/jupyter/kernels/python3/kernel.js":      "alert()",
		"usr/bin/python": "",
	})
	found, err := Find(tree, []string{"/usr/bin"})
	testenv.Check(t, err)
	s, dir := found[0], t.TempDir()
	s.Name = "sci"
	s.Argv = append([]string{"hpcc", "run", "a<b"}, s.Argv...)
	for _, shared := range []bool{true, false} {
		own, err := s.Write(dir, "sci", shared)
		testenv.Check(t, err)
		b, err := os.ReadFile(filepath.Join(own, "kernel.json"))
		testenv.Check(t, err)
		if fi, err := os.Stat(filepath.Join(own, "kernel.json")); err != nil || (fi.Mode().Perm() == 0o644) != shared {
			t.Errorf("shared %v: %v, %v", shared, fi.Mode(), err)
		}
		var got Spec
		testenv.Check(t, json.Unmarshal(b, &got))
		if got.Metadata["debugger"] != true || got.Argv[2] != "a<b" || got.Language != "python" {
			t.Errorf("wrote %s", b)
		}
		if b, _ := os.ReadFile(filepath.Join(own, "logo-64x64.png")); string(b) != "logo" {
			t.Errorf("the logo is %q", b)
		}
		if entries, _ := os.ReadDir(own); len(entries) != 2 {
			t.Errorf("wrote %v", entries)
		}
	}
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "sci", "kernel.json"), []byte(python), 0o644))
	if _, err := s.Write(dir, "sci", false); !errors.As(err, new(*OccupiedError)) {
		t.Errorf("replaced another kernelspec: %v", err)
	}
	for name, ok := range map[string]bool{"sci-1.2_x": true, "": false, "../x": false, "a b": false} {
		if (CheckName(name) == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, CheckName(name))
		}
	}
}

const connection = `{"shell_port": 5001, "iopub_port": 5002, "stdin_port": 5003, "control_port": 5004, "hb_port": 5005,
 "ip": "127.0.0.1", "key": "secret", "transport": "tcp", "signature_scheme": "hmac-sha256", "kernel_name": "sci"}`

// TestConnection checks the connection file of the node: private sockets, the same key.
func TestConnection(t *testing.T) {
	c, err := parseConnection([]byte(connection))
	testenv.Check(t, err)
	b, err := c.onNode("/tmp/k")
	testenv.Check(t, err)
	const want = `{"control_port":4,"hb_port":5,"iopub_port":2,"ip":"/tmp/k/kernel","kernel_name":"sci","key":"secret","shell_port":1,"signature_scheme":"hmac-sha256","stdin_port":3,"transport":"ipc"}`
	if string(b) != want {
		t.Errorf("onNode = %s; want %s", b, want)
	}
	if got := socket("/tmp/k", 4); got != "/tmp/k/kernel-5" {
		t.Errorf("socket 4 is %s", got)
	}
	for from, want := range map[string]string{
		`"tcp"`:        "only tcp can be forwarded",
		`"127.0.0.1"`:  "is not a loopback address",
		`5003`:         "stdin_port is",
		`"shell_port"`: "shell_port is <nil>",
		`{`:            "invalid character",
	} {
		bad := strings.Replace(connection, from, map[string]string{`"tcp"`: `"ipc"`, `"127.0.0.1"`: `"0.0.0.0"`, `5003`: `1.5`, `"shell_port"`: `"shell"`, `{`: `x`}[from], 1)
		if _, err := parseConnection([]byte(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", bad, err, want)
		}
	}
	if _, err := ReadConnection(filepath.Join(t.TempDir(), "missing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestListen checks that the ports are on the loopback interface, and what a taken port reports.
func TestListen(t *testing.T) {
	c, err := parseConnection([]byte(connection))
	testenv.Check(t, err)
	c.ports = []int{0, 0, 0, 0, 0}
	list, err := c.Listen()
	testenv.Check(t, err)
	for _, l := range list {
		defer l.Close()
		if !strings.HasPrefix(l.Addr().String(), "127.0.0.1:") {
			t.Errorf("listens on %s", l.Addr())
		}
	}
	c.ports[1] = list[0].Addr().(*net.TCPAddr).Port
	if _, err := c.Listen(); err == nil || !strings.Contains(err.Error(), "is in use by now") {
		t.Errorf("a taken port: %v", err)
	}
}

// TestTaskArgv checks that the connection file of the client is replaced, and does not appear.
func TestTaskArgv(t *testing.T) {
	argv := TaskArgv("/tmp/k", "/run/kernel-1.json", []string{"python", "-f", "/run/kernel-1.json", "--x=/run/kernel-1.json"})
	if got := strings.Join(argv[3:], " "); got != "/tmp/k python -f /tmp/k/connection.json --x=/tmp/k/connection.json" {
		t.Errorf("argv %q", got)
	}
}

func FuzzConnection(f *testing.F) {
	f.Add([]byte(connection))
	f.Add([]byte(`{"ip": "::1", "transport": "tcp", "shell_port": 1e999}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := parseConnection(b)
		if err != nil {
			return
		}
		if !c.ip.IsLoopback() || len(c.ports) != len(channels) {
			t.Errorf("%q: %+v", b, c)
		}
		if _, err := c.onNode("/tmp/k"); err != nil {
			t.Errorf("%q: %v", b, err)
		}
	})
}
