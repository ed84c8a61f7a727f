package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"text/template"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"hpcc/front/containers"
	"hpcc/runtime"
	"hpcc/store"
	"hpcc/text"
)

// dockerCommand does what docker does and other commands of hpcc do not.
func dockerCommand() *cli.Command {
	return &cli.Command{
		Name: "docker", Hidden: true, Usage: "list images and end containers as docker does (started by docker)", ArgsUsage: "OPERATION [ARG...]",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "quiet", Usage: "print only IDs"},
			&cli.BoolFlag{Name: "no-trunc", Usage: "print complete IDs"}, &cli.BoolFlag{Name: "digests", Usage: "print digests"},
			&cli.StringFlag{Name: "format", Usage: "print with Go template `FORMAT`, or json"}, &cli.StringSliceFlag{Name: "filter", Usage: "print only what matches `NAME=VALUE`"},
			&cli.BoolFlag{Name: "force", Usage: "do not report what is missing"}, &cli.StringFlag{Name: "signal", Usage: "send signal `NAME`"},
			&cli.IntFlag{Name: "time", Value: 10, Usage: "wait `SECONDS` before SIGKILL"}, storeFlag(),
		},
		Action: action(parseDocker),
	}
}

// dockerArgs is a command line of "hpcc docker".
type dockerArgs struct {
	operation                   string
	args                        []string
	quiet, full, digests, force bool
	format, signal, store       string
	filters                     []string
	wait                        time.Duration
}

func parseDocker(c *cli.Context) (*dockerArgs, error) {
	if c.NArg() == 0 {
		return nil, text.Usagef("docker needs an operation").Hint("use docker: hpcc install-fronts DIR")
	}
	return &dockerArgs{
		operation: c.Args().First(), args: c.Args().Tail(), quiet: c.Bool("quiet"), full: c.Bool("no-trunc"), digests: c.Bool("digests"), force: c.Bool("force"),
		format: c.String("format"), signal: c.String("signal"), store: c.String("store"), filters: c.StringSlice("filter"), wait: time.Duration(c.Int("time")) * time.Second,
	}, nil
}

func (a *dockerArgs) run(ctx context.Context) error {
	do := map[string]func(*dockerArgs, context.Context) error{
		"images": (*dockerArgs).images, "inspect": (*dockerArgs).inspect, "rmi": (*dockerArgs).rmi,
		"version": (*dockerArgs).version, "kill": (*dockerArgs).kill, "stop": (*dockerArgs).stop,
	}[a.operation]
	if do == nil {
		return text.Usagef("%q is not an operation", a.operation)
	}
	if a.operation == "version" && len(a.args) != 1 {
		return text.Usagef("version needs the version of docker")
	}
	return do(a, ctx)
}

// A dockerTable prints rows as docker does: in columns, or each with the template of --format.
type dockerTable struct {
	columns []string            // fields in the order of the columns
	titles  map[string]string   // of the fields, if not their names in capitals
	rows    []map[string]string // by field
}

// print prints the rows in the format of --format, or those columns.
func (t *dockerTable) print(w io.Writer, format string) error {
	columns, isTable := strings.CutPrefix(format, "table ")
	title := func(field string) string {
		if s := t.titles[field]; s != "" {
			return s
		}
		return strings.ToUpper(field)
	}
	if format == "" || format == "table" {
		isTable, columns = true, "{{."+strings.Join(t.columns, "}}\t{{.")+"}}"
	}
	if !isTable {
		for _, row := range t.rows {
			if err := printDockerFormat(w, format, row); err != nil {
				return err
			}
		}
		return nil
	}
	tw := tabwriter.NewWriter(w, 10, 1, 3, ' ', 0)
	head := map[string]string{}
	for _, row := range t.rows {
		for field := range row {
			head[field] = title(field)
		}
	}
	for _, field := range t.columns {
		head[field] = title(field)
	}
	for _, row := range append([]map[string]string{head}, t.rows...) {
		if err := printDockerFormat(tw, strings.ReplaceAll(columns, `\t`, "\t"), row); err != nil {
			return err
		}
	}
	return tw.Flush()
}

