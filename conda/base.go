package conda

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"path"
	"strings"

	"hpcc/conda/exports"
	"hpcc/conda/layer"
	"hpcc/text"
)

// basePrefix is the prefix of a base's packages: the usual path of programs and libraries,
// so that /usr/bin/env and /bin/sh exist.
const basePrefix = "/usr"

// baseWord names an image that consists of a channel's packages, in messages.
const baseWord = "--from conda"

// ResolveBase plans an image that consists only of a channel's packages: glibc from its
// sysroot, a shell, libgcc (glibc needs it to end threads) and, if available, coreutils,
// certificates and time zones. version is that of glibc; "" is the newest in the channels.
// If locked has such a base, it is used unchanged. The layers of the plan form a root file
// system, which can hold an environment like a distribution's.
func ResolveBase(ctx context.Context, locked *exports.Export, version string, o Options) (*Plan, error) {
	if p, err := lockedBase(locked, version, o); p != nil || err != nil {
		return p, err
	}
	switch {
	case version != "" && !glibcVersion().MatchString(version):
		return nil, fmt.Errorf("%s:%s: not a glibc version; write %[1]s:2.28, or docker.io/library/conda:%[2]s for the image of that name", baseWord, text.Short(version))
	case len(o.Channels) == 0:
		return nil, errors.New(baseWord + ": the export names no channel; name one with --channel")
	}
	channels, err := o.open()
	if err != nil {
		return nil, err
	}
	names := map[string]bool{sysrootName(o.Subdir): true}
	for _, choice := range basePackages {
		for _, n := range choice {
			names[n] = true
		}
	}
	all, err := records(ctx, channels, o.Subdir, names)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", baseWord, err)
	}
	libc, err := chooseSysroot(all, version, o.Subdir)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", baseWord, err)
	}
	has := map[string]bool{}
	for _, r := range all {
		has[r.Name] = true
	}
	e := &exports.Export{File: baseWord}
	for _, choice := range basePackages {
		for _, n := range choice {
			if has[n] {
				e.Specs = append(e.Specs, exports.Spec{Text: n})
				break
			}
		}
	}
	if !has["bash"] {
		return nil, fmt.Errorf("%s: the channels have no shell for %s (bash); add --channel conda-forge, or name an image with --from", baseWord, o.Subdir)
	}
	o.Prefix, o.Python, o.Packages = basePrefix, "", nil
	o.Libc = func() (Libc, error) { return Libc{Glibc: libc.Version}, nil }
	p, err := Resolve(ctx, e, o)
	if err != nil {
		return nil, err
	}
	for _, n := range []string{"coreutils", "ca-certificates", "tzdata"} {
		if !has[n] {
			p.Notes = append(p.Notes, fmt.Sprintf("%s: the channels have no %s; the image lacks it", baseWord, n))
		}
	}
	p.sysroot, p.pkgs = libc, append(p.pkgs, libc)
	p.finish()
	return p, nil
}

// lockedBase returns the base in a lock file if it has the wanted version of glibc.
func lockedBase(e *exports.Export, version string, o Options) (*Plan, error) {
	p := &Plan{Subdir: o.Subdir, Prefix: basePrefix, export: &exports.Export{File: e.File, Explicit: true, Entries: e.Base}}
	if err := p.explicit(p.export, o); err != nil {
		return nil, err
	}
	for _, r := range p.pkgs {
		if r.Name == sysrootName(o.Subdir) && (version == "" || r.Version == version) {
			p.sysroot = r
			return p, nil
		}
	}
	return nil, nil
}

// basePackages are the packages of a base besides its C library, including common
// dependencies of shell scripts. The first name that the channels have is used.
var basePackages = [][]string{{"bash"}, {"coreutils"}, {"ca-certificates"}, {"tzdata"}, {"libgcc", "libgcc-ng"},
	{"grep"}, {"sed"}, {"gawk"}, {"findutils"}, {"tar"}, {"gzip"}}

// Glibc returns the version of the C library in a plan of ResolveBase.
func (p *Plan) Glibc() string { return p.sysroot.Version }

// A rootEntry is a directory, link or small file of a base that belongs to no package.
type rootEntry struct {
	name string
	mode int64 // for directories and files
	link string
	text string
}

