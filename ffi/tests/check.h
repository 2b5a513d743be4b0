/*
 * What the test programs share: checks, and scenarios by name. Valid C99 and C++11.
 * A program ends with 0 if every check of its scenario holds; a failed one is printed and ends it with 1.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "acl_runtime.h"
#include "acl_sim.h"
#include "ascend_alloc.h"

#define CHECK(condition)                                                                                   \
    do {                                                                                                   \
        if (!(condition)) {                                                                                \
            const char *said_ = ascend_alloc_last_error();                                                 \
            fprintf(stderr, "line %d: %s does not hold; last error: %s\n", __LINE__, #condition,           \
                    said_ != NULL ? said_ : "none");                                                       \
            exit(1);                                                                                       \
        }                                                                                                  \
    } while (0)

#define OK(call) CHECK((call) == ASCEND_ALLOC_STATUS_OK)
#define REFUSED(call) CHECK((call) == ASCEND_ALLOC_STATUS_ARGUMENT)
#define ACL(call) CHECK((call) == 0)
#define MIB ((size_t)1 << 20)

struct scenario {
    const char *name;
    void (*run)(void);
};

/* Whether the last call of this thread failed with a text that has the word in it. */
static inline int said(const char *word) {
    const char *text = ascend_alloc_last_error();
    return text != NULL && strstr(text, word) != NULL;
}

static inline ascend_alloc_stats_t stats_of(int device) {
    ascend_alloc_stats_t stats;
    memset(&stats, 0xee, sizeof stats);
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_stats(device, &stats));
    return stats;
}

static inline int64_t allocated(int device) {
    return stats_of(device).allocated_bytes.all.current;
}

/* What nearly all scenarios begin with. */
static inline void set_up_on(int device) {
    ACL(aclInit(NULL));
    ACL(aclrtSetDevice(device));
    OK(ascend_alloc_init(NULL));
}

static inline void set_up(void) {
    set_up_on(0);
}

static inline void bytes_to(void *target, int value, size_t count) {
    ACL(aclrtMemset(target, count, value, count));
}

static inline int byte_of(const void *source) {
    unsigned char byte = 0;
    ACL(aclrtMemcpy(&byte, 1, source, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    return byte;
}

/* As a function that is told of the release of what it was given: counts them there. */
static inline void note_release(void *user) {
    *(int *)user += 1;
    /* No lock is held: the library may be called from here. */
    ascend_alloc_free(ascend_alloc_malloc(MIB, 0, NULL), 0, 0, NULL);
}

static inline aclrtStream new_stream(void) {
    aclrtStream stream = NULL;
    ACL(aclrtCreateStream(&stream));
    return stream;
}

/* How often the program has called a function of the runtime library. */
static inline long called(const char *name) {
    static char text[1 << 16];
    char pattern[128];
    CHECK(acl_sim_counters_json(text, sizeof text) < (int)sizeof text);
    snprintf(pattern, sizeof pattern, "\"%s\":", name);
    const char *found = strstr(text, pattern);
    return found == NULL ? 0 : atol(found + strlen(pattern));
}

static inline void no_findings(void) {
    static char text[1 << 16];
    acl_sim_findings_json(text, sizeof text);
    if (strcmp(text, "[]") != 0) {
        fprintf(stderr, "the simulator found: %s\n", text);
        exit(1);
    }
}

static inline int run_scenario(const struct scenario *scenarios, size_t count, int words, char **word) {
    const char *name = words > 1 ? word[1] : "";
    for (size_t i = 0; i < count; i++) {
        if (strcmp(scenarios[i].name, name) == 0) {
            scenarios[i].run();
            no_findings();
            printf("%s: all checks hold\n", name);
            return 0;
        }
    }
    printf("no scenario %s\n", name);
    return 2;
}

#endif
