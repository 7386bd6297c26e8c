/* SPDX-License-Identifier: MIT
 *
 * test: only=refuse
 *
 * Trees that ckpt refuses: `refuse MODE[,MODE...] DIR` holds one object of each mode, `refuse
 * --list` prints every mode with a regular expression that the blocker must match.
 */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <linux/if_packet.h>
#include <linux/netfilter/ipset/ip_set.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <linux/io_uring.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/fanotify.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static int fds_at_start, segment = -1;
static pid_t children[16];
static size_t n_children;

static void adopt(pid_t pid)
{
	children[n_children++] = pid;
}

static pid_t child(void)
{
	pid_t pid = MUST(fork());
	if (pid == 0)
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
	return pid;
}

static _Noreturn void sleep_forever(void)
{
	for (;;)
		pause();
}

static int temporary_file(const char *name)
{
	return MUST(open(victim_path(name), O_RDWR | O_CREAT, 0644));
}

static void inotify(void)
{
	int fd = MUST(inotify_init1(0));
	MUST(inotify_add_watch(fd, victim_dir(), IN_CREATE));
	temporary_file("noticed");
}

static void fanotify(void)
{
	MUST(fanotify_init(FAN_CLASS_NOTIF, O_RDONLY));
}

static struct sockaddr_in loopback(void)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

/* A listening socket, and a client that is not accepted yet. */
static int tcp_client(int *server)
{
	struct sockaddr_in address = loopback();
	socklen_t length = sizeof(address);
	*server = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(bind(*server, (void *)&address, length));
	MUST(listen(*server, 1));
	MUST(getsockname(*server, (void *)&address, &length));
	int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(client, (void *)&address, length));
	return client;
}

/* The other end is in a process outside, which ends with it. */
static void tcp_outside(void)
{
	int server, client = tcp_client(&server);
	int accepted = MUST(accept(server, NULL, NULL));
	char byte;
	if (victim_outsider() == 0) {
		close(accepted);
		close(server);
		_exit(read(client, &byte, 1) < 0);
	}
	close(client);
}

static void tcp_waiting(void)
{
	int server, client = tcp_client(&server);
	MUST(write(client, "x", 1));
}

static int udp_socket(void)
{
	struct sockaddr_in address = loopback();
	socklen_t length = sizeof(address);
	int fd = MUST(socket(AF_INET, SOCK_DGRAM, 0));
	MUST(bind(fd, (void *)&address, length));
	MUST(getsockname(fd, (void *)&address, &length));
	MUST(connect(fd, (void *)&address, length));
	return fd;
}

static void udp_queue(void)
{
	int fd = udp_socket(), on = 1;
	MUST(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)));
	MUST(send(fd, "x", 1, 0));
}

static void udp_shutdown(void)
{
	MUST(shutdown(udp_socket(), SHUT_RD));
}

static void udp_cork(void)
{
	MUST(send(udp_socket(), "x", 1, MSG_MORE));
}

/* The connection is gone; its end was not noticed yet. */
static void tcp_reset(void)
{
	struct sockaddr_in address = loopback();
	socklen_t length = sizeof(address);
	struct linger reset = { 1, 0 };
	int server = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(bind(server, (void *)&address, length));
	MUST(listen(server, 1));
	MUST(getsockname(server, (void *)&address, &length));
	int client = MUST(socket(AF_INET, SOCK_STREAM, 0));
	MUST(connect(client, (void *)&address, length));
	int accepted = MUST(accept(server, NULL, NULL));
	MUST(setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)));
	close(accepted);
	close(server);
}

/* The other end is in a process outside, which ends with it. */
static void unix_outside(void)
{
	int ends[2];
	char byte;
	MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	if (victim_outsider() == 0) {
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) < 0);
	}
	close(ends[0]);
}

/* Nobody has accepted the connection, and bytes wait in it. */
static void unix_waiting(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/waiting", victim_dir());
	int server = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(bind(server, (void *)&address, sizeof(address)));
	MUST(listen(server, 1));
	int client = MUST(socket(AF_UNIX, SOCK_STREAM, 0));
	MUST(connect(client, (void *)&address, sizeof(address)));
	MUST(write(client, "x", 1));
}

static void netlink(void)
{
	MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
}

static void packet(void)
{
	struct tpacket_req ring = { 4096, 1, 2048, 2 };

	MUST(setsockopt(MUST(socket(AF_PACKET, SOCK_RAW, 0)), SOL_PACKET, PACKET_RX_RING, &ring,
			sizeof(ring)));
}

