package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/term"

	"hpcc/store/wait"
)

// gitFetch fetches a reference of a repository into dir, and retries interrupted transfers.
func gitFetch(ctx context.Context, dir, repository, ref string) error {
	return wait.Retry(ctx, gitHost(repository), func(ctx context.Context) error {
		err := gitTransfer(ctx, dir, "--depth", "1", "--", repository, ref)
		var broken *wait.Broken
		if err != nil && ctx.Err() == nil && !errors.As(err, &broken) { // some servers do not support shallow fetches
			err = gitTransfer(ctx, dir, "--", repository, ref)
		}
		return err
	})
}

// gitHost returns the host name of a repository's server, for messages.
func gitHost(repository string) string {
	if u, err := url.Parse(repository); err == nil && u.Host != "" {
		return u.Host
	}
	host, _, _ := strings.Cut(repository, ":") // git@HOST:PATH
	return host[strings.LastIndexByte(host, '@')+1:]
}

// git runs git in dir without prompts, and returns its output. The error contains git's
// message.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := gitCommand(ctx, dir, args...)
	out, err := cmd.Output()
	var ee *exec.ExitError
	switch {
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil
	case errors.As(err, &ee) && len(ee.Stderr) > 0:
		err = errors.New(shorten(string(ee.Stderr), 100))
	}
	return out, err
}

// gitUmask is the umask of git, so that the same repository has the same modes.
const gitUmask = 0o022

// gitCommand returns a git command that is killed with its child processes when ctx ends. On
// a terminal it stays in the foreground process group, so that ssh can prompt, and only git
// itself is killed.
func gitCommand(ctx context.Context, dir string, args ...string) *exec.Cmd {
	shell := fmt.Sprintf(`umask %03o; exec git "$@"`, gitUmask)
	cmd := exec.CommandContext(ctx, "/bin/sh", append([]string{"-c", shell, "git"}, args...)...)
	cmd.Dir = dir
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	}
	cmd.WaitDelay = time.Second // another process may keep the pipes open
	idle := wait.Limits(ctx).Idle
	cmd.Env = append(os.Environ(), "GIT_TERMINAL_PROMPT=0", "LC_ALL=C",
		"GIT_HTTP_LOW_SPEED_LIMIT=17", fmt.Sprintf("GIT_HTTP_LOW_SPEED_TIME=%d", max(1, int(idle/time.Second)))) // 17 bytes/s are 1 KiB per minute
	return cmd
}

// gitSSH returns the variable that sets ssh's timeouts, unless the user has configured ssh
// for git. Without a terminal, ssh must not prompt.
func gitSSH(ctx context.Context, dir string) []string {
	if os.Getenv("GIT_SSH_COMMAND") != "" || os.Getenv("GIT_SSH") != "" {
		return nil
	}
	if out, err := git(ctx, dir, "config", "--get", "core.sshCommand"); err == nil && len(bytes.TrimSpace(out)) > 0 {
		return nil
	}
	p := wait.Limits(ctx)
	command := fmt.Sprintf("GIT_SSH_COMMAND=ssh -o ConnectTimeout=%d -o ServerAliveInterval=%d", max(1, int(p.Connect/time.Second)), max(1, int(p.Idle/time.Second)/3))
	if !term.IsTerminal(int(os.Stdin.Fd())) {
		command += " -o BatchMode=yes"
	}
	return []string{command}
}

// gitSilence multiplies the idle limit for git's progress messages, because the server sends
// nothing while it prepares a pack.
const gitSilence = 2

// gitTransfer runs git fetch, and stops it after a long time without progress, because some
// of git's protocols have no timeout. It returns network failures as [wait.Broken].
func gitTransfer(ctx context.Context, dir string, args ...string) error {
	limit := gitSilence * wait.Limits(ctx).Idle
	stalled := &wait.StallError{Text: fmt.Sprintf("git reported no progress for %v", limit)}
	fetchCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	timer := time.AfterFunc(limit, func() { cancel(stalled) })
	defer timer.Stop()
	output := &gitOutput{onWrite: func() { timer.Reset(limit) }}
	cmd := gitCommand(fetchCtx, dir, append([]string{"fetch", "--progress"}, args...)...)
	cmd.Env = append(cmd.Env, gitSSH(fetchCtx, dir)...)
	cmd.Stderr = output
	err := cmd.Run()
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case context.Cause(fetchCtx) == error(stalled):
		return stalled
	}
	if text := output.message(); text != "" {
		err = errors.New(text)
	}
	if transient().MatchString(err.Error()) {
		return &wait.Broken{Err: err}
	}
	return err
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

// message returns the lines that contain the reason of a failure, or if there are none, all
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
	return shorten(strings.Join(reasons, " "), maxGitMessage)
}

// shorten returns a text on one line, truncated to limit runes.
func shorten(text string, limit int) string {
	r := []rune(strings.Join(strings.Fields(text), " "))
	if len(r) > limit {
		r = append(r[:limit-1], '…')
	}
	return string(r)
}
