/*
 * Ends: of streams, devices, processes and of the library; and arguments that no caller should pass. On the
 * simulator: lifetime SCENARIO. Valid C99 and C++11.
 */
#include "check.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef void *block_of(void *allocator, size_t size);


/* A stream's end is seen without anybody's help, also when its handle comes again. */
static void streams_end(void) {
    set_up();
    aclrtStream stream = new_stream(), other = new_stream();
    void *kept = ascend_alloc_malloc(3 * MIB, 0, stream), *freed = ascend_alloc_malloc(5 * MIB, 0, stream);
    void *used = ascend_alloc_malloc(7 * MIB, 0, other);
    OK(ascend_alloc_record_stream(used, stream));
    OK(ascend_alloc_release(freed));
    OK(ascend_alloc_release(used));
    ACL(aclrtDestroyStream(stream));
    long recorded = called("aclrtRecordEvent");
    /* Free after the stream is gone, from its own handle, with another device current. */
    ACL(aclrtSetDevice(1));
    ascend_alloc_free(kept, 3 * MIB, 0, stream);
    CHECK(ascend_alloc_last_error() == NULL);
    ACL(aclrtSetDevice(0));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(called("aclrtRecordEvent") >= recorded);
    /* Many streams, more than are noted one by one between two calls. */
    for (int i = 0; i < 600; i++) {
        aclrtStream brief = new_stream();
        if (i % 3 == 0) {
            ascend_alloc_free(ascend_alloc_malloc(MIB, 0, brief), 0, 0, brief);
        }
        ACL(aclrtDestroyStream(brief));
    }
    OK(ascend_alloc_stream_destroyed(0, other));
    OK(ascend_alloc_stream_destroyed(0, other));
    ACL(aclrtDestroyStream(other));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    /* Page-locked memory asks for no event on it either, told by the runtime library or by the program. */
    for (int told = 0; told < 2; told++) {
        aclrtStream ends = new_stream();
        void *host = ascend_alloc_host_malloc(3 * MIB, 0);
        CHECK(host != NULL);
        OK(ascend_alloc_host_record_stream(host, 0, ends));
        if (told) {
            OK(ascend_alloc_stream_destroyed(0, ends));
        } else {
            ACL(aclrtDestroyStream(ends));
        }
        long before = called("aclrtRecordEvent");
        OK(ascend_alloc_host_free(host));
        CHECK(called("aclrtRecordEvent") == before);
        if (told) {
            ACL(aclrtDestroyStream(ends));
        }
    }
}

static void device_resets(void) {
    set_up();
    void *live = ascend_alloc_malloc(3 * MIB, 0, NULL);
    ascend_alloc_free(ascend_alloc_malloc(30 * MIB, 0, NULL), 0, 0, NULL);
    CHECK(live != NULL);
    long unmapped = called("aclrtUnmapMem");
    /* The last reference, whoever holds how many. */
    while (aclrtResetDevice(0) == 0) {
    }
    CHECK(stats_of(0).allocated_bytes.all.current == 0);
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(called("aclrtUnmapMem") == unmapped);
    /* What was live is accepted once and does nothing. */
    OK(ascend_alloc_release(live));
    CHECK(ascend_alloc_release(live) == ASCEND_ALLOC_STATUS_ARGUMENT);
    ACL(aclrtSetDevice(0));
    void *fresh = ascend_alloc_malloc(3 * MIB, 0, NULL);
    CHECK(fresh != NULL);
    ACL(aclrtMemset(fresh, 3 * MIB, 1, 3 * MIB));
    OK(ascend_alloc_device_was_reset(1));
    OK(ascend_alloc_release(fresh));
}

