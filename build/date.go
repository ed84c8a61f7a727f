package build

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"hpcc/build/git"
	"hpcc/build/source"
)

// epochArg is the build argument, environment variable or global ARG for modification times
// (https://reproducible-builds.org/docs/source-date-epoch/).
const epochArg = "SOURCE_DATE_EPOCH"

// contextDate is the value of epochArg for the time of the context.
const contextDate = "context"

// setArg sets a build argument, in a copy of the caller's map.
func (b *builder) setArg(name, value string) {
	b.Args = maps.Clone(b.Args)
	if b.Args == nil {
		b.Args = map[string]string{}
	}
	b.Args[name] = value
}

// A dateSource is where the value of epochArg comes from. The zero value means no source: the
// value is a number or empty.
type dateSource struct {
	context bool   // of the build context
	named   string // value of a named context
	stage   *addedSource
}

// An addedSource is the only ADD of a stage, with expanded arguments.
type addedSource struct {
	address, checksum string
	keepGit           bool
}

// findDate finds the source of the build's date, without downloading it.
func (b *builder) findDate() (value string, from dateSource, err error) {
	globals, err := b.globals(b.Args)
	if err != nil {
		return "", from, err
	}
	value, given := b.Args[epochArg]
	if !given {
		value = globals[epochArg]
	}
	if _, err := strconv.ParseInt(value, 10, 64); err == nil || value == "" {
		return value, from, nil
	}
	if value == contextDate {
		return value, dateSource{context: true}, nil
	}
	if v, ok := b.named(value); ok {
		return value, dateSource{named: v}, nil
	}
	for i, st := range b.stages {
		if st.Name == "" || !strings.EqualFold(st.Name, value) {
			continue
		}
		delete(globals, epochArg)
		if from.stage, err = b.onlySource(i, globals); err != nil {
			err = b.at(st.Location, st.SourceCode, err)
		}
		return value, from, err
	}
	err = fmt.Errorf("invalid SOURCE_DATE_EPOCH: %s; write seconds since 1970, %q, or the name of a context or of a stage with one ADD of a URL", value, contextDate)
	for _, c := range b.metaArgs {
		for _, a := range c.Args {
			if a.Key == epochArg && !given {
				err = b.at(c.Location(), written(&c), err)
			}
		}
	}
	return value, from, err
}

// onlySource returns the source of a stage that has one ADD of a URL or repository and nothing
// else.
func (b *builder) onlySource(i int, vars map[string]string) (*addedSource, error) {
	if base, err := b.expandMeta(b.stages[i].BaseName); err != nil || base != "scratch" {
		return nil, errors.New("SOURCE_DATE_EPOCH stage must use FROM scratch")
	}
	lex := shell.NewLex(b.escape)
	var found *addedSource
	for _, c := range b.stages[i].Commands {
		switch c := c.(type) {
		case *instructions.ArgCommand:
			for _, a := range c.Args {
				v, given := b.Args[a.Key]
				if !given && a.Value != nil {
					var err error
					if v, err = expandValue(lex, *a.Value, pairs(vars)); err != nil {
						return nil, err
					}
					given = true
				}
				if given {
					vars[a.Key] = v
				}
			}
		case *instructions.AddCommand:
			if found != nil || len(c.SourceContents) > 0 || len(c.SourcePaths) != 1 {
				return nil, errors.New("SOURCE_DATE_EPOCH stage must contain exactly one remote ADD with one source")
			}
			found = &addedSource{keepGit: c.KeepGitDir != nil && *c.KeepGitDir}
			var err error
			if found.address, err = expandValue(lex, c.SourcePaths[0], pairs(vars)); err != nil {
				return nil, err
			}
			if found.checksum, err = expandValue(lex, c.Checksum, pairs(vars)); err != nil {
				return nil, err
			}
		default:
			return nil, fmt.Errorf("SOURCE_DATE_EPOCH stage does not meet source-only requirements: it has %s", strings.ToUpper(c.Name()))
		}
	}
	if found == nil || !source.IsRemote(found.address) {
		return nil, errors.New("SOURCE_DATE_EPOCH stage must contain exactly one remote ADD, of a URL or git repository")
	}
	return found, nil
}

// setDate sets the build's date, for which it may download a source. Stages see it as a number.
func (b *builder) setDate(ctx context.Context) error {
	value, from, err := b.findDate()
	if err != nil {
		return err
	}
	var when time.Time
	switch {
	case from.context:
		when, err = b.dateOf(ctx, b.given, "", false)
	case from.named != "":
		when, err = b.dateOf(ctx, from.named, "", false)
	case from.stage != nil:
		when, err = b.dateOf(ctx, from.stage.address, from.stage.checksum, from.stage.keepGit)
	default:
		return b.useDate(value)
	}
	if err != nil {
		return fmt.Errorf("finding SOURCE_DATE_EPOCH %s: %w", value, err)
	}
	if value = ""; !when.IsZero() {
		value = strconv.FormatInt(when.Unix(), 10)
	}
	b.setArg(epochArg, value)
	return b.useDate(value)
}

// useDate sets the date of a reproducible build, given the value of SOURCE_DATE_EPOCH, which
// makes a build reproducible.
func (b *builder) useDate(value string) (err error) {
	b.dated = value != ""
	if b.Reproducible = b.Reproducible || b.dated; b.Reproducible {
		b.date, b.stamp, err = source.Date(value)
	}
	return err
}

// now returns the modification time of files that the build writes.
func (b *builder) now() time.Time {
	if b.Reproducible {
		return b.stamp
	}
	return time.Now()
}

// since returns the time from which on files have the date of a reproducible build: files that
// this build wrote, and files with a later date.
func (b *builder) since() time.Time {
	if own := b.started.Add(-time.Second); own.Before(b.stamp) {
		return own
	}
	return b.stamp
}

// dateOf returns the time of a source: of the commit of a repository; of a file as its server
// reports it, or else of the newest file in it, if it is an archive. Other sources have none.
func (b *builder) dateOf(ctx context.Context, address, checksum string, keepGit bool) (time.Time, error) {
	switch {
	case git.IsAddress(address) || (address == b.given && git.IsContext(address)):
		if address == b.given {
			keepGit = b.keepsContextGit()
		}
		c, err := b.clone(ctx, address, checksum, keepGit)
		if err != nil {
			return time.Time{}, err
		}
		return c.Time, nil
	case source.IsRemote(address):
		f, err := b.fetchFile(ctx, address, checksum != "", func(int64, int64) {})
		if err != nil || !f.Modified.IsZero() {
			return f.Modified, err
		}
		return newest(f.Path)
	}
	return time.Time{}, nil
}

// newest returns the time of the newest file in an archive, or zero for another file.
func newest(file string) (t time.Time, err error) {
	r, ok, err := source.Archive(file)
	if err != nil || !ok {
		return t, nil // the step that uses it reports the error
	}
	defer r.Close()
	for tr := tar.NewReader(io.LimitReader(r, maxContext)); ; {
		h, err := tr.Next()
		if err != nil {
			return t, nil
		}
		if h.Typeflag == tar.TypeReg && h.ModTime.After(t) {
			t = h.ModTime.UTC()
		}
	}
}

// environmentDate copies the variable epochArg of the environment to the build arguments, as
// docker buildx does.
func (b *builder) environmentDate() {
	if _, given := b.Args[epochArg]; given {
		return
	}
	if v, ok := os.LookupEnv(epochArg); ok {
		b.setArg(epochArg, v)
	}
}
