/* SPDX-License-Identifier: MIT
 *
 * test: only=cli
 *
 * A child whose stack has no room for a signal frame, and none to grow.
 */
#include "victim.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096 };

static pid_t child;

static _Noreturn int sleep_forever(void *unused)
{
	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		syscall(SYS_pause);
}

static void check(void)
{
	CHECK(victim_status(child, "VmSize", 10) > 0 && victim_status(child, "TracerPid", 10) == 0,
	      "the child is gone, or traced");
}

int main(int argc, char **argv)
{
	char *pages;

	victim_init(argc, argv);
	pages = mmap(NULL, (size_t)3 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pages == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	/* to look up a function takes more stack than the child has */
	MUST(syscall(SYS_gettid));
	MUST(mprotect(pages + PAGE, PAGE, PROT_READ | PROT_WRITE));
	child = MUST(clone(sleep_forever, pages + PAGE + 1024, SIGCHLD, NULL));
	victim_settle();
	victim_ready();
	victim_serve(check);
}
