/* SPDX-License-Identifier: MIT */
/* dump: both ends of pseudo terminals as descriptors. */
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/sysmacros.h>

#include "tty.h"

#define FLAGS_OK (O_ACCMODE | O_APPEND | O_NONBLOCK | O_NOFOLLOW | 0100000)

#define EXTERNAL_HINT                                                                            \
	"dump a tree that includes that process, give --shell-job if the tree is a job of your " \
	"shell, or start the program with this descriptor redirected"

static bool is_master(const struct ckpt_fd_found *f)
{
	return major(f->st.st_rdev) == TTY_MAJOR_AUX;
}

static bool pty_match(const struct ckpt_fd_found *f)
{
	unsigned maj = major(f->st.st_rdev), min = minor(f->st.st_rdev);

	return S_ISCHR(f->st.st_mode) &&
	       (maj == TTY_MAJOR_PTS || (maj == TTY_MAJOR_AUX && min == TTY_MINOR_PTMX));
}

/* The master is closed: every call but close(2) fails. */
static bool is_hung_up(const struct ckpt_fd_found *f)
{
	struct winsize w;

	return !is_master(f) && ioctl(f->fd, TIOCGWINSZ, &w) && errno == EIO;
}

static int survey_holders(struct ckpt_run *run, const struct tty_state *st,
			  const struct ckpt_fd_found *f, uint32_t pty)
{
	char who[96], reason[192];

	for (int master = 1; master >= 0; master--) {
		const struct tty_holder *h = tty_holder(st, pty, master, true);

		if (!h)
			continue;
		tty_holder_name(h, who, sizeof(who));
		snprintf(reason, sizeof(reason),
			 "this terminal leaves the tree: %s has its %s open", who,
			 master ? "master" : "slave");
		return tty_refuse(run, f, "external", reason, EXTERNAL_HINT);
	}
	if (!tty_holder(st, pty, true, false) && !is_hung_up(f))
		return tty_refuse(
			run, f, "external",
			"this terminal leaves the tree: its master is open, but not in any "
			"process that can be seen",
			"start the program with this descriptor redirected");
	return 0;
}

/* A duplicate of the tree's descriptor of that side; -ENOENT: nobody has it. */
static int get_end(const struct tty_state *st, uint32_t pty, bool master, struct ckpt_error *err)
{
	const struct tty_holder *h = tty_holder(st, pty, master, false);

	return h ? ckpt_get_fd(h->task, h->num, err) : -ENOENT;
}

/*
 * The slave may be open as /dev/tty alone, by members of its session. Then one description
 * more changes nothing; where it is closed, or was never opened, one would.
 */
static int get_slave(struct ckpt_run *run, const struct tty_state *st, uint32_t pty, int master,
		     struct ckpt_error *err)
{
	int fd = get_end(st, pty, false, err), locked = 1;
	struct pollfd hup = { .fd = master };

	if (fd != -ENOENT || master < 0 || !tty_leader(run, st, pty) ||
	    (poll(&hup, 1, 0) > 0 && hup.revents & POLLHUP) || ioctl(master, TIOCGPTLCK, &locked) ||
	    locked)
		return fd;
	fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? -ENOENT : fd;
}

struct modes {
	int locked, packet, exclusive;
};

static void read_modes(int master, int slave, struct modes *m)
{
	*m = (struct modes){ 0 };
	/* a kernel that does not tell has not had it set either */
	if (ioctl(master, TIOCGPTLCK, &m->locked))
		m->locked = 0;
	if (ioctl(master, TIOCGPKT, &m->packet))
		m->packet = 0;
	if (slave < 0 || ioctl(slave, TIOCGEXCL, &m->exclusive))
		m->exclusive = 0;
}

/* The features that this pair needs. */
static int survey_features(struct ckpt_run *run, const struct ckpt_fd_found *f, int slave,
			   struct ckpt_error *err)
{
	struct tty_setting now, fresh;
	struct modes m;
	int r = tty_setting_read(f->fd, &now);

	if (r)
		return ckpt_fail_sys(err, r, "TCGETS2");
	r = tty_setting_default(&fresh, err);
	read_modes(f->fd, slave, &m);
	if (!r && !tty_termios_equal(&now.termios, &fresh.termios))
		r = tty_need(run, f, "termios");
	if (!r && !tty_winsize_equal(&now.winsize, &fresh.winsize))
		r = tty_need(run, f, "winsize");
	if (!r && m.locked)
		r = tty_need(run, f, "lock");
	if (!r && m.packet)
		r = tty_need(run, f, "packet");
	if (!r && m.exclusive)
		r = tty_need(run, f, "exclusive");
	return r;
}

