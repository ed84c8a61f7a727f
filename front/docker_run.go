package front

import (
	"bufio"
	"crypto/rand"
	"encoding/csv"
	"encoding/hex"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"hpcc/store/ready"
)

// Options of run.
const (
	dockerRunValues = "-v,--volume --mount --tmpfs -w,--workdir -e,--env --env-file -u,--user --entrypoint --gpus --device -h,--hostname --name --cidfile --network,--net --ipc --pid --shm-size --platform " +
		"--pull --ulimit --storage-opt -p,--publish --security-opt --log-driver --restart --runtime --userns --uts --cgroupns --isolation --cap-drop " +
		"--add-host -a,--attach --blkio-weight --blkio-weight-device --cap-add --cgroup-parent --cpu-count --cpu-percent --cpu-period --cpu-quota --cpu-rt-period --cpu-rt-runtime " +
		"-c,--cpu-shares --cpus --cpuset-cpus --cpuset-mems --device-cgroup-rule --device-read-bps --device-read-iops --device-write-bps --device-write-iops --dns --dns-option,--dns-opt --dns-search " +
		"--domainname --group-add --health-cmd --health-interval --health-retries --health-start-interval --health-start-period --health-timeout --io-maxbandwidth --io-maxiops --ip --ip6 --kernel-memory " +
		"--link --link-local-ip --mac-address -m,--memory --memory-reservation --memory-swap --memory-swappiness --network-alias,--net-alias --oom-score-adj --pids-limit --stop-signal --stop-timeout " +
		"--sysctl --volume-driver --volumes-from"
	dockerRunFlags = "-i,--interactive -t,--tty --read-only -q,--quiet --disable-content-trust --sig-proxy -d,--detach --privileged -P,--publish-all --oom-kill-disable --use-api-socket"
)

// idleDockerRun maps options of run without an observable effect to the reason.
var idleDockerRun = map[string]string{
	"--rm":             "a container never outlives its program",
	"--init":           "an init reaps orphans in any case",
	"--no-healthcheck": noHealthCheck[0],
	"--log-opt=":       "hpcc keeps no logs, which it would limit",
	"--expose=":        "only Docker's own list of ports shows it",
	"-l,--label=":      "only Docker's own lists of containers show it",
	"--label-file=":    "as --label",
	"--annotation=":    "only Docker's runtime reads it",
	"--detach-keys=":   "hpcc takes no keys from the program",
}

// idleBindOptions maps options of binds without an observable effect to the reason.
var idleBindOptions = map[string]string{
	"z": "no SELinux policy confines the program", "Z": "no SELinux policy confines the program",
	"cached": "Docker ignores it on Linux", "delegated": "Docker ignores it on Linux", "consistent": "Docker ignores it on Linux",
}

var (
	onlyOwnEtc = [2]string{"the container has the host's /etc/hosts and /etc/resolv.conf",
		"bind another file: -v FILE:/etc/hosts:ro, or at /etc/resolv.conf"}
	noHealthCheck = [2]string{"hpcc has no daemon that checks programs", "--no-healthcheck"}
)

// wrongPropagation holds the reason and the advice for a propagation of a bind, by whether the bind
// is read-only.
var wrongPropagation = map[bool][2]string{
	false: {"file systems that the host mounts later below the directory appear in the container", "leave it out, or write rslave"},
	true: {"file systems that the host mounts later below a read-only directory do not appear in the container",
		"leave it out, or write rprivate"},
}

// hasPropagation reports whether m has the propagation p. An empty one is the bind's own.
func (m *mount) hasPropagation(p string) bool {
	switch p {
	case "", "private", "rprivate":
		return p == "" || m.readOnly
	case "slave", "rslave":
		return !m.readOnly
	}
	return false
}

