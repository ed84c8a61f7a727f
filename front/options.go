package front

import (
	"cmp"
	"maps"
	"strings"
	"sync"

	"hpcc/text"
)

// A Word is an argument of a command line, which may be part of a script.
type Word struct {
	Text       string // without quotes
	Source     string // as in the script
	Live       bool   // Text contains an expansion of the shell
	Start, End int    // position in the script
}

// After returns the part of a word from byte n of its text. Its source is empty if quotes make the
// position unknown.
func (w Word) After(n int) Word {
	out := Word{Text: w.Text[n:], Live: w.Live, Start: w.Start, End: w.End}
	switch {
	case len(w.Source) >= n && w.Source[:n] == w.Text[:n]:
		out.Source = w.Source[n:]
	case !w.Live:
		out.Source = text.Quote(out.Text)
	}
	return out
}

// A Role is the meaning of an option of a container program.
type Role int

const (
	Unknown      Role = iota
	Flag              // takes no value
	Value             // takes a value
	Optional          // --name or --name=VALUE
	idleFlag          // takes no value and has no observable effect
	idleValue         // the same, with a value
	GPU               // makes GPUs visible, without a value
	GPUValue          // the same, with a value
	Bind              // SRC[:DST[:MODE]], also a list
	Mount             // type=bind,source=SRC,target=DST
	Scratch           // an empty directory
	Env               // NAME=VALUE
	EnvList           // NAME=VALUE[,NAME=VALUE]
	EnvFile           // a file with variables
	SetEnv            // --name, --name=FILE or --name=NAME=VALUE
	Unset             // a variable to remove
	Dir               // the working directory
	Image             // the image, if it is not an argument
	Entry             // the program instead of the image's entry point
	Refused           // changes what runs, without a value
	RefusedValue      // the same, with a value
)

// takesValue reports whether the next argument belongs to an option of the role.
func (r Role) takesValue() bool {
	switch r {
	case Unknown, Flag, Optional, idleFlag, GPU, SetEnv, Refused:
		return false
	}
	return true
}

// A containerProgram runs a program in an image.
type containerProgram struct {
	global  map[string]Role // options before the subcommand
	runs    string          // subcommands that run a program; "": the program has no subcommands
	own     string          // subcommands that prepend the image's runscript to the arguments
	options map[string]Role
	inOrder bool // the image is an argument, unless an option names it
	Files   bool // a plain image name is a file or a local container
	Entry   bool // the image's entry point precedes the program
}

// optionTable lists the roles of options. The keys of groups are roles, its values names separated by
// blanks or commas. The keys of idle are those of idleRole.
func optionTable(groups map[Role]string, idle ...map[string]string) map[string]Role {
	out := map[string]Role{}
	for _, list := range idle {
		for key := range list {
			names, role := idleRole(key)
			for name := range strings.SplitSeq(names, ",") {
				out[name] = role
			}
		}
	}
	for r, names := range groups {
		for name := range strings.FieldsFuncSeq(names, func(r rune) bool { return r == ' ' || r == ',' }) {
			out[name] = r
		}
	}
	return out
}

// idleRole returns the names in a key of a table of idle options, and their role. The names are separated
// by commas. A key with "=" at the end has options that take a value. The tables hold the reasons.
func idleRole(key string) (names string, role Role) {
	if names, ok := strings.CutSuffix(key, "="); ok {
		return names, idleValue
	}
	return key, idleFlag
}

