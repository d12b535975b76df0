/* Runs a bundle from C, with no Python in the process: each rank a process, or a thread.
 *
 *     syncopate compile all_gather_matmul:N=96,K=64,dtype=fp32 --rows 16,64 --ranks 2 --arch host -o ag.sybundle
 *     example_c_run_bundle ag.sybundle 50 processes          (or: threads; rows are those of the call, 0 of a user's program)
 *
 * Inputs are small whole numbers, of which sums are exact; of a mixture of experts each token's topk_ids name some. Each rank prints the
 * sum of what it made. Of a user's program the kernel is
 * expected to be examples/matmul_pointers.py; on host its tiles are made by the function below. With -DEXAMPLE_CUDA, and linked with
 * libcuda, the same runs bundles for GPUs: rank r on GPU r. Exit 1: something failed, which is said. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef EXAMPLE_CUDA
#include <cuda.h>
#endif

#include "syncopate/c.h"

enum { MOST_TENSORS = 8, CALLS = 3 };

/* --- a store: a folder that all ranks see, a file for each key --- */

static int store_set(void* folder, const char* key, const void* data, size_t bytes) {
    char scratch[512], path[512];
    snprintf(scratch, sizeof scratch, "%s/.%s.new", (const char*)folder, key);
    snprintf(path, sizeof path, "%s/%s", (const char*)folder, key);
    FILE* file = fopen(scratch, "wb");
    if (file == NULL) return 1;
    const int whole = fwrite(data, 1, bytes, file) == bytes;
    return fclose(file) != 0 || !whole || rename(scratch, path) != 0; /* it appears whole */
}

static int store_wait(void* folder, const char* key, int64_t timeout_ms) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", (const char*)folder, key);
    const struct timespec moment = {0, 1000000};
    for (int64_t waited = 0;; ++waited) {
        if (access(path, R_OK) == 0) return 0;
        if (waited >= timeout_ms) return 1;
        nanosleep(&moment, NULL);
    }
}

static int store_get(void* folder, const char* key, void* data, size_t capacity, size_t* bytes) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", (const char*)folder, key);
    struct stat of;
    FILE* file = fopen(path, "rb");
    if (file == NULL || fstat(fileno(file), &of) != 0) return 1;
    *bytes = (size_t)of.st_size;
    const size_t wanted = *bytes < capacity ? *bytes : capacity;
    const int whole = fread(data, 1, wanted, file) == wanted;
    fclose(file);
    return !whole;
}

/* --- a tile of matmul_kernel (examples/matmul_pointers.py) on host: c = a @ b of one box of c, in fp32 --- */

static const sy_box* box_of(const sy_tile* tile, const char* parameter, int writes) {
    for (int32_t i = 0; i < tile->num_boxes; ++i) {
        if (tile->boxes[i].writes == writes && strcmp(tile->boxes[i].parameter, parameter) == 0)
            return &tile->boxes[i];
    }
    return NULL;
}

static int make_tile(void* context, const sy_tile* tile) {
    (void)context;
    const sy_box *a = box_of(tile, "a_ptr", 0), *b = box_of(tile, "b_ptr", 0), *c = box_of(tile, "c_ptr", 1);
    if (a == NULL || b == NULL || c == NULL) return 1;
    for (int64_t m = c->begin[0]; m < c->end[0]; ++m) {
        for (int64_t n = c->begin[1]; n < c->end[1]; ++n) {
            float sum = 0;
            for (int64_t k = 0; k < a->shape[1]; ++k)
                sum += ((const float*)a->data)[m * a->strides[0] + k] *
                       ((const float*)b->data)[k * b->strides[0] + n];
            ((float*)c->data)[m * c->strides[0] + n] = sum;
        }
    }
    return 0;
}

/* --- memory of the device --- */

static int on_cuda = 0;

static void* device_memory(size_t bytes) {
#ifdef EXAMPLE_CUDA
    CUdeviceptr place = 0;
    if (on_cuda) return cuMemAlloc(&place, bytes) == CUDA_SUCCESS ? (void*)place : NULL;
#endif
    return malloc(bytes);
}

