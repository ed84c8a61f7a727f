#include "textflag.h"

// hpcc_entry is the ELF entry point of the linked binary. At this moment the
// process is as the kernel made it: 0(SP) holds argc, then come argv and the
// rest. What is to be done is written in Go (entry.go).
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
	MOVQ	SP, AX
	SUBQ	$16, SP
	MOVQ	AX, 0(SP)
	CALL	·begin(SB)
	ADDQ	$16, SP
	JMP	_rt0_amd64_linux(SB)

// hpcc_thread lets compiled Go code run on this thread: that looks for its
// goroutine 8 bytes below FS.
TEXT hpcc_thread(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·goroutine(SB), AX
	MOVQ	AX, ·thread(SB)
	LEAQ	8(SP), AX		// above the return address
	MOVQ	AX, ·kernelStack(SB)
	MOVQ	·onRuntimeWrite(SB), AX
	MOVQ	AX, runtime·overrideWrite(SB)
	LEAQ	·thread+8(SB), SI
	MOVQ	$0x1002, DI		// ARCH_SET_FS
	MOVQ	$158, AX		// arch_prctl
	SYSCALL
	RET
