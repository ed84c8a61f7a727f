package attest

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	spdxjson "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdxlib"

	"hpcc/testdata/testenv"
)

func TestPURL(t *testing.T) {
	amd64 := &v1.Platform{OS: "linux", Architecture: "amd64"}
	digest := "sha256:" + strings.Repeat("a", 64)
	for _, c := range []struct{ got, want string }{
		{PURL("deb", "debian", "libstdc++6", "12.2.0-14+deb12u1", "distro", "debian-12", "arch", "amd64"), "pkg:deb/debian/libstdc%2B%2B6@12.2.0-14%2Bdeb12u1?arch=amd64&distro=debian-12"},
		{PURL("deb", "debian", "a", "1:2~rc1", "arch", ""), "pkg:deb/debian/a@1:2~rc1"},
		{PURL("conda", "", "absl-py", "0.4.1", "build", "py36h06a4308_0", "channel", "main", "subdir", "linux-64", "type", "tar.bz2"), "pkg:conda/absl-py@0.4.1?build=py36h06a4308_0&channel=main&subdir=linux-64&type=tar.bz2"},
		{ImagePURL("debian:12", amd64), "pkg:docker/debian@12?platform=linux%2Famd64"},
		{ImagePURL("docker.io/library/debian", nil), "pkg:docker/debian@latest"},
		{ImagePURL("localhost:5000/lab/sci:1", amd64), "pkg:docker/localhost:5000/lab/sci@1?platform=linux%2Famd64"},
		{ImagePURL("debian@"+digest, amd64), "pkg:docker/debian?digest=sha256:" + digest[7:] + "&platform=linux%2Famd64"},
	} {
		if c.got != c.want {
			t.Errorf("got %s; want %s", c.got, c.want)
		}
	}
}

func TestLicenseExpression(t *testing.T) {
	for in, want := range map[string]string{
		"MIT": "MIT", "mit": "MIT", "apache-2.0 AND (bsd-3-clause OR MIT)": "Apache-2.0 AND (BSD-3-Clause OR MIT)",
		"GPL-2.0-or-later WITH Classpath-exception-2.0": "GPL-2.0-or-later WITH Classpath-exception-2.0",
		"GPL-2.0+": "GPL-2.0+", "LGPL-2.1+ AND MIT": "LGPL-2.1+ AND MIT", "MPL-2.0+": "MPL-2.0+",
		"((MIT))": "((MIT))",
		"":        "", "MIT License": "", "MIT AND": "", "MIT and BSD": "", "(MIT": "", "MIT)": "", "AND": "", "Proprietary": "", "MIT WITH MIT": "", "+": "",
		"MIT OR LicenseRef-x": "", strings.Repeat("(", 5000) + "MIT": "", strings.Repeat("MIT AND ", 5000) + "MIT": "",
	} {
		got, ok := licenseExpression(in)
		if got != want || ok != (want != "") {
			t.Errorf("licenseExpression(%.60q) = %q, %v; want %q", in, got, ok, want)
		}
	}
}

const debianRelease = "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\nID=debian\n"

// packagesOf returns the packages that the document of a tree with these files lists, by
// name, and the notes.
func packagesOf(t *testing.T, files map[string]string) (map[string]spdxPackage, []string) {
	t.Helper()
	raw := map[string][]byte{}
	for n, s := range files {
		raw[n] = []byte(s)
	}
	_, in := listed(t, raw)
	out := map[string]spdxPackage{}
	for _, s := range in.list {
		out[s.name] = s.spdx()
	}
	return out, in.notes
}

func TestSBOMDpkg(t *testing.T) {
	got, notes := packagesOf(t, map[string]string{
		"usr/lib/os-release": debianRelease,
		"var/lib/dpkg/status": "Package: libc6\nStatus: install ok installed\nMaintainer: GNU Libc Maintainers <debian-glibc@lists.debian.org>\nArchitecture: amd64\nSource: glibc (2.36-9)\nVersion: 2.36-9+deb12u4\nDescription: C\n Version: 9\n .\nHomepage: https://www.gnu.org/software/libc/libc.html\n\n\n" +
			"Package: gone\nStatus: deinstall ok config-files\nVersion: 1\n\n" +
			"Package: half\nStatus: install ok triggers-pending\nVersion: 1:2-3\nArchitecture: all\nSource: half\n",
		"var/lib/dpkg/status.d/base":         "Package: base-files\nVersion: 12.4\nArchitecture: amd64\n",
		"var/lib/dpkg/status.d/base.md5sums": "0123  etc/x\n",
	})
	if len(got) != 3 || len(notes) != 0 {
		t.Fatalf("packages %v, notes %q", got, notes)
	}
	c := got["libc6"]
	if c.ExternalRefs[0].Locator != "pkg:deb/debian/libc6@2.36-9%2Bdeb12u4?arch=amd64&distro=debian-12&upstream=glibc%402.36-9" ||
		c.Supplier != "Organization: GNU Libc Maintainers (debian-glibc@lists.debian.org)" || c.Homepage != "https://www.gnu.org/software/libc/libc.html" {
		t.Errorf("libc6 = %+v", c)
	}
	if l := got["half"].ExternalRefs[0].Locator; l != "pkg:deb/debian/half@1:2-3?arch=all&distro=debian-12" {
		t.Errorf("half = %s", l)
	}
	if got["base-files"].VersionInfo != "12.4" {
		t.Errorf("base-files = %+v", got["base-files"])
	}
}

