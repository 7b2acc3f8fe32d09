/*
 * Compares what a program says that it did (programs/ledger.h) with what the report says, to the
 * byte: each place with its function, file, line, kind and device; totals; losses. Used by the
 * tests of tests/e2e.
 */
#ifndef TESTS_E2E_BOOKS_H
#define TESTS_E2E_BOOKS_H

#include "harness.h"

void books_must_match(const struct run *run, json_t *report, const char *source_file);

#endif
