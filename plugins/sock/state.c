/* SPDX-License-Identifier: MIT */
/* What the plugin keeps during a run, and how it reads its own records. */
#include "tcp.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct sock_state *sock_state(struct ckpt_run *run)
{
	return ckpt_state_make(run, sizeof(struct sock_state));
}

void sock_state_free(void *state)
{
	struct sock_state *st = state;

	if (!st)
		return;
	for (size_t i = 0; i < st->n_stash; i++)
		close(st->stash[i].fd);
	sock_made_forget(st, false);
	sock_kept_close(st);
	for (size_t i = 0; i < st->n_deferred; i++)
		for (int k = 0; k < 2; k++)
			close(st->deferred[i].fd[k]);
	for (size_t i = 0; i < st->n_sent; i++)
		free(st->sent[i].out);
	free(st->sent);
	sock_guard_stop(st);
	sock_hold_free(st);
	free(st->tcp);
	for (size_t i = 0; i < st->n_looks; i++)
		sock_look_free(&st->looks[i]);
	free(st->looks);
	free(st->deferred);
	free(st->diag);
	free(st->nets);
	free(st->waiting);
	free(st->kept);
	free(st->stash);
	free(st->made);
	free(st);
}

static int put(struct sock_stashed **list, size_t *n, size_t *cap, uint32_t id, int fd,
	       struct ckpt_error *err)
{
	if (*n == *cap) {
		size_t want = *cap ? *cap * 2 : 16;
		struct sock_stashed *more = realloc(*list, want * sizeof(*more));

		if (!more) {
			close(fd);
			return ckpt_fail(err, ENOMEM, "out of memory");
		}
		*list = more;
		*cap = want;
	}
	(*list)[(*n)++] = (struct sock_stashed){ id, fd };
	return 0;
}

int sock_keep(struct sock_state *st, uint32_t id, int fd, struct ckpt_error *err)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	if (copy < 0)
		return ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC");
	return put(&st->kept, &st->n_kept, &st->cap_kept, id, copy, err);
}

int sock_kept(const struct sock_state *st, uint32_t id)
{
	for (size_t i = 0; i < st->n_kept; i++)
		if (st->kept[i].id == id)
			return st->kept[i].fd;
	return -1;
}

void sock_kept_close(struct sock_state *st)
{
	for (size_t i = 0; i < st->n_kept; i++)
		close(st->kept[i].fd);
	st->n_kept = 0;
}

int sock_stash_put(struct sock_state *st, uint32_t id, int fd, struct ckpt_error *err)
{
	return put(&st->stash, &st->n_stash, &st->cap_stash, id, fd, err);
}

int sock_stash_take(struct sock_state *st, uint32_t id)
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

/* By its directory: a path may lead elsewhere by then, or begin in a mount namespace. */
int sock_note_made(struct sock_state *st, int dir, const char *base, int file)
{
	struct sock_made m = { .dir = -1 };
	struct stat s;

	if (fstat(file, &s))
		return -errno;

	if (st->n_made == st->cap_made) {
		size_t cap = st->cap_made ? st->cap_made * 2 : 8;
		struct sock_made *more = realloc(st->made, cap * sizeof(*more));

		if (!more)
			return -ENOMEM;
		st->made = more;
		st->cap_made = cap;
	}
	m.dev = s.st_dev;
	m.ino = s.st_ino;
	m.base = strdup(base);
	m.dir = m.base ? fcntl(dir, F_DUPFD_CLOEXEC, 0) : -1;
	if (m.dir < 0) {
		free(m.base);
		return -ENOMEM;
	}
	st->made[st->n_made++] = m;
	return 0;
}

void sock_made_forget(struct sock_state *st, bool unlink_them)
{
	for (size_t i = 0; i < st->n_made; i++) {
		const struct sock_made *m = &st->made[i];
		struct stat now;

		/* what has its name by now may be another's */
		if (unlink_them && !fstatat(m->dir, m->base, &now, AT_SYMLINK_NOFOLLOW) &&
		    now.st_dev == m->dev && now.st_ino == m->ino)
			ckpt_remove(m->dir, m->base, 0);
		close(m->dir);
		free(m->base);
	}
	st->n_made = 0;
}

/* ---- records -------------------------------------------------------------------- */

const char *sock_image_path(const ProtobufCBinaryData *b, char *buf, size_t size)
{
	if (!b->len || b->len >= size || b->len >= PATH_MAX || b->data[0] != '/' ||
	    memchr(b->data, 0, b->len))
		return NULL;
	memcpy(buf, b->data, b->len);
	buf[b->len] = '\0';
	return buf;
}

bool sock_task_known(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_by_id(run, "pid.task", id) != NULL;
}

bool sock_file_known(struct ckpt_run *run, uint32_t id)
{
	return ckpt_record_by_id(run, "fd.file", id) != NULL;
}

/* A text of a message of another plugin, found by its name. */
static const char *text_of(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	const char *text = NULL;

	if (f && f->type == PROTOBUF_C_TYPE_STRING && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&text, (const uint8_t *)m + f->offset, sizeof(text));
	return text ? text : "";
}

bool sock_file_is(struct ckpt_run *run, uint32_t id, const char *const *kinds)
{
	const ProtobufCMessage *m = ckpt_record_by_id(run, "fd.file", id);

	if (!m || strcmp(text_of(m, "plugin"), "sock") != 0)
		return false;
	for (size_t i = 0; kinds[i]; i++)
		if (!strcmp(text_of(m, "kind"), kinds[i]))
			return true;
	return !kinds[0];
}

/* ---- owners ----------------------------------------------------------------------- */

void sock_owner_of(const struct stat *st, Ckpt__Sock__Owner *owner)
{
	ckpt__sock__owner__init(owner);
	owner->uid = st->st_uid;
	owner->gid = st->st_gid;
	owner->mode = st->st_mode & 07777;
}

int sock_owner_check(const Ckpt__Sock__Owner *owner, uint32_t id, struct ckpt_error *err)
{
	if (!owner || owner->mode & ~07777u || owner->uid == UINT32_MAX || owner->gid == UINT32_MAX)
		return ckpt_fail_image(err, "open file %u has no valid owner", id);
	return 0;
}

int sock_owner_apply(int fd, const Ckpt__Sock__Owner *owner, struct ckpt_error *err)
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
