/* SPDX-License-Identifier: MIT */
/*
 * POSIX message queues: a dump. The kernel has no way to look at messages: they are received and
 * sent back at once, in their order, while all that could use the queue stands still. A child
 * does so that goes on if ckpt is killed: the tree's messages are never in ckpt's hands alone.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <time.h>

#include "posix.h"

/* ---- which there are ------------------------------------------------------------------- */

/* The queues of the namespace that the caller is in are files here, though not mounted anywhere. */
int ipc_open_queues(struct ckpt_error *err)
{
	CKPT_AUTO_FD int fs = fsopen("mqueue", FSOPEN_CLOEXEC);
	CKPT_AUTO_FD int mount = -1;
	int fd = -1;

	/* a kernel without them */
	if (fs < 0 && errno == ENODEV)
		return ckpt_fail(err, ENODEV, "this kernel has no POSIX message queues");
	if (fs >= 0 && fsconfig(fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
		mount = fsmount(fs, FSMOUNT_CLOEXEC, 0);
	if (mount >= 0)
		fd = openat(mount, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "looking at POSIX message queues") : fd;
}

struct ipc_mqueue *ipc_add_mqueue(struct ipc_state *st, const struct ckpt_ns *ns,
				  const struct stat *s, const char *name, struct ckpt_error *err)
{
	struct ipc_mqueue **more = realloc(st->mqueues, (st->n_mqueues + 1) * sizeof(*more));
	struct ipc_mqueue *q = calloc(1, sizeof(*q));

	if (more)
		st->mqueues = more;
	if (!more || !q) {
		free(q);
		ckpt_fail_sys(err, ENOMEM, "POSIX message queues");
		return NULL;
	}
	q->ns = ns;
	q->dev = s->st_dev;
	q->ino = s->st_ino;
	q->fd = -1;
	snprintf(q->name, sizeof(q->name), "%s", name);
	return st->mqueues[st->n_mqueues++] = q;
}

struct look {
	struct ipc_state *st;
	const struct ckpt_ns *ns;
};

static int add_named(const struct look *l, int dir, const char *name, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = openat(dir, name, O_RDWR | O_NONBLOCK | O_CLOEXEC);
	struct ipc_mqueue *q;
	struct stat s;

	if (fd < 0 && errno == ENOENT)
		return 0;
	if (fd < 0 || fstat(fd, &s))
		return ckpt_fail_sys(err, errno, "POSIX message queue /%s", name);
	q = ipc_add_mqueue(l->st, l->ns, &s, name, err);
	if (!q)
		return -ENOMEM;
	q->fd = ckpt_steal_fd(&fd);
	return 0;
}

static int look(void *arg, struct ckpt_error *err)
{
	const struct look *l = arg;
	struct ipc_state *st = l->st;
	CKPT_AUTO_FD int fd = ipc_open_queues(err);
	struct ipc_mqueues *more;
	CKPT_AUTO_DIR DIR *dir = NULL;
	struct dirent *e;
	struct stat s;
	int r = 0;

	if (fd == -ENODEV)
		*err = (struct ckpt_error){ 0 };
	if (fd < 0)
		return fd == -ENODEV ? 0 : fd;
	more = realloc(st->roots, (st->n_roots + 1) * sizeof(*more));
	if (!more || fstat(fd, &s))
		return ckpt_fail_sys(err, more ? errno : ENOMEM, "POSIX message queues");
	st->roots = more;
	more[st->n_roots++] = (struct ipc_mqueues){ l->ns, s.st_dev };
	/* in ckpt's own namespace only what is open is the tree's */
	if (l->ns->own)
		return 0;
	dir = fdopendir(fd);
	if (!dir)
		return ckpt_fail_sys(err, errno, "looking at POSIX message queues");
	ckpt_steal_fd(&fd);
	while (r == 0 && (e = ckpt_next_entry(dir)))
		if (strcmp(e->d_name, ".") && strcmp(e->d_name, ".."))
			r = add_named(l, dirfd(dir), e->d_name, err);
	return !r && errno ? ckpt_fail_sys(err, errno, "looking at POSIX message queues") : r;
}

int ipc_look_for_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct look l = { ipc_state(run, err), ns };

	if (!l.st)
		return -ENOMEM;
	return ns->own ? look(&l, err) : ipc_in(run, ns, look, &l, err);
}

/* ---- what cannot be saved -------------------------------------------------------------------- */

static int refuse(struct ckpt_run *run, struct ipc_mqueue *q, const struct ckpt_task *t,
		  const char *reason, const char *hint)
{
	char object[IPC_QUEUE_NAME + 32];

	snprintf(object, sizeof(object), "message queue /%s%s", q->name,
		 q->unlinked ? " (unlinked)" : "");
	q->lost = true;
	return ckpt_refuse(run, &(struct ckpt_blocker){ "mqueue", t, object, reason, hint, false });
}

/* The text that a queue is as a file: bytes held, and who is told of the next message. */
static int read_status(const struct ipc_mqueue *q, unsigned long long *bytes, int *told,
		       struct ckpt_error *err)
{
	char text[128];
	ssize_t n = pread(q->fd, text, sizeof(text) - 1, 0);

	text[n < 0 ? 0 : n] = 0;
	if (sscanf(text, "QSIZE:%llu NOTIFY:%*d SIGNO:%*d NOTIFY_PID:%d", bytes, told) != 2)
		return ckpt_fail_sys(err, n < 0 ? errno : EPROTO, "status of a message queue");
	return 0;
}

/* 1: it is lost or refused. */
int ipc_survey_mqueue(struct ckpt_run *run, struct ipc_mqueue *q, const struct ckpt_task *t,
		      struct ckpt_error *err)
{
	unsigned long long bytes;
	char who[64];
	int told, r;

	if (q->seen)
		return q->lost;
	q->seen = true;
	r = ckpt_refuse_off(run, "mqueue", t, q->name);
	if (r != 1) {
		q->lost = true;
		return 1;
	}
	r = read_status(q, &bytes, &told, err);
	if (r < 0)
		return r;
	if (told)
		refuse(run, q, t,
		       "a process waits to be told of its next message (mq_notify(3)), "
		       "and with which value is not to be read",
		       "let the program call mq_notify(mq, NULL) before the dump");
	else if (bytes > IPC_MAX_MESSAGE)
		refuse(run, q, t, "it holds more than 32 MiB", "let the program read it");
	if (!q->ns->own || q->lost)
		return q->lost;
	r = ipc_mqueue_outside(run, q->dev, q->ino, who, sizeof(who), err);
	if (r > 0)
		refuse(run, q, t, who, "dump the tree that has all its users in it");
	return r < 0 ? r : q->lost;
}

int ipc_survey_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? ipc_look(run, err) : -ENOMEM;

	for (size_t i = 0; r >= 0 && i < st->n_mqueues; i++)
		if (st->mqueues[i]->ns == ns)
			r = ipc_survey_mqueue(run, st->mqueues[i], ns->member, err);
	return r < 0 ? r : 0;
}

