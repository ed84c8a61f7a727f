package scripts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/text"
	"hpcc/unpack"
)

// maxInspected limits the size of a file that "apptainer inspect" prints, in bytes.
const maxInspected = 1 << 20

// A description is the description of an image in the format of "apptainer inspect".
type description struct {
	Environment map[string]string `json:"environment,omitempty"` // scripts by path
	Labels      map[string]string `json:"labels,omitempty"`
	Runscript   string            `json:"runscript,omitempty"`
	Test        string            `json:"test,omitempty"`
	Helpfile    string            `json:"helpfile,omitempty"`
	Deffile     string            `json:"deffile,omitempty"`
	Startscript string            `json:"startscript,omitempty"`
}

// inspect prints parts of an image's description, as JSON if parts has "json".
func inspect(root *os.Root, parts []string) error {
	about, err := describe(root, parts)
	if err != nil {
		return err
	}
	if slices.Contains(parts, "json") {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "\t")
		return enc.Encode(map[string]any{"data": map[string]any{"attributes": about}, "type": "container"})
	}
	var out strings.Builder
	for _, text := range []string{about.Deffile, about.Runscript, about.Startscript, about.Test, about.Helpfile} {
		if text != "" {
			fmt.Fprintln(&out, text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(about.Environment)) {
		fmt.Fprintf(&out, "=== %s ===\n%s\n\n", name, about.Environment[name])
	}
	for _, name := range slices.Sorted(maps.Keys(about.Labels)) {
		fmt.Fprintf(&out, "%s: %s\n", name, about.Labels[name])
	}
	_, err = io.WriteString(os.Stdout, out.String())
	return err
}

// describe reads parts of an image's description: from the files of an image of
// Apptainer, or else from the configuration of an OCI image.
func describe(root *os.Root, parts []string) (about description, err error) {
	var config v1.ConfigFile
	if text, err := imageText(root, unpack.ConfigFile); err != nil {
		return about, err
	} else if text != "" {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return about, fmt.Errorf("reading the image's configuration: %w", err)
		}
	}
	for part, to := range map[string]*string{"runscript": &about.Runscript, "startscript": &about.Startscript,
		"test": &about.Test, "helpfile": &about.Helpfile, "deffile": &about.Deffile} {
		if !slices.Contains(parts, part) {
			continue
		}
		name := map[string]string{"helpfile": "runscript.help", "deffile": "Singularity"}[part]
		if name == "" {
			name = part
		}
		if *to, err = imageText(root, path.Join(scriptsDir, name)); err != nil {
			return about, err
		}
	}
	if slices.Contains(parts, "runscript") && about.Runscript == "" {
		about.Runscript = runscriptOf(config.Config)
	}
	if slices.Contains(parts, "labels") {
		about.Labels = config.Config.Labels
		text, err := imageText(root, scriptsDir+"/labels.json")
		if err == nil && text != "" {
			err = json.Unmarshal([]byte(text), &about.Labels)
		}
		if err != nil {
			return about, fmt.Errorf("reading labels: %w", err)
		}
	}
	if slices.Contains(parts, "environment") {
		about.Environment, err = environmentOf(root, config.Config)
	}
	return about, err
}

// environmentOf returns the environment scripts of an image by path.
func environmentOf(root *os.Root, c v1.Config) (map[string]string, error) {
	out := map[string]string{}
	if len(c.Env) > 0 {
		script := "#!/bin/sh"
		for _, kv := range c.Env {
			name, value, _ := strings.Cut(kv, "=")
			script += "\nexport " + name + "=" + text.Quote(value)
		}
		out["/"+scriptsDir+"/env/10-docker2singularity.sh"] = script
	}
	entries, err := fs.ReadDir(root.FS(), scriptsDir+"/env")
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil
	}
	for _, e := range entries {
		if ok, _ := path.Match("9*-environment.sh", e.Name()); !ok && !strings.HasPrefix(e.Name(), "10-docker") {
			continue
		}
		name := scriptsDir + "/env/" + e.Name()
		if out["/"+name], err = imageText(root, name); err != nil {
			return nil, err
		}
	}
	return out, err
}

// runscriptOf returns a script that does the same as the entry point and the command of an OCI
// image.
func runscriptOf(c v1.Config) string {
	if len(c.Entrypoint)+len(c.Cmd) == 0 {
		return ""
	}
	script := "#!/bin/sh\n"
	if len(c.Cmd) > 0 {
		script += "[ $# -gt 0 ] || set -- " + text.Arguments(c.Cmd) + "\n"
	}
	return script + "exec " + strings.TrimLeft(text.Arguments(c.Entrypoint)+` "$@"`, " ")
}

// imageText returns the content of a file of the image without the last line end, or "" if the
// image does not have the file.
func imageText(root *os.Root, name string) (string, error) {
	f, err := root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("reading the image: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil || !fi.Mode().IsRegular() {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(f, maxInspected))
	return strings.TrimRight(string(text), "\n"), err
}