func TestSBOMApk(t *testing.T) {
	got, notes := packagesOf(t, map[string]string{
		"etc/os-release": "ID=alpine\nVERSION_ID=3.18.4\n",
		"lib/apk/db/installed": "C:Q1qKcZ+j23xssAXmgQhkOO8dHnbWw=\nP:alpine-baselayout\nV:3.4.3-r1\nA:x86_64\nS:8911\nI:331776\nT:Alpine base dir structure\nU:https://git.alpinelinux.org/cgit/aports/tree/main/alpine-baselayout\n" +
			"L:GPL-2.0-only\no:alpine-baselayout\nm:Natanael Copa <ncopa@alpinelinux.org>\nt:1683642107\nc:65502ca9379dd29d1ac4b0bf0dcf03a3dd1b324a\nD:alpine-baselayout-data=3.4.3-r1 /bin/sh\nF:dev\nF:dev/pts\nR:group\na:0:0:644\nZ:Q1Oy=\n\n" +
			"P:libcrypto3\nV:3.1.3-r0\nA:x86_64\nL:Apache-2.0\no:openssl\nF:etc\nM:0:0:1777\n\n",
	})
	if len(got) != 2 || len(notes) != 0 {
		t.Fatalf("packages %v, notes %q", got, notes)
	}
	b := got["alpine-baselayout"]
	if b.VersionInfo != "3.4.3-r1" || b.LicenseDeclared != "GPL-2.0-only" || b.Supplier != "Person: Natanael Copa (ncopa@alpinelinux.org)" ||
		b.ExternalRefs[0].Locator != "pkg:apk/alpine/alpine-baselayout@3.4.3-r1?arch=x86_64&distro=alpine-3.18.4" {
		t.Errorf("alpine-baselayout = %+v", b)
	}
	if l := got["libcrypto3"].ExternalRefs[0].Locator; l != "pkg:apk/alpine/libcrypto3@3.1.3-r0?arch=x86_64&distro=alpine-3.18.4&upstream=openssl" {
		t.Errorf("libcrypto3 = %s", l)
	}
}

func TestSBOMPython(t *testing.T) {
	site, sum := "srv/venv/lib/python3.11/site-packages/", strings.Repeat("0a", 32)
	got, notes := packagesOf(t, map[string]string{
		site + "Typing_Extensions-4.8.0.dist-info/METADATA":     "Metadata-Version: 2.4\r\nName: Typing_Extensions\r\nVersion: 4.8.0\r\nLicense-Expression: psf-2.0\r\nAuthor-email: A Person <a@example.org>\r\n\r\nName: of the description\r\n",
		site + "flask-3.0.dist-info/METADATA":                   "Name: flask\nVersion: 3.0\nLicense: BSD\n  License\nHome-page: UNKNOWN\n",
		site + "flask-3.0.dist-info/direct_url.json":            `{"url": "https://user:secret@example.org/flask.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}}`,
		site + "wheel-1.dist-info/METADATA":                     "Name: wheel\nVersion: 1\n",
		site + "wheel-1.dist-info/direct_url.json":              `{"url": "file:///home/user/wheel.whl", "archive_info": {"hashes": {"sha256": "` + sum + `", "md5": "no"}}}`,
		"usr/lib/python3/dist-packages/six-1.16.0.egg-info":     "Metadata-Version: 1.2\nName: six\nVersion: 1.16.0\nLicense: MIT\n",
		"usr/lib/python3/dist-packages/old.egg-info/PKG-INFO":   "Name: old\nVersion: 0.1\n",
		"usr/lib/python3/dist-packages/nameless-1.egg-info":     "Version: 0.1\n",
		"opt/conda/pkgs/x-1/site-packages/x.dist-info/METADATA": "Name: not-installed\nVersion: 1\n",
		"opt/conda/conda-meta/history":                          "",
	})
	if len(got) != 5 || len(notes) != 1 || !strings.Contains(notes[0], "nameless-1.egg-info: a package without a proper name") {
		t.Fatalf("packages %v, notes %q", got, notes)
	}
	if p := got["Typing_Extensions"]; p.ExternalRefs[0].Locator != "pkg:pypi/typing-extensions@4.8.0" || p.LicenseDeclared != "PSF-2.0" || p.Originator != "Person: A Person (a@example.org)" {
		t.Errorf("typing-extensions = %+v", p)
	}
	if p := got["flask"]; p.DownloadLocation != "git+https://example.org/flask.git@abc" || p.LicenseComments != "declared as BSD" || p.Homepage != "" {
		t.Errorf("flask = %+v", p)
	}
	if p := got["wheel"]; p.DownloadLocation != noAssertion || len(p.Checksums) != 1 || p.Checksums[0] != (spdxChecksum{"SHA256", sum}) {
		t.Errorf("wheel = %+v", p)
	}
}