/* ---- messages ------------------------------------------------------------------------- */

struct copy {
	uint32_t n;
	struct {
		uint32_t length, priority;
	} head[]; /* room for all; then the texts, and room for the longest */
};

struct reading {
	int fd;
	uint32_t n;
	size_t longest, room; /* for all texts */
	struct copy *copy;
};

/*
 * Memory for it may be short for a moment, and whoever else has the queue open may have
 * filled it: not forever, for the tree stands still meanwhile.
 */
static int give_back(int fd, const char *text, uint32_t length, uint32_t priority, int *naps)
{
	const struct timespec nap = { .tv_nsec = 1000000 };

	while (syscall(SYS_mq_timedsend, fd, text, length, priority, NULL)) {
		if (!*naps || (errno != ENOMEM && errno != EAGAIN))
			return -errno;
		nanosleep(&nap, NULL);
		--*naps;
	}
	return 0;
}

static int take_and_give_back(void *arg)
{
	const struct reading *q = arg;
	struct copy *c = q->copy;
	char *texts = (char *)&c->head[q->n], *at = texts;
	/* for all messages: half of the time that the tree waits for us without an engine */
	int naps = 5000, r = 0;

	for (; c->n < q->n && (size_t)(at - texts) + q->longest <= q->room; c->n++) {
		ssize_t len = syscall(SYS_mq_timedreceive, q->fd, at, q->longest,
				      &c->head[c->n].priority, NULL);

		if (len < 0) {
			r = -errno;
			break;
		}
		c->head[c->n].length = (uint32_t)len;
		at += len;
	}
	at = texts;
	for (uint32_t i = 0; i < c->n; i++) {
		int put = give_back(q->fd, at, c->head[i].length, c->head[i].priority, &naps);

		r = r ? r : put;
		at += c->head[i].length;
	}
	return r || c->n == q->n ? r : -EMSGSIZE;
}

