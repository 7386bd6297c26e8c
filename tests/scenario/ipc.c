/* SPDX-License-Identifier: MIT
 *
 * System V objects in an ipc namespace of a child's own: segments that are attached, attached in
 * part, read-only, removed and still attached by two processes, big and nearly empty; semaphores; a
 * queue with messages; limits; a process with threads that gives back what it has taken from
 * semaphores when it ends (SEM_UNDO). And one segment in the namespace that the test runs in.
 * Numbers are not the first ones that a namespace gives, and which comes next is asked for.
 */
#include "victim.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { KEY = 0x1234, WORDS = 1500, OWNER = 1000, BIG = 64 << 20, PAGE = 4096 };

struct message {
	long type;
	unsigned long words[4];
};

static int to_child[2], from_child[2], to_grandchild[2], from_grandchild[2];
static unsigned long *own_segment;
static int own_id;

/* the child's */
static int ids[5], set, held, queue;
static pid_t holder;
static unsigned long *shared, *read_only, *removed;
static char *part;
static bool has_guard; /* Linux 6.15 */
static unsigned long rounds;

/* ---- building ------------------------------------------------------------------------- */

/* What was made and removed before moves the numbers on. */
static void move_on(void)
{
	for (int i = 0; i < 3; i++) {
		MUST(shmctl(MUST(shmget(IPC_PRIVATE, 1, 0600)), IPC_RMID, NULL));
		MUST(semctl(MUST(semget(IPC_PRIVATE, 1, 0600)), 0, IPC_RMID));
		MUST(msgctl(MUST(msgget(IPC_PRIVATE, 0600)), IPC_RMID, NULL));
	}
}

static void *attach(int id, int flags)
{
	void *at = shmat(id, NULL, flags);

	if (at == (void *)-1)
		victim_die("shmat: %s", strerror(errno));
	return at;
}

static void give_away(int id)
{
	struct shmid_ds ds;

	MUST(shmctl(id, IPC_STAT, &ds));
	ds.shm_perm.uid = OWNER;
	ds.shm_perm.gid = OWNER + 1;
	ds.shm_perm.mode = 0640;
	MUST(shmctl(id, IPC_SET, &ds));
}

static void make_segments(void)
{
	char *big;

	ids[0] = MUST(shmget(KEY, WORDS * sizeof(long), IPC_CREAT | 0666));
	shared = attach(ids[0], 0);
	read_only = attach(ids[0], SHM_RDONLY);
	for (unsigned long i = 1; i < WORDS; i++)
		shared[i] = victim_word(1, i);
	give_away(ids[0]);
	ids[1] = MUST(shmget(IPC_PRIVATE, PAGE, 0600));
	removed = attach(ids[1], 0);
	MUST(shmctl(ids[1], IPC_RMID, NULL));
	ids[2] = MUST(shmget(KEY + 1, BIG, IPC_CREAT | 0600));
	big = attach(ids[2], 0);
	strcpy(big + BIG / 2, "in the middle");
	MUST(shmdt(big));
	ids[3] = MUST(shmget(IPC_PRIVATE, 4 * PAGE, 0600));
	part = attach(ids[3], 0);
	strcpy(part, "first");
	strcpy(part + PAGE, "second");
	strcpy(part + 3 * PAGE, "last");
	MUST(munmap(part, PAGE));
	MUST(mprotect(part + 3 * PAGE, PAGE, PROT_READ));
	has_guard = !madvise(part + 2 * PAGE, PAGE, MADV_GUARD_INSTALL);
}

static void send_message(long type, unsigned long seed)
{
	struct message m = { .type = type };

	for (unsigned long i = 0; i < 4; i++)
		m.words[i] = victim_word(seed, i);
	MUST(msgsnd(queue, &m, sizeof(m.words), IPC_NOWAIT));
}

/* ---- SEM_UNDO: what the end of a process gives back ------------------------------------- */

enum { HELD = 40, SPLIT = 1, GIVEN = 3, TAKEN = 17, FULL = 39 };

