#include "textflag.h"

// hpcc_start is the ELF entry point of hpcc. It starts like hpcc_entry (runtime/entry_amd64.s),
// which it continues with when begin declines.
TEXT hpcc_start(SB),NOSPLIT|NOFRAME,$0
	CALL	hpcc_thread(SB)
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
