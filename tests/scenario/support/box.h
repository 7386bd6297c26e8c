/* SPDX-License-Identifier: MIT
 *
 * Boxes: processes in namespaces of their own, nested as a text says, each with state of every kind
 * of namespace that it has, and a judgement of it. See boxes.c.
 */
#ifndef BOX_H
#define BOX_H

#include <stdbool.h>
#include <stddef.h>

enum box_kind {
	BOX_USER,
	BOX_PID,
	BOX_MNT,
	BOX_IPC,
	BOX_NET,
	BOX_UTS,
	BOX_CGROUP,
	BOX_TIME,
	BOX_FILTER,
	BOX_KINDS
};

enum { BOX_MAX = 16, BOX_ANSWER = 512, BOX_SHARED = 3 };

struct box {
	int number;	  /* its place in the text; those below it come right after it */
	int size;	  /* boxes with it and below it */
	int parent;	  /* -1: the root */
	int users;	  /* user namespaces from the root down to it */
	unsigned kinds;	  /* bits by enum box_kind */
	char label, join; /* 0: none */
};

extern struct box boxes[BOX_MAX];
extern int n_boxes;
extern int box_request[BOX_MAX][2], box_reply[BOX_MAX][2];

static inline bool box_has(const struct box *box, enum box_kind kind)
{
	return box->kinds & 1U << kind;
}

/* Reads "user+pid{user+ipc:a,user@a}": boxes in boxes; :a gives away its ipc, net and uts
 * namespace, @a moves in there. "all" is every kind of namespace, "filter" a seccomp filter. */
void box_parse(const char *text);

/* Makes a box and all below it; returns in the one that makes. */
void box_make(const struct box *box);

/* The state of a box, and what is wrong with it: victim_fail(). */
void box_build(const struct box *box);
void box_judge(void);

/* Tells the root (in `answer`), "" for well. */
void box_answer(int number, const char *text);

/* As MUST(), inside of a box: the root learns what went wrong. */
#define NEED(call) box_need((long)(call), #call, __FILE__, __LINE__)
int box_need(long value, const char *call, const char *file, int line);

#endif
