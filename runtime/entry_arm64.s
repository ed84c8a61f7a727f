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
	MOVD	·lean+16(SB), R11	// 0: this file holds no other program
	CBZ	R11, bound
	MOVD	8(RSP), R10
	MOVD	(R10), R9
	MOVD	$0x6c75662d63637068, R10	// "hpcc-ful"
	CMP	R10, R9
	BEQ	bound
	B	(R11)
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
	NEG	R0, R0			// errno, 0 when it went well
	ADD	$1, R0
	MOVD	R0, ·entered(SB)
start:
	JMP	_rt0_arm64_linux(SB)
