/* What programs/pair.c does, as tests/stress/test_step.c must know it. */
#ifndef PROGRAMS_PAIR_H
#define PROGRAMS_PAIR_H

#define PAIR_BYTES      5000
#define PAIR_WARM_BYTES 4000
#define PAIR_WARM       20 /* pairs done before the one that is stepped */
#define BLOCK_BYTES     1000

#endif
