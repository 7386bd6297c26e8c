/* SPDX-License-Identifier: MIT */
/*
 * Unix stream and seqpacket sockets connected by a name: through listening sockets that
 * are still there, closed, or removed, between two processes; bound and new ones.
 */
#include "victim.h"

#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static pid_t child;
static int to_child[2];

/* a connection that the child has made to us */
struct link {
	const char *what;
	int type;
	char name[100];			   /* '@': abstract */
	char bound[100];		   /* what the connecting end is bound to, or "" */
	int listener, accepted, connector; /* the connector's number is the child's */
};
enum { ALIVE, ABSTRACT, CLOSED, REMOVED, BOUND, RELATIVE, N_LINKS };
static struct link links[N_LINKS] = {
	[ALIVE] = { .what = "alive", .type = SOCK_STREAM },
	[ABSTRACT] = { .what = "abstract", .type = SOCK_SEQPACKET },
	[CLOSED] = { .what = "closed", .type = SOCK_STREAM },
	[REMOVED] = { .what = "removed", .type = SOCK_SEQPACKET },
	[BOUND] = { .what = "bound", .type = SOCK_STREAM },
	[RELATIVE] = { .what = "relative", .type = SOCK_STREAM },
};

/* the other end is closed: of an accepted and of a connecting end */
static int half_accepted, half_connector;
/* not connected */
static int fresh, bound_path, bound_abstract, bound_removed, bound_relative;

static socklen_t address_of(struct sockaddr_un *a, const char *name)
{
	size_t len = strlen(name);

	memset(a, 0, sizeof(*a));
	a->sun_family = AF_UNIX;
	memcpy(a->sun_path, name, len);
	if (name[0] == '@')
		a->sun_path[0] = '\0';
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static void bind_to(int fd, const char *name)
{
	struct sockaddr_un a;

	MUST(bind(fd, (struct sockaddr *)&a, address_of(&a, name)));
}

static int listen_on(int type, const char *name)
{
	int fd = MUST(socket(AF_UNIX, type, 0));

	bind_to(fd, name);
	MUST(listen(fd, 4));
	return fd;
}

static int connect_to(int type, const char *name, const char *bound)
{
	int fd = MUST(socket(AF_UNIX, type, 0));
	struct sockaddr_un a;

	if (bound[0])
		bind_to(fd, bound);
	MUST(connect(fd, (struct sockaddr *)&a, address_of(&a, name)));
	return fd;
}

static void check_name(int fd, bool peer, const char *want, const char *what)
{
	struct sockaddr_un a = { 0 }, b;
	socklen_t len = sizeof(a), b_len = address_of(&b, want);
	int r = peer ? getpeername(fd, (struct sockaddr *)&a, &len)
		     : getsockname(fd, (struct sockaddr *)&a, &len);

	CHECK(!r, "%s: %s", what, strerror(errno));
	if (want[0] && want[0] != '@')
		b_len++;
	CHECK(len == b_len && !memcmp(&a, &b, len), "%s: %s name %s, not %s", what,
	      peer ? "peer's" : "own", a.sun_path[0] ? a.sun_path : a.sun_path + 1, want);
}

/* of whoever makes the sockets; it has others later */
static const gid_t groups[] = { 1234, 7777, 8888 };
static bool has_groups; /* not every user namespace lets one have some */

static void check_cred(int fd, pid_t pid, const char *what)
{
	struct ucred cred = { 0 };
	socklen_t len = sizeof(cred), groups_len = sizeof(groups);
	gid_t got[16];

	CHECK(!has_groups || (!getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, got, &groups_len) &&
			      groups_len == sizeof(groups) && !memcmp(got, groups, groups_len)),
	      "%s: the peer has other groups", what);

	CHECK(!getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) && cred.pid == pid &&
		      cred.uid == geteuid(),
	      "%s: the peer is %d:%u, not %d", what, cred.pid, cred.uid, pid);
}