func TestSBOMConda(t *testing.T) {
	sum := strings.Repeat("1f", 32)
	got, notes := packagesOf(t, map[string]string{
		"opt/conda/conda-meta/numpy-1.24.json": `{"name": "numpy", "version": "1.24", "build": "py311_0", "channel": "https://conda.anaconda.org/conda-forge/linux-64", "subdir": "linux-64",
			"url": "https://u:p@conda.anaconda.org/conda-forge/linux-64/numpy-1.24-py311_0.conda", "fn": "numpy-1.24-py311_0.conda", "sha256": "` + sum + `", "md5": "", "license": "BSD-3-Clause", "files": ["a"]}`,
		"home/env/conda-meta/here-1.json":   `{"name": "here", "version": "1", "channel": "<unknown>", "url": "file:///home/someone/here-1-0.tar.bz2", "fn": "here-1-0.tar.bz2", "license": ["x"]}`,
		"home/env/conda-meta/broken-1.json": `{"name": "broken"`,
	})
	if len(got) != 2 || len(notes) != 1 || !strings.HasPrefix(notes[0], "reading /home/env/conda-meta/broken-1.json: ") {
		t.Fatalf("packages %v, notes %q", got, notes)
	}
	if p := got["numpy"]; p.ExternalRefs[0].Locator != "pkg:conda/numpy@1.24?build=py311_0&channel=conda-forge&subdir=linux-64&type=conda" ||
		p.DownloadLocation != "https://conda.anaconda.org/conda-forge/linux-64/numpy-1.24-py311_0.conda" || p.LicenseDeclared != "BSD-3-Clause" || p.Checksums[0].Value != sum {
		t.Errorf("numpy = %+v", p)
	}
	if p := got["here"]; p.DownloadLocation != noAssertion || p.ExternalRefs[0].Locator != "pkg:conda/here@1?type=tar.bz2" {
		t.Errorf("here = %+v", p)
	}
}

// TestSBOMLinks checks that links are resolved as in the image.
func TestSBOMLinks(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"site-packages/a.dist-info", "site-packages/b.dist-info", "cache"} {
		testenv.Check(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "cache/a"), []byte("Name: a\nVersion: 1\n"), 0o644))
	in := linkedInventory(t, dir, map[string]string{"site-packages/a.dist-info/METADATA": "/cache/a", "site-packages/b.dist-info/METADATA": "../../cache/a"})
	if len(in.list) != 2 || len(in.notes) != 0 {
		t.Errorf("list %v, notes %q; want 2 packages and no notes", in.list, in.notes)
	}
}

