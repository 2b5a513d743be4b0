/*
 * The history, files of it, traces and snapshots from C, on the simulator: history SCENARIO. The variable HISTORY_FOLDER
 * names an empty folder. Valid C99 and C++11.
 */
#include "check.h"

struct told {
    int count;
    int actions[64];
    ascend_alloc_history_entry_t last;
    char tag[64];
    char context[64];
    uint64_t sequence;
};

static void keep(char *to, const char *text) {
    to[0] = 0;
    if (text != NULL) {
        strncpy(to, text, 63);
        to[63] = 0;
    }
}

static void on_entry(const ascend_alloc_history_entry_t *event, void *user) {
    struct told *told = (struct told *)user;
    CHECK(event->struct_size == sizeof *event && event->device == 0 && told->count < 64);
    CHECK(told->sequence == 0 || event->sequence == told->sequence + 1);
    told->sequence = event->sequence;
    told->actions[told->count++] = event->action;
    told->last = *event;
    keep(told->tag, event->tag);
    keep(told->context, event->context);
}

static char path_[4096];
static const char *path_of(const char *name) {
    const char *folder = getenv("HISTORY_FOLDER");
    CHECK(folder != NULL && strlen(folder) + strlen(name) + 2 < sizeof path_);
    strcpy(path_, folder);
    strcat(path_, "/");
    strcat(path_, name);
    return path_;
}

/* The bytes of a file, with a zero behind them. */
static char text_[1 << 16];
static const char *content(const char *name) {
    FILE *file = fopen(path_of(name), "rb");
    CHECK(file != NULL);
    size_t length = fread(text_, 1, sizeof text_ - 1, file);
    fclose(file);
    text_[length] = 0;
    return text_;
}

static void events(void) {
    struct told told;
    memset(&told, 0, sizeof told);
    uint64_t lost = 7;
    size_t length = 0;
    set_up();
    OK(ascend_alloc_history_drain(on_entry, &told, &lost));
    CHECK(told.count == 0 && lost == 0);
    OK(ascend_alloc_mark("nobody hears this"));

    OK(ascend_alloc_history_record(1000));
    OK(ascend_alloc_set_context("layer 1"));
    void *block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    OK(ascend_alloc_history_drain(on_entry, &told, NULL));
    CHECK(told.count == 2 && told.actions[0] == ASCEND_ALLOC_HISTORY_ACTION_SEGMENT_MAP);
    CHECK(told.actions[1] == ASCEND_ALLOC_HISTORY_ACTION_ALLOC);
    CHECK(told.last.ptr == block && told.last.requested == 3 * MIB && told.last.size > 3 * MIB);
    CHECK(strcmp(told.context, "layer 1") == 0 && told.last.tag == NULL && told.last.pool == 0);
    OK(ascend_alloc_set_context(NULL));

    ascend_alloc_pool_options_t options;
    memset(&options, 0, sizeof options);
    options.struct_size = sizeof options;
    options.tag = "a \"tag\"";
    uint64_t pool = 0;
    OK(ascend_alloc_pool_create(0, &options, &pool));
    void *pooled = ascend_alloc_pool_malloc(pool, 5 * MIB, NULL);
    CHECK(pooled != NULL);
    told.count = 0;
    OK(ascend_alloc_history_drain(on_entry, &told, &lost));
    CHECK(lost == 0 && told.last.pool == pool && strcmp(told.tag, "a \"tag\"") == 0);
    CHECK(told.last.context == NULL);

    OK(ascend_alloc_history_record_with(1000, 1, 1));
    aclrtStream side = new_stream();
    OK(ascend_alloc_record_stream(block, side));
    OK(ascend_alloc_host_waited(0, side));
    OK(ascend_alloc_mark("step 2"));
    told.count = 0;
    OK(ascend_alloc_history_drain(on_entry, &told, &lost));
    CHECK(told.count == 3 && told.actions[0] == ASCEND_ALLOC_HISTORY_ACTION_STREAM_USE);
    CHECK(told.actions[1] == ASCEND_ALLOC_HISTORY_ACTION_HOST_WAIT);
    CHECK(told.actions[2] == ASCEND_ALLOC_HISTORY_ACTION_USER_DEFINED && strcmp(told.context, "step 2") == 0);
    OK(ascend_alloc_release(block));
    OK(ascend_alloc_release(pooled));
    told.count = 0;
    OK(ascend_alloc_history_drain(on_entry, &told, &lost));
    CHECK(told.count > 0 && told.context[0] != 0);

    OK(ascend_alloc_history_json(0, NULL, 0, &length));
    char *text = (char *)malloc(length + 1);
    OK(ascend_alloc_history_json(0, text, length + 1, &length));
    CHECK(strlen(text) == length && strstr(text, "\"action\":\"alloc\"") != NULL);
    CHECK(strstr(text, "\"tag\":\"a \\\"tag\\\"\"") != NULL && strstr(text, "\"context\":\"layer 1\"") != NULL);
    free(text);

    OK(ascend_alloc_snapshot_write(path_of("s.json"), 1));
    CHECK(strstr(content("s.json"), "\"device_traces\"") != NULL && strstr(text_, "layer 1") != NULL);
    OK(ascend_alloc_snapshot_write(path_of("s.pickle"), 0));
    CHECK(content("s.pickle")[0] == (char)0x80 && text_[1] == 4);

    OK(ascend_alloc_history_record(0));
    OK(ascend_alloc_history_json(0, NULL, 0, &length));
    CHECK(length == strlen("{\"device\":0,\"lost\":0,\"events\":[]}"));
    REFUSED(ascend_alloc_history_drain(NULL, NULL, NULL));
    REFUSED(ascend_alloc_mark(NULL));
    REFUSED(ascend_alloc_host_waited(-1, NULL));
    REFUSED(ascend_alloc_snapshot_write("/nowhere/at/all/s.json", 0));
    CHECK(said("/nowhere/at/all/s.json"));
}

