/* SPDX-License-Identifier: MIT */
/* Termios and window size. The C library's termios has other speeds and sizes than the kernel's. */
#include <asm/termbits.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>

#include "tty.h"

_Static_assert(TTY_CC_SIZE == NCCS, "control characters of struct termios2");

int tty_setting_read(int fd, struct tty_setting *s)
{
	struct termios2 t;
	struct winsize w;

	if (ioctl(fd, TCGETS2, &t) || ioctl(fd, TIOCGWINSZ, &w))
		return -errno;
	ckpt__tty__termios__init(&s->termios);
	ckpt__tty__winsize__init(&s->winsize);
	s->termios.iflag = t.c_iflag;
	s->termios.oflag = t.c_oflag;
	s->termios.cflag = t.c_cflag;
	s->termios.lflag = t.c_lflag;
	s->termios.line = t.c_line;
	s->termios.ispeed = t.c_ispeed;
	s->termios.ospeed = t.c_ospeed;
	memcpy(s->cc, t.c_cc, NCCS);
	s->termios.cc.data = s->cc;
	s->termios.cc.len = NCCS;
	s->winsize.rows = w.ws_row;
	s->winsize.columns = w.ws_col;
	s->winsize.xpixel = w.ws_xpixel;
	s->winsize.ypixel = w.ws_ypixel;
	return 0;
}

int tty_setting_default(struct tty_setting *s, struct ckpt_error *err)
{
	/* the slave's settings can be read through the master, without opening a slave */
	CKPT_AUTO_FD int fd = open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC);

	if (fd < 0)
		return ckpt_fail_sys(err, errno, "open(2) of /dev/ptmx");
	return tty_setting_read(fd, s) ? ckpt_fail_sys(err, errno, "TCGETS2 of /dev/ptmx") : 0;
}

bool tty_termios_equal(const Ckpt__Tty__Termios *a, const Ckpt__Tty__Termios *b)
{
	return a->iflag == b->iflag && a->oflag == b->oflag && a->cflag == b->cflag &&
	       a->lflag == b->lflag && a->line == b->line && a->ispeed == b->ispeed &&
	       a->ospeed == b->ospeed && a->cc.len == b->cc.len &&
	       !memcmp(a->cc.data, b->cc.data, a->cc.len);
}

bool tty_winsize_equal(const Ckpt__Tty__Winsize *a, const Ckpt__Tty__Winsize *b)
{
	return a->rows == b->rows && a->columns == b->columns && a->xpixel == b->xpixel &&
	       a->ypixel == b->ypixel;
}

int tty_setting_apply(int fd, const Ckpt__Tty__Termios *termios, const Ckpt__Tty__Winsize *winsize,
		      struct ckpt_error *err)
{
	if (termios) {
		struct termios2 t = {
			.c_iflag = termios->iflag,
			.c_oflag = termios->oflag,
			.c_cflag = termios->cflag,
			.c_lflag = termios->lflag,
			.c_line = (cc_t)termios->line,
			.c_ispeed = termios->ispeed,
			.c_ospeed = termios->ospeed,
		};

		memcpy(t.c_cc, termios->cc.data, NCCS);
		if (ioctl(fd, TCSETS2, &t))
			return ckpt_fail_sys(err, errno, "TCSETS2");
	}
	if (winsize) {
		struct winsize w = {
			.ws_row = (unsigned short)winsize->rows,
			.ws_col = (unsigned short)winsize->columns,
			.ws_xpixel = (unsigned short)winsize->xpixel,
			.ws_ypixel = (unsigned short)winsize->ypixel,
		};

		if (ioctl(fd, TIOCSWINSZ, &w))
			return ckpt_fail_sys(err, errno, "TIOCSWINSZ");
	}
	return 0;
}

bool tty_termios_locked(int fd)
{
	static const struct termios none;
	struct termios t = { 0 };

	return ioctl(fd, TIOCGLCKTRMIOS, &t) || memcmp(&t, &none, sizeof(t)) != 0;
}
