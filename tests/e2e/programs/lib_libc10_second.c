/* A second PyTorch's libc10.so in one process, under another name. */
#include "lib_libc10.c"
