/* SPDX-License-Identifier: MIT */
/*
 * Which number the next System V object gets. The kernel has for each kind the place that was given
 * last and how often it began anew at the first place (ipc/util.c), and shows neither: one has to
 * make an object. A restore makes and removes them until the kernel stands where it stood.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>

#include "ipc.h"

#define KINDS  3
#define SHIFT  15 /* a number is the turn, and below it the place */
#define PLACES (1 << SHIFT)
#define TURNS  65535 /* the kernel begins anew with 0 */
#define CYCLE  64    /* a turn has so many places, or 1.5 times as many as there are objects */
#define FEW    43    /* so many objects leave a turn of CYCLE places its fewest free ones */

static int make_segment(void)
{
	return shmget(IPC_PRIVATE, 1, 0600);
}

static int drop_segment(int number)
{
	return shmctl(number, IPC_RMID, NULL);
}

static int make_set(void)
{
	return semget(IPC_PRIVATE, 1, 0600);
}

static int drop_set(int number)
{
	return semctl(number, 0, IPC_RMID);
}

static int make_queue(void)
{
	return msgget(IPC_PRIVATE, 0600);
}

static int drop_queue(int number)
{
	return msgctl(number, IPC_RMID, NULL);
}

static const struct kind {
	const char *name, *record;
	int (*make)(void);
	int (*drop)(int number);
} kinds[KINDS] = {
	{ "shm", "ipc.segment", make_segment, drop_segment },
	{ "sem", "ipc.semaphores", make_set, drop_set },
	{ "msg", "ipc.queue", make_queue, drop_queue },
};

/* What is only made for its number must not stay because one call failed. */
static void drop(const struct kind *k, int number)
{
	for (int tries = 0; number >= 0 && k->drop(number) && tries < 2; tries++)
		;
}

void ipc_drop(const char *kind, int number)
{
	for (size_t i = 0; i < KINDS; i++) {
		if (strcmp(kinds[i].name, kind) != 0)
			continue;
		/* what was asked for and not given would go to whoever asks next */
		if (number < 0)
			number = kinds[i].make();
		drop(&kinds[i], number);
	}
}

/* ---- dump ------------------------------------------------------------------------------- */

struct look {
	int fd;
	int *next; /* in shared memory, by kind; -1: it could not be told */
};

/* In a child that ends what it has begun, also if ckpt is killed meanwhile. */
static int look(void *arg)
{
	const struct look *l = arg;

	if (setns(l->fd, CLONE_NEWIPC))
		return -errno;
	for (size_t i = 0; i < KINDS; i++) {
		l->next[i] = kinds[i].make();
		drop(&kinds[i], l->next[i]);
	}
	return 0;
}

static const Ckpt__Ipc__Object *object(struct ckpt_run *run, const struct kind *k, size_t i)
{
	const void *rec = ckpt_record_at(run, k->record, i);

	if (k == &kinds[0])
		return ((const Ckpt__Ipc__Segment *)rec)->object;
	return k == &kinds[1] ? ((const Ckpt__Ipc__Semaphores *)rec)->object
			      : ((const Ckpt__Ipc__Queue *)rec)->object;
}

/* The objects of a namespace by their places; -1: there is none. */
struct places {
	int number[PLACES];
	int n, greatest;
};

static void list_places(struct ckpt_run *run, const struct kind *k, uint32_t ns, struct places *out)
{
	memset(out->number, -1, sizeof(out->number));
	out->n = 0;
	out->greatest = -1;
	for (size_t i = 0; i < ckpt_record_count(run, k->record); i++) {
		const Ckpt__Ipc__Object *o = object(run, k, i);
		int number = (int)o->number;

		if (o->ns != ns)
			continue;
		out->number[number % PLACES] = number;
		out->n++;
		if (number > out->greatest && number < TURNS * PLACES)
			out->greatest = number;
	}
}

/* Of the places below `below` the last one that this turn has come by, as a number. */
static int last_of_turn(const struct places *p, int turn, int below)
{
	for (int i = below - 1; i >= 0; i--)
		if (p->number[i] < 0 || p->number[i] >> SHIFT == turn)
			return turn << SHIFT | i;
	return -1;
}

/*
 * What was given last, if `next` is what comes: the place before it, unless an object of an
 * earlier turn has that, which was gone by.
 */
static int last_before(const struct places *p, int next)
{
	const int turn = next >> SHIFT, last = last_of_turn(p, turn, next % PLACES);
	int most = p->n * 3 / 2;

	if (last >= 0 || !turn)
		return last;
	most = most < CYCLE ? CYCLE : most;
	return last_of_turn(p, turn - 1, most < PLACES ? most : PLACES);
}

/* With ipcmni_extend on the kernel's command line numbers are divided elsewhere. */
static bool divided_elsewhere(void)
{
	CKPT_AUTO_FD int fd = open("/proc/cmdline", O_RDONLY | O_CLOEXEC);
	char text[4096] = "";

	return fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && strstr(text, "ipcmni_extend");
}

