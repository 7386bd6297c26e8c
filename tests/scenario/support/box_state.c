/* SPDX-License-Identifier: MIT */
/* What a box has of each kind of namespace, and its judgement of that. */
#include "victim.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <mqueue.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mount.h>
#include <sys/msg.h>
#include <sys/prctl.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "box.h"

enum { TEXT = 8192, KEY = 0x4b0, SEMAPHORE = 5, FORBIDDEN = 77, WORDS = 512 };

static const unsigned long locked_flags = MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC;

static const struct box *self;
static char told[TEXT], now[TEXT];

/* ---- what it can see of itself ------------------------------------------------------- */

static void append(char *text, const char *label, const char *more)
{
	size_t at = strlen(text);

	snprintf(text + at, TEXT - at, "%s %s\n", label, more ? more : "?");
}

static void append_file(char *text, const char *path)
{
	char *content = victim_read(path);

	append(text, path, content);
	free(content);
}

static void append_status(char *text)
{
	static const char *const keys[] = { "Uid:",   "Gid:", "Groups:",     "NStgid:", "NSpgid:",
					    "NSsid:", "Cap",  "NoNewPrivs:", "Seccomp" };
	char *content = victim_read("/proc/self/status"), *save = NULL;

	for (char *line = content ? strtok_r(content, "\n", &save) : NULL; line;
	     line = strtok_r(NULL, "\n", &save))
		for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
			if (!strncmp(line, keys[i], strlen(keys[i])))
				append(text, "status", line);
	free(content);
}

static void describe(char *text)
{
	struct utsname names;
	char line[256];

	text[0] = 0;
	uname(&names);
	snprintf(line, sizeof(line), "pid %d parent %d group %d session %d host %s domain %s",
		 getpid(), getppid(), getpgid(0), getsid(0), names.nodename, names.domainname);
	append(text, "ids", line);
	append_status(text);
	append_file(text, "/proc/self/uid_map");
	append_file(text, "/proc/self/gid_map");
	append_file(text, "/proc/self/setgroups");
	append_file(text, "/proc/self/cgroup");
}

static void judge_description(void)
{
	char *was = told, *is = now;

	describe(now);
	while (*was && *is) {
		const size_t n = strcspn(was, "\n"), m = strcspn(is, "\n");

		if (n != m || memcmp(was, is, n)) {
			victim_fail("%.*s was %.*s", (int)m, is, (int)n, was);
			return;
		}
		was += n + (was[n] != 0);
		is += m + (is[m] != 0);
	}
	CHECK(*was == *is, "it tells more or less of itself");
}

/* ---- processes ------------------------------------------------------------------------ */

static pid_t exited, killed;

static void make_zombies(void)
{
	siginfo_t info;

	exited = NEED(fork());
	if (exited == 0)
		_exit(3 + self->number);
	killed = NEED(fork());
	if (killed == 0)
		for (;;)
			pause();
	NEED(kill(killed, SIGTERM));
	NEED(waitid(P_PID, (id_t)exited, &info, WEXITED | WNOWAIT));
	NEED(waitid(P_PID, (id_t)killed, &info, WEXITED | WNOWAIT));
}

static void judge_zombies(void)
{
	int status = 0;

	CHECK(waitpid(exited, &status, WNOHANG) == exited && WIFEXITED(status) &&
		      WEXITSTATUS(status) == 3 + self->number,
	      "the dead child %d has status %x", exited, status);
	CHECK(waitpid(killed, &status, WNOHANG) == killed && WIFSIGNALED(status) &&
		      WTERMSIG(status) == SIGTERM,
	      "the killed child %d has status %x", killed, status);
	make_zombies();
}

static void *idle(void *arg)
{
	for (;;)
		pause();
	return arg;
}

static int owned;

