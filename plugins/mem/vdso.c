/* SPDX-License-Identifier: MIT */
/*
 * The vdso: code of the kernel in every process, at addresses that programs
 * keep. A task can only be brought back where the kernel offers the same code,
 * laid out the same way; the running kernel's is read from ckpt itself.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>

#include "mem.h"

#ifndef PROCMAP_QUERY /* Linux 6.11 */
struct procmap_query {
	uint64_t size, query_flags, query_addr;
	uint64_t vma_start, vma_end, vma_flags, vma_page_size, vma_offset, inode;
	uint32_t dev_major, dev_minor, vma_name_size, build_id_size;
	uint64_t vma_name_addr, build_id_addr;
};
#define PROCMAP_QUERY _IOWR('f', 17, struct procmap_query)
#endif

static const char *const special_names[] = { "[vvar]", "[vvar_vclock]", "[vdso]", NULL };

static const char *special_name(const char *path)
{
	for (size_t i = 0; special_names[i]; i++)
		if (!strcmp(special_names[i], path))
			return special_names[i];
	return NULL;
}

bool mem_is_special(const char *path)
{
	return special_name(path) != NULL;
}

/* FNV-1a over words: recognises, does not protect (the manifest's checksums do). */
uint64_t mem_hash(const void *data, size_t len)
{
	const unsigned char *p = data;
	uint64_t h = 0xcbf29ce484222325ull;

	for (; len >= 8; p += 8, len -= 8) {
		uint64_t w;

		memcpy(&w, p, 8);
		h = (h ^ w) * 0x100000001b3ull;
		h ^= h >> 29;
	}
	return h;
}

static int add_part(struct mem_vdso *v, const char *name, uint64_t start, uint64_t end,
		    uint64_t first, struct ckpt_error *err)
{
	if (v->n == MEM_SPECIALS)
		return ckpt_fail(err, ENOTSUP, "this kernel's vdso has too many parts");
	v->part[v->n].name = name;
	v->part[v->n].offset = start - first;
	v->part[v->n].size = end - start;
	v->n++;
	if (strcmp(name, "[vdso]"))
		return 0;
	v->code_offset = start - first;
	v->code_size = end - start;
	v->hash = mem_hash((const void *)(uintptr_t)start, v->code_size);
	return 0;
}

static int from_maps(int fd, struct mem_vdso *v, struct ckpt_error *err)
{
	MEM_AUTO_MAPS struct mem_maps m = { 0 };
	uint64_t first = 0;
	int r = mem_maps_from(fd, &m, err);

	for (size_t i = 0; !r && i < m.n; i++) {
		const char *name = special_name(m.vma[i].path);

		if (!name)
			continue;
		if (!v->n)
			first = m.vma[i].start;
		r = add_part(v, name, m.vma[i].start, m.vma[i].end, first, err);
	}
	return r;
}

/* The part that has this address; NULL: none, or the kernel does not answer (before Linux 6.11). */
static const char *part_at(int fd, uint64_t addr, uint64_t *start, uint64_t *end)
{
	char name[32] = "";
	struct procmap_query q = { .size = sizeof(q),
				   .query_addr = addr,
				   .vma_name_size = sizeof(name),
				   .vma_name_addr = (uintptr_t)name };
	const char *special = ioctl(fd, PROCMAP_QUERY, &q) ? NULL : special_name(name);

	if (special) {
		*start = q.vma_start;
		*end = q.vma_end;
	}
	return special;
}

/* Reading about all of ckpt's mappings costs 30 times as much as asking for these. */
static int from_neighbours(int fd, struct mem_vdso *v, struct ckpt_error *err)
{
	uint64_t at = getauxval(AT_SYSINFO_EHDR), first, start, end;
	const char *name;
	int r = 0;

	if (!at || !part_at(fd, at, &start, &end))
		return 0;
	while (part_at(fd, start - 1, &start, &end))
		;
	for (first = start; !r && (name = part_at(fd, start, &start, &end)); start = end)
		r = add_part(v, name, start, end, first, err);
	return r;
}

int mem_vdso_own(struct mem_vdso *v, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
	int r;

	*v = (struct mem_vdso){ 0 };
	if (fd < 0)
		return ckpt_fail_sys(err, errno, "/proc/self/maps");
	r = from_neighbours(fd, v, err);
	return r || v->n ? r : from_maps(fd, v, err);
}
