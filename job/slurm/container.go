package slurm

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"

	"hpcc/front"
	"hpcc/job"
	"hpcc/job/dialect"
	"hpcc/job/field"
	"hpcc/text"
)

// The options below start a program in an image. Most belong to the plugin pyxis, which hands them to enroot on the
// node (github.com/NVIDIA/pyxis, args.c). --container and --container-id are Slurm's own, for an OCI bundle. sbatch
// starts the script in the image, on the first node; srun starts its program.

// containerRoles are the options of srun by their meaning.
var containerRoles = map[string]front.Role{
	"--container-image": front.Image, "--container": front.Image,
	"--container-mounts": front.Bind, "--container-workdir": front.Dir, "--container-env": front.EnvList,
	"--container-name": front.Value, "--container-id": front.Value,
	"--container-mount-home": front.Flag, "--no-container-mount-home": front.Flag, "--container-readonly": front.Flag,
	"--container-writable":   front.Flag,
	"--container-remap-root": front.Flag, "--no-container-remap-root": front.Flag, "--no-container-entrypoint": front.Flag,
	"--container-entrypoint-log": front.Flag,
	"--container-entrypoint":     front.Refused, "--container-save": front.RefusedValue, "--container-unshare": front.RefusedValue,
}

// containerFlags are the flags of "hpcc run" with the meaning of options without a value. An option that hpcc has by
// default has none.
var containerFlags = map[string]string{
	"--no-container-mount-home": "--no-home", "--container-writable": "--write-fake", "--container-remap-root": "--uid=0 --gid=0",
	"--container-mount-home": "", "--container-readonly": "", "--no-container-remap-root": "",
	"--no-container-entrypoint": "", "--container-entrypoint-log": "",
}

// addContainer adds these options to those of sbatch.
func addContainer(o dialect.Options) dialect.Options {
	maps.Copy(o.Values, map[string]dialect.Setter{
		"--container-image": readContainerImage, "--container": readBundle, "--container-mounts": readContainerMounts,
		"--container-workdir": readContainerDir,
		"--container-env":     readContainerEnv, "--container-name": readContainerName,
		"--container-id":   containerNote("left out: the ID is for the OCI runtime of the site"),
		"--container-save": dialect.Refuse("a job of hpcc does not change its image: build the image with \"hpcc build\""),
		"--container-unshare": dialect.Refuse("use --network none of hpcc for a program without network; a job keeps the " +
			"other namespaces of its node"),
	})
	maps.Copy(o.Flags, map[string]dialect.Setter{
		"--container-entrypoint":     readEntrypoint,
		"--no-container-entrypoint":  containerFlag("--no-container-entrypoint", "the default of the plugin"),
		"--container-entrypoint-log": containerNote("left out: the output of the entry point is in the job's output"),
		"--container-mount-home":     containerFlag("--container-mount-home", "hpcc binds the home directory by default"),
		"--no-container-mount-home":  containerFlag("--no-container-mount-home", ""),
		"--container-remap-root":     containerFlag("--container-remap-root", ""),
		"--no-container-remap-root":  containerFlag("--no-container-remap-root", "the default"),
		"--container-readonly":       containerFlag("--container-readonly", "the default"),
		"--container-writable":       containerFlag("--container-writable", "changes are in memory and last until the program ends"),
	})
	return o
}

var registryName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?$`) })

var imageName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9.-]+:[0-9]+/)?[a-z0-9][a-z0-9._/-]*(:[A-Za-z0-9_][A-Za-z0-9._-]*)?(@sha256:[0-9a-f]{64})?$`)
})

// containerImage converts an image in the notation of enroot, [docker://][USER@][REGISTRY#]IMAGE[:TAG], to the name of
// the image. It returns the path of a SquashFS file unchanged.
func containerImage(v string) (string, error) {
	if (strings.HasPrefix(v, "/") || strings.HasPrefix(v, ".")) && !strings.Contains(v, "$") {
		return v, nil
	}
	name := strings.TrimPrefix(v, "docker://")
	switch {
	case strings.HasPrefix(v, "dockerd://"), strings.HasPrefix(v, "podman://"):
		return "", fmt.Errorf("%s is in the store of a daemon: push it to a registry, and name it as IMAGE of hpcc", text.Short(v))
	case strings.Contains(name, "://"):
		return "", fmt.Errorf("%s is not the name of an image: name it as IMAGE of hpcc", text.Short(v))
	}
	registry, rest, named := strings.Cut(name, "#")
	if user, host, ok := strings.Cut(registry, "@"); ok && named && user != "" {
		registry = host
	} else if !named {
		registry, rest = "", name
	}
	if (named && !registryName().MatchString(registry)) || !imageName().MatchString(rest) {
		return "", fmt.Errorf("%q is not the name of an image: name it as IMAGE of hpcc", text.Short(v))
	}
	if registry != "" {
		rest = registry + "/" + rest
	}
	return rest, nil
}

