package front

import (
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"hpcc/envfile"
	"hpcc/store/ready"
)

// charliecloudVersion is the version of Charliecloud whose command lines hpcc reads.
const charliecloudVersion = "0.39"

// Advice of refusals that several command lines share.
const (
	untrustedAdvice = "hpcc trusts the certificates in SSL_CERT_FILE; registries on this machine need no TLS"
)

// A chLine is a command line of Charliecloud. Its programs accept options after arguments, and
// unique prefixes of long options.
type chLine struct {
	program string
	options []Option
	before  []string // arguments up to "--"
	rest    []string // arguments after it
	ended   bool     // it has a "--"
	environ []string
}

// readCharliecloud parses the arguments of a program. Options are those of table.
func readCharliecloud(program string, table map[string]Role, args, environ []string) (*chLine, error) {
	l := &chLine{program: program, environ: environ}
	for w := arguments(args); len(w) > 0; {
		if w[0].Text == "--" {
			l.ended, l.rest = true, args[len(args)-len(w)+1:]
			break
		}
		if !IsOption(w[0]) {
			l.before = append(l.before, w[0].Text)
			w = w[1:]
			continue
		}
		full, err := l.unabbreviated(table, w[0].Text)
		if err != nil {
			return nil, err
		}
		w[0] = Word{Text: full, Source: full}
		found, rest, why := next(table, w)
		if why != "" {
			return nil, refusal(program, full, why,
				spelling(full, maps.Keys(table), "hpcc reads the options of Charliecloud "+charliecloudVersion))
		}
		for _, o := range found {
			if o.Role == Refused || o.Role == RefusedValue {
				return nil, refusal(program, o.Text, refusedByCharliecloud[o.Name][0], refusedByCharliecloud[o.Name][1])
			}
		}
		l.options, w = append(l.options, found...), rest
	}
	return l, nil
}

// unabbreviated completes the name of a long option, as getopt_long(3) does.
func (l *chLine) unabbreviated(table map[string]Role, arg string) (string, error) {
	name, value, glued := strings.Cut(arg, "=")
	if _, ok := table[name]; ok || !strings.HasPrefix(name, "--") {
		return arg, nil
	}
	var full []string
	for n := range table {
		if strings.HasPrefix(n, name) {
			full = append(full, n)
		}
	}
	switch {
	case len(full) > 1:
		slices.Sort(full)
		return "", refusal(l.program, arg, "it is ambiguous: "+strings.Join(full, ", "), "write the complete option")
	case len(full) == 1 && glued:
		return full[0] + "=" + value, nil
	case len(full) == 1:
		return full[0], nil
	}
	return arg, nil
}

// env returns a variable of the caller, or "".
func (l *chLine) env(name string) string { return envfile.Lookup(l.environ, name) }

// value returns the value of the last option with one of these names.
func (l *chLine) value(names ...string) (value string, ok bool) {
	for _, o := range l.options {
		if slices.Contains(names, o.Name) {
			value, ok = o.Value.Text, true
		}
	}
	return value, ok
}

func (l *chLine) has(names ...string) bool {
	_, ok := l.value(names...)
	return ok
}

// storage returns Charliecloud's storage directory, and the flags that select hpcc's store for it:
// the directory "hpcc" in it, or hpcc's usual store if the user did not choose a directory.
func (l *chLine) storage() (dir string, flags []string) {
	dir, ok := l.value("-s", "--storage")
	if !ok {
		dir = l.env("CH_IMAGE_STORAGE")
	}
	if dir != "" {
		return dir, []string{"--store", filepath.Join(dir, "hpcc")}
	}
	user := l.env("USER")
	if user == "" {
		user = l.env("LOGNAME")
	}
	return "/var/tmp/" + user + ".ch", nil
}

// idleCharliecloud maps options of programs without an observable effect to the reason; see idleRole.
var idleCharliecloud = map[string]map[string]string{
	"ch-run": {
		"-m,--mount=":  "only the container sees where hpcc mounts an image file",
		"-v,--verbose": "it concerns messages only",
		"--unsafe":     "hpcc runs an image of the storage directory by its path in any case",
		"--no-home":    "only --home binds the home directory",
	},
	"ch-image": {
		"-v,--verbose":      "it concerns messages only",
		"-q,--quiet":        "it concerns messages only",
		"--debug":           "it concerns messages only",
		"--always-download": "pull always asks the registry, and a file with its digest is the same file",
		"--auth":            "hpcc uses its credentials where the registry asks for them",
		"--password-many":   "hpcc asks for no passwords",
		"--cache-large=":    "the build cache keeps large files as well",
		"--no-lock":         "hpcc takes no lock",
		"--xattrs":          "hpcc keeps extended attributes in any case",
	},
	"ch-convert": {
		"-v,--verbose": "it concerns messages only",
		"-q,--quiet":   "it concerns messages only",
		"--tmp=":       "temporary files are next to the result",
		"--xattrs":     "hpcc keeps extended attributes in any case",
	},
}

