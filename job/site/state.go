package site

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	goruntime "runtime"
	"strings"
	"sync"
	"time"

	"hpcc/job/dispatch"
	"hpcc/text"
	"hpcc/text/terminal"
)

// A State is the answer of a site to the question whether it works.
type State struct {
	Type      string `json:"type"` // "site"
	Name      string `json:"name"`
	Default   bool   `json:"default"`
	Scheduler string `json:"scheduler"`
	SSH       string `json:"ssh,omitempty"`
	File      string `json:"file"`
	Version   string `json:"version,omitempty"` // of hpcc at the site
	Problem   string `json:"problem,omitempty"`
}

// States asks all sites at the same time. Each has limit to answer.
func States(ctx context.Context, sites *dispatch.Sites, limit time.Duration) []State {
	all := sites.All()
	states := make([]State, len(all))
	var g sync.WaitGroup
	for i, t := range all {
		g.Go(func() {
			states[i] = stateOf(ctx, t, limit)
			states[i].Default = t.Name == sites.Default
		})
	}
	g.Wait()
	return states
}

// stateOf asks one site.
func stateOf(ctx context.Context, t *dispatch.Site, limit time.Duration) State {
	st := State{Type: "site", Name: t.Name, Scheduler: string(t.Scheduler), SSH: t.SSH, File: t.File}
	if t.SSH == "" {
		to, err := t.Answers(ctx, limit)
		if st.Scheduler = string(to); err != nil {
			st.Problem = err.Error()
		}
		return st
	}
	var g Info
	out, err := t.Ask(ctx, false, limit, "here")
	if err == nil && (json.Unmarshal(out, &g) != nil || g.Protocol != protocol) {
		err = errors.New("its hpcc does not understand this version")
	}
	if err != nil {
		st.Problem = strings.TrimPrefix(err.Error(), "site "+t.Name+": ")
		return st
	}
	if st.Version = g.Version; st.Scheduler == "" {
		st.Scheduler = string(g.Target)
	}
	return st
}

// Access describes how jobs reach the site.
func (st State) Access() string {
	if st.SSH != "" {
		return "ssh " + st.SSH
	}
	return "this machine"
}

// Text describes the state of the site on one line. own is the version of this hpcc.
func (st State) Text(own string) string {
	text := "answers"
	switch {
	case st.Problem != "":
		text = terminal.ShortCell(st.Problem)
	case st.Version != "" && st.Version != own:
		text = "answers; has hpcc " + st.Version
	}
	if st.Default {
		text = "default, " + text
	}
	return text
}

// installTimeout is the timeout for copying hpcc, about 40 MB, to a site.
const installTimeout = 10 * time.Minute

// Install copies this program to the site, which renames the file when it is complete. It returns the file's path at
// the site.
func (r *Remote) Install(ctx context.Context, stderr io.Writer) (string, error) {
	t := r.Site
	if t.SSH == "" {
		return "", text.Usagef("--install: site %s is on this machine", t.Name)
	}
	ctx, cancel := context.WithTimeout(ctx, installTimeout)
	defer cancel()
	machine, err := r.shell(ctx, nil, stderr, "uname -s -m")
	if err != nil {
		return "", err
	}
	arch := ""
	if m, ok := strings.CutPrefix(machine, "Linux "); ok {
		arch = dispatch.Machines[m]
	}
	if arch != goruntime.GOARCH {
		err := fmt.Errorf("site %s is %s, but this hpcc is for linux/%s", t.Name, machine, goruntime.GOARCH)
		return "", text.Hint(err, "copy hpcc-linux-%s of a release (or of \"make release\") to the site", arch)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return "", fmt.Errorf("reading hpcc itself: %w", err)
	}
	defer self.Close()
	file := t.Program
	if file == "" || !strings.Contains(file, "/") {
		file = "~/.local/bin/hpcc"
	}
	return r.shell(ctx, self, stderr, dispatch.Receive(file))
}

// shell runs a script at the site and returns its output, which is one line.
func (r *Remote) shell(ctx context.Context, stdin *os.File, stderr io.Writer, script string) (string, error) {
	cmd := r.Site.Shell(ctx, r.Terminal, false, script)
	cmd.Stderr = stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	out, err := cmd.Output()
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		if fault := r.Site.Fault(err, ""); fault != nil {
			return "", fault
		}
		return "", fmt.Errorf("copying hpcc to site %s: %w", r.Site.Name, err)
	}
	return strings.TrimSpace(string(out)), nil
}
