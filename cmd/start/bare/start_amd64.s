#include "textflag.h"

// hpcc_start is the ELF entry point of cmd/start. 0(SP) holds argc, as for
// hpcc_entry (package runtime), which has the turn when begin declines.
TEXT hpcc_start(SB),NOSPLIT|NOFRAME,$0
	LEAQ	·goroutine(SB), AX
	MOVQ	AX, ·thread(SB)
	LEAQ	·thread+8(SB), SI	// compiled code finds its goroutine 8 bytes below FS
	MOVQ	$0x1002, DI		// ARCH_SET_FS
	MOVQ	$158, AX		// arch_prctl
	SYSCALL
	MOVQ	SP, AX
	SUBQ	$16, SP
	MOVQ	AX, 0(SP)
	CALL	·begin(SB)
	MOVQ	8(SP), AX
	ADDQ	$16, SP
	TESTQ	AX, AX
	JNE	left
	JMP	hpcc_entry(SB)
left:
	MOVQ	AX, hpcc∕runtime·entered(SB)
	JMP	_rt0_amd64_linux(SB)
