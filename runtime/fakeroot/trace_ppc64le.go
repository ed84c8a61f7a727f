package fakeroot

import "syscall"

// traceRegs are the registers of a thread that stopped at a system call.
type traceRegs struct{ regs syscall.PtraceRegs }

func (r *traceRegs) read(tid int) error { return syscall.PtraceGetRegs(tid, &r.regs) }

// call returns the call's number and its arguments, syscall(2). At a seccomp stop the third
// register holds the result, so the first argument comes from a separate register.
func (r *traceRegs) call() (uint64, [6]uint64) {
	g := &r.regs.Gpr
	return g[0], [6]uint64{r.regs.Orig_gpr3, g[4], g[5], g[6], g[7], g[8]}
}

// summaryOverflow is the bit of the condition register that marks a result as an errno after
// the instruction sc. After scv an error is a negative result.
const (
	summaryOverflow = 0x10000000
	trapOfScv       = 0x3000
)

// finish makes the kernel skip the call and return result: a value or -errno.
func (r *traceRegs) finish(tid int, result int64) error {
	r.regs.Gpr[0] = ^uint64(0)
	if r.regs.Trap&0xfff0 != trapOfScv {
		r.regs.Ccr &^= summaryOverflow
		if result < 0 {
			r.regs.Ccr |= summaryOverflow
			result = -result
		}
	}
	r.regs.Gpr[3] = uint64(result)
	return syscall.PtraceSetRegs(tid, &r.regs)
}
