package metrics

import (
	"bufio"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// nvidiaFields are what nvidia-smi is asked for.
const nvidiaFields = "index,uuid,name,memory.total,driver_version,utilization.gpu,memory.used,power.draw"

// How often nvidia-smi looks, and which part of a processor it may take: what it takes depends on
// how many GPUs there are.
const (
	nvidiaEvery   = time.Second
	nvidiaLongest = time.Minute
	nvidiaShare   = 0.005
	nvidiaTrial   = 20 * time.Second // after which its share is looked at
)

// followNvidia reads what one nvidia-smi prints as long as the program runs.
func (g *gpus) followNvidia(path string, allowed func(gpuState) bool) {
	var cmd *exec.Cmd
	over, ended := make(chan struct{}), make(chan struct{})
	var spent float64
	start := func(every time.Duration) error {
		var lines *bufio.Reader
		var err error
		if cmd, lines, err = g.startNvidia(path, every); err != nil {
			return err
		}
		go func() {
			g.readNvidia(lines, allowed)
			ended <- struct{}{}
		}()
		return nil
	}
	finish := func() {
		_ = cmd.Process.Kill()
		<-ended
		_ = cmd.Wait()
		spent += cmd.ProcessState.UserTime().Seconds() + cmd.ProcessState.SystemTime().Seconds()
	}
	every := nvidiaEvery
	if start(every) != nil {
		g.answered()
		return
	}
	done := make(chan struct{})
	g.stop = func() float64 {
		close(over)
		<-done
		return spent
	}
	go func() {
		defer close(done)
		for trial := nvidiaTrial; ; trial *= 4 {
			select {
			case <-over:
				finish()
				return
			case <-ended: // by itself: it has nothing to tell any more
				_ = cmd.Wait()
				g.answered()
				<-over
				return
			case <-time.After(trial):
			}
			share := processorTime(cmd.Process.Pid) / trial.Seconds()
			slower := min(time.Duration(float64(every)*share/nvidiaShare), nvidiaLongest)
			if slower <= every*3/2 {
				continue
			}
			finish()
			if every = slower; start(every) != nil {
				<-over
				return
			}
		}
	}()
}

// startNvidia begins to ask.
func (g *gpus) startNvidia(path string, every time.Duration) (*exec.Cmd, *bufio.Reader, error) {
	cmd := exec.Command(path, "--query-gpu="+nvidiaFields, "--format=csv,noheader,nounits", "-lms", strconv.FormatInt(every.Milliseconds(), 10))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // what is typed is not for it
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = g.begin(cmd)
	}
	if err != nil {
		return nil, nil, err
	}
	return cmd, bufio.NewReaderSize(out, 4096), nil
}

// readNvidia takes lines in until there are no more. One that is too long is left out.
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
			if g.take([]gpuState{s}, time.Now()) { // again: all have been told of
				g.answered()
			}
		}
	}
}

// parseNvidia reads a line of nvidiaFields.
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

// processorTime is what a process took until now, in seconds.
func processorTime(pid int) float64 {
	var r reader
	b, err := r.read(procFile(pid, "stat"))
	if err != nil {
		return 0
	}
	s, _ := parseStat(b)
	return float64(s.user+s.system) * tick
}
