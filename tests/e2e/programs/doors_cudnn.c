/* Finds the functions of lib_cudnn.c (named by the first argument) by handle, and calls them. */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv) {
    static const char *const names[] = {"cudnnCreate", "cublasCreate_v2", "curl_easy_init",
                                        "cudaMalloc"};
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
    dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    for (int i = 0; i < 4; i++) {
        int (*function)(void) = (int (*)(void))dlsym(library, names[i]);
        const char *error = dlerror();
        printf("%s %d %s\n", names[i], function ? function() : -1, error ? error : "no error");
    }
    return 0;
}