// TestSBOMHostile checks that links that lead out of the tree, to themselves, to a directory
// or to a FIFO become notes. Opening the FIFO would block.
func TestSBOMHostile(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "status")
	testenv.Check(t, os.WriteFile(outside, []byte("Package: secret\nStatus: install ok installed\nVersion: 1\n"), 0o644))
	dir := t.TempDir()
	for _, d := range []string{"var/lib/dpkg/status.d", "site-packages/a.dist-info", "site-packages/b.dist-info", "lib/apk/db"} {
		testenv.Check(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	testenv.Check(t, syscall.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	in := linkedInventory(t, dir, map[string]string{"var/lib/dpkg/status": outside, "var/lib/dpkg/status.d/up": "../../../../../../../../" + outside,
		"site-packages/a.dist-info/METADATA": "METADATA", "site-packages/b.dist-info/METADATA": "/pipe", "lib/apk/db/installed": "."})
	if len(in.list) != 0 || len(in.notes) != 5 {
		t.Errorf("list %v, notes %q; want no packages and 5 notes", in.list, in.notes)
	}
}

// linkedInventory adds symbolic links to a tree and returns its inventory.
func linkedInventory(t *testing.T, dir string, links map[string]string) *inventory {
	t.Helper()
	for from, to := range links {
		testenv.Check(t, os.Symlink(to, filepath.Join(dir, from)))
	}
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	defer root.Close()
	in := &inventory{root: root}
	testenv.Check(t, in.walk(t.Context()))
	return in
}

// TestSPDXDocument checks the document against the rules of SPDX 2.3 for JSON (identifiers,
// references, required fields) and with SPDX's own parser.
func TestSPDXDocument(t *testing.T) {
	image := v1.Hash{Algorithm: "sha256", Hex: strings.Repeat("c", 64)}
	list := []software{
		{kind: "deb", name: "a", version: "1", purl: "pkg:deb/debian/a@1", record: "var/lib/dpkg/status"},
		{kind: "deb", name: "a", version: "1", purl: "pkg:deb/debian/a@1", record: "var/lib/dpkg/status"},
		{kind: "pypi", name: "naïve_π <x>", version: "1", purl: "pkg:pypi/x@1", record: "b"},
		{kind: "pypi", name: "x", version: "1", purl: "pkg:pypi/x@1", record: "c", supplier: "\xff\xfe"},
	}
	b, err := json.Marshal(spdx(image, time.Unix(0, 0), list, []string{"note"}))
	testenv.Check(t, err)
	var doc Document
	testenv.Check(t, json.Unmarshal(b, &doc))
	ids := map[string]bool{doc.SPDXID: true}
	for _, p := range doc.Packages {
		if ids[p.SPDXID] || !regexp.MustCompile(`^SPDXRef-[a-zA-Z0-9.-]+$`).MatchString(p.SPDXID) {
			t.Errorf("identifier %q is not unique or not valid", p.SPDXID)
		}
		ids[p.SPDXID] = true
		if p.Name == "" || p.DownloadLocation == "" || p.CopyrightText == "" || p.LicenseConcluded == "" || p.FilesAnalyzed {
			t.Errorf("package %+v: a required field is empty, or filesAnalyzed is true", p)
		}
	}
	for _, r := range doc.Relationships {
		if !ids[r.Element] || !ids[r.Related] {
			t.Errorf("relationship %+v refers to an element that does not exist", r)
		}
	}
	second, err := spdxjson.Read(bytes.NewReader(b))
	if err != nil {
		t.Fatalf("tools-golang: %v", err)
	}
	if err := spdxlib.ValidateDocument(second); err != nil || len(second.Packages) != len(doc.Packages) {
		t.Errorf("tools-golang: %d packages, %v", len(second.Packages), err)
	}
	if len(doc.Packages) != 4 || len(doc.Relationships) != 4 || doc.CreationInfo.Created != "1970-01-01T00:00:00Z" {
		t.Errorf("document %s; want 4 packages, 4 relationships and the time 0", b)
	}
}

func FuzzDpkg(f *testing.F) {
	f.Add([]byte("Package: a\nStatus: install ok installed\nVersion: 1\nSource: b (2)\nMaintainer: X <x@y>\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) { fuzzRecord(t, b, (*inventory).dpkg) })
}

func FuzzApk(f *testing.F) {
	f.Add([]byte("P:a\nV:1\nA:x\nL:MIT\no:b\nm:X <x@y>\n\n"))
	f.Fuzz(func(t *testing.T, b []byte) { fuzzRecord(t, b, (*inventory).apk) })
}

func FuzzPythonMetadata(f *testing.F) {
	f.Add([]byte("Name: a\nVersion: 1\nLicense: MIT\nAuthor: b\n\nText\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		parseDirectURL(bytes.NewReader(b))
		fuzzRecord(t, b, (*inventory).python)
	})
}

func FuzzCondaMeta(f *testing.F) {
	f.Add([]byte(`{"name": "a", "version": "1", "channel": "https://c/x/linux-64", "license": "MIT", "url": "https://c/x/linux-64/a-1-0.conda"}`))
	f.Fuzz(func(t *testing.T, b []byte) { fuzzRecord(t, b, (*inventory).conda) })
}

// fuzzRecord reads a record, and checks that the document of its packages can be encoded.
func fuzzRecord(t *testing.T, b []byte, read recordReader) {
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "record"), b, 0o644))
	root, err := os.OpenRoot(dir)
	testenv.Check(t, err)
	defer root.Close()
	in := &inventory{root: root, os: parseOS(bytes.NewReader(b))}
	_ = in.read("record", read)
	doc := spdx(v1.Hash{Algorithm: "sha256", Hex: "0"}, time.Unix(0, 0), in.list, in.notes)
	_, err = json.Marshal(doc)
	testenv.Check(t, err)
	for _, p := range doc.Packages {
		if !slices.Contains([]string{"", noAssertion}, p.DownloadLocation) && strings.Contains(p.DownloadLocation, " ") {
			t.Errorf("download location %q contains a space", p.DownloadLocation)
		}
	}
}
