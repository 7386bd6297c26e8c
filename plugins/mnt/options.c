/* SPDX-License-Identifier: MIT */
/* Options of filesystems, in the words of mountinfo, said again to a new one. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <sys/mman.h>

#include "mnt.h"
#include "option_text.h"

int mnt_fs_message(int fd, const char *what, struct ckpt_error *err)
{
	int e = errno;
	char text[256];
	ssize_t len = read(fd, text, sizeof(text) - 1);

	text[len > 0 ? len : 0] = 0;
	text[strcspn(text, "\n")] = 0;
	return ckpt_fail_sys(err, e, "%s%s%s", what, *text ? ": " : "", text);
}

/* Options that mountinfo shows and that are not given, or not here. */
static bool is_skipped(const char *type, const char *key)
{
	static const struct {
		const char *type, *key;
	} skipped[] = {
		{ NULL, "rw" },	   { NULL, "ro" },     { "cgroup2", NULL },
		{ "sysfs", NULL }, { "mqueue", NULL },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(skipped); i++)
		if ((!skipped[i].type || !strcmp(skipped[i].type, type)) &&
		    (!skipped[i].key || !strcmp(skipped[i].key, key)))
			return true;
	return false;
}

static int set_option(int fd, const char *type, char *word, int owner_of, struct ckpt_error *err)
{
	char *value = strchr(word, '='), number[16];
	bool uid, gid;
	struct stat st;

	if (value)
		*value++ = 0;
	if (is_skipped(type, word))
		return 0;
	uid = !strcmp(word, "uid");
	gid = !strcmp(word, "gid");
	if (value && owner_of >= 0 && (uid || gid)) {
		/* the kernel's ids are in the options, as everywhere in the image */
		if (fstat(owner_of, &st))
			return ckpt_fail_sys(err, errno, "the option %s", word);
		snprintf(number, sizeof(number), "%u", uid ? st.st_uid : st.st_gid);
		value = number;
	}
	if (fsconfig(fd, value ? FSCONFIG_SET_STRING : FSCONFIG_SET_FLAG, word, value, 0))
		return mnt_fs_message(fd, word, err);
	return 0;
}

int mnt_fs_options(int fd, const char *type, const char *options, int owner_of,
		   struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *words = strdup(options);
	char *rest = words, *word;
	int r = words ? 0 : ckpt_fail(err, ENOMEM, "out of memory");

	while (r == 0 && (word = mnt_option_next(&rest)))
		r = set_option(fd, type, word, owner_of, err);
	return r;
}

int mnt_fs_ids(const char *options, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *words = strdup(options);
	CKPT_AUTO_FD int fd = memfd_create("ckpt", MFD_CLOEXEC);
	uid_t uid = (uid_t)-1;
	gid_t gid = (gid_t)-1;
	char *rest = words, *w;

	if (!words || fd < 0)
		return ckpt_fail_sys(err, words ? errno : ENOMEM, "memfd_create(2)");
	while ((w = mnt_option_next(&rest))) {
		if (!strncmp(w, "uid=", 4))
			uid = (uid_t)strtoul(w + 4, NULL, 10);
		if (!strncmp(w, "gid=", 4))
			gid = (gid_t)strtoul(w + 4, NULL, 10);
	}
	if (fchown(fd, uid, gid))
		return ckpt_fail_sys(err, errno, "fchown(2)");
	return ckpt_steal_fd(&fd);
}

bool mnt_has_option(const char *options, const char *name)
{
	CKPT_AUTO_FREE char *words = strdup(options);
	char *rest = words, *word;

	while (words && (word = mnt_option_next(&rest)))
		if (!strcmp(word, name))
			return true;
	return false;
}

/* Does this kernel know them? Nothing is made. In ckpt's own user namespace, as they are in the
 * image. */
int mnt_fs_try(const Ckpt__Mnt__Filesystem *rec, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *options = malloc(rec->options.len + 1);
	CKPT_AUTO_FD int fd = -1;

	if (!options)
		return ckpt_fail(err, ENOMEM, "out of memory");
	fd = fsopen(rec->type, FSOPEN_CLOEXEC);
	if (fd < 0)
		return 0;
	mnt_bytes(&rec->options, options, rec->options.len + 1);
	return mnt_fs_options(fd, rec->type, options, -1, err);
}
