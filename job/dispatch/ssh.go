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
)

// A NoProgramError is that a site that ssh reaches has no hpcc where it was looked for.
type NoProgramError struct{ Site *Site }

func (e *NoProgramError) Error() string {
	return fmt.Sprintf("site %s: there is no %s (ssh %s)", e.Site.Name, e.Site.program(), e.Site.SSH)
}

// program is hpcc there: what the file says, else the one on PATH or below ~/.local/bin.
func (t *Site) program() string {
	if t.Program != "" {
		return t.Program
	}
	return "hpcc"
}

// Command is ssh, which runs hpcc of the site with these words. With terminal
// it may ask for what it needs to log in; without, it gives up.
func (t *Site) Command(ctx context.Context, terminal bool, words ...string) *exec.Cmd {
	inner := "PATH=$HOME/.local/bin:$PATH; "
	if t.Store != "" {
		inner += "export HPCC_STORE=" + homePath(t.Store) + "; "
	}
	return t.shell(ctx, terminal, inner+"exec "+homePath(t.program())+` "$@"`, words...)
}

// Shell is ssh, which runs a script of bash there. With ask it may ask for what it
// needs to log in; with terminal the script has this one.
func (t *Site) Shell(ctx context.Context, ask, terminal bool, script string) *exec.Cmd {
	cmd := t.shell(ctx, ask, script)
	if terminal {
		cmd.Args = slices.Insert(cmd.Args, 1, "-t")
	}
	return cmd
}

// Receive is a script that makes a program of what it reads: whole, under another
// name, and renamed.
func Receive(file string) string {
	return "f=" + homePath(file) + `; umask 022; mkdir -p "${f%/*}" && cat >"$f.new.$$" && chmod 755 "$f.new.$$" && mv -f "$f.new.$$" "$f" && echo "$f" || { rm -f "$f.new.$$"; exit 1; }`
}

// shell runs a script in a login shell there: schedulers are often on the PATH of
// those alone. What its profile says is thrown away. The user's own shell may be
// any; it sees quoted words, and sh.
func (t *Site) shell(ctx context.Context, terminal bool, script string, words ...string) *exec.Cmd {
	outer := `exec bash -lc "$0" hpcc "$@" 3>&1 4>&2 >/dev/null 2>&1`
	remote := append([]string{"exec", "sh", "-c", outer, "exec >&3 2>&4 3>&- 4>&-; " + script}, words...)
	for i, w := range remote[1:] {
		remote[i+1] = quoteAlways(w)
	}
	args := []string{"-o", fmt.Sprintf("ConnectTimeout=%d", siteConnects)}
	if !terminal {
		args = append(args, "-o", "BatchMode=yes")
	}
	cmd := exec.CommandContext(ctx, "ssh", append(args, "--", t.SSH, strings.Join(remote, " "))...)
	cmd.WaitDelay = time.Second // a connection that stays for others keeps the streams open
	return cmd
}

// siteConnects is how long ssh may take to reach a site, in seconds: there may be
// a host to go through on the way.
const siteConnects = 30

// quoteAlways quotes a word also where [quote] sees no need: csh and fish have other signs.
func quoteAlways(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// homePath writes a path for the shell; ~/ is the home directory there.
func homePath(p string) string {
	if rest, ok := strings.CutPrefix(p, "~/"); ok {
		return `"$HOME"/` + quoteAlways(rest)
	}
	return quoteAlways(p)
}

// Statuses of ssh(1) and of shells.
const (
	sshFailed   = 255
	notFound    = 127
	notAProgram = 126
)

// Fault says why a command of the site failed: ssh itself, no hpcc there, or nil
// for hpcc's own status. said is its standard error, where that was kept.
func (t *Site) Fault(err error, said string) error {
	var exit *exec.ExitError
	switch {
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("site %s: %w", t.Name, err)
	case exit.ExitCode() == sshFailed:
		return fmt.Errorf("site %s: ssh %s: %s", t.Name, t.SSH, strings.TrimPrefix(lastLine(said, "no connection"), "ssh: "))
	case exit.ExitCode() == notFound, exit.ExitCode() == notAProgram:
		return &NoProgramError{t}
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

// Ask is what hpcc of the site answers on standard output, within a time. With
// terminal ssh may ask for what it needs to log in.
func (t *Site) Ask(ctx context.Context, terminal bool, limit time.Duration, words ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := invoke.Run(t.Command(ctx, terminal, words...))
	said := string(out)
	switch {
	case ctx.Err() == context.DeadlineExceeded:
		return nil, fmt.Errorf("site %s does not answer within %v (ssh %s)", t.Name, limit, t.SSH)
	case err == nil:
		return out, nil
	}
	if fault := t.Fault(err, said); fault != nil {
		return nil, fault
	}
	return nil, fmt.Errorf("site %s: %s", t.Name, strings.TrimPrefix(lastLine(firstError(said), err.Error()), "hpcc: error: "))
}

// firstError is the line of hpcc's words that says what is wrong.
func firstError(said string) string {
	for line := range strings.Lines(said) {
		if strings.HasPrefix(line, "hpcc: error: ") {
			return line
		}
	}
	return said
}
