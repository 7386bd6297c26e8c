/* SPDX-License-Identifier: MIT
 *
 * test: only=refuse
 *
 * From its first check on, an event of its inotify waits; each further check reads one.
 */
#include "victim.h"

#include <fcntl.h>
#include <sys/inotify.h>
#include <unistd.h>

static int watcher, file;

static void check(void)
{
	static bool waits;
	struct inotify_event event;
	CHECK(!waits || read(watcher, &event, sizeof(event)) == sizeof(event), "no event: %s",
	      strerror(errno));
	CHECK(waits || pwrite(file, "x", 1, 0) == 1, "pwrite: %s", strerror(errno));
	waits = !waits;
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0644));
	watcher = MUST(inotify_init1(IN_NONBLOCK));
	MUST(inotify_add_watch(watcher, victim_path("file"), IN_MODIFY));
	victim_ready();
	victim_serve(check);
}
