/* SPDX-License-Identifier: MIT */
/*
 * What the kernel keeps with an address space, beside memory: what membarrier(2) was registered
 * with, and the segments of modify_ldt(2).
 */
#include <asm/ldt.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <sys/syscall.h>

#include "task.h"

/* ---- barriers ----------------------------------------------------------------- */

/* Linux 6.3 */
#define GET_REGISTRATIONS (1 << 9)

/* A barrier of a kind that a process has not registered with is EPERM. */
static const struct {
	uint32_t registration;
	int barrier;
} barriers[] = {
	{ MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, MEMBARRIER_CMD_PRIVATE_EXPEDITED },
	{ MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE,
	  MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE },
	{ MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ, MEMBARRIER_CMD_PRIVATE_EXPEDITED_RSEQ },
};
#define REGISTRATIONS                                                                           \
	(MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED | MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED | \
	 MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE |                                  \
	 MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_RSEQ)

static long membarrier(int command)
{
	return syscall(SYS_membarrier, command, 0, 0);
}

static void ask_barriers(struct ckpt_script *s, struct task_space_asked *asked)
{
	asked->registered = asked->tried = -1;
	if (membarrier(GET_REGISTRATIONS) >= 0) {
		asked->registered = ckpt_script_add(s, SYS_membarrier, CKPT_C(GET_REGISTRATIONS),
						    CKPT_C(0), CKPT_C(0));
		return;
	}
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(barriers); i++) {
		int op = ckpt_script_add(s, SYS_membarrier, CKPT_C(barriers[i].barrier), CKPT_C(0),
					 CKPT_C(0));

		ckpt_script_any(s);
		asked->tried = i ? asked->tried : op;
	}
}

static uint32_t take_barriers(struct ckpt_run *run, const struct ckpt_task *t,
			      const struct ckpt_script *s, const struct task_space_asked *asked)
{
	uint32_t have = 0;

	if (asked->registered >= 0)
		have = (uint32_t)ckpt_script_result(s, asked->registered);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(barriers) && asked->tried >= 0; i++)
		if (!ckpt_script_result(s, asked->tried + (int)i))
			have |= barriers[i].registration;
	if (have && !task_want(run, TASK_MEMBARRIER, t, "registration for membarrier(2)"))
		return 0;
	/*
	 * Nobody can ask whether a process takes part in the barriers of others. One that does
	 * for nothing costs them a little, one that does not corrupts memory.
	 */
	if (asked->tried >= 0 && ckpt_feature_on(run, task_features[TASK_MEMBARRIER].name) &&
	    membarrier(MEMBARRIER_CMD_QUERY) > 0)
		have |= MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED;
	return have;
}

static int plan_barriers(struct ckpt_run *run, const Ckpt__Task__Process *rec,
			 struct ckpt_error *err)
{
	long known = rec->barriers ? membarrier(MEMBARRIER_CMD_QUERY) : 0;

	if (rec->barriers & ~(uint32_t)REGISTRATIONS)
		return TASK_BAD(err, "registration %#x for membarrier(2)", rec->barriers);
	if (rec->barriers && (known < 0 || rec->barriers & ~(uint32_t)known))
		ckpt_unmet(run, CKPT_EXIT_FAILED, "restore on a kernel that has them",
			   "task %u: barriers of membarrier(2) that this kernel has not (%#x)",
			   rec->id, rec->barriers);
	return 0;
}

static void set_barriers(struct ckpt_script *s, const Ckpt__Task__Process *rec)
{
	for (uint32_t bit = 1; bit && bit <= rec->barriers; bit <<= 1)
		if (rec->barriers & bit)
			ckpt_script_add(s, SYS_membarrier, CKPT_C(bit), CKPT_C(0), CKPT_C(0));
}

/* ---- segments ------------------------------------------------------------------- */

enum { LDT_READ = 0, LDT_WRITE = 0x11 };
#define LDT_BYTES (LDT_ENTRIES * LDT_ENTRY_SIZE)
/* All of it is more than one buffer of an operation may be, but several lie behind each other. */
#define LDT_PART (LDT_BYTES / 2)
_Static_assert(LDT_PART == 32768, "two buffers, of the size that there may be");

/* As the processor has them (struct desc_struct). */
static uint64_t descriptor(const struct user_desc *d)
{
	const uint64_t base = d->base_addr, limit = d->limit;

	return (limit & 0xffff) | (base & 0xffffff) << 16 | 1ULL << 40 /* accessed */ |
	       (uint64_t)!d->read_exec_only << 41 | (uint64_t)d->contents << 42 |
	       1ULL << 44 /* code or data */ | 3ULL << 45 /* of user space */ |
	       (uint64_t)!d->seg_not_present << 47 | (limit >> 16 & 0xf) << 48 |
	       (uint64_t)d->useable << 52 | (uint64_t)d->seg_32bit << 54 |
	       (uint64_t)d->limit_in_pages << 55 | (base >> 24) << 56;
}

static struct user_desc user_desc(const Ckpt__Task__Segment *m)
{
	const uint64_t v = m->descriptor;

	return (struct user_desc){
		.entry_number = m->number,
		.base_addr = (unsigned)((v >> 16 & 0xffffff) | (v >> 56) << 24),
		.limit = (unsigned)((v & 0xffff) | (v >> 48 & 0xf) << 16),
		.seg_32bit = v >> 54 & 1,
		.contents = v >> 42 & 3,
		.read_exec_only = !(v >> 41 & 1),
		.limit_in_pages = v >> 55 & 1,
		.seg_not_present = !(v >> 47 & 1),
		.useable = v >> 52 & 1,
	};
}

