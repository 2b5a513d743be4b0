/*
 * A process with little: signals all the time, no descriptor left, no address space, no locked memory, a full disk, readers
 * that go away. On the simulator: limits SCENARIO. The variable FOLDER names an empty folder.
 */
#define _GNU_SOURCE
#include "check.h"
#include "churn.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

/* Everything was given back. */
static void nothing_left(void) {
    for (int device = 0; device < 2; device++) {
        CHECK(allocated(device) == 0);
        OK(ascend_alloc_empty_cache(device));
        CHECK(stats_of(device).reserved_bytes.all.current == 0);
    }
}

static void pairs(int count) {
    for (int i = 0; i < count; i++) {
        void *block = ascend_alloc_malloc((size_t)(i % 7 + 1) * 1000, 0, NULL);
        CHECK(block != NULL);
        OK(ascend_alloc_release(block));
    }
}

/* Waits until the allocator has counted a write that failed; it is one of its threads that writes. */
static void a_write_fails(void) {
    alarm(100);
    while (ascend_alloc_failed_writes() == 0) {
        usleep(1000);
    }
    alarm(0);
}

/* ---------------------------------------------------------------------------------------------- signals */

static volatile sig_atomic_t caught;
static volatile int rounds_left = 60;
static pthread_t pestered[CHURNERS + 1];

static void on_signal(int number) {
    (void)number;
    caught++;
}

/* Every call that writes something. */
static void *write_files(void *unused) {
    (void)unused;
    ACL(aclrtSetDevice(0));
    while (rounds_left > 0) {
        OK(ascend_alloc_trace_start(path_in_folder("storm.trace.zst")));
        OK(ascend_alloc_history_file_start(path_in_folder("storm.events"), 1 << 14, 3));
        OK(ascend_alloc_snapshot_write(path_in_folder("storm.json"), 1));
        write_all();
        OK(ascend_alloc_history_file_stop());
        OK(ascend_alloc_trace_stop());
        rounds_left--;
    }
    return NULL;
}

static void *pester(void *unused) {
    (void)unused;
    for (int i = 0; rounds_left > 0; i++) {
        /* The threads are joined only after this one has ended. */
        pthread_kill(pestered[i % (CHURNERS + 1)], SIGUSR1);
        usleep(30);
    }
    return NULL;
}

static void storm(int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = flags;
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
    set_up();
    struct itimerval timer = {{0, 200}, {0, 200}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &timer, NULL) == 0);
    churn_starts();
    pthread_t pest;
    memcpy(pestered, churners, sizeof churners);
    CHECK(pthread_create(&pestered[CHURNERS], NULL, write_files, NULL) == 0);
    CHECK(pthread_create(&pest, NULL, pester, NULL) == 0);
    CHECK(pthread_join(pest, NULL) == 0);
    CHECK(pthread_join(pestered[CHURNERS], NULL) == 0);
    churn_ends();
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    CHECK(caught > 100 && ascend_alloc_failed_writes() == 0);
    file_comes("stats.json");
    nothing_left();
}

static void storm_restarts(void) { storm(SA_RESTART); }
static void storm_interrupts(void) { storm(0); }

/* Whether a thread, which lives, blocks a signal. */
static int blocks(const char *thread, int number) {
    char path[64], line[256];
    unsigned long long mask = 0;
    snprintf(path, sizeof path, "/proc/self/task/%s/status", thread);
    FILE *file = fopen(path, "r");
    CHECK(file != NULL);
    while (fgets(line, sizeof line, file) != NULL && sscanf(line, "SigBlk: %llx", &mask) != 1) {
    }
    fclose(file);
    return (int)(mask >> (number - 1) & 1);
}

/* Looks at the allocator's threads that have a name already; how many there are. */
static int own_threads(void) {
    int own = 0;
    DIR *threads = opendir("/proc/self/task");
    CHECK(threads != NULL);
    for (struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
        char path[512], name[64] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file == NULL) {
            continue;
        }
        /* A thread that has just ended has no name. */
        CHECK(fgets(name, sizeof name, file) != NULL || errno == ESRCH);
        fclose(file);
        if (strncmp(name, "ascend-alloc-", 13) == 0) {
            own++;
            CHECK(blocks(entry->d_name, SIGTERM) && blocks(entry->d_name, SIGUSR2));
            CHECK(blocks(entry->d_name, SIGPIPE) && blocks(entry->d_name, SIGXFSZ));
            CHECK(!blocks(entry->d_name, SIGSEGV) && !blocks(entry->d_name, SIGABRT));
        }
    }
    closedir(threads);
    return own;
}

