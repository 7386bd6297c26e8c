/* SPDX-License-Identifier: MIT */
/* inotify: watches of directories, files and links, with gaps between their numbers. */
#include "victim.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

static int in, quiet, ep;
static int wd_dir, wd_file, wd_link, wd_once;
static char *dir, *file, *link_path;

static char *below(const char *name)
{
	char *path = NULL;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		victim_die("no memory");
	return path;
}

static void build(void)
{
	dir = victim_path("a directory");
	MUST(mkdir(dir, 0700));
	file = victim_path("watched");
	close(MUST(open(file, O_WRONLY | O_CREAT, 0600)));
	link_path = victim_path("link");
	MUST(symlink(file, link_path));
	in = MUST(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
	for (int i = 0; i < 10000; i++)
		MUST(inotify_rm_watch(in, MUST(inotify_add_watch(in, "/", IN_DELETE_SELF))));
	wd_dir = MUST(inotify_add_watch(in, dir, IN_CREATE | IN_DELETE | IN_EXCL_UNLINK));
	MUST(inotify_rm_watch(in, MUST(inotify_add_watch(in, "/", IN_DELETE_SELF))));
	wd_file = MUST(inotify_add_watch(in, file, IN_MODIFY));
	wd_link = MUST(inotify_add_watch(in, link_path, IN_DELETE_SELF | IN_DONT_FOLLOW));
	wd_once = MUST(inotify_add_watch(in, "/etc", IN_DELETE_SELF | IN_ONESHOT));
	quiet = MUST(inotify_init1(0));
	ep = MUST(epoll_create1(0));
	MUST(epoll_ctl(ep, EPOLL_CTL_ADD, in, &(struct epoll_event){ .events = EPOLLIN }));
	for (char buf[8192]; read(in, buf, sizeof(buf)) > 0;)
		;
}

/* The next event, which must be this one. */
static void expect(int wd, uint32_t mask, const char *name)
{
	union {
		struct inotify_event ev;
		char room[sizeof(struct inotify_event) + 256];
	} u;
	ssize_t n;

	/* an event at a time: as much room as this one needs */
	n = read(in, &u, sizeof(u.ev) + (*name ? 16 : 0));
	CHECK(n > 0 && u.ev.wd == wd && u.ev.mask == mask && (!*name || !strcmp(u.ev.name, name)),
	      "%zd bytes, watch %d, mask %#x; not watch %d, mask %#x, %s", n, u.ev.wd, u.ev.mask,
	      wd, mask, name);
}

static void check(void)
{
	struct epoll_event ev;
	char c = 'x';
	int fd;

	CHECK(epoll_wait(ep, &ev, 1, 0) == 0, "events wait before there are any");
	CHECK(read(in, &c, 1) == -1 && errno == EAGAIN, "reading without events: %s",
	      strerror(errno));
	fd = open(below("new"), O_WRONLY | O_CREAT, 0600);
	close(fd);
	CHECK(epoll_wait(ep, &ev, 1, 0) == 1, "the epoll does not hear of it");
	expect(wd_dir, IN_CREATE, "new");
	unlink(below("new"));
	expect(wd_dir, IN_DELETE, "new");
	fd = open(file, O_WRONLY | O_APPEND);
	CHECK(write(fd, &c, 1) == 1, "write: %s", strerror(errno));
	close(fd);
	expect(wd_file, IN_MODIFY, "");
	CHECK(inotify_add_watch(in, link_path, IN_DELETE_SELF | IN_DONT_FOLLOW) == wd_link,
	      "the link has another watch");
	CHECK(inotify_add_watch(in, "/etc", IN_DELETE_SELF | IN_ONESHOT) == wd_once,
	      "/etc has another watch");
	CHECK(inotify_rm_watch(in, wd_once + 1) == -1 && errno == EINVAL,
	      "there is one more watch");
	CHECK(read(in, &c, 1) == -1 && errno == EAGAIN, "there are more events");
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	build();
	victim_ready();
	victim_serve(check);
}
