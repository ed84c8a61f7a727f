package conda

import (
	"errors"
	"fmt"
	"path"
	"strings"

	"hpcc/conda/exports"
	"hpcc/conda/input"
	"hpcc/conda/solve"
)

// Exports of Windows and macOS list packages that those systems alone have; most of
// the rest can be had for Linux. An error tells which ones to take out.

// elsewhere are patterns of names that channels have for one system alone: its own
// runtime, and what speaks to it.
var elsewhere = []struct{ system, subdir, names string }{
	{"Windows", "win-", "vc vc14_runtime vcomp14 vs20*_runtime ucrt m2w64-* m2-* msys2-* pywin32 pywinpty winpty wincertstore win_inet_pton win_unicode_console console_shortcut* *_win-64"},
	{"macOS", "osx-", "appnope pyobjc* python.app *_osx-64 *_osx-arm64"},
}

// foreign says of an error in an export of another system what is to be done.
func foreign(e *exports.Export, err error) error {
	var le *exports.LineError
	if !errors.As(err, &le) || e.Explicit { // those are refused by their URLs
		return err
	}
	for _, x := range elsewhere {
		var found []string
		for _, n := range names(e) {
			for _, pattern := range strings.Fields(x.names) {
				if ok, _ := path.Match(pattern, n); ok {
					found = append(found, n)
					break
				}
			}
		}
		switch {
		case len(found) > 0:
			return fmt.Errorf("%w; the export is of %s, and only that has %s: take them out", err, x.system, input.List(found))
		case strings.HasPrefix(e.Subdir, x.subdir):
			return fmt.Errorf("%w; the export is of %s, and what only that has must be taken out", err, x.system)
		}
	}
	return err
}

// names are those of all packages that the export lists for conda.
func names(e *exports.Export) (out []string) {
	for _, x := range e.Entries {
		out = append(out, x.Name)
	}
	for _, s := range e.Wishes() {
		if spec, err := solve.ParseSpec(s.Text); err == nil {
			out = append(out, spec.Name)
		}
	}
	return out
}
