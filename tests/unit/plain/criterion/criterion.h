/*
 * The few macros of Criterion that the library's unit tests use, over nothing but fork.
 *
 * Criterion keeps its own memory at an address that ThreadSanitizer needs, so under TSan (only
 * there) this header stands in for it. Each test runs in a child of its own, one after the other.
 */
#ifndef CUHEAP_PLAIN_CRITERION_H
#define CUHEAP_PLAIN_CRITERION_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct plain_fixture {
    void (*init)(void);
    void (*fini)(void);
    const char *suite;
    struct plain_fixture *next;
};

struct plain_test {
    const char *suite, *name;
    void (*body)(void);
    struct plain_test *next;
};

void plain_add_test(struct plain_test *test);
void plain_add_fixture(struct plain_fixture *fixture);

#define PLAIN_SKIPPED 77

#define Test(suite_, name_, ...)                                                                   \
    static void suite_##_##name_##_impl(void);                                                     \
    __attribute__((constructor)) static void suite_##_##name_##_add(void) {                        \
        static struct plain_test test = {#suite_, #name_, suite_##_##name_##_impl, NULL};          \
        plain_add_test(&test);                                                                     \
    }                                                                                              \
    static void suite_##_##name_##_impl(void)

#define TestSuite(suite_, ...)                                                                     \
    __attribute__((constructor)) static void suite_##_fixture_add(void) {                          \
        static struct plain_fixture fixture = {__VA_ARGS__};                                       \
        fixture.suite = #suite_;                                                                   \
        plain_add_fixture(&fixture);                                                               \
    }                                                                                              \
    struct plain_fixture

#define cr_assert(condition, ...)                                                                  \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);                                 \
            fflush(stdout);                                                                        \
            _exit(1);                                                                              \
        }                                                                                          \
    } while (0)
#define cr_assert_not(condition, ...)  cr_assert(!(condition))
#define cr_assert_eq(a, b, ...)        cr_assert((a) == (b))
#define cr_assert_neq(a, b, ...)       cr_assert((a) != (b))
#define cr_assert_lt(a, b, ...)        cr_assert((a) < (b))
#define cr_assert_leq(a, b, ...)       cr_assert((a) <= (b))
#define cr_assert_gt(a, b, ...)        cr_assert((a) > (b))
#define cr_assert_geq(a, b, ...)       cr_assert((a) >= (b))
#define cr_assert_null(a, ...)         cr_assert((a) == NULL)
#define cr_assert_not_null(a, ...)     cr_assert((a) != NULL)
#define cr_assert_str_eq(a, b, ...)    cr_assert(strcmp((a), (b)) == 0)
#define cr_assert_arr_eq(a, b, n, ...) cr_assert(memcmp((a), (b), (n)) == 0)
#define cr_skip_test(...)                                                                          \
    (printf("[SKIP] tsan: " __VA_ARGS__), puts(""), fflush(stdout), _exit(PLAIN_SKIPPED))

#endif
