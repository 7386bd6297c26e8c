/* SPDX-License-Identifier: MIT */
#include "victim.h"

#include <stdio.h>

#include "box.h"

static const struct {
	const char *name;
	unsigned kinds;
} words[] = {
	{ "user", 1U << BOX_USER },
	{ "pid", 1U << BOX_PID },
	{ "mnt", 1U << BOX_MNT },
	{ "ipc", 1U << BOX_IPC },
	{ "net", 1U << BOX_NET },
	{ "uts", 1U << BOX_UTS },
	{ "cgroup", 1U << BOX_CGROUP },
	{ "time", 1U << BOX_TIME },
	{ "filter", 1U << BOX_FILTER },
	{ "all", (1U << BOX_FILTER) - 1 },
	{ "plain", 0 },
};

struct box boxes[BOX_MAX];
int n_boxes;
int box_request[BOX_MAX][2], box_reply[BOX_MAX][2];

static unsigned kinds_of(const char *word, size_t length)
{
	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
		if (strlen(words[i].name) == length && !strncmp(words[i].name, word, length))
			return words[i].kinds;
	victim_die("no kind of namespace: %.*s", (int)length, word);
}

static const char *parse_kinds(const char *at, struct box *box)
{
	for (;; at++) {
		size_t length = strspn(at, "abcdefghijklmnopqrstuvwxyz");

		box->kinds |= kinds_of(at, length);
		at += length;
		if (*at == ':')
			box->label = at[1];
		if (*at == '@')
			box->join = at[1];
		if (*at == ':' || *at == '@')
			at += 2;
		if (*at != '+')
			return at;
	}
}

static const char *parse_list(const char *at, int parent, int users)
{
	for (;; at++) {
		struct box *box = &boxes[n_boxes];

		if (n_boxes == BOX_MAX)
			victim_die("more than %d boxes", BOX_MAX);
		*box = (struct box){ .number = n_boxes++, .parent = parent };
		at = parse_kinds(at, box);
		box->users = users + box_has(box, BOX_USER);
		if (*at == '{') {
			at = parse_list(at + 1, box->number, box->users);
			if (*at++ != '}')
				victim_die("no } at %s", at - 1);
		}
		box->size = n_boxes - box->number;
		if (*at != ',')
			return at;
	}
}

void box_parse(const char *text)
{
	const char *end = parse_list(text, -1, 0);

	if (*end)
		victim_die("%s: not understood from %s on", text, end);
}