/* Nobody touches it, so no page of the pool is needed. */
static void huge_shared(void)
{
	int fd = memfd_create("private", MFD_HUGETLB | 21U << 26);
	if (fd < 0 || ftruncate(fd, 2L << 20) ||
	    mmap(NULL, 2UL << 20, PROT_READ, MAP_PRIVATE | MAP_NORESERVE, fd, 0) == MAP_FAILED)
		victim_skip("mmap of huge pages: %s", strerror(errno));
}

static void memfd(void)
{
	int fd = memfd_create("refused", MFD_HUGETLB | 21U << 26);
	/* a part of a page, which ftruncate(2) refuses to make again */
	if (fd < 0 || fallocate(fd, 0, 0, 4096))
		victim_skip("a memfd of huge pages: %s", strerror(errno));
}

/* Somebody who is not of the tree has the master, and ends with the last slave. */
static void pty_outside(void)
{
	int master, slave;
	char byte;
	MUST(openpty(&master, &slave, NULL, NULL, NULL));
	if (victim_outsider() == 0) {
		close(slave);
		while (read(master, &byte, 1) > 0)
			;
		_exit(0);
	}
	close(master);
}

/* The directory that it was in is gone too. */
static void deleted_directory(void)
{
	char *above = victim_path("above"), *path = victim_path("above/deleted");
	MUST(mkdir(above, 0700));
	MUST(mkdir(path, 0700));
	MUST(open(path, O_RDONLY | O_DIRECTORY));
	MUST(rmdir(path));
	MUST(rmdir(above));
}

/* As by an upgrade of a package, of which the tree has a read-only view. */
static void deleted_readonly(void)
{
	int fd;

	victim_own_mounts();
	close(MUST(open(victim_path("whole/a/old"), O_RDWR | O_CREAT, 0644)));
	MUST(mount(victim_path("whole/a"), victim_path("part"), NULL, MS_BIND, NULL));
	MUST(mount(NULL, victim_path("part"), NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL));
	fd = MUST(open(victim_path("part/old"), O_RDONLY));
	MUST(mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0) == MAP_FAILED ? -1 : 0);
	MUST(unlink(victim_path("whole/a/old")));
}

/* Another name is left, but no place for the old one. */
static void renamed_link(void)
{
	char *above = victim_path("was");
	MUST(mkdir(above, 0700));
	temporary_file("was/one");
	MUST(link(victim_path("was/one"), victim_path("two")));
	MUST(unlink(victim_path("was/one")));
	MUST(rmdir(above));
}

static void removed_cwd(void)
{
	char *above = victim_path("up"), *path = victim_path("up/here");
	MUST(mkdir(above, 0700));
	MUST(mkdir(path, 0700));
	MUST(chdir(path));
	MUST(rmdir(path));
	MUST(rmdir(above));
}

static void userfaultfd(void)
{
	if (syscall(SYS_userfaultfd, 0) < 0)
		victim_skip("userfaultfd: %s", strerror(errno));
}

static void io_uring(void)
{
	struct io_uring_params params = { 0 };
	if (syscall(SYS_io_uring_setup, 4, &params) < 0)
		victim_skip("io_uring: %s", strerror(errno));
}

static void message_queue(void)
{
	char name[64];
	snprintf(name, sizeof(name), "/ckpt-refuse-%d", getpid());
	const struct sigevent told = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR2 };
	mqd_t q = MUST(mq_open(name, O_RDWR | O_CREAT, 0600, NULL));
	mq_unlink(name);
	MUST(mq_notify(q, &told));
}

/* Whoever was the last to use the set has ended. The set goes with the test's namespace. */
static void semaphore_undo(void)
{
	struct sembuf take[] = { { 0, 2, 0 }, { 0, -1, SEM_UNDO } };
	int status, set = MUST(semget(IPC_PRIVATE, 1, 0600));
	MUST(semop(set, take, 2));
	pid_t pid = MUST(fork());
	if (pid == 0)
		_exit(semop(set, take, 1) < 0);
	MUST(waitpid(pid, &status, 0));
}

static void semaphores_outside(void)
{
	int set = MUST(semget(IPC_PRIVATE, 2, 0600)), self = getpid();
	MUST(semctl(set, 0, SETVAL, 1));
	if (victim_outsider() == 0) {
		close_range(0, ~0U, 0);
		semctl(set, 1, SETVAL, 1);
		while (kill(self, 0) == 0)
			usleep(10000);
		_exit(0);
	}
	while (MUST(semctl(set, 1, GETVAL)) != 1)
		usleep(1000);
}