/* The client of ACL's allocator hook. */
static void acl_hook(void) {
    typedef aclError by_stream(aclrtStream, void **, void **, block_of **, void (**)(void *, void *),
                               void *(**)(void *, size_t, void *), void *(**)(void *));
    by_stream *get = aclrtAllocatorGetByStream;
    set_up();
    aclrtStream stream = new_stream(), second = new_stream();
    OK(ascend_alloc_register_acl_allocator(0, stream));
    OK(ascend_alloc_register_acl_allocator(0, stream));
    OK(ascend_alloc_register_acl_allocator(0, second));
    REFUSED(ascend_alloc_register_acl_allocator(0, NULL));
    REFUSED(ascend_alloc_register_acl_allocator(77, stream));

    void *desc = NULL, *object = NULL, *other = NULL;
    block_of *alloc = NULL;
    void (*give_back)(void *, void *) = NULL;
    void *(*advise)(void *, size_t, void *) = NULL;
    void *(*address)(void *) = NULL;
    ACL(get(second, &desc, &other, NULL, NULL, NULL, NULL));
    ACL(get(stream, &desc, &object, &alloc, &give_back, &advise, &address));
    CHECK(object != NULL && object != other && alloc && give_back && advise && address);
    void *block = alloc(object, 3 * MIB), *advised = advise(object, MIB, block);
    CHECK(block != NULL && advised != NULL && address(block) != NULL && address(block) != address(advised));
    ACL(aclrtMemsetAsync(address(block), 3 * MIB, 1, 3 * MIB, stream));
    ascend_alloc_block_info_t info;
    info.struct_size = sizeof info;
    OK(ascend_alloc_block_info(address(block), &info));
    CHECK(info.stream == stream && info.device == 0 && info.requested == 3 * MIB);
    CHECK(alloc(object, (size_t)1 << 50) == NULL && ascend_alloc_last_error() != NULL);
    CHECK(alloc(&info, MIB) == NULL);
    give_back(object, block);
    give_back(object, NULL);
    CHECK(allocated(0) > 0 && allocated(0) < (int64_t)(3 * MIB));
    /* Blocks come back also after the end of the registration. */
    OK(ascend_alloc_unregister_acl_allocator(0, stream));
    OK(ascend_alloc_unregister_acl_allocator(0, stream));
    CHECK(get(stream, &desc, NULL, NULL, NULL, NULL, NULL) != 0);
    CHECK(alloc(object, MIB) == NULL);
    give_back(object, advised);
    CHECK(allocated(0) == 0);

    /* With the stream it ends by itself, or told. */
    ACL(aclrtDestroyStream(second));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(get(second, &desc, NULL, NULL, NULL, NULL, NULL) != 0);
    CHECK(alloc(other, MIB) == NULL);
    OK(ascend_alloc_register_acl_allocator(0, stream));
    OK(ascend_alloc_stream_destroyed(0, stream));
    CHECK(get(stream, &desc, NULL, NULL, NULL, NULL, NULL) != 0);
    ACL(aclrtDestroyStream(stream));
}

static volatile int stop;
static void *churn(void *number) {
    size_t own = (size_t)(uintptr_t)number;
    while (!stop) {
        void *small = ascend_alloc_malloc(1000 * own + 1, 0, NULL);
        void *large = ascend_alloc_malloc((20 + own) * MIB, 1, NULL);
        CHECK(small != NULL && large != NULL);
        OK(ascend_alloc_release(small));
        OK(ascend_alloc_release(large));
        OK(ascend_alloc_empty_cache(1));
    }
    return NULL;
}