// refusedDockerRun holds the reason and the advice for each option of run that is not supported.
var refusedDockerRun = map[string][2]string{
	"--detach":       noServices,
	"--attach":       {"the program has the streams of docker run", "-i connects standard input; leave --attach out"},
	"--group-add":    {"programs have the groups of the user", "leave it out"},
	"--add-host":     onlyOwnEtc,
	"--dns":          onlyOwnEtc,
	"--dns-option":   onlyOwnEtc,
	"--dns-search":   onlyOwnEtc,
	"--domainname":   {"hpcc sets no domain names", "--hostname NAME.DOMAIN"},
	"--ip":           dockerNetworks,
	"--ip6":          dockerNetworks,
	"--link":         dockerNetworks,
	"--mac-address":  dockerNetworks,
	"--publish-all":  {"the program uses the host's network, so its ports are open", "leave it out"},
	"--blkio-weight": noCgroups, "--blkio-weight-device": noCgroups, "--cgroup-parent": noCgroups,
	"--cpu-count": noCgroups, "--cpu-percent": noCgroups, "--cpu-period": noCgroups, "--cpu-quota": noCgroups,
	"--cpu-rt-period": noCgroups, "--cpu-rt-runtime": noCgroups, "--cpu-shares": noCgroups,
	"--cpus": noCgroups, "--cpuset-cpus": noCgroups, "--cpuset-mems": noCgroups, "--device-cgroup-rule": noCgroups,
	"--device-read-bps": noCgroups, "--device-read-iops": noCgroups, "--device-write-bps": noCgroups,
	"--device-write-iops": noCgroups, "--io-maxbandwidth": noCgroups, "--io-maxiops": noCgroups,
	"--kernel-memory": noCgroups, "--memory": noCgroups, "--memory-reservation": noCgroups,
	"--memory-swap": noCgroups, "--memory-swappiness": noCgroups, "--oom-kill-disable": noCgroups, "--pids-limit": noCgroups,
	"--link-local-ip": dockerNetworks, "--network-alias": dockerNetworks,
	"--health-cmd": noHealthCheck, "--health-interval": noHealthCheck, "--health-retries": noHealthCheck,
	"--health-start-interval": noHealthCheck, "--health-start-period": noHealthCheck, "--health-timeout": noHealthCheck,
	"--oom-score-adj":  {"hpcc does not change the priority of programs", "choom -n N -- docker run ..."},
	"--stop-signal":    {"docker stop sends SIGTERM", "docker kill --signal NAME"},
	"--stop-timeout":   {"docker stop waits 10 seconds", "docker stop --time N"},
	"--sysctl":         {"only root can set kernel parameters", "leave it out"},
	"--volume-driver":  noVolumes,
	"--volumes-from":   noVolumes,
	"--use-api-socket": {"hpcc uses no Docker daemon", "leave it out"},
}

// runChoices are the options of run of which hpcc supports some values.
var runChoices = []choice{
	{"--network", "host none bridge default", dockerNetworks[0], dockerNetworks[1]},
	{"--ipc", "host private shareable", "a container has the host's shared memory or its own, at /dev/shm",
		"--ipc host shares memory between containers"},
	{"--pid", "host", "hpcc does not join the PID namespaces of other containers", "--pid host"},
	{"--userns", "host", "the user of the container is the caller in any case", "leave it out"},
	{"--uts", "host", "hpcc has the host's name without --hostname", "leave it out"},
	{"--cgroupns", "host", noCgroups[0], "leave it out"},
	{"--isolation", "default", "hpcc has one kind of isolation", "leave it out"},
	{"--pull", "always missing never", "it is not a way to pull images", "write always, missing or never"},
	{"--restart", "no", "hpcc has no daemon that could restart a program", "hpcc submit --retry N repeats failed tasks of a job"},
	{"--runtime", "runc crun io.containerd.runc.v2", "hpcc runs containers itself", "leave it out; --gpus all makes GPUs visible"},
	{"--log-driver", "none json-file local", "hpcc keeps no logs: the output goes to the terminal", "redirect the output"},
	{"--security-opt", "no-new-privileges no-new-privileges:true no-new-privileges=true seccomp=unconfined apparmor=unconfined label=disable systempaths=unconfined", "hpcc applies no security profiles", "leave it out; programs have no more rights than the user"},
}