static int survey_master(struct ckpt_run *run, const struct tty_state *st,
			 const struct ckpt_fd_found *f, uint32_t pty, struct ckpt_error *err)
{
	CKPT_AUTO_FD int slave = get_slave(run, st, pty, f->fd, err);
	int line = 0, r;

	if (slave < 0 && slave != -ENOENT && !ckpt_is_live(run))
		return slave;
	if ((f->flags & O_ACCMODE) != O_RDWR)
		return tty_refuse(run, f, "open-flags", "the master is not open for both ways",
				  "allow the loss");
	if (ioctl(f->fd, TIOCGETD, &line) || line ||
	    (slave >= 0 && (ioctl(slave, TIOCGETD, &line) || line)))
		return tty_refuse(run, f, "line-discipline",
				  "it has another line discipline than N_TTY", "allow the loss");
	if (tty_termios_locked(f->fd))
		return tty_refuse(run, f, "locked-termios", "settings are locked (TIOCSLCKTRMIOS)",
				  "unlock them");
	r = tty_waiting_survey(run, f, slave);
	return r ? r : survey_features(run, f, slave, err);
}

static bool is_here(const struct ckpt_fd_found *f, const struct tty_state *st)
{
	return is_master(f) ? !strcmp(f->link, "/dev/ptmx") || !strcmp(f->link, TTY_PTS_DIR "/ptmx")
			    : f->st.st_dev == st->pts[0];
}

static int pty_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	uint32_t pty = TTY_PTY_NONE;
	int r = tty_scan(run, st, err);

	if (!r)
		r = tty_of_fd(st, f, &pty, err);
	if (r)
		return r;
	if (pty == TTY_PTY_NONE || (!TTY_DEVPTS(pty) && !is_here(f, st)))
		return tty_refuse(run, f, "devpts", "it is not of the devpts on " TTY_PTS_DIR,
				  "run ckpt where that devpts is on " TTY_PTS_DIR);
	if (f->flags & ~FLAGS_OK)
		return tty_refuse(run, f, "open-flags", "it was opened with flags unknown to ckpt",
				  "allow the loss");
	if (TTY_DEVPTS(pty))
		r = tty_contained_survey(run, f, is_master(f), is_hung_up(f), err);
	else if (!is_master(f) && tty_is_outer(run, st, TTY_MAJOR_PTS, pty))
		return 0;
	if (!r)
		r = survey_holders(run, st, f, pty);
	if (r || !is_master(f))
		return r;
	return survey_master(run, st, f, pty, err);
}

/* ---- collect -------------------------------------------------------------------- */

struct family {
	uint32_t session, foreground;
	uint32_t *detached;
	size_t n_detached;
};

static int read_family(struct ckpt_run *run, const struct tty_state *st, uint32_t pty,
		       struct family *fam, struct ckpt_error *err)
{
	const struct ckpt_task *leader = tty_leader(run, st, pty), *t;
	const struct tty_member *l;

	if (!leader || !ckpt_feature_on(run, "controlling"))
		return 0;
	fam->detached = calloc(st->n_members, sizeof(*fam->detached));
	if (!fam->detached)
		return ckpt_fail(err, ENOMEM, "out of memory");
	fam->session = leader->id;
	l = tty_member(run, st, leader);
	t = tty_foreground(run, st, leader);
	if (t && l->foreground != l->group && ckpt_feature_on(run, "foreground"))
		fam->foreground = t->id;
	for (size_t i = 0; i < st->n_members; i++) {
		t = ckpt_task_at(run, i);
		if (!t->zombie && st->members[i].session == l->session && !st->members[i].has)
			fam->detached[fam->n_detached++] = t->id;
	}
	return 0;
}

