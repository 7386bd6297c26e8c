/* SPDX-License-Identifier: MIT
 *
 * test: only=boxes
 *
 * Containers in containers: `boxes DIR SPEC` with a SPEC as tests/stages/boxes.py has many. Each
 * box is a process in namespaces of its own (and the process that made them, if a process cannot
 * enter them itself), with a thread, zombies, and state of each kind of namespace. When asked, each
 * judges itself.
 */
#include "victim.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "support/box.h"

static void receive(int number, char *text, int seconds)
{
	struct pollfd ready = { .fd = box_reply[number][0], .events = POLLIN };

	if (poll(&ready, 1, seconds * 1000) != 1 ||
	    read(box_reply[number][0], text, BOX_ANSWER) != BOX_ANSWER)
		snprintf(text, BOX_ANSWER, "no answer");
}

static void check(void)
{
	for (int i = 0; i < n_boxes; i++) {
		char text[BOX_ANSWER];

		if (write(box_request[i][1], "?", 1) != 1)
			victim_fail("box %d cannot be asked: %s", i, strerror(errno));
		receive(i, text, 30);
		CHECK(!text[0], "box %d: %s", i, text);
	}
}

/* The innermost failure is the cause of the others. */
static void wait_for_all(void)
{
	char text[BOX_ANSWER];

	for (int i = 0; i < n_boxes; i++) {
		receive(i, text, 30);
		if (!text[0])
			continue;
		for (int other = n_boxes - 1; other > i; other--) {
			char inner[BOX_ANSWER];

			receive(other, inner, 0);
			if (inner[0] && strcmp(inner, "no answer"))
				victim_die("box %d: %s", other, inner);
		}
		victim_die("box %d: %s", i, text);
	}
}

int main(int argc, char **argv)
{
	char *text;

	victim_init(argc, argv);
	text = victim_read(victim_path("spec"));
	if (!text)
		victim_die("no %s", victim_path("spec"));
	text[strcspn(text, "\n")] = 0;
	box_parse(text);
	free(text);
	for (int i = 0; i < n_boxes; i++) {
		MUST(pipe(box_request[i]));
		MUST(pipe(box_reply[i]));
	}
	/* whose makers have gone */
	MUST(prctl(PR_SET_CHILD_SUBREAPER, 1));
	for (int i = 0; i < n_boxes; i += boxes[i].size)
		box_make(&boxes[i]);
	wait_for_all();
	victim_settle();
	victim_ready();
	victim_serve(check);
}
