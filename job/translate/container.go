package translate

import (
	"strings"
	"sync"
)

// A role is the meaning of an option of a container program.
type role int

const (
	unknown      role = iota
	flag              // takes no value; the pod does without it
	value             // takes a value; the pod does without it
	optional          // --name or --name=VALUE; the pod does without it
	gpu               // makes GPUs visible, without a value
	gpuValue          // the same, with a value
	bind              // SRC[:DST[:MODE]], also a list
	mount             // type=bind,source=SRC,target=DST
	volatile          // an empty directory
	env               // NAME=VALUE
	envList           // NAME=VALUE[,NAME=VALUE]
	envFile           // a file with variables
	setEnv            // --name, --name=FILE or --name=NAME=VALUE
	unset             // a variable to remove
	cwd               // the working directory
	image             // the image, if it is not an argument
	entry             // the program instead of the image's entry point
	refused           // changes what runs, without a value
	refusedValue      // the same, with a value
)

// takesValue reports whether the next argument belongs to an option of the role.
func (r role) takesValue() bool {
	switch r {
	case unknown, flag, optional, gpu, setEnv, refused:
		return false
	}
	return true
}

// A containerProgram runs a program in an image.
type containerProgram struct {
	global  map[string]role // options before the subcommand
	runs    string          // subcommands that run a program; "": the program has no subcommands
	own     string          // subcommands that prepend the image's runscript to the arguments
	options map[string]role
	inOrder bool // the image is an argument, unless an option names it
	files   bool // a plain image name is a file or a local container
	entry   bool // the image's entry point precedes the program
}

// optionTable lists the roles of options. The keys of groups are roles, its values names separated by blanks.
func optionTable(groups map[role]string) map[string]role {
	out := map[string]role{}
	for r, names := range groups {
		for name := range strings.FieldsSeq(names) {
			out[name] = r
		}
	}
	return out
}

// containerPrograms are the programs that run a program in an image, with the options of their manuals.
var containerPrograms = sync.OnceValue(func() map[string]*containerProgram {
	singularity := &containerProgram{runs: "exec run", own: "run", inOrder: true, files: true,
		global: optionTable(map[role]string{flag: "-d --debug --nocolor -s --silent -q --quiet -v --verbose", value: "-c --config"}),
		options: optionTable(map[role]string{
			bind: "-B --bind", mount: "--mount", volatile: "-S --scratch", envList: "--env", envFile: "--env-file", cwd: "--pwd --cwd", gpu: "--nv --nvccli --rocm",
			refusedValue: "--app -s --shell --dmtcp-launch --dmtcp-restart",
			value: "-H --home -o --overlay -W --workdir --hostname --network --network-args --dns --security --apply-cgroups --containlibs --fusemount --tmpdir --no-mount --add-caps --drop-caps --no-env " +
				"--blkio-weight --blkio-weight-device --cpu-shares --cpus --cpuset-cpus --cpuset-mems --memory --memory-reservation --memory-swap --pids-limit --runscript-timeout --netns-path --device " +
				"--cdi-dirs --docker-username --docker-password --docker-host --passphrase --pem-path --authfile",
			flag: "--disable-cache --boot -f --fakeroot -e --cleanenv --compat -c --contain -C --containall --compat32 -w --writable --writable-tmpfs --no-home --no-init --no-nv --no-rocm -p --pid --no-pid " +
				"-i --ipc -n --net --uts -u --userns --keep-privs --no-privs --allow-setuid --no-umask --no-eval --oom-kill-disable --unsquash --ignore-subuid --ignore-fakeroot-command --ignore-userns " +
				"--underlay --sharens --intel-hpu --no-https --nohttps --docker-login --oci --no-oci",
		})}
	docker := &containerProgram{runs: "run", inOrder: true, entry: true,
		global:  optionTable(map[role]string{value: "-H --host -l --log-level -c --context --config --root --runroot --storage-driver --storage-opt --cgroup-manager --url --connection --tmpdir", flag: "-D --debug --tls --tlsverify -r --remote"}),
		options: dockerOptions()}
	return map[string]*containerProgram{
		"singularity": singularity, "apptainer": singularity, "docker": docker, "podman": docker, "podman-hpc": docker,
		"ch-run": {inOrder: true, files: true, options: optionTable(map[role]string{
			bind: "-b --bind", cwd: "-c --cd", setEnv: "--set-env", unset: "--unset-env", refusedValue: "--set-env0 --feature --test --warnings", value: "-g --gid --join-pid --join-ct --join-tag -m --mount -s --storage -u --uid",
			optional: "-W --write-fake", flag: "--env-no-expand --home -j --join --no-passwd --passwd -q --quiet --seccomp -t --private-tmp --unsafe -v --verbose -w --write --no-home"})},
		"shifter": {options: optionTable(map[role]string{
			image: "-i --image", bind: "-V --volume", env: "-e --env", envFile: "--env-file", refused: "--entry --entrypoint -w --workdir", value: "-m --module", flag: "-v --verbose -n -E --clearenv"})},
		"sarus": {runs: "run", inOrder: true, entry: true, options: optionTable(map[role]string{
			mount: "--mount", env: "-e --env", cwd: "-w --workdir", entry: "--entrypoint", value: "--annotation --device --mpi-type -n --name --pid", flag: "--centralized-repository --glibc --init -m --mpi --ssh -t --tty"})},
		"enroot": {runs: "start", inOrder: true, files: true, options: optionTable(map[role]string{
			bind: "-m --mount", env: "-e --env", refusedValue: "-c --conf --rc", flag: "-r --root -w --rw --pid --net --ipc --uts"})},
	}
})

