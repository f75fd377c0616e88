/* thread.h: for pool.c and prefetch.c. */
#ifndef PGIO_THREAD_H
#define PGIO_THREAD_H

#include <pthread.h>

/* pthread_create, of a thread that no signal is delivered to. */
int pgio_thread_new(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument);

#endif
