package front

import (
	"maps"
	"slices"
	"strings"
	"sync"
)

// dockerVersion is the version of Docker whose command line this package reads. Tools compare it.
const dockerVersion = "27.5.1+hpcc"

// A docker is a command line of docker.
type docker struct {
	*commandLine
	table *dockerVerb
}

// A dockerVerb is a subcommand of docker with its options. An option is written as in "-t,--tag".
type dockerVerb struct {
	read          func(d *docker, args []string) (*Request, error)
	values, flags string
	refused       map[string][2]string // reason and advice for options that are not supported
	min, max      int                  // number of arguments
	usage         string               // of the arguments
	inOrder       bool                 // options precede the first argument
}

// dockerVerbs are the subcommands that hpcc executes.
var dockerVerbs = sync.OnceValue(func() map[string]*dockerVerb {
	return map[string]*dockerVerb{
		"run":   {read: (*docker).run, values: dockerRunValues, flags: dockerRunFlags, refused: refusedDockerRun, min: 1, max: 1 << 20, usage: "IMAGE [COMMAND] [ARG...]", inOrder: true},
		"build": {read: (*docker).build, values: dockerBuildValues, flags: dockerBuildFlags, refused: refusedDockerBuild, min: 1, max: 1, usage: "[OPTIONS] PATH | URL | -"},
		"pull": {read: (*docker).pull, values: "--platform", flags: "-q,--quiet -a,--all-tags --disable-content-trust", min: 1, max: 1, usage: "NAME[:TAG|@DIGEST]",
			refused: map[string][2]string{"--all-tags": {"hpcc pulls single images", "name the tags"}}},
		"push": {read: (*docker).push, values: "--platform", flags: "-q,--quiet -a,--all-tags --disable-content-trust", min: 1, max: 1, usage: "NAME[:TAG]",
			refused: map[string][2]string{"--all-tags": {"hpcc pushes single images", "name the tags"}, "--platform": {"hpcc pushes all platforms of an image", "leave it out"}}},
		"tag": {read: (*docker).tag, min: 2, max: 2, usage: "SOURCE_IMAGE[:TAG] TARGET_IMAGE[:TAG]"},
		"images": {read: (*docker).own, values: "-f,--filter --format", flags: "-a,--all -q,--quiet --no-trunc --digests --tree", max: 1, usage: "[REPOSITORY[:TAG]]",
			refused: map[string][2]string{"--tree": {"hpcc prints a table", "hpcc inspect NAME shows the parts of an image"}}},
		"inspect": {read: (*docker).inspect, values: "-f,--format --type --platform", flags: "-s,--size", min: 1, max: 1000, usage: "IMAGE...",
			refused: map[string][2]string{"--platform": {"hpcc shows the image of this machine's platform", "hpcc inspect --platform OS/ARCH NAME"}, "--size": {"hpcc keeps no containers, whose sizes it shows", "leave it out"}}},
		"rmi": {read: (*docker).own, values: "--platform", flags: "-f,--force --no-prune", min: 1, max: 1000, usage: "IMAGE...",
			refused: map[string][2]string{"--platform": {"hpcc removes images with all their platforms", "leave it out"}}},
		"history": {read: (*docker).history, values: "--format --platform", flags: "-H,--human --no-trunc -q,--quiet", min: 1, max: 1, usage: "IMAGE",
			refused: map[string][2]string{"--format": {"hpcc prints a table", "hpcc inspect NAME prints JSON"}, "--quiet": {"hpcc keeps no IDs of steps", "leave it out"}, "--platform": {"hpcc shows the image of this machine's platform", "leave it out"}}},
		"save": {read: (*docker).save, values: "-o,--output --platform", min: 1, max: 1, usage: "[-o FILE] IMAGE",
			refused: map[string][2]string{"--platform": {"a docker archive contains the image of this machine's platform", "hpcc save NAME FILE writes all platforms"}}},
		"load": {read: (*docker).load, values: "-i,--input --platform", flags: "-q,--quiet", usage: "[-i FILE]",
			refused: map[string][2]string{"--platform": {"hpcc loads all platforms of an archive", "leave it out"}}},
		"import": {read: (*docker).load, values: "-c,--change -m,--message --platform", min: 1, max: 2, usage: "FILE|- [NAME[:TAG]]",
			refused: map[string][2]string{"--change": {"hpcc keeps the files without a configuration", "build an image FROM the name, with these instructions"}, "--message": {"hpcc keeps no messages", "leave it out"}, "--platform": {"hpcc takes the files for those of this machine's platform", "build an image from scratch with hpcc build --platform"}}},
		"login":   {read: (*docker).login, values: "-u,--username -p,--password", flags: "--password-stdin", max: 1, usage: "-u NAME [SERVER]"},
		"version": {read: (*docker).about, values: "-f,--format"},
		"info":    {read: (*docker).about, values: "-f,--format"},
		"ps": {read: (*docker).own, values: "-f,--filter --format -n,--last", flags: "-a,--all -q,--quiet --no-trunc -l,--latest -s,--size",
			refused: map[string][2]string{"--last": noContainers, "--latest": noContainers, "--size": noContainers}},
		"stats":          {read: (*docker).own, values: "--format", flags: "-a,--all --no-stream --no-trunc", max: 1000, usage: "[CONTAINER...]"},
		"kill":           {read: (*docker).own, values: "-s,--signal", min: 1, max: 1000, usage: "CONTAINER..."},
		"stop":           {read: (*docker).own, values: "-s,--signal -t,--time,--timeout", min: 1, max: 1000, usage: "CONTAINER..."},
		"rm":             {read: (*docker).own, flags: "-f,--force -v,--volumes -l,--link", min: 1, max: 1000, usage: "CONTAINER...", refused: map[string][2]string{"--link": dockerNetworks}},
		"prune":          {read: (*docker).prune, values: "--filter --keep-storage --max-used-space --reserved-space --min-free-space", flags: "-a,--all -f,--force --volumes --verbose", refused: map[string][2]string{"--filter": {"hpcc deletes what no image needs", "leave it out"}}},
		"buildx version": {read: (*docker).buildxVersion},
	}
})

