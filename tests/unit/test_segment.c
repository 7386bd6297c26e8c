/* SPDX-License-Identifier: MIT */
/*
 * The agent's segment: who can attach it, and that nothing is believed that others can write there.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "process/segment.h"

enum { SOMEBODY = 65534, N = 3 };

struct fixture {
	struct keeper keeper;
	struct segments all;
	struct segment *seg[N];
};

static void must(int r, const struct ckpt_error *err)
{
	if (r)
		fail_msg("%s", err->text);
}

static struct fixture *make(uid_t uid, uint32_t seats)
{
	const struct segment_users users = { .uid = uid };
	struct fixture *f = calloc(1, sizeof(*f));
	struct ckpt_error err = { 0 };

	assert_non_null(f);
	must(keeper_start(&f->keeper, &err), &err);
	for (int i = 0; i < N; i++)
		must(segment_new(&f->all, &f->keeper, seats, 0, &users, &f->seg[i], &err), &err);
	return f;
}

static void drop(struct fixture *f)
{
	for (int i = 0; i < N; i++)
		segment_free(f->seg[i]);
	keeper_stop(&f->keeper);
	free(f);
}

/* A process of SOMEBODY's, begun before there are segments: a fork has them too. */
struct other {
	pid_t pid;
	int ask[2], answer[2];
};

/* Attaches what it is asked for, and detaches it for -1. */
static void __attribute__((noreturn)) serve(const struct other *o)
{
	void *at = NULL;
	int shmid, e;

	close(o->ask[1]);
	/* a change of the user takes that back */
	if (setgid(SOMEBODY) || setuid(SOMEBODY) || prctl(PR_SET_PDEATHSIG, SIGKILL))
		_exit(1);
	while (read(o->ask[0], &shmid, sizeof(shmid)) == sizeof(shmid)) {
		e = 0;
		if (shmid < 0)
			e = shmdt(at) ? errno : 0;
		else if ((at = shmat(shmid, NULL, SHM_EXEC)) == (void *)-1)
			e = errno;
		if (write(o->answer[1], &e, sizeof(e)) != sizeof(e))
			break;
	}
	_exit(0);
}

static struct other begin_other(void)
{
	struct other o;

	assert_int_equal(pipe(o.ask) | pipe(o.answer), 0);
	o.pid = fork();
	if (!o.pid)
		serve(&o);
	close(o.ask[0]);
	return o;
}

static int ask(const struct other *o, int shmid)
{
	int e = -1;

	assert_int_equal(write(o->ask[1], &shmid, sizeof(shmid)), sizeof(shmid));
	assert_int_equal(read(o->answer[0], &e, sizeof(e)), sizeof(e));
	return e;
}

static void end_other(const struct other *o)
{
	kill(o->pid, SIGKILL);
	waitpid(o->pid, NULL, 0);
	close(o->ask[1]);
	close(o->answer[0]);
	close(o->answer[1]);
}

static void test_closed_behind_the_task(void **state)
{
	const struct other task = begin_other(), stranger = begin_other();
	struct fixture *f = make(SOMEBODY, 1);
	struct ckpt_error err = { 0 };

	assert_int_equal(ask(&task, f->seg[0]->shmid), 0);
	must(segment_shut(f->seg[0], &err), &err);
	assert_int_equal(ask(&stranger, f->seg[0]->shmid), EACCES);
	end_other(&task);
	end_other(&stranger);
	drop(f);
}

/* Before the task, after it, and one that has gone again. */
static void test_stranger(void **state)
{
	for (int when = 0; when < 3; when++) {
		const struct other task = begin_other(), stranger = begin_other();
		struct fixture *f = make(SOMEBODY, 1);
		const int shmid = f->seg[1]->shmid;
		struct ckpt_error err = { 0 };

		assert_int_equal(ask(when ? &task : &stranger, shmid), 0);
		assert_int_equal(ask(when ? &stranger : &task, shmid), 0);
		if (when == 2)
			assert_int_equal(ask(&stranger, -1), 0);
		assert_int_equal(segment_shut(f->seg[1], &err), -EPERM);
		assert_int_equal(err.exit, CKPT_EXIT_REFUSED);
		end_other(&task);
		end_other(&stranger);
		drop(f);
	}
}

/* Whatever is written there: nothing is written where that says. */
static void test_no_pointers(void **state)
{
	void *before = NULL, *after = NULL;
	uint64_t canary[64] = { 0 };
	struct fixture *f;
	uint64_t addr;
	size_t len;

	syscall(SYS_get_robust_list, 0, &before, &len);
	f = make(0, 2);
	for (int turn = 0; turn < 2; turn++)
		for (int i = 0; i < N; i++) {
			struct agent_seat *seat = segment_seat(f->seg[i], &addr);

			assert_non_null(seat);
			assert_int_equal(addr, (uint8_t *)seat - f->seg[i]->base);
			segment_give_back(f->seg[i], seat);
			for (size_t k = AGENT_CODE_SIZE; k < f->seg[i]->length; k += 8)
				*(uint64_t *)(f->seg[i]->base + k) = (uintptr_t)&canary[32];
		}
	segment_free(f->seg[1]);
	segment_free(f->seg[0]);
	f->seg[0] = f->seg[1] = NULL;
	drop(f);
	for (size_t i = 0; i < 64; i++)
		assert_int_equal(canary[i], 0);
	syscall(SYS_get_robust_list, 0, &after, &len);
	assert_ptr_equal(before, after);
}

/* Engine and keeper are killed together, as all of a control group is: the kernel tells. */
static void test_both_killed(void **state)
{
	struct shmid_ds ds;
	int shmid[N], tell[2];
	uint8_t *base[N];
	pid_t pids[2];

	assert_int_equal(pipe(tell), 0);
	pids[0] = fork();
	if (!pids[0]) {
		struct fixture *f = make(0, 1);

		for (int i = 0; i < N; i++)
			shmid[i] = f->seg[i]->shmid;
		if (write(tell[1], shmid, sizeof(shmid)) == sizeof(shmid) &&
		    write(tell[1], &f->keeper.pid, sizeof(pid_t)) == sizeof(pid_t))
			pause();
		_exit(1);
	}
	assert_int_equal(read(tell[0], shmid, sizeof(shmid)), sizeof(shmid));
	assert_int_equal(read(tell[0], &pids[1], sizeof(pid_t)), sizeof(pid_t));
	for (int i = 0; i < N; i++) {
		base[i] = shmat(shmid[i], NULL, 0);
		assert_ptr_not_equal(base[i], (void *)-1);
		assert_false(agent_header(base[i])->owner & AGENT_OWNER_DIED);
	}
	kill(pids[1], SIGKILL);
	kill(pids[0], SIGKILL);
	assert_int_equal(waitpid(pids[0], NULL, 0), pids[0]);
	for (int i = 0; i < N; i++) {
		assert_true(agent_header(base[i])->owner & AGENT_OWNER_DIED);
		shmdt(base[i]);
		/* the keeper may take its time */
		while (!shmctl(shmid[i], IPC_STAT, &ds) && ds.shm_nattch)
			usleep(1000);
	}
	close(tell[0]);
	close(tell[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_closed_behind_the_task),
		cmocka_unit_test(test_stranger),
		cmocka_unit_test(test_no_pointers),
		cmocka_unit_test(test_both_killed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
