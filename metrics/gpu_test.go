package metrics

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

func TestParseNvidia(t *testing.T) {
	const id = "GPU-6e2b1f0c-0000-1111-2222-333344445555"
	for line, want := range map[string]gpuState{
		"0, " + id + ", NVIDIA H200, 143771, 570.124.06, 35, 1024, 120.50": {GPU: GPU{0, "NVIDIA H200", 143771 << 20, "570.124.06"}, id: id, now: GPUSample{Index: 0, Utilisation: 35, Memory: 1 << 30, Power: 120.5}},
		// A GPU with partitions, and an old one.
		"3, " + id + ", NVIDIA A100, 40960, 535.1, [N/A], 3, [Not Supported]": {GPU: GPU{3, "NVIDIA A100", 40960 << 20, "535.1"}, id: id, now: GPUSample{Index: 3, Unknown: true, Memory: 3 << 20}},
		"1, x, \x1b[31mred, -5, d, 1e300, NaN, Inf":                           {GPU: GPU{1, "[31mred", 0, "d"}, id: "x", now: GPUSample{Index: 1, Utilisation: 100}},
	} {
		if got, ok := parseNvidia(line); !ok || got != want {
			t.Errorf("parseNvidia(%q) = %+v, %v; want %+v", line, got, ok, want)
		}
	}
	for _, line := range []string{"", "No devices were found", "x, a, b, 1, 2, 3, 4, 5", "99999999, a, b, 1, 2, 3, 4, 5", "0, 1, 2", "-1, a, b, 1, 2, 3, 4, 5"} {
		if got, ok := parseNvidia(line); ok {
			t.Errorf("parseNvidia(%q) = %+v", line, got)
		}
	}
}

// As rocm-smi 5 and 6 print it.
const rocm = `WARNING: AMD GPU device(s) is/are in a low-power state.
{"card0": {"Device Name": "x", "Unique ID": "0x18f68e602b8a790f", "Average Graphics Package Power (W)": "132.0", "GPU use (%)": "87", "VRAM Total Memory (B)": "68702699520", "VRAM Total Used Memory (B)": "10960896", "Card Series": "AMD Instinct MI250X"},
 "card1": {"Unique ID": "0xab", "Current Socket Graphics Package Power (W)": "N/A", "GPU use (%)": "N/A", "VRAM Total Memory (B)": "1", "VRAM Total Used Memory (B)": "-7", "Card series": "b", "nested": {"a": 1}},
 "system": {"Driver version": "6.3.6"}, "cardx": {}, "card99999999999": {}}`

func TestParseROCm(t *testing.T) {
	got := map[int]gpuState{}
	for _, s := range parseROCm([]byte(rocm)) {
		got[s.Index] = s
	}
	want := gpuState{GPU: GPU{0, "AMD Instinct MI250X", 68702699520, "6.3.6"}, id: "GPU-18f68e602b8a790f", now: GPUSample{Utilisation: 87, Memory: 10960896, Power: 132}}
	if len(got) != 2 || got[0] != want || !got[1].now.Unknown || got[1].now.Memory != 0 {
		t.Errorf("%+v", got)
	}
}