/* Nobody can be born there any more. */
static void dead_namespace(void)
{
	int own = MUST(open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC)), status, to[2];
	char path[64], c;
	pid_t pid;

	MUST(unshare(CLONE_NEWPID));
	MUST(pipe(to));
	pid = MUST(fork());
	if (pid == 0)
		_exit(read(to[0], &c, 1) != 1);
	snprintf(path, sizeof(path), "/proc/%d/ns/pid", pid);
	MUST(open(path, O_RDONLY | O_CLOEXEC));
	MUST(write(to[1], "", 1));
	MUST(waitpid(pid, &status, 0));
	MUST(setns(own, CLONE_NEWPID));
}

static void pid_fd(void)
{
	MUST(syscall(SYS_pidfd_open, 1, 0));
}

static void proc_file(void)
{
	MUST(open("/proc/1/status", O_RDONLY));
}

static void owner(void)
{
	int ends[2];
	MUST(pipe(ends));
	MUST(fcntl(ends[0], F_SETOWN, 1));
}

static void epoll_stale(void)
{
	struct epoll_event event = { .events = EPOLLIN };
	int ends[2], epoll = MUST(epoll_create1(0));
	pid_t self = getpid(), between;
	MUST(pipe(ends));
	MUST(epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &event));
	/* somebody who is not of the tree keeps it open for as long as we live */
	between = MUST(fork());
	if (between == 0) {
		if (MUST(fork()) == 0) {
			close(epoll);
			while (kill(self, 0) == 0)
				usleep(50000);
		}
		_exit(0);
	}
	MUST(waitpid(between, NULL, 0));
	close(ends[0]);
	close(ends[1]);
}

static void net_with(const char *command)
{
	MUST(unshare(CLONE_NEWNET));
	if (system("ip link set lo up") || system(command))
		victim_skip("%s failed", command);
}

static void net_details(void)
{
	net_with("ip link property add dev lo altname ckpt-refuse");
}

/* A connection that is over, before that was done to its network namespace. */
static void tcp_over_with(const char *then)
{
	struct linger reset = { 1, 0 };
	char byte;
	net_with("ip link set lo up");
	int server, client = tcp_client(&server);
	int accepted = MUST(accept(server, NULL, NULL));
	MUST(setsockopt(accepted, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset)));
	close(accepted);
	close(server);
	if (read(client, &byte, 1) != -1 || errno != ECONNRESET)
		victim_die("the connection is not reset");
	if (system(then))
		victim_skip("%s: this kernel has not all of it", then);
}

static void tcp_loopback(void)
{
	tcp_over_with("ip link set lo down");
}

static void tcp_filtered(void)
{
	tcp_over_with("nft 'add table inet f; add chain inet f in { type filter hook input "
		      "priority 0; }; add rule inet f in ct state invalid drop'");
}

static void packet_interface(void)
{
	struct sockaddr_ll to = { .sll_family = AF_PACKET };
	net_with("ip link add gone index 77 type bridge");
	to.sll_ifindex = 77;
	MUST(bind(MUST(socket(AF_PACKET, SOCK_DGRAM, 0)), (void *)&to, sizeof(to)));
	if (system("ip link delete gone"))
		victim_die("the interface stays");
}

static void net_stateful(void)
{
	net_with("iptables-nft -A INPUT -m recent --name ckpt --set -j ACCEPT");
}

/* What `ipset create ckpt-refuse hash:ip` says. */
static void net_ipset(void)
{
	struct {
		struct nlmsghdr h;
		struct nfgenmsg g;
		struct nlattr protocol;
		uint8_t number, pad[3];
		struct nlattr name;
		char text[12];
		struct nlattr type;
		char kind[8];
		struct nlattr revision;
		uint8_t first, more[3];
		struct nlattr family;
		uint8_t four, rest[3];
		struct nlattr data;
	} q = { .h = { sizeof(q), NFNL_SUBSYS_IPSET << 8 | IPSET_CMD_CREATE,
		       NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, 1, 0 },
		.g = { .nfgen_family = AF_INET },
		.protocol = { 5, IPSET_ATTR_PROTOCOL },
		.number = IPSET_PROTOCOL_MIN,
		.name = { sizeof(q.name) + sizeof(q.text), IPSET_ATTR_SETNAME },
		.text = "ckpt-refuse",
		.type = { sizeof(q.type) + sizeof(q.kind), IPSET_ATTR_TYPENAME },
		.kind = "hash:ip",
		.revision = { 5, IPSET_ATTR_REVISION },
		.family = { 5, IPSET_ATTR_FAMILY },
		.four = AF_INET,
		.data = { sizeof(q.data), IPSET_ATTR_DATA | NLA_F_NESTED } };
	struct {
		struct nlmsghdr h;
		struct nlmsgerr e;
		char room[256];
	} a = { 0 };
	net_with("true");
	int nl = MUST(socket(AF_NETLINK, SOCK_RAW, NETLINK_NETFILTER));
	MUST(send(nl, &q, sizeof(q), 0));
	MUST(recv(nl, &a, sizeof(a), 0));
	close(nl);
	if (a.e.error)
		victim_skip("no ipsets: %s", strerror(-a.e.error));
}

