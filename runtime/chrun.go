package runtime

import (
	"os"
	"path/filepath"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// chRunPaths are the host's files that ch-run binds if the image has them as well: its manual,
// "Host files and directories available in container via bind mounts".
var chRunPaths = []string{
	"/etc/machine-id", "/var/lib/hugetlbfs", "/etc/opt/cray/wlm_detect", "/opt/cray/wlm_detect", "/opt/cray/alps",
	"/opt/cray/udreg", "/opt/cray/ugni", "/opt/cray/xpmem", "/var/opt/cray/alps", "/var/spool/slurmd",
}

// chRunMounts returns ch-run's binds of chRunPaths for an image.
func chRunMounts(root string) []specs.Mount {
	var m []specs.Mount
	for _, p := range chRunPaths {
		if exists(p) && exists(filepath.Join(root, p)) {
			m = append(m, bind(p, p))
		}
	}
	return m
}

// chRunEnvironment returns the caller's variables as ch-run changes them: HOME is the image's
// /root or /, PATH contains /bin, and TMPDIR is unset.
func chRunEnvironment(host []string, root string) []string {
	var env []string
	for _, kv := range host {
		switch name, _, _ := strings.Cut(kv, "="); name {
		case "HOME", "PATH", "TMPDIR", ladderVar:
		default:
			env = append(env, kv)
		}
	}
	if path, ok := os.LookupEnv("PATH"); ok {
		if !strings.HasPrefix(path, "/bin") && !strings.Contains(path, ":/bin") {
			path += ":/bin"
		}
		env = append(env, "PATH="+path)
	}
	home := "/"
	if isDir(filepath.Join(root, "root")) {
		home = "/root"
	}
	return append(env, "HOME="+home)
}
