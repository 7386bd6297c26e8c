/* SPDX-License-Identifier: MIT */
/* restore: filesystems of the tree's own, and detached copies of what comes from outside. */
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

#include "mnt.h"

const char *mnt_bytes(const ProtobufCBinaryData *b, char *buf, size_t size)
{
	size_t len = b->len < size ? b->len : size - 1;

	memcpy(buf, b->data, len);
	buf[len] = 0;
	return buf;
}

static int *none(size_t n)
{
	int *list = calloc(n + 1, sizeof(*list));

	for (size_t i = 0; list && i < n; i++)
		list[i] = -1;
	return list;
}

struct ranked {
	uint32_t rank;
	size_t index;
};

static int by_rank(const void *a, const void *b)
{
	const struct ranked *x = a, *y = b;

	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return x->index < y->index ? -1 : x->index > y->index;
}

static size_t *in_order(struct ckpt_run *run, size_t n)
{
	CKPT_AUTO_FREE struct ranked *list = calloc(n + 1, sizeof(*list));
	size_t *order = calloc(n + 1, sizeof(*order));

	for (size_t i = 0; list && i < n; i++) {
		const Ckpt__Mnt__Mount *rec = ckpt_record_at(run, "mnt.mount", i);

		list[i] = (struct ranked){ rec->rank, i };
	}
	if (list)
		qsort(list, n, sizeof(*list), by_rank);
	for (size_t i = 0; list && order && i < n; i++)
		order[i] = list[i].index;
	if (list)
		return order;
	free(order);
	return NULL;
}

int mnt_made_new(struct ckpt_run *run, struct mnt_made **out, struct ckpt_error *err)
{
	struct mnt_made *made = calloc(1, sizeof(*made));

	*out = made;
	if (!made)
		return ckpt_fail(err, ENOMEM, "out of memory");
	made->fs = none(ckpt_record_count(run, "mnt.filesystem"));
	made->mounts = none(ckpt_record_count(run, "mnt.mount"));
	made->first = none(ckpt_record_count(run, "mnt.mount"));
	made->work = made->stage = made->below = made->held = made->shown = -1;
	if (!made->fs || !made->mounts || !made->first)
		return ckpt_fail(err, ENOMEM, "out of memory");
	made->n_fs = ckpt_record_count(run, "mnt.filesystem");
	made->n_mounts = ckpt_record_count(run, "mnt.mount");
	made->order = in_order(run, made->n_mounts);
	made->rec = calloc(made->n_mounts + 1, sizeof(const Ckpt__Mnt__Mount *));
	if (!made->order || !made->rec)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < made->n_mounts; i++)
		made->rec[i] = ckpt_record_at(run, "mnt.mount", i);
	return 0;
}

void mnt_made_free(struct mnt_made *made)
{
	if (!made)
		return;
	for (size_t i = 0; i < made->n_fs; i++)
		if (made->fs[i] >= 0)
			close(made->fs[i]);
	for (size_t i = 0; i < made->n_mounts; i++) {
		if (made->mounts[i] >= 0)
			close(made->mounts[i]);
		if (made->first[i] >= 0)
			close(made->first[i]);
	}
	ckpt_cleanup_fd(&made->work);
	ckpt_cleanup_fd(&made->stage);
	ckpt_cleanup_fd(&made->below);
	ckpt_cleanup_fd(&made->held);
	ckpt_cleanup_fd(&made->shown);
	free(made->fs);
	free(made->mounts);
	free(made->first);
	free(made->order);
	free(made->rec);
	free(made);
}

bool mnt_fs_read_only(const Ckpt__Mnt__Filesystem *rec)
{
	return rec->options.len >= 2 && !memcmp(rec->options.data, "ro", 2) &&
	       (rec->options.len == 2 || rec->options.data[2] == ',');
}

/* A filesystem that does not get what it needs is mounted read-only, with a line for the log. */
static int is_writable(const Ckpt__Mnt__Filesystem *rec, int mnt, struct ckpt_error *err)
{
	struct statvfs now;

	if (fstatvfs(mnt, &now))
		return ckpt_fail_sys(err, errno, "fstatvfs(3)");
	return now.f_flag & ST_RDONLY && !mnt_fs_read_only(rec)
		       ? ckpt_fail(err, EROFS, "it comes back read-only: the kernel's log says why")
		       : 0;
}

