/* SPDX-License-Identifier: MIT */
/*
 * What is set up in a network namespace beside links and routes: queueing disciplines with classes,
 * entries of a bridge's table, neighbours that are answered for, what a link leaves to its device.
 */
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

static const char *const looks[] = {
	"tc qdisc show dev v0",
	"tc qdisc show dev v1 | sed 's/direct_packets_stat [0-9]*//'",
	"tc class show dev v1 | sort",
	"bridge fdb show | grep '02:00.* master' | sort",
	"bridge fdb show | grep '02:00.* self permanent'",
	"ip neigh show proxy",
	"ip -6 neigh show proxy | sort -u",
	"ip -d link show v1 | grep -o 'numtx.*'",
	"unshare -m sh -c 'mount -t sysfs sys /sys && ls -d /sys/class/net/*/queues/*'",
};
#define LOOKS (sizeof(looks) / sizeof(*looks))

static char *seen[LOOKS];
static unsigned offloads;

/* A flag of ETHTOOL_GFLAGS' kind: may the device compute checksums when it sends? */
static unsigned checksums(unsigned command, unsigned value)
{
	struct ethtool_value v = { command, value };
	struct ifreq req = { .ifr_data = (void *)&v };
	int fd = MUST(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	strcpy(req.ifr_name, "v1");
	MUST(ioctl(fd, SIOCETHTOOL, &req));
	close(fd);
	return v.data;
}

static void check(void)
{
	for (size_t i = 0; i < LOOKS; i++) {
		char *now = victim_look(looks[i]);

		CHECK(!strcmp(now, seen[i]), "%s was\n%.400s\nis\n%.400s", looks[i], seen[i], now);
		free(now);
	}
	CHECK(checksums(ETHTOOL_GTXCSUM, 0) == offloads, "the device's checksums are another");
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	victim_run("ip link add br0 type bridge && ip link add v0 type veth peer name v1 "
		   "numtxqueues 4 && "
		   "ip link set v0 master br0 && ip link set br0 up && ip link set v0 up && "
		   "ip link set v1 gso_max_size 30000 up && bridge link set dev v0 learning off");
	victim_run("bridge fdb add 02:00:00:00:00:55 dev v0 master static && "
		   "bridge fdb add 02:00:00:00:00:56 dev v0 self && "
		   "bridge fdb add 02:00:00:00:00:58 dev v0 master extern_learn && "
		   "bridge fdb add 02:00:00:00:00:57 dev br0 self local");
	victim_run("ip neigh add proxy 10.0.0.9 dev v0 && ip -6 neigh add proxy fd00::9 dev v0 && "
		   "ip -6 neigh add proxy fd00::8 dev v1");
	victim_run("tc qdisc add dev v0 root handle 7: tbf rate 1mbit burst 10k latency 50ms && "
		   "tc qdisc add dev v0 parent 7:1 handle 8: pfifo limit 33 && "
		   "tc qdisc add dev v0 ingress");
	victim_run(
		"tc qdisc add dev v1 root handle 1: htb default 20 r2q 5 && "
		"tc class add dev v1 parent 1: classid 1:1 htb rate 10mbit ceil 20mbit && "
		"tc class add dev v1 parent 1:1 classid 1:20 htb rate 1mbit ceil 5mbit prio 3 && "
		"tc class add dev v1 parent 1:1 classid 1:21 htb rate 40gbit burst 20k && "
		"tc qdisc add dev v1 parent 1:20 handle 20: bfifo limit 5000 && "
		"tc qdisc add dev v1 clsact");
	offloads = !checksums(ETHTOOL_GTXCSUM, 0);
	checksums(ETHTOOL_STXCSUM, offloads);
	for (size_t i = 0; i < LOOKS; i++) {
		seen[i] = victim_look(looks[i]);
		if (!seen[i][0])
			victim_die("%s says nothing", looks[i]);
	}
	victim_ready();
	victim_serve(check);
}
