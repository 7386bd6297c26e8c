/* SPDX-License-Identifier: MIT */
/* Making an image count: data on the disk first, the manifest after it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <ckpt/ckpt.h>

#include "image/writer.h"

/* The manifest's list of files while it grows. Strings are borrowed. */
struct file_list {
	Image__File *files;
	Image__File **ptrs;
	char (*names)[IMAGE_PATH_MAX];
	int *fds; /* of all files, the manifest too, until they are synced */
	size_t n, n_fds;
	uint64_t bytes;
};

static void list_free(struct file_list *l)
{
	free(l->files);
	free(l->ptrs);
	free(l->names);
	for (size_t i = 0; i < l->n_fds; i++)
		close(l->fds[i]);
	free(l->fds);
}

static int end_file(struct file_list *l, struct image_out *o, uint64_t *hash,
		    struct ckpt_error *err)
{
	int r = image_out_end(o, hash, &l->fds[l->n_fds], err);

	l->n_fds += r == 0;
	return r;
}

/* End a file and list it. */
static int list_add(struct file_list *l, struct image_out *o, Image__File__Kind kind, char *owner,
		    char *version, struct ckpt_error *err)
{
	Image__File *f = &l->files[l->n];
	int r;

	image__file__init(f);
	memcpy(l->names[l->n], o->name, sizeof(o->name));
	f->name = l->names[l->n];
	f->kind = kind;
	f->owner = owner;
	if (version)
		f->version = version;
	f->size = o->size;
	r = end_file(l, o, &f->xxh3, err);
	if (r < 0)
		return r;
	l->bytes += f->size;
	l->ptrs[l->n++] = f;
	return 0;
}

static int write_records(struct frame_writer *fw, const struct image_section *sec,
			 struct ckpt_error *err)
{
	int r = 0;

	for (size_t i = 0; r == 0 && i < sec->n; i++)
		r = frame_write(fw, sec->records[i].type->number, sec->records[i].msg, err);
	return r == 0 ? frame_write_end(fw, err) : r;
}

static int write_section(struct image_writer *w, struct file_list *l,
			 const struct image_section *sec, struct ckpt_error *err)
{
	struct image_out out = { .fd = -1 };
	struct frame_writer fw = { 0 };
	int r = image_section_check(sec, err);

	if (r == 0)
		r = image_writer_file(w, IMAGE__FILE__KIND__RECORDS, sec->plugin, &out, err);
	if (r == 0)
		r = frame_write_start(&fw, &out, w->uuid, sec->plugin, err);
	if (r == 0)
		r = write_records(&fw, sec, err);
	if (r == 0)
		r = list_add(l, &out, IMAGE__FILE__KIND__RECORDS, sec->plugin, sec->version, err);
	frame_writer_free(&fw);
	image_out_close(&out);
	return r;
}

static int write_data(struct image_writer *w, const struct image_store *st, struct file_list *l,
		      struct ckpt_error *err)
{
	const size_t max = st->n + w->n_pages;
	int r = 0;

	if (max > IMAGE_FILES_MAX)
		return ckpt_fail(err, E2BIG, "an image of more than %u files", IMAGE_FILES_MAX);
	l->files = calloc(max + 1, sizeof(*l->files));
	l->ptrs = calloc(max + 1, sizeof(*l->ptrs));
	l->names = calloc(max + 1, sizeof(*l->names));
	l->fds = calloc(max + 1, sizeof(*l->fds));
	if (!l->files || !l->ptrs || !l->names || !l->fds)
		return ckpt_fail_sys(err, ENOMEM, "manifest");
	for (size_t i = 0; r == 0 && i < st->n; i++)
		r = write_section(w, l, st->sections[i], err);
	for (size_t i = 0; r == 0 && i < w->n_pages; i++)
		r = list_add(l, w->pages[i]->out, IMAGE__FILE__KIND__PAGES, w->pages[i]->owner,
			     NULL, err);
	return r;
}

/* A loss or a host can have any bytes in its name. */
static void clean_text(char *s)
{
	size_t n;

	for (; *s; s += n) {
		n = utf8_len(s);
		if (n && !utf8_is_control(s, n))
			continue;
		*s = '?';
		n = 1;
	}
}

static int default_text(char **text, const char *value)
{
	if (!*text)
		*text = strdup(value);
	if (!*text)
		return -ENOMEM;
	clean_text(*text);
	return 0;
}

/* Fill in what the caller left open. */
static int complete_info(const struct image_writer *w, struct image_info *info,
			 struct ckpt_error *err)
{
	struct utsname u;
	struct timespec now;

	if (uname(&u) < 0 || clock_gettime(CLOCK_REALTIME, &now) < 0)
		return ckpt_fail_sys(err, errno, "uname");
	memcpy(info->uuid, w->uuid_text, sizeof(info->uuid));
	for (size_t i = 0; i < info->n_losses; i++)
		clean_text(info->losses[i]);
	if (!info->created_ns)
		info->created_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
	if (default_text(&info->ckpt_version, CKPT_VERSION) < 0 ||
	    default_text(&info->kernel_release, u.release) < 0 ||
	    default_text(&info->kernel_version, u.version) < 0 ||
	    default_text(&info->machine, u.machine) < 0 ||
	    default_text(&info->hostname, u.nodename) < 0)
		return ckpt_fail_sys(err, ENOMEM, "manifest");
	return 0;
}

