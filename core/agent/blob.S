/* SPDX-License-Identifier: MIT */
/* The agent and the stub as bytes of libckpt. */
	.section .rodata
	.globl agent_blob, agent_blob_end, stub_elf, stub_elf_end
	.balign 16
agent_blob:
	.incbin AGENT_BIN
agent_blob_end:
	.balign 16
stub_elf:
	.incbin STUB_ELF
stub_elf_end:
	.section .note.GNU-stack, "", @progbits
