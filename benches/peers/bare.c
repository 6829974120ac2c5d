/* The least that each thing can cost, in C, for benches/table: starts, round trips, messages, copies, wakes, kills.
 *
 *   bare MIB PROGRAM ROLE
 *
 * Holds MIB of memory in small pages, says "ready", and answers each line of its input with "ok" and nanoseconds:
 *   fork | exec | zygote   a child: to its first byte, to its end collected. exec runs PROGRAM ROLE, its output a socket
 *   worker                 a round trip of 200 bytes there and 100 back with a process that runs
 *   workers N | zygotes N K   N round trips; N children of the zygote, K of them at once
 *   messages N BYTES       to read so many messages from another process, one write each
 *   kill                   SIGKILL to a readable pidfd
 *   futex | eventfd        a wake to the time at which the woken process runs */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <linux/sched.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 64
#define TASK 200
#define ANSWER 100

/* What a waiter and its waker share. */
struct shared {
    _Atomic uint32_t word;
    _Atomic int64_t woken;
};

static char *program, *role;
static int zygote_line, worker_line, event, futex_told, event_told;
static struct shared *futex_page, *event_page;

static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

static void fail(const char *what) {
    printf("failed %s: %m\n", what);
    fflush(stdout);
    exit(2);
}

static void check(int fine, const char *what) {
    if (!fine) fail(what);
}

static void pair(int type, int ends[2]) {
    check(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends) == 0, "socketpair");
}

