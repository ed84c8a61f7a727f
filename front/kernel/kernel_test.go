package kernel

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
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
	found, err := find(tree, []string{"/opt/conda/bin", "/usr/bin"})
	testenv.Check(t, err)
	if len(found) != 2 || found[0].name != "ir" || found[1].name != "python3" {
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
		_, err := find(image(t, map[string]string{dir: text}), []string{"/usr/bin"})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: %v; want %q", text, err, want)
		}
	}
	// A link to a file of the host leads to the same path in the image.
	outside := image(t, map[string]string{"kernel.json": python})
	tree := image(t, map[string]string{"usr/share/jupyter/kernels/x/README": ""})
	testenv.Check(t, os.Symlink(filepath.Join(outside, "kernel.json"), filepath.Join(tree, dir)))
	if found, err := find(tree, []string{"/usr/bin"}); err != nil || len(found) > 0 {
		t.Errorf("read %+v, %v through a link out of the image", found, err)
	}
	// Debian has no program "python".
	found, err := find(image(t, map[string]string{dir: python, "usr/bin/python3": ""}), []string{"/usr/bin"})
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
	found, err := find(tree, []string{"/usr/bin"})
	testenv.Check(t, err)
	s, dir := found[0], t.TempDir()
	s.Argv = append([]string{"hpcc", "run", "a<b"}, s.Argv...)
	for _, shared := range []bool{true, false} {
		own := filepath.Join(dir, "sci")
		testenv.Check(t, s.write(own, "sci", shared))
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
	if err := s.write(filepath.Join(dir, "sci"), "sci", false); !errors.As(err, new(*occupiedError)) {
		t.Errorf("replaced another kernelspec: %v", err)
	}
	for name, ok := range map[string]bool{"sci-1.2_x": true, "": false, "../x": false, "a b": false} {
		if (CheckName(name) == nil) != ok {
			t.Errorf("CheckName(%q) = %v", name, CheckName(name))
		}
	}
}

func TestHideValues(t *testing.T) {
	argv := []string{"--cpus=1", "--env=TOKEN=secret=1", "--env=NAME", "--env=PATH=/opt/bin", "--env=A=$B", "--bind=/a:/b"}
	env := hideValues(argv)
	if got := strings.Join(argv, " "); got != "--cpus=1 --env=TOKEN --env=NAME --env=PATH=/opt/bin --env=A=$B --bind=/a:/b" || len(env) != 1 || env["TOKEN"] != "secret=1" {
		t.Errorf("arguments %q, variables %q", got, env)
	}
}