// run reads the image, the program and the options of run.
func (d *docker) run(args []string) (*Request, error) {
	if err := d.choose(runChoices); err != nil {
		return nil, err
	}
	image := args[0]
	if ready.IsPath(image) {
		return nil, refusal(d.program, image, "it is not the name of an image", "hpcc run "+image+" runs the image in a directory or file")
	}
	r := &Request{NoStdin: d.on["--interactive"] == "", Failed: ownFailures["docker"]}
	fetch := d.fetch(image)
	switch d.last("--pull") {
	case "", "missing":
		fetch.Missing, fetch.Platform = image, d.platform()
		r.Commands = append(r.Commands, fetch)
	case "always":
		r.Commands = append(r.Commands, fetch)
	}
	line := []string{"run", "--no-config", "--no-home"}
	for _, part := range []func(*Request) ([]string, error){d.identity, d.isolation, d.capabilities,
		d.mounts, d.gpus, d.variables, d.limits} {
		flags, err := part(r)
		if err != nil {
			return nil, err
		}
		line = append(line, flags...)
	}
	line = append(line, image, "--")
	r.Commands = append(r.Commands, Command{Args: append(line, args[1:]...)})
	return r, nil
}

// identity returns the flags that name the container, its user and its program.
func (d *docker) identity(*Request) ([]string, error) {
	id := make([]byte, 32)
	rand.Read(id)
	flags := []string{"--docker-id=" + hex.EncodeToString(id)}
	if file := d.last("--cidfile"); file != "" {
		if _, err := os.Lstat(file); err == nil {
			return nil, refusal(d.program, d.text["--cidfile"], "the file exists", "remove it, or name another one")
		}
		flags = append(flags, "--docker-cidfile="+d.absolute(file))
	}
	for _, o := range [][2]string{{"--name", "--docker-name"}, {"--user", "--docker-user"}, {"--hostname", "--hostname"}} {
		if v := d.last(o[0]); v != "" {
			flags = append(flags, o[1]+"="+v)
		}
	}
	if p := d.platform(); p != "" {
		flags = append(flags, "--docker-platform="+p)
	}
	if len(d.values["--entrypoint"]) > 0 {
		flags = append(flags, "--entrypoint="+d.last("--entrypoint"))
	}
	switch w := d.last("--workdir"); {
	case w == "":
	case !filepath.IsAbs(w):
		return nil, refusal(d.program, d.text["--workdir"], "it is not an absolute path", "-w /PATH")
	default:
		flags = append(flags, "--cd="+w)
	}
	return flags, nil
}

// isolation returns the flags for namespaces and changes of the image.
func (d *docker) isolation(*Request) ([]string, error) {
	var flags []string
	if d.last("--pid") == "" {
		flags = append(flags, "--pid")
	}
	if d.last("--ipc") != "host" {
		flags = append(flags, "--ipc")
	}
	if d.last("--network") == "none" {
		flags = append(flags, "--network=none")
	}
	if d.last("--uts") != "" && d.last("--hostname") != "" {
		return nil, refusal(d.program, d.text["--hostname"], "cannot be used with --uts host", "leave one of them out")
	}
	for _, p := range d.values["--publish"] {
		if !isSamePort(p) {
			return nil, refusal(d.program, "--publish "+p,
				"the program uses the host's network, so its ports are open under their own numbers",
				"make the program listen on the port, and write -p PORT:PORT")
		}
	}
	size := ""
	for _, o := range d.values["--storage-opt"] {
		var ok bool
		if size, ok = strings.CutPrefix(o, "size="); !ok {
			return nil, refusal(d.program, "--storage-opt "+o, "hpcc has no storage driver",
				"--storage-opt size=SIZE limits the changes of the image")
		}
		if size, ok = bytesOf(size); !ok {
			return nil, refusal(d.program, "--storage-opt "+o, "not a size", "--storage-opt size=10g")
		}
		size = "=" + size
	}
	if d.on["--read-only"] == "" {
		flags = append(flags, "--write-fake"+size)
	}
	return flags, nil
}