int mnt_fs_create(const Ckpt__Mnt__Filesystem *rec, int owner_of, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *options = malloc(rec->options.len + 1);
	CKPT_AUTO_FD int fd = fsopen(rec->type, FSOPEN_CLOEXEC);
	char source[PATH_MAX];
	int r, mnt;

	if (!options)
		return ckpt_fail(err, ENOMEM, "out of memory");
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "fsopen(2)");
	mnt_bytes(&rec->options, options, rec->options.len + 1);
	mnt_bytes(&rec->source, source, sizeof(source));
	if (*source && fsconfig(fd, FSCONFIG_SET_STRING, "source", source, 0))
		return mnt_fs_message(fd, "source", err);
	r = mnt_fs_options(fd, rec->type, options, owner_of, err);
	if (r < 0)
		return r;
	/* what has content is made read-only when that is there */
	if (mnt_fs_read_only(rec) && mnt_fstype(rec->type)->content == MNT_NOTHING &&
	    fsconfig(fd, FSCONFIG_SET_FLAG, "ro", NULL, 0))
		return mnt_fs_message(fd, "ro", err);
	if (fsconfig(fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		return mnt_fs_message(fd, "making it", err);
	mnt = fsmount(fd, FSMOUNT_CLOEXEC, 0);
	if (mnt < 0)
		return mnt_fs_message(fd, "fsmount(2)", err);
	r = is_writable(rec, mnt, err);
	if (r < 0)
		close(mnt);
	return r < 0 ? r : mnt;
}

bool mnt_in_place(const Ckpt__Mnt__Filesystem *rec)
{
	return mnt_fstype(rec->type)->in_place && !rec->layered;
}

/* ---- making ---------------------------------------------------------------------------- */

struct create {
	const Ckpt__Mnt__Filesystem *rec;
	int owner_of; /* of a file with its ids, or -1 */
	int *out;
};

struct creates {
	struct create *list;
	size_t n;
};

static void creates_free(struct creates *c)
{
	for (size_t i = 0; i < c->n; i++)
		if (c->list[i].owner_of >= 0)
			close(c->list[i].owner_of);
	free(c->list);
}

/*
 * In a mount namespace that the caller's user namespace owns: only there it may mount. One for
 * all of them, since the kernel copies all mounts for it.
 */
static int create(void *arg, struct ckpt_error *err)
{
	const struct creates *c = arg;
	CKPT_AUTO_FD int proc = open("/proc", O_PATH | O_DIRECTORY | O_CLOEXEC);

	if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
		return ckpt_fail_sys(err, errno, "a mount namespace to mount in");
	for (size_t i = 0; i < c->n; i++) {
		const struct create *one = &c->list[i];

		if (one->rec->layered && mnt_take_owners_ids(proc, err) < 0)
			return -err->err;
		*one->out = mnt_fs_create(one->rec, one->owner_of, err);
		if (*one->out < 0)
			return ckpt_wrap(err, "filesystem %u (%s)", one->rec->id, one->rec->type);
	}
	return 0;
}

/* A file with the ids that the options of the record have. */
static int owner_file(const Ckpt__Mnt__Filesystem *rec, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *options = malloc(rec->options.len + 1);

	if (!options)
		return ckpt_fail(err, ENOMEM, "out of memory");
	mnt_bytes(&rec->options, options, rec->options.len + 1);
	return mnt_fs_ids(options, err);
}

static bool has_ids(const Ckpt__Mnt__Filesystem *rec)
{
	return memmem(rec->options.data, rec->options.len, "uid=", 4) ||
	       memmem(rec->options.data, rec->options.len, "gid=", 4);
}

static int add(struct creates *c, const Ckpt__Mnt__Filesystem *rec, int *out,
	       struct ckpt_error *err)
{
	struct create *one = &c->list[c->n++];

	*one = (struct create){ rec, -1, out };
	if (has_ids(rec))
		one->owner_of = owner_file(rec, err);
	return has_ids(rec) && one->owner_of < 0 ? one->owner_of : 0;
}

/* Those that need no helper of their owner, or one with other ids. */
static bool is_special(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec)
{
	return rec->shows || mnt_fstype(rec->type)->in_place || ckpt_ns_by_id(run, rec->owner)->own;
}

int mnt_make_filesystem(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec, int *out,
			struct ckpt_error *err)
{
	const struct ckpt_ns *owner = ckpt_ns_by_id(run, rec->owner);
	const struct ckpt_ns *shows = rec->shows ? ckpt_ns_by_id(run, rec->shows) : NULL;
	struct create list[1];
	struct creates c = { .list = list };
	struct ckpt_ns_place place = { 0 };
	int r;

	if (!strcmp(rec->type, "nsfs")) {
		*out = mnt_clone(shows->fd);
		return *out < 0 ? ckpt_fail_sys(err, errno, "open_tree(2) of a namespace") : 0;
	}
	if (mnt_in_place(rec))
		return 0;
	/* where ckpt is, no helper is needed: most are made so */
	if (!shows && owner->own) {
		*out = mnt_fs_create(rec, -1, err);
		return *out < 0 ? *out : 0;
	}
	r = add(&c, rec, out, err);
	/* these belong to the owner of what they show, whoever mounts them */
	if (shows)
		place.ns[shows->type] = shows;
	else
		place.ns[CKPT_NS_USER] = owner;
	if (!r)
		r = ckpt_ns_run(run, &place, create, &c, err);
	if (list[0].owner_of >= 0)
		close(list[0].owner_of);
	return r;
}

/* The filesystem, and all that follow and have the same owner. */
static int make_with_others(struct ckpt_run *run, struct mnt_made *made, size_t first,
			    struct ckpt_error *err)
{
	const Ckpt__Mnt__Filesystem *rec = ckpt_record_at(run, "mnt.filesystem", first);
	const struct ckpt_ns_place place = { .ns = { [CKPT_NS_USER] =
							     ckpt_ns_by_id(run, rec->owner) } };
	__attribute__((cleanup(
		creates_free))) struct creates c = { .list = calloc(made->n_fs, sizeof(*c.list)) };
	const uint32_t owner = rec->owner;
	int r = 0;

	if (!c.list)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = first; !r && i < made->n_fs; i++) {
		rec = ckpt_record_at(run, "mnt.filesystem", i);
		if (made->fs[i] < 0 && rec->owner == owner && !is_special(run, rec))
			r = add(&c, rec, &made->fs[i], err);
	}
	return r < 0 ? r : ckpt_ns_run(run, &place, create, &c, err);
}

