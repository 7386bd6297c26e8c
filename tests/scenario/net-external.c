/* SPDX-License-Identifier: MIT */
/*
 * A container's network: a namespace whose veth link ends at a bridge outside. The pair is made
 * anew and connected again; datagrams and a TCP connection go through it.
 *
 * test: option=--option=net.external=eth0
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

static char bridge[16], host[16];
static unsigned net; /* 198.18.NET.0/24 */
static struct sockaddr_in there;
static int udp, tcp;

static void run(const char *command)
{
	if (system(command))
		victim_die("%s failed", command);
}

/* The bridge is the outside's: it is there until the test is over. */
static void outside(void)
{
	char command[64];

	snprintf(command, sizeof(command), "ip link del %s", bridge);
	for (int i = 0; i < 900 && access(victim_dir(), F_OK) == 0; i++)
		sleep(1);
	_exit(system(command) != 0);
}

static void make_bridge(void)
{
	char command[256];
	int status;
	pid_t between;

	snprintf(bridge, sizeof(bridge), "ckb%d", (int)getpid());
	snprintf(host, sizeof(host), "ckv%d", (int)getpid());
	net = (unsigned)getpid() % 250 + 1;
	snprintf(
		command, sizeof(command),
		"ip link add %s type bridge && ip addr add 198.18.%u.1/24 dev %s && ip link set %s "
		"up",
		bridge, net, bridge, bridge);
	run(command);
	between = MUST(fork());
	if (between == 0) {
		MUST(setsid());
		if (MUST(fork()) == 0)
			outside();
		_exit(0);
	}
	MUST(waitpid(between, &status, 0));
}

/* Says everything again. */
static void inside(int ready)
{
	struct sockaddr_in any = { .sin_family = AF_INET, .sin_port = htons(4000) };
	socklen_t len = sizeof(any);
	int u = MUST(socket(AF_INET, SOCK_DGRAM, 0)), l = MUST(socket(AF_INET, SOCK_STREAM, 0)), t;
	char buf[64];

	MUST(bind(u, (struct sockaddr *)&any, len));
	MUST(bind(l, (struct sockaddr *)&any, len));
	MUST(listen(l, 1));
	MUST(write(ready, "r", 1));
	t = MUST(accept(l, NULL, NULL));
	for (;;) {
		struct pollfd p[2] = { { .fd = u, .events = POLLIN },
				       { .fd = t, .events = POLLIN } };
		struct sockaddr_in from;
		ssize_t n;

		poll(p, 2, -1);
		if (p[0].revents & POLLIN) {
			len = sizeof(from);
			n = recvfrom(u, buf, sizeof(buf), 0, (struct sockaddr *)&from, &len);
			if (n > 0)
				sendto(u, buf, (size_t)n, 0, (struct sockaddr *)&from, len);
		}
		if (p[1].revents & POLLIN) {
			n = recv(t, buf, sizeof(buf), 0);
			if (n <= 0)
				_exit(0);
			send(t, buf, (size_t)n, MSG_NOSIGNAL);
		}
	}
}

static void echo(int fd, const char *what)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char got[8] = "";

	CHECK(send(fd, what, 3, MSG_NOSIGNAL) == 3, "%s: send: %s", what, strerror(errno));
	CHECK(poll(&p, 1, 20000) == 1 && recv(fd, got, 3, 0) == 3 && !strcmp(got, what),
	      "%s: \"%s\" came back: %s", what, got, strerror(errno));
}

static void check(void)
{
	char command[128];

	snprintf(command, sizeof(command), "ip -o link show master %s | grep -q %s@", bridge, host);
	CHECK(system(command) == 0, "%s is no port of %s", host, bridge);
	echo(udp, "udp");
	echo(tcp, "tcp");
}

int main(int argc, char **argv)
{
	char command[512], c;
	int ready[2];
	pid_t child;

	victim_init(argc, argv);
	make_bridge();
	MUST(pipe(ready));
	child = MUST(fork());
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		MUST(unshare(CLONE_NEWNET));
		MUST(write(ready[1], "n", 1));
		inside(ready[1]);
	}
	MUST(read(ready[0], &c, 1));
	/* without IPv6, which takes a while to find its address */
	snprintf(command, sizeof(command),
		 "ip link add %s type veth peer name eth0 netns %d && ip link set %s master %s up "
		 "&& "
		 "nsenter -t %d -n sh -c 'echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; ip "
		 "link set lo up && ip addr add 198.18.%u.2/24 dev eth0 "
		 "&& "
		 "ip link set eth0 address 02:00:00:00:07:02 up && ip route add default via "
		 "198.18.%u.1'",
		 host, (int)child, host, bridge, (int)child, net, net);
	run(command);
	MUST(read(ready[0], &c, 1));
	there = (struct sockaddr_in){ .sin_family = AF_INET,
				      .sin_port = htons(4000),
				      .sin_addr.s_addr = htonl(0xc6120002u | net << 8) };
	udp = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(connect(udp, (struct sockaddr *)&there, sizeof(there)));
	tcp = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(tcp, (struct sockaddr *)&there, sizeof(there)));
	victim_ready();
	victim_serve(check);
}
