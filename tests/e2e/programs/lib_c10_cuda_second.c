// LINK: @O@/e2e/libc10_second.so @O@/simgpu/libcudart.a
/* A second PyTorch's libc10_cuda.so in one process: linked against its own libc10. */
#include "lib_c10_cuda.c"