var (
	noContainers   = [2]string{"hpcc keeps no containers that have ended", "leave it out"}
	noServices     = [2]string{"hpcc has no daemon: a container runs as long as its command, and in its terminal", "hpcc submit --to local IMAGE -- CMD runs a program in the background; hpcc logs and hpcc cancel manage it"}
	endedAlready   = [2]string{"hpcc keeps no containers that have ended", "bind a directory for the results: docker run -v DIR:/results"}
	dockerNetworks = [2]string{"hpcc creates no networks: programs use that of the host", "start the programs with their own ports, and reach them at localhost"}
	noVolumes      = [2]string{"hpcc has no volumes with names", "make a directory, and bind it: docker run -v DIR:/data"}
	noSwarm        = [2]string{"hpcc runs containers on this machine", "hpcc submit runs them on a cluster"}
	noBuilders     = [2]string{"hpcc builds on this machine", "docker build needs no builder"}
)

// refusedDockerVerbs holds the reason and the advice for each subcommand that is not supported.
var refusedDockerVerbs = map[string][2]string{
	"exec": {"hpcc has no daemon that could start programs in a container", "start the program with the container: docker run IMAGE sh -c 'PROGRAM & ...'; hpcc attach enters a task of a job"},
	"logs": noServices, "attach": noServices, "create": noServices, "start": noServices, "restart": noServices, "wait": noServices,
	"pause": {"hpcc has no daemon", "kill -STOP PID"}, "unpause": {"hpcc has no daemon", "kill -CONT PID"}, "top": {"hpcc has no daemon", "ps -ef"},
	"cp": endedAlready, "export": endedAlready, "diff": endedAlready, "rename": endedAlready, "update": endedAlready, "port": dockerNetworks,
	"commit":  {"hpcc keeps no containers that have ended", "build the image with a Dockerfile; or hpcc unpack IMAGE DIR, hpcc run --write ./DIR, hpcc commit DIR NAME"},
	"compose": noServices, "network": dockerNetworks, "volume": noVolumes,
	"swarm": noSwarm, "stack": noSwarm, "service": noSwarm, "node": noSwarm, "secret": noSwarm, "config": noSwarm,
	"context":  {"hpcc uses no Docker daemon", "leave it out"},
	"plugin":   {"hpcc has no plugins", ""},
	"trust":    {"hpcc does not sign images", "name an image by its digest: NAME@sha256:..."},
	"manifest": {"hpcc builds images of several platforms itself", "hpcc build --platform linux/amd64,linux/arm64 -t NAME ."},
	"search":   {"hpcc does not search registries", ""}, "scout": {"hpcc does not search images for vulnerabilities", "hpcc build --sbom lists an image's packages"},
	"events": {"hpcc has no daemon that could report events", ""}, "checkpoint": {"hpcc does not checkpoint programs", "let the program write its own checkpoints"},
	"logout": {"hpcc does not change stored credentials", "remove the host from ~/.docker/config.json"},
	"bake":   {"hpcc builds one image at a time", "docker build -t NAME DIR for each image"},
	"model":  noServices, "mcp": noServices, "init": {"hpcc writes no Dockerfiles", ""},
}

