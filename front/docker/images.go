package docker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/store"
	"hpcc/text"
)

// none is the name or tag of an image without one.
const none = "<none>"

// entries returns the images of the store that can be read.
func (c *Command) entries() (*store.Store, []store.Entry, error) {
	s, err := store.OpenToRead(c.Store)
	if err != nil {
		return nil, nil, err
	}
	list, err := s.Images()
	return s, slices.DeleteFunc(list, func(e store.Entry) bool { return e.Problem != nil }), err
}

// repositoryAndTag returns the parts of an image's name in the store. Names that package front
// invents for images without a name are "<none>".
func repositoryAndTag(name string) (repository, tag string) {
	if random, ok := strings.CutPrefix(name, "docker/"); ok && len(random) == 16 && strings.Trim(random, "0123456789abcdef") == "" {
		return none, none
	}
	if repository, _, ok := strings.Cut(name, "@"); ok {
		return repository, none
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:]
	}
	return name, "latest"
}

// titles are the titles of the columns of "docker images", by field.
var titles = map[string]string{
	"Repository": "REPOSITORY", "Tag": "TAG", "ID": "IMAGE ID", "Digest": "DIGEST", "CreatedSince": "CREATED",
	"CreatedAt": "CREATED AT", "Size": "SIZE", "Containers": "CONTAINERS", "SharedSize": "SHAREDSIZE",
	"UniqueSize": "UNIQUESIZE", "VirtualSize": "VIRTUALSIZE",
}

// images prints the images of the store in columns, or each with the template of --format.
func (c *Command) images(w io.Writer) error {
	_, list, err := c.entries()
	if err == nil {
		list, err = c.matching(list)
	}
	if err != nil {
		return err
	}
	var rows []map[string]string
	for _, e := range list {
		repository, tag := repositoryAndTag(e.Name)
		id, size := e.Digest.Hex[:12], strings.ReplaceAll(text.Size(e.Size), " ", "")
		if c.Full {
			id = e.Digest.String()
		}
		rows = append(rows, map[string]string{
			"Repository": repository, "Tag": tag, "ID": id, "Digest": e.Digest.String(),
			"CreatedSince": since(e.Created), "CreatedAt": e.Created.Local().Format("2006-01-02 15:04:05 -0700 MST"),
			"Size": size, "VirtualSize": size, "Containers": "N/A", "SharedSize": "N/A", "UniqueSize": "N/A",
		})
	}
	format := c.Format
	switch {
	case c.Quiet:
		format = "{{.ID}}"
	case (format == "" || format == "table") && c.Digests:
		format = `table {{.Repository}}\t{{.Tag}}\t{{.Digest}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}`
	case format == "" || format == "table":
		format = `table {{.Repository}}\t{{.Tag}}\t{{.ID}}\t{{.CreatedSince}}\t{{.Size}}`
	}
	columns, isTable := strings.CutPrefix(format, "table ")
	if !isTable {
		return printEach(w, format, rows)
	}
	tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
	if err := printEach(tw, strings.ReplaceAll(columns, `\t`, "\t"), append([]map[string]string{titles}, rows...)); err != nil {
		return err
	}
	return tw.Flush()
}

func printEach(w io.Writer, format string, rows []map[string]string) error {
	for _, row := range rows {
		if err := printFormat(w, format, row); err != nil {
			return err
		}
	}
	return nil
}

// since returns the age of something in docker's words.
func since(t time.Time) string {
	d := time.Since(t)
	for _, u := range []struct {
		name string
		d    time.Duration
	}{
		{"year", 365 * 24 * time.Hour}, {"month", 30 * 24 * time.Hour}, {"week", 7 * 24 * time.Hour}, {"day", 24 * time.Hour},
		{"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second},
	} {
		if n := int(d / u.d); n > 0 {
			return text.Count(n, u.name, u.name+"s") + " ago"
		}
	}
	return "Less than a second ago"
}

// matching returns the images that the arguments and the filters select.
func (c *Command) matching(list []store.Entry) ([]store.Entry, error) {
	patterns := slices.Clone(c.Args)
	dangling := ""
	for _, f := range c.Filters {
		name, value, _ := strings.Cut(f, "=")
		switch name {
		case "reference":
			patterns = append(patterns, value)
		case "dangling":
			dangling = value
		default:
			return nil, text.Usagef("--filter %s: hpcc does not have this filter", f).Hint("use reference=PATTERN, or grep")
		}
	}
	return slices.DeleteFunc(list, func(e store.Entry) bool {
		repository, tag := repositoryAndTag(e.Name)
		if dangling != "" && (repository == none) != (dangling == "true" || dangling == "1") {
			return true
		}
		return len(patterns) > 0 && !slices.ContainsFunc(patterns, func(p string) bool {
			p = strings.TrimPrefix(strings.TrimPrefix(p, "docker.io/"), "library/")
			full, _ := path.Match(p, repository+":"+tag)
			alone, _ := path.Match(p, repository)
			return full || alone
		})
	}), nil
}

// printFormat prints a value with a Go template, or as JSON.
func printFormat(w io.Writer, format string, value any) error {
	if format == "json" {
		format = "{{json .}}"
	}
	t, err := template.New("").Option("missingkey=error").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			var out bytes.Buffer
			enc := json.NewEncoder(&out)
			enc.SetEscapeHTML(false)
			err := enc.Encode(v)
			return strings.TrimSpace(out.String()), err
		},
		"split": strings.Split, "join": func(list []any, sep string) string {
			text := make([]string, len(list))
			for i, v := range list {
				text[i] = fmt.Sprint(v)
			}
			return strings.Join(text, sep)
		},
		"lower": strings.ToLower, "upper": strings.ToUpper, "println": fmt.Sprintln,
		"truncate": func(s string, n int) string { return s[:min(len(s), max(n, 0))] },
	}).Parse(format)
	if err != nil {
		return text.Usagef("--format: %s", strings.TrimPrefix(err.Error(), "template: :")).Hint("write a Go template, such as '{{.ID}}'")
	}
	var out bytes.Buffer
	if err := t.Execute(&out, value); err != nil {
		return text.Usagef("--format %s: %w", format, err).Hint("--format json prints all fields")
	}
	_, err = fmt.Fprintln(w, out.String())
	return err
}

