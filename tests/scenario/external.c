/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that are declared to be outside: the standard ones, on /dev/null, come back as
 * whatever the restore was given, which is ckpt's own standard input.
 *
 * test: option=--option=fd.external=file:/dev/null
 * test: option=--option=fd.inherit=file:/dev/null:0
 */
#include "victim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(void)
{
	struct stat st;

	for (int fd = 0; fd < 3; fd++) {
		CHECK(!fstat(fd, &st) && S_ISCHR(st.st_mode), "descriptor %d: %s", fd,
		      strerror(errno));
		CHECK((fcntl(fd, F_GETFL) & O_ACCMODE) == O_RDWR, "descriptor %d: flags %#x", fd,
		      fcntl(fd, F_GETFL));
	}
	CHECK(victim_count_fds() == 3, "%d descriptors", victim_count_fds());
}

int main(int argc, char **argv)
{
	victim_init(argc, argv);
	victim_ready();
	victim_serve(check);
}
