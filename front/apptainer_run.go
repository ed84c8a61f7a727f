package front

import (
	"cmp"
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
)

// apptainerRunVariables are the variables that set options of exec, run, shell and test.
var apptainerRunVariables = map[string]string{
	"--app": "APP APPNAME", "--bind": "BIND BINDPATH", "--mount": "MOUNT", "--home": "HOME", "--overlay": "OVERLAY OVERLAYIMAGE",
	"--scratch": "SCRATCH SCRATCHDIR", "--workdir": "WORKDIR", "--shell": "SHELL", "--cwd": "CWD TARGET_CWD PWD TARGET_PWD",
	"--hostname": "HOSTNAME", "--network": "NETWORK", "--network-args": "NETWORK_ARGS", "--dns": "DNS", "--security": "SECURITY",
	"--apply-cgroups": "APPLY_CGROUPS", "--containlibs": "CONTAINLIBS", "--fusemount": "FUSESPEC", "--boot": "BOOT",
	"--fakeroot": "FAKEROOT", "--cleanenv": "CLEANENV", "--compat": "COMPAT", "--contain": "CONTAIN", "--containall": "CONTAINALL",
	"--nv": "NV", "--nvccli": "NVCCLI", "--compat32": "COMPAT32", "--rocm": "ROCM", "--writable": "WRITABLE",
	"--writable-tmpfs": "WRITABLE_TMPFS",
	"--no-home":        "NO_HOME", "--no-mount": "NO_MOUNT", "--no-init": "NOSHIMINIT",
	"--no-nv": "NV_OFF NO_NV", "--no-rocm": "ROCM_OFF NO_ROCM",
	"--pid": "PID UNSHARE_PID", "--no-pid": "NO_PID", "--ipc": "IPC UNSHARE_IPC", "--net": "NET UNSHARE_NET",
	"--keep-privs": "KEEP_PRIVS", "--no-privs": "NO_PRIVS",
	"--uts": "UTS UNSHARE_UTS", "--disable-cache": "DISABLE_CACHE", "--ignore-userns": "IGNORE_USERNS",
	"--add-caps": "ADD_CAPS", "--drop-caps": "DROP_CAPS", "--allow-setuid": "ALLOW_SETUID",
	"--no-env": "NOENV", "--env-file": "ENV_FILE", "--no-umask": "NO_UMASK",
	"--no-eval": "NO_EVAL", "--dmtcp-launch": "DMTCP_LAUNCH", "--dmtcp-restart": "DMTCP_RESTART", "--blkio-weight": "BLKIO_WEIGHT",
	"--blkio-weight-device": "BLKIO_WEIGHT_DEVICE", "--cpu-shares": "CPU_SHARES", "--cpuset-cpus": "CPUSET_CPUS",
	"--cpuset-mems": "CPUSET_MEMS",
	"--memory":      "MEMORY", "--memory-reservation": "MEMORY_RESERVATION", "--memory-swap": "MEMORY_SWAP",
	"--oom-kill-disable": "OOM_KILL_DISABLE",
	"--pids-limit":       "PIDS_LIMIT", "--sharens": "SHARENS", "--runscript-timeout": "RUNSCRIPT_TIMEOUT", "--netns-path": "NETNS_PATH",
	"--intel-hpu": "INTEL_HPU", "--docker-username": "DOCKER_USERNAME", "--docker-password": "DOCKER_PASSWORD",
	"--docker-login": "DOCKER_LOGIN",
	"--docker-host":  "DOCKER_HOST", "--authfile": "AUTH_FILE", "--no-https": "NOHTTPS NO_HTTPS",
}

var (
	noCgroups = [2]string{"hpcc creates no cgroups", "request the resources from the scheduler: hpcc submit --cpus N --mem SIZE"}
	onlyRoot  = [2]string{"only root can do this, and hpcc runs programs with the rights of the user", "leave the option out"}
	noKeys    = [2]string{"hpcc does not decrypt images", "decrypt the image with a real apptainer"}
	noLogin   = [2]string{"hpcc reads credentials from its own file, or those of docker and podman", "hpcc login REGISTRY"}
)