func TestVisible(t *testing.T) {
	all := []gpuState{{GPU: GPU{Index: 0}, id: "GPU-aa1"}, {GPU: GPU{Index: 1}, id: "GPU-ab2"}, {GPU: GPU{Index: 10}, id: "GPU-ac3"}}
	for env, want := range map[string]string{
		"X=1": "0 1 10", "CUDA_VISIBLE_DEVICES=1": "1", "CUDA_VISIBLE_DEVICES=10,0": "0 10", "CUDA_VISIBLE_DEVICES=GPU-ab": "1", "CUDA_VISIBLE_DEVICES=MIG-7": "0 1 10",
		"CUDA_VISIBLE_DEVICES=": "", "CUDA_VISIBLE_DEVICES=-1": "", "CUDA_VISIBLE_DEVICES=1,-1,0": "1", "CUDA_VISIBLE_DEVICES=NoDevFiles": "",
	} {
		allowed, some := visible(func(name string) (string, bool) { return variable([]string{"CUDA_VISIBLE_DEVICES_OLD=7", env}, name) }, "CUDA_VISIBLE_DEVICES")
		var got []string
		for _, s := range all {
			if some && allowed(s) {
				got = append(got, itoa(s.Index))
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: GPUs %v; want %s", env, got, want)
		}
	}
}

func itoa(n int) string { return procFile(n, "")[len("/proc/") : len(procFile(n, ""))-1] }

func TestGPUUse(t *testing.T) {
	g := &gpus{latest: map[int]gpuState{}, sums: map[int]*gpuSum{}}
	at := time.Now()
	for i, busy := range []float64{0, 100, 100, 0, 40} {
		g.take([]gpuState{{GPU: GPU{Index: 2}, now: GPUSample{Index: 2, Utilisation: busy, Memory: int64(10 * i), Power: 50}}}, at.Add(time.Duration(i)*time.Second))
	}
	u := g.uses(&Machine{GPUs: []GPU{{Index: 2}}})
	if len(u) != 1 || u[0].Index != 2 || u[0].Mean < 59 || u[0].Mean > 61 || u[0].P95 != 100 || u[0].Memory != 40 || u[0].Unknown || u[0].GPU != nil || (u[0].Energy != 200.1 && u[0].Energy != 200) {
		t.Errorf("%+v; want 60 %% of the time, 40 bytes, 200 J", u)
	}
	for i := range 2 * maxGPUs {
		g.take([]gpuState{{GPU: GPU{Index: i}}}, at)
	}
	if len(g.list()) > maxGPUs {
		t.Errorf("%d GPUs", len(g.list()))
	}
}

// TestGPUReportsExpire: a tool's report expires if no further one follows.
func TestGPUReportsExpire(t *testing.T) {
	g := &gpus{latest: map[int]gpuState{}, sums: map[int]*gpuSum{}}
	at := time.Now()
	after := func(d time.Duration) int { return len(g.samples(at.Add(d))) }
	g.pace(time.Second)
	g.take([]gpuState{{now: GPUSample{Utilisation: 100, Power: 700}}}, at)
	if after(8*time.Second) != 1 || after(9*time.Second) != 0 {
		t.Error("a report of a tool with an interval of a second is valid for 8 s")
	}
	if g.pace(time.Minute); after(3*time.Minute) != 1 {
		t.Error("a report of a tool with an interval of a minute is valid for 3 min")
	}
	g.take([]gpuState{{now: GPUSample{Utilisation: 100, Power: 700}}}, at.Add(10*time.Hour))
	if u := g.uses(&Machine{}); u[0].Energy > 700*185+1 {
		t.Errorf("%g J; want those of the measured time", u[0].Energy)
	}
	if g.silence(); after(10*time.Hour) != 0 || len(g.list()) != 1 {
		t.Error("after the end of the tool, want no samples, and the descriptions of GPUs")
	}
}

// tool puts a stand-in for a vendor's tool first on PATH.
func tool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	testenv.Check(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestMeasureGPUs: with stand-ins that print the tools' output.
func TestMeasureGPUs(t *testing.T) {
	const line = "0, GPU-a, NVIDIA H200, 143771, 570.1, 35, 1024, 120.50"
	for _, c := range []struct{ name, tool, script, env, gpus string }{
		{"nvidia", "nvidia-smi", "while :; do echo '" + line + "'; echo '" + strings.Replace(line, "0", "1", 1) + "'; sleep 0.1; done", "", "01"},
		{"one of two", "nvidia-smi", "while :; do echo '" + line + "'; echo '" + strings.Replace(line, "0", "1", 1) + "'; sleep 0.1; done", "1", "1"},
		{"no driver", "nvidia-smi", "echo 'NVIDIA-SMI has failed because it could not communicate'; exit 9", "", ""},
		{"hostile", "nvidia-smi", "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo '" + line + "'; exec sleep 100", "", "0"},
		{"one that does not end", "nvidia-smi", "setsid sleep 4 & echo '" + line + "'; echo '" + line + "'; wait", "", "0"},
		{"silent", "nvidia-smi", "exec sleep 100", "", ""},
		{"rocm", "rocm-smi", "cat <<'END'\n" + rocm + "\nEND\n", "", "01"},
		{"rocm that says nothing", "rocm-smi", "echo '[1,2'", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool(t, c.tool, c.script)
			if c.env != "" {
				t.Setenv("CUDA_VISIBLE_DEVICES", c.env)
			}
			r, run := measured(t, "until [ -s run.jsonl ]; do sleep 0.1; done; sleep 0.3") // the header waits for the tool
			got := ""
			for _, g := range r.Header.Machine.GPUs {
				got += itoa(g.Index)
			}
			if uses := r.Footer.GPUs; got != c.gpus || len(uses) != len(c.gpus) || run.RecordErr != nil {
				t.Fatalf("GPUs %q, used %+v; want %q", got, uses, c.gpus)
			}
			if c.gpus != "" && ((r.Footer.GPUs[0].Memory == 0 && c.gpus != "01") || r.Samples[len(r.Samples)-1].GPUs == nil) {
				t.Errorf("used %+v, the last sample %+v", r.Footer.GPUs, r.Samples[len(r.Samples)-1])
			}
		})
	}
}

// TestMeasureLateGPUs: if a tool reports after the header was written, the footer
// has its data, and so do readers of the record.
func TestMeasureLateGPUs(t *testing.T) {
	begun, reported := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "reported")
	tool(t, "nvidia-smi", "until [ -e "+begun+" ]; do sleep 0.1; done; echo '0, GPU-a, NVIDIA H200, 143771, 570.1, [N/A], 1024, 120.50'; : >"+reported+"; exec sleep 100")
	r, run := measured(t, "until [ -s run.jsonl ]; do sleep 0.1; done; : >"+begun+"; until [ -e "+reported+" ]; do sleep 0.1; done; sleep 1")
	if len(run.Footer.GPUs) != 1 || !run.Footer.GPUs[0].Unknown || !r.Footer.GPUs[0].Unknown {
		t.Fatalf("%+v; want one GPU whose utilisation is unknown", run.Footer.GPUs)
	}
	if g := r.Header.Machine.GPUs; len(g) != 1 || g[0] != (GPU{0, "NVIDIA H200", 143771 << 20, "570.1"}) {
		t.Errorf("the record has %+v", g)
	}
}

