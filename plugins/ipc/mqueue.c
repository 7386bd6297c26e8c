/* SPDX-License-Identifier: MIT */
/* POSIX message queues: their descriptors, a kind of the extension point "fd"; and a restore. */
#include <ckpt/mnt.h>

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include "posix.h"

#define MOST_LETTERS  65536	  /* HARD_MSGMAX */
#define LONGEST	      (16U << 20) /* HARD_MSGSIZEMAX */
#define MOST_PRIORITY 32768
#define LARGEFILE     0100000 /* O_LARGEFILE is 0 for 64-bit programs */

/* ---- dump: who has it open --------------------------------------------------------------- */

struct wanted {
	dev_t dev;
	ino_t ino;
};

static int has_open(void *arg, pid_t pid, pid_t tid, int base, const char *num)
{
	const struct wanted *w = arg;
	char path[32];
	struct stat s;

	(void)pid;
	(void)tid;
	snprintf(path, sizeof(path), "fd/%.20s", num);
	return !fstatat(base, path, &s, 0) && s.st_dev == w->dev && s.st_ino == w->ino;
}

int ipc_mqueue_outside(struct ckpt_run *run, dev_t dev, ino_t ino, char *buf, size_t size,
		       struct ckpt_error *err)
{
	struct wanted wanted = { dev, ino };
	const struct ckpt_table_look look = { has_open, &wanted };
	CKPT_AUTO_DIR DIR *dir = opendir("/proc");
	struct dirent *e;

	if (!dir)
		return ckpt_fail_sys(err, errno, "/proc");
	while ((e = ckpt_next_entry(dir))) {
		pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);
		int r;

		if (pid <= 0 || ckpt_task_by_pid(run, pid) || ckpt_is_engine(pid))
			continue;
		r = ckpt_tables_look(&look, pid);
		if (r < 0)
			return ckpt_fail_sys(err, r, "descriptors of process %d", (int)pid);
		errno = 0;
		if (!r)
			continue;
		snprintf(buf, size, "process %d, which is outside the tree, has it open too",
			 (int)pid);
		return 1;
	}
	return errno ? ckpt_fail_sys(err, errno, "/proc") : 0;
}

/* ---- dump: descriptors ----------------------------------------------------------------------- */

/* The name that it was opened by may be that of a mount. */
static bool match(const struct ckpt_fd_found *f)
{
	struct statfs fs;

	return S_ISREG(f->st.st_mode) && f->fd >= 0 && !fstatfs(f->fd, &fs) &&
	       fs.f_type == MQUEUE_MAGIC;
}

/* An open file description of our own: it does not block, and the tree's stay as they are. */
static int reopen(int fd, int flags, struct ckpt_error *err)
{
	char path[40];
	int own;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	own = open(path, flags | O_CLOEXEC);
	return own < 0 ? ckpt_fail_sys(err, errno, "%s", path) : own;
}

/* The last name in a link, which is marked if the queue has none any more. */
static void copy_name(const struct ckpt_fd_found *f, char *name, size_t size)
{
	static const char mark[] = " (deleted)";
	const char *last = strrchr(f->link, '/');
	size_t len;

	snprintf(name, size, "%s", last ? last + 1 : "?");
	len = strlen(name);
	if (!f->st.st_nlink && len > sizeof(mark) - 1)
		name[len - (sizeof(mark) - 1)] = 0;
}

static const struct ckpt_ns *ns_with(const struct ipc_state *st, dev_t dev)
{
	for (size_t i = 0; i < st->n_roots; i++)
		if (st->roots[i].dev == dev)
			return st->roots[i].ns;
	return NULL;
}

/*
 * ckpt's own namespace, if tasks are in it, is looked at when a queue is of no other: most trees
 * have none, and the mount that tells its device takes a grace period of RCU to go.
 */
static int look_at_own(struct ckpt_run *run, struct ipc_state *st, struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; !st->own_root && r == 0 && i < st->looked; i++) {
		const struct ckpt_ns *ns = ckpt_ns_at(run, i);

		if (ns->type == CKPT_NS_IPC && ns->own)
			r = ipc_look_for_mqueues(run, ns, err);
	}
	st->own_root = r == 0;
	return r;
}