// refusedRunOptions holds the reason and the advice for each option of exec, run, shell and test
// that is not supported.
var refusedRunOptions = map[string][2]string{
	"--app": {"hpcc does not support apps (SCIF)",
		"start the program of the app by its path: singularity exec IMAGE /scif/apps/NAME/bin/PROGRAM"},
	"--overlay": {"hpcc does not mount overlays that persist",
		"use --writable-tmpfs for temporary changes, or a sandbox directory with --writable"},
	"--security":            {"hpcc applies no security profiles", "leave the option out; programs have no more rights than the user"},
	"--apply-cgroups":       noCgroups,
	"--blkio-weight":        noCgroups,
	"--blkio-weight-device": noCgroups,
	"--cpu-shares":          noCgroups,
	"--cpus":                noCgroups,
	"--cpuset-cpus":         noCgroups,
	"--cpuset-mems":         noCgroups,
	"--memory":              noCgroups,
	"--memory-reservation":  noCgroups,
	"--memory-swap":         noCgroups,
	"--oom-kill-disable":    noCgroups,
	"--pids-limit":          noCgroups,
	"--allow-setuid":        onlyRoot,
	"--boot":                {"hpcc starts no init system", "start the program itself"},
	"--dns":                 {"hpcc binds the host's /etc/resolv.conf", "--bind FILE:/etc/resolv.conf"},
	"--network-args":        {"hpcc creates no networks", "leave it out for the host's network, or use --net --network none"},
	"--netns-path":          {"hpcc does not join networks", "leave it out for the host's network, or use --net --network none"},
	"--containlibs":         {"hpcc binds libraries only with --nv and --rocm", "--bind the libraries, and set LD_LIBRARY_PATH with --env"},
	"--compat32":            {"hpcc does not bind 32-bit libraries of the driver", "leave the option out, or --bind them"},
	"--fusemount":           {"hpcc does not start FUSE file systems of users", "mount it on the host, and --bind the directory"},
	"--dmtcp-launch":        {"hpcc does not checkpoint programs", "start dmtcp_launch in the image"},
	"--dmtcp-restart":       {"hpcc does not checkpoint programs", "start dmtcp_restart in the image"},
	"--device":              {"hpcc takes CDI devices from its own option", "hpcc run --device NAME IMAGE -- CMD"},
	"--cdi-dirs":            {"hpcc takes CDI devices from its own option", "hpcc run --device NAME IMAGE -- CMD"},
	"--intel-hpu":           {"hpcc does not bind libraries for Intel HPUs", "--bind them"},
	"--runscript-timeout":   {"hpcc does not limit the time of environment scripts", "run the command with timeout(1)"},
	"--sharens":             {"hpcc shares namespaces by another option", "hpcc run --join IMAGE -- CMD"},
	"--oci": {"hpcc has no OCI mode of Apptainer",
		"leave it out; docker:// images keep Docker's meaning of ENTRYPOINT with apptainer run"},
	"--docker-login": noLogin, "--docker-username": noLogin, "--docker-password": noLogin, "--authfile": noLogin,
	"--docker-host": {"hpcc does not use a Docker daemon", "docker save NAME > FILE, and docker-archive:FILE"},
	"--passphrase":  noKeys, "--pem-path": noKeys,
	"--ignore-userns": {"hpcc needs a user namespace, also for --fakeroot", "leave it out"},
}

