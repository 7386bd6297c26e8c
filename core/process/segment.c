/* SPDX-License-Identifier: MIT */
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ckpt/cleanup.h>

#include "process/segment.h"
#include "process/set.h"
#include "process/uapi.h"

extern const uint8_t agent_blob[], agent_blob_end[];

_Static_assert(sizeof(struct segment) <= SEGMENT_PAGE, "its page is too small");

/*
 * If the engine dies, the kernel sets FUTEX_OWNER_DIED in the word at that distance from each
 * member of the list, if it holds the number of the thread; the waiters bit makes it wake one. A
 * robust mutex of the C library would have its links beside that word, where others can change
 * them.
 */
static void own(struct segments *all, struct segment *seg)
{
	struct robust_list *first;
	size_t len;

	if (!all->n++) {
		all->before = NULL;
		syscall(SYS_get_robust_list, 0, &all->before, &len);
		all->head = (struct robust_list_head){
			.list = { &all->head.list },
			.futex_offset = SEGMENT_PAGE + AGENT_CODE_SIZE,
		};
		syscall(SYS_set_robust_list, &all->head, sizeof(all->head));
	}
	segment_header(seg)->owner = FUTEX_WAITERS | (uint32_t)syscall(SYS_gettid);
	first = all->head.list.next;
	seg->all = all;
	seg->owned.next = first;
	seg->prev = &all->head.list;
	if (first != &all->head.list)
		((struct segment *)first)->prev = &seg->owned;
	/* also the keeper goes by it (keeper.c) */
	__atomic_store_n(&all->head.list.next, &seg->owned, __ATOMIC_RELEASE);
}

static void disown(struct segment *seg)
{
	struct segments *all = seg->all;
	struct robust_list *next = seg->owned.next;

	__atomic_store_n(&seg->prev->next, next, __ATOMIC_RELEASE);
	if (next != &all->head.list)
		((struct segment *)next)->prev = seg->prev;
	if (!--all->n)
		syscall(SYS_set_robust_list, all->before, sizeof(all->head));
}

static uint32_t seat_size(uint32_t frame)
{
	return (uint32_t)(sizeof(struct agent_seat) + frame + 63) & ~63u;
}

uint64_t segment_length(uint32_t n_seats, uint32_t frame)
{
	return (AGENT_SEATS_AT + (uint64_t)n_seats * seat_size(frame) + 4095) & ~4095ULL;
}

/* Identifiers mean something within one ipc namespace only. */
static int join(const struct segment_users *users, struct ckpt_error *err)
{
	if (users->member && INSIST(setns(users->ns, CLONE_NEWIPC)))
		return ckpt_fail_sys(err, errno, "joining the ipc namespace of process %d",
				     (int)users->member);
	return 0;
}

static int go_back(const struct segment_users *users, struct ckpt_error *err)
{
	if (users->member && INSIST(setns(users->own_ns, CLONE_NEWIPC)))
		return ckpt_fail_sys(err, errno, "going back to ckpt's own ipc namespace");
	return 0;
}

/* A keeper that has not our memory has attached it in its own. */
static int attach(const struct segment *seg, struct ckpt_error *err)
{
	int r = join(&seg->users, err), e;

	if (r)
		return r;
	e = shmat(seg->shmid, seg->base, SHM_REMAP) == (void *)-1 ? errno : 0;
	r = go_back(&seg->users, err);
	return r || !e ? r : ckpt_fail_sys(err, e, "shmat(2) for the agent");
}

static int set_up(struct segment *seg, struct keeper *keeper, struct ckpt_error *err)
{
	void *const at = keeper->shares ? seg->base : NULL;

	seg->shmid = keeper_make(keeper, seg->length, at, seg->users.uid, seg->users.member, err);
	if (seg->shmid < 0)
		return seg->shmid;
	seg->attached = keeper->shares ? 1 : 2;
	if (!keeper->shares && attach(seg, err))
		return -err->err;
	memcpy(seg->base, agent_blob, (size_t)(agent_blob_end - agent_blob));
	segment_header(seg)->seat_size = seg->seat_size;
	segment_header(seg)->n_seats = seg->n_seats;
	segment_header(seg)->length = seg->length;
	return 0;
}

