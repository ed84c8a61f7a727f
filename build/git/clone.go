// Package git clones repositories for a build with the program git: those of contexts and of ADD,
// by the addresses that BuildKit accepts.
//
//	IsAddress ─► Clone ─► Checkout
//
// Neither an address, a repository nor the environment can make git run programs, or use files of
// this machine outside of the clone. Credentials are never on a command line.
package git

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/buildkit/frontend/dockerfile/dfgitutil"
	"github.com/moby/buildkit/util/gitutil"

	"hpcc/build/attest"
	"hpcc/web"
)

// IsAddress reports whether a source of ADD, or the value of a named context, is a git repository.
func IsAddress(word string) bool {
	ref, ok, err := dfgitutil.ParseGitRef(word)
	return ok && (err != nil || !ref.IndistinguishableFromLocal)
}

// IsContext reports whether a build context is a git repository. Unlike ADD, it may be
// github.com/OWNER/REPOSITORY. A directory of that name comes first.
func IsContext(word string) bool {
	_, ok, _ := dfgitutil.ParseGitRef(word)
	return ok && !isDir(word)
}

func isDir(name string) bool {
	fi, err := os.Stat(name)
	return err == nil && fi.IsDir()
}

// A Repository describes a clone of a git repository.
type Repository struct {
	// Address is URL[#REF[:DIRECTORY]] or has a query (ref, tag, branch, subdir, submodules,
	// checksum, commit, keep-git-dir, mtime, fetch-by-commit), as in BuildKit.
	Address  string
	KeepGit  bool   // keep .git
	Checksum string // beginning of the commit's ID; "": that of the address
	Agent    string // socket of an SSH agent; "": that of the environment
	// Secret returns a build secret. GIT_AUTH_HEADER and GIT_AUTH_TOKEN, or those with .HOST,
	// authenticate HTTP requests. It may be nil.
	Secret func(id string) (value []byte, found bool, err error)
}

// A Checkout is a cloned repository.
type Checkout struct {
	Dir    string    // path of the directory in the clone
	Commit string    // full ID
	Key    string    // identifies the content
	Time   time.Time // when the commit was made
	// KeepTime means that files get that time.
	KeepTime bool
}

// Clone clones a repository with its submodules into a new directory in work, using git from
// PATH.
func Clone(ctx context.Context, work string, o Repository) (*Checkout, error) {
	fail := func(err error) (*Checkout, error) {
		return nil, fmt.Errorf("fetching repository %q: %w", attest.PublicURL(o.Address), err)
	}
	ref, err := o.parse()
	if err != nil {
		return fail(err)
	}
	if _, err := exec.LookPath("git"); err != nil {
		return fail(errors.New("git is not on PATH; install it"))
	}
	r := &gitRepository{agent: o.Agent}
	if r.dir, err = os.MkdirTemp(work, "git-"); err != nil {
		return fail(err)
	}
	r.config = r.dir + ".config"
	defer os.Remove(r.config)
	if err := r.authenticate(ref.Remote, o.Secret); err != nil {
		return fail(err)
	}
	if err := r.configure(); err != nil {
		return fail(err)
	}
	out := &Checkout{KeepTime: ref.MTime == "commit"}
	t, err := r.checkoutRef(ctx, ref)
	if err != nil {
		return fail(err)
	}
	out.Commit = t.commit
	if out.Time, err = r.commitTime(ctx); err != nil {
		return fail(err)
	}
	if ref.Submodules == nil || *ref.Submodules {
		if err := (&submodules{top: r.dir, keepGit: o.KeepGit}).checkout(ctx, r, 0); err != nil {
			return fail(err)
		}
	}
	if err := r.finish(ctx, o.KeepGit); err != nil {
		return fail(err)
	}
	if out.Dir, err = subdirectory(r.dir, ref.SubDir); err != nil {
		return fail(err)
	}
	out.Key = fmt.Sprintf("%s:%s", out.Commit, ref.SubDir)
	if o.KeepGit {
		out.Key += fmt.Sprintf(" .git %s %s", t.name, t.object)
	}
	if out.KeepTime {
		out.Key += " " + strconv.FormatInt(out.Time.Unix(), 10)
	}
	return out, nil
}