// idleApptainer maps options of subcommands without an observable effect to the reason; see idleRole.
var idleApptainer = map[string]map[string]string{
	"exec": {
		"-u,--userns":               "a container always has a user namespace",
		"--underlay":                "hpcc adds missing mount points in any case",
		"--unsquash":                "hpcc unpacks or mounts an image file as it needs",
		"--no-oci":                  "hpcc has only this mode",
		"--ignore-subuid":           "hpcc never uses subordinate IDs",
		"--ignore-fakeroot-command": "hpcc never uses the command fakeroot",
		"--tmpdir=":                 "temporary files are in hpcc's store",
	},
	"pull": {
		"-U,--allow-unsigned":     "hpcc demands no signatures",
		"--allow-unauthenticated": "hpcc demands no signatures",
		"--disable-cache":         "pull always asks the registry",
		"--reproducible":          "the same image is always the same file",
		"--tmpdir=":               "temporary files are in hpcc's store",
		"--no-cleanup":            "hpcc makes no bundle that could stay",
	},
	"build": {
		"-f,--fakeroot":             "programs of a build are always root of their container",
		"--userns":                  "a build always has a user namespace",
		"--ignore-subuid":           "hpcc never uses subordinate IDs",
		"--ignore-fakeroot-command": "hpcc never uses the command fakeroot",
		"--ignore-proot":            "hpcc never uses proot",
		"--disable-cache":           "build always asks the registry",
		"--tmpdir=":                 "temporary files are in hpcc's store",
		"--no-cleanup":              "hpcc makes no bundle that could stay",
		"--fix-perms":               "the owner can always change the files of a sandbox",
	},
	"cache": {
		"-f,--force":   "hpcc does not ask",
		"-v,--verbose": "hpcc prints all details in any case",
		"-a,--all":     "hpcc's store has no types of images",
	},
	"apptainer": {
		"-d,--debug": "it concerns messages only", "--nocolor": "it concerns messages only", "-s,--silent": "it concerns messages only",
		"-q,--quiet": "it concerns messages only", "-v,--verbose": "it concerns messages only",
	},
}

// start reads the options and arguments of exec, run, shell and test.
func (a *apptainer) start(action string, args []Word) (*Request, error) {
	table := Programs()["apptainer"].options
	var err error
	for len(args) > 0 && IsOption(args[0]) {
		if args, err = a.option(table, args); err != nil {
			return nil, err
		}
	}
	if len(args) > 0 && args[0].Text == "--" {
		args = args[1:]
	}
	if len(args) == 0 || (action == "exec" && len(args) == 1) {
		return nil, refusal(a.program, "", "it needs an image, and exec a command", a.program+" IMAGE COMMAND")
	}
	a.variables(table, apptainerRunVariables)
	if err := a.refuse(refusedRunOptions); err != nil {
		return nil, err
	}
	if a.on["--compat"] != "" {
		for _, name := range []string{"--containall", "--no-eval", "--no-umask", "--writable-tmpfs"} {
			a.on[name] = "--compat"
		}
	}
	if a.on["--containall"] != "" {
		for _, name := range []string{"--contain", "--pid", "--ipc", "--cleanenv"} {
			a.on[name] = "--containall"
		}
	}
	image, err := a.image(args[0].Text)
	if err != nil {
		return nil, err
	}
	r := &Request{Commands: image.commands}
	line := []string{"run"}
	shell := a.last("--shell")
	if action == "shell" && shell != "" {
		action = "exec"
	}
	line = append(append(line, "--action="+action), image.flags()...)
	for _, part := range []func(*imageSource, *Request) ([]string, error){a.isolation, a.capabilities, a.mounts, a.setEnvironment} {
		flags, err := part(image, r)
		if err != nil {
			return nil, err
		}
		line = append(line, flags...)
	}
	line = append(line, image.argument, "--")
	if a.verb == "shell" && shell != "" {
		line = append(line, shell)
	}
	for _, w := range args[1:] {
		line = append(line, w.Text)
	}
	r.Commands = append(r.Commands, Command{Args: line})
	return r, nil
}