static void check_bytes(int fd, const char *want, const char *what)
{
	char buf[64] = "";
	ssize_t n = recv(fd, buf, sizeof(buf), MSG_PEEK | MSG_DONTWAIT);

	CHECK(n == (ssize_t)strlen(want) && !strncmp(buf, want, sizeof(buf)),
	      "%s: the queue has %s (%zd)", what, buf, n);
}

/* ---- the child -------------------------------------------------------------------- */

static void check_in_child(void)
{
	for (int i = 0; i < N_LINKS; i++) {
		check_name(links[i].connector, true, links[i].name, links[i].what);
		check_name(links[i].connector, false, links[i].bound, links[i].what);
		check_cred(links[i].connector, getppid(), links[i].what);
		check_bytes(links[i].connector, "to the child", links[i].what);
	}
}

static void child_main(void)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	close(to_child[0]);
	for (int i = 0; i < N_LINKS; i++)
		close(links[i].listener);
	for (int i = 0; i < N_LINKS; i++) {
		links[i].connector = connect_to(links[i].type, links[i].name, links[i].bound);
		MUST(send(links[i].connector, "to the parent", 13, 0));
	}
	MUST(write(to_child[1], "r", 1));
	for (;;) {
		const char *verdict;
		char c;
		ssize_t n = read(to_child[1], &c, 1);

		if (n < 0 && errno == EINTR)
			continue;
		if (n != 1)
			_exit(0);
		verdict = victim_judge(check_in_child);
		if (write(to_child[1], verdict, strlen(verdict) + 1) < 0)
			_exit(1);
	}
}

/* ---- building ----------------------------------------------------------------------- */

static void build_links(void)
{
	char byte;

	MUST(mkdir(victim_path("sub"), 0755));
	for (int i = 0; i < N_LINKS; i++) {
		struct link *l = &links[i];

		snprintf(l->name, sizeof(l->name), "%s%s/%s", i == ABSTRACT ? "@ckpt" : "",
			 victim_dir(), l->what);
		if (i == BOUND)
			snprintf(l->bound, sizeof(l->bound), "%s/client", victim_dir());
		if (i == RELATIVE) {
			MUST(chdir(victim_dir()));
			snprintf(l->name, sizeof(l->name), "sub/relative");
		}
		l->listener = listen_on(l->type, l->name);
	}
	MUST(chmod(links[ALIVE].name, 0600));
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, to_child));
	child = MUST(fork());
	if (!child)
		child_main();
	close(to_child[1]);
	MUST(read(to_child[0], &byte, 1));
	for (int i = 0; i < N_LINKS; i++) {
		links[i].accepted = MUST(accept(links[i].listener, NULL, NULL));
		MUST(send(links[i].accepted, "to the child", 12, 0));
	}
	close(links[CLOSED].listener);
	close(links[REMOVED].listener);
	MUST(unlink(links[REMOVED].name));
	MUST(chdir("/"));
}

static void build_single(void)
{
	int one;

	one = connect_to(SOCK_STREAM, links[ALIVE].name, "");
	half_accepted = MUST(accept(links[ALIVE].listener, NULL, NULL));
	MUST(send(one, "last words", 10, 0));
	close(one);
	half_connector = connect_to(SOCK_SEQPACKET, links[ABSTRACT].name, "");
	one = MUST(accept(links[ABSTRACT].listener, NULL, NULL));
	MUST(send(one, "good bye", 8, 0));
	close(one);

	fresh = MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
	/* as systemd's user manager has its output */
	MUST(fcntl(fresh, F_SETFL, O_NONBLOCK | O_APPEND));
	bound_path = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	bind_to(bound_path, victim_path("bound-path"));
	bound_abstract = MUST(socket(AF_UNIX, SOCK_SEQPACKET, 0));
	bind_to(bound_abstract, "@ckpt-sock-stream-bound");
	bound_removed = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	bind_to(bound_removed, victim_path("bound-removed"));
	MUST(unlink(victim_path("bound-removed")));
	MUST(chdir(victim_dir()));
	bound_relative = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	bind_to(bound_relative, "sub/bound");
	MUST(chdir("/"));
}