/* NULL without an error: it is in no ipc namespace of the tree. */
static struct ipc_mqueue *find(struct ckpt_run *run, const struct ckpt_fd_found *f,
			       struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	const struct ckpt_ns *ns;
	struct ipc_mqueue *q;
	char name[IPC_QUEUE_NAME];

	if (!st || ipc_look(run, err) < 0)
		return NULL;
	for (size_t i = 0; i < st->n_mqueues; i++)
		if (st->mqueues[i]->dev == f->st.st_dev && st->mqueues[i]->ino == f->st.st_ino)
			return st->mqueues[i];
	ns = ns_with(st, f->st.st_dev);
	if (!ns && look_at_own(run, st, err) == 0)
		ns = ns_with(st, f->st.st_dev);
	if (!ns)
		return NULL;
	copy_name(f, name, sizeof(name));
	q = ipc_add_mqueue(st, ns, &f->st, name, err);
	if (!q)
		return NULL;
	q->unlinked = !f->st.st_nlink;
	q->fd = reopen(f->fd, O_RDWR | O_NONBLOCK, err);
	return q->fd < 0 ? NULL : q;
}

static int survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct ipc_mqueue *q = find(run, f, err);
	int r;

	if (!q && err->err)
		return -err->err;
	if (q && !q->ns->own && (q->ns->lost || !ckpt_feature_on(run, "namespaces")))
		return 1;
	if (q)
		return ipc_survey_mqueue(run, q, f->task, err);
	r = ckpt_refuse(run, &(struct ckpt_blocker){
				     .feature = "mqueue",
				     .task = f->task,
				     .object = f->link,
				     .reason = "the message queue belongs to an ipc namespace that "
					       "no process of the tree is in",
				     .hint = "close it before the dump, or allow the loss",
			     });
	return r == -ECANCELED ? 1 : r < 0 ? r : 1;
}

static int collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct ipc_mqueue *q = find(run, f, err);
	Ckpt__Ipc__Descriptor rec = CKPT__IPC__DESCRIPTOR__INIT;
	int r;

	if (!q)
		return err->err ? -err->err
				: ckpt_fail(err, ENOENT, "%s: no such message queue", f->link);
	r = ipc_put_mqueue(run, q, err);
	if (r < 0)
		return r;
	rec.id = f->file;
	rec.mqueue = q->id;
	return ckpt_record_put(run, IPC_REC_DESCRIPTOR, &rec.base, err);
}

/* ---- restore: checks ------------------------------------------------------------------------- */

static bool is_ipc(const struct ckpt_ns *ns)
{
	return ns && ns->type == CKPT_NS_IPC;
}

static bool is_name(const ProtobufCBinaryData *n)
{
	static const char dots[] = "..";

	return n->len && n->len < IPC_QUEUE_NAME && !memchr(n->data, 0, n->len) &&
	       !memchr(n->data, '/', n->len) && !(n->len <= 2 && !memcmp(n->data, dots, n->len));
}

static void name_of(const Ckpt__Ipc__Mqueue *rec, char *name)
{
	memcpy(name, rec->name.data, rec->name.len);
	name[rec->name.len] = 0;
}

/* In ckpt's own namespace: the queue of that name, which is not to be open anywhere; -ENOENT. */
static int open_own(struct ckpt_run *run, const Ckpt__Ipc__Mqueue *rec, struct ckpt_error *err)
{
	char name[IPC_QUEUE_NAME], who[96];
	CKPT_AUTO_FD int dir = ipc_open_queues(err);
	CKPT_AUTO_FD int fd = -1;
	struct mq_attr attr;
	struct stat s;
	int r;

	if (dir < 0)
		return dir;
	name_of(rec, name);
	fd = openat(dir, name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0 && errno == ENOENT)
		return -ENOENT;
	if (fd < 0 || fstat(fd, &s) || syscall(SYS_mq_getsetattr, fd, NULL, &attr))
		return ckpt_fail_sys(err, errno, "message queue /%s", name);
	if (s.st_uid != rec->uid || s.st_gid != rec->gid || (s.st_mode & 07777) != rec->mode ||
	    attr.mq_maxmsg != (long)rec->most || attr.mq_msgsize != (long)rec->longest)
		return ckpt_fail(err, EEXIST, "message queue /%s is another one by now", name);
	r = ipc_mqueue_outside(run, s.st_dev, s.st_ino, who, sizeof(who), err);
	if (r)
		return r < 0 ? r
			     : ckpt_fail(err, EBUSY, "message queue /%s is in use: %s", name, who);
	return ckpt_steal_fd(&fd);
}

static void plan_own(struct ckpt_run *run, const Ckpt__Ipc__Mqueue *rec)
{
	struct ckpt_error e = { 0 };
	int fd = rec->unlinked ? -ENOENT : open_own(run, rec, &e);

	if (fd >= 0)
		close(fd);
	else if (fd != -ENOENT)
		ckpt_unmet(run, CKPT_EXIT_FAILED,
			   "end its users, remove it, or restore in another ipc namespace "
			   "(unshare -i)",
			   "%s", e.text);
}

