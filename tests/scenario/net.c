/* SPDX-License-Identifier: MIT */
/*
 * Two network namespaces, pairs of veth between them, a bridge: loopback, addresses, routes, rules,
 * neighbours, settings; and packets that still get across.
 */
#include <arpa/inet.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

#define PORT 4711
/* The kernel takes notice of a carrier a while later, and makes what goes with it then. */
#define SETTLED                                                                                \
	"until [ $(ip -6 route show table all | grep -c '^multicast ff00::/8 dev') = "         \
	"$(($(ip -o link show up | wc -l) - 1)) ] && ! ip -o link show up | grep -q NO-CARR; " \
	"do sleep 0.01; done"

/* Addresses of links made from now on are of use at once. */
#define NO_WAIT                                           \
	"echo 0 >/proc/sys/net/ipv6/conf/all/accept_dad;" \
	"echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad"

static const char *const looks[] = {
	"ip -o link | sed 's/qdisc.*qlen/qlen/'",
	"ip -d -o link show type bridge | sed 's/[a-z_]*timer *[0-9.]*//g;s/qdisc.*qlen/qlen/'",
	"bridge -d link",
	"ip -o addr",
	"ip route show table all | sort",
	"ip -6 route show table all | sort",
	"ip route show 198.51.100.0/24",
	"ip rule",
	"ip -6 rule",
	"ip neigh show nud permanent",
	"ip addrlabel list | sort",
	"cat /proc/sys/net/ipv4/ip_forward",
	"cat /proc/sys/net/ipv4/conf/v1/rp_filter /proc/sys/net/core/somaxconn",
	"cd /proc/sys/net/ipv6/conf && grep . *1/mtu br*/mtu lo/mtu",
	"cd /proc/sys/net/ipv4; wc -c <ip_local_reserved_ports; tail -c 9 ip_local_reserved_ports",
};
static char *seen[2][16];
static int request[2], reply[2];

static void remember(int who)
{
	victim_run(SETTLED);
	for (size_t i = 0; i < sizeof(looks) / sizeof(*looks); i++)
		seen[who][i] = victim_look(looks[i]);
}

/* From the line on that differs first. */
static void tell(int who, size_t i, const char *now, char *failure, size_t size)
{
	const char *was = seen[who][i];
	size_t same = 0;

	for (size_t at = 0; was[at] && was[at] == now[at]; at++)
		if (was[at] == '\n')
			same = at + 1;
	snprintf(failure, size, "namespace %d: %s was\n%.300s\nis\n%.300s", who, looks[i],
		 was + same, now + same);
}

/* What is seen must be what was seen. */
static void judge(int who, char *failure, size_t size)
{
	failure[0] = 0;
	for (size_t i = 0; i < sizeof(looks) / sizeof(*looks); i++) {
		char *now = victim_look(looks[i]);

		if (strcmp(now, seen[who][i]) != 0 && !failure[0])
			tell(who, i, now, failure, size);
		free(now);
	}
}

static int udp(const char *address)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	inet_pton(AF_INET6, address, &a.sin6_addr);
	if (bind(fd, (struct sockaddr *)&a, sizeof(a)))
		victim_fail("bind %s: %s", address, strerror(errno));
	return fd;
}

/* The child's socket hears what we send there. */
static void across(const char *address)
{
	struct sockaddr_in6 to = { .sin6_family = AF_INET6, .sin6_port = htons(PORT) };
	int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	char c = 'l', answer[4096];
	ssize_t n;

	inet_pton(AF_INET6, address, &to.sin6_addr);
	if (write(request[1], &c, 1) != 1 || read(reply[0], &c, 1) != 1)
		victim_fail("the child does not listen");
	if (sendto(fd, "ping", 4, 0, (struct sockaddr *)&to, sizeof(to)) != 4)
		victim_fail("sending across the pair: %s", strerror(errno));
	close(fd);
	n = read(reply[0], answer, sizeof(answer) - 1);
	answer[n < 0 ? 0 : n] = 0;
	CHECK(n == 4 && !strcmp(answer, "ping"), "to %s came \"%s\"", address, answer);
}

static void check(void)
{
	char failure[4096], c = 'j';
	ssize_t n;

	judge(0, failure, sizeof(failure));
	CHECK(!failure[0], "%s", failure);
	if (write(request[1], &c, 1) != 1)
		victim_fail("the child is gone");
	n = read(reply[0], failure, sizeof(failure) - 1);
	failure[n < 0 ? 0 : n] = 0;
	CHECK(n == 1 && failure[0] == ' ', "%s", failure);
	across("fd00:7::2");
	across("fd00:8::2");
}

