/* SPDX-License-Identifier: MIT
 *
 * A whole plugin: it puts a note into each image, shows it when the image is restored, and lets
 * `ckpt verify` compare it with what it would write today. See README.md.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <ckpt/plugin.h>

#include "note.pb-c.h"

enum { NOTE = 1 };

/* Dump and verify: the same step; the engine compares what a verify collects with the image. */
static int collect(struct ckpt_run *run, struct ckpt_error *err)
{
	char hostname[256] = "";
	Note__Note note = NOTE__NOTE__INIT;
	const char *text = ckpt_opt_string(run, "text");
	note.text = (char *)(text ? text : "");
	note.tasks = (uint32_t)ckpt_task_count(run);

	int off = ckpt_refuse_off(run, "hostname", NULL, "the host name in the note");
	if (off < 0)
		return 0; /* it is on the list, and the engine ends the run at the next milestone */
	if (off == 1) {
		if (gethostname(hostname, sizeof(hostname) - 1) < 0)
			return ckpt_fail(err, EIO, "the host has no name");
		note.hostname = hostname;
	}
	return ckpt_record_put(run, NOTE, &note.base, err);
}

/* An image is untrusted input: nothing is used before this step has looked at it. */
static int plan(struct ckpt_run *run, struct ckpt_error *err)
{
	if (ckpt_record_count(run, "note.note") != 1)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EINVAL, "%zu notes in the image, not one",
				    ckpt_record_count(run, "note.note"));
	const Note__Note *note = ckpt_record_at(run, "note.note", 0);
	if (strlen(note->text) > 1000)
		return ckpt_fail_as(err, CKPT_EXIT_IMAGE, EINVAL, "the note is too long");
	return 0;
}

/* The tree is complete and about to run. */
static int announce(struct ckpt_run *run, struct ckpt_error *err)
{
	const Note__Note *note = ckpt_record_at(run, "note.note", 0);
	ckpt_log(run, CKPT_LOG_INFO, "%s (%u tasks, saved on %s)", note->text, note->tasks,
		 note->hostname);
	ckpt_count(run, "notes", 1);
	return 0;
}

static const struct ckpt_option options[] = {
	{ .name = "text",
	  .type = CKPT_OPT_STRING,
	  .def = "-",
	  .help = "what to write into the image" },
	{ 0 },
};

static const struct ckpt_feature features[] = {
	{ "hostname", "the name of the host in the note" },
	{ 0 },
};

static const struct ckpt_record_type records[] = {
	{ NOTE, "note", &note__note__descriptor },
	{ 0 },
};

static const char *const surveyed[] = { "surveyed", NULL };
static const char *const collected[] = { "collected", NULL };
static const char *const loaded[] = { "loaded", NULL };
static const char *const planned[] = { "planned", NULL };
static const char *const sealed[] = { "sealed", NULL };
static const char *const running[] = { "running", NULL };

static const struct ckpt_step steps[] = {
	{ .runs = CKPT_DUMP | CKPT_VERIFY,
	  .name = "collect",
	  .help = "write the note",
	  .after = surveyed,
	  .before = collected,
	  .fn = collect },
	{ .runs = CKPT_RESTORE,
	  .name = "plan",
	  .help = "check the note",
	  .after = loaded,
	  .before = planned,
	  .fn = plan },
	{ .runs = CKPT_RESTORE,
	  .name = "announce",
	  .help = "show the note",
	  .after = sealed,
	  .before = running,
	  .fn = announce },
	{ 0 },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER,   .name = "note",
	.version = "1.0",     .summary = "a note in the image, as an example of a plugin",
	.license = "MIT",     .options = options,
	.features = features, .records = records,
	.steps = steps,
};