static void build_pid(void)
{
	int ends[2];

	NEED(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
	owned = ends[0];
	NEED(fcntl(owned, F_SETOWN, 1));
	NEED(fcntl(owned, F_SETSIG, SIGWINCH));
	NEED(getpid() == 1 ? 0 : -1);
	NEED(setsid());
}

static void judge_pid(void)
{
	CHECK(fcntl(owned, F_GETOWN) == 1 && fcntl(owned, F_GETSIG) == SIGWINCH,
	      "its socket sends signal %d to %d", fcntl(owned, F_GETSIG), fcntl(owned, F_GETOWN));
	CHECK(getpid() == 1 && getsid(0) == 1 && getppid() == 0, "pid %d of session %d below %d",
	      getpid(), getsid(0), getppid());
}

/* ---- user ------------------------------------------------------------------------------ */

static void judge_user(void)
{
	const pid_t pid = fork();
	int status = 0;

	if (pid == 0)
		_exit(setresuid(1000, 1000, 1000) || getuid() != 1000 || !setuid(0));
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && !status,
	      "its root cannot become another user, or back: %x", status);
	CHECK(box_has(self, BOX_UTS) || sethostname("x", 1) < 0,
	      "it can rename the machine outside");
}

/* ---- mnt --------------------------------------------------------------------------------- */

static char base[256] = "/srv"; /* the inside of the innermost box with mounts of its own */
static char given[256];		/* what the box outside of it has mounted, if that is another's */
static int given_users;
static char own[256];

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	NEED(file ? 0 : -1);
	NEED(fputs(text, file));
	NEED(fclose(file));
}

static void mount_own(void)
{
	char path[300];

	NEED(mount("own", own, "tmpfs", MS_NOSUID, "size=64k"));
	snprintf(path, sizeof(path), "%s/file", own);
	write_file(path, "its own");
}

static int watching;

static void judge_watch(void)
{
	struct inotify_event event = { 0 };
	char path[300], rest[64];
	ssize_t n;

	snprintf(path, sizeof(path), "%.*s/new", (int)(strlen(own) - strlen("/own")), own);
	NEED(mkdir(path, 0700));
	NEED(rmdir(path));
	n = read(watching, rest, sizeof(rest));
	if (n > (ssize_t)sizeof(event))
		memcpy(&event, rest, sizeof(event));
	CHECK(event.wd == 1 && event.mask == (IN_CREATE | IN_ISDIR), "watch %d has seen %x",
	      event.wd, event.mask);
}

static void build_mnt(void)
{
	char locked[256], path[300], events[256];

	NEED(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
	if (box_has(self, BOX_PID))
		NEED(mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL));
	NEED(mount("box", base, "tmpfs", 0, "mode=755,size=1m"));
	snprintf(locked, sizeof(locked), "%.200s/locked", base);
	snprintf(own, sizeof(own), "%.200s/own", base);
	NEED(mkdir(locked, 0755));
	NEED(mkdir(own, 0755));
	snprintf(path, sizeof(path), "%.200s/file", base);
	write_file(path, "of the box");
	NEED(chown(path, 33, 44));
	watching = NEED(inotify_init1(IN_NONBLOCK));
	NEED(inotify_add_watch(watching, base, IN_CREATE));
	NEED(mount("locked", locked, "tmpfs", locked_flags, "size=64k"));
	snprintf(path, sizeof(path), "%.200s/in", base);
	NEED(mkdir(path, 0755));
	mount_own();
	/* of what was made just now */
	NEED(read(watching, events, sizeof(events)));
}

/* We are a copy of the box outside of us still: what it has mounted is given to us. */
static void take_over_mnt(void)
{
	if (!self || !box_has(self, BOX_MNT))
		return;
	snprintf(given, sizeof(given), "%.200s/locked", base);
	given_users = self->users;
	snprintf(base + strlen(base), sizeof(base) - strlen(base), "/in");
}

static void judge_mnt(void)
{
	char path[300], *text;
	struct stat st;

	snprintf(path, sizeof(path), "%s/file", own);
	text = victim_read(path);
	CHECK(text && !strcmp(text, "its own"), "its own mount holds %s", text ? text : "nothing");
	free(text);
	snprintf(path, sizeof(path), "%.*s/file", (int)(strlen(own) - strlen("/own")), own);
	CHECK(!stat(path, &st) && st.st_uid == 33 && st.st_gid == 44 && st.st_size == 10,
	      "%s belongs to %u:%u", path, st.st_uid, st.st_gid);
	judge_watch();
	CHECK(!umount(own), "its own mount stays: %s", strerror(errno));
	mount_own();
	if (!given[0] || given_users == self->users)
		return;
	CHECK(umount(given) && errno == EINVAL, "%s can be taken off (%s)", given, strerror(errno));
	CHECK(mount(NULL, given, NULL,
		    MS_REMOUNT | MS_BIND | (locked_flags & ~(unsigned long)MS_RDONLY), NULL) &&
		      errno == EPERM,
	      "%s can be made writable (%s)", given, strerror(errno));
}

