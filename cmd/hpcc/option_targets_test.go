package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/urfave/cli/v2"

	"hpcc/job"
	"hpcc/job/dispatch"
	"hpcc/job/prepare"
	"hpcc/job/site"
	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// optionUses are the arguments with which a flag is tested: its own ones, and before "|" others that
// it needs. A boolean flag without a use is given alone. % is the directory of the test; "-" is the use of
// a flag that does not change the job itself.
var optionUses = map[string]string{
	"to": "-", "on": "-", "job": "-", "record": "-", "store": "-",
	"name": "--name other", "array": "--array 1-8", "nodes": "--nodes 3", "tasks": "--tasks 3", "tasks-per-node": "--tasks-per-node 2", "cpus": "--cpus 3",
	"mem": "--mem 3G", "gpus": "--gpus 2", "time": "--time 3h", "queue": "--queue q", "output": "--output o.txt", "env": "--env A=1",
	"sweep": "--sweep lr=1,2", "params": "--params %/params.csv", "pack": "--array 1-8 | --pack", "retry": "--retry 2", "retry-on": "--retry 2 | --retry-on exit=99",
	"from": "--from %/job.sh", "dialect": "--from %/job.sh | --dialect lsf", "report": "--from %/job.sh | --report none", "strict": "-",
	"retry-mem": "--retry 2 --mem 1G | --retry-mem x2", "retry-time": "--retry 2 --time 1h | --retry-time x2", "account": "--account lab", "after": "--after 17",
	"signal": "--time 1h | --signal USR1@5m", "mail": "--mail a@example.org", "error": "--error e.txt", "chdir": "--chdir %", "native": "--native --x=1",
	"tensorboard": "--volume scratch:/logs | --tensorboard /logs", "context": "--context c", "namespace": "--namespace n", "volume": "--volume data:/data", "port": "--port web=80", "secret": "--secret s",
	"with-code": "--with-code %/code", "scratch": "--scratch 1G", "node-label": "--node-label a=b", "gpu-type": "--gpus 1 | --gpu-type a100", "service-account": "--service-account s",
	"pull": "--pull always", "pull-secret": "--pull-secret s", "server": "--server https://localhost:1", "token-file": "--server https://localhost:1 | --token-file %/params.csv",
	"ca-file": "--server https://localhost:1 | --ca-file %/params.csv", "insecure-skip-verify": "--server https://localhost:1 | --insecure-skip-verify",
	"workflow": "-", "parameter": "--parameter a=b", "artifact": "--artifact out:/out",
	"set-env": "--set-env A=1", "env0": "--env0 %/env", "set-env0": "--set-env0 %/env", "unset-env": "--unset-env OF_IMAGE", "env-no-expand": "--set-env A=$HOME | --env-no-expand",
	"home": "--home", "no-home": "--no-home", "cd": "--cd /d", "bind": "--bind /mnt", "write-fake": "--write-fake=10m", "device": "--device nvidia.com/gpu=all", "mpi": "--mpi host",
	"mount": "--mount type=tmpfs,target=/m", "entrypoint": "--entrypoint /bin/x", "uid": "--uid 1234", "gid": "--gid 1234", "network": "--network none", "hostname": "--hostname h",
	"join-ct": "--join-ct 2", "join-tag": "--join-tag t", "join-pid": "--join-pid 7",
	"wait": "-", "dry-run": "-", "explain": "-", "json": "-", "backfill": "-", "time-min": "-", // after the rendering: the scripts job_*, nodes_*
}

// unnoticed are the options that change nothing on a target, or on targets with pods, with the
// reason why that is what they mean.
var unnoticed = map[string]string{
	"private-tmp pods":  "a pod has an empty /tmp",
	"no-home pods":      "a pod sees no directory of the host",
	"no-passwd pods":    "a pod has the files of its image",
	"pid pods":          "a pod has its own process namespace, with the pause container as init",
	"ipc pods":          "a pod has its own IPC namespace",
	"no-config pods":    "a pod does not read run.conf",
	"stage pods":        "the node pulls the image to its local storage",
	"any-uid openshift": "the default there",
	"output pods":       "hpcc copies the log of the pod to the file",
	"name interactive":  "the job's ID begins with it",
}

