/* SPDX-License-Identifier: MIT */
/* Host and domain names: a namespace for the root, another for a child, a third for a thread. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <signal.h>
#include <unistd.h>

#include "victim.h"

static int request[2], reply[2];
static int thread_request[2], thread_reply[2];

static void rename_here(const char *host, const char *domain)
{
	MUST(unshare(CLONE_NEWUTS));
	MUST(sethostname(host, strlen(host)));
	MUST(setdomainname(domain, strlen(domain)));
}

/* Answers each byte with the names as they are where it runs. */
static void tell(int from, int to)
{
	struct utsname names;
	char c;

	while (read(from, &c, 1) == 1)
		if (uname(&names) || write(to, &names, sizeof(names)) != sizeof(names))
			break;
}

static void *in_thread(void *arg)
{
	(void)arg;
	rename_here("thread", "");
	tell(thread_request[0], thread_reply[1]);
	return NULL;
}

static void expect(const char *who, const struct utsname *names, const char *host,
		   const char *domain)
{
	CHECK(!strcmp(names->nodename, host), "%s: host name is %s", who, names->nodename);
	CHECK(!strcmp(names->domainname, domain), "%s: domain name is %s", who, names->domainname);
}

static void ask(const char *who, int to, int from, const char *host, const char *domain)
{
	struct utsname names;

	if (write(to, "", 1) != 1 || read(from, &names, sizeof(names)) != sizeof(names))
		victim_fail("%s does not answer", who);
	else
		expect(who, &names, host, domain);
}

static void check(void)
{
	struct utsname names;

	uname(&names);
	expect("root", &names, "container-1", "example.org");
	ask("child", request[1], reply[0],
	    "a-name-of-sixty-four-bytes-is-the-longest-that-the-kernel-"
	    "takes.",
	    "");
	ask("thread", thread_request[1], thread_reply[0], "thread", "");
}

int main(int argc, char **argv)
{
	pthread_t thread;
	struct utsname names;

	victim_init(argc, argv);
	MUST(pipe(request));
	MUST(pipe(reply));
	MUST(pipe(thread_request));
	MUST(pipe(thread_reply));
	rename_here("container-1", "example.org");
	if (MUST(fork()) == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		rename_here("a-name-of-sixty-four-bytes-is-the-longest-that-the-kernel-takes.", "");
		tell(request[0], reply[1]);
		_exit(0);
	}
	MUST_ZERO(pthread_create(&thread, NULL, in_thread, NULL));
	/* its namespace is there once it has answered */
	MUST(write(thread_request[1], "", 1));
	MUST(read(thread_reply[0], &names, sizeof(names)));
	victim_ready();
	victim_serve(check);
}
