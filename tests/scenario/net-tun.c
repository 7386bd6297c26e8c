/* SPDX-License-Identifier: MIT */
/*
 * Devices of /dev/net/tun as a VPN and a virtual machine have them: one that goes with its
 * descriptor, with addresses and a route, through which packets go both ways; one of two queues as
 * a bridge's port; one that stays without anybody; and a descriptor that has no device yet.
 */
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

#define PORT 4000

static const char *const looks[] = {
	"ip -d -o link show | sed 's/qdisc.*qlen/qlen/;s/[a-z_]*timer *[0-9.]*//g'",
	"ip -o addr show | sed 's/\\(dynamic\\|tentative\\)//g'",
	"ip route show table all | sort",
};
#define LOOKS (sizeof(looks) / sizeof(*looks))

static char *seen[LOOKS];
static int tun, queues[2], bare, udp;

static int attach(int fd, const char *name, int flags)
{
	struct ifreq req = { .ifr_flags = (short)flags };

	strcpy(req.ifr_name, name);
	return ioctl(fd, TUNSETIFF, &req);
}

static int open_tun(void)
{
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);

	if (fd < 0)
		victim_skip("no /dev/net/tun");
	return fd;
}

static const char *name_of(int fd)
{
	static struct ifreq req;

	return ioctl(fd, TUNGETIFF, &req) ? strerror(errno) : req.ifr_name;
}

struct packet {
	struct iphdr ip;
	struct udphdr udp;
	char text[4];
};

/* The next datagram of ours on the device; the kernel sends others of its own. */
static bool next(struct packet *p)
{
	struct pollfd pfd = { .fd = tun, .events = POLLIN };
	char buf[2048];

	while (poll(&pfd, 1, 20000) == 1) {
		ssize_t n = read(tun, buf, sizeof(buf));

		memcpy(p, buf, sizeof(*p));
		if (n == sizeof(*p) && p->ip.version == 4 && p->ip.protocol == IPPROTO_UDP)
			return true;
	}
	return false;
}

/* What leaves by the route comes out of the descriptor, and what is written there arrives. */
static void across(void)
{
	struct sockaddr_in to = { .sin_family = AF_INET,
				  .sin_port = htons(PORT),
				  .sin_addr.s_addr = inet_addr("192.0.2.7") };
	struct pollfd pfd = { .fd = udp, .events = POLLIN };
	struct packet p;
	uint32_t from;
	char got[8] = "";

	CHECK(sendto(udp, "ping", 4, 0, (struct sockaddr *)&to, sizeof(to)) == 4, "sending: %s",
	      strerror(errno));
	if (!next(&p)) {
		victim_fail("nothing comes out of the device");
		return;
	}
	CHECK(!memcmp(p.text, "ping", 4) && p.ip.daddr == to.sin_addr.s_addr, "another packet");
	/* sums over the same words in another order, and no sum of the datagram */
	from = p.ip.saddr;
	p.ip.saddr = p.ip.daddr;
	p.ip.daddr = from;
	p.udp.check = 0;
	memcpy(p.text, "pong", 4);
	CHECK(write(tun, &p, sizeof(p)) == sizeof(p), "writing: %s", strerror(errno));
	CHECK(poll(&pfd, 1, 20000) == 1 && recv(udp, got, 4, 0) == 4 && !strcmp(got, "pong"),
	      "\"%s\" comes in", got);
}

static void check(void)
{
	int sndbuf = 0;

	for (size_t i = 0; i < LOOKS; i++) {
		char *now = victim_look(looks[i]);

		CHECK(!strcmp(now, seen[i]), "%s was\n%.700s\nis\n%.700s", looks[i], seen[i], now);
		free(now);
	}
	CHECK(!strcmp(name_of(tun), "vpn0"), "the first one is %s", name_of(tun));
	for (int i = 0; i < 2; i++)
		CHECK(!strcmp(name_of(queues[i]), "vm0"), "queue %d is %s", i, name_of(queues[i]));
	CHECK(ioctl(bare, TUNGETIFF, &(struct ifreq){ 0 }) && errno == EBADFD, "it has a device");
	CHECK(ioctl(tun, TUNGETSNDBUF, &sndbuf) == 0 && sndbuf == 70000, "its buffer is %d",
	      sndbuf);
	across();
}

int main(int argc, char **argv)
{
	struct sockaddr_in here = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	int sndbuf = 70000;

	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	victim_run("echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6; "
		   "echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6");
	tun = open_tun();
	MUST(attach(tun, "vpn0", IFF_TUN | IFF_NO_PI));
	MUST(ioctl(tun, TUNSETSNDBUF, &sndbuf));
	victim_run("ip link add br0 type bridge && "
		   "ip tuntap add mode tap name stays0 user 1000 group 1001 && "
		   "ip tuntap add mode tap name gone0 && ip tuntap del mode tap name gone0");
	for (int i = 0; i < 2; i++) {
		queues[i] = open_tun();
		MUST(attach(queues[i], "vm0", IFF_TAP | IFF_MULTI_QUEUE));
	}
	bare = open_tun();
	victim_run(
		"ip link set vm0 master br0 address 02:00:00:00:00:11 up && ip link set br0 up && "
		"ip addr add 10.9.0.1 peer 10.9.0.2 dev vpn0 && ip link set vpn0 mtu 1280 up && "
		"ip route add 192.0.2.0/24 via 10.9.0.2 && ip addr add 10.8.0.1/24 dev stays0");
	udp = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	MUST(bind(udp, (struct sockaddr *)&here, sizeof(here)));
	/* the kernel takes notice of a carrier a while later */
	victim_run("until ip -o link show br0 | grep -q 'state UP'; do sleep 0.01; done");
	for (size_t i = 0; i < LOOKS; i++)
		seen[i] = victim_look(looks[i]);
	victim_ready();
	victim_serve(check);
}
