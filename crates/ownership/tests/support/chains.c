#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
static void hop(useconds_t pause) {
    for (;;) {
        if (pause) usleep(pause);
        pid_t next = fork();
        if (next > 0) _exit(0);
        if (next == 0) setsid();
    }
}
int main(int argc, char **argv) {
    useconds_t pause = argc > 1 ? atoi(argv[1]) * 1000 : 0;
    const char *stays = getenv("CHAIN_ROOT_STAYS");
    signal(SIGTERM, SIG_IGN);
    for (int chain = 0; chain < 5; chain++)
        if (fork() == 0) { setsid(); hop(pause); }
    if (stays) sleep(atoi(stays)); else usleep(50000);
    return 0;
}
