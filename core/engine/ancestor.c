/* SPDX-License-Identifier: MIT */
#include <malloc.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/ancestor.h"
#include "engine/engine.h"

#define ARCH_GET_XCOMP_PERM 0x1022
#define ARCH_SHSTK_STATUS   0x5005
#define XFEATURE_XTILEDATA  (1ULL << 18)

struct preparing {
	const struct ckpt_copies_kind *kind;
	unsigned copies;
	struct ckpt_copies_memory *memory;
};

static int call_prepare(struct ckpt_run *run, void *arg, struct ckpt_error *err)
{
	struct preparing *p = arg;

	return p->kind->prepare(run, p->copies, p->memory, err);
}

static void forget_memory(struct ckpt_copies_memory *m)
{
	copy_drop_memory(m);
	*m = (struct ckpt_copies_memory){ 0 };
}

/* A fork keeps shadow stacks and the permission for AMX, which execve(2) takes away. */
static bool has_more_than_others(void)
{
	uint64_t shadow = 0, xstate = 0;

	syscall(SYS_arch_prctl, ARCH_SHSTK_STATUS, &shadow);
	syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM, &xstate);
	return shadow || xstate & XFEATURE_XTILEDATA;
}

/* Sharing saves memory and time, and nothing depends on it: without, each copy fills its own. */
void ancestor_prepare(struct ancestor *a, unsigned copies)
{
	struct preparing p = { .copies = copies, .memory = &a->memory };
	const struct ckpt_extension *e;
	struct ckpt_error err = { 0 };
	const char *plugin;

	e = ckpt_extension_at(&a->run, CKPT_COPIES_POINT, 0, &plugin);
	if (!e || has_more_than_others())
		return;
	p.kind = e->ops;
	if (ckpt_call_as(&a->run, plugin, call_prepare, &p, &err) < 0) {
		ckpt_log(&a->run, CKPT_LOG_INFO, "copies share no memory: %s", err.text);
		forget_memory(&a->memory);
	}
}

int ancestor_open(struct ancestor *a, struct ckpt *c, const char *dir, struct ckpt_result *res,
		  struct ckpt_error *err)
{
	int r;

	memset(a, 0, sizeof(*a));
	r = run_init(&a->run, c, CKPT_RESTORE, res, err);
	if (!r)
		r = run_open_image(c, dir, &a->run.reader, err);
	return r ? r : run_load_sections(&a->run, err);
}

void ancestor_close(struct ancestor *a)
{
	if (!a->run.ctx)
		return;
	forget_memory(&a->memory);
	run_fini(&a->run);
	image_reader_free(a->run.reader);
	image_store_free(&a->run.store);
	a->run.ctx = NULL;
	/* the first process of a copy lives as long as the copy */
	malloc_trim(0);
}
