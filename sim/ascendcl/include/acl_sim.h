/*
 * Controls of the simulated libascendcl.so: what a person or a test tells the simulator.
 *
 * No part of the vendor's interface; a program that is to run on devices too looks these functions
 * up with dlsym and does without them. Every function may be called from any thread, before and
 * between all other calls.
 *
 * Codes: 0 is done. 100000: an argument is not understood, nothing changed. 107001: no such device.
 * 507899: a reset found calls that did not end, nothing changed. 507033: this process was forked
 * from one that uses the devices. 500000: a mistake in the simulator.
 *
 * Device numbers are the machine's, whatever ASCEND_RT_VISIBLE_DEVICES lists. Sizes are bytes.
 * Texts end with a zero. Each setting has an environment variable, given in brackets, which is read
 * once, at the first call.
 *
 * Two kinds of settings. Those marked "next machine" describe the machine to build: they count from
 * the first ACL call on, or, once there was one, from the next acl_sim_reset on, and stay. All others
 * change the machine that is there and end with it. Before the first ACL call (and between a reset and
 * the next) controls may come in any order.
 *
 * Valid C99 and C++11.
 */
#ifndef ACL_SIM_H
#define ACL_SIM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- The machine ---------------------------------------------------------------------------- */

/* Takes the machine apart, with everything a program has on it; the next call has a new one: no device is
 * set, counters, findings, planned failures and settings of the old machine are gone. Addresses and
 * handles of the old machine must not be used any more. Waits for calls of other threads to end, at
 * most two seconds, and for callbacks that are running; new calls wait for the new machine. */
int acl_sim_reset(void);

/* Next machine: devices, 1 or more. [ASCEND_SIM_DEVICES, 2] */
int acl_sim_set_devices(int devices);

/* Next machine: what aclrtGetSocName answers. Names that begin with Ascend950 play that part, all
 * others the 910B. [ASCEND_SIM_SOC, Ascend910B3] */
int acl_sim_set_soc(const char *name);

/* Next machine: "threads": work runs by worker threads, some time after it was queued.
 * "deterministic" or "deterministic:SEED": work runs inside calls: as it is queued, or, with an event
 * lag, by acl_sim_tick and waits. So the same calls give the same run. [ASCEND_SIM_EXEC, threads] */
int acl_sim_set_exec(const char *how);

/* Next machine: "mapped": device addresses can be read and written by the CPU. "tables": they are
 * numbers, and size costs nothing. "auto": mapped where it is small enough.
 * [ASCEND_SIM_BACKING, auto] */
int acl_sim_set_backing(const char *kind);

/* The CANN version that is played from now on: "8.0", "8.1", "8.2", "8.3", "8.5", "9.0", "9.1",
 * "9.2", or "8.x" and "9.x" for the newest. Calls that came later answer 207000 and aclrtGetVersion
 * follows; a library without their symbols is made by install --surface. Stays over a reset.
 * [ASCEND_SIM_SURFACE, 9.x] */
int acl_sim_set_surface(const char *version);

/* ---- Devices -------------------------------------------------------------------------------- */

/* Memory of a device. What is held stays held. [ASCEND_SIM_CAPACITY, 64G, for all devices] */
int acl_sim_set_capacity(int device, uint64_t bytes);

/* Memory of a device that other processes hold. [ASCEND_SIM_FOREIGN, 0, for all devices] */
int acl_sim_set_foreign_bytes(int device, uint64_t bytes);

/* 1: refuse what documents forbid although the real library lets it pass. 0: answer as the real
 * library. [ASCEND_SIM_STRICT, 0] */
int acl_sim_strict(int on);

/* 1: the use checker looks at copies, fills and kernels. [ASCEND_SIM_CHECKER, 1] */
int acl_sim_set_checker(int on);

/* ---- Time ----------------------------------------------------------------------------------- */

/* Work, and with it events, stays unfinished until that many ticks have passed after it was queued or
 * somebody waits for it; UINT64_MAX: only waits finish it. [ASCEND_SIM_EVENT_LAG, 0; "never"] */
int acl_sim_set_event_lag(uint64_t ticks);

/* Lets ticks pass; they pass by nothing else. */
int acl_sim_tick(uint64_t ticks);

/* Every call of that function costs so many virtual nanoseconds.
 * [ASCEND_SIM_COST=function=nanoseconds,...] */
int acl_sim_set_cost(const char *function, uint64_t nanoseconds);

/* Virtual nanoseconds that calls have cost so far. */
uint64_t acl_sim_now(void);

/* ---- Failures ------------------------------------------------------------------------------- */

/* The k-th call of that function from now on (1 and 0 are the next) answers `code` and does nothing; with
 * `always` all later ones too. Several may be planned. 100000 if the model has no such function.
 * [ASCEND_SIM_FAIL=function:k:code[:always],...] */
int acl_sim_fail(const char *function, uint64_t k, int code, int always);

/* Drops what was planned. */
int acl_sim_clear_failures(void);

/* All reservations together get no more than that many bytes of address space, then 207001; UINT64_MAX:
 * no limit but the window. */
int acl_sim_set_address_space(uint64_t bytes);

/* Holds a range as a copy engine does: to unmap any of it is refused as busy (507899) until acl_sim_unhold
 * of the same range, which answers 100000 if there is no such hold. */
int acl_sim_hold(void *start, uint64_t bytes);
int acl_sim_unhold(void *start, uint64_t bytes);

/* ---- Kernels -------------------------------------------------------------------------------- */

/* Memory that a kernel reads (`write` 0) or writes. */
typedef struct acl_sim_range {
    void *start;
    uint64_t bytes;
    int write;
} acl_sim_range;

/* Queues something that stands for a kernel to a stream of the current device (NULL: the default
 * stream): the use checker sees the memory it names, nothing is read or written. It runs for so many
 * microseconds of real time, in "threads" execution on a thread of the library. Answers codes of the
 * interface as a launch would (107002 without a device, 107017 for a stale stream), 100000 for a null
 * label. */
int acl_sim_kernel(void *stream, const char *label, const acl_sim_range *ranges, size_t count,
                   uint64_t microseconds);

/* ---- What happened -------------------------------------------------------------------------- */

/* These write JSON as snprintf writes text: at most `room` bytes with the zero behind them, cut if
 * need be; the answer is the length of the whole text without the zero, so that a call with a room
 * of 0 asks for it. -1: there is no machine to ask (a forked child). */

/* Calls so far by name, refused ones too: {"aclrtMalloc":3,...}. */
int acl_sim_counters_json(char *buffer, size_t room);

/* What the program did wrong: [{"kind":"...","text":"..."},...]; [] if nothing was found. The text is
 * for people and names the calls involved. Kinds: "unordered_use" (two uses of memory that nothing
 * orders; also has "start", "bytes", "first" and "second"), "use_after_end", "not_mapped",
 * "no_access" (memory of another device), "release_while_mapped", "free_while_registered",
 * "call_in_callback". */
int acl_sim_findings_json(char *buffer, size_t room);

/* What the program has not given back yet, each with the call that made it:
 * [{"kind":"leak","text":"..."},...]; [] if nothing. */
int acl_sim_leaks_json(char *buffer, size_t room);

/* When the process ends (not by _exit or a signal), write findings and leaks for people: to
 * "stderr" or to a file; NULL or "": do not. Written after the exit handlers of the program and the
 * destructors of libraries that depend on this one. [ASCEND_SIM_REPORT] */
int acl_sim_report(const char *target);

#ifdef __cplusplus
}
#endif

#endif /* ACL_SIM_H */