/* What a child may do; answers its exit code. */
static int child(void *live, uint64_t pool, int64_t before) {
    ascend_alloc_stats_t stats;
    stats.struct_size = sizeof stats;
    if (ascend_alloc_malloc(MIB, 0, NULL) != NULL || !said("fork")) return 10;
    if (ascend_alloc_last_status() != ASCEND_ALLOC_STATUS_FORK) return 11;
    ascend_alloc_free(live, MIB, 0, NULL);
    if (ascend_alloc_last_error() != NULL) return 12;
    if (ascend_alloc_release(live) != 0 || ascend_alloc_record_stream(live, &stats) != 0) return 13;
    if (ascend_alloc_empty_cache(-1) != 0 || ascend_alloc_trim(0, 0, NULL) != 0) return 14;
    if (ascend_alloc_stats(0, &stats) != 0) return 15;
    if (stats.allocated_bytes.all.current < before) return 16;
    if (ascend_alloc_pool_malloc(pool, MIB, NULL) != NULL) return 17;
    if (ascend_alloc_pool_begin(pool, 0, NULL) != ASCEND_ALLOC_STATUS_FORK) return 18;
    if (ascend_alloc_pool_release(pool) != 0 || ascend_alloc_init(NULL) != ASCEND_ALLOC_STATUS_FORK) return 19;
    if (ascend_alloc_tagged_malloc(MIB, 0, NULL) != NULL || ascend_alloc_stream_destroyed(0, &stats) != 0) return 20;
    return 0;
}

static void forks(void) {
    /* Before the allocator is set up a child may have one of its own. */
    pid_t early = fork();
    if (early == 0) {
        alarm(60);
        void *block = ascend_alloc_malloc(MIB, 0, NULL);
        _exit(block == NULL ? 1 : 0);
    }
    int status = -1;
    CHECK(waitpid(early, &status, 0) == early && WIFEXITED(status) && WEXITSTATUS(status) == 0);

    set_up();
    void *live = ascend_alloc_malloc(4 * MIB, 0, NULL);
    ACL(aclrtMemset(live, 4 * MIB, 5, 4 * MIB));
    /* B37: one is cached and one waits for a stream when the children are made. */
    void *cached = ascend_alloc_malloc(20 * MIB, 0, NULL), *waiting = ascend_alloc_malloc(20 * MIB, 0, NULL);
    aclrtStream side = new_stream();
    ACL(aclrtMemsetAsync(waiting, MIB, 1, MIB, side));
    OK(ascend_alloc_record_stream(waiting, side));
    OK(ascend_alloc_release(waiting));
    OK(ascend_alloc_release(cached));
    CHECK(stats_of(0).active_bytes.all.current >= (int64_t)(24 * MIB));
    uint64_t pool = 0;
    OK(ascend_alloc_pool_create(0, NULL, &pool));
    pthread_t threads[3];
    for (uintptr_t i = 0; i < 3; i++) {
        CHECK(pthread_create(&threads[i], NULL, churn, (void *)i) == 0);
    }
    for (int i = 0; i < 40; i++) {
        int64_t before = (int64_t)(4 * MIB);
        pid_t forked = fork();
        CHECK(forked >= 0);
        if (forked == 0) {
            /* A child that hangs is ended by the alarm and fails the check below. */
            alarm(20);
            int code = child(live, pool, before);
            /* Exit handlers and a grandchild too. */
            pid_t grandchild = fork();
            if (grandchild == 0) {
                alarm(20);
                _exit(child(live, pool, before));
            }
            int inner = -1;
            waitpid(grandchild, &inner, 0);
            exit(code != 0 ? code : WIFEXITED(inner) ? WEXITSTATUS(inner) : 30);
        }
        status = -1;
        CHECK(waitpid(forked, &status, 0) == forked);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
            fprintf(stderr, "child %d ended with %d\n", i, status);
            exit(1);
        }
    }
    stop = 1;
    for (int i = 0; i < 3; i++) {
        CHECK(pthread_join(threads[i], NULL) == 0);
    }
    /* The parent goes on as if nothing had been. */
    unsigned char byte = 0;
    ACL(aclrtMemcpy(&byte, 1, live, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(byte == 5);
    OK(ascend_alloc_release(live));
    OK(ascend_alloc_pool_release(pool));
    CHECK(allocated(0) == 0);
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).active_bytes.all.current == 0 && stats_of(0).reserved_bytes.all.current == 0);
}

