/*
 * Starts a program, passes signals on to it, waits for its end. See child.h.
 *
 * Signals that the terminal sends go to the whole foreground group, the program included: those are
 * not passed on a second time. Those sent to this process alone are.
 */
#include "child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static const int passed[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGCONT};
#define PASSED (sizeof passed / sizeof *passed)

static volatile pid_t child_pid; /* read by the handler; set before signals are let in */

static void pass_on(int number, siginfo_t *info, void *context) {
    (void)context;
    int saved = errno;
    if (child_pid > 0 && info->si_code <= 0)
        kill(child_pid, number);
    errno = saved;
}

static void handle_signals(struct sigaction before[PASSED]) {
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    for (size_t i = 0; i < PASSED; i++) {
        sigaction(passed[i], NULL, &before[i]);
        /* What we were told to ignore (nohup, a background job) the program is to ignore as well.
         */
        if (before[i].sa_handler != SIG_IGN)
            sigaction(passed[i], &action, NULL);
    }
}

static void restore_signals(const struct sigaction before[PASSED]) {
    for (size_t i = 0; i < PASSED; i++)
        sigaction(passed[i], &before[i], NULL);
}

/* In the child: becomes the program, or sends errno through the pipe. */
static void become(const char *path, char **argv, int report) {
    execvp(path, argv);
    int error = errno;
    ssize_t written = write(report, &error, sizeof error);
    (void)written;
    _exit(127);
}

static struct child_end wait_for(pid_t pid) {
    struct child_end end = {.pid = pid};
    int status;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        continue;
    if (WIFSIGNALED(status)) {
        end.signal = WTERMSIG(status);
        end.code = 128 + end.signal;
    } else
        end.code = WEXITSTATUS(status);
    return end;
}

struct child_end child_run(const char *path, char **argv) {
    struct sigaction before[PASSED];
    sigset_t all, mask;
    int report[2], error = 0;
    if (pipe2(report, O_CLOEXEC) != 0)
        return (struct child_end){.error = errno};
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &mask);
    pid_t pid = fork();
    if (pid == 0) {
        sigprocmask(SIG_SETMASK, &mask, NULL);
        become(path, argv, report[1]);
    }
    int fork_error = errno;
    close(report[1]);
    if (pid < 0) {
        sigprocmask(SIG_SETMASK, &mask, NULL);
        close(report[0]);
        return (struct child_end){.error = fork_error};
    }
    child_pid = pid;
    handle_signals(before);
    sigprocmask(SIG_SETMASK, &mask, NULL);
    ssize_t bytes;
    while ((bytes = read(report[0], &error, sizeof error)) < 0 && errno == EINTR)
        continue;
    close(report[0]);
    struct child_end end = wait_for(pid);
    child_pid = 0;
    restore_signals(before);
    if (bytes == sizeof error) {
        end.pid = 0;
        end.error = error;
    }
    return end;
}
