/* Loads an extension (lib_extension.c, named by the first argument) with RTLD_LOCAL and runs it. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    void *handle = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!handle) {
        fprintf(stderr, "%s\n", dlerror());
        return 2;
    }
    void (*run)(void) = (void (*)(void))dlsym(handle, "extension_run");
    run();
    return 0;
}