// refusedByCharliecloud holds the reason and the advice for each option that is not supported.
var refusedByCharliecloud = map[string][2]string{
	"-q":              {"it sends the output of the program to /dev/null", "leave it out, and redirect the output with >/dev/null"},
	"--quiet":         {"it sends the output of the program to /dev/null", "leave it out, and redirect the output with >/dev/null"},
	"--ch-ssh":        {"Charliecloud has removed it", "leave it out"},
	"--test":          {"it runs tests of ch-run itself", "leave it out"},
	"--warnings":      {"it runs tests of ch-run itself", "leave it out"},
	"--break":         {"it starts the debugger of ch-image", "leave it out"},
	"--tls-no-verify": {"hpcc always verifies certificates", untrustedAdvice},
	"--force-cmd":     {"hpcc adds no arguments to commands: programs believe that they are root without them", "leave it out"},
	"--last-layer":    {"hpcc unpacks complete images", "leave it out"},
	"-b": {"hpcc binds no directory for all steps",
		"write RUN --mount=type=bind,from=NAME and --build-context NAME=DIR of hpcc build"},
	"--bind": {"hpcc binds no directory for all steps",
		"write RUN --mount=type=bind,from=NAME and --build-context NAME=DIR of hpcc build"},
	"--no-xattrs":   {"hpcc keeps extended attributes", "leave it out"},
	"--profile":     {"hpcc writes no profiles", "leave it out"},
	"--profile-out": {"hpcc writes no profiles", "leave it out"},
	"--image":       {"hpcc pushes images of its store", "hpcc commit DIR NAME, then push NAME"},
}

// CharliecloudName returns the name of an image in hpcc's spelling. Charliecloud also accepts the
// names of its directories, in which % is / and + is a colon.
func CharliecloudName(ref string) string { return strings.NewReplacer("%", "/", "+", ":").Replace(ref) }

// isSquashFS reports whether an image is a SquashFS file, whatever its name.
func isSquashFS(image string) bool { return ready.IsImageFile(image) || isRegular(image) }

// chRunTable is the table of ch-run's options, with those that only ch-run itself needs.
func chRunTable() map[string]Role {
	t := maps.Clone(Programs()["ch-run"].options)
	maps.Copy(t, optionTable(map[Role]string{
		Optional: "--set-env0", Value: "--feature", Flag: "-V --version -? --help --usage",
		Refused: "-q --quiet --ch-ssh", RefusedValue: "--warnings --test",
	}))
	return t
}

func readChRun(args, environ []string) (*Request, error) {
	table := chRunTable()
	l, err := readCharliecloud("ch-run", table, args, environ)
	if err != nil {
		return nil, err
	}
	if r, err := l.chRunInformation(); r != nil || err != nil {
		return r, err
	}
	command := slices.Concat(l.before, l.rest)
	if old := l.oldSetEnv(args); old != "" && l.ended && len(l.before) > 1 {
		i := slices.Index(l.before, old)
		command = slices.Concat(l.before[:i], l.before[i+1:], l.rest)
	}
	if len(command) < 2 {
		return nil, refusal("ch-run", strings.Join(args, " "), "it does not name an image and a command",
			"ch-run [OPTION...] IMAGE -- CMD [ARG...]")
	}
	image := command[0]
	run := []string{"run", "--ch-run", "--no-config", "--no-home", "--entrypoint="}
	options, err := l.chRunOptions(image, l.oldSetEnv(args))
	if err != nil {
		return nil, err
	}
	if _, store := l.storage(); !ready.IsPath(image) {
		run = append(run, store...)
	}
	run = append(run, (&imageSource{argument: image, isFile: isRegular(image)}).flags()...)
	return &Request{Commands: []Command{{Args: slices.Concat(run, options, []string{image, "--"}, command[1:])}}}, nil
}

