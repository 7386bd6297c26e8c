/* SPDX-License-Identifier: MIT */
/* Mappings of segments: a kind of the extension point "vma". */
#include <stdio.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>

#include "ipc.h"

#define PAGE   4096U
#define LOWEST (1ULL << 28)

static bool match(const struct ckpt_vma_found *v)
{
	static const char deleted[] = " (deleted)";
	size_t n = strlen(v->path), tail = sizeof(deleted) - 1;

	/* a real file of that name is not deleted, or is not on the kernel's own mount */
	return v->shared && !strncmp(v->path, "/SYSV", 5) && n == 13 + tail &&
	       !strcmp(v->path + n - tail, deleted) && v->dev_major == 0;
}

static int refuse(struct ckpt_run *run, const struct ckpt_vma_found *v, const char *feature,
		  const char *reason, const char *hint)
{
	char object[96];
	int r;

	snprintf(object, sizeof(object), "segment %llu at %llx", (unsigned long long)v->ino,
		 (unsigned long long)v->start);
	r = ckpt_refuse(run,
			&(struct ckpt_blocker){ feature, v->task, object, reason, hint, false });
	return r == -ECANCELED ? 1 : r < 0 ? r : 1;
}

/* How often the tree has a segment mapped, by the lines of all maps. */
static uint64_t count_mappings(struct ckpt_run *run, const struct ckpt_ns *ns, uint64_t ino)
{
	uint64_t n = 0;

	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);
		struct ckpt_error ignored = { 0 };
		CKPT_AUTO_FREE char *maps = NULL;
		char *save = NULL;

		if (t->zombie || ckpt_ns_of_task(run, t, CKPT_NS_IPC) != ns ||
		    ckpt_proc_read(t, "maps", &maps, &ignored) < 0)
			continue;
		for (char *line = strtok_r(maps, "\n", &save); line;
		     line = strtok_r(NULL, "\n", &save)) {
			unsigned long long there;

			if (strstr(line, " /SYSV") &&
			    sscanf(line, "%*s %*s %*s %*s %llu", &there) == 1 && there == ino)
				n++;
		}
	}
	return n;
}

/* What shmat(2) and mprotect(2) give a mapping, and no more. Guard pages ("gu") are mem's. */
static bool is_plain(const char *vmflags)
{
	static const char usual[] = " rd wr ex sh mr mw me ms sd nr ac gu ";

	for (const char *p = vmflags; *p; p++) {
		char word[5] = { ' ' };

		if (*p == ' ' || *p == '\n')
			continue;
		word[1] = p[0];
		word[2] = p[1];
		word[3] = ' ';
		if (!p[1] || !strstr(usual, word))
			return false;
		p++;
	}
	return true;
}

static int survey(struct ckpt_run *run, const struct ckpt_vma_found *v, struct ckpt_error *err)
{
	const struct ckpt_ns *ns = ckpt_ns_of_task(run, v->task, CKPT_NS_IPC);
	struct ipc_state *st = ipc_state(run, err);
	const struct ipc_segment *s;
	char object[48];
	int r = st ? ipc_look(run, err) : -ENOMEM;

	if (r < 0)
		return r;
	snprintf(object, sizeof(object), "segment %llu", (unsigned long long)v->ino);
	r = ckpt_refuse_off(run, "shm", v->task, object);
	/* without its namespace a segment is nowhere */
	if (r != 1 || (!ns->own && !ckpt_feature_on(run, "namespaces")))
		return 1;
	s = ipc_find(st, ns, (int)v->ino);
	if (!s)
		return refuse(run, v, "foreign",
			      "it belongs to an ipc namespace that the task is not in",
			      "let the task detach it before unshare(2) or setns(2)");
	if (!is_plain(v->vmflags))
		return refuse(run, v, "advice",
			      "memory locks and advice of such mappings are not saved",
			      "let the program do without mlock(2) and madvise(2) there");
	if (ns->own && s->attached > count_mappings(run, ns, v->ino))
		return refuse(run, v, "outside", "a process outside the tree has it attached too",
			      "dump the tree that has all its users in it");
	return 0;
}

static int collect(struct ckpt_run *run, const struct ckpt_vma_found *v, struct ckpt_error *err)
{
	struct ipc_state *st = ipc_state(run, err);
	Ckpt__Ipc__Attachment rec = CKPT__IPC__ATTACHMENT__INIT;
	struct ipc_segment *s;
	int r;

	if (!st)
		return -ENOMEM;
	s = ipc_find(st, ckpt_ns_of_task(run, v->task, CKPT_NS_IPC), (int)v->ino);
	if (!s)
		return ckpt_fail(err, ENOENT, "segment %llu has gone", (unsigned long long)v->ino);
	r = ipc_put_segment(run, s, err);
	if (r < 0 || !s->id)
		return r;
	rec.id = v->task->id;
	rec.start = v->start;
	rec.length = v->end - v->start;
	rec.offset = v->pgoff;
	rec.prot = (uint32_t)v->prot;
	rec.read_only = !strstr(v->vmflags, "mw");
	rec.segment = s->id;
	return ckpt_record_put(run, IPC_REC_ATTACHMENT, &rec.base, err);
}

static const Ckpt__Ipc__Attachment *record(struct ckpt_run *run, uint32_t task, uint64_t start)
{
	for (size_t i = 0; i < ckpt_record_count(run, "ipc.attachment"); i++) {
		const Ckpt__Ipc__Attachment *a = ckpt_record_at(run, "ipc.attachment", i);

		if (a->id == task && a->start == start)
			return a;
	}
	return NULL;
}

