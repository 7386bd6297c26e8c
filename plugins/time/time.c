/* SPDX-License-Identifier: MIT */
/* The plugin time: the clocks of time namespaces, which go on where they stopped. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>

#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "time.pb-c.h"

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })

enum { TIME_REC_CLOCKS = 1 };

#define NS_PER_S  1000000000LL
#define MAX_CLOCK (INT64_MAX / 2) /* the kernel's KTIME_MAX / 2 */

struct clocks {
	int64_t monotonic, boottime;
};

static int64_t read_clock(clockid_t clock)
{
	struct timespec ts = { 0 };

	clock_gettime(clock, &ts);
	return ts.tv_sec * NS_PER_S + ts.tv_nsec;
}

/* ---- dump --------------------------------------------------------------------------- */

static int parse_offsets(const char *text, struct clocks *out, struct ckpt_error *err)
{
	long long m_s, m_ns, b_s, b_ns;

	if (sscanf(text, "monotonic %lld %lld boottime %lld %lld", &m_s, &m_ns, &b_s, &b_ns) != 4)
		return ckpt_fail(err, EPROTO, "timens_offsets: \"%.40s\"", text);
	out->monotonic = m_s * NS_PER_S + m_ns;
	out->boottime = b_s * NS_PER_S + b_ns;
	return 0;
}

/* In a copy of ckpt that has joined the namespace: only descriptors lead back. */
static int tell_offsets(void *arg, struct ckpt_error *err)
{
	const int *to = arg;
	CKPT_AUTO_FD int fd = open("/proc/self/timens_offsets", O_RDONLY | O_CLOEXEC);
	char text[256];
	ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text));

	if (n < 0 || write(*to, text, (size_t)n) != n)
		return ckpt_fail_sys(err, errno, "/proc/self/timens_offsets");
	return 0;
}

static int offsets_inside(struct ckpt_run *run, const struct ckpt_ns *ns, struct clocks *out,
			  struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_TIME] = ns, .copy = true };
	CKPT_AUTO_FD int from = -1;
	CKPT_AUTO_FD int to = -1;
	char text[256] = "";
	int ends[2], r;

	if (pipe2(ends, O_CLOEXEC | O_NONBLOCK))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	from = ends[0];
	to = ends[1];
	r = ckpt_ns_run(run, &place, tell_offsets, &to, err);
	if (r < 0)
		return r;
	if (read(from, text, sizeof(text) - 1) < 0)
		return ckpt_fail_sys(err, errno, "offsets of the %s", ns->name);
	return parse_offsets(text, out, err);
}

/* A task's file shows the offsets that its children will have. */
static int offsets_of(struct ckpt_run *run, const struct ckpt_ns *ns, struct clocks *out,
		      struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		CKPT_AUTO_FREE char *text = NULL;

		if (t->zombie || ckpt_ns_seat(run, t->id, 0)->time_for_children != ns)
			continue;
		return ckpt_proc_read(t, "timens_offsets", &text, err) < 0
			       ? -err->err
			       : parse_offsets(text, out, err);
	}
	return offsets_inside(run, ns, out, err);
}

static int put(struct ckpt_run *run, uint32_t id, const struct clocks *offsets,
	       struct ckpt_error *err)
{
	Ckpt__Time__Clocks rec = CKPT__TIME__CLOCKS__INIT;

	rec.id = id;
	rec.monotonic_ns = read_clock(CLOCK_MONOTONIC) + offsets->monotonic;
	rec.boottime_ns = read_clock(CLOCK_BOOTTIME) + offsets->boottime;
	return ckpt_record_put(run, TIME_REC_CLOCKS, &rec.base, err);
}

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct clocks offsets = { 0 }, own = { 0 };
	CKPT_AUTO_FREE char *text = NULL;
	size_t cap = 0;
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/timens_offsets", "re");
	int r = offsets_of(run, ns, &offsets, err);

	/* what ckpt's own clocks show has its own offsets in it */
	if (r == 0 && f && getdelim(&text, &cap, 0, f) > 0)
		r = parse_offsets(text, &own, err);
	if (r == 0 && f && ferror(f))
		r = ckpt_fail(err, EIO, "/proc/self/timens_offsets");
	if (r < 0)
		return r;
	offsets.monotonic -= own.monotonic;
	offsets.boottime -= own.boottime;
	return put(run, ns->id, &offsets, err);
}

/* For a restore that shall let them go on for tasks without such a namespace. */
static int collect_own(struct ckpt_run *run, struct ckpt_error *err)
{
	return put(run, ckpt_ns_own(run, CKPT_NS_TIME)->id, &(struct clocks){ 0 }, err);
}

/* ---- a namespace that a task has made for its children -------------------------------- */