// containerMounts converts SRC[:DST[:FLAGS]][,…] to flags of "hpcc run". The flags of a mount are separated by "+".
func containerMounts(v string) ([]string, error) {
	var out []string
	for item := range strings.SplitSeq(strings.TrimSpace(v), ",") {
		part := strings.SplitN(strings.TrimSpace(item), ":", 3)
		from, to := part[0], part[min(len(part)-1, 1)]
		switch {
		case from == "" || to == "":
			return nil, fmt.Errorf("%q is not SRC:DST", text.Short(item))
		case from == "umount":
			return nil, fmt.Errorf("%q removes a mount point of the site: leave it out, because hpcc does not add mounts of a "+
				"site", text.Short(item))
		case from == "tmpfs":
			out = append(out, "--mount=type=tmpfs,target="+to)
			continue
		case from[0] != '/' && from[0] != '.' && from[0] != '$':
			return nil, fmt.Errorf("%q: pyxis requires a source that begins with a slash or a dot", text.Short(item))
		case to[0] != '/' && to[0] != '$':
			return nil, fmt.Errorf("%q: the path in the image is not absolute", text.Short(item))
		}
		bind := "--bind=" + from + ":" + to
		if len(part) > 2 {
			for f := range strings.SplitSeq(part[2], "+") {
				switch {
				case f == "ro":
					bind += ":ro"
				case f == "" || slices.Contains(harmlessFlags, f):
				default:
					return nil, fmt.Errorf("%q has the mount flag %s, which hpcc does not have: leave it out", text.Short(item), f)
				}
			}
		}
		out = append(out, bind)
	}
	return out, nil
}

// harmlessFlags are flags of a mount with which a program finds the same files.
var harmlessFlags = strings.Fields("rw bind rbind nosuid nodev private rprivate slave rslave x-create=auto " +
	"x-create=dir x-create=file nofail")

// readContainerImage takes the image of the script. [translate] reports the image that the job gets.
func readContainerImage(r *dialect.Reader, v string) error {
	image, err := containerImage(v)
	r.N.Image = true
	r.Row.Fills(field.Image)
	switch {
	case err != nil:
		return err
	case path.IsAbs(image) || image[0] == '.':
		return takeFile(r, image, "without the variables of the image, which enroot keeps in its /etc/environment")
	case r.To.Target.Pods():
		image = qualified(image)
	}
	r.Job.Image = image
	return nil
}

// readBundle takes the root directory of an OCI bundle as the image of the script.
func readBundle(r *dialect.Reader, v string) error {
	r.N.Image = true
	r.Row.Fills(field.Image)
	return takeFile(r, path.Join(v, "rootfs"), "without the settings of the bundle's config.json")
}

// takeFile takes a file or directory as the image of the script.
func takeFile(r *dialect.Reader, file, how string) error {
	if r.To.Target.Pods() {
		return errors.New("pods cannot use a file of the host as their image: push the image to a registry, and give its name as IMAGE")
	}
	r.Job.Image = absolute(r, file)
	r.Changed("%s", how)
	return nil
}

// qualified returns the name of an image with its registry.
func qualified(name string) string {
	host, _, ok := strings.Cut(name, "/")
	switch {
	case ok && (strings.ContainsAny(host, ".:") || host == "localhost"):
		return name
	case ok:
		return "docker.io/" + name
	}
	return "docker.io/library/" + name
}

// absolute returns a path of the submission.
func absolute(r *dialect.Reader, p string) string {
	if path.IsAbs(p) {
		return p
	}
	return path.Join(r.Dir, p)
}

