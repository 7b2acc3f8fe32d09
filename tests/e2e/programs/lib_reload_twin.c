/* The first library's very code under another name: return addresses alone do not tell the two
   apart. See hazard_churn.c. */
int through(int (*function)(int), int argument);
int through_twin(int (*function)(int), int argument);

__attribute__((noipa)) int through_twin(int (*function)(int), int argument) {
    volatile char frame[64];
    frame[0] = 1;
    return function(argument) + frame[0];
}

int through(int (*function)(int), int argument) {
    return through_twin(function, argument) + 1;
}
