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
	idle          map[string]string    // the reason why an option needs no effect, by the keys of idleRole
	min, max      int                  // number of arguments
	usage         string               // of the arguments
	inOrder       bool                 // options precede the first argument
}

// dockerVerbs are the subcommands that hpcc executes.
var dockerVerbs = sync.OnceValue(func() map[string]*dockerVerb {
	return map[string]*dockerVerb{
		"run": {read: (*docker).run, values: dockerRunValues, flags: dockerRunFlags,
			refused: refusedDockerRun, idle: idleDockerRun, min: 1, max: 1 << 20, usage: "IMAGE [COMMAND] [ARG...]", inOrder: true},
		"build": {read: (*docker).build, values: dockerBuildValues, flags: dockerBuildFlags,
			refused: refusedDockerBuild, idle: idleDockerBuild, min: 1, max: 1, usage: "[OPTIONS] PATH | URL | -"},
		"pull": {read: (*docker).pull, values: "--platform", flags: "-q,--quiet -a,--all-tags --disable-content-trust",
			min: 1, max: 1, usage: "NAME[:TAG|@DIGEST]",
			refused: map[string][2]string{"--all-tags": {"hpcc pulls single images", "name the tags"}}},
		"push": {read: (*docker).push, values: "--platform", flags: "-q,--quiet -a,--all-tags --disable-content-trust",
			min: 1, max: 1, usage: "NAME[:TAG]",
			refused: map[string][2]string{"--all-tags": {"hpcc pushes single images", "name the tags"},
				"--platform": {"hpcc pushes all platforms of an image", "leave it out"}}},
		"tag": {read: (*docker).tag, min: 2, max: 2, usage: "SOURCE_IMAGE[:TAG] TARGET_IMAGE[:TAG]"},
		"images": {read: (*docker).own, values: "-f,--filter --format",
			flags: "-q,--quiet --no-trunc --digests --tree", max: 1,
			idle: map[string]string{"-a,--all": "hpcc keeps no images of single steps"}, usage: "[REPOSITORY[:TAG]]",
			refused: map[string][2]string{"--tree": {"hpcc prints a table", "hpcc inspect NAME shows the parts of an image"}}},
		"inspect": {read: (*docker).inspect, values: "-f,--format --type --platform", flags: "-s,--size",
			min: 1, max: 1000, usage: "IMAGE...",
			refused: map[string][2]string{"--platform": {"hpcc shows the image of this machine's platform",
				"hpcc inspect --platform OS/ARCH NAME"}, "--size": {"hpcc keeps no containers, whose sizes it shows", "leave it out"}}},
		"rmi": {read: (*docker).own, values: "--platform", flags: "-f,--force", min: 1, max: 1000,
			usage: "IMAGE...", idle: map[string]string{"--no-prune": "hpcc gc deletes data, and rmi only names"},
			refused: map[string][2]string{"--platform": {"hpcc removes images with all their platforms", "leave it out"}}},
		"login": {read: (*docker).login, values: "-u,--username -p,--password", max: 1,
			usage: "-u NAME [SERVER]", idle: map[string]string{"--password-stdin": "hpcc reads the password from standard input without it"}},
		"version":        {read: (*docker).about, values: "-f,--format"},
		"kill":           {read: (*docker).own, values: "-s,--signal", min: 1, max: 1000, usage: "CONTAINER..."},
		"stop":           {read: (*docker).own, values: "-s,--signal -t,--time,--timeout", min: 1, max: 1000, usage: "CONTAINER..."},
		"buildx version": {read: (*docker).buildxVersion},
	}
})

var (
	noServices     = [2]string{"hpcc has no detached containers: each runs as long as its command, and in its terminal", "hpcc submit --to local IMAGE -- CMD runs a program in the background; hpcc status, attach, logs and cancel manage it"}
	endedAlready   = [2]string{"hpcc keeps no containers that have ended", "bind a directory for the results: docker run -v DIR:/results"}
	dockerNetworks = [2]string{"hpcc creates no networks: programs use that of the host",
		"start the programs with their own ports, and reach them at localhost"}
	noVolumes  = [2]string{"hpcc has no volumes with names", "make a directory, and bind it: docker run -v DIR:/data"}
	noSwarm    = [2]string{"hpcc runs containers on this machine", "hpcc submit runs them on a cluster"}
	noBuilders = [2]string{"hpcc builds on this machine", "docker build needs no builder"}
)

