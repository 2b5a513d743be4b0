/*
 * Processes: forks, programs started by others, ends in any order, and memory shared with a process that is killed. On the
 * simulator: processes SCENARIO. The variable FOLDER names an empty folder.
 */
#define _GNU_SOURCE
#include "check.h"
#include "churn.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;
static char *self;

/* Waits for a child that must end well. */
static void ends_well(pid_t child) {
    int status = -1;
    CHECK(child > 0);
    CHECK(waitpid(child, &status, 0) == child);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
        fprintf(stderr, "a child ended with status %#x\n", status);
        exit(1);
    }
}

/* ------------------------------------------------------------------------------------------------ forks */

#define FORKED(call) CHECK((call) == ASCEND_ALLOC_STATUS_FORK && said("fork"))
#define NOTHING(call) CHECK((call) == NULL && ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_FORK)

static void *live, *host;
static uint64_t pool, buffer, saved, export_;

static volatile int handed_over;
static void hand_over(void *user) {
    CHECK(user != NULL);
    handed_over++;
}

/* What gives something back, ends something or notes something: nothing happens, and that is a success. */
static void child_gives_back(void) {
    size_t size = 0;
    ascend_alloc_free(live, MIB, 0, NULL);
    OK(ascend_alloc_last_status());
    ascend_alloc_tagged_free(live, MIB, 0, NULL);
    OK(ascend_alloc_last_status());
    OK(ascend_alloc_release(live));
    OK(ascend_alloc_record_stream(live, &size));
    OK(ascend_alloc_erase_stream(live, &size));
    OK(ascend_alloc_stream_destroyed(0, &size));
    OK(ascend_alloc_device_was_reset(0));
    OK(ascend_alloc_empty_cache(-1));
    size = 7;
    OK(ascend_alloc_trim(0, 0, &size));
    CHECK(size == 0);
    size = 7;
    OK(ascend_alloc_pool_empty_cache(pool, &size));
    CHECK(size == 0);
    OK(ascend_alloc_unregister_acl_allocator(0, NULL));
    OK(ascend_alloc_buffer_destroy(buffer));
    OK(ascend_alloc_checkpoint_release(saved));
    OK(ascend_alloc_finish());
    OK(ascend_alloc_remove_memory_callback(1));
    OK(ascend_alloc_host_free(host));
    OK(ascend_alloc_host_record_stream(host, 0, NULL));
    OK(ascend_alloc_host_empty_cache());
    OK(ascend_alloc_host_empty_cache_waiting());
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_pool_end(pool));
    OK(ascend_alloc_graph_release(pool));
    OK(ascend_alloc_export_release(export_));
    OK(ascend_alloc_import_release(1));
    OK(ascend_alloc_reset_peak_stats(0));
    OK(ascend_alloc_reset_accumulated_stats(0));
    OK(ascend_alloc_buffer_record_stream(buffer, NULL));
    OK(ascend_alloc_import_record_stream(1, NULL));
    OK(ascend_alloc_history_record(0));
    OK(ascend_alloc_history_record_with(0, 1, 0));
    OK(ascend_alloc_history_file_stop());
    OK(ascend_alloc_trace_stop());
    OK(ascend_alloc_flush_files());
    OK(ascend_alloc_set_context("child"));
    OK(ascend_alloc_mark("child"));
    OK(ascend_alloc_host_waited(0, NULL));
    handed_over = 0;
    OK(ascend_alloc_set_event_hook(NULL, &size, hand_over));
    OK(ascend_alloc_set_submit_hook(NULL, &size, hand_over));
    CHECK(handed_over == 2);
}

static void nothing_happens(const ascend_alloc_event_t *event, void *user) {
    (void)event, (void)user;
    CHECK(!"a child has no events");
}

static int nothing_waits(int device, void *stream, int all, void *user) {
    (void)device, (void)stream, (void)all, (void)user;
    CHECK(!"a child has no work");
    return 0;
}

