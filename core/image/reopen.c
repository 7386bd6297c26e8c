/* SPDX-License-Identifier: MIT */
/* Page files of an image being written, read by the planning pass before the commit. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "image/writer.h"

int image_writer_reopen(const struct image_writer *w, const char *name, int *fd, uint64_t *size,
			struct ckpt_error *err)
{
	for (size_t i = 0; i < w->n_pages; i++) {
		const struct ckpt_pages *p = w->pages[i];
		int f;

		if (strcmp(p->owner, name) != 0)
			continue;
		f = openat(w->dir, p->out->name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
		if (f < 0)
			return ckpt_fail_sys(err, errno, "open %s", p->out->name);
		*fd = f;
		*size = p->out->size;
		return 0;
	}
	return ckpt_fail(err, ENOENT, "the image has no page file %s", name);
}
