package node

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// fakeEach returns an argv for Broadcast.Each that prints lines, as if nodes had.
func fakeEach(lines ...string) []string {
	return []string{"sh", "-c", `[ "$2" != refuse ] || exit 7; printf '%s\n' "$0"`, strings.Join(lines, "\n")}
}

func TestBroadcastPrepare(t *testing.T) {
	for _, c := range []struct {
		name, want, fails string
		each              []string
		needed            bool
	}{
		{name: "all need it", each: fakeEach(receivedLine("/tmp/a b", false), receivedLine("/tmp/a b", false)), want: "/tmp/a b", needed: true},
		{name: "one needs it", each: fakeEach(receivedLine("/tmp/a", true), receivedLine("/tmp/a", false)), want: "/tmp/a", needed: true},
		{name: "none needs it", each: fakeEach(receivedLine("/tmp/a", true), receivedLine("/tmp/a", true)), want: "/tmp/a"},
		{name: "a line of the site", each: fakeEach("welcome to n1", "hpcc-stage", "hpcc-stage needs x", receivedLine("/tmp/a", false)), want: "/tmp/a", needed: true},
		{name: "different directories", each: fakeEach(receivedLine("/tmp/a/tmp/b", true), receivedLine("/tmp/a.x1/tmp/b", false)), fails: "in different directories, /tmp/a and /tmp/a.x1"},
		{name: "no answer", each: fakeEach(""), fails: "no node answered"},
		{name: "a node fails", each: []string{"sh", "-c", "echo n2: no space >&2; exit 1"}, fails: "sh: exit status 1: n2: no space"},
		{name: "no such command", each: []string{"hpcc-no-such"}, fails: "hpcc-no-such"},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &Broadcast{Each: c.each, Self: []string{"self"}}
			dir, needed, err := b.prepare(context.Background())
			switch {
			case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)):
				t.Errorf("prepare = %q, %v; want an error with %q", dir, err, c.fails)
			case c.fails == "" && (err != nil || dir != c.want || needed != c.needed):
				t.Errorf("prepare = %q, %v, %v; want %q, %v", dir, needed, err, c.want, c.needed)
			}
		})
	}
}

func TestBroadcastTo(t *testing.T) {
	dir := t.TempDir()
	file, path := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	testenv.Check(t, os.WriteFile(file, []byte("x"), 0o600))
	b := &Broadcast{Send: []string{"cp"}, Each: fakeEach(), Self: []string{"self"}}
	testenv.Check(t, b.to(context.Background(), file, path, 1))
	if got, err := os.ReadFile(path); err != nil || string(got) != "x" {
		t.Errorf("the file has %q, %v", got, err)
	}
	if err := b.to(context.Background(), file+"2", path, 1); err == nil || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("to with a missing file: %v", err)
	}
	if err := b.refuse(context.Background()); err == nil || !strings.Contains(err.Error(), "exit status 7") {
		t.Errorf("refuse runs %q", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := b.to(ctx, file, path, 1); err == nil {
		t.Error("to continues after the job was cancelled")
	}
}