// dockerAliases maps the longer names of subcommands to their short ones.
var dockerAliases = map[string]string{
	"image build": "build", "builder build": "build", "buildx build": "build", "buildx b": "build", "image history": "history", "image import": "import", "image inspect": "inspect",
	"image load": "load", "image ls": "images", "image list": "images", "image prune": "prune", "image pull": "pull", "image push": "push", "image rm": "rmi", "image remove": "rmi",
	"image save": "save", "image tag": "tag", "container run": "run", "container ls": "ps", "container list": "ps", "container ps": "ps", "container kill": "kill",
	"container stop": "stop", "container rm": "rm", "container remove": "rm", "container stats": "stats", "container prune": "prune", "system info": "info", "system prune": "prune",
	"builder prune": "prune", "buildx prune": "prune", "buildx version": "buildx version",
}

// dockerHelp is the output of "docker --help".
const dockerHelp = `Usage: docker COMMAND ...

hpcc executes these commands of Docker, without a daemon: run, build, buildx build, pull, push, tag,
images, inspect, history, rmi, save, load, import, login, ps, stats, kill, stop, rm, version, info,
system prune. It refuses options whose meaning it cannot keep. The page of hpcc on Docker lists them.
`

// dockerGlobal are the options before the subcommand.
var dockerGlobal = &dockerVerb{
	values: "-H,--host -l,--log-level -c,--context --config --tlscacert --tlscert --tlskey", flags: "-D,--debug --tls --tlsverify -v,--version -h,--help",
	refused: map[string][2]string{"--host": {"hpcc uses no Docker daemon", "leave it out"}, "--tls": {"hpcc uses no Docker daemon", "leave it out"}, "--tlsverify": {"hpcc uses no Docker daemon", "leave it out"},
		"--tlscacert": {"hpcc uses no Docker daemon", "leave it out"}, "--tlscert": {"hpcc uses no Docker daemon", "leave it out"}, "--tlskey": {"hpcc uses no Docker daemon", "leave it out"}},
}

