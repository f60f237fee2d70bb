/* What the files of the call program's evaluator share: torch's C ABI, the instructions, a running program's state.
 *
 * _launch.c runs the instructions, _tensors.c makes, takes and places tensors, _calls.c calls operators, _set_up.c finds
 * the C ABI and is the module. Invariant: nothing here is seen outside of the extension. */
#ifndef INDUCTOR_LAUNCH_H
#define INDUCTOR_LAUNCH_H
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#pragma GCC visibility push(hidden)

typedef void *Handle;
typedef int32_t Status;
typedef int (*KernelFunction)(char *const *, const int64_t *, int64_t);

/* ---- the C ABI: found by set_up() ------------------------------------------------------------------------------------ */
struct Abi {
  Status (*get_data_ptr)(Handle, void **);
  Status (*get_sizes)(Handle, int64_t **);
  Status (*get_strides)(Handle, int64_t **);
  Status (*get_dim)(Handle, int64_t *);
  Status (*get_dtype)(Handle, int32_t *);
  Status (*view_dtype)(Handle, int32_t, Handle *);
  Status (*new_handle)(Handle, Handle *);
  Status (*delete_handle)(Handle);
  Status (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
  Status (*reinterpret)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
  Status (*from_pool)(Handle, int64_t, int32_t, int64_t, const int64_t *, const int64_t *, Handle *);
  bool (*grad_enabled)(void);
  void (*set_grad_enabled)(bool);
  int (*max_threads)(void);
  PyObject *(*wrap)(Handle);
  bool (*watched)(void); /* whether a profiler looks at this thread; with it the two below, or none */
  Status (*begin_range)(const char *, void *, const void **, uint64_t, Handle *);
  Status (*end_range)(Handle);
  Status (*mm_out)(Handle, Handle, Handle);
  Status (*bmm_out)(Handle, Handle, Handle);
  Status (*addmm_out)(Handle, Handle, Handle, Handle, double, double);
  Status (*baddbmm_out)(Handle, Handle, Handle, Handle, double, double);
  Status (*flash)(Handle, Handle, Handle, double, int32_t, Handle *, double *, Handle *, Handle *);
  Status (*convolution)(Handle, Handle, Handle *, const int64_t *, int64_t, const int64_t *, int64_t, const int64_t *,
                        int64_t, int32_t, const int64_t *, int64_t, int64_t, Handle *);
  Status (*linear)(Handle, Handle, Handle *, const char *, const double **, int64_t, const char **, Handle *);
  Status (*recurrent)(Handle, Handle, Handle, Handle, Handle, Handle, Handle, int32_t, const int64_t *, int64_t, int64_t,
                      int64_t, int64_t, int32_t, int32_t, int32_t, int32_t, Handle *, Handle *, Handle *, Handle *);
};
extern struct Abi api;
extern PyTypeObject *tensor_type, *parameter_type;
extern Py_ssize_t handle_offset; /* of the handle inside a Python tensor, -1: set_up() has not run */
extern int32_t byte_dtype;
extern int serial_only; /* set in a forked child: the OpenMP pool of the parent does not exist there */

/* Where a C++ tensor holds its storage and how far into it, and a storage its memory; bytes, -1: not found. */
struct Layout {
  int storage, offset, memory;
};
extern struct Layout layout;
enum { OBJECT_BYTES = 184, STORAGE_BYTES = 48 }; /* of each, what is searched: no supported torch has less */

#define HANDLE_OF(object) ((Handle)((char *)(object) + handle_offset))

/* A placed dtype is one word: dtype, device type << 16, device index << 24. */
#define DTYPE(word) ((int32_t)((word) & 0xFFFF))
#define DEVICE_TYPE(word) ((int32_t)((word) >> 16 & 0xFF))
#define DEVICE_INDEX(word) ((int32_t)((word) >> 24))

/* ---- the GPU: found by set_up_gpu(), absent on a machine without one ------------------------------------------------- */
struct Gpu {
  Status (*current_stream)(int32_t, void **);
  Status (*new_guard)(int32_t, Handle *);
  Status (*delete_guard)(Handle);
  Status (*view_dtype)(Handle, int32_t, Handle *);
  int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
  int (*retain_context)(void **, int);
  int (*make_current)(void *);
  Status (*mm_out)(Handle, Handle, Handle);
  Status (*bmm_out)(Handle, Handle, Handle);
  Status (*addmm_out)(Handle, Handle, Handle, Handle, double, double);
  Status (*baddbmm_out)(Handle, Handle, Handle, Handle, double, double);
  Status (*convolution)(Handle, Handle, Handle *, const int64_t *, int64_t, const int64_t *, int64_t, const int64_t *,
                        int64_t, int32_t, const int64_t *, int64_t, int64_t, Handle *);
};
extern struct Gpu gpu;

/* ---- instructions --------------------------------------------------------------------------------------------------- */
enum {
  OP_SIZE_INPUT,    /* position, register */
  OP_FLOAT_INPUT,   /* position, register */
  OP_TENSOR_INPUT,  /* position, slot */
  OP_CONSTANT,      /* object, slot */
  OP_ADD, OP_MULTIPLY, OP_FLOOR_DIVIDE, OP_MODULO, OP_MAXIMUM, OP_MINIMUM, /* target, left, right */
  OP_BEGIN,         /* inputs are read; the interpreter lock is given up */
  OP_ARENA,         /* register: bytes, placed dtype */
  OP_PLACE,         /* slot, register: offset into the arena */
  OP_SHARE,         /* slot, slot whose memory it takes over */
  OP_ALLOCATE,      /* slot, placed dtype, rank, sizes.., strides.. */
  OP_KERNEL,        /* function, register: work, count, slots.., count, registers.. */
  OP_LAUNCH,        /* device function, register: grid, threads, shared bytes, count, slots.., count, registers.. */
  OP_CALL,          /* words to the next instruction, operator object, kind, see call() */
  OP_RELEASE,       /* count, slots.. */
  OP_RETURN,        /* count, results.. */
  OP_SURE,          /* no later kernel can refuse its data: inputs needn't be kept for torch's operators */
  OP_CLOSE,         /* nothing in the arena is needed any more */
  OP_INSIDE         /* slot, placed dtype, rank, sizes.., strides.., slot of the tensor it lies in, register: offset in bytes */
};
enum { NO_CONTEXT = 201 }; /* the driver's code of an error */
enum { DIRECT_NONE, DIRECT_MM, DIRECT_BMM, DIRECT_ADDMM, DIRECT_BADDBMM, DIRECT_FLASH, DIRECT_CONVOLUTION, DIRECT_LINEAR,
       DIRECT_LSTM };
enum { VALUE_OBJECT, VALUE_TENSOR, VALUE_REGISTER, VALUE_LIST, VALUE_FLOAT };
enum { RESULT_NONE, RESULT_VIEW, RESULT_CLONE, RESULT_INTEGER, RESULT_FLOAT, RESULT_OBJECT };

/* A tensor argument: slot, whole, dtype, item size, rank, register: offset, sizes.., strides.. */
#define VIEW_WORDS(w) (6 + 2 * (w)[4])

/* ---- a running program ----------------------------------------------------------------------------------------------- */
typedef struct {
  char *data;       /* first element; NULL until the slot is filled */
  Handle handle;    /* NULL for memory in the arena */
  PyObject *object; /* owned; then `handle` lies inside it */
  int owned;        /* `handle` is ours to delete */
} Slot;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *objects;  /* tuple: operators, constant arguments, constant tensors */
  PyObject *recover;  /* callable(list of inputs) -> tuple; its take_over(reason) says that it runs all calls from now on */
  PyObject *conform;  /* callable(tensor, sizes, strides) -> tensor of exactly that layout */
  PyObject *reserve;  /* callable(placed dtype, sizes, strides) -> tensor, or eager's out of memory */
  PyObject *ranges;   /* tuple: names of the kernels for a profiler, in the order of their instructions; may be empty */
  PyObject *dict;
  int64_t *code, *initial;
  Py_ssize_t words, registers, slots, inputs;
  int broken; /* an operator did not return what was promised: `recover` runs every call */
  int keep; /* inputs stay alive until OP_SURE, because `recover` may need them */
  int device;       /* index of the GPU whose memory the kernels use, or -1 */
  int64_t threshold; /* scalar operations that are worth a second thread */
} Launcher;