static int check(struct ckpt_run *run, const Ckpt__Ipc__Mqueue *rec, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, rec->ns);
	size_t total = 0;

	if (!is_ipc(ns) || !is_name(&rec->name) || rec->mode & ~07777U || !rec->most ||
	    rec->most > MOST_LETTERS || !rec->longest || rec->longest > LONGEST ||
	    rec->n_letters > rec->most || rec->uid == UINT32_MAX || rec->gid == UINT32_MAX)
		return ckpt_fail_image(err, "message queue %u", rec->id);
	for (size_t i = 0; i < rec->n_letters; i++) {
		const Ckpt__Ipc__Letter *l = rec->letters[i];

		total += l->text.len;
		if (l->priority >= MOST_PRIORITY || l->text.len > rec->longest ||
		    total > IPC_MAX_MESSAGE)
			return ckpt_fail_image(err, "message queue %u: message %zu", rec->id, i);
	}
	if (ns->own && !ckpt_plan_only(run))
		plan_own(run, rec);
	return 0;
}

int ipc_plan_mqueues(struct ckpt_run *run, struct ckpt_error *err)
{
	int r = ckpt_record_order(run, "ipc.mqueue", err);

	for (size_t i = 0; i < ckpt_record_count(run, "ipc.mqueue") && r == 0; i++)
		r = check(run, ckpt_record_at(run, "ipc.mqueue", i), err);
	return r;
}

static int plan(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	const Ckpt__Ipc__Descriptor *rec = ckpt_record_need(run, "ipc.descriptor", file, err);

	return rec && ckpt_record_need(run, "ipc.mqueue", rec->mqueue, err) ? 0 : -EBADMSG;
}

/* ---- restore --------------------------------------------------------------------------------- */

struct job {
	const Ckpt__Ipc__Mqueue *rec;
	struct ipc_remade *to;
};

/* As much as ckpt may: its user's limit says nothing about the tree's. */
static void lift_limit(void)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };

	if (!setrlimit(RLIMIT_MSGQUEUE, &limit) || getrlimit(RLIMIT_MSGQUEUE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_MSGQUEUE, &limit);
}

/*
 * The memory of a queue counts for its maker's real id, and the file is made by ids that the
 * filesystem of the ipc namespace's owner knows.
 */
static int create(const struct job *j, struct ckpt_error *err)
{
	const Ckpt__Ipc__Mqueue *rec = j->rec;
	struct mq_attr attr = { .mq_maxmsg = rec->most, .mq_msgsize = rec->longest };
	CKPT_AUTO_IDS struct ckpt_ids ids = { 0 };
	struct ipc_remade *to = j->to;

	lift_limit();
	if (syscall(SYS_setresuid, rec->uid, 0, 0))
		return ckpt_fail_sys(err, errno, "setresuid(2) to %u", rec->uid);
	if (ckpt_ids_take(&ids, rec->uid, rec->gid, err) < 0)
		return -err->err;
	to->fd = (int)syscall(SYS_mq_open, to->name,
			      O_RDWR | O_CREAT | O_EXCL | O_NONBLOCK | O_CLOEXEC, 0600, &attr);
	to->made = to->fd >= 0;
	if (to->fd < 0 || fchown(to->fd, rec->uid, rec->gid) || fchmod(to->fd, rec->mode))
		return ckpt_fail_sys(err, errno, "message queue /%s", to->name);
	return 0;
}

static int send_all(const struct job *j, struct ckpt_error *err)
{
	const Ckpt__Ipc__Mqueue *rec = j->rec;

	for (size_t i = 0; i < rec->n_letters; i++) {
		const Ckpt__Ipc__Letter *l = rec->letters[i];

		if (syscall(SYS_mq_timedsend, j->to->fd, l->text.len ? (char *)l->text.data : "",
			    l->text.len, l->priority, NULL))
			return ckpt_fail_sys(err, errno, "message %zu of queue %u", i, rec->id);
	}
	return 0;
}

static int make(void *arg, struct ckpt_error *err)
{
	const struct job *j = arg;
	int r = create(j, err);

	/* one without a name has one for a while, which others may have by now */
	if (r == -EEXIST && j->rec->unlinked) {
		*err = (struct ckpt_error){ 0 };
		snprintf(j->to->name, sizeof(j->to->name), ".ckpt-%d-%u", (int)getpid(),
			 j->rec->id);
		r = create(j, err);
	}
	return r < 0 ? r : send_all(j, err);
}

/* What is still there from before is emptied first. */
static int refill(const struct job *j, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = malloc(j->rec->longest);
	ssize_t n;

	if (!text)
		return ckpt_fail_sys(err, ENOMEM, "message queue");
	do
		n = syscall(SYS_mq_timedreceive, j->to->fd, text, j->rec->longest, NULL, NULL);
	while (n >= 0);
	return errno == EAGAIN ? send_all(j, err) : ckpt_fail_sys(err, errno, "message queue");
}

