/* SPDX-License-Identifier: MIT */
/*
 * test: only=served
 *
 * A filesystem that a process answers for. `served serve HOW DIR`: a FUSE server at DIR/mnt; while
 * there is DIR/hang it does not answer, or (that has a number) not while this process is traced.
 * Any other mode is a victim: `inside-USE` has the server in its tree, `uses-USE` finds it at
 * DIR/mnt, and `decides` has a fanotify listener that is asked for permission.
 */
#include "victim.h"

#include <fcntl.h>
#include <linux/fuse.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/fanotify.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_NODE = 2, BUFFER = 1 << 20 };
static const char content[] = "served";

static const char *use, *directory;
static int fd = -1;
static const char *mapped;

/* ---- the server ------------------------------------------------------------------------- */

static void attributes(struct fuse_attr *a, uint64_t node)
{
	*a = (struct fuse_attr){ .ino = node, .nlink = 1, .blksize = 4096 };
	a->mode = node == FILE_NODE ? S_IFREG | 0755 : S_IFDIR | 0755;
	a->size = node == FILE_NODE ? sizeof(content) : 0;
}

/* The length of the answer, or a negative errno. */
static int answer(const struct fuse_in_header *h, void *out)
{
	switch (h->opcode) {
	case FUSE_INIT:
		*(struct fuse_init_out *)out = (struct fuse_init_out){
			.major = 7, .minor = 31, .max_readahead = 4096, .max_write = 65536
		};
		return sizeof(struct fuse_init_out);
	case FUSE_LOOKUP:
		if (strcmp((const char *)(h + 1), "file") != 0)
			return -ENOENT;
		*(struct fuse_entry_out *)out = (struct fuse_entry_out){ .nodeid = FILE_NODE };
		attributes(&((struct fuse_entry_out *)out)->attr, FILE_NODE);
		return sizeof(struct fuse_entry_out);
	case FUSE_GETATTR:
		*(struct fuse_attr_out *)out = (struct fuse_attr_out){ 0 };
		attributes(&((struct fuse_attr_out *)out)->attr, h->nodeid);
		return sizeof(struct fuse_attr_out);
	case FUSE_OPEN:
	case FUSE_OPENDIR:
		*(struct fuse_open_out *)out = (struct fuse_open_out){ .fh = 1 };
		return sizeof(struct fuse_open_out);
	case FUSE_STATFS:
		*(struct fuse_statfs_out *)out =
			(struct fuse_statfs_out){ .st = { .bsize = 4096, .namelen = 255 } };
		return sizeof(struct fuse_statfs_out);
	case FUSE_READ:
		if (((const struct fuse_read_in *)(h + 1))->offset)
			return 0;
		memcpy(out, content, sizeof(content));
		return sizeof(content);
	case FUSE_FLUSH:
	case FUSE_RELEASE:
	case FUSE_RELEASEDIR:
	case FUSE_ACCESS:
		return 0;
	default:
		return -ENOSYS;
	}
}

static bool is_mute(void)
{
	char path[4096], *text;
	bool mute;
	pid_t pid;

	if (!directory)
		return false;
	snprintf(path, sizeof(path), "%s/hang", directory);
	text = victim_read(path);
	if (!text)
		return false;
	pid = (pid_t)atoi(text);
	mute = !pid || victim_status(pid, "TracerPid", 10) > 0;
	/* for good */
	if (mute && pid)
		victim_write(path, "");
	free(text);
	return mute;
}

static void serve(int device, bool unread)
{
	static char in[BUFFER], out[BUFFER];
	const struct fuse_in_header *h = (void *)in;
	struct fuse_out_header *o = (void *)out;
	struct pollfd p = { .fd = device, .events = POLLIN };

	for (;;) {
		int r;

		if (unread && (poll(&p, 1, -1) != 1 || is_mute())) {
			usleep(10000);
			continue;
		}
		if (read(device, in, sizeof(in)) < 0) {
			if (errno == EINTR || errno == ENOENT || errno == EAGAIN)
				continue;
			_exit(0);
		}
		if (h->opcode == FUSE_FORGET || h->opcode == FUSE_BATCH_FORGET ||
		    h->opcode == FUSE_INTERRUPT || (!unread && is_mute()))
			continue;
		r = answer(h, o + 1);
		*o = (struct fuse_out_header){ .unique = h->unique, .error = r < 0 ? r : 0 };
		o->len = (uint32_t)sizeof(*o) + (r < 0 ? 0 : (uint32_t)r);
		if (write(device, out, o->len) < 0 && errno == ENODEV)
			_exit(0);
	}
}

