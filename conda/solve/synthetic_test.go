package solve

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
)

// A generator writes indexes that resemble real channels: libraries, pythons, modules that are
// built for each python, noarch modules, variants with a mutex package. Its result depends on
// the seed only.
type generator struct {
	*rand.Rand
	channels []string
	records  []*Record
	versions map[string][]string // by name, ascending
	names    []string            // in order of generation: dependencies are usually earlier
	clock    int64               // the next timestamp, in milliseconds
}

const pythons = "3.8 3.9 3.10 3.11"

// synthetic returns the records of two channels. The second one also has packages of the first,
// which strict channel priority hides.
func synthetic(seed uint64, channels ...string) []*Record {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 22)), channels: channels, versions: map[string][]string{}, clock: 1_500_000_000_000}
	for i := range 4 + g.IntN(4) {
		g.library(fmt.Sprintf("lib%d", i))
	}
	g.variants("blas")
	g.python()
	for i := range 4 + g.IntN(8) {
		switch name := fmt.Sprintf("mod%d", i); g.IntN(4) {
		case 0:
			g.noarch(name)
		case 1:
			g.library(name)
		default:
			g.module(name)
		}
	}
	g.library("Top_level.x")
	slices.SortStableFunc(g.records, func(a, b *Record) int {
		return slices.Index(channels, a.Origin) - slices.Index(channels, b.Origin)
	})
	return g.records
}

func (g *generator) pick(list ...string) string { return list[g.IntN(len(list))] }
func (g *generator) chance(n int) bool          { return g.IntN(n) == 0 }

// release returns ascending versions of one project.
func (g *generator) release() (out []string) {
	number := func() string { return fmt.Sprintf("%d.%d", 1+g.IntN(3), g.IntN(12)) }
	switch g.IntN(8) {
	case 0: // letters, as openssl
		out = []string{"1.0.2", "1.0.2k", "1.0.2u", "1.1.1", "1.1.1a", "1.1.1w", "3.0.7"}
	case 1: // dates
		out = []string{"2020.4.5", "2020.12.5", "2021.5.30", "2021.10.8", "2022.9"}
	case 2: // a new epoch
		out = []string{"2019.2", "2020.1", "1!0.9", "1!0.10", "1!1.0"}
	case 3: // pre-releases and post-releases
		v := number()
		out = []string{v + ".0.dev1", v + ".0a1", v + ".0rc1", v + ".0", v + ".0.post1", v + ".1"}
	case 4: // local versions
		v := number()
		out = []string{v, v + "+cpu", v + "+cu11", v + ".1", v + ".2+cu12"}
	case 5: // different numbers of components
		out = []string{"1", "1.0.1", "1.1", "1.1.0.1", "2"}
	default:
		for major := range 1 + g.IntN(3) {
			for minor := range 1 + g.IntN(3) {
				out = append(out, fmt.Sprintf("%d.%d.%d", major+1, 2*minor+g.IntN(2)+8, g.IntN(3)))
			}
		}
	}
	if len(out) > 3 { // old and new versions are not always there
		out = out[g.IntN(2) : len(out)-g.IntN(2)]
	}
	return out
}

// add appends a record to a channel, with a few additional requirements on earlier packages.
func (g *generator) add(r Record) *Record {
	r.Subdir, r.Origin = "linux-64", g.channels[0]
	if r.Noarch != nil {
		r.Subdir = "noarch"
	}
	if g.chance(25) {
		r.Origin = g.channels[len(g.channels)-1]
	}
	r.FileName = r.Name + "-" + r.Version + "-" + r.Build + g.pick(".conda", ".conda", ".tar.bz2")
	g.clock += int64(1+g.IntN(1000)) * 86_400
	if r.Timestamp = g.clock; g.chance(30) {
		r.Timestamp = 0
	}
	if g.chance(40) {
		r.TrackFeatures = features{"special"}
	}
	r.MD5, r.SHA256 = fmt.Sprintf("%032x", g.clock), fmt.Sprintf("%064x", g.clock)
	r.Depends = append([]string{}, r.Depends...) // rattler refuses null
	g.records = append(g.records, &r)
	return &r
}

