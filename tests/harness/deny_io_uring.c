/* deny_io_uring.c: run a command without io_uring, as seccomp (EPERM) or an old kernel (ENOSYS) would have it.
 *
 *     deny_io_uring ERRNO COMMAND [ARGUMENT...]
 *
 * Its three system calls, setup, enter and register, fail with ERRNO in the command and its children. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOW_UNLESS(number) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (number), 0, 1)

int main(int count, char **words)
{
    char *end = NULL;
    long code = count > 2 ? strtol(words[1], &end, 10) : 0;
    if (code < 1 || code > 4095 || *end) {
        fprintf(stderr, "usage: deny_io_uring ERRNO COMMAND [ARGUMENT...]\n");
        return 2;
    }
    const unsigned int refuse = SECCOMP_RET_ERRNO | (unsigned int)code;
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW_UNLESS(__NR_io_uring_setup),
        BPF_STMT(BPF_RET | BPF_K, refuse),
        ALLOW_UNLESS(__NR_io_uring_enter),
        BPF_STMT(BPF_RET | BPF_K, refuse),
        ALLOW_UNLESS(__NR_io_uring_register),
        BPF_STMT(BPF_RET | BPF_K, refuse),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof steps / sizeof *steps, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("deny_io_uring: seccomp");
        return 1;
    }
    execvp(words[2], words + 2);
    perror(words[2]);
    return 127;
}
