/* SPDX-License-Identifier: MIT */
/*
 * Connections to a listening unix socket that nobody has accepted yet. The other end
 * exists, but has no file: what was sent to it already can be read by nobody before
 * accept(2), which cannot be taken back. So only what holds no data is saved.
 */
#include "unix.h"

#include <linux/sockios.h>
#include <stdio.h>
#include <sys/ioctl.h>

const struct sock_waiting *sock_waiting_find(const struct sock_state *st, uint32_t client)
{
	for (size_t i = 0; client && i < st->n_waiting; i++)
		if (st->waiting[i].client == client)
			return &st->waiting[i];
	return NULL;
}

/* ---- dump ------------------------------------------------------------------------- */

#define CUT_OFF                                                                        \
	"try again when the program has accepted them, or --allow-loss sock.pending: " \
	"those peers are then cut off"

int sock_waiting_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct sock_unix_diag *d, struct ckpt_error *err)
{
	char who[96] = "", reason[256];

	if (d->pending > d->backlog + 1)
		return sock_refuse_detail(run, f, "pending",
					  "more connections wait to be accepted than its backlog "
					  "allows by now",
					  CUT_OFF);
	for (size_t i = 0; i < d->pending && d->waiting + i < sock_state(run)->n_waiting; i++) {
		const struct sock_waiting *w = &sock_state(run)->waiting[d->waiting + i];
		struct stat other = { .st_mode = S_IFSOCK, .st_ino = w->client };
		bool out;
		int r;

		if (w->client && f->tree->of_inode(run, f->st.st_dev, w->client, &out))
			continue;
		r = w->client ? f->tree->outside(run, &other, who, sizeof(who), err) : 0;
		if (r < 0)
			return r;
		snprintf(reason, sizeof(reason),
			 "a connection that waits to be accepted comes from %s%s",
			 r ? "outside the tree: " : "a socket that is closed", who);
		r = sock_refuse_detail(run, f, "pending", reason, CUT_OFF);
		if (r)
			return r;
	}
	return 0;
}

/* All that was sent and is not received counts as on its way. */
static bool has_sent(int fd)
{
	int waiting = 0;

	return ioctl(fd, SIOCOUTQ, &waiting) || waiting;
}

int sock_pending_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
			const struct sock_unix_diag *d, const struct sock_waiting *w,
			struct ckpt_error *err)
{
	char object[512];
	bool out;
	int r;

	if (!f->tree->of_inode(run, f->st.st_dev, w->listener, &out))
		return sock_refuse_peer(run, f, w->listener, err);
	snprintf(object, sizeof(object), "fd %d (%s), waits to be accepted", f->num, f->link);
	r = ckpt_refuse_off(run, "pending", f->task, object);
	if (r <= 0)
		return r < 0 && r != -ECANCELED ? r : 1;
	if (has_sent(f->fd))
		return sock_refuse(run, f, "pending-data",
				   "it waits to be accepted and has sent data, which nobody can "
				   "see before",
				   "try again when the other side has accepted it");
	r = sock_end_survey(run, f, d, err);
	if (!r)
		r = sock_creator_survey(run, f);
	return r ? r : sock_name_survey(run, f);
}

/* It is not known who has called connect(2): it is taken to be its first holder. */
static int connector_of(const struct ckpt_task *t, Ckpt__Sock__Credentials *c,
			struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *status = NULL;
	unsigned uid = 0, gid = 0;
	char line[128];
	ssize_t r = ckpt_proc_read(t, "status", &status, err);

	if (r < 0)
		return (int)r;
	ckpt__sock__credentials__init(c);
	if (ckpt_proc_field(status, "Uid", line, sizeof(line)) ||
	    sscanf(line, "%*u %u", &uid) != 1 ||
	    ckpt_proc_field(status, "Gid", line, sizeof(line)) || sscanf(line, "%*u %u", &gid) != 1)
		return ckpt_fail(err, EPROTO, "/proc/%d/status is not understood", t->pid);
	c->task = t->id;
	c->uid = uid;
	c->gid = gid;
	return 0;
}

int sock_pending_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 const struct sock_unix_diag *d, const struct sock_waiting *w,
			 struct ckpt_error *err)
{
	Ckpt__Sock__UnixEnd rec = CKPT__SOCK__UNIX_END__INIT;
	Ckpt__Sock__Credentials connector;
	struct sock_name own, peer;
	bool out = false;
	int r = connector_of(f->task, &connector, err);