static int fill_ancestors(Image__Manifest *m, const struct image_info *info, struct ckpt_error *err)
{
	size_t n = info->n_ancestors;
	/* the messages, behind the pointers to them */
	Image__Ancestor **list = calloc(n + 1, sizeof(*list) + sizeof(**list));
	Image__Ancestor *all = list ? (Image__Ancestor *)(list + n + 1) : NULL;

	if (!list)
		return ckpt_fail_sys(err, ENOMEM, "manifest");
	for (size_t i = 0; i < n; i++) {
		const struct image_ancestor *a = &info->ancestors[i];

		list[i] = &all[i];
		image__ancestor__init(list[i]);
		list[i]->uuid = (char *)a->uuid;
		list[i]->created_ns = a->created_ns;
		list[i]->restored_ns = a->restored_ns;
		list[i]->copy = a->copy;
	}
	m->ancestors = list;
	m->n_ancestors = n;
	return 0;
}

static int fill_manifest(Image__Manifest *m, const struct image_info *info,
			 const struct file_list *l, struct ckpt_error *err)
{
	image__manifest__init(m);
	m->uuid = (char *)info->uuid;
	m->ckpt_version = info->ckpt_version;
	m->created_ns = info->created_ns;
	m->kernel_release = info->kernel_release;
	m->kernel_version = info->kernel_version;
	m->machine = info->machine;
	m->hostname = info->hostname;
	m->root_pid = info->root_pid;
	m->losses = info->losses;
	m->n_losses = info->n_losses;
	m->files = l->ptrs;
	m->n_files = l->n;
	return fill_ancestors(m, info, err);
}

static int write_manifest(struct image_writer *w, struct file_list *l, const char *name,
			  const Image__Manifest *m, uint64_t *bytes, struct ckpt_error *err)
{
	struct image_out out = { .fd = -1 };
	struct frame_writer fw = { 0 };
	uint64_t hash;
	int r = image_journal_add(w->journal, name, err);

	if (r == 0)
		r = image_out_open(&out, w->dir, name, err);
	if (r == 0)
		r = frame_write_start(&fw, &out, w->uuid, IMAGE_MANIFEST, err);
	if (r == 0)
		r = frame_write(&fw, IMAGE_FRAME_MANIFEST, &m->base, err);
	if (r == 0)
		r = frame_write_end(&fw, err);
	if (r == 0)
		r = end_file(l, &out, &hash, err);
	*bytes = out.size;
	frame_writer_free(&fw);
	image_out_close(&out);
	return r;
}

/* What a reader refuses must not cost the tree. */
static int read_back(const struct image_writer *w, const char *name, struct ckpt_error *err)
{
	IMAGE_AUTO_MANIFEST Image__Manifest *m = NULL;
	uint8_t uuid[16];
	int r = image_manifest_read(w->dir, name, &m, uuid, err);

	return r < 0 ? ckpt_wrap(err, "what was written") : 0;
}

static int sync_files(const struct file_list *l, const char *path, struct ckpt_error *err)
{
	for (size_t i = 0; i < l->n_fds; i++)
		if (fsync(l->fds[i]) < 0)
			return ckpt_fail_sys(err, errno, "fsync of a file in %s", path);
	return 0;
}

static int publish(struct image_writer *w, const char *name, struct ckpt_error *err)
{
	/* the names of the data files must not reach the disk after the manifest's */
	int r = image_directory_sync(w->dir, w->path, err);

	if (r == 0)
		r = image_writer_lock_old(w, err);
	if (r < 0)
		return r;
	if (renameat(w->dir, name, w->dir, IMAGE_MANIFEST_FILE) < 0)
		return ckpt_fail_sys(err, errno, "rename %s/%s to manifest.img", w->path, name);
	w->committed = true;
	r = image_directory_sync(w->dir, w->path, err);
	if (r == 0)
		r = image_directory_sync_entry(w->dir, w->made, w->path, err);
	if (r < 0)
		return ckpt_wrap(err, "the image is complete, but may not outlive a power failure");
	return 0;
}

static int commit(struct image_writer *w, const struct image_store *st, struct image_info *info,
		  struct file_list *l, uint64_t *bytes, struct ckpt_error *err)
{
	char name[IMAGE_PATH_MAX];
	Image__Manifest m;
	uint64_t size;
	int r = write_data(w, st, l, err);

	if (r == 0)
		r = complete_info(w, info, err);
	if (r < 0)
		return r;
	r = fill_manifest(&m, info, l, err);
	image_file_name(name, IMAGE__FILE__KIND__RECORDS, IMAGE_MANIFEST, w->tag);
	if (r == 0)
		r = write_manifest(w, l, name, &m, &size, err);
	free(m.ancestors);
	if (r == 0)
		r = read_back(w, name, err);
	if (r == 0)
		r = sync_files(l, w->path, err);
	if (r == 0)
		r = publish(w, name, err);
	if (r == 0 && bytes)
		*bytes = l->bytes + size;
	return r;
}

int image_commit(struct image_writer *w, const struct image_store *st, struct image_info *info,
		 uint64_t *bytes, struct ckpt_error *err)
{
	struct file_list l = { 0 };
	int r = commit(w, st, info, &l, bytes, err);

	list_free(&l);
	return r;
}
