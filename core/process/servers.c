/* SPDX-License-Identifier: MIT */
/*
 * A file of FUSE is told by a process, one of a network filesystem by another machine, and an
 * open(2) may be decided by a listener of fanotify. If that process is in the tree it stands when
 * we ask, and if it hangs, we do: a FUSE request that its server has taken is waited for without an
 * end, whoever is killed. So both are looked for first, by what never waits, and a server outside
 * is asked by a child that can be left behind.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/stat.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/parallel.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"
#include "process/mounts.h"
#include "process/set.h"
#include "process/spawn.h"

#define LINK_SIZE     4200
#define FIRST_WAIT_MS 5000
#define NEXT_WAIT_MS  1000
#define MOST_SILENT   8

/* ---- in the tree ----------------------------------------------------------------------- */

struct server {
	const char *name;	/* of the device, or the link */
	unsigned minor_of_misc; /* of a device, whatever it is called, or is not any more */
	const char *word, *reason, *hint;
};

#define END_IT                                                                               \
	"unmount what it serves (fusermount3 -u, umount) and let it end, or run it outside " \
	"of the tree; an AppImage can be extracted first: --appimage-extract"

static const struct server servers[] = {
	{ "/dev/fuse", 229, "fuse-server",
	  "it serves a FUSE filesystem: whoever looks at a file there while the tree stands waits "
	  "for it",
	  END_IT },
	{ "/dev/cuse", 203, "fuse-server",
	  "it serves a character device: whoever opens that while the tree stands waits for it",
	  "let it end, or run it outside of the tree" },
};

static const struct server permission = { "anon_inode:[fanotify]", 0, "fanotify-permission",
					  "it decides who may open files: whoever opens one while "
					  "the tree stands waits for it, all of "
					  "the machine",
					  "let it end, or run it outside of the tree" };

#define MISC_MAJOR 10 /* of all devices that have no major number of their own */

/* What is behind a descriptor may be a file that a server has to tell about: it is not asked. */
static const struct server *device(int dir, const char *num)
{
	char path[300];
	struct statx x;

	snprintf(path, sizeof(path), "fd/%s", num);
	if (statx(dir, path, AT_NO_AUTOMOUNT | AT_STATX_DONT_SYNC, STATX_TYPE, &x) ||
	    !S_ISCHR(x.stx_mode) || x.stx_rdev_major != MISC_MAJOR)
		return NULL;
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(servers); i++)
		if (x.stx_rdev_minor == servers[i].minor_of_misc)
			return &servers[i];
	return NULL;
}

#define FANOTIFY_DECIDES 0xc /* FAN_CLASS_CONTENT, FAN_CLASS_PRE_CONTENT */

/* The first lines: flags of the file, then "fanotify flags:4 event-flags:8000". */
static bool decides(int dir, const char *num)
{
	CKPT_AUTO_FD int fd = -1;
	char path[300], text[1024];
	const char *flags;
	ssize_t n;

	snprintf(path, sizeof(path), "fdinfo/%s", num);
	fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	if (n <= 0)
		return false;
	text[n] = '\0';
	flags = strstr(text, "fanotify flags:");
	return flags && strtoul(flags + strlen("fanotify flags:"), NULL, 16) & FANOTIFY_DECIDES;
}

static const struct server *serves(int dir, const char *num, const char *link, size_t len)
{
	if (*link == '/')
		return device(dir, num);
	if (len == strlen(permission.name) && !memcmp(link, permission.name, len) &&
	    decides(dir, num))
		return &permission;
	return NULL;
}

/* What a task was found to have. */
struct within {
	const struct proc_set *ps;
	struct {
		const struct server *what;
		int num;
	} * found; /* one a task */
};

static DIR *open_fds(const struct ckpt_task *t)
{
	int fd = openat(t->procfd, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);

	if (!dir && fd >= 0)
		close(fd);
	return dir;
}

/* Who ends meanwhile has nothing; who cannot be read is the survey's to complain of. */
static int look_within(void *arg, size_t i, struct ckpt_error *err)
{
	struct within *w = arg;
	const struct ckpt_task *t = &w->ps->tasks[i]->pub;
	CKPT_AUTO_DIR DIR *dir = t->zombie ? NULL : open_fds(t);
	char link[LINK_SIZE];
	struct dirent *e;

	(void)err;
	while (dir && !w->found[i].what && (e = readdir(dir))) {
		ssize_t n = *e->d_name == '.'
				    ? -1
				    : readlinkat(dirfd(dir), e->d_name, link, sizeof(link));

		if (n > 0)
			w->found[i].what = serves(t->procfd, e->d_name, link, (size_t)n);
		if (w->found[i].what)
			w->found[i].num = atoi(e->d_name);
	}
	return 0;
}