/* Number `name` of a record of the plugin mem, by the message's own description. */
static uint64_t number(const ProtobufCMessage *m, const char *name)
{
	const ProtobufCFieldDescriptor *f =
		protobuf_c_message_descriptor_get_field_by_name(m->descriptor, name);
	uint64_t value = 0;

	if (f && (f->type == PROTOBUF_C_TYPE_UINT64 || f->type == PROTOBUF_C_TYPE_FIXED64))
		memcpy(&value, (const uint8_t *)m + f->offset, sizeof(value));
	return value;
}

/* A task's mappings as mem has them, in order; returns how many. */
static size_t list_mappings(struct ckpt_run *run, uint32_t task,
			    const ProtobufCMessage *const **list)
{
	const ProtobufCMessage *vmas = ckpt_record_by_id(run, "mem.vmas", task);
	const ProtobufCFieldDescriptor *f =
		vmas ? protobuf_c_message_descriptor_get_field_by_name(vmas->descriptor, "vma")
		     : NULL;
	size_t n;

	if (!f || f->type != PROTOBUF_C_TYPE_MESSAGE || f->label != PROTOBUF_C_LABEL_REPEATED)
		return 0;
	memcpy(&n, (const uint8_t *)vmas + f->quantifier_offset, sizeof(n));
	memcpy(list, (const uint8_t *)vmas + f->offset, sizeof(*list));
	return n;
}

bool ipc_attachment_fits(struct ckpt_run *run, const Ckpt__Ipc__Attachment *a)
{
	const ProtobufCMessage *const *list;
	const size_t n = list_mappings(run, a->id, &list);

	for (size_t i = 0; i < n; i++)
		if (number(list[i], "start") == a->start)
			return number(list[i], "end") == a->start + a->length;
	return false;
}

/* A place where the task will have no mapping, nor has the agent: between two of mem's records. */
static uint64_t find_gap(struct ckpt_run *run, uint32_t task, uint64_t length)
{
	const ProtobufCMessage *const *list;
	const size_t n = list_mappings(run, task, &list);
	uint64_t from = LOWEST, agent, agent_end;

	ckpt_agent_range(run, &agent, &agent_end);
	for (size_t i = 0; i < n; i++) {
		uint64_t start = number(list[i], "start"), end = number(list[i], "end");

		if (from < agent_end && from + length > agent)
			from = agent_end;
		if (start >= from && start - from >= length)
			return from;
		if (end > from)
			from = end;
	}
	return 0;
}

/*
 * shmat(2) maps a segment as a whole. What the program has left of it is moved to its
 * place from a gap between its mappings, and the rest given up.
 */
static int map_part(struct ckpt_run *run, struct ckpt_script *s, const Ckpt__Ipc__Attachment *a,
		    uint32_t segment, uint64_t whole, int flags, struct ckpt_error *err)
{
	const uint64_t at = find_gap(run, a->id, whole), after = a->offset + a->length;

	if (!at)
		return ckpt_fail(err, ENOMEM, "no gap of %llu bytes for segment %u",
				 (unsigned long long)whole, segment);
	ckpt_script_add(s, SYS_shmat, CKPT_C(segment), CKPT_C(at), CKPT_C(flags));
	ckpt_script_expect(s, (int64_t)at);
	ckpt_script_add(s, SYS_mremap, CKPT_C(at + a->offset), CKPT_C(a->length), CKPT_C(a->length),
			CKPT_C(MREMAP_MAYMOVE | MREMAP_FIXED), CKPT_C(a->start));
	if (a->offset)
		ckpt_script_add(s, SYS_munmap, CKPT_C(at), CKPT_C(a->offset));
	if (after < whole)
		ckpt_script_add(s, SYS_munmap, CKPT_C(at + after), CKPT_C(whole - after));
	return 0;
}

static int map(struct ckpt_run *run, struct ckpt_task *task, uint64_t start, struct ckpt_script *s,
	       struct ckpt_error *err)
{
	const Ckpt__Ipc__Attachment *a = record(run, task->id, start);
	const Ckpt__Ipc__Segment *seg =
		a ? ckpt_record_by_id(run, "ipc.segment", a->segment) : NULL;
	uint64_t whole;
	int flags, r = 0;

	if (!seg)
		return ckpt_fail_image(err, "task %u: no segment is recorded at %llx", task->id,
				       (unsigned long long)start);
	whole = (seg->size + PAGE - 1) & ~(uint64_t)(PAGE - 1);
	flags = (a->read_only ? SHM_RDONLY : 0) | (a->prot & PROT_EXEC ? SHM_EXEC : 0);
	if (a->length == whole) {
		ckpt_script_add(s, SYS_shmat, CKPT_C(seg->object->number), CKPT_C(start),
				CKPT_C(flags));
		ckpt_script_expect(s, (int64_t)start);
	} else {
		r = map_part(run, s, a, seg->object->number, whole, flags, err);
	}
	ckpt_script_add(s, SYS_mprotect, CKPT_C(start), CKPT_C(a->length), CKPT_C(a->prot));
	return r;
}

const struct ckpt_vma_kind ipc_mapping = {
	.size = sizeof(struct ckpt_vma_kind),
	.match = match,
	.survey = survey,
	.collect = collect,
	.map = map,
};