static void *idle(void *arg)
{
	(void)arg;
	for (;;)
		pause();
	return NULL;
}

static _Noreturn void hold(int told)
{
	struct sembuf ops[] = {
		{ GIVEN, 5, SEM_UNDO },	 { TAKEN, -7, SEM_UNDO }, { TAKEN, 1, 0 },
		{ FULL, -1, SEM_UNDO },	 { FULL, 1, 0 },	  { 0, 30000, SEM_UNDO },
		{ 0, -30000, SEM_UNDO }, { SPLIT, 32000, 0 },	  { SPLIT, -20000, SEM_UNDO },
		{ SPLIT, 4000, 0 },
	};
	pthread_t thread;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	/* who has the segments attached is counted */
	MUST(shmdt(shared));
	MUST(shmdt(read_only));
	MUST(shmdt(removed));
	MUST(munmap(part + PAGE, 3 * PAGE));
	MUST_ZERO(pthread_create(&thread, NULL, idle, NULL));
	MUST(semop(held, ops, sizeof(ops) / sizeof(ops[0])));
	MUST(write(told, "", 1));
	for (;;)
		pause();
}

static void start_holder(void)
{
	int pipe_to[2];
	char c;

	MUST(pipe(pipe_to));
	holder = MUST(fork());
	if (holder == 0)
		hold(pipe_to[1]);
	close(pipe_to[1]);
	MUST(read(pipe_to[0], &c, 1) == 1 ? 0 : -1);
	close(pipe_to[0]);
}

static void make_held(void)
{
	unsigned short values[HELD] = { [TAKEN] = 100, [FULL] = 32767 };

	held = MUST(semget(IPC_PRIVATE, HELD, 0600));
	MUST(semctl(held, 0, SETALL, values));
	start_holder();
}

static void check_held(void)
{
	unsigned short values[HELD] = { 0 };
	int status;

	if (semctl(held, 0, GETALL, values)) {
		victim_fail("the held set: %s", strerror(errno));
		return;
	}
	CHECK(values[GIVEN] == 5 && values[TAKEN] == 94 && values[FULL] == 32767 &&
		      values[0] == 0 && values[SPLIT] == 16000,
	      "held: %u, %u, %u, %u", values[GIVEN], values[TAKEN], values[FULL], values[SPLIT]);
	/* room for what comes back */
	MUST(semop(held, (struct sembuf[]){ { FULL, -2, 0 }, { SPLIT, -15000, 0 } }, 2));
	MUST(kill(holder, SIGKILL));
	MUST(waitpid(holder, &status, 0));
	CHECK(semctl(held, 0, GETALL, values) == 0 && values[GIVEN] == 0 && values[TAKEN] == 101 &&
		      values[FULL] == 32766 && values[0] == 0 && values[SPLIT] == 21000,
	      "after its end: %u, %u, %u, %u", values[GIVEN], values[TAKEN], values[FULL],
	      values[SPLIT]);
	values[SPLIT] = 0;
	values[TAKEN] = 100;
	values[FULL] = 32767;
	MUST(semctl(held, 0, SETALL, values));
	start_holder();
}

static void make_others(void)
{
	unsigned short values[3] = { 5, 0, 7 };
	struct sembuf take = { 0, -1, 0 };
	int fd;

	set = MUST(semget(KEY, 3, IPC_CREAT | 0600));
	MUST(semctl(set, 0, SETALL, values));
	MUST(semop(set, &take, 1));
	queue = MUST(msgget(KEY, IPC_CREAT | 0620));
	for (unsigned long i = 0; i < 3; i++)
		send_message((long)i + 1, i);
	fd = MUST(open("/proc/sys/kernel/msgmax", O_WRONLY));
	MUST(write(fd, "9000", 4));
	close(fd);
}

/* ---- which number comes next ----------------------------------------------------------------- */

enum { KINDS = 3, PLACES = 1 << 15, CYCLE = 64 };

static int last[KINDS];

