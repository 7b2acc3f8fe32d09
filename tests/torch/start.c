/*
 * Loads the cases as Python loads torch/_C.so: in a local scope, and libc10_cuda and libc10 with
 * them. Arguments: the library with the cases, the name of one.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *handle = argc == 3 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*run)(const char *) = handle ? (int (*)(const char *))dlsym(handle, "run_case") : NULL;
    if (!run) {
        fprintf(stderr, "%s\n", handle || argc != 3 ? "nothing to run" : dlerror());
        return 2;
    }
    return run(argv[2]);
}