// isolation returns the flags for namespaces, IDs, devices and changes of the image.
func (a *apptainer) isolation(image *imageSource, r *Request) (flags []string, err error) {
	has := func(names ...string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return a.on[n] != "" })
	}
	uts := a.last("--hostname")
	if host, err := os.Hostname(); err == nil && uts == "" && has("--uts") {
		uts = host // a namespace of its own with the same name
	}
	pid := has("--pid") && !has("--no-pid")
	network, hasNetwork := a.last("--network"), has("--net") || len(a.values["--network"]) > 0
	switch {
	case pid && has("--no-init") && !has("--compat"):
		return nil, refusal(a.program, a.text["--no-init"], "hpcc always starts an init process in a PID namespace",
			"leave --no-init out; the init passes signals on and ends with the program")
	case hasNetwork && network != "none":
		return nil, refusal(a.program, strings.TrimSpace("--net "+a.text["--network"]),
			"hpcc cannot create networks: only root can", "leave it out for the host's network, or use --net --network none")
	case has("--writable") && !image.isDir:
		return nil, refusal(a.program, a.text["--writable"], "the image is read-only",
			"use --writable-tmpfs for temporary changes, or apptainer build --sandbox DIR IMAGE and then --writable DIR")
	}
	for _, f := range []struct {
		is   bool
		flag string
	}{
		{pid, "--pid"}, {has("--ipc"), "--ipc"}, {hasNetwork, "--network=none"}, {has("--writable"), "--write"},
		{has("--writable-tmpfs"), "--write-fake"},
		{(has("--nv", "--nvccli") && !has("--no-nv")) || (has("--rocm") && !has("--no-rocm")), "--gpu"},
	} {
		if f.is {
			flags = append(flags, f.flag)
		}
	}
	if slices.Contains(flags, "--gpu") && !hasGPU() {
		flags = slices.DeleteFunc(flags, func(f string) bool { return f == "--gpu" })
		r.Notes = append(r.Notes, "this machine has no GPU; continuing without")
	}
	if has("--fakeroot") {
		flags = append(flags, "--uid=0", "--gid=0", "--seccomp")
	}
	if uts != "" {
		flags = append(flags, "--hostname="+uts)
	}
	if has("--no-umask") {
		r.Umask = 0o022
	}
	return flags, nil
}

// hasGPU reports whether the kernel has a driver for GPUs.
func hasGPU() bool {
	for _, device := range []string{"/dev/nvidiactl", "/dev/kfd"} {
		if _, err := os.Stat(device); err == nil {
			return true
		}
	}
	return false
}

// mounts returns the flags for mounts and for the working directory.
func (a *apptainer) mounts(image *imageSource, r *Request) (flags []string, err error) {
	without, err := a.withoutMounts()
	if err != nil {
		return nil, err
	}
	contain := a.on["--contain"] != ""
	own, home := a.home()
	var implicit, all []mount
	if contain {
		tmp := a.emptyDir("/tmp", "tmp", "1777")
		if flags = append(flags, "--private-tmp"); tmp.source != "" {
			all = append(all, tmp)
		} else {
			implicit = append(implicit, tmp)
		}
		all = append(all, a.emptyDir("/var/tmp", "var_tmp", "1777"), mount{at: "/dev/shm", mode: "1777"})
	} else {
		implicit = append(implicit, mount{source: "/tmp", at: "/tmp"})
		if isDirectory("/var/tmp") {
			all = append(all, mount{source: "/var/tmp", at: "/var/tmp"})
		}
	}
	switch {
	case without["home"] && len(a.values["--home"]) == 0:
		flags = append(flags, "--no-home")
	case contain && len(a.values["--home"]) == 0:
		flags = append(flags, "--no-home")
		all = append(all, a.emptyDir(home, "home", "755"))
	case own != home || len(a.values["--home"]) > 0:
		flags = append(flags, "--no-home")
		all = append(all, mount{source: own, at: home})
	default:
		implicit = append(implicit, mount{source: home, at: home})
	}
	caller := a.callerHome()
	if !contain && !without["cwd"] && slices.Contains(flags, "--no-home") && caller != "" &&
		below(a.dir, caller) && !slices.ContainsFunc(all, func(m mount) bool { return m.source == m.at && below(a.dir, m.at) }) {
		all = append(all, mount{source: a.dir, at: a.dir}) // hpcc run binds no directory of the home with --no-home
	}
	if w := a.last("--workdir"); w != "" && contain {
		for _, m := range all {
			if m.source != "" && below(m.source, a.absolute(w)) {
				r.Make = append(r.Make, m.source+"/")
			}
		}
	}
	user, err := a.userMounts()
	if err != nil {
		return nil, err
	}
	for _, m := range user {
		if m.mode != "" && m.source != "" { // --scratch in the --workdir
			r.Make = append(r.Make, m.source+"/")
		}
	}
	all = append(all, user...)
	r.Make = append(r.Make, mountPoints(append(implicit, all...))...)
	more, err := a.mountFlags(all)
	if err != nil {
		return nil, err
	}
	flags = append(flags, more...)
	return append(flags, a.workingDir(home, contain || without["cwd"], all, r)...), nil
}

