/*
 * Loads, asks and unloads as programs without CUDA do, and prints which libraries for unwinding
 * that has brought in.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
    static const char *const wanted[] = {"libunwind", "liblzma", "libgcc_s"};
    char line[1024];
    void *handle = dlopen("libm.so.6", RTLD_NOW);
    printf("cos %s\n", dlsym(handle, "cos") ? "found" : "not found");
    printf("dladdr %s\n", dlvsym(RTLD_DEFAULT, "dladdr", "GLIBC_2.34") ||
                                  dlvsym(RTLD_DEFAULT, "dladdr", "GLIBC_2.2.5") ||
                                  dlvsym(RTLD_DEFAULT, "dladdr", "GLIBC_2.17")
                              ? "found"
                              : "not found");
    printf("dlclose %d\n", dlclose(handle));
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        for (int i = 0; i < 3; i++)
            if (strstr(line, wanted[i]))
                printf("mapped: %s\n", wanted[i]);
    printf("%s\n", maps ? "maps read" : "no maps");
    return 0;
}