func readContainerMounts(r *dialect.Reader, v string) error {
	flags, err := containerMounts(v)
	if err != nil {
		return err
	}
	for i, f := range flags {
		if bind, ok := strings.CutPrefix(f, "--bind="); ok {
			from, to, _ := strings.Cut(bind, ":")
			flags[i] = "--bind=" + absolute(r, from) + ":" + to
		}
	}
	return run(r, flags...)
}

// run adds flags of "hpcc run" to the job, and reports them. For pods, the translation turns binds into volumes.
func run(r *dialect.Reader, flags ...string) error {
	r.Job.Run = append(slices.Clip(r.Job.Run), flags...)
	r.Row.Fills(field.Run)
	if !r.To.Target.Pods() {
		r.Row.Become(field.Kept, strings.Join(flags, " "))
	}
	return nil
}

func readContainerDir(r *dialect.Reader, v string) error {
	switch {
	case !path.IsAbs(v):
		return fmt.Errorf("%q is not absolute: use --cd of hpcc", text.Short(v))
	case r.To.Target.Pods():
		r.Job.Pod.Dir = v
		r.Row.Fills(field.Run)
		return nil
	}
	return run(r, "--cd="+v)
}

// readContainerEnv reads NAME[,NAME]: variables of the job that override those of the image.
func readContainerEnv(r *dialect.Reader, v string) error {
	var flags []string
	for name := range strings.SplitSeq(v, ",") {
		name, _, set := strings.Cut(name, "=")
		switch {
		case set:
			return fmt.Errorf("it takes the names of variables, without values: use --env %s=VALUE of hpcc", text.Short(name))
		case !job.EnvName().MatchString(name):
			return fmt.Errorf("%q is not the name of a variable", text.Short(name))
		}
		flags = append(flags, "--env="+name)
	}
	if r.To.Target.Pods() {
		return errors.New("pods get no variables of the submitting shell: use --env NAME=VALUE of hpcc")
	}
	return run(r, flags...)
}

// readContainerName reads the name under which later steps find the container. Without an image it is a container
// of an earlier job.
func readContainerName(r *dialect.Reader, v string) error {
	r.N.Container = true
	r.Changed("left out: tasks share one unchanged image, so %s is the image without changes of earlier jobs", text.Short(v))
	return nil
}

// finishContainer completes the options of an image. The plugin starts an entry point only if the script asks for it.
func finishContainer(r *dialect.Reader) {
	j := r.Job
	given := func(flag string) bool {
		return slices.ContainsFunc(j.Run, func(f string) bool { return strings.HasPrefix(f, flag+"=") })
	}
	switch {
	case !r.N.Image && !r.N.Container:
		r.Rows.SetFate(field.Refused, "the plugin ignores it without an image", field.Run)
		j.Run, j.Pod.Dir = nil, ""
	case !r.To.Target.Pods():
		if !r.N.Entrypoint {
			j.Run = append(slices.Clip(j.Run), "--entrypoint=")
		}
		if j.GPUs+r.N.TotalGPUs+r.N.GPUsPerTask > 0 { // as enroot does for images of CUDA
			j.Run = append(j.Run, "--gpu")
		}
		if !given("--cd") {
			r.Rows.SetFate(field.Changed, "it starts in the job's directory, and the plugin in the image's working directory: "+
				"--cd sets it", field.Image)
		}
	}
}

func readEntrypoint(r *dialect.Reader, _ string) error {
	r.N.Entrypoint = true
	if r.To.Target.Pods() {
		r.Changed("the image's entry point runs if it is in the image's configuration")
	}
	return nil
}

// containerNote returns the Setter of an option that hpcc leaves out.
func containerNote(how string) dialect.Setter {
	return func(r *dialect.Reader, _ string) error { r.Changed("%s", how); return nil }
}

// containerFlag returns the Setter of an option without a value.
func containerFlag(name, how string) dialect.Setter {
	return func(r *dialect.Reader, _ string) error {
		flags := strings.Fields(containerFlags[name])
		if r.To.Target.Pods() {
			r.Changed("left out: pods do not have your home directory, and their user may write where the image permits it")
			return nil
		}
		if err := run(r, flags...); err != nil {
			return err
		}
		fate := field.Kept
		if name == "--container-writable" {
			fate = field.Emulated
		}
		r.Row.Become(fate, how)
		return nil
	}
}
