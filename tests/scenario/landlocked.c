/* SPDX-License-Identifier: MIT */
/*
 * A child under Landlock, in a domain that is for nothing but TCP: "self" is all like its parent,
 * "root" has few of its privileges, "user" other ids, "container" a user and a pid namespace of its
 * own; of "thread" only a second thread is restricted. "free-" in front: it could be, but is not.
 *
 * test: only=refuse
 */
#include "victim.h"

#include <arpa/inet.h>
#include <grp.h>
#include <linux/capability.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define NET_BIND_TCP 1

static int to[2], from[2];
static bool restricted;
static pid_t child;

static void restrict_self(void)
{
	const struct {
		uint64_t fs, net;
	} rules = { .net = NET_BIND_TCP };
	int fd = MUST(syscall(444 /* landlock_create_ruleset */, &rules, sizeof(rules), 0));

	MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	if (restricted)
		MUST(syscall(446 /* landlock_restrict_self */, fd, 0));
	close(fd);
}

static void check_child(void)
{
	const struct sockaddr_in any = { .sin_family = AF_INET,
					 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int r = bind(fd, (const struct sockaddr *)&any, sizeof(any)), e = errno;

	close(fd);
	if (restricted)
		CHECK(r < 0 && e == EACCES, "its sandbox is gone");
	else
		CHECK(r == 0, "bind: %s", strerror(e));
}

static void serve(void)
{
	restrict_self();
	MUST(write(from[1], "r", 1));
	victim_answer(to[0], from[1], check_child);
}

static void *serve_in_thread(void *unused)
{
	serve();
	return unused;
}

static void in_thread(void)
{
	pthread_t thread;

	MUST_ZERO(pthread_create(&thread, NULL, serve_in_thread, NULL));
	pthread_join(thread, NULL);
}

static void as_user(void)
{
	MUST(setgroups(0, NULL));
	MUST(setresgid(65533, 65533, 65533));
	MUST(setresuid(65534, 65534, 65534));
	serve();
}

static void as_poor_root(void)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct few[2] = { { 1 << CAP_CHOWN, 1 << CAP_CHOWN, 0 } };

	MUST(syscall(SYS_capset, &head, few));
	serve();
}

static void in_container(void)
{
	char mapped;
	pid_t first;

	MUST(unshare(CLONE_NEWUSER | CLONE_NEWPID));
	MUST(write(from[1], "u", 1));
	MUST(read(to[0], &mapped, 1));
	first = MUST(fork());
	if (!first)
		serve();
	waitpid(first, NULL, 0);
	_exit(0);
}

static const struct {
	const char *name;
	void (*become)(void);
} kinds[] = {
	{ "self", serve },	 { "root", as_poor_root },
	{ "user", as_user },	 { "container", in_container },
	{ "thread", in_thread },
};

static void build(const char *name)
{
	char said = 0;

	MUST(pipe(to));
	MUST(pipe(from));
	child = MUST(fork());
	for (size_t i = 0; !child && i < sizeof(kinds) / sizeof(*kinds); i++)
		if (!strcmp(kinds[i].name, name))
			kinds[i].become();
	if (!child)
		victim_die("no kind %s", name);
	close(from[1]);
	MUST(read(from[0], &said, 1));
	if (said == 'u') {
		victim_map(child, "0 100000 65536");
		MUST(write(to[1], "m", 1));
		MUST(read(from[0], &said, 1));
	}
	if (said != 'r')
		victim_skip("this kernel has no Landlock for TCP");
	close(to[0]);
}

static void check(void)
{
	victim_ask(to[1], from[0], "child");
}

int main(int argc, char **argv)
{
	const char *name = argc > 2 ? argv[1] : "self";

	victim_init(argc - 1, argv + 1);
	restricted = strncmp(name, "free-", 5) != 0;
	build(restricted ? name : name + 5);
	victim_settle();
	victim_ready();
	victim_serve(check);
}