/* What needs the devices or the parent's locks: refused. */
static void child_is_refused(void) {
    size_t size = 0;
    int answer = 0;
    uint64_t number = 0;
    void *ptr = NULL;
    int32_t id = 0;
    NOTHING(ascend_alloc_malloc(MIB, 0, NULL));
    NOTHING(ascend_alloc_tagged_malloc(MIB, 0, NULL));
    NOTHING(ascend_alloc_pool_malloc(pool, MIB, NULL));
    NOTHING(ascend_alloc_host_malloc(MIB, 0));
    FORKED(ascend_alloc_init(NULL));
    FORKED(ascend_alloc_allocate(NULL, &ptr));
    FORKED(ascend_alloc_grow_in_place(live, MIB, &answer));
    FORKED(ascend_alloc_shrink_in_place(live, MIB));
    FORKED(ascend_alloc_register_acl_allocator(0, NULL));
    FORKED(ascend_alloc_buffer_create(0, NULL, NULL, &number));
    FORKED(ascend_alloc_buffer_resize(buffer, MIB));
    FORKED(ascend_alloc_buffer_info(buffer, NULL));
    FORKED(ascend_alloc_checkpoint(pool, &number));
    FORKED(ascend_alloc_checkpoint_restore(saved, NULL, 0, &size, NULL, 0, &size));
    FORKED(ascend_alloc_history_record(10));
    FORKED(ascend_alloc_history_record_with(10, 1, 0));
    FORKED(ascend_alloc_history_json(0, NULL, 0, &size));
    FORKED(ascend_alloc_history_drain(NULL, NULL, NULL));
    FORKED(ascend_alloc_trace_start("/nowhere"));
    FORKED(ascend_alloc_history_file_start("/nowhere", 1, 1));
    FORKED(ascend_alloc_snapshot_write("/nowhere", 1));
    handed_over = 0;
    FORKED(ascend_alloc_set_event_hook(nothing_happens, &size, hand_over));
    FORKED(ascend_alloc_set_submit_hook(nothing_waits, &size, hand_over));
    FORKED(ascend_alloc_add_memory_callback(NULL, &size, hand_over, &number));
    CHECK(handed_over == 3);
    FORKED(ascend_alloc_host_get_stats(0, NULL));
    FORKED(ascend_alloc_pool_create(0, NULL, &number));
    FORKED(ascend_alloc_pool_stats(pool, NULL));
    FORKED(ascend_alloc_pool_begin(pool, ASCEND_ALLOC_FILTER_ALL, NULL));
    FORKED(ascend_alloc_pool_begin_with(pool, NULL, NULL, NULL));
    FORKED(ascend_alloc_capture_begin(pool, ASCEND_ALLOC_FILTER_ALL, NULL));
    FORKED(ascend_alloc_capture_begin_with(pool, NULL, NULL, NULL));
    FORKED(ascend_alloc_process_id(0, &id));
    FORKED(ascend_alloc_export(live, NULL, &number));
    FORKED(ascend_alloc_export_message(export_, NULL, 0, &size));
    FORKED(ascend_alloc_export_allow(export_, &id, 1));
    FORKED(ascend_alloc_import("", 0, 0, NULL, &ptr, &size, &number));
    FORKED(ascend_alloc_set_peers(0, NULL, 0));
    FORKED(ascend_alloc_sleep(0, NULL, 0, 0, NULL));
    FORKED(ascend_alloc_wake(0, NULL, 0, NULL));
    FORKED(ascend_alloc_is_asleep(pool, &answer));
    FORKED(ascend_alloc_set_memory_fraction(0.5, 0));
    FORKED(ascend_alloc_set_caching(0, 0, NULL));
    FORKED(ascend_alloc_memory_limit(0, &size));
    FORKED(ascend_alloc_claim(0, live, MIB, &ptr, &size));
    FORKED(ascend_alloc_block_info(live, NULL));
    FORKED(ascend_alloc_base(live, &ptr, &size));
    FORKED(ascend_alloc_snapshot_json(0, NULL, 0, &size));
    FORKED(ascend_alloc_snapshot_visit(0, NULL, NULL));
    FORKED(ascend_alloc_set_host_copy("child", 1));
    FORKED(ascend_alloc_pause(NULL, 0));
    FORKED(ascend_alloc_resume(NULL));
}

/* What needs nothing of the parent. */
static void child_is_answered(void) {
    char tag[16];
    size_t length = 0;
    CHECK(ascend_alloc_version() != NULL);
    CHECK(ascend_alloc_pool_default(0) != 0 && ascend_alloc_pool_default(99) == 0);
    (void)ascend_alloc_failed_writes();
    OK(ascend_alloc_set_tag("child"));
    OK(ascend_alloc_get_tag(tag, sizeof tag, &length));
    CHECK(strcmp(tag, "child") == 0);
    ascend_alloc_stats_t stats;
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_stats(0, &stats));
    CHECK(stats.allocated_bytes.all.current >= (int64_t)(4 * MIB));
    REFUSED(ascend_alloc_stats(99, &stats));
    OK(ascend_alloc_stats(0, &stats));
    CHECK(ascend_alloc_last_error() == NULL);
}

