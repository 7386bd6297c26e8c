/* SPDX-License-Identifier: MIT */
/*
 * Files of /proc that show a process's memory are those of the memory that it had when they were
 * opened. After an execve(2) it has another one, to which whoever holds them may have no right:
 * opened again by name they would lead to that.
 */
#include "internal.h"

#include <elf.h>
#include <fcntl.h>
#include <sys/auxv.h>

#define PIECE	    4096
#define RANDOM_SIZE 16 /* create_elf_tables() of the kernel */

static const char *const names[] = { "mem",	  "maps", "smaps",   "smaps_rollup",
				     "numa_maps", "auxv", "environ", "pagemap" };

static const char *name_of(const char *path)
{
	const char *last = strrchr(path, '/') + 1;

	for (size_t i = 0; i < CKPT_ARRAY_SIZE(names); i++)
		if (!strcmp(last, names[i]))
			return names[i];
	return NULL;
}

static ssize_t read_of(const struct ckpt_task *t, const char *name, off_t at, void *buf,
		       size_t size)
{
	CKPT_AUTO_FD int fd = openat(t->procfd, name, O_RDONLY | O_CLOEXEC);

	return fd < 0 ? -1 : pread(fd, buf, size, at);
}

/* Where the kernel has put bytes that no other memory has. */
static off_t random_at(const struct ckpt_task *t)
{
	Elf64_auxv_t list[64];
	ssize_t len = read_of(t, "auxv", 0, list, sizeof(list));

	for (size_t i = 0; len > 0 && i < (size_t)len / sizeof(*list); i++)
		if (list[i].a_type == AT_RANDOM)
			return (off_t)list[i].a_un.a_val;
	return 0;
}

static size_t first_word(const char *text, size_t len)
{
	size_t n = 0;

	while (n < len && text[n] != ' ' && text[n] != '\n')
		n++;
	return n;
}

static bool shows_memory_of(const struct ckpt_task *t, const char *name, int fd)
{
	const bool is_mem = !strcmp(name, "mem");
	const off_t at = is_mem ? random_at(t) : 0;
	char now[PIECE], then[PIECE];
	const size_t size = is_mem ? RANDOM_SIZE : sizeof(now);
	ssize_t n = read_of(t, name, at, now, size), m = pread(fd, then, size, at);

	/* how often pages are mapped, processes outside change: not where the first mapping is */
	if (n > 0 && m > 0 && (!strncmp(name, "smaps", 5) || !strcmp(name, "numa_maps"))) {
		n = (ssize_t)first_word(now, (size_t)n);
		m = (ssize_t)first_word(then, (size_t)m);
	}
	/* of memory that is gone nothing is shown at all */
	return n >= 0 && n == m && (n > 0 || !strcmp(name, "environ")) &&
	       !memcmp(now, then, (size_t)n);
}

int fd_procmem_survey(struct ckpt_run *run, const struct ckpt_fd_found *f,
		      const struct ckpt_task *t, struct ckpt_error *err)
{
	const char *name = t && !(f->flags & O_PATH) ? name_of(f->link) : NULL;

	if (!name || shows_memory_of(t, name, f->fd))
		return 0;
	/* it cannot be asked, but whoever has it could open it anew */
	if ((f->flags & O_ACCMODE) == O_WRONLY && fd_holder_is_root(run, f, err) == 1)
		return 0;
	return fd_refuse(run, f, "special-filesystem",
			 "it shows memory that the process had before an execve(2), and would show "
			 "that of now",
			 "let the program close it before the dump, or allow the loss");
}
