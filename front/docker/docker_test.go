package docker

import (
	"cmp"
	"errors"
	"os"
	"strings"
	"testing"
)

// id is the ID of the containers in the tests.
var id = strings.Repeat("0123456789abcdef", 4)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"hpcc run --docker-id=" + id + " --docker-name=n img -- sh -c x", "n"},
		{"hpcc+\x80\x01\x02 run --docker-id=" + id + " img --", "-"}, // executed again for other IDs
		{"hpcc run --docker-id=" + id + " img -- --docker-name=no --", "-"},
		{"hpcc run --docker-id=abc img -- x", ""},
		{"hpcc run img -- --docker-id=" + id, ""},
		{"sh run --docker-id=" + id + " img -- x", ""},
		{"hpcc", ""}, {"", ""},
	} {
		c, ok := parse([]byte(strings.ReplaceAll(tt.line, " ", "\x00") + "\x00"))
		got := ""
		if ok {
			got = cmp.Or(c.name, "-")
		}
		if got != tt.want || (ok && c.id != id) {
			t.Errorf("parse(%q) = %q, %+v; want %q", tt.line, got, c, tt.want)
		}
	}
}

func TestFind(t *testing.T) {
	other := "f" + id[1:]
	list := []container{{id: id, name: "a"}, {id: id[:63] + "0", name: "b"}, {id: other, name: id[:4]}}
	for _, tt := range []struct{ name, want string }{{"a", id}, {"f", other}, {other, other}, {id[:4], other}, {"0", "error"}, {"", "error"}, {"nosuch", "error"}} {
		c, err := find(list, tt.name)
		if (err != nil) != (tt.want == "error") || (err == nil && c.id != tt.want) {
			t.Errorf("find(%q) = %v, %v; want %q", tt.name, c.id, err, tt.want)
		}
	}
	if _, err := find(list, "nosuch"); !errors.As(err, new(*notFoundError)) {
		t.Errorf("find of an unknown name: %v", err)
	}
}

// TestOther checks that the process of another program is neither listed nor signalled.
func TestOther(t *testing.T) {
	c := container{id: id, pid: os.Getpid()}
	if c.isRunning() {
		t.Error("this process is a container")
	}
	if err := c.signal(9); !errors.As(err, new(*notFoundError)) {
		t.Errorf("signal = %v", err)
	}
}