static void *child_calls(void *unused) {
    (void)unused;
    child_is_refused();
    child_gives_back();
    child_is_answered();
    return NULL;
}

/* Forks a child that makes every call, also from a thread of its own, and ends by exit. */
static void fork_one(void) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        /* One that hangs is ended, and fails the check of its end. */
        alarm(30);
        child_calls(NULL);
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, child_calls, NULL) == 0 && pthread_join(thread, NULL) == 0);
        exit(0);
    }
    ends_well(child);
}

static volatile int forked_in_hook;
static void on_event(const ascend_alloc_event_t *event, void *user) {
    (void)user;
    if (event->action == ASCEND_ALLOC_ACTION_MAP && !__sync_lock_test_and_set(&forked_in_hook, 1)) {
        fork_one();
    }
}

/* A child makes every call of the header; FOLDER has the parent's trace and statistics, which no child touches. */
static void children(void) {
    set_up();
    live = ascend_alloc_malloc(4 * MIB, 0, NULL);
    host = ascend_alloc_host_malloc(MIB, 0);
    CHECK(live != NULL && host != NULL);
    ACL(aclrtMemset(live, 4 * MIB, 5, 4 * MIB));
    ascend_alloc_buffer_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.max_size = 64 * MIB;
    options.size = 4 * MIB;
    OK(ascend_alloc_pool_create(0, NULL, &pool));
    OK(ascend_alloc_buffer_create(0, NULL, &options, &buffer));
    OK(ascend_alloc_checkpoint(pool, &saved));
    OK(ascend_alloc_export(live, NULL, &export_));
    OK(ascend_alloc_set_event_hook(on_event, NULL, NULL));
    churn_starts();
    for (int i = 0; i < 15; i++) {
        fork_one();
    }
    churn_ends();
    CHECK(forked_in_hook);
    OK(ascend_alloc_set_event_hook(NULL, NULL, NULL));
    /* The parent has all it had. */
    unsigned char byte = 0;
    ACL(aclrtMemcpy(&byte, 1, live, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(byte == 5);
    OK(ascend_alloc_buffer_resize(buffer, 8 * MIB));
    OK(ascend_alloc_buffer_destroy(buffer));
    OK(ascend_alloc_checkpoint_release(saved));
    OK(ascend_alloc_export_release(export_));
    OK(ascend_alloc_pool_release(pool));
    OK(ascend_alloc_host_free(host));
    OK(ascend_alloc_release(live));
    CHECK(allocated(0) == 0);
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0);
    CHECK(ascend_alloc_failed_writes() == 0);
    write_all();
    statistics_come();
}

/* ------------------------------------------------------------------------------------------------ programs */

/* What a program finds that another one started: no descriptor of the allocator's, and an allocator of its own. */
static void fresh(void) {
    const char *before = getenv("DESCRIPTORS");
    CHECK(before != NULL);
    if (strcmp(before, descriptors_open()) != 0) {
        fprintf(stderr, "descriptors before: %s, after: %s\n", before, descriptors_open());
        exit(1);
    }
    set_up();
    void *block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    CHECK(block != NULL && allocated(0) >= (int64_t)(3 * MIB));
    ascend_alloc_free(block, 0, 0, NULL);
}

/* Other programs are started in every way while threads allocate and a trace is written. */
static void starts(void) {
    static char word[] = "fresh";
    char *words[] = {self, word, NULL};
    CHECK(setenv("DESCRIPTORS", descriptors_open(), 1) == 0);
    set_up();
    live = ascend_alloc_malloc(4 * MIB, 0, NULL);
    ACL(aclrtMemset(live, 4 * MIB, 5, 4 * MIB));
    churn_starts();
    for (int i = 0; i < 4; i++) {
        pid_t child = vfork();
        if (child == 0) {
            execv(self, words);
            _exit(127);
        }
        ends_well(child);
        CHECK(posix_spawn(&child, self, NULL, NULL, words, environ) == 0);
        ends_well(child);
        child = fork();
        if (child == 0) {
            execv(self, words);
            _exit(127);
        }
        ends_well(child);
        CHECK(system("exec true") == 0);
    }
    churn_ends();
    unsigned char byte = 0;
    ACL(aclrtMemcpy(&byte, 1, live, 1, ACL_MEMCPY_DEVICE_TO_HOST));
    CHECK(byte == 5);
    OK(ascend_alloc_release(live));
    CHECK(allocated(0) == 0 && ascend_alloc_failed_writes() == 0);
}

static void *execute(void *unused) {
    (void)unused;
    static char word[] = "fresh";
    char *words[] = {self, word, NULL};
    execv(self, words);
    exit(127);
}

/* A thread replaces the program while others allocate; what was written before is whole. */
static void replaced(void) {
    CHECK(setenv("DESCRIPTORS", descriptors_open(), 1) == 0);
    set_up();
    OK(ascend_alloc_trace_start(path_in_folder("before.trace")));
    void *block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    ascend_alloc_free(block, 0, 0, NULL);
    write_all();
    churn_starts();
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, execute, NULL) == 0);
    pthread_join(thread, NULL);
    CHECK(!"the program was replaced");
}