int proc_check_servers(struct proc_set *ps, struct ckpt_error *err)
{
	const size_t before = ps->run->result->n_blockers;
	struct within w = { .ps = ps, .found = calloc(ps->n + 1, sizeof(*w.found)) };
	int r = w.found ? ckpt_parallel(ps->n, look_within, &w, err) : fail_nomem(err);

	for (size_t i = 0; !r && i < ps->n; i++) {
		const struct server *s = w.found[i].what;
		char object[64];

		if (!s)
			continue;
		snprintf(object, sizeof(object), "fd %d (%s)", w.found[i].num, s->name);
		ckpt_refuse(ps->run, &(struct ckpt_blocker){ .task = &ps->tasks[i]->pub,
							     .feature = s->word,
							     .object = object,
							     .reason = s->reason,
							     .hint = s->hint,
							     .no_loss = true });
	}
	free(w.found);
	return r || ps->run->result->n_blockers == before ? r : run_check_blockers(ps->run, err);
}

/* ---- outside of it ----------------------------------------------------------------------- */

/* Filesystems that somebody answers for who may not. */
static const char *const remote_types[] = { "fuse",   "nfs",	"nfs4", "cifs", "smb3",
					    "9p",     "ceph",	"afs",	"coda", "orangefs",
					    "lustre", "beegfs", "gfs2", "ocfs2" };

static bool is_remote(const char *type)
{
	/* fuseblk, fuse.sshfs: all by one protocol */
	if (!strncmp(type, "fuse", 4) && (!type[4] || type[4] == '.' || !strcmp(type, "fuseblk")))
		return true;
	for (size_t i = 1; i < CKPT_ARRAY_SIZE(remote_types); i++)
		if (!strcmp(type, remote_types[i]))
			return true;
	return false;
}

/* A file to be asked for. */
struct candidate {
	const struct ckpt_task *task;
	char path[80];	  /* of the link */
	const char *what; /* of the task */
	uint32_t mount;	  /* 0: not known */
	struct statx st;  /* the answer */
	int64_t result;
};

struct outside {
	struct proc_set *ps;
	struct mount_table *tables; /* ckpt's own and each of the tree's */
	char (*spaces)[64];	    /* which namespaces these are */
	size_t n_tables;
	struct candidate *list;
	size_t n;
};

static const struct ckpt_mount *mount_of(const struct outside *o, uint32_t id)
{
	for (size_t i = 0; id && i < o->n_tables; i++)
		for (size_t k = 0; k < o->tables[i].pub.n; k++)
			if (o->tables[i].list[k].id == id)
				return &o->tables[i].list[k];
	return NULL;
}

static const struct ckpt_mount *remote_device(const struct outside *o, unsigned major,
					      unsigned minor)
{
	for (size_t i = 0; i < o->n_tables; i++)
		for (size_t k = 0; k < o->tables[i].pub.n; k++) {
			const struct ckpt_mount *m = &o->tables[i].list[k];

			if (m->major == major && m->minor == minor && is_remote(m->type))
				return m;
		}
	return NULL;
}

/* Of the tables from that one on; the first is ckpt's own. */
static bool has_remote(const struct outside *o, size_t first)
{
	for (size_t i = first; i < o->n_tables; i++)
		for (size_t k = 0; k < o->tables[i].pub.n; k++)
			if (is_remote(o->tables[i].list[k].type))
				return true;
	return false;
}

/* One more table, of a namespace that was not seen yet. A task that ends meanwhile has none. */
static int add_table(struct outside *o, const struct ckpt_task *t, struct ckpt_error *err)
{
	struct ckpt_error ignored = { 0 };
	char space[64] = "";
	struct mount_table *tables;
	char(*spaces)[64];
	char *text = NULL;
	int r;

	if (ckpt_proc_link(t, "ns/mnt", space, sizeof(space), &ignored) < 0)
		return 0;
	for (size_t i = 0; i < o->n_tables; i++)
		if (!strcmp(o->spaces[i], space))
			return 0;
	if (ckpt_proc_read(t, "mountinfo", &text, &ignored) < 0)
		return 0;
	tables = reallocarray(o->tables, o->n_tables + 1, sizeof(*tables));
	if (tables)
		o->tables = tables;
	spaces = reallocarray(o->spaces, o->n_tables + 1, sizeof(*spaces));
	if (spaces)
		o->spaces = spaces;
	if (!tables || !spaces) {
		free(text);
		return fail_nomem(err);
	}
	memcpy(spaces[o->n_tables], space, sizeof(space));
	tables[o->n_tables] = (struct mount_table){ .root = -1 };
	/* which takes the text over */
	r = mount_table_parse(&tables[o->n_tables++], text);
	return r ? ckpt_fail_sys(err, r, "mountinfo of process %d", (int)t->pid) : 0;
}

