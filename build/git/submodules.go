package git

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/moby/buildkit/util/gitutil"

	"hpcc/build/attest"
)

// Limits of the submodules of a repository. A repository can name each submodule several times,
// so a few levels would be enough to fill a disk.
const (
	maxSubmodules      = 1000
	maxSubmoduleLevels = 20
)

// submodules checks out the submodules of a repository. It does not use "git submodule", which
// runs what a repository names in some versions of git: each submodule is fetched like the
// repository itself, from an address with a protocol that BuildKit allows too.
type submodules struct {
	top     string // directory of the first repository
	keepGit bool
	count   int
}

// A submodule is an entry of .gitmodules.
type submodule struct{ path, url, update string }

// checkout checks out the submodules of r, which is at a level below the first repository.
func (s *submodules) checkout(ctx context.Context, r *gitRepository, level int) error {
	commits, err := r.submoduleCommits(ctx)
	if err != nil || len(commits) == 0 {
		return err
	}
	known, err := r.gitmodules(ctx)
	if err != nil {
		return fmt.Errorf("reading .gitmodules: %w", err)
	}
	for _, c := range commits {
		m, ok := known[c.path]
		if !ok || m.url == "" {
			return fmt.Errorf("submodule %q: .gitmodules has no URL for it; leave submodules out with ?submodules=false", c.path)
		}
		if m.update == "none" {
			continue
		}
		if s.count++; s.count > maxSubmodules || level >= maxSubmoduleLevels {
			return fmt.Errorf("submodule %q: more than %d submodules or %d levels", c.path, maxSubmodules, maxSubmoduleLevels)
		}
		if err := s.one(ctx, r, m, c.commit, level); err != nil {
			return fmt.Errorf("submodule %q from %q: %w", c.path, attest.PublicURL(m.url), err)
		}
	}
	return nil
}

// one checks out a commit of a submodule of parent.
func (s *submodules) one(ctx context.Context, parent *gitRepository, m submodule, commit string, level int) error {
	dir, err := realDirectory(parent.dir, m.path)
	if err != nil {
		return err
	}
	r := &gitRepository{dir: dir, config: fmt.Sprintf("%s.%d.config", s.top, s.count), agent: parent.agent, nested: true, auth: parent.auth}
	defer os.Remove(r.config)
	if err := r.locate(parent, m.url); err != nil {
		return err
	}
	if err := r.configure(); err != nil {
		return err
	}
	if err := r.create(ctx, commit); err != nil {
		return err
	}
	if err := r.fetch(ctx, commit, ""); err != nil {
		return err
	}
	if _, err := r.run(ctx, "checkout", "-q", "--detach", commit, "--"); err != nil {
		return err
	}
	if err := s.checkout(ctx, r, level+1); err != nil {
		return err
	}
	return r.finish(ctx, s.keepGit)
}

// A gitlink is a submodule in the tree of a commit.
type gitlink struct{ path, commit string }

// submoduleCommits returns the submodules in the commit that is checked out.
func (r *gitRepository) submoduleCommits(ctx context.Context) (out []gitlink, err error) {
	list, err := r.run(ctx, "ls-files", "--stage", "-z")
	if err != nil {
		return nil, err
	}
	for entry := range strings.SplitSeq(string(list), "\x00") {
		head, name, _ := strings.Cut(entry, "\t")
		if f := strings.Fields(head); len(f) == 3 && f[0] == "160000" && gitutil.IsCommitSHA(f[1]) {
			out = append(out, gitlink{name, f[1]})
		}
	}
	return out, nil
}

// gitmodules reads .gitmodules of the commit that is checked out, by path.
func (r *gitRepository) gitmodules(ctx context.Context) (map[string]submodule, error) {
	list, err := r.run(ctx, "config", "--blob", "HEAD:.gitmodules", "-z", "--get-regexp", `^submodule\..*\.(path|url|update)$`)
	if err != nil {
		return nil, err
	}
	byName := map[string]submodule{}
	for entry := range strings.SplitSeq(string(list), "\x00") {
		key, value, _ := strings.Cut(entry, "\n")
		dot := strings.LastIndexByte(key, '.')
		if dot < 0 {
			continue
		}
		m := byName[key[:dot]]
		switch key[dot+1:] {
		case "path":
			m.path = path.Clean(value)
		case "url":
			m.url = value
		case "update":
			m.update = value
		}
		byName[key[:dot]] = m
	}
	out := map[string]submodule{}
	for _, m := range byName {
		out[m.path] = m
	}
	return out, nil
}

// locate sets the address of a submodule, which is relative to that of its parent if it begins
// with "./" or "../".
func (r *gitRepository) locate(parent *gitRepository, address string) error {
	if !strings.HasPrefix(address, "./") && !strings.HasPrefix(address, "../") {
		return r.authenticate(address, nil)
	}
	address, err := relativeAddress(parent.remote, address)
	if err != nil {
		return err
	}
	if err := r.authenticate(address, nil); err != nil {
		return err
	}
	if r.password = parent.password; r.password != "" {
		r.auth = append(r.auth[:len(r.auth):len(r.auth)], gitLogin{r.remote, r.password})
	}
	return nil
}

// relativeAddress returns an address relative to another one.
func relativeAddress(base, address string) (string, error) {
	if u, err := url.Parse(base); err == nil && u.Host != "" {
		return u.JoinPath(address).String(), nil
	}
	host, dir, ok := strings.Cut(base, ":")
	joined := path.Join(dir, address)
	if !ok || joined == ".." || strings.HasPrefix(joined, "../") {
		return "", fmt.Errorf("its address %q leads out of %q", address, base)
	}
	return host + ":" + joined, nil
}

// checkAddress returns an error if git would run a program for an address, or take it for an
// option.
func checkAddress(address string) error {
	u, err := gitutil.ParseURL(address)
	if err != nil {
		return errors.New("the address of a repository must begin with https://, http://, ssh://, git:// or USER@HOST")
	}
	for _, part := range []string{address, u.Host, u.User.Username(), strings.TrimLeft(u.Path, "/")} {
		if strings.HasPrefix(part, "-") {
			return errors.New("no part of the address may begin with a hyphen")
		}
	}
	return nil
}

// realDirectory returns the path of a directory below top, which must not have links in it.
func realDirectory(top, name string) (string, error) {
	if !filepath.IsLocal(name) {
		return "", errors.New("its path leads out of the repository")
	}
	dir := top
	for part := range strings.SplitSeq(path.Clean(name), "/") {
		dir = filepath.Join(dir, part)
		if strings.EqualFold(part, ".git") {
			return "", errors.New("its path is in .git")
		}
		if fi, err := os.Lstat(dir); err != nil || !fi.IsDir() {
			return "", errors.New("its path is not a directory of the repository")
		}
	}
	return dir, nil
}