void task_segments_free(struct task_segments *s)
{
	free(s->entry);
	free(s->list);
}

static int take_segments(const uint64_t *table, Ckpt__Task__Process *rec,
			 struct task_segments *segments, struct ckpt_error *err)
{
	segments->entry = calloc(LDT_ENTRIES, sizeof(*segments->entry));
	segments->list = calloc(LDT_ENTRIES, sizeof(*segments->list));
	if (!segments->entry || !segments->list)
		return ckpt_fail_sys(err, ENOMEM, "segments");
	for (uint32_t i = 0; i < LDT_ENTRIES; i++) {
		Ckpt__Task__Segment *m = &segments->entry[rec->n_segments];

		if (!table[i])
			continue;
		ckpt__task__segment__init(m);
		m->number = i;
		m->descriptor = table[i];
		segments->list[rec->n_segments++] = m;
	}
	rec->segments = segments->list;
	return 0;
}

static int read_segments(struct ckpt_run *run, const struct ckpt_task *t, Ckpt__Task__Process *rec,
			 struct task_segments *segments, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "task.ldt");
	CKPT_AUTO_FREE uint64_t *table = malloc(LDT_BYTES);
	/* the fourth argument is for its room only */
	int op = ckpt_script_add(s, SYS_modify_ldt, CKPT_C(LDT_READ), CKPT_OUT(LDT_PART),
				 CKPT_C(LDT_BYTES), CKPT_OUT(LDT_PART));
	int r = table ? ckpt_script_run(s, t->threads[0], err)
		      : ckpt_fail_sys(err, ENOMEM, "segments");

	if (r < 0)
		return r;
	memcpy(table, ckpt_script_out(s, op, 1), LDT_PART);
	memcpy((char *)table + LDT_PART, ckpt_script_out(s, op, 3), LDT_PART);
	return take_segments(table, rec, segments, err);
}

static int plan_segments(struct ckpt_run *run, const Ckpt__Task__Process *rec,
			 struct ckpt_error *err)
{
	uint64_t none;

	for (size_t i = 0; i < rec->n_segments; i++) {
		const Ckpt__Task__Segment *m = rec->segments[i];
		const struct user_desc d = user_desc(m);

		/* nothing but what modify_ldt(2) makes: no gates, nothing of the kernel's */
		if (m->number >= LDT_ENTRIES || descriptor(&d) != m->descriptor ||
		    (i && m->number <= rec->segments[i - 1]->number) ||
		    (d.contents == 3 && !d.seg_not_present))
			return TASK_BAD(err, "segment %u", m->number);
	}
	if (rec->n_segments && (int)syscall(SYS_modify_ldt, LDT_READ, &none, sizeof(none)) < 0)
		ckpt_unmet(run, CKPT_EXIT_FAILED, "restore on a kernel with modify_ldt(2)",
			   "task %u: segments, and this kernel has no modify_ldt(2)", rec->id);
	return 0;
}

static void set_segments(struct ckpt_script *s, const Ckpt__Task__Process *rec)
{
	for (size_t i = 0; i < rec->n_segments; i++) {
		const struct user_desc d = user_desc(rec->segments[i]);

		ckpt_script_add(s, SYS_modify_ldt, CKPT_C(LDT_WRITE), CKPT_IN(&d, sizeof(d)),
				CKPT_C(sizeof(d)));
		ckpt_script_expect(s, 0);
	}
}

/* ---- both ------------------------------------------------------------------------ */

void task_space_ask(struct ckpt_script *s, struct task_space_asked *asked)
{
	ask_barriers(s, asked);
	/* 0: there is no table */
	asked->ldt = ckpt_script_add(s, SYS_modify_ldt, CKPT_C(LDT_READ), CKPT_OUT(LDT_ENTRY_SIZE),
				     CKPT_C(LDT_ENTRY_SIZE));
	ckpt_script_any(s);
}

int task_space_take(struct ckpt_run *run, const struct ckpt_task *t, const struct ckpt_script *s,
		    const struct task_space_asked *asked, Ckpt__Task__Process *rec,
		    struct task_segments *segments, struct ckpt_error *err)
{
	rec->barriers = take_barriers(run, t, s, asked);
	/* the call gives an int, and the kernel does not extend its sign */
	if ((int32_t)ckpt_script_result(s, asked->ldt) <= 0 ||
	    !task_want(run, TASK_LDT, t, "segments of modify_ldt(2)"))
		return 0;
	return read_segments(run, t, rec, segments, err);
}

int task_space_plan(struct ckpt_run *run, const Ckpt__Task__Process *rec, struct ckpt_error *err)
{
	int r = plan_barriers(run, rec, err);

	return r < 0 ? r : plan_segments(run, rec, err);
}

/* Before there are threads: with them each registration takes a grace period, some 10 ms. */
int task_seal_space(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_record_count(run, "task.process"); i++) {
		const Ckpt__Task__Process *rec = ckpt_record_at(run, "task.process", i);
		struct ckpt_task *t = ckpt_task_by_id(run, rec->id);
		struct ckpt_script *s;
		int r;

		if (!rec->barriers && !rec->n_segments)
			continue;
		if (!t)
			return ckpt_fail(err, ESRCH, "task %u was not made", rec->id);
		s = ckpt_script_new(run, "task.space");
		set_barriers(s, rec);
		set_segments(s, rec);
		r = ckpt_script_post(s, t->threads[0], err);
		if (r < 0)
			return ckpt_wrap(err, "task %u", rec->id);
	}
	return 0;
}