/* An object of each kind that is gone at once moves the numbers on by one. */
static int pass(int kind)
{
	int id;

	switch (kind) {
	case 0:
		id = MUST(shmget(IPC_PRIVATE, 1, 0600));
		MUST(shmctl(id, IPC_RMID, NULL));
		return id;
	case 1:
		id = MUST(semget(IPC_PRIVATE, 1, 0600));
		MUST(semctl(id, 0, IPC_RMID));
		return id;
	default:
		id = MUST(msgget(IPC_PRIVATE, 0600));
		MUST(msgctl(id, IPC_RMID, NULL));
		return id;
	}
}

/* Many times over, so often for queues that one turn after the other would take long to make up;
 * sets are about to begin with a further one, in which older ones are in the way. */
static void pass_many(void)
{
	static const int to[KINDS] = { PLACES + 20, 2 * PLACES + 61, 1800 * PLACES + 22 };

	for (int i = 0; i < KINDS; i++)
		do
			last[i] = pass(i);
		while (last[i] < to[i]);
}

static bool is_taken(int kind, int place)
{
	struct shmid_ds shm;
	struct semid_ds sem;
	struct msqid_ds msg;

	switch (kind) {
	case 0:
		return shmctl(place, SHM_STAT, &shm) >= 0;
	case 1:
		return semctl(place, 0, SEM_STAT, &sem) >= 0;
	default:
		return msgctl(place, MSG_STAT, &msg) >= 0;
	}
}

static int next_after(int kind, int number)
{
	do
		number += number % PLACES == CYCLE - 1 ? PLACES - CYCLE + 1 : 1;
	while (is_taken(kind, number % PLACES));
	return number;
}

static void check_next(void)
{
	for (int i = 0; i < KINDS; i++) {
		int want = next_after(i, last[i]);

		last[i] = pass(i);
		CHECK(last[i] == want, "object of kind %d has the number %d, not %d", i, last[i],
		      want);
	}
}

/* ---- judging ----------------------------------------------------------------------------- */

static bool readable(const char *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)(uintptr_t)at, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static void check_segments(void)
{
	struct shmid_ds ds;
	char *big;

	CHECK(shmget(KEY, 0, 0) == ids[0], "the key leads elsewhere");
	CHECK(shmctl(ids[0], IPC_STAT, &ds) == 0, "segment %d: %s", ids[0], strerror(errno));
	CHECK(ds.shm_perm.uid == OWNER && ds.shm_perm.gid == OWNER + 1 && ds.shm_perm.cuid == 0 &&
		      (ds.shm_perm.mode & 0777) == 0640,
	      "segment: owner %u, mode %o", ds.shm_perm.uid, ds.shm_perm.mode);
	CHECK(ds.shm_nattch == 2 * 2, "segment: attached %lu times", ds.shm_nattch);
	for (unsigned long i = 1; i < WORDS; i++)
		CHECK(shared[i] == victim_word(1, i), "segment: word %lu", i);
	CHECK(shared[0] == rounds, "segment: %lu rounds, not %lu", shared[0], rounds);
	shared[0]++;
	CHECK(read_only[0] == rounds + 1, "the other mapping is not of the same segment");
	CHECK(mprotect(read_only, PAGE, PROT_READ | PROT_WRITE) < 0 && errno == EACCES,
	      "a read-only attachment can be made writable");
	CHECK(shmctl(ids[1], IPC_STAT, &ds) == 0 && ds.shm_perm.mode & SHM_DEST &&
		      ds.shm_nattch == 2,
	      "the removed segment: %s, attached %lu times", strerror(errno), ds.shm_nattch);
	CHECK(!strcmp(part + PAGE, "second") && !strcmp(part + 3 * PAGE, "last"),
	      "content of a part");
	CHECK(!has_guard || !readable(part + 2 * PAGE), "guard page in a part");
	CHECK(shmctl(ids[3], IPC_STAT, &ds) == 0 && ds.shm_segsz == 4 * PAGE, "size of a part");
	big = shmat(ids[2], NULL, 0);
	CHECK(big != (void *)-1 && !strcmp(big + BIG / 2, "in the middle") && !big[0],
	      "the big segment");
	if (big != (void *)-1)
		shmdt(big);
}

