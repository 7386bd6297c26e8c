/* SPDX-License-Identifier: MIT */
/* The text of a mountinfo file as a table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "process/mounts.h"

/* \040 and its kin, in place. */
static void unescape(char *s)
{
	char *to = s;

	for (; *s; s++, to++) {
		if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' &&
		    s[3] >= '0' && s[3] <= '7') {
			*to = (char)((s[1] - '0') << 6 | (s[2] - '0') << 3 | (s[3] - '0'));
			s += 3;
		} else {
			*to = *s;
		}
	}
	*to = 0;
}

static void propagation(struct ckpt_mount *m, const char *word)
{
	unsigned long v;

	m->unbindable |= !strcmp(word, "unbindable");
	if (sscanf(word, "shared:%lu", &v) == 1)
		m->peers = (uint32_t)v;
	if (sscanf(word, "master:%lu", &v) == 1)
		m->master = (uint32_t)v;
}

/* 36 35 98:0 /root /point rw,noatime shared:1 master:2 - ext4 /dev/root rw,errors=continue */
static int parse_line(char *line, struct ckpt_mount *m)
{
	char *field[6], *rest[3], *save = NULL, *word;
	size_t n = 0;

	memset(m, 0, sizeof(*m));
	for (; n < 6; n++)
		if (!(field[n] = strtok_r(n ? NULL : line, " ", &save)))
			return -EPROTO;
	while ((word = strtok_r(NULL, " ", &save)) && strcmp(word, "-") != 0)
		propagation(m, word);
	if (!word || !save)
		return -EPROTO;
	/* a source may be empty: two spaces in a row */
	for (n = 0; n < 3; n++)
		if (!(rest[n] = strsep(&save, " ")))
			return -EPROTO;
	m->id = (uint32_t)strtoul(field[0], NULL, 10);
	m->parent = (uint32_t)strtoul(field[1], NULL, 10);
	if (sscanf(field[2], "%u:%u", &m->major, &m->minor) != 2)
		return -EPROTO;
	unescape(field[3]);
	unescape(field[4]);
	unescape(rest[0]);
	unescape(rest[1]);
	m->root = field[3];
	m->point = field[4];
	m->attr = field[5];
	m->type = rest[0];
	m->source = rest[1];
	m->options = rest[2];
	return 0;
}

int mount_table_parse(struct mount_table *t, char *text)
{
	char *save = NULL;
	size_t cap = 1;

	t->text = text;
	for (const char *p = text; *p; p++)
		cap += *p == '\n';
	t->list = calloc(cap, sizeof(*t->list));
	if (!t->list)
		return -ENOMEM;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		int r = parse_line(line, &t->list[t->pub.n]);

		if (r < 0)
			return r;
		t->pub.n++;
	}
	t->pub.list = t->list;
	return 0;
}
