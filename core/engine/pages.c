/* SPDX-License-Identifier: MIT */
/* Page files, as a step sees them. */
#include <errno.h>

#include "engine/run.h"

int ckpt_pages_create(struct ckpt_run *run, const char *name, struct ckpt_pages **out,
		      struct ckpt_error *err)
{
	if (run->kind == CKPT_VERIFY) {
		*out = image_pages_discard();
		return 0;
	}
	if (run->kind != CKPT_DUMP || !run->writer)
		return ckpt_fail(err, EPERM, "only a dump makes page files");
	return image_writer_pages(run->writer, name, out, err);
}

int ckpt_pages_open(struct ckpt_run *run, const char *name, int *fd, uint64_t *size,
		    struct ckpt_error *err)
{
	if (run->reader)
		return image_reader_pages(run->reader, name, fd, size, err);
	if (run->writer)
		return image_writer_reopen(run->writer, name, fd, size, err);
	return ckpt_fail(err, ENOENT, "the image has no page file %s", name);
}
