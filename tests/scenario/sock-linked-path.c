/* SPDX-License-Identifier: MIT */
/*
 * In a mount namespace of its own, a socket bound by a path with a symbolic link in it, as
 * /var/run is one to /run. The file is found again, and the socket says what it was bound to.
 */
#include "victim.h"

#include <sched.h>
#include <stdio.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static int listener;

static struct sockaddr_un address_of(const char *name)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	snprintf(a.sun_path, sizeof(a.sun_path), "%s", victim_path(name));
	return a;
}

static void check_client(const char *name)
{
	const struct sockaddr_un a = address_of(name);
	const int fd = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	char c = 0;

	if (connect(fd, (const struct sockaddr *)&a, sizeof(a))) {
		victim_fail("%s: connect: %s", name, strerror(errno));
	} else {
		const int server = MUST(accept(listener, NULL, NULL));

		CHECK(send(fd, "x", 1, 0) == 1 && recv(server, &c, 1, 0) == 1 && c == 'x',
		      "%s: '%c'", name, c);
		close(server);
	}
	close(fd);
}

static void check(void)
{
	const struct sockaddr_un want = address_of("var-run/socket");
	struct sockaddr_un a = { 0 };
	socklen_t len = sizeof(a);

	CHECK(!getsockname(listener, (struct sockaddr *)&a, &len) &&
		      !strcmp(a.sun_path, want.sun_path),
	      "it is bound to %s", a.sun_path);
	check_client("var-run/socket");
	check_client("run/socket");
}

int main(int argc, char **argv)
{
	struct sockaddr_un a;

	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNS));
	MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mkdir(victim_path("run"), 0755));
	MUST(mount("tmpfs", victim_path("run"), "tmpfs", 0, "mode=755"));
	MUST(symlink("run", victim_path("var-run")));
	a = address_of("var-run/socket");
	listener = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	MUST(listen(listener, 5));
	victim_ready();
	victim_serve(check);
}
