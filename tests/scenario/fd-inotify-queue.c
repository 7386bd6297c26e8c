/* SPDX-License-Identifier: MIT */
/*
 * Events of an inotify that nobody has read are lost, if that is allowed: the program
 * hears of it from the kernel, as of any other loss, and then of what happens later.
 *
 * test: option=--allow-loss=fd.inotify-queue
 */
#include "victim.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static int in, quiet, file, wd, ep, pipes[2];

/* A pipe that was made again has another inode. */
static bool was_restored(void)
{
	static ino_t was;
	struct stat st = { 0 };
	bool changed;

	CHECK(!fstat(pipes[0], &st), "fstat: %s", strerror(errno));
	changed = was && was != st.st_ino;
	was = st.st_ino;
	return changed;
}

/* The number of events, and what they are in one. */
static int drain(uint32_t *masks)
{
	char buf[8192] __attribute__((aligned(__alignof__(struct inotify_event))));
	int n = 0;

	*masks = 0;
	for (ssize_t len; (len = read(in, buf, sizeof(buf))) > 0;)
		for (ssize_t at = 0; at < len; n++) {
			const struct inotify_event *ev = (const void *)(buf + at);

			CHECK((ev->mask & IN_Q_OVERFLOW ? -1 : wd) == ev->wd, "watch %d", ev->wd);
			*masks |= ev->mask;
			at += (ssize_t)(sizeof(*ev) + ev->len);
		}
	return n;
}

/* Leave one behind for the next dump. */
static void touch(void)
{
	CHECK(pwrite(file, "x", 1, 0) == 1, "pwrite: %s", strerror(errno));
}

static void check(void)
{
	const bool restored = was_restored();
	struct epoll_event ev;
	char c;
	uint32_t masks;
	int n;

	CHECK(epoll_wait(ep, &ev, 1, 0) == 1, "nothing waits");
	n = drain(&masks);
	if (restored)
		CHECK(n == 1 && masks == IN_Q_OVERFLOW, "%d events, %#x", n, masks);
	else
		CHECK(n == 1 && masks == IN_MODIFY, "%d events, %#x", n, masks);
	CHECK(read(quiet, &c, 1) == -1 && errno == EAGAIN, "an event where there was none");
	touch();
	n = drain(&masks);
	CHECK(n == 1 && masks == IN_MODIFY, "then %d events, %#x", n, masks);
	touch();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	file = MUST(open(victim_path("file"), O_RDWR | O_CREAT, 0644));
	in = MUST(inotify_init1(IN_NONBLOCK));
	quiet = MUST(inotify_init1(IN_NONBLOCK));
	MUST(pipe(pipes));
	wd = MUST(inotify_add_watch(in, victim_path("file"), IN_MODIFY));
	MUST(inotify_add_watch(quiet, victim_path("file"), IN_DELETE_SELF));
	ep = MUST(epoll_create1(0));
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, in, &(struct epoll_event){ .events = EPOLLIN }));
	touch();
	victim_ready();
	victim_serve(check);
}
