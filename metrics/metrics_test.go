package metrics

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

func TestMeasure(t *testing.T) {
	tests := []struct {
		name, script string
		exit, status int
		signal       string
	}{
		{"success", "exit 0", 0, 0, ""},
		{"its own status", "exit 7", 7, 7, ""},
		{"a signal", "kill -KILL $$", -1, 137, "SIGKILL"},
		{"a real-time signal", "kill -35 $$", -1, 163, "SIGRTMIN+1"},
		{"the first of them", "kill -34 $$", -1, 162, "SIGRTMIN"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := Measure(t.Context(), exec.Command("sh", "-c", test.script), Options{})
			testenv.Check(t, err)
			if r.Exit != test.exit || r.Signal != test.signal || r.Status() != test.status {
				t.Errorf("Measure(%q) = exit %d, signal %q, status %d; want %d, %q, %d", test.script, r.Exit, r.Signal, r.Status(), test.exit, test.signal, test.status)
			}
			if host, _ := os.Hostname(); r.Host != host || r.End.Before(r.Start) || r.Usage.MaxRSS <= 0 {
				t.Errorf("Measure(%q) = %+v; want this host, an end after the start, some memory", test.script, r)
			}
		})
	}
}

func TestMeasureCountsProcessorTime(t *testing.T) {
	r, err := Measure(t.Context(), exec.Command("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"), Options{})
	testenv.Check(t, err)
	if r.Usage.User <= 0 || r.Usage.User > 2*r.Wall().Seconds()+1 {
		t.Errorf("a loop took %g s of processor time in %v", r.Usage.User, r.Wall())
	}
}

func TestMeasurePassesSignalsOn(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGALRM, syscall.SIGVTALRM, syscall.SIGWINCH, 40} {
		cmd := exec.Command("sh", "-c", fmt.Sprintf("trap 'exit 3' %d; echo; n=0; while [ $n -lt 200 ]; do n=$((n+1)); sleep 0.05; done", sig))
		out, err := cmd.StdoutPipe()
		testenv.Check(t, err)
		r, err := Measure(t.Context(), cmd, Options{Started: func(Run) {
			out.Read(make([]byte, 1)) // the trap is set
			syscall.Kill(os.Getpid(), sig)
			time.Sleep(10 * time.Millisecond)
		}})
		if err != nil || r.Exit != 3 {
			t.Errorf("%v: Measure = %+v, %v; want exit 3 from the trap", sig, r, err)
		}
	}
}

// TestStops checks which ends of a program follow a signal that asked it to stop: before its end, and shortly after
// it, as a scheduler signals the program first.
func TestStops(t *testing.T) {
	testenv.Slow(t)
	for script, want := range map[string]string{
		`trap "exit 0" TERM; kill -TERM $PPID; while :; do sleep 0.01; done`: "[SIGTERM]",
		`kill -WINCH $PPID`: "[]",
		`sleep 3; trap "" USR1; (kill -USR1 $PPID) & exec true`: "[SIGUSR1]",
	} {
		r, err := Measure(t.Context(), exec.Command("sh", "-c", script), Options{LateStop: time.Second})
		if got := fmt.Sprint(r.Stops); err != nil || got != want || r.Status() != 0 {
			t.Errorf("%s: stopped by %s, status %d, %v; want %s", script, got, r.Status(), err, want)
		}
	}
}

func TestSignalNames(t *testing.T) {
	for n := syscall.Signal(1); n <= lastRealTime; n++ {
		if got := signalNumber(signalName(n)); got != n {
			t.Errorf("%d is %s is %d", n, signalName(n), got)
		}
	}
	for _, name := range []string{"", "SIGNO", "SIGRTMINx", "SIGRTMIN+31", "SIGRTMIN-34", "SIGRTMIN+99999999999999999999"} {
		if got := signalNumber(name); got != 0 {
			t.Errorf("%q is %d", name, got)
		}
	}
}

func TestMeasureSaysWhatDoesNotStart(t *testing.T) {
	if _, err := Measure(t.Context(), exec.Command("/nonexistent/program"), Options{}); err == nil {
		t.Error("a missing program was run")
	}
}

// TestMeasureKeepsARecord: the record is complete however the program ends, and also if it
// does not start.
func TestMeasureKeepsARecord(t *testing.T) {
	for _, test := range []struct {
		name            string
		words           []string
		exit            int
		signal, problem string
	}{
		{"success", []string{"sh", "-c", "exit 0"}, 0, "", ""},
		{"its own status", []string{"sh", "-c", "exit 7"}, 7, "", ""},
		{"a signal", []string{"sh", "-c", "kill -KILL $$"}, -1, "SIGKILL", ""},
		{"not there", []string{"/nonexistent/program"}, -1, "", "starting /nonexistent/program"},
	} {
		file := filepath.Join(t.TempDir(), "run.jsonl")
		run, _ := Measure(t.Context(), exec.Command(test.words[0], test.words[1:]...), Options{File: file, Header: Header{Image: "base", Asked: Asked{CPUs: 3}}})
		r, err := ReadRecord(file, true)
		testenv.Check(t, err)
		if h := r.Header; h.Image != "base" || h.Asked.CPUs != 3 || h.Version != recordVersion || !reflect.DeepEqual(h.Command, test.words) || h.Machine.Host == "" || h.Machine.CPUs < 1 || h.Machine.Memory <= 0 || h.Machine.Kernel == "" {
			t.Errorf("%s: header %+v", test.name, h)
		}
		f := r.Footer
		if f == nil || f.Exit != test.exit || f.Signal != test.signal || !strings.HasPrefix(f.Problem, test.problem) || (f.Problem != "" && test.problem == "") || f.End.Before(r.Header.Start) {
			t.Errorf("%s: footer %+v", test.name, f)
		}
		if run.Footer == nil || run.RecordErr != nil || run.Footer.Exit != test.exit {
			t.Errorf("%s: run.Footer %+v, unkept %v", test.name, run.Footer, run.RecordErr)
		}
	}
	r, err := Measure(t.Context(), exec.Command("true"), Options{File: "/nonexistent/dir/run.jsonl"})
	if err != nil || r.Status() != 0 || r.Footer == nil || r.RecordErr == nil {
		t.Errorf("with an invalid file: %+v, %v", r, err)
	}
}
