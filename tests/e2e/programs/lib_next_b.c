/* The second of two preloaded libraries that define chain_link(). */
const char *chain_link(void);

const char *chain_link(void) {
    return "the second library";
}
