package fakeroot

import "syscall"

// traceRegs are the registers of a thread that stopped at a system call.
type traceRegs struct{ regs syscall.PtraceRegs }

func (r *traceRegs) read(tid int) error { return syscall.PtraceGetRegs(tid, &r.regs) }

// call returns the call's number and its arguments, syscall(2).
func (r *traceRegs) call() (uint64, [6]uint64) {
	return r.regs.Orig_rax, [6]uint64{r.regs.Rdi, r.regs.Rsi, r.regs.Rdx, r.regs.R10, r.regs.R8, r.regs.R9}
}

// finish makes the kernel skip the call and return result: a value or -errno.
func (r *traceRegs) finish(tid int, result int64) error {
	r.regs.Orig_rax, r.regs.Rax = ^uint64(0), uint64(result)
	return syscall.PtraceSetRegs(tid, &r.regs)
}
