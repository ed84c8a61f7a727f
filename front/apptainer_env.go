package front

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"mvdan.cc/sh/v3/expand"
	"mvdan.cc/sh/v3/syntax"
)

// maxEnvFile limits the size of a file of --env-file, in bytes.
const maxEnvFile = 1 << 20

// passedVariables are the variables of the caller that --cleanenv keeps.
var passedVariables = strings.Fields("TERM http_proxy HTTP_PROXY https_proxy HTTPS_PROXY no_proxy NO_PROXY all_proxy ALL_PROXY ftp_proxy FTP_PROXY")

// fixedVariables are variables of the container that its user cannot set.
var fixedVariables = strings.Fields("HOME APPTAINER_APPNAME SINGULARITY_APPNAME APPTAINER_CONTAINER SINGULARITY_CONTAINER APPTAINER_NAME SINGULARITY_NAME")

// setEnvironment returns the flags for variables. The caller's variables with a prefix override
// the image's; files and --env override both.
func (a *apptainer) setEnvironment(image *imageSource, r *Request) (flags []string, err error) {
	for _, list := range a.values["--no-env"] {
		for name := range strings.SplitSeq(list, ",") {
			if name != "" && name != "HPCC_STORE" {
				r.Env = append(r.Env, name)
			}
		}
	}
	if a.on["--cleanenv"] != "" {
		flags = append(flags, "--clean-env", "--set-env=LANG=C")
		for _, name := range passedVariables {
			if a.env(name) != "" && name != "TERM" {
				flags = append(flags, "--env="+name)
			}
		}
	}
	if a.on["--no-eval"] != "" {
		flags = append(flags, "--no-eval", "--set-env=SINGULARITY_NO_EVAL=1")
	}
	_, home := a.home()
	set := []string{"HOME=" + home, "APPTAINER_COMMAND=" + a.verb}
	for _, prefix := range []string{"APPTAINER_", "SINGULARITY_"} {
		set = append(set, prefix+"CONTAINER="+image.name, prefix+"NAME="+filepath.Base(image.name),
			prefix+"ENVIRONMENT=/.singularity.d/env/91-environment.sh")
		if b := a.values["--bind"]; len(b) > 0 {
			set = append(set, prefix+"BIND="+strings.Join(b, ","))
		}
	}
	for _, kv := range set {
		flag := "--set-env="
		if strings.ContainsAny(kv, "$'") {
			flag = "--env="
		}
		flags = append(flags, flag+kv)
	}
	given, err := a.givenVariables(r)
	if err != nil {
		return nil, err
	}
	for _, kv := range given {
		name, _, _ := strings.Cut(kv, "=")
		if !slices.Contains(fixedVariables, strings.TrimPrefix(strings.TrimPrefix(name, "PREPEND_"), "APPEND_")) {
			flags = append(flags, "--inject="+kv)
		}
	}
	return flags, nil
}

// givenVariables returns the variables that the caller sets in the container: by a prefix, by
// files and by --env.
func (a *apptainer) givenVariables(r *Request) (out []string, err error) {
	for _, prefix := range []string{"SINGULARITYENV_", "APPTAINERENV_"} {
		for _, kv := range a.environ {
			if given, ok := strings.CutPrefix(kv, prefix); ok && !strings.HasPrefix(given, "=") {
				out = append(out, given)
				name, _, _ := strings.Cut(kv, "=")
				r.Env = append(r.Env, name)
			}
		}
	}
	for _, file := range a.values["--env-file"] {
		list, err := readEnvFile(file, a.environ)
		if err != nil {
			return nil, refusal(a.program, "--env-file "+file, err.Error(),
				"write one NAME=VALUE on each line, or set variables with --env")
		}
		out = append(out, list...)
	}
	for _, list := range a.values["--env"] {
		items := []string{list}
		if strings.Count(list, "=") > 1 {
			if items, err = csv.NewReader(strings.NewReader(list)).Read(); err != nil {
				return nil, refusal(a.program, "--env "+list, "not a list of NAME=VALUE", `quote an item with a comma: --env 'A=1,"B=2,3"'`)
			}
		}
		for _, kv := range items {
			if name, _, ok := strings.Cut(kv, "="); !ok || name == "" {
				return nil, refusal(a.program, "--env "+list, fmt.Sprintf("%q is not NAME=VALUE", kv), "")
			}
			out = append(out, kv)
		}
	}
	return out, nil
}

// readEnvFile reads a file of --env-file: assignments in the language of the shell, with
// variables of the caller and of earlier lines.
func readEnvFile(file string, environ []string) (out []string, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxEnvFile+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxEnvFile {
		return nil, fmt.Errorf("larger than %d bytes", maxEnvFile)
	}
	return parseEnvFile(string(text), environ)
}

// parseEnvFile returns the assignments of a script that consists of them.
func parseEnvFile(text string, environ []string) (out []string, err error) {
	tree, err := syntax.NewParser(syntax.Variant(syntax.LangBash)).Parse(strings.NewReader(text), "")
	if err != nil {
		return nil, fmt.Errorf("line %w", err)
	}
	bad := func(n syntax.Node, what string) error { return fmt.Errorf("line %d: %s", n.Pos().Line(), what) }
	config := &expand.Config{CmdSubst: func(io.Writer, *syntax.CmdSubst) error {
		return errors.New("hpcc does not run commands in it")
	}}
	for _, s := range tree.Stmts {
		var list []*syntax.Assign
		switch c := s.Cmd.(type) {
		case *syntax.CallExpr:
			if len(c.Args) == 0 {
				list = c.Assigns
			}
		case *syntax.DeclClause:
			if c.Variant.Value == "export" {
				list = c.Args
			}
		}
		if list == nil || s.Negated || s.Background || len(s.Redirs) > 0 {
			return nil, bad(s, "not an assignment")
		}
		for _, as := range list {
			if as.Name == nil || as.Append || as.Index != nil || as.Array != nil {
				return nil, bad(as, "not an assignment")
			}
			if as.Naked {
				continue // export NAME
			}
			config.Env = expand.ListEnviron(append(slices.Clone(environ), out...)...)
			value, err := expand.Literal(config, as.Value)
			if err != nil {
				return nil, bad(as, err.Error())
			}
			out = append(out, as.Name.Value+"="+value)
		}
	}
	return out, nil
}