/* ------------------------------------------------------------------------------------------------ ends */

static void *kept[2];

static void handler(void) {
    ascend_alloc_free(kept[0], 0, 0, NULL);
    void *block = ascend_alloc_malloc(5 * MIB, 0, NULL);
    ascend_alloc_free(block, 0, 0, NULL);
    OK(ascend_alloc_empty_cache(-1));
}

/* The trace is written from the start (ASCEND_ALLOC_TRACE); it begins with this block. */
static void begin_to_end(void) {
    set_up();
    kept[0] = ascend_alloc_malloc(3 * MIB, 0, NULL);
    kept[1] = ascend_alloc_malloc(7 * MIB, 0, NULL);
    CHECK(kept[0] != NULL && kept[1] != NULL);
}

/* A handler that runs before the allocator's own. */
static void handler_after(void) {
    begin_to_end();
    CHECK(atexit(handler) == 0);
}

/* A handler that runs when the allocator's own has run. */
static void handler_before(void) {
    CHECK(atexit(handler) == 0);
    begin_to_end();
}

static void *end_here(void *unused) {
    (void)unused;
    printf("other_thread: all checks hold\n");
    exit(0);
}

/* Another thread ends the process while this one and others allocate. */
static void other_thread(void) {
    begin_to_end();
    churn_starts();
    CHECK(atexit(handler) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, end_here, NULL) == 0);
    churn(NULL);
    for (;;) {
        pause();
    }
}

static void end_in_hook(const ascend_alloc_event_t *event, void *user) {
    static int once;
    (void)user;
    /* The handler that runs then allocates too. */
    if (event->action == ASCEND_ALLOC_ACTION_ALLOCATE && !__sync_lock_test_and_set(&once, 1)) {
        printf("in_hook: all checks hold\n");
        exit(0);
    }
}

/* A hook ends the process in the middle of a request. */
static void in_hook(void) {
    begin_to_end();
    CHECK(atexit(handler) == 0);
    OK(ascend_alloc_set_event_hook(end_in_hook, NULL, NULL));
    (void)ascend_alloc_malloc(90 * MIB, 0, NULL);
    CHECK(!"the hook ended the process");
}

static void *last_thread(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    ascend_alloc_free(kept[1], 0, 0, NULL);
    OK(ascend_alloc_last_status());
    printf("main_ends: all checks hold\n");
    exit(0);
}

/* The first thread ends before the others. Threads of the allocator would keep the process if nobody called exit. */
static void main_ends(void) {
    static pthread_t first, last;
    begin_to_end();
    first = pthread_self();
    CHECK(atexit(handler) == 0);
    CHECK(pthread_create(&last, NULL, last_thread, &first) == 0);
    pthread_exit(NULL);
}

static void quick(void) {
    begin_to_end();
    churn_starts();
    write_all();
    printf("quick: all checks hold\n");
    fflush(stdout);
    quick_exit(0);
}

static void raw(void) {
    begin_to_end();
    churn_starts();
    write_all();
    printf("raw: all checks hold\n");
    fflush(stdout);
    _exit(0);
}

static uint64_t sleeper;

/* A handler that runs when the allocator's own has run finds the pool as it was. */
static void handler_asleep(void) {
    int asleep = 0;
    OK(ascend_alloc_is_asleep(sleeper, &asleep));
    CHECK(asleep == 1);
    handler();
}

/* The process ends while pools sleep, one with its content on the host. */
static void asleep(void) {
    CHECK(atexit(handler_asleep) == 0);
    begin_to_end();
    const char *tags[] = {"weights", "cache"};
    for (int number = 0; number < 2; number++) {
        ascend_alloc_pool_options_t options;
        memset(&options, 0, sizeof options);
        options.struct_size = sizeof options;
        options.tag = tags[number];
        OK(ascend_alloc_pool_create(0, &options, &sleeper));
        CHECK(ascend_alloc_pool_malloc(sleeper, 9 * MIB, NULL) != NULL);
        int mode = number ? ASCEND_ALLOC_SLEEP_MODE_DISCARD : ASCEND_ALLOC_SLEEP_MODE_HOST_COPY;
        OK(ascend_alloc_sleep(-1, &tags[number], 1, mode, NULL));
    }
}