/* Two processes share a block: the one that imports is forked before either uses a device. */
static void importer(int from, int to) {
    static unsigned char message[1 << 16];
    size_t length = 0;
    CHECK(read(from, &length, sizeof length) == (ssize_t)sizeof length && length <= sizeof message);
    CHECK(read(from, message, length) == (ssize_t)length);
    set_up();
    void *ptr = NULL;
    size_t size = 0;
    uint64_t number = 0;
    unsigned char byte = 0;
    OK(ascend_alloc_import(message, length, 0, NULL, &ptr, &size, &number));
    CHECK(size == 4 * MIB);
    ACL(aclrtMemcpy(&byte, 1, (char *)ptr + 4 * MIB - 1, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(byte == 7);
    ACL(aclrtMemset(ptr, 4 * MIB, 9, 4 * MIB));
    OK(ascend_alloc_import_record_stream(number, NULL));
    OK(ascend_alloc_import_release(number));
    CHECK(ascend_alloc_import_release(number) == ASCEND_ALLOC_STATUS_ARGUMENT);
    CHECK(write(to, &byte, 1) == 1);
}

static void shares(void) {
    int there[2], back[2];
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        /* If the exporter fails, its message ends here. */
        close(there[1]);
        importer(there[0], back[1]);
        exit(0);
    }
    set_up();
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    ACL(aclrtMemset(block, 4 * MIB, 7, 4 * MIB));
    uint64_t number = 0;
    OK(ascend_alloc_export(block, NULL, &number));
    static unsigned char message[1 << 16];
    size_t length = 0;
    OK(ascend_alloc_export_message(number, message, sizeof message, &length));
    CHECK(write(there[1], &length, sizeof length) == (ssize_t)sizeof length);
    CHECK(write(there[1], message, length) == (ssize_t)length);
    unsigned char byte = 0;
    close(back[1]);
    CHECK(read(back[0], &byte, 1) == 1);
    int status = -1;
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    ACL(aclrtMemcpy(&byte, 1, block, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(byte == 9);
    OK(ascend_alloc_export_release(number));
    OK(ascend_alloc_release(block));
}

static void *late[3];
static pthread_key_t key;
static void at_exit(void) { ascend_alloc_free(late[0], 0, 0, NULL); }
static void at_thread_end(void *block) {
    ascend_alloc_free(block, 0, 0, NULL);
    ascend_alloc_free(block, 0, 0, NULL);
    (void)ascend_alloc_malloc(MIB, 77, NULL);
}
#if defined(__GNUC__)
__attribute__((destructor)) static void at_unload(void) {
    if (late[1] != NULL) {
        ascend_alloc_free(late[1], 0, 0, NULL);
        ascend_alloc_free(ascend_alloc_malloc(MIB, 0, NULL), 0, 0, NULL);
    }
}
#endif
#ifdef __cplusplus
struct Holder {
    void *block = nullptr;
    ~Holder() {
        if (block != nullptr) {
            ascend_alloc_free(block, 0, 0, nullptr);
        }
    }
};
static Holder holder;
#endif

static void *ending(void *unused) {
    (void)unused;
    CHECK(pthread_setspecific(key, ascend_alloc_malloc(MIB, 0, NULL)) == 0);
    return NULL;
}

/* Blocks that come back from exit handlers, destructors, ends of threads, and while threads still allocate. */
static void exits(void) {
    set_up();
    CHECK(atexit(at_exit) == 0 && pthread_key_create(&key, at_thread_end) == 0);
    for (size_t i = 0; i < 3; i++) {
        late[i] = ascend_alloc_malloc((i + 1) * MIB, 0, NULL);
    }
#ifdef __cplusplus
    holder.block = late[2];
#endif
    pthread_t thread, running;
    CHECK(pthread_create(&thread, NULL, ending, NULL) == 0 && pthread_join(thread, NULL) == 0);
    CHECK(pthread_setspecific(key, ascend_alloc_malloc(MIB, 0, NULL)) == 0);
    CHECK(pthread_create(&running, NULL, churn, NULL) == 0);
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"streams_end", streams_end}, {"device_resets", device_resets}, {"acl_hook", acl_hook},
        {"forks", forks},             {"exits", exits},                 {"shares", shares},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
