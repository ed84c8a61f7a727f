#include "textflag.h"

// hpcc_entry: see entry.go and entry_amd64.s. 0(R1) holds argc, 16(R1) argv[1].
// The kernel reports an error by setting bit SO of CR0, with errno in R3.
TEXT hpcc_entry(SB),NOSPLIT|NOFRAME,$0
	XOR	R0, R0
	MOVD	0(R1), R5
	CMP	R5, $2
	BLT	start
	MOVD	16(R1), R6
	MOVWZ	(R6), R5
	MOVD	$0x006e7572, R7		// "run\0"
	CMP	R5, R7
	BEQ	run
	MOVD	$0x6c697562, R7		// "buil"
	CMP	R5, R7
	BNE	start
	MOVHZ	4(R6), R5
	CMP	R5, $0x0064		// "d\0"
	BNE	start
	BR	enter
run:
	MOVD	8(R1), R14		// argv[0]
	MOVD	(R14), R9
	MOVD	·lean+16(SB), R8	// 0: this file holds no other program
	CMP	R8, $0
	BEQ	here
	MOVD	$0x6c75662d63637068, R7	// "hpcc-ful"
	CMP	R9, R7
	BEQ	here
	MOVD	R8, CTR
	BR	(CTR)
here:					// argv[0] may carry a run: carry.go
	MOVD	$0x746e652b63637068, R7	// "hpcc+ent"
	CMP	R9, R7
	BEQ	bound
	MOVD	$0x736e6a2b63637068, R7	// "hpcc+jns"
	CMP	R9, R7
	BEQ	join
	ADD	$24, R1, R8		// argv[2]
next:
	MOVD	(R8), R6
	CMP	R6, $0
	BEQ	bound
	ADD	$8, R8
	MOVWZ	(R6), R5
	MOVD	$0x6f6a2d2d, R7		// "--jo"
	CMP	R5, R7
	BEQ	long
	MOVD	$0x00ffffff, R7
	AND	R7, R5
	CMP	R5, $0x2d2d		// "--\0"
	BEQ	bound
	CMP	R5, $0x6a2d		// "-j\0"
	BEQ	later
	BR	next
long:
	MOVHZ	4(R6), R5
	CMP	R5, $0x6e69		// "in"
	BNE	next
later:
	MOVD	$-1, R3
	MOVD	R3, ·entered(SB)
	BR	start
join:
	MOVBZ	8(R14), R3		// a system call keeps R14
	MOVD	$0x10000000, R4		// CLONE_NEWUSER
	SYSCALL	$350			// setns
	BVS	failed
	MOVBZ	9(R14), R3
	MOVD	$0x00020000, R4		// CLONE_NEWNS
	SYSCALL	$350			// setns
	BVS	failed
	BR	well
bound:
	MOVD	$38, R3			// PR_SET_NO_NEW_PRIVS
	MOVD	$1, R4
	XOR	R5, R5
	XOR	R6, R6
	XOR	R7, R7
	SYSCALL	$171			// prctl
	XOR	R0, R0
enter:
	MOVD	$0x10020000, R3		// CLONE_NEWUSER|CLONE_NEWNS
	SYSCALL	$282			// unshare
	BVS	failed
well:
	XOR	R3, R3
failed:
	XOR	R0, R0
	ADD	$1, R3
	MOVD	R3, ·entered(SB)
start:
	BR	_rt0_ppc64le_linux(SB)
