/* SPDX-License-Identifier: MIT */
/*
 * A TCP connection, and after it a terminal and a pipe: to look into the connection, ckpt has a
 * helper with its descriptors, which is not somebody outside who holds the others.
 */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static int client, server, master, slave, pipes[2];

static void connect_tcp(void)
{
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(a);
	int listener = MUST(socket(AF_INET, SOCK_STREAM, 0));

	MUST(bind(listener, (struct sockaddr *)&a, sizeof(a)));
	MUST(listen(listener, 1));
	MUST(getsockname(listener, (struct sockaddr *)&a, &len));
	client = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(client, (struct sockaddr *)&a, sizeof(a)));
	server = MUST(accept(listener, NULL, NULL));
}

static void open_terminal(void)
{
	master = MUST(posix_openpt(O_RDWR | O_NOCTTY));
	MUST(grantpt(master));
	MUST(unlockpt(master));
	slave = MUST(open(ptsname(master), O_RDWR | O_NOCTTY));
}

static void passes(const char *name, int from, int to)
{
	char line[3] = "";

	CHECK(write(from, "x\n", 2) == 2 && read(to, line, 2) == 2 && !strcmp(line, "x\n"),
	      "%s: %s", name, strerror(errno));
}

static void check(void)
{
	passes("connection", client, server);
	passes("terminal", master, slave);
	passes("pipe", pipes[1], pipes[0]);
	/* the echo */
	CHECK(read(master, (char[4]){ 0 }, 3) == 3, "echo: %s", strerror(errno));
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	connect_tcp();
	open_terminal();
	MUST(pipe(pipes));
	victim_ready();
	victim_serve(check);
}
