/* SPDX-License-Identifier: MIT */
/*
 * Look at every mapping of the tree from outside: say what each is, refuse what
 * cannot be saved. The agents are not there yet, so what is read here is what
 * the collector saves.
 */
#include <fcntl.h>
#include <linux/kcmp.h>
#include <stdio.h>
#include <string.h>

#include <ckpt/huge.h>

#include "mem.h"

struct survey {
	struct ckpt_run *run;
	struct mem_state *st;
	struct mem_space *sp; /* the task looked at */
	bool extensions;      /* is there any */
	bool live;	      /* the tree is not stopped */
	/* a feature that is off is named once a task: its answer, 0 = not asked */
	int off[12];
};

/* Features by which mappings can be switched off; order of survey.off[]. */
enum {
	F_PRIVATE_ANON,
	F_SHARED_ANON,
	F_FILE_PRIVATE,
	F_FILE_SHARED,
	F_VDSO,
	F_ADVICE,
	F_MLOCK,
	F_SEALED,
	F_MEMFD,
	F_DELETED,
	F_FORK_SHARED,
	F_HUGETLB
};
static const char *const features[] = {
	"private-anon", "shared-anon", "file-private", "file-shared",  "vdso",	      "advice",
	"mlock",	"sealed",      "memfd",	       "deleted-file", "fork-shared", "hugetlb",
};

static int refuse(struct survey *s, const struct mem_vma *v, const char *feature,
		  const char *reason, const char *hint)
{
	char name[MEM_NAME_MAX];
	struct ckpt_blocker b = { .feature = feature,
				  .task = s->sp->task,
				  .object = mem_vma_name(v, name, sizeof(name)),
				  .reason = reason,
				  .hint = hint };

	return ckpt_refuse(s->run, &b);
}

/* Is the feature on? Otherwise refused, or allowed to be lost: both say no. */
static bool feature(struct survey *s, int f, const struct mem_vma *v)
{
	char name[MEM_NAME_MAX];

	if (!s->off[f]) {
		int r = ckpt_refuse_off(s->run, features[f], s->sp->task,
					mem_vma_name(v, name, sizeof(name)));

		s->off[f] = r == 1 ? 1 : -1;
	}
	return s->off[f] == 1;
}

/* ---- extensions ------------------------------------------------------------- */

struct claim {
	const struct ckpt_vma_kind *kind;
	struct ckpt_vma_found found;
	bool yes;
};

static int ask_match(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct claim *c = arg;

	c->yes = c->kind->match(&c->found);
	return 0;
}

static int ask_survey(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct claim *c = arg;

	return c->kind->survey ? c->kind->survey(run, &c->found, err) : 0;
}

/* 1: a plugin's kind has claimed it. */
static int extension(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	const struct ckpt_extension *e;
	struct claim c = { .found = mem_vma_found(s->sp->task, v) };
	const char *plugin;
	int r;

	for (size_t i = 0; (e = ckpt_extension_at(s->run, CKPT_VMA_POINT, i, &plugin)); i++) {
		c.kind = e->ops;
		r = ckpt_call_as(s->run, plugin, ask_match, &c, err);
		if (r < 0)
			return r;
		if (!c.yes)
			continue;
		if (v->ext)
			return ckpt_fail(err, EEXIST,
					 "mapping %llx: both %s.%s and %s.%s say that it is theirs",
					 (unsigned long long)v->start, v->ext_plugin, v->ext->name,
					 plugin, e->name);
		v->ext = e;
		v->ext_plugin = plugin;
	}
	if (!v->ext)
		return 0;
	v->kind = MEM_EXTENSION;
	c.kind = v->ext->ops;
	r = ckpt_call_as(s->run, v->ext_plugin, ask_survey, &c, err);
	if (r < 0)
		return r;
	v->left_out = r == 1;
	return 1;
}

/* ---- one mapping --------------------------------------------------------------- */

