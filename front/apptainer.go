package front

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// apptainerVersion is the version of Apptainer whose command line this package reads. Workflow
// tools compare it; the part after "+" is ignored in comparisons.
const apptainerVersion = "1.4.5+hpcc"

// An apptainer is a command line of apptainer.
type apptainer struct{ *commandLine }

// apptainerVerbs holds the reader of each supported subcommand.
var apptainerVerbs = map[string]func(a *apptainer, args []Word) (*Request, error){
	"exec":     func(a *apptainer, args []Word) (*Request, error) { return a.start("exec", args) },
	"run":      func(a *apptainer, args []Word) (*Request, error) { return a.start("run", args) },
	"shell":    func(a *apptainer, args []Word) (*Request, error) { return a.start("shell", args) },
	"test":     func(a *apptainer, args []Word) (*Request, error) { return a.start("test", args) },
	"run-help": (*apptainer).runHelp,
	"pull":     (*apptainer).pull,
	"build":    (*apptainer).build,
	"inspect":  (*apptainer).inspect,
	"cache":    (*apptainer).cache,
}

// refusedVerbs holds the reason and the advice for each subcommand that is not supported.
var refusedVerbs = map[string][2]string{
	"instance": {"hpcc has no services: each program runs as long as its command",
		"submit a job that runs the service, and reach it with hpcc attach or hpcc forward"},
	"sign":       {"hpcc does not sign SIF files", "push the image to a registry, which signs it, or call a real apptainer"},
	"verify":     {"hpcc does not verify signatures of SIF files", "refer to the image by its digest: docker://NAME@sha256:..."},
	"key":        {"hpcc has no OpenPGP keys", ""},
	"keyserver":  {"hpcc has no OpenPGP keys", ""},
	"remote":     {"hpcc does not use remote endpoints", "hpcc login REGISTRY stores credentials"},
	"registry":   {"hpcc stores credentials itself", "hpcc login REGISTRY"},
	"search":     {"hpcc does not search libraries", ""},
	"delete":     {"hpcc does not delete images of a library", ""},
	"push":       {"hpcc pushes OCI images and not SIF files", "hpcc push NAME REGISTRY/NAME"},
	"oci":        {"hpcc has its own command for OCI runtimes", "hpcc oci --help"},
	"overlay":    {"hpcc does not create overlay images", "use --writable-tmpfs, or a sandbox directory with --writable"},
	"checkpoint": {"hpcc does not checkpoint programs", "let the program write its own checkpoints; hpcc rerun starts failed tasks again"},
	"capability": {"only root can grant capabilities", ""},
	"config":     {"hpcc has no configuration that only root may change", "hpcc run --help lists the defaults, and run.conf changes them"},
	"confgen":    {"hpcc has no configuration that only root may change", ""},
	"plugin":     {"hpcc has no plugins", ""},
	"sif":        {"hpcc does not edit SIF files", "hpcc load FILE.sif NAME reads one, hpcc save NAME FILE.sif writes one"},
	"siftool":    {"hpcc does not edit SIF files", "hpcc load FILE.sif NAME reads one, hpcc save NAME FILE.sif writes one"},
	"data":       {"hpcc does not package data containers", ""},
}

// apptainerHelp is the output of "apptainer help".
const apptainerHelp = `Usage: apptainer [-d] [-q] [-s] COMMAND ...

hpcc executes these commands of Apptainer: exec, run, shell, test, pull, build, inspect, run-help,
cache list, cache clean, version. It refuses options whose meaning it cannot keep.
The page of hpcc on Apptainer lists them.
`