/* ---- checks -------------------------------------------------------------------------- */

/* A socket listens there: it can be connected to. */
static void check_listener(const struct link *l)
{
	int fd = socket(AF_UNIX, l->type, 0), got;
	struct sockaddr_un a;

	CHECK(!connect(fd, (struct sockaddr *)&a, address_of(&a, l->name)), "%s: connect: %s",
	      l->what, strerror(errno));
	got = accept(l->listener, NULL, NULL);
	CHECK(got >= 0, "%s: accept: %s", l->what, strerror(errno));
	close(fd);
	close(got);
}

static void check_links(void)
{
	char verdict[512] = "no answer";

	for (int i = 0; i < N_LINKS; i++) {
		check_name(links[i].accepted, false, links[i].name, links[i].what);
		check_name(links[i].accepted, true, links[i].bound, links[i].what);
		check_cred(links[i].accepted, child, links[i].what);
		check_bytes(links[i].accepted, "to the parent", links[i].what);
	}
	check_listener(&links[ALIVE]);
	check_listener(&links[ABSTRACT]);
	check_listener(&links[BOUND]);
	CHECK(write(to_child[0], "c", 1) == 1 && read(to_child[0], verdict, sizeof(verdict)) > 0 &&
		      !verdict[0],
	      "child: %s", verdict);
}

static void check_file(const char *path, bool there)
{
	struct stat st;
	bool is = !lstat(path, &st) && S_ISSOCK(st.st_mode);

	CHECK(is == there, "%s is %s", path, is ? "there" : "not there");
}

static void check_single(void)
{
	struct sockaddr_un a;
	struct stat st;
	int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);

	check_name(half_accepted, false, links[ALIVE].name, "half_accepted");
	check_bytes(half_accepted, "last words", "half_accepted");
	CHECK(send(half_accepted, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "an end lives");
	check_name(half_connector, true, links[ABSTRACT].name, "half_connector");
	check_bytes(half_connector, "good bye", "half_connector");
	CHECK(send(half_connector, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE, "an end lives");
	check_name(fresh, false, "", "fresh");
	CHECK(fcntl(fresh, F_GETFL) == (O_RDWR | O_NONBLOCK | O_APPEND), "flags are lost");
	check_name(bound_path, false, victim_path("bound-path"), "bound_path");
	check_name(bound_abstract, false, "@ckpt-sock-stream-bound", "bound_abstract");
	check_name(bound_removed, false, victim_path("bound-removed"), "bound_removed");
	check_name(bound_relative, false, "sub/bound", "bound_relative");
	CHECK(bind(fd, (struct sockaddr *)&a, address_of(&a, "@ckpt-sock-stream-bound")) == -1 &&
		      errno == EADDRINUSE,
	      "an abstract name is free");
	close(fd);
	check_file(victim_path("bound-path"), true);
	check_file(victim_path("bound-removed"), false);
	check_file(victim_path("sub/bound"), true);
	check_file(victim_path("sub/relative"), true);
	check_file(links[REMOVED].name, false);
	check_file(links[CLOSED].name, true);
	check_file(links[BOUND].bound, true);
	CHECK(!stat(links[ALIVE].name, &st) && (st.st_mode & 07777) == 0600, "mode %o", st.st_mode);
}

static void check(void)
{
	check_links();
	check_single();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	signal(SIGPIPE, SIG_IGN);
	has_groups = setgroups(sizeof(groups) / sizeof(*groups), groups) == 0;
	build_links();
	build_single();
	if (has_groups)
		MUST(setgroups(1, groups));
	victim_ready();
	victim_serve(check);
}
