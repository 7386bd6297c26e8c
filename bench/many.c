/* SPDX-License-Identifier: MIT */
#include "load.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { CONTAINERS = 50, MEMBERS = 2, MOUNTS = 200, PAIRS = 500, CONNECTIONS = 500 };
#define TMPFS 0x01021994

static int containers[CONTAINERS][2], pairs[PAIRS][2], connections[CONNECTIONS][2], listener;

static void write_file(const char *path, const char *text)
{
	int fd = MUST(open(path, O_WRONLY));
	MUST(write(fd, text, strlen(text)));
	close(fd);
}

/* A process is not in the time namespace that it has made before it joins it. */
static void join_time(void)
{
	int fd = MUST(open("/proc/self/ns/time_for_children", O_RDONLY));
	MUST(setns(fd, CLONE_NEWTIME));
	close(fd);
}

void load_unshare(void)
{
	MUST(unshare(CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS |
		     CLONE_NEWNET | CLONE_NEWCGROUP | CLONE_NEWTIME));
	write_file("/proc/self/setgroups", "deny");
	write_file("/proc/self/uid_map", "0 0 1");
	write_file("/proc/self/gid_map", "0 0 1");
	join_time();
	MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static void mount_proc(void)
{
	MUST(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
}

_Noreturn void load_contain(int depth, char **command)
{
	for (; depth; depth--) {
		load_unshare();
		if (MUST(fork()) != 0) {
			while (wait(NULL) > 0)
				;
			_exit(0);
		}
		mount_proc();
	}
	execvp(command[0], command);
	victim_die("%s: %s", command[0], strerror(errno));
}

static _Noreturn void answer(int fd)
{
	char asked;

	while (read(fd, &asked, 1) == 1)
		MUST(write(fd, &asked, 1));
	_exit(0);
}

/* Each is a first process and two children. */
static _Noreturn void start_container(int fd)
{
	load_unshare();
	if (MUST(fork()) != 0) {
		/* not part of the container: it only must not end before it */
		while (wait(NULL) > 0)
			;
		_exit(0);
	}
	mount_proc();
	for (int i = 0; i < MEMBERS; i++)
		if (MUST(fork()) == 0) {
			pause();
			_exit(0);
		}
	answer(fd);
}

void load_containers(void)
{
	for (int i = 0; i < CONTAINERS; i++) {
		MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, containers[i]));
		if (MUST(fork()) == 0) {
			for (int k = 0; k < i; k++)
				close(containers[k][0]);
			close(containers[i][0]);
			start_container(containers[i][1]);
		}
		close(containers[i][1]);
	}
	load_check_containers();
}

static void ask(int fd, const char *what, int number)
{
	char reply = 0;

	CHECK(write(fd, "?", 1) == 1 && read(fd, &reply, 1) == 1 && reply == '?',
	      "%s %d does not answer", what, number);
}

void load_check_containers(void)
{
	for (int i = 0; i < CONTAINERS; i++)
		ask(containers[i][0], "container", i);
}

void load_mounts(void)
{
	char *base = victim_path("mounts");

	MUST(unshare(CLONE_NEWNS));
	MUST(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	MUST(mkdir(base, 0700));
	MUST(mount("base", base, "tmpfs", 0, NULL));
	for (int i = 0; i < MOUNTS; i++) {
		char path[4096];
		snprintf(path, sizeof(path), "%s/%d", base, i);
		MUST(mkdir(path, 0700));
		MUST(mount("small", path, "tmpfs", 0, "size=64k"));
	}
	free(base);
}

void load_check_mounts(void)
{
	char *base = victim_path("mounts");

	for (int i = 0; i < MOUNTS; i++) {
		struct statfs fs = { 0 };
		char path[4096];
		snprintf(path, sizeof(path), "%s/%d", base, i);
		CHECK(statfs(path, &fs) == 0 && fs.f_type == TMPFS && fs.f_blocks == 16,
		      "mount %d is another", i);
	}
	free(base);
}

static void connect_all(void)
{
	struct sockaddr_in at = { .sin_family = AF_INET };
	socklen_t len = sizeof(at);

	at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	listener = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	MUST(bind(listener, (struct sockaddr *)&at, sizeof(at)));
	MUST(listen(listener, 16));
	MUST(getsockname(listener, (struct sockaddr *)&at, &len));
	for (int i = 0; i < CONNECTIONS; i++) {
		connections[i][0] = MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
		MUST(connect(connections[i][0], (struct sockaddr *)&at, sizeof(at)));
		connections[i][1] = MUST(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	}
}

void load_sockets(void)
{
	for (int i = 0; i < PAIRS; i++)
		MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pairs[i]));
	connect_all();
}

static void send_through(const int ends[2], const char *what, int number)
{
	int got = -1;

	CHECK(write(ends[0], &number, sizeof(number)) == sizeof(number) &&
		      read(ends[1], &got, sizeof(got)) == sizeof(got) && got == number,
	      "%s %d says %d", what, number, got);
}

void load_check_sockets(void)
{
	for (int i = 0; i < PAIRS; i++)
		send_through(pairs[i], "pair", i);
	for (int i = 0; i < CONNECTIONS; i++)
		send_through(connections[i], "connection", i);
}