static int make_one(struct ckpt_run *run, struct mnt_made *made, size_t i, struct ckpt_error *err)
{
	const Ckpt__Mnt__Filesystem *rec = ckpt_record_at(run, "mnt.filesystem", i);

	/* that of terminals is there, and those that were made with an earlier one */
	if (made->fs[i] >= 0)
		return 0;
	return is_special(run, rec) ? mnt_make_filesystem(run, rec, &made->fs[i], err)
				    : make_with_others(run, made, i, err);
}

/* Read-only when all is there, flags too, which are set last of all elsewhere. */
static int seal(struct ckpt_run *run, const Ckpt__Mnt__Filesystem *rec, int fd,
		struct ckpt_error *err)
{
	CKPT_AUTO_FD int pick = -1;
	int r = mnt_content_fill(run, rec->id, fd, true, err);

	if (r < 0)
		return r;
	pick = fspick(fd, "", FSPICK_CLOEXEC | FSPICK_EMPTY_PATH);
	/* Linux 6.4 to 6.17 take a change that does not say it for one that turns it off */
	if (pick >= 0 && memmem(rec->options.data, rec->options.len, ",noswap", 7) &&
	    fsconfig(pick, FSCONFIG_SET_FLAG, "noswap", NULL, 0))
		return ckpt_fail_sys(err, errno, "noswap");
	if (pick < 0 || fsconfig(pick, FSCONFIG_SET_FLAG, "ro", NULL, 0) ||
	    fsconfig(pick, FSCONFIG_CMD_RECONFIGURE, NULL, NULL, 0))
		return ckpt_fail_sys(err, errno, "making it read-only");
	return 0;
}

int mnt_make_filesystems(struct ckpt_run *run, struct mnt_made *made, struct ckpt_error *err)
{
	for (size_t i = 0; i < made->n_fs; i++) {
		const Ckpt__Mnt__Filesystem *rec = ckpt_record_at(run, "mnt.filesystem", i);
		int r = make_one(run, made, i, err);

		if (r < 0)
			return r;
		if (mnt_fstype(rec->type)->content == MNT_INODES)
			r = mnt_content_fill(run, rec->id, made->fs[i], false, err);
		if (r == 0 && mnt_fs_read_only(rec) && mnt_fstype(rec->type)->content == MNT_INODES)
			r = seal(run, rec, made->fs[i], err);
		if (r < 0)
			return ckpt_wrap(err, "filesystem %u (%s)", rec->id, rec->type);
	}
	return 0;
}