// readApptainer reads a command line of apptainer.
func readApptainer(args, environ []string) (*Request, error) {
	line, err := newCommandLine("apptainer", environ)
	if err != nil {
		return nil, err
	}
	a := &apptainer{line}
	a.longName = func(name string) string { return cmp.Or(verbNames[a.verb+" "+name], longNames[name], name) }
	a.version = "Apptainer " + strings.TrimSuffix(apptainerVersion, "+hpcc")
	global := maps.Clone(Programs()["apptainer"].global)
	maps.Copy(global, optionTable(map[Role]string{Flag: "-h --help --version", Value: "--build-config"}))
	rest := arguments(args)
	for len(rest) > 0 && IsOption(rest[0]) {
		if rest, err = a.option(global, rest); err != nil {
			return nil, err
		}
	}
	if err := a.refuse(map[string][2]string{"--config": refusedVerbs["config"], "--build-config": refusedVerbs["config"]}); err != nil {
		return nil, err
	}
	if len(rest) == 0 || a.on["--help"] != "" || a.on["--version"] != "" {
		if a.on["--version"] != "" {
			return &Request{Output: "apptainer version " + apptainerVersion + "\n"}, nil
		}
		return &Request{Output: apptainerHelp}, nil
	}
	clear(a.on)
	verb, rest := rest[0].Text, rest[1:]
	a.verb, a.program = verb, a.program+" "+verb
	why, refused := refusedVerbs[verb]
	read := apptainerVerbs[verb]
	switch {
	case verb == "version":
		return &Request{Output: apptainerVersion + "\n"}, nil
	case verb == "help":
		return &Request{Output: apptainerHelp}, nil
	case refused:
		return nil, refusal("apptainer", verb, why[0], why[1])
	case read == nil:
		return nil, refusal("apptainer", verb, "Apptainer does not have this command",
			spelling(verb, maps.Keys(apptainerVerbs), "apptainer help lists the commands"))
	}
	r, err := read(a, rest)
	if err != nil {
		return nil, err
	}
	if dir := a.variable("CACHEDIR"); dir != "" && a.env("HPCC_STORE") == "" {
		r.Env = append(r.Env, "HPCC_STORE="+filepath.Join(a.absolute(dir), "hpcc"))
	}
	return r, nil
}

// longNames maps the letters of options, and their older names, to the names that apptainer
// prints in its help.
var longNames = map[string]string{
	"-B": "--bind", "-S": "--scratch", "-H": "--home", "-o": "--overlay", "-W": "--workdir", "-f": "--fakeroot",
	"-e": "--cleanenv", "-c": "--contain", "-C": "--containall", "-w": "--writable", "-p": "--pid", "-i": "--ipc",
	"-n": "--net", "-u": "--userns", "--pwd": "--cwd", "--nohttps": "--no-https", "-F": "--force", "-h": "--help",
}

// verbNames are the long names of letters that have another meaning in a subcommand.
var verbNames = map[string]string{
	" -c":      "--config", // before the subcommand
	"shell -s": "--shell", "build -s": "--sandbox", "build -e": "--encrypt", "build -T": "--notest", "build -u": "--update",
	"inspect -l": "--labels", "inspect -d": "--deffile", "inspect -j": "--json", "inspect -r": "--runscript", "inspect -s": "--startscript",
	"inspect -t": "--test", "inspect -e": "--environment", "inspect -H": "--helpfile",
	"cache -T": "--type", "cache -D": "--days", "cache -n": "--dry-run", "cache -f": "--force",
	"cache -v": "--verbose", "cache -a": "--all",
}

// variable returns the value of APPTAINER_NAME, or else of SINGULARITY_NAME.
func (a *apptainer) variable(name string) string {
	return cmp.Or(a.env("APPTAINER_"+name), a.env("SINGULARITY_"+name))
}

// variables sets options from the environment: those of names that the command line does not
// set. Lists have the values of both. names maps an option to its variables, without prefix.
func (a *apptainer) variables(table map[string]Role, names map[string]string) {
	for _, option := range slices.Sorted(maps.Keys(names)) {
		for name := range strings.FieldsSeq(names[option]) {
			v := a.variable(name)
			if v == "" {
				continue
			}
			isList := slices.Contains(listOptions, option)
			switch off, _ := isOff(v); {
			case table[option].takesValue() && (isList || len(a.values[option]) == 0):
				a.values[option] = append(a.values[option], v)
			case table[option].takesValue() || off || a.on[option] != "":
				continue
			default:
				a.on[option] = name
			}
			if a.text[option] == "" {
				a.text[option] = "APPTAINER_" + name + "=" + v
			}
			break
		}
	}
}

// listOptions are options that may be repeated.
var listOptions = []string{"--bind", "--mount", "--scratch", "--overlay", "--env-file"}
