package conda

import (
	"cmp"
	"slices"
	"strings"
)

// A Change is a package that two environments do not have alike.
type Change struct {
	Manager string `json:"manager"` // conda or pip
	Name    string `json:"name"`
	Kind    string `json:"change"`           // added, removed, version, build
	Old     string `json:"before,omitempty"` // version and build, a MatchSpec's conditions, or a URL
	New     string `json:"after,omitempty"`
}

// Diff lists what b adds to a, what it lacks and what it changes, by manager
// and name. Where one of the two does not say a build, builds are not compared.
func Diff(a, b *Export) []Change {
	old, now := a.contents(), b.contents()
	var out []Change
	for k, x := range old {
		y, ok := now[k]
		switch {
		case !ok:
			out = append(out, Change{k.manager, k.name, "removed", x.String(), ""})
		case x.version != y.version:
			out = append(out, Change{k.manager, k.name, "version", x.String(), y.String()})
		case x.build != y.build && x.build != "" && y.build != "":
			out = append(out, Change{k.manager, k.name, "build", x.String(), y.String()})
		}
	}
	for k, y := range now {
		if _, ok := old[k]; !ok {
			out = append(out, Change{k.manager, k.name, "added", "", y.String()})
		}
	}
	slices.SortFunc(out, func(a, b Change) int {
		return cmp.Or(strings.Compare(a.Manager, b.Manager), strings.Compare(a.Name, b.Name))
	})
	return out
}

// packageKey and packageState are a package as Diff compares it.
type (
	packageKey   struct{ manager, name string }
	packageState struct{ version, build string }
)

func (s packageState) String() string { return strings.TrimSpace(s.version + " " + s.build) }

// contents are the packages of an export by name. A spec that says a version
// exactly is that version.
func (e *Export) contents() map[packageKey]packageState {
	m := map[packageKey]packageState{}
	for _, x := range e.Specs {
		if x.Asked {
			continue
		}
		text := x.Text
		if i := strings.LastIndex(text, "::"); i >= 0 {
			text = text[i+2:]
		}
		i := strings.IndexAny(text, " =<>!~[")
		if i < 0 {
			i = len(text)
		}
		cond := strings.TrimSpace(text[i:])
		if v := strings.TrimLeft(cond, "="); versionText().MatchString(v) && len(cond)-len(v) <= 2 {
			cond = v
		}
		m[packageKey{"conda", strings.ToLower(text[:i])}] = packageState{version: cmp.Or(cond, "any")}
	}
	for _, x := range e.Entries {
		m[packageKey{"conda", x.Name}] = packageState{x.Version, x.Build}
	}
	for _, p := range e.Pip {
		state := packageState{version: cmp.Or(strings.TrimPrefix(p.Specifier, "=="), "any")}
		if p.URL != "" {
			state.version = hide(p.URL)
			if v := strings.TrimPrefix(p.exactly(), "=="); v != "" {
				state.version = v
			}
		}
		m[packageKey{"pip", cmp.Or(pipName(p.Name), hide(p.URL))}] = state
	}
	return m
}