// twin adds the same package as an archive of the other format.
func (g *generator) twin(r *Record) {
	t := *r
	if base, ok := strings.CutSuffix(t.FileName, ".conda"); ok {
		t.FileName = base + ".tar.bz2"
	} else {
		t.FileName = strings.TrimSuffix(t.FileName, ".tar.bz2") + ".conda"
	}
	g.records = append(g.records, &t)
}

// requirements returns dependencies on earlier packages, each of a random kind.
func (g *generator) requirements(most int) (out []string) {
	for range g.IntN(most + 1) {
		name := g.earlier()
		if name != "" && !slices.ContainsFunc(out, func(s string) bool { return Dependency(s) == name }) {
			out = append(out, g.requirement(name))
		}
	}
	return out
}

func (g *generator) earlier() string {
	if len(g.names) == 0 || g.chance(60) {
		return g.pick("", "", "missing", "mod0") // mod0 closes a cycle
	}
	return g.names[g.IntN(len(g.names))]
}

// requirement returns a MatchSpec of the form that channels have. Newer versions are more likely.
func (g *generator) requirement(name string) string {
	vs := g.versions[name]
	if len(vs) == 0 {
		return name
	}
	low := g.IntN(len(vs))
	v := vs[low]
	w := vs[low+g.IntN(len(vs)-low)]
	parts := strings.Split(v, ".")
	line := strings.Join(parts[:max(1, len(parts)-1)], ".")
	switch g.IntN(17) {
	case 0, 1, 2:
		return name
	case 3, 4, 5:
		return name + " >=" + v
	case 6, 7:
		return fmt.Sprintf("%s >=%s,<=%s", name, v, w)
	case 8:
		return fmt.Sprintf("%s >=%s,<%s.0a0", name, v, w)
	case 9:
		return name + " " + line + ".*"
	case 10:
		return name + g.pick(" !=", " <=", " ==", " ") + w
	case 11:
		return fmt.Sprintf("%s %s|>=%s", name, v, w)
	case 12:
		return fmt.Sprintf("%s (>=%s,<%s)|%s", name, v, w, w)
	case 13:
		return name + " " + line + "*"
	case 14:
		return fmt.Sprintf("%s >=%s,!=%s.*", name, v, w)
	case 15:
		return name + " " + v + ".*"
	}
	return name + g.pick(" * *_0", " * h*", " >="+v+" *_*", " * ^h.*_.$", " * *")
}

// constraints returns constrains of a package, usually none.
func (g *generator) constraints() (out []string) {
	for g.chance(6) {
		name := g.pick("missing", "mod1", "mod2", g.earlier())
		if name != "" {
			out = append(out, g.requirement(name))
		}
	}
	return out
}

// hash returns a build string as conda-build writes it.
func (g *generator) hash(prefix string, number int) string {
	return fmt.Sprintf("%sh%07x_%d", prefix, g.IntN(1<<28), number)
}

func (g *generator) library(name string) {
	vs := g.release()
	for _, v := range vs {
		needs, limits := g.requirements(2), g.constraints()
		for n := range 1 + g.IntN(3) {
			r := Record{Name: name, Version: v, Build: g.hash("", n), BuildNumber: n, Depends: slices.Clone(needs), Constrains: limits}
			if g.chance(4) {
				r.Depends = append(r.Depends, g.pick("__glibc >=2.17", "__glibc >=2.28", "__glibc >=2.34", "__unix", "__cuda >=11"))
			}
			last := g.add(r)
			if g.chance(8) {
				g.twin(last)
			}
			for g.chance(5) { // a rebuild with other requirements and the same number
				r.Build, r.Depends = g.hash("", n), g.requirements(2)
				g.add(r)
			}
		}
	}
	g.define(name, vs)
}

func (g *generator) define(name string, vs []string) {
	g.names, g.versions[name] = append(g.names, name), vs
}