typedef struct {
  Launcher *self;
  Slot *slots;
  int64_t *r;
  Handle arena;
  char *arena_data;
  PyThreadState *thread; /* non-NULL while the interpreter lock is given up */
  int64_t threads;
  Py_ssize_t range; /* number of the next kernel where a profiler looks, else -1 */
  void *stream; /* of the GPU, asked for at the first launch */
  PyObject **inputs; /* kept for `recover` until released */
} Frame;

static inline void hold(Frame *f) {
  if (f->thread) {
    PyEval_RestoreThread(f->thread);
    f->thread = NULL;
  }
}

static inline void let_go(Frame *f) {
  if (!f->thread) f->thread = PyEval_SaveThread();
}

static inline void empty_slot(Frame *f, Slot *s) {
  if (s->owned) api.delete_handle(s->handle);
  if (s->object) {
    hold(f);
    Py_CLEAR(s->object);
  }
  s->handle = NULL;
  s->owned = 0;
  s->data = NULL;
}

/* The memory of a tensor that begins where its storage does; NULL where the C ABI must be asked. */
static inline char *memory_of(PyObject *object) {
  if (layout.memory < 0 || (Py_TYPE(object) != parameter_type && Py_TYPE(object) != tensor_type)) return NULL;
  char *impl = *(char **)HANDLE_OF(object), *storage = *(char **)(impl + layout.storage);
  return storage && !*(int64_t *)(impl + layout.offset) ? *(char **)(storage + layout.memory) : NULL;
}

static inline double number(Frame *f, int64_t reg) {
  double d;
  memcpy(&d, &f->r[reg], 8);
  return d;
}

/* ---- _tensors.c ------------------------------------------------------------------------------------------------------ */
Handle view_handle(Frame *f, const int64_t *w, int *fresh);
PyObject *tensor_object(Frame *f, const int64_t *w);
PyObject *build_value(Frame *f, const int64_t **w);
int fill_from_object(Frame *f, Slot *s, PyObject *object);
int layout_fits(Frame *f, Handle h, int64_t rank, const int64_t *w);
PyObject *conformed(Frame *f, PyObject *tensor, int64_t rank, const int64_t *w);
Status output_handle(Frame *f, const int64_t *o, Handle *h, int *fresh);
Status written_handle(Frame *f, const int64_t *o, Handle *h, int *fresh);
int reserve_slot(Frame *f, const int64_t *o);
void place_inside(Frame *f, const int64_t *o, const Slot *host, int64_t offset);
int reserve_arena(Frame *f, int64_t bytes, int64_t placed);

/* ---- _calls.c -------------------------------------------------------------------------------------------------------- */
enum { BROKEN = -2 }; /* call() failed, as the operator did not return what was promised */
int call(Frame *f, const int64_t *w);

/* ---- _launch.c ------------------------------------------------------------------------------------------------------- */
extern PyTypeObject LauncherType;

#pragma GCC visibility pop
#endif
