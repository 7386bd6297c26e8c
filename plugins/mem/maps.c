/* SPDX-License-Identifier: MIT */
/*
 * /proc/PID/smaps and maps. smaps is the only place that shows VmFlags; it walks
 * the page tables (3 ms a GiB that is populated, nothing for reservations) and
 * costs about 1 us a mapping, so it is read once a task and parsed by hand.
 */
#include <fcntl.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "mem.h"

/* From where on it pays to know that a mapping is empty. */
#define LARGE (1ull << 30)

/* Strings of mappings; they do not move when there are more of them. */
struct mem_block {
	struct mem_block *next;
	size_t used, size;
	char text[];
};

void mem_maps_free(struct mem_maps *m)
{
	while (m->kept) {
		struct mem_block *next = m->kept->next;

		free(m->kept);
		m->kept = next;
	}
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

/* What is read of the lines after a header; ~0 where there is no such line. */
struct details {
	uint64_t rss, swap, shared_clean, shared_dirty, key, page_size;
};

#define DETAIL(k, field)                                          \
	{                                                         \
		k ":", sizeof(k), offsetof(struct details, field) \
	}
static const struct {
	const char *key;
	size_t len, at;
} detail_keys[] = {
	DETAIL("Rss", rss),
	DETAIL("Swap", swap),
	DETAIL("Shared_Clean", shared_clean),
	DETAIL("Shared_Dirty", shared_dirty),
	DETAIL("ProtectionKey", key),
	DETAIL("KernelPageSize", page_size),
};

static void note_detail(char *p, struct details *d)
{
	/* nearly all lines are told by their first letters not to be of interest */
	if (*p != 'R' && *p != 'S' && *p != 'K' && (*p != 'P' || p[3] != 't'))
		return;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(detail_keys); i++) {
		uint64_t *to = (uint64_t *)((char *)d + detail_keys[i].at);

		if (strncmp(p, detail_keys[i].key, detail_keys[i].len) != 0)
			continue;
		for (p += detail_keys[i].len; *p == ' ';)
			p++;
		*to = dec(&p);
		return;
	}
}

/*
 * The lines of smaps after the header, up to and with VmFlags, which is the
 * last; *after is where the next header starts. A header's path cannot hold
 * that word at the beginning of a line, since its newlines are escaped.
 */
static bool parse_details(char *p, struct mem_vma *v, char **after)
{
	static const char flags[] = "VmFlags: ";
	struct details d = { ~0ull, ~0ull, ~0ull, ~0ull, 0, 0 };
	char *e;

	for (; strncmp(p, flags, sizeof(flags) - 1) != 0; p = e + 1) {
		e = strchr(p, '\n');
		if (!e)
			return false;
		note_detail(p, &d);
	}
	v->pkey = (int)d.key;
	v->empty = v->end - v->start >= LARGE && !d.rss && !d.swap;
	v->forked = d.shared_clean || d.shared_dirty;
	v->alone = !v->forked;
	v->flags_text = p += sizeof(flags) - 1;
	e = strchr(p, '\n');
	if (!e)
		return false;
	*after = e + 1;
	while (e > p && e[-1] == ' ')
		e--;
	*e = 0;
	v->flags = mem_flags_parse(p, v->unknown);
	if (v->flags & MEM_HUGETLB) {
		v->huge_size = d.page_size << 10;
		/* not counted there */
		v->empty = false;
	}
	return true;
}

/* ---- the text as it comes ---------------------------------------------------- */

#define WINDOW	   (64u << 10) /* much more than a mapping's text, whose path is the longest part */
#define BLOCK_SIZE (16u << 10)

struct reading {
	struct mem_maps *m;
	size_t cap;
	bool eof;
	char *text; /* the window, and a NUL behind what is in it */
	size_t len;
};

static const char *keep(struct mem_maps *m, const char *text, const char *before)
{
	size_t size = strlen(text) + 1;
	struct mem_block *b = m->kept;
	char *to;

	if (size == 1)
		return "";
	/* neighbours are often of one file, or alike */
	if (before && !strcmp(text, before))
		return before;
	if (!b || b->size - b->used < size) {
		size_t room = size > BLOCK_SIZE ? size : BLOCK_SIZE;

		b = malloc(sizeof(*b) + room);
		if (!b)
			return NULL;
		*b = (struct mem_block){ .next = m->kept, .size = room };
		m->kept = b;
	}
	to = memcpy(b->text + b->used, text, size);
	b->used += size;
	return to;
}

