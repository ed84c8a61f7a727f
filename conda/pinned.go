package conda

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// A Pinned is a plan in the words of other tools: what they install with it is
// what Layers does.
type Pinned struct {
	Subdir       string
	Prefix       string
	Explicit     []string // URL#sha256:… of each package (CEP 23), each after those it needs
	Requirements []string // lines for "pip install -r", with options and hashes; none without packages of pip
	Hashed       bool     // all Requirements have one
	Pip          bool     // a package of conda brings pip
	Hidden       []string // packages and indexes whose addresses hold credentials, which are left out
}

// Pin pins a plan and the wheels that Downloads chose. Packages that lie in a
// directory of this machine are refused.
func (p *Plan) Pin(wheels []Wheel, o Options) (*Pinned, error) {
	out := &Pinned{Subdir: p.Subdir, Prefix: p.Prefix, Hashed: true}
	var here []string
	for _, r := range p.pkgs {
		out.Pip = out.Pip || r.Name == "pip"
		line := public(r.url)
		if line == "" {
			here = append(here, r.Name)
			continue
		}
		out.hide(r.Name, r.url)
		switch {
		case r.SHA256 != "":
			line += "#sha256:" + r.SHA256
		case r.MD5 != "":
			line += "#" + r.MD5
		}
		out.Explicit = append(out.Explicit, line)
	}
	if len(wheels) > 0 {
		out.indexes(p.export.pipOptions(o).Indexes)
	}
	for _, w := range wheels {
		line := w.Name + "==" + w.Version
		switch {
		case w.URL == "":
			here = append(here, w.Name)
			continue
		case w.direct:
			line = w.Name + " @ " + public(w.address)
			out.hide(w.Name, w.address)
		}
		if w.SHA256 != "" {
			line += " --hash=sha256:" + w.SHA256
		}
		out.Hashed = out.Hashed && w.SHA256 != ""
		out.Requirements = append(out.Requirements, line)
	}
	if len(here) > 0 {
		return nil, fmt.Errorf("%s: %d packages lie in directories of this machine, where nobody else can fetch them: %s; name the channel or the index by its URL", p.export.File, len(here), some(here))
	}
	return out, nil
}

// hide notes what had to be taken out of an address.
func (x *Pinned) hide(name, address string) {
	if u, err := url.Parse(address); err != nil || u.String() != bare(address) {
		x.Hidden = append(x.Hidden, name)
	}
}

// indexes writes where pip is to look, as it was looked for here. Directories
// are left out: their wheels are refused one by one.
func (x *Pinned) indexes(from PipIndexes) {
	add := func(option, address string) {
		if strings.HasPrefix(address, "http://") || strings.HasPrefix(address, "https://") {
			x.hide(cmp.Or(bare(address), option), address)
			x.Requirements = append(x.Requirements, option+" "+bare(address))
		}
	}
	if from.NoIndex {
		x.Requirements = append(x.Requirements, "--no-index")
	}
	add("--index-url", from.URL)
	for _, u := range slices.Compact(slices.Clone(from.Extra)) {
		add("--extra-index-url", u)
	}
	for _, u := range from.FindLinks {
		add("--find-links", u)
	}
}