static void refuse_children(struct ckpt_run *run, const struct ckpt_task *t, const char *reason)
{
	ckpt_refuse(run, &(struct ckpt_blocker){
				 .feature = "children",
				 .task = t,
				 .object = "time namespace for its children",
				 .reason = reason,
				 .hint = "let the process that unshared it end before the dump",
			 });
}

static int survey(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	(void)err;
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, t->id, 0);
		bool has = seat->time_for_children == ns && seat->ns[CKPT_NS_TIME] != ns;
		bool apart = false;
		size_t n;

		if (has &&
		    ckpt_refuse_off(run, "children", t, "time namespace for its children") == 1 &&
		    !ckpt_ns_maker(run, ns, &n))
			refuse_children(run, t, "several processes have it for their children");
		/* it would have to make it, while its namespaces are given to the whole task */
		for (size_t k = 1; k < ckpt_ns_seats(run, t->id); k++)
			apart |= (ckpt_ns_seat(run, t->id, k)->time_for_children == ns) !=
				 (seat->time_for_children == ns);
		if (apart)
			refuse_children(run, t, "one of its threads alone has made it");
	}
	return 0;
}

/* ---- restore ----------------------------------------------------------------------------- */

static const Ckpt__Time__Clocks *record(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	return ckpt_record_need(run, "time.clocks", id, err);
}

/* Who shall make it must be there before it, and so must the namespace that this task is in. */
static int check_makers(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns *at = ns;

	for (size_t i = 0, n; i <= ckpt_ns_count(run); i++) {
		uint32_t id = ckpt_ns_maker(run, at, &n);
		const struct ckpt_ns_seat *seat = ckpt_ns_seat(run, id, 0);

		if (!id)
			return 0;
		if (!ckpt_ns_below(seat->ns[CKPT_NS_USER], at->owner))
			return ckpt_fail_image(err, "%s: task %u is not below its owner", at->name,
					       id);
		at = seat->ns[CKPT_NS_TIME];
	}
	return ckpt_fail_image(err, "%s: it is made by a task that is in it", ns->name);
}

static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Time__Clocks *rec;
	int r = ckpt_record_order(run, "time.clocks", err);

	if (r < 0)
		return r;
	rec = record(run, ns->id, err);
	if (!rec)
		return -err->err;
	if (rec->monotonic_ns < 0 || rec->monotonic_ns > MAX_CLOCK || rec->boottime_ns < 0 ||
	    rec->boottime_ns > MAX_CLOCK)
		return ckpt_fail_image(err, "clocks at %lld and %lld ns",
				       (long long)rec->monotonic_ns, (long long)rec->boottime_ns);
	return check_makers(run, ns, err);
}

/* The kernel wants nanoseconds that are not negative. */
static void split(int64_t ns, long long *s, long long *rest)
{
	*s = ns / NS_PER_S;
	*rest = ns % NS_PER_S;
	if (*rest < 0) {
		*rest += NS_PER_S;
		--*s;
	}
}

/* Offsets are those to the clocks of the machine. */
static int set_clocks(const char *path, const Ckpt__Time__Clocks *rec, const struct clocks *machine,
		      struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);
	long long m_s, m_ns, b_s, b_ns;
	char text[128];
	int n;

	split(rec->monotonic_ns - machine->monotonic, &m_s, &m_ns);
	split(rec->boottime_ns - machine->boottime, &b_s, &b_ns);
	n = snprintf(text, sizeof(text), "monotonic %lld %lld\nboottime %lld %lld\n", m_s, m_ns,
		     b_s, b_ns);
	if (fd < 0 || write(fd, text, (size_t)n) != n)
		return ckpt_fail_sys(err, errno, "writing \"%lld.%09lld, %lld.%09lld\" to %s", m_s,
				     m_ns, b_s, b_ns, path);
	return 0;
}

static int machine_clocks(struct clocks *out, struct ckpt_error *err)
{
	CKPT_AUTO_FILE FILE *f = fopen("/proc/self/timens_offsets", "re");
	CKPT_AUTO_FREE char *text = NULL;
	struct clocks own = { 0 };
	size_t cap = 0;
	int r = 0;

	if (f && getdelim(&text, &cap, 0, f) > 0)
		r = parse_offsets(text, &own, err);
	out->monotonic = read_clock(CLOCK_MONOTONIC) - own.monotonic;
	out->boottime = read_clock(CLOCK_BOOTTIME) - own.boottime;
	return r;
}

struct job {
	const Ckpt__Time__Clocks *rec;
	struct clocks machine;
	int fd;
};

static int make_here(void *arg, struct ckpt_error *err)
{
	struct job *j = arg;
	int r;

	if (unshare(CLONE_NEWTIME))
		return ckpt_fail_sys(err, errno, "unshare(2)");
	r = set_clocks("/proc/self/timens_offsets", j->rec, &j->machine, err);
	if (r < 0)
		return r;
	j->fd = open("/proc/self/ns/time_for_children", O_RDONLY | O_CLOEXEC);
	return j->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/self/ns/time_for_children") : 0;
}

