/* Syncopate from C: run programs that were compiled ahead (`syncopate compile … -o FILE`), with no Python in the process.
 *
 *   sy_comm        the ranks that call together: one in each process, or several as threads of one process
 *   sy_bundle      a file of `syncopate compile`; one may serve many communicators
 *   sy_op          a program of a bundle on one rank, for one number of rows, set up to be called
 *
 * A call:  sy_comm_create, sy_bundle_open, sy_workspace_size, sy_prepare; then sy_run again and again; then sy_op_destroy, …
 *
 * Functions marked "collective" are called by all ranks of a communicator, in the same order; where one rank cannot go on, all fail. A
 * communicator, and what is made from it, serves one thread at a time; sy_status, sy_abort and sy_poll may come from any thread.
 * Structs begin with `size`: set it to sizeof of the struct, and the rest to zero before filling it in (SY_INIT). A later version reads
 * structs of an earlier one, and an earlier version refuses what it does not know.
 * Every function returns a code; sy_last_error has the text, of the thread's last failure. Nothing throws. */
#ifndef SYNCOPATE_C_H
#define SYNCOPATE_C_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SY_VERSION 1u

#if defined(__GNUC__)
#define SY_API __attribute__((visibility("default")))
#else
#define SY_API
#endif

typedef enum sy_code {
    SY_OK = 0,
    SY_INPUT = 1,   /* a file, or what it holds, is wrong */
    SY_USAGE = 2,   /* a call that makes no sense here */
    SY_MACHINE = 3, /* memory, a GPU or a rank is missing; a call that did not end */
    SY_BUG = 4      /* an exception inside: please report it */
} sy_code;

/* Text of this thread's last failure; "" where there was none. Valid until its next call. */
SY_API const char* sy_last_error(void);
/* SY_VERSION of the library. */
SY_API uint32_t sy_version(void);

/* A tensor, laid out in memory as DLPack's DLTensor (version 0.8 and 1.x), so that a DLTensor* may be cast to it, or, where
 * dlpack/dlpack.h was included before, is it. */
#ifdef DLPACK_VERSION
#define SY_HAS_DLPACK 1
#elif defined(DLPACK_MAJOR_VERSION)
#define SY_HAS_DLPACK 1
#endif
#ifdef SY_HAS_DLPACK
typedef DLTensor sy_tensor;
#else
enum { SY_CPU = 1, SY_CUDA = 2 }; /* sy_device.type, as DLDeviceType */
enum {
    SY_INT = 0,
    SY_UINT = 1,
    SY_FLOAT = 2,
    SY_BFLOAT = 4,
    SY_FLOAT8_E4M3FN = 10
}; /* sy_dtype.code, as DLDataTypeCode */
typedef struct sy_device {
    int32_t type;
    int32_t ordinal;
} sy_device;
typedef struct sy_dtype {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes; /* 1 */
} sy_dtype;
typedef struct sy_tensor {
    void* data;
    sy_device device;
    int32_t ndim;
    sy_dtype dtype;
    int64_t* shape;
    int64_t* strides;     /* elements; NULL: rows are contiguous */
    uint64_t byte_offset; /* from data */
} sy_tensor;
#endif

/* --- communicator ------------------------------------------------------------------------------------------------------------ */

/* The store through which ranks meet at set-up: some hundred bytes a rank. A key that is set again has the later value. Functions return
 * 0, or anything else where they failed. They are called by the thread that calls us. */
typedef struct sy_store {
    size_t size;
    void* context;
    /* Makes the bytes readable by all ranks. */
    int (*set)(void* context, const char* key, const void* data, size_t bytes);
    /* Returns 0 once some rank has set the key, and something else when it has not for `timeout_ms`. */
    int (*wait)(void* context, const char* key, int64_t timeout_ms);
    /* The bytes of a key that is set: *bytes says how many there are; as many as `capacity` are copied to `data`. */
    int (*get)(void* context, const char* key, void* data, size_t capacity, size_t* bytes);
    /* Sets the key unless some rank has set it before, in one step; get then gives what is there. NULL: sy_recover goes on with all ranks
     * of the store, or not at all. */
    int (*set_first)(void* context, const char* key, const void* data, size_t bytes);
} sy_store;

typedef enum sy_device_kind { SY_ON_HOST = 0, SY_ON_CUDA = 1 } sy_device_kind;