static void classify_anon(struct survey *s, struct mem_vma *v)
{
	v->kind = MEM_PRIVATE_ANON;
	v->object = 0;
	if (!strcmp(v->path, "[uprobes]"))
		v->left_out = !refuse(s, v, "uprobes", "a user-space probe is set in this task",
				      "remove the probe (perf, bpftrace, SystemTap)");
	else if (v->shared || !(v->flags & MEM_MAYREAD) || !(v->flags & MEM_MAYWRITE))
		v->left_out = !refuse(s, v, "special", "it is not ordinary memory",
				      "use a ckpt that is newer than this kernel");
	else if (!feature(s, F_PRIVATE_ANON, v))
		v->left_out = true;
}

static bool ghost_feature(struct survey *s, const struct mem_vma *v)
{
	enum mem_ghost ghost = v->object ? s->st->files[v->object - 1].ghost : MEM_NO_GHOST;

	return !ghost || feature(s, ghost == MEM_MEMFD ? F_MEMFD : F_DELETED, v);
}

static int classify_file(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	const struct mem_file *bad;
	int r = mem_file_of(s->st, s->sp->task, v, &v->object, &bad, err);

	if (r < 0)
		return r;
	v->kind = v->shared ? MEM_FILE_SHARED : MEM_FILE_PRIVATE;
	if (bad)
		v->left_out = !refuse(s, v, bad->bad_feature, bad->bad, bad->bad_hint);
	else if (!feature(s, v->shared ? F_FILE_SHARED : F_FILE_PRIVATE, v) || !ghost_feature(s, v))
		v->left_out = true;
	return 0;
}

static int classify_shared(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	v->kind = MEM_SHARED_ANON;
	if (feature(s, F_SHARED_ANON, v))
		return mem_shared_of(s->st, s->sp->task, v, &v->object, err);
	v->left_out = true;
	return 0;
}

/* Properties that cannot be saved, whatever the mapping is. */
static void check_flags(struct survey *s, struct mem_vma *v)
{
	char reason[128];

	for (const struct mem_bad_flag *b = mem_bad_flags; b->flag; b++) {
		if (!(v->flags & b->flag))
			continue;
		snprintf(reason, sizeof(reason), "%s%s%s", b->reason,
			 v->unknown[0] ? ": VmFlags " : "", v->unknown);
		if (!refuse(s, v, b->feature, reason, b->hint) && !b->keep)
			v->left_out = true;
		if (!b->keep)
			break;
	}
	if (v->pkey && !refuse(s, v, "pkeys", "protection keys are not saved",
			       "let the program free its protection keys (pkey_free(2))"))
		v->left_out = true;
	if ((v->flags & MEM_ADVICE) && !feature(s, F_ADVICE, v))
		v->flags &= ~(uint32_t)MEM_ADVICE;
	if ((v->flags & MEM_SEALED) && !feature(s, F_SEALED, v))
		v->flags &= ~(uint32_t)MEM_SEALED;
	if ((v->flags & MEM_LOCKED) && !feature(s, F_MLOCK, v))
		v->flags &= ~(uint32_t)(MEM_LOCKED | MEM_ONFAULT);
}

static bool refuse_huge(struct survey *s, struct mem_vma *v, const char *reason, const char *hint)
{
	return refuse(s, v, "hugetlb-shared", reason, hint);
}

/* A memfd: its size may be set to anything by fallocate(2), but not by ftruncate(2). */
static int classify_huge_file(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	int r = classify_file(s, v, err);

	if (!r && !v->left_out && s->st->files[v->object - 1].st.st_size % CKPT_HUGE_PAGE)
		v->left_out = !refuse_huge(s, v, "its size is no multiple of a huge page's",
					   "let the program set another size");
	return r;
}

