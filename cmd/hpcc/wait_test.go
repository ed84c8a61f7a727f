package main

import (
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/rogpeppe/go-internal/testscript"

	faulty "hpcc/testdata/helpers/hostile"
)

// servers are the misbehaving servers of scripts, by $SERVED.
type servers struct{ sync.Map }

// serve implements "hostile DIR [tls]": it serves a directory at $SERVED and a registry at $HOST,
// which "fault" makes misbehave. SSL_CERT_FILE makes hpcc trust them.
func (all *servers) serve(ts *testscript.TestScript, _ bool, args []string) {
	files, reg := http.FileServer(http.Dir(ts.MkAbs(args[0]))), registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := faulty.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v2/") {
			reg.ServeHTTP(w, r)
			return
		}
		files.ServeHTTP(w, r)
	}), len(args) > 1)
	ts.Defer(s.Close)
	ts.Setenv("SERVED", s.URL)
	ts.Setenv("HOST", s.URL[strings.Index(s.URL, "://")+3:])
	if len(args) > 1 {
		file := ts.MkAbs("server.pem")
		ts.Check(os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o644))
		ts.Setenv("SSL_CERT_FILE", file)
	}
	all.Store(s.URL, s)
}

// fault implements "fault NAME N REGEXP": the next N requests (-1: all) whose "METHOD PATH" matches
// meet a fault.
func (all *servers) fault(ts *testscript.TestScript, _ bool, args []string) {
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	match := regexp.MustCompile(args[2])
	s, ok := all.Load(ts.Getenv("SERVED"))
	if !ok {
		ts.Fatalf("fault: no server serves $SERVED")
	}
	s.(*faulty.Server).Set(faulty.Fault(args[0]), n, func(r *http.Request) bool {
		return match.MatchString(r.Method + " " + r.URL.Path)
	})
}

// interrupt implements "interrupt SECONDS STATUS COMMAND [ARG...]": it starts hpcc COMMAND with a
// standard input that stays empty, and ends it after SECONDS: with SIGTERM if STATUS is 143, else with
// SIGINT. It fails unless the command ends within ten seconds with that status.
func interrupt(ts *testscript.TestScript, _ bool, args []string) {
	after, err := strconv.ParseFloat(args[0], 64)
	ts.Check(err)
	cmd := exec.Command(filepath.Join(bin, "hpcc"), args[2:]...)
	cmd.Dir, cmd.Env = ts.MkAbs("."), append(os.Environ(), "HPCC_STORE="+ts.Getenv("HPCC_STORE"), "HOME="+ts.Getenv("HOME"), "HPCC_SITE="+ts.Getenv("HPCC_SITE"))
	r, w, err := os.Pipe()
	ts.Check(err)
	defer w.Close()
	defer r.Close()
	var out strings.Builder
	cmd.Stdin, cmd.Stdout, cmd.Stderr = r, &out, &out
	ts.Check(cmd.Start())
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	select {
	case <-ended:
		ts.Fatalf("%v ended before the signal: %v %s", args[2:], cmd.ProcessState, out.String())
	case <-time.After(time.Duration(after * float64(time.Second))):
	}
	ending := os.Interrupt
	if args[1] == "143" {
		ending = syscall.SIGTERM
	}
	ts.Check(cmd.Process.Signal(ending))
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		_ = cmd.Process.Kill()
		<-ended
		ts.Fatalf("%v did not end with %v: %s", args[2:], ending, out.String())
	}
	got := strconv.Itoa(cmd.ProcessState.ExitCode())
	if ws := cmd.ProcessState.Sys().(syscall.WaitStatus); ws.Signaled() {
		got = strconv.Itoa(128 + int(ws.Signal()))
	}
	if got != args[1] {
		ts.Fatalf("%v ended with status %s; want %s: %s", args[2:], got, args[1], out.String())
	}
	ts.Logf("%v: %s %s", args[2:], got, out.String())
}
