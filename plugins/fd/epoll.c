/* SPDX-License-Identifier: MIT */
/*
 * epoll: its targets. The kernel remembers a target by file and number. Where the
 * number was closed, or leads elsewhere by now, it is borrowed to add the target again.
 */
#include "internal.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>

/* What stays of a one-shot target's events once it has fired. */
#define PRIVATE_BITS (EPOLLWAKEUP | EPOLLONESHOT | EPOLLET | EPOLLEXCLUSIVE)

struct target {
	uint32_t num, toff, events;
	uint64_t data;
	uint64_t dev, ino;	   /* of the file; dev 0: the kernel does not say */
	const struct fd_entry *at; /* a task's descriptor that is the target */
	int epoll;		   /* the epoll's number in that task */
	bool stale;		   /* it is there under another number only */
};

/* What the survey has found out, for the record: fd_file.known. */
struct known {
	size_t n;
	struct target list[];
};

static bool epoll_match(const struct ckpt_fd_found *f)
{
	return !strcmp(f->link, "anon_inode:[eventpoll]");
}

/* The number after that word on this line. */
static bool word(const char *line, const char *key, int base, uint64_t *value)
{
	const char *end = strchrnul(line + 1, '\n');
	const char *at = memmem(line, (size_t)(end - line), key, strlen(key));

	if (at)
		*value = strtoull(at + strlen(key), NULL, base);
	return at != NULL;
}

/* Not with sscanf(3), which first looks for the end of all that is left. */
static bool parse_target(const char *line, struct target *t)
{
	uint64_t num, events, dev = 0;

	if (!word(line, "tfd:", 10, &num) || !word(line, "events:", 16, &events) ||
	    !word(line, "data:", 16, &t->data))
		return false;
	t->num = (uint32_t)num;
	t->events = (uint32_t)events;
	/* as the kernel keeps it */
	if (word(line, " ino:", 16, &t->ino) && word(line, " sdev:", 16, &dev))
		t->dev = makedev(dev >> 20, dev & 0xfffff);
	return true;
}

static int parse_targets(const char *fdinfo, struct target **out, size_t *n)
{
	size_t cap = 0;

	for (const char *line = strstr(fdinfo, "\ntfd:"); line; line = strstr(line + 1, "\ntfd:")) {
		struct target t = { .toff = (uint32_t)*n };

		if (!parse_target(line, &t))
			return -EPROTO;
		if (*n == cap) {
			struct target *more = realloc(*out, (cap = cap ? cap * 2 : 16) * sizeof(t));

			if (!more)
				return -ENOMEM;
			*out = more;
		}
		(*out)[(*n)++] = t;
	}
	return 0;
}

static int by_num(const void *va, const void *vb)
{
	const struct target *a = va, *b = vb;

	if (a->num != b->num)
		return a->num > b->num ? 1 : -1;
	return (a->toff > b->toff) - (a->toff < b->toff);
}

/*
 * Sorted by number. Several targets of one number (of files that are closed by
 * now, but for one) are told apart for kcmp(2) by their place among them, in the
 * order in which fdinfo lists them.
 */
static int read_targets(const char *fdinfo, struct target **out, size_t *n)
{
	int r = parse_targets(fdinfo, out, n);

	if (r || !*n)
		return r;
	qsort(*out, *n, sizeof(**out), by_num);
	for (size_t i = 0; i < *n; i++)
		(*out)[i].toff =
			i && (*out)[i].num == (*out)[i - 1].num ? (*out)[i - 1].toff + 1 : 0;
	return 0;
}

/* Is the target what this task has under that number? */
static bool is_slot(const struct fd_entry *epoll, const struct target *t, pid_t pid, int num)
{
	struct kcmp_epoll_slot slot = { (uint32_t)fd_entry_num(epoll), t->num, t->toff };

	return syscall(SYS_kcmp, pid, fd_entry_pid(epoll), KCMP_EPOLL_TFD, num, &slot) == 0;
}

/*
 * To answer, the kernel walks through all targets that come before. A server's targets are sockets,
 * and those need not be asked about: no two descriptions that can be waited for have the inode of
 * one.
 */
static bool is_socket(const struct fd_state *st, const struct target *t)
{
	return t->dev && st->nameless[FD_SOCKETS].st_dev == t->dev;
}