static void net_lifetime(void)
{
	net_with("ip addr add 10.7.7.7/24 dev lo valid_lft 90000 preferred_lft 90000");
}

static void net_nexthop(void)
{
	net_with("ip addr add 10.7.7.7/24 dev lo && ip nexthop add id 7 dev lo && "
		 "ip route add 192.0.2.0/24 nhid 7");
}

static void net_xfrm(void)
{
	net_with("ip xfrm policy add src 10.0.0.1 dst 10.0.0.2 dir out tmpl src 10.0.0.1 "
		 "dst 10.0.0.2 proto esp mode tunnel");
}

static void mount_part(void)
{
	victim_own_mounts();
	MUST(mount(victim_path("whole/a"), victim_path("part"), NULL, MS_BIND, NULL));
	MUST(mount(victim_path("whole/bb"), victim_path("other"), NULL, MS_BIND, NULL));
	MUST(umount(victim_path("whole")));
}

static void mount_deleted(void)
{
	victim_own_mounts();
	MUST(mount(victim_path("whole/a"), victim_path("part"), NULL, MS_BIND, NULL));
	MUST(rmdir(victim_path("whole/a")));
	MUST(mkdir(victim_path("whole/a"), 0755));
}

static void mount_deleted_twice(void)
{
	victim_own_mounts();
	MUST(mount(victim_path("whole/a"), victim_path("part"), NULL, MS_BIND, NULL));
	MUST(mount(victim_path("part"), victim_path("other"), NULL, MS_BIND, NULL));
	MUST(rmdir(victim_path("whole/a")));
}

static void mount_overlay(void)
{
	char options[1024];

	victim_own_mounts();
	snprintf(options, sizeof(options), "lowerdir=%s:%s", victim_path("whole/a"),
		 victim_path("whole/bb"));
	if (mount("over", victim_path("part"), "overlay", 0, options))
		victim_skip("no overlay can be mounted");
	MUST(mount(victim_path("part"), victim_path("other"), NULL, MS_BIND, NULL));
}

/* Nobody else shows what was in there. */
static void mount_taken_off(void)
{
	victim_own_mounts();
	MUST(open(victim_path("whole/a"), O_RDONLY | O_DIRECTORY));
	MUST(umount2(victim_path("whole"), MNT_DETACH));
}

/* The kernel looks for the devpts beside the node, where nothing is when terminals are made. */
static void terminal_by_node(void)
{
	victim_own_mounts();
	MUST(mkdir(victim_path("whole/pts"), 0755));
	MUST(mount("devpts", victim_path("whole/pts"), "devpts", 0, "newinstance,ptmxmode=0666"));
	MUST(mknod(victim_path("whole/ptmx"), S_IFCHR | 0600, makedev(5, 2)));
	MUST(open(victim_path("whole/ptmx"), O_RDWR | O_NOCTTY));
}

static void tracee(void)
{
	int ends[2];
	char byte = 0;
	MUST(pipe(ends));
	pid_t pid = child();
	if (pid == 0) {
		MUST(ptrace(PTRACE_TRACEME, 0, 0, 0));
		MUST(write(ends[1], &byte, 1));
		close(ends[0]);
		close(ends[1]);
		sleep_forever();
	}
	adopt(pid);
	MUST(read(ends[0], &byte, 1));
	close(ends[0]);
	close(ends[1]);
}

/* The reader is adopted by whoever started us; it ends with the pipe. */
static void pipe_outside(void)
{
	int ends[2];
	char byte;
	MUST(pipe(ends));
	if (victim_outsider() == 0) {
		close(ends[1]);
		_exit(read(ends[0], &byte, 1) < 0);
	}
	close(ends[0]);
}