// commitID matches the beginning of a commit's ID.
var commitID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[a-fA-F0-9]+$`) })

// parse parses the address and joins it with the other options, whose values it sets.
func (o *Repository) parse() (*dfgitutil.GitRef, error) {
	ref, ok, err := dfgitutil.ParseGitRef(o.Address)
	if err != nil || !ok {
		return nil, fmt.Errorf("reading the address: %w", err)
	}
	if ref.IndistinguishableFromLocal {
		ref.Remote = "https://" + ref.Remote
	}
	if strings.HasPrefix(ref.Ref, "-") {
		return nil, errors.New("a reference must not begin with a hyphen")
	}
	if o.Checksum != "" && ref.Checksum != "" && o.Checksum != ref.Checksum {
		return nil, fmt.Errorf("the address has the checksum %q, but --checksum is %q", ref.Checksum, o.Checksum)
	}
	if o.Checksum != "" {
		ref.Checksum = o.Checksum
	}
	if ref.Checksum != "" && !commitID().MatchString(ref.Checksum) {
		return nil, fmt.Errorf("invalid checksum %q for a repository, expected hex commit hash", ref.Checksum)
	}
	if ref.KeepGitDir != nil {
		o.KeepGit = *ref.KeepGitDir
	}
	if ref.FetchByCommit {
		switch {
		case gitutil.IsCommitSHA(ref.Ref):
		case !gitutil.IsCommitSHA(ref.Checksum):
			return nil, fmt.Errorf("fetch-by-commit needs a complete commit ID as checksum; %q is not one", ref.Checksum)
		case ref.Ref != "" && !strings.HasPrefix(ref.Ref, "refs/"):
			ref.Ref = "refs/heads/" + ref.Ref
		}
	}
	return ref, nil
}

// authenticate sets the remote address and how to log in to it: with the build secrets, or
// with user and password of the address.
func (r *gitRepository) authenticate(address string, secret func(string) ([]byte, bool, error)) error {
	r.remote = address
	if err := checkAddress(address); err != nil {
		return err
	}
	u, err := url.Parse(address)
	if err != nil || u.Host == "" { // git@HOST:PATH
		return nil
	}
	user := u.User
	if u.Scheme != "ssh" || user == nil {
		u.User = nil
	} else {
		u.User = url.User(user.Username()) // ssh takes no password from an address
	}
	r.remote = u.String()
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil
	}
	if secret != nil {
		header, err := gitHeader(u.Host, secret)
		if err != nil {
			return err
		}
		if header != "" {
			r.auth = append(r.auth[:len(r.auth):len(r.auth)], gitLogin{loginScope(r.remote), header})
			return nil
		}
	}
	if user == nil {
		return nil
	}
	if password, ok := user.Password(); ok {
		r.password = basicHeader(user.Username() + ":" + password)
		r.auth = append(r.auth[:len(r.auth):len(r.auth)], gitLogin{r.remote, r.password})
	} else {
		r.name = user.Username()
	}
	return nil
}

// gitHeader returns the Authorization header in the build secrets, in BuildKit's order.
func gitHeader(host string, secret func(string) ([]byte, bool, error)) (string, error) {
	for _, id := range []string{"GIT_AUTH_HEADER." + host, "GIT_AUTH_TOKEN." + host, "GIT_AUTH_HEADER", "GIT_AUTH_TOKEN"} {
		value, found, err := secret(id)
		if err != nil {
			return "", err
		}
		text := strings.TrimSpace(string(value))
		if !found || text == "" {
			continue
		}
		if strings.ContainsFunc(text, func(r rune) bool { return r < ' ' }) {
			return "", fmt.Errorf("secret %q has several lines; it must be one", id)
		}
		if strings.HasPrefix(id, "GIT_AUTH_TOKEN") {
			text = basicHeader("x-access-token:" + text)
		}
		return text, nil
	}
	return "", nil
}

func basicHeader(login string) string {
	return "basic " + base64.StdEncoding.EncodeToString([]byte(login))
}

// loginScope returns the part of an address for which a token is valid. As in BuildKit, one of
// GitHub is valid for all repositories there.
func loginScope(address string) string {
	for _, top := range []string{"https://github.com/", "https://www.github.com/"} {
		if strings.HasPrefix(address, top) {
			return top
		}
	}
	return address
}

// A gitTarget is a reference that was looked up at the server.
type gitTarget struct {
	name   string // full name; "": none, such as HEAD that is not on a branch
	object string // ID of a commit or an annotated tag
	commit string // of an annotated tag; "" otherwise
}

// lookup asks the server for a reference. Like git checkout, it prefers branches to tags.
func (r *gitRepository) lookup(ctx context.Context, ref string) (gitTarget, error) {
	if ref == "" {
		return r.lookupHead(ctx)
	}
	out, err := r.ask(ctx, "ls-remote", "--", r.remote, ref, ref+"^{}")
	if err != nil {
		return gitTarget{}, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(out)) {
		id, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if gitutil.IsCommitSHA(id) {
			found[name] = id
		}
	}
	tag := "refs/tags/" + strings.TrimPrefix(ref, "refs/tags/")
	for _, name := range []string{"refs/" + strings.TrimPrefix(ref, "refs/"), "refs/heads/" + strings.TrimPrefix(ref, "refs/heads/"), tag} {
		if id := found[name]; id != "" {
			return gitTarget{name, id, found[name+"^{}"]}, nil
		}
	}
	return gitTarget{}, fmt.Errorf("repository does not contain ref %s", ref)
}

// ask runs a command that only reads from the server, and retries it.
func (r *gitRepository) ask(ctx context.Context, args ...string) (out []byte, err error) {
	err = web.Retry(ctx, r.host(), func(ctx context.Context) error {
		out, err = r.transfer(ctx, args...)
		return err
	})
	return out, err
}

// lookupHead asks the server for the default branch.
func (r *gitRepository) lookupHead(ctx context.Context) (gitTarget, error) {
	out, err := r.ask(ctx, "ls-remote", "--symref", "--", r.remote, "HEAD")
	if err != nil {
		return gitTarget{}, err
	}
	var t gitTarget
	for line := range strings.Lines(string(out)) {
		value, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		if branch, ok := strings.CutPrefix(value, "ref: "); ok && name == "HEAD" && strings.HasPrefix(branch, "refs/heads/") {
			t.name = branch
		} else if name == "HEAD" && gitutil.IsCommitSHA(value) {
			t.object = value
		}
	}
	if t.object == "" {
		return t, errors.New("the repository has no default branch; name one: URL#BRANCH")
	}
	return t, nil
}

// checkoutRef fetches the commit that an address names, and checks it out.
func (r *gitRepository) checkoutRef(ctx context.Context, ref *dfgitutil.GitRef) (t gitTarget, err error) {
	switch {
	case gitutil.IsCommitSHA(ref.Ref):
		t.object = ref.Ref
	case ref.FetchByCommit:
		t = gitTarget{name: ref.Ref, object: ref.Checksum}
	default:
		if t, err = r.lookup(ctx, ref.Ref); err != nil {
			return t, err
		}
	}
	if err := t.verify(ref.Checksum); err != nil {
		return t, err
	}
	if err := r.create(ctx, t.object); err != nil {
		return t, err
	}
	if t.name == "" || ref.FetchByCommit {
		err = r.fetch(ctx, t.object, "")
	} else {
		err = r.fetch(ctx, t.name, t.name)
		t.object = "FETCH_HEAD" // the server may have a newer commit now
	}
	if err != nil {
		return t, err
	}
	if t.commit, err = r.resolve(ctx, t.object+"^{commit}"); err != nil {
		return t, err
	}
	if t.object, err = r.resolve(ctx, t.object); err != nil {
		return t, err
	}
	if err := t.verify(ref.Checksum); err != nil {
		return t, err
	}
	if ref.FetchByCommit && t.name != "" {
		if _, err := r.run(ctx, "update-ref", t.name, t.object); err != nil {
			return t, err
		}
	}
	_, err = r.run(ctx, "checkout", "-q", "--detach", t.commit, "--")
	return t, err
}

// verify compares the object or its commit with a checksum; "" means none.
func (t gitTarget) verify(checksum string) error {
	checksum = strings.ToLower(checksum)
	if strings.HasPrefix(t.object, checksum) || (t.commit != "" && strings.HasPrefix(t.commit, checksum)) {
		return nil
	}
	got := t.object
	if t.commit != "" && t.commit != t.object {
		got += " or " + t.commit
	}
	return fmt.Errorf("expected checksum to match %s, got %s", checksum, got)
}

// create creates the repository, with the format of an object's ID.
func (r *gitRepository) create(ctx context.Context, object string) error {
	args := []string{"init", "-q", "--template="}
	if len(object) == 64 {
		args = append(args, "--object-format=sha256")
	}
	if _, err := r.run(ctx, args...); err != nil {
		return err
	}
	_, err := r.run(ctx, "config", "remote.origin.url", r.remote)
	return err
}

// resolve returns the ID of an object.
func (r *gitRepository) resolve(ctx context.Context, name string) (string, error) {
	out, err := r.run(ctx, "rev-parse", "--verify", "-q", name)
	if err != nil {
		return "", fmt.Errorf("finding %s in the repository: %w", name, err)
	}
	return strings.TrimSpace(string(out)), nil
}

// commitTime returns the time of the commit that is checked out.
func (r *gitRepository) commitTime(ctx context.Context) (time.Time, error) {
	out, err := r.run(ctx, "log", "-1", "--format=%ct", "HEAD")
	if err != nil {
		return time.Time{}, err
	}
	seconds, err := strconv.ParseInt(strings.TrimSpace(string(out)), 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("reading the time of the commit: %w", err)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// finish removes .git, or what differs in it between clones of one commit.
func (r *gitRepository) finish(ctx context.Context, keepGit bool) error {
	if !keepGit {
		return os.RemoveAll(filepath.Join(r.dir, ".git"))
	}
	for _, name := range []string{"FETCH_HEAD", "ORIG_HEAD", "index"} {
		if err := os.RemoveAll(filepath.Join(r.dir, ".git", name)); err != nil {
			return err
		}
	}
	_, err := r.run(ctx, "read-tree", "HEAD") // an index without the times of files
	return err
}

// subdirectory returns the path of a directory in a clone; links cannot lead out of it.
func subdirectory(dir, sub string) (string, error) {
	top, err := securejoin.SecureJoin(dir, sub)
	if err != nil {
		return "", err
	}
	fi, err := os.Stat(top)
	if err == nil && !fi.IsDir() {
		err = fmt.Errorf("%q is not a directory in the repository", sub)
	} else if errors.Is(err, os.ErrNotExist) {
		err = fmt.Errorf("the repository has no directory %q", sub)
	}
	return top, err
}
