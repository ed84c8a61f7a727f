package files

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

// TestReadAll checks that what is larger than the limit is refused, not cut.
func TestReadAll(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	testenv.Check(t, os.WriteFile(file, []byte("12345"), 0o600))
	for limit, want := range map[int64]string{4: "", 5: "12345", 6: "12345"} {
		got, err := ReadAll(bytes.NewReader([]byte("12345")), limit)
		if string(got) != want || (err == nil) != (want != "") {
			t.Errorf("limit %d: %q, %v", limit, got, err)
		}
		if named, nerr := ReadFile(file, limit); string(named) != want || (nerr == nil) != (want != "") {
			t.Errorf("limit %d of a file: %q, %v", limit, named, nerr)
		}
	}
}

// TestOpen runs itself as a child process, because it tests signals. SIGINT and SIGTERM must
// end the wait for a FIFO without a writer and for a silent writer.
func TestOpen(t *testing.T) {
	if name := os.Getenv("HPCC_TEST_OPEN"); name != "" {
		fmt.Fprintln(os.Stderr, "opening")
		b, err := ReadFile(name, 1<<20)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			var ended Interrupted
			if errors.As(err, &ended) && errors.Is(err, context.Canceled) {
				os.Exit(128 + int(ended.Signal))
			}
			os.Exit(1)
		}
		os.Stdout.Write(b)
		os.Exit(0)
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	testenv.Check(t, syscall.Mkfifo(fifo, 0o600))
	testenv.Check(t, os.WriteFile(filepath.Join(dir, "plain"), []byte("plain"), 0o600))
	for _, c := range []struct {
		name   string
		shell  string // $0 is this program, which reads $HPCC_TEST_OPEN
		signal os.Signal
		want   string
		status int
	}{
		{"plain", `HPCC_TEST_OPEN=plain exec "$0" -test.run=TestOpen$`, nil, "plain", 0},
		{"no writer, SIGINT", `HPCC_TEST_OPEN=fifo exec "$0" -test.run=TestOpen$`, os.Interrupt, "", 130},
		{"no writer, SIGTERM", `HPCC_TEST_OPEN=fifo exec "$0" -test.run=TestOpen$`, syscall.SIGTERM, "", 143},
		{"silent writer", `exec 3<>fifo; HPCC_TEST_OPEN=fifo exec "$0" -test.run=TestOpen$ 3>fifo`, os.Interrupt, "", 130},
		{"late writer", `(sleep 0.3; echo late >fifo) & HPCC_TEST_OPEN=fifo exec "$0" -test.run=TestOpen$`, nil, "late\n", 0},
		{"substitution", `HPCC_TEST_OPEN=/dev/fd/3 exec "$0" -test.run=TestOpen$ 3< <(sleep 0.3; echo inner)`, nil, "inner\n", 0},
		{"empty substitution", `HPCC_TEST_OPEN=/dev/fd/3 exec "$0" -test.run=TestOpen$ 3< <(true)`, nil, "", 0},
		{"standard input", `echo in | HPCC_TEST_OPEN=/dev/stdin exec "$0" -test.run=TestOpen$`, nil, "in\n", 0},
		{"no input", `HPCC_TEST_OPEN=/dev/null exec "$0" -test.run=TestOpen$`, nil, "", 0},
		{"missing file", `HPCC_TEST_OPEN=missing exec "$0" -test.run=TestOpen$`, nil, "", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			cmd := exec.Command("bash", "-c", c.shell, os.Args[0])
			if !filepath.IsAbs(os.Args[0]) {
				cmd.Args[len(cmd.Args)-1], _ = filepath.Abs(os.Args[0])
			}
			cmd.Dir = dir
			var out bytes.Buffer
			cmd.Stdout = &out
			messages, err := cmd.StderrPipe()
			testenv.Check(t, err)
			testenv.Check(t, cmd.Start())
			if c.signal != nil {
				_, _ = io.ReadFull(messages, make([]byte, len("opening\n")))
				time.Sleep(500 * time.Millisecond) // give it time to begin waiting
				_ = cmd.Process.Signal(c.signal)
			}
			killed := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
			defer killed.Stop()
			_ = cmd.Wait()
			if got := cmd.ProcessState.ExitCode(); got != c.status || (c.status == 0 && out.String() != c.want) {
				t.Errorf("status %d, %q; want %d, %q", got, out.String(), c.status, c.want)
			}
		})
	}
}
