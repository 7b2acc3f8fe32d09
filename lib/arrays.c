#include "arrays.h"

#include <stdbool.h>
#include <stddef.h>

/* Bits of one element; where the format does not name the channels, of one channel. */
struct format {
    uint8_t first, last; /* CUarray_format */
    uint8_t bits;
    uint8_t a_channel; /* times the descriptor's NumChannels */
    uint8_t block;     /* width and height are multiples of it */
};

static const struct format formats[] = {
    {0x01, 0x01, 8, 1, 1}, /* UNSIGNED_INT8, 16, 32 */
    {0x02, 0x02, 16, 1, 1}, {0x03, 0x03, 32, 1, 1}, {0x08, 0x08, 8, 1, 1}, /* SIGNED_INT8, 16, 32 */
    {0x09, 0x09, 16, 1, 1}, {0x0a, 0x0a, 32, 1, 1}, {0x10, 0x10, 16, 1, 1}, /* HALF */
    {0x20, 0x20, 32, 1, 1},                                                 /* FLOAT */
    {0x50, 0x50, 32, 0, 1},                                                 /* UNORM_INT_101010_2 */
    {0x91, 0x92, 4, 0, 4},                                                  /* BC1 */
    {0x93, 0x96, 8, 0, 4},                                                  /* BC2, BC3 */
    {0x97, 0x98, 4, 0, 4},                                                  /* BC4 */
    {0x99, 0x9e, 8, 0, 4},                                                  /* BC5, BC6H, BC7 */
    {0x9f, 0x9f, 24, 0, 1},                                                 /* P010 */
    {0xa1, 0xa1, 24, 0, 1},                                                 /* P016 */
    {0xa2, 0xa2, 16, 0, 1},                                                 /* NV16 */
    {0xa3, 0xa4, 32, 0, 1},                                                 /* P210, P216 */
    {0xa5, 0xa5, 16, 0, 1},                                                 /* YUY2 */
    {0xa6, 0xa9, 32, 0, 1}, /* Y210, Y216, AYUV, Y410 */
    {0xb0, 0xb0, 12, 0, 1}, /* NV12 */
    {0xb1, 0xb1, 64, 0, 1}, /* Y416 */
    {0xb2, 0xb2, 24, 0, 1}, /* Y444_PLANAR8 */
    {0xb3, 0xb3, 48, 0, 1}, /* Y444_PLANAR10 */
    {0xb4, 0xb4, 24, 0, 1}, /* YUV444_8bit_SemiPlanar */
    {0xb5, 0xb5, 48, 0, 1}, /* YUV444_16bit_SemiPlanar */
    {0xc0, 0xc0, 8, 0, 1},  /* UNORM_INT8X1, X2, X4; INT16X1, X2, X4 */
    {0xc1, 0xc1, 16, 0, 1}, {0xc2, 0xc2, 32, 0, 1}, {0xc3, 0xc3, 16, 0, 1},
    {0xc4, 0xc4, 32, 0, 1}, {0xc5, 0xc5, 64, 0, 1}, {0xc6, 0xc6, 8, 0, 1}, /* SNORM, likewise */
    {0xc7, 0xc7, 16, 0, 1}, {0xc8, 0xc8, 32, 0, 1}, {0xc9, 0xc9, 16, 0, 1},
    {0xca, 0xca, 32, 0, 1}, {0xcb, 0xcb, 64, 0, 1},
};

/* A format of a later CUDA: the smallest it can be. */
static const struct format unknown_format = {0, 0, 8, 1, 1};

static const struct format *format_of(int number) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (number >= formats[i].first && number <= formats[i].last)
            return &formats[i];
    return &unknown_format;
}

static uint64_t at_least_one(uint64_t n) {
    return n ? n : 1;
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned level) {
    const struct format *format = format_of(array->Format);
    bool layered = array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t block = format->block;
    uint64_t width = at_least_one(array->Width >> level);
    uint64_t height = at_least_one(array->Height >> level);
    uint64_t depth = at_least_one(layered ? array->Depth : array->Depth >> level);
    uint64_t elements =
        (width + block - 1) / block * block * ((height + block - 1) / block * block) * depth;
    return (elements * format->bits * (format->a_channel ? array->NumChannels : 1) + 7) / 8;
}

uint64_t arrays_bytes_3d(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
    uint64_t bytes = 0;
    if (array->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
        return 0;
    for (unsigned level = 0; level < levels && level < 64; level++)
        bytes += level_bytes(array, level);
    return bytes;
}

uint64_t arrays_bytes(const CUDA_ARRAY_DESCRIPTOR *array) {
    CUDA_ARRAY3D_DESCRIPTOR flat = {.Width = array->Width,
                                    .Height = array->Height,
                                    .Format = array->Format,
                                    .NumChannels = array->NumChannels};
    return arrays_bytes_3d(&flat, 1);
}
