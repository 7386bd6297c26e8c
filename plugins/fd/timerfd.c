/* SPDX-License-Identifier: MIT */
/*
 * timerfd(2). A relative timer goes on with the time it had left, an absolute
 * one keeps its date, by the clock of its holder's time namespace. Expirations that
 * nobody has read are set by an ioctl.
 */
#include "internal.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <time.h>

#ifndef TFD_IOC_SET_TICKS
#define TFD_IOC_SET_TICKS _IOW('T', 0, uint64_t)
#endif

#define NS 1000000000LL

struct timer {
	uint64_t clock, ticks, flags; /* flags: TFD_TIMER_* of timerfd_settime(2) */
};

static bool timerfd_match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:[timerfd]");
}

static int parse(const char *fdinfo, struct timer *t)
{
	int r = fd_info_u64(fdinfo, "clockid", 10, &t->clock);

	if (!r)
		r = fd_info_u64(fdinfo, "ticks", 10, &t->ticks);
	return r ? r : fd_info_u64(fdinfo, "settime flags", 8, &t->flags);
}

static bool clock_known(int64_t clock)
{
	return clock == CLOCK_REALTIME || clock == CLOCK_MONOTONIC || clock == CLOCK_BOOTTIME ||
	       clock == CLOCK_REALTIME_ALARM || clock == CLOCK_BOOTTIME_ALARM;
}

static int timerfd_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			  struct ckpt_error *err)
{
	struct timer t;

	if (parse(f->fdinfo, &t) || !clock_known((int64_t)t.clock))
		return fd_refuse(run, f, "timerfd", "the kernel's description is not understood",
				 "CONFIG_CHECKPOINT_RESTORE and CONFIG_PROC_FS are needed");
	return 0;
}

/* A clock's time; an alarm clock is its ordinary twin. */
static int64_t clock_ns(int clock)
{
	struct timespec ts = { 0 };

	clock_gettime(clock == CLOCK_REALTIME_ALARM   ? CLOCK_REALTIME
		      : clock == CLOCK_BOOTTIME_ALARM ? CLOCK_BOOTTIME
						      : clock,
		      &ts);
	return ts.tv_sec * NS + ts.tv_nsec;
}

/* Is its date one of a time namespace's? */
static bool is_dated(const Ckpt__Fd__Timerfd *rec)
{
	return rec->armed && rec->absolute && rec->clock != CLOCK_REALTIME &&
	       rec->clock != CLOCK_REALTIME_ALARM;
}

static bool is_zero(const struct timespec *ts)
{
	return !ts->tv_sec && !ts->tv_nsec;
}

/*
 * The kernel tells what is left, not when it fires: the look is taken between two at
 * the clock, some times, and the earliest date that all of them allow is the best. There is none
 * after KTIME_MAX: that is what a timer is set to that is only to tell of changes of the clock.
 */
static int read_date(int fd, int clock, struct itimerspec *its, int64_t *date)
{
	*date = INT64_MAX;
	for (int i = 0; i < 8; i++) {
		int64_t latest;

		if (timerfd_gettime(fd, its))
			return -errno;
		if (is_zero(&its->it_value)) {
			/* it is due */
			if (i == 0)
				*date = clock_ns(clock);
			return 0;
		}
		latest = its->it_value.tv_sec * NS + its->it_value.tv_nsec;
		if (__builtin_add_overflow(latest, clock_ns(clock), &latest))
			latest = INT64_MAX;
		if (latest < *date)
			*date = latest;
	}
	return 0;
}

struct look {
	int fd, clock, pipe;
};

static int look_inside(void *arg, struct ckpt_error *err)
{
	const struct look *l = arg;
	struct itimerspec its;
	int64_t date;

	if (read_date(l->fd, l->clock, &its, &date) ||
	    write(l->pipe, &date, sizeof(date)) != sizeof(date))
		return ckpt_fail_sys(err, errno, "timerfd_gettime(2)");
	return 0;
}

