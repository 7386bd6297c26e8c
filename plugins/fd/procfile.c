/* SPDX-License-Identifier: MIT */
/*
 * Files and directories of /proc, ckpt's own or a container's. Those of a task of the
 * tree are there again under the same path, since the task has the same number; what
 * they tell is the task's, so there is no content to save.
 */
#include "internal.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define FLAGS_OK (O_ACCMODE | O_APPEND | O_NONBLOCK | O_DIRECTORY | O_NOFOLLOW | O_PATH | 0100000)

bool fd_below_proc(const struct ckpt_fd_found *f)
{
	return (S_ISREG(f->st.st_mode) || S_ISDIR(f->st.st_mode)) &&
	       !strncmp(f->link, "/proc", 5) && (f->link[5] == '/' || !f->link[5]);
}

/*
 * Whose file is it? The number of the task, or 0 for nobody's; -EOPNOTSUPP where
 * the path leads to something that is not there yet when descriptors are opened.
 */
static int path_owner(const char *path, pid_t *pid)
{
	/* directories whose content is the whole process' */
	static const char *const whole[] = { "net/", "attr/" };
	char *rest, *end;
	long n;

	*pid = 0;
	if (path[5] != '/' || path[6] < '0' || path[6] > '9')
		return 0;
	n = strtol(path + 6, &rest, 10);
	if (n <= 0 || n > INT_MAX || (*rest && *rest != '/'))
		return -EOPNOTSUPP;
	*pid = (pid_t)n;
	if (!strncmp(rest, "/task/", 6)) {
		/* of its threads, only the first is there early enough */
		if (strtol(rest + 6, &end, 10) != n || (*end && *end != '/'))
			return -EOPNOTSUPP;
		rest = end;
	}
	rest += *rest == '/';
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(whole); i++)
		if (!strncmp(rest, whole[i], strlen(whole[i])))
			return 0;
	return strchr(rest, '/') ? -EOPNOTSUPP : 0;
}

/* ---- tasks, by their number in a container's proc ------------------------------------ */

struct entry {
	char numbers[256]; /* from the pid namespace of that proc on */
	char ns[64];	   /* the innermost one */
};

static int read_entry(int dir, struct entry *e)
{
	CKPT_AUTO_FILE FILE *status = ckpt_open_lines(dir, "status");
	CKPT_AUTO_FREE char *line = NULL;
	size_t size = 0;
	ssize_t link = readlinkat(dir, "ns/pid", e->ns, sizeof(e->ns) - 1);

	if (!status || link < 0)
		return -ESRCH;
	e->ns[link] = 0;
	/* it comes after all groups of the process */
	while (getline(&line, &size, status) > 0)
		if (!ckpt_proc_field(line, "NStgid", e->numbers, sizeof(e->numbers)))
			return 0;
	return -ENOENT;
}

/* Ours begin at ckpt's pid namespace: the others are an end of them. */
static bool ends_with(const char *text, const char *end)
{
	size_t len = strlen(text), n = strlen(end);

	return len >= n && !strcmp(text + len - n, end) &&
	       (len == n || text[len - n - 1] == '\t' || text[len - n - 1] == ' ');
}

/* NULL: none of the tree. */
static const struct ckpt_task *task_of(struct ckpt_run *run, uint32_t mnt, pid_t pid)
{
	struct ckpt_error ignored = { 0 };
	CKPT_AUTO_FD int dir = -1;
	struct entry wanted, e;
	char path[32];

	if (!mnt)
		return ckpt_task_by_pid(run, pid);
	snprintf(path, sizeof(path), "/proc/%d", pid);
	dir = ckpt_open_in(run, mnt, path, O_PATH | O_DIRECTORY, 0, &ignored);
	if (dir < 0 || read_entry(dir, &wanted) < 0)
		return NULL;
	for (size_t i = 0; i < ckpt_task_count(run); i++) {
		const struct ckpt_task *t = ckpt_task_at(run, i);

		if (read_entry(t->procfd, &e) == 0 && !strcmp(e.ns, wanted.ns) &&
		    ends_with(e.numbers, wanted.numbers))
			return t;
	}
	return NULL;
}

/* ---- dump ------------------------------------------------------------------------------ */

/*
 * What these tell, or take, depends on the credentials of who opened them: kallsyms_show_value(),
 * file_ns_capable() of the kernel. Who opens them again is ckpt.
 */
static bool asks_opener(const char *path)
{
	static const char *const names[] = { "pagemap", "kallsyms", "modules", "iomem",
					     "ioports", "uid_map",  "gid_map", "projid_map" };
	const char *last = strrchr(path, '/') + 1;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(names); i++)
		if (!strcmp(last, names[i]))
			return true;
	return false;
}

static int survey_opener(struct ckpt_run *run, const struct ckpt_fd_found *f,
			 struct ckpt_error *err)
{
	int r = f->flags & O_PATH || !asks_opener(f->link) ? 1 : fd_holder_is_root(run, f, err);

	if (r)
		return r < 0 ? r : 0;
	return fd_refuse(run, f, "special-filesystem",
			 "it tells a privileged opener more, and ckpt would be the opener",
			 "let the program close it before the dump, or allow the loss");
}

static bool proc_match(const struct ckpt_fd_found *f)
{
	return fd_below_proc(f);
}

