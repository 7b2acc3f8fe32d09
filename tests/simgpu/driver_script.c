/*
 * Scripted failures: SIMGPU_FAIL and simgpu_script(). Rules are parted by commas:
 *
 *     cuMemAlloc_v2:3=2      the third call returns 2 without doing anything
 *     cuMemAlloc_v2:3+=2     the third and every further one
 *     !cuMemFree_v2:5=700    the fifth does its work and still returns 700
 *
 * Out-parameters of a call that is not done are left as they were. The last form is what the CUDA
 * driver API reference says of most calls: "may also return error codes from previous, asynchronous
 * launches". Verdicts are asked for under the driver's lock, in any thread.
 */
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define MAX_RULES 64

struct rule {
    enum entry entry;
    uint64_t call; /* counted from the process's first */
    CUresult code;
    bool onward, does_work;
};
static struct rule rules[MAX_RULES];
static int rule_count;

struct verdict script_verdict(enum entry entry, uint64_t call) {
    for (int i = 0; i < rule_count; i++)
        if (rules[i].entry == entry &&
            (call == rules[i].call || (rules[i].onward && call > rules[i].call)))
            return (struct verdict){true, !rules[i].does_work, rules[i].code};
    return (struct verdict){false, false, CUDA_SUCCESS};
}

/* Reads one rule and returns what follows it; NULL: not a rule. */
static const char *read_rule(const char *text, struct rule *rule) {
    char name[80] = "", *end;

    rule->does_work = *text == '!';
    text += rule->does_work;
    size_t length = strcspn(text, ":");
    if (length >= sizeof name || text[length] != ':')
        return NULL;
    memcpy(name, text, length);
    int entry = entry_find(name);
    if (entry < 0)
        return NULL;
    rule->entry = (enum entry)entry;
    rule->call = strtoull(text + length + 1, &end, 10);
    rule->onward = *end == '+';
    end += rule->onward;
    if (rule->call == 0 || *end != '=')
        return NULL;
    text = end + 1;
    rule->code = (CUresult)strtoul(text, &end, 10);
    return end == text || (*end && *end != ',') ? NULL : end + (*end == ',');
}

void script_load(const char *text) {
    struct rule read[MAX_RULES] = {0};
    int count = 0;

    for (const char *next = text; *next; count++) {
        if (count == MAX_RULES)
            driver_abort("more than %d rules in %s", MAX_RULES, text);
        next = read_rule(next, &read[count]);
        if (!next)
            driver_abort("rule %d of \"%s\" is not one", count + 1, text);
        read[count].call += __atomic_load_n(&entry_calls[read[count].entry], __ATOMIC_RELAXED);
    }
    driver_lock();
    memcpy(rules, read, sizeof rules);
    rule_count = count;
    driver_unlock();
}

void simgpu_script(const char *text) {
    script_load(text);
}