// isSamePort reports whether a value of --publish gives a port of all addresses its own number.
func isSamePort(value string) bool {
	value, _, _ = strings.Cut(value, "/")
	value = strings.TrimPrefix(strings.TrimPrefix(value, "0.0.0.0:"), "[::]:")
	host, port, ok := strings.Cut(value, ":")
	_, err := strconv.ParseUint(port, 10, 16)
	return ok && err == nil && host == port
}

// gpus returns the flags for GPUs and other devices. CUDA_VISIBLE_DEVICES limits CUDA programs to
// those that the caller may use.
func (d *docker) gpus(*Request) (flags []string, err error) {
	for _, v := range d.values["--device"] {
		host, at, _ := strings.Cut(v, ":")
		at, access, limited := strings.Cut(at, ":")
		if !limited && at != "" && strings.Trim(at, "rwm") == "" {
			access, limited = at, true
		}
		switch _, err := os.Stat(host); {
		case limited && (!strings.Contains(access, "r") || !strings.Contains(access, "w")):
			return nil, refusal(d.program, "--device "+v, "the program may do with a device what the user may do", "leave the letters out")
		case strings.Contains(host, "="):
			flags = append(flags, "--device="+host)
		case err != nil || !filepath.IsAbs(host):
			return nil, refusal(d.program, "--device "+v, "this machine does not have the device", "leave it out")
		case filepath.IsAbs(at) && at != host:
			flags = append(flags, "--mount=type=bind,source="+host+",target="+at)
		}
	}
	v := d.last("--gpus")
	if v == "" {
		return flags, nil
	}
	bad := refusal(d.program, "--gpus "+v, "not a request of GPUs", `write --gpus all, --gpus 2 or --gpus '"device=0,1"'`)
	fields, err := csv.NewReader(strings.NewReader(v)).Read()
	if err != nil {
		return nil, bad
	}
	flags = append(flags, "--gpu")
	for _, f := range fields {
		name, value, _ := strings.Cut(f, "=")
		if name == "count" || value == "" {
			name, value = "count", strings.TrimPrefix(f, "count=")
		}
		switch name {
		case "device":
			flags = append(flags, "--env=CUDA_VISIBLE_DEVICES="+value)
		case "count":
			if value == "all" || value == "-1" {
				if own := d.env("CUDA_VISIBLE_DEVICES"); own != "" {
					flags = append(flags, "--env=CUDA_VISIBLE_DEVICES="+own)
				}
				continue
			}
			list, err := d.firstGPUs(value)
			if err != nil {
				return nil, err
			}
			flags = append(flags, "--env=CUDA_VISIBLE_DEVICES="+list)
		case "capabilities": // each of them is a part of what --gpu gives
		case "driver":
			if value != "nvidia" {
				return nil, refusal(d.program, "--gpus "+v, "hpcc finds the driver itself",
					"leave driver out; --device VENDOR/CLASS=NAME adds a CDI device")
			}
		default:
			return nil, bad
		}
	}
	return flags, nil
}

// firstGPUs returns the first n GPUs of those that the caller may use.
func (d *docker) firstGPUs(n string) (string, error) {
	count, err := strconv.Atoi(n)
	if err != nil || count < 1 || count > 1024 {
		return "", refusal(d.program, "--gpus "+n, "not a number of GPUs", `write --gpus all, --gpus 2 or --gpus '"device=0,1"'`)
	}
	var list []string
	if own := d.env("CUDA_VISIBLE_DEVICES"); own != "" {
		if list = strings.Split(own, ","); len(list) < count {
			return "", refusal(d.program, "--gpus "+n, fmt.Sprintf("CUDA_VISIBLE_DEVICES has only %d", len(list)),
				"request more GPUs from the scheduler, or write --gpus all")
		}
		return strings.Join(list[:count], ","), nil
	}
	for i := range count {
		list = append(list, strconv.Itoa(i))
	}
	return strings.Join(list, ","), nil
}

