// LINK: @O@/e2e/libc10.so @O@/simgpu/libcudart.a
/* The stand-in under a name by which its code is known to be PyTorch's. */
#include "lib_c10_cuda.c"
