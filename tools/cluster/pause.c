/* Waits, and reaps: the init of a pod's and of a node's pid namespace. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void leave(int number) { (void)number; _exit(0); }
static void reap(int number) { (void)number; while (waitpid(-1, 0, WNOHANG) > 0); }

int main(void) {
    struct sigaction reaping = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
    signal(SIGTERM, leave);
    signal(SIGINT, leave);
    sigaction(SIGCHLD, &reaping, 0);
    for (;;) pause();
}
