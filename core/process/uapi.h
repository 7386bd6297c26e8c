/* SPDX-License-Identifier: MIT */
/* Kernel constants newer than the oldest headers that we build with (linux-libc-dev 6.1). */
#ifndef CKPT_PROCESS_UAPI_H
#define CKPT_PROCESS_UAPI_H

#include <stdint.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>

#ifndef PTRACE_O_SUSPEND_SECCOMP
#define PTRACE_O_SUSPEND_SECCOMP (1 << 21)
#endif
#ifndef PTRACE_EVENT_STOP
#define PTRACE_EVENT_STOP 128
#endif
#ifndef PTRACE_GET_RSEQ_CONFIGURATION
#define PTRACE_GET_RSEQ_CONFIGURATION 0x420f
#endif
struct rseq_configuration {
	uint64_t pointer;
	uint32_t size;
	uint32_t signature;
	uint32_t flags;
	uint32_t pad;
};
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd 438
#endif
#ifndef SHM_EXEC
#define SHM_EXEC 0100000
#endif
#ifndef PIDFD_THREAD
#define PIDFD_THREAD 0200
#endif
#ifndef PIDFD_SIGNAL_THREAD_GROUP
#define PIDFD_SIGNAL_THREAD_GROUP 2
#endif
#ifndef PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE
#define PIDFD_GET_PID_FOR_CHILDREN_NAMESPACE 0xff06
#endif
#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif
#ifndef NT_X86_XSTATE
#define NT_X86_XSTATE 0x202
#endif

#endif
