/* SPDX-License-Identifier: MIT */
/* The two-letter codes of VmFlags, and what becomes of each. Anything not in the table is refused.
 */
#include <string.h>

#include "mem.h"

#define CODE(a, b) [((a) - 'a') * 26 + (b) - 'a']

static const uint32_t codes[26 * 26] = {
	CODE('r', 'd') = MEM_READ,
	CODE('w', 'r') = MEM_WRITE,
	CODE('e', 'x') = MEM_EXEC,
	/* said by the fourth letter of the permissions too */
	CODE('s', 'h') = MEM_IGNORED,
	CODE('m', 's') = MEM_IGNORED,
	CODE('m', 'r') = MEM_MAYREAD,
	CODE('m', 'w') = MEM_MAYWRITE,
	/* follows from the mount's noexec */
	CODE('m', 'e') = MEM_IGNORED,
	/* dirty tracking: restored memory is new anyway */
	CODE('s', 'd') = MEM_IGNORED,
	CODE('g', 'd') = MEM_GROWSDOWN,
	CODE('a', 'c') = MEM_ACCOUNT,
	CODE('n', 'r') = MEM_NORESERVE,
	CODE('d', 'c') = MEM_DONTFORK,
	CODE('w', 'f') = MEM_WIPEONFORK,
	CODE('d', 'd') = MEM_DONTDUMP,
	CODE('h', 'g') = MEM_HUGEPAGE,
	CODE('n', 'h') = MEM_NOHUGEPAGE,
	CODE('m', 'g') = MEM_MERGEABLE,
	CODE('s', 'r') = MEM_SEQUENTIAL,
	CODE('r', 'r') = MEM_RANDOM,
	CODE('l', 'o') = MEM_LOCKED,
	CODE('l', 'f') = MEM_ONFAULT,
	CODE('d', 'p') = MEM_DROPPABLE,
	/* "may have guard pages": which ones, the page tables say */
	CODE('g', 'u') = MEM_IGNORED,
	CODE('p', 'f') = MEM_PFN,
	CODE('m', 'm') = MEM_PFN,
	CODE('i', 'o') = MEM_PFN,
	CODE('d', 'e') = MEM_DONTEXPAND,
	CODE('h', 't') = MEM_HUGETLB,
	CODE('s', 'f') = MEM_SYNC,
	CODE('u', 'm') = MEM_UFFD,
	CODE('u', 'w') = MEM_UFFD,
	CODE('u', 'i') = MEM_UFFD,
	CODE('s', 's') = MEM_SHADOW_STACK,
	CODE('s', 'l') = MEM_SEALED,
};

const struct mem_advice mem_advices[] = {
	{ MEM_DONTFORK, MADV_DONTFORK },
	{ MEM_WIPEONFORK, MADV_WIPEONFORK },
	{ MEM_DONTDUMP, MADV_DONTDUMP },
	{ MEM_HUGEPAGE, MADV_HUGEPAGE },
	{ MEM_NOHUGEPAGE, MADV_NOHUGEPAGE },
	{ MEM_MERGEABLE, MADV_MERGEABLE },
	{ MEM_SEQUENTIAL, MADV_SEQUENTIAL },
	{ MEM_RANDOM, MADV_RANDOM },
	{ 0, 0 },
};

const struct mem_bad_flag mem_bad_flags[] = {
	{ MEM_PFN, "pfn-map", "the mapping shows memory of a device or driver",
	  "stop the program that uses the device, or load a plugin that handles it", false },
	{ MEM_DONTEXPAND, "pfn-map", "the mapping was made by a driver",
	  "stop the program that uses the device, or load a plugin that handles it", false },
	{ MEM_SYNC, "dax", "MAP_SYNC mappings of persistent memory are not saved",
	  "let the program map the file without MAP_SYNC", false },
	{ MEM_UFFD, "userfaultfd", "its faults are handled through a userfaultfd",
	  "let the program unregister the range before the dump", true },
	{ MEM_SHADOW_STACK, "shadow-stack", "user shadow stacks are not saved",
	  "start the program with GLIBC_TUNABLES=glibc.cpu.x86_shstk=off", false },
	{ MEM_UNKNOWN, "vma-flags", "it has a property that this ckpt does not know",
	  "use a ckpt that is newer than this kernel", false },
	{ 0, NULL, NULL, NULL, false },
};

uint32_t mem_flags_parse(const char *text, char unknown[3])
{
	uint32_t mask = 0;

	unknown[0] = 0;
	for (const char *p = text; p[0] && p[1]; p += p[2] ? 3 : 2) {
		unsigned a = (unsigned)(p[0] - 'a'), b = (unsigned)(p[1] - 'a');
		uint32_t bit = a < 26 && b < 26 ? codes[a * 26 + b] : 0;

		if (!bit && !(mask & MEM_UNKNOWN)) {
			unknown[0] = p[0];
			unknown[1] = p[1];
			unknown[2] = 0;
		}
		mask |= bit ? bit : MEM_UNKNOWN;
	}
	return mask;
}