/* Those without a file are mappings of one that the kernel has made for them. */
static int classify_huge(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	const bool anon = !strcmp(v->path, "/anon_hugepage (deleted)");

	v->kind = MEM_PRIVATE_ANON;
	v->object = 0;
	if (v->huge_size != CKPT_HUGE_PAGE)
		v->left_out = !refuse(s, v, "hugetlb-size", "only huge pages of 2 MiB are saved",
				      "let the program use pages of 2 MiB (MAP_HUGE_2MB)");
	else if (!anon && (!v->shared || strncmp(v->path, "/memfd:", 7) != 0))
		v->left_out = !refuse_huge(s, v,
					   "files of huge page pools, and private mappings of "
					   "memfds there, are not saved",
					   "let the program use other memory, or MADV_HUGEPAGE");
	else if (!feature(s, F_HUGETLB, v))
		v->left_out = true;
	else if (v->shared)
		return anon ? classify_shared(s, v, err) : classify_huge_file(s, v, err);
	return 0;
}

static int classify(struct survey *s, struct mem_vma *v, struct ckpt_error *err)
{
	bool anon = !v->ino && v->path[0] != '/' && strncmp(v->path, "anon_inode:", 11);
	const struct mem_bad_path *bad;

	if (mem_is_special(v->path)) {
		v->kind = MEM_SPECIAL;
		v->left_out = !feature(s, F_VDSO, v);
		return 0;
	}
	if (s->extensions && !anon) {
		int r = extension(s, v, err);

		if (r)
			return r < 0 ? r : 0;
	}
	/* says more than the flags that such mappings have */
	bad = anon ? NULL : mem_bad_path(v->path);
	if (bad) {
		v->left_out = !refuse(s, v, bad->feature, bad->reason, bad->hint);
		return 0;
	}
	/* all of these have it */
	if (v->flags & MEM_HUGETLB)
		v->flags &= ~(uint32_t)MEM_DONTEXPAND;
	check_flags(s, v);
	if (v->left_out || v->flags & MEM_PFN)
		return 0;
	if (v->flags & MEM_HUGETLB)
		return classify_huge(s, v, err);
	if (anon) {
		classify_anon(s, v);
		return 0;
	}
	if (v->shared &&
	    (!strcmp(v->path, "/dev/zero (deleted)") || !strncmp(v->path, "[anon_shmem:", 12)))
		return classify_shared(s, v, err);
	return classify_file(s, v, err);
}

/* ---- the vdso --------------------------------------------------------------------- */

/* The parts must lie as the kernel maps them, for they come back in one piece. */
static bool vdso_in_place(const struct mem_space *sp, const struct mem_vdso *own, bool *any)
{
	uint64_t first = 0;
	size_t n = 0;

	*any = false;
	for (size_t i = 0; i < sp->maps.n; i++) {
		const struct mem_vma *v = &sp->maps.vma[i];

		if (v->kind != MEM_SPECIAL)
			continue;
		if (!n)
			first = v->start;
		*any = true;
		if (n == own->n || strcmp(own->part[n].name, v->path) ||
		    own->part[n].offset != v->start - first ||
		    own->part[n].size != v->end - v->start)
			return false;
		n++;
	}
	return !n || n == own->n;
}

static int survey_vdso(struct survey *s, struct ckpt_error *err)
{
	const struct mem_vdso *own = &s->st->own_vdso;
	char page[4 * MEM_PAGE];
	struct ckpt_blocker b = { .feature = "vdso",
				  .task = s->sp->task,
				  .object = "vdso",
				  .hint = "restart the program",
				  .reason = NULL };
	bool any, placed = vdso_in_place(s->sp, own, &any);
	struct mem_vma *code = NULL;

	if (!any)
		return 0;
	for (size_t i = 0; i < s->sp->maps.n; i++)
		if (!strcmp(s->sp->maps.vma[i].path, "[vdso]"))
			code = &s->sp->maps.vma[i];
	if (!placed || !code) {
		b.reason = "its parts were unmapped or moved apart by the program";
	} else if (own->code_size <= sizeof(page)) {
		CKPT_AUTO_FD int fd = mem_proc_open(s->sp->task, "mem", O_RDONLY, err);

		if (fd < 0)
			return fd;
		if (pread(fd, page, own->code_size, (off_t)code->start) != (ssize_t)own->code_size)
			return ckpt_fail_sys(err, errno ? errno : EIO, "reading the vdso");
		s->sp->vdso = mem_hash(page, own->code_size);
		if (s->sp->vdso == own->hash)
			return 0;
		b.reason = "its code was changed, or is not that of this kernel";
	} else {
		b.reason = "this kernel's is larger than ckpt knows";
	}
	ckpt_refuse(s->run, &b);
	for (size_t i = 0; i < s->sp->maps.n; i++)
		if (s->sp->maps.vma[i].kind == MEM_SPECIAL)
			s->sp->maps.vma[i].left_out = true;
	s->sp->vdso = 0;
	return 0;
}