// root writes the files of a base that belong to no package.
func (in *installer) root(w *layer.Writer) error {
	if in.kinds["lib64"] != noFile { // the files of the sysroot are in lib
		return errors.New("assembling " + baseWord +
			": a package has files in lib64, which must be a link to lib; name an image with --from")
	}
	for _, e := range append(rootEntries(in.plan.Glibc()), in.rootExtras()...) {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: e.name, Mode: e.mode, ModTime: layer.Epoch}
		switch {
		case e.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		case !strings.HasSuffix(e.name, "/"):
			if err := w.File(e.name, e.mode, []byte(e.text), 0); err != nil {
				return err
			}
			continue
		}
		if err := w.Header(h); err != nil {
			return err
		}
	}
	return nil
}

// rootEntries returns the entries that all bases share, except for the version in os-release.
func rootEntries(glibc string) []rootEntry {
	return []rootEntry{
		{name: "bin", link: "usr/bin"}, {name: "lib", link: "usr/lib"}, {name: "lib64", link: "usr/lib"}, {name: "sbin", link: "usr/sbin"},
		{name: "usr/lib64", link: "lib"}, {name: "usr/bin/", mode: 0o755}, {name: "usr/sbin/", mode: 0o755},
		{name: "usr/local/bin/", mode: 0o755},
		{name: "dev/", mode: 0o755}, {name: "home/", mode: 0o755}, {name: "mnt/", mode: 0o755},
		{name: "opt/", mode: 0o755}, {name: "proc/", mode: 0o755},
		{name: "root/", mode: 0o700}, {name: "run/", mode: 0o755}, {name: "srv/", mode: 0o755},
		{name: "sys/", mode: 0o755}, {name: "tmp/", mode: 0o1777},
		{name: "var/", mode: 0o755}, {name: "var/cache/", mode: 0o755}, {name: "var/lib/", mode: 0o755},
		{name: "var/log/", mode: 0o755}, {name: "var/tmp/", mode: 0o1777},
		{name: "etc/passwd", mode: 0o644, text: "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"},
		{name: "etc/group", mode: 0o644, text: "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"},
		{name: "etc/hosts", mode: 0o644, text: "127.0.0.1 localhost\n::1 localhost\n"},
		{name: "etc/resolv.conf", mode: 0o644},
		{name: "etc/nsswitch.conf", mode: 0o644, text: "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"},
		{name: "etc/os-release", link: "../usr/lib/os-release"},
		{name: "usr/lib/os-release", mode: 0o644,
			text: fmt.Sprintf("NAME=\"conda packages\"\nID=conda\nVERSION_ID=%q\nPRETTY_NAME=\"conda packages on glibc %s\"\n", glibc, glibc)},
	}
}

// certificatePlaces are the paths where programs look for certificates: Debian's,
// OpenSSL's and Red Hat's.
var certificatePlaces = []string{"etc/ssl/certs/ca-certificates.crt", "etc/ssl/cert.pem", "etc/pki/tls/certs/ca-bundle.crt"}

// envScript replaces coreutils' env if a channel lacks it: scripts begin with it.
const envScript = `#!/bin/bash
# env [-S] [NAME=VALUE]... [PROGRAM [ARGUMENT]...], for an image without coreutils.
set -f
if [[ $1 == -S ]]; then set -- $2 "${@:3}"; fi
while [[ $1 == [!=-]*=* ]]; do export "$1"; shift; done
if (( $# )); then exec -- "$@"; fi
for name in $(compgen -e); do printf '%s=%s\n' "$name" "${!name}"; done
`

// rootExtras returns the entries that depend on the packages.
func (in *installer) rootExtras() (out []rootEntry) {
	if in.kinds["bin/sh"] == noFile {
		out = append(out, rootEntry{name: "usr/bin/sh", link: "bash"})
	}
	if in.kinds["bin/env"] == noFile {
		out = append(out, rootEntry{name: "usr/bin/env", mode: 0o755, text: envScript})
	}
	const certificates = "ssl/cacert.pem"
	if in.kinds[certificates] != noFile {
		for _, p := range certificatePlaces {
			out = append(out, rootEntry{name: p, link: strings.Repeat("../", strings.Count(p, "/")) +
				path.Join(basePrefix[1:], certificates)})
		}
	}
	return out
}

// finishBase sets the variables of a base image. Its packages are the system, so they are
// not activated.
func (in *installer) finishBase() {
	if in.kinds["lib/locale/C.utf8/LC_CTYPE"] != noFile {
		in.env.Env = []string{"LANG=C.UTF-8"}
	}
}
