package dispatch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"hpcc/files"
	"hpcc/job"
	"hpcc/text"
)

// A Site is a scheduler of this machine, or a machine behind ssh with its own hpcc, as the
// site files describe it.
type Site struct {
	Name string `toml:"-"`
	File string `toml:"-"` // the last file that describes it

	Scheduler job.Target        `toml:"scheduler"` // "": detect
	Env       map[string]string `toml:"env"`       // for the scheduler's commands
	SSH       string            `toml:"ssh"`       // destination of ssh; "": this machine
	Program   string            `toml:"hpcc"`      // path on the remote machine
	Store     string            `toml:"store"`     // path on the remote machine
	Dir       string            `toml:"dir"`       // remote working directory; relative to the home directory

	Queue   string            `toml:"queue"` // default queue
	Account string            `toml:"account"`
	Options []string          `toml:"options"` // required scheduler options
	Queues  map[string]string `toml:"queues"`  // maps names in flags and scripts to the site's
	Modules []string          `toml:"modules"` // loaded before the program

	job.Rules
}

// Sites holds the sites of all files.
type Sites struct {
	Default string
	Files   []string // the files that exist
	list    map[string]*Site
}

// SiteFiles returns the site files, in increasing precedence: the machine's and the user's,
// or only $HPCC_SITE.
func SiteFiles() []string {
	if f := os.Getenv("HPCC_SITE"); f != "" {
		return []string{f}
	}
	files := []string{"/etc/hpcc/site.toml"}
	if dir, err := os.UserConfigDir(); err == nil {
		files = append(files, filepath.Join(dir, "hpcc", "site.toml"))
	}
	return files
}

// maxSiteFile bounds a site file, in bytes.
const maxSiteFile = 1 << 20

// ReadSites reads the files that exist. An unknown key or an invalid value is a usage error with
// file, line and a hint.
func ReadSites(files []string) (*Sites, error) {
	s, err := readSites(files)
	if err != nil {
		return nil, (&text.Error{Err: err, Status: text.StatusUsage}).Hint("\"hpcc sites --help\" shows an example")
	}
	return s, nil
}

func readSites(files []string) (*Sites, error) {
	s := &Sites{list: map[string]*Site{}}
	for _, file := range files {
		switch err := s.read(file); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return nil, err
		}
		s.Files = append(s.Files, file)
	}
	if _, err := s.Find(s.Default); s.Default != "" && err != nil {
		return nil, fmt.Errorf("%s: default: %w", s.Files[len(s.Files)-1], err)
	}
	return s, nil
}

// All returns the sites, sorted by name.
func (s *Sites) All() []*Site {
	var all []*Site
	for _, name := range slices.Sorted(maps.Keys(s.list)) {
		all = append(all, s.list[name])
	}
	return all
}

// Remote returns the sites behind ssh.
func (s *Sites) Remote() []*Site {
	return slices.DeleteFunc(s.All(), func(t *Site) bool { return t.SSH == "" })
}

// Find returns the site with a name.
func (s *Sites) Find(name string) (*Site, error) {
	if t := s.list[name]; t != nil {
		return t, nil
	}
	if len(s.list) == 0 {
		return nil, fmt.Errorf("no site %q: none of the site files exists (%s)", name, strings.Join(SiteFiles(), ", "))
	}
	return nil, fmt.Errorf("no site %q; known sites: %s", name, strings.Join(slices.Sorted(maps.Keys(s.list)), ", "))
}

// read merges a file into the sites.
func (s *Sites) read(file string) error {
	b, err := files.ReadFile(file, maxSiteFile)
	if err != nil {
		return err
	}
	return s.parse(file, string(b))
}

func (s *Sites) parse(file, text string) error {
	var top struct {
		Default string                    `toml:"default"`
		Site    map[string]toml.Primitive `toml:"site"`
	}
	f := &tableFile{file, text}
	md, err := files.TOML(text, &top)
	if err != nil {
		return f.wrong(err)
	}
	for _, name := range slices.Sorted(maps.Keys(top.Site)) {
		t := s.list[name]
		if t == nil {
			t = &Site{Name: name}
			s.list[name] = t
		}
		t.File = file
		if err := md.PrimitiveDecode(top.Site[name], t); err != nil {
			return f.wrong(err)
		}
		if key, err := t.check(); err != nil {
			return f.atKey([]string{"site", name, key}, fmt.Errorf("site %s: %s: %w", name, key, err))
		}
	}
	for _, key := range md.Undecoded() {
		return f.atKey(key, unknownKey(key))
	}
	if top.Default != "" {
		s.Default = top.Default
	}
	return nil
}

// unknownKey returns the error for an unknown key, with a suggestion.
func unknownKey(key toml.Key) error {
	known, word := []string{"default", "site"}, key[0]
	if len(key) > 2 && key[0] == "site" {
		known, word = tomlKeys(reflect.TypeFor[Site]()), key[2]
	} else if len(key) == 2 && key[0] == "site" { // [site] only holds tables
		word = key[1]
		return fmt.Errorf("key %q: not a table; write [site.%s]", key, word)
	}
	if near := text.Nearest(word, known); near != "" {
		return fmt.Errorf("unknown key %q (did you mean %q?)", word, near)
	}
	return fmt.Errorf("unknown key %q; known keys: %s", word, strings.Join(known, ", "))
}