/* ---- one task ------------------------------------------------------------------------ */

static int survey_exe(struct survey *s, struct ckpt_error *err)
{
	struct ckpt_blocker b = { .task = s->sp->task, .object = "executed file" };
	const struct mem_file *bad;
	int r = ckpt_proc_is_64bit(s->sp->task, err);

	if (r < 0)
		return r;
	if (!r) {
		b.feature = "compat";
		b.reason = "only 64-bit programs of this machine are saved";
		b.hint = "run the program on x86_64, built for it";
		b.no_loss = true;
		ckpt_refuse(s->run, &b);
		return 0;
	}
	s->sp->no_layout = ckpt_refuse_off(s->run, "mm-layout", s->sp->task, "memory layout") != 1;
	if (ckpt_refuse_off(s->run, "exe", s->sp->task, "executed file") != 1)
		return 0;
	r = mem_file_exe(s->st, s->sp->task, &s->sp->exe, &bad, err);
	if (r < 0 || !bad)
		return r;
	b.feature = "exe";
	b.object = bad->path;
	b.reason = bad->bad;
	b.hint = bad->bad_hint;
	ckpt_refuse(s->run, &b);
	return 0;
}

/* In a tree that is not stopped, a task may end while it is looked at. */
static bool vanished(const struct survey *s, int r)
{
	return s->live && (r == -ESRCH || r == -ENOENT);
}

static void refuse_guard(struct survey *s, const struct mem_vma *v)
{
	char name[MEM_NAME_MAX], object[MEM_NAME_MAX + 16];

	snprintf(object, sizeof(object), "guard pages in %s", mem_vma_name(v, name, sizeof(name)));
	ckpt_refuse_off(s->run, "guard", s->sp->task, object);
}

/* Guard pages show in page tables only: they are looked for if they must not be there. */
static int survey_guards(struct survey *s, struct ckpt_error *err)
{
	MEM_AUTO_SCAN struct mem_scan scan = { .fd = -1 };
	MEM_AUTO_RUNS struct mem_runs guards = { 0 };
	int r = ckpt_feature_on(s->run, "guard") ? 1
						 : mem_scan_open(s->run, s->sp->task, &scan, err);

	for (size_t i = 0; !r && i < s->sp->maps.n; i++) {
		const struct mem_vma *v = &s->sp->maps.vma[i];

		if (!mem_may_be_guarded(v))
			continue;
		r = mem_scan_guards(&scan, v, &guards, err);
		if (r < 0 || !guards.n)
			continue;
		refuse_guard(s, v);
		break;
	}
	return r < 0 ? r : 0;
}

/* Without the feature each process has a copy of its own. */
static void survey_forked(struct survey *s, struct mem_vma *v)
{
	if (!v->forked || ckpt_task_count(s->run) < 2 ||
	    ckpt_feature_on(s->run, features[F_FORK_SHARED]))
		return;
	/* pages of files are shared anyway */
	if (v->kind == MEM_PRIVATE_ANON && !v->left_out)
		feature(s, F_FORK_SHARED, v);
	v->forked = false;
}

/* The kernel walks the task's page tables for that: all processors do it, for one task each. */
static int read_maps(void *arg, size_t i, struct ckpt_error *err)
{
	const struct survey *s = arg;
	struct mem_space *sp = &s->st->spaces[i];
	int r = mem_maps_read(sp->task, "smaps", &sp->maps, err);
	char name[64];

	if (r < 0 && vanished(s, r)) {
		sp->gone = true;
		*err = (struct ckpt_error){ 0 };
		return 0;
	}
	return r < 0 ? ckpt_wrap(err, "%s", mem_task_name(sp->task, name, sizeof(name))) : 0;
}