// variables returns the flags for variables of the program.
func (d *docker) variables(*Request) (flags []string, err error) {
	if d.on["--tty"] != "" {
		flags = append(flags, "--env=TERM=xterm")
	}
	for _, file := range d.values["--env-file"] {
		list, err := readDockerEnvFile(file)
		if err != nil {
			return nil, refusal(d.program, "--env-file "+file, err.Error(), "write one NAME=VALUE on each line, without quotes")
		}
		for _, kv := range list {
			if !d.lacks(kv) {
				flags = append(flags, "--env="+kv)
			}
		}
	}
	for _, kv := range d.values["--env"] {
		switch {
		case kv == "" || kv[0] == '=':
			return nil, refusal(d.program, "--env "+kv, "it has no name", "-e NAME=VALUE")
		case d.lacks(kv): // unlike a file, the option also removes the image's variable
			flags = append(flags, "--unset-env="+escapePattern(kv))
		default:
			flags = append(flags, "--env="+kv)
		}
	}
	return flags, nil
}

// lacks reports whether kv is the NAME of a variable that the caller does not have.
func (d *docker) lacks(kv string) bool {
	isSet := func(own string) bool { return strings.HasPrefix(own, kv+"=") }
	return !strings.Contains(kv, "=") && !slices.ContainsFunc(d.environ, isSet)
}

// escapePattern returns the pattern of --unset-env that matches only this name.
func escapePattern(name string) string {
	return regexp.MustCompile(`[][?*@+!()|\\]`).ReplaceAllString(name, `\$0`)
}

// readDockerEnvFile reads a file of --env-file: NAME=VALUE, or the NAME of a variable of the caller.
// Values have no quotes.
func readDockerEnvFile(file string) (list []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxEnvFile)
	for n := 1; lines.Scan(); n++ {
		kv := strings.TrimLeft(strings.TrimPrefix(lines.Text(), "\ufeff"), " \t")
		name, _, _ := strings.Cut(kv, "=")
		switch {
		case kv == "" || kv[0] == '#':
			continue
		case name == "" || strings.ContainsAny(name, " \t"):
			return nil, fmt.Errorf("line %d: %q is not the name of a variable", n, name)
		}
		list = append(list, kv)
	}
	return list, lines.Err()
}

// resources are the names of limits in --ulimit, with the constants of getrlimit(2).
var resources = map[string]int{
	"cpu": 0, "fsize": 1, "data": 2, "stack": 3, "core": 4, "rss": 5, "nproc": 6, "nofile": 7,
	"memlock": 8, "as": 9, "locks": 10, "sigpending": 11, "msgqueue": 12, "nice": 13, "rtprio": 14, "rttime": 15,
}

// limits returns the flags for limits of resources.
func (d *docker) limits(*Request) (flags []string, err error) {
	for _, v := range d.values["--ulimit"] {
		name, value, _ := strings.Cut(v, "=")
		soft, hard, both := strings.Cut(value, ":")
		if !both {
			hard = soft
		}
		resource, ok := resources[name]
		low, err := rlimit(soft)
		high, err2 := rlimit(hard)
		if !ok || err != nil || err2 != nil || low > high {
			return nil, refusal(d.program, "--ulimit "+v, "not a limit", "write --ulimit NAME=SOFT[:HARD], such as nofile=1024:4096")
		}
		var have syscall.Rlimit
		if err := syscall.Getrlimit(resource, &have); err == nil && high > have.Max {
			return nil, refusal(d.program, "--ulimit "+v,
				fmt.Sprintf("this process has the limit %d, which only root can raise", have.Max), "leave it out, or ask the administrator")
		}
		flags = append(flags, fmt.Sprintf("--docker-ulimit=%s=%d:%d", name, low, high))
	}
	return flags, nil
}

// rlimit reads a limit; -1 means unlimited.
func rlimit(text string) (uint64, error) {
	if text == "-1" {
		return ^uint64(0), nil
	}
	return strconv.ParseUint(text, 10, 63)
}