// TestOptionsOnTargets gives each option of a job to each target. It must change the script or manifest,
// add a note, or be refused. The result is compared with that of the same command line without the
// option. That "hpcc run" in a script honours its own options is tested elsewhere.
func TestOptionsOnTargets(t *testing.T) {
	testenv.Slow(t)
	dir := testenv.Files(t, "params.csv", "lr\n1\n", "job.sh", "#!/bin/bash\n#SBATCH --ntasks=2\ntrue\n", "env", "A=1\x00", "code/", "", "code/main.py", "x = 1\n")
	t.Setenv("HPCC_STORE", filepath.Join(dir, "store"))
	s, err := store.Open(os.Getenv("HPCC_STORE"))
	testenv.Check(t, err)
	img, err := mutate.Config(empty.Image, v1.Config{Env: []string{"OF_IMAGE=1"}})
	testenv.Check(t, err)
	_, err = s.Put(t.Context(), "registry.example.org/app", img)
	testenv.Check(t, err)

	used, known := map[string]bool{}, map[string]rendering{}
	for target := range strings.SplitSeq(targetNames, ", ") {
		modes := []string{"", "--interactive"}
		if _, err := rendered(t, target, "--interactive"); err != nil {
			modes = modes[:1]
		}
		for _, f := range submitCommand().Flags {
			name := f.Names()[0]
			use := optionUses[name]
			if _, isBool := f.(*cli.BoolFlag); use == "" && isBool {
				use = "--" + name
			}
			switch pods := job.Target(target).Pods(); {
			case use == "":
				t.Errorf("--%s: add a use to optionUses", name)
				continue
			case use == "-":
				continue
			case name == "native" && pods:
				use = `--native {"priorityClassName":"x"}`
			}
			for _, mode := range modes {
				if "--"+name == mode {
					continue
				}
				if same := sameWithout(t, known, target, mode, strings.ReplaceAll(use, "%", dir)); same != "" && !excuse(used, name, target, mode) {
					t.Errorf("%s: no effect, no note and no refusal", same)
				}
			}
		}
	}
	for key, reason := range unnoticed {
		if !used[key] {
			t.Errorf("unnoticed: %s (%s): the option has an effect; remove the exception", key, reason)
		}
	}
}

// excuse reports whether unnoticed has a reason for an option without effect, and notes its use.
func excuse(used map[string]bool, name, target, mode string) bool {
	keys := []string{name + " " + target}
	if job.Target(target).Pods() {
		keys = append(keys, name+" pods")
	}
	if mode != "" {
		keys = append(keys, name+" interactive")
	}
	for _, key := range keys {
		if unnoticed[key] != "" {
			used[key] = true
			return true
		}
	}
	return false
}

// A rendering is the result of rendered.
type rendering struct {
	text string
	err  error
}

// sameWithout returns the command line of an option if the job is the same without it, or else "". known
// holds the results without options.
func sameWithout(t *testing.T, known map[string]rendering, target, mode, use string) string {
	t.Helper()
	before := func(flags string) (string, error) {
		r, ok := known[target+flags]
		if !ok {
			r.text, r.err = rendered(t, target, flags)
			known[target+flags] = r
		}
		return r.text, r.err
	}
	needs, own, found := strings.Cut(use, " | ")
	if !found {
		needs, own = "", use
	}
	without, err := before(mode + " " + needs)
	if err != nil { // of an option that it needs
		needs = ""
		without, err = before(mode + " ")
		testenv.Check(t, err)
	}
	if with, err := rendered(t, target, mode+" "+needs+" "+own); err != nil || with != without {
		return ""
	}
	return strings.Join(strings.Fields("--to "+target+" "+mode+" "+needs+" "+own), " ")
}

// rendered returns the script of "hpcc submit" with the flags, its notes, and the variables of the
// scheduler's commands.
func rendered(t *testing.T, target, flags string) (text string, err error) {
	t.Helper()
	c := submitCommand()
	c.OnUsageError = usageError
	c.Action = func(c *cli.Context) error {
		a, err := parseSubmitTo(c, site.Choice{To: job.Target(target)})
		if err != nil {
			return err
		}
		j, to, err := prepare.Resolve(c.Context, &a.Request)
		if err != nil {
			return err
		}
		script, notes, err := dispatch.Render(j, to.Target)
		text = fmt.Sprint(script, notes, to.Env)
		return err
	}
	args := append([]string{"hpcc", "submit"}, strings.Fields(flags)...)
	if job.Target(target).Pods() && !strings.Contains(flags, "--pull ") {
		args = append(args, "--pull=never") // the image is in no registry
	}
	args = append(args, "registry.example.org/app", "--", "/bin/x", "{lr}")
	messages, err := os.CreateTemp(t.TempDir(), "")
	testenv.Check(t, err)
	defer messages.Close()
	stderr := os.Stderr
	os.Stderr = messages
	a := &cli.App{Name: "hpcc", Commands: []*cli.Command{c}, DisableSliceFlagSeparator: true, HideHelp: true, Writer: io.Discard, ErrWriter: io.Discard, ExitErrHandler: func(*cli.Context, error) {}}
	err = a.RunContext(t.Context(), args)
	os.Stderr = stderr
	printed, rerr := os.ReadFile(messages.Name())
	testenv.Check(t, rerr)
	return text + string(printed), err
}
