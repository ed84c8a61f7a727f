package conda

import (
	"errors"
	"strings"
	"testing"

	"hpcc/conda/exports"
	"hpcc/testdata/helpers/condatest"
)

// TestForeignExport reports packages that only another system has, with the line and a
// remedy.
func TestForeignExport(t *testing.T) {
	py, lib := &testPkg{name: "python", version: "3.11.4"}, &testPkg{name: "lib"}
	dir := newChannel(t, py, lib)
	for _, c := range []struct {
		name, in string
		line     int
		want     string
	}{
		{"Windows, conda list -e", "# platform: win-64\npython=3.11.4=0\nvs2015_runtime=14.27=h_0\nlib=1.0=0\nucrt=10=0\n", 3, "ucrt=10=0 (no package of that name); the export is from Windows, and ucrt, vs2015_runtime exist only there: remove them"},
		{"Windows, environment.yml", "dependencies:\n- python=3.11\n- vc=14.2\nprefix: C:\\Users\\me\\envs\\x\n", 3, "the export is from Windows, and vc exist only there: remove them"},
		{"Windows, a package of its own", "# platform: win-64\nlib=1.0=0\ndriver=5.3.0=7\n", 3, "(no package of that name); the export is from Windows: remove the packages that exist only there"},
		{"Windows, explicit", "# platform: win-64\n@EXPLICIT\nhttps://c.example/win-64/lib-1.0-0.conda\n", 3, `lib-1.0-0.conda is for win-64, but the image is for linux-64; export with "conda list -e"`},
		{"macOS", "# platform: osx-arm64\nlib=1.0=0\nappnope=0.1=0\n", 3, "the export is from macOS, and appnope exist only there: remove them"},
		{"Linux", "# platform: linux-64\nlib=1.0=0\nnosuch=0.1=0\n", 3, "nosuch=0.1=0 (no package of that name)"},
	} {
		s := condatest.NewStore(t)
		_, err := install(t, s, c.in, Options{Request: Request{Channels: []string{dir}}})
		refused(t, s, c.name, err, c.want)
		var le *exports.LineError
		if !errors.As(err, &le) || le.Line != c.line {
			t.Errorf("%s: %v; want line %d", c.name, err, c.line)
		}
		if c.name == "Linux" && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	// Packages that Linux has too are accepted.
	r, err := install(t, condatest.NewStore(t), "# platform: win-64\npython=3.11.4=h_win\nlib=1.0=0\n", Options{Request: Request{Channels: []string{dir}}})
	if err != nil || len(r.plan.pkgs) != 2 {
		t.Errorf("an export of Windows with packages that Linux has: %v", err)
	}
}