static bool has_socket(const struct fd_entry *e, const struct target *t)
{
	return e->st.st_dev == t->dev && e->st.st_ino == t->ino && !(e->flags & O_PATH);
}

/* Somebody in the tree must have the file open, or else nobody could tell what it is. */
static const struct fd_entry *find_stale(const struct fd_state *st, const struct fd_file *epoll,
					 const struct target *t)
{
	struct fd_file *const *same;
	size_t n = is_socket(st, t) ? fd_files_of(st, t->dev, (ino_t)t->ino, &same) : 0;

	for (size_t i = 0; i < n; i++)
		if (has_socket(same[i]->first, t))
			return same[i]->first;
	for (size_t i = 0; i < st->n_files && !is_socket(st, t); i++) {
		const struct fd_entry *e = st->files[i].first;

		if (is_slot(epoll->first, t, fd_entry_pid(e), fd_entry_num(e)))
			return e;
	}
	return NULL;
}

/* Does this task, which has the epoll, have the target under its number? Into t->at. */
static bool is_target(struct ckpt_run *run, const struct fd_entry *epoll, struct target *t)
{
	const struct fd_state *st = fd_state(run);

	t->at = fd_entry_find(st, epoll->task, (int)t->num);
	if (is_socket(st, t))
		return t->at && has_socket(t->at, t);
	/* a running task may have opened it after its table was read */
	return is_slot(epoll, t, fd_entry_pid(epoll), (int)t->num) && (t->at || ckpt_is_live(run));
}

/* Some task that has the epoll open has the target under its number, or another has it. */
static bool locate(struct ckpt_run *run, const struct fd_file *epoll, struct target *t)
{
	for (const struct fd_entry *h = epoll->first; h; h = h->next) {
		t->epoll = h->num;
		if (is_target(run, h, t))
			return true;
	}
	t->at = find_stale(fd_state(run), epoll, t);
	t->epoll = epoll->first->num;
	t->stale = t->at != NULL;
	return t->stale;
}

static struct fd_file *file_of(const struct fd_state *st, const struct ckpt_fd_found *f)
{
	const struct fd_entry *e = fd_entry_find(st, f->task, f->num);

	return e ? e->file : NULL;
}

static int survey_target(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 const struct fd_file *epoll, struct target *t)
{
	char reason[128];

	if (!locate(run, epoll, t)) {
		snprintf(reason, sizeof(reason),
			 "its target %u was closed, and only processes outside have the file open",
			 t->num);
		return fd_refuse(run, f, "epoll-closed-target", reason,
				 "let the program remove it from the epoll (EPOLL_CTL_DEL)");
	}
	if (t->events & EPOLLONESHOT && !(t->events & ~PRIVATE_BITS)) {
		snprintf(reason, sizeof(reason),
			 "its one-shot target %u has fired and waits to be armed again: errors "
			 "and hang-ups would be reported once more",
			 t->num);
		return fd_refuse_detail(run, f, "epoll-oneshot", reason,
					"--allow-loss fd.epoll-oneshot if the program can bear a "
					"spurious report");
	}
	return 0;
}

/* The tree stands when its state is collected: what was found out holds then too. */
static int keep(struct fd_file *epoll, const struct target *list, size_t n)
{
	struct known *k = malloc(sizeof(*k) + n * sizeof(*list));

	if (!k)
		return -ENOMEM;
	k->n = n;
	if (n)
		memcpy(k->list, list, n * sizeof(*list));
	free(epoll->known);
	epoll->known = k;
	return 0;
}

static int epoll_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct fd_file *epoll = file_of(fd_state(run), f);
	CKPT_AUTO_FREE struct target *list = NULL;
	size_t n = 0;
	int r = epoll ? read_targets(f->fdinfo, &list, &n) : -ENOENT, out = 0;

	if (r)
		return ckpt_fail_sys(err, r, "reading the targets of an epoll");
	for (size_t i = 0; i < n && r >= 0; i++) {
		r = survey_target(run, f, epoll, &list[i]);
		out |= r > 0;
	}
	if (r >= 0 && keep(epoll, list, n))
		return ckpt_fail(err, ENOMEM, "out of memory");
	return r < 0 ? r : out;
}

