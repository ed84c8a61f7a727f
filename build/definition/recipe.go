package definition

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/text"
)

// A Recipe is a Dockerfile that builds the image of a definition file.
type Recipe struct {
	File   string // the definition file
	Source []byte // its content
	Text   []byte // the Dockerfile

	Contexts map[string]string // directories of the build, by name
	Archives map[string]string // files of local images to load, by the name of the image in the Dockerfile
	Prefix   []string          // programs to put in front of the image's entry point

	origins []origin // of the instructions, ordered by line
	lines   int      // of Text
}

// An origin is the part of the definition file from which an instruction was generated.
type origin struct{ at, first, last int }

// Origin returns the first and the last line of the definition file for a line of the Dockerfile,
// or 0.
func (x *Recipe) Origin(line int) (first, last int) {
	for _, o := range x.origins {
		if o.at <= line {
			first, last = o.first, o.last
		}
	}
	return first, last
}

// add appends an instruction.
func (x *Recipe) add(first, last int, format string, a ...any) {
	line := fmt.Sprintf(format, a...) + "\n"
	x.origins = append(x.origins, origin{x.lines + 1, first, last})
	x.Text, x.lines = append(x.Text, line...), x.lines+strings.Count(line, "\n")
}

// local returns the name in the Dockerfile of a local image: a directory, or a file to load.
func (x *Recipe) local(file string) string {
	to, name := x.Archives, fmt.Sprintf("local-image-%d", len(x.Archives)+len(x.Contexts))
	if fi, err := os.Stat(file); err == nil && fi.IsDir() {
		if _, err := os.Stat(filepath.Join(file, "oci-layout")); err != nil {
			to = x.Contexts
		}
	}
	to[name] = file
	return name
}

// context returns the name in the Dockerfile of a directory of the host.
func (x *Recipe) context(dir string) string {
	for name, d := range x.Contexts {
		if d == dir {
			return name
		}
	}
	name := fmt.Sprintf("files-%d", len(x.Contexts))
	x.Contexts[name] = dir
	return name
}

// absolute returns a path of the host.
func (r *reader) absolute(file string) string {
	if !filepath.IsAbs(file) {
		file = filepath.Join(r.options.Dir, file)
	}
	return filepath.Clean(file)
}

// stage adds the instructions of a stage.
func (r *reader) stage(x *Recipe, stages []stage, i int) error {
	s := &stages[i]
	if err := r.check(s); err != nil {
		return err
	}
	base, err := r.base(x, stages, i)
	if err != nil {
		return err
	}
	name := s.header["stage"]
	if name == "" {
		name = fmt.Sprintf("stage-%d", i+1)
	}
	if !isStageName(name) {
		return r.errorf(s.line, "%q is not the name of a stage; use letters, digits, - and _", text.Short(name))
	}
	x.add(s.line, s.line, "FROM %s AS %s", base, strings.ToLower(name))
	x.add(s.line, s.line, "USER root\nWORKDIR /")
	for _, f := range s.sections {
		if f.name == "files" {
			if err := r.files(x, stages[:i], &f, base == "scratch"); err != nil {
				return err
			}
		}
	}
	if p := r.one(s, "post"); p != nil && hasText(p.body) {
		program, err := r.interpreter(p, "/bin/sh -e")
		if err != nil {
			return err
		}
		prologue := "#!" + program + "\n"
		if name := path.Base(strings.Fields(program)[0]); slices.Contains([]string{"sh", "bash", "dash", "ash", "ksh", "zsh"}, name) {
			prologue += "mkdir -p /.singularity.d/env; export APPTAINER_ENVIRONMENT=/.singularity.d/env/91-environment.sh SINGULARITY_ENVIRONMENT=/.singularity.d/env/91-environment.sh SINGULARITY_ROOTFS=/ APPTAINER_ROOTFS=/; set -x\n"
		}
		x.document(p, "RUN <<'%s'", "", prologue+joined(p.body))
	}
	if i == len(stages)-1 {
		return r.metadata(x, s)
	}
	return nil
}

// isStageName reports whether a Dockerfile can have a stage of this name.
func isStageName(name string) bool {
	for i, c := range []byte(strings.ToLower(name)) {
		if (c < 'a' || c > 'z') && (i == 0 || !strings.ContainsRune("0123456789-_.", rune(c))) {
			return false
		}
	}
	return name != ""
}

// hasText reports whether a script is more than comments.
func hasText(body []string) bool {
	return slices.ContainsFunc(body, func(l string) bool { l = strings.TrimSpace(l); return l != "" && l[0] != '#' })
}

// joined returns the lines of a section without empty ones at its ends.
func joined(body []string) string { return strings.Trim(strings.Join(body, "\n"), "\n") + "\n" }