static int read_date_of(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const Ckpt__Fd__Timerfd *rec, int64_t *date, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_of_task(run, f->task, CKPT_NS_TIME);
	const struct ckpt_ns_place place = { .ns[CKPT_NS_TIME] = ns, .copy = true };
	CKPT_AUTO_FD int from = -1;
	CKPT_AUTO_FD int to = -1;
	struct itimerspec its;
	struct look look;
	int ends[2], r;

	if (!is_dated(rec) || ns->own || ns->lost)
		return read_date(f->fd, rec->clock, &its, date)
			       ? ckpt_fail_sys(err, errno, "timerfd_gettime(2)")
			       : 0;
	if (pipe2(ends, O_CLOEXEC))
		return ckpt_fail_sys(err, errno, "pipe2(2)");
	from = ends[0];
	to = ends[1];
	look = (struct look){ f->fd, rec->clock, to };
	r = ckpt_ns_run(run, &place, look_inside, &look, err);
	if (r < 0)
		return r;
	return read(from, date, sizeof(*date)) == sizeof(*date)
		       ? 0
		       : ckpt_fail(err, EIO, "the date of a timer");
}

static int read_timer(int fd, struct timer *t, struct itimerspec *its, struct ckpt_error *err)
{
	char path[48], buf[1024];
	CKPT_AUTO_FD int info = -1;
	ssize_t len;

	/*
	 * A periodic timer that fired stands still until somebody looks; this look
	 * makes the kernel count what is due, as the program's own would.
	 */
	if (timerfd_gettime(fd, its))
		return ckpt_fail_sys(err, errno, "timerfd_gettime(2)");
	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	info = open(path, O_RDONLY | O_CLOEXEC);
	len = info >= 0 ? read(info, buf, sizeof(buf) - 1) : -1;
	if (len < 0)
		return ckpt_fail_sys(err, errno, "%s", path);
	buf[len] = '\0';
	if (parse(buf, t))
		return ckpt_fail(err, EPROTO, "fdinfo of a timerfd is not understood");
	return 0;
}

/* Did it have something left when it was surveyed? */
static bool was_running(const struct ckpt_fd_found *f)
{
	const char *at = strstr(f->fdinfo, "it_value: (");
	unsigned long long sec, nsec;

	return at && sscanf(at, "it_value: (%llu, %llu)", &sec, &nsec) == 2 && (sec || nsec);
}

#define FIRING_MS 1000

/*
 * Of a timer that is due nothing is left until it fires, in a moment, and so it looks like one
 * that is not armed. But that had nothing left before.
 */
static int read_settled(const struct ckpt_fd_found *f, struct timer *t, struct itimerspec *its,
			struct ckpt_error *err)
{
	const struct timespec nap = { 0, 1000000 };
	struct timer before;
	int r = parse(f->fdinfo, &before) ? ckpt_fail(err, EPROTO, "fdinfo of a timerfd")
					  : read_timer(f->fd, t, its, err);

	for (int ms = 0; !r && ms < FIRING_MS; ms++) {
		if (!is_zero(&its->it_value) || t->ticks != before.ticks || !was_running(f))
			return 0;
		nanosleep(&nap, NULL);
		r = read_timer(f->fd, t, its, err);
	}
	return r;
}

static int timerfd_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			   struct ckpt_error *err)
{
	Ckpt__Fd__Timerfd rec = CKPT__FD__TIMERFD__INIT;
	struct itimerspec its;
	int64_t date;
	struct timer t;
	int r = read_settled(f, &t, &its, err);

	if (r)
		return r;
	rec.id = f->file;
	rec.clock = (int32_t)t.clock;
	rec.absolute = t.flags & TFD_TIMER_ABSTIME;
	rec.cancel = t.flags & TFD_TIMER_CANCEL_ON_SET;
	rec.value_ns = its.it_value.tv_sec * NS + its.it_value.tv_nsec;
	rec.armed = rec.value_ns != 0;
	if (rec.armed && rec.absolute) {
		r = read_date_of(run, f, &rec, &date, err);
		if (r < 0)
			return r;
		rec.value_ns = date;
	}
	rec.interval_ns = its.it_interval.tv_sec * NS + its.it_interval.tv_nsec;
	rec.ticks = t.ticks;
	return ckpt_record_put(run, FD_TIMERFD, &rec.base, err);
}

