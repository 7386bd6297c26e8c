/* SPDX-License-Identifier: MIT */
/* Making the namespaces of a box, as container runtimes do. */
#include "victim.h"

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "box.h"

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { SHARED_FROM = 26 }; /* labels a to z */

static const struct {
	const char *name;
	enum box_kind kind;
} shared_kinds[BOX_SHARED] = { { "ipc", BOX_IPC }, { "net", BOX_NET }, { "uts", BOX_UTS } };
static int shared[SHARED_FROM][BOX_SHARED]; /* 0: none */
static int current = -1;		    /* the box that we are, for messages */

/* Between the one that makes a box and the box. */
struct talk {
	int up[2], down[2];
};

int box_need(long value, const char *call, const char *file, int line)
{
	char text[BOX_ANSWER] = "";

	if (value >= 0)
		return (int)value;
	if (current < 0)
		return (int)victim_must(value, call, file, line);
	snprintf(text, sizeof(text), "%s:%d: %s: %s", file, line, call, strerror(errno));
	box_answer(current, text);
	_exit(1);
}

void box_answer(int number, const char *text)
{
	char answer[BOX_ANSWER] = "";

	snprintf(answer, sizeof(answer), "%s", text);
	if (write(box_reply[number][1], answer, sizeof(answer)) != sizeof(answer))
		_exit(1);
}

static void put(const char *path, const char *text)
{
	int fd = NEED(open(path, O_WRONLY | O_CLOEXEC));

	NEED(write(fd, text, strlen(text)) == (ssize_t)strlen(text) ? 0 : -1);
	close(fd);
}

static void tell(int fd)
{
	NEED(write(fd, "", 1));
}

static void hear(int fd)
{
	char c;

	NEED(read(fd, &c, 1) == 1 ? 0 : -1);
}

/* Our youngest child as /proc numbers it, which need not be of our pid namespace. */
static long youngest(void)
{
	char *text = victim_read("/proc/thread-self/children"), *at = text, *end;
	long pid = -1;

	for (long n; at && (n = strtol(at, &end, 10)) > 0; at = end)
		pid = n;
	free(text);
	return NEED(pid);
}

/* From outside: ids of the maker's that no other box has, then ever smaller parts of them. */
static void write_maps(const struct box *box, long pid)
{
	const int deep = box->users - 1;
	char path[64], text[64];

	for (int group = 0; group < 2; group++) {
		const int first =
			deep ? 1000 + 500 * group : 100000 * (group + 1) + 4000000 * box->number;

		snprintf(path, sizeof(path), "/proc/%ld/%s", pid, group ? "gid_map" : "uid_map");
		snprintf(text, sizeof(text), "0 %d %d\n", first,
			 deep ? 30000 - 6000 * deep : 65536);
		put(path, text);
	}
}

static void share(const struct box *box, long pid)
{
	for (int i = 0; i < BOX_SHARED; i++) {
		char path[64];

		if (!box_has(box, shared_kinds[i].kind))
			continue;
		snprintf(path, sizeof(path), "/proc/%ld/ns/%s", pid, shared_kinds[i].name);
		shared[box->label - 'a'][i] = NEED(open(path, O_RDONLY | O_CLOEXEC));
	}
}

static void close_shared(void)
{
	for (int label = 0; label < SHARED_FROM; label++)
		for (int kind = 0; kind < BOX_SHARED; kind++) {
			if (shared[label][kind])
				close(shared[label][kind]);
			shared[label][kind] = 0;
		}
}

/* Some may be closed already, and their numbers be in use again. */
static void close_pipes(int from, int to)
{
	for (int i = from; i < to; i++)
		for (int end = 0; end < 4; end++) {
			int *fd = end < 2 ? &box_request[i][end] : &box_reply[i][end - 2];

			if (*fd >= 0)
				close(*fd);
			*fd = -1;
		}
}