static int sleeping_child(void *unused)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	sleep_forever();
}

static void sharing(int flags)
{
	size_t size = 1 << 16;
	char *stack = mmap(NULL, size, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
	if (stack == MAP_FAILED)
		victim_die("mmap: %s", strerror(errno));
	adopt(MUST(clone(sleeping_child, stack + size, flags | SIGCHLD, NULL)));
}

static void keyring(void)
{
	if (syscall(SYS_add_key, "user", "ckpt-test", "x", (size_t)1, KEY_SPEC_PROCESS_KEYRING) < 0)
		victim_skip("add_key(2): %s", strerror(errno));
}

static void no_execute_gain(void)
{
	if (prctl(65 /* PR_SET_MDWE */, 1 /* PR_MDWE_REFUSE_EXEC_GAIN */, 0, 0, 0))
		victim_skip("PR_SET_MDWE: %s", strerror(errno));
}

static int thread_stands[2];

/* With what is its own by now, it has a child, or goes on. */
static void *thread_of_its_own(void *flags)
{
	MUST(unshare((int)(intptr_t)flags));
	sharing((int)(intptr_t)flags);
	MUST(write(thread_stands[1], "", 1));
	sleep_forever();
}

static void start_thread(int flags)
{
	pthread_t thread;
	char byte;
	MUST(pipe(thread_stands));
	MUST_ZERO(pthread_create(&thread, NULL, thread_of_its_own, (void *)(intptr_t)flags));
	MUST(read(thread_stands[0], &byte, 1));
}

static void thread_table(void)
{
	start_thread(CLONE_FILES);
}

static void thread_place_shared(void)
{
	start_thread(CLONE_FS);
}

/* A segment that goes when somebody detaches it. */
static void segment_unattached(void)
{
	int fd;
	MUST(unshare(CLONE_NEWIPC));
	fd = MUST(open("/proc/sys/kernel/shm_rmid_forced", O_WRONLY));
	MUST(write(fd, "1", 1));
	close(fd);
	segment = MUST(shmget(IPC_PRIVATE, 1, 0600));
}

static void shared_memory(void)
{
	sharing(CLONE_VM);
}

/* The whole victim moves into a child that is not the leader of its session. */
static void session_outside(void)
{
	pid_t pid = MUST(fork());
	if (pid == 0) {
		MUST(prctl(PR_SET_PDEATHSIG, SIGKILL));
		return;
	}
	waitpid(pid, NULL, 0);
	_exit(0);
}

/* Whoever reads the pipe stays behind in the namespace. */
static void namespace_outside(void)
{
	MUST(unshare(CLONE_NEWUTS));
	pipe_outside();
}

static const struct mode {
	const char *name;
	void (*make)(void);
	const char *blocker; /* an extended regular expression for object and reason */
} modes[] = {
	{ "inotify-queue", inotify, "events wait" },
	{ "fanotify", fanotify, "fanotify" },
	{ "tcp-outside", tcp_outside, "127.0.0.1 port [0-9]+, is outside the tree" },
	{ "tcp-waiting", tcp_waiting, "has sent data" },
	{ "tcp-reset", tcp_reset, "sock socket-error .*error of a TCP connection waits" },
	{ "udp-queue", udp_queue, "datagrams wait" },
	{ "udp-shutdown", udp_shutdown, "shut down" },
	{ "udp-cork", udp_cork, "UDP_CORK" },
	{ "unix-outside", unix_outside, "other end .* is outside the tree: process [0-9]+" },
	{ "unix-waiting", unix_waiting, "has sent data" },
	{ "netlink", netlink, "(netlink|NETLINK)" },
	{ "packet", packet, "sock packet-ring " },
	{ "memfd-huge", memfd, "memfd" },
	{ "huge-shared", huge_shared, "mem hugetlb-shared .*memfd:private" },
	{ "pty-outside", pty_outside, "(pty|pts|ptmx|terminal)" },
	{ "deleted-directory", deleted_directory, "that it was in is gone" },
	{ "deleted-readonly", deleted_readonly, "fd deleted .*its mount is read-only" },
	{ "mapped-readonly", deleted_readonly, "mem deleted-file .*its mount is read-only" },
	{ "other-link", renamed_link, "its directory is gone" },
	{ "removed-cwd", removed_cwd, "nor has the one that it was in" },
	{ "lease-breaking", victim_lease_breaking, "being broken" },
	{ "lease-unreadable", victim_lease_unreadable, "mnt content .*is for writing only" },
	{ "lease-sparse", victim_lease_sparse, "mnt content .*is watched, and it has holes" },
	{ "lease-outside", victim_lease_outside, "mnt content .*outside the tree, has a lease" },
	{ "userfaultfd", userfaultfd, "userfaultfd" },
	{ "io-uring", io_uring, "io_uring" },
	{ "pidfd-outside", pid_fd, "pidfd" },
	{ "proc-outside", proc_file, "process 1 outside" },
	{ "message-queue", message_queue, "ipc mqueue .*mq_notify" },
	{ "semaphores-outside", semaphores_outside, "ipc outside .*semaphores .*process [0-9]+" },
	{ "semaphore-undo", semaphore_undo, "ipc undo .*a set in ckpt's own ipc namespace" },
	{ "namespace-dead", dead_namespace, "ns pid .*no process of the tree is in it" },
	{ "owner-outside", owner, "(F_SETOWN|owner)" },
	{ "epoll-outside", epoll_stale, "only processes outside" },
	{ "net-details", net_details, "link-details .*alternative names" },
	{ "mount-part", mount_part, "/other .*the rest of its filesystem is gone" },
	{ "mount-deleted", mount_deleted, "/part .*its name is used again" },
	{ "mount-deleted-linked", victim_mount_linked, "/point .*has another name left" },
	{ "mount-deleted-open", victim_mount_open, "/point .*a task has it open" },
	{ "mount-deleted-twice", mount_deleted_twice, "/part .*is mounted elsewhere too" },
	{ "mount-overlay", mount_overlay, "/other .*overlay" },
	{ "mount-taken-off", mount_taken_off, "fd detached-mount .*in no mount namespace" },
	{ "terminal-by-node", terminal_by_node, "tty devpts .*by a node beside that devpts" },
	{ "packet-interface", packet_interface, "sock packet-interface .*is gone" },
	{ "net-stateful", net_stateful, "net nftables-stateful .*with recent" },
	{ "net-ipset", net_ipset, "net ipset .*ckpt-refuse" },
	{ "tcp-loopback", tcp_loopback, "sock tcp-loopback .*is down" },
	{ "tcp-filtered", tcp_filtered, "sock tcp-filtered .*in a trial that did not arrive" },
	{ "net-lifetime", net_lifetime, "addresses or routes that expire" },
	{ "net-nexthop", net_nexthop, "next hop objects" },
	{ "net-xfrm", net_xfrm, "IPsec" },
	{ "namespace-outside", namespace_outside, "outside the tree, is in it too" },
	{ "tracee", tracee, "(trace|ptrace)" },
	{ "pipe-outside", pipe_outside, "pipe" },
	{ "no-execute-gain", no_execute_gain, "memory that is written and executed .*PR_SET_MDWE" },
	{ "keyring", keyring, "task keyrings .*process keyring" },
	{ "thread-table", thread_table, "thread shares a table with others" },
	{ "thread-place-shared", thread_place_shared, "thread that shares them with others" },
	{ "segment-unattached", segment_unattached, "ipc unattached .*segment [0-9]+ nobody" },
	{ "shared-memory", shared_memory, "(CLONE_VM|address space|share|memory)" },
	{ "session-outside", session_outside, "session" },
};

static void make(const char *name)
{
	for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
		if (!strcmp(modes[i].name, name))
			return modes[i].make();
	victim_die("no mode %s", name);
}

static void check(void)
{
	CHECK(victim_count_fds() == fds_at_start, "%d descriptors, were %d", victim_count_fds(),
	      fds_at_start);
	CHECK(victim_status(getpid(), "TracerPid", 10) == 0, "somebody traces us");
	struct shmid_ds ds;
	CHECK(segment < 0 || shmctl(segment, IPC_STAT, &ds) == 0, "segment %d: %s", segment,
	      strerror(errno));
	for (size_t i = 0; i < n_children; i++)
		CHECK(kill(children[i], 0) == 0, "child %d is gone", children[i]);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], "--list")) {
		for (size_t i = 0; i < sizeof(modes) / sizeof(*modes); i++)
			printf("%s\t%s\n", modes[i].name, modes[i].blocker);
		return 0;
	}
	victim_init(argc - 1, argv + 1);
	for (char *mode = strtok(argv[1], ","); mode; mode = strtok(NULL, ","))
		make(mode);
	fds_at_start = victim_count_fds();
	victim_ready();
	victim_serve(check);
}