// document adds an instruction with a here-document. format has the delimiter, and then rest.
func (x *Recipe) document(s *section, format, rest, content string) {
	word := text.Delimiter("HPCC", content)
	head := fmt.Sprintf(format, word)
	x.add(s.line, s.line+len(s.body), "%s%s\n%s%s", head, rest, content, word)
}

// interpreter returns the program of a section %NAME -c PROGRAM.
func (r *reader) interpreter(s *section, usual string) (string, error) {
	if s.args == "" || strings.HasPrefix(s.args, "#") {
		return usual, nil
	}
	f := strings.Fields(s.args)
	if len(f) < 2 || f[0] != "-c" || !path.IsAbs(f[1]) {
		return "", r.errorf(s.line, "%q is not -c PROGRAM with an absolute path", text.Short(s.args))
	}
	return strings.Join(f[1:], " "), nil
}

// files adds the instructions of %files and %files from STAGE.
func (r *reader) files(x *Recipe, earlier []stage, s *section, isScratch bool) error {
	from := ""
	if f := strings.Fields(s.args); len(f) == 2 && f[0] == "from" {
		from = strings.ToLower(f[1])
		if !slices.ContainsFunc(earlier, func(e stage) bool { return strings.ToLower(e.header["stage"]) == from }) {
			return r.errorf(s.line, "no earlier stage is named %s", text.Short(f[1]))
		}
	} else if s.args != "" {
		return r.errorf(s.line, "%q is not from STAGE", text.Short(s.args))
	}
	if len(s.body) > maxEntries {
		return r.errorf(s.line, "more than %d lines", maxEntries)
	}
	for i, l := range s.body {
		line := s.line + 1 + i
		if l = strings.TrimSpace(l); l == "" || l[0] == '#' {
			continue
		}
		f, err := fields(l)
		if err != nil || len(f) > 2 {
			return r.errorf(line, "%q is not SOURCE [DESTINATION]", text.Short(l))
		}
		dst := f[0]
		if len(f) == 2 {
			dst = f[1]
		}
		if strings.HasSuffix(dst, "/") {
			dst = strings.TrimSuffix(path.Join("/", dst), "/") + "/"
		} else {
			dst = path.Join("/", dst)
		}
		if strings.ContainsAny(f[0]+dst, "\n\x00") {
			return r.errorf(line, "%q is not a path", text.Short(l))
		}
		if from != "" {
			x.copyStage(line, from, f[0], dst, isScratch)
			continue
		}
		if err := r.copyHost(x, line, f[0], dst, isScratch); err != nil {
			return err
		}
	}
	return nil
}

// fields splits a line at blanks outside double quotes.
func fields(l string) (out []string, err error) {
	list, err := text.Words(l, false)
	for _, w := range list {
		out = append(out, w.Text)
	}
	if err == nil && len(out) == 0 {
		err = fmt.Errorf("no path")
	}
	return out, err
}

// filesDir is the directory in which sources of %files are mounted while cp copies them.
const filesDir = "/.singularity.d/files"

// copyStage copies files of an earlier stage, with the patterns of the shell.
func (x *Recipe) copyStage(line int, stage, src, dst string, isScratch bool) {
	src = path.Join("/", src)
	if isScratch {
		x.add(line, line, "COPY --from=%s %s", stage, jsonList(src, dst))
		return
	}
	x.add(line, line, "RUN --mount=type=bind,from=%s,source=/,target=%s mkdir -p %s && cp -fLr %s %s",
		stage, filesDir, text.Quote(parent(dst)), filesDir+pattern(src), text.Quote(dst))
}

// parent returns the directory to create for a destination.
func parent(dst string) string {
	if strings.HasSuffix(dst, "/") {
		return path.Clean(dst)
	}
	return path.Dir(dst)
}

// pattern quotes a path for the shell, except for characters of patterns.
func pattern(s string) string {
	var b strings.Builder
	for _, c := range s {
		if strings.ContainsRune("*?[]/", c) {
			b.WriteRune(c)
		} else {
			b.WriteString(text.Quote(string(c)))
		}
	}
	return b.String()
}

// copyHost copies files of the host. It expands patterns here, because each source is mounted.
func (r *reader) copyHost(x *Recipe, line int, src, dst string, isScratch bool) error {
	found, err := matches(r.absolute(src))
	if err == nil && len(found) == 0 {
		err = fs.ErrNotExist
	}
	if err != nil {
		return r.errorf(line, "copying %s: %v; only the last part of a path can be a pattern", text.Short(src), err)
	}
	for _, file := range found {
		context, name := x.context(filepath.Dir(file)), filepath.Base(file)
		if isScratch {
			to := dst
			if fi, err := os.Stat(file); err == nil && fi.IsDir() && strings.HasSuffix(dst, "/") {
				to = path.Join(dst, name)
			}
			x.add(line, line, "COPY --from=%s %s", context, jsonList(name, to))
			continue
		}
		at, mount := path.Join(filesDir, name), "target="+filesDir
		if isPlain(name) { // other names cannot be in a flag, so all files of the directory are mounted
			mount = "source=" + name + ",target=" + at
		}
		x.add(line, line, "RUN --mount=type=bind,from=%s,%s mkdir -p %s && cp -fLr %s %s", context, mount,
			text.Quote(parent(dst)), text.Quote(at), text.Quote(dst))
	}
	return nil
}

