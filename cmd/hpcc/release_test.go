package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestRelease makes a release of the same sources in two directories, the second with
// another umask, time zone and language. It compares all files byte for byte, and checks
// the content of the first release.
func TestRelease(t *testing.T) {
	t.Parallel()
	testenv.Slow(t)
	sums := func(dir, setting string) string {
		shell(t, "../..", `tar cf - --exclude=./.git --exclude=./bin --exclude=./dist . | (`+setting+` && mkdir -p "$0" && tar xf - --no-same-permissions -C "$0")`, dir)
		shell(t, dir, setting+` && make -s release VERSION=1.2.3-rc1 SOURCE_DATE_EPOCH=1700000000`)
		text, err := os.ReadFile(filepath.Join(dir, "dist", "SHA256SUMS"))
		testenv.Check(t, err)
		return string(text)
	}
	first := filepath.Join(t.TempDir(), "first")
	one := sums(first, "umask 022")
	two := sums(filepath.Join(t.TempDir(), "the", "second"), "umask 077 && export TZ=Asia/Tokyo LC_ALL=C.UTF-8")
	if one != two {
		t.Errorf("the checksums of two releases differ:\n%s", differ(one, two))
	}
	dist := filepath.Join(first, "dist")
	shell(t, dist, "sha256sum --quiet -c SHA256SUMS")
	t.Run("files", func(t *testing.T) { checkReleaseFiles(t, one) })
	t.Run("programs", func(t *testing.T) { checkReleasePrograms(t, dist) })
	t.Run("deb", func(t *testing.T) { checkDeb(t, dist) })
	t.Run("rpm", func(t *testing.T) { checkRPM(t, dist) })
}

// checkReleaseFiles compares the names in SHA256SUMS, besides the manual pages of
// commands, with those that docs/development.md promises.
func checkReleaseFiles(t *testing.T, sums string) {
	var got []string
	for line := range strings.Lines(sums) {
		_, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if !strings.HasPrefix(name, "share/man/man1/hpcc-") {
			got = append(got, name)
		}
	}
	want := []string{"THIRD_PARTY_LICENSES",
		"hpcc-1.2.3~rc1-1.aarch64.rpm", "hpcc-1.2.3~rc1-1.ppc64le.rpm", "hpcc-1.2.3~rc1-1.x86_64.rpm",
		"hpcc-linux-amd64", "hpcc-linux-amd64.cdx.json", "hpcc-linux-arm64", "hpcc-linux-arm64.cdx.json", "hpcc-linux-ppc64le", "hpcc-linux-ppc64le.cdx.json",
		"hpcc_1.2.3~rc1-1_amd64.deb", "hpcc_1.2.3~rc1-1_arm64.deb", "hpcc_1.2.3~rc1-1_ppc64el.deb",
		"share/bash-completion/completions/hpcc", "share/fish/vendor_completions.d/hpcc.fish", "share/man/man1/hpcc.1.gz", "share/zsh/site-functions/_hpcc"}
	if !slices.Equal(got, want) {
		t.Errorf("SHA256SUMS lists\n%q, want\n%q", got, want)
	}
}

// checkReleasePrograms compares the modules that are linked into each program with the
// licence texts and with its list of components.
func checkReleasePrograms(t *testing.T, dist string) {
	out, err := exec.Command(filepath.Join(dist, "hpcc-linux-"+goruntime.GOARCH), "--version").Output()
	if testenv.Check(t, err); !strings.Contains(string(out), "1.2.3-rc1") {
		t.Errorf("hpcc --version prints %q, want 1.2.3-rc1", out)
	}
	licenses, err := os.ReadFile(filepath.Join(dist, "THIRD_PARTY_LICENSES"))
	testenv.Check(t, err)
	for _, arch := range []string{"amd64", "arm64", "ppc64le"} {
		file := filepath.Join(dist, "hpcc-linux-"+arch)
		info, err := buildinfo.ReadFile(file)
		testenv.Check(t, err)
		text, err := os.ReadFile(file + ".cdx.json")
		testenv.Check(t, err)
		var sbom struct {
			Metadata   struct{ Component struct{ Version string } }
			Components []struct {
				PackageURL string `json:"purl"`
			}
		}
		testenv.Check(t, json.Unmarshal(text, &sbom))
		var listed []string
		for _, c := range sbom.Components {
			url, _, _ := strings.Cut(c.PackageURL, "?")
			listed = append(listed, url)
		}
		if v := sbom.Metadata.Component.Version; v != "1.2.3-rc1" {
			t.Errorf("%s.cdx.json has the version %q", file, v)
		}
		for _, m := range info.Deps {
			if url := "pkg:golang/" + m.Path + "@" + m.Version; !slices.Contains(listed, url) {
				t.Errorf("%s.cdx.json lacks %s", file, url)
			}
			if name := "\n" + m.Path + " " + m.Version + " "; !strings.Contains(string(licenses), name) {
				t.Errorf("THIRD_PARTY_LICENSES lacks %s, which %s contains", name, file)
			}
		}
	}
	if goVersion := "Go standard library " + goruntime.Version() + " LICENSE"; !strings.Contains(string(licenses), goVersion) {
		t.Errorf("THIRD_PARTY_LICENSES lacks %s", goVersion)
	}
}