static void files(void) {
    set_up();
    OK(ascend_alloc_trace_stop());
    OK(ascend_alloc_history_file_stop());
    OK(ascend_alloc_flush_files());
    OK(ascend_alloc_trace_start(path_of("c.trace")));
    OK(ascend_alloc_history_file_start(path_of("c.events"), 1 << 20, 2));
    OK(ascend_alloc_mark("begin"));
    void *block = ascend_alloc_malloc(3 * MIB, 0, NULL);
    ascend_alloc_free(block, 3 * MIB, 0, NULL);
    OK(ascend_alloc_flush_files());
    CHECK(strstr(content("c.trace"), "m begin\na 1 3145728 0\nf 1\n") != NULL);
    CHECK(strstr(content("c.events"), " alloc 0 ") != NULL && strstr(text_, "# ascend-alloc history 1\n") == text_);
    OK(ascend_alloc_trace_stop());
    OK(ascend_alloc_history_file_stop());
    CHECK(ascend_alloc_failed_writes() == 0);
    REFUSED(ascend_alloc_trace_start(NULL));
    REFUSED(ascend_alloc_trace_start(""));
    CHECK(strstr(ascend_alloc_last_error(), "path is empty") != NULL);
    REFUSED(ascend_alloc_history_file_start("", MIB, 4));
    REFUSED(ascend_alloc_snapshot_write("", 0));
    /* The words are of the last call: these two have succeeded. */
    CHECK(ascend_alloc_failed_writes() == 0 && ascend_alloc_last_error() == NULL);
    REFUSED(ascend_alloc_trace_start(""));
    CHECK(ascend_alloc_pool_default(0) != 0 && ascend_alloc_last_error() == NULL);
    CHECK(ascend_alloc_pool_default(-1) == 0 && ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_ARGUMENT);
    REFUSED(ascend_alloc_trace_start("/nowhere/at/all/c.trace"));
    CHECK(said("/nowhere/at/all/c.trace"));
    REFUSED(ascend_alloc_history_file_start(path_of("c.events"), 0, 2));
    REFUSED(ascend_alloc_history_file_start(path_of("c.events"), 1, 0));
}

/* Nothing is flushed and nothing ended: the end of the process writes the rest. */
static void left(void) {
    set_up();
    OK(ascend_alloc_trace_start(path_of("left.trace")));
    ascend_alloc_free(ascend_alloc_malloc(3 * MIB, 0, NULL), 3 * MIB, 0, NULL);
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {{"events", events}, {"files", files}, {"left", left}};
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
