// Runs a program and makes one of its system calls fail:
//
//     inject NUMBER ERRNO REPORT PROGRAM ARGUMENT...
//
// The call NUMBER (from 1; 0 for none) is skipped and returns ERRNO. REPORT receives the number of calls, the one
// that failed, and the end of the program.
//
// The threads of the program are traced, its child processes are not. Numbering of a thread's calls starts after
// the Rust runtime's setup, whose last call is sigaltstack. Before that the runtime aborts on errors.
//
// Calls that cannot fail in the kernel, such as closing a folder, have no number. The C library and the runtime do
// not expect them to fail.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST_THREADS 4096

typedef struct {
    pid_t id;
    int begun;   // True after the runtime's setup.
    int setting; // True within the call that ends the setup.
    int failing; // Nonzero within the call that fails: 2 for brk.
    long argument;
} thread;

static thread threads[MOST_THREADS];
static int thread_count;

static thread *find(pid_t id) {
    for (int at = 0; at < thread_count; at++)
        if (threads[at].id == id) return &threads[at];
    return NULL;
}

static thread *add(pid_t id) {
    if (thread_count == MOST_THREADS) exit(90);
    threads[thread_count] = (thread){.id = id};
    return &threads[thread_count++];
}

static int counts(long call) {
    switch (call) {
    case SYS_futex: // glibc aborts on errors.
    case SYS_exit:
    case SYS_exit_group:
    case SYS_rt_sigreturn:
    case SYS_restart_syscall:
    case SYS_rt_sigaction:
    case SYS_rt_sigprocmask:
    case SYS_sigaltstack:
    case SYS_munmap:
    case SYS_madvise:
    case SYS_set_robust_list:
    case SYS_rseq:
    case SYS_sched_yield:
    case SYS_clock_nanosleep: // Can only be interrupted.
    case SYS_getrandom:
    case SYS_getpid:
    case SYS_gettid:
    case SYS_getuid:
    case SYS_geteuid: return 0;
    default: return 1;
    }
}

static const char *name(long call) {
#define CALL(NAME) case SYS_##NAME: return #NAME
    switch (call) {
    CALL(read); CALL(write); CALL(openat); CALL(close); CALL(fstat); CALL(newfstatat); CALL(statx); CALL(lseek);
    CALL(mmap); CALL(mprotect); CALL(brk); CALL(ioctl); CALL(fcntl); CALL(flock); CALL(fsync); CALL(ftruncate);
    CALL(getdents64); CALL(getcwd); CALL(readlinkat); CALL(faccessat); CALL(mkdirat); CALL(unlinkat);
    CALL(fchmod); CALL(fchmodat); CALL(renameat2); CALL(utimensat); CALL(pipe2); CALL(dup); CALL(dup3);
    CALL(clone); CALL(clone3); CALL(wait4); CALL(waitid); CALL(kill); CALL(tgkill); CALL(prctl);
    CALL(sched_getaffinity); CALL(prlimit64); CALL(statfs); CALL(ppoll); CALL(pread64); CALL(writev); CALL(mremap);
#ifdef __x86_64__
    CALL(open); CALL(stat); CALL(lstat); CALL(access); CALL(readlink); CALL(mkdir); CALL(rmdir); CALL(unlink);
    CALL(rename); CALL(chmod); CALL(poll); CALL(dup2); CALL(vfork); CALL(fork);
#endif
    default: return "another call";
    }
}

// Skips the call that the thread is about to make.
static void skip(pid_t id) {
#if defined __x86_64__
    ptrace(PTRACE_POKEUSER, id, offsetof(struct user_regs_struct, orig_rax), -1L);
#elif defined __aarch64__
    int none = -1;
    struct iovec part = {&none, sizeof none};
    ptrace(PTRACE_SETREGSET, id, 0x404 /* NT_ARM_SYSTEM_CALL */, &part);
#endif
}

// Sets the result of the call that the thread has made.
static void answer(pid_t id, long result) {
#if defined __x86_64__
    ptrace(PTRACE_POKEUSER, id, offsetof(struct user_regs_struct, rax), result);
#elif defined __aarch64__
    struct user_regs_struct registers;
    struct iovec part = {&registers, sizeof registers};
    ptrace(PTRACE_GETREGSET, id, NT_PRSTATUS, &part);
    registers.regs[0] = result;
    ptrace(PTRACE_SETREGSET, id, NT_PRSTATUS, &part);
#endif
}

// Sets the first argument of the call that the thread is about to make or has made.
static void set_argument(pid_t id, long value) {
#if defined __x86_64__
    ptrace(PTRACE_POKEUSER, id, offsetof(struct user_regs_struct, rdi), value);
#elif defined __aarch64__
    answer(id, value); // The result uses the same register.
#endif
}

// Returns whether this file of the thread is a folder.
static int is_folder(pid_t id, long file) {
    char path[64];
    struct stat found;
    snprintf(path, sizeof path, "/proc/%d/fd/%ld", (int)id, file);
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

static long wanted, number, count;
static FILE *report;

static void at_call(thread *current) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, current->id, sizeof info, &info) < 0) return;
    if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        long call = (long)info.entry.nr;
        if (!current->begun) {
            current->setting = call == SYS_sigaltstack && info.entry.args[0] != 0;
        } else if (counts(call) && !(call == SYS_close && is_folder(current->id, (long)info.entry.args[0]))
                   && ++count == wanted) {
            fprintf(report, "failed %s %ld\n", name(call), call);
            current->failing = call == SYS_brk ? 2 : 1;
            current->argument = (long)info.entry.args[0];
            // brk returns the end of memory and no errno. close releases the handle even if it fails.
            if (call == SYS_brk) set_argument(current->id, 0);
            else if (call != SYS_close) skip(current->id);
        }
    } else if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        if (current->setting) current->begun = 1;
        if (current->failing == 1) answer(current->id, -number);
#ifdef __x86_64__
        if (current->failing == 2) set_argument(current->id, current->argument);
#endif
        current->setting = current->failing = 0;
    }
}

int main(int argc, char **argv) {
    if (argc < 5) return 91;
    wanted = atol(argv[1]);
    number = atol(argv[2]);
    report = fopen(argv[3], "we");
    if (!report) return 92;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        execv(argv[4], argv + 4);
        _exit(93);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child) return 94;
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SETOPTIONS, child, 0, options) < 0) return 95;
    add(child);
    ptrace(PTRACE_SYSCALL, child, 0, 0);
    for (;;) {
        pid_t id = waitpid(-1, &status, __WALL);
        if (id < 0) return 96;
        if (WIFEXITED(status) || WIFSIGNALED(status)) {
            if (id != child) continue;
            fprintf(report, "calls %ld\n", count);
            if (WIFEXITED(status)) fprintf(report, "exit %d\n", WEXITSTATUS(status));
            else fprintf(report, "signal %d\n", WTERMSIG(status));
            return fclose(report) == 0 ? 0 : 97;
        }
        thread *current = find(id);
        int signal = WSTOPSIG(status);
        if (!current) {
            add(id); // A new thread begins with a stop.
            signal = 0;
        } else if (signal == (SIGTRAP | 0x80)) {
            at_call(current);
            signal = 0;
        } else if (signal == SIGTRAP && status >> 16) {
            signal = 0; // An event: a thread, or the program itself, begins.
        } else if (signal == SIGSTOP) {
            signal = 0;
        }
        ptrace(PTRACE_SYSCALL, id, 0, (long)signal);
    }
}
