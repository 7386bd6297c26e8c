/* SPDX-License-Identifier: MIT
 *
 * Semaphores and message queues of the namespace that the test runs in, which nobody else uses: a
 * pool that two processes take from, one of them with SEM_UNDO; an exclusive lock by its key; a
 * full queue between them, and an empty one. Who used each of them last stays so. In every other
 * round the machine has lost them meanwhile, as by a reboot.
 */
/* test: between=ipcrm --all=sem; ipcrm --all=msg */
#include "victim.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL = 5, OWNER = 1000, ROOM = 64 };

struct message {
	long type;
	unsigned long words[2];
};

static int pool, lock, full, empty, from_other[2];
static key_t key;
static pid_t other;
static unsigned long rounds;

/* ---- the other process ------------------------------------------------------------------- */

static void send(int queue, long type, unsigned long seed)
{
	struct message m = { type, { victim_word(seed, 0), victim_word(seed, 1) } };

	MUST(msgsnd(queue, &m, sizeof(m.words), IPC_NOWAIT));
}

/* It has one of the pool, and will give back three when it ends. */
static _Noreturn void serve(void)
{
	struct sembuf take[] = { { 0, -3, SEM_UNDO }, { 1, 1, 0 } };

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	MUST(semop(pool, take, 2));
	for (unsigned long i = 0; i < 4; i++)
		send(full, (long)i + 1, i);
	send(empty, 1, 9);
	MUST(write(from_other[1], "", 1));
	for (;;)
		pause();
}

static void start_other(void)
{
	char c;

	other = MUST(fork());
	if (other == 0)
		serve();
	MUST(read(from_other[0], &c, 1) == 1 ? 0 : -1);
}

/* ---- building ---------------------------------------------------------------------------- */

static void make_sets(void)
{
	unsigned short values[POOL] = { 10, 0, 7 };
	struct semid_ds ds;
	struct sembuf held = { 0, 1, 0 };

	pool = MUST(semget(IPC_PRIVATE, POOL, 0600));
	MUST(semctl(pool, 0, SETALL, values));
	MUST(semctl(pool, 0, IPC_STAT, &ds));
	ds.sem_perm.uid = OWNER;
	ds.sem_perm.mode = 0640;
	MUST(semctl(pool, 0, IPC_SET, &ds));
	lock = MUST(semget(key, 1, IPC_CREAT | IPC_EXCL | 0600));
	MUST(semop(lock, &held, 1));
}

static void make_queues(void)
{
	struct msqid_ds ds;

	full = MUST(msgget(key, IPC_CREAT | IPC_EXCL | 0600));
	MUST(msgctl(full, IPC_STAT, &ds));
	ds.msg_qbytes = ROOM;
	MUST(msgctl(full, IPC_SET, &ds));
	empty = MUST(msgget(IPC_PRIVATE, 0600));
}

/* ---- judging ----------------------------------------------------------------------------- */

static void check_sets(void)
{
	unsigned short values[POOL] = { 0 };
	struct sembuf give = { 2, 1, IPC_NOWAIT };
	struct semid_ds ds = { 0 };

	CHECK(semctl(pool, 0, GETALL, values) == 0, "semaphores: %s", strerror(errno));
	CHECK(values[0] == 7 && values[1] == rounds + 1 && values[2] == 7 + rounds,
	      "semaphores: %u %u %u", values[0], values[1], values[2]);
	CHECK(semctl(pool, 0, IPC_STAT, &ds) == 0 && ds.sem_perm.uid == OWNER &&
		      (ds.sem_perm.mode & 0777) == 0640,
	      "semaphores: owner %u, mode %o", ds.sem_perm.uid, ds.sem_perm.mode);
	CHECK(semctl(pool, 0, GETPID) == other && semctl(pool, 2, GETPID) == getpid(),
	      "semaphores were used by %d and %d, not %d and %d", semctl(pool, 0, GETPID),
	      semctl(pool, 2, GETPID), other, getpid());
	CHECK(semop(pool, &give, 1) == 0, "semop: %s", strerror(errno));
	CHECK(semget(key, 1, 0) == lock && semctl(lock, 0, GETVAL) == 1, "the lock is %d",
	      semctl(lock, 0, GETVAL));
	CHECK(semctl(lock, 0, IPC_STAT, &ds) == 0 && ds.sem_otime, "the lock was never used");
}

static void check_queues(void)
{
	struct message m = { 0 };
	struct msqid_ds ds = { 0 };

	CHECK(msgget(key, 0) == full && msgctl(full, IPC_STAT, &ds) == 0, "queue: %s",
	      strerror(errno));
	CHECK(ds.msg_qnum == 4 && ds.msg_qbytes == ROOM && ds.msg_lspid == other &&
		      ds.msg_lrpid == (rounds ? getpid() : 0),
	      "queue: %lu messages, %lu bytes, used by %d and %d", ds.msg_qnum, ds.msg_qbytes,
	      ds.msg_lspid, ds.msg_lrpid);
	for (unsigned long i = 0; i < 4; i++) {
		CHECK(msgrcv(full, &m, sizeof(m.words), 0, IPC_NOWAIT) == sizeof(m.words) &&
			      m.type == (long)i + 1 && m.words[1] == victim_word(i, 1),
		      "message %lu: type %ld", i, m.type);
	}
	CHECK(msgrcv(empty, &m, sizeof(m.words), 0, IPC_NOWAIT) == sizeof(m.words) &&
		      m.words[0] == victim_word(9, 0),
	      "the message of the other queue");
	CHECK(msgrcv(empty, &m, sizeof(m.words), 0, IPC_NOWAIT) < 0 && errno == ENOMSG,
	      "a message too many");
}

/* Its end gives back what it has taken. */
static void check_end(void)
{
	unsigned short values[POOL] = { 0 };
	int status;

	MUST(kill(other, SIGKILL));
	MUST(waitpid(other, &status, 0));
	CHECK(semctl(pool, 0, GETALL, values) == 0 && values[0] == 10, "after its end: %u",
	      values[0]);
}

static void check(void)
{
	check_sets();
	if (semctl(pool, 0, GETVAL) < 0)
		return;
	check_queues();
	check_end();
	start_other();
	rounds++;
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	key = 0x5e000000 | getpid();
	MUST(pipe(from_other));
	make_sets();
	make_queues();
	start_other();
	victim_ready();
	victim_serve(check);
}