// readDocker reads a command line of docker.
func readDocker(args, environ []string) (*Request, error) {
	line, err := newCommandLine("docker", environ)
	if err != nil {
		return nil, err
	}
	d := &docker{commandLine: line}
	d.version = "Docker " + strings.TrimSuffix(dockerVersion, "+hpcc")
	before, rest, err := d.parse(dockerGlobal, arguments(args), true)
	if err != nil {
		return nil, err
	}
	rest = append(before, rest...)
	config := d.last("--config")
	switch context := d.last("--context"); {
	case d.on["--version"] != "":
		return &Request{Output: "Docker version " + dockerVersion + ", build hpcc\n"}, nil
	case len(rest) == 0 || d.on["--help"] != "" || rest[0] == "help":
		return &Request{Output: dockerHelp}, nil
	case context != "" && context != "default":
		return nil, refusal("docker", d.text["--context"], "hpcc uses no Docker daemon", "leave it out")
	}
	r, err := d.subcommand(rest)
	if err == nil && config != "" {
		r.Env = append(r.Env, "DOCKER_CONFIG="+d.absolute(config))
	}
	return r, err
}

// subcommand reads a command line from the name of the subcommand.
func (d *docker) subcommand(args []string) (*Request, error) {
	verb, args := args[0], args[1:]
	isGroup := slices.ContainsFunc(slices.Collect(maps.Keys(dockerAliases)), func(name string) bool { return strings.HasPrefix(name, verb+" ") })
	if isGroup {
		if len(args) == 0 || args[0] == "--help" {
			return &Request{Output: dockerHelp}, nil
		}
		sub := args[0]
		args = args[1:]
		if short := dockerAliases[verb+" "+sub]; short != "" {
			verb = short
		} else if sub != "bake" && (verb == "buildx" || verb == "builder") {
			return nil, refusal("docker", verb+" "+sub, noBuilders[0], noBuilders[1])
		} else if why, ok := refusedDockerVerbs[sub]; ok {
			return nil, refusal("docker", verb+" "+sub, why[0], why[1])
		} else {
			verb += " " + sub
		}
	}
	why, refused := refusedDockerVerbs[verb]
	t := dockerVerbs()[verb]
	switch {
	case refused:
		return nil, refusal("docker", verb, why[0], why[1])
	case t == nil:
		return nil, refusal("docker", verb, "hpcc does not have this command of Docker", spelling(verb, maps.Keys(dockerVerbs()), "docker --help lists the commands"))
	}
	clear(d.on)
	clear(d.values)
	d.verb, d.program, d.table = verb, "docker "+verb, t
	rest, more, err := d.parse(t, arguments(args), t.inOrder)
	if err != nil {
		return nil, err
	}
	rest = append(rest, more...)
	switch {
	case d.on["--help"] != "":
		return &Request{Output: "Usage: docker " + strings.TrimSpace(verb+" "+t.usage) + "\n\nhpcc executes the command. It keeps the meaning of an option or refuses it with the reason.\n"}, nil
	case len(rest) < t.min || len(rest) > t.max:
		return nil, refusal(d.program, strings.Join(rest, " "), "wrong number of arguments", strings.TrimSpace(d.program+" "+t.usage))
	}
	return t.read(d, rest)
}

// parse reads the options of a subcommand. With inOrder, they end at the first argument, with which
// rest begins.
func (d *docker) parse(t *dockerVerb, args []Word, inOrder bool) (operands, rest []string, err error) {
	table, long := t.options()
	d.longName = func(name string) string { return long[name] }
	for len(args) > 0 && err == nil {
		switch {
		case IsOption(args[0]):
			args, err = d.option(table, args)
			continue
		case args[0].Text == "--":
			args, inOrder = args[1:], true
		}
		if inOrder {
			for _, w := range args {
				rest = append(rest, w.Text)
			}
			break
		}
		operands, args = append(operands, args[0].Text), args[1:]
	}
	if err == nil {
		err = d.refuse(t.refused)
	}
	return operands, rest, err
}

// options returns the table of a subcommand's options, and the long name of each.
func (t *dockerVerb) options() (table map[string]Role, long map[string]string) {
	table, long = map[string]Role{}, map[string]string{}
	for r, list := range map[Role]string{Value: t.values, Flag: t.flags + " --help"} {
		for names := range strings.FieldsSeq(list) {
			all := strings.Split(names, ",")
			i := max(slices.IndexFunc(all, func(n string) bool { return strings.HasPrefix(n, "--") }), 0)
			for _, n := range all {
				table[n], long[n] = r, all[i]
			}
		}
	}
	return table, long
}

