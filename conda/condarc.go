package conda

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/exports"
	"hpcc/conda/fetch"
	"hpcc/files"
)

// A Condarc holds conda's configuration of channels (docs.conda.io, "Using the .condarc
// conda configuration file"), such as the mirrors that a site uses for "conda-forge". The
// zero value is an empty configuration.
type Condarc struct {
	Channels []string // used if neither the user nor the export names channels
	alias    string
	custom   map[string]string   // URL of a channel by its name, without the name
	multi    map[string][]string // several channels under one name
	mirrored map[string][]string // mirrors of a channel by its name, in order of preference
}

// maxCondarc limits a configuration file, in bytes.
const maxCondarc = 1 << 20

// condarcFiles returns the configuration files in order; later ones override earlier ones.
// These are the conda locations that do not depend on a conda installation.
func condarcFiles(getenv func(string) string) []string {
	files := []string{"/etc/conda/.condarc", "/etc/conda/condarc"}
	home := getenv("HOME")
	if config := getenv("XDG_CONFIG_HOME"); filepath.IsAbs(config) {
		files = append(files, filepath.Join(config, "conda/.condarc"))
	}
	if filepath.IsAbs(home) {
		for _, f := range []string{".config/conda/.condarc", ".conda/.condarc", ".conda/condarc", ".condarc"} {
			files = append(files, filepath.Join(home, f))
		}
	}
	if f := getenv("CONDARC"); f != "" {
		files = append(files, f)
	}
	return files
}

// ReadCondarc reads conda's configuration files. An error names the file.
func ReadCondarc(getenv func(string) string) (*Condarc, error) {
	rc := &Condarc{custom: map[string]string{}, multi: map[string][]string{}, mirrored: map[string][]string{}}
	for _, name := range condarcFiles(getenv) {
		f, err := files.Open(name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = rc.add(f, getenv)
			f.Close()
		}
		if err != nil {
			return nil, fmt.Errorf("reading conda's configuration %s: %w", name, err)
		}
	}
	return rc, nil
}

// add reads one file.
func (rc *Condarc) add(r io.Reader, getenv func(string) string) error {
	text, err := io.ReadAll(io.LimitReader(r, maxCondarc+1))
	if err != nil {
		return err
	}
	if len(text) > maxCondarc {
		return fmt.Errorf("larger than %d bytes", maxCondarc)
	}
	if strings.TrimSpace(string(text)) == "" {
		return nil
	}
	root, err := exports.ParseYAML(string(text))
	if err != nil {
		return err
	}
	var file struct {
		Channels []string            `yaml:"channels"`
		Alias    string              `yaml:"channel_alias"`
		Custom   map[string]string   `yaml:"custom_channels"`
		Multi    map[string][]string `yaml:"custom_multichannels"`
		Default  []string            `yaml:"default_channels"`
		Mirrored map[string][]string `yaml:"mirrored_channels"` // mamba's
	}
	err = root.Decode(&file)
	if wrong := new(yaml.TypeError); errors.As(err, &wrong) {
		return errors.New(strings.Join(wrong.Errors, "; "))
	}
	if err != nil {
		return err
	}
	value := func(s string) string { return expandVariables(s, getenv) }
	if file.Alias != "" {
		rc.alias = value(file.Alias)
	}
	if file.Channels != nil {
		rc.Channels = mapped(file.Channels, value)
	}
	for name, at := range file.Custom {
		rc.custom[name] = value(at)
	}
	for name, list := range file.Multi {
		rc.multi[name] = mapped(list, value)
	}
	for name, list := range file.Mirrored {
		rc.mirrored[name] = mapped(list, value)
	}
	if file.Default != nil {
		rc.multi["defaults"] = mapped(file.Default, value)
	}
	return nil
}

func mapped(list []string, f func(string) string) []string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = f(s)
	}
	return out
}

// condarcVariable matches a variable in a value, as conda does.
var condarcVariable = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\$(\w+|\{\w+\})`) })

// expandVariables expands variables that are set. Like conda, it leaves the others
// unchanged.
func expandVariables(s string, getenv func(string) string) string {
	return condarcVariable().ReplaceAllStringFunc(s, func(as string) string {
		return cmp.Or(getenv(strings.Trim(as, "${}")), as)
	})
}

// Knows reports whether the configuration has a channel of that name.
func (rc *Condarc) Knows(name string) bool {
	got := rc.locate(name)
	return len(got) != 1 || got[0] != name
}

// Locate replaces the names of configured channels by their URLs. Other names are
// returned unchanged.
func (rc *Condarc) Locate(names []string) []string {
	var out []string
	for _, name := range names {
		out = append(out, rc.locate(name)...)
	}
	return out
}

func (rc *Condarc) locate(name string) []string {
	if list, ok := rc.multi[name]; ok {
		return mapped(list, rc.one)
	}
	return []string{rc.one(name)}
}

// one returns the URL of a name that stands for a single channel.
func (rc *Condarc) one(name string) string {
	if name == "defaults" || strings.Contains(name, "://") || filepath.IsAbs(name) || strings.HasPrefix(name, ".") {
		return name
	}
	for _, of := range slices.Backward(slices.Sorted(maps.Keys(rc.mirrored))) {
		if mirrors := rc.mirrored[of]; len(mirrors) > 0 && (name == of || strings.HasPrefix(name, of+"/")) {
			return strings.TrimRight(mirrors[0], "/") + strings.TrimPrefix(name, of)
		}
	}
	at := rc.alias
	for _, of := range slices.Backward(slices.Sorted(maps.Keys(rc.custom))) {
		if name == of || strings.HasPrefix(name, of+"/") {
			at = rc.custom[of]
			break
		}
	}
	if at == "" {
		return name
	}
	return strings.TrimRight(at, "/") + "/" + name
}

// Mirrors returns the groups of mirrors of a channel. The first of each group is the URL
// that Locate returns.
func (rc *Condarc) Mirrors() (out [][]string) {
	for _, name := range slices.Sorted(maps.Keys(rc.mirrored)) {
		if mirrors := rc.mirrored[name]; len(mirrors) > 1 {
			out = append(out, mapped(mirrors, func(u string) string { return strings.TrimRight(u, "/") }))
		}
	}
	return out
}

// Hidden returns channels for messages, without the credentials in their URLs.
func Hidden(channels []string) []string {
	return mapped(channels, func(c string) string {
		if strings.Contains(c, "://") {
			return fetch.Hide(c)
		}
		return c
	})
}
