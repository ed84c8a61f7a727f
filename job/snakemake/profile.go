package snakemake

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"hpcc/job"
	"hpcc/text"
)

// A Profile makes Snakemake submit its jobs through hpcc.
type Profile struct {
	Dir     string // absolute: the directory of the profile
	Program string // absolute: hpcc
	To      job.Target
	Submit  []string // more flags of "hpcc submit"
	Store   string   // absolute: the image store; "" for the default
	Jobs    int      // jobs in the queue at a time

	// Defaults of rules. 0 and "" are Snakemake's, or those of the scheduler.
	MemoryMB, Minutes int
	Queue, Account    string
}

// Files returns the files of the profile by name. Those of mode 0755 are programs.
func (p *Profile) Files() map[string]string {
	submit := text.CommandLine(append([]string{p.Program, "submit", "--to", string(p.To)},
		append(p.withStore(p.Submit...), "--report", "none", "--from")...))
	status := text.CommandLine(append([]string{p.Program, "snakemake-status"}, p.withStore()...))
	cancel := text.CommandLine(append([]string{p.Program, "snakemake-cancel"}, p.withStore()...))
	commands := func(prefix, suffix string) string {
		t := ""
		for _, c := range [][2]string{{"submit", braces(submit)}, {"status", status}, {"cancel", filepath.Join(p.Dir, cancelFile)}} {
			t += prefix + c[0] + suffix + ": " + quote(c[1]) + "\n"
		}
		return t + prefix + "cancel-nargs: 1000\n"
	}
	seven := strings.Replace(commands("cluster-", ""), "cluster-submit", "cluster", 1)
	return map[string]string{
		"config.yaml": "# Profile of hpcc for Snakemake 7; later versions read config.v8+.yaml.\n" +
			seven + p.common() + "# use-singularity: true\n",
		"config.v8+.yaml": "# Profile of hpcc for Snakemake 8 and later, with snakemake-executor-plugin-cluster-generic.\nexecutor: cluster-generic\n" + commands("cluster-generic-", "-cmd") + fastChecks + p.common() + "# software-deployment-method: apptainer\n",
		cancelFile:        "#!/bin/sh\n# Snakemake calls this program with the IDs of jobs, when it is interrupted.\nexec " + cancel + ` "$@"` + "\n",
	}
}

const cancelFile = "cancel"

// fastChecks shortens the rounds in which Snakemake asks for the states of all jobs. From version 8, an
// interrupt during a round cancels none of them.
const fastChecks = "max-status-checks-per-second: 50\n"

// withStore returns flags, and that of the store.
func (p *Profile) withStore(flags ...string) []string {
	if p.Store == "" {
		return flags
	}
	return append([]string{"--store", p.Store}, flags...)
}

// common returns the settings that all versions of Snakemake share.
func (p *Profile) common() string {
	t := fmt.Sprintf("jobs: %d\nlatency-wait: 60\nrerun-incomplete: true\n", p.Jobs)
	var list []string
	if p.MemoryMB > 0 {
		list = append(list, fmt.Sprintf("mem_mb=%d", p.MemoryMB))
	}
	if p.Minutes > 0 {
		list = append(list, fmt.Sprintf("runtime=%d", p.Minutes))
	}
	for _, d := range [][2]string{{"partition", p.Queue}, {"account", p.Account}} {
		if d[1] != "" { // Snakemake evaluates it as Python
			list = append(list, fmt.Sprintf("%s_%s='%s'", p.To, d[0], d[1]))
		}
	}
	if len(list) > 0 {
		t += "default-resources:\n"
	}
	for _, d := range list {
		t += "  - " + quote(d) + "\n"
	}
	return t
}

// quote returns s as a string of YAML.
func quote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// braces protects text from Snakemake, which replaces names in braces.
func braces(s string) string { return strings.NewReplacer("{", "{{", "}", "}}").Replace(s) }

// Write writes the profile. It replaces files of an earlier profile, but no others.
func (p *Profile) Write() ([]string, error) {
	if err := os.MkdirAll(p.Dir, 0o777); err != nil {
		return nil, fmt.Errorf("making the directory of the profile: %w", err)
	}
	var names []string
	for _, name := range []string{"config.yaml", "config.v8+.yaml", cancelFile} {
		file := filepath.Join(p.Dir, name)
		if old, err := os.ReadFile(file); err == nil && !strings.Contains(string(old), "hpcc") {
			return nil, fmt.Errorf("%s exists and is not a profile of hpcc", file)
		}
		mode := os.FileMode(0o666)
		if name == cancelFile {
			mode = 0o777
		}
		if err := os.WriteFile(file, []byte(p.Files()[name]), mode); err != nil {
			return nil, err
		}
		names = append(names, file)
	}
	return names, nil
}
