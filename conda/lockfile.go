package conda

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"hpcc/conda/brief"
	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/conda/solve"
)

// A Locked is what an installation of a plan put into an image, exactly.
type Locked struct {
	Hidden []string // packages whose addresses hold credentials, which a lock file leaves out

	subdir    string
	channels  []string
	packages  []lockedPackage
	variables map[string]string
	asked     []string            // packages of pip that the export names
	direct    []string            // of those, the ones that it names by their address
	built     map[string][]string // packages of pip that were built, with the wheels that did it
}

// A lockFile is conda-lock.yml, version 1 (CEP 37).
type lockFile struct {
	Version  int             `yaml:"version"`
	Metadata lockMetadata    `yaml:"metadata"`
	Package  []lockedPackage `yaml:"package"`
}

type lockMetadata struct {
	ContentHash map[string]string `yaml:"content_hash"`
	Channels    []lockedChannel   `yaml:"channels"`
	Platforms   []string          `yaml:"platforms"`
	Sources     []string          `yaml:"sources"`
	Custom      map[string]string `yaml:"custom_metadata,omitempty"`
}

type lockedChannel struct {
	URL  string   `yaml:"url"`
	Used []string `yaml:"used_env_vars"`
}

type lockedPackage struct {
	Name         string            `yaml:"name"`
	Version      string            `yaml:"version"`
	Manager      string            `yaml:"manager"` // conda or pip
	Platform     string            `yaml:"platform"`
	Dependencies map[string]string `yaml:"dependencies"`
	URL          string            `yaml:"url"`
	Hash         lockedHash        `yaml:"hash"`
	Category     string            `yaml:"category"`
	Optional     bool              `yaml:"optional"`
}

type lockedHash struct {
	MD5    string `yaml:"md5,omitempty"`
	SHA256 string `yaml:"sha256,omitempty"`
}

// What the format has no word for stands in custom_metadata, which it has for
// what users want to keep there: which packages of pip were asked for, which of them by their
// address, what others were built with, and the environment's variables, as objects of JSON.
const (
	customAsked     = "hpcc-asked"
	customBuilt     = "hpcc-built" // of platforms, of packages, of lists of requirements
	customDirect    = "hpcc-direct"
	customVariables = "hpcc-variables"
)

// baseCategory is that of packages of which the image below is made: conda-lock
// installs no category but main unless it is told to.
const baseCategory = "hpcc-base"

// Keep notes the plan of an image that is made of packages too, on which the environment stands.
func (l *Locked) Keep(base *Plan) {
	for _, r := range base.pkgs {
		l.add(lockedRecord(r), r.URL, baseCategory)
	}
}

// add notes a package that is at an address.
func (l *Locked) add(x lockedPackage, address, category string) {
	x.Platform, x.Category, x.URL = l.subdir, category, fetch.Bare(address)
	if u, err := url.Parse(address); err != nil || u.String() != x.URL {
		l.Hidden = append(l.Hidden, x.Name)
	}
	l.packages = append(l.packages, x)
}

// Lock is the plan as Layers carried it out, with the wheels that it chose.
func (p *Plan) Lock(wheels []pip.Wheel) Locked {
	l := Locked{subdir: p.Subdir, variables: p.export.Variables, built: map[string][]string{}}
	for _, r := range p.pkgs {
		l.add(lockedRecord(r), r.URL, "main")
		if c := fetch.Bare(r.Origin); !slices.Contains(l.channels, c) {
			l.channels = append(l.channels, c)
		}
	}
	for _, w := range wheels {
		x := lockedPackage{Name: w.Name, Version: w.Version, Manager: "pip", Dependencies: map[string]string{}, Hash: lockedHash{SHA256: w.SHA256}}
		l.add(x, w.Address, "main")
		for _, b := range w.BuiltWith {
			if u, err := url.Parse(b.Address); err != nil || u.String() != fetch.Bare(b.Address) {
				l.Hidden = append(l.Hidden, b.Name)
			}
			l.built[w.Name] = append(l.built[w.Name], fmt.Sprintf("%s @ %s#sha256=%s", b.Name, fetch.Bare(b.Address), b.SHA256))
		}
		if w.Asked {
			l.asked = append(l.asked, w.Name)
		}
		if w.Direct {
			l.direct = append(l.direct, w.Name)
		}
	}
	slices.SortStableFunc(l.channels, func(a, b string) int { return cmp.Compare(p.rank(a), p.rank(b)) })
	return l
}