	if (r)
		return r;
	rec.form = SOCK_PENDING;
	rec.connector = &connector;
	rec.place = w->place;
	rec.listener = f->tree->of_inode(run, f->st.st_dev, w->listener, &out);
	if (out || !rec.listener || sock_name_read(f->fd, true, &peer) != 1)
		return ckpt_fail_as(err, CKPT_EXIT_REFUSED, EOPNOTSUPP,
				    "a connection waits to be accepted by a socket that is left "
				    "out");
	rec.peer_name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&peer);
	if (sock_name_read(f->fd, false, &own) == 1) {
		sock_name_locate(run, f->fd, &own);
		rec.name = (Ckpt__Sock__UnixName *)(uintptr_t)sock_name_record(&own);
	}
	return sock_end_collect(run, f, d, &rec, err);
}

/* ---- restore ---------------------------------------------------------------------- */

int sock_pending_plan(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec, struct ckpt_error *err)
{
	const Ckpt__Sock__UnixListen *l =
		rec->listener ? ckpt_record_by_id(run, "sock.unix-listen", rec->listener) : NULL;
	int r;

	if (!l || !l->creator || l->type != rec->type ||
	    !sock_name_equal(l->name, rec->peer_name) || rec->place > l->backlog || rec->accepted ||
	    rec->peer || rec->reset || rec->n_queue || rec->peer_name->file)
		return ckpt_fail_image(err, "open file %u has no valid connection", rec->id);
	r = sock_creator_check(run, rec->connector, rec->id, err);
	if (!r)
		r = sock_end_plan(run, rec, err);
	if (r || sock_same_creator(l->creator, rec->creator))
		return r;
	return ckpt_unmet(run, CKPT_EXIT_REFUSED,
			  "let the program accept the connection before the dump",
			  "open file %u: another process listens by now than at the time of its "
			  "connection",
			  rec->id);
}

static int by_place(const void *va, const void *vb)
{
	const Ckpt__Sock__UnixEnd *a = *(const Ckpt__Sock__UnixEnd *const *)va;
	const Ckpt__Sock__UnixEnd *b = *(const Ckpt__Sock__UnixEnd *const *)vb;

	if (a->listener != b->listener)
		return a->listener > b->listener ? 1 : -1;
	return (a->place > b->place) - (a->place < b->place);
}

/* All that wait, by listening socket and place; to be freed. */
static const Ckpt__Sock__UnixEnd **list_pending(struct ckpt_run *run, size_t *n)
{
	size_t all = ckpt_record_count(run, "sock.unix-end");
	const Ckpt__Sock__UnixEnd **list = calloc(all + 1, sizeof(*list));

	*n = 0;
	for (size_t i = 0; list && i < all; i++) {
		const Ckpt__Sock__UnixEnd *rec = ckpt_record_at(run, "sock.unix-end", i);

		if (rec->form == SOCK_PENDING)
			list[(*n)++] = rec;
	}
	if (list && *n)
		qsort(list, *n, sizeof(*list), by_place);
	return list;
}

int sock_pending_order(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n;
	CKPT_AUTO_FREE const Ckpt__Sock__UnixEnd **list = list_pending(run, &n);

	if (!list)
		return ckpt_fail(err, ENOMEM, "out of memory");
	/* more than the backlog would have to wait for ever */
	for (size_t i = 1; i < n; i++)
		if (!by_place(&list[i - 1], &list[i]))
			return ckpt_fail_image(err, "open files %u and %u wait in one place",
					       list[i - 1]->id, list[i]->id);
	return 0;
}

static int connect_pending(struct ckpt_run *run, const Ckpt__Sock__UnixEnd *rec,
			   struct ckpt_error *err)
{
	struct sock_state *st = sock_state(run);
	int fd = sock_kept(st, rec->id), listener = sock_kept(st, rec->listener), r;

	if (fd < 0 || listener < 0)
		return ckpt_fail_image(err, "open file %u cannot wait to be accepted", rec->id);
	r = sock_connect_as(run, rec->connector, rec->peer_name, fd, listener, err);
	if (!r)
		r = sock_end_shut(fd, rec->shutdown, err);
	if (!r)
		r = sock_options_apply(fd, rec->options, rec->n_options, err);
	return r ? r : sock_owner_apply(fd, rec->owner, err);
}

int sock_pending_settle(struct ckpt_run *run, struct ckpt_error *err)
{
	size_t n;
	CKPT_AUTO_FREE const Ckpt__Sock__UnixEnd **list = list_pending(run, &n);
	int r = list ? 0 : ckpt_fail(err, ENOMEM, "out of memory");

	for (size_t i = 0; i < n && !r; i++)
		r = connect_pending(run, list[i], err);
	return r;
}