/* ---- ipc --------------------------------------------------------------------------------- */

struct message {
	long type;
	char text[16];
};

static int queue, semaphores;
static mqd_t letters;
static unsigned long *segment;

static void post(int n)
{
	struct message message = { .type = n };

	snprintf(message.text, sizeof(message.text), "message %d", n);
	NEED(msgsnd(queue, &message, sizeof(message.text), IPC_NOWAIT));
}

static void build_ipc(void)
{
	struct mq_attr attr = { .mq_maxmsg = 2, .mq_msgsize = sizeof(int) };
	int id;

	letters = NEED(mq_open("/letters", O_CREAT | O_EXCL | O_RDWR | O_NONBLOCK, 0600, &attr));
	NEED(mq_send(letters, (const char *)&self->number, sizeof(int), 1));
	queue = NEED(msgget(KEY, IPC_CREAT | IPC_EXCL | 0666));
	for (int i = 1; i < 4; i++)
		post(i);
	semaphores = NEED(semget(KEY, 2, IPC_CREAT | IPC_EXCL | 0666));
	NEED(semctl(semaphores, 1, SETVAL, SEMAPHORE + self->number));
	id = NEED(shmget(KEY, WORDS * sizeof(long), IPC_CREAT | IPC_EXCL | 0600));
	segment = shmat(id, NULL, 0);
	NEED(segment == (void *)-1 ? -1 : 0);
	for (unsigned long i = 0; i < WORDS; i++)
		segment[i] = victim_word((unsigned long)self->number, i);
}

static void judge_letter(void)
{
	int number = 0;

	CHECK(mq_receive(letters, (char *)&number, sizeof(number), NULL) == sizeof(number) &&
		      number == self->number,
	      "the letter says %d: %s", number, strerror(errno));
	CHECK(mq_send(letters, (const char *)&number, sizeof(number), 1) == 0, "sending it: %s",
	      strerror(errno));
}

static void judge_ipc(void)
{
	judge_letter();
	for (int i = 1; i < 4; i++) {
		struct message message = { 0 };
		char expected[16];

		snprintf(expected, sizeof(expected), "message %d", i);
		CHECK(msgrcv(queue, &message, sizeof(message.text), 0, IPC_NOWAIT) > 0 &&
			      message.type == i && !strcmp(message.text, expected),
		      "message %d is %ld: %s", i, message.type, message.text);
		post(i);
	}
	CHECK(semctl(semaphores, 1, GETVAL) == SEMAPHORE + self->number, "the semaphore is %d",
	      semctl(semaphores, 1, GETVAL));
	for (unsigned long i = 0; i < WORDS; i++)
		CHECK(segment[i] == victim_word((unsigned long)self->number, i),
		      "word %lu of the segment", i);
}

/* ---- net --------------------------------------------------------------------------------- */

enum { PORT = 5000 };

static int listener, client, server, datagrams;

