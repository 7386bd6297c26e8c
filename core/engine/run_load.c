/* SPDX-License-Identifier: MIT */
/* An image for a run: is it for this machine, and are the plugins here that wrote it? */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "engine/engine.h"
#include "engine/run.h"
#include "engine/text.h"

static bool wrote_image(void *arg, const char *name)
{
	const struct image_reader *rd = arg;
	const char *plugin;

	for (size_t i = 0; (plugin = image_reader_plugin(rd, i, NULL)); i++)
		if (!strcmp(plugin, name))
			return true;
	return false;
}

int run_open_image(struct ckpt *c, const char *dir, struct image_reader **out,
		   struct ckpt_error *err)
{
	const struct image_info *info;
	struct utsname un;
	int r = image_open(dir, out, err);

	if (r < 0)
		return r;
	info = image_reader_info(*out);
	if (uname(&un) < 0)
		return ckpt_fail_sys(err, errno, "uname(2)");
	if (!info->machine || strcmp(info->machine, un.machine) != 0)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EXDEV,
				    "the image is of a %s machine, this is %s",
				    info->machine ? info->machine : "unknown", un.machine);
	return plugins_check_losses(&c->plugins, wrote_image, *out, err);
}

/* The image has state of a plugin that is not here, or off: every such one is listed. */
static int cannot_decode(struct ckpt_run *run, const char *name, const char *version,
			 struct ckpt_error *err)
{
	const struct loaded_plugin *p = plugins_by_name(&run->ctx->plugins, name);
	char reason[512], hint[256];
	const struct ckpt_finding f = {
		.plugin = (char *)name,
		.reason = reason,
		.hint = hint,
		.exit = p ? CKPT_EXIT_REFUSED : CKPT_EXIT_IMAGE,
		.allowable = !run->ctx->plugins.no_loss,
	};

	if (p)
		snprintf(reason, sizeof(reason),
			 "the image has its state, and it is switched off (%s)", p->origin);
	else
		snprintf(reason, sizeof(reason),
			 "the image has state of its version %s, and it is not here",
			 version ? version : "?");
	snprintf(hint, sizeof(hint),
		 p ? "switch it on: --plugin %s"
		   : "install plugin %s, or say where it is: --plugin-path",
		 name);
	return finding_add(&run->unmet, &run->n_unmet, &f, err);
}

static int lose_section(struct ckpt_run *run, const char *name, struct ckpt_error *err)
{
	struct ckpt_finding f = {
		.plugin = (char *)name,
		.object = (char *)"all its state in the image",
		.reason = (char *)"the plugin is off or not here",
		.hint = (char *)"",
		.exit = CKPT_EXIT_REFUSED,
	};

	return finding_add(&run->result->losses, &run->result->n_losses, &f, err);
}

static int load_section(struct ckpt_run *run, const char *name, const char *version,
			struct ckpt_error *err)
{
	const struct loaded_plugin *p = plugins_by_name(&run->ctx->plugins, name);
	struct image_section *sec;

	if (!p || !p->on) {
		if (plugins_loss_allowed(&run->ctx->plugins, name, NULL))
			return lose_section(run, name, err);
		return cannot_decode(run, name, version, err);
	}
	sec = image_section_add(&run->store, name, p->desc.records, p->desc.rules);
	if (!sec)
		return fail_nomem(err);
	return image_load(run->reader, sec, err);
}

int run_load_sections(struct ckpt_run *run, struct ckpt_error *err)
{
	const char *name, *version = NULL;
	int r = 0;

	for (size_t i = 0; !r && (name = image_reader_plugin(run->reader, i, &version)); i++)
		r = load_section(run, name, version, err);
	/* a plan over half an image would list reasons that are none */
	return r < 0 ? r : run_check_unmet(run, err);
}
