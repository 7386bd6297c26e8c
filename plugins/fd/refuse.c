/* SPDX-License-Identifier: MIT */
/* What is not saved, and how it is called. */
#include "internal.h"

#include <fcntl.h>
#include <linux/netlink.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

static void object_of(const struct ckpt_fd_found *f, char *buf, size_t size)
{
	snprintf(buf, size, "fd %d (%s)", f->num, f->link);
}

static int refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		  const char *reason, const char *hint)
{
	char object[512];

	object_of(f, object, sizeof(object));
	return ckpt_refuse(run, &(struct ckpt_blocker){
					.feature = feature,
					.task = f->task,
					.object = object,
					.reason = reason,
					.hint = hint,
				});
}

int fd_refuse(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
	      const char *reason, const char *hint)
{
	int r = refuse(run, f, feature, reason, hint);

	return r < 0 && r != -ECANCELED ? r : 1;
}

int fd_refuse_detail(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		     const char *reason, const char *hint)
{
	int r = refuse(run, f, feature, reason, hint);

	return r == -ECANCELED ? 1 : r;
}

int fd_refuse_readonly(struct ckpt_run *run, const struct ckpt_fd_found *f, const char *feature,
		       struct ckpt_error *err)
{
	struct statvfs fs;

	if (fstatvfs(f->fd, &fs))
		return ckpt_fail_sys(err, errno, "fstatvfs(2)");
	if (!(fs.f_flag & ST_RDONLY))
		return 0;
	return fd_refuse(
		run, f, feature,
		"it was deleted, and its mount is read-only: it cannot be made there again",
		"let the program open the file anew, or allow the loss");
}

/* ---- files of no kind --------------------------------------------------------- */

struct name {
	const char *start; /* of the link */
	const char *feature;
	const char *reason;
};

static const struct name names[] = {
	{ "anon_inode:[fanotify]", "fanotify", "fanotify is not saved" },
	{ "anon_inode:[io_uring]", "io-uring",
	  "io_uring is not saved; programs do without it when they are told to (mariadbd: "
	  "--innodb-use-native-aio=0) or the sysctl kernel.io_uring_disabled is 2" },
	{ "anon_inode:[userfaultfd]", "userfaultfd", "userfaultfd is not saved" },
	{ "anon_inode:[perf_event]", "perf", "perf events are not saved" },
	{ "anon_inode:bpf", "bpf", "BPF objects are not saved" },
	{ "anon_inode:btf", "bpf", "BPF objects are not saved" },
	{ "anon_inode:seccomp notify", "seccomp-notify",
	  "seccomp listeners are saved by the plugin seccomp, which is off" },
	{ "anon_inode:[landlock", "landlock", "landlock rulesets are not saved" },
	{ "anon_inode:kvm", "kvm", "virtual machines are not saved" },
	{ "anon_inode:dma_buf", "dma-buf", "DMA buffers are not saved" },
	{ "/secretmem", "secretmem", "secret memory is not saved" },
	{ "anon_inode:", "anon-inode", "this kind of object is not known to ckpt" },
	{ "mnt:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "net:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "pid:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "user:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "ipc:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "uts:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "cgroup:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
	{ "time:[", "namespace-fd", "namespaces are saved by the plugin ns, which is off" },
};

static bool plugin_sock_is_on(struct ckpt_run *run)
{
	const char *plugin;

	for (size_t i = 0; ckpt_extension_at(run, CKPT_FD_POINT, i, &plugin); i++)
		if (!strcmp(plugin, "sock"))
			return true;
	return false;
}

/* A socket that is not one of the kinds, by its family, type and state. */
static const struct name *socket_name(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	static const struct name off = { NULL, "socket",
					 "sockets are saved by the plugin sock, which is off" };
	static const struct name tcp = { NULL, "tcp",
					 "TCP connections, and what is left of them, are not "
					 "saved yet" };
	static const struct name inet = { NULL, "inet", "this internet protocol is not saved" };
	static const struct name unconnected = {
		NULL, "unix", "this unix socket is of no kind that is known to ckpt"
	};
	static const struct name netlink = { NULL, "netlink", "netlink sockets are not saved" };
	static const struct name packet = { NULL, "packet", "packet sockets are not saved" };
	static const struct name vsock = { NULL, "vsock", "vsock sockets are not saved" };
	static const struct name other = { NULL, "socket", "this socket family is not saved" };

	if (!plugin_sock_is_on(run))
		return &off;
	switch (f->domain) {
	case AF_INET:
	case AF_INET6:
		return f->protocol == IPPROTO_TCP ? &tcp : &inet;
	case AF_UNIX:
		return &unconnected;
	case AF_NETLINK:
		return &netlink;
	case AF_PACKET:
		return &packet;
	case AF_VSOCK:
		return &vsock;
	default:
		return &other;
	}
}

static int refuse_char(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	static const char redirect[] =
		"start the program with its input and output redirected "
		"(</dev/null >LOG 2>&1) and in a session of its own (setsid)";
	unsigned maj = major(f->st.st_rdev);
	char reason[96];

	/* 4: consoles, 5: /dev/tty and ptmx, 136 to 143: pts */
	if (maj == 4 || maj == 5 || (maj >= 136 && maj <= 143))
		return fd_refuse(run, f, "tty", "no plugin that is on saves such terminals",
				 redirect);
	snprintf(reason, sizeof(reason), "character device %u:%u is not known to ckpt", maj,
		 minor(f->st.st_rdev));
	return fd_refuse(run, f, "device", reason, "a plugin for this device could handle it");
}

int fd_refuse_unknown(struct ckpt_run *run, const struct ckpt_fd_found *f)
{
	static const char hint[] = "close it before the dump, or allow the loss";

	if (S_ISSOCK(f->st.st_mode)) {
		const struct name *n = socket_name(run, f);

		return fd_refuse(run, f, n->feature, n->reason, hint);
	}
	if (S_ISCHR(f->st.st_mode))
		return refuse_char(run, f);
	if (S_ISBLK(f->st.st_mode))
		return fd_refuse(run, f, "block-device", "block devices are not saved", hint);
	if (fd_is_queue(f))
		return fd_refuse(run, f, "mqueue",
				 "POSIX message queues are saved by the plugin ipc, which is off",
				 hint);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(names); i++)
		if (!strncmp(f->link, names[i].start, strlen(names[i].start)))
			return fd_refuse(run, f, names[i].feature, names[i].reason, hint);
	return fd_refuse(run, f, "unknown", "no kind of descriptor recognises it", hint);
}