// isPlain reports whether a file name has only letters, digits, dots, hyphens and underscores.
func isPlain(name string) bool {
	return strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == ""
}

// matches returns the files of a path whose last part is a pattern, unless a file has this name.
func matches(file string) (found []string, err error) {
	if _, err := os.Lstat(file); err == nil {
		return []string{file}, nil
	}
	d, err := os.Open(filepath.Dir(file))
	if err != nil {
		return nil, fs.ErrNotExist
	}
	defer d.Close()
	names, _ := d.Readdirnames(maxEntries + 1) // the error is io.EOF, or that of a file
	if len(names) > maxEntries {
		return nil, fmt.Errorf("%s has more than %d files", filepath.Dir(file), maxEntries)
	}
	slices.Sort(names)
	for _, name := range names {
		if ok, err := path.Match(filepath.Base(file), name); err != nil {
			return nil, err
		} else if ok {
			found = append(found, filepath.Join(filepath.Dir(file), name))
		}
	}
	return found, nil
}

// dollars protects a text from the expansion of variables in Dockerfiles.
func dollars(s string) string { return strings.NewReplacer(`\`, `\\`, "$", `\$`).Replace(s) }

// jsonList returns the arguments of an instruction in the form of JSON.
func jsonList(args ...string) string {
	for i := range args {
		args[i] = dollars(args[i])
	}
	b, _ := json.Marshal(args) // strings cannot fail
	return string(b)
}

// execAction sources the environment scripts and executes its arguments.
const execAction = `#!/bin/sh
for f in /.singularity.d/env/*.sh; do
	[ ! -f "$f" ] || . "$f"
done
[ $# -gt 0 ] || set -- /bin/sh
exec "$@"
`

// metadata adds the scripts, the labels and the definition file to the last stage.
func (r *reader) metadata(x *Recipe, s *stage) error {
	start := &section{line: s.line} // the first file also gives its mode to the directory
	file := func(from *section, mode, name, content string) {
		x.document(from, "COPY --chmod="+mode+" <<'%s' ", "/.singularity.d/"+name, content)
	}
	file(start, "755", "Singularity", strings.TrimRight(string(x.Source), "\n")+"\n")
	if e := r.one(s, "environment"); e != nil && hasText(e.body) {
		file(e, "755", "env/90-environment.sh", "#!/bin/sh\n"+joined(e.body))
		file(e, "755", "actions/exec", execAction)
		x.Prefix = []string{"/.singularity.d/actions/exec"}
	}
	for _, name := range []string{"runscript", "test"} {
		p := r.one(s, name)
		if p == nil || !hasText(p.body) {
			continue
		}
		program, err := r.interpreter(p, "/bin/sh")
		if err != nil {
			return err
		}
		content := joined(p.body)
		if !strings.HasPrefix(content, "#!") {
			content = "#!" + program + "\n\n" + content
		}
		file(p, "755", name, content)
		if name == "runscript" {
			x.add(p.line, p.line, "ENTRYPOINT [\"/.singularity.d/runscript\"]\nCMD []")
		} else if !r.options.NoTest {
			x.add(p.line, p.line+len(p.body), "RUN [\"/.singularity.d/test\"]")
		}
	}
	if h := r.one(s, "help"); h != nil && hasText(h.body) {
		file(h, "644", "runscript.help", joined(h.body))
	}
	return r.labels(x, s)
}

// labels adds the labels of an image.
func (r *reader) labels(x *Recipe, s *stage) error {
	l := r.one(s, "labels")
	if l == nil {
		return nil
	}
	all := map[string]string{}
	for i, line := range l.body {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		name, value, _ := strings.Cut(line, " ")
		if strings.ContainsAny(name, "\"'\\$=") {
			return r.errorf(l.line+1+i, "%q is not the name of a label", text.Short(name))
		}
		all[name] = strings.TrimSpace(value)
		x.add(l.line+1+i, l.line+1+i, "LABEL %s=\"%s\"", name, strings.NewReplacer(`\`, `\\`, `"`, `\"`, "$", `\$`).Replace(all[name]))
	}
	if len(all) > maxEntries {
		return r.errorf(l.line, "more than %d labels", maxEntries)
	}
	b, _ := json.MarshalIndent(all, "", "\t") // strings cannot fail
	x.document(l, "COPY --chmod=644 <<'%s' ", "/.singularity.d/labels.json", string(b)+"\n")
	return nil
}
