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

// Exports of Windows and macOS list packages that exist only for those systems. Most of
// the rest is available for Linux. The error names the packages to remove.

// elsewhere are patterns of package names that exist for one system only: its runtime and
// interfaces to it.
var elsewhere = []struct{ system, subdir, names string }{
	{"Windows", "win-", "vc vc14_runtime vcomp14 vs20*_runtime ucrt m2w64-* m2-* msys2-* pywin32 pywinpty winpty wincertstore win_inet_pton win_unicode_console console_shortcut* *_win-64"},
	{"macOS", "osx-", "appnope pyobjc* python.app *_osx-64 *_osx-arm64"},
}

// foreign adds the remedy to an error about an export of another system.
func foreign(e *exports.Export, err error) error {
	var le *exports.LineError
	if !errors.As(err, &le) || e.Explicit { // explicit entries are refused by their URLs
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
			return fmt.Errorf("%w; the export is from %s, and %s exist only there: remove them", err, x.system, input.List(found))
		case strings.HasPrefix(e.Subdir, x.subdir):
			return fmt.Errorf("%w; the export is from %s: remove the packages that exist only there", err, x.system)
		}
	}
	return err
}

// names returns the names of all conda packages in the export.
func names(e *exports.Export) (out []string) {
	for _, x := range e.Entries {
		out = append(out, x.Name)
	}
	for _, s := range e.UnmetSpecs() {
		if spec, err := solve.ParseSpec(s.Text); err == nil {
			out = append(out, spec.Name)
		}
	}
	return out
}
