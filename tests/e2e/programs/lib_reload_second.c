/* One of two libraries of one size that take each other's place in memory: see hazard_reload.c. */
int through(int (*function)(int), int argument);
int through_second(int (*function)(int), int argument);

__attribute__((noipa)) int through_second(int (*function)(int), int argument) {
    volatile char frame[4096 * 3];
    for (unsigned i = 0; i < sizeof frame; i++)
        frame[i] = 65;
    return function(argument) + frame[0];
}

int through(int (*function)(int), int argument) {
    return through_second(function, argument) + 1;
}
