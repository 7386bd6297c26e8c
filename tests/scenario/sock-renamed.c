/* SPDX-License-Identifier: MIT */
/*
 * Sockets whose files are elsewhere than where they were bound: renamed in place of the one before,
 * as haproxy does it so that there is always one, moved to another directory, or linked there. The
 * file is found where it was, and the socket still says where it was bound.
 */
#include "victim.h"

#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static struct item {
	const char *bound, *now;
	int type;
	bool linked, relative;
	int fd, client, server;
} items[] = {
	{ .bound = "control.7.tmp", .now = "control", .type = SOCK_STREAM },
	{ .bound = "again.tmp", .now = "again", .type = SOCK_SEQPACKET },
	{ .bound = "again.tmp", .now = "again.2", .type = SOCK_STREAM },
	{ .bound = "log.tmp", .now = "below/log", .type = SOCK_DGRAM },
	{ .bound = "linked.tmp", .now = "linked", .type = SOCK_STREAM, .linked = true },
	{ .bound = "begun", .now = "below/moved", .type = SOCK_STREAM, .relative = true },
};
enum { N = sizeof(items) / sizeof(items[0]) };

static void address_of(const char *path, struct sockaddr_un *a)
{
	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	snprintf(a->sun_path, sizeof(a->sun_path), "%s", path);
}

static void build(struct item *i)
{
	char *bound = victim_path(i->bound), *now = victim_path(i->now);
	struct sockaddr_un a;

	address_of(i->relative ? i->bound : bound, &a);
	i->fd = MUST(socket(AF_UNIX, i->type, 0));
	MUST(bind(i->fd, (struct sockaddr *)&a, sizeof(a)));
	MUST(chmod(bound, 0640));
	if (i->linked) {
		MUST(link(bound, now));
		MUST(unlink(bound));
	} else {
		MUST(rename(bound, now));
	}
	if (i->type != SOCK_DGRAM) {
		MUST(listen(i->fd, 5));
		address_of(now, &a);
		i->client = MUST(socket(AF_UNIX, i->type, 0));
		MUST(connect(i->client, (struct sockaddr *)&a, sizeof(a)));
		i->server = MUST(accept(i->fd, NULL, NULL));
	}
	free(bound);
	free(now);
}

static void check_files(const struct item *i)
{
	char *bound = victim_path(i->bound), *now = victim_path(i->now);
	struct sockaddr_un a = { 0 };
	socklen_t len = sizeof(a);
	struct stat st;

	CHECK(!getsockname(i->fd, (struct sockaddr *)&a, &len), "getsockname: %s", strerror(errno));
	CHECK(!strcmp(a.sun_path, i->relative ? i->bound : bound), "%s is bound to %s", i->now,
	      a.sun_path);
	CHECK(access(bound, F_OK) && errno == ENOENT, "%s is there", bound);
	CHECK(!lstat(now, &st) && S_ISSOCK(st.st_mode) && (st.st_mode & 07777) == 0640, "%s: %o",
	      i->now, st.st_mode);
	free(bound);
	free(now);
}

/* Somebody who knows no more than the path. */
static void check_new_client(const struct item *i)
{
	const int fd = MUST(socket(AF_UNIX, i->type, 0));
	int server = i->fd;
	struct sockaddr_un a;
	char c = 0;

	address_of(victim_path(i->now), &a);
	if (connect(fd, (struct sockaddr *)&a, sizeof(a)))
		victim_fail("%s: connect: %s", i->now, strerror(errno));
	else if (send(fd, "x", 1, 0) == 1) {
		struct pollfd p = { .fd = i->fd, .events = POLLIN };

		CHECK(poll(&p, 1, 10000) == 1, "%s: nobody comes", i->now);
		if (i->type != SOCK_DGRAM)
			server = MUST(accept(i->fd, NULL, NULL));
		CHECK(recv(server, &c, 1, 0) == 1 && c == 'x', "%s: '%c'", i->now, c);
		if (server != i->fd)
			close(server);
	}
	close(fd);
}

static void check(void)
{
	for (size_t k = 0; k < N; k++) {
		const struct item *i = &items[k];
		char c = 0;

		check_files(i);
		check_new_client(i);
		if (i->type == SOCK_DGRAM)
			continue;
		CHECK(send(i->client, "y", 1, 0) == 1 && recv(i->server, &c, 1, 0) == 1 && c == 'y',
		      "%s: its connection: '%c'", i->now, c);
	}
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(mkdir(victim_path("below"), 0755));
	MUST(chdir(victim_path(".")));
	for (size_t k = 0; k < N; k++)
		build(&items[k]);
	victim_ready();
	victim_serve(check);
}