static void enter_group(void)
{
	char name[64], path[256];

	if (access("/sys/fs/cgroup/unified/cgroup.procs", W_OK))
		return;
	snprintf(name, sizeof(name), "/sys/fs/cgroup/unified/ckpt-boxes-%d", getpid());
	NEED(mkdir(name, 0755));
	snprintf(path, sizeof(path), "%s/groups", victim_dir());
	int fd = NEED(open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
	NEED(dprintf(fd, "%s\n", name));
	close(fd);
	snprintf(path, sizeof(path), "%s/cgroup.procs", name);
	put(path, "0");
}

static void become_root_of_user_namespace(const struct talk *talk)
{
	NEED(unshare(CLONE_NEWUSER));
	tell(talk->up[1]);
	hear(talk->down[0]);
	NEED(setresgid(0, 0, 0));
	NEED(setresuid(0, 0, 0));
	NEED(setgroups(1, (gid_t[]){ 7 }));
	NEED(prctl(PR_SET_DUMPABLE, 1));
}

static void unshare_others(const struct box *box)
{
	static const struct {
		enum box_kind kind;
		int flag;
	} flags[] = {
		{ BOX_MNT, CLONE_NEWNS },	 { BOX_IPC, CLONE_NEWIPC },
		{ BOX_NET, CLONE_NEWNET },	 { BOX_UTS, CLONE_NEWUTS },
		{ BOX_CGROUP, CLONE_NEWCGROUP }, { BOX_PID, CLONE_NEWPID },
		{ BOX_TIME, CLONE_NEWTIME },
	};

	for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++)
		if (box_has(box, flags[i].kind))
			NEED(unshare(flags[i].flag));
	if (box_has(box, BOX_TIME)) {
		char text[64];
		const int seconds = 100000 * (box->number + 1);

		snprintf(text, sizeof(text), "monotonic %d 0\nboottime %d 5\n", seconds, seconds);
		put("/proc/self/timens_offsets", text);
	}
}

/*
 * Those that only children enter. The one that made a pid namespace stays, as that of unshare(1)
 * does; the one that made a time namespace goes, as those of container runtimes do.
 */
static void fork_into(const struct box *box)
{
	if (!box_has(box, BOX_PID) && !box_has(box, BOX_TIME))
		return;
	if (NEED(fork()) == 0)
		return;
	if (box_has(box, BOX_TIME))
		_exit(0);
	close_shared();
	close_pipes(box->number, box->number + box->size);
	for (;;)
		pause();
}

static void enter(const struct box *box, const struct talk *talk)
{
	for (int i = 0; box->join && i < BOX_SHARED; i++)
		if (shared[box->join - 'a'][i])
			NEED(setns(shared[box->join - 'a'][i], 0));
	if (box->parent < 0 && box_has(box, BOX_CGROUP))
		enter_group();
	if (box_has(box, BOX_USER))
		become_root_of_user_namespace(talk);
	unshare_others(box);
	tell(talk->up[1]);
	hear(talk->down[0]);
	close(talk->up[1]);
	close(talk->down[0]);
	fork_into(box);
}

static _Noreturn void be(const struct box *box)
{
	char c;

	box_build(box);
	for (int i = box->number + 1; i < box->number + box->size; i += boxes[i].size)
		box_make(&boxes[i]);
	close_shared();
	close_pipes(box->number + 1, box->number + box->size);
	box_answer(box->number, "");
	while (read(box_request[box->number][0], &c, 1) == 1)
		box_answer(box->number, victim_judge(box_judge));
	_exit(0);
}

void box_make(const struct box *box)
{
	struct talk talk;
	pid_t maker;
	long pid;

	NEED(pipe(talk.up));
	NEED(pipe(talk.down));
	maker = NEED(fork());
	if (maker == 0) {
		current = box->number;
		close(talk.up[0]);
		close(talk.down[1]);
		/* those of the boxes that are not below it are none of its business */
		close_pipes(0, box->number);
		close_pipes(box->number + box->size, n_boxes);
		enter(box, &talk);
		be(box);
	}
	close(talk.up[1]);
	close(talk.down[0]);
	pid = youngest();
	if (box_has(box, BOX_USER)) {
		hear(talk.up[0]);
		write_maps(box, pid);
		tell(talk.down[1]);
	}
	hear(talk.up[0]);
	if (box->label)
		share(box, pid);
	tell(talk.down[1]);
	close(talk.up[0]);
	close(talk.down[1]);
	if (box_has(box, BOX_TIME))
		NEED(waitpid(maker, NULL, 0));
	if (current < 0 && box->number + box->size == n_boxes)
		close_shared();
}
