/* One of two libraries of one size that take each other's place in memory: see hazard_reload.c. */
int through(int (*function)(int), int argument);
int through_first(int (*function)(int), int argument);

__attribute__((noipa)) int through_first(int (*function)(int), int argument) {
    volatile char frame[64];
    frame[0] = 1;
    return function(argument) + frame[0];
}

int through(int (*function)(int), int argument) {
    return through_first(function, argument) + 1;
}
