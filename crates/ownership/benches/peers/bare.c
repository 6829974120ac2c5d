/* The least that a supervisor by groups can be, in C: reads "a PGID" lines; at the end of its input it sends
 * TERM to each group, waits up to 3 s for their leaders' ends, and sends KILL to the groups of the rest. */
#define _GNU_SOURCE
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define MOST 4096

static long millis(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int main(void) {
    static pid_t group[MOST];
    static struct pollfd leader[MOST];
    int known = 0, left, number;
    char operation;
    while (scanf(" %c %d", &operation, &number) == 2) {
        if (operation != 'a' || number <= 1 || known == MOST) continue;
        group[known] = number;
        leader[known].fd = syscall(SYS_pidfd_open, number, 0);
        leader[known++].events = POLLIN;
    }
    for (int at = 0; at < known; at++) kill(-group[at], SIGTERM);
    long until = millis() + 3000;
    for (left = known; left > 0;) {
        long wait = until - millis();
        if (wait <= 0 || poll(leader, known, wait) < 0) break;
        for (int at = 0; at < known; at++)
            if (leader[at].fd >= 0 && leader[at].revents) {
                leader[at].fd = -1;
                left--;
            }
    }
    for (int at = 0; at < known; at++)
        if (leader[at].fd >= 0) kill(-group[at], SIGKILL);
    return 0;
}
