/* Calls a function that two preloaded libraries define, twice, and on a thread as well. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void *ask(void *unused) {
    (void)unused;
    const char *(*link)(void) = (const char *(*)(void))dlsym(RTLD_DEFAULT, "chain_link");
    printf("answered by %s\n", link ? link() : "nobody");
    return NULL;
}

int main(void) {
    pthread_t thread;
    ask(NULL);
    ask(NULL);
    pthread_create(&thread, NULL, ask, NULL);
    pthread_join(thread, NULL);
    void *open_1 = dlsym(RTLD_NEXT, "open"), *open_2 = dlsym(RTLD_NEXT, "open");
    printf("open: %s\n", open_1 && open_1 == open_2 ? "the same twice" : "not the same");
    return 0;
}