static void check_semaphores(void)
{
	unsigned short values[3] = { 0 };
	struct sembuf give = { 1, 1, IPC_NOWAIT };
	struct semid_ds ds = { 0 };

	CHECK(semget(KEY, 3, 0) == set, "the set has another number");
	CHECK(semctl(set, 0, GETALL, values) == 0, "semctl: %s", strerror(errno));
	CHECK(values[0] == 4 && values[1] == rounds && values[2] == 7, "values %u %u %u", values[0],
	      values[1], values[2]);
	CHECK(semctl(set, 0, IPC_STAT, &ds) == 0 && ds.sem_otime, "the set was never used");
	CHECK(semop(set, &give, 1) == 0, "semop: %s", strerror(errno));
}

static void check_queue(void)
{
	struct message m = { 0 };
	struct msqid_ds ds = { 0 };
	char *text = victim_read("/proc/sys/kernel/msgmax");

	CHECK(text && atoi(text) == 9000, "msgmax is %s", text);
	free(text);
	CHECK(msgget(KEY, 0) == queue, "the queue has another number");
	CHECK(msgctl(queue, IPC_STAT, &ds) == 0 && ds.msg_qnum == 3 &&
		      (ds.msg_perm.mode & 0777) == 0620,
	      "queue: %lu messages, mode %o", ds.msg_qnum, ds.msg_perm.mode);
	/* the first goes to the end */
	CHECK(msgrcv(queue, &m, sizeof(m.words), 0, IPC_NOWAIT) == sizeof(m.words) &&
		      m.type == (long)(rounds % 3) + 1 && m.words[3] == victim_word(rounds % 3, 3),
	      "message of type %ld", m.type);
	CHECK(msgsnd(queue, &m, sizeof(m.words), IPC_NOWAIT) == 0, "msgsnd: %s", strerror(errno));
}

static void check_sharing(void)
{
	unsigned long got = 0;

	removed[0] = victim_word(2, rounds);
	CHECK(write(to_grandchild[1], "", 1) == 1 &&
		      read(from_grandchild[0], &got, sizeof(got)) == sizeof(got) &&
		      got == removed[0],
	      "the grandchild does not share the removed segment");
}

static void check_namespace(void)
{
	check_segments();
	check_semaphores();
	check_held();
	check_queue();
	check_sharing();
	check_next();
	rounds++;
}

/* ---- tasks -------------------------------------------------------------------------------- */

static _Noreturn void in_namespace(void)
{
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	if (unshare(CLONE_NEWIPC) < 0)
		_exit(1);
	move_on();
	make_segments();
	make_others();
	make_held();
	pass_many();
	if (MUST(fork()) == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		while (read(to_grandchild[0], &c, 1) == 1)
			if (write(from_grandchild[1], removed, sizeof(*removed)) < 0)
				break;
		_exit(1);
	}
	MUST(write(from_child[1], "", 1));
	victim_answer(to_child[0], from_child[1], check_namespace);
}

static void check(void)
{
	static unsigned long own_rounds;

	victim_ask(to_child[1], from_child[0], "in the namespace");
	CHECK(own_segment[0] == own_rounds && own_segment[1000] == victim_word(3, 1000),
	      "the segment in the test's own namespace");
	own_segment[0] = ++own_rounds;
}

int main(int argc, char **argv)
{
	char c;

	victim_init(argc, argv);
	MUST(pipe(to_child));
	MUST(pipe(from_child));
	MUST(pipe(to_grandchild));
	MUST(pipe(from_grandchild));
	if (MUST(fork()) == 0)
		in_namespace();
	own_id = MUST(shmget(IPC_PRIVATE, 2 * PAGE, 0600));
	own_segment = attach(own_id, 0);
	own_segment[1000] = victim_word(3, 1000);
	MUST(shmctl(own_id, IPC_RMID, NULL));
	MUST(read(from_child[0], &c, 1));
	victim_ready();
	victim_serve(check);
}
