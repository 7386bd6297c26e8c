/* SPDX-License-Identifier: MIT */
/*
 * The bytes of an image. A record file is a header and frames, the last of which
 * carries their number; all integers are little endian:
 *
 *	header   magic, format, uuid of the image, name, hash of these
 *	frame    hash, number, length, payload
 *	...
 *	end      a frame with number 0; its payload is the count of records (8 bytes)
 *
 * A frame's hash covers all of it and is seeded with the image's uuid, the file's
 * name and the frame's place in the file, so that frames that were swapped,
 * doubled, moved or taken from elsewhere are as wrong as damaged ones.
 *
 * A page file has nothing but pages. Its hash is the sum of those of its pages,
 * each seeded with its place, so that it can be written and read in any order and
 * by several processors.
 */
#ifndef CKPT_IMAGE_FORMAT_H
#define CKPT_IMAGE_FORMAT_H

#include <endian.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <xxhash.h>

#define IMAGE_MAGIC    "CKPTIMG\n"
#define IMAGE_FORMAT   2u
#define IMAGE_MANIFEST "manifest"
#define IMAGE_PAGE     4096u

enum image_frame_number {
	IMAGE_FRAME_END = 0,
	IMAGE_FRAME_MANIFEST = 1,
};

/* What a reader accepts; a writer refuses to go beyond it. */
#define IMAGE_NAME_MAX	  63u		      /* plugin or page file, without NUL */
#define IMAGE_PAYLOAD_MAX (64u << 20)	      /* one record */
#define IMAGE_FILE_MAX	  ((uint64_t)1 << 30) /* one record file */
#define IMAGE_RECORDS_MAX ((uint64_t)1 << 22) /* in one file */
#define IMAGE_FILES_MAX	  65536u	      /* in one image */
#define IMAGE_PAGES_MAX	  ((uint64_t)1 << 46) /* one page file */
#define IMAGE_MEMORY_MAX  ((size_t)4 << 30)   /* one plugin's records, decoded */

struct image_file_header {
	char magic[8];
	uint32_t format;
	uint32_t reserved; /* 0 */
	uint8_t uuid[16];
	char name[IMAGE_NAME_MAX + 1]; /* of the plugin, zero-filled */
	uint64_t hash;		       /* of everything before it */
};

struct image_frame_header {
	uint64_t hash; /* of everything after it, payload included */
	uint32_t number;
	uint32_t length;
};

_Static_assert(sizeof(struct image_file_header) == 104, "layout of the file header");
_Static_assert(sizeof(struct image_frame_header) == 16, "layout of the frame header");

static inline uint64_t image_header_hash(const struct image_file_header *h)
{
	return XXH3_64bits(h, offsetof(struct image_file_header, hash));
}

/* What `pages` pages from number `first` on add to the hash of a page file. */
static inline uint64_t image_pages_hash(const void *data, uint64_t first, size_t pages)
{
	const uint8_t *p = data;
	uint64_t sum = 0;

	for (size_t i = 0; i < pages; i++, p += IMAGE_PAGE)
		sum += XXH3_64bits_withSeed(p, IMAGE_PAGE, first + i);
	return sum;
}

/* `frame` points at a whole frame: header and payload. */
static inline uint64_t image_frame_hash(const struct image_file_header *h, uint64_t seq,
					const uint8_t *frame, size_t payload)
{
	struct {
		uint8_t uuid[16];
		char name[IMAGE_NAME_MAX + 1];
		uint64_t seq;
	} place;
	const size_t skip = sizeof(uint64_t);

	memcpy(place.uuid, h->uuid, sizeof(place.uuid));
	memcpy(place.name, h->name, sizeof(place.name));
	place.seq = htole64(seq);
	return XXH3_64bits_withSeed(frame + skip,
				    sizeof(struct image_frame_header) - skip + payload,
				    XXH3_64bits(&place, sizeof(place)));
}

#endif