// dockerOptions returns the options of "docker run" and "podman run".
func dockerOptions() map[string]role {
	return optionTable(map[role]string{
		bind: "-v --volume", mount: "--mount", volatile: "--tmpfs", env: "-e --env", envFile: "--env-file", unset: "--unsetenv", cwd: "-w --workdir", gpuValue: "--gpus", entry: "--entrypoint",
		refused: "-d --detach --rootfs --unsetenv-all", refusedValue: "--pod --volumes-from --requires --chrootdirs",
		flag: "--disable-content-trust --env-host --help --init -i --interactive --no-healthcheck --no-hostname --no-hosts --oom-kill-disable --passwd --privileged -P --publish-all -q --quiet --read-only --read-only-tmpfs " +
			"--replace --rm --rmi --sig-proxy -t --tty --tls-verify --http-proxy --use-api-socket --mpi --gpu --cuda-mpi --openmpi-pmi2 --openmpi-pmix --cvmfs --nccl",
		value: "--add-host --annotation --arch -a --attach --authfile --blkio-weight --blkio-weight-device --cap-add --cap-drop --cert-dir --cgroup-conf --cgroup-parent --cgroupns --cgroups --cidfile --conmon-pidfile " +
			"--cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime -c --cpu-shares --cpus --cpuset-cpus --cpuset-mems --creds --decryption-key --detach-keys --device --device-cgroup-rule " +
			"--device-read-bps --device-read-iops --device-write-bps --device-write-iops --dns --dns-option --dns-search --domainname --env-merge --expose --gidmap --group-add --group-entry --health-cmd --health-interval " +
			"--health-log-destination --health-max-log-count --health-max-log-size --health-on-failure --health-retries --health-start-interval --health-start-period --health-startup-cmd --health-startup-interval " +
			"--health-startup-retries --health-startup-success --health-startup-timeout --health-timeout -h --hostname --hosts-file --hostuser --image-volume --init-path --io-maxbandwidth --io-maxiops --ip --ip6 --ipc " +
			"--isolation --kernel-memory -l --label --label-file --link --link-local-ip --log-driver --log-opt --mac-address -m --memory --memory-reservation --memory-swap --memory-swappiness --name --network --net " +
			"--network-alias --oom-score-adj --os --passwd-entry --personality --pid --pidfile --pids-limit --platform --pod-id-file --preserve-fd --preserve-fds -p --publish --pull --rdt-class --restart --retry " +
			"--retry-delay --runtime --sdnotify --seccomp-policy --secret --security-opt --shm-size --shm-size-systemd --signature-policy --stop-signal --stop-timeout --storage-opt --subgidname --subuidname --sysctl " +
			"--systemd --timeout --tz --uidmap --ulimit --umask -u --user --userns --uts --variant --volume-driver",
	})
}

// An option is one option of a container line. Its value is a word of the shell.
type option struct {
	role  role
	name  string
	value argument // the zero value without one
	text  string   // as in the script
}