// printDockerFormat prints a value with a Go template, or as JSON.
func printDockerFormat(w io.Writer, format string, value any) error {
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
		"lower": strings.ToLower, "upper": strings.ToUpper, "println": fmt.Sprintln, "truncate": func(s string, n int) string { return s[:min(len(s), max(n, 0))] },
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

// repositoryAndTag returns the parts of an image's name in the store. Names that package front
// invents for images without a name are "<none>".
func repositoryAndTag(name string) (repository, tag string) {
	if random, ok := strings.CutPrefix(name, "docker/"); ok && len(random) == 16 && strings.Trim(random, "0123456789abcdef") == "" {
		return "<none>", "<none>"
	}
	if repository, _, ok := strings.Cut(name, "@"); ok {
		return repository, "<none>"
	}
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i], name[i+1:]
	}
	return name, "latest"
}

// entries returns the images of the store that can be read.
func (a *dockerArgs) entries() (*store.Store, []store.Entry, error) {
	s, err := store.OpenToRead(a.store)
	if err != nil {
		return nil, nil, err
	}
	list, err := s.Images()
	return s, slices.DeleteFunc(list, func(e store.Entry) bool { return e.Problem != nil }), err
}

func (a *dockerArgs) images(context.Context) error {
	_, list, err := a.entries()
	if err != nil {
		return err
	}
	list, err = a.matching(list)
	if err != nil {
		return err
	}
	t := &dockerTable{columns: []string{"Repository", "Tag", "ID", "CreatedSince", "Size"}, titles: map[string]string{"ID": "IMAGE ID", "CreatedSince": "CREATED", "CreatedAt": "CREATED AT"}}
	if a.digests {
		t.columns = slices.Insert(t.columns, 2, "Digest")
	}
	for _, e := range list {
		repository, tag := repositoryAndTag(e.Name)
		id := e.Digest.Hex[:12]
		if a.full {
			id = e.Digest.String()
		}
		t.rows = append(t.rows, map[string]string{"Repository": repository, "Tag": tag, "ID": id, "Digest": e.Digest.String(), "CreatedSince": since(e.Created), "CreatedAt": e.Created.Local().Format("2006-01-02 15:04:05 -0700 MST"),
			"Size": strings.ReplaceAll(text.Size(e.Size), " ", ""), "Containers": "N/A", "SharedSize": "N/A", "UniqueSize": "N/A", "VirtualSize": strings.ReplaceAll(text.Size(e.Size), " ", "")})
	}
	if a.quiet {
		a.format = "{{.ID}}"
	}
	return t.print(os.Stdout, a.format)
}

// since returns the age of something in docker's words.
func since(t time.Time) string {
	d := time.Since(t)
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"year", 365 * 24 * time.Hour}, {"month", 30 * 24 * time.Hour}, {"week", 7 * 24 * time.Hour}, {"day", 24 * time.Hour}, {"hour", time.Hour}, {"minute", time.Minute}, {"second", time.Second}} {
		if n := int(d / u.d); n > 0 {
			return text.Count(n, u.name, u.name+"s") + " ago"
		}
	}
	return "Less than a second ago"
}

