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
	MOVQ	8(SP), SI		// argv[0]
	MOVQ	(SI), AX
	MOVQ	·lean+16(SB), DX	// 0: this file holds no other program
	TESTQ	DX, DX
	JEQ	here
	MOVQ	$0x6c75662d63637068, BX	// "hpcc-ful"
	CMPQ	AX, BX
	JEQ	here
	JMP	DX
here:					// argv[0] may carry a run: carry.go
	MOVQ	$0x746e652b63637068, BX	// "hpcc+ent"
	CMPQ	AX, BX
	JEQ	bound
	MOVQ	$0x736e6a2b63637068, BX	// "hpcc+jns"
	CMPQ	AX, BX
	JEQ	join
	LEAQ	24(SP), BX		// argv[2]
next:
	MOVQ	(BX), SI
	TESTQ	SI, SI
	JEQ	bound
	ADDQ	$8, BX
	MOVL	(SI), CX
	CMPL	CX, $0x6f6a2d2d		// "--jo"
	JEQ	long
	ANDL	$0x00ffffff, CX
	CMPL	CX, $0x00002d2d		// "--\0"
	JEQ	bound
	CMPL	CX, $0x00006a2d		// "-j\0"
	JEQ	later
	JMP	next
long:
	MOVW	4(SI), CX
	CMPW	CX, $0x6e69		// "in"
	JNE	next
later:
	MOVQ	$-1, ·entered(SB)
	JMP	start
join:
	MOVQ	SI, BX
	MOVBLZX	8(BX), DI
	MOVQ	$0x10000000, SI		// CLONE_NEWUSER
	MOVQ	$308, AX		// setns
	SYSCALL
	TESTQ	AX, AX
	JNE	done
	MOVBLZX	9(BX), DI
	MOVQ	$0x00020000, SI		// CLONE_NEWNS
	MOVQ	$308, AX		// setns
	SYSCALL
	JMP	done
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
done:
	NEGQ	AX			// errno, 0 when it went well
	INCQ	AX
	MOVQ	AX, ·entered(SB)
start:
	JMP	_rt0_amd64_linux(SB)