/* The allocator's threads leave the program its signals, and report their own faults. */
static void threads_take_none(void) {
    set_up();
    OK(ascend_alloc_trace_start(path_in_folder("none.trace")));
    void *host = ascend_alloc_host_malloc(MIB, 0);
    CHECK(host != NULL);
    /* The trace's, and that of the statistics (ASCEND_ALLOC_CONF). */
    while (own_threads() < 2) {
        usleep(1000);
    }
    sigset_t usr2;
    sigemptyset(&usr2);
    CHECK(pthread_sigmask(SIG_BLOCK, NULL, &usr2) == 0 && !sigismember(&usr2, SIGUSR2));
    sigemptyset(&usr2);
    sigaddset(&usr2, SIGUSR2);
    CHECK(pthread_sigmask(SIG_BLOCK, &usr2, NULL) == 0);
    /* To the process: any thread that does not block it would end the process. */
    CHECK(kill(getpid(), SIGUSR2) == 0);
    int number = 0;
    CHECK(sigwait(&usr2, &number) == 0 && number == SIGUSR2);
    OK(ascend_alloc_host_free(host));
    OK(ascend_alloc_trace_stop());
}

/* Readers of the statistics connect and go away, which must not end the process. */
static void readers_leave(void) {
    set_up();
    struct sockaddr_un place;
    memset(&place, 0, sizeof place);
    place.sun_family = AF_UNIX;
    strcpy(place.sun_path, getenv("SOCKET"));
    char first = 0;
    for (int i = 0; i < 20 || first == 0;) {
        int reader = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK(reader >= 0);
        if (connect(reader, (struct sockaddr *)&place, sizeof place) != 0) {
            /* Not there yet, or too many wait. */
            usleep(1000);
        } else if (i++ >= 20) {
            CHECK(read(reader, &first, 1) == 1 && first == '{');
        }
        close(reader);
        pairs(1);
    }
    CHECK(ascend_alloc_failed_writes() == 0);
}

/* -------------------------------------------------------------------------------------------- descriptors */

static unsigned char message[1 << 16];
static size_t message_length;

/* Exports a block and keeps it until its input ends. */
static void export_to(int to, int until) {
    set_up();
    void *block = ascend_alloc_malloc(4 * MIB, 0, NULL);
    uint64_t number = 0;
    OK(ascend_alloc_export(block, NULL, &number));
    OK(ascend_alloc_export_message(number, message, sizeof message, &message_length));
    CHECK(write(to, &message_length, sizeof message_length) == (ssize_t)sizeof message_length);
    CHECK(write(to, message, message_length) == (ssize_t)message_length);
    char byte;
    while (read(until, &byte, 1) > 0) {
    }
    _exit(0);
}

/* Refused with a reason. */
#define FAILS(call) CHECK((call) != ASCEND_ALLOC_STATUS_OK && ascend_alloc_last_error() != NULL)

/* Whether each of these descriptors is open, and stays open. */
static int all_taken(int count) {
    char descriptor[16];
    for (int i = 0; i < count; i++) {
        snprintf(descriptor, sizeof descriptor, "%d", i);
        if (is_passing(descriptor)) {
            return 0;
        }
    }
    return 1;
}

