/*
 * cuInit, versions, error texts, devices, and the books that simgpu.h shows. Bodies of entry
 * points: called with the driver's lock held, from any thread.
 *
 * Codes follow the CUDA driver API reference, "Initialization", "Device Management" and "Error
 * Handling"; where it is silent, what an H200 with driver 580.159 and CUDA 13.0 gave
 * (conformance.txt).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

bool driver_initialized;
struct device devices[MAX_DEVICES];
struct simgpu_books host_books;

CUresult sim_init(unsigned int flags) {
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    if (!settings.devices)
        return CUDA_ERROR_NO_DEVICE;
    if (driver_initialized)
        return CUDA_SUCCESS;
    for (int i = 0; i < settings.devices; i++) {
        if (!space_open(&devices[i].space, settings.memory) || !pool_set_up(i))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    driver_initialized = true;
    if (settings.unload_at_exit && atexit(driver_unload))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (settings.self_lookup) {
        driver_unlock();
        self_lookup();
        driver_lock();
    }
    return CUDA_SUCCESS;
}

CUresult sim_driver_get_version(int *version) {
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = settings.driver_version;
    return CUDA_SUCCESS;
}

static const struct {
    CUresult code;
    const char *name, *text;
} errors[] = {
#define X(value, name, text) {name, #name, text},
    CUDA_SIM_ERRORS(X)
#undef X
};

CUresult sim_get_error_string(CUresult error, const char **string) {
    *string = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            *string = errors[i].text;
    return *string ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sim_get_error_name(CUresult error, const char **name) {
    *name = NULL;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
        if (errors[i].code == error)
            *name = errors[i].name;
    return *name ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult device_check(CUdevice device) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    return device >= 0 && device < settings.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

size_t device_free(CUdevice device) {
    const struct device *d = &devices[device];
    size_t used = d->context_bytes + d->pool_bytes + d->other_bytes + d->space.pages_in_use * PAGE;

    return used < settings.memory ? settings.memory - used : 0;
}

CUresult sim_device_get(CUdevice *device, int ordinal) {
    CUresult code = device_check(ordinal);

    if (!code)
        *device = ordinal;
    return code;
}

CUresult sim_device_get_count(int *count) {
    if (!driver_initialized)
        return CUDA_ERROR_NOT_INITIALIZED;
    *count = settings.devices;
    return CUDA_SUCCESS;
}

CUresult sim_device_get_name(char *name, int length, CUdevice device) {
    CUresult code = device_check(device);

    if (!code && (!name || length <= 0))
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        snprintf(name, (size_t)length, "Simulated GPU");
    return code;
}

/* The same for a device in every process and run, as a real one's is. */
CUresult sim_device_get_uuid(CUuuid *uuid, CUdevice device) {
    CUresult code = device_check(device);

    if (!code) {
        memcpy(uuid->bytes, "simulated-gpu-00", sizeof uuid->bytes);
        uuid->bytes[14] = (char)('0' + device / 10);
        uuid->bytes[15] = (char)('0' + device % 10);
    }
    return code;
}

CUresult sim_device_total_mem(size_t *bytes, CUdevice device) {
    CUresult code = device_check(device);

    if (!code)
        *bytes = settings.memory;
    return code;
}

CUresult sim_device_total_mem_v1(unsigned int *bytes, CUdevice device) {
    CUresult code = device_check(device);

    if (!code)
        *bytes = settings.memory > UINT32_MAX ? UINT32_MAX : (unsigned int)settings.memory;
    return code;
}

CUresult sim_device_get_attribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    static const struct {
        CUdevice_attribute attribute;
        int value;
    } known[] = {
        {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
        {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
        {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 9},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
        {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
        {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
        {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    };
    CUresult code = device_check(device);

    if (code)
        return code;
    *value = 0;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].attribute == attribute)
            *value = known[i].value;
    return CUDA_SUCCESS;
}

CUresult sim_device_get_pci_bus_id(char *id, int length, CUdevice device) {
    CUresult code = device_check(device);

    if (!code && (!id || length < 13))
        code = CUDA_ERROR_INVALID_VALUE;
    if (!code)
        snprintf(id, (size_t)length, "0000:%02X:00.0", (unsigned int)device + 1);
    return code;
}

CUresult sim_device_can_access_peer(int *can, CUdevice device, CUdevice peer) {
    CUresult code = device_check(device);

    if (!code)
        code = device_check(peer);
    if (!code)
        *can = device != peer;
    return code;
}

int simgpu_books(int device, struct simgpu_books *books) {
    if (device < SIMGPU_HOST || device >= settings.devices)
        return -1;
    driver_lock();
    *books = device == SIMGPU_HOST ? host_books : devices[device].books;
    driver_unlock();
    return 0;
}
