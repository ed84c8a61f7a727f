package main

import (
	"slices"

	"github.com/urfave/cli/v2"

	"hpcc/build"
	"hpcc/job"
	"hpcc/job/argo"
	"hpcc/job/kube"
	"hpcc/job/prepare"
	"hpcc/job/quantity"
	"hpcc/text"
)

// Flags for the targets that run the image themselves: Kubernetes, OpenShift and Argo.

// podFlags are the flags of jobs that run as pods.
func podFlags() []cli.Flag {
	return inSection(podSection,
		&cli.StringFlag{Name: "context", EnvVars: []string{kube.ContextVariable}, Usage: "use kubectl context `NAME`"},
		&cli.StringFlag{Name: "namespace", EnvVars: []string{kube.NamespaceVariable}, Usage: "use namespace or project `NAME`"},
		&cli.StringSliceFlag{Name: "volume", Usage: "mount volume claim `CLAIM:PATH`[:ro], or scratch:PATH"},
		&cli.StringSliceFlag{Name: "port", Usage: "declare port `NAME=NUMBER` for hpcc forward"},
		&cli.StringSliceFlag{Name: "secret", Usage: "expose secret `NAME` as variables, or NAME:PATH as files"},
		&cli.StringFlag{Name: "with-code", Usage: "put the files of `DIR` into the directory of the program"},
		&cli.StringFlag{Name: "scratch", Usage: "request `SIZE` of the node's local storage"},
		&cli.StringSliceFlag{Name: "node-label", Usage: "run only on nodes with label `KEY=VALUE`"},
		&cli.StringFlag{Name: "gpu-type", Usage: "request GPUs of model `NAME`, or amd on Kubernetes"},
		&cli.BoolFlag{Name: "any-uid", Usage: "set no user ID; the cluster assigns one (default on openshift)"},
		&cli.StringFlag{Name: "service-account", Usage: "run as service account `NAME`"},
		&cli.StringFlag{Name: "pull", Usage: "pull the image `WHEN`: always, missing or never"},
		&cli.StringFlag{Name: "pull-secret", Usage: "pull the image with the credentials in secret `NAME`"},
	)
}

// parsePod reads the flags of jobs that run as pods.
func (a *jobArgs) parsePod(c *cli.Context, set flagSet) (err error) {
	a.PodFlag = set.first(slices.DeleteFunc(podFlags(), func(f cli.Flag) bool { return f.Names()[0] == "gpu-type" }))
	a.Context, a.Namespace, a.GPUType, a.CodeDir = c.String("context"), c.String("namespace"), c.String("gpu-type"), c.String("with-code")
	a.UID, a.BuiltImage = c.Int("uid"), c.String("with") != ""
	a.Pod = job.Pod{
		Command: c.IsSet("entrypoint") && c.String("entrypoint") == "", Dir: c.String("cd"), CleanEnv: c.Bool("clean-env"),
		Hostname: c.String("hostname"), AnyUID: c.Bool("any-uid"), PullSecret: c.String("pull-secret"),
		ServiceAccount: c.String("service-account"), NodeLabels: c.StringSlice("node-label"),
	}
	if a.Pod.Volumes, err = parseEach(c, "volume", job.ParseVolume); err != nil {
		return err
	}
	if a.Pod.Ports, err = parseEach(c, "port", job.ParsePort); err != nil {
		return err
	}
	if a.Pod.Secrets, err = parseEach(c, "secret", job.ParseSecret); err != nil {
		return err
	}
	if s := c.String("scratch"); s != "" {
		if a.Pod.Scratch, err = quantity.ParseMemory(s); err != nil {
			return text.Usagef("--scratch: %w", err)
		}
	}
	policies := map[string]string{"": "", "always": "Always", "missing": "IfNotPresent", "never": "Never"}
	var ok bool
	if a.Pod.Pull, ok = policies[c.String("pull")]; !ok {
		return text.Usagef("--pull %q is not always, missing or never", c.String("pull"))
	}
	return nil
}

// parseEach parses the values of a repeatable flag.
func parseEach[T any](c *cli.Context, flag string, parse func(string) (T, error)) (list []T, err error) {
	for _, s := range c.StringSlice(flag) {
		v, err := parse(s)
		if err != nil {
			return nil, text.Usagef("--%s: %w", flag, err)
		}
		list = append(list, v)
	}
	return list, nil
}

// argoFlags are the flags for the Argo server and for features of its workflows.
func argoFlags() []cli.Flag {
	return inSection(argoSection,
		&cli.StringFlag{Name: "server", EnvVars: []string{argo.ServerVariable},
			Usage: "submit to the Argo server at `URL` (default: through kubectl)"},
		&cli.StringFlag{Name: "token-file", EnvVars: []string{argo.TokenFileVariable}, Usage: "read the Argo server's token from `FILE`"},
		&cli.StringFlag{Name: "ca-file", EnvVars: []string{argo.CAFileVariable},
			Usage: "trust the certificates in `FILE` for the Argo server"},
		&cli.BoolFlag{Name: "insecure-skip-verify", EnvVars: []string{argo.UnverifiedVariable},
			Usage: "do not verify the Argo server's certificate"},
		&cli.StringFlag{Name: "workflow", Usage: "run the Argo workflow in `FILE`, or template/NAME"},
		&cli.StringSliceFlag{Name: "parameter", Usage: "set workflow parameter `NAME=VALUE`"},
		&cli.StringSliceFlag{Name: "artifact", Usage: "keep a path of a step for later steps: `STEP/NAME:PATH`"},
		&cli.BoolFlag{Name: "debug", Usage: "start the Python program under debugpy and wait for a debugger"},
	)
}

// parseArgo reads the flags of argoFlags.
func (a *jobArgs) parseArgo(c *cli.Context, set flagSet) (err error) {
	a.ArgoFlag = set.first(slices.DeleteFunc(argoFlags(), func(f cli.Flag) bool { return f.Names()[0] == "debug" }))
	a.Argo = prepare.Argo{
		Server: c.String("server"), TokenFile: c.String("token-file"), CAFile: c.String("ca-file"),
		Unverified: c.Bool("insecure-skip-verify"), Workflow: c.String("workflow"), Parameters: c.StringSlice("parameter"),
		Object: c.String("params"), Debug: c.Bool("debug"),
	}
	a.Argo.Artifacts, err = parseEach(c, "artifact", job.ParseArtifact)
	return err
}

// checkWorkflow refuses flags that contradict --workflow, and selects Argo as the target.
func (a *jobArgs) checkWorkflow(arguments int, set flagSet) error {
	if arguments > 0 || set["from"] {
		return text.Usagef("--workflow cannot be combined with an image, a program or --from")
	}
	if a.Job.Measure {
		return text.Usagef("--measure cannot change the commands of a workflow").
			Hint("write command: [%s, entry, --measure, --, …] in a template, with an image of \"hpcc build --entry\"", build.EntryFile)
	}
	others := slices.DeleteFunc(jobFlags(), func(f cli.Flag) bool { return slices.Contains(withWorkflow, f.Names()[0]) })
	if name := set.first(others); name != "" {
		return text.Usagef("--%s cannot change a workflow", name).Hint("set it in the workflow, or as a --parameter that the workflow has")
	}
	if !set["to"] && !set["on"] {
		a.At.To = job.Argo
	}
	return nil
}

// withWorkflow are the flags of jobs that have an effect with --workflow.
var withWorkflow = []string{"workflow", "to", "on", "name", "output", "chdir", "params", "parameter",
	"debug", "context", "namespace", "server", "token-file", "ca-file",
	"insecure-skip-verify", "no-config", "store"}