// mounts returns the flags for mounts, and asks for the missing directories that Docker creates on
// the host: sources of --volume, and mount points and the working directory in binds.
func (d *docker) mounts(r *Request) ([]string, error) {
	var all []mount
	if d.last("--ipc") != "host" {
		all = append(all, mount{at: "/dev/shm", mode: "1777", size: d.last("--shm-size"), noExec: true})
	}
	taken := map[string]string{} // text of the option by mount point
	claim := func(at, text string) error {
		if old := taken[at]; old != "" && old != text {
			return refusal(d.program, text, "duplicate mount point: "+at, "leave one of the mounts out: "+old)
		}
		taken[at] = text
		return nil
	}
	for _, v := range d.values["--tmpfs"] { // the last one at a path counts
		m, err := d.tmpfs(v)
		if err != nil {
			return nil, err
		}
		all = slices.DeleteFunc(all, func(other mount) bool { return other.at == m.at })
		all, taken[m.at] = append(all, m), "--tmpfs "+v
	}
	for _, v := range d.values["--volume"] {
		m, err := d.volume(v)
		if err == nil {
			err = claim(m.at, "--volume "+v)
		}
		if err != nil {
			return nil, err
		}
		if _, err := os.Stat(m.source); err != nil {
			r.Make = append(r.Make, m.source+"/")
		}
		all = append(all, m)
	}
	for _, v := range d.values["--mount"] {
		m, err := d.mount(v)
		if err == nil {
			err = claim(m.at, "--mount "+v)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	// Docker mounts a directory before those in it.
	for i, m := range all {
		var ok bool
		if all[i].size, ok = bytesOf(m.size); !ok {
			return nil, refusal(d.program, m.size, "not a size", "write a number with k, m or g, such as 64m")
		}
	}
	slices.SortStableFunc(all, func(a, b mount) int { return strings.Count(a.at, "/") - strings.Count(b.at, "/") })
	r.Make = append(r.Make, mountPoints(all)...)
	return d.mountFlags(all)
}

// volume reads SRC:DST[:OPTIONS] of --volume.
func (d *docker) volume(text string) (m mount, err error) {
	bad := func(why, advice string) (mount, error) { return m, refusal(d.program, "--volume "+text, why, advice) }
	source, rest, ok := strings.Cut(text, ":")
	switch {
	case !ok:
		return bad("hpcc has no volumes", "--tmpfs DIR mounts an empty directory, -v DIR:"+text+" a directory of the host")
	case source == "" || (!strings.Contains(source, "/") && source[0] != '.'):
		return bad(noVolumes[0], noVolumes[1])
	}
	at, options, _ := strings.Cut(rest, ":")
	m = mount{source: d.absolute(source), at: filepath.Clean(at)}
	if !filepath.IsAbs(at) || m.at == "/" {
		return bad(fmt.Sprintf("%q is not an absolute path in the container", at), "-v DIR:/PATH[:ro]")
	}
	propagation := ""
	for o := range strings.SplitSeq(options, ",") {
		switch o {
		case "ro":
			m.readOnly = true
		case "", "rw":
		case "private", "rprivate", "slave", "rslave", "shared", "rshared":
			propagation = o
		default:
			if idleBindOptions[o] == "" {
				return bad(fmt.Sprintf("hpcc does not have the option %q", o), "the options are ro and rw")
			}
		}
	}
	if why := wrongPropagation[m.readOnly]; !m.hasPropagation(propagation) {
		return bad(why[0], why[1])
	}
	return m, nil
}

// mount reads the value of --mount, a line of CSV.
func (d *docker) mount(text string) (m mount, err error) {
	bad := func(why, advice string) (mount, error) { return m, refusal(d.program, "--mount "+text, why, advice) }
	fields, err := csv.NewReader(strings.NewReader(text)).Read()
	if err != nil {
		return bad("not a list of NAME=VALUE", "write type=bind,source=SRC,target=DST")
	}
	kind, propagation := "volume", ""
	only := map[string]string{} // by kind: an option of that kind only
	m.mode = "1777"
	m.noExec = true // of a tmpfs
	for _, f := range fields {
		name, v, _ := strings.Cut(f, "=")
		switch strings.ToLower(name) {
		case "type":
			kind = v
		case "source", "src":
			m.source = d.absolute(v)
		case "target", "destination", "dst":
			m.at = v
		case "readonly", "ro":
			off, unclear := isOff(v)
			if m.readOnly = v == "" || !off; unclear {
				return bad(name+" is true or false", "leave its value out")
			}
		case "tmpfs-size":
			m.size, only["tmpfs"] = v, name
		case "tmpfs-mode":
			m.mode, only["tmpfs"] = v, name
		case "bind-propagation":
			propagation, only["bind"] = v, name
		case "consistency":
		default:
			return bad(fmt.Sprintf("hpcc does not have the option %q", name), "write type=bind,source=SRC,target=DST[,readonly]")
		}
	}
	switch {
	case kind == "volume":
		return bad(noVolumes[0], "write type=bind,source=DIR,target=DST")
	case kind != "bind" && kind != "tmpfs":
		return bad("hpcc mounts directories of the host and empty ones", "write type=bind or type=tmpfs")
	case (kind == "bind") != (m.source != "") || !filepath.IsAbs(m.at):
		return bad("a bind needs a source, a tmpfs has none, and both need an absolute target",
			"write type=bind,source=SRC,target=DST, or type=tmpfs,target=DST")
	}
	delete(only, kind)
	for _, name := range only {
		return bad(fmt.Sprintf("type=%s does not have the option %q", kind, name), "leave it out")
	}
	if why := wrongPropagation[m.readOnly]; !m.hasPropagation(propagation) {
		return bad(why[0], why[1])
	}
	if m.at = filepath.Clean(m.at); kind == "bind" {
		if _, err := os.Stat(m.source); err != nil {
			return bad("the source does not exist", "create it; -v creates missing directories")
		}
	}
	return m, nil
}

// bytesOf returns a size such as "64m", "1gb" or "1 GiB" in bytes. An empty size stays empty.
func bytesOf(size string) (bytes string, ok bool) {
	digits := strings.TrimRight(size, " bBiIkKmMgGtT")
	if size == "" {
		return "", true
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	unit := strings.TrimSpace(strings.ToLower(size[len(digits):]))
	for _, u := range []string{"", "k", "m", "g", "t"} {
		if unit == u || unit == u+"b" || (u != "" && unit == u+"ib") {
			return strconv.FormatUint(n, 10), err == nil && n > 0
		}
		if n *= 1024; n > math.MaxInt64/1024 {
			break
		}
	}
	return "", false
}

// tmpfs reads DIR[:OPTIONS] of --tmpfs.
func (d *docker) tmpfs(text string) (mount, error) {
	at, options, _ := strings.Cut(text, ":")
	m := mount{at: filepath.Clean(at), mode: "1777", noExec: true}
	if !filepath.IsAbs(at) {
		return m, refusal(d.program, "--tmpfs "+text, "it is not an absolute path", "--tmpfs /PATH[:size=SIZE]")
	}
	for o := range strings.SplitSeq(options, ",") {
		name, v, hasValue := strings.Cut(o, "=")
		if hasValue && name != "size" && name != "mode" {
			name = o // unknown
		}
		switch name {
		case "size":
			m.size = v
		case "mode":
			m.mode = v
		case "ro", "rw":
			m.readOnly = name == "ro"
		case "exec", "noexec":
			m.noExec = name == "noexec"
		case "atime", "noatime":
			m.noAtime = name == "noatime"
		case "", "nosuid", "nodev":
		default:
			return m, refusal(d.program, "--tmpfs "+text, fmt.Sprintf("hpcc does not have the option %q", o),
				"the options are size, mode, ro, exec and noatime")
		}
	}
	return m, nil
}
