/* SPDX-License-Identifier: MIT */
/* What the plugin keeps during a run, and how it reads its own records. */
#include "internal.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct fd_state *fd_state(struct ckpt_run *run)
{
	return ckpt_state_make(run, sizeof(struct fd_state));
}

int fd_kinds_list(struct ckpt_run *run, struct fd_state *st)
{
	size_t n = 0;

	if (st->kinds)
		return 0;
	while (ckpt_extension_at(run, CKPT_FD_POINT, n, NULL))
		n++;
	st->kinds = calloc(n + 1, sizeof(*st->kinds));
	if (!st->kinds)
		return -ENOMEM;
	for (size_t i = 0; i < n; i++)
		st->kinds[i].ext = ckpt_extension_at(run, CKPT_FD_POINT, i, &st->kinds[i].plugin);
	st->n_kinds = n;
	return 0;
}

void fd_found_clear(struct fd_state *st)
{
	fd_dups_close(st);
	fd_threads_clear(st);
	for (size_t i = 0; i < st->n; i++) {
		if (st->entries[i].in_flight && st->entries[i].own >= 0)
			close(st->entries[i].own);
		if (st->entries[i].same)
			continue;
		free(st->entries[i].link);
		free(st->entries[i].fdinfo);
	}
	for (size_t i = 0; i < st->n_files; i++) {
		free(st->files[i].ahead);
		free(st->files[i].known);
	}
	free(st->holders);
	free(st->entries);
	free(st->files);
	free(st->by_inode);
	free(st->foreign);
	st->holders = NULL;
	st->entries = NULL;
	st->files = NULL;
	st->by_inode = NULL;
	st->foreign = NULL;
	st->n = st->n_held = st->n_files = st->n_foreign = 0;
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
	if (st->probe[0]) {
		close(st->probe[0]);
		close(st->probe[1]);
	}
	fd_detached_free(st);
	free(st->stash);
	free(st->kinds);
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

bool fd_is_same(const struct stat *st, const Ckpt__Fd__Owner *owner, uint64_t dev, uint64_t ino)
{
	/* of an image that has none of it */
	if (!owner || (ino && st->st_dev == dev && st->st_ino == ino))
		return true;
	return st->st_uid == owner->uid && st->st_gid == owner->gid &&
	       !(owner->mode & ~st->st_mode & 0777);
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
	const Ckpt__Fd__Table *t = ckpt_record_by_id(run, "fd.table", task);
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

const struct ckpt_task *fd_thread_find(struct ckpt_run *run, pid_t tid, uint32_t *number)
{
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		*number = 0;
		if (t->pid == tid)
			return t;
		for (size_t k = 0; k < t->n_threads; k++) {
			*number = (uint32_t)ckpt_thread_number(t, k);
			if (t->threads[k]->tid == tid)
				return t;
		}
	}
	return NULL;
}

bool fd_task_known(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_by_id(run, "pid.task", id) != NULL;
}

static const ProtobufCFieldDescriptor *field_of(const ProtobufCMessage *m, const char *name)
{
	return m ? protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name) : NULL;
}

size_t fd_threads_known(struct ckpt_run *run, uint32_t id)
{
	const ProtobufCMessage *m = ckpt_record_by_id(run, "pid.task", id);
	const ProtobufCFieldDescriptor *f = field_of(m, "threads");
	size_t n = 0;

	if (f && f->label == PROTOBUF_C_LABEL_REPEATED)
		memcpy(&n, (const char *)m + f->quantifier_offset, sizeof(n));
	return n;
}

bool fd_thread_known(struct ckpt_run *run, uint32_t id, uint32_t number)
{
	const ProtobufCMessage *m = ckpt_record_by_id(run, "pid.task", id);
	const ProtobufCFieldDescriptor *f = field_of(m, "ended");
	const void *ended = NULL;

	if (f && f->type == PROTOBUF_C_TYPE_MESSAGE && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&ended, (const char *)m + f->offset, sizeof(ended));
	return number < fd_threads_known(run, id) + (ended != NULL);
}

bool fd_mnt_known(struct ckpt_run *run, uint32_t mnt)
{
	const struct ckpt_ns *ns = mnt ? ckpt_ns_by_id(run, mnt) : NULL;

	return !mnt || (ns && ns->type == CKPT_NS_MNT);
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
		return ckpt_fail_image(err, "open file %u has no valid owner", id);
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
