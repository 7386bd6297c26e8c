/* SPDX-License-Identifier: MIT */
#include "../victim.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void block_sigio(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGIO);
	MUST(sigprocmask(SIG_BLOCK, &set, NULL));
}

/* Somebody wants to write: the lease ends soon. */
void victim_lease_breaking(void)
{
	block_sigio();
	victim_write(victim_path("lease"), "");
	MUST(fcntl(MUST(open(victim_path("lease"), O_RDONLY)), F_SETLEASE, F_RDLCK));
	if (open(victim_path("lease"), O_WRONLY | O_NONBLOCK) >= 0)
		victim_die("the lease does not keep writers away");
}

static int with_data(const char *name, int flags)
{
	victim_own_mounts();
	block_sigio();
	victim_write(victim_path(name), "data");
	return (int)MUST(open(victim_path(name), flags | O_CLOEXEC));
}

void victim_lease_unreadable(void)
{
	MUST(fcntl(with_data("whole/a/written", O_WRONLY), F_SETLEASE, F_WRLCK));
}

void victim_lease_sparse(void)
{
	int fd = with_data("whole/a/sparse", O_RDWR);

	MUST(ftruncate(fd, 1 << 20));
	MUST(fcntl(fd, F_SETLEASE, F_WRLCK));
	MUST(inotify_add_watch(MUST(inotify_init1(IN_CLOEXEC)), victim_path("whole/bb"), IN_OPEN));
}

/* The whole victim moves into a child. */
void victim_lease_outside(void)
{
	int told[2], fd;
	pid_t pid;
	char c;

	close(with_data("whole/a/theirs", O_RDWR));
	MUST(pipe2(told, O_CLOEXEC));
	pid = MUST(fork());
	if (!pid) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		close(told[1]);
		if (MUST(read(told[0], &c, 1)) != 1)
			victim_die("the lease is not there");
		close(told[0]);
		MUST(setsid());
		return;
	}
	fd = MUST(open(victim_path("whole/a/theirs"), O_RDWR | O_CLOEXEC));
	MUST(fcntl(fd, F_SETLEASE, F_WRLCK));
	MUST(write(told[1], "", 1));
	waitpid(pid, NULL, 0);
	_exit(0);
}
