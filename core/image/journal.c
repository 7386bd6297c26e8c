/* SPDX-License-Identifier: MIT */
/* The journal of a directory that is being written, see internal.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "image/internal.h"

#define JOURNAL	     ".ckpt-journal"
#define JOURNAL_HEAD "ckpt journal 1\n"
#define JOURNAL_MAX  ((uint64_t)IMAGE_FILES_MAX * 2 * IMAGE_PATH_MAX)

static int write_line(int fd, const char *text, size_t len, struct ckpt_error *err)
{
	ssize_t n = write(fd, text, len);

	if (n == (ssize_t)len)
		return 0;
	return ckpt_fail_sys(err, n < 0 ? errno : ENOSPC, "write " JOURNAL);
}

int image_journal_create(int dir, int *fd, struct ckpt_error *err)
{
	CKPT_AUTO_FD int f =
		openat(dir, JOURNAL, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	int r;

	if (f < 0)
		return ckpt_fail_sys(err, errno, "create " JOURNAL);
	r = write_line(f, JOURNAL_HEAD, strlen(JOURNAL_HEAD), err);
	if (r < 0) {
		unlinkat(dir, JOURNAL, 0);
		return r;
	}
	*fd = ckpt_steal_fd(&f);
	return 0;
}

int image_journal_add(int fd, const char *name, struct ckpt_error *err)
{
	char line[IMAGE_PATH_MAX + 1];
	int n = snprintf(line, sizeof(line), "%s\n", name);

	return write_line(fd, line, (size_t)n, err);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The names that the manifest lists, sorted, borrowed from it. */
static const char **kept_names(const Image__Manifest *m, size_t *n)
{
	const char **names;

	*n = m ? m->n_files : 0;
	names = calloc(*n + 1, sizeof(*names));
	for (size_t i = 0; names && i < *n; i++)
		names[i] = m->files[i]->name;
	if (names)
		qsort(names, *n, sizeof(*names), by_text);
	return names;
}

static int remove_file(int dir, const char *name, struct ckpt_error *err)
{
	struct stat st;

	/* the name was ours, but what is there now need not be */
	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
		return 0;
	if (unlinkat(dir, name, 0) < 0 && errno != ENOENT)
		return ckpt_fail_sys(err, errno, "remove %s", name);
	return 0;
}

static int sweep(int dir, char *text, const Image__Manifest *m, struct ckpt_error *err)
{
	size_t n;
	CKPT_AUTO_FREE const char **kept = kept_names(m, &n);
	char *end;

	if (!kept)
		return ckpt_fail_sys(err, ENOMEM, "remove the files of an unfinished dump");
	/* a line without its end was not followed by a file */
	for (; (end = strchr(text, '\n')); text = end + 1) {
		const char *name = text;
		int r = 0;

		*end = '\0';
		if (image_file_name_ok(name) && !bsearch(&name, kept, n, sizeof(*kept), by_text))
			r = remove_file(dir, name, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int image_journal_sweep(int dir, struct ckpt_error *err)
{
	IMAGE_AUTO_MANIFEST Image__Manifest *m = NULL;
	CKPT_AUTO_FREE uint8_t *buf = NULL;
	struct ckpt_error why = { 0 };
	uint8_t uuid[16];
	size_t len;
	int r = image_file_slurp(dir, JOURNAL, JOURNAL_MAX, &buf, &len, &why);

	if (r == -ENOENT)
		return 0;
	if (r < 0)
		return ckpt_fail(err, r, "%s", why.text);
	buf[len] = '\0';
	if (strncmp((char *)buf, JOURNAL_HEAD, strlen(JOURNAL_HEAD)) != 0 && len) {
		ckpt_fail(err, EEXIST, JOURNAL " is there already, and is not from ckpt");
		return ckpt_hint(err, "remove it, or choose another directory");
	}
	/* with a manifest that cannot be read, nobody knows what is rubbish */
	r = image_manifest_read(dir, IMAGE_MANIFEST_FILE, &m, uuid, err);
	if (r < 0 && r != -ENOENT)
		return r;
	if (len) {
		r = sweep(dir, (char *)buf + strlen(JOURNAL_HEAD), m, err);
		if (r < 0)
			return r;
	}
	if (unlinkat(dir, JOURNAL, 0) < 0 && errno != ENOENT)
		return ckpt_fail_sys(err, errno, "remove " JOURNAL);
	if (err)
		*err = (struct ckpt_error){ 0 };
	return 0;
}
