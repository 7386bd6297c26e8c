/* SPDX-License-Identifier: MIT */
/* Inside the plugin tty. */
#ifndef PLUGIN_TTY_H
#define PLUGIN_TTY_H

#include <sys/types.h>

#include <ckpt/fd.h>
#include <ckpt/mnt.h>
#include <ckpt/pid.h>
#include <ckpt/plugin.h>

#include "tty.pb-c.h"

enum { TTY_REC_PTY = 1, TTY_REC_END, TTY_REC_CURRENT, TTY_REC_OUTER };

#define TTY_PTS_DIR "/dev/pts"
/* The kernel's limit of /proc/sys/kernel/pty/max is NR_UNIX98_PTY_MAX. */
#define TTY_PTY_BITS  20
#define TTY_PTY_LIMIT (1U << TTY_PTY_BITS)
#define TTY_PTY_NONE  UINT32_MAX
/* Each is known by its number and the devpts that it is of, as in the image or of this run. */
#define TTY_NUMBER(pty) ((pty) & (TTY_PTY_LIMIT - 1))
#define TTY_DEVPTS(pty) ((pty) >> TTY_PTY_BITS)
#define TTY_CC_SIZE	19

#define TTY_MAJOR_PTS  136
#define TTY_MAJOR_AUX  5
#define TTY_MINOR_PTMX 2
#define TTY_MINOR_TTY  0

/* ---- what was found (scan.c) ------------------------------------------------ */

/* One descriptor of a pseudo terminal, of any process of the machine. */
struct tty_holder {
	uint32_t pty;
	bool master;
	pid_t session; /* of a master in the tree: whom it controls; 0: nobody */
	pid_t pid;
	int num;
	const struct ckpt_task *task; /* NULL: outside the tree */
};

/* How a task stands to its terminal; one for each task, in the run's order. */
struct tty_member {
	pid_t group, session, foreground;
	bool has;
	uint32_t major, minor;
};

/* A pair being made. */
struct tty_pair {
	const Ckpt__Tty__Pty *rec;
	int master, slave;
};

struct tty_setting {
	Ckpt__Tty__Termios termios;
	Ckpt__Tty__Winsize winsize;
	uint8_t cc[TTY_CC_SIZE];
};

struct tty_state {
	bool known;
	dev_t *pts; /* devpts filesystems, by TTY_DEVPTS; [0] is that of /dev/pts */
	size_t n_pts;
	int here; /* O_PATH of /dev/pts; -1 */
	struct tty_holder *holders;
	size_t n_holders, cap_holders;
	struct tty_member *members;
	size_t n_members;
	uint32_t *put; /* ptys whose record is there */
	size_t n_put;
	/* restore */
	struct tty_pair *pairs;
	size_t n_pairs;
	int outer;	 /* the terminal that ckpt is started from; -1 if there is none */
	pid_t displaced; /* the group that had it in the foreground before us; 0: it has it still */
	bool changed;	 /* its settings; they were: */
	struct tty_setting was;
};

/* The state of this run, made on first use; NULL: out of memory. */
struct tty_state *tty_state(struct ckpt_run *run);
void tty_state_free(void *state);
/* Who has which terminal: read once a run. */
int tty_scan(struct ckpt_run *run, struct tty_state *st, struct ckpt_error *err);
/* Which one is this, a descriptor of the tree? TTY_PTY_NONE: none. */
int tty_of_fd(struct tty_state *st, const struct ckpt_fd_found *f, uint32_t *pty,
	      struct ckpt_error *err);
/* The one that controls that session; TTY_PTY_NONE: none of the tree. */
uint32_t tty_of_session(const struct tty_state *st, pid_t session);
/* The first holder of a side, in or outside the tree, or NULL. */
const struct tty_holder *tty_holder(const struct tty_state *st, uint32_t pty, bool master,
				    bool outside);
/* "process 12 (sh) as fd 3" */
void tty_holder_name(const struct tty_holder *h, char *buf, size_t size);
/* The task that leads the session that this pty controls, or NULL. */
const struct ckpt_task *tty_leader(struct ckpt_run *run, const struct tty_state *st, uint32_t pty);
const struct tty_member *tty_member(struct ckpt_run *run, const struct tty_state *st,
				    const struct ckpt_task *t);
/* A task of the foreground group of that leader's terminal, or NULL: the group is empty. */
const struct ckpt_task *tty_foreground(struct ckpt_run *run, const struct tty_state *st,
				       const struct ckpt_task *leader);

/* ---- in a devpts of the tree's own (contained.c) -------------------------------- */

/* dump: refuse what cannot be found again there. 0: it can. */
int tty_contained_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, bool master,
			 bool hung_up, struct ckpt_error *err);
/* The step: what is known when all mounts are looked at. */
int tty_survey(struct ckpt_run *run, struct ckpt_error *err);
/* Its id in the image. */
int tty_record_id(struct ckpt_run *run, const struct tty_state *st, uint32_t pty, uint32_t *id,
		  struct ckpt_error *err);
/* The mount that this descriptor of the engine is open through, and any whole one. */
const struct ckpt_mount_saved *tty_mount_of_fd(struct ckpt_run *run, int fd);
const struct ckpt_mount_saved *tty_mount_of(struct ckpt_run *run, uint32_t fs);
/* Where the nodes are. */
int tty_directory(struct ckpt_run *run, uint32_t id, struct ckpt_error *err);
int tty_contained_plan(struct ckpt_run *run, const Ckpt__Tty__Pty *rec, struct ckpt_error *err);
/* A new pair, its master opened through that mount. */
int tty_open_master(struct ckpt_run *run, uint32_t id, uint32_t mount, struct ckpt_error *err);

/* ---- the terminal that ckpt is started from (outer.c) --------------------------- */