static int mounted(const char *at)
{
	int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
	char options[100];

	if (device < 0)
		victim_skip("/dev/fuse: %s", strerror(errno));
	mkdir(at, 0755);
	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	MUST(mount("served", at, "fuse", 0, options));
	return device;
}

static int stand_alone(const char *how, const char *dir)
{
	char path[4096];
	int device;

	directory = dir;
	snprintf(path, sizeof(path), "%s/mnt", dir);
	device = mounted(path);
	snprintf(path, sizeof(path), "%s/serving", dir);
	victim_write(path, "");
	serve(device, !strcmp(how, "unread"));
	return 0;
}

/* ---- victims ---------------------------------------------------------------------------- */

static void take(void)
{
	const char *path = victim_path("mnt/file");

	if (!strcmp(use, "cwd")) {
		MUST(chdir(victim_path("mnt")));
	} else if (strcmp(use, "idle") != 0) {
		fd = MUST(open(path, O_RDONLY));
		if (!strcmp(use, "mapped")) {
			mapped = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
			if (mapped == MAP_FAILED)
				victim_die("mmap(2): %s", strerror(errno));
			close(fd);
			fd = -1;
		}
	}
}

static void check(void)
{
	char buf[sizeof(content)] = "", cwd[4096];

	if (!access(victim_path("hang"), F_OK))
		return;
	if (fd >= 0)
		CHECK(pread(fd, buf, sizeof(buf), 0) > 0 && !strcmp(buf, content),
		      "the file has \"%s\"", buf);
	if (mapped)
		CHECK(!strcmp(mapped, content), "the mapping has \"%s\"", mapped);
	if (!strcmp(use, "cwd"))
		CHECK(getcwd(cwd, sizeof(cwd)) && !strcmp(cwd, victim_path("mnt")),
		      "the working directory is another");
}

static void own_namespace(void)
{
	MUST(unshare(CLONE_NEWNS));
	MUST(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL));
}

static void with_server(void)
{
	int device;

	own_namespace();
	device = mounted(victim_path("mnt"));
	if (!MUST(fork()))
		serve(device, false);
	close(device);
}

/* Only opens below a tmpfs of its own are asked for. */
static void with_listener(void)
{
	const char *at = victim_path("mnt");
	char copy[4200];
	int listener;

	own_namespace();
	mkdir(at, 0755);
	MUST(mount("decided", at, "tmpfs", 0, NULL));
	snprintf(copy, sizeof(copy), "cp /proc/%d/exe '%s/mnt/program'", getpid(), victim_dir());
	victim_run(copy);
	listener = fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, O_RDONLY);
	if (listener < 0)
		victim_skip("fanotify_init(2): %s", strerror(errno));
	if (!MUST(fork())) {
		struct fanotify_event_metadata events[64];

		MUST(fanotify_mark(listener, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_OPEN_PERM, AT_FDCWD,
				   victim_path("mnt")));
		victim_write(victim_path("listens"), "");
		for (;;) {
			ssize_t n = read(listener, events, sizeof(events));

			for (const struct fanotify_event_metadata *m = events; FAN_EVENT_OK(m, n);
			     m = FAN_EVENT_NEXT(m, n)) {
				struct fanotify_response r = { m->fd, FAN_ALLOW };

				MUST(write(listener, &r, sizeof(r)));
				close(m->fd);
			}
		}
	}
	close(listener);
	while (access(victim_path("listens"), F_OK))
		usleep(1000);
	/* what a look at a tree opens */
	MUST(execl(victim_path("mnt/program"), "served", "decided", victim_dir(), NULL));
}

int main(int argc, char **argv)
{
	const char *mode = argc > 2 ? argv[1] : "";

	if (!strcmp(mode, "serve"))
		return stand_alone(argv[2], argv[3]);
	use = strchr(mode, '-') ? strchr(mode, '-') + 1 : "";
	victim_init(argc - 1, argv + 1);
	if (!strcmp(mode, "decides"))
		with_listener();
	if (!strncmp(mode, "inside-", 7))
		with_server();
	if (strcmp(mode, "decided") != 0)
		take();
	victim_ready();
	victim_serve(check);
}
