/*
 * `cuheap run --see-through`, by the environment of the program that it starts.
 */
#include "frameworks.h"
#include "harness.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* Runs env(1) under `cuheap run`, with these settings of the user's in place of all others. */
static struct run *print_environment(const char *option, const char *user, const char *other) {
    struct launch launch = {.program = BUILD_TOOL,
                            .args = {"run", "--quiet", "--", "/usr/bin/env"},
                            .plain = true,
                            .no_driver = true};
    unsigned next = 0;
    if (option)
        launch.args[1] = option;
    for (const struct framework_setting *s = framework_see_through; s->name; s++)
        launch.env[next++] = s->name;
    launch.env[next++] = user;
    launch.env[next] = user ? other : NULL;
    struct run *run = run_program(&launch);
    cr_assert_eq(run->code, 0, "%s", run->err);
    return run;
}

/* What the program found; NULL: not set. */
static const char *found(const struct run *run, const char *name, char value[128]) {
    char line[128];
    snprintf(line, sizeof line, "\n%s=", name);
    const char *at = strstr(run->out, line);
    if (!at)
        return NULL;
    at += strlen(line);
    snprintf(value, 128, "%.*s", (int)strcspn(at, "\n"), at);
    return value;
}

Test(frameworks, see_through_sets_what_is_not_set) {
    struct run *run = print_environment("--see-through", NULL, NULL);
    for (const struct framework_setting *s = framework_see_through; s->name; s++) {
        char value[128] = "", said[128];
        cr_assert(found(run, s->name, value), "%s is not set", s->name);
        cr_expect_str_eq(value, s->value, "%s", s->name);
        snprintf(said, sizeof said, "%s=%s", s->name, s->value);
        cr_expect(strstr(run->err, said), "%s", run->err);
    }
    cr_expect(strstr(run->err, "; no variable shows the inside of the pools of RMM, CuPy\n"));
    run_free(run);
}

Test(frameworks, see_through_leaves_the_users_settings) {
    struct run *run = print_environment("--see-through", "TF_GPU_ALLOCATOR=mine",
                                        "XLA_PYTHON_CLIENT_PREALLOCATE=");
    char value[128] = "";
    cr_assert(found(run, "TF_GPU_ALLOCATOR", value));
    cr_expect_str_eq(value, "mine");
    cr_expect(strstr(run->out, "\nXLA_PYTHON_CLIENT_PREALLOCATE=\n"), "%s", run->out);
    cr_assert(found(run, "XLA_PYTHON_CLIENT_ALLOCATOR", value));
    cr_expect_str_eq(value, "platform");
    cr_expect(strstr(run->err, "TF_GPU_ALLOCATOR left at mine,"), "%s", run->err);
    run_free(run);
}

Test(frameworks, nothing_is_set_unasked) {
    struct run *run = print_environment(NULL, NULL, NULL);
    for (const struct framework_setting *s = framework_see_through; s->name; s++) {
        char value[128];
        cr_expect_null(found(run, s->name, value), "%s is set", s->name);
    }
    cr_expect_str_empty(run->err);
    run_free(run);
}
