/*
 * Finds the program to run and looks whether it can be traced. See program.h; no state.
 */
#include "program.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SCRIPT_DEPTH  4 /* as the kernel follows them */
#define SEGMENTS_MAX  128
#define SCRIPT_HEAD   256
#define DEFAULT_PATHS "/bin:/usr/bin"

static bool is_executable_file(const char *path, int *code) {
    struct stat status;
    if (stat(path, &status) != 0)
        return false;
    *code = 126;
    return S_ISREG(status.st_mode) && access(path, X_OK) == 0;
}

int program_find(const char *name, char path[PATH_MAX]) {
    int code = 127;
    if (strchr(name, '/')) {
        if (snprintf(path, PATH_MAX, "%s", name) >= PATH_MAX)
            return code;
        return is_executable_file(path, &code) ? 0 : code;
    }
    const char *folders = getenv("PATH");
    if (!folders)
        folders = DEFAULT_PATHS;
    while (*name) {
        size_t length = strcspn(folders, ":");
        int used = length ? snprintf(path, PATH_MAX, "%.*s/%s", (int)length, folders, name)
                          : snprintf(path, PATH_MAX, "./%s", name);
        if (used < PATH_MAX && is_executable_file(path, &code))
            return 0;
        if (!folders[length])
            break;
        folders += length + 1;
    }
    return code;
}

/* ---- ELF ------------------------------------------------------------------------------------- */

struct elf_facts {
    bool is_elf;
    uint8_t elf_class;
    uint16_t machine;
    bool has_interpreter;
    char interpreter[256];
};

static bool read_at(int fd, void *to, size_t bytes, uint64_t offset) {
    return offset <= INT64_MAX && pread(fd, to, bytes, (off_t)offset) == (ssize_t)bytes;
}

static void read_segments(int fd, const Elf64_Ehdr *head, struct elf_facts *facts) {
    for (unsigned i = 0; i < head->e_phnum && i < SEGMENTS_MAX; i++) {
        Elf64_Phdr segment;
        if (!read_at(fd, &segment, sizeof segment, head->e_phoff + i * sizeof segment))
            return;
        if (segment.p_type != PT_INTERP)
            continue;
        size_t bytes = segment.p_filesz < sizeof facts->interpreter - 1
                           ? segment.p_filesz
                           : sizeof facts->interpreter - 1;
        facts->has_interpreter = true;
        if (!read_at(fd, facts->interpreter, bytes, segment.p_offset))
            facts->interpreter[0] = '\0';
    }
}

static struct elf_facts read_elf(const char *path) {
    struct elf_facts facts = {0};
    Elf64_Ehdr head;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return facts;
    if (read_at(fd, &head, sizeof(Elf32_Ehdr), 0) && memcmp(head.e_ident, ELFMAG, SELFMAG) == 0) {
        facts.is_elf = true;
        facts.elf_class = head.e_ident[EI_CLASS];
        facts.machine = head.e_machine; /* at the same place in both classes */
        if (facts.elf_class == ELFCLASS64 && read_at(fd, &head, sizeof head, 0) &&
            head.e_phentsize == sizeof(Elf64_Phdr))
            read_segments(fd, &head, &facts);
    }
    close(fd);
    return facts;
}

static bool elf_can_be_traced(const char *path, const char *library, char *reason, size_t size) {
    struct elf_facts program = read_elf(path), own = read_elf(library);
    if (!program.is_elf)
        return true;
    if (own.is_elf && (program.elf_class != own.elf_class || program.machine != own.machine)) {
        snprintf(reason, size,
                 "%s is for another machine (ELF class %u, machine %u) than libcuheap.so "
                 "(class %u, machine %u)",
                 path, program.elf_class, program.machine, own.elf_class, own.machine);
        return false;
    }
    if (!program.has_interpreter) {
        snprintf(reason, size, "%s is statically linked: nothing can be preloaded into it", path);
        return false;
    }
    if (strstr(program.interpreter, "ld-musl")) {
        snprintf(reason, size, "%s is linked against musl; libcuheap.so needs glibc", path);
        return false;
    }
    return true;
}

/* ---- privileges and scripts ------------------------------------------------------------------ */

/* The loader ignores LD_PRELOAD where a program gains rights that its caller lacks. */
static bool gains_rights(const char *path, char *reason, size_t size) {
    struct stat status;
    const char *what = NULL;
    if (stat(path, &status) != 0)
        return false;
    if ((status.st_mode & S_ISUID) && status.st_uid != getuid())
        what = "setuid";
    else if ((status.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) &&
             status.st_gid != getgid())
        what = "setgid";
    else if (getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
        what = "run with file capabilities";
    if (what)
        snprintf(reason, size, "%s is %s: the loader preloads nothing into it", path, what);
    return what != NULL;
}

/* The interpreter of a script; false: it is none. */
static bool script_interpreter(const char *path, char interpreter[SCRIPT_HEAD]) {
    char head[SCRIPT_HEAD] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return false;
    ssize_t bytes = pread(fd, head, sizeof head - 1, 0);
    close(fd);
    if (bytes < 3 || head[0] != '#' || head[1] != '!')
        return false;
    const char *start = head + 2 + strspn(head + 2, " \t");
    size_t length = strcspn(start, " \t\r\n");
    memcpy(interpreter, start, length);
    interpreter[length] = '\0';
    return length > 0;
}

bool program_can_be_traced(const char *path, const char *library, char *reason, size_t size) {
    char file[PATH_MAX], interpreter[SCRIPT_HEAD];
    snprintf(file, sizeof file, "%s", path);
    for (int depth = 0; depth < SCRIPT_DEPTH && script_interpreter(file, interpreter); depth++)
        snprintf(file, sizeof file, "%s", interpreter);
    return !gains_rights(file, reason, size) && elf_can_be_traced(file, library, reason, size);
}