// installed are files of both packages, with their modes.
var installed = []string{
	"-rwxr-xr-x /usr/bin/hpcc",
	"-rw-r--r-- /usr/share/bash-completion/completions/hpcc",
	"-rw-r--r-- /usr/share/doc/hpcc/README.md",
	"-rw-r--r-- /usr/share/fish/vendor_completions.d/hpcc.fish",
	"-rw-r--r-- /usr/share/man/man1/hpcc-build.1.gz",
	"-rw-r--r-- /usr/share/man/man1/hpcc.1.gz",
}

func checkDeb(t *testing.T, dist string) {
	testenv.NeedProgram(t, "dpkg-deb")
	for arch, debian := range map[string]string{"amd64": "amd64", "arm64": "arm64", "ppc64le": "ppc64el"} {
		deb := filepath.Join(dist, "hpcc_1.2.3~rc1-1_"+debian+".deb")
		checkPackage(t, deb, append(installed, "-rw-r--r-- /usr/share/doc/hpcc/copyright", "-rw-r--r-- /usr/share/doc/hpcc/THIRD_PARTY_LICENSES", "-rw-r--r-- /usr/share/zsh/vendor-completions/_hpcc"),
			`dpkg-deb -c "$0" | awk '{ sub(/^\./, "", $6); print $1, $2, $6 }'`)
		dir := t.TempDir()
		shell(t, dist, `dpkg-deb -x "$0" "$2" && cmp "$1" "$2/usr/bin/hpcc"`, deb, "hpcc-linux-"+arch, dir)
	}
}

func checkRPM(t *testing.T, dist string) {
	testenv.NeedProgram(t, "rpm")
	query := "rpm --dbpath '" + t.TempDir() + "' " // an ordinary user has no database
	for _, arch := range []string{"x86_64", "aarch64", "ppc64le"} {
		rpm := filepath.Join(dist, "hpcc-1.2.3~rc1-1."+arch+".rpm")
		checkPackage(t, rpm, append(installed, "-rw-r--r-- /usr/share/licenses/hpcc/LICENSE", "-rw-r--r-- /usr/share/licenses/hpcc/THIRD_PARTY_LICENSES", "-rw-r--r-- /usr/share/zsh/site-functions/_hpcc"),
			query+`-qp --qf '[%{FILEMODES:perms} %{FILEUSERNAME}/%{FILEGROUPNAME} %{FILENAMES}\n]' "$0"`)
		shell(t, dist, query+`-K --nosignature "$0"`, rpm)
	}
}

// checkPackage compares what list prints of a package, lines of mode, owner and name, with
// the wanted files. Everything belongs to root.
func checkPackage(t *testing.T, file string, want []string, list string) {
	out, err := exec.Command("sh", "-ec", list, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", file, err, out)
	}
	var got []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "root/root" {
			t.Errorf("%s: %q does not belong to root", file, line)
			continue
		}
		got = append(got, fmt.Sprint(f[0], " ", f[2]))
	}
	for _, w := range want {
		if !slices.Contains(got, w) {
			t.Errorf("%s lacks %q; it has\n%s", file, w, strings.Join(got, "\n"))
		}
	}
}