// Programs are the programs that run a program in an image, with the options of their manuals.
var Programs = sync.OnceValue(func() map[string]*containerProgram {
	singularity := &containerProgram{runs: "exec run", own: "run", inOrder: true, Files: true,
		global: optionTable(map[Role]string{Value: "-c --config"}, idleApptainer["apptainer"]),
		options: optionTable(map[Role]string{
			Bind: "-B --bind", Mount: "--mount", Scratch: "-S --scratch", EnvList: "--env",
			EnvFile: "--env-file", Dir: "--pwd --cwd", GPU: "--nv --nvccli --rocm",
			RefusedValue: "--app -s --shell --dmtcp-launch --dmtcp-restart",
			Value: "-H --home -o --overlay -W --workdir --hostname --network --network-args --dns --security --apply-cgroups --containlibs --fusemount --no-mount --add-caps --drop-caps --no-env " +
				"--blkio-weight --blkio-weight-device --cpu-shares --cpus --cpuset-cpus --cpuset-mems --memory --memory-reservation --memory-swap --pids-limit --runscript-timeout --netns-path --device " +
				"--cdi-dirs --docker-username --docker-password --docker-host --passphrase --pem-path --authfile",
			Flag: "--disable-cache --boot -f --fakeroot -e --cleanenv --compat -c --contain -C --containall --compat32 -w --writable --writable-tmpfs --no-home --no-init --no-nv --no-rocm -p --pid --no-pid " +
				"-i --ipc -n --net --uts --keep-privs --no-privs --allow-setuid --no-umask --no-eval --oom-kill-disable --ignore-userns " +
				"--sharens --intel-hpu --no-https --nohttps --docker-login --oci",
		}, idleApptainer["exec"])}
	docker := &containerProgram{runs: "run", inOrder: true, Entry: true,
		global:  optionTable(map[Role]string{Value: "-H --host -l --log-level -c --context --config --root --runroot --storage-driver --storage-opt --cgroup-manager --url --connection --tmpdir", Flag: "-D --debug --tls --tlsverify -r --remote"}),
		options: dockerOptions()}
	return map[string]*containerProgram{
		"singularity": singularity, "apptainer": singularity, "docker": docker, "podman": docker, "podman-hpc": docker,
		"ch-run": {inOrder: true, Files: true, options: optionTable(map[Role]string{
			Bind: "-b --bind", Dir: "-c --cd", SetEnv: "--set-env", Unset: "--unset-env",
			RefusedValue: "--set-env0 --feature --test --warnings",
			Value:        "-g --gid --join-pid --join-ct --join-tag -s --storage -u --uid",
			Optional:     "-W --write-fake", Flag: "--env-no-expand --home -j --join --no-passwd -q --quiet --seccomp -t --private-tmp -w --write"}, idleCharliecloud["ch-run"])},
		"shifter": {options: optionTable(map[Role]string{
			Image: "-i --image", Bind: "-V --volume", Env: "-e --env", EnvFile: "--env-file",
			Refused: "--entry --entrypoint -w --workdir", Value: "-m --module", Flag: "-v --verbose -n -E --clearenv"})},
		"sarus": {runs: "run", inOrder: true, Entry: true, options: optionTable(map[Role]string{
			Mount: "--mount", Env: "-e --env", Dir: "-w --workdir", Entry: "--entrypoint",
			Value: "--annotation --device --mpi-type -n --name --pid",
			Flag:  "--centralized-repository --glibc --init -m --mpi --ssh -t --tty"})},
		"enroot": {runs: "start", inOrder: true, Files: true, options: optionTable(map[Role]string{
			Bind: "-m --mount", Env: "-e --env", RefusedValue: "-c --conf --rc", Flag: "-r --root -w --rw --pid --net --ipc --uts"})},
	}
})

// dockerOptions returns the options of "docker run", and those that only "podman run" has.
func dockerOptions() map[string]Role {
	table := optionTable(map[Role]string{
		Flag: dockerRunFlags +
			" --env-host --help --no-hostname --no-hosts --passwd --read-only-tmpfs --replace --rmi --tls-verify --http-proxy --mpi --gpu " +
			"--cuda-mpi --openmpi-pmi2 --openmpi-pmix --cvmfs --nccl",
		Value: dockerRunValues +
			" --arch --authfile --cert-dir --cgroup-conf --cgroups --conmon-pidfile --creds --decryption-key --env-merge --gidmap " +
			"--group-entry --health-log-destination --health-max-log-count --health-max-log-size --health-on-failure --health-startup-cmd " +
			"--health-startup-interval --health-startup-retries --health-startup-success --health-startup-timeout --hosts-file --hostuser " +
			"--image-volume --init-path --os --passwd-entry --personality --pidfile --pod-id-file --preserve-fd --preserve-fds --rdt-class " +
			"--retry --retry-delay --sdnotify --seccomp-policy --secret --shm-size-systemd --signature-policy --subgidname --subuidname " +
			"--systemd --timeout --tz --uidmap --umask --variant",
	})
	for name, role := range optionTable(nil, idleDockerRun) { // a script may run podman, for which the reasons do not hold
		table[name] = map[Role]Role{idleFlag: Flag, idleValue: Value}[role]
	}
	maps.Copy(table, optionTable(map[Role]string{
		Bind: "-v --volume", Mount: "--mount", Scratch: "--tmpfs", Env: "-e --env", EnvFile: "--env-file",
		Unset: "--unsetenv", Dir: "-w --workdir", GPUValue: "--gpus", Entry: "--entrypoint",
		Refused: "-d --detach --rootfs --unsetenv-all", RefusedValue: "--pod --volumes-from --requires --chrootdirs",
	}))
	return table
}

