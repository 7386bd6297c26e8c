/* SPDX-License-Identifier: MIT */
/*
 * restore: the inode numbers of a tmpfs, by which programs tell files from each other (a database
 * that finds another number under its file's name does not write to it any more). The kernel gives
 * them out one after the other (shmem_reserve_inode()): so all files are made in the order of their
 * numbers, in the root, and moved to their place later; numbers that nobody has are used up.
 */
#include <errno.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/vfs.h>

#include "mnt.h"

struct wanted {
	const Ckpt__Mnt__Inode *rec;
	size_t at;
};

static int by_number(const void *a, const void *b)
{
	const uint64_t x = ((const struct wanted *)a)->rec->ino;
	const uint64_t y = ((const struct wanted *)b)->rec->ino;

	return (x > y) - (x < y);
}

void mnt_numbers_name(const struct mnt_numbers *m, size_t at, char *buf, size_t size)
{
	snprintf(buf, size, ".ckpt-%u-%zu", m->series, at);
}

/* The number of a file that is made and removed; 0: there is no room for one. */
static uint64_t use_up(const struct mnt_numbers *m, int root)
{
	char name[48];
	struct stat st;
	bool made;

	mnt_numbers_name(m, (size_t)-1, name, sizeof(name));
	made = mknodat(root, name, S_IFIFO | 0600, 0) == 0;
	if (made && fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW))
		st.st_ino = 0;
	return made && unlinkat(root, name, 0) == 0 ? st.st_ino : 0;
}

/* 1: it has another number, and so have those that come after it. */
static int make_one(struct mnt_numbers *m, int root, const struct wanted *w, uint64_t *next,
		    mnt_maker *make, struct ckpt_error *err)
{
	struct stat st;
	char name[48];
	int r;

	/* one that another has been given instead is made where it belongs */
	if (w->rec->ino < *next)
		return 0;
	while (*next < w->rec->ino) {
		if (use_up(m, root) != *next)
			return 1;
		++*next;
	}
	mnt_numbers_name(m, w->at, name, sizeof(name));
	r = make(root, name, w->rec, err);
	if (r < 0)
		return r;
	m->waits[w->at] = true;
	++*next;
	return fstatat(root, name, &st, AT_SYMLINK_NOFOLLOW) || st.st_ino != w->rec->ino;
}

static int make_all(struct mnt_numbers *m, int root, const struct wanted *list, size_t n,
		    mnt_maker *make, struct ckpt_error *err)
{
	struct stat st;
	uint64_t next;
	int r = 0;

	/* a new one: the root's number is the last that has been given out */
	if (fstat(root, &st))
		return 0;
	next = st.st_ino + 1;
	/* no file of the tree's is called like one that waits for its place */
	if (getrandom(&m->series, sizeof(m->series), 0) != sizeof(m->series))
		return ckpt_fail_sys(err, errno, "getrandom(2)");
	for (size_t i = 0; i < n && r == 0; i++)
		r = make_one(m, root, &list[i], &next, make, err);
	return r < 0 ? r : 0;
}

int mnt_numbers_make(struct ckpt_run *run, struct mnt_numbers *m, int root, size_t first, size_t n,
		     mnt_maker *make, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct wanted *list = NULL;
	struct statfs fs;
	size_t found = 0;

	if (fstatfs(root, &fs) || fs.f_type != TMPFS_MAGIC)
		return 0;
	list = calloc(n + 1, sizeof(*list));
	m->waits = calloc(n + 1, sizeof(*m->waits));
	if (!list || !m->waits)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		const Ckpt__Mnt__Inode *rec = ckpt_record_at(run, "mnt.inode", first + i);

		if (rec->ino && rec->ino <= MNT_INO_MAX && rec->parent && !rec->link)
			list[found++] = (struct wanted){ rec, i };
	}
	qsort(list, found, sizeof(*list), by_number);
	return make_all(m, root, list, found, make, err);
}