// variants adds a metapackage with one build for each implementation. Old ones have the lower
// build number, or track_features.
func (g *generator) variants(name string) {
	for _, kind := range []string{"openblas", "mkl"} {
		vs := g.release()
		for _, v := range vs {
			g.add(Record{Name: kind, Version: v, Build: g.hash("", 0), Depends: []string{name + " * " + kind}, Constrains: g.constraints()})
		}
		g.define(kind, vs)
		r := g.add(Record{Name: name, Version: "1.0", Build: kind, Depends: nil})
		if g.chance(2) {
			r.TrackFeatures = features{"no" + kind}
		}
	}
	g.define(name, []string{"1.0"})
}

func (g *generator) python() {
	var vs []string
	for _, line := range strings.Fields(pythons) {
		tag := "cp" + strings.ReplaceAll(line, ".", "")
		g.add(Record{Name: "python_abi", Version: line, Build: "2_" + tag, BuildNumber: 2, Constrains: []string{"python " + line + ".*"}})
		for range 1 + g.IntN(2) {
			v := fmt.Sprintf("%s.%d", line, g.IntN(15))
			if slices.Contains(vs, v) {
				continue
			}
			vs = append(vs, v)
			needs := g.requirements(2)
			for n := range 1 + g.IntN(2) {
				g.add(Record{Name: "python", Version: v, Build: g.hash("", n) + "_cpython", BuildNumber: n, Depends: needs, Constrains: []string{"python_abi " + line + ".* *_" + tag}})
			}
		}
	}
	g.define("python", vs)
}

// module adds packages that are built for each python.
func (g *generator) module(name string) {
	vs := g.release()
	lines := strings.Fields(pythons)
	for _, v := range vs {
		needs, number := g.requirements(3), g.IntN(2)
		for i, line := range lines[g.IntN(3):] {
			tag := strings.ReplaceAll(line, ".", "")
			r := Record{Name: name, Version: v, Build: g.hash("py"+tag, number), BuildNumber: number, Constrains: g.constraints()}
			r.Depends = append(slices.Clone(needs), fmt.Sprintf("python >=%s,<3.%d.0a0", line, 9+slices.Index(lines, line)))
			if i%2 == 0 {
				r.Depends = append(r.Depends, "python_abi "+line+".* *_cp"+tag)
			}
			g.add(r)
		}
	}
	g.define(name, vs)
}

func (g *generator) noarch(name string) {
	vs := g.release()
	for n, v := range vs {
		g.add(Record{Name: name, Version: v, Build: "pyhd8ed1ab_" + fmt.Sprint(n%2), BuildNumber: n % 2, Noarch: []byte(`"python"`), Depends: append(g.requirements(3), g.pick("python", "python >=3.8", "python >=3.9", "python >=3.10,<3.13")), Constrains: g.constraints()})
	}
	g.define(name, vs)
}

// requests returns the specs of a user, for records of an index: usually a name, else any form that a
// command line or an environment file has.
func requests(r *rand.Rand, records []*Record) (out []string) {
	pick := func(list ...string) string { return list[r.IntN(len(list))] }
	var names []string
	for range 1 + r.IntN(4) {
		rec := records[r.IntN(len(records))]
		if slices.Contains(names, rec.Name) {
			continue
		}
		names = append(names, rec.Name)
		line, _, _ := strings.Cut(rec.Version, ".")
		switch n, v := rec.Name, rec.Version; r.IntN(20) {
		case 0, 1:
			out = append(out, n+pick("=", "==", ">=", "<=", "<", ">", "!=")+v)
		case 2:
			out = append(out, n+"="+line)
		case 3:
			out = append(out, n+"="+v+"="+rec.Build)
		case 4:
			out = append(out, n+" "+v+" "+rec.Build)
		case 5:
			out = append(out, fmt.Sprintf("%s[version='>=%s',build_number='<=%d']", n, v, rec.BuildNumber+1))
		case 6:
			out = append(out, n+" >="+v+",<"+line+".99")
		case 7:
			out = append(out, n+pick("[subdir=linux-64]", "[subdir=noarch]", "[build=*_0]", "[build_number=0]", " *", "=*=*_0", "=*=h*"))
		case 8:
			out = append(out, n+pick("~=", " ~=")+v+".0")
		default:
			out = append(out, n)
		}
	}
	return out
}
