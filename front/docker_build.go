package front

import (
	"slices"
	"strings"
)

// Options of build, which are those of "docker buildx build" too.
const (
	dockerBuildValues = "-t,--tag -f,--file --build-arg --target --platform --secret --ssh --label --iidfile --progress --build-context --cache-from --cache-to --no-cache-filter " +
		"-o,--output --annotation --metadata-file --attest --provenance --sbom --network --builder --allow --call --add-host --cgroup-parent --cpu-period --cpu-quota -c,--cpu-shares " +
		"--cpuset-cpus --cpuset-mems --isolation -m,--memory --memory-swap --security-opt --shm-size --ulimit"
	dockerBuildFlags = "--no-cache --pull -q,--quiet --push --squash --check --disable-content-trust"
)

// idleDockerBuild maps options of build without an observable effect to the reason.
var idleDockerBuild = map[string]string{
	"--load":     "images are always in hpcc's store, which docker run uses",
	"--rm":       "hpcc keeps no containers of steps",
	"--force-rm": "hpcc keeps no containers of steps",
	"--compress": "the context is not sent anywhere",
	"-D,--debug": "it concerns messages of Docker's own program",
}

// passedBuildOptions are options of build with the same name and meaning in hpcc.
var passedBuildOptions = strings.Fields("--tag --file --build-arg --target --secret --ssh --label --iidfile --build-context --cache-from --cache-to --no-cache-filter " +
	"--output --annotation --metadata-file --attest --provenance")

var stepLimits = [2]string{"hpcc does not limit the resources of RUN", "leave it out; in a job, the scheduler limits the build"}

// refusedDockerBuild holds the reason and the advice for each option of build that is not supported.
var refusedDockerBuild = map[string][2]string{
	"--add-host":      {"RUN sees the host's /etc/hosts", "write the line to a file, and RUN --mount=type=bind"},
	"--builder":       noBuilders,
	"--squash":        {"hpcc keeps a layer for each step", "copy the result in a second stage: FROM scratch, COPY --from=0 / /"},
	"--cgroup-parent": stepLimits, "--cpu-period": stepLimits, "--cpu-quota": stepLimits,
	"--cpu-shares": stepLimits, "--cpuset-cpus": stepLimits, "--cpuset-mems": stepLimits,
	"--memory": stepLimits, "--memory-swap": stepLimits, "--shm-size": stepLimits, "--ulimit": stepLimits,
	"--security-opt": {"hpcc applies no security profiles to RUN", "leave it out"},
}

// buildChoices are the options of build of which hpcc supports some values.
var buildChoices = []choice{
	{"--network", "default host", "RUN uses the host's network", "leave it out"},
	{"--allow", "network.host", "RUN has the rights of the user", "leave it out"},
	{"--isolation", "default", "hpcc has one kind of isolation", "leave it out"},
	{"--call", "build check", "hpcc builds or checks", "leave it out"},
	{"--sbom", "false", "hpcc does not list packages", "hpcc save NAME image.tar && syft image.tar"},
	{"--progress", "auto plain tty quiet", "hpcc prints the progress in its own formats", "--progress plain"},
}

func (d *docker) build(args []string) (*Request, error) {
	if err := d.choose(buildChoices); err != nil {
		return nil, err
	}
	line := []string{"build"}
	for _, name := range passedBuildOptions {
		for _, v := range d.values[name] {
			line = append(line, name+"="+v)
		}
	}
	if p := d.platform(); p != "" {
		line = append(line, "--platform="+p)
	}
	progress := d.last("--progress")
	if progress != "" && progress != "quiet" {
		line = append(line, "--progress="+progress)
	}
	for _, name := range []string{"--no-cache", "--pull"} {
		if d.on[name] != "" {
			line = append(line, name)
		}
	}
	check := d.on["--check"] != "" || d.last("--call") == "check"
	tags := d.values["--tag"]
	switch isPushed := d.on["--push"] != ""; {
	case check:
		line = append(line, "--check")
	case isPushed && len(tags) == 0:
		return nil, refusal(d.program, "--push", "the image has no name in a registry", "-t REGISTRY/NAME")
	case len(tags) == 0:
		line = append(line, "--tag="+storeName("docker", d.absolute(args[0]), d.values["--file"], d.values["--target"]))
	}
	r := &Request{Commands: []Command{{Args: append(line, args[0]), Quiet: d.on["--quiet"] != "" || progress == "quiet"}}}
	if d.on["--push"] != "" && !check {
		for _, t := range tags {
			r.Commands = append(r.Commands, Command{Args: []string{"push", t}})
		}
	}
	return r, nil
}

// A choice is an option of which hpcc supports some values.
type choice struct{ name, values, why, advice string }

// choose refuses the other values of options.
func (l *commandLine) choose(list []choice) error {
	for _, c := range list {
		for _, v := range l.values[c.name] {
			if !slices.Contains(strings.Fields(c.values), v) {
				return refusal(l.program, c.name+" "+v, c.why, c.advice)
			}
		}
	}
	return nil
}