// check returns the first key with an invalid value, and why it is invalid.
func (t *Site) check() (key string, err error) {
	word := func(s string) bool { return s == "" || job.WordText().MatchString(s) }
	switch {
	case !job.NameText().MatchString(t.Name):
		return "", errors.New("a site name starts with a letter, has letters, digits and ._- only, and at most 64 bytes")
	case t.Scheduler != "" && systemOf(t.Scheduler) == nil:
		return "scheduler", fmt.Errorf("%q: not a scheduler; known are %s", t.Scheduler, known())
	case t.SSH != "" && (strings.HasPrefix(t.SSH, "-") || strings.ContainsAny(t.SSH, " \t\n\x00")):
		return "ssh", fmt.Errorf("%q: not USER@HOST or a host of the ssh configuration", t.SSH)
	case t.Store != "" && t.SSH == "":
		return "store", errors.New("only valid for a site with ssh; on this machine set $HPCC_STORE")
	case !word(t.Queue):
		return "queue", fmt.Errorf("%q: contains characters that directives cannot hold", t.Queue)
	case !word(t.Account):
		return "account", fmt.Errorf("%q: contains characters that directives cannot hold", t.Account)
	case !slices.Contains([]string{"", "slot", "job", "host"}, t.MemoryPer):
		return "memory_per", fmt.Errorf("%q: known are slot, job, host", t.MemoryPer)
	case !slices.Contains([]string{"", "slot", "job"}, t.GPUPer):
		return "gpu_per", fmt.Errorf("%q: known are slot, job", t.GPUPer)
	}
	for _, name := range slices.Sorted(maps.Keys(t.Env)) {
		if !job.EnvName().MatchString(name) || strings.ContainsRune(t.Env[name], 0) {
			return "env", fmt.Errorf("%q: not a variable name", name)
		}
	}
	for _, v := range []struct {
		key  string
		list []string
	}{{"options", t.Options}, {"dir", []string{t.Dir}}, {"store", []string{t.Store}}, {"hpcc", []string{t.Program}}} {
		if i := slices.IndexFunc(v.list, func(s string) bool { return strings.ContainsAny(s, "\n\r\x00") }); i >= 0 {
			return v.key, fmt.Errorf("%q: contains a line break", v.list[i])
		}
	}
	return t.checkValues()
}

// checkValues rejects values that would break out of their directive.
func (t *Site) checkValues() (key string, err error) {
	lists := map[string][]string{"modules": t.Modules, "memory": t.Memory, "pe_one_host": {t.OneHost},
		"pe_many": {t.ManyHosts}, "gpu": {t.GPU}, "queues": slices.Collect(maps.Values(t.Queues))}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		for _, w := range lists[key] {
			if w == "" && len(lists[key]) == 1 && key != "modules" {
				continue
			}
			if !job.WordText().MatchString(w) {
				return key, fmt.Errorf("%q: contains characters that directives cannot hold", w)
			}
		}
	}
	return "", nil
}

// Cluster returns the cluster of a local site. It detects the scheduler if the file does not
// name it.
func (t *Site) Cluster(ctx context.Context) Cluster {
	c := Cluster{Target: t.Scheduler, Site: t.Name, Env: t.Env}
	if c.Target == "" {
		c.Target = Detect(c.Within(ctx))
	}
	return c
}

// Answers returns the scheduler of a local site, and an error if that does not answer.
func (t *Site) Answers(ctx context.Context, limit time.Duration) (job.Target, error) {
	c := Cluster{Target: t.Scheduler, Env: t.Env}
	if c.Target == "" {
		c.Target = Detect(c.Within(ctx))
		return c.Target, nil
	}
	_, err := c.Query(ctx, nil, limit)
	return c.Target, err
}

// Apply fills in the site's defaults where the job has no value, and maps queue names. Notes
// list the mapped names.
func (t *Site) Apply(j *job.Job) (notes []string) {
	if t.Name == "" {
		return nil
	}
	if j.Queue == "" {
		j.Queue = t.Queue
	}
	if q, ok := t.Queues[j.Queue]; ok && q != j.Queue {
		notes = append(notes, fmt.Sprintf("queue %s is %s at site %s", j.Queue, q, t.Name))
		j.Queue = q
	}
	if j.Account == "" {
		j.Account = t.Account
	}
	var options []string
	for _, o := range t.Options {
		if !slices.Contains(j.Native, o) {
			options = append(options, o)
		}
	}
	j.Native = append(options, j.Native...) // the user's options come last and win
	for _, m := range t.Modules {
		if !slices.Contains(j.Modules, m) {
			j.Modules = append(j.Modules, m)
		}
	}
	if reflect.ValueOf(j.Rules).IsZero() {
		j.Rules = t.Rules
	}
	return notes
}
