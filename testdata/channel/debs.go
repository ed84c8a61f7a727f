package main

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

// A tree is the files of a package, by path.
type tree map[string]*node

// A node is a file or, with a link, a symbolic link.
type node struct {
	exec bool
	data []byte
	link string
}

// fetch brings Debian packages of an architecture into the cache and gives their
// files by name. What is there already is not fetched again.
func fetch(cache, suite, arch string, names []string) (map[string]string, error) {
	dir := filepath.Join(cache, suite+"-"+arch)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	debs, missing := find(dir, names)
	if len(missing) == 0 {
		return debs, nil
	}
	config, err := aptConfig(filepath.Join(cache, "apt-"+suite+"-"+arch), suite, arch)
	if err != nil {
		return nil, fmt.Errorf("setting apt up for %s: %w", arch, err)
	}
	for _, args := range [][]string{{"update"}, append([]string{"download"}, missing...)} {
		cmd := exec.Command("apt-get", append([]string{"-qq"}, args...)...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "APT_CONFIG="+config)
		if out, err := cmd.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("apt-get %s for %s: %w: %s", strings.Join(args, " "), arch, err, out)
		}
	}
	if debs, missing = find(dir, names); len(missing) > 0 {
		return nil, fmt.Errorf("apt-get brought no package %s for %s", strings.Join(missing, ", "), arch)
	}
	return debs, nil
}

func find(dir string, names []string) (debs map[string]string, missing []string) {
	debs = map[string]string{}
	for _, n := range names {
		if hits, _ := filepath.Glob(filepath.Join(dir, n+"_*.deb")); len(hits) > 0 {
			debs[n] = hits[len(hits)-1]
		} else {
			missing = append(missing, n)
		}
	}
	return debs, missing
}

var mirror = regexp.MustCompile(`(?m)https?://\S+/debian/?(?:\s|$)`)

// aptConfig makes an apt of its own: another architecture, the host's mirror
// and proxies, none of the host's state. Updates between point releases are left
// out: they reach architectures on different days, and versions shall be equal.
func aptConfig(dir, suite, arch string) (string, error) {
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	lists, _ := filepath.Glob("/etc/apt/sources.list.d/*")
	base := ""
	for _, f := range append(lists, "/etc/apt/sources.list") {
		if b, err := os.ReadFile(f); err == nil && base == "" {
			base = strings.TrimSpace(mirror.FindString(string(b)))
		}
	}
	if base == "" {
		return "", errors.New("/etc/apt names no mirror of Debian")
	}
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	files := map[string]string{
		"status":       "",
		"sources.list": fmt.Sprintf("deb [arch=%s signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", arch, base, suite),
		"apt.conf": fmt.Sprintf(`Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list"; Dir::Etc::sourceparts "-"; Dir::Etc::preferencesparts "-";
APT::Architecture "%[2]s"; #clear APT::Architectures; APT::Architectures { "%[2]s"; };
APT::Sandbox::User "%[3]s"; Acquire::Languages "none";
`, dir, arch, me.Username),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "apt.conf"), nil
}

// each reads the files of a Debian package.
func each(deb string, fn func(h *tar.Header, r io.Reader) error) error {
	cmd := exec.Command("dpkg-deb", "--fsys-tarfile", deb)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	tr := tar.NewReader(out)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			h.Name = path.Clean(h.Name)
			err = fn(h, tr)
		}
		if err != nil {
			cmd.Process.Kill()
			cmd.Wait()
			return fmt.Errorf("reading %s: %w", filepath.Base(deb), err)
		}
	}
	io.Copy(io.Discard, out)
	return cmd.Wait()
}

var (
	// What a conda package does not have: documentation, the system's
	// configuration, and compiled python, which is another python's.
	unwanted = regexp.MustCompile(`^(etc|var|usr/sbin|usr/lib/(valgrind|systemd|udev|binfmt\.d)|usr/share/(doc|lintian|man|binfmts|applications|pixmaps|python3|perl5|bug|info|menu|locale|debconf|base-files|gcc))(/|$)|__pycache__|\.pyc$`)
	dist     = regexp.MustCompile(`^lib/python3(?:\.\d+)?/dist-packages/`)
)

// stage lays Debian packages out as conda does: no /usr, one lib, python's
// modules in site-packages.
func stage(r *recipe, a arch, debs map[string]string) (tree, error) {
	t, hard := tree{}, map[string]string{}
	for _, name := range r.debs {
		if err := each(debs[name], func(h *tar.Header, from io.Reader) error {
			if unwanted.MatchString(h.Name) || h.Typeflag == tar.TypeDir {
				return nil
			}
			p := place(h.Name, r.kind, a)
			switch h.Typeflag {
			case tar.TypeSymlink:
				target := h.Linkname
				if path.IsAbs(target) {
					target = relative(p, place(target[1:], r.kind, a))
				}
				t[p] = &node{link: target}
			case tar.TypeLink:
				hard[p] = place(path.Clean(h.Linkname), r.kind, a)
			case tar.TypeReg:
				b, err := io.ReadAll(from)
				t[p] = &node{exec: h.Mode&0o111 != 0, data: b}
				return err
			}
			return nil
		}); err != nil {
			return nil, err
		}
	}
	for p, to := range hard {
		t[p] = t[to]
	}
	for p, n := range t { // links to what was left out
		if to := path.Join(path.Dir(p), n.link); n.link != "" && t[to] == nil && !t.isDir(to) {
			delete(t, p)
		}
	}
	return t, nil
}

func (t tree) isDir(p string) bool {
	for q := range t {
		if strings.HasPrefix(q, p+"/") {
			return true
		}
	}
	return false
}

// place is where a file of Debian's is in a conda package.
func place(p string, k kind, a arch) string {
	p = strings.TrimPrefix(p, "usr/")
	if rest, ok := strings.CutPrefix(p, "lib/"+a.triplet+"/"); ok {
		p = "lib/" + strings.TrimPrefix(rest, "openblas-pthread/")
	}
	site := "lib/python" + python + "/site-packages/"
	if k == noarchPython {
		site = "site-packages/"
	}
	return dist.ReplaceAllString(p, site)
}

func relative(from, to string) string {
	r, err := filepath.Rel(path.Dir(from), to)
	if err != nil {
		return to
	}
	return r
}