static int add(struct reading *in, const struct mem_vma *v, struct ckpt_error *err)
{
	struct mem_maps *m = in->m;
	const struct mem_vma *before = m->n ? &m->vma[m->n - 1] : NULL;
	const char *path, *flags;
	struct mem_vma *to;

	/* the kernel's own page, there in every process */
	if (!strcmp(v->path, "[vsyscall]"))
		return 0;
	path = keep(m, v->path, before ? before->path : NULL);
	flags = v->flags_text ? keep(m, v->flags_text, before ? before->flags_text : NULL) : NULL;
	to = mem_grow(m->vma, m->n, &in->cap, sizeof(*m->vma));
	if (to)
		m->vma = to;
	if (!to || !path || (v->flags_text && !flags))
		return ckpt_fail(err, ENOMEM, "out of memory");
	to = &m->vma[m->n++];
	*to = *v;
	to->path = path;
	to->flags_text = flags;
	return 0;
}

/* One mapping at *p, which moves on; 0: its text is not all there. */
static int parse_one(struct reading *in, char **p, struct ckpt_error *err)
{
	struct mem_vma v = { 0 };
	char *q = *p, *eol;
	int r;

	if (!parse_header(&q, &v))
		return in->eof ? ckpt_fail(err, EINVAL,
					   "mappings: the kernel's text is not understood: %.40s",
					   *p)
			       : 0;
	eol = q;
	/* what follows the line tells whether there are details */
	if (!in->eof && (!eol[0] || !eol[1]))
		return 0;
	q += *eol != 0;
	*eol = 0;
	/* keys of smaps start with a capital, headers with lower-case hex */
	if (*q >= 'A' && *q <= 'Z' && !parse_details(q, &v, &q)) {
		*eol = '\n';
		return in->eof ? ckpt_fail(err, ENOTSUP, "mappings: no VmFlags in /proc/PID/smaps")
			       : 0;
	}
	r = add(in, &v, err);
	*p = q;
	return r < 0 ? r : 1;
}

/* Fill the window: the kernel gives a page at a time. */
static int refill(struct reading *in, int fd, struct ckpt_error *err)
{
	while (!in->eof && in->len < WINDOW) {
		ssize_t n = read(fd, in->text + in->len, WINDOW - in->len);

		if (n < 0)
			return ckpt_fail_sys(err, errno, "reading mappings");
		in->eof = !n;
		in->len += (size_t)n;
	}
	in->text[in->len] = 0;
	return 0;
}

/*
 * Through a small window: the text of many mappings is long (700 bytes each), and memory
 * that is touched for the first time costs more than reading it does.
 */
int mem_maps_from(int fd, struct mem_maps *m, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *window = malloc(WINDOW + 1);
	struct reading in = { .m = m, .text = window };
	int r = window ? 0 : ckpt_fail(err, ENOMEM, "out of memory");

	*m = (struct mem_maps){ 0 };
	while (!r && (!in.eof || in.len)) {
		char *p = in.text;

		r = refill(&in, fd, err);
		for (int more = !r; more > 0 && *p;) {
			more = parse_one(&in, &p, err);
			r = more < 0 ? more : 0;
		}
		if (!r && p == in.text && in.len)
			r = ckpt_fail(err, EINVAL,
				      "mappings: the kernel's text is not understood: %.40s", p);
		in.len -= (size_t)(p - in.text);
		memmove(in.text, p, in.len);
	}
	return r;
}

int mem_maps_read(const struct ckpt_task *t, const char *file, struct mem_maps *m,
		  struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = mem_proc_open(t, file, O_RDONLY, err);
	int r;

	*m = (struct mem_maps){ 0 };
	if (fd < 0)
		return fd;
	r = mem_maps_from(fd, m, err);
	if (!r && !m->n)
		r = ckpt_fail_sys(err, ESRCH, "/proc/%d/%s is empty", t->pid, file);
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

int mem_proc_open(const struct ckpt_task *t, const char *file, int flags, struct ckpt_error *err)
{
	int fd = openat(t->procfd, file, flags | O_CLOEXEC);

	return fd < 0 ? ckpt_fail_sys(err, errno, "open /proc/%d/%s", t->pid, file) : fd;
}