// next parses the options of the first argument: one, or several single letters. why is the reason if it cannot.
func next(table map[string]role, args []argument) (found []option, rest []argument, why string) {
	a := args[0]
	if strings.HasPrefix(a.text, "--") {
		name, _, glued := strings.Cut(a.text, "=")
		r := table[name]
		o := option{role: r, name: name, text: a.source}
		switch {
		case r == unknown:
			return nil, nil, "hpcc does not know its option " + name
		case glued:
			o.value = a.after(len(name) + 1)
			return []option{o}, args[1:], ""
		case !r.takesValue():
			return []option{o}, args[1:], ""
		case len(args) == 1:
			return nil, nil, "the value of " + name + " is missing"
		}
		o.value, o.text = args[1], a.source+" "+args[1].source
		return []option{o}, args[2:], ""
	}
	for i := 1; i < len(a.text); i++ {
		name := "-" + a.text[i:i+1]
		r := table[name]
		o := option{role: r, name: name, text: name}
		switch {
		case r == unknown:
			return nil, nil, "hpcc does not know its option " + name
		case !r.takesValue() && r != optional:
		case i+1 < len(a.text):
			o.value, o.text = a.after(i+1), a.source
			return append(found, o), args[1:], ""
		case r == optional:
		case len(args) == 1:
			return nil, nil, "the value of " + name + " is missing"
		default:
			o.value, o.text = args[1], a.source+" "+args[1].source
			return append(found, o), args[2:], ""
		}
		found = append(found, o)
	}
	return found, args[1:], ""
}

// A containerLine is a command that runs a program in an image.
type containerLine struct {
	name    string // of the container program
	image   argument
	options []option
	rest    []argument // the program and its arguments
	own     bool       // the image's runscript precedes them
}

// parseContainer reads the arguments of a container program, which is the first. It returns nil for another
// subcommand, and the reason if it cannot read the options.
func parseContainer(name string, args []argument) (*containerLine, string) {
	p, c := containerPrograms()[name], &containerLine{name: name}
	args = args[1:]
	var why string
	var o []option
	if p.runs != "" {
		for len(args) > 0 && isOption(args[0]) {
			if _, args, why = next(p.global, args); why != "" {
				return nil, why
			}
		}
		if len(args) > 1 && args[0].text == "container" {
			args = args[1:]
		}
		if len(args) == 0 || args[0].live || !strings.Contains(" "+p.runs+" ", " "+args[0].text+" ") {
			return nil, ""
		}
		c.own = args[0].text == p.own
		args = args[1:]
	}
	for len(args) > 0 && isOption(args[0]) {
		if o, args, why = next(p.options, args); why != "" {
			return nil, why
		}
		c.options = append(c.options, o...)
	}
	if len(args) > 0 && args[0].text == "--" {
		args = args[1:]
	}
	if p.inOrder {
		if len(args) == 0 {
			return nil, "it does not name an image"
		}
		c.image, args = args[0], args[1:]
		if name == "ch-run" && len(args) > 0 && args[0].text == "--" {
			args = args[1:]
		}
	}
	c.rest = args
	return c, ""
}

// isOption reports whether an argument is an option, and not the end of the options.
func isOption(a argument) bool {
	return strings.HasPrefix(a.text, "-") && a.text != "-" && a.text != "--"
}

// registryImage returns the name of an image in a registry, for the nodes of a cluster. It returns "" for a file, a
// directory, a variable or a form of image that nodes cannot pull.
func registryImage(name string, a argument) string {
	ref := a.text
	if a.live || ref == "" {
		return ""
	}
	ref, tagged := strings.CutPrefix(ref, "docker://")
	if name == "shifter" {
		if ref, tagged = strings.CutPrefix(ref, "docker:"); !tagged {
			return ""
		}
	}
	p := containerPrograms()[name]
	if (p.files && !tagged) || strings.Contains(ref, "://") || strings.HasPrefix(ref, "/") || strings.HasPrefix(ref, ".") || strings.HasPrefix(ref, "localhost/") || !imageText().MatchString(ref) {
		return ""
	}
	host, rest, ok := strings.Cut(ref, "/")
	switch {
	case ok && (strings.ContainsAny(host, ".:") || host == "localhost"):
		return host + "/" + rest
	case ok:
		return "docker.io/" + ref
	}
	return "docker.io/library/" + ref
}