// An Option is one option of a command line.
type Option struct {
	Role  Role
	Name  string // as written: "--bind" or "-B"
	Value Word   // the zero value without one
	Text  string // as in the script
}

// next parses the options of the first argument: one, or several single letters. why is the reason if it cannot.
func next(table map[string]Role, args []Word) (found []Option, rest []Word, why string) {
	a := args[0]
	if strings.HasPrefix(a.Text, "--") {
		name, _, glued := strings.Cut(a.Text, "=")
		r := table[name]
		o := Option{Role: r, Name: name, Text: a.Source}
		switch {
		case r == Unknown:
			return nil, nil, "hpcc does not know its option " + name
		case glued:
			o.Value = a.After(len(name) + 1)
			return []Option{o}, args[1:], ""
		case !r.takesValue():
			return []Option{o}, args[1:], ""
		case len(args) == 1:
			return nil, nil, "the value of " + name + " is missing"
		}
		o.Value, o.Text = args[1], a.Source+" "+args[1].Source
		return []Option{o}, args[2:], ""
	}
	for i := 1; i < len(a.Text); i++ {
		name := "-" + a.Text[i:i+1]
		r := table[name]
		o := Option{Role: r, Name: name, Text: name}
		switch {
		case r == Unknown:
			return nil, nil, "hpcc does not know its option " + name
		case !r.takesValue() && r != Optional:
		case i+1 < len(a.Text):
			o.Value, o.Text = a.After(i+1), a.Source
			return append(found, o), args[1:], ""
		case r == Optional:
		case len(args) == 1:
			return nil, nil, "the value of " + name + " is missing"
		default:
			o.Value, o.Text = args[1], a.Source+" "+args[1].Source
			return append(found, o), args[2:], ""
		}
		found = append(found, o)
	}
	return found, args[1:], ""
}

// A Line is a command that runs a program in an image.
type Line struct {
	Name    string // of the container program
	Image   Word
	Options []Option
	Rest    []Word // the program and its arguments
	Own     bool   // the image's runscript precedes them
}

// Parse reads the arguments of a container program, which is the first. It returns nil for another
// subcommand, and the reason if it cannot read the options.
func Parse(name string, args []Word) (*Line, string) {
	p, c := Programs()[name], &Line{Name: name}
	args = args[1:]
	var why string
	var o []Option
	if p.runs != "" {
		for len(args) > 0 && IsOption(args[0]) {
			if _, args, why = next(p.global, args); why != "" {
				return nil, why
			}
		}
		if len(args) > 1 && args[0].Text == "container" {
			args = args[1:]
		}
		if len(args) == 0 || args[0].Live || !strings.Contains(" "+p.runs+" ", " "+args[0].Text+" ") {
			return nil, ""
		}
		c.Own = args[0].Text == p.own
		args = args[1:]
	}
	for len(args) > 0 && IsOption(args[0]) {
		if o, args, why = next(p.options, args); why != "" {
			return nil, why
		}
		for i := range o { // scripts have other reasons to leave them out
			o[i].Role = cmp.Or(map[Role]Role{idleFlag: Flag, idleValue: Value}[o[i].Role], o[i].Role)
		}
		c.Options = append(c.Options, o...)
	}
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	if p.inOrder {
		if len(args) == 0 {
			return nil, "it does not name an image"
		}
		c.Image, args = args[0], args[1:]
		if name == "ch-run" && len(args) > 0 && args[0].Text == "--" {
			args = args[1:]
		}
	}
	c.Rest = args
	return c, ""
}

// IsOption reports whether an argument is an option, and not the end of the options.
func IsOption(a Word) bool {
	return strings.HasPrefix(a.Text, "-") && a.Text != "-" && a.Text != "--"
}
