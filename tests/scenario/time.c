/* SPDX-License-Identifier: MIT
 *
 * A child in a time namespace that the root has made for its children, far in the future on both
 * clocks, and children that the root has later. The clocks go on: never back, and not faster than
 * those of the machine. The child's timer goes off when the child's clock shows its date.
 */
#include "victim.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/prctl.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define NS_PER_S 1000000000LL

#define SLACK (10 * 1000000LL) /* of a date, in the restores of one test */

struct clocks {
	int64_t monotonic, boottime;
	int64_t earliest, latest; /* when the timer can be to go off, by the monotonic clock */
};

static int question[2], answer[2];
static struct clocks machine_then, child_then;
static int64_t date;
static int timer = -1;

static int64_t now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return t.tv_sec * NS_PER_S + t.tv_nsec;
}

static struct clocks look(void)
{
	struct clocks c = { .monotonic = now(CLOCK_MONOTONIC), .boottime = now(CLOCK_BOOTTIME) };
	struct itimerspec left;

	if (timer >= 0 && !timerfd_gettime(timer, &left)) {
		const int64_t ns = left.it_value.tv_sec * NS_PER_S + left.it_value.tv_nsec;

		c.earliest = c.monotonic + ns;
		c.latest = now(CLOCK_MONOTONIC) + ns;
	}
	return c;
}

/* As programs have them that wait for events: by date, not by the time that is left. */
static void set_timer(void)
{
	struct itimerspec in = { .it_value = { .tv_sec = now(CLOCK_MONOTONIC) / NS_PER_S + 5000 } };

	timer = MUST(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
	MUST(timerfd_settime(timer, TFD_TIMER_ABSTIME, &in, NULL));
}

static _Noreturn void tell(void)
{
	char c;

	MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	set_timer();
	while (read(question[0], &c, 1) == 1) {
		struct clocks mine = look();

		if (write(answer[1], &mine, sizeof(mine)) < 0)
			break;
	}
	_exit(1);
}

static struct clocks ask(void)
{
	struct clocks got = { 0 };

	if (write(question[1], "", 1) != 1 || read(answer[0], &got, sizeof(got)) != sizeof(got))
		victim_fail("the child does not answer");
	return got;
}

/* A new child's clocks, through a pipe of its own. */
static struct clocks newborn(void)
{
	struct clocks got = { 0 };
	int ends[2];
	pid_t pid;

	if (pipe(ends) < 0 || (pid = fork()) < 0) {
		victim_fail("no child: %s", strerror(errno));
		return got;
	}
	if (pid == 0) {
		struct clocks mine = look();

		_exit(write(ends[1], &mine, sizeof(mine)) != sizeof(mine));
	}
	close(ends[1]);
	CHECK(read(ends[0], &got, sizeof(got)) == sizeof(got), "a new child does not answer");
	close(ends[0]);
	waitpid(pid, NULL, 0);
	return got;
}

static void check(void)
{
	struct clocks born = newborn(), child = ask(), machine = look();

	CHECK(child.monotonic >= child_then.monotonic && child.boottime >= child_then.boottime,
	      "the child's clocks have gone back: %lld and %lld ns",
	      (long long)(child.monotonic - child_then.monotonic),
	      (long long)(child.boottime - child_then.boottime));
	CHECK(child.monotonic - child_then.monotonic <=
			      machine.monotonic - machine_then.monotonic &&
		      child.boottime - child_then.boottime <=
			      machine.boottime - machine_then.boottime,
	      "the child's clocks are ahead");
	CHECK(child.earliest <= date + SLACK && child.latest >= date - SLACK,
	      "the timer's date has moved: %lld ns to %lld ns later",
	      (long long)(child.earliest - date), (long long)(child.latest - date));
	CHECK(born.monotonic <= child.monotonic && child.monotonic - born.monotonic < 60 * NS_PER_S,
	      "a new child's clock is %lld ns behind",
	      (long long)(child.monotonic - born.monotonic));
	child_then = child;
	/* both clocks move while one is read after the other */
	machine_then = machine;
	machine_then.monotonic = machine_then.monotonic - NS_PER_S;
	machine_then.boottime = machine_then.boottime - NS_PER_S;
}

int main(int argc, char **argv)
{
	static const char offsets[] = "monotonic 1000000 5\nboottime 2000000 7\n";
	int fd;

	victim_init(argc, argv);
	if (unshare(CLONE_NEWTIME) < 0)
		victim_skip("unshare(CLONE_NEWTIME): %s", strerror(errno));
	fd = MUST(open("/proc/self/timens_offsets", O_WRONLY));
	MUST(write(fd, offsets, sizeof(offsets) - 1));
	close(fd);
	MUST(pipe(question));
	MUST(pipe(answer));
	if (MUST(fork()) == 0)
		tell();
	child_then = ask();
	date = child_then.earliest / NS_PER_S * NS_PER_S +
	       (child_then.earliest % NS_PER_S ? NS_PER_S : 0);
	machine_then = look();
	machine_then.monotonic -= NS_PER_S;
	machine_then.boottime -= NS_PER_S;
	victim_ready();
	victim_serve(check);
}