static void descriptors(void) {
    int there[2], until[2];
    CHECK(pipe(there) == 0 && pipe(until) == 0);
    pid_t other = fork();
    CHECK(other >= 0);
    if (other == 0) {
        close(until[1]);
        export_to(there[1], until[0]);
    }
    /* One that fails is the end of what is read. */
    close(there[1]);
    CHECK(read(there[0], &message_length, sizeof message_length) == (ssize_t)sizeof message_length);
    CHECK(read(there[0], message, message_length) == (ssize_t)message_length);

    set_up();
    /* What there is once and stays: the devices' own descriptors. */
    void *ptr = NULL, *first = ascend_alloc_malloc(3 * MIB, 0, NULL);
    size_t size = 0;
    uint64_t number = 0;
    OK(ascend_alloc_release(first));
    OK(ascend_alloc_import(message, message_length, 0, NULL, &ptr, &size, &number));
    OK(ascend_alloc_import_release(number));
    OK(ascend_alloc_trace_start(path_in_folder("first.trace")));
    static char before[1 << 12];
    snprintf(before, sizeof before, "%s", descriptors_open());

    int full[256], count = 0;
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = 128;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    do {
        while (count < 256 && (full[count] = dup(0)) >= 0) {
            count++;
        }
        CHECK(errno == EMFILE);
    } while (!all_taken(128));
    /* The trace has its file; memory that is mapped, and more of it, need none. */
    pairs(300);
    void *more = ascend_alloc_malloc(40 * MIB, 0, NULL);
    CHECK(more != NULL || ascend_alloc_last_error() != NULL);
    OK(ascend_alloc_release(more));
    write_all();
    FAILS(ascend_alloc_import(message, message_length, 0, NULL, &ptr, &size, &number));
    FAILS(ascend_alloc_history_file_start(path_in_folder("none.events"), 1 << 20, 1));
    CHECK(said("none.events"));
    FAILS(ascend_alloc_snapshot_write(path_in_folder("none.json"), 0));
    CHECK(said("none.json"));
    a_write_fails();
    pairs(100);
    while (count > 0) {
        close(full[--count]);
    }

    OK(ascend_alloc_import(message, message_length, 0, NULL, &ptr, &size, &number));
    OK(ascend_alloc_import_release(number));
    OK(ascend_alloc_history_file_start(path_in_folder("later.events"), 1 << 20, 1));
    pairs(100);
    OK(ascend_alloc_history_file_stop());
    OK(ascend_alloc_snapshot_write(path_in_folder("later.json"), 0));
    OK(ascend_alloc_empty_cache(-1));
    CHECK(strcmp(before, descriptors_open()) == 0);
    OK(ascend_alloc_trace_stop());
    nothing_left();
    CHECK(stats_of(0).reserved_address_space == 0);
    close(until[1]);
    int status = -1;
    CHECK(waitpid(other, &status, 0) == other && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ------------------------------------------------------------------------------------------ memory limits */

static size_t address_space(void) {
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file != NULL && fscanf(file, "%lu", &pages) == 1);
    fclose(file);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* The address space is used up while the allocator runs: requests fail with a reason, and succeed afterwards. */
static void space(void) {
    set_up();
    void *small = ascend_alloc_malloc(3 * MIB, 0, NULL), *held[64];
    CHECK(small != NULL);
    struct rlimit limit, old;
    CHECK(getrlimit(RLIMIT_AS, &old) == 0);
    limit = old;
    limit.rlim_cur = address_space() + 64 * MIB;
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    /* Page-locked memory, a device that was not used yet, devices' own memory. */
    CHECK(ascend_alloc_host_malloc(1024 * MIB, 0) == NULL && ascend_alloc_last_error() != NULL);
    void *elsewhere = ascend_alloc_malloc(200 * MIB, 1, NULL);
    CHECK(elsewhere != NULL || ascend_alloc_last_error() != NULL);
    int count = 0;
    while (count < 64 && (held[count] = ascend_alloc_malloc(1024 * MIB, 0, NULL)) != NULL) {
        count++;
    }
    CHECK(count == 64 || ascend_alloc_last_error() != NULL);
    pairs(100);
    OK(ascend_alloc_release(elsewhere));
    while (count > 0) {
        OK(ascend_alloc_release(held[--count]));
    }
    CHECK(setrlimit(RLIMIT_AS, &old) == 0);
    elsewhere = ascend_alloc_malloc(200 * MIB, 1, NULL);
    void *host = ascend_alloc_host_malloc(64 * MIB, 0);
    CHECK(elsewhere != NULL && host != NULL);
    OK(ascend_alloc_release(elsewhere));
    OK(ascend_alloc_host_free(host));
    OK(ascend_alloc_host_empty_cache());
    OK(ascend_alloc_release(small));
    nothing_left();
}

/* No page may be locked: page-locked memory is given or refused with a reason, and nothing else changes. */
static void locked(void) {
    struct rlimit none = {0, 0};
    CHECK(setrlimit(RLIMIT_MEMLOCK, &none) == 0);
    set_up();
    for (int i = 0; i < 50; i++) {
        void *host = ascend_alloc_host_malloc((size_t)(i + 1) * 100000, 0);
        CHECK(host != NULL || ascend_alloc_last_error() != NULL);
        OK(ascend_alloc_host_free(host));
    }
    OK(ascend_alloc_host_empty_cache());
    ascend_alloc_host_stats_t stats;
    stats.struct_size = sizeof stats;
    OK(ascend_alloc_host_get_stats(0, &stats));
    CHECK(stats.active_bytes.current == 0 && stats.allocated_bytes.current == 0);
    pairs(100);
    nothing_left();
}

/* --------------------------------------------------------------------------------------------- a full disk */

enum { BEFORE = 3000, FULL = 3000, AFTER = 3000 };

/* Lets no file grow beyond so many bytes. */
static void limit_files(rlim_t bytes) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_FSIZE, &limit) == 0);
    limit.rlim_cur = bytes < limit.rlim_max ? bytes : limit.rlim_max;
    CHECK(setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

/* Makes the disk full, or lets there be room again: by a file that fills it, or a limit on how long files may be. */
static void fill(int on) {
    const char *name = path_in_folder("filler");
    if (getenv("BY_LIMIT") != NULL) {
        limit_files(on ? 20000 : RLIM_INFINITY);
    } else if (!on) {
        CHECK(unlink(name) == 0);
    } else {
        static const char zeros[4096];
        int file = open(name, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
        CHECK(file >= 0);
        while (write(file, zeros, sizeof zeros) > 0) {
        }
        CHECK(errno == ENOSPC);
        close(file);
    }
}

/* A trace, a file of events, statistics and a report of a failed request meet a full disk: the program goes on, what could not be
 * written is counted, and once there is room the trace is completed. */
static void full_disk(void) {
    set_up();
    OK(ascend_alloc_trace_start(path_in_folder("full.trace")));
    OK(ascend_alloc_history_file_start(path_in_folder("full.events"), 1 << 30, 2));
    pairs(BEFORE);
    write_all();
    CHECK(ascend_alloc_failed_writes() == 0);
    static char before[1 << 12];
    snprintf(before, sizeof before, "%s", descriptors_open());
    fill(1);
    pairs(FULL);
    write_all();
    a_write_fails();
    uint64_t failed = ascend_alloc_failed_writes();
    CHECK(ascend_alloc_malloc((size_t)1 << 38, 0, NULL) == NULL);
    CHECK(ascend_alloc_last_status() == ASCEND_ALLOC_STATUS_OUT_OF_MEMORY);
    CHECK(ascend_alloc_failed_writes() > failed);
    if (getenv("BY_LIMIT") != NULL) {
        // An error, and not the signal that ends the process.
        limit_files(100);
        FAILS(ascend_alloc_snapshot_write(path_in_folder("full.json"), 1));
        CHECK(said("full.json"));
    } else if (ascend_alloc_snapshot_write(path_in_folder("full.json"), 1) != ASCEND_ALLOC_STATUS_OK) {
        CHECK(said("full.json"));
    }
    fill(0);
    pairs(AFTER);
    write_all();
    CHECK(strcmp(before, descriptors_open()) == 0);
    OK(ascend_alloc_snapshot_write(path_in_folder("full.json"), 1));
    OK(ascend_alloc_history_file_stop());
    OK(ascend_alloc_trace_stop());
    nothing_left();
}

int main(int words, char **word) {
    static const struct scenario scenarios[] = {
        {"storm_restarts", storm_restarts},
        {"storm_interrupts", storm_interrupts},
        {"threads_take_none", threads_take_none},
        {"readers_leave", readers_leave},
        {"descriptors", descriptors},
        {"space", space},
        {"locked", locked},
        {"full_disk", full_disk},
    };
    return run_scenario(scenarios, sizeof scenarios / sizeof scenarios[0], words, word);
}