static int put_pair(struct ckpt_run *run, const struct tty_state *st, uint32_t pty,
		    Ckpt__Tty__Pty *rec, struct ckpt_error *err)
{
	CKPT_AUTO_FD int master = get_end(st, pty, true, err);
	CKPT_AUTO_FD int slave = get_slave(run, st, pty, master, err);
	struct pollfd hup = { .fd = master };
	struct family fam = { 0 };
	struct tty_setting s;
	struct modes m;
	int r;

	if (master < 0)
		return ckpt_fail(err, ENOENT, "the master of pty %u is gone", rec->id);
	if (TTY_DEVPTS(pty) && tty_mount_of_fd(run, master))
		rec->mount = tty_mount_of_fd(run, master)->id;
	r = tty_setting_read(master, &s);
	if (r)
		return ckpt_fail_sys(err, r, "TCGETS2");
	rec->termios = ckpt_feature_on(run, "termios") ? &s.termios : NULL;
	rec->winsize = ckpt_feature_on(run, "winsize") ? &s.winsize : NULL;
	read_modes(master, slave, &m);
	rec->locked = m.locked && ckpt_feature_on(run, "lock");
	rec->packet = m.packet && ckpt_feature_on(run, "packet");
	rec->exclusive = m.exclusive && ckpt_feature_on(run, "exclusive");
	rec->slave_closed = slave < 0 && poll(&hup, 1, 0) > 0 && hup.revents & POLLHUP;
	r = tty_waiting_collect(run, master, slave, rec, err);
	if (!r)
		r = read_family(run, st, pty, &fam, err);
	rec->session = fam.session;
	rec->foreground = fam.foreground;
	rec->detached = fam.detached;
	rec->n_detached = fam.n_detached;
	if (!r)
		r = ckpt_record_put(run, TTY_REC_PTY, &rec->base, err);
	free(fam.detached);
	tty_waiting_free(rec);
	return r;
}

static int stat_node(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Tty__Pty *rec,
		     struct stat *node, struct ckpt_error *err)
{
	char name[16];
	int dir;

	/* the node goes with the master; its inode is still there */
	if (rec->hung_up) {
		*node = f->st;
		return 0;
	}
	dir = tty_directory(run, rec->id, err);
	if (dir < 0)
		return dir;
	snprintf(name, sizeof(name), "%u", TTY_NUMBER(rec->id));
	return fstatat(dir, name, node, 0) ? ckpt_fail_sys(err, errno, "its node") : 0;
}

int tty_put_pty(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t pty, bool hung_up,
		uint32_t *id, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	Ckpt__Tty__Pty rec = CKPT__TTY__PTY__INIT;
	struct stat node;
	uint32_t *more;
	int r = tty_record_id(run, st, pty, id, err);

	if (r)
		return r;
	for (size_t i = 0; i < st->n_put; i++)
		if (st->put[i] == pty)
			return 0;
	more = realloc(st->put, (st->n_put + 1) * sizeof(*more));
	if (!more)
		return ckpt_fail(err, ENOMEM, "out of memory");
	st->put = more;
	st->put[st->n_put++] = pty;
	rec.id = *id;
	rec.hung_up = hung_up;
	if (hung_up && TTY_DEVPTS(rec.id))
		rec.mount = tty_mount_of(run, TTY_DEVPTS(rec.id))->id;
	r = stat_node(run, f, &rec, &node, err);
	if (r)
		return r;
	rec.uid = node.st_uid;
	rec.gid = node.st_gid;
	rec.mode = node.st_mode & 07777;
	return hung_up ? ckpt_record_put(run, TTY_REC_PTY, &rec.base, err)
		       : put_pair(run, st, pty, &rec, err);
}

/* Of a devpts of the tree's own a slave is opened again by its path; a deleted one has it for a
 * moment. */
static int put_place(struct ckpt_run *run, const struct ckpt_fd_found *f, Ckpt__Tty__End *rec,
		     struct ckpt_error *err)
{
	static const char mark[] = " (deleted)";
	size_t len = strlen(f->link);
	int mnt = ckpt_mnt_of_fd(run, f->fd, err);

	if (mnt < 0)
		return mnt == -ENOENT ? ckpt_fail(err, ENOENT, "%s", f->link) : mnt;
	if (len >= sizeof(mark) && !strcmp(f->link + len - (sizeof(mark) - 1), mark))
		len -= sizeof(mark) - 1;
	rec->mnt = (uint32_t)mnt;
	rec->path = (ProtobufCBinaryData){ len, (uint8_t *)(uintptr_t)f->link };
	return 0;
}

