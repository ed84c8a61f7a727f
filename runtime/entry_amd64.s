#include "textflag.h"

// hpcc_entry is the ELF entry point of the linked binary (see entry.go).
// At this moment the process is as the kernel made it: 0(SP) holds argc,
// 8(SP) argv[0], 16(SP) argv[1]. Only registers that Go's own entry point
// does not read are used.
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	CMPQ	0(SP), $2
	JLT	start
	MOVQ	16(SP), SI
	MOVL	(SI), AX
	CMPL	AX, $0x006e7572		// "run\0"
	JEQ	enter
	CMPL	AX, $0x6c697562		// "buil"
	JNE	start
	MOVW	4(SI), AX
	CMPW	AX, $0x0064		// "d\0"
	JNE	start
enter:
	MOVQ	$0x10020000, DI		// CLONE_NEWUSER|CLONE_NEWNS
	MOVQ	$272, AX		// unshare
	SYSCALL
	NEGQ	AX			// errno, 0 when it went well
	INCQ	AX
	MOVQ	AX, ·entered(SB)
start:
	JMP	_rt0_amd64_linux(SB)
