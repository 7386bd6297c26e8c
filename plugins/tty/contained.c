/* SPDX-License-Identifier: MIT */
/*
 * Terminals of a devpts that the tree has mounted itself, as containers do. The plugin mnt
 * mounts it before the tasks are made; a master is opened through the very mount that it was
 * open through, for that is where the kernel, and ptsname(3), look for its slave.
 */
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include "tty.h"

#define OWN_HINT "let the program open its terminals by the ptmx of that devpts"

/* ---- mounts --------------------------------------------------------------------------- */

const struct ckpt_mount_saved *tty_mount_of_fd(struct ckpt_run *run, int fd)
{
	const struct ckpt_mount_saved *m;
	struct statx sx;

	if (statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID, &sx))
		return NULL;
	for (size_t i = 0; (m = ckpt_mount_saved(run, i)); i++)
		if (m->kernel == sx.stx_mnt_id)
			return m;
	return NULL;
}

/* The first whole one that is not in the way of another user namespace. */
const struct ckpt_mount_saved *tty_mount_of(struct ckpt_run *run, uint32_t fs)
{
	const struct ckpt_mount_saved *m;

	for (size_t i = 0; (m = ckpt_mount_saved(run, i)); i++)
		if (m->fs == fs && m->directory && !m->locked && m->fd >= 0)
			return m;
	return NULL;
}

int tty_directory(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	const struct ckpt_mount_saved *m;

	if (!st)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (!TTY_DEVPTS(id)) {
		if (st->here < 0)
			st->here = open(TTY_PTS_DIR, O_PATH | O_DIRECTORY | O_CLOEXEC);
		return st->here < 0 ? ckpt_fail_sys(err, errno, TTY_PTS_DIR) : st->here;
	}
	m = tty_mount_of(run, TTY_DEVPTS(id));
	return m ? m->fd : ckpt_fail(err, ENOENT, "its devpts is nowhere mounted as a whole");
}

int tty_record_id(struct ckpt_run *run, const struct tty_state *st, uint32_t pty, uint32_t *id,
		  struct ckpt_error *err)
{
	const struct ckpt_mount_saved *m;

	*id = pty;
	if (pty == TTY_PTY_NONE)
		return ckpt_fail(err, ENODEV, "it is no terminal of the tree");
	for (size_t i = 0; TTY_DEVPTS(pty) && (m = ckpt_mount_saved(run, i)); i++) {
		if (!m->fs || m->dev != st->pts[TTY_DEVPTS(pty)])
			continue;
		if (m->fs > UINT32_MAX >> TTY_PTY_BITS || !tty_mount_of(run, m->fs))
			break;
		*id = m->fs << TTY_PTY_BITS | TTY_NUMBER(pty);
		return 0;
	}
	return TTY_DEVPTS(pty) ? ckpt_fail(err, ENOENT, "its devpts is not saved") : 0;
}

/* ---- survey ---------------------------------------------------------------------------- */

static bool is_ckpts_own(struct ckpt_run *run, dev_t dev, struct ckpt_error *err)
{
	const struct ckpt_mounts *own;

	if (ckpt_mounts(run, ckpt_ns_own(run, CKPT_NS_MNT), &own, err) < 0)
		return true;
	for (size_t i = 0; i < own->n; i++)
		if (makedev(own->list[i].major, own->list[i].minor) == dev)
			return true;
	return false;
}

int tty_contained_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, bool master,
			 bool hung_up, struct ckpt_error *err)
{
	int mnt = ckpt_mnt_of_fd(run, f->fd, err);
	struct statfs fs;
	struct stat there;
	int r;

	if (mnt < 0 && mnt != -ENOENT)
		return mnt;
	if (mnt < 0)
		return tty_refuse(run, f, "devpts", "its devpts is not mounted any more", OWN_HINT);
	if (fstatfs(f->fd, &fs))
		return ckpt_fail_sys(err, errno, "fstatfs(2)");
	if (master && fs.f_type != DEVPTS_SUPER_MAGIC)
		return tty_refuse(run, f, "devpts",
				  "its master was opened by a node beside that devpts", OWN_HINT);
	if (!mnt || is_ckpts_own(run, f->st.st_dev, err))
		return tty_refuse(run, f, "devpts",
				  "it is of a devpts that is neither the tree's own nor "
				  "on " TTY_PTS_DIR,
				  "run ckpt where that devpts is on " TTY_PTS_DIR);
	if (!hung_up && (ckpt_stat_in(run, (uint32_t)mnt, f->link, false, &there) ||
			 there.st_dev != f->st.st_dev || there.st_ino != f->st.st_ino))
		return tty_refuse(run, f, "devpts", "its path does not lead there any more",
				  "allow the loss, or do not mount over it");
	r = tty_need(run, f, "contained");
	return r ? r : !ckpt_feature_on(run, "contained");
}

