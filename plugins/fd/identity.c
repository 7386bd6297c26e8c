/* SPDX-License-Identifier: MIT */
/*
 * Which descriptors are the same open file description. What differs in something that a
 * description never changes cannot be; what is left is sorted by the kernel's own order
 * (kcmp), so that thousands of descriptors need thousands of calls, not millions.
 */
#include "internal.h"

#include <linux/kcmp.h>
#include <sys/syscall.h>

#define ANON "anon_inode:"

static int cmp_u64(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/*
 * Nothing that others could change while descriptors are read one by one: not the position, which
 * moves with whoever reads the file, no flag of F_SETFL, no path, and no number of stat(2), which
 * an overlay changes when it copies a file up.
 */
static int cheap_order(const struct fd_entry *a, const struct fd_entry *b)
{
	static const int fixed = O_ACCMODE | O_PATH;
	int c = cmp_u64(a->mnt, b->mnt);

	if (!c)
		c = cmp_u64(a->ino, b->ino);
	if (!c)
		c = cmp_u64((uint64_t)(a->flags & fixed), (uint64_t)(b->flags & fixed));
	if (!c)
		c = cmp_u64(a->key, b->key);
	/* the same for all of a kind: without a name to change, and with an inode in common */
	if (!c && !strncmp(a->link, ANON, strlen(ANON)) && !strncmp(b->link, ANON, strlen(ANON)))
		c = strcmp(a->link, b->link);
	return c;
}

static int by_cheap(const void *a, const void *b)
{
	return cheap_order(*(struct fd_entry *const *)a, *(struct fd_entry *const *)b);
}

static int by_kernel(const void *va, const void *vb, void *failed)
{
	const struct fd_entry *a = *(struct fd_entry *const *)va;
	const struct fd_entry *b = *(struct fd_entry *const *)vb;
	int c = fd_entry_kcmp(a, b);

	if (c < 0 || c > 2) {
		/* the first error counts; the order no longer matters then */
		if (!*(int *)failed)
			*(int *)failed = c < 0 ? c : -EPROTO;
		return a < b ? -1 : a > b;
	}
	return c == 0 ? 0 : c == 1 ? -1 : 1;
}

/* Give the entries of one description their leader: lowest task and number. */
static void lead(struct fd_entry **list, size_t n)
{
	struct fd_entry *first = list[0];

	for (size_t i = 1; i < n; i++)
		first = list[i] < first ? list[i] : first;
	for (size_t i = 0; i < n; i++)
		list[i]->leader = first;
}

/* One run of entries that only the kernel can tell apart. */
static int split_run(struct fd_entry **list, size_t n)
{
	int failed = 0;

	if (n == 1) {
		lead(list, 1);
		return 0;
	}
	qsort_r(list, n, sizeof(*list), by_kernel, &failed);
	for (size_t i = 0, j; i < n && !failed; i = j) {
		for (j = i + 1; j < n && !by_kernel(&list[i], &list[j], &failed); j++)
			;
		lead(list + i, j - i);
	}
	return failed;
}

static int number_files(struct fd_state *st)
{
	st->files = calloc(st->n ? st->n : 1, sizeof(*st->files));
	if (!st->files)
		return -ENOMEM;
	for (size_t i = 0; i < st->n; i++) {
		struct fd_entry *e = &st->entries[i];

		if (e->same)
			e->leader = st->entries[e->same - 1].leader;
		/* in order of entries: the leader comes first, those taken over from it later */
		if (e->leader == e) {
			e->file = &st->files[st->n_files];
			e->file->id = (uint32_t)++st->n_files;
			e->file->first = e;
			e->file->fd = -1;
		} else {
			e->file = e->leader->file;
			e->file->last->next = e;
		}
		e->file->last = e;
	}
	return 0;
}

static int by_inode(const void *a, const void *b)
{
	const struct fd_file *x = *(struct fd_file *const *)a;
	const struct fd_file *y = *(struct fd_file *const *)b;
	int c = cmp_u64(x->first->st.st_dev, y->first->st.st_dev);

	if (!c)
		c = cmp_u64(x->first->st.st_ino, y->first->st.st_ino);
	return c ? c : cmp_u64(x->id, y->id);
}

static int index_files(struct fd_state *st)
{
	st->by_inode = calloc(st->n_files ? st->n_files : 1, sizeof(struct fd_file *));
	if (!st->by_inode)
		return -ENOMEM;
	for (size_t i = 0; i < st->n_files; i++)
		st->by_inode[i] = &st->files[i];
	if (st->n_files)
		qsort(st->by_inode, st->n_files, sizeof(struct fd_file *), by_inode);
	return 0;
}

int fd_identify(struct ckpt_run *run, struct fd_state *st, struct ckpt_error *err)
{
	CKPT_AUTO_FREE struct fd_entry **list = calloc(st->n + 1, sizeof(struct fd_entry *));
	int r = list ? 0 : -ENOMEM;
	size_t n = 0;

	for (size_t i = 0; list && i < st->n; i++)
		if (!st->entries[i].same)
			list[n++] = &st->entries[i];
	if (n)
		qsort(list, n, sizeof(*list), by_cheap);
	for (size_t i = 0, j; i < n && !r; i = j) {
		for (j = i + 1; j < n && !cheap_order(list[i], list[j]); j++)
			;
		r = split_run(list + i, j - i);
		/* running tasks close what we compare: what is not the same counts as different */
		if (r == -ENOMEM || !ckpt_is_live(run))
			continue;
		for (size_t k = r ? i : j; k < j; k++)
			list[k]->leader = list[k];
		r = 0;
	}
	if (!r)
		r = number_files(st);
	if (!r)
		r = index_files(st);
	return r ? ckpt_fail_sys(err, r, "comparing descriptors") : 0;
}

size_t fd_files_of(const struct fd_state *st, dev_t dev, ino_t ino, struct fd_file *const **out)
{
	size_t lo = 0, hi = st->n_files, n = 0;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct stat *s = &st->by_inode[mid]->first->st;

		if (s->st_dev < dev || (s->st_dev == dev && s->st_ino < ino))
			lo = mid + 1;
		else
			hi = mid;
	}
	*out = st->by_inode + lo;
	while (lo + n < st->n_files && st->by_inode[lo + n]->first->st.st_dev == dev &&
	       st->by_inode[lo + n]->first->st.st_ino == ino)
		n++;
	return n;
}

/* The first entry that is not before that place. */
static size_t lower_bound(const struct fd_state *st, uint32_t task, int num)
{
	size_t lo = 0, hi = st->n_held;

	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct fd_entry *e = &st->entries[mid];

		if (e->task->id < task || (e->task->id == task && e->num < num))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const struct fd_entry *fd_entry_find(const struct fd_state *st, const struct ckpt_task *task,
				     int num)
{
	size_t at = lower_bound(st, task->id, num);
	const struct fd_entry *e = &st->entries[at];

	for (size_t i = st->n_held; i < st->n; i++)
		if (st->entries[i].task == task && st->entries[i].num == num)
			return &st->entries[i];
	return at < st->n_held && e->task == task && e->num == num ? e : NULL;
}

size_t fd_entries_of(const struct fd_state *st, const struct ckpt_task *holder,
		     const struct fd_entry **out)
{
	size_t from = lower_bound(st, holder->id, 0), to = from;

	while (to < st->n_held && st->entries[to].task == holder)
		to++;
	*out = st->entries + from;
	return to - from;
}
