/* SPDX-License-Identifier: MIT */
/* The loads of bench/run that take more than a page: many of something, and containers. */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

/* Namespaces of all eight types for this process and, for pids, its children. */
void load_unshare(void);
/* `load contain N COMMAND...`: run it as pid 1 of the innermost of N nested containers. */
_Noreturn void load_contain(int depth, char **command);

void load_containers(void);
void load_check_containers(void);
void load_mounts(void);
void load_check_mounts(void);
void load_sockets(void);
void load_check_sockets(void);

#endif