typedef struct sy_comm_config {
    size_t size;
    int32_t rank;
    int32_t num_ranks;
    sy_device_kind device;
    int32_t ordinal;    /* SY_ON_CUDA: the GPU */
    int64_t timeout_ms; /* how long ranks wait for each other at set-up; 0: a minute */
    uint64_t
        budget; /* bytes of this rank's device that all ops together may take of what peers map; 0: no bound; alike on all ranks */
    const sy_store*
        store; /* copied; NULL: as torchrun, mpirun or a PMI say in the environment, on one machine */
    int32_t
        joins; /* 1: this process was started in the place of a rank that died: it calls sy_recover first, as the others do */
} sy_comm_config;

typedef struct sy_comm sy_comm;
SY_API sy_code sy_comm_create(const sy_comm_config* config, sy_comm** comm);
/* After its ops. Not collective. */
SY_API void sy_comm_destroy(sy_comm* comm);

typedef struct sy_memory {
    size_t size;
    uint64_t bytes;    /* of this rank's device that peers map, when nothing is released */
    uint64_t released; /* of those, given back for now */
    uint64_t budget;
} sy_memory;
SY_API sy_code sy_comm_memory(sy_comm* comm, sy_memory* memory);

/* Gives the memory of all ops back, as an engine does that sleeps, and takes it again at the same addresses: what was captured replays, and
 * nothing is compiled. Collective, with no call in progress; waits for the device. In between nothing can be called or prepared. What lies
 * in the ops' memory is lost. */
SY_API sy_code sy_release(sy_comm* comm);
SY_API sy_code sy_restore(sy_comm* comm);

/* Going on after a fault (sy_run, sy_status or sy_poll failed with SY_MACHINE): collective over the ranks that are there, on the thread that
 * the communicator serves. What was in flight is lost. Ranks that do not come in time are left out, and fail when they come. The
 * communicator is then the group of those who came. Where all ranks go on, ops that all of them have take calls again, from the first one
 * on, and graphs replay; others are refused by name: destroy them, and prepare anew, from a bundle for as many ranks. */
typedef struct sy_recover_config {
    size_t size;
    int64_t deadline_ms; /* until which ranks are waited for; 0: the communicator's timeout */
    const sy_store*
        store; /* a new one, as where the old one died with a rank, of those that are to go on; NULL: the communicator's own */
    int32_t rank; /* with a new store: of this process in it, and of how many */
    int32_t num_ranks;
} sy_recover_config;
typedef struct sy_group {
    size_t size;
    int32_t rank; /* of this process from now on */
    int32_t num_ranks;
    int32_t renewed;      /* 1: ops that all ranks have go on */
    const int32_t* ranks; /* by rank: which it was in the store; until the next sy_recover */
} sy_group;
SY_API sy_code sy_recover(sy_comm* comm, const sy_recover_config* config,
                          sy_group* group); /* config: may be NULL; group: too */

/* --- bundle ------------------------------------------------------------------------------------------------------------------- */

typedef struct sy_bundle sy_bundle;
/* Reads and checks the file. No device is touched. */
SY_API sy_code sy_bundle_open(const char* file, sy_bundle** bundle);
SY_API void sy_bundle_close(sy_bundle* bundle); /* ops that were prepared of it stay */

typedef struct sy_bundle_info {
    size_t size;
    const char* name; /* these live as long as the bundle */
    const char* arch; /* "sm_90", "host" */
    int32_t num_ranks;
    int64_t most_rows; /* 0: a user's program, whose rows are its own */
} sy_bundle_info;
SY_API sy_code sy_bundle_describe(const sy_bundle* bundle, sy_bundle_info* info);

/* Bytes of a rank's device that sy_prepare takes for so many rows, before any is allocated. */
typedef struct sy_workspace {
    size_t size;
    uint64_t all;
    uint64_t mapped; /* that peers map, and that sy_release gives back */
    uint64_t own;    /* partial sums and tables */
} sy_workspace;
SY_API sy_code sy_workspace_size(const sy_bundle* bundle, int64_t rows, sy_workspace* workspace);

/* --- op ----------------------------------------------------------------------------------------------------------------------- */

/* What of a tensor a tile of a user's kernel reads or writes: a box [begin, end) an axis. */
typedef struct sy_box {
    const char* parameter; /* of the kernel */
    int32_t writes;        /* else it reads */
    int32_t ndim;
    void* data; /* the tensor's first element */
    const int64_t* shape;
    const int64_t* strides; /* elements */
    const int64_t* begin;
    const int64_t* end;
} sy_box;
typedef struct sy_tile {
    size_t size;
    int32_t stage;
    int32_t num_boxes;
    int64_t tile;
    const sy_box* boxes;
} sy_tile;
/* Makes a tile of a user's kernel, on host, where there is no code for it. Returns 0 where it has. Of grouped kernels the boxes are all
   of each tensor: which rows a tile has, the offsets say. */