/* The kernel's order of targets of one number is that of addresses. */
static int by_place(const void *va, const void *vb)
{
	const Ckpt__Fd__EpollTarget *a = *(Ckpt__Fd__EpollTarget *const *)va;
	const Ckpt__Fd__EpollTarget *b = *(Ckpt__Fd__EpollTarget *const *)vb;

	if (a->num != b->num)
		return a->num > b->num ? 1 : -1;
	if (a->file != b->file)
		return a->file > b->file ? 1 : -1;
	return (a->task > b->task) - (a->task < b->task);
}

static int epoll_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	const struct fd_file *epoll = file_of(fd_state(run), f);
	const struct known *known = epoll ? epoll->known : NULL;
	const size_t n = known ? known->n : 0;
	CKPT_AUTO_FREE Ckpt__Fd__EpollTarget *recs = calloc(n + 1, sizeof(*recs));
	CKPT_AUTO_FREE Ckpt__Fd__EpollTarget **ptr = calloc(n + 1, sizeof(*ptr));
	Ckpt__Fd__Epoll rec = CKPT__FD__EPOLL__INIT;

	if (!known || !recs || !ptr)
		return ckpt_fail_sys(err, known ? ENOMEM : ENOENT, "the targets of an epoll");
	rec.id = f->file;
	rec.targets = ptr;
	for (size_t i = 0; i < n; i++) {
		const struct target *from = &known->list[i];
		Ckpt__Fd__EpollTarget *t = &recs[rec.n_targets];

		if (!from->at)
			return ckpt_fail(err, ENOENT, "target %u of the epoll is gone", from->num);
		/* lost by permission: there is nothing to wait for */
		if (from->at->file->out)
			continue;
		ckpt__fd__epoll_target__init(t);
		t->num = from->num;
		t->file = from->at->file->id;
		t->events = from->events;
		t->data = from->data;
		t->task = from->stale ? epoll->first->task->id : from->at->task->id;
		t->epoll = (uint32_t)from->epoll;
		t->from_task = from->stale ? from->at->task->id : 0;
		t->from_num = from->stale ? (uint32_t)from->at->num : 0;
		ptr[rec.n_targets++] = t;
	}
	if (rec.n_targets)
		qsort(ptr, rec.n_targets, sizeof(*ptr), by_place);
	return ckpt_record_put(run, FD_EPOLL, &rec.base, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static bool target_valid(struct ckpt_run *run, const Ckpt__Fd__EpollTarget *t)
{
	if (!t->from_task)
		return fd_table_has(run, t->task, t->num, t->file);
	return fd_table_has(run, t->from_task, t->from_num, t->file) &&
	       !fd_table_has(run, t->task, t->num, t->file) && t->num <= FD_NUM_MAX &&
	       t->num != t->epoll;
}

static int epoll_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Epoll *rec = ckpt_record_need(run, "fd.epoll", id, err);

	if (!rec)
		return -EBADMSG;
	for (size_t i = 0; i < rec->n_targets; i++) {
		const Ckpt__Fd__EpollTarget *t = rec->targets[i];

		if (t->file == id || !target_valid(run, t) ||
		    !fd_table_has(run, t->task, t->epoll, id))
			return ckpt_fail_image(err, "target %u of epoll %u is not valid", t->num,
					       id);
		if (t->from_task)
			ckpt_reserve_fd(run, (int)t->num);
	}
	return 0;
}

static int epoll_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	int fd = epoll_create1(EPOLL_CLOEXEC);

	return fd < 0 ? ckpt_fail_sys(err, errno, "epoll_create1(2)") : fd;
}

/* The targets that are to be added by one task. */
static int add_targets(struct ckpt_run *run, const Ckpt__Fd__Epoll *rec, size_t from,
		       struct ckpt_error *err)
{
	uint32_t task = rec->targets[from]->task;
	struct ckpt_task *t = ckpt_task_by_id(run, task);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.epoll");

