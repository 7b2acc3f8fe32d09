/*
 * The environment variables of the simulated GPU, read once when the library is loaded. A value
 * that cannot be read aborts: a test must not run on another machine than it asked for.
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

struct settings settings;

static size_t read_size(const char *name, size_t otherwise) {
    static const char suffixes[] = "KMG";
    const char *text = getenv(name), *suffix;
    char *end;

    if (!text || !*text)
        return otherwise;
    size_t value = strtoull(text, &end, 10);
    if (*end && (suffix = strchr(suffixes, *end))) {
        value <<= 10 * (suffix - suffixes + 1);
        end++;
    }
    if (*end)
        driver_abort("%s=%s is not a size", name, text);
    return value;
}

static int read_number(const char *name, int otherwise, int least, int most) {
    size_t value = read_size(name, (size_t)otherwise);

    if (value < (size_t)least || value > (size_t)most)
        driver_abort("%s is not between %d and %d", name, least, most);
    return (int)value;
}

__attribute__((constructor)) static void settings_read(void) {
    const char *fork_text = getenv("SIMGPU_FORK"), *capture_text = getenv("SIMGPU_CAPTURE");
    const char *rules = getenv("SIMGPU_FAIL");

    settings.devices = read_number("SIMGPU_DEVICES", 1, 0, MAX_DEVICES);
    settings.memory = read_size("SIMGPU_MEMORY", (size_t)16 << 30) / PAGE * PAGE;
    settings.context_memory = read_size("SIMGPU_CONTEXT_MEMORY", settings.memory / 32);
    settings.driver_version = read_number("SIMGPU_DRIVER_VERSION", 13000, 2000, 99990);
    settings.self_lookup = read_number("SIMGPU_SELF_LOOKUP", 0, 0, 1);
    settings.unload_at_exit = read_number("SIMGPU_UNLOAD_AT_EXIT", 0, 0, 1);
    if (fork_text && strcmp(fork_text, "refuse"))
        driver_abort("SIMGPU_FORK=%s: the only value is refuse", fork_text);
    settings.refuse_fork = fork_text != NULL;
    if (capture_text && strcmp(capture_text, "invalidate"))
        driver_abort("SIMGPU_CAPTURE=%s: the only value is invalidate", capture_text);
    settings.spoil_capture = capture_text != NULL;
    if (rules)
        script_load(rules);
}
