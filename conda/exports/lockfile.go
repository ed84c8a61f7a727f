package exports

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

	"hpcc/conda/fetch"
	"hpcc/conda/pip"
	"hpcc/text"
)

// A Locked holds the exact content of an installed plan on one platform.
type Locked struct {
	Hidden []string // packages whose URLs have credentials, which a lock file must not contain

	Platform  string
	Channels  []string
	Packages  []LockedPackage
	Variables map[string]string
	Asked     []string            // pip packages that the export names
	Direct    []string            // the elements of Asked that the export names by URL
	Built     map[string][]string // pip packages built from sources, with the wheels of their build environment
}

// A lockFile is conda-lock.yml, version 1 (CEP 37).
type lockFile struct {
	Version  int             `yaml:"version"`
	Metadata lockMetadata    `yaml:"metadata"`
	Package  []LockedPackage `yaml:"package"`
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

// A LockedPackage is one package in conda-lock.yml.
type LockedPackage struct {
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

// Keys of custom_metadata, which holds what the format lacks.
const (
	customAsked     = "hpcc-asked"     // pip packages that the export names, separated by blanks
	customBuilt     = "hpcc-built"     // JSON: platform → package → requirements of its build environment
	customDirect    = "hpcc-direct"    // pip packages that the export names by URL, separated by blanks
	customVariables = "hpcc-variables" // JSON: environment variables by name
)

// baseCategory is the category of the base image's packages. conda-lock does not install
// them: by default it installs only category main.
const baseCategory = "hpcc-base"

// Add adds the package at an address and records its URL without credentials. base means
// that the package belongs to the base image.
func (l *Locked) Add(x LockedPackage, address string, base bool) {
	category := "main"
	if base {
		category = baseCategory
	}
	x.Platform, x.Category, x.URL = l.Platform, category, fetch.Bare(address)
	if u, err := url.Parse(address); err != nil || u.String() != x.URL {
		l.Hidden = append(l.Hidden, x.Name)
	}
	l.Packages = append(l.Packages, x)
}

// WriteLock writes a lock file in conda-lock's format, which Read can read. The list holds one
// environment on one or more platforms. The file contains no credentials and no timestamps.
func WriteLock(out io.Writer, sources []string, list []Locked) error {
	f := lockFile{Version: 1, Metadata: lockMetadata{ContentHash: map[string]string{},
		Channels: []lockedChannel{}, Sources: sources, Custom: map[string]string{}}}
	custom := map[string][]string{}
	built := map[string]map[string][]string{}
	for _, l := range list {
		if len(l.Built) > 0 {
			built[l.Platform] = l.Built
		}
		sum := sha256.New()
		for _, x := range l.Packages {
			fmt.Fprintln(sum, x.URL, cmp.Or(x.Hash.SHA256, x.Hash.MD5))
		}
		f.Metadata.ContentHash[l.Platform] = hex.EncodeToString(sum.Sum(nil))
		f.Metadata.Platforms = append(f.Metadata.Platforms, l.Platform)
		for _, c := range l.Channels {
			if !slices.ContainsFunc(f.Metadata.Channels, func(have lockedChannel) bool { return have.URL == c }) {
				f.Metadata.Channels = append(f.Metadata.Channels, lockedChannel{c, []string{}})
			}
		}
		f.Package = append(f.Package, l.Packages...)
		custom[customAsked] = append(custom[customAsked], l.Asked...)
		custom[customDirect] = append(custom[customDirect], l.Direct...)
		if len(l.Variables) > 0 {
			text, err := json.Marshal(l.Variables)
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
	fmt.Fprintf(out, "# Written by hpcc build --lock: the exact packages of %q.\n", strings.Join(sources, " "))
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(f); err != nil {
		return fmt.Errorf("writing the lock file: %w", err)
	}
	return enc.Close()
}

// custom reads the custom_metadata that WriteLock writes. Without it, as in lock files of other
// tools, all packages count as named by the export.
func (l *lock) custom(n *yaml.Node) {
	if v := value(n, customVariables); v != "" {
		var m map[string]string
		if err := json.Unmarshal([]byte(v), &m); err != nil {
			l.r.wrong(find(n, customVariables).Line, "%s is not a JSON object of strings", customVariables)
			return
		}
		for k, v := range m {
			if !IsVariable(k, v) {
				l.r.wrong(find(n, customVariables).Line, "%q: invalid variable name or value", text.Short(k))
				return
			}
		}
		l.r.e.Variables = m
	}
	if v := value(n, customBuilt); v != "" {
		var built map[string]map[string][]string
		if err := json.Unmarshal([]byte(v), &built); err != nil {
			l.r.wrong(find(n, customBuilt).Line, "%s is not a JSON object of objects of lists", customBuilt)
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
