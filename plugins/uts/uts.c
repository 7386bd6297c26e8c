/* SPDX-License-Identifier: MIT */
/* The plugin uts: host and domain name of uts namespaces. */
#include <stdio.h>
#include <sys/utsname.h>

#include <ckpt/ns.h>
#include <ckpt/plugin.h>

#include "uts.pb-c.h"

enum { UTS_REC_NAMES = 1 };

/* The kernel's __NEW_UTS_LEN. */
#define MAX_NAME 64

static int ask(void *arg, struct ckpt_error *err)
{
	return uname(arg) ? ckpt_fail_sys(err, errno, "uname(2)") : 0;
}

static int collect(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_UTS] = ns };
	Ckpt__Uts__Names rec = CKPT__UTS__NAMES__INIT;
	struct utsname names;
	int r = ckpt_ns_run(run, &place, ask, &names, err);

	if (r < 0)
		return r;
	rec.id = ns->id;
	rec.host = names.nodename;
	rec.domain = names.domainname;
	return ckpt_record_put(run, UTS_REC_NAMES, &rec.base, err);
}

static int plan(struct ckpt_run *run, const struct ckpt_ns *ns, struct ckpt_error *err)
{
	const Ckpt__Uts__Names *rec;
	int r = ckpt_record_order(run, "uts.names", err);

	if (r < 0)
		return r;
	rec = ckpt_record_need(run, "uts.names", ns->id, err);
	if (!rec)
		return -err->err;
	if (strlen(rec->host) > MAX_NAME || strlen(rec->domain) > MAX_NAME)
		return ckpt_fail_image(err, "names of more than %d bytes", MAX_NAME);
	return 0;
}

static int set(void *arg, struct ckpt_error *err)
{
	const Ckpt__Uts__Names *rec = arg;

	if (sethostname(rec->host, strlen(rec->host)))
		return ckpt_fail_sys(err, errno, "sethostname(2)");
	if (setdomainname(rec->domain, strlen(rec->domain)))
		return ckpt_fail_sys(err, errno, "setdomainname(2)");
	return 0;
}

static int fill(struct ckpt_run *run, struct ckpt_ns *ns, struct ckpt_error *err)
{
	const struct ckpt_ns_place place = { .ns[CKPT_NS_UTS] = ns };
	const Ckpt__Uts__Names *rec = ckpt_record_need(run, "uts.names", ns->id, err);

	return rec ? ckpt_ns_run(run, &place, set, (void *)(uintptr_t)rec, err) : -err->err;
}

static const struct ckpt_ns_kind kind = {
	.size = sizeof(kind),
	.type = CKPT_NS_UTS,
	.feature = "names",
	.collect = collect,
	.plan = plan,
	.fill = fill,
};

static const struct ckpt_extension extensions[] = {
	{ CKPT_NS_POINT, "uts", &kind },
	{ NULL, NULL, NULL },
};

static const struct ckpt_feature features[] = {
	{ "names", "uts namespaces with their host and domain name" },
	{ NULL, NULL },
};

static const struct ckpt_record_type records[] = {
	{ UTS_REC_NAMES, "names", &ckpt__uts__names__descriptor },
	{ 0, NULL, NULL },
};

CKPT_PLUGIN{
	CKPT_PLUGIN_HEADER, .name = "uts",
	.version = "0.1.0", .summary = "host and domain name of uts namespaces",
	.license = "MIT",   .features = features,
	.records = records, .extensions = extensions,
};