static int read_tables(struct outside *o, struct ckpt_error *err)
{
	struct task_node self = { .pub.pid = getpid(), .ps = o->ps, .mem = -1 };
	CKPT_AUTO_FD int own = open("/proc/self", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r;

	if (own < 0)
		return ckpt_fail_sys(err, errno, "/proc/self");
	self.pub.procfd = own;
	r = add_table(o, &self.pub, err);
	for (size_t i = 0; !r && i < o->ps->n; i++)
		if (!o->ps->tasks[i]->pub.zombie)
			r = add_table(o, &o->ps->tasks[i]->pub, err);
	return r;
}

static struct candidate *add(struct outside *o, const struct ckpt_task *t, const char *what)
{
	if (!VEC_ROOM(o->list, o->n))
		return NULL;
	o->list[o->n] = (struct candidate){ .task = t, .what = what };
	return &o->list[o->n++];
}

/* Directories and the program: of those that are everybody's, once. */
static int add_places(struct outside *o, const struct ckpt_task *t, char last[3][LINK_SIZE],
		      struct ckpt_error *err)
{
	static const struct {
		const char *file, *what;
	} places[3] = { { "cwd", "working directory" },
			{ "root", "root directory" },
			{ "exe", "program" } };

	for (size_t i = 0; i < 3; i++) {
		struct ckpt_error ignored = { 0 };
		char link[LINK_SIZE];
		struct candidate *c;

		if (ckpt_proc_link(t, places[i].file, link, sizeof(link), &ignored) < 0 ||
		    !strcmp(link, last[i]))
			continue;
		memcpy(last[i], link, sizeof(link));
		c = add(o, t, places[i].what);
		if (!c)
			return fail_nomem(err);
		snprintf(c->path, sizeof(c->path), "/proc/%d/%s", (int)t->pid, places[i].file);
	}
	return 0;
}

static uint32_t mount_id(int dir, const char *num)
{
	CKPT_AUTO_FD int fd = -1;
	char path[300], text[1024], value[16];
	ssize_t n;

	snprintf(path, sizeof(path), "fdinfo/%s", num);
	fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
	n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
	text[n < 0 ? 0 : n] = '\0';
	return ckpt_proc_field(text, "mnt_id", value, sizeof(value))
		       ? 0
		       : (uint32_t)strtoul(value, NULL, 10);
}

static bool is_asked(const struct outside *o, uint32_t mount)
{
	for (size_t i = 0; i < o->n; i++)
		if (o->list[i].mount == mount)
			return true;
	return false;
}

/* Of each mount that is, or may be, another's to answer for one file that is open. */
static int add_files(struct outside *o, const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_DIR DIR *dir = open_fds(t);
	struct dirent *e;

	while (dir && (e = readdir(dir))) {
		const struct ckpt_mount *m;
		struct candidate *c;
		uint32_t id;
		char first;

		if (*e->d_name == '.' || readlinkat(dirfd(dir), e->d_name, &first, 1) != 1 ||
		    first != '/')
			continue;
		id = mount_id(t->procfd, e->d_name);
		m = mount_of(o, id);
		if (!id || (m && !is_remote(m->type)) || is_asked(o, id))
			continue;
		c = add(o, t, "open file");
		if (!c)
			return fail_nomem(err);
		c->mount = id;
		snprintf(c->path, sizeof(c->path), "/proc/%d/fd/%d", (int)t->pid, atoi(e->d_name));
	}
	return 0;
}

/* 7f0000000000-7f0000001000 r--p 00000000 00:2f 12 /mnt/file */
static int add_mapped(struct outside *o, const struct ckpt_task *t, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char *text = NULL;
	struct ckpt_error ignored = { 0 };
	uint32_t last = 0;
	char *save = NULL;

	if (ckpt_proc_read(t, "maps", &text, &ignored) < 0)
		return 0;
	for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		unsigned long start, end;
		unsigned major, minor;
		const struct ckpt_mount *m;
		struct candidate *c;

		if (sscanf(line, "%lx-%lx %*s %*x %x:%x", &start, &end, &major, &minor) != 4 ||
		    (!major && !minor) || !(m = remote_device(o, major, minor)) || m->id == last ||
		    is_asked(o, m->id))
			continue;
		c = add(o, t, "mapped file");
		if (!c)
			return fail_nomem(err);
		c->mount = last = m->id;
		snprintf(c->path, sizeof(c->path), "/proc/%d/map_files/%lx-%lx", (int)t->pid, start,
			 end);
	}
	return 0;
}

