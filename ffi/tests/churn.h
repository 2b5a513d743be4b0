/*
 * What the test programs about processes share: threads that allocate, files in a folder, open descriptors.
 */
#ifndef CHURN_H
#define CHURN_H

#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "check.h"

enum { CHURNERS = 3 };

static volatile int churn_stop;
static volatile long churned;
static pthread_t churners[CHURNERS];

/* Blocks of a few sizes on two devices, memory that goes back to the device, and uses of another stream. */
static void churn_once(size_t own, void *stream) {
    void *small = ascend_alloc_malloc(1000 * own + 1, 0, NULL);
    void *large = ascend_alloc_malloc((20 + own) * MIB, 1, NULL);
    CHECK(small != NULL && large != NULL);
    OK(ascend_alloc_record_stream(small, stream));
    OK(ascend_alloc_release(small));
    OK(ascend_alloc_release(large));
    OK(ascend_alloc_empty_cache(1));
    __sync_fetch_and_add(&churned, 1);
}

static inline void *churn(void *number) {
    ACL(aclrtSetDevice(0));
    void *stream = new_stream();
    while (!churn_stop) {
        churn_once((size_t)(uintptr_t)number, stream);
    }
    OK(ascend_alloc_stream_destroyed(0, stream));
    ACL(aclrtDestroyStream((aclrtStream)stream));
    return NULL;
}

/* Starts threads that allocate and free. */
static inline void churn_starts(void) {
    for (uintptr_t i = 0; i < CHURNERS; i++) {
        CHECK(pthread_create(&churners[i], NULL, churn, (void *)i) == 0);
    }
}

/* Ends them, each after some rounds. */
static inline void churn_ends(void) {
    while (churned < 2 * CHURNERS) {
        usleep(1000);
    }
    churn_stop = 1;
    for (int i = 0; i < CHURNERS; i++) {
        CHECK(pthread_join(churners[i], NULL) == 0);
    }
}

/* The path of a file in the folder that the variable FOLDER names; valid until the next call of the thread. */
static inline const char *path_in_folder(const char *name) {
    static __thread char path[4096];
    const char *folder = getenv("FOLDER");
    CHECK(folder != NULL && strlen(folder) + strlen(name) + 2 < sizeof path);
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Has the files written; on a machine that is busy one call does not wait long enough. */
static inline void write_all(void) {
    int status = ascend_alloc_flush_files();
    for (int tries = 0; status != ASCEND_ALLOC_STATUS_OK && tries < 20; tries++) {
        CHECK(said("not written yet"));
        status = ascend_alloc_flush_files();
    }
    CHECK(status == ASCEND_ALLOC_STATUS_OK);
}

/* Waits until a file is there that a thread of the allocator writes. */
static inline void file_comes(const char *name) {
    for (int tries = 0; access(path_in_folder(name), F_OK) != 0; tries++) {
        CHECK(tries < 100000);
        usleep(1000);
    }
}

/* The same for the statistics of this process, where the number of the process is in their name. */
static inline void statistics_come(void) {
    char name[64];
    snprintf(name, sizeof name, "stats-%ld.json", (long)getpid());
    file_comes(name);
}

static inline int by_number(const void *one, const void *two) {
    return *(const int *)one - *(const int *)two;
}

/* Whether it is closed, or open for a moment: a thread of the allocator writes a file that gets its own name once it is whole. */
static inline int is_passing(const char *descriptor) {
    static const char ending[] = ".new";
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%s", descriptor);
    ssize_t length = readlink(link, path, sizeof path);
    ssize_t tail = (ssize_t)strlen(ending);
    return length < 0 || (length >= tail && memcmp(path + length - tail, ending, (size_t)tail) == 0);
}

/* The numbers of all open descriptors, in order, but of files that are just being written; valid until the next call. */
static inline const char *descriptors_open(void) {
    static char text[1 << 16];
    static int numbers[1 << 12];
    int count = 0;
    size_t length = 0;
    DIR *folder = opendir("/proc/self/fd");
    CHECK(folder != NULL);
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        int counts = entry->d_name[0] != '.' && atoi(entry->d_name) != dirfd(folder);
        if (counts && !is_passing(entry->d_name)) {
            CHECK(count < (int)(sizeof numbers / sizeof numbers[0]));
            numbers[count++] = atoi(entry->d_name);
        }
    }
    closedir(folder);
    qsort(numbers, (size_t)count, sizeof numbers[0], by_number);
    text[0] = 0;
    for (int i = 0; i < count; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%d ", numbers[i]);
        CHECK(length < sizeof text);
    }
    return text;
}

#endif
