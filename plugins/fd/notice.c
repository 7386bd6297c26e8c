/* SPDX-License-Identifier: MIT */
/* Who of the tree would notice that a file is opened: watches and leases. */
#include "internal.h"

#include <stdio.h>
#include <sys/sysmacros.h>

/* Of each watch its filesystem. */
static int tell_watches(struct ckpt_run *run, const char *fdinfo, struct ckpt_error *err)
{
	static const char key[] = " sdev:";
	const char *line = fdinfo;
	int r = 0;

	while (r == 0 && (line = strstr(line, key))) {
		unsigned long sdev = strtoul(line + sizeof(key) - 1, NULL, 16);

		/* the kernel's own form of a device number, with 20 bits for the minor */
		r = ckpt_watch_tell(run, makedev(sdev >> 20, sdev & 0xfffff), err);
		line++;
	}
	return r;
}

/* "lock: 1: LEASE ACTIVE WRITE ..."; one that is being broken is to be left alone. */
static bool find_lease(const char *fdinfo, bool *write)
{
	const char *line = strstr(fdinfo, " LEASE ");
	char how[16], type[16];

	if (!line || sscanf(line, " LEASE %15s %15s", how, type) != 2)
		return false;
	*write = strcmp(how, "ACTIVE") != 0 || strcmp(type, "READ") != 0;
	return true;
}

static int tell_lease(struct ckpt_run *run, struct fd_file *file, const struct fd_entry *e,
		      bool write, struct ckpt_error *err)
{
	struct ckpt_lease lease = { .st = e->st,
				    .write = write,
				    .fd = -1,
				    .flags = e->flags,
				    .task = e->task,
				    .num = e->num };
	struct ckpt_fd_found f;
	int r;

	/* a tree that runs should not find its files held open by us */
	if (ckpt_is_live(run))
		return ckpt_lease_tell(run, &lease, err);
	r = fd_describe(run, file, &f, err);
	if (r)
		return r < 0 ? r : 0;
	lease.fd = f.fd;
	r = ckpt_lease_tell(run, &lease, err);
	fd_described(fd_state(run), file);
	return r;
}

int fd_notices_tell(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	int r = 0;

	ckpt_notices_clear(run);
	for (size_t i = 0; i < st->n_files && r == 0; i++) {
		struct fd_file *file = &st->files[i];
		const struct fd_entry *e = file->first ? file->first : file->own;
		bool write;

		if (!strncmp(e->link, "anon_inode:", strlen("anon_inode:")))
			r = tell_watches(run, e->fdinfo, err);
		else if (find_lease(e->fdinfo, &write))
			r = tell_lease(run, file, e, write, err);
		if (r < 0)
			ckpt_wrap(err, "task %u (%s): fd %d", e->task->id, e->task->comm, e->num);
	}
	return r;
}
