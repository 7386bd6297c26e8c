/* SPDX-License-Identifier: MIT */
/* What the survey saw, as records. Page contents follow in save.c. */
#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>

#include "mem.h"

struct source {
	struct ckpt_run *run;
	struct mem_state *st;
	struct mem_space *sp;
};

/* ---- files and shared objects -------------------------------------------------- */

static int put_files(struct source *s, struct ckpt_error *err)
{
	for (size_t i = 0; i < s->st->n_files; i++) {
		const struct mem_file *f = &s->st->files[i];
		mem_file_rec m = CKPT__MEM__FILE__INIT;
		int r;

		if (f->bad)
			continue;
		m.id = (uint32_t)i + 1;
		m.path = f->path;
		m.mnt = f->mnt;
		/* a filesystem of the tree's own gets new numbers */
		if (!f->mnt || f->ghost) {
			m.dev = f->st.st_dev;
			m.ino = f->st.st_ino;
		}
		m.size = (uint64_t)f->st.st_size;
		m.mtime_ns = f->st.st_mtim.tv_sec * 1000000000ll + f->st.st_mtim.tv_nsec;
		if (f->ghost) {
			m.ghost = f->ghost;
			m.content = f->content;
			m.seals = f->seals;
			m.mode = f->st.st_mode & 07777;
			m.uid = f->st.st_uid;
			m.gid = f->st.st_gid;
		}
		r = ckpt_record_put(s->run, MEM_REC_FILE, &m.base, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* ---- the layout ------------------------------------------------------------------ */

static const struct {
	unsigned field; /* of /proc/PID/stat */
	size_t offset;
} stat_fields[] = {
	{ 26, offsetof(mem_space_rec, start_code) },  { 27, offsetof(mem_space_rec, end_code) },
	{ 28, offsetof(mem_space_rec, start_stack) }, { 45, offsetof(mem_space_rec, start_data) },
	{ 46, offsetof(mem_space_rec, end_data) },    { 47, offsetof(mem_space_rec, start_brk) },
	{ 48, offsetof(mem_space_rec, arg_start) },   { 49, offsetof(mem_space_rec, arg_end) },
	{ 50, offsetof(mem_space_rec, env_start) },   { 51, offsetof(mem_space_rec, env_end) },
};

/* The end of the heap to the byte is nowhere in /proc; asking for 0 changes nothing. */
static int ask_brk(struct source *s, uint64_t *brk, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *sc = ckpt_script_new(s->run, "mem.brk");
	struct ckpt_thread *th = s->sp->task->threads[0];
	int op, r;

	op = ckpt_script_add(sc, SYS_brk, CKPT_C(0));
	r = ckpt_script_run(sc, th, err);
	if (!r)
		*brk = (uint64_t)ckpt_script_result(sc, op);
	return r;
}

static int read_layout(struct source *s, mem_space_rec *m, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *stat = NULL;
	ssize_t n = ckpt_proc_read(s->sp->task, "stat", &stat, err);
	int64_t v;

	if (n < 0)
		return (int)n;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(stat_fields); i++) {
		if (ckpt_proc_stat_field(stat, stat_fields[i].field, &v) < 0)
			return ckpt_fail(err, EINVAL, "stat: field %u is missing",
					 stat_fields[i].field);
		*(uint64_t *)((char *)m + stat_fields[i].offset) = (uint64_t)v;
	}
	return ask_brk(s, &m->brk, err);
}

/* Where the agent is: the address of a buffer of one of its calls, which the call has no use for.
 */
static int ask_agent(struct source *s, struct ckpt_thread *th, uint64_t *at, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *sc = ckpt_script_new(s->run, "mem.agent");
	int op = ckpt_script_add(sc, SYS_getpid, CKPT_OUT(sizeof(*at)));
	int r;

	ckpt_script_pointer(sc, op, 0, 0, op, 0, 0);
	r = ckpt_script_run(sc, th, err);
	if (!r)
		memcpy(at, ckpt_script_out(sc, op, 0), sizeof(*at));
	return r;
}

/* A locked mapping at this address: only in smaps, with all the others. */
static int locked_how(struct source *s, uint64_t at, uint32_t *how, struct ckpt_error *err)
{
	MEM_AUTO_MAPS struct mem_maps maps = { 0 };
	struct ckpt_blocker b = { .feature = "lock-future",
				  .task = s->sp->task,
				  .object = "mlockall(MCL_FUTURE)",
				  .reason = "this kernel does not tell whether MCL_ONFAULT is set",
				  .hint = "let the program call munlockall(2)" };
	int r = mem_maps_read(s->sp->task, "smaps", &maps, err);
	const struct mem_vma *v = maps.vma;

	while (!r && v < maps.vma + maps.n && (at < v->start || at >= v->end))
		v++;
	if (r || v == maps.vma + maps.n)
		return r ? r : ckpt_fail(err, ENOENT, "smaps: nothing is at %" PRIx64, at);
	*how = MCL_FUTURE | (v->flags & MEM_ONFAULT ? MCL_ONFAULT : 0);
	/* 6.1 has no name for it */
	if (v->unknown[0] && !ckpt_refuse(s->run, &b))
		*how = 0;
	return 0;
}

/*
 * Nothing tells what mlockall(2) was called with; but the agent is what was mapped last. msync(2)
 * does nothing with these flags but say EBUSY of locked memory.
 */
static int ask_lock_future(struct source *s, uint32_t *how, struct ckpt_error *err)
{
	CKPT_AUTO_SCRIPT struct ckpt_script *sc = ckpt_script_new(s->run, "mem.mlockall");
	struct ckpt_thread *th = s->sp->task->threads[0];
	uint64_t at = 0;
	int op, r;

	r = ask_agent(s, th, &at, err);
	if (r < 0)
		return r;
	op = ckpt_script_add(sc, SYS_msync, CKPT_C(at & ~(MEM_PAGE - 1)), CKPT_C(MEM_PAGE),
			     CKPT_C(MS_INVALIDATE));
	ckpt_script_allow(sc, EBUSY);
	r = ckpt_script_run(sc, th, err);
	if (r < 0 || !ckpt_script_result(sc, op))
		return r;
	if (ckpt_refuse_off(s->run, "lock-future", s->sp->task, "mlockall(MCL_FUTURE)") != 1)
		return 0;
	return locked_how(s, at, how, err);
}

static int put_space(struct source *s, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *auxv = NULL;
	mem_space_rec m = CKPT__MEM__SPACE__INIT;
	ssize_t n;
	int r;

	m.id = s->sp->task->id;
	m.exe = s->sp->exe;
	m.vdso = s->sp->vdso;
	r = ask_lock_future(s, &m.lock_future, err);
	if (r < 0)
		return r;
	if (!s->sp->no_layout) {
		r = read_layout(s, &m, err);
		if (r < 0)
			return r;
		n = ckpt_proc_read(s->sp->task, "auxv", &auxv, err);
		if (n < 0)
			return (int)n;
		m.auxv.data = (uint8_t *)auxv;
		m.auxv.len = (size_t)n;
	}
	return ckpt_record_put(s->run, MEM_REC_SPACE, &m.base, err);
}

/* ---- mappings ---------------------------------------------------------------------- */

/* NAME of "[anon:NAME]", cut out in place: neighbours of one name share the text. */
static char *anon_name(const struct mem_vma *v)
{
	char *open = strncmp(v->path, "[anon", 5) ? NULL : strchr(v->path, ':');
	char *end = open ? strrchr(open, ']') : NULL;

	if (end && !end[1])
		*end = 0;
	return open && open[1] ? open + 1 : NULL;
}

static void fill_vma(const struct mem_vma *v, mem_vma_rec *m)
{
	char *name;

	ckpt__mem__vma__init(m);
	m->start = v->start;
	m->end = v->end;
	m->prot = (uint32_t)v->prot;
	m->kind = v->kind;
	m->flags = v->flags & MEM_ATTRS & ~(uint32_t)MEM_MAYWRITE;
	switch (v->kind) {
	case MEM_SPECIAL:
		m->name = (char *)v->path;
		m->flags = 0;
		break;
	case MEM_EXTENSION:
		m->name = (char *)v->ext->name;
		break;
	case MEM_PRIVATE_ANON:
	case MEM_SHARED_ANON:
		name = anon_name(v);
		if (name)
			m->name = name;
		break;
	default:
		break;
	}
	if (v->kind == MEM_FILE_SHARED)
		m->flags |= v->flags & MEM_MAYWRITE;
	if (v->kind != MEM_PRIVATE_ANON && v->kind != MEM_SPECIAL) {
		m->object = v->object;
		m->offset = v->offset;
	}
}

static int put_vmas(struct source *s, struct ckpt_error *err)
{
	const struct mem_maps *maps = &s->sp->maps;
	CKPT_AUTO_FREE mem_vma_rec *recs = calloc(maps->n + 1, sizeof(*recs));
	CKPT_AUTO_FREE mem_vma_rec **list = calloc(maps->n + 1, sizeof(*list));
	CKPT_AUTO_FREE uint64_t *seams = calloc(maps->n + 1, sizeof(*seams));
	MEM_AUTO_POLICIES struct mem_policies policies = { 0 };
	mem_vmas_rec m = CKPT__MEM__VMAS__INIT;
	int r;

	if (!recs || !list || !seams)
		return ckpt_fail(err, ENOMEM, "out of memory");
	r = mem_policies_look(s->run, s->sp, &policies, err);
	if (r < 0)
		return r;
	m.id = s->sp->task->id;
	m.vma = list;
	m.seam = seams;
	for (size_t i = 0; i < maps->n; i++) {
		mem_vma_rec *v = &recs[m.n_vma];

		if (maps->vma[i].left_out)
			continue;
		fill_vma(&maps->vma[i], v);
		if (m.n_vma && mem_rec_mergeable(list[m.n_vma - 1], v)) {
			if (mem_policies_same(&policies, i - 1, i))
				seams[m.n_seam++] = v->start;
			list[m.n_vma - 1]->end = v->end;
		} else {
			list[m.n_vma++] = v;
		}
	}
	mem_policies_put(&policies, maps, &m);
	ckpt_count(s->run, "mappings", m.n_vma);
	return ckpt_record_put(s->run, MEM_REC_VMAS, &m.base, err);
}

/* ---- extensions -------------------------------------------------------------------- */

struct call {
	const struct ckpt_vma_kind *kind;
	struct ckpt_vma_found found;
};

static int ask_collect(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct call *c = arg;

	return c->kind->collect(run, &c->found, err);
}

static int collect_extensions(struct source *s, struct ckpt_error *err)
{
	for (size_t i = 0; i < s->sp->maps.n; i++) {
		const struct mem_vma *v = &s->sp->maps.vma[i];
		struct call c;
		int r;

		if (!v->ext || v->left_out)
			continue;
		c.kind = v->ext->ops;
		c.found = mem_vma_found(s->sp->task, v);
		r = ckpt_call_as(s->run, v->ext_plugin, ask_collect, &c, err);
		if (r < 0)
			return r;
	}
	return 0;
}

/* Contents are not compared, but in the live tree's records there is one for each of the image's.
 */
static int put_no_pages(struct source *s, struct ckpt_error *err)
{
	for (size_t i = 0; i < s->st->n_spaces; i++) {
		mem_pages_rec m = CKPT__MEM__PAGES__INIT;
		int r;

		m.id = s->st->spaces[i].task->id;
		r = ckpt_record_put(s->run, MEM_REC_PAGES, &m.base, err);
		if (r < 0)
			return r;
	}
	for (size_t i = 0; i < s->st->n_shared; i++) {
		mem_shared_rec m = CKPT__MEM__SHARED__INIT;
		int r;

		m.id = (uint32_t)i + 1;
		m.size = s->st->shared[i].size;
		m.huge = s->st->shared[i].huge;
		r = ckpt_record_put(s->run, MEM_REC_SHARED, &m.base, err);
		if (r < 0)
			return r;
	}
	return 0;
}

int mem_collect(struct ckpt_run *run, struct ckpt_error *err)
{
	struct source s = { .run = run };
	char name[64];
	int r = mem_state_get(run, &s.st, err);

	if (r < 0)
		return r;
	r = put_files(&s, err);
	for (size_t i = 0; !r && i < s.st->n_spaces; i++) {
		s.sp = &s.st->spaces[i];
		r = put_space(&s, err);
		if (!r)
			r = put_vmas(&s, err);
		if (!r)
			r = collect_extensions(&s, err);
		if (r < 0)
			return ckpt_wrap(err, "%s", mem_task_name(s.sp->task, name, sizeof(name)));
	}
	if (!r && ckpt_run_kind(run) == CKPT_VERIFY)
		r = put_no_pages(&s, err);
	return r;
}
