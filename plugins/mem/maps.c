/* SPDX-License-Identifier: MIT */
/*
 * /proc/PID/smaps and maps. smaps is the only place that shows VmFlags; it walks
 * the page tables (3 ms a GiB that is populated, nothing for reservations) and
 * costs about 1 us a mapping, so it is read once a task and parsed by hand.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "mem.h"

/* From where on it pays to know that a mapping is empty. */
#define LARGE (1ull << 30)

void mem_maps_free(struct mem_maps *m)
{
	free(m->text);
	free(m->vma);
	*m = (struct mem_maps){ 0 };
}

static uint64_t hex(char **p)
{
	uint64_t v = 0;

	for (;; (*p)++) {
		unsigned c = (unsigned char)**p, d = c - '0';

		if (d > 9) {
			d = (c | 0x20) - 'a' + 10;
			if (d < 10 || d > 15)
				return v;
		}
		v = v << 4 | d;
	}
}

static uint64_t dec(char **p)
{
	uint64_t v = 0;

	for (; **p >= '0' && **p <= '9'; (*p)++)
		v = v * 10 + (uint64_t)(**p - '0');
	return v;
}

static bool skip(char **p, char c)
{
	if (**p != c)
		return false;
	(*p)++;
	return true;
}

/* "START-END rwxp OFFSET MAJ:MIN INO   PATH"; `p` is left at the line's end. */
static bool parse_header(char **p, struct mem_vma *v)
{
	char *end;

	v->start = hex(p);
	if (!skip(p, '-'))
		return false;
	v->end = hex(p);
	if (!skip(p, ' ') || strnlen(*p, 5) < 5)
		return false;
	v->prot = ((*p)[0] == 'r' ? PROT_READ : 0) | ((*p)[1] == 'w' ? PROT_WRITE : 0) |
		  ((*p)[2] == 'x' ? PROT_EXEC : 0);
	v->shared = (*p)[3] == 's';
	*p += 4;
	if (!skip(p, ' '))
		return false;
	v->offset = hex(p);
	if (!skip(p, ' '))
		return false;
	v->major = (uint32_t)hex(p);
	if (!skip(p, ':'))
		return false;
	v->minor = (uint32_t)hex(p);
	if (!skip(p, ' '))
		return false;
	v->ino = dec(p);
	while (**p == ' ')
		(*p)++;
	end = strchrnul(*p, '\n');
	v->path = *p;
	*p = end;
	return v->start < v->end;
}

/* Is the value of a "Key:   N kB" line 0? */
static bool is_zero(const char *text, const char *key)
{
	const char *p = strstr(text, key);

	return p && !strtoull(p + strlen(key), NULL, 10);
}

/*
 * The lines of smaps after the header, up to and with VmFlags, which is the
 * last; *after is where the next header starts. A header's path cannot hold
 * that word at the beginning of a line, since its newlines are escaped.
 */
static bool parse_details(char *p, struct mem_vma *v, char **after)
{
	static const char flags[] = "\nVmFlags: ", key[] = "\nProtectionKey:";
	static const char size[] = "\nKernelPageSize:";
	char *f = strstr(p, flags), *e, *k;

	if (!f)
		return false;
	*f = 0;
	k = strstr(p, key);
	if (k)
		v->pkey = atoi(k + sizeof(key) - 1);
	v->empty = v->end - v->start >= LARGE && is_zero(p, "\nRss:") && is_zero(p, "\nSwap:");
	v->forked = !is_zero(p, "\nShared_Clean:") || !is_zero(p, "\nShared_Dirty:");
	v->alone = !v->forked;
	v->flags_text = f += sizeof(flags) - 1;
	e = strchr(f, '\n');
	if (!e)
		return false;
	*after = e + 1;
	while (e > f && e[-1] == ' ')
		e--;
	*e = 0;
	v->flags = mem_flags_parse(f, v->unknown);
	if (v->flags & MEM_HUGETLB) {
		k = strstr(p, size);
		v->huge_size = k ? strtoull(k + sizeof(size) - 1, NULL, 10) << 10 : 0;
		/* not counted there */
		v->empty = false;
	}
	return true;
}

static int grow(struct mem_maps *m, size_t *cap, struct ckpt_error *err)
{
	size_t want = *cap ? *cap * 2 : 64;
	struct mem_vma *v = reallocarray(m->vma, want, sizeof(*v));

	if (!v)
		return ckpt_fail(err, ENOMEM, "out of memory");
	m->vma = v;
	*cap = want;
	return 0;
}