static int survey_task(struct survey *s, struct ckpt_error *err)
{
	int r = 0;

	memset(s->off, 0, sizeof(s->off));
	for (size_t i = 0; !r && i < s->sp->maps.n; i++)
		r = classify(s, &s->sp->maps.vma[i], err);
	for (size_t i = 0; !r && i < s->sp->maps.n; i++)
		survey_forked(s, &s->sp->maps.vma[i]);
	if (!r)
		r = survey_vdso(s, err);
	if (!r)
		r = survey_exe(s, err);
	if (!r)
		r = survey_guards(s, err);
	return r;
}

/* ---- tasks that share their memory ------------------------------------------------------- */

static int by_mm(const void *a, const void *b)
{
	int r = ckpt_kcmp(((const struct mem_space *)a)->task, ((const struct mem_space *)b)->task,
			  KCMP_VM);

	return r == 1 ? -1 : r == 2 ? 1 : 0;
}

static int by_task(const void *a, const void *b)
{
	const struct ckpt_task *x = ((const struct mem_space *)a)->task;
	const struct ckpt_task *y = ((const struct mem_space *)b)->task;

	return x->id < y->id ? -1 : x->id > y->id;
}

static void refuse_shared_mm(struct survey *s)
{
	char object[128], name[64];

	qsort(s->st->spaces, s->st->n_spaces, sizeof(*s->st->spaces), by_mm);
	for (size_t i = 1; i < s->st->n_spaces; i++) {
		const struct mem_space *a = &s->st->spaces[i - 1], *b = &s->st->spaces[i];
		struct ckpt_blocker k = {
			.feature = "shared-mm",
			.task = b->task,
			.object = object,
			.reason = "processes that share their memory without being threads "
				  "(vfork(2), CLONE_VM) are not saved",
			.hint = "dump again when the child has called exec or ended",
			.no_loss = true,
		};

		if (a->gone || b->gone || ckpt_kcmp(a->task, b->task, KCMP_VM))
			continue;
		snprintf(object, sizeof(object), "address space of %s",
			 mem_task_name(a->task, name, sizeof(name)));
		ckpt_refuse(s->run, &k);
	}
	qsort(s->st->spaces, s->st->n_spaces, sizeof(*s->st->spaces), by_task);
}

int mem_survey(struct ckpt_run *run, struct ckpt_error *err)
{
	struct survey s = { .run = run, .live = ckpt_is_live(run) };
	size_t n = ckpt_task_count(run);
	char name[64];
	int r = mem_state_get(run, &s.st, err);

	if (r < 0)
		return r;
	s.extensions = ckpt_extension_at(run, CKPT_VMA_POINT, 0, NULL) != NULL;
	r = mem_vdso_own(&s.st->own_vdso, err);
	if (r < 0)
		return r;
	s.st->spaces = calloc(n ? n : 1, sizeof(*s.st->spaces));
	if (!s.st->spaces)
		return ckpt_fail(err, ENOMEM, "out of memory");
	for (size_t i = 0; i < n; i++)
		if (!ckpt_task_at(run, i)->zombie)
			s.st->spaces[s.st->n_spaces++].task = ckpt_task_at(run, i);
	r = ckpt_parallel_by(s.st->n_spaces, 1, read_maps, &s, err);
	if (r < 0)
		return r;
	for (size_t i = 0; i < s.st->n_spaces; i++) {
		s.sp = &s.st->spaces[i];
		r = s.sp->gone ? 0 : survey_task(&s, err);
		if (r < 0 && vanished(&s, r))
			s.sp->gone = true;
		else if (r < 0)
			return ckpt_wrap(err, "%s", mem_task_name(s.sp->task, name, sizeof(name)));
	}
	refuse_shared_mm(&s);
	return 0;
}
