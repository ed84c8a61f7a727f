package dispatch

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"

	"hpcc/job/invoke"
	"hpcc/text"
)

// A noProgramError reports that a remote site has no hpcc at the expected path.
type noProgramError struct{ Site *Site }

func (e *noProgramError) Error() string {
	return fmt.Sprintf("site %s: %s not found (ssh %s)", e.Site.Name, e.Site.program(), e.Site.SSH)
}

// program returns the remote hpcc: the path from the site file, or the one on PATH.
func (t *Site) program() string {
	if t.Program != "" {
		return t.Program
	}
	return "hpcc"
}

// Command returns an ssh command that runs the site's hpcc with these arguments. With
// terminal ssh may ask for a password; without, it fails instead.
func (t *Site) Command(ctx context.Context, terminal bool, argv ...string) *exec.Cmd {
	inner := "PATH=$HOME/.local/bin:$PATH; "
	if t.Store != "" {
		inner += "export HPCC_STORE=" + homePath(t.Store) + "; "
	}
	return t.shell(ctx, terminal, inner+"exec "+homePath(t.program())+` "$@"`, argv...)
}

// Shell returns an ssh command that runs a bash script on the site. With ask ssh may ask for
// a password; with terminal the script gets a terminal.
func (t *Site) Shell(ctx context.Context, ask, terminal bool, script string) *exec.Cmd {
	cmd := t.shell(ctx, ask, script)
	if terminal {
		cmd.Args = slices.Insert(cmd.Args, 1, "-t")
	}
	return cmd
}

// Receive returns a script that installs its standard input as an executable at file. It
// writes a temporary file and renames it.
func Receive(file string) string {
	return "f=" + homePath(file) + `; umask 022; mkdir -p "${f%/*}" && cat >"$f.new.$$" && chmod 755 "$f.new.$$" && mv -f "$f.new.$$" "$f" && echo "$f" || { rm -f "$f.new.$$"; exit 1; }`
}

// shell runs a script in a remote login shell, because schedulers are often only on its
// PATH. It discards the output of the profile. The user's shell may be any; it only sees
// quoted arguments for sh.
func (t *Site) shell(ctx context.Context, terminal bool, script string, argv ...string) *exec.Cmd {
	outer := `exec bash -lc "$0" hpcc "$@" 3>&1 4>&2 >/dev/null 2>&1`
	remote := append([]string{"exec", "sh", "-c", outer, "exec >&3 2>&4 3>&- 4>&-; " + script}, argv...)
	for i, w := range remote[1:] {
		remote[i+1] = text.QuoteAlways(w)
	}
	args := []string{"-o", fmt.Sprintf("ConnectTimeout=%d", siteConnects)}
	if !terminal {
		args = append(args, "-o", "BatchMode=yes")
	}
	cmd := exec.CommandContext(ctx, "ssh", append(args, "--", t.SSH, strings.Join(remote, " "))...)
	cmd.WaitDelay = time.Second // a shared ssh connection keeps the streams open
	return cmd
}

// siteConnects is the connection timeout of ssh to a site, in seconds. It allows for a jump
// host.
const siteConnects = 30

// homePath quotes a path for the shell; ~/ is the remote home directory.
func homePath(p string) string {
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		return `"$HOME"/` + text.QuoteAlways(rest)
	}
	return text.QuoteAlways(p)
}

// Exit statuses of ssh(1) and of shells.
const (
	sshFailed   = 255
	notFound    = 127
	notAProgram = 126
)

// Fault returns why a command of the site failed: ssh itself, or no hpcc on the site. It
// returns nil for hpcc's own exit status. said is the command's standard error, if captured.
func (t *Site) Fault(err error, stderr string) error {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("site %s: %w", t.Name, err)
	case exit.ExitCode() == sshFailed:
		return fmt.Errorf("site %s: ssh %s: %s", t.Name, t.SSH, strings.TrimPrefix(lastLine(stderr, "no connection"), "ssh: "))
	case exit.ExitCode() == notFound, exit.ExitCode() == notAProgram:
		return &noProgramError{t}
	case !exit.Exited():
		return fmt.Errorf("site %s: ssh: %w", t.Name, err)
	}
	return nil
}

func lastLine(text, none string) string {
	text = strings.TrimSpace(text)
	if text = text[strings.LastIndexByte(text, '\n')+1:]; text == "" {
		return none
	}
	return text
}

// Ask runs the site's hpcc and returns its standard output; it fails after limit. With
// terminal ssh may ask for a password. Errors have hints.
func (t *Site) Ask(ctx context.Context, terminal bool, limit time.Duration, argv ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := invoke.Run(t.Command(ctx, terminal, argv...))
	stderr := string(out)
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return nil, fmt.Errorf("site %s does not answer within %v (ssh %s)", t.Name, limit, t.SSH)
	case err == nil:
		return out, nil
	}
	if fault := t.Fault(err, stderr); fault != nil {
		return nil, t.Hint(fault)
	}
	return nil, t.Hint(fmt.Errorf("site %s: %s", t.Name, strings.TrimPrefix(lastLine(firstError(stderr), err.Error()), "hpcc: error: ")))
}

// Hint adds a hint to an error of the site, if another version of hpcc there can help.
func (t *Site) Hint(err error) error {
	switch {
	case errors.As(err, new(*noProgramError)):
		return text.Hint(err, "hpcc sites --install %s installs it", t.Name)
	case strings.Contains(err.Error(), "unknown command") || strings.Contains(err.Error(), "unknown flag"):
		return text.Hint(err, "the site has an older hpcc; update it with hpcc sites --install %s", t.Name)
	}
	return err
}

// firstError returns the error line of hpcc's output, or all of it.
func firstError(stderr string) string {
	for line := range strings.Lines(stderr) {
		if strings.HasPrefix(line, "hpcc: error: ") {
			return line
		}
	}
	return stderr
}