static int make(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_USER] = ns->owner };
	struct job j = { .rec = record(run, ns->id, err), .fd = -1 };
	size_t n;
	int r;

	if (!j.rec)
		return -err->err;
	if (ckpt_feature_on(run, "children") && ckpt_ns_maker(run, ns, &n))
		return 0;
	r = machine_clocks(&j.machine, err);
	if (r == 0)
		r = ckpt_ns_run(run, &place, make_here, &j, err);
	ns->fd = j.fd;
	return r;
}

/*
 * Nothing but unshare(2) gives a task another time namespace for its children than
 * for itself; those that are in it already join what it has made.
 */
static int make_in(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_task *t,
		   struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "time.unshare");
	const Ckpt__Time__Clocks *rec = record(run, ns->id, err);
	struct clocks machine;
	char path[64];
	int r;

	if (!rec)
		return -err->err;
	ckpt_script_add(s, SYS_unshare, CKPT_C(CLONE_NEWTIME));
	r = ckpt_script_run(s, t->threads[0], err);
	if (r == 0)
		r = machine_clocks(&machine, err);
	if (r < 0)
		return r;
	snprintf(path, sizeof(path), "/proc/%d/timens_offsets", (int)t->pid);
	r = set_clocks(path, rec, &machine, err);
	if (r < 0)
		return r;
	ns->fd = openat(t->procfd, "ns/time_for_children", O_RDONLY | O_CLOEXEC);
	return ns->fd < 0 ? ckpt_fail_sys(err, errno, "/proc/%d/ns/time_for_children", (int)t->pid)
			  : 0;
}

/* Those that are not late, so that others can hold them. */
static int make_early(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; i < ckpt_ns_count(run) && r == 0; i++) {
		struct ckpt_ns *ns = ckpt_ns_at(run, i);
		struct ckpt_task *t;
		size_t n;

		if (ns->type != CKPT_NS_TIME || ns->own || ns->fd >= 0 || ckpt_ns_is_late(run, ns))
			continue;
		t = ckpt_task_by_id(run, ckpt_ns_maker(run, ns, &n));
		if (!t || t->zombie)
			return ckpt_fail_image(err, "%s: nobody can have made it", ns->name);
		r = make_in(run, ns, t, err);
	}
	return r;
}

/* Tasks that were in ckpt's own namespace get one like any other. */
static int plan_own(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ckpt_ns *own = ckpt_ns_own(run, CKPT_NS_TIME);
	int r;

	if (ckpt_plan_only(run) || !ckpt_opt_bool(run, "continue"))
		return 0;
	r = plan(run, own, err);
	if (r < 0)
		return r;
	own->own = false;
	own->owner = ckpt_ns_own(run, CKPT_NS_USER);
	if (own->fd >= 0)
		close(own->fd);
	own->fd = -1;
	return 0;
}

/* ---- descriptor ------------------------------------------------------------------------------ */

static const struct ckpt_ns_kind kind = {
	.size = sizeof(kind),
	.type = CKPT_NS_TIME,
	.feature = "namespaces",
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.make = make,
	.make_in = make_in,
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "time", &kind },
	{ NULL, NULL, NULL },
};

static const struct ckpt_option options[] = {
	{ .name = "continue",
	  .type = CKPT_OPT_BOOL,
	  .def = "no",
	  .help = "at restore, tasks without a time namespace get one, so that their monotonic and "
		  "boot clocks go on where they stopped" },
	{ .name = NULL },
};

static const struct ckpt_feature features[] = {
	{ "namespaces", "time namespaces: their clocks go on where they stopped" },
	{ "children", "time namespaces that a task has made for its children only" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ TIME_REC_CLOCKS, "clocks", &ckpt__time__clocks__descriptor },
	{ 0, NULL, NULL },
};

static const struct ckpt_field_rule rules[] = {
	{ "Clocks", "monotonic_ns", CKPT_EQ_VOLATILE },
	{ "Clocks", "boottime_ns", CKPT_EQ_VOLATILE },
	{ NULL, NULL, 0 },
};

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "save what the clocks show",
	  .after = LIST("surveyed"),
	  .before = LIST("ns.collect"),
	  .fn = collect_own },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "-o time.continue=yes",
	  .after = LIST("loaded"),
	  .before = LIST("ns.plan"),
	  .fn = plan_own },
	{ .runs = CKPT_RESTORE,
	  .name = "unshare",
	  .help = "tasks make time namespaces for their children",
	  .after = LIST("tasks-made"),
	  .before = LIST("ns.join"),
	  .fn = make_early },
	{ .name = NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,	  .name = "time",
	.version = "0.1.0",	  .summary = "time namespaces and their clocks",
	.license = "MIT",	  .options = options,
	.features = features,	  .records = records,
	.rules = rules,		  .steps = steps,
	.extensions = extensions,
};