typedef int (*sy_tile_kernel)(void* context, const sy_tile* tile);

/* Rows of a mixture of experts are tokens of each rank, and of one of the bundle's buckets. */
typedef struct sy_prepare_config {
    size_t size;
    int64_t rows;         /* M; of a user's program 0 */
    int64_t deadline_ms;  /* of one wait of a call; 0: 30 s; below 0: none */
    void* stream;         /* SY_ON_CUDA: of the calls, if known: refused while it is captured */
    sy_tile_kernel tiles; /* SY_ON_HOST: of a user's program */
    void* tiles_context;
    /* SY_ON_CUDA: a call of many parts, with addresses that have come before, is one launch of a graph: a third of the host's
       time. Then sy_run allocates where addresses come a second time: 0.3 ms, some 30 KiB each, for the last 128. 0: never */
    int32_t graphs;
} sy_prepare_config;

typedef struct sy_op sy_op;
/* Sets a program up: memory, tables, code. Any number of rows up to the bundle's most (of a mixture of experts: those of a bucket); nothing
 * is compiled. Collective, and never while a graph is captured. */
SY_API sy_code sy_prepare(sy_comm* comm, const sy_bundle* bundle, const sy_prepare_config* config,
                          sy_op** op);

/* The tensors of a call, on this rank: for an operator x, its weights, y; of a mixture of experts x, topk_ids, topk_weights, w1, w2, y,
 * with scale_x, scale_w1, scale_w2 before y where it is of fp8, whose w1 [experts, 2 F, H] and w2 [experts, H, F] have K last; of a
 * user's program the kernel's parameters. */
typedef struct sy_operand {
    size_t size;
    const char* name; /* these live as long as the op */
    int32_t writes;   /* the call makes it */
    int32_t ndim;
    const int64_t* shape;
    uint8_t dtype_code; /* as sy_dtype */
    uint8_t dtype_bits;
    int32_t alignment; /* bytes of which its address is a multiple, or sy_run refuses it */
} sy_operand;
SY_API int32_t sy_num_operands(const sy_op* op);
SY_API sy_code sy_operand_at(const sy_op* op, int32_t index, sy_operand* operand);

/* One call; all ranks make it alike. `tensors`: in the order of the operands; weights and y of a product are contiguous rows (of other
 * tensors rows may lie apart). On cuda it enqueues on `stream` (a CUstream or cudaStream_t; NULL: the default one), allocates nothing, and
 * may be captured. On host it returns when it is done. Calls of one op follow each other in stream order; different ops may be in flight
 * on several streams. */
SY_API sy_code sy_run(sy_op* op, const sy_tensor* const* tensors, int32_t num_tensors, void* stream);

/* Whether an earlier call has failed: which rank, chunk and signal did not come. sy_status waits for the device; sy_poll waits for nothing,
 * and may come to know later. Of a mixture of experts sy_status also fails (SY_USAGE, on all ranks) where since it was last asked an id
 * named no expert, or, unless compiled with --drop, more rows than the bound came: then their routes added nothing. An id of -1 adds
 * nothing, and is no error. What one thread was told no other one is; a call that fails, and sy_op_reset, forget it. On host sy_run says so itself. */
SY_API sy_code sy_status(sy_op* op);
SY_API sy_code sy_poll(sy_op* op);
/* Ends the calls of it that are in progress on any rank; they fail. For a rank that cannot go on. */
SY_API void sy_abort(sy_op* op);
/* After a fault of which all ranks know, as of one that was late: the op takes calls again, from the first one on. Collective. */
SY_API sy_code sy_op_reset(sy_op* op);
/* Collective; waits for the device. Frees the handle in any case. */
SY_API sy_code sy_op_destroy(sy_op* op);

/* --- torch's ops without Python ------------------------------------------------------------------------------------------------ */

/* From now on torch.ops.syncopate.* over the torch process group of this name is made by the bundle's operator, where a call is of its
 * kind: so exported programs (AOTInductor) run in a process without Python. libsyncopate_torch.so, which has the ops, is loaded before,
 * with RTLD_GLOBAL. The first call of a shape sets its program up: collective, as sy_prepare. Several bundles may serve a group. A call
 * that none of them makes fails, and says why. `bundle` NULL: ends what the group is served; collective. `comm` and `bundle` may be
 * destroyed and closed meanwhile. Options other than the defaults, fp8, ops of several products and attention are Python's. */
SY_API sy_code sy_torch_serve(sy_comm* comm, const char* group_name, const sy_bundle* bundle);

#ifdef __cplusplus
}
#endif

#endif /* SYNCOPATE_C_H */