// emptyDir returns the mount of an empty directory, or of one in the directory of --workdir.
func (a *apptainer) emptyDir(at, name, mode string) mount {
	if w := a.last("--workdir"); w != "" {
		return mount{source: filepath.Join(a.absolute(w), name), at: at}
	}
	return mount{at: at, mode: mode}
}

// callerHome returns the home directory of the caller. Nextflow starts containers without HOME.
func (a *apptainer) callerHome() string {
	h := a.env("HOME")
	if h == "" {
		if u, err := user.Current(); err == nil {
			h = u.HomeDir
		}
	}
	return cmp.Or(h, "/")
}

// home returns the directory of the host that is the home directory in the container, and its
// path there.
func (a *apptainer) home() (own, home string) {
	own = a.callerHome()
	if home = own; a.on["--fakeroot"] != "" {
		home = "/root"
	}
	if v := a.last("--home"); v != "" {
		f := splitEscaped(v, ':')
		own = a.absolute(unescape(f[0]))
		if home = own; len(f) > 1 {
			home = unescape(f[1])
		}
	}
	return own, home
}

// workingDir returns the flag for the working directory. Without one, "hpcc run --action" chooses
// the caller's directory if the container has it, or else the home directory. If the caller's
// directory must not be bound, hpcc run starts elsewhere and so cannot choose. A mount of the user
// may also hide the caller's directory.
func (a *apptainer) workingDir(home string, unbound bool, all []mount, r *Request) []string {
	dir := a.last("--cwd")
	if unbound {
		r.Dir = "/"
	}
	if dir != "" {
		return []string{"--cd=" + dir}
	}
	is := !unbound || a.dir == "/" || a.dir == "/tmp"
	for _, m := range all {
		if !below(a.dir, m.at) {
			continue
		}
		if is = a.dir == m.at; m.source != "" {
			is = isDirectory(filepath.Join(m.source, strings.TrimPrefix(a.dir, m.at)))
		}
	}
	switch {
	case !is:
		return []string{"--cd=" + home}
	case unbound:
		return []string{"--cd=" + a.dir}
	}
	return nil
}

// withoutMounts reads --no-home and --no-mount.
func (a *apptainer) withoutMounts() (without map[string]bool, err error) {
	without = map[string]bool{"home": a.on["--no-home"] != ""}
	for _, list := range a.values["--no-mount"] {
		for name := range strings.SplitSeq(list, ",") {
			switch name {
			case "home", "cwd":
				without[name] = true
			case "hostfs", "/etc/localtime", "": // hpcc does not mount them
			default:
				return nil, refusal(a.program, "--no-mount "+list, fmt.Sprintf("hpcc always mounts %s",
					cmp.Or(map[string]string{"bind-paths": "/etc/hosts and /etc/resolv.conf"}[name], name)),
					"leave it out; home, cwd and hostfs are possible")
			}
		}
	}
	return without, nil
}

// isDirectory reports whether a path is a directory.
func isDirectory(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
