/* SPDX-License-Identifier: MIT
 *
 * A child that has given up speculation, where the processor and kernel let it.
 */
#include "victim.h"

#include <linux/prctl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

static int which = -1, before;

static void check(void)
{
	int now = prctl(PR_GET_SPECULATION_CTRL, which, 0, 0, 0);

	CHECK(now == before, "speculation control %d is %#x, was %#x", which, now, before);
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	for (int i = PR_SPEC_STORE_BYPASS; i <= PR_SPEC_INDIRECT_BRANCH; i++) {
		int now = prctl(PR_GET_SPECULATION_CTRL, i, 0, 0, 0);

		if (now > 0 && (now & PR_SPEC_PRCTL) && (now & PR_SPEC_ENABLE))
			which = i;
	}
	if (which < 0)
		victim_skip("nothing that prctl(2) controls");
	MUST(prctl(PR_SET_SPECULATION_CTRL, which, PR_SPEC_DISABLE, 0, 0));
	before = prctl(PR_GET_SPECULATION_CTRL, which, 0, 0, 0);
	victim_ready();
	victim_serve(check);
}