static int timerfd_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Timerfd *rec = ckpt_record_need(run, "fd.timerfd", id, err);

	if (!rec)
		return -EBADMSG;
	/* elsewhere the kernel does not know it */
	if (!clock_known(rec->clock) || (rec->cancel && !rec->absolute) || rec->value_ns < 0 ||
	    rec->interval_ns < 0)
		return ckpt_fail_image(err, "open file %u is not a valid timer", id);
	return 0;
}

static struct timespec to_timespec(int64_t ns)
{
	return (struct timespec){ ns / NS, ns % NS };
}

/* zero would disarm it: an armed timer has at least its last nanosecond left */
static void setting_of(const Ckpt__Fd__Timerfd *rec, int *flags, struct itimerspec *its)
{
	*flags = (rec->absolute ? TFD_TIMER_ABSTIME : 0) |
		 (rec->cancel ? TFD_TIMER_CANCEL_ON_SET : 0);
	*its = (struct itimerspec){ .it_interval = to_timespec(rec->interval_ns) };
	if (rec->armed)
		its->it_value = to_timespec(rec->value_ns ? rec->value_ns : 1);
}

static int timerfd_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Timerfd *rec = ckpt_record_need(run, "fd.timerfd", slot->file, err);
	struct itimerspec its;
	CKPT_AUTO_FD int fd = -1;
	uint64_t ticks;
	int flags;

	if (!rec)
		return -EBADMSG;
	fd = timerfd_create(rec->clock, TFD_CLOEXEC | TFD_NONBLOCK);
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "timerfd_create(2) with clock %d", rec->clock);
	setting_of(rec, &flags, &its);
	if (timerfd_settime(fd, flags, &its, NULL))
		return ckpt_fail_sys(err, errno, "timerfd_settime(2)");
	ticks = rec->ticks;
	if (ticks && ioctl(fd, TFD_IOC_SET_TICKS, &ticks))
		return ckpt_fail_sys(err, errno, "TFD_IOC_SET_TICKS");
	return ckpt_steal_fd(&fd);
}

/* A date means what the clock of the task shows that names it, and the engine's may show another.
 */
static int timerfd_finish(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
			  struct ckpt_error *err)
{
	const Ckpt__Fd__Timerfd *rec = ckpt_record_need(run, "fd.timerfd", id, err);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;
	struct itimerspec its;
	uint64_t ticks;
	int flags;

	if (!rec)
		return -EBADMSG;
	if (!is_dated(rec) || ckpt_ns_of_task(run, holder, CKPT_NS_TIME)->own)
		return 0;
	setting_of(rec, &flags, &its);
	ticks = rec->ticks;
	s = ckpt_script_new(run, "fd.timerfd");
	ckpt_script_add(s, SYS_timerfd_settime, CKPT_C(num), CKPT_C(flags),
			CKPT_IN(&its, sizeof(its)), CKPT_C(0));
	if (ticks)
		ckpt_script_add(s, SYS_ioctl, CKPT_C(num), CKPT_C(TFD_IOC_SET_TICKS),
				CKPT_IN(&ticks, sizeof(ticks)));
	return ckpt_script_run(s, holder->threads[0], err);
}

const struct ckpt_fd_kind fd_kind_timerfd = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = timerfd_match,
	.survey = timerfd_survey,
	.collect = timerfd_collect,
	.plan = timerfd_plan,
	.open = timerfd_open,
	.finish = timerfd_finish,
	.own_pos = true,
};
