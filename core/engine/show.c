/* SPDX-License-Identifier: MIT */
/* Decode an image for people and programs. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/engine.h"
#include "engine/json.h"
#include "engine/run.h"
#include "engine/text.h"

struct show {
	struct ckpt *c;
	struct image_reader *rd;
	struct image_store store;
	const char *only;
	bool json, first;
	FILE *out;
};

static const char *print_time(int64_t ns, char text[32])
{
	time_t s = (time_t)(ns / 1000000000);
	struct tm tm;

	if (!gmtime_r(&s, &tm) || !strftime(text, 32, "%Y-%m-%d %H:%M:%S UTC", &tm))
		strcpy(text, "?");
	return text;
}

static void print_ancestor(const struct image_ancestor *a, FILE *out)
{
	char made[32], restored[32];

	fprintf(out, "  from %s, made %s, ", a->uuid, print_time(a->created_ns, made));
	if (!a->restored_ns)
		fputs("left running\n", out);
	else if (a->copy)
		fprintf(out, "copy %u of %s\n", a->copy, print_time(a->restored_ns, restored));
	else
		fprintf(out, "restored %s\n", print_time(a->restored_ns, restored));
}

static void print_info_text(const struct image_info *in, FILE *out)
{
	char when[32];

	fprintf(out, "image %s\n  made %s by ckpt %s on %s\n  kernel %s %s\n  root pid %d\n",
		in->uuid, print_time(in->created_ns, when), in->ckpt_version, in->hostname,
		in->kernel_release, in->machine, in->root_pid);
	for (size_t i = 0; i < in->n_losses; i++)
		fprintf(out, "  lost %s\n", in->losses[i]);
	for (size_t i = 0; i < in->n_ancestors; i++)
		print_ancestor(&in->ancestors[i], out);
}

static void print_info_json(const struct image_info *in, FILE *out)
{
	const struct {
		const char *name, *value;
	} texts[] = {
		{ "uuid", in->uuid },
		{ "ckpt_version", in->ckpt_version },
		{ "kernel_release", in->kernel_release },
		{ "kernel_version", in->kernel_version },
		{ "machine", in->machine },
		{ "hostname", in->hostname },
	};

	fputs("{\"schema\": 1, \"image\": {", out);
	for (size_t i = 0; i < CKPT_ARRAY_SIZE(texts); i++) {
		fprintf(out, "\"%s\": ", texts[i].name);
		json_string(out, texts[i].value ? texts[i].value : "");
		fputs(", ", out);
	}
	fprintf(out, "\"created_ns\": %" PRId64 ", \"root_pid\": %d, \"losses\": [", in->created_ns,
		in->root_pid);
	for (size_t i = 0; i < in->n_losses; i++) {
		fputs(i ? ", " : "", out);
		json_string(out, in->losses[i]);
	}
	fputs("], \"ancestors\": [", out);
	for (size_t i = 0; i < in->n_ancestors; i++) {
		const struct image_ancestor *a = &in->ancestors[i];

		json_member(out, i ? ", {" : "{", "uuid", a->uuid);
		fprintf(out,
			", \"created_ns\": %" PRId64 ", \"restored_ns\": %" PRId64
			", \"copy\": %u}",
			a->created_ns, a->restored_ns, a->copy);
	}
	fputs("]},\n \"plugins\": [", out);
}

static void print_section(struct show *s, const char *name, const char *version)
{
	const struct image_section *sec = image_section_find(&s->store, name);

	if (s->json) {
		json_member(s->out, s->first ? "\n  {" : ",\n  {", "name", name);
		json_member(s->out, ", ", "version", version);
		fputs(", \"records\": ", s->out);
		if (sec)
			image_print_json(sec, s->out);
		else
			fputs("null", s->out);
		fputs("}", s->out);
	} else {
		fprintf(s->out, "\nplugin %s %s\n", name, version ? version : "");
		if (sec)
			image_print_text(sec, s->out);
		else
			fputs("  (the plugin is not here: its records cannot be decoded)\n",
			      s->out);
	}
	s->first = false;
}

static int load_section(struct show *s, const char *name, struct ckpt_error *err)
{
	const struct loaded_plugin *p = plugins_by_name(&s->c->plugins, name);
	struct image_section *sec;

	if (!p)
		return 0;
	sec = image_section_add(&s->store, name, p->desc.records, p->desc.rules);
	return sec ? image_load(s->rd, sec, err) : fail_nomem(err);
}

/* The i-th section that is to be shown, or NULL; *i moves behind it. */
static const char *next_section(const struct show *s, size_t *i, const char **version)
{
	const char *name;

	while ((name = image_reader_plugin(s->rd, (*i)++, version)))
		if (!s->only || !strcmp(name, s->only))
			return name;
	return NULL;
}

/* The plugin that was asked for must be one that is here or in the image. */
static int check_only(const struct show *s, struct ckpt_error *err)
{
	const char *name;

	if (!s->only || plugins_by_name(&s->c->plugins, s->only))
		return 0;
	for (size_t i = 0; (name = image_reader_plugin(s->rd, i, NULL)); i++)
		if (!strcmp(name, s->only))
			return 0;
	return plugins_unknown(&s->c->plugins, s->only, "--plugin", err);
}

static int show(struct show *s, struct ckpt_error *err)
{
	const struct image_info *info = image_reader_info(s->rd);
	const char *name, *version = NULL;
	int r = check_only(s, err);

	/* an image that is bad shall not be found out after half of it was printed */
	for (size_t i = 0; !r && (name = next_section(s, &i, &version));)
		r = load_section(s, name, err);
	if (r < 0)
		return r;
	if (s->json)
		print_info_json(info, s->out);
	else
		print_info_text(info, s->out);
	for (size_t i = 0; (name = next_section(s, &i, &version));)
		print_section(s, name, version);
	if (s->json)
		fputs("\n ]}\n", s->out);
	return 0;
}

int ckpt_show(struct ckpt *c, const char *dir, const char *plugin, bool json, FILE *out,
	      struct ckpt_error *err)
{
	struct show s = { .c = c, .only = plugin, .json = json, .first = true, .out = out };
	int r = engine_need_loaded(c, err);

	if (r < 0)
		return r;
	image_store_init(&s.store);
	r = image_open(dir, &s.rd, err);
	if (!r)
		r = show(&s, err);
	image_store_free(&s.store);
	image_reader_free(s.rd);
	return r < 0 ? ckpt_wrap(err, "show") : 0;
}