// rank is the place of a channel among those that the user named.
func (p *Plan) rank(channel string) int {
	for i, name := range p.channels {
		if c, err := openChannel(name); err == nil && fetch.Bare(c.url) == channel {
			return i
		}
	}
	return len(p.channels)
}

// WriteLock writes a lock file of one environment on one or more platforms, in
// conda-lock's format, for Read. It holds no credentials and no time of day.
func WriteLock(out io.Writer, source string, list []Locked) error {
	f := lockFile{Version: 1, Metadata: lockMetadata{ContentHash: map[string]string{}, Channels: []lockedChannel{}, Sources: []string{source}, Custom: map[string]string{}}}
	custom := map[string][]string{}
	built := map[string]map[string][]string{}
	for _, l := range list {
		if len(l.built) > 0 {
			built[l.subdir] = l.built
		}
		sum := sha256.New()
		for _, x := range l.packages {
			fmt.Fprintln(sum, x.URL, cmp.Or(x.Hash.SHA256, x.Hash.MD5))
		}
		f.Metadata.ContentHash[l.subdir] = hex.EncodeToString(sum.Sum(nil))
		f.Metadata.Platforms = append(f.Metadata.Platforms, l.subdir)
		for _, c := range l.channels {
			if !slices.ContainsFunc(f.Metadata.Channels, func(have lockedChannel) bool { return have.URL == c }) {
				f.Metadata.Channels = append(f.Metadata.Channels, lockedChannel{c, []string{}})
			}
		}
		f.Package = append(f.Package, l.packages...)
		custom[customAsked] = append(custom[customAsked], l.asked...)
		custom[customDirect] = append(custom[customDirect], l.direct...)
		if len(l.variables) > 0 {
			text, err := json.Marshal(l.variables)
			if err != nil {
				return fmt.Errorf("writing the lock file: %w", err)
			}
			f.Metadata.Custom[customVariables] = string(text)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(custom)) {
		if len(custom[k]) > 0 {
			slices.Sort(custom[k])
			f.Metadata.Custom[k] = strings.Join(slices.Compact(custom[k]), " ")
		}
	}
	if len(built) > 0 {
		text, err := json.Marshal(built)
		if err != nil {
			return fmt.Errorf("writing the lock file: %w", err)
		}
		f.Metadata.Custom[customBuilt] = string(text)
	}
	fmt.Fprintf(out, "# Written by hpcc build --lock: the packages of %q, exactly.\n", source)
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(f); err != nil {
		return fmt.Errorf("writing the lock file: %w", err)
	}
	return enc.Close()
}

// custom reads what WriteLock put beside the packages. A lock file of
// another tool says of no package that it was not asked for.
func (l *lock) custom(n *yaml.Node) {
	if v := value(n, customVariables); v != "" {
		var m map[string]string
		if err := json.Unmarshal([]byte(v), &m); err != nil {
			l.r.wrong(find(n, customVariables).Line, "%s is no object of texts", customVariables)
			return
		}
		for k, v := range m {
			if !isVariable(k, v) {
				l.r.wrong(find(n, customVariables).Line, "%q is no name of a variable, or its value no text", brief.Text(k))
				return
			}
		}
		l.r.e.Variables = m
	}
	if v := value(n, customBuilt); v != "" {
		var built map[string]map[string][]string
		if err := json.Unmarshal([]byte(v), &built); err != nil {
			l.r.wrong(find(n, customBuilt).Line, "%s is no object of objects of lists", customBuilt)
			return
		}
		for platform, list := range l.pip {
			for i := range list {
				list[i].BuildWith = built[platform][pip.NormalName(list[i].Name)]
			}
		}
	}
	if find(n, customAsked) == nil && find(n, customDirect) == nil {
		return
	}
	asked, direct := strings.Fields(value(n, customAsked)), strings.Fields(value(n, customDirect))
	for _, list := range l.pip {
		for i := range list {
			list[i].Needed = !slices.Contains(asked, pip.NormalName(list[i].Name))
			list[i].Locked = !slices.Contains(direct, pip.NormalName(list[i].Name))
		}
	}
}

// lockedRecord is a package as a lock file has it.
func lockedRecord(r *solve.Record) lockedPackage {
	x := lockedPackage{Name: r.Name, Version: r.Version, Manager: "conda", Dependencies: map[string]string{}, Hash: lockedHash{r.MD5, r.SHA256}}
	for _, d := range r.Depends {
		if n := solve.Dependency(d); n != "" {
			x.Dependencies[n] = cmp.Or(strings.TrimSpace(strings.TrimPrefix(d, n)), "*")
		}
	}
	return x
}
