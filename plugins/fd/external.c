/* SPDX-License-Identifier: MIT */
/*
 * Descriptions that leave the tree by the user's word: -o fd.external=KEY at the
 * dump, -o fd.inherit=KEY:FD at the restore. Nothing of them is saved but what
 * the descriptor given at restore must be like.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/sysmacros.h>

/* ---- dump ------------------------------------------------------------------- */

static bool is_terminal(const struct ckpt_fd_found *f)
{
	unsigned maj = major(f->st.st_rdev), min = minor(f->st.st_rdev);

	return S_ISCHR(f->st.st_mode) && (maj == 4 || (maj == 5 && min != 2) || maj == 136);
}

/* Is the master of that pseudo terminal in the tree? Then it does not leave it. */
static bool has_master(const struct fd_state *st, const struct ckpt_fd_found *f)
{
	for (size_t i = 0; i < st->n; i++) {
		const struct fd_entry *e = &st->entries[i];
		uint64_t pty;

		if (S_ISCHR(e->st.st_mode) && e->st.st_rdev == makedev(5, 2) &&
		    !fd_info_u64(e->fdinfo, "tty-index", 10, &pty) &&
		    f->st.st_rdev == makedev(136, (unsigned)pty))
			return true;
	}
	return false;
}

/* The listed key that means this description, or NULL. */
static const char *listed(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	static const char file[] = "file:", tty[] = "tty";

	for (size_t i = 0; i < ckpt_opt_count(run, "external"); i++) {
		const char *key = ckpt_opt_item(run, "external", i);

		if ((S_ISFIFO(f->st.st_mode) || S_ISSOCK(f->st.st_mode)) && !strcmp(key, f->link))
			return key;
		if (f->link[0] == '/' && !strncmp(key, file, strlen(file)) &&
		    !strcmp(key + strlen(file), f->link))
			return key;
		if (!strcmp(key, tty) && is_terminal(f) && !has_master(fd_state(run), f))
			return key;
	}
	return NULL;
}

const struct ckpt_extension *fd_external(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	const struct ckpt_extension *e = NULL;

	if (!ckpt_opt_count(run, "external") || !listed(run, f))
		return NULL;
	for (size_t i = 0; (e = ckpt_extension_at(run, CKPT_FD_POINT, i, NULL)); i++)
		if (e->ops == &fd_kind_external)
			break;
	return e;
}

/* By the user's word only. */
static bool external_match(const struct ckpt_fd_found *f)
{
	(void)f;
	return false;
}

static int external_collect(struct ckpt_run *run, const struct ckpt_fd_found *f,
			    struct ckpt_error *err)
{
	Ckpt__Fd__External rec = CKPT__FD__EXTERNAL__INIT;
	const char *key = listed(run, f);

	if (!key)
		return ckpt_fail(err, ENOENT, "it is not external");
	rec.id = f->file;
	rec.key.data = (uint8_t *)(uintptr_t)key;
	rec.key.len = strlen(key);
	rec.type = f->st.st_mode & S_IFMT;
	return ckpt_record_put(run, FD_EXTERNAL, &rec.base, err);
}

/* ---- restore ------------------------------------------------------------------ */

/* "KEY:FD": the number of an entry for this key; -ENOENT: for another one, -EINVAL: for none. */
static int mapped(const char *item, const Ckpt__Fd__External *rec)
{
	const char *colon = strrchr(item, ':');
	char *end;
	long num;

	if (!colon || !colon[1])
		return -EINVAL;
	num = strtol(colon + 1, &end, 10);
	if (*end || num < 0 || num > 0x3fffffff)
		return -EINVAL;
	if (!rec)
		return (int)num;
	if ((size_t)(colon - item) != rec->key.len || memcmp(item, rec->key.data, rec->key.len))
		return -ENOENT;
	return (int)num;
}

/* NULL, or what is wrong with that descriptor of ours. */
static const char *unfit(int fd, const Ckpt__Fd__External *rec, int flags)
{
	int fd_flags = fcntl(fd, F_GETFD), now = fcntl(fd, F_GETFL);
	struct stat st;

	/* what ckpt opened itself is closed on exec, what it was given cannot be */
	if (fd_flags < 0 || now < 0 || fd_flags & FD_CLOEXEC || fstat(fd, &st))
		return "it is not open";
	if ((st.st_mode & S_IFMT) != rec->type)
		return "it is another type of file";
	if ((now ^ flags) & O_PATH)
		return "one of them is O_PATH";
	if ((now & O_ACCMODE) != O_RDWR && (now & O_ACCMODE) != (flags & O_ACCMODE))
		return "it is not open for reading or writing as the original was";
	return NULL;
}

