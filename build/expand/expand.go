// Package expand expands the variables in the words of a Dockerfile, within limits.
//
// BuildKit's shell lexer expands the words. A short Dockerfile can make it allocate more
// memory than a machine has. This package rejects such words before it expands them.
package expand

import (
	"fmt"
	"regexp"

	"github.com/moby/buildkit/frontend/dockerfile/shell"
)

// Limits on variables, because lines such as ARG A2=$A1$A1 double a value.
const (
	maxExpanded  = 1 << 20  // bytes of variables in one word
	maxVariables = 16 << 20 // bytes of all variables of a stage
	maxNesting   = 32       // levels of ${A:-${B:-…}}
)

// replacements limits the variables in a word that replaces text (${A//old/new}), in bytes,
// by nesting depth, because each level multiplies the size of the result. These limits keep
// the result of one word below 128 MiB.
var replacements = []int{maxExpanded, 16 << 10, 1 << 10, 256}

// replaces matches ${NAME/old/new} and ${NAME//old/new}.
var replaces = regexp.MustCompile(`\$\{\w+/`)

// Word expands the variables in a word. It returns an error if the values of the variables
// in the word are larger than 1 MiB in total.
func Word(lex *shell.Lex, word string, env shell.EnvGetter) (shell.ProcessWordResult, error) {
	var out shell.ProcessWordResult
	err := bounded(word, env, func(env shell.EnvGetter) (err error) {
		out, err = lex.ProcessWordWithMatches(word, env)
		return err
	})
	if err != nil {
		out.Result = ""
	}
	return out, err
}

// Words expands the variables in a word and splits the result, within the limits of Word.
func Words(lex *shell.Lex, word string, env shell.EnvGetter) (words []string, err error) {
	err = bounded(word, env, func(env shell.EnvGetter) error {
		words, err = lex.ProcessWords(word, env)
		return err
	})
	return words, err
}

// bounded calls expand with an environment whose values are limited in total size.
func bounded(word string, env shell.EnvGetter, expand func(shell.EnvGetter) error) error {
	depth, longest := nesting(word)
	if depth > maxNesting {
		return fmt.Errorf("variables are nested deeper than %d levels", maxNesting)
	}
	e := &boundedEnv{EnvGetter: env, left: maxExpanded}
	if replaces.MatchString(word) {
		if depth >= len(replacements) {
			return fmt.Errorf("replacements in variables are nested deeper than %d levels", len(replacements)-1)
		}
		e.left = replacements[depth] - longest
	}
	limit := e.left
	if err := expand(e); err != nil {
		return err
	}
	if e.left < 0 {
		return fmt.Errorf("its variables are larger than %d bytes in total", max(limit, 0))
	}
	return nil
}

// A boundedEnv returns values up to a total size. After that, it returns empty values.
type boundedEnv struct {
	shell.EnvGetter
	left int // bytes; negative after the limit was exceeded
}

func (e *boundedEnv) Get(name string) (string, bool) {
	v, ok := e.EnvGetter.Get(name)
	if e.left -= len(v); e.left < 0 {
		return "", ok
	}
	return v, ok
}

// nesting returns the nesting depth of ${…} in a word, and the length of the longest
// expression in bytes.
func nesting(word string) (depth, longest int) {
	var open []int
	for i := 0; i < len(word); i++ {
		switch {
		case word[i] == '$' && i+1 < len(word) && word[i+1] == '{':
			open = append(open, i)
			depth = max(depth, len(open))
		case word[i] == '}' && len(open) > 0:
			longest = max(longest, i-open[len(open)-1])
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		longest = max(longest, len(word)-open[0])
	}
	return depth, longest
}

// CheckSize returns an error if the variables of a stage, as NAME=VALUE, are larger than
// 16 MiB in total.
func CheckSize(vars []string) error {
	n := 0
	for _, kv := range vars {
		n += len(kv)
	}
	if n > maxVariables {
		return fmt.Errorf("the variables of the stage are %d bytes in total; the maximum is %d", n, maxVariables)
	}
	return nil
}
