/* SPDX-License-Identifier: MIT */
/* What the plugin keeps during a run, and how it reads its own records. */
#include "internal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct fd_state *fd_state(struct ckpt_run *run)
{
	struct fd_state *st = ckpt_state(run);

	if (st)
		return st;
	st = calloc(1, sizeof(*st));
	if (st)
		ckpt_state_set(run, st);
	return st;
}

void fd_found_clear(struct fd_state *st)
{
	for (size_t i = 0; i < st->n; i++) {
		free(st->entries[i].link);
		free(st->entries[i].fdinfo);
	}
	free(st->entries);
	free(st->files);
	free(st->by_inode);
	free(st->foreign);
	st->entries = NULL;
	st->files = NULL;
	st->by_inode = NULL;
	st->foreign = NULL;
	st->n = st->cap = st->n_files = st->n_foreign = 0;
	st->foreign_known = st->has_private = false;
}

void fd_state_free(void *state)
{
	struct fd_state *st = state;

	if (!st)
		return;
	fd_found_clear(st);
	for (size_t i = 0; i < st->n_stash; i++)
		close(st->stash[i].fd);
	if (st->scratch_capacity) {
		close(st->scratch[0]);
		close(st->scratch[1]);
	}
	free(st->stash);
	free(st);
}

int fd_stash_put(struct fd_state *st, uint32_t id, int fd, struct ckpt_error *err)
{
	if (st->n_stash == st->cap_stash) {
		size_t cap = st->cap_stash ? st->cap_stash * 2 : 16;
		struct fd_stashed *more = realloc(st->stash, cap * sizeof(*more));

		if (!more) {
			close(fd);
			return ckpt_fail(err, ENOMEM, "out of memory");
		}
		st->stash = more;
		st->cap_stash = cap;
	}
	st->stash[st->n_stash++] = (struct fd_stashed){ id, fd };
	return 0;
}

int fd_stash_take(struct fd_state *st, uint32_t id)
{
	/* the other end of what was made last is asked for most often */
	for (size_t i = st->n_stash; i-- > 0;) {
		int fd = st->stash[i].fd;

		if (st->stash[i].id != id)
			continue;
		st->stash[i] = st->stash[--st->n_stash];
		return fd;
	}
	return -1;
}

/* ---- records -------------------------------------------------------------------- */

/* Every message of this plugin that is a record starts with its id. */
struct head {
	ProtobufCMessage base;
	uint32_t id;
};

#define SAME_HEAD(type)                                                     \
	_Static_assert(offsetof(type, id) == offsetof(struct head, id) &&   \
			       sizeof(((type *)0)->id) == sizeof(uint32_t), \
		       "records start with their id")
SAME_HEAD(Ckpt__Fd__Table);
SAME_HEAD(Ckpt__Fd__File);
SAME_HEAD(Ckpt__Fd__Regular);
SAME_HEAD(Ckpt__Fd__Device);
SAME_HEAD(Ckpt__Fd__Pipe);
SAME_HEAD(Ckpt__Fd__PipeEnd);
SAME_HEAD(Ckpt__Fd__Eventfd);
SAME_HEAD(Ckpt__Fd__Timerfd);
SAME_HEAD(Ckpt__Fd__Epoll);
SAME_HEAD(Ckpt__Fd__Signalfd);
SAME_HEAD(Ckpt__Fd__Pidfd);
SAME_HEAD(Ckpt__Fd__Opath);
SAME_HEAD(Ckpt__Fd__Proc);
SAME_HEAD(Ckpt__Fd__Async);
SAME_HEAD(Ckpt__Fd__Ghost);
SAME_HEAD(Ckpt__Fd__GhostEnd);
SAME_HEAD(Ckpt__Fd__Lock);
SAME_HEAD(Ckpt__Fd__Inotify);
SAME_HEAD(Ckpt__Fd__External);

