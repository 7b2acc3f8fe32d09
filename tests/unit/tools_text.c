/*
 * Names made harmless, sizes and times made readable.
 */
#include "text.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(text);

#define EXPECT_CLEAN(name, expected)                                                               \
    do {                                                                                           \
        char out[256];                                                                             \
        cr_expect_str_eq(text_clean(out, sizeof out, name), expected);                             \
        cr_expect_eq(text_clean_bytes(name), strlen(expected) + 1);                                \
    } while (0)

Test(text, leaves_names_as_they_are) {
    EXPECT_CLEAN("operator()<int>(char const*)", "operator()<int>(char const*)");
    EXPECT_CLEAN("/home/m\xc3\xbcller/\xe6\x97\xa5\xe6\x9c\xac.py",
                 "/home/m\xc3\xbcller/\xe6\x97\xa5\xe6\x9c\xac.py");
    EXPECT_CLEAN("\xf0\x9f\x94\xa5", "\xf0\x9f\x94\xa5");
}

Test(text, shows_what_could_steer_a_terminal) {
    EXPECT_CLEAN("\033[31mred\033]0;title\a", "\\x1b[31mred\\x1b]0;title\\x07");
    EXPECT_CLEAN("two\nlines\r\ttab\177", "two\\x0alines\\x0d\\x09tab\\x7f");
    EXPECT_CLEAN("\xc2\x9b"
                 "31m",
                 "\\x9b"
                 "31m"); /* CSI as one character */
}

Test(text, shows_what_could_mislead_the_eye) {
    EXPECT_CLEAN("a\xe2\x80\xae"
                 "b",
                 "a\\u{202e}b"); /* right-to-left override */
    EXPECT_CLEAN("a\xe2\x80\x8b"
                 "b",
                 "a\\u{200b}b"); /* zero width space */
    EXPECT_CLEAN("\xef\xbb\xbf", "\\u{feff}");
}

Test(text, shows_bytes_that_are_no_character) {
    EXPECT_CLEAN("\xff\xfe", "\\xff\\xfe");
    EXPECT_CLEAN("\xc3", "\\xc3");                   /* cut off */
    EXPECT_CLEAN("\xc0\xaf", "\\xc0\\xaf");          /* overlong */
    EXPECT_CLEAN("\xed\xa0\x80", "\\xed\\xa0\\x80"); /* a surrogate */
    EXPECT_CLEAN("\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80");
}

Test(text, cuts_at_whole_characters) {
    char out[5];
    cr_expect_str_eq(text_clean(out, sizeof out, "abc\xc3\xbc"), "abc");
    cr_expect_str_eq(text_clean(out, sizeof out, "a\033"), "a");
    cr_expect_str_eq(text_clean(out, sizeof out, NULL), "");
    char wide[64];
    cr_expect_eq(text_columns("m\xc3\xbc"), 2u);
    cr_expect_str_eq(text_keep_end(wide, sizeof wide, "/home/m\xc3\xbcller/a.c", 10), "...ler/a.c");
    cr_expect_str_eq(text_keep_end(wide, sizeof wide, "a.c", 3), "a.c");
    cr_expect_str_eq(text_keep_end(wide, sizeof wide, "abcdef", 2), "..");
    cr_expect_str_eq(text_keep_start(wide, sizeof wide,
                                     "\xc3\xbc"
                                     "bcdefgh",
                                     5),
                     "\xc3\xbc"
                     "b...");
}

Test(text, writes_sizes_and_times) {
    char out[TEXT_BYTES];
    cr_expect_str_eq(text_bytes(out, 0), "0 B");
    cr_expect_str_eq(text_bytes(out, 1023), "1023 B");
    cr_expect_str_eq(text_bytes(out, 1024), "1.0 KiB");
    cr_expect_str_eq(text_bytes(out, 1048575), "1.0 MiB");
    cr_expect_str_eq(text_bytes(out, UINT64_MAX), "16.0 EiB");
    cr_expect_str_eq(text_exact_bytes(out, 12582912), "12.0 MiB (12582912 bytes)");
    cr_expect_str_eq(text_exact_bytes(out, UINT64_MAX), "16.0 EiB (18446744073709551615 bytes)");
    cr_expect_str_eq(text_duration(out, 938129), "0.938 ms");
    cr_expect_str_eq(text_duration(out, 59999999999), "59.999 s");
    cr_expect_str_eq(text_duration(out, 125000000000), "2 min 05 s");
    cr_expect_str_eq(text_duration(out, 3723000000000), "1 h 02 min");
}

Test(text, reads_sizes) {
    uint64_t bytes = 0;
    cr_expect(text_parse_bytes("4096", &bytes));
    cr_expect_eq(bytes, 4096u);
    cr_expect(text_parse_bytes("64M", &bytes));
    cr_expect_eq(bytes, 67108864u);
    cr_expect(text_parse_bytes("1GiB", &bytes));
    cr_expect_eq(bytes, 1073741824u);
    cr_expect_not(text_parse_bytes("", &bytes));
    cr_expect_not(text_parse_bytes("M", &bytes));
    cr_expect_not(text_parse_bytes("-1", &bytes));
    cr_expect_not(text_parse_bytes("12x", &bytes));
    cr_expect_not(text_parse_bytes("18446744073709551616", &bytes));
    cr_expect_not(text_parse_bytes("99999999999T", &bytes));
}
