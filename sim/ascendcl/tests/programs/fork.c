/* A child of a process that uses the devices gets errors and no deadlock; one forked before may use
 * them. Prints what the children saw. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "acl_runtime.h"
#include "acl_sim.h"

#define CHECK(condition)                                                                                \
    do {                                                                                                \
        if (!(condition)) {                                                                             \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                             \
            _exit(1);                                                                                   \
        }                                                                                               \
    } while (0)

static void wait_for(pid_t child) {
    int status = 0;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void hold(void *user) {
    int *fd = user;
    char byte;
    CHECK(read(*fd, &byte, 1) == 1);
}

int main(void) {
    pid_t child = fork();
    if (child == 0) {
        CHECK(aclInit(NULL) == 0);
        CHECK(aclrtSetDevice(0) == 0);
        exit(0);
    }
    wait_for(child);

    int pipes[2];
    CHECK(pipe(pipes) == 0);
    CHECK(aclInit(NULL) == 0);
    CHECK(aclrtSetDevice(0) == 0);
    aclrtStream stream;
    CHECK(aclrtCreateStream(&stream) == 0);
    extern aclError aclrtLaunchHostFunc(aclrtStream, void (*)(void *), void *);
    /* Work is running while we fork. */
    CHECK(aclrtLaunchHostFunc(stream, hold, &pipes[0]) == 0);

    child = fork();
    if (child == 0) {
        alarm(20); /* a deadlock ends the child */
        CHECK(aclrtSynchronizeStream(stream) == 507033);
        const char *text = aclGetRecentErrMsg();
        CHECK(text != NULL);
        CHECK(strncmp(text, "aclrtSynchronizeStream", 22) == 0 && strstr(text, "forked") != NULL);
        CHECK(aclGetRecentErrMsg() == NULL);
        void *block = NULL;
        CHECK(aclrtMalloc(&block, 100, ACL_MEM_MALLOC_HUGE_FIRST) == 507033 && block == NULL);
        CHECK(aclrtGetSocName() == NULL);
        CHECK(acl_sim_reset() == 507033);
        CHECK(acl_sim_findings_json(NULL, 0) == -1);
        /* A grandchild is no better. */
        pid_t grandchild = fork();
        if (grandchild == 0) {
            alarm(20);
            CHECK(aclrtSetDevice(0) == 507033);
            exit(0);
        }
        wait_for(grandchild);
        exit(0);
    }
    wait_for(child);

    /* The parent goes on as if nothing had happened. */
    CHECK(write(pipes[1], "x", 1) == 1);
    CHECK(aclrtSynchronizeStream(stream) == 0);
    printf("done\n");
    return 0;
}