static int pty_collect(struct ckpt_run *run, const struct ckpt_fd_found *f, struct ckpt_error *err)
{
	struct tty_state *st = tty_state(run);
	Ckpt__Tty__End rec = CKPT__TTY__END__INIT;
	uint32_t pty = TTY_PTY_NONE;
	int r = tty_scan(run, st, err);

	if (!r)
		r = tty_of_fd(st, f, &pty, err);
	if (r || pty == TTY_PTY_NONE)
		return r ? r : ckpt_fail(err, ENODEV, "TIOCGPTN");
	rec.id = f->file;
	if (!is_master(f) && !TTY_DEVPTS(pty) && tty_is_outer(run, st, TTY_MAJOR_PTS, pty)) {
		rec.outer = true;
		return ckpt_record_put(run, TTY_REC_END, &rec.base, err);
	}
	rec.master = is_master(f);
	r = tty_put_pty(run, f, pty, is_hung_up(f), &rec.pty, err);
	if (!r && TTY_DEVPTS(pty) && !rec.master)
		r = put_place(run, f, &rec, err);
	return r ? r : ckpt_record_put(run, TTY_REC_END, &rec.base, err);
}

/* ---- restore ---------------------------------------------------------------------- */

static int pty_plan(struct ckpt_run *run, uint32_t file, struct ckpt_error *err)
{
	const Ckpt__Tty__End *rec = tty_end(run, file);
	const struct ckpt_ns *ns = rec && rec->mnt ? ckpt_ns_by_id(run, rec->mnt) : NULL;

	if (!rec || (rec->outer ? rec->master || !tty_outer(run) : !tty_pty(run, rec->pty)))
		return ckpt_fail_image(err, "open file %u is not a valid terminal", file);
	if (!TTY_DEVPTS(rec->pty) || rec->master)
		return 0;
	if (!ns || ns->type != CKPT_NS_MNT || !rec->path.len || rec->path.len >= PATH_MAX ||
	    rec->path.data[0] != '/' || memchr(rec->path.data, 0, rec->path.len))
		return ckpt_fail_image(err, "open file %u has no valid path", file);
	return 0;
}

static int open_slave(struct ckpt_run *run, const Ckpt__Tty__End *rec, const struct tty_pair *pair,
		      int flags, struct ckpt_error *err)
{
	char path[PATH_MAX];
	int fd;

	if (TTY_DEVPTS(rec->pty)) {
		snprintf(path, sizeof(path), "%.*s", (int)rec->path.len, (char *)rec->path.data);
		return ckpt_open_in(run, rec->mnt, path, flags | O_NOCTTY, 0, err);
	}
	fd = ioctl(pair->master, TIOCGPTPEER, flags | O_NOCTTY);
	/* that call leaves O_CLOEXEC among the description's flags, where fdinfo shows it */
	if (fd >= 0 && fcntl(fd, F_SETFD, FD_CLOEXEC))
		close(ckpt_steal_fd(&fd));
	return fd < 0 ? ckpt_fail_sys(err, errno, "TIOCGPTPEER") : fd;
}

static int pty_open(struct ckpt_run *run, const struct ckpt_fd_slot *slot, struct ckpt_error *err)
{
	const Ckpt__Tty__End *rec = tty_end(run, slot->file);
	const struct tty_pair *pair = rec ? tty_pair(run, rec->pty) : NULL;
	struct stat st;
	int fd;

	if (rec && rec->outer)
		return tty_outer_open(slot->flags & FLAGS_OK, err);
	if (!pair)
		return ckpt_fail_image(err, "open file %u has no terminal", slot->file);
	if (rec->master) {
		fd = fcntl(pair->master, F_DUPFD_CLOEXEC, 0);
		return fd < 0 ? ckpt_fail_sys(err, errno, "fcntl(2)") : fd;
	}
	fd = open_slave(run, rec, pair, slot->flags & FLAGS_OK, err);
	if (fd >= 0 &&
	    (fstat(fd, &st) || st.st_rdev != makedev(TTY_MAJOR_PTS, TTY_NUMBER(rec->pty)))) {
		close(fd);
		return ckpt_fail(err, ENODEV, "pty %u is not what is there", TTY_NUMBER(rec->pty));
	}
	return fd;
}

const struct ckpt_fd_kind tty_kind_pty = {
	.size = sizeof(struct ckpt_fd_kind),
	.match = pty_match,
	.survey = pty_survey,
	.collect = pty_collect,
	.plan = pty_plan,
	.open = pty_open,
	.own_pos = true,
};
