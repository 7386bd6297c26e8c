/* SPDX-License-Identifier: MIT */
/*
 * restore: devpts with open terminals. A terminal is there before the tasks that inherit
 * it, and its master is open through one mount for ever: so that mount is made first, and
 * laid in its place with all others.
 */
#include <errno.h>
#include <sched.h>

#include "mnt.h"

struct early {
	struct ckpt_run *run;
	struct mnt_made *made;
	size_t fs; /* index of the record */
};

static uint32_t number(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	uint32_t v = 0;

	if (f && f->type == PROTOBUF_C_TYPE_UINT32 && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&v, (const uint8_t *)m + f->offset, sizeof(v));
	return v;
}

bool mnt_has_terminals(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec)
{
	const ProtobufCMessage *pty;

	for (size_t i = 0; (pty = ckpt_record_at(run, "tty.pty", i)); i++)
		if (number(pty, "mount") == rec->id)
			return true;
	return false;
}

static int clone_of(int dir, const char *path, struct ckpt_error *err)
{
	CKPT_AUTO_FD int node = *path ? mnt_open_path(dir, path) : -1;
	int fd = *path && node < 0 ? -1 : mnt_clone(*path ? node : dir);

	return fd < 0 ? ckpt_fail_sys(err, errno, "open_tree(2)") : fd;
}

static int take(struct early *e, size_t i, int top, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec = ckpt_record_at(e->run, "mnt.mount", i);
	char root[64];
	int r;

	mnt_bytes(&rec->root, root, sizeof(root));
	e->made->mounts[i] = r = clone_of(top, root + 1, err);
	return r < 0 ? r : mnt_prepare(r, rec, err);
}

/* Copies are made of what is mounted somewhere: before 6.15 not of a detached mount. */
static int take_all(void *arg, struct ckpt_error *err)
{
	struct early *e = arg;
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_at(e->run, "mnt.filesystem", e->fs);
	CKPT_AUTO_FD int top = e->made->fs[e->fs];
	const Ckpt__Mnt__Mount *rec;
	int r = 0;

	e->made->fs[e->fs] = -1;
	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    move_mount(top, "", AT_FDCWD, "/", MOVE_MOUNT_F_EMPTY_PATH))
		return ckpt_fail_sys(err, errno, "a place for the work");
	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(e->run, "mnt.mount", i)); i++)
		if (rec->fs == fs->id && mnt_has_terminals(e->run, rec))
			r = take(e, i, top, err);
	if (r == 0)
		e->made->fs[e->fs] = r = clone_of(top, "", err);
	return r < 0 ? r : 0;
}

static int tell(const struct early *e, struct ckpt_error *err)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_at(e->run, "mnt.filesystem", e->fs);
	struct ckpt_mount_saved saved = { .fs = fs->id,
					  .directory = true,
					  .fd = e->made->fs[e->fs] };
	const Ckpt__Mnt__Mount *rec;
	int r = ckpt_mount_tell(e->run, &saved, err);

	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(e->run, "mnt.mount", i)); i++) {
		if (rec->fs != fs->id || e->made->mounts[i] < 0)
			continue;
		saved.id = rec->id;
		saved.directory = !rec->file;
		saved.fd = e->made->mounts[i];
		r = ckpt_mount_tell(e->run, &saved, err);
	}
	return r;
}

static int make(struct early *e, struct ckpt_error *err)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_at(e->run, "mnt.filesystem", e->fs);
	struct ckpt_ns_place place = { 0 };
	int r = mnt_make_filesystem(e->run, fs, &e->made->fs[e->fs], err);

	if (r == 0)
		r = ckpt_ns_run(e->run, &place, take_all, e, err);
	if (r == 0)
		r = tell(e, err);
	return r < 0 ? ckpt_wrap(err, "filesystem %u (%s)", fs->id, fs->type) : 0;
}

int mnt_make_terminals(struct ckpt_run *run, struct ckpt_error *err)
{
	struct mnt_state *st = mnt_state(run, err);
	const Ckpt__Mnt__Mount *rec;
	int r = st ? 0 : -ENOMEM;

	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(run, "mnt.mount", i)); i++) {
		struct early e = { run, st->made, 0 };

		if (!rec->fs || !mnt_has_terminals(run, rec))
			continue;
		if (!st->made)
			r = mnt_made_new(run, &st->made, err);
		e.made = st->made;
		e.fs = (size_t)ckpt_record_index(run, "mnt.filesystem", rec->fs);
		if (r == 0 && e.made->fs[e.fs] < 0)
			r = make(&e, err);
	}
	return r;
}
