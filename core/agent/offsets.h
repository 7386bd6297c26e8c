/* SPDX-License-Identifier: MIT */
/* Offsets that assembler needs; agent.c asserts that they are right. */
#ifndef CKPT_AGENT_OFFSETS_H
#define CKPT_AGENT_OFFSETS_H

#define SEAT_STACK_TOP 2240

#endif
