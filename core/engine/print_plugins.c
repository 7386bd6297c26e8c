/* SPDX-License-Identifier: MIT */
/* `ckpt plugins`: what is loaded, from where, and the setting that is in effect. */
#include <string.h>

#include "engine/engine.h"
#include "engine/json.h"

static void option_text(const struct opt_value *v, FILE *out)
{
	if (!v->set)
		fputs("(unset)", out);
	else if (v->n_items)
		for (size_t i = 0; i < v->n_items; i++)
			fprintf(out, "%s%s", i ? ", " : "", v->items[i]);
	else
		fputs(*v->text ? v->text : "(empty)", out);
}

static void plugin_text(const struct loaded_plugin *p, FILE *out)
{
	fprintf(out, "%s %s  %s  (%s)\n  %s\n  from %s, %s%s\n", p->name, p->desc.version,
		p->on ? "on" : "off", p->origin, p->desc.summary, p->path, p->desc.license,
		p->desc.flags & CKPT_PLUGIN_ESSENTIAL ? ", essential" : "");
	for (size_t i = 0; p->features && p->desc.features[i].name; i++)
		fprintf(out, "  feature %-18s %-4s (%s)  %s\n", p->desc.features[i].name,
			p->features[i].on ? "on" : "off", p->features[i].origin,
			p->desc.features[i].help);
	for (size_t i = 0; p->options && p->desc.options[i].name; i++) {
		const struct ckpt_option *o = &p->desc.options[i];

		fprintf(out, "  option  %-18s ", o->name);
		option_text(&p->options[i], out);
		fprintf(out, " (%s)  %s [%s]\n",
			p->options[i].origin ? p->options[i].origin : "default", o->help,
			option_type_name(o->type));
	}
	for (const struct ckpt_extension *e = p->desc.extensions; e && e->point; e++)
		fprintf(out, "  handles %s %s\n", e->point, e->name);
}

static void print_text(const struct ckpt *c, FILE *out)
{
	const struct plugin_set *ps = &c->plugins;
	const struct setting *profile = settings_last(&c->settings, SET_PROFILE);

	if (profile)
		fprintf(out, "profile %s  (%s)\n", profile->value, profile->origin);
	if (ps->no_loss)
		fprintf(out, "allow-loss none  (%s)\n", ps->no_loss);
	for (size_t i = 0; i < ps->n_losses; i++)
		fprintf(out, "allow-loss %s%s%s  (%s)\n", ps->losses[i].plugin,
			ps->losses[i].feature ? "." : "",
			ps->losses[i].feature ? ps->losses[i].feature : "", ps->losses[i].origin);
	if (ps->missing.err)
		fprintf(out, "MISSING: %s\n", ps->missing.text);
	for (size_t i = 0; i < ps->n; i++) {
		fputs("\n", out);
		plugin_text(ps->list[i], out);
	}
	for (size_t i = 0; i < ps->n_rejected; i++)
		fprintf(out, "\n%s  %s\n  from %s\n  %s\n", ps->rejected[i].name,
			ps->rejected[i].masked ? "masked" : "REJECTED", ps->rejected[i].path,
			ps->rejected[i].why);
}

static void features_json(const struct loaded_plugin *p, FILE *out)
{
	fputs(", \"features\": [", out);
	for (size_t i = 0; p->features && p->desc.features[i].name; i++) {
		fprintf(out, "%s{\"on\": %s", i ? ", " : "", p->features[i].on ? "true" : "false");
		json_member(out, ", ", "name", p->desc.features[i].name);
		json_member(out, ", ", "help", p->desc.features[i].help);
		json_member(out, ", ", "origin", p->features[i].origin);
		fputs("}", out);
	}
	fputs("]", out);
}