// chRunInformation answers the options that run nothing. It returns nil for other command lines.
func (l *chLine) chRunInformation() (*Request, error) {
	feature, ok := l.value("--feature")
	switch {
	case l.has("-V", "--version"):
		return &Request{Output: charliecloudVersion + "\n"}, nil
	case l.has("-?", "--help", "--usage"):
		return &Request{Output: "Usage: ch-run [OPTION...] IMAGE -- CMD [ARG...]\n\nhpcc runs the container. It keeps the meaning of an option or refuses it with the reason.\n"}, nil
	case !ok:
		return nil, nil
	case slices.Contains([]string{"extglob", "seccomp", "squash", "overlayfs"}, feature):
		return &Request{}, nil
	}
	return nil, refusal("ch-run", "--feature "+feature, "hpcc does not have this feature", `"hpcc doctor" shows what this machine supports`)
}

// oldSetEnv returns the argument after a --set-env without value, which is its file in
// Charliecloud before 0.26, or "".
func (l *chLine) oldSetEnv(args []string) string {
	for i, a := range args[:len(args)-len(l.rest)] {
		if a == "--set-env" && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && l.ended && len(l.before) > 1 {
			return args[i+1]
		}
	}
	return ""
}

// chRunOptions translates the options of ch-run. old is the file of an old --set-env, or "".
func (l *chLine) chRunOptions(image, old string) ([]string, error) {
	fake, discards := l.value("-W", "--write-fake")
	home := l.has("--home")
	write := l.has("-w", "--write") && !discards && !isSquashFS(image) // a SquashFS file is read-only in any case
	if write && !ready.IsPath(image) {
		return nil, refusal("ch-run", "-w", "it cannot be used with the name of an image, because all runs share its files",
			"-W discards the changes; or ch-convert "+image+" DIR, then ch-run -w DIR")
	}
	var out []string
	switch {
	case write:
		out = append(out, "--write")
	case discards && fake != "":
		out = append(out, "--write-fake="+strings.TrimPrefix(fake, "="))
	case discards || home:
		out = append(out, "--write-fake")
	}
	if home {
		if l.env("HOME") == "" || l.env("USER") == "" {
			return nil, refusal("ch-run", "--home", "it needs the variables HOME and USER", "set them, or bind the directory with -b")
		}
		inside := "/home/" + l.env("USER")
		out = append(out, "--bind="+l.env("HOME")+":"+inside, "--env=HOME="+inside)
	}
	for _, o := range l.options {
		v := o.Value.Text
		switch o.Name {
		case "-b", "--bind":
			out = append(out, "--bind="+v)
		case "-c", "--cd":
			out = append(out, "--cd="+v)
		case "-u", "--uid":
			out = append(out, "--uid="+v)
		case "-g", "--gid":
			out = append(out, "--gid="+v)
		case "--set-env", "--set-env0":
			if v == "" && old != "" {
				v, old = old, ""
			}
			if v == "" && !strings.HasSuffix(o.Text, "=") {
				out = append(out, "--image-env")
			} else {
				out = append(out, o.Name+"="+v)
			}
		case "--unset-env", "--join-ct", "--join-pid", "--join-tag":
			out = append(out, o.Name+"="+v)
		case "--env-no-expand", "--no-passwd", "--seccomp":
			out = append(out, o.Name)
		case "-t", "--private-tmp":
			out = append(out, "--private-tmp")
		case "-j", "--join":
			out = append(out, "--join")
		}
	}
	return out, nil
}

// chImageTable is the table of ch-image's options, of all subcommands.
var chImageTable = optionTable(map[Role]string{
	Value:    "-a --arch -s --storage -t --tag -f --file --build-arg",
	Flag:     "--cache --no-cache --rebuild -h --help --version --dependencies -n --dry-run --parse-only -l --long -u --undeletable --gc --reset --tree --dot",
	Optional: "--force", Refused: "--tls-no-verify --no-xattrs --profile",
	RefusedValue: "--break --force-cmd --last-layer --image -b --bind --profile-out",
}, idleCharliecloud["ch-image"])