// own returns the command "hpcc docker", which has the options of this subcommand.
func (d *docker) own(args []string) (*Request, error) {
	line := []string{"docker"}
	for _, name := range slices.Sorted(maps.Keys(d.values)) {
		for _, v := range d.values[name] {
			line = append(line, name+"="+v)
		}
	}
	line = append(append(line, slices.Sorted(maps.Keys(d.on))...), d.verb)
	line = append(line, args...)
	return &Request{Commands: []Command{{Args: line}}}, nil
}

// about is own for the subcommands that print the version of Docker.
func (d *docker) about([]string) (*Request, error) { return d.own([]string{dockerVersion}) }

// platform returns that of the command line or of the environment, or "".
func (d *docker) platform() string {
	if p := d.last("--platform"); p != "" {
		return p
	}
	return d.env("DOCKER_DEFAULT_PLATFORM")
}

// fetch returns the command that pulls an image.
func (d *docker) fetch(image string) Command {
	c := Command{Args: []string{"pull"}, Quiet: d.on["--quiet"] != ""}
	if p := d.platform(); p != "" {
		c.Args = append(c.Args, "--platform="+p)
	}
	c.Args = append(c.Args, image)
	return c
}

func (d *docker) pull(args []string) (*Request, error) {
	return &Request{Commands: []Command{d.fetch(args[0])}}, nil
}

func (d *docker) push(args []string) (*Request, error) {
	return &Request{Commands: []Command{{Args: []string{"push", args[0]}, Quiet: d.on["--quiet"] != ""}}}, nil
}

func (d *docker) tag(args []string) (*Request, error) {
	return &Request{Commands: []Command{{Args: []string{"tag", args[0], args[1]}}}}, nil
}

func (d *docker) history(args []string) (*Request, error) {
	return &Request{Commands: []Command{{Args: []string{"history", args[0]}}}}, nil
}

func (d *docker) inspect(args []string) (*Request, error) {
	if t := d.last("--type"); t != "" && t != "image" {
		return nil, refusal(d.program, d.text["--type"], "hpcc inspects images", "leave it out")
	}
	delete(d.values, "--type")
	return d.own(args)
}

func (d *docker) save(args []string) (*Request, error) {
	file := d.last("--output")
	if file == "" {
		file = "-"
	}
	d.values = nil
	return d.own([]string{args[0], file})
}

// load reads the arguments of load and import.
func (d *docker) load(args []string) (*Request, error) {
	if d.verb == "load" {
		file := d.last("--input")
		if file == "" {
			file = "-"
		}
		d.values = nil
		return d.own([]string{file})
	}
	if strings.Contains(args[0], "://") {
		return nil, refusal(d.program, args[0], "hpcc imports files", "curl -o FILE URL, and docker import FILE NAME")
	}
	if len(args) == 1 {
		args = append(args, storeName("docker", d.absolute(args[0])))
	}
	return &Request{Commands: []Command{{Args: []string{"load", args[0], args[1]}}}}, nil
}

func (d *docker) login(args []string) (*Request, error) {
	name, password := d.last("--username"), d.last("--password")
	if name == "" {
		return nil, refusal(d.program, "", "it needs the name of the user", "docker login -u NAME [SERVER]")
	}
	server := "docker.io"
	if len(args) > 0 {
		server = args[0]
	}
	c := Command{Args: []string{"login", "--username=" + name, server}}
	if password != "" {
		c.Stdin = password + "\n"
	}
	return &Request{Commands: []Command{c}}, nil
}

func (d *docker) prune([]string) (*Request, error) {
	return &Request{Commands: []Command{{Args: []string{"gc"}}}}, nil
}

func (d *docker) buildxVersion([]string) (*Request, error) {
	return &Request{Output: "github.com/docker/buildx v0.20.0+hpcc hpcc\n"}, nil
}
