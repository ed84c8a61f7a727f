#include "textflag.h"

// hpcc_entry: see entry.go and entry_amd64.s. 0(RSP) holds argc, 16(RSP) argv[1].
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	MOVD	0(RSP), R9
	CMP	$2, R9
	BLT	start
	MOVD	16(RSP), R10
	MOVWU	(R10), R9
	MOVD	$0x006e7572, R11	// "run\0"
	CMP	R11, R9
	BEQ	run
	MOVD	$0x6c697562, R11	// "buil"
	CMP	R11, R9
	BNE	start
	MOVHU	4(R10), R9
	CMP	$0x0064, R9		// "d\0"
	BNE	start
	B	enter
run:
	MOVD	8(RSP), R10		// argv[0]
	MOVD	(R10), R13
	MOVD	·lean+16(SB), R11	// 0: this file holds no other program
	CBZ	R11, here
	MOVD	$0x6c75662d63637068, R12	// "hpcc-ful"
	CMP	R12, R13
	BEQ	here
	B	(R11)
here:					// argv[0] may carry a run: carry.go
	MOVD	$0x746e652b63637068, R11	// "hpcc+ent"
	CMP	R11, R13
	BEQ	bound
	MOVD	$0x736e6a2b63637068, R11	// "hpcc+jns"
	CMP	R11, R13
	BEQ	join
	MOVD	RSP, R12
	ADD	$24, R12		// argv[2]
next:
	MOVD	(R12), R10
	CBZ	R10, bound
	ADD	$8, R12
	MOVWU	(R10), R9
	MOVD	$0x6f6a2d2d, R11	// "--jo"
	CMP	R11, R9
	BEQ	long
	AND	$0x00ffffff, R9
	MOVD	$0x00002d2d, R11	// "--\0"
	CMP	R11, R9
	BEQ	bound
	MOVD	$0x00006a2d, R11	// "-j\0"
	CMP	R11, R9
	BEQ	later
	B	next
long:
	MOVHU	4(R10), R9
	MOVD	$0x6e69, R11		// "in"
	CMP	R11, R9
	BNE	next
later:
	MOVD	$-1, R0
	MOVD	R0, ·entered(SB)
	B	start
join:
	MOVBU	8(R10), R0
	MOVD	$0x10000000, R1		// CLONE_NEWUSER
	MOVD	$268, R8		// setns
	SVC
	CBNZ	R0, done
	MOVBU	9(R10), R0
	MOVD	$0x00020000, R1		// CLONE_NEWNS
	MOVD	$268, R8		// setns
	SVC
	B	done
bound:
	MOVD	$38, R0			// PR_SET_NO_NEW_PRIVS
	MOVD	$1, R1
	MOVD	$0, R2
	MOVD	$0, R3
	MOVD	$0, R4
	MOVD	$167, R8		// prctl
	SVC
enter:
	MOVD	$0x10020000, R0		// CLONE_NEWUSER|CLONE_NEWNS
	MOVD	$97, R8			// unshare
	SVC
done:
	NEG	R0, R0			// errno, 0 when it went well
	ADD	$1, R0
	MOVD	R0, ·entered(SB)
start:
	JMP	_rt0_arm64_linux(SB)