/* Is the line at p a key of smaps ("Rss: ...")? Headers start with lower-case hex. */
static bool has_details(const char *eol)
{
	return eol[0] == '\n' && eol[1] >= 'A' && eol[1] <= 'Z';
}

int mem_maps_parse(char *text, struct mem_maps *m, struct ckpt_error *err)
{
	size_t cap = 0;
	char *p = text;

	*m = (struct mem_maps){ .text = text };
	while (*p) {
		struct mem_vma v = { 0 };
		char *eol;

		if (!parse_header(&p, &v))
			return ckpt_fail(err, EINVAL,
					 "mappings: the kernel's text is not understood: %.40s", p);
		eol = p;
		if (has_details(eol)) {
			*p++ = 0;
			if (!parse_details(p, &v, &p))
				return ckpt_fail(err, ENOTSUP,
						 "mappings: no VmFlags in /proc/PID/smaps");
		} else if (*p) {
			*p++ = 0;
		}
		/* the kernel's own page, there in every process */
		if (!strcmp(v.path, "[vsyscall]"))
			continue;
		if (m->n == cap && grow(m, &cap, err) < 0)
			return -ENOMEM;
		m->vma[m->n++] = v;
	}
	return 0;
}

int mem_maps_read(const struct ckpt_task *t, const char *file, struct mem_maps *m,
		  struct ckpt_error *err)
{
	char path[64], *text = NULL;
	ssize_t len;
	int r;

	*m = (struct mem_maps){ 0 };
	len = ckpt_proc_read(t, mem_proc_path(t, file, path, sizeof(path)), &text, err);
	if (len < 0)
		return (int)len;
	r = mem_maps_parse(text, m, err);
	if (!r && !m->n)
		r = ckpt_fail_sys(err, ESRCH, "%s is empty", path);
	if (r < 0)
		mem_maps_free(m);
	return r;
}

const char *mem_vma_name(const struct mem_vma *v, char *buf, size_t size)
{
	snprintf(buf, size, "mapping %llx-%llx%s%s", (unsigned long long)v->start,
		 (unsigned long long)v->end, v->path[0] ? " " : "", v->path);
	return buf;
}

struct ckpt_vma_found mem_vma_found(const struct ckpt_task *t, const struct mem_vma *v)
{
	return (struct ckpt_vma_found){
		.task = t,
		.start = v->start,
		.end = v->end,
		.pgoff = v->offset,
		.prot = v->prot,
		.shared = v->shared,
		.dev_major = v->major,
		.dev_minor = v->minor,
		.ino = v->ino,
		.path = v->path,
		.vmflags = v->flags_text,
	};
}

const char *mem_task_name(const struct ckpt_task *t, char *buf, size_t size)
{
	snprintf(buf, size, "task %u (%s)", t->id, t->comm);
	return buf;
}

struct ckpt_thread *mem_live_thread(const struct ckpt_task *t)
{
	for (size_t i = 0; i < t->n_threads; i++)
		if (!t->threads[i]->dead)
			return t->threads[i];
	return NULL;
}

/* A dead leader has given up its memory: its files are empty, those of its threads are not. */
const char *mem_proc_path(const struct ckpt_task *t, const char *file, char *buf, size_t size)
{
	const struct ckpt_thread *th = mem_live_thread(t);

	if (!th || th == t->threads[0])
		snprintf(buf, size, "%s", file);
	else
		snprintf(buf, size, "task/%d/%s", th->tid, file);
	return buf;
}

int mem_proc_open(const struct ckpt_task *t, const char *file, int flags, struct ckpt_error *err)
{
	char path[64];
	int fd = openat(t->procfd, mem_proc_path(t, file, path, sizeof(path)), flags | O_CLOEXEC);

	return fd < 0 ? ckpt_fail_sys(err, errno, "open /proc/%d/%s", t->pid, path) : fd;
}

int mem_proc_dir(const struct ckpt_task *t, struct ckpt_error *err)
{
	const struct ckpt_thread *th = mem_live_thread(t);
	char path[32];
	int fd;

	/* map_files is not below task/TID; but /proc/TID can be looked up */
	if (!th || th == t->threads[0])
		fd = openat(t->procfd, ".", O_PATH | O_DIRECTORY | O_CLOEXEC);
	else {
		snprintf(path, sizeof(path), "/proc/%d", th->tid);
		fd = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	}
	return fd < 0 ? ckpt_fail_sys(err, errno, "open /proc/%d", t->pid) : fd;
}
