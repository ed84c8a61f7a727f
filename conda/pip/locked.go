package pip

import (
	"cmp"
	"errors"
	"path"
	"slices"
	"strings"
)

// maxRequired limits the steps through the dependencies of a lock file.
const maxRequired = 1_000_000

// required returns the rows that are needed of a list whose rows have Requires, and the others
// as text. It starts at the rows that are not Needed. Other lists are returned unchanged.
func (r *resolver) required(rows []Requirement) (needed []Requirement, others []string) {
	if !slices.ContainsFunc(rows, func(x Requirement) bool { return len(x.Requires) > 0 }) {
		return rows, nil
	}
	w := &requiredRows{r: r, rows: rows, byName: map[string][]int{}, parts: map[requiredPart]bool{}, asked: map[int]bool{}}
	for i, x := range rows {
		w.byName[NormalName(x.Name)] = append(w.byName[NormalName(x.Name)], i)
		if !x.Needed {
			w.add(i, x.Extras)
		}
	}
	for len(w.queue) > 0 && w.steps < maxRequired {
		p := w.queue[0]
		w.queue = w.queue[1:]
		if err := w.follow(p); err != nil {
			r.refuse(rows[p.row], "", "%v", err)
		}
	}
	if w.steps >= maxRequired {
		r.refuse(rows[0], "", "following the dependencies of the list takes more than %d steps; check that a tool wrote it", maxRequired)
	}
	for i, x := range rows {
		switch {
		case w.parts[requiredPart{row: i}]:
			x.Needed = x.Needed && !w.asked[i]
			needed = append(needed, x)
		case !x.Virtual:
			others = append(others, x.String())
		}
	}
	return needed, others
}

// requiredRows is a walk through the dependencies of a list.
type requiredRows struct {
	r      *resolver
	rows   []Requirement
	byName map[string][]int
	parts  map[requiredPart]bool
	queue  []requiredPart
	asked  map[int]bool // rows that the user's own sources require
	steps  int
}

// A requiredPart is a row, or one of its extras.
type requiredPart struct {
	row   int
	extra string
}

// add adds a row with its extras to the queue.
func (w *requiredRows) add(row int, extras []string) {
	for _, x := range append([]string{""}, extras...) {
		if p := (requiredPart{row, x}); !w.parts[p] {
			w.parts[p] = true
			w.queue = append(w.queue, p)
		}
	}
}

// follow adds the rows that a part requires.
func (w *requiredRows) follow(p requiredPart) error {
	row := w.rows[p.row]
	own, err := row.dependency()
	if err != nil || !own.cond.holds(row.environment(w.r.env), "") {
		return err
	}
	for _, d := range row.Requires {
		if w.steps++; w.steps > maxRequired {
			return nil
		}
		dep, err := d.dependency()
		if err != nil {
			return err
		}
		if !dep.cond.holds(w.r.env, p.extra) {
			continue
		}
		for _, i := range w.byName[NormalName(d.Name)] {
			w.steps++
			if x := w.rows[i]; (d.Specifier == "" || d.Specifier == x.Specifier) &&
				(d.Index == "" || d.Index == x.Index) && (d.URL == "" || d.URL == x.URL) {
				w.asked[i] = w.asked[i] || row.Virtual
				w.add(i, d.Extras)
			}
		}
	}
	return nil
}

// listFiles makes the files of a locked row the candidates of its distribution.
func (r *resolver) listFiles(row Requirement) error {
	version, err := parseVersion(strings.TrimPrefix(row.Specifier, "=="))
	if err != nil {
		return err
	}
	name := NormalName(row.Name)
	list := r.files[name]
	for _, a := range row.Files {
		u, err := r.location(a.URL)
		if err != nil {
			return err
		}
		f := indexFile{name: a.Name, hashes: a.Hashes, size: a.Size, python: row.Python}
		if f.name == "" {
			f.name = path.Base(u.Path)
		}
		u.Fragment, u.RawFragment = "", ""
		f.url = u.String()
		switch owned := f.sort(name); {
		case f.wheel == nil && sourceKind(f.name) != "":
			f.version = version // names of old sources are ambiguous
		case !owned:
			continue
		}
		list = append(list, f)
	}
	if len(list) == 0 {
		return errors.New("none of its files is a wheel or a source archive")
	}
	r.rateFiles(name, list)
	return nil
}

// Unfit returns the names of the packages of a lock file that the target needs and that have
// wheels, but none for the target.
func (t Target) Unfit(rows []Requirement) (names []string) {
	ranks, err := t.ranks()
	if err != nil {
		return nil
	}
	r := &resolver{target: &t, env: t.environment(), ranks: ranks}
	needed, _ := r.required(rows)
	for _, x := range needed {
		d, err := x.dependency()
		if err != nil || !d.cond.holds(x.environment(r.env), "") {
			continue
		}
		wheels, fits := 0, false
		for _, a := range x.Files {
			w, err := parseWheelName(cmp.Or(a.Name, path.Base(locationPath(a.URL))))
			if err == nil {
				wheels++
				fits = fits || r.rank(w) > 0
			}
		}
		if wheels > 0 && !fits {
			names = append(names, NormalName(x.Name))
		}
	}
	return names
}