/* A child of ours that dies with us. It must not write what our output still holds. */
static pid_t child(void) {
    fflush(stdout);
    pid_t pid = fork();
    check(pid >= 0, "fork");
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static void collect(pid_t pid) {
    check(waitpid(pid, NULL, __WALL) == pid, "waitpid");
}

/* A byte and a descriptor over one line. */
static void send_end(int line, int end) {
    char task[TASK] = "task", control[CMSG_SPACE(sizeof end)] = {0};
    struct iovec bytes = {task, sizeof task};
    struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET, head->cmsg_type = SCM_RIGHTS, head->cmsg_len = CMSG_LEN(sizeof end);
    memcpy(CMSG_DATA(head), &end, sizeof end);
    check(sendmsg(line, &message, 0) == TASK, "sendmsg");
}

/* Forks a sibling for each request: its parent is ours, so the asker collects it. */
static void be_zygote(int line) {
    for (;;) {
        char task[TASK], control[CMSG_SPACE(sizeof(int))];
        struct iovec bytes = {task, sizeof task};
        struct msghdr message = {.msg_iov = &bytes, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        if (recvmsg(line, &message, MSG_CMSG_CLOEXEC) <= 0) _exit(0);
        int end;
        memcpy(&end, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof end);
        struct clone_args how = {.flags = CLONE_PARENT};
        pid_t pid = syscall(SYS_clone3, &how, sizeof how);
        if (pid == 0) _exit(write(end, "h", 1) != 1);
        close(end);
        if (write(line, &pid, sizeof pid) != sizeof pid) _exit(1);
    }
}

static void be_worker(int line) {
    char task[TASK];
    while (read(line, task, sizeof task) > 0)
        if (write(line, task, ANSWER) != ANSWER) break;
    _exit(0);
}

static void be_waiter(struct shared *page, int told, int by_event) {
    for (uint32_t seen = 0;; seen++) {
        uint64_t count;
        if (by_event) {
            if (read(event, &count, sizeof count) != sizeof count) _exit(1);
        } else
            while (page->word == seen) syscall(SYS_futex, &page->word, FUTEX_WAIT, seen, NULL, NULL, 0);
        page->woken = now();
        if (write(told, "w", 1) != 1) _exit(1);
    }
}

static void helpers(void) {
    int line[2];
    pair(SOCK_SEQPACKET, line);
    if (child() == 0) close(line[0]), be_zygote(line[1]);
    close(line[1]), zygote_line = line[0];
    pair(SOCK_STREAM, line);
    if (child() == 0) close(line[0]), be_worker(line[1]);
    close(line[1]), worker_line = line[0];
    event = eventfd(0, EFD_CLOEXEC);
    futex_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    event_page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check(event >= 0 && futex_page != MAP_FAILED && event_page != MAP_FAILED, "shared memory");
    pair(SOCK_STREAM, line);
    if (child() == 0) be_waiter(futex_page, line[1], 0);
    futex_told = line[0];
    pair(SOCK_STREAM, line);
    if (child() == 0) be_waiter(event_page, line[1], 1);
    event_told = line[0];
}

static int run_program(void *end) {
    char *arguments[] = {program, role, NULL};
    dup2(*(int *)end, 1);
    execv(program, arguments);
    _exit(127);
}

/* To the first byte of a child, and to its end collected. */
static void start(char kind, int64_t took[2]) {
    static char stack[64 * 1024] __attribute__((aligned(16)));
    int ends[2], handle = -1;
    pid_t pid = -1;
    char byte;
    fflush(stdout);
    int64_t began = now();
    pair(SOCK_STREAM, ends);
    if (kind == 'f') {
        pid = fork();
        if (pid == 0) _exit(write(ends[1], "h", 1) != 1);
    } else if (kind == 'e')
        pid = clone(run_program, stack + sizeof stack, CLONE_VM | CLONE_VFORK | CLONE_PIDFD | SIGCHLD, &ends[1], &handle);
    else
        send_end(zygote_line, ends[1]);
    check(kind == 'z' || pid > 0, "a child");
    close(ends[1]);
    check(read(ends[0], &byte, 1) == 1, "a first byte");
    took[0] = now() - began;
    if (kind == 'z') check(read(zygote_line, &pid, sizeof pid) == sizeof pid && pid > 0, "a copy");
    collect(pid);
    took[1] = now() - began;
    close(ends[0]);
    if (handle >= 0) close(handle);
}

static int64_t worker(long rounds) {
    char bytes[TASK] = "task";
    int64_t began = now();
    while (rounds-- > 0) {
        check(write(worker_line, bytes, TASK) == TASK, "a task");
        for (ssize_t left = ANSWER; left > 0;) {
            ssize_t got = read(worker_line, bytes, left);
            check(got > 0, "an answer");
            left -= got;
        }
    }
    return now() - began;
}

static int64_t zygotes(long rounds, long at_once) {
    int ends[MOST];
    long asked = 0, done = 0;
    check(at_once > 0 && at_once <= MOST, "1 to 64 at once");
    int64_t began = now();
    while (done < rounds) {
        for (; asked < rounds && asked - done < at_once; asked++) {
            int both[2];
            pair(SOCK_STREAM, both);
            send_end(zygote_line, both[1]);
            close(both[1]);
            ends[asked % MOST] = both[0];
        }
        char byte;
        pid_t pid;
        check(read(zygote_line, &pid, sizeof pid) == sizeof pid && pid > 0, "a copy");
        check(read(ends[done % MOST], &byte, 1) == 1, "a first byte");
        close(ends[done++ % MOST]);
        collect(pid);
    }
    return now() - began;
}

static int64_t messages(long count, long size) {
    static char buffer[64 * 1024];
    int ends[2];
    char byte;
    pair(SOCK_STREAM, ends);
    pid_t pid = child();
    if (pid == 0) {
        char *message = malloc(size);
        memset(message, 'x', size);
        if (write(ends[1], "r", 1) != 1 || read(ends[1], &byte, 1) != 1) _exit(1);
        for (; count > 0; count--)
            for (long at = 0; at < size;) {
                ssize_t put = write(ends[1], message + at, size - at);
                if (put <= 0) _exit(1);
                at += put;
            }
        _exit(0);
    }
    check(read(ends[0], &byte, 1) == 1, "a sender");
    int64_t began = now();
    check(write(ends[0], "g", 1) == 1, "a sender");
    for (int64_t left = (int64_t)count * size; left > 0;) {
        ssize_t got = read(ends[0], buffer, sizeof buffer);
        check(got > 0, "a message");
        left -= got;
    }
    int64_t took = now() - began;
    collect(pid);
    close(ends[0]), close(ends[1]);
    return took;
}

static int64_t killed(void) {
    int ends[2];
    char byte;
    pair(SOCK_STREAM, ends);
    pid_t pid = child();
    if (pid == 0) {
        if (write(ends[1], "r", 1) != 1) _exit(1);
        for (;;) pause();
    }
    check(read(ends[0], &byte, 1) == 1, "a child");
    struct pollfd handle = {.fd = syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    check(handle.fd >= 0, "pidfd_open");
    int64_t began = now();
    kill(pid, SIGKILL);
    check(poll(&handle, 1, 10000) == 1, "an end");
    int64_t took = now() - began;
    collect(pid);
    close(handle.fd), close(ends[0]), close(ends[1]);
    return took;
}

static int64_t woken(struct shared *page, int told, int by_event) {
    uint64_t one = 1;
    char byte;
    int64_t began = now();
    if (by_event) {
        check(write(event, &one, sizeof one) == sizeof one, "eventfd");
    } else {
        page->word++;
        syscall(SYS_futex, &page->word, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
    check(read(told, &byte, 1) == 1, "a waiter");
    return page->woken - began;
}

int main(int count, char **arguments) {
    if (count != 4) return fprintf(stderr, "bare MIB PROGRAM ROLE\n"), 2;
    program = arguments[2], role = arguments[3];
    signal(SIGPIPE, SIG_IGN);
    helpers();
    size_t held = strtoul(arguments[1], NULL, 10) << 20;
    if (held > 0) {
        char *memory = mmap(NULL, held, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        check(memory != MAP_FAILED, "memory");
        madvise(memory, held, MADV_NOHUGEPAGE);
        for (size_t at = 0; at < held; at += 4096) memory[at] = 1;
    }
    puts("ready");
    fflush(stdout);
    char line[256], what[32];
    while (fgets(line, sizeof line, stdin)) {
        long first = 0, second = 0;
        int64_t took[2] = {-1, -1};
        if (sscanf(line, "%31s %ld %ld", what, &first, &second) < 1) continue;
        if (!strcmp(what, "fork") || !strcmp(what, "exec") || !strcmp(what, "zygote")) start(what[0], took);
        else if (!strcmp(what, "worker")) took[0] = worker(1);
        else if (!strcmp(what, "workers")) took[0] = worker(first);
        else if (!strcmp(what, "zygotes")) took[0] = zygotes(first, second);
        else if (!strcmp(what, "messages")) took[0] = messages(first, second);
        else if (!strcmp(what, "kill")) took[0] = killed();
        else if (!strcmp(what, "futex")) took[0] = woken(futex_page, futex_told, 0);
        else if (!strcmp(what, "eventfd")) took[0] = woken(event_page, event_told, 1);
        if (took[0] < 0) printf("failed no such round: %s\n", what);
        else if (took[1] < 0) printf("ok %ld\n", (long)took[0]);
        else printf("ok %ld %ld\n", (long)took[0], (long)took[1]);
        fflush(stdout);
    }
    return 0;
}
