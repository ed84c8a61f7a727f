package fakeroot

import (
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// systemCallRegs is NT_ARM_SYSTEM_CALL, <linux/elf.h>: the register set with the number of
// the system call.
const systemCallRegs = 0x404

// traceRegs are the registers of a thread that stopped at a system call.
type traceRegs struct{ regs syscall.PtraceRegs }

func (r *traceRegs) read(tid int) error { return syscall.PtraceGetRegs(tid, &r.regs) }

// call returns the call's number and its arguments, syscall(2).
func (r *traceRegs) call() (uint64, [6]uint64) { return r.regs.Regs[8], [6]uint64(r.regs.Regs[:6]) }

// finish makes the kernel skip the call and return result: a value or -errno.
func (r *traceRegs) finish(tid int, result int64) error {
	skip := int32(-1)
	v := unix.Iovec{Base: (*byte)(unsafe.Pointer(&skip))}
	v.SetLen(int(unsafe.Sizeof(skip)))
	if err := ptrace(unix.PTRACE_SETREGSET, tid, systemCallRegs, uintptr(unsafe.Pointer(&v))); err != nil {
		return err
	}
	r.regs.Regs[0] = uint64(result)
	return syscall.PtraceSetRegs(tid, &r.regs)
}