/* 'u': set up; 'j': judge; 'l': listen, then pass on what comes. */
static void child(void)
{
	char c, text[4096];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MUST(unshare(CLONE_NEWNET));
	victim_run(NO_WAIT);
	MUST(write(reply[1], "m", 1));
	while (read(request[0], &c, 1) == 1) {
		if (c == 'u') {
			victim_run(
				"ip link set lo up && ip link set v2 mtu 1400 up && ip addr add "
				"10.7.0.2/24 dev v2 && ip -6 addr add fd00:7::2/64 dev v2 nodad && "
				"ip link set p2 up && ip -6 addr add fd00:8::2/64 dev p2 nodad");
			remember(1);
			MUST(write(reply[1], "u", 1));
		} else if (c == 'j') {
			judge(1, text, sizeof(text) - 1);
			if (!text[0])
				strcpy(text, " ");
			MUST(write(reply[1], text, strlen(text)));
		} else {
			int fd = udp("::");
			ssize_t n;

			MUST(write(reply[1], "l", 1));
			n = recv(fd, text, sizeof(text), 0);
			MUST(write(reply[1], text, n < 0 ? 0 : (size_t)n));
			close(fd);
		}
	}
	_exit(0);
}

int main(int argc, char **argv)
{
	char command[512], c;
	pid_t pid;

	victim_init(argc, argv);
	MUST(pipe(request));
	MUST(pipe(reply));
	MUST(unshare(CLONE_NEWNET));
	victim_run(NO_WAIT);
	pid = MUST(fork());
	if (pid == 0)
		child();
	MUST(read(reply[0], &c, 1));
	snprintf(command, sizeof(command),
		 "ip link add v1 index 77 type veth peer name v2 index 88 netns %d", (int)pid);
	victim_run(command);
	snprintf(command, sizeof(command),
		 "ip link add p1 type veth peer name p2 netns %d && ip link add br7 index 99 type "
		 "bridge ageing_time 12300 forward_delay 400 priority 77 mcast_snooping 0 && "
		 "ip link set p1 master br7 up && bridge link set dev p1 cost 55 hairpin on "
		 "learning off && ip link set br7 mtu 9000 up && ip -6 addr add fd00:8::1/64 dev "
		 "br7 nodad",
		 (int)pid);
	victim_run(command);
	victim_run("ip link set v1 address 02:00:00:00:07:01 alias 'the near end' && ip link set "
		   "lo up && "
		   "ip addr add 10.9.9.9/32 dev lo && ip addr add 10.7.0.1/24 dev v1 && "
		   "ip -6 addr add fd00:7::1/64 dev v1 nodad && ip link set v1 up");
	MUST(write(request[1], "u", 1));
	MUST(read(reply[0], &c, 1));
	victim_run("ip route add 192.0.2.0/24 via 10.7.0.2 metric 7 && ip route add table 100 "
		   "default via "
		   "10.7.0.2 && ip rule add from 10.9.9.9 lookup 100 priority 55 && "
		   "ip neigh add 10.7.0.99 lladdr 02:00:00:00:00:63 dev v1 nud permanent protocol "
		   "static && "
		   "ip addrlabel add prefix fd00:9::/64 label 77 && ip addrlabel del prefix "
		   "2002::/16 label 2");
	/* of those that compete the first counts, which is not that of the lowest number */
	victim_run("ip addr add 10.8.0.9/24 dev v1 && ip addr add 10.8.0.2/24 dev v1 && "
		   "ip addr add 10.8.0.3/24 dev v1 preferred_lft 0 && "
		   "for i in 5 9 2; do ip -6 addr add fd00:9::$i/64 dev v1 nodad; done && "
		   "ip -6 addr add fd00:9::7/64 dev v1 nodad preferred_lft 0 && "
		   "ip route append 198.51.100.0/24 via 10.7.0.9 && "
		   "ip route append 198.51.100.0/24 via 10.7.0.4 && "
		   "for i in 4 9 2; do ip rule add from 10.9.9.$i lookup 10$i priority 54; done");
	victim_run("ip link set v1 mtu 9000 && ip link set lo mtu 70000 && "
		   "echo 8000 >/proc/sys/net/ipv6/conf/v1/mtu && "
		   "echo 1300 >/proc/sys/net/ipv6/conf/br7/mtu");
	victim_run("echo 1 >/proc/sys/net/ipv4/ip_forward; echo 2 "
		   ">/proc/sys/net/ipv4/conf/v1/rp_filter; "
		   "echo 321 >/proc/sys/net/core/somaxconn");
	/* longer than a page, in one call */
	victim_run("seq -s, 10001 2 20001 | dd bs=256k iflag=fullblock status=none "
		   "of=/proc/sys/net/ipv4/ip_local_reserved_ports");
	remember(0);
	victim_ready();
	victim_serve(check);
}