static int add_candidates(struct outside *o, struct ckpt_error *err)
{
	CKPT_AUTO_FREE char(*last)[LINK_SIZE] = calloc(3, LINK_SIZE);
	int r = last ? 0 : fail_nomem(err);

	for (size_t i = 0; !r && i < o->ps->n; i++) {
		const struct ckpt_task *t = &o->ps->tasks[i]->pub;

		if (t->zombie)
			continue;
		r = add_places(o, t, last, err);
		if (!r)
			r = add_files(o, t, err);
		if (!r)
			r = add_mapped(o, t, err);
	}
	return r;
}

/* ---- asking ------------------------------------------------------------------------------ */

struct asking {
	struct candidate *list;
	size_t n, at; /* how far it has come; in memory that both have */
	void *stack;
};

/* Nothing of ours stays open in one that is left behind. */
static SPAWN_CHILD void ask_all(void *arg)
{
	struct asking *a = arg;

	sys6(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0, 0);
	sys6(SYS_setsid, 0, 0, 0, 0, 0, 0);
	sys6(SYS_prctl, PR_SET_NAME, (int64_t)(uintptr_t) "ckpt-asks", 0, 0, 0, 0);
	sys6(SYS_close_range, 0, ~0U, 0, 0, 0, 0);
	for (size_t i = a->at; i < a->n; i++) {
		struct candidate *c = &a->list[i];

		/* not what is remembered of it: that would be an answer of nobody */
		c->result = sys6(SYS_statx, AT_FDCWD, (int64_t)(uintptr_t)c->path,
				 AT_STATX_FORCE_SYNC | AT_NO_AUTOMOUNT, STATX_BASIC_STATS,
				 (int64_t)(uintptr_t)&c->st, 0);
		__atomic_store_n(&a->at, i + 1, __ATOMIC_RELEASE);
	}
	for (;;)
		sys6(SYS_exit_group, 0, 0, 0, 0, 0, 0);
}

static bool ends_within(pid_t pid, unsigned ms, const struct ckpt *c, const size_t *at)
{
	struct timespec nap = { 0, 100000 };
	uint64_t since = now_us();
	size_t seen = __atomic_load_n(at, __ATOMIC_ACQUIRE);

	while (now_us() - since < ms * 1000ULL && !(c && c->cancelled)) {
		const size_t now = __atomic_load_n(at, __ATOMIC_ACQUIRE);
		pid_t r = waitpid(pid, NULL, __WALL | WNOHANG);

		if (r == pid || (r < 0 && errno != EINTR))
			return true;
		if (now != seen)
			since = now_us();
		seen = now;
		nanosleep(&nap, NULL);
		if (nap.tv_nsec < 5000000)
			nap.tv_nsec *= 2;
	}
	return false;
}

/* 1: it waits, for list[at]. Then what it works on is its own for good, unless it could be killed.
 */
static int ask(struct asking **asking, unsigned ms, const struct ckpt *ctx, struct ckpt_error *err)
{
	struct clone_args args = { .exit_signal = SIGCHLD };
	struct asking *a = *asking;
	pid_t pid = spawn(&args, a->stack, ask_all, a);

	if (pid < 0)
		return ckpt_fail_sys(err, pid, "clone3(2)");
	if (ends_within(pid, ms, ctx, &a->at))
		return 0;
	kill(pid, SIGKILL);
	if (!ends_within(pid, 50, NULL, &a->at))
		*asking = NULL;
	return 1;
}

static void asking_free(struct asking *a)
{
	if (!a)
		return;
	free(a->list);
	free(a->stack);
	free(a);
}

static struct asking *asking_new(const struct outside *o, size_t from, struct ckpt_error *err)
{
	struct asking *a = calloc(1, sizeof(*a));

