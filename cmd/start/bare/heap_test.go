package bare

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// allowed matches functions of Go that need neither heap nor goroutine. Functions that panic or
// grow the stack are allowed because they are never reached; they would end the process.
var allowed = regexp.MustCompile(`^(runtime\.(memmove|memequal|cmpstring|memclrNoHeapPointers|duffzero|duffcopy|panic(Index|Slice|Bounds|shift|divide|unsafe).*|morestack.*|gcWriteBarrier.*|wbZero|wbMove)|internal/bytealg\..*|internal/runtime/syscall(/linux)?\.Syscall6|syscall\.RawSyscall6)(\.abi0|<1>)?$`)

// TestNothingNeedsTheRuntime checks in the machine code that begin reaches no function that needs
// the Go runtime.
func TestNothingNeedsTheRuntime(t *testing.T) {
	testenv.Slow(t)
	for _, arch := range []string{"amd64", "arm64", "ppc64le"} {
		t.Run(arch, func(t *testing.T) { needsNothing(t, arch) })
	}
}

func needsNothing(t *testing.T, arch string) {
	program := filepath.Join(t.TempDir(), "start")
	build := exec.Command("go", "build", "-tags", "start", "-trimpath", "-ldflags", "-E hpcc_start", "-o", program, "testdata/main.go")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out, err := exec.Command("go", "list", "-m").Output()
	testenv.Check(t, err)
	module := strings.TrimSpace(string(out))
	code, err := exec.Command("go", "tool", "objdump", "-s", `^(`+regexp.QuoteMeta(module)+`/|unicode/utf8\.|syscall\.|internal/)`, program).Output()
	testenv.Check(t, err)
	calls := map[string][]string{}
	var in string
	for line := range strings.Lines(string(code)) {
		if name, ok := strings.CutPrefix(line, "TEXT "); ok {
			in, _, _ = strings.Cut(name, "(SB)")
			calls[in] = nil
			continue
		}
		f := strings.Fields(line)
		for i, word := range f {
			if to, ok := strings.CutSuffix(f[len(f)-1], "(SB)"); word == "CALL" || (word == "JMP" && ok && to != in) {
				if !ok {
					to = "the address in " + f[i+1]
				}
				calls[in] = append(calls[in], to)
			}
		}
	}
	// hpcc_start calls the first function, and hpcc_entry the second.
	todo := []string{module + "/cmd/start/bare.begin", module + "/runtime.begin"}
	from := map[string]string{}
	for _, begin := range todo {
		if len(calls[begin]) == 0 {
			t.Fatalf("%s calls nothing: cannot parse the disassembly", begin)
		}
		from[begin] = ""
	}
	for ; len(todo) > 0; todo = todo[1:] {
		for _, to := range calls[todo[0]] {
			if _, seen := from[to]; seen || allowed.MatchString(to) {
				continue
			}
			from[to] = todo[0]
			if _, known := calls[to]; !known || strings.HasPrefix(to, "runtime.") {
				path := to
				for at := todo[0]; at != ""; at = from[at] {
					path = at + " > " + path
				}
				t.Errorf("%s: needs the Go runtime, which has not started", path)
				continue
			}
			todo = append(todo, to)
		}
	}
	if len(from) < 20 {
		t.Errorf("begin reaches only %d functions; want at least 20", len(from))
	}
}
