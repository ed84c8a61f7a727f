package job

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
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
		return 0, fmt.Errorf("%q is no positive number", shorten(s))
	}
	return n, nil
}

// setNumber is an option that fills in one number.
func setNumber(f field, at func(j *Job) *int) func(*reader, string) error {
	return func(r *reader, v string) error {
		r.fills(f)
		n, err := r.number(v, "-,")
		*at(r.job) = n
		return err
	}
}

// setWord is an option that fills in one word.
func setWord(f field, at func(j *Job) *string) func(*reader, string) error {
	return func(r *reader, v string) error {
		r.fills(f)
		if f != fName && !wordText().MatchString(v) {
			return fmt.Errorf("%q holds characters that directives cannot", shorten(v))
		}
		*at(r.job) = v
		return nil
	}
}

// setFlag is an option without a value that sets something.
func setFlag(f field, set func(j *Job)) func(*reader, string) error {
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

// A sizeUnit says how many bytes a suffix stands for; "" is a bare number.
type sizeUnit map[string]int64

// size reads an amount of memory in a scheduler's units.
func size(s string, units sizeUnit) (int64, error) {
	i := strings.LastIndexAny(s, "0123456789.") + 1
	x, err := strconv.ParseFloat(s[:i], 64)
	unit, ok := units[s[i:]]
	if err != nil || !ok || !(x > 0) || x*float64(unit) > math.MaxInt64/4 {
		return 0, fmt.Errorf("%q is no amount of memory", shorten(s))
	}
	return int64(math.Ceil(x * float64(unit))), nil
}

// human writes an amount of memory for people.
func human(n int64) string {
	x, unit := float64(n), ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if x >= 1024 {
			x, unit = x/1024, u
		}
	}
	return strings.TrimSuffix(strings.TrimRight(strconv.FormatFloat(x, 'f', 2, 64), "0"), ".") + unit
}

// maxTime bounds a time limit: ten years.
const maxTime = 10 * 365 * 24 * time.Hour

// clockTime reads fields of a time from the right: the last is worth units[0],
// the one before units[1], and so on.
func clockTime(s string, units ...time.Duration) (time.Duration, error) {
	parts := strings.Split(s, ":")
	if len(parts) > len(units) {
		return 0, fmt.Errorf("%q is no time", shorten(s))
	}
	var d time.Duration
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 31)
		if err != nil || time.Duration(n) > maxTime/units[len(parts)-1-i] {
			return 0, fmt.Errorf("%q is no time", shorten(s))
		}
		d += time.Duration(n) * units[len(parts)-1-i]
	}
	if d > maxTime {
		return 0, fmt.Errorf("%q is no time", shorten(s))
	}
	return d, nil
}

// seconds reads [[H:]M:]S, as Grid Engine and PBS have it.
func seconds(s string) (time.Duration, error) {
	d, err := clockTime(s, time.Second, time.Minute, time.Hour)
	if err == nil && d == 0 {
		err = fmt.Errorf("%q is no time", s)
	}
	return d, err
}

// listOf splits a list and drops empty items.
func listOf(s, separators string) []string {
	return strings.FieldsFunc(s, func(c rune) bool { return strings.ContainsRune(separators, c) })
}

// signalName reads a signal: USR1, SIGUSR1, 10.
func signalName(s string) (string, error) {
	s = strings.TrimPrefix(strings.ToUpper(s), "SIG")
	names := map[string]string{"1": "HUP", "2": "INT", "3": "QUIT", "9": "KILL", "10": "USR1", "12": "USR2", "15": "TERM", "18": "CONT", "23": "URG"}
	if n, ok := names[s]; ok {
		s = n
	}
	switch s {
	case "HUP", "INT", "QUIT", "KILL", "USR1", "USR2", "TERM", "CONT", "URG", "XCPU":
		return s, nil
	}
	return "", fmt.Errorf("%q is no signal that hpcc knows", shorten(s))
}

// A pattern is how a scheduler writes what it fills into names of files.
type pattern struct {
	sign    string   // with which letters begin
	letters []string // pairs of theirs and ours
}

// file reads the name of a file with a scheduler's letters.
func (r *reader) file(v string, p pattern) (string, error) {
	if strings.ContainsAny(v, "\n\r\x00\"{}") {
		return "", fmt.Errorf("file %q: holds a sign that directives cannot", shorten(v))
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
		case !envName().MatchString(name):
			return fmt.Errorf("variable %q: not of the form NAME or NAME=VALUE", shorten(e))
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
