package main

import (
	"cmp"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"hpcc/text"
)

// Habits map commands and flags of other tools to a hint. The hint names the command or flag of
// hpcc that does the same, or the reason why hpcc does not need one.
var (
	commandHabits = map[string]string{
		"exec": `"hpcc run IMAGE -- CMD" runs a program`, "shell": `"hpcc run IMAGE -- bash" opens a shell`,
		"ps": `"hpcc status" shows jobs`, "squeue": `"hpcc status" shows jobs`, "qstat": `"hpcc status" shows jobs`,
		"bjobs":  `"hpcc status" shows jobs`,
		"sbatch": `"hpcc submit --from FILE" submits a job script`,
		"bsub":   `"hpcc submit --from FILE" submits a job script`, "qsub": `"hpcc submit --from FILE" submits a job script`,
		"scancel": `"hpcc cancel JOB" cancels a job`, "qdel": `"hpcc cancel JOB" cancels a job`, "bkill": `"hpcc cancel JOB" cancels a job`,
		"kill": `"hpcc cancel JOB" cancels a job`, "stop": `"hpcc cancel JOB" cancels a job`,
		"sinfo": `"hpcc nodes" shows nodes`, "srun": `"hpcc submit --interactive IMAGE -- CMD" runs a program on a node`,
		"rmi": `"hpcc rm NAME" removes an image`, "prune": `"hpcc gc" deletes unused data`,
		"list": `"hpcc images" lists images`, "ls": `"hpcc images" lists images`,
		"import": `"hpcc load FILE NAME" loads an image`, "export": `"hpcc save NAME FILE" saves an image`,
		"install": `"hpcc build --conda EXPORT -t NAME" installs packages`,
		"create":  `"hpcc build --conda EXPORT -t NAME" installs packages`,
		"info":    `"hpcc doctor" checks this host`, "dashboard": `"hpcc top JOB" shows what tasks use`,
	}
	packagesHabit = `"hpcc save NAME image.tar && syft image.tar" lists the packages of an image`
	imageHabits   = map[string]string{"sbom": packagesHabit} // of commands that build an image or show one
	terminalHabit = "leave it out: the program already uses this terminal and standard input"
	runHabits     = map[string]string{
		"i": terminalHabit, "it": terminalHabit, "ti": terminalHabit, "interactive": terminalHabit, "tty": terminalHabit,
		"d":       `"hpcc submit --to local" runs a program in the background`,
		"detach":  `"hpcc submit --to local" runs a program in the background`,
		"p":       "leave it out: the program uses the host's network, so its ports are open",
		"publish": "leave it out: the program uses the host's network, so its ports are open",
		"name":    `leave it out: a run has no name; "hpcc submit --name" names a job`,
		"user":    "use --uid N, --gid N", "volume": "use --bind SRC:DST", "env-file": "use --set-env FILE",
		"nv": "use --gpu", "rocm": "use --gpu", "gpus": "use --gpu", "pwd": "use --cd DIR", "B": "use --bind SRC:DST",
		"writable": "use --write", "writable-tmpfs": "use --write-fake", "contain": "use --no-home --private-tmp",
		"containall": "use --no-home --private-tmp --clean-env",
		"cleanenv":   "use --clean-env", "fakeroot": "use --uid 0 --seccomp", "net": "use --network none",
		"runtime": `"hpcc unpack --bundle IMAGE DIR" writes a bundle for crun, runc and "hpcc oci"`,
	}
	pastHabit = `"sreport cluster utilization" (Slurm), "qacct" (Grid Engine), "bacct" (LSF), "qstat -x" (PBS) or Open XDMoD ` +
		`reports how a cluster was used; "hpcc nodes --mine" shows what your own jobs used`
	nodesHabits  = map[string]string{"report": pastHabit, "since": pastHabit, "html": pastHabit}
	submitHabits = map[string]string{
		"ntasks": "use --tasks N", "ntasks-per-node": "use --tasks-per-node N", "cpus-per-task": "use --cpus N",
		"partition": "use --queue NAME", "q": "use --queue NAME",
		"gres": "use --gpus N", "gpus-per-node": "use --gpus N", "job-name": "use --name NAME",
		"J": "use --name NAME", "A": "use --account NAME",
		"dependency": "use --after JOB", "d": "use --after JOB", "mail-user": "use --mail ADDRESS",
		"o": "use --output FILE", "D": "use --chdir DIR",
		"mem-per-cpu": "use --mem SIZE, which is per node", "l": "use --nodes N, --cpus N, --mem SIZE and --time TIME",
		"pe": "use --tasks N", "W": "use --time TIME",
		"constraint": "use --native", "C": "use --native", "reservation": "use --native",
		"qos": "use --native", "wrap": "write the program after IMAGE: hpcc submit IMAGE -- CMD",
		"ray": `"hpcc submit --nodes N IMAGE -- sh -c 'ray symmetric-run --address $SLURM_LAUNCH_NODE_IPADDR:6379 --min-nodes N -- CMD'" ` +
			`starts a cluster of Ray 2.49 or later on Slurm; in pods, the address is $HPCC_HEAD:6379`,
		"pyxis": `leave it out: hpcc runs IMAGE itself; for the plugin, write "srun --container-image=IMAGE CMD" in a job script and submit that with "hpcc submit --from FILE" or sbatch`,
	}
)