static struct sockaddr_in loopback(int port)
{
	return (struct sockaddr_in){ .sin_family = AF_INET,
				     .sin_port = htons((unsigned short)port),
				     .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
}

static void build_net(void)
{
	struct sockaddr_in tcp = loopback(PORT), udp = loopback(PORT + 1);
	struct ifreq lo = { .ifr_name = "lo", .ifr_flags = IFF_UP };

	datagrams = NEED(socket(AF_INET, SOCK_DGRAM, 0));
	NEED(ioctl(datagrams, SIOCSIFFLAGS, &lo));
	NEED(bind(datagrams, (struct sockaddr *)&udp, sizeof(udp)));
	NEED(sendto(datagrams, "datagram", 8, 0, (struct sockaddr *)&udp, sizeof(udp)));
	listener = NEED(socket(AF_INET, SOCK_STREAM, 0));
	NEED(bind(listener, (struct sockaddr *)&tcp, sizeof(tcp)));
	NEED(listen(listener, 5));
	client = NEED(socket(AF_INET, SOCK_STREAM, 0));
	NEED(connect(client, (struct sockaddr *)&tcp, sizeof(tcp)));
	server = NEED(accept(listener, NULL, NULL));
	NEED(write(client, "stream", 6));
}

static void judge_net(void)
{
	struct sockaddr_in tcp = loopback(PORT), udp = loopback(PORT + 1);
	char text[16] = "";
	int another;

	CHECK(recv(datagrams, text, sizeof(text), MSG_DONTWAIT) == 8 &&
		      !memcmp(text, "datagram", 8),
	      "the datagram is %.8s", text);
	CHECK(sendto(datagrams, "datagram", 8, 0, (struct sockaddr *)&udp, sizeof(udp)) == 8,
	      "no datagram can be sent: %s", strerror(errno));
	CHECK(recv(server, text, 6, MSG_WAITALL) == 6 && !memcmp(text, "stream", 6),
	      "the stream has %.6s", text);
	CHECK(write(client, "stream", 6) == 6, "the connection is broken: %s", strerror(errno));
	another = socket(AF_INET, SOCK_STREAM, 0);
	CHECK(!connect(another, (struct sockaddr *)&tcp, sizeof(tcp)), "nobody listens: %s",
	      strerror(errno));
	close(accept(listener, NULL, NULL));
	close(another);
}

/* ---- uts, cgroup, time --------------------------------------------------------------------- */

static void build_uts(void)
{
	char name[32];

	snprintf(name, sizeof(name), "box-%d", self->number);
	NEED(sethostname(name, strlen(name)));
	NEED(setdomainname("boxes", 5));
}

static const clockid_t clock_ids[] = { CLOCK_MONOTONIC, CLOCK_BOOTTIME };
static time_t clocks[2];

static void judge_time(void)
{
	for (int i = 0; i < 2; i++) {
		struct timespec is;

		clock_gettime(clock_ids[i], &is);
		CHECK(!clocks[i] || (is.tv_sec >= clocks[i] && is.tv_sec < clocks[i] + 3600),
		      "clock %d is %ld, was %ld", i, is.tv_sec, clocks[i]);
		clocks[i] = is.tv_sec;
	}
}

/* ---- filter ---------------------------------------------------------------------------------- */

/* Those of all boxes around us hold for us too: if two allow other processes, none is left. */
static bool filtered;
static pid_t may_be_signalled;

/* Signals to threads of one process only, which is ourselves. */
static void build_filter(void)
{
	const unsigned me = (unsigned)getpid();
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_swapon, 3, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_tgkill, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, me, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | FORBIDDEN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(code[0]), code };

	if (self->number % 2)
		NEED(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	NEED(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
	may_be_signalled = !filtered || may_be_signalled == getpid() ? getpid() : 0;
	filtered = true;
}

static void judge_filter(void)
{
	CHECK(syscall(SYS_swapon, NULL, 0) < 0 && errno == FORBIDDEN, "swapon is not forbidden: %s",
	      strerror(errno));
	CHECK(!syscall(SYS_tgkill, getpid(), getpid(), 0) == (may_be_signalled == getpid()),
	      "its signals to itself: %s", strerror(errno));
	CHECK(syscall(SYS_tgkill, getpid() + 1, getpid() + 1, 0) < 0 && errno == FORBIDDEN,
	      "it can signal others: %s", strerror(errno));
}

/* ---- all ------------------------------------------------------------------------------------- */

/* The filter is the last: what is built before needs no permission. */
static const struct {
	enum box_kind kind;
	void (*build)(void), (*judge)(void);
} states[] = {
	{ BOX_MNT, build_mnt, judge_mnt },
	{ BOX_PID, build_pid, judge_pid },
	{ BOX_IPC, build_ipc, judge_ipc },
	{ BOX_NET, build_net, judge_net },
	{ BOX_UTS, build_uts, NULL },
	{ BOX_TIME, judge_time, judge_time },
	{ BOX_FILTER, build_filter, judge_filter },
	{ BOX_USER, NULL, judge_user },
};

void box_build(const struct box *box)
{
	pthread_t thread;

	take_over_mnt();
	self = box;
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		if (box_has(box, states[i].kind) && states[i].build)
			states[i].build();
	make_zombies();
	if (!segment && !box->join)
		NEED(pthread_create(&thread, NULL, idle, NULL) ? -1 : 0);
	describe(told);
}

void box_judge(void)
{
	judge_description();
	judge_zombies();
	for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
		if (box_has(self, states[i].kind) && states[i].judge)
			states[i].judge();
}
