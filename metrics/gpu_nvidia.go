package metrics

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// nvidiaFields are the queried fields of nvidia-smi.
const nvidiaFields = "index,uuid,name,memory.total,driver_version,utilization.gpu,memory.used,power.draw"

// The interval of nvidia-smi's reports, and its maximum share of a processor. Its use
// depends on the number of GPUs.
const (
	nvidiaEvery   = time.Second
	nvidiaLongest = time.Minute
	nvidiaShare   = 0.005
	nvidiaTrial   = 20 * time.Second // time until its share is checked
)

// An nvidia runs nvidia-smi during the run, restarting it with a longer interval if
// necessary.
type nvidia struct {
	gpus    *gpus
	path    string
	allowed func(gpuState) bool
	cmd     *exec.Cmd     // nil: not running
	began   time.Time     // start of cmd
	silent  chan struct{} // closed when cmd prints nothing more
	spent   float64       // processor time of earlier processes, in seconds
}

// followNvidia records nvidia-smi's reports while the program runs.
func (g *gpus) followNvidia(path string, allowed func(gpuState) bool) {
	n := &nvidia{gpus: g, path: path, allowed: allowed}
	if n.start(nvidiaEvery) != nil {
		g.markReady()
		return
	}
	over, done := make(chan struct{}), make(chan struct{})
	g.stop = func() float64 {
		close(over)
		<-done
		return n.spent
	}
	go func() {
		n.follow(over)
		g.silence()
		g.markReady()
		close(done)
	}()
}

// follow keeps nvidia-smi running until over is closed or it stops reporting.
func (n *nvidia) follow(over <-chan struct{}) {
	defer n.finish()
	every := nvidiaEvery
	for trial := nvidiaTrial; ; trial *= 4 {
		select {
		case <-over:
			return
		case <-n.silent:
			return
		case <-time.After(trial):
		}
		share := processorTime(n.cmd.Process.Pid) / time.Since(n.began).Seconds()
		slower := min(time.Duration(float64(every)*share/nvidiaShare), nvidiaLongest)
		if slower <= every*3/2 {
			continue
		}
		n.finish()
		if every = slower; n.start(every) != nil {
			return
		}
	}
}

// start starts nvidia-smi.
func (n *nvidia) start(every time.Duration) error {
	cmd := exec.Command(n.path, "--query-gpu="+nvidiaFields, "--format=csv,noheader,nounits", "-lms",
		strconv.FormatInt(every.Milliseconds(), 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keep terminal signals away from it
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = Start(cmd)
	}
	if err != nil {
		return err
	}
	n.gpus.pace(every)
	silent := make(chan struct{})
	n.cmd, n.began, n.silent = cmd, time.Now(), silent
	go func() {
		n.gpus.readNvidia(bufio.NewReaderSize(out, 4096), n.allowed)
		close(silent)
	}()
	return nil
}

// finish ends the running process.
func (n *nvidia) finish() {
	if n.cmd == nil {
		return
	}
	_ = syscall.Kill(-n.cmd.Process.Pid, syscall.SIGKILL)
	<-n.silent
	_ = n.cmd.Wait()
	n.spent += toolTime(n.cmd)
	n.cmd = nil
}

// readNvidia reads lines until the end. It skips lines that are too long.
func (g *gpus) readNvidia(lines *bufio.Reader, allowed func(gpuState) bool) {
	for {
		line, cut, err := lines.ReadLine()
		if err != nil {
			return
		}
		long := cut
		for cut && err == nil {
			_, cut, err = lines.ReadLine()
		}
		if s, ok := parseNvidia(string(line)); ok && !long && allowed(s) {
			if g.take([]gpuState{s}, time.Now()) { // all GPUs have been reported
				g.markReady()
			}
		}
	}
}

// parseNvidia parses a line of nvidiaFields.
func parseNvidia(line string) (s gpuState, ok bool) {
	f := strings.Split(line, ", ")
	if len(f) != strings.Count(nvidiaFields, ",")+1 {
		return s, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(f[0]), 10, 16)
	if err != nil {
		return s, false
	}
	s.Index, s.id, s.Name, s.GPU.Memory, s.Driver = int(n), named(f[1]), named(f[2]), mebibytes(f[3]), named(f[4])
	busy, known := percent(f[5])
	s.now = GPUSample{Index: s.Index, Utilisation: busy, Unknown: !known, Memory: mebibytes(f[6]), Power: watts(f[7])}
	return s, true
}

// processorTime returns a process's processor time so far, in seconds.
func processorTime(pid int) float64 {
	var r reader
	s, _ := r.stat(pid)
	return float64(s.user+s.system) * tick
}