// refusedDockerVerbs holds the reason and the advice for each subcommand that is not supported.
var refusedDockerVerbs = map[string][2]string{
	"history": {"hpcc has its own command", "hpcc history IMAGE"},
	"save":    {"hpcc has its own command", "hpcc save IMAGE FILE; FILE.docker.tar becomes a docker archive"},
	"load":    {"hpcc has its own command", "hpcc load FILE"}, "import": {"hpcc has its own command", "hpcc load FILE NAME"},
	"prune": {"hpcc has its own command", "hpcc gc deletes what no image needs"},
	"info":  {"hpcc has no daemon", "hpcc doctor checks this host"},
	"ps":    {"hpcc has no detached containers", "hpcc status lists jobs, and hpcc attach enters a task"},
	"stats": {"hpcc has no detached containers", "hpcc top JOB shows what tasks use, and hpcc run --measure what a program uses"},
	"rm":    {"hpcc keeps no containers that have ended", "leave it out; docker stop NAME ends a running container"},
	"exec":  {"hpcc has no detached containers", "start the program with the container: docker run IMAGE sh -c 'PROGRAM & ...'; hpcc attach enters a task of a job"},
	"logs":  noServices, "attach": noServices, "create": noServices, "start": noServices, "restart": noServices, "wait": noServices,
	"pause": {"hpcc has no daemon", "kill -STOP PID"}, "unpause": {"hpcc has no daemon", "kill -CONT PID"},
	"top": {"hpcc has no daemon", "ps -ef"},
	"cp":  endedAlready, "export": endedAlready, "diff": endedAlready, "rename": endedAlready,
	"update": endedAlready, "port": dockerNetworks,
	"commit": {"hpcc keeps no containers that have ended",
		"build the image with a Dockerfile; or hpcc unpack IMAGE DIR, hpcc run --write ./DIR, hpcc commit DIR NAME"},
	"compose": noServices, "network": dockerNetworks, "volume": noVolumes,
	"swarm": noSwarm, "stack": noSwarm, "service": noSwarm, "node": noSwarm, "secret": noSwarm, "config": noSwarm,
	"context":    {"hpcc uses no Docker daemon", "leave it out"},
	"plugin":     {"hpcc has no plugins", ""},
	"trust":      {"hpcc does not sign images", "name an image by its digest: NAME@sha256:..."},
	"manifest":   {"hpcc builds images of several platforms itself", "hpcc build --platform linux/amd64,linux/arm64 -t NAME ."},
	"search":     {"hpcc does not search registries", ""},
	"scout":      {"hpcc does not search images for vulnerabilities", "hpcc save NAME image.tar && grype image.tar"},
	"events":     {"hpcc has no daemon that could report events", ""},
	"checkpoint": {"hpcc does not checkpoint programs", "let the program write its own checkpoints"},
	"logout":     {"hpcc does not change stored credentials", "remove the host from ~/.docker/config.json"},
	"bake":       {"hpcc builds one image at a time", "docker build -t NAME DIR for each image"},
	"model":      noServices, "mcp": noServices, "init": {"hpcc writes no Dockerfiles", ""},
}

// dockerAliases maps the longer names of subcommands to their short ones.
var dockerAliases = map[string]string{
	"image build": "build", "builder build": "build", "buildx build": "build", "buildx b": "build",
	"image history": "history", "image import": "import", "image inspect": "inspect",
	"image load": "load", "image ls": "images", "image list": "images", "image prune": "prune",
	"image pull": "pull", "image push": "push", "image rm": "rmi", "image remove": "rmi",
	"image save": "save", "image tag": "tag", "container run": "run", "container ls": "ps",
	"container list": "ps", "container ps": "ps", "container kill": "kill",
	"container stop": "stop", "container rm": "rm", "container remove": "rm", "container stats": "stats",
	"container prune": "rm", "system info": "info", "system prune": "prune",
	"builder prune": "prune", "buildx prune": "prune", "buildx version": "buildx version",
}