/* The descriptor to take; -ENOENT: none was given, -EBADF: none fits, for which `why` says more. */
static int find_given(struct ckpt_run *run, const Ckpt__Fd__External *rec, int flags, int *last,
		      const char **why)
{
	int r = -ENOENT;

	for (size_t i = 0; i < ckpt_opt_count(run, "inherit"); i++) {
		int fd = mapped(ckpt_opt_item(run, "inherit", i), rec);
		const char *wrong = fd < 0 ? NULL : unfit(fd, rec, flags);

		if (fd < 0)
			continue;
		if (!wrong)
			return fd;
		*last = fd;
		*why = wrong;
		r = -EBADF;
	}
	return r;
}

/* The planning pass of the dump that listed the key: the other side comes at the restore. */
static bool still_dumping(struct ckpt_run *run, const char *key)
{
	for (size_t i = 0; ckpt_plan_only(run) && i < ckpt_opt_count(run, "external"); i++)
		if (!strcmp(ckpt_opt_item(run, "external", i), key))
			return true;
	return false;
}

static int external_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__External *rec = ckpt_record_need(run, "fd.external", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	const char *why = NULL;
	char key[PATH_MAX];
	int fd, last = -1;

	if (!rec || !file)
		return -EBADMSG;
	if (!rec->key.len || rec->key.len >= sizeof(key) ||
	    memchr(rec->key.data, 0, rec->key.len) || rec->type & ~(uint32_t)S_IFMT)
		return ckpt_fail_image(err, "open file %u is not a valid external", id);
	memcpy(key, rec->key.data, rec->key.len);
	key[rec->key.len] = '\0';
	fd = find_given(run, rec, (int)file->flags, &last, &why);
	if (fd >= 0 || still_dumping(run, key))
		return 0;
	if (fd == -ENOENT)
		return ckpt_unmet(run, CKPT_EXIT_FAILED, "give -o fd.inherit=KEY:FD for it",
				  "%s is outside the image", key);
	return ckpt_unmet(run, CKPT_EXIT_FAILED, "give a descriptor like the original",
			  "%s cannot be descriptor %d: %s", key, last, why);
}

/* A mapping that nothing asks for is a mistake in a key. */
int fd_plan_inherit(struct ckpt_run *run, struct ckpt_error *err)
{
	for (size_t i = 0; i < ckpt_opt_count(run, "inherit"); i++) {
		const char *item = ckpt_opt_item(run, "inherit", i);
		bool used = false;

		if (mapped(item, NULL) < 0)
			return ckpt_fail_as(err, CKPT_EXIT_USAGE, EINVAL,
					    "-o fd.inherit=%s: KEY:FD is wanted", item);
		for (size_t k = 0; k < ckpt_record_count(run, "fd.external") && !used; k++)
			used = mapped(item, ckpt_record_at(run, "fd.external", k)) >= 0;
		if (!used)
			ckpt_log(run, CKPT_LOG_WARN, "the image has no external for inherit=%s",
				 item);
	}
	return 0;
}

/* The description itself, so its flags and position stay those of whoever shares it. */
static int external_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot,
			 struct ckpt_error *err)
{
	const Ckpt__Fd__External *rec = ckpt_record_need(run, "fd.external", slot->file, err);
	const char *why = NULL;
	int fd, last = -1;

	if (!rec)
		return -EBADMSG;
	fd = find_given(run, rec, slot->flags, &last, &why);
	if (fd < 0)
		return ckpt_fail(err, EBADF, "no descriptor was given");
	fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return fd < 0 ? ckpt_fail_sys(err, errno, "F_DUPFD_CLOEXEC") : fd;
}

const struct ckpt_fd_kind fd_kind_external = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = external_match,
	.collect = external_collect,
	.plan = external_plan,
	.open = external_open,
	.own_flags = true,
	.own_pos = true,
};
