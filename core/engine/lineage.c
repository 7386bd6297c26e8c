/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>

#include <ckpt/cleanup.h>

#include "engine/lineage.h"
#include "engine/text.h"

#define NOTE "trusted.ckpt.lineage"

/* struct image_ancestor, as long as there is one version of it: they are this machine's until it
 * starts anew. */
struct note {
	uint32_t version, n;
	struct image_ancestor list[IMAGE_ANCESTORS_MAX];
};
#define VERSION 1

static size_t size_of(const struct note *note)
{
	return offsetof(struct note, list) + note->n * sizeof(note->list[0]);
}

/* False: there is none that could be read. */
static bool load(int pidfd, struct note *note)
{
	ssize_t n = fgetxattr(pidfd, NOTE, note, sizeof(*note));

	if (n < (ssize_t)offsetof(struct note, list) || note->version != VERSION ||
	    note->n > IMAGE_ANCESTORS_MAX || (size_t)n != size_of(note))
		return false;
	for (size_t i = 0; i < note->n; i++)
		if (!image_uuid_ok(note->list[i].uuid))
			return false;
	return true;
}

int lineage_read(int pidfd, struct image_info *info, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct note *note = calloc(1, sizeof(*note));

	if (!note)
		return fail_nomem(err);
	if (!load(pidfd, note))
		return 0;
	info->ancestors = calloc(note->n + 1, sizeof(*info->ancestors));
	if (!info->ancestors)
		return fail_nomem(err);
	memcpy(info->ancestors, note->list, note->n * sizeof(note->list[0]));
	info->n_ancestors = note->n;
	return 0;
}

void lineage_note(int pidfd, const struct image_info *from, unsigned copy, bool restored)
{
	CKPT_AUTO_FREE struct note *note = calloc(1, sizeof(*note));
	size_t older = from->n_ancestors < IMAGE_ANCESTORS_MAX ? from->n_ancestors
							       : IMAGE_ANCESTORS_MAX - 1;
	struct timespec now = { 0 };

	if (!note || (restored && clock_gettime(CLOCK_REALTIME, &now)))
		return;
	*note = (struct note){ .version = VERSION, .n = (uint32_t)older + 1 };
	note->list[0] = (struct image_ancestor){
		.created_ns = from->created_ns,
		.restored_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec,
		.copy = copy,
	};
	memcpy(note->list[0].uuid, from->uuid, sizeof(from->uuid));
	if (older)
		memcpy(note->list + 1, from->ancestors, older * sizeof(note->list[0]));
	(void)fsetxattr(pidfd, NOTE, note, size_of(note), 0);
}