int segment_new(struct segments *all, struct keeper *keeper, uint32_t n_seats, uint32_t frame,
		const struct segment_users *users, struct segment **out, struct ckpt_error *err)
{
	const uint64_t length = segment_length(n_seats, frame);
	/* writable private memory would count against RLIMIT_DATA, which shared memory does not */
	void *room = mmap(NULL, SEGMENT_PAGE + length, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct segment *seg = room;
	int r;

	if (room == MAP_FAILED || mprotect(room, SEGMENT_PAGE, PROT_READ | PROT_WRITE))
		return ckpt_fail_sys(err, errno, "segment for the agent");
	*seg = (struct segment){
		.users = *users,
		.base = (uint8_t *)room + SEGMENT_PAGE,
		.length = length,
		.seat_size = seat_size(frame),
		.n_seats = n_seats,
	};
	r = set_up(seg, keeper, err);
	if (r) {
		munmap(room, SEGMENT_PAGE + length);
		return r;
	}
	own(all, seg);
	__atomic_store_n(&keeper->segments, all, __ATOMIC_RELEASE);
	*out = seg;
	return 0;
}

/*
 * Whoever had the permission before is counted, or has left the time at which he detached: the
 * kernel checks and counts under one lock, and none of ours has detached yet.
 */
int segment_shut(const struct segment *seg, struct ckpt_error *err)
{
	struct shmid_ds ds = {
		.shm_perm = { .uid = geteuid(), .gid = getegid(), .mode = 0400 },
	};
	int r = join(&seg->users, err), e = 0;

	if (r)
		return r;
	if (INSIST(shmctl(seg->shmid, IPC_SET, &ds)) || INSIST(shmctl(seg->shmid, IPC_STAT, &ds)))
		e = errno;
	r = go_back(&seg->users, err);
	if (r || e)
		return r ? r : ckpt_fail_sys(err, e, "shmctl(2) for the agent");
	if (ds.shm_nattch == seg->attached + 1 && !ds.shm_dtime)
		return 0;
	ckpt_fail_as(err, CKPT_EXIT_REFUSED, EPERM,
		     "somebody else has attached the agent's segment (last was process %d)",
		     (int)ds.shm_lpid);
	return ckpt_hint(err, "a process of user %u reaches for it: end that one first",
			 seg->users.uid);
}

void segment_free(struct segment *seg)
{
	if (!seg)
		return;
	disown(seg);
	/* whoever is still in there, after a failure, leaves by itself */
	__atomic_or_fetch(&segment_header(seg)->owner, AGENT_OWNER_DIED, __ATOMIC_SEQ_CST);
	syscall(SYS_futex, &segment_header(seg)->owner, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	free(seg->given_back);
	munmap(seg, SEGMENT_PAGE + seg->length);
}

struct agent_seat *segment_seat(struct segment *seg, uint64_t *addr)
{
	const bool again = seg->n_given_back;
	struct agent_seat *seat;
	uint64_t at;
	uint32_t i;

	if (!again && seg->used_seats >= seg->n_seats)
		return NULL;
	i = again ? seg->given_back[--seg->n_given_back] : seg->used_seats++;
	at = AGENT_SEATS_AT + (uint64_t)i * seg->seat_size;
	seat = (struct agent_seat *)(seg->base + at);
	if (again)
		memset(seat, 0, sizeof(*seat));
	seat->base = seg->addr;
	*addr = seg->addr + at;
	return seat;
}

void segment_give_back(struct segment *seg, const struct agent_seat *seat)
{
	const uint64_t at = (uint64_t)((const uint8_t *)seat - seg->base);

	if (!seg->given_back)
		seg->given_back = calloc(seg->n_seats, sizeof(*seg->given_back));
	/* without memory it is not used again */
	if (seg->given_back)
		seg->given_back[seg->n_given_back++] =
			(uint32_t)((at - AGENT_SEATS_AT) / seg->seat_size);
}

/* ---- looking into a task's mappings -------------------------------------------- */

#define LOWEST_ADDRESS (16ULL << 20)
#define TASK_TOP       0x7ffffffff000ULL
#define GAP_MARGIN     (1ULL << 20)

/*
 * One line of /proc/PID/maps; returns the next line or NULL at the end. Not by
 * sscanf(3), which measures all of the text that follows, each time.
 */
static const char *next_map(const char *line, uint64_t *start, uint64_t *end, char perms[5])
{
	const char *nl;
	char *p;

	if (!line)
		return NULL;
	*start = strtoull(line, &p, 16);
	if (p == line || *p != '-')
		return NULL;
	*end = strtoull(p + 1, &p, 16);
	if (*p != ' ' || strnlen(p + 1, 4) < 4)
		return NULL;
	memcpy(perms, p + 1, 4);
	perms[4] = 0;
	nl = strchr(p, '\n');
	return nl ? nl + 1 : p + strlen(p);
}

int find_gap(const char *maps, uint64_t length, uint64_t *addr, struct ckpt_error *err)
{
	uint64_t from = LOWEST_ADDRESS, start, end;
	char perms[5];
	const char *p = maps;

	while ((p = next_map(p, &start, &end, perms))) {
		if (start >= TASK_TOP)
			break;
		if (start > from && start - from >= length + 2 * GAP_MARGIN) {
			*addr = from + GAP_MARGIN;
			return 0;
		}
		if (end > from)
			from = end;
	}
	if (TASK_TOP > from && TASK_TOP - from >= length + 2 * GAP_MARGIN) {
		*addr = from + GAP_MARGIN;
		return 0;
	}
	return ckpt_fail_sys(err, ENOMEM, "no gap of %" PRIu64 " bytes between the mappings",
			     length);
}

uint64_t room_below(const char *maps, uint64_t addr)
{
	uint64_t from = 0, until = 0, start, end;
	char perms[5];
	const char *p = maps, *line = maps;

	for (; (p = next_map(line, &start, &end, perms)); line = p) {
		if (perms[1] != 'w')
			continue;
		if (start != until)
			from = start;
		until = end;
		if (addr > start && addr <= end)
			/* the main stack grows when it is needed */
			return addr - from +
			       (memmem(line, (size_t)(p - line), "[stack]", 7) ? GAP_MARGIN : 0);
	}
	return 0;
}

/* Not by memmem(3), which looks at each byte on its own. */
static const uint8_t *find_pair(const uint8_t *p, const uint8_t *end, const char *pair)
{
	while (end - p > 1 && (p = memchr(p, pair[0], (size_t)(end - p) - 1))) {
		if (p[1] == (uint8_t)pair[1])
			return p;
		p++;
	}
	return NULL;
}

/* Does "mov $15,%rax" or "mov $15,%eax" end right before `f`? Its length, or 0. */
static size_t mov_before(const uint8_t *text, const uint8_t *f)
{
	static const char mov[] = "\x48\xc7\xc0\x0f\0\0\0", short_mov[] = "\xb8\x0f\0\0\0";

	if (f - text >= 7 && !memcmp(f - 7, mov, 7))
		return 7;
	return f - text >= 5 && !memcmp(f - 5, short_mov, 5) ? 5 : 0;
}

static bool complete(const struct gadgets *g)
{
	return g->syscall_ret && (g->sigreturn || g->pop_rax);
}

/* One pass for both: system call instructions are rare, and what surrounds them tells. */
static bool search_text(const uint8_t *text, size_t n, uint64_t at, void *arg)
{
	const uint8_t *f = text, *end = text + n;
	struct gadgets *g = arg;

	for (; (f = find_pair(f, end, "\x0f\x05")); f += 2) {
		size_t mov = mov_before(text, f);

		if (!g->syscall_ret && end - f > 2 && f[2] == 0xc3)
			g->syscall_ret = at + (uint64_t)(f - text);
		if (!g->sigreturn && mov)
			g->sigreturn = at + (uint64_t)(f - text) - mov;
		if (g->syscall_ret && g->sigreturn)
			return true;
	}
	if (!g->pop_rax && !g->sigreturn && (f = find_pair(text, end, "\x58\xc3")))
		g->pop_rax = at + (uint64_t)(f - text);
	return complete(g);
}

/* Small enough for memory that malloc(3) has at hand: fresh pages cost more than the search. */
#define TEXT_CHUNK (32u << 10)

static bool is_text(const char *maps, uint64_t at)
{
	uint64_t start, end;
	char perms[5];

	for (const char *p = maps; (p = next_map(p, &start, &end, perms));)
		if (at >= start && at < end)
			return perms[0] == 'r' && perms[2] == 'x';
	return false;
}

static bool holds(int memfd, const char *maps, uint64_t at, const char *what, size_t len)
{
	char buf[16];

	return is_text(maps, at) && pread(memfd, buf, len, (off_t)at) == (ssize_t)len &&
	       !memcmp(buf, what, len);
}

bool same_gadgets(int memfd, const char *maps, const struct gadgets *g)
{
	if (!complete(g) || !holds(memfd, maps, g->syscall_ret, "\x0f\x05\xc3", 3))
		return false;
	if (!g->sigreturn)
		return holds(memfd, maps, g->pop_rax, "\x58\xc3", 2);
	return holds(memfd, maps, g->sigreturn, "\x48\xc7\xc0\x0f\0\0\0\x0f\x05", 9) ||
	       holds(memfd, maps, g->sigreturn, "\xb8\x0f\0\0\0\x0f\x05", 7);
}

typedef bool (*look_fn)(const uint8_t *text, size_t n, uint64_t at, void *arg);

/*
 * From the end of a mapping to its start: what the dynamic linker has of the C library comes last
 * in it. Chunks overlap, so that no instruction hides across a border.
 */
static bool search_mapping(int memfd, uint64_t start, uint64_t end, uint8_t *buf, look_fn look,
			   void *arg)
{
	for (uint64_t until = end; until > start;) {
		uint64_t at = until - start > TEXT_CHUNK ? until - TEXT_CHUNK : start;
		ssize_t n = pread(memfd, buf, (size_t)(until - at), (off_t)at);

		if (n > 0 && look(buf, (size_t)n, at, arg))
			return true;
		until = at > start ? at + 16 : start;
	}
	return false;
}

/*
 * From the last mapping to the first: the dynamic linker, whose text is small and has all that is
 * looked for, is the last, and code that a program makes for itself comes before what it was
 * started with. 1: found.
 */
static int search_maps(int memfd, const char *maps, uint64_t not_in, look_fn look, void *arg,
		       struct ckpt_error *err)
{
	CKPT_AUTO_FREE uint8_t *buf = malloc(TEXT_CHUNK);

	if (!buf)
		return ckpt_fail_sys(err, ENOMEM, "search in the task's text");
	for (const char *line, *end = maps + strlen(maps); end > maps; end = line) {
		const char *before = memrchr(maps, '\n', (size_t)(end - maps) - 1);
		uint64_t from, to;
		char perms[5];

		line = before ? before + 1 : maps;
		if (next_map(line, &from, &to, perms) && perms[0] == 'r' && perms[2] == 'x' &&
		    from < TASK_TOP && from != not_in &&
		    search_mapping(memfd, from, to, buf, look, arg))
			return 1;
	}
	return 0;
}

int find_gadgets(int memfd, const char *maps, struct gadgets *g, struct ckpt_error *err)
{
	int r;

	memset(g, 0, sizeof(*g));
	r = search_maps(memfd, maps, 0, search_text, g, err);
	if (r)
		return r < 0 ? r : 0;
	return ckpt_fail(err, ENOENT,
			 "its text has no \"syscall; ret\" and no way to rt_sigreturn(2), "
			 "without which a dump would not survive the death of ckpt");
}

bool same_syscall(int memfd, const char *maps, uint64_t at)
{
	return at && holds(memfd, maps, at, "\x0f\x05", 2);
}

static bool search_syscall(const uint8_t *text, size_t n, uint64_t at, void *arg)
{
	const uint8_t *f = find_pair(text, text + n, "\x0f\x05");

	if (f)
		*(uint64_t *)arg = at + (uint64_t)(f - text);
	return f != NULL;
}

int find_syscall(int memfd, const char *maps, uint64_t not_in, uint64_t *addr,
		 struct ckpt_error *err)
{
	int r = search_maps(memfd, maps, not_in, search_syscall, addr, err);

	if (r)
		return r < 0 ? r : 0;
	return ckpt_fail(err, ENOENT, "no system call instruction in the task's text");
}
