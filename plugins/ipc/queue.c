/* SPDX-License-Identifier: MIT */
/* Message queues of System V. */
#include <sys/msg.h>

#include "ipc.h"

#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#ifndef MSG_COPY
#define MSG_COPY 040000
#endif

/* ---- dump ------------------------------------------------------- */

struct put {
	struct ckpt_run *run;
	struct ipc_state *st;
	const struct ckpt_ns *ns;
};

struct messages {
	Ckpt__Ipc__Message *items, **list;
	size_t n;
};

static void messages_free(struct messages *m)
{
	for (size_t i = 0; i < m->n; i++)
		free(m->items[i].text.data);
	free(m->items);
	free(m->list);
}

struct message {
	long type;
	char text[];
};

/* MSG_COPY takes nothing out: the i-th message is given each time. */
static int copy_all(int number, size_t n, struct messages *out, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct message *buf = malloc(sizeof(*buf) + IPC_MAX_MESSAGE);

	out->items = calloc(n + 1, sizeof(*out->items));
	out->list = calloc(n + 1, sizeof(*out->list));
	if (!buf || !out->items || !out->list)
		return ckpt_fail_sys(err, ENOMEM, "%zu messages", n);
	for (size_t i = 0; i < n; i++) {
		Ckpt__Ipc__Message *m = &out->items[i];
		ssize_t len = msgrcv(number, buf, IPC_MAX_MESSAGE, (long)i, MSG_COPY | IPC_NOWAIT);

		if (len < 0)
			return ckpt_fail_sys(err, errno, "message %zu of queue %d", i, number);
		ckpt__ipc__message__init(m);
		m->type = buf->type;
		m->text.data = malloc((size_t)len + 1);
		if (!m->text.data)
			return ckpt_fail_sys(err, ENOMEM, "message of %zd bytes", len);
		memcpy(m->text.data, buf->text, (size_t)len);
		m->text.len = (size_t)len;
		out->list[i] = m;
		out->n++;
	}
	return 0;
}

static int put_one(struct put *p, int number, const struct msqid_ds *ds, struct ckpt_error *err)
{
	__attribute__((cleanup(messages_free))) struct messages m = { 0 };
	Ckpt__Ipc__Queue rec = CKPT__IPC__QUEUE__INIT;
	Ckpt__Ipc__Object o = CKPT__IPC__OBJECT__INIT;
	int r = copy_all(number, ds->msg_qnum, &m, err);

	if (r < 0)
		return r;
	ipc_fill_object(&o, p->ns, number, &ds->msg_perm);
	rec.id = ++p->st->n_records;
	rec.object = &o;
	rec.limit = ds->msg_qbytes;
	rec.messages = m.list;
	rec.n_messages = m.n;
	ckpt_count(p->run, "message queues", 1);
	return ckpt_record_put(p->run, IPC_REC_QUEUE, &rec.base, err);
}

static int put_all(void *arg, struct ckpt_error *err)
{
	struct msginfo info;
	int last = msgctl(0, MSG_INFO, (struct msqid_ds *)(void *)&info), r = 0;

	for (int i = 0; i <= last && r == 0; i++) {
		struct msqid_ds ds;
		int number = msgctl(i, MSG_STAT_ANY, &ds);

		if (number >= 0)
			r = put_one(arg, number, &ds, err);
	}
	return r;
}

static int count(void *arg, struct ckpt_error *err)
{
	struct msginfo info;
	int last = msgctl(0, MSG_INFO, (struct msqid_ds *)(void *)&info);

	(void)err;
	for (int i = 0; i <= last; i++) {
		struct msqid_ds ds;

		*(size_t *)arg += msgctl(i, MSG_STAT_ANY, &ds) >= 0;
	}
	return 0;
}

int ipc_count_queues(struct ckpt_run *run, const struct ckpt_ns *ns, size_t *n,
		     struct ckpt_error *err)
{
	return ipc_in(run, ns, count, n, err);
}

int ipc_put_queues(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	struct put p = { run, ipc_state(run, err), ns };

	return p.st ? ipc_in(run, ns, put_all, &p, err) : -ENOMEM;
}

/* ---- restore ------------------------------------------------------ */

static int send_all(int number, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	for (size_t i = 0; i < rec->n_messages; i++) {
		const Ckpt__Ipc__Message *m = rec->messages[i];
		CKPT_AUTO_FREE struct message *buf = malloc(sizeof(*buf) + m->text.len);

		if (!buf)
			return ckpt_fail_sys(err, ENOMEM, "message of %zu bytes", m->text.len);
		buf->type = m->type;
		memcpy(buf->text, m->text.data, m->text.len);
		if (msgsnd(number, buf, m->text.len, IPC_NOWAIT))
			return ckpt_fail_sys(err, errno, "message %zu of queue %d", i, number);
	}
	return 0;
}

/* The limit of a queue may be below what it holds. */
static int make(void *arg, struct ckpt_error *err)
{
	const Ckpt__Ipc__Queue *rec = arg;
	const Ckpt__Ipc__Object *o = rec->object;
	struct msqid_ds ds;
	uint64_t held = 0;
	int number, r = ipc_begin("msg", o, err);

	for (size_t i = 0; i < rec->n_messages; i++)
		held += rec->messages[i]->text.len;
	held = held > rec->limit ? held : rec->limit;
	if (r < 0)
		return r;
	number = msgget((key_t)o->key, IPC_CREAT | IPC_EXCL | (int)o->mode);
	r = ipc_end("msg", o, number, err);
	if (r < 0)
		return r;
	if (msgctl(number, IPC_STAT, &ds))
		return ckpt_fail_sys(err, errno, "msgctl(2) of queue %d", number);
	ds.msg_qbytes = held;
	if (msgctl(number, IPC_SET, &ds))
		return ckpt_fail_sys(err, errno, "msgctl(2) of queue %d: %llu bytes", number,
				     (unsigned long long)held);
	r = send_all(number, rec, err);
	if (r < 0)
		return r;
	ds.msg_qbytes = rec->limit;
	ds.msg_perm.uid = o->uid;
	ds.msg_perm.gid = o->gid;
	ds.msg_perm.mode = (unsigned short)o->mode;
	return msgctl(number, IPC_SET, &ds)
		       ? ckpt_fail_sys(err, errno, "msgctl(2) of queue %d", number)
		       : 0;
}

int ipc_make_queue(struct ckpt_run *run, const Ckpt__Ipc__Queue *rec, struct ckpt_error *err)
{
	return ipc_in(run, ckpt_ns_by_id(run, rec->object->ns), make, (void *)(uintptr_t)rec, err);
}