// matching returns the images that the argument and the filters select.
func (a *dockerArgs) matching(list []store.Entry) ([]store.Entry, error) {
	patterns := slices.Clone(a.args)
	dangling := ""
	for _, f := range a.filters {
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
		if isDangling := repository == "<none>"; dangling != "" && isDangling != (dangling == "true" || dangling == "1") {
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

func (a *dockerArgs) inspect(context.Context) error {
	s, list, err := a.entries()
	if err != nil {
		return err
	}
	all := []any{}
	var missing []error
	for _, name := range a.args {
		about, err := describeForDocker(s, list, name)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		if a.format != "" {
			if err := printDockerFormat(os.Stdout, a.format, about); err != nil {
				return err
			}
		}
		all = append(all, about)
	}
	if a.format == "" {
		enc := json.NewEncoder(os.Stdout)
		enc.SetIndent("", "    ")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(all); err != nil {
			return err
		}
	}
	return errors.Join(missing...)
}

// describeForDocker returns the description of an image that "docker inspect" prints. list are the images
// of the store.
func describeForDocker(s *store.Store, list []store.Entry, name string) (any, error) {
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
		if repository, tag := repositoryAndTag(e.Name); e.Digest == id && repository != "<none>" {
			if tag != "<none>" {
				tags = append(tags, repository+":"+tag)
			}
			if d := repository + "@" + id.String(); !slices.Contains(digests, d) {
				digests = append(digests, d)
			}
		}
	}
	about := map[string]any{
		"Id": id.String(), "RepoTags": tags, "RepoDigests": digests, "Parent": "", "Comment": "", "Created": c.Created.UTC().Format(time.RFC3339Nano), "Author": c.Author,
		"Architecture": c.Architecture, "Variant": c.Variant, "Os": c.OS, "Size": total, "VirtualSize": total, "RootFS": map[string]any{"Type": "layers", "Layers": c.RootFS.DiffIDs},
		"Config": dockerConfig(c.Config), "GraphDriver": map[string]any{"Name": "hpcc", "Data": nil}, "Metadata": map[string]any{"LastTagTime": "0001-01-01T00:00:00Z"},
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

// dockerConfig returns an image's configuration with the fields that docker always prints.
func dockerConfig(c v1.Config) map[string]any {
	type object = map[string]any
	config := object{}
	if b, err := json.Marshal(c); err == nil {
		_ = json.Unmarshal(b, &config)
	}
	for name, empty := range map[string]any{"Hostname": "", "Domainname": "", "User": "", "ExposedPorts": object{}, "Env": []any{}, "Cmd": []any{}, "Image": "", "Volumes": object{}, "WorkingDir": "", "Entrypoint": []any{}, "OnBuild": []any{}, "Labels": object{}} {
		if _, ok := config[name]; !ok {
			config[name] = empty
		}
	}
	return config
}

func (a *dockerArgs) rmi(context.Context) error {
	s, list, err := a.entries()
	if err != nil {
		return err
	}
	var all []error
	for _, arg := range a.args {
		names := []string{arg}
		if _, err := s.Digest(arg); err == nil && !isStoreName(list, arg) { // an ID
			names = nil
			id, _ := s.Digest(arg)
			for _, e := range list {
				if e.Digest == id {
					names = append(names, e.Name)
				}
			}
			if len(names) > 1 && !a.force {
				all = append(all, text.Hint(fmt.Errorf("image %.12s has %d names", id.Hex, len(names)), "remove them by name, or all of them with --force"))
				continue
			}
		}
		for _, n := range names {
			err := s.Remove(n)
			if missing := new(store.NotFoundError); errors.As(err, &missing) && a.force {
				continue
			}
			if err != nil {
				all = append(all, err)
				continue
			}
			repository, tag := repositoryAndTag(n)
			fmt.Printf("Untagged: %s:%s\n", repository, tag)
		}
	}
	return errors.Join(all...)
}

// isStoreName reports whether a name is one of the images.
func isStoreName(list []store.Entry, name string) bool {
	key, err := store.Canonical(name)
	return err == nil && slices.ContainsFunc(list, func(e store.Entry) bool { return e.Name == key })
}

func (a *dockerArgs) version(context.Context) error {
	side := map[string]any{"Version": a.args[0], "ApiVersion": "1.47", "MinAPIVersion": "1.24", "GitCommit": version, "GoVersion": goruntime.Version(), "Os": "linux", "Arch": goruntime.GOARCH, "Experimental": false,
		"Platform": map[string]any{"Name": "hpcc"}, "KernelVersion": kernelRelease()}
	if a.format != "" {
		return printDockerFormat(os.Stdout, a.format, map[string]any{"Client": side, "Server": side})
	}
	_, err := fmt.Printf("Client: hpcc\n Version:           %s\n API version:       1.47\n OS/Arch:           linux/%s\n\nServer: none, hpcc runs containers itself\n Version:           %s\n", a.args[0], goruntime.GOARCH, a.args[0])
	return err
}

// kernelRelease returns the release of the kernel.
func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// eachContainer does something with each container of the command line and prints its name.
func (a *dockerArgs) eachContainer(do func(c containers.Container) error) error {
	var all []error
	for _, name := range a.args {
		c, err := containers.Find(name)
		if err == nil {
			err = do(c)
		}
		if err != nil {
			all = append(all, err)
			continue
		}
		fmt.Println(name)
	}
	return errors.Join(all...)
}

// signalOr returns the signal of --signal, or usual without one.
func (a *dockerArgs) signalOr(usual syscall.Signal) (syscall.Signal, error) {
	if a.signal == "" {
		return usual, nil
	}
	var n int
	if _, err := fmt.Sscanf(a.signal, "%d", &n); err == nil && n > 0 && n < 65 {
		return syscall.Signal(n), nil
	}
	if s := unix.SignalNum("SIG" + strings.TrimPrefix(strings.ToUpper(a.signal), "SIG")); s != 0 {
		return s, nil
	}
	return 0, text.Usagef("--signal %q is not a signal", a.signal).Hint("write a name such as TERM")
}

func (a *dockerArgs) kill(context.Context) error {
	s, err := a.signalOr(syscall.SIGKILL)
	if err != nil {
		return err
	}
	return a.eachContainer(func(c containers.Container) error { return c.Signal(s) })
}

func (a *dockerArgs) stop(context.Context) error {
	s, err := a.signalOr(syscall.SIGTERM)
	if err != nil {
		return err
	}
	return a.eachContainer(func(c containers.Container) error { return c.Stop(s, a.wait) })
}

// dockerRun describes the container of "docker run", which the flags of "hpcc run" do not.
type dockerRun struct {
	id      string // "" for other runs; package containers finds the process by it
	name    string
	cidFile string
	want    string // platform that the image must have, or ""
}

// dockerRunFlags are the hidden flags of "hpcc run" that package front uses for docker.
func dockerRunFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "docker-id", Hidden: true, Usage: "run the program as docker does, in container `ID`"},
		&cli.StringFlag{Name: "docker-name", Hidden: true, Usage: "with --docker-id: `NAME` of the container"},
		&cli.StringFlag{Name: "docker-user", Hidden: true, Usage: "with --docker-id: run as `USER` of the image"},
		&cli.StringFlag{Name: "docker-cidfile", Hidden: true, Usage: "with --docker-id: write the ID to new `FILE`"},
		&cli.StringSliceFlag{Name: "docker-ulimit", Hidden: true, Usage: "with --docker-id: set limit `NAME=SOFT:HARD`"},
		&cli.StringFlag{Name: "docker-platform", Hidden: true, Usage: "with --docker-id: fail if the image is not for `OS/ARCH`"},
	}
}

// parseDockerRun reads these flags, and completes the options of the runtime.
func parseDockerRun(c *cli.Context, o *runtime.Options) (dockerRun, error) {
	d := dockerRun{id: c.String("docker-id"), name: c.String("docker-name"), cidFile: c.String("docker-cidfile"), want: c.String("docker-platform")}
	if d.id == "" {
		return d, nil
	}
	o.Docker, o.User = true, c.String("docker-user")
	for _, l := range c.StringSlice("docker-ulimit") {
		name, values, _ := strings.Cut(l, "=")
		limit := specs.POSIXRlimit{Type: "RLIMIT_" + strings.ToUpper(name)}
		if _, err := fmt.Sscanf(values, "%d:%d", &limit.Soft, &limit.Hard); err != nil {
			return d, text.Usagef("--docker-ulimit %s: not NAME=SOFT:HARD", l)
		}
		o.Limits = append(o.Limits, limit)
	}
	return d, nil
}

// check refuses an image of another platform than the requested one, and a name that a running
// container has. It writes the file with the container's ID.
func (d *dockerRun) check(architecture string) error {
	if d.id == "" {
		return nil
	}
	if p, err := v1.ParsePlatform(d.want); d.want != "" && (err != nil || p.Architecture != architecture) {
		return text.Usagef("the image is for linux/%s, not %s", architecture, d.want).Hint("docker pull --platform %s IMAGE", d.want)
	}
	if d.name != "" {
		list, _ := containers.List()
		for _, c := range list {
			if c.Name == d.name && c.ID != d.id { // the list has this run as well
				return text.Usagef("container %.12s has the name %s", c.ID, d.name).Hint("docker stop %s, or choose another name", d.name)
			}
		}
	}
	if d.cidFile == "" {
		return nil
	}
	f, err := os.OpenFile(d.cidFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("writing the container's ID: %w", err)
	}
	_, err = f.WriteString(d.id)
	return errors.Join(err, f.Close())
}