static void options_json(const struct loaded_plugin *p, FILE *out)
{
	fputs(", \"options\": [", out);
	for (size_t i = 0; p->options && p->desc.options[i].name; i++) {
		const struct ckpt_option *o = &p->desc.options[i];
		const struct opt_value *v = &p->options[i];

		fprintf(out, "%s{\"type\": \"%s\"", i ? ", " : "", option_type_name(o->type));
		json_member(out, ", ", "name", o->name);
		json_member(out, ", ", "help", o->help);
		json_member(out, ", ", "default", o->def);
		json_member(out, ", ", "origin", v->origin ? v->origin : "default");
		if (o->type != CKPT_OPT_LIST) {
			json_member(out, ", ", "value", v->text);
		} else {
			fputs(", \"value\": [", out);
			for (size_t k = 0; k < v->n_items; k++) {
				fputs(k ? ", " : "", out);
				json_string(out, v->items[k]);
			}
			fputs("]", out);
		}
		fputs("}", out);
	}
	fputs("]", out);
}

static void extensions_json(const struct loaded_plugin *p, FILE *out)
{
	fputs(", \"extensions\": [", out);
	for (size_t i = 0; p->desc.extensions && p->desc.extensions[i].point; i++) {
		fputs(i ? ", {\"point\": " : "{\"point\": ", out);
		json_string(out, p->desc.extensions[i].point);
		json_member(out, ", ", "name", p->desc.extensions[i].name);
		fputs("}", out);
	}
	fputs("]", out);
}

static void plugin_json(const struct loaded_plugin *p, FILE *out)
{
	fprintf(out, "{\"on\": %s, \"essential\": %s", p->on ? "true" : "false",
		p->desc.flags & CKPT_PLUGIN_ESSENTIAL ? "true" : "false");
	json_member(out, ", ", "name", p->name);
	json_member(out, ", ", "version", p->desc.version);
	json_member(out, ", ", "summary", p->desc.summary);
	json_member(out, ", ", "license", p->desc.license);
	json_member(out, ", ", "path", p->path);
	json_member(out, ", ", "origin", p->origin);
	features_json(p, out);
	options_json(p, out);
	extensions_json(p, out);
	fputs("}", out);
}

static void losses_json(const struct plugin_set *ps, FILE *out)
{
	fputs(",\n \"allow_loss\": [", out);
	for (size_t i = 0; i < ps->n_losses; i++) {
		fputs(i ? ", {\"plugin\": " : "{\"plugin\": ", out);
		json_string(out, ps->losses[i].plugin);
		json_member(out, ", ", "feature", ps->losses[i].feature);
		json_member(out, ", ", "origin", ps->losses[i].origin);
		fputs("}", out);
	}
	fputs("]", out);
	json_member(out, ", ", "no_loss", ps->no_loss);
}

static void print_json(const struct ckpt *c, FILE *out)
{
	const struct plugin_set *ps = &c->plugins;
	const struct setting *profile = settings_last(&c->settings, SET_PROFILE);

	fputs("{\"schema\": 1", out);
	json_member(out, ", ", "profile", profile ? profile->value : NULL);
	losses_json(ps, out);
	json_member(out, ", ", "missing", ps->missing.err ? ps->missing.text : NULL);
	fputs(",\n \"plugins\": [", out);
	for (size_t i = 0; i < ps->n; i++) {
		fputs(i ? ",\n  " : "\n  ", out);
		plugin_json(ps->list[i], out);
	}
	fputs("\n ],\n \"rejected\": [", out);
	for (size_t i = 0; i < ps->n_rejected; i++) {
		fprintf(out, "%s{\"masked\": %s", i ? ",\n  " : "\n  ",
			ps->rejected[i].masked ? "true" : "false");
		json_member(out, ", ", "name", ps->rejected[i].name);
		json_member(out, ", ", "path", ps->rejected[i].path);
		json_member(out, ", ", "why", ps->rejected[i].why);
		fputs("}", out);
	}
	fputs(ps->n_rejected ? "\n ]}\n" : "]}\n", out);
}

int ckpt_print_plugins(struct ckpt *c, bool json, FILE *out, struct ckpt_error *err)
{
	int r = engine_need_loaded(c, err);

	if (r < 0)
		return r;
	r = plugins_check_losses(&c->plugins, NULL, NULL, err);
	if (r < 0)
		return r;
	if (json)
		print_json(c, out);
	else
		print_text(c, out);
	return 0;
}