	if (!t)
		return ckpt_fail_image(err, "task %u of an epoll's target was not made", task);
	for (size_t i = from; i < rec->n_targets; i++) {
		const Ckpt__Fd__EpollTarget *target = rec->targets[i];
		struct epoll_event ev = { .events = target->events, .data.u64 = target->data };

		if (target->task == task && !target->from_task)
			ckpt_script_add(s, SYS_epoll_ctl, CKPT_C(target->epoll),
					CKPT_C(EPOLL_CTL_ADD), CKPT_C(target->num),
					CKPT_IN(&ev, sizeof(ev)));
	}
	return ckpt_script_run(s, t->threads[0], err);
}

/* Has an earlier target been added by the same task, and this one with it? */
static bool done_before(const Ckpt__Fd__Epoll *rec, size_t i)
{
	for (size_t j = 0; j < i; j++)
		if (!rec->targets[j]->from_task && rec->targets[j]->task == rec->targets[i]->task)
			return true;
	return false;
}

/* What the task has under that number now, and with what flag. False: nothing. */
static bool table_entry(struct ckpt_run *run, uint32_t task, uint32_t num, bool *cloexec)
{
	const Ckpt__Fd__Table *t = ckpt_record_by_id(run, "fd.table", task);

	for (size_t i = 0; t && i < t->n_entries; i++) {
		*cloexec = t->entries[i]->cloexec;
		if (t->entries[i]->num == num)
			return true;
	}
	return false;
}

/* The file takes the place of whatever has the number, for as long as it takes to add it. */
static void script_stale(struct ckpt_script *s, const Ckpt__Fd__EpollTarget *t, int lent, bool used,
			 bool cloexec)
{
	struct epoll_event ev = { .events = t->events, .data.u64 = t->data };
	int aside = -1;

	if (used)
		aside = ckpt_script_add(s, SYS_fcntl, CKPT_C(t->num), CKPT_C(F_DUPFD),
					CKPT_C(lent));
	ckpt_script_add(s, SYS_dup3, CKPT_C(lent), CKPT_C(t->num), CKPT_C(0));
	ckpt_script_add(s, SYS_epoll_ctl, CKPT_C(t->epoll), CKPT_C(EPOLL_CTL_ADD), CKPT_C(t->num),
			CKPT_IN(&ev, sizeof(ev)));
	if (!used) {
		ckpt_script_add(s, SYS_close, CKPT_C(t->num));
		return;
	}
	ckpt_script_add(s, SYS_dup3, CKPT_R(aside), CKPT_C(t->num),
			CKPT_C(cloexec ? O_CLOEXEC : 0));
	ckpt_script_add(s, SYS_close, CKPT_R(aside));
}

static int add_stale(struct ckpt_run *run, const Ckpt__Fd__EpollTarget *t, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *s = ckpt_script_new(run, "fd.epoll");
	struct ckpt_task *task = ckpt_task_by_id(run, t->task);
	struct ckpt_task *from = ckpt_task_by_id(run, t->from_task);
	CKPT_AUTO_FD int fd = -1;
	bool cloexec = false, used;
	int lent, r;

	if (!task || !from)
		return ckpt_fail_image(err, "a task of an epoll's target was not made");
	fd = ckpt_get_fd(from, (int)t->from_num, err);
	if (fd < 0)
		return fd;
	lent = ckpt_lend_fd(run, task, fd, err);
	if (lent < 0)
		return lent;
	used = table_entry(run, t->task, t->num, &cloexec);
	script_stale(s, t, lent, used, cloexec);
	r = ckpt_script_run(s, task->threads[0], err);
	return r ? r : ckpt_return_fd(run, task, lent, err);
}

static int epoll_finish(struct ckpt_run *run, uint32_t file, struct ckpt_task *holder, int num,
			struct ckpt_error *err)
{
	const Ckpt__Fd__Epoll *rec = ckpt_record_need(run, "fd.epoll", file, err);

	if (!rec)
		return -EBADMSG;
	for (size_t i = 0; i < rec->n_targets; i++) {
		int r = 0;

		if (rec->targets[i]->from_task)
			r = add_stale(run, rec->targets[i], err);
		else if (!done_before(rec, i))
			r = add_targets(run, rec, i, err);
		if (r)
			return r;
	}
	return 0;
}

const struct ckpt_fd_kind fd_kind_epoll = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = epoll_match,
	.survey = epoll_survey,
	.collect = epoll_collect,
	.plan = epoll_plan,
	.open = epoll_open,
	.finish = epoll_finish,
	.own_pos = true,
};
