package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/moby/buildkit/util/gitutil"
	"golang.org/x/term"

	"hpcc/text"
	"hpcc/web"
)

// A gitRepository is a repository in a private directory, with everything that git needs to
// fetch into it.
type gitRepository struct {
	dir    string     // work tree; the repository is its .git
	remote string     // address without user and password, for command lines and messages
	auth   []gitLogin // for the addresses below them
	name   string     // user name of an HTTP address without password, for credential helpers
	// password is the header for user and password of the address; "": none.
	password string
	config   string // file with the settings
	agent    string // socket of an SSH agent; "": that of the environment
	nested   bool   // a submodule, whose address another repository chose
}

// A gitLogin is the value of an Authorization header for addresses that begin with a URL.
type gitLogin struct{ scope, header string }

// gitSettings are the settings of git for all repositories: no hooks, and no work that is not
// asked for.
const gitSettings = `[core]
	hooksPath = /dev/null
	logAllRefUpdates = false
[init]
	defaultBranch = master
[submodule]
	recurse = false
[fetch]
	recurseSubmodules = false
[gc]
	auto = 0
[maintenance]
	auto = false
[advice]
	detachedHead = false
`

// configure writes the settings of the repository. Logins are in this file only: other users
// can read command lines.
func (r *gitRepository) configure() error {
	text := gitSettings
	for _, l := range r.auth {
		text += fmt.Sprintf("[http %s]\n\textraHeader = %s\n", gitQuote(l.scope), gitQuote("Authorization: "+l.header))
	}
	if r.name != "" {
		text += fmt.Sprintf("[credential %s]\n\tusername = %s\n", gitQuote(r.remote), gitQuote(r.name))
	}
	return os.WriteFile(r.config, []byte(text), 0o600)
}

// gitQuote quotes a value of git's configuration.
func gitQuote(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(s) + `"`
}

// host returns the host name of the repository's server, for messages.
func (r *gitRepository) host() string {
	if u, err := url.Parse(r.remote); err == nil && u.Host != "" {
		return u.Host
	}
	host, _, _ := strings.Cut(r.remote, ":") // git@HOST:PATH
	return host[strings.LastIndexByte(host, '@')+1:]
}

// run runs git on the repository without prompts, and returns its output. The error contains
// git's message.
func (r *gitRepository) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := r.command(ctx, args...)
	cmd.Env = append(cmd.Env, "GIT_DIR="+r.dir+"/.git", "GIT_WORK_TREE="+r.dir)
	out, err := cmd.Output()
	var ee *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case errors.As(err, &ee) && len(ee.Stderr) > 0:
		err = errors.New(text.Cut(text.OneLine(string(ee.Stderr)), 100))
	}
	return out, err
}

// gitUmask is the umask of git, so that the same repository has the same modes.
const gitUmask = 0o022

// command returns a git command that is killed with its child processes when ctx ends. On
// a terminal it stays in the foreground process group, so that ssh can prompt, and only git
// itself is killed.
func (r *gitRepository) command(ctx context.Context, args ...string) *exec.Cmd {
	shell := fmt.Sprintf(`umask %03o; exec git "$@"`, gitUmask)
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", shell, "git", "-c", "include.path=" + r.config}, args...)...)
	cmd.Dir = r.dir
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	}
	cmd.WaitDelay = time.Second // another process may keep the pipes open
	cmd.Env = r.environment(ctx)
	return cmd
}

// gitVariables are the variables that git gets from the environment, as patterns of
// [path.Match] (docs/dockerfile.md). The others include GIT_DIR and its like, which would make
// it write to a repository of the user.
var gitVariables = []string{
	"PATH", "LD_LIBRARY_PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "XDG_*", "DBUS_SESSION_BUS_ADDRESS",
	"SSH_AUTH_SOCK", "SSH_ASKPASS*", "DISPLAY", "WAYLAND_DISPLAY", "KRB5*",
	"[Hh][Tt][Tt][Pp]_[Pp][Rr][Oo][Xx][Yy]", "[Hh][Tt][Tt][Pp][Ss]_[Pp][Rr][Oo][Xx][Yy]",
	"[Aa][Ll][Ll]_[Pp][Rr][Oo][Xx][Yy]", "[Nn][Oo]_[Pp][Rr][Oo][Xx][Yy]",
	"SSL_CERT_*", "CURL_CA_BUNDLE", "NIX_SSL_CERT_FILE",
	"GIT_SSH", "GIT_SSH_*", "GIT_SSL_*", "GIT_PROXY_*", "GIT_HTTP_*", "GIT_ASKPASS", "GIT_CONFIG_*", "GIT_EXEC_PATH",
}

// isGitVariable reports whether git gets a variable from the environment.
func isGitVariable(name string) bool {
	return name != "GIT_CONFIG_PARAMETERS" && slices.ContainsFunc(gitVariables, func(pattern string) bool {
		ok, _ := path.Match(pattern, name)
		return ok
	})
}

// environment returns the environment of git. Only the user's own configuration can lead to
// files of this machine.
func (r *gitRepository) environment(ctx context.Context) []string {
	env := slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return !isGitVariable(name)
	})
	protocols := "http:https:git:ssh"
	if !r.nested {
		protocols += ":file"
	}
	if r.agent != "" {
		env = append(env, "SSH_AUTH_SOCK="+r.agent)
	}
	idle := web.LimitsOf(ctx).Idle
	return append(env, "GIT_TERMINAL_PROMPT=0", "LC_ALL=C", "GIT_ALLOW_PROTOCOL="+protocols, "GIT_CEILING_DIRECTORIES="+filepath.Dir(r.dir),
		"GIT_HTTP_LOW_SPEED_LIMIT=17", fmt.Sprintf("GIT_HTTP_LOW_SPEED_TIME=%d",
			max(1, int(idle/time.Second)))) // 17 bytes/s are 1 KiB per minute
}