// unknownCommand returns the error for a command that hpcc does not have.
func unknownCommand(a *cli.App, name string) error {
	m := text.Usagef("unknown command %q", name)
	if h := commandHabits[name]; h != "" {
		return m.Hint("%s", h)
	}
	var names []string
	for _, c := range a.Commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	if like := text.Nearest(name, append(names, "version", "help")); like != "" {
		return m.Hint("did you mean \"hpcc %s\"?", like)
	}
	return m.Hint("\"hpcc --help\" lists the commands")
}

// unknownFlag returns the error for a flag that a command does not have.
func unknownFlag(c *cli.Command, given string) error {
	name := strings.TrimLeft(given, "-")
	m := text.Usagef("unknown flag %s", dashed(name))
	for _, habits := range habitsOf(c.Name) {
		if h := habits[name]; h != "" {
			return m.Hint("%s", h)
		}
	}
	var names []string
	for _, f := range c.Flags {
		for _, n := range f.Names() {
			if len(n) > 1 {
				names = append(names, n)
			}
		}
	}
	if like := text.Nearest(name, names); like != "" {
		return m.Hint("did you mean %s?", dashed(like))
	}
	if c.Name == "hpcc" {
		return m.Hint(`"hpcc --help" lists the commands`)
	}
	return m.Hint("\"hpcc %s --help-all\" lists every flag", c.Name)
}

// similarFile returns the file or directory that the user probably meant, if err reports that one
// of args does not exist, or "". It compares texts, because the flag parser keeps only the text of
// an error.
func similarFile(err error, args []string) string {
	message := err.Error()
	for _, name := range args {
		name = name[strings.LastIndexByte(name, '=')+1:] // of a flag's value
		missing := ": " + syscall.ENOENT.Error()
		if name == "" || (!strings.Contains(message, name+missing) && !strings.Contains(message, strconv.Quote(name)+missing)) {
			continue
		}
		dir, base := filepath.Split(strings.TrimRight(name, "/"))
		if like := text.NearestEntry(base, cmp.Or(dir, ".")); like != "" {
			return dir + like
		}
	}
	return ""
}

// habitsOf returns the flags of other tools that users give to a command.
func habitsOf(command string) []map[string]string {
	switch command {
	case "build", "deploy", "inspect":
		return []map[string]string{imageHabits}
	case "nodes":
		return []map[string]string{nodesHabits}
	case "run":
		return []map[string]string{runHabits}
	case "submit", "script":
		return []map[string]string{submitHabits, runHabits}
	}
	return nil
}

// dashed writes a flag as users type it.
func dashed(name string) string {
	if len(name) == 1 || name == "it" || name == "ti" {
		return "-" + name
	}
	return "--" + name
}