static int make_one(struct ckpt_run *run, const Ckpt__Ipc__Mqueue *rec, struct ipc_remade *to,
		    struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_by_id(run, rec->ns);
	struct job j = { rec, to };

	name_of(rec, to->name);
	to->fd = ns->own && !rec->unlinked ? open_own(run, rec, err) : -ENOENT;
	if (to->fd >= 0)
		return refill(&j, err);
	return to->fd != -ENOENT ? to->fd : ipc_in(run, ns, make, &j, err);
}

int ipc_make_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	size_t n = ckpt_record_count(run, "ipc.mqueue");
	int r = st ? 0 : -ENOMEM;

	if (st && !st->remade) {
		st->remade = calloc(n + 1, sizeof(*st->remade));
		if (!st->remade)
			return ckpt_fail_sys(err, ENOMEM, "message queues");
		for (; st->n_remade < n; st->n_remade++)
			st->remade[st->n_remade].fd = -1;
	}
	for (size_t i = 0; i < n && r == 0; i++) {
		const Ckpt__Ipc__Mqueue *rec = ckpt_record_at(run, "ipc.mqueue", i);

		if (rec->ns == ns->id)
			r = make_one(run, rec, &st->remade[i], err);
	}
	return r;
}

static int unlink_name(void *arg, struct ckpt_error *err)
{
	return syscall(SYS_mq_unlink, arg)
		       ? ckpt_fail_sys(err, errno, "mq_unlink(3) of /%s", (char *)arg)
		       : 0;
}

int ipc_settle_mqueues(struct ckpt_run *run, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_remade; i++) {
		const Ckpt__Ipc__Mqueue *rec = ckpt_record_at(run, "ipc.mqueue", i);

		if (rec->unlinked)
			r = ipc_in(run, ckpt_ns_by_id(run, rec->ns), unlink_name,
				   st->remade[i].name, err);
		if (r == 0 && rec->unlinked)
			st->remade[i].made = false;
	}
	return r;
}

void ipc_unmake_mqueues(struct ckpt_run *run)
{
	struct ipc_state *st = ckpt_state(run);

	for (size_t i = 0; st && i < st->n_remade; i++) {
		const Ckpt__Ipc__Mqueue *rec = ckpt_record_at(run, "ipc.mqueue", i);

		if (st->remade[i].made && ckpt_ns_by_id(run, rec->ns)->own)
			syscall(SYS_mq_unlink, st->remade[i].name);
		st->remade[i].made = false;
	}
}

void ipc_free_mqueues(struct ipc_state *st)
{
	for (size_t i = 0; i < st->n_mqueues; i++) {
		if (st->mqueues[i]->fd >= 0)
			close(st->mqueues[i]->fd);
		free(st->mqueues[i]);
	}
	for (size_t i = 0; i < st->n_remade; i++)
		if (st->remade[i].fd >= 0)
			close(st->remade[i].fd);
	free(st->mqueues);
	free(st->roots);
	free(st->remade);
}

struct opening {
	const char *name;
	int flags, fd;
};

static int open_name(void *arg, struct ckpt_error *err)
{
	struct opening *o = arg;

	o->fd = (int)syscall(SYS_mq_open, o->name, o->flags, 0, NULL);
	return o->fd < 0 ? ckpt_fail_sys(err, errno, "mq_open(3) of /%s", o->name) : 0;
}

/*
 * open(2) sets O_LARGEFILE, and mq_open(3) does not; the latter's descriptors are closed at
 * execve(2) anyway, and keep O_CLOEXEC as a flag of the file if it was given.
 */
static int open_again(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	const Ckpt__Ipc__Descriptor *rec = ckpt_record_need(run, "ipc.descriptor", slot->file, err);
	const Ckpt__Ipc__Mqueue *queue;
	ssize_t i = rec ? ckpt_record_index(run, "ipc.mqueue", rec->mqueue) : -1;

	struct opening o = { NULL, slot->flags & (O_ACCMODE | O_CLOEXEC), -1 };
	int r;

	if (!st || i < 0 || (size_t)i >= st->n_remade || st->remade[i].fd < 0)
		return ckpt_fail(err, ESRCH, "open file %u: its message queue was not made",
				 slot->file);
	if (slot->flags & LARGEFILE)
		return reopen(st->remade[i].fd, o.flags, err);
	o.name = st->remade[i].name;
	queue = ckpt_record_at(run, "ipc.mqueue", (size_t)i);
	r = ipc_in(run, ckpt_ns_by_id(run, queue->ns), open_name, &o, err);
	return r < 0 ? r : o.fd;
}

const struct ckpt_fd_kind ipc_mqueue_kind = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = match,
	.survey = survey,
	.collect = collect,
	.plan = plan,
	.open = open_again,
	.own_pos = true,
};
