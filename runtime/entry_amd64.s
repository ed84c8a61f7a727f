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
	JEQ	run
	CMPL	AX, $0x6c697562		// "buil"
	JNE	start
	MOVW	4(SI), AX
	CMPW	AX, $0x0064		// "d\0"
	JNE	start
	JMP	enter
run:
	MOVQ	·lean+16(SB), AX	// 0: this file holds no other program
	TESTQ	AX, AX
	JEQ	bound
	MOVQ	8(SP), SI
	MOVQ	$0x6c75662d63637068, CX	// "hpcc-ful"
	CMPQ	CX, (SI)
	JEQ	bound
	JMP	AX
bound:
	MOVQ	$38, DI			// PR_SET_NO_NEW_PRIVS
	MOVQ	$1, SI
	XORQ	DX, DX
	XORQ	R10, R10
	XORQ	R8, R8
	MOVQ	$157, AX		// prctl
	SYSCALL
enter:
	MOVQ	$0x10020000, DI		// CLONE_NEWUSER|CLONE_NEWNS
	MOVQ	$272, AX		// unshare
	SYSCALL
	NEGQ	AX			// errno, 0 when it went well
	INCQ	AX
	MOVQ	AX, ·entered(SB)
start:
	JMP	_rt0_amd64_linux(SB)