static int refuse(struct ckpt_run *run, const struct tty_holder *h, const char *reason)
{
	char object[64];
	int r;

	snprintf(object, sizeof(object), "fd %d (pty %u of its own devpts)", h->num,
		 TTY_NUMBER(h->pty));
	r = ckpt_refuse(run, &(struct ckpt_blocker){ .feature = "devpts",
						     .task = h->task,
						     .object = object,
						     .reason = reason,
						     .hint = OWN_HINT });
	return r == -ECANCELED ? 0 : r;
}

static int survey_one(struct ckpt_run *run, const struct tty_state *st, const struct tty_holder *h,
		      struct ckpt_error *err)
{
	const struct ckpt_mount_saved *m;
	CKPT_AUTO_FD int fd = -1;
	struct ckpt_error why = { 0 };
	uint32_t id;

	fd = ckpt_get_fd(h->task, h->num, err);
	if (fd < 0)
		return ckpt_is_live(run) ? 0 : fd;
	m = tty_mount_of_fd(run, fd);
	if (tty_record_id(run, st, h->pty, &id, &why) < 0)
		return refuse(run, h, why.text);
	if (h->master && (!m || m->locked))
		return refuse(run, h,
			      "the mount by which its master was opened is locked in a nested "
			      "user namespace");
	return 0;
}

int tty_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	int r = 0;

	for (size_t i = 0; st && st->known && i < st->n_holders && r == 0; i++) {
		const struct tty_holder *h = &st->holders[i];

		if (h->task && TTY_DEVPTS(h->pty) && tty_holder(st, h->pty, h->master, false) == h)
			r = survey_one(run, st, h, err);
	}
	return r;
}

/* ---- restore ---------------------------------------------------------------------------- */

static uint32_t number(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	uint32_t v = 0;

	if (f && f->type == PROTOBUF_C_TYPE_UINT32 && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&v, (const uint8_t *)m + f->offset, sizeof(v));
	if (f && f->type == PROTOBUF_C_TYPE_BOOL && f->label != PROTOBUF_C_LABEL_REPEATED)
		v = *(const protobuf_c_boolean *)((const uint8_t *)m + f->offset) != 0;
	return v;
}

static bool is_type(const ProtobufCMessage *m, const char *type)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, "type");
	const char *text = NULL;

	if (f && f->type == PROTOBUF_C_TYPE_STRING && f->label != PROTOBUF_C_LABEL_REPEATED)
		memcpy(&text, (const uint8_t *)m + f->offset, sizeof(text));
	return text && !strcmp(text, type);
}

int tty_contained_plan(struct ckpt_run *run, const Ckpt__Tty__Pty *rec, struct ckpt_error *err)
{
	const uint32_t fs = TTY_DEVPTS(rec->id);
	const ProtobufCMessage *filesystem =
		fs ? ckpt_record_by_id(run, "mnt.filesystem", fs) : NULL;
	const ProtobufCMessage *mount =
		rec->mount ? ckpt_record_by_id(run, "mnt.mount", rec->mount) : NULL;

	if (!fs)
		return rec->mount ? ckpt_fail_image(err, "pty %u: a mount, but no devpts", rec->id)
				  : 0;
	if (!filesystem || !is_type(filesystem, "devpts") || !mount || number(mount, "fs") != fs ||
	    number(mount, "locked") || number(mount, "deleted"))
		return ckpt_fail_image(err, "pty %u has no valid devpts", rec->id);
	return 0;
}

int tty_open_master(struct ckpt_run *run, uint32_t id, uint32_t mount, struct ckpt_error *err)
{
	const struct ckpt_mount_saved *m = NULL;
	char path[40] = "/dev/ptmx";
	int fd;

	for (size_t i = 0; mount && (m = ckpt_mount_saved(run, i)); i++)
		if (m->id == mount)
			break;
	if (TTY_DEVPTS(id) && !m)
		return ckpt_fail(err, ENOENT, "mount %u is not made", mount);
	/* of a ptmx that is mounted alone, it is that file */
	if (m)
		snprintf(path, sizeof(path), "/proc/self/fd/%d%s", m->fd,
			 m->directory ? "/ptmx" : "");
	fd = open(path, O_RDWR | O_NOCTTY | O_CLOEXEC);
	return fd < 0 ? ckpt_fail_sys(err, errno, "opening a ptmx") : fd;
}
