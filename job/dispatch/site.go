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

	"hpcc/job"
	"hpcc/job/message"
	"hpcc/store/bounded"
	"hpcc/store/wait"
)

// A Site is a place where jobs run, as the files of sites describe it: a
// scheduler of this machine, or a machine that ssh reaches, whose hpcc does the work.
type Site struct {
	Name string `toml:"-"`
	File string `toml:"-"` // that said something of it last

	Scheduler job.Target        `toml:"scheduler"` // "": the one that answers
	Env       map[string]string `toml:"env"`       // of the scheduler's commands
	SSH       string            `toml:"ssh"`       // destination of ssh; "": commands of this machine
	Program   string            `toml:"hpcc"`      // there
	Store     string            `toml:"store"`     // there
	Dir       string            `toml:"dir"`       // where jobs start there; below the home directory unless absolute

	Queue   string            `toml:"queue"` // where the job names none
	Account string            `toml:"account"`
	Options []string          `toml:"options"` // that the site requires, in the scheduler's words
	Queues  map[string]string `toml:"queues"`  // a name in flags and scripts, and the site's own
	Modules []string          `toml:"modules"` // loaded before the program

	job.Rules
}

// Sites are those of all files.
type Sites struct {
	Default string
	Files   []string // that there are
	list    map[string]*Site
}

// SiteFiles are where sites are described, the later overruling the earlier:
// the machine's, and the user's own, or $HPCC_SITE alone.
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

// maxSiteFile bounds a file of sites, in bytes.
const maxSiteFile = 1 << 20

// ReadSites reads those of the files that there are. A key that is not known, or
// a value that cannot be, is an error with file and line.
func ReadSites(files []string) (*Sites, error) {
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

// All are the sites, by name.
func (s *Sites) All() []*Site {
	var all []*Site
	for _, name := range slices.Sorted(maps.Keys(s.list)) {
		all = append(all, s.list[name])
	}
	return all
}

// Remote are the sites that ssh reaches.
func (s *Sites) Remote() []*Site {
	return slices.DeleteFunc(s.All(), func(t *Site) bool { return t.SSH == "" })
}

// Find is the site of a name.
func (s *Sites) Find(name string) (*Site, error) {
	if t := s.list[name]; t != nil {
		return t, nil
	}
	if len(s.list) == 0 {
		return nil, fmt.Errorf("no site %q: no file describes sites (%s)", name, strings.Join(SiteFiles(), ", "))
	}
	return nil, fmt.Errorf("no site %q; there are %s", name, strings.Join(slices.Sorted(maps.Keys(s.list)), ", "))
}

// read adds a file to what those before it said.
func (s *Sites) read(file string) error {
	b, err := wait.ReadFile(file, maxSiteFile)
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
	f := &TableFile{file, text}
	md, err := bounded.TOML(text, &top)
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
			return f.At([]string{"site", name, key}, fmt.Errorf("site %s: %s: %w", name, key, err))
		}
	}
	for _, key := range md.Undecoded() {
		return f.At(key, unknownKey(key))
	}
	if top.Default != "" {
		s.Default = top.Default
	}
	return nil
}

// unknownKey refuses a key, with the one that may have been meant.
func unknownKey(key toml.Key) error {
	known, word := []string{"default", "site"}, key[0]
	if len(key) > 2 && key[0] == "site" {
		known, word = tomlKeys(reflect.TypeFor[Site]()), key[2]
	} else if len(key) == 2 && key[0] == "site" { // which holds sites alone
		word = key[1]
		return fmt.Errorf("key %q: not a table; write [site.%s]", key, word)
	}
	if near := message.Nearest(word, known); near != "" {
		return fmt.Errorf("unknown key %q; is %q meant?", word, near)
	}
	return fmt.Errorf("unknown key %q; known are %s", word, strings.Join(known, ", "))
}

// check refuses values that no site can have, and names their key.
func (t *Site) check() (key string, err error) {
	word := func(s string) bool { return s == "" || job.WordText().MatchString(s) }
	switch {
	case !job.NameText().MatchString(t.Name):
		return "", errors.New("a name begins with a letter, holds letters, digits and ._- and is at most 64 bytes long")
	case t.Scheduler != "" && systemOf(t.Scheduler) == nil:
		return "scheduler", fmt.Errorf("%q: known are %s", t.Scheduler, known())
	case t.SSH != "" && (strings.HasPrefix(t.SSH, "-") || strings.ContainsAny(t.SSH, " \t\n\x00")):
		return "ssh", fmt.Errorf("%q: is not USER@HOST or a name of the ssh configuration", t.SSH)
	case t.Store != "" && t.SSH == "":
		return "store", errors.New("belongs to a site that ssh reaches; on this machine it is $HPCC_STORE")
	case !word(t.Queue):
		return "queue", fmt.Errorf("%q: holds characters that directives cannot", t.Queue)
	case !word(t.Account):
		return "account", fmt.Errorf("%q: holds characters that directives cannot", t.Account)
	case !slices.Contains([]string{"", "slot", "job", "host"}, t.MemoryPer):
		return "memory_per", fmt.Errorf("%q: known are slot, job, host", t.MemoryPer)
	case !slices.Contains([]string{"", "slot", "job"}, t.GPUPer):
		return "gpu_per", fmt.Errorf("%q: known are slot, job", t.GPUPer)
	}
	for name, v := range t.Env {
		if !job.EnvName().MatchString(name) || strings.ContainsRune(v, 0) {
			return "env", fmt.Errorf("%q: no name of a variable", name)
		}
	}
	for key, list := range map[string][]string{"options": t.Options, "dir": {t.Dir}, "store": {t.Store}, "hpcc": {t.Program}} {
		for _, s := range list {
			if strings.ContainsAny(s, "\n\r\x00") {
				return key, fmt.Errorf("%q: holds a line break", s)
			}
		}
	}
	return t.checkWords()
}

// checkWords refuses words that would break out of their directive.
func (t *Site) checkWords() (key string, err error) {
	lists := map[string][]string{"modules": t.Modules, "memory": t.Memory, "pe_one_host": {t.OneHost}, "pe_many": {t.ManyHosts}, "gpu": {t.GPU}, "queues": slices.Collect(maps.Values(t.Queues))}
	for _, key := range slices.Sorted(maps.Keys(lists)) {
		for _, w := range lists[key] {
			if w == "" && len(lists[key]) == 1 && key != "modules" {
				continue
			}
			if !job.WordText().MatchString(w) {
				return key, fmt.Errorf("%q: holds characters that directives cannot", w)
			}
		}
	}
	return "", nil
}

// Cluster is where the jobs of a site of this machine are handed in. The scheduler
// is looked for when the file does not name it.
func (t *Site) Cluster(ctx context.Context) Cluster {
	c := Cluster{Target: t.Scheduler, Site: t.Name, Env: t.Env}
	if c.Target == "" {
		c.Target = Detect(c.Within(ctx))
	}
	return c
}

// Answers says which scheduler a site of this machine has, and why it does not
// answer.
func (t *Site) Answers(ctx context.Context, limit time.Duration) (job.Target, error) {
	c := Cluster{Target: t.Scheduler, Env: t.Env}
	if c.Target == "" {
		c.Target = Detect(c.Within(ctx))
		return c.Target, nil
	}
	_, err := c.Query(ctx, nil, limit)
	return c.Target, err
}

// Apply states a job for the site: its defaults where the job says nothing, and
// its own names. Notes say what became something else.
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
	j.Native = append(options, j.Native...) // what the user says comes later, and overrules
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