// TestMeasureWithoutGPUsTool: no samples follow the end of a tool; a single failed call does
// not end the polling.
func TestMeasureWithoutGPUsTool(t *testing.T) {
	t.Run("nvidia", func(t *testing.T) {
		ended := filepath.Join(t.TempDir(), "ended")
		tool(t, "nvidia-smi", "for i in 1 2 3; do echo '0, GPU-a, NVIDIA H200, 143771, 570.1, 100, 1024, 700'; sleep 0.1; done; : >"+ended)
		r, run := measured(t, "for i in $(seq 100); do [ ! -e "+ended+" ] || break; sleep 0.1; done; sleep 1")
		if len(run.Footer.GPUs) != 1 || r.Samples[len(r.Samples)-1].GPUs != nil {
			t.Errorf("used %+v, the last sample %+v", run.Footer.GPUs, r.Samples[len(r.Samples)-1])
		}
	})
	t.Run("rocm", func(t *testing.T) {
		calls := filepath.Join(t.TempDir(), "calls")
		tool(t, "rocm-smi", "echo call >>"+calls+"\nif [ $(wc -l <"+calls+") = 1 ]; then exit 1; fi\ncat <<'END'\n"+rocm+"\nEND\n")
		// On the third call, the output of the second one has been recorded.
		if r, run := measured(t, "for i in $(seq 300); do [ \"$(cat "+calls+" | wc -l)\" -lt 3 ] || break; sleep 0.2; done"); len(run.Footer.GPUs) != 2 || len(r.Header.Machine.GPUs) != 2 {
			t.Errorf("used %+v", run.Footer.GPUs)
		}
	})
}

