/* What holds a pod's namespaces: waits, and takes the exit codes of processes that lost their parents. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number) { (void)number; _exit(0); }

static void reap(int number) {
  (void)number;
  while (waitpid(-1, 0, WNOHANG) > 0) {}
}

int main(void) {
  signal(SIGINT, end);
  signal(SIGTERM, end);
  signal(SIGCHLD, reap);
  for (;;) pause();
}
