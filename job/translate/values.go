package translate

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"hpcc/job"
	"hpcc/job/message"
)

// What the values of options have in common.

// number reads a positive amount. Of a range it is the least.
func (r *reader) number(s string, separators string) (int, error) {
	first := s
	if i := strings.IndexAny(s, separators); separators != "" && i > 0 {
		first = s[:i]
		r.changed("at least %s", first)
	}
	n, err := strconv.Atoi(first)
	if err != nil || n < 1 || n > 1<<24 {
		return 0, fmt.Errorf("%q is no positive number", message.Short(s))
	}
	return n, nil
}

// setNumber is an option that fills in one number.
func setNumber(f field, at func(j *job.Job) *int) func(*reader, string) error {
	return func(r *reader, v string) error {
		r.fills(f)
		n, err := r.number(v, "-,")
		*at(r.job) = n
		return err
	}
}

// setWord is an option that fills in one word.
func setWord(f field, at func(j *job.Job) *string) func(*reader, string) error {
	return func(r *reader, v string) error {
		r.fills(f)
		if f != fName && !job.WordText().MatchString(v) {
			return fmt.Errorf("%q holds characters that directives cannot", message.Short(v))
		}
		*at(r.job) = v
		return nil
	}
}

// setFlag is an option without a value that sets something.
func setFlag(f field, set func(j *job.Job)) func(*reader, string) error {
	return func(r *reader, _ string) error {
		set(r.job)
		r.fills(f)
		return nil
	}
}

// outside is an option of the command that hands in, no part of the job.
func outside(r *reader, _ string) error {
	r.changed("it says how the job is handed in; \"hpcc submit\" has flags of its own for that")
	return nil
}

// refuse is an option that hpcc cannot follow.
func refuse(why string) func(*reader, string) error {
	return func(*reader, string) error { return errors.New(why) }
}

// listOf splits a list and drops empty items.
func listOf(s, separators string) []string {
	return strings.FieldsFunc(s, func(c rune) bool { return strings.ContainsRune(separators, c) })
}

// A pattern is how a scheduler writes what it fills into names of files.
type pattern struct {
	sign    string   // with which letters begin
	letters []string // pairs of theirs and ours
}

// file reads the name of a file with a scheduler's letters.
func (r *reader) file(v string, p pattern) (string, error) {
	if strings.ContainsAny(v, "\n\r\x00\"{}") {
		return "", fmt.Errorf("file %q: holds a sign that directives cannot", message.Short(v))
	}
	letters := p.letters[:len(p.letters):len(p.letters)]
	if user := map[string]string{"%": "%u", "$": "$USER"}[p.sign]; user != "" && r.source.User != "" {
		letters = append(letters, user, r.source.User)
	}
	return strings.NewReplacer(letters...).Replace(v), nil
}

// environment reads NAME=VALUE and names, with commas between them.
func (r *reader) environment(list []string) error {
	for _, e := range list {
		name, _, value := strings.Cut(e, "=")
		switch {
		case !job.EnvName().MatchString(name):
			return fmt.Errorf("variable %q: not of the form NAME or NAME=VALUE", message.Short(e))
		case value:
			r.job.Env = append(r.job.Env[:len(r.job.Env):len(r.job.Env)], e)
			r.fills(fEnv)
		default:
			r.job.Export = append(r.job.Export[:len(r.job.Export):len(r.job.Export)], name)
			r.fills(fExport)
		}
	}
	return nil
}

// commaList splits at commas outside of quotation marks, which it takes away.
func commaList(s string) []string {
	var out []string
	var item strings.Builder
	quote := rune(0)
	for _, c := range s {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '\'' || c == '"'):
			quote = c
		case quote == 0 && c == ',':
			out = append(out, item.String())
			item.Reset()
		default:
			item.WriteRune(c)
		}
	}
	return append(out, item.String())
}