// TestROCmHangs: processes that the tool started end with it, and are not counted for
// the run.
func TestROCmHangs(t *testing.T) {
	children = newReaper()
	children.adopt()
	file := filepath.Join(t.TempDir(), "pid")
	tool(t, "rocm-smi", "sleep 300 & echo $! >"+file+".new; mv "+file+".new "+file+"; wait")
	program := exec.Command("sleep", "300")
	program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	testenv.Check(t, children.start(program, false))
	tree := newTree(program.Process.Pid, program.Process.Pid, nil)
	ctx, cancel := context.WithCancel(t.Context())
	asked := make(chan bool)
	go func() {
		path, _ := exec.LookPath("rocm-smi")
		(&gpus{}).askROCm(ctx, path)
		close(asked)
	}()
	for n := 0; n < 500; n++ {
		if _, err := os.Stat(file); err == nil {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	<-asked
	pid, err := strconv.Atoi(strings.TrimSpace(string(must(t, file))))
	testenv.Check(t, err)
	left := tree.scan(false)
	for n := 0; n < 500 && syscall.Kill(pid, 0) == nil; n++ {
		time.Sleep(10 * time.Millisecond)
	}
	if left.processes != 1 || syscall.Kill(pid, 0) == nil || tree.usage.MaxRSS != 0 {
		t.Errorf("%d processes, %v, %+v; want the program alone", left.processes, syscall.Kill(pid, 0), tree.usage)
	}
	_ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL)
	_ = program.Wait()
	children.leave(tree)
}

func FuzzGPUTools(f *testing.F) {
	f.Add("0, GPU-a, NVIDIA H200, 143771, 570.1, 35, 1024, 120.50")
	f.Add(rocm)
	f.Fuzz(func(t *testing.T, text string) {
		states := parseROCm([]byte(text))
		if s, ok := parseNvidia(text); ok {
			states = append(states, s)
		}
		g := &gpus{latest: map[int]gpuState{}, sums: map[int]*gpuSum{}}
		g.take(states, time.Now())
		for _, u := range g.uses(&Machine{}) {
			if !(u.Mean >= 0 && u.Mean <= 100 && u.P95 <= 100 && u.Memory >= 0 && u.Energy >= 0) {
				t.Errorf("%q: %+v", text, u)
			}
		}
		for _, d := range g.list() {
			if len(d.Name) > 100 || len(d.Driver) > 100 || d.Memory < 0 {
				t.Errorf("%q: %+v", text, d)
			}
		}
	})
}

// TestProblemIsAskedAtTheEnd: Problem is called when the program has ended. The tools may end
// later, after a time limit that the program kept.
func TestProblemIsAskedAtTheEnd(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	tool(t, "nvidia-smi", "echo $$ >"+pid+"; while :; do echo '0, GPU-a, NVIDIA H200, 143771, 570.1, 7, 1024, 120.50'; sleep 0.1; done")
	measured := false
	problem := func() string {
		b, _ := os.ReadFile(pid)
		n, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		measured = n > 0 && syscall.Kill(n, 0) == nil
		return "time limit"
	}
	run, err := Measure(t.Context(), exec.Command("sh", "-c", "until [ -s "+pid+" ]; do sleep 0.05; done"), Options{File: filepath.Join(t.TempDir(), "r.jsonl"), Problem: problem})
	if err != nil || !measured || run.Footer.Problem != "time limit" {
		t.Errorf("measured %v; %+v, %v", measured, run.Footer, err)
	}
	run, err = Measure(t.Context(), exec.Command("/no/such"), Options{File: filepath.Join(t.TempDir(), "r.jsonl"), Problem: problem})
	if err == nil || run.Footer.Problem != "time limit" {
		t.Errorf("a program that did not start: %+v, %v", run.Footer, err)
	}
}
