package build

import (
	"bytes"
	"cmp"
	"errors"
	"maps"
	"slices"
	"sort"
	"strings"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"hpcc/build/expand"
)

// proxyArgs can be set with --build-arg without ARG, in lower or upper case. RUN sees both
// spellings, but they are not part of the cache key or the image (Dockerfile reference,
// "Predefined ARGs").
var proxyArgs = []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}

// isProxyArg reports whether name is a predefined proxy argument.
func isProxyArg(name string) bool { return slices.Contains(proxyArgs, strings.ToLower(name)) }

// proxyVariables returns the predefined proxy arguments that are set, in both spellings. A
// spelling that is not set gets the value of the other one.
func proxyVariables(args map[string]string) (env []string) {
	for _, lower := range proxyArgs {
		upper := strings.ToUpper(lower)
		low, hasLower := args[lower]
		up, hasUpper := args[upper]
		switch {
		case !hasLower && !hasUpper:
			continue
		case !hasLower:
			low = up
		case !hasUpper:
			up = low
		}
		env = append(env, upper+"="+up, lower+"="+low)
	}
	return env
}

// platformArgs returns the variables that FROM sees, and stages that declare them
// ("Automatic platform ARGs in the global scope").
func (b *builder) platformArgs() map[string]string {
	host := hostPlatform()
	target := cmp.Or(b.Target, b.stages[len(b.stages)-1].Name, "default")
	vars := map[string]string{
		"TARGETPLATFORM": b.Platform.String(), "TARGETOS": b.Platform.OS, "TARGETARCH": b.Platform.Architecture,
		"TARGETVARIANT": b.Platform.Variant, "TARGETOSVERSION": b.Platform.OSVersion, "TARGETSTAGE": target,
		"BUILDPLATFORM": host.String(), "BUILDOS": host.OS, "BUILDARCH": host.Architecture,
		"BUILDVARIANT": host.Variant, "BUILDOSVERSION": host.OSVersion,
	}
	for k := range vars {
		if v, given := b.Args[k]; given {
			vars[k] = v
		}
	}
	return vars
}

// globals returns the variables of the scope before the first FROM, overridden by args from
// the command line.
func (b *builder) globals(args map[string]string) (map[string]string, error) {
	vars := b.platformArgs()
	lex := shell.NewLex(b.escape)
	for _, c := range b.metaArgs {
		for _, a := range c.Args {
			v, given := args[a.Key]
			switch {
			case given:
			case a.Value != nil:
				list := pairs(vars)
				err := expand.CheckSize(list)
				if err == nil {
					v, err = expandValue(lex, *a.Value, list)
				}
				if err != nil {
					return nil, b.at(c.Location(), written(&c), err)
				}
			default:
				continue // declared without a value
			}
			vars[a.Key] = v
		}
	}
	return vars, nil
}

// expandMeta expands the variables that a FROM line can see.
func (b *builder) expandMeta(word string) (string, error) {
	vars, err := b.globals(b.Args)
	if err != nil {
		return "", err
	}
	return expandValue(shell.NewLex(b.escape), word, pairs(vars))
}

// expandValue expands vars, as NAME=VALUE, in a word.
func expandValue(lex *shell.Lex, word string, vars []string) (string, error) {
	out, err := expand.Word(lex, word, shell.EnvsFromSlice(vars))
	return out.Result, err
}

// pairs returns a map as sorted NAME=VALUE.
func pairs(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	sort.Strings(out)
	return out
}

// vars returns the variables that an instruction of the stage can use: ENV and declared
// ARGs. The later definition wins, as in a shell script: an ENV removes an earlier ARG, and
// an ARG hides an earlier ENV.
func (st *stage) vars() []string {
	m := map[string]string{}
	for _, kv := range st.config.Config.Env {
		k, v, _ := strings.Cut(kv, "=")
		m[k] = v
	}
	maps.Copy(m, st.buildArgs)
	return pairs(m)
}

// expand expands the variables of an instruction, in place, except those of ARG: declare
// knows whether its default is used.
func (st *stage) expand(c instructions.Command) error {
	lex := shell.NewLex(st.b.escape)
	vars := st.vars()
	if err := expand.CheckSize(vars); err != nil {
		return err
	}
	env := shell.EnvsFromSlice(vars)
	if _, isArg := c.(*instructions.ArgCommand); isArg {
		return nil
	}
	if e, ok := c.(instructions.SupportsSingleWordExpansion); ok {
		if err := e.Expand(func(w string) (string, error) {
			out, err := expand.Word(lex, w, env)
			return out.Result, err
		}); err != nil {
			return err
		}
	}
	if e, ok := c.(instructions.SupportsSingleWordExpansionRaw); ok {
		raw := shell.NewLex('\\') // in a here-document, quotes are text and "\$" is a dollar sign
		raw.SkipProcessQuotes = true
		return e.ExpandRaw(func(w string) (string, error) {
			out, err := expand.Word(raw, w, env)
			return out.Result, err
		})
	}
	// EXPOSE splits the value of a variable into several ports.
	if e, ok := c.(*instructions.ExposeCommand); ok {
		var ports []string
		for _, p := range e.Ports {
			ws, err := expand.Words(lex, p, env)
			if err != nil {
				return err
			}
			ports = append(ports, ws...)
		}
		e.Ports = ports
	}
	return nil
}

// declare executes ARG.
func (st *stage) declare(c *instructions.ArgCommand) error {
	globals, err := st.b.globals(st.b.Args)
	if err != nil {
		return err
	}
	lex := shell.NewLex(st.b.escape)
	for _, a := range c.Args {
		v, have := st.b.Args[a.Key]
		if !have && a.Value != nil {
			have = true
			if v, err = expandValue(lex, *a.Value, st.vars()); err != nil {
				return err
			}
		}
		if !have {
			v, have = globals[a.Key]
		}
		if a.Key == epochArg && v == "" { // programs expect a number
			continue
		}
		if have {
			st.buildArgs[a.Key] = v
		}
	}
	return expand.CheckSize(st.vars())
}

// parseTrigger parses an ONBUILD instruction of a base image.
func parseTrigger(text string) ([]instructions.Command, error) {
	res, err := parser.Parse(bytes.NewReader([]byte(text)))
	if err != nil {
		return nil, err
	}
	var out []instructions.Command
	for _, n := range res.AST.Children {
		c, err := instructions.ParseCommand(n)
		if err != nil {
			return nil, err
		}
		if _, again := c.(*instructions.OnbuildCommand); again {
			return nil, errors.New("a trigger cannot be ONBUILD itself")
		}
		out = append(out, c)
	}
	return out, nil
}
