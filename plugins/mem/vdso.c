/* SPDX-License-Identifier: MIT */
/*
 * The vdso: code of the kernel in every process, at addresses that programs
 * keep. A task can only be brought back where the kernel offers the same code,
 * laid out the same way; the running kernel's is read from ckpt itself.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "mem.h"

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

static int self_maps(struct mem_maps *m, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);

	return fd < 0 ? ckpt_fail_sys(err, errno, "/proc/self/maps") : mem_maps_from(fd, m, err);
}

int mem_vdso_own(struct mem_vdso *v, struct ckpt_error *err)
{
	MEM_AUTO_MAPS struct mem_maps m = { 0 };
	uint64_t first = 0;
	int r = self_maps(&m, err);

	*v = (struct mem_vdso){ 0 };
	if (r < 0)
		return r;
	for (size_t i = 0; i < m.n; i++) {
		const struct mem_vma *vma = &m.vma[i];
		const char *name = special_name(vma->path);

		if (!name)
			continue;
		if (v->n == MEM_SPECIALS)
			return ckpt_fail(err, ENOTSUP, "this kernel's vdso has too many parts");
		if (!v->n)
			first = vma->start;
		v->part[v->n].name = name;
		v->part[v->n].offset = vma->start - first;
		v->part[v->n].size = vma->end - vma->start;
		v->n++;
		if (strcmp(name, "[vdso]"))
			continue;
		v->code_offset = vma->start - first;
		v->code_size = vma->end - vma->start;
		v->hash = mem_hash((const void *)(uintptr_t)vma->start, v->code_size);
	}
	return 0;
}
