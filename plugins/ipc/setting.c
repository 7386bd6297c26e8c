/* SPDX-License-Identifier: MIT */
/* Limits of a namespace, and what all kinds of objects have in common. */
#include <fcntl.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "ipc.h"

#define MAX_NUMBERS 4
#define FORCED	    "kernel/shm_rmid_forced"

static const char *const names[] = {
	"kernel/shmmax",
	"kernel/shmall",
	"kernel/shmmni",
	FORCED,
	"kernel/sem",
	"kernel/msgmax",
	"kernel/msgmnb",
	"kernel/msgmni",
	"fs/mqueue/queues_max",
	"fs/mqueue/msg_max",
	"fs/mqueue/msgsize_max",
	"fs/mqueue/msg_default",
	"fs/mqueue/msgsize_default",
};
#define N_NAMES CKPT_ARRAY_SIZE(names)

bool ipc_setting_known(const char *name)
{
	for (size_t i = 0; i < N_NAMES; i++)
		if (!strcmp(names[i], name))
			return true;
	return false;
}

int ipc_in(struct ckpt_run *run, const struct ckpt_ns *ns,
	   int (*fn)(void *arg, struct ckpt_error *err), void *arg, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_IPC] = ns };

	return ckpt_ns_run(run, &place, fn, arg, err);
}

void ipc_fill_object(Ckpt__Ipc__Object *o, const struct ckpt_ns *ns, int number,
		     const struct ipc_perm *p)
{
	o->ns = ns->id;
	o->number = (uint32_t)number;
	o->key = (uint32_t)p->__key;
	o->uid = p->uid;
	o->gid = p->gid;
	o->cuid = p->cuid;
	o->cgid = p->cgid;
	o->mode = p->mode & 0777;
}

static int write_text(const char *path, const char *text, struct ckpt_error *err)
{
	CKPT_AUTO_FD int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		return ckpt_fail_sys(err, errno, "writing \"%s\" to %s", text, path);
	return 0;
}

/* A new object's creator is its maker's effective ids; real and saved ones stay ours. */
static int become(uint32_t uid, uint32_t gid, struct ckpt_error *err)
{
	if (uid == 0 && syscall(SYS_setresuid, -1, uid, -1))
		return ckpt_fail_sys(err, errno, "setresuid(2) back");
	if (syscall(SYS_setresgid, -1, gid, -1) ||
	    (uid != 0 && syscall(SYS_setresuid, -1, uid, -1)))
		return ckpt_fail_sys(err, errno, "ids %u and %u", uid, gid);
	return 0;
}

int ipc_begin(const char *kind, const Ckpt__Ipc__Object *o, struct ckpt_error *err)
{
	char path[48], text[16];
	int r;

	snprintf(path, sizeof(path), "/proc/sys/kernel/%s_next_id", kind);
	snprintf(text, sizeof(text), "%u", o->number);
	r = write_text(path, text, err);
	return r < 0 ? r : become(o->cuid, o->cgid, err);
}

int ipc_end(const char *kind, const Ckpt__Ipc__Object *o, int number, struct ckpt_error *err)
{
	int e = number < 0 ? errno : 0, r = become(0, 0, err);

	if (r < 0 || number != (int)o->number)
		ipc_drop(kind, number);
	if (r < 0)
		return r;
	if (e)
		return ckpt_fail_sys(err, e, "%sget(2) of %u", kind, o->number);
	/* a place that is taken gives the next one, silently */
	return number == (int)o->number ? 0
					: ckpt_fail(err, EEXIST, "%sget(2) gave %d instead of %u",
						    kind, number, o->number);
}

/* ---- settings ----------------------------------------------------------------------------- */

struct settings {
	char values[N_NAMES][128];
};

