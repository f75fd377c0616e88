/* thread.c: threads of the library's own.
 *
 * No signal is delivered to them: a handler of the program's would run on a stack that was not made for it, in a
 * thread that it does not know, while its own thread keeps the signal blocked and believes itself undisturbed. */
#include <signal.h>

#include "thread.h"

int pgio_thread_new(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    sigset_t all, before;
    const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE}; /* a thread's own, and told even so */
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* inherited by what is made now */
    int status = pthread_create(thread, attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return status;
}