static int put(struct ckpt_run *run, const struct ckpt_ns *ns, int *next, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct places *p = malloc(sizeof(*p));
	Ckpt__Ipc__Counters rec = CKPT__IPC__COUNTERS__INIT;
	int32_t *const last[KINDS] = { &rec.shm, &rec.sem, &rec.msg };
	int r = 0;

	if (!p)
		return ckpt_fail_sys(err, ENOMEM, "places of objects");
	for (size_t i = 0; i < KINDS; i++)
		next[i] = -1;
	/* a tree that goes on would miss a number */
	if (ckpt_run_kind(run) == CKPT_DUMP && ckpt_kills(run))
		r = ckpt_run_holding(run, look, &(struct look){ ns->fd, next },
				     "the next numbers of System V objects", err);
	for (size_t i = 0; i < KINDS && r == 0; i++) {
		list_places(run, &kinds[i], ns->id, p);
		*last[i] = next[i] < 0 ? p->greatest : last_before(p, next[i]);
	}
	rec.id = ns->id;
	return r < 0 ? ckpt_wrap(err, "%s", ns->name)
		     : ckpt_record_put(run, IPC_REC_COUNTERS, &rec.base, err);
}

/* As late as possible: a dump that fails after this has used up numbers. */
int ipc_put_counters(struct ckpt_run *run, struct ckpt_error *err)
{
	int *next, r = 0;

	if (!ckpt_feature_on(run, "counters") || divided_elsewhere())
		return 0;
	next = mmap(NULL, KINDS * sizeof(*next), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
		    -1, 0);
	if (next == MAP_FAILED)
		return ckpt_fail_sys(err, errno, "mmap(2)");
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.namespace") && r == 0; i++) {
		const Ckpt__Ipc__Namespace *rec = ckpt_record_at(run, "ipc.namespace", i);

		r = put(run, ckpt_ns_by_id(run, rec->id), next, err);
	}
	munmap(next, KINDS * sizeof(*next));
	return r;
}

/* ---- restore, in a namespace without objects ------------------------------------------------- */

struct heap {
	const struct kind *kind;
	int *numbers;
	int n;
};

static void drop_all(struct heap *h, int but)
{
	while (h->n > but)
		h->kind->drop(h->numbers[--h->n]);
}

/* Have objects in the first `n` places. */
static int fill(struct heap *h, int n, int turn, struct ckpt_error *err)
{
	while (h->n < n) {
		int number = h->kind->make(), want = turn << SHIFT | h->n;

		if (number < 0)
			return ckpt_fail_sys(err, errno, "%sget(2)", h->kind->name);
		h->numbers[h->n++] = number;
		if (number != want)
			return ckpt_fail(err, EPROTO, "%sget(2) gave %d instead of %d",
					 h->kind->name, number, want);
	}
	return 0;
}

/*
 * As if `turns` turns had passed. A turn takes an object for each free place, so as many as
 * possible are occupied. That is either all places but 21 of the CYCLE ones, or, where that
 * takes longer, all but one of those that there can be.
 */
static int pass_turns(struct heap *h, int turns, struct ckpt_error *err)
{
	bool all = (CYCLE - FEW) * (long)turns > PLACES + turns;
	int r = fill(h, all ? PLACES - 1 : FEW, 0, err), end, number = -1;
	long left;

	if (r < 0 && all && h->n >= FEW) {
		/* the namespace's limits allow fewer */
		*err = (struct ckpt_error){ 0 };
		drop_all(h, FEW);
		all = false;
		r = 0;
	}
	end = (turns - 1) << SHIFT | (all ? PLACES - 1 : CYCLE - 1);
	left = (all ? 1 : CYCLE - FEW) * (long)turns;
	while (r == 0 && number != end && left-- > 0) {
		number = h->kind->make();
		if (number < 0)
			r = ckpt_fail_sys(err, errno, "%sget(2)", h->kind->name);
		else
			h->kind->drop(number);
	}
	drop_all(h, 0);
	if (r == 0 && number != end)
		r = ckpt_fail(err, EPROTO, "%sget(2) came to %d instead of %d", h->kind->name,
			      number, end);
	return r;
}

static int bring_to(struct heap *h, int last, struct ckpt_error *err)
{
	const int turns = last >> SHIFT;
	int r = turns ? pass_turns(h, turns, err) : 0;

	if (r == 0)
		r = fill(h, last % PLACES + 1, turns, err);
	drop_all(h, 0);
	return r;
}

static int bring_all(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Counters *rec = arg;
	const int32_t last[KINDS] = { rec->shm, rec->sem, rec->msg };
	CKPT_AUTO_FREE int *numbers = calloc(PLACES, sizeof(*numbers));
	int r = numbers ? 0 : ckpt_fail_sys(err, ENOMEM, "places of objects");

	for (size_t i = 0; i < KINDS && r == 0; i++)
		if (last[i] >= 0)
			r = bring_to(&(struct heap){ &kinds[i], numbers, 0 }, last[i], err);
	return r < 0 ? ckpt_wrap(err, "the next numbers of System V objects") : 0;
}

int ipc_set_counters(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Ipc__Counters *rec = ckpt_record_by_id(run, "ipc.counters", ns->id);

	return rec ? ipc_in(run, ns, bring_all, (void *)(uintptr_t)rec, err) : 0;
}

static bool is_number(int32_t n)
{
	return n >= -1 && n < TURNS * PLACES;
}

int ipc_plan_counters(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.counters", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.counters") && r == 0; i++) {
		const Ckpt__Ipc__Counters *c = ckpt_record_at(run, "ipc.counters", i);

		if (!is_number(c->shm) || !is_number(c->sem) || !is_number(c->msg))
			r = ckpt_fail_image(err, "ipc namespace %u: numbers %d, %d, %d", c->id,
					    c->shm, c->sem, c->msg);
	}
	return r;
}