static void read_one(const char *name, char *out, size_t size)
{
	char path[64];
	CKPT_AUTO_FD int fd = -1;
	ssize_t n;

	snprintf(path, sizeof(path), "/proc/sys/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, out, size - 1);
	while (n > 0 && (out[n - 1] == '\n' || out[n - 1] == '\t'))
		n--;
	out[n < 0 ? 0 : n] = 0;
}

bool ipc_rmid_forced(void)
{
	char value[16];

	read_one(FORCED, value, sizeof(value));
	return !strcmp(value, "1");
}

static int read_all(void *arg, struct ckpt_error *err)
{
	struct settings *s = arg;

	(void)err;
	for (size_t i = 0; i < N_NAMES; i++)
		read_one(names[i], s->values[i], sizeof(s->values[i]));
	return 0;
}

int ipc_put_namespace(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	Ckpt__Ipc__Namespace rec = CKPT__IPC__NAMESPACE__INIT;
	Ckpt__Ipc__Setting items[N_NAMES], *list[N_NAMES];
	struct settings s;
	int r = ipc_in(run, ns, read_all, &s, err);

	if (r < 0)
		return r;
	rec.id = ns->id;
	rec.settings = list;
	for (size_t i = 0; i < N_NAMES; i++) {
		if (!s.values[i][0] || !ckpt_feature_on(run, "settings"))
			continue;
		ckpt__ipc__setting__init(&items[i]);
		items[i].name = (char *)(uintptr_t)names[i];
		items[i].value = s.values[i];
		list[rec.n_settings++] = &items[i];
	}
	return ckpt_record_put(run, IPC_REC_NAMESPACE, &rec.base, err);
}

struct job {
	const Ckpt__Ipc__Namespace *rec;
	bool final;
};

/* Of each number the greater one, as text; up to four of them. */
static void greater(const char *a, const char *b, char *out, size_t size)
{
	size_t at = 0;

	for (int i = 0; i < MAX_NUMBERS; i++) {
		char *end_a, *end_b;
		unsigned long long x = strtoull(a, &end_a, 10), y = strtoull(b, &end_b, 10);

		if (end_a == a || end_b == b)
			break;
		at += (size_t)snprintf(out + at, size - at, "%s%llu", i ? "\t" : "", x > y ? x : y);
		a = end_a;
		b = end_b;
	}
}

/* An object may be of a time with other limits, and counter.c makes many. */
static const char *highest(const char *name)
{
	static const char *const most[][2] = {
		{ "fs/mqueue/queues_max", "1048576" },
		{ "fs/mqueue/msg_max", "65536" },
		{ "fs/mqueue/msgsize_max", "16777216" },
		{ "kernel/shmmni", "32768" },
		{ "kernel/msgmni", "32768" },
		{ "kernel/sem", "0\t0\t0\t32768" },
	};

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(most); i++)
		if (!strcmp(name, most[i][0]))
			return most[i][1];
	return "";
}

static int set(void *arg, struct ckpt_error *err)
{
	const struct job *j = arg;
	int r = 0;

	/* in a user namespace these files belong to its root */
	syscall(SYS_setresgid, 0, 0, 0);
	syscall(SYS_setresuid, 0, 0, 0);
	for (size_t i = 0; i < j->rec->n_settings && r == 0; i++) {
		const Ckpt__Ipc__Setting *s = j->rec->settings[i];
		char path[64], now[128], most[128], text[128] = "";

		snprintf(path, sizeof(path), "/proc/sys/%s", s->name);
		read_one(s->name, now, sizeof(now));
		if (!j->final && !strcmp(s->name, FORCED))
			continue;
		if (j->final)
			snprintf(text, sizeof(text), "%s", s->value);
		else if (!strcmp(s->name, "kernel/msgmnb") || !strcmp(s->name, "kernel/msgmax"))
			snprintf(text, sizeof(text), "%d", INT32_MAX);
		else
			greater(now, s->value, text, sizeof(text));
		if (!j->final && *highest(s->name)) {
			greater(text, highest(s->name), most, sizeof(most));
			memcpy(text, most, sizeof(text));
		}
		if (strcmp(now, text))
			r = write_text(path, text, err);
	}
	return r;
}

int ipc_set(struct ckpt_run *run, const struct ckpt_ns *ns, bool final, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = {
		.ns[CKPT_NS_IPC] = ns,
		.ns[CKPT_NS_USER] = ns->owner,
	};
	struct job j = { ckpt_record_need(run, "ipc.namespace", ns->id, err), final };

	return j.rec ? ckpt_ns_run(run, &place, set, &j, err) : -err->err;
}