func readChImage(args, environ []string) (*Request, error) {
	l, err := readCharliecloud("ch-image", chImageTable, args, environ)
	if err != nil {
		return nil, err
	}
	operands := slices.Concat(l.before, l.rest)
	switch {
	case l.has("--version"):
		return &Request{Output: charliecloudVersion + "\n"}, nil
	case l.has("--dependencies"):
		return &Request{}, nil
	case len(operands) == 0 || l.has("-h", "--help"):
		return &Request{Output: "Usage: ch-image [OPTION...] SUBCOMMAND [ARG...]\n\nhpcc executes the subcommands. It keeps the meaning of an option or refuses it with the reason.\n"}, nil
	}
	c := &chImage{chLine: l, sub: operands[0], args: operands[1:]}
	c.program += " " + c.sub
	c.dir, c.store = l.storage()
	verbs := map[string]func() (*Request, error){
		"build": c.build, "pull": c.pull, "push": c.push, "list": c.list, "delete": c.delete, "import": c.importTree, "reset": c.reset,
		"storage-path": c.storagePath, "gestalt": c.gestalt, "build-cache": c.buildCache,
	}
	do := verbs[c.sub]
	if do == nil {
		advice := map[string]string{
			"undelete": "build or pull the image again: its layers are still in the store",
			"modify":   "hpcc unpack IMAGE DIR; hpcc run --write DIR; hpcc commit DIR NAME",
		}[c.sub]
		if advice == "" {
			advice = spelling(c.sub, maps.Keys(verbs), "check its spelling")
		}
		return nil, c.refuse("", "hpcc does not have this subcommand", advice)
	}
	return do()
}

// A chImage is a command line of ch-image.
type chImage struct {
	*chLine
	sub   string
	args  []string
	dir   string   // the storage directory
	store []string // flags of hpcc that select the store
}

func (c *chImage) refuse(text, why, advice string) error {
	return refusal(c.program, text, why, advice)
}

// count refuses a wrong number of arguments.
func (c *chImage) count(min, max int, usage string) error {
	if len(c.args) < min || len(c.args) > max {
		return c.refuse(strings.Join(c.args, " "), "wrong number of arguments", "ch-image "+c.sub+" "+usage)
	}
	return nil
}

// hpcc returns a command line of hpcc with the flags that select the store.
func (c *chImage) hpcc(verb string, args ...string) Command {
	return Command{Args: slices.Concat([]string{verb}, c.store, args)}
}

// storageDo returns the command that does something with the storage directory.
func (c *chImage) storageDo(operation string, args ...string) Command {
	return c.hpcc("charliecloud", slices.Concat([]string{operation, c.dir}, args)...)
}

// platform returns the flags for the architecture of --arch.
func (c *chImage) platform() ([]string, error) {
	switch arch, _ := c.value("-a", "--arch"); arch {
	case "", "host":
		return nil, nil
	case "yolo":
		return nil, c.refuse("--arch yolo", "hpcc chooses no architecture at random", "name one, such as --arch arm64")
	default:
		return []string{"--platform=linux/" + arch}, nil
	}
}

// credentials refuses those of the environment, which hpcc does not use.
func (c *chImage) credentials() error {
	if c.env("CH_IMAGE_USERNAME") != "" || c.env("CH_IMAGE_PASSWORD") != "" {
		return c.refuse("CH_IMAGE_USERNAME", "hpcc does not read credentials from this variable",
			"unset it; \"hpcc login HOST\" keeps the credentials for pull and push")
	}
	return nil
}

func (c *chImage) build() (*Request, error) {
	if err := c.count(1, 1, "[-t TAG] [-f DOCKERFILE] CONTEXT"); err != nil {
		return nil, err
	}
	args, err := c.platform()
	if err == nil {
		err = c.credentials()
	}
	if err != nil {
		return nil, err
	}
	if kind, _ := c.value("--force"); kind == "none" {
		return nil, c.refuse("--force=none", "programs of RUN are always root of a container", "leave it out")
	}
	file, _ := c.value("-f", "--file")
	tag, ok := c.value("-t", "--tag")
	if !ok {
		if tag, err = inferredTag(file, c.args[0]); err != nil {
			return nil, err
		}
	}
	cache := c.env("CH_IMAGE_CACHE")
	if c.has("--cache") {
		cache = "enabled"
	}
	if c.has("--no-cache", "--rebuild") || cache == "disabled" || cache == "rebuild" {
		args = append(args, "--no-cache")
	}
	if file != "" {
		args = append(args, "--file="+file)
	}
	for _, o := range c.options {
		if o.Name == "--build-arg" {
			args = append(args, "--build-arg="+o.Value.Text)
		}
	}
	if c.has("-n", "--dry-run", "--parse-only") {
		return &Request{Commands: []Command{c.hpcc("build", append(args, "--check", c.args[0])...)}}, nil
	}
	args = append(args, "--tag="+CharliecloudName(tag), c.args[0])
	return &Request{Commands: []Command{c.hpcc("build", args...), c.storageDo("link", tag)}}, nil
}