	if (a) {
		a->list = calloc(o->n + 1, sizeof(*a->list));
		a->stack = malloc(SPAWN_STACK);
	}
	if (!a || !a->list || !a->stack) {
		asking_free(a);
		fail_nomem(err);
		return NULL;
	}
	memcpy(a->list, o->list, o->n * sizeof(*a->list));
	a->n = o->n;
	a->at = from;
	return a;
}

static void refuse_silent(const struct outside *o, const struct candidate *c, unsigned ms)
{
	const struct ckpt_mount *m = mount_of(o, c->mount);
	char link[LINK_SIZE], object[LINK_SIZE + 64], reason[LINK_SIZE];
	ssize_t n = readlink(c->path, link, sizeof(link) - 1);

	link[n < 0 ? 0 : n] = '\0';
	snprintf(object, sizeof(object), "%s %s", c->what, link);
	snprintf(reason, sizeof(reason),
		 "its filesystem%s%s%s%s%s has not answered for %u s, and the tree would stand "
		 "for as long",
		 m ? " (" : "", m ? m->type : "", m ? " at " : "", m ? m->point : "", m ? ")" : "",
		 ms / 1000);
	ckpt_refuse(o->ps->run,
		    &(struct ckpt_blocker){
			    .task = c->task,
			    .feature = "silent-server",
			    .object = object,
			    .reason = reason,
			    .hint = "see to its server or the network, or unmount it (umount -f)",
			    .no_loss = true });
}

/* Who waits is left behind, and another child goes on with the next. */
static int ask_outside(struct outside *o, struct ckpt_error *err)
{
	struct ckpt *ctx = o->ps->run->ctx;
	unsigned ms = FIRST_WAIT_MS, silent = 0;

	for (size_t i = 0; i < o->n && silent < MOST_SILENT; i++) {
		struct asking *a = asking_new(o, i, err), *left = a;
		int r = a ? ask(&left, ms, ctx, err) : -ENOMEM;
		const size_t at = a ? __atomic_load_n(&a->at, __ATOMIC_ACQUIRE) : i;

		if (r >= 0)
			for (; i < at; i++)
				o->list[i] = a->list[i];
		asking_free(left);
		if (r < 0)
			return r;
		if (ctx->cancelled)
			return ckpt_fail(err, ECANCELED, "interrupted");
		if (!r)
			break;
		if (i < o->n)
			refuse_silent(o, &o->list[i], ms);
		ms = NEXT_WAIT_MS;
		silent++;
	}
	return 0;
}

static void note_remote(struct outside *o)
{
	/* what is mounted in a namespace of the tree's is looked at whether it is open or not */
	o->ps->keep_all |= has_remote(o, 1);
	for (size_t i = 0; i < o->n; i++) {
		const struct candidate *c = &o->list[i];
		const struct ckpt_mount *m = mount_of(o, c->mount);

		o->ps->keep_all |=
			(m && is_remote(m->type)) ||
			(!c->result && remote_device(o, c->st.stx_dev_major, c->st.stx_dev_minor));
	}
}

static int servers_outside(struct proc_set *ps, struct ckpt_error *err)
{
	const size_t before = ps->run->result->n_blockers;
	struct outside o = { .ps = ps };
	int r = read_tables(&o, err);

	if (!r && has_remote(&o, 0)) {
		r = add_candidates(&o, err);
		if (!r)
			r = ask_outside(&o, err);
		note_remote(&o);
	}
	for (size_t i = 0; i < o.n_tables; i++) {
		free(o.tables[i].text);
		free(o.tables[i].list);
	}
	free(o.tables);
	free(o.spaces);
	free(o.list);
	return r || ps->run->result->n_blockers == before ? r : run_check_blockers(ps->run, err);
}

/* A list of its own, of a tree that runs. */
static int look_at(struct proc_set *ps, pid_t root, struct ckpt_error *err)
{
	struct ckpt_error ignored = { 0 };
	int r;

	if (proc_scan(ps, root, &ignored))
		return 0;
	r = proc_check_servers(ps, err);
	return r ? r : servers_outside(ps, err);
}

int proc_look_ahead(struct proc_set *ps, pid_t root, struct ckpt_error *err)
{
	struct ckpt_run *run = ps->run;
	struct proc_set *own = proc_new(run, err);
	const bool live = run->live;
	int r;

	if (!own)
		return -err->err;
	run->live = true;
	r = look_at(own, root, err);
	run->live = live;
	ps->keep_all = own->keep_all;
	proc_free(own);
	return r;
}
