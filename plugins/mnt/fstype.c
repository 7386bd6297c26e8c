/* SPDX-License-Identifier: MIT */
/* What we know of filesystems and of the flags of mounts. */
#include "mnt.h"

static const struct mnt_fstype types[] = {
	{ "tmpfs", MNT_INODES, CKPT_NS_TYPES, false },
	{ "ramfs", MNT_INODES, CKPT_NS_TYPES, false },
	{ "devpts", MNT_NOTHING, CKPT_NS_TYPES, false },
	{ "proc", MNT_NOTHING, CKPT_NS_PID, false },
	{ "sysfs", MNT_NOTHING, CKPT_NS_NET, false },
	{ "mqueue", MNT_NOTHING, CKPT_NS_IPC, false },
	{ "cgroup", MNT_NOTHING, CKPT_NS_CGROUP, false },
	{ "cgroup2", MNT_NOTHING, CKPT_NS_CGROUP, false },
	{ "overlay", MNT_NOTHING, CKPT_NS_TYPES, true },
	/* one that holds nothing but the file of a namespace; which one is found out */
	{ "nsfs", MNT_NOTHING, CKPT_NS_USER, false },
};

const struct mnt_fstype *mnt_fstype(const char *name)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(types); i++)
		if (!strcmp(types[i].name, name))
			return &types[i];
	return NULL;
}

static const struct {
	const char *word;
	uint32_t attr;
} words[] = {
	{ "rw", 0 },
	{ "ro", MOUNT_ATTR_RDONLY },
	{ "nosuid", MOUNT_ATTR_NOSUID },
	{ "nodev", MOUNT_ATTR_NODEV },
	{ "noexec", MOUNT_ATTR_NOEXEC },
	{ "noatime", MOUNT_ATTR_NOATIME },
	{ "nodiratime", MOUNT_ATTR_NODIRATIME },
	{ "relatime", MOUNT_ATTR_RELATIME },
	{ "nosymfollow", MOUNT_ATTR_NOSYMFOLLOW },
};

static bool add_word(const char *word, size_t len, uint32_t *attr)
{
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(words); i++) {
		if (strlen(words[i].word) != len || strncmp(words[i].word, word, len) != 0)
			continue;
		*attr |= words[i].attr;
		return true;
	}
	return false;
}

int mnt_attr_parse(const char *text, uint32_t *attr)
{
	bool relative = false;

	*attr = 0;
	while (*text) {
		size_t len = strcspn(text, ",");

		relative |= !strncmp(text, "relatime", len);
		if (!add_word(text, len, attr))
			return -EINVAL;
		text += len + (text[len] == ',');
	}
	/* the one setting that has no word */
	if (!relative && !(*attr & MOUNT_ATTR_NOATIME))
		*attr |= MOUNT_ATTR_STRICTATIME;
	return 0;
}