func (c *Command) inspect(w io.Writer) error {
	s, list, err := c.entries()
	if err != nil {
		return err
	}
	all := []any{}
	var missing []error
	for _, name := range c.Args {
		about, err := describe(s, list, name)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		if c.Format != "" {
			if err := printFormat(w, c.Format, about); err != nil {
				return err
			}
		}
		all = append(all, about)
	}
	if c.Format == "" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "    ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(all); err != nil {
			return err
		}
	}
	return errors.Join(missing...)
}

// describe returns the description of an image that "docker inspect" prints, in the types of package
// json. list are the images of the store.
func describe(s *store.Store, list []store.Entry, name string) (any, error) {
	img, err := s.Get(name, nil)
	if err != nil {
		return nil, err
	}
	id, err := s.Digest(name)
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	m, err := img.Manifest()
	if err != nil {
		return nil, err
	}
	var total int64
	for _, l := range m.Layers {
		total += l.Size
	}
	tags, digests := []string{}, []string{}
	for _, e := range list {
		if repository, tag := repositoryAndTag(e.Name); e.Digest == id && repository != none {
			if tag != none {
				tags = append(tags, repository+":"+tag)
			}
			if d := repository + "@" + id.String(); !slices.Contains(digests, d) {
				digests = append(digests, d)
			}
		}
	}
	about := map[string]any{
		"Id": id.String(), "RepoTags": tags, "RepoDigests": digests, "Parent": "", "Comment": "", "Author": c.Author,
		"Created": c.Created.UTC().Format(time.RFC3339Nano), "Architecture": c.Architecture, "Variant": c.Variant, "Os": c.OS,
		"Size": total, "VirtualSize": total, "RootFS": map[string]any{"Type": "layers", "Layers": c.RootFS.DiffIDs},
		"Config":      fullConfig(c.Config),
		"GraphDriver": map[string]any{"Name": "hpcc", "Data": nil}, "Metadata": map[string]any{"LastTagTime": "0001-01-01T00:00:00Z"},
	}
	b, err := json.Marshal(about) // templates use the names of the JSON
	if err != nil {
		return nil, err
	}
	var plain any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber() // %v of a float64 is 1e+06
	err = d.Decode(&plain)
	return plain, err
}

// fullConfig returns an image's configuration with the fields that docker always prints.
func fullConfig(c v1.Config) map[string]any {
	type object = map[string]any
	config := object{
		"Hostname": "", "Domainname": "", "User": "", "ExposedPorts": object{}, "Env": []any{}, "Cmd": []any{}, "Image": "",
		"Volumes": object{}, "WorkingDir": "", "Entrypoint": []any{}, "OnBuild": []any{}, "Labels": object{},
	}
	if b, err := json.Marshal(c); err == nil {
		_ = json.Unmarshal(b, &config) // replaces what the image has
	}
	return config
}

func (c *Command) rmi(w io.Writer) error {
	s, list, err := c.entries()
	if err != nil {
		return err
	}
	var all []error
	for _, arg := range c.Args {
		names := []string{arg}
		if id, err := s.Digest(arg); err == nil && !isStoreName(list, arg) { // an ID
			names = nil
			for _, e := range list {
				if e.Digest == id {
					names = append(names, e.Name)
				}
			}
			if len(names) > 1 && !c.Force {
				all = append(all, text.Hint(fmt.Errorf("image %.12s has %d names", id.Hex, len(names)),
					"remove them by name, or all of them with --force"))
				continue
			}
		}
		for _, n := range names {
			err := s.Remove(n)
			if c.Force && errors.As(err, new(*store.NotFoundError)) {
				continue
			}
			if err != nil {
				all = append(all, err)
				continue
			}
			repository, tag := repositoryAndTag(n)
			fmt.Fprintf(w, "Untagged: %s:%s\n", repository, tag)
		}
	}
	return errors.Join(all...)
}

// isStoreName reports whether a name is one of the images.
func isStoreName(list []store.Entry, name string) bool {
	key, err := store.Canonical(name)
	return err == nil && slices.ContainsFunc(list, func(e store.Entry) bool { return e.Name == key })
}