// ssh returns the variable that sets ssh's timeouts, unless the user has configured ssh
// for git. Without a terminal, ssh must not prompt.
func (r *gitRepository) ssh(ctx context.Context) []string {
	if os.Getenv("GIT_SSH_COMMAND") != "" || os.Getenv("GIT_SSH") != "" {
		return nil
	}
	if out, err := r.command(ctx, "config", "--get", "core.sshCommand").Output(); err == nil && len(bytes.TrimSpace(out)) > 0 {
		return nil
	}
	p := web.LimitsOf(ctx)
	command := fmt.Sprintf("GIT_SSH_COMMAND=ssh -o ConnectTimeout=%d -o ServerAliveInterval=%d",
		max(1, int(p.Connect/time.Second)), max(1, int(p.Idle/time.Second)/3))
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		command += " -o BatchMode=yes"
	}
	return []string{command}
}

// fetch fetches a reference or commit of the remote repository, to a local reference if local
// is not "", and retries interrupted transfers.
func (r *gitRepository) fetch(ctx context.Context, ref, local string) error {
	spec := ref
	if local != "" {
		spec += ":" + local
	}
	return web.Retry(ctx, r.host(), func(ctx context.Context) error {
		// Some servers support no shallow fetches, and others send only references.
		attempts := [][]string{{"--depth", "1", "--no-tags", "--", r.remote, spec}, {"--no-tags", "--", r.remote, spec}}
		if gitutil.IsCommitSHA(ref) {
			attempts = append(attempts, []string{"--no-tags", "--", r.remote, "+refs/heads/*:refs/remotes/origin/*",
				"+refs/tags/*:refs/tags/*"})
		}
		var err error
		for _, args := range attempts {
			_, err = r.transfer(ctx, append([]string{"fetch", "--progress", "--force", "--update-head-ok"}, args...)...)
			var broken *web.Broken
			if err == nil || ctx.Err() != nil || errors.As(err, &broken) {
				break
			}
		}
		return err
	})
}

// gitSilence multiplies the idle limit for git's progress messages, because the server sends
// nothing while it prepares a pack.
const gitSilence = 2

// transfer runs a git command that talks to the server, and returns its output. It stops the
// command after a long time without progress, because some of git's protocols have no timeout.
// It returns network failures as [web.Broken].
func (r *gitRepository) transfer(ctx context.Context, args ...string) ([]byte, error) {
	limit := gitSilence * web.LimitsOf(ctx).Idle
	stalled := &web.StallError{Text: fmt.Sprintf("git reported no progress for %v", limit)}
	fetchCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(stalled) })
	defer timer.Stop()
	messages := &gitOutput{onWrite: func() { timer.Reset(limit) }}
	var out bytes.Buffer
	cmd := r.command(fetchCtx, args...)
	cmd.Env = append(cmd.Env, r.ssh(fetchCtx)...)
	if args[0] == "fetch" {
		cmd.Env = append(cmd.Env, "GIT_DIR="+r.dir+"/.git", "GIT_WORK_TREE="+r.dir)
	}
	cmd.Stdout, cmd.Stderr = &out, messages
	err := cmd.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return out.Bytes(), nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case context.Cause(fetchCtx) == error(stalled):
		return nil, stalled
	}
	if text := messages.message(); text != "" {
		err = errors.New(text)
	}
	if transient().MatchString(err.Error()) {
		return nil, &web.Broken{Err: err}
	}
	return nil, err
}

// transient matches git's messages about temporary failures of the network or server.
var transient = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)returned error: (408|429|5\d\d)|HTTP (408|429|5\d\d)|operation too slow|timed? ?out|connection reset|early EOF|unexpected disconnect|hung up|transfer closed|broken pipe|RPC failed|empty reply|kex_exchange_identification`)
})

// maxGitOutput limits the size of gitOutput, in bytes.
const maxGitOutput = 64 << 10

// gitOutput collects the messages and progress that git writes to standard error.
type gitOutput struct {
	onWrite func()
	text    bytes.Buffer
}

// Write implements [io.Writer].
func (w *gitOutput) Write(p []byte) (int, error) {
	w.onWrite()
	if w.text.Len() > maxGitOutput {
		w.text.Next(w.text.Len() / 2) // keep the end, which contains the reason
	}
	w.text.Write(p)
	return len(p), nil
}

// maxGitMessage limits the part of git's message in errors, in runes.
const maxGitMessage = 300

// message returns the lines that contain the reason of a failure, or otherwise all
// lines except progress. Progress lines end with a carriage return, and the last of each kind
// ends with "done.".
func (w *gitOutput) message() string {
	var reasons, rest []string
	for l := range strings.Lines(w.text.String()) {
		l = strings.TrimRight(l, "\r\n ")
		l = l[strings.LastIndexByte(l, '\r')+1:]
		switch {
		case l == "" || strings.HasSuffix(l, "done.") || strings.HasSuffix(l, "%"):
		case strings.HasPrefix(l, "fatal:"), strings.HasPrefix(l, "error:"):
			reasons = append(reasons, l)
		default:
			rest = append(rest, l)
		}
	}
	if len(reasons) == 0 {
		reasons = rest
	}
	return text.Cut(text.OneLine(strings.Join(reasons, " ")), maxGitMessage)
}