// inferredTag returns the name of an image that is built without -t, by the rules of ch-image.
func inferredTag(file, context string) (string, error) {
	base := filepath.Base(file)
	var name string
	switch ext := path.Ext(base); {
	case file != "" && strings.HasPrefix(base, "Dockerfile."):
		name = strings.TrimPrefix(base, "Dockerfile.")
	case file != "" && (ext == ".df" || ext == ".dockerfile"):
		name = strings.TrimSuffix(base, ext)
	default:
		dir, err := filepath.Abs(context)
		if err != nil {
			return "", fmt.Errorf("finding the directory of the context: %w", err)
		}
		name = filepath.Base(dir)
	}
	name = strings.Map(func(r rune) rune {
		if strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789_.-", r) {
			return r
		}
		return -1
	}, strings.ToLower(name))
	if name == "" {
		name = "root"
	}
	return name, nil
}

func (c *chImage) pull() (*Request, error) {
	err := c.count(1, 2, "SOURCE [DEST]")
	if err == nil {
		err = c.credentials()
	}
	if err != nil {
		return nil, err
	}
	if c.has("--parse-only") {
		return nil, c.refuse("--parse-only", "hpcc prints no parsed names", "leave it out")
	}
	args, err := c.platform()
	if err != nil {
		return nil, err
	}
	last := c.args[len(c.args)-1]
	for _, a := range c.args {
		args = append(args, CharliecloudName(a))
	}
	return &Request{Commands: []Command{c.hpcc("pull", args...), c.storageDo("link", last)}}, nil
}

func (c *chImage) push() (*Request, error) {
	err := c.count(1, 2, "SOURCE [DEST]")
	if err == nil {
		err = c.credentials()
	}
	if err != nil {
		return nil, err
	}
	var args []string
	for _, a := range c.args {
		args = append(args, CharliecloudName(a))
	}
	return &Request{Commands: []Command{c.hpcc("push", args...)}}, nil
}

func (c *chImage) list() (*Request, error) {
	if err := c.count(0, 1, "[IMAGE]"); err != nil {
		return nil, err
	}
	switch {
	case c.has("-l", "--long"):
		return nil, c.refuse("--long", "hpcc keeps other details of images", "hpcc images "+strings.Join(c.store, " "))
	case c.has("-u", "--undeletable"):
		return &Request{}, nil // hpcc keeps no deleted images
	case len(c.args) == 1:
		return &Request{Commands: []Command{c.storageDo("show", c.args[0])}}, nil
	}
	return &Request{Commands: []Command{c.hpcc("images", "--quiet")}}, nil
}

func (c *chImage) delete() (*Request, error) {
	if err := c.count(1, 1000, "IMAGE_GLOB..."); err != nil {
		return nil, err
	}
	return &Request{Commands: []Command{c.storageDo("delete", c.args...)}}, nil
}

func (c *chImage) importTree() (*Request, error) {
	if err := c.count(2, 2, "PATH IMAGE"); err != nil {
		return nil, err
	}
	return &Request{Commands: []Command{c.storageDo("import", c.args...)}}, nil
}

func (c *chImage) reset() (*Request, error) {
	if err := c.count(0, 0, ""); err != nil {
		return nil, err
	}
	return &Request{Commands: []Command{c.storageDo("reset")}}, nil
}

func (c *chImage) storagePath() (*Request, error) {
	return &Request{Output: c.dir + "\n"}, nil
}

func (c *chImage) gestalt() (*Request, error) {
	switch strings.Join(c.args, " ") {
	case "storage-path":
		return c.storagePath()
	case "bucache": // "has a build cache": the exit status is the answer
		return &Request{}, nil
	}
	return nil, c.refuse(strings.Join(c.args, " "), "hpcc does not have it", "ask for storage-path or bucache")
}

func (c *chImage) buildCache() (*Request, error) {
	switch {
	case c.has("--tree", "--dot"):
		return nil, c.refuse("--tree", "hpcc's build cache is not a tree", `"hpcc images" lists the images`)
	case c.has("--gc"):
		return &Request{Commands: []Command{c.hpcc("gc")}}, nil
	case c.has("--reset"):
		return &Request{Commands: []Command{c.hpcc("gc", "--age=0")}}, nil
	}
	return nil, c.refuse("", "hpcc keeps no statistics of its build cache", "hpcc gc --dry-run shows what can be deleted")
}