struct texts {
	struct copy *copy;
	size_t size;
	Ckpt__Ipc__Letter *items, **list;
};

static void texts_free(struct texts *t)
{
	if (t->copy)
		munmap(t->copy, t->size);
	free(t->items);
	free(t->list);
}

static int read_messages(struct ckpt_run *run, const struct ipc_mqueue *q, Ckpt__Ipc__Mqueue *rec,
			 struct texts *t, struct ckpt_error *err)
{
	const uint32_t n = (uint32_t)rec->n_letters;
	unsigned long long bytes;
	char *at;
	int told, r = read_status(q, &bytes, &told, err);

	if (r < 0 || !n)
		return r;
	t->size = sizeof(*t->copy) + n * sizeof(t->copy->head[0]) + bytes + rec->longest;
	t->copy = mmap(NULL, t->size, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (t->copy == MAP_FAILED) {
		t->copy = NULL;
		return ckpt_fail_sys(err, errno, "room for %u messages", n);
	}
	t->items = calloc(n, sizeof(*t->items));
	t->list = calloc(n, sizeof(*t->list));
	if (!t->items || !t->list)
		return ckpt_fail_sys(err, ENOMEM, "%u messages", n);
	r = ckpt_run_holding(
		run, take_and_give_back,
		&(struct reading){ q->fd, n, rec->longest, bytes + rec->longest, t->copy },
		"a message queue", err);
	at = (char *)&t->copy->head[n];
	for (uint32_t i = 0; i < n && r == 0; i++) {
		ckpt__ipc__letter__init(&t->items[i]);
		t->items[i].priority = t->copy->head[i].priority;
		t->items[i].text.data = (uint8_t *)at;
		t->items[i].text.len = t->copy->head[i].length;
		at += t->copy->head[i].length;
		t->list[i] = &t->items[i];
	}
	rec->letters = t->list;
	return r;
}

int ipc_put_mqueue(struct ckpt_run *run, struct ipc_mqueue *q, struct ckpt_error *err)
{
	__attribute__((cleanup(texts_free))) struct texts t = { 0 };
	struct ipc_state *st = ipc_state(run, err);
	Ckpt__Ipc__Mqueue rec = CKPT__IPC__MQUEUE__INIT;
	struct mq_attr attr;
	struct stat s;
	int r;

	if (q->id || q->lost || !st)
		return st ? 0 : -ENOMEM;
	if (fstat(q->fd, &s) || syscall(SYS_mq_getsetattr, q->fd, NULL, &attr))
		return ckpt_fail_sys(err, errno, "message queue /%s", q->name);
	rec.id = q->id = ++st->n_records;
	rec.ns = q->ns->id;
	rec.name.data = (uint8_t *)q->name;
	rec.name.len = strlen(q->name);
	rec.unlinked = q->unlinked;
	rec.uid = s.st_uid;
	rec.gid = s.st_gid;
	rec.mode = s.st_mode & 07777;
	rec.most = (uint32_t)attr.mq_maxmsg;
	rec.longest = (uint32_t)attr.mq_msgsize;
	rec.n_letters = (size_t)attr.mq_curmsgs;
	r = read_messages(run, q, &rec, &t, err);
	if (r < 0)
		return ckpt_wrap(err, "message queue /%s", q->name);
	ckpt_count(run, "POSIX message queues", 1);
	return ckpt_record_put(run, IPC_REC_MQUEUE, &rec.base, err);
}

int ipc_put_mqueues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	int r = st ? ipc_look(run, err) : -ENOMEM;

	for (size_t i = 0; r == 0 && i < st->n_mqueues; i++)
		if (st->mqueues[i]->ns == ns)
			r = ipc_put_mqueue(run, st->mqueues[i], err);
	return r;
}