// refusedOff holds the reason and the advice for options that are on in any case.
var refusedOff = map[string][2]string{
	"--sig-proxy":             {"hpcc passes all signals to the program", "leave it out"},
	"--disable-content-trust": {"hpcc verifies no signatures of images", "name the image by its digest: NAME@sha256:..."},
}

// dockerHelp is the output of "docker --help".
const dockerHelp = `Usage: docker COMMAND ...

hpcc executes these commands of Docker, without a daemon: run, build, buildx build, pull, push, tag,
images, inspect, rmi, login, kill, stop, version. It refuses options whose meaning it cannot keep.
The page of hpcc on Docker lists them.
`

// dockerGlobal are the options before the subcommand.
var dockerGlobal = &dockerVerb{
	values: "-H,--host -c,--context --config --tlscacert --tlscert --tlskey", flags: "--tls --tlsverify -v,--version -h,--help",
	idle: map[string]string{"-D,--debug": "it concerns messages of Docker's own program",
		"-l,--log-level=": "it concerns messages of Docker's own program"},
	refused: map[string][2]string{"--host": {"hpcc uses no Docker daemon", "leave it out"},
		"--tls": {"hpcc uses no Docker daemon", "leave it out"}, "--tlsverify": {"hpcc uses no Docker daemon", "leave it out"},
		"--tlscacert": {"hpcc uses no Docker daemon", "leave it out"},
		"--tlscert":   {"hpcc uses no Docker daemon", "leave it out"}, "--tlskey": {"hpcc uses no Docker daemon", "leave it out"}},
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
	given := verb
	isGroup := slices.ContainsFunc(slices.Collect(maps.Keys(dockerAliases)),
		func(name string) bool { return strings.HasPrefix(name, verb+" ") })
	if isGroup {
		if len(args) == 0 || args[0] == "--help" {
			return &Request{Output: dockerHelp}, nil
		}
		sub := args[0]
		args, given = args[1:], verb+" "+sub
		if short := dockerAliases[verb+" "+sub]; short != "" {
			verb = short
		} else if sub != "bake" && (verb == "buildx" || verb == "builder") {
			return nil, refusal("docker", given, noBuilders[0], noBuilders[1])
		} else if _, ok := refusedDockerVerbs[sub]; ok {
			verb = sub
		} else {
			verb = given
		}
	}
	why, refused := refusedDockerVerbs[verb]
	t := dockerVerbs()[verb]
	switch {
	case refused:
		return nil, refusal("docker", given, why[0], why[1])
	case t == nil:
		return nil, refusal("docker", verb, "hpcc does not have this command of Docker",
			spelling(verb, maps.Keys(dockerVerbs()), "docker --help lists the commands"))
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
		return &Request{Output: "Usage: docker " + strings.TrimSpace(verb+" "+t.usage) +
			"\n\nhpcc executes the command. It keeps the meaning of an option or refuses it with the reason.\n"}, nil
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
	for _, name := range slices.Sorted(maps.Keys(refusedOff)) {
		if err == nil && d.text[name] != "" && d.on[name] == "" {
			err = refusal(d.program, d.text[name], refusedOff[name][0], refusedOff[name][1])
		}
	}
	return operands, rest, err
}

// options returns the table of a subcommand's options, and the long name of each.
func (t *dockerVerb) options() (table map[string]Role, long map[string]string) {
	table, long = map[string]Role{}, map[string]string{}
	add := func(names string, r Role) {
		all := strings.Split(names, ",")
		i := max(slices.IndexFunc(all, func(n string) bool { return strings.HasPrefix(n, "--") }), 0)
		for _, n := range all {
			table[n], long[n] = r, all[i]
		}
	}
	for r, list := range map[Role]string{Value: t.values, Flag: t.flags + " --help"} {
		for names := range strings.FieldsSeq(list) {
			add(names, r)
		}
	}
	for key := range t.idle {
		add(idleRole(key))
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

func (d *docker) inspect(args []string) (*Request, error) {
	if t := d.last("--type"); t != "" && t != "image" {
		return nil, refusal(d.program, d.text["--type"], "hpcc inspects images", "leave it out")
	}
	delete(d.values, "--type")
	return d.own(args)
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

func (d *docker) buildxVersion([]string) (*Request, error) {
	return &Request{Output: "github.com/docker/buildx v0.20.0+hpcc hpcc\n"}, nil
}