ssize_t fd_record_index(struct ckpt_run *run, const char *type, uint32_t id)
{
	size_t lo = 0, hi = ckpt_record_count(run, type);

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct head *h = ckpt_record_at(run, type, mid);

		if (h->id == id)
			return (ssize_t)mid;
		if (h->id < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return -1;
}

const void *fd_record(struct ckpt_run *run, const char *type, uint32_t id)
{
	ssize_t at = fd_record_index(run, type, id);

	return at < 0 ? NULL : ckpt_record_at(run, type, (size_t)at);
}

const void *fd_record_need(struct ckpt_run *run, const char *type, uint32_t id,
			   struct ckpt_error *err)
{
	const void *rec = fd_record(run, type, id);

	if (!rec)
		fd_bad(err, "open file %u has no record %s", id, type);
	return rec;
}

int fd_records_check(struct ckpt_run *run, const char *type, struct ckpt_error *err)
{
	uint32_t last = 0;

	for (size_t i = 0; i < ckpt_record_count(run, type); i++) {
		const struct head *h = ckpt_record_at(run, type, i);

		if (h->id <= last)
			return fd_bad(err, "records %s are not in order at %u", type, h->id);
		last = h->id;
	}
	return 0;
}

int fd_bad(struct ckpt_error *err, const char *fmt, ...)
{
	char text[256];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EBADMSG, "%s", text);
}

const char *fd_image_path(const ProtobufCBinaryData *b, char *buf, size_t size)
{
	if (!b->len || b->len >= size || b->len >= PATH_MAX || b->data[0] != '/' ||
	    memchr(b->data, 0, b->len))
		return NULL;
	memcpy(buf, b->data, b->len);
	buf[b->len] = '\0';
	return buf;
}

bool fd_table_has(struct ckpt_run *run, uint32_t task, uint32_t num, uint32_t file)
{
	const Ckpt__Fd__Table *t = fd_record(run, "fd.table", task);
	size_t lo = 0, hi = t ? t->n_entries : 0;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;

		if (t->entries[mid]->num == num)
			return t->entries[mid]->file == file;
		if (t->entries[mid]->num < num)
			lo = mid + 1;
		else
			hi = mid;
	}
	return false;
}

/* The tasks are the plugin pid's; only the field `id` of its record is known here. */
bool fd_task_known(struct ckpt_run *run, uint32_t id)
{
	size_t lo = 0, hi = ckpt_record_count(run, "pid.task");

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const ProtobufCMessage *m = ckpt_record_at(run, "pid.task", mid);
		const ProtobufCFieldDescriptor *f =
			protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "id");
		uint32_t got;

		if (!f || f->type != PROTOBUF_C_TYPE_UINT32)
			return false;
		memcpy(&got, (const char *)m + f->offset, sizeof(got));
		if (got == id)
			return true;
		if (got < id)
			lo = mid + 1;
		else
			hi = mid;
	}
	return false;
}

/* ---- owners ----------------------------------------------------------------------- */

void fd_owner_of(const struct stat *st, Ckpt__Fd__Owner *owner)
{
	ckpt__fd__owner__init(owner);
	owner->uid = st->st_uid;
	owner->gid = st->st_gid;
	owner->mode = st->st_mode & 07777;
}

int fd_owner_check(const Ckpt__Fd__Owner *owner, uint32_t id, struct ckpt_error *err)
{
	if (!owner || owner->mode & ~07777u || owner->uid == UINT32_MAX || owner->gid == UINT32_MAX)
		return fd_bad(err, "open file %u has no valid owner", id);
	return 0;
}

int fd_owner_apply(int fd, const Ckpt__Fd__Owner *owner, struct ckpt_error *err)
{
	struct stat st;

	if (fstat(fd, &st))
		return ckpt_fail_sys(err, errno, "fstat(2)");
	if ((st.st_uid != owner->uid || st.st_gid != owner->gid) &&
	    fchown(fd, owner->uid, owner->gid))
		return ckpt_fail_sys(err, errno, "fchown(2) to %u:%u", owner->uid, owner->gid);
	if ((st.st_mode & 07777) != owner->mode && fchmod(fd, owner->mode))
		return ckpt_fail_sys(err, errno, "fchmod(2) to %04o", owner->mode);
	return 0;
}