static void copy_in(void* to, const void* from, size_t bytes) {
#ifdef EXAMPLE_CUDA
    if (on_cuda) {
        cuMemcpyHtoD((CUdeviceptr)to, from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

static void copy_out(void* to, const void* from, size_t bytes) {
#ifdef EXAMPLE_CUDA
    if (on_cuda) {
        cuMemcpyDtoH(to, (CUdeviceptr)from, bytes);
        return;
    }
#endif
    memcpy(to, from, bytes);
}

static int use_gpu(int rank) {
#ifdef EXAMPLE_CUDA
    CUcontext context;
    return cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, rank) == CUDA_SUCCESS &&
           cuCtxSetCurrent(context) == CUDA_SUCCESS;
#else
    (void)rank;
    return 0;
#endif
}

/* --- a rank --- */

typedef struct {
    const char* file;
    const char* folder;
    int64_t rows;
    int rank, ranks;
    int failed;
} Rank;

typedef struct {
    sy_tensor tensor;
    int64_t shape[4];
    size_t count, item;
    int writes;
    void* on_host;
} Given;

static float half_of_bits(uint16_t bits) { /* bf16 */
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* From -2 to 2; the same on all ranks for a given place, so that runs can be compared. */
static void fill(Given* given, int which, int rank, int64_t experts) {
    for (size_t i = 0; i < given->count; ++i) {
        if (given->tensor.dtype.code == SY_INT) { /* topk_ids */
            const int32_t id = (int32_t)((i * 7 + (size_t)rank * 5) % (size_t)experts);
            if (given->item == 8)
                ((int64_t*)given->on_host)[i] = id;
            else
                ((int32_t*)given->on_host)[i] = id;
            continue;
        }
        const float value =
            given->writes ? 0.0F : (float)((i * 7 + (size_t)which * 3 + (size_t)rank * 5) % 5) - 2.0F;
        if (given->item == 4) {
            ((float*)given->on_host)[i] = value;
        } else {
            uint32_t bits;
            memcpy(&bits, &value, sizeof bits);
            ((uint16_t*)given->on_host)[i] = (uint16_t)(bits >> 16);
        }
    }
    copy_in(given->tensor.data, given->on_host, given->count * given->item);
}

#define TRY(call)                                                          \
    do {                                                                   \
        if ((call) != SY_OK) {                                             \
            fprintf(stderr, "rank %d: %s\n", self->rank, sy_last_error()); \
            self->failed = 1;                                              \
            return NULL;                                                   \
        }                                                                  \
    } while (0)

static void* run_rank(void* context) {
    Rank* self = context;
    const sy_store store = {sizeof store, (void*)self->folder, store_set, store_wait, store_get, NULL};
    sy_comm_config config = {.size = sizeof config};
    config.rank = self->rank;
    config.num_ranks = self->ranks;
    config.device = on_cuda ? SY_ON_CUDA : SY_ON_HOST;
    config.ordinal = self->rank;
    config.store = &store;
    if (on_cuda && !use_gpu(self->rank)) {
        fprintf(stderr, "rank %d: no GPU %d, or built without EXAMPLE_CUDA\n", self->rank, self->rank);
        self->failed = 1;
        return NULL;
    }
    sy_comm* comm = NULL;
    sy_bundle* bundle = NULL;
    sy_op* op = NULL;
    TRY(sy_comm_create(&config, &comm));
    TRY(sy_bundle_open(self->file, &bundle));
    sy_workspace workspace = {.size = sizeof workspace};
    TRY(sy_workspace_size(bundle, self->rows, &workspace)); /* an engine would budget for it */
    sy_prepare_config prepare = {.size = sizeof prepare};
    prepare.rows = self->rows;
    prepare.tiles = make_tile;
    prepare.graphs = on_cuda; /* calls on the same tensors again are one launch each */
    TRY(sy_prepare(comm, bundle, &prepare, &op));
    sy_bundle_close(bundle);

    Given given[MOST_TENSORS];
    const sy_tensor* tensors[MOST_TENSORS];
    const int32_t count = sy_num_operands(op);
    int64_t experts = 1;
    if (count > MOST_TENSORS) {
        fprintf(stderr, "rank %d: a call has %d tensors, and this program room for %d\n", self->rank, count,
                MOST_TENSORS);
        self->failed = 1;
        return NULL;
    }
    for (int32_t i = 0; i < count; ++i) {
        sy_operand operand = {.size = sizeof operand};
        TRY(sy_operand_at(op, i, &operand));
        Given* one = &given[i];
        memset(one, 0, sizeof *one);
        one->count = 1;
        for (int32_t axis = 0; axis < operand.ndim; ++axis)
            one->count *= (size_t)(one->shape[axis] = operand.shape[axis]);
        one->item = operand.dtype_bits / 8U;
        one->writes = operand.writes;
        one->on_host = calloc(one->count + 1, one->item);
        one->tensor.data = device_memory((one->count + 1) * one->item);
        one->tensor.device.type = on_cuda ? SY_CUDA : SY_CPU;
        one->tensor.device.ordinal = on_cuda ? self->rank : 0;
        one->tensor.ndim = operand.ndim;
        one->tensor.dtype.code = operand.dtype_code;
        one->tensor.dtype.bits = operand.dtype_bits;
        one->tensor.dtype.lanes = 1;
        one->tensor.shape = one->shape;
        tensors[i] = &one->tensor;
        if (strcmp(operand.name, "w1") == 0)
            experts = operand.shape[0] * self->ranks; /* each rank has its own */
    }
    for (int32_t i = 0; i < count; ++i) fill(&given[i], i, self->rank, experts);
    for (int call = 0; call < CALLS; ++call) {
        TRY(sy_run(op, tensors, count, NULL));
        TRY(sy_status(op));
        if (call == 1) { /* an engine sleeps, and wakes up */
            TRY(sy_release(comm));
            TRY(sy_restore(comm));
        }
    }
    for (int32_t i = 0; i < count; ++i) {
        if (!given[i].writes) continue;
        copy_out(given[i].on_host, given[i].tensor.data, given[i].count * given[i].item);
        double sum = 0;
        for (size_t at = 0; at < given[i].count; ++at) {
            const float value = given[i].item == 4 ? ((float*)given[i].on_host)[at]
                                                   : half_of_bits(((uint16_t*)given[i].on_host)[at]);
            sum += value * (double)(at % 11 + 1);
        }
        printf("rank %d: %zu elements, weighted sum %.0f\n", self->rank, given[i].count, sum);
    }
    fflush(stdout);
    TRY(sy_op_destroy(op));
    sy_comm_destroy(comm);
    return NULL;
}

int main(int argc, char** argv) {
    if (argc != 4 || (strcmp(argv[3], "processes") != 0 && strcmp(argv[3], "threads") != 0)) {
        fprintf(stderr, "usage: example_c_run_bundle BUNDLE ROWS processes|threads\n");
        return 2;
    }
    char folder[] = "/tmp/run_bundle_XXXXXX";
    sy_bundle* bundle = NULL;
    sy_bundle_info info = {.size = sizeof info};
    if (mkdtemp(folder) == NULL || sy_bundle_open(argv[1], &bundle) != SY_OK ||
        sy_bundle_describe(bundle, &info) != SY_OK) {
        fprintf(stderr, "%s\n", sy_last_error());
        return 1;
    }
    on_cuda = strcmp(info.arch, "host") != 0;
    const int ranks = info.num_ranks;
    sy_bundle_close(bundle);
    Rank* all = calloc((size_t)ranks, sizeof *all);
    pthread_t* threads = calloc((size_t)ranks, sizeof *threads);
    int failed = 0;
    for (int rank = 0; rank < ranks; ++rank)
        all[rank] = (Rank){argv[1], folder, atoll(argv[2]), rank, ranks, 0};
    if (strcmp(argv[3], "threads") == 0) {
        for (int rank = 0; rank < ranks; ++rank) pthread_create(&threads[rank], NULL, run_rank, &all[rank]);
        for (int rank = 0; rank < ranks; ++rank) pthread_join(threads[rank], NULL);
        for (int rank = 0; rank < ranks; ++rank) failed |= all[rank].failed;
    } else {
        for (int rank = 0; rank < ranks; ++rank) {
            if (fork() != 0) continue;
            run_rank(&all[rank]);
            _exit(all[rank].failed);
        }
        for (int rank = 0; rank < ranks; ++rank) {
            int status = 0;
            wait(&status);
            failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
        }
    }
    char command[600];
    snprintf(command, sizeof command, "rm -r %s", folder);
    if (system(command) != 0) fprintf(stderr, "%s stays\n", folder);
    free(all);
    free(threads);
    return failed;
}
