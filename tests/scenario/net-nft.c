/* SPDX-License-Identifier: MIT */
/*
 * Packet filters of a network namespace, as nft and as iptables make them: tables of several
 * families, chains with hooks, sets, maps, objects, counters, rules that were inserted, replaced
 * and deleted, all with their handles. And they still filter.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "victim.h"

static const char *const rules =
	"add table inet filter\n"
	"add chain inet filter in { type filter hook input priority 0; policy accept; }\n"
	"add chain inet filter services\n"
	"add set inet filter ports { type inet_service; flags interval; }\n"
	"add element inet filter ports { 10-20, 30, 4000-4010 }\n"
	"add map inet filter jumps { type inet_service : verdict; }\n"
	"add set inet filter seen { type ipv4_addr; flags dynamic,timeout; timeout 1h; }\n"
	"add counter inet filter total\n"
	"add rule inet filter in ct state established accept\n"
	"add rule inet filter in udp dport { 53, 67, 68 } counter accept\n"
	"add rule inet filter in udp dport @ports counter jump services\n"
	"add rule inet filter in udp dport vmap @jumps\n"
	"insert rule inet filter in iif lo udp dport 7000 counter name total\n"
	"add rule inet filter services udp dport 4004 drop comment \"the closed one\"\n"
	"add rule inet filter services limit rate 10/second burst 5 packets return\n"
	"add element inet filter jumps { 5005 : drop, 5006 : goto services }\n"
	"add table ip6 six { flags dormant; }\n"
	"add chain ip6 six out { type filter hook output priority 5; }\n"
	"add rule ip6 six out meta l4proto { tcp, udp } ip6 daddr fd00::/8 reject\n"
	"add table ip nat7\n"
	"add chain ip nat7 post { type nat hook postrouting priority 100; }\n"
	"add rule ip nat7 post oif != lo masquerade\n";

static char *before;

static void run(const char *command)
{
	if (system(command))
		victim_skip("%s: this kernel has not all of it", command);
}

/* The time that an element of a set has left is not the same twice. */
static char *ruleset(void)
{
	FILE *f = popen("nft -a list ruleset | sed 's/expires [0-9a-z]*//'", "re");
	size_t cap = 0;
	char *text = NULL;

	if (!f || getdelim(&text, &cap, 0, f) <= 0)
		victim_fail("nft lists nothing");
	if (f)
		pclose(f);
	return text ? text : strdup("");
}

static void load(void)
{
	FILE *f = popen("nft -f -", "we");

	if (!f || fputs(rules, f) < 0 || pclose(f))
		victim_skip("nft: this kernel has not all of it");
	/* gaps between handles, and rules that are not in their order */
	run("nft add rule inet filter services udp dport 1 drop && "
	    "nft -a list chain inet filter services | sed -n 's/.*dport 1 drop # handle //p' | "
	    "xargs nft delete rule inet filter services handle && "
	    "nft add element inet filter seen '{ 127.0.0.9 timeout 30m }' && "
	    "nft insert rule inet filter services udp dport 4005 drop && "
	    "nft add table ip gone && nft delete table ip gone && nft add table ip after");
	run("iptables-nft -A INPUT -p tcp -m tcp --dport 22 -m comment --comment 'by iptables' "
	    "-j ACCEPT && iptables-nft -A INPUT -p udp -m multiport --dports 8000,8001 -j DROP && "
	    "iptables-nft -t nat -A OUTPUT -d 10.0.0.1/32 -p udp -j DNAT --to-destination "
	    "127.0.0.1:5300 && iptables-nft -A FORWARD -m conntrack --ctstate NEW -j LOG");
}

/* Does a datagram to that port of our own come through? */
static void passes(int port, bool yes)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((unsigned short)port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int in = socket(AF_INET, SOCK_DGRAM, 0), out = socket(AF_INET, SOCK_DGRAM, 0);
	struct pollfd p = { .fd = in, .events = POLLIN };
	char c;

	CHECK(!bind(in, (struct sockaddr *)&a, sizeof(a)) &&
		      sendto(out, "x", 1, 0, (struct sockaddr *)&a, sizeof(a)) == 1,
	      "port %d: %s", port, strerror(errno));
	CHECK((!yes || poll(&p, 1, 20000) == 1) && (recv(in, &c, 1, MSG_DONTWAIT) == 1) == yes,
	      "port %d is %s", port, yes ? "closed" : "open");
	close(in);
	close(out);
}

static void check(void)
{
	char *now = ruleset();

	CHECK(!strcmp(before, now), "the rules were\n%s\nand are\n%s", before, now);
	free(now);
	passes(4004, false);
	passes(4003, true);
	passes(5005, false);
	passes(7000, true);
	passes(8001, false);
	passes(8002, true);
	free(before);
	before = ruleset();
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	MUST(unshare(CLONE_NEWNET));
	run("ip link set lo up");
	load();
	before = ruleset();
	victim_ready();
	victim_serve(check);
}
