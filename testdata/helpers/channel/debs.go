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
	"slices"
	"strings"
)

// A source provides the packages of a Debian suite for one architecture, with a cache.
type source struct {
	cache, suite, arch string
	config             string // apt's configuration; "" until it is needed
	known              []string
}

// fetch downloads Debian packages into the cache and returns their files by name. It does
// not download cached packages again, so a second run needs no network.
func (s *source) fetch(names ...string) (map[string]string, error) {
	dir := filepath.Join(s.cache, s.suite+"-"+s.arch)
	debs, missing := find(dir, names)
	if len(missing) == 0 {
		return debs, nil
	}
	if s.config == "" {
		if err := s.update(); err != nil {
			return nil, fmt.Errorf("asking apt for packages of %s: %w", s.arch, err)
		}
	}
	var get []string
	for _, n := range missing {
		choice := strings.Split(n, "|")
		i := slices.IndexFunc(choice, func(c string) bool { return slices.Contains(s.known, c) })
		if i < 0 {
			return nil, fmt.Errorf("%s has no package %q for %s", s.suite, n, s.arch)
		}
		get = append(get, choice[i])
	}
	if err := s.download(dir, get); err != nil {
		return nil, err
	}
	if debs, missing = find(dir, names); len(missing) > 0 {
		return nil, fmt.Errorf("fetching deb %q for %s: apt-get downloaded no such file", missing[0], s.arch)
	}
	return debs, nil
}

func find(dir string, names []string) (debs map[string]string, missing []string) {
	debs = map[string]string{}
	for _, n := range names {
		for _, c := range strings.Split(n, "|") {
			if hits, _ := filepath.Glob(filepath.Join(dir, c+"_*.deb")); len(hits) > 0 && debs[n] == "" {
				debs[n] = hits[len(hits)-1]
			}
		}
		if debs[n] == "" {
			missing = append(missing, n)
		}
	}
	return debs, missing
}

// download lets apt write to another directory, so that files in the cache are complete.
func (s *source) download(dir string, names []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	part, err := os.MkdirTemp(dir, "part-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(part)
	cmd := exec.Command("apt-get", append([]string{"-c", s.config, "-qq", "download"}, names...)...)
	cmd.Dir = part
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("fetching debs %q for %s: %w: %s", names, s.arch, err, out)
	}
	files, err := os.ReadDir(part)
	if err != nil {
		return err
	}
	for _, f := range files {
		if err := os.Rename(filepath.Join(part, f.Name()), filepath.Join(dir, f.Name())); err != nil {
			return err
		}
	}
	return nil
}

// update tries the mirrors of the host's apt until one provides the suite, signed by Debian.
func (s *source) update() error {
	all, err := mirrors()
	if err != nil {
		return err
	}
	var tried []error
	for _, mirror := range all {
		config, err := s.configure(mirror)
		if err != nil {
			return err
		}
		out, err := exec.Command("apt-get", "-c", config, "-qq", "-o", "APT::Update::Error-Mode=any", "update").CombinedOutput()
		if err != nil {
			tried = append(tried, fmt.Errorf("fetching the index of %s from %s: %w: %s", s.suite, mirror, err, out))
			continue
		}
		names, err := exec.Command("apt-cache", "-c", config, "pkgnames").Output()
		if err != nil {
			return fmt.Errorf("listing the packages of %s: %w", s.suite, err)
		}
		s.config, s.known = config, strings.Fields(string(names))
		return nil
	}
	return errors.Join(append(tried, fmt.Errorf("no mirror in /etc/apt has %s", s.suite))...)
}

var mirrorURL = regexp.MustCompile(`\b(?:https?|ftp|file|mirror(?:\+[a-z]+)?):/[^\s"]+`)

// mirrors lists the addresses in the host's sources. Those that contain "debian" come
// first, because others may be repositories of third parties.
func mirrors() ([]string, error) {
	files, err := filepath.Glob("/etc/apt/sources.list.d/*")
	if err != nil {
		return nil, err
	}
	var debian, other []string
	for _, f := range append(files, "/etc/apt/sources.list") {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // missing or unreadable
		}
		for _, l := range strings.Split(string(b), "\n") {
			if strings.HasPrefix(strings.TrimSpace(l), "#") {
				continue
			}
			for _, u := range mirrorURL.FindAllString(l, -1) {
				if strings.HasSuffix(strings.TrimRight(u, "/"), "debian") || strings.HasSuffix(u, "debian.list") {
					debian = append(debian, u)
				} else {
					other = append(other, u)
				}
			}
		}
	}
	all := append(debian, other...)
	if len(all) == 0 {
		return nil, errors.New("the host's sources in /etc/apt name no mirror")
	}
	return slices.Compact(all), nil
}

// configure writes a separate configuration of apt for another architecture, with the
// host's proxies, but without its state and hooks. It leaves out updates between point
// releases, because they reach architectures on different days, and versions must be equal.
func (s *source) configure(mirror string) (string, error) {
	dir := filepath.Join(s.cache, "apt-"+s.suite+"-"+s.arch)
	for _, d := range []string{"state/lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return "", err
		}
	}
	me, err := user.Current()
	if err != nil {
		return "", err
	}
	files := map[string]string{
		"status":       "",
		"sources.list": fmt.Sprintf("deb [arch=%s signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", s.arch, mirror, s.suite),
		"apt.conf": fmt.Sprintf(`Dir::State "%[1]s/state"; Dir::State::status "%[1]s/status"; Dir::Cache "%[1]s/cache";
Dir::Etc::sourcelist "%[1]s/sources.list"; Dir::Etc::sourceparts "-"; Dir::Etc::preferencesparts "-"; Dir::Etc::preferences "-";
APT::Architecture "%[2]s"; #clear APT::Architectures; APT::Architectures { "%[2]s"; };
#clear APT::Update::Post-Invoke; #clear APT::Update::Post-Invoke-Success; #clear APT::Update::Pre-Invoke;
APT::Sandbox::User "%[3]s"; Acquire::Languages "none";
`, dir, s.arch, me.Username),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return "", err
		}
	}
	return filepath.Join(dir, "apt.conf"), nil
}

// walk reads the files of a Debian package.
func walk(deb string, fn func(h *tar.Header, r io.Reader) error) error {
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

var packaging = regexp.MustCompile(`[+~.](dfsg|ds|really|git).*`)

// upstream returns the upstream version in the file name of a Debian package.
func upstream(deb string) string {
	v := strings.Split(filepath.Base(deb), "_")[1]
	v = strings.ReplaceAll(v, "%3a", ":")
	if _, rest, ok := strings.Cut(v, ":"); ok {
		v = rest
	}
	if i := strings.LastIndexByte(v, '-'); i > 0 {
		v = v[:i]
	}
	return strings.ReplaceAll(packaging.ReplaceAllString(v, ""), "~", ".")
}
