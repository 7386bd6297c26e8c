/* SPDX-License-Identifier: MIT */
/*
 * restore of one of several copies: what a mount namespace of the tree's shows of the
 * machine is shown to all copies alike.
 */
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <sys/vfs.h>

#include "mnt.h"

#define MQUEUE_MAGIC 0x19800202

/* Interfaces of the kernel, of which the copy has its own or which are the machine's for whoever it
 * is. */
static const long interfaces[] = {
	PROC_SUPER_MAGIC,   SYSFS_MAGIC,	 DEVPTS_SUPER_MAGIC, MQUEUE_MAGIC,
	CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, DEBUGFS_MAGIC,	     TRACEFS_MAGIC,
	SECURITYFS_MAGIC,   EFIVARFS_MAGIC,	 PSTOREFS_MAGIC,
};

static bool holds_files(const char *host)
{
	struct statfs fs;
	struct stat st;

	if (stat(host, &st) || statfs(host, &fs))
		return true;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(interfaces); i++)
		if (fs.f_type == interfaces[i])
			return false;
	return S_ISDIR(st.st_mode) || S_ISREG(st.st_mode);
}

/* Where ckpt sees what is from outside. */
static const char *host_of(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, char *buf)
{
	const char *place = mnt_external_place(run, rec);

	if (!place)
		return mnt_bytes(&rec->host, buf, PATH_MAX);
	return realpath(place, buf) ? buf : place;
}

/* Does another mount of the namespace show this layer, rather than the one at `host`? */
static bool shown(struct ckpt_run *run, uint32_t ns, const char *layer, const char *host)
{
	const Ckpt__Mnt__Mount *rec;
	char buf[PATH_MAX];

	for (size_t i = 0; (rec = ckpt_record_at(run, "mnt.mount", i)); i++) {
		const char *other;

		if (rec->fs || rec->ns != ns)
			continue;
		other = host_of(run, rec, buf);
		if (strlen(other) > strlen(host) && mnt_path_below(layer, other))
			return true;
	}
	return false;
}

/* A mount from outside is taken without those that lie on it, and layers are such. */
static const char *hidden_layer(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, const char *host)
{
	const char *layer;

	for (size_t i = 0; (layer = ckpt_copies_layer(run, i)); i++)
		if (strcmp(layer, host) != 0 && mnt_path_below(layer, host) &&
		    !shown(run, rec->ns, layer, host))
			return layer;
	return NULL;
}

static int check_external(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, const char *point,
			  const char *host)
{
	const char *layer;

	/* one without a host is missing anyway */
	if (!*host || rec->attr & MOUNT_ATTR_RDONLY || !holds_files(host))
		return 0;
	if (ckpt_copies_share(run, 0, host))
		return ckpt_unmet(
			run, CKPT_EXIT_REFUSED,
			"lay a layer over it (--layer), or say that it is meant (--shared)",
			"%s of mount namespace %u shows the machine's %s, to which all copies "
			"could "
			"write",
			point, rec->ns, host);
	layer = hidden_layer(run, rec, host);
	if (layer)
		return ckpt_unmet(run, CKPT_EXIT_REFUSED, "leave that layer out",
				  "%s of mount namespace %u shows the machine's %s, without the "
				  "layer %s",
				  point, rec->ns, host, layer);
	return 0;
}

/* Two overlays with one upper directory damage each other. */
static int check_overlay(struct ckpt_run *run, const Ckpt__Mnt__Mount *rec, const char *point)
{
	const Ckpt__Mnt__Filesystem *fs = ckpt_record_by_id(run, "mnt.filesystem", rec->fs);
	char options[4096], upper[PATH_MAX];
	const char *at;

	if (strcmp(fs->type, "overlay") != 0)
		return 0;
	at = strstr(mnt_bytes(&fs->options, options, sizeof(options)), ",upperdir=");
	if (!at)
		return 0;
	at += strlen(",upperdir=");
	snprintf(upper, sizeof(upper), "%.*s", (int)strcspn(at, ","), at);
	if (!ckpt_copies_collide(run, fs->layered ? 0 : rec->ns, upper))
		return 0;
	return ckpt_unmet(
		run, CKPT_EXIT_REFUSED, "lay a layer over that directory (--layer)",
		"the overlay %s of mount namespace %u has its upper directory at %s, which "
		"would be the same for all copies",
		point, rec->ns, upper);
}

int mnt_copies_plan(struct ckpt_run *run, struct ckpt_error *err)
{
	const Ckpt__Mnt__Mount *rec;
	char point[PATH_MAX], buf[PATH_MAX];
	int r = 0;

	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(run, "mnt.mount", i)); i++)
		r = ckpt_copies_tell(run, rec->ns, mnt_bytes(&rec->point, point, sizeof(point)),
				     rec->fs ? NULL : host_of(run, rec, buf), err);
	for (size_t i = 0; r == 0 && (rec = ckpt_record_at(run, "mnt.mount", i)); i++) {
		mnt_bytes(&rec->point, point, sizeof(point));
		if (rec->fs)
			r = check_overlay(run, rec, point);
		else
			r = check_external(run, rec, point, host_of(run, rec, buf));
	}
	return r;
}