/* ------------------------------------------------------------------------------------------------ killed */

static unsigned char message[1 << 16];
static size_t message_length;

static void take_message(const char *hex) {
    message_length = 0;
    unsigned int byte = 0;
    while (sscanf(hex + 2 * message_length, "%2x", &byte) == 1) {
        message[message_length++] = (unsigned char)byte;
    }
}

static void say(const char *text) {
    printf("%s\n", text);
    fflush(stdout);
}

static char *next_line(void) {
    static char *line;
    static size_t room;
    ssize_t length = getline(&line, &room, stdin);
    if (length <= 0) {
        return NULL;
    }
    line[length - 1] = 0;
    return line;
}

/* Exports a block, says its message, and answers lines until it is told to end. */
static void exporter(void) {
    set_up();
    live = ascend_alloc_malloc(4 * MIB, 0, NULL);
    ACL(aclrtMemset(live, 4 * MIB, 7, 4 * MIB));
    OK(ascend_alloc_export(live, NULL, &export_));
    OK(ascend_alloc_export_message(export_, message, sizeof message, &message_length));
    printf("message ");
    for (size_t i = 0; i < message_length; i++) {
        printf("%02x", message[i]);
    }
    say("");
    for (char *line = next_line(); line != NULL; line = next_line()) {
        if (strcmp(line, "end") == 0) {
            break;
        }
        void *other = ascend_alloc_malloc(9 * MIB, 0, NULL);
        CHECK(other != NULL);
        OK(ascend_alloc_release(other));
        printf("byte %d\n", byte_of(live));
        fflush(stdout);
    }
    OK(ascend_alloc_export_release(export_));
    OK(ascend_alloc_release(live));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(allocated(0) == 0 && stats_of(0).reserved_bytes.all.current == 0);
}

/* Imports what it is told to; answers each line with one. */
static void importer(void) {
    set_up();
    uint64_t number = 0;
    void *ptr = NULL;
    size_t size = 0;
    for (char *line = next_line(); line != NULL && strcmp(line, "end") != 0; line = next_line()) {
        if (strncmp(line, "import ", 7) == 0) {
            take_message(line + 7);
            int status = ascend_alloc_import(message, message_length, 0, NULL, &ptr, &size, &number);
            CHECK(status == 0 || ascend_alloc_last_error() != NULL);
            printf("import %d\n", status);
            fflush(stdout);
        } else if (strcmp(line, "byte") == 0) {
            printf("byte %d\n", byte_of(ptr));
            fflush(stdout);
        } else if (strcmp(line, "release") == 0) {
            OK(ascend_alloc_import_release(number));
            say("released");
        } else {
            /* Maps, reads and unmaps until the exporter is gone, or this process is. */
            say("looping");
            take_message(line + 5);
            while (ascend_alloc_import(message, message_length, 0, NULL, &ptr, &size, &number) == 0) {
                CHECK(byte_of(ptr) == 7);
                OK(ascend_alloc_import_release(number));
            }
            CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_DRIVER && ascend_alloc_last_error() != NULL);
            say("gone");
        }
    }
    void *own = ascend_alloc_malloc(3 * MIB, 0, NULL);
    CHECK(own != NULL);
    OK(ascend_alloc_release(own));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(stats_of(0).reserved_bytes.all.current == 0 && stats_of(0).reserved_address_space == 0);
}

/* Writes a trace and tells statistics until it is killed. */
static void victim(void) {
    set_up();
    churn_starts();
    while (churned < 2 * CHURNERS) {
        usleep(1000);
    }
    write_all();
    CHECK(getenv("EXPORTED") != NULL);
    file_comes(getenv("EXPORTED"));
    say("running");
    for (;;) {
        pause();
    }
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"children", children},
        {"fresh", fresh},
        {"starts", starts},
        {"replaced", replaced},
        {"handler_after", handler_after},
        {"handler_before", handler_before},
        {"other_thread", other_thread},
        {"in_hook", in_hook},
        {"main_ends", main_ends},
        {"quick", quick},
        {"raw", raw},
        {"asleep", asleep},
        {"exporter", exporter},
        {"importer", importer},
        {"victim", victim},
    };
    self = word[0];
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
