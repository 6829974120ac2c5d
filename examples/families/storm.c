/* storm hop MILLIS: five chains; each link waits, forks, and leaves the rest to its child in a session of its own.
   storm fork: everybody forks as fast as the limit on processes lets it, half of them into new sessions.
   Nobody obeys TERM, nobody reaps. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void hop(useconds_t pause) {
    for (;;) {
        usleep(pause);
        pid_t next = fork();
        if (next > 0) _exit(0);
        if (next == 0) setsid();
    }
}

static void storm(void) {
    for (unsigned turn = 0;; turn++) {
        pid_t next = fork();
        if (next == 0 && turn % 2) setsid();
        if (next < 0) usleep(1000);
    }
}

int main(int argc, char **argv) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (argc == 2 && !strcmp(argv[1], "fork")) storm();
    if (argc != 3 || strcmp(argv[1], "hop")) return 2;
    for (int chain = 0; chain < 5; chain++)
        if (fork() == 0) { setsid(); hop(atoi(argv[2]) * 1000); }
    for (;;) pause();
}
