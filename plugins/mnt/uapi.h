/* SPDX-License-Identifier: MIT */
/* The mount calls, and what the headers of an older kernel do not have. */
#ifndef MNT_UAPI_H
#define MNT_UAPI_H

#include <fcntl.h>
#include <sys/mount.h>
#include <unistd.h>

#ifndef MOVE_MOUNT_SET_GROUP
#define MOVE_MOUNT_SET_GROUP 0x100
#endif
#ifndef MOUNT_ATTR_NOSYMFOLLOW
#define MOUNT_ATTR_NOSYMFOLLOW 0x00200000
#endif
#ifndef AT_RECURSIVE
#define AT_RECURSIVE 0x8000
#endif

#endif