static int proc_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	static const char hint[] = "let the program close it before the dump, or allow the loss";
	struct stat root;
	struct statfs fs;
	int mnt = ckpt_mnt_of_fd(run, f->fd, err);
	const struct ckpt_task *task;
	char reason[128];
	pid_t pid;
	int r;

	if (mnt < 0)
		return mnt == -ENOENT ? fd_place_survey(run, f, err) : mnt;
	if (f->flags & ~FLAGS_OK)
		return fd_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				 "allow the loss");
	/* O_PATH, unlike others, may be what remains of a filesystem that hangs */
	if (fstatfs(f->fd, &fs) || stat("/proc", &root))
		return ckpt_fail_sys(err, errno, "statfs(2) below /proc");
	if (fs.f_type != PROC_SUPER_MAGIC || (!mnt && root.st_dev != f->st.st_dev))
		return fd_refuse(run, f, "special-filesystem",
				 "it is on another filesystem than ckpt's /proc", hint);
	if (path_owner(f->link, &pid))
		return fd_refuse(run, f, "special-filesystem",
				 "files of threads and descriptors in /proc are not saved yet",
				 hint);
	task = pid ? task_of(run, (uint32_t)mnt, pid) : NULL;
	if (pid && !task) {
		snprintf(reason, sizeof(reason),
			 "it belongs to process %d outside the tree, or to "
			 "one that is gone",
			 pid);
		return fd_refuse(run, f, "special-filesystem", reason, hint);
	}
	r = survey_opener(run, f, err);
	if (r == 0)
		r = fd_procmem_survey(run, f, task, err);
	return r ? r : fd_place_survey(run, f, err);
}

static int proc_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	Ckpt__Fd__Proc rec = CKPT__FD__PROC__INIT;
	const struct ckpt_task *task;
	pid_t pid;
	int r = fd_place_mnt(run, f, &rec.mnt, err);

	if (r < 0)
		return r;
	if (path_owner(f->link, &pid))
		return ckpt_fail(err, EPROTO, "%s cannot be saved", f->link);
	task = pid ? task_of(run, rec.mnt, pid) : NULL;
	if (pid && !task)
		return ckpt_fail(err, ESRCH, "process %d is not in the tree", pid);
	rec.id = f->file;
	rec.path.data = (uint8_t *)(uintptr_t)f->link;
	rec.path.len = strlen(f->link);
	rec.type = f->st.st_mode & S_IFMT;
	rec.task = task ? task->id : 0;
	return ckpt_record_put(run, FD_PROC, &rec.base, err);
}

static int proc_plan(struct ckpt_run *run, uint32_t id, struct ckpt_error *err)
{
	const Ckpt__Fd__Proc *rec = ckpt_record_need(run, "fd.proc", id, err);
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	char buf[PATH_MAX];
	const char *path;
	struct stat st;
	pid_t pid;
	int r;

	if (!rec || !file)
		return -EBADMSG;
	path = fd_image_path(&rec->path, buf, sizeof(buf));
	if (!path || strncmp(path, "/proc", 5) != 0 || (path[5] && path[5] != '/') ||
	    strstr(path, "/..") || path_owner(path, &pid) || !pid != !rec->task ||
	    (rec->task && !fd_task_known(run, rec->task)) || !fd_mnt_known(run, rec->mnt) ||
	    (rec->type != S_IFREG && rec->type != S_IFDIR) || file->flags & ~(uint32_t)FLAGS_OK ||
	    file->pos < 0)
		return ckpt_fail_image(err, "open file %u is not a valid file of /proc", id);
	/* another proc has the machine's settings as well */
	if (!pid && fd_copies_check(run, 0, path, file))
		return 0;
	r = pid || rec->mnt ? 0 : ckpt_stat_in(run, 0, path, true, &st);
	return r < 0 ? fd_missing(run, path, r, "restore on a kernel that has it") : 0;
}

static int proc_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Fd__Proc *rec = ckpt_record_need(run, "fd.proc", slot->file, err);
	char buf[PATH_MAX];
	const char *path = rec ? fd_image_path(&rec->path, buf, sizeof(buf)) : NULL;
	const struct ckpt_task *task = rec ? ckpt_task_by_id(run, rec->task) : NULL;
	CKPT_AUTO_FD int fd = -1;
	struct stat st;
	pid_t pid;

	if (!path || path_owner(path, &pid) ||
	    (pid && (!task || task_of(run, rec->mnt, pid) != task)))
		return ckpt_fail_image(err, "open file %u has no valid path", slot->file);
	fd = ckpt_open_in(run, rec->mnt, path, slot->flags & FLAGS_OK, 0, err);
	if (fd < 0)
		return ckpt_wrap(err, "flags %#o", slot->flags);
	if (fstat(fd, &st) || (st.st_mode & S_IFMT) != rec->type)
		return ckpt_fail(err, EIO, "%s is no longer what it was", path);
	return ckpt_steal_fd(&fd);
}

/* The kernel reads up to a position to find it: the task must be what it is to be. */
static int proc_finish(struct ckpt_run *run, uint32_t id, struct ckpt_task *holder, int num,
		       struct ckpt_error *err)
{
	const Ckpt__Fd__File *file = ckpt_record_need(run, "fd.file", id, err);
	CKPT_AUTO_SCRIPT struct ckpt_script *s = NULL;

	if (!file)
		return -EBADMSG;
	if (!file->pos)
		return 0;
	s = ckpt_script_new(run, "fd.proc");
	ckpt_script_add(s, SYS_lseek, CKPT_C(num), CKPT_C(file->pos), CKPT_C(SEEK_SET));
	return ckpt_script_run(s, holder->threads[0], err);
}

const struct ckpt_fd_kind fd_kind_proc = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = proc_match,
	.survey = proc_survey,
	.collect = proc_collect,
	.plan = proc_plan,
	.open = proc_open,
	.finish = proc_finish,
	.own_flags = true,
	.own_pos = true,
	.o_path = true,
};
