/* What the samples share: checking the code of every call. */
#ifndef ASCEND_ALLOC_EXAMPLES_SAMPLE_H
#define ASCEND_ALLOC_EXAMPLES_SAMPLE_H

#include <stdio.h>
#include <stdlib.h>

#include "acl_runtime.h"

/*
 * Runs a call and ends the program unless the answer is 0. The reason is kept for each thread and read once,
 * so it is read right after the call that failed.
 */
#define CHECK(call) check((call), #call, __FILE__, __LINE__)

static void check(aclError code, const char *call, const char *file, int line)
{
    const char *reason;
    if (code == 0) {
        return;
    }
    reason = aclGetRecentErrMsg();
    fprintf(stderr, "%s:%d: %s answered %d: %s\n", file, line, call, code, reason ? reason : "no reason given");
    exit(EXIT_FAILURE);
}

/* Ends the program unless something holds that no code tells. */
static void expect(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s\n", what);
        exit(EXIT_FAILURE);
    }
}

#endif
