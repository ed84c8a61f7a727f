package slurm

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/job"
	"hpcc/job/jobscript"
)

// With Job.Plugin the site's plugin pyxis runs the image. The options stand on an srun line, not in directives: with
// directives sbatch would start the script itself in the image, on the first node only, where neither hpcc nor srun
// exists. So "hpcc task" runs on the host, once for each task of an array, and each of its retries starts srun, which
// creates the container on every node of the task.

// A pluginRun is a job for the plugin.
type pluginRun struct {
	options       []string
	mounts, names []string // of --container-mounts and --container-env
	dir           string
	home, gpu     bool
}

// srunInImage returns the launcher of a job whose image the plugin runs, and lines that precede it in the script.
func srunInImage(j *job.Job) (launch []string, lines string, err error) {
	if err := checkPlugin(j); err != nil {
		return nil, "", err
	}
	p := &pluginRun{dir: j.Dir, home: true, mounts: []string{j.Dir + ":" + j.Dir}}
	for _, flag := range j.Run {
		if err := p.flag(j, flag); err != nil {
			return nil, "", fmt.Errorf("the plugin pyxis: %w", err)
		}
	}
	w := srun(j)
	if !j.StartsProcesses() {
		w = append(w, "--nodes=1", "--ntasks=1")
	}
	w = append(w, "--container-image="+enrootImage(j.Image), "--container-mounts="+strings.Join(p.mounts, ","), "--container-workdir="+p.dir)
	w = append(w, map[bool]string{true: "--container-mount-home", false: "--no-container-mount-home"}[p.home], "--no-container-entrypoint")
	w = append(w, p.options...)
	if p.gpu {
		p.names = append(p.names, "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES")
		lines = "# The hook of enroot binds the driver if these are set:\nexport NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility\n"
	}
	names := append([]string{"HPCC_TASK_ID", "HPCC_TASK_COUNT"}, p.names...)
	return append(w, "--container-env="+strings.Join(names, ",")), lines, nil
}

// checkPlugin returns an error for a job that needs hpcc in its image.
func checkPlugin(j *job.Job) error {
	for _, f := range []struct {
		flag, why string
		used      bool
	}{
		{"--from", "translated scripts run with hpcc; the lines of a script keep their own options for pyxis", j.Script != nil},
		{"--ray", "hpcc starts Ray in the image", j.Ray},
		{"--measure", "hpcc sees the processes of the node, not those that the plugin starts", j.Measure},
		{"--retry-mem", "hpcc does not see that a program ran out of memory in a step", j.Retry.Memory != (job.Retry{}).Memory},
		{"--tensorboard", "hpcc starts TensorBoard in the image", j.Tensorboard != ""},
		{"--interactive", "use srun --pty --container-image=" + enrootImage(j.Image) + " on the login node", j.Interactive},
	} {
		if f.used {
			return fmt.Errorf("%s cannot be used with --pyxis: %s; leave out one of them", f.flag, f.why)
		}
	}
	if _, err := containerImage(j.Image); err != nil || j.Image[0] == '.' {
		return fmt.Errorf("image %q: pyxis needs the name of an image in a registry, or the absolute path of a SquashFS file", j.Image)
	}
	for _, s := range []string{j.Dir, j.Image} {
		if strings.ContainsAny(s, ",:") && strings.HasPrefix(s, "/") {
			return fmt.Errorf("%q contains a comma or a colon, which separate mounts of pyxis", s)
		}
	}
	return nil
}

// hostNames are variables that change the programs of the host, or that the plugin does not pass on.
var hostNames = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(PATH|LD_.*|SLURM_.*|SRUN_.*|PMI_.*|PMIX_.*|ENROOT_.*|PYXIS_.*|HPCC_.*|BASH_ENV|IFS)$`)
})

// flag converts a flag of "hpcc run".
func (p *pluginRun) flag(j *job.Job, flag string) error {
	name, v, _ := strings.Cut(flag, "=")
	switch name {
	case "--bind":
		return p.bind(v)
	case "--mount":
		to, ok := strings.CutPrefix(v, "type=tmpfs,target=")
		if !ok || strings.ContainsAny(to, ",:") {
			return fmt.Errorf("it has no equivalent of %s: use --bind SRC:DST, or --mount type=tmpfs,target=DIR", flag)
		}
		p.mounts = append(p.mounts, "tmpfs:"+to)
	case "--cd":
		p.dir = v
		if !path.IsAbs(v) {
			p.dir = path.Join(j.Dir, v)
		}
	case "--env":
		if hostNames().MatchString(v) {
			return fmt.Errorf("variable %s would change the launcher on the host: set it in the image, with \"IMAGE -- env %s=VALUE CMD\"", v, v)
		}
		p.names = append(p.names, v)
	case "--gpu":
		p.gpu = v != "false"
	case "--write-fake":
		if v != "" && v != "12%" { // hpcc's default
			return fmt.Errorf("it does not limit the size of changes: write --write-fake without %s", v)
		}
		p.options = append(p.options, "--container-writable")
	case "--private-tmp":
		p.mounts = append(p.mounts, "tmpfs:/tmp")
	case "--no-home":
		p.home = v == "false"
	case "--uid", "--gid":
		if v != "0" {
			return fmt.Errorf("it has only your IDs and root's: leave out %s", flag)
		}
		if o := "--container-remap-root"; !slices.Contains(p.options, o) {
			p.options = append(p.options, o)
		}
	case "--network":
		if v == "none" {
			p.options = append(p.options, "--container-unshare=net")
		}
	case "--entrypoint":
		if v != "" {
			return fmt.Errorf("it does not replace the entry point: write %s before CMD", cmp.Or(v, "the program"))
		}
	case "--home", "--no-config":
	case "--mpi":
		if v != "pmix" {
			return fmt.Errorf("it has no equivalent of %s: the image needs an MPI with PMIx", flag)
		}
	default:
		return fmt.Errorf("it has no equivalent of %s: leave out the flag, or leave out --pyxis", name)
	}
	return nil
}

// bind converts SRC[:DST[:ro]].
func (p *pluginRun) bind(v string) error {
	part := strings.Split(v, ":")
	if len(part) == 1 {
		part = append(part, part[0])
	}
	bad := len(part) > 3 || strings.Contains(v, ",") || !path.IsAbs(part[0]) || !path.IsAbs(part[1])
	if bad || (len(part) == 3 && part[2] != "ro" && part[2] != "rw") {
		return fmt.Errorf("--bind %s is not SRC:DST[:ro] without commas", v)
	}
	p.mounts = append(p.mounts, strings.TrimSuffix(strings.Join(part, ":"), ":rw"))
	return nil
}

// pluginNotes are the differences between hpcc and the plugin.
func pluginNotes(j *job.Job) []string {
	notes := []string{"the site's plugin pyxis runs the image: hpcc does not start its ENTRYPOINT, and does not read run.conf"}
	if !strings.HasPrefix(j.Image, "/") {
		notes = append(notes, "enroot pulls "+enrootImage(j.Image)+" on each node of each task; a SquashFS file on a shared file system is pulled once: enroot import -o FILE.sqsh docker://"+enrootImage(j.Image))
	}
	return notes
}

// launchWith writes the lines of the plugin, and returns the launcher.
func launchWith(t *jobscript.Writer, j *job.Job) ([]string, []string, error) {
	if !j.Plugin {
		return srun(j), nil, nil
	}
	launch, lines, err := srunInImage(j)
	t.WriteString(lines)
	return launch, pluginNotes(j), err
}