/* dump: is it that one, and has the user said that the tree is a job there? */
bool tty_is_outer(struct ckpt_run *run, const struct tty_state *st, uint32_t major, uint32_t minor);
int tty_collect(struct ckpt_run *run, struct ckpt_error *err);
const Ckpt__Tty__Outer *tty_outer(struct ckpt_run *run);
int tty_outer_plan(struct ckpt_run *run, struct ckpt_error *err);
/* The controlling terminal of ckpt itself, by its own name. */
int tty_outer_open(int flags, struct ckpt_error *err);
int tty_outer_settle(struct ckpt_run *run, struct ckpt_error *err);
void tty_outer_undo(struct ckpt_run *run);

/* The n-th number of a "Key: 1 2 3" line of a task's status, or the count of them for n < 0. */
int tty_status_number(const struct ckpt_task *t, const char *key, int n, struct ckpt_error *err);
/* One ioctl(2) on a terminal of the engine's, called in that task. */
int tty_call_in(struct ckpt_run *run, int terminal, uint32_t task, unsigned long request,
		struct ckpt_arg arg, struct ckpt_error *err);
/* Is there such a task in the image, in that session? */
bool tty_in_session(struct ckpt_run *run, uint32_t task, uint32_t session);
int tty_termios_check(const Ckpt__Tty__Termios *t, struct ckpt_error *err);

/* ---- what a terminal is set to (setting.c) ------------------------------------ */

int tty_setting_read(int fd, struct tty_setting *s);
/* Of a new pair. */
int tty_setting_default(struct tty_setting *s, struct ckpt_error *err);
bool tty_termios_equal(const Ckpt__Tty__Termios *a, const Ckpt__Tty__Termios *b);
bool tty_winsize_equal(const Ckpt__Tty__Winsize *a, const Ckpt__Tty__Winsize *b);
int tty_setting_apply(int fd, const Ckpt__Tty__Termios *termios, const Ckpt__Tty__Winsize *winsize,
		      struct ckpt_error *err);
/* Are there locked bits (TIOCSLCKTRMIOS)? */
bool tty_termios_locked(int fd);

/* ---- what waits to be read (queue.c, waiting.c) --------------------------------- */

/* What each end's buffer holds (the kernel's N_TTY_BUF_SIZE, less one), and with what is before it.
 */
#define TTY_BUFFER     4095
#define TTY_INPUT_MAX  4096
#define TTY_OUTPUT_MAX 32768

/* in the image */
enum tty_stop { TTY_GOES_ON, TTY_STOPPED_BY_CALL, TTY_STOPPED_BY_KEY };

struct tty_waiting {
	bool canonical;
	enum tty_stop stopped; /* output: TCOOFF, or Ctrl-S */
	uint32_t n_output, n_input, n_lines;
	struct {
		uint16_t len;
		bool eof;		/* ended by that key, not by a byte that is read */
	} lines[TTY_INPUT_MAX];		/* of the input; what is left is a line that was begun */
	uint8_t input[TTY_INPUT_MAX];	/* for the slave */
	uint8_t output[TTY_OUTPUT_MAX]; /* for the master */
};

/* The slave is a description of our own that does not block, or -1. 0 or a negative errno. */
int tty_take(int master, int slave, struct tty_waiting *w);
/* `stands`: its output is stopped as tty_take() has found it. */
int tty_put(int master, int slave, const struct tty_waiting *w, bool stands);
bool tty_writable(int slave);

/* dump: refuse what is out of reach. `slave` is any descriptor of it, or -1. 0: all is well */
int tty_waiting_survey(struct ckpt_run *run, const struct ckpt_fd_found *f, int slave);
/* Copy what waits into the record; owns what it allocates until tty_waiting_free(). */
int tty_waiting_collect(struct ckpt_run *run, int master, int slave, Ckpt__Tty__Pty *rec,
			struct ckpt_error *err);
void tty_waiting_free(Ckpt__Tty__Pty *rec);
int tty_waiting_plan(const Ckpt__Tty__Pty *rec, bool has_slave, struct ckpt_error *err);
int tty_waiting_restore(const struct tty_pair *pair, struct ckpt_error *err);

/* ---- refusals ------------------------------------------------------------------- */

/* Refuse a description: 1, the kinds' word for "leave it out", or another error. */
int tty_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
	       const char *reason, const char *hint);
/* A feature that this description needs: 0 on or allowed to be lost, 1 refused, or negative. */
int tty_need(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature);

/* ---- records ---------------------------------------------------------------------- */

const Ckpt__Tty__Pty *tty_pty(struct ckpt_run *run, uint32_t pty);
const Ckpt__Tty__End *tty_end(struct ckpt_run *run, uint32_t file);
const Ckpt__Tty__Current *tty_current(struct ckpt_run *run, uint32_t file);
/* Is a slave open at some time of the restore? */
bool tty_has_slave(struct ckpt_run *run, const Ckpt__Tty__Pty *rec);
struct tty_pair *tty_pair(struct ckpt_run *run, uint32_t pty);

/* Put the record of a pty unless it is there; `f` is one of its ends. Its id is put into *id. */
int tty_put_pty(struct ckpt_run *run, const struct ckpt_fd_found *f, uint32_t pty, bool hung_up,
		uint32_t *id, struct ckpt_error *err);

/* ---- steps, kinds ----------------------------------------------------------------- */

int tty_plan(struct ckpt_run *run, struct ckpt_error *err);
int tty_make(struct ckpt_run *run, struct ckpt_error *err);
int tty_settle(struct ckpt_run *run, struct ckpt_error *err);

extern const struct ckpt_fd_kind tty_kind_pty;
extern const struct ckpt_fd_kind tty_kind_current;
extern const struct ckpt_session_kind tty_session;

#endif
