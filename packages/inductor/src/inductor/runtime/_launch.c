/* The call program's evaluator: runs a whole graph, own kernels and ATen operators, without Python in between.
 *
 * Comes in: a flat array of 64-bit words (written by inductor.codegen.program, whose opcodes are these), the initial
 * contents of the registers, and a tuple of Python objects. A launcher object is called with one list of inputs, which
 * it empties, and returns a tuple. Tensors are reached through torch's stable C ABI, found by dlsym: no torch header is
 * needed to build this file, and one binary serves every torch version that self_test() accepts.
 * Invariant: what fails, a vendor call or an allocation, is repeated through Python, so that the user sees eager's exception; a kernel that
 * refuses its data (an index out of bounds) hands the whole call to `recover`, which runs torch's own operators. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include "structmember.h"

typedef void *Handle;
typedef int32_t Status;
typedef int (*KernelFunction)(char *const *, const int64_t *, int64_t);

/* ---- the C ABI ---------------------------------------------------------------------------------------------------- */
static struct {
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
} api;
static PyTypeObject *tensor_type, *parameter_type;
static Py_ssize_t handle_offset = -1;
static int32_t byte_dtype;
static int serial_only; /* set in a forked child: the OpenMP pool of the parent does not exist there */

/* Where a C++ tensor holds its storage and how far into it, and a storage its memory; bytes, -1: not found. */
static struct {
  int storage, offset, memory;
} layout = {-1, -1, -1};
enum { OBJECT_BYTES = 184, STORAGE_BYTES = 48 }; /* of each, what is searched: no supported torch has less */

#define HANDLE_OF(object) ((Handle)((char *)(object) + handle_offset))

/* A placed dtype is one word: dtype, device type << 16, device index << 24. */
#define DTYPE(word) ((int32_t)((word) & 0xFFFF))
#define DEVICE_TYPE(word) ((int32_t)((word) >> 16 & 0xFF))
#define DEVICE_INDEX(word) ((int32_t)((word) >> 24))

/* ---- the GPU: found by set_up_gpu(), absent on a machine without one --------------------------------------------------- */
static struct {
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
} gpu;

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
  OP_SURE           /* no later kernel can refuse its data: inputs needn't be kept for torch's operators */
};
enum { NO_CONTEXT = 201 }; /* the driver's code of an error */
enum { DIRECT_NONE, DIRECT_MM, DIRECT_BMM, DIRECT_ADDMM, DIRECT_BADDBMM, DIRECT_FLASH, DIRECT_CONVOLUTION, DIRECT_LINEAR,
       DIRECT_LSTM };
enum { VALUE_OBJECT, VALUE_TENSOR, VALUE_REGISTER, VALUE_LIST, VALUE_FLOAT };
enum { RESULT_NONE, RESULT_VIEW, RESULT_CLONE, RESULT_INTEGER, RESULT_FLOAT, RESULT_OBJECT };

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
  PyObject *recover;  /* callable(list of inputs) -> tuple */
  PyObject *conform;  /* callable(tensor, sizes, strides) -> tensor of exactly that layout */
  PyObject *reserve;  /* callable(placed dtype, sizes, strides) -> tensor, or eager's out of memory */
  PyObject *dict;
  int64_t *code, *initial;
  Py_ssize_t words, registers, slots, inputs;
  int keep; /* inputs stay alive to the end, because `recover` may need them */
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
  void *stream; /* of the GPU, asked for at the first launch */
  PyObject **inputs; /* kept for `recover` until released */
} Frame;

static void hold(Frame *f) {
  if (f->thread) {
    PyEval_RestoreThread(f->thread);
    f->thread = NULL;
  }
}
static void let_go(Frame *f) {
  if (!f->thread) f->thread = PyEval_SaveThread();
}

static void empty_slot(Frame *f, Slot *s) {
  if (s->owned) api.delete_handle(s->handle);
  if (s->object) {
    hold(f);
    Py_CLEAR(s->object);
  }
  s->handle = NULL;
  s->owned = 0;
  s->data = NULL;
}

/* ---- tensor arguments: slot, whole, dtype, item size, rank, register: offset, sizes.., strides.. ------------------------ */
#define VIEW_WORDS(w) (6 + 2 * (w)[4])

/* A handle for the view at `w`; *fresh says whether it must be deleted. NULL on failure. */
static Handle view_handle(Frame *f, const int64_t *w, int *fresh) {
  Slot *s = &f->slots[w[0]];
  int64_t rank = w[4], sizes[64], strides[64], offset = f->r[w[5]];
  Handle made = NULL;
  *fresh = 0;
  if (w[1] && s->handle) return s->handle;
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[w[6 + k]];
    strides[k] = f->r[w[6 + rank + k]];
  }
  if (s->handle) {
    int32_t dtype;
    if (api.get_dtype(s->handle, &dtype)) return NULL;
    if (dtype != (int32_t)w[2]) { /* the same memory read as another type of equal width */
      Handle other;
      Status (*view)(Handle, int32_t, Handle *) = f->self->device >= 0 ? gpu.view_dtype : api.view_dtype;
      if (!view || view(s->handle, (int32_t)w[2], &other)) return NULL;
      Status status = api.reinterpret(other, rank, sizes, strides, offset, &made);
      api.delete_handle(other);
      if (status) return NULL;
    } else if (api.reinterpret(s->handle, rank, sizes, strides, offset, &made)) {
      return NULL; /* the offset counts from the tensor's own */
    }
  } else if (api.from_pool(f->arena, (s->data - f->arena_data) + offset * w[3], (int32_t)w[2], rank, sizes, strides, &made)) {
    return NULL;
  }
  *fresh = 1;
  return made;
}

static PyObject *tensor_object(Frame *f, const int64_t *w) {
  Slot *s = &f->slots[w[0]];
  if (w[1] && s->object) return Py_NewRef(s->object);
  int fresh;
  Handle h = view_handle(f, w, &fresh);
  if (!h) {
    PyErr_SetString(PyExc_RuntimeError, "a tensor view could not be made");
    return NULL;
  }
  PyObject *object = api.wrap(h);
  if (fresh) api.delete_handle(h);
  return object;
}

/* One Python value described by the words at *w, which moves past it. */
static PyObject *build_value(Frame *f, const int64_t **w) {
  const int64_t *at = *w;
  switch (at[0]) {
    case VALUE_OBJECT: *w = at + 2; return Py_NewRef(PyTuple_GET_ITEM(f->self->objects, at[1]));
    case VALUE_REGISTER: *w = at + 2; return PyLong_FromLongLong(f->r[at[1]]);
    case VALUE_FLOAT: {
      double d;
      memcpy(&d, &f->r[at[1]], 8);
      *w = at + 2;
      return PyFloat_FromDouble(d);
    }
    case VALUE_TENSOR: *w = at + 1 + VIEW_WORDS(at + 1); return tensor_object(f, at + 1);
    default: {
      Py_ssize_t count = at[1];
      PyObject *list = PyList_New(count);
      *w = at + 2;
      for (Py_ssize_t k = 0; list && k < count; k++) {
        PyObject *item = build_value(f, w);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, k, item);
      }
      return list;
    }
  }
}

static PyObject *with_memory(Frame *f, PyObject *object);

static int fill_from_object(Frame *f, Slot *s, PyObject *object) {
  void *data;
  if (!PyObject_TypeCheck(object, tensor_type)) {
    PyErr_Format(PyExc_TypeError, "a compiled graph was given a %s where it takes a tensor", Py_TYPE(object)->tp_name);
    return -1;
  }
  if (api.get_data_ptr(HANDLE_OF(object), &data)) {
    PyErr_SetString(PyExc_RuntimeError, "the data of a tensor can't be reached");
    return -1;
  }
  if (!data) { /* empty, or zeros that were never written down */
    PyObject *made = with_memory(f, object);
    if (!made) return -1;
    if (made != object) {
      int status = fill_from_object(f, s, made);
      Py_DECREF(made);
      return status;
    }
    Py_DECREF(made);
  }
  empty_slot(f, s);
  s->object = Py_NewRef(object);
  s->handle = HANDLE_OF(object);
  s->data = data;
  return 0;
}

/* The memory of a tensor that begins where its storage does; NULL where the C ABI must be asked. */
static inline char *memory_of(PyObject *object) {
  if (layout.memory < 0 || (Py_TYPE(object) != parameter_type && Py_TYPE(object) != tensor_type)) return NULL;
  char *impl = *(char **)HANDLE_OF(object), *storage = *(char **)(impl + layout.storage);
  return storage && !*(int64_t *)(impl + layout.offset) ? *(char **)(storage + layout.memory) : NULL;
}

/* An input's slot; takes over the reference in *place, unless inputs are kept. A call has hundreds of these. */
static inline int fill_from_input(Frame *f, Slot *s, PyObject **place) {
  PyObject *object = *place;
  char *data = memory_of(object);
  if (!data) {
    int status = fill_from_object(f, s, object);
    if (!status && !f->self->keep) Py_CLEAR(*place);
    return status;
  }
  s->data = data;
  s->handle = HANDLE_OF(object);
  s->object = object;
  if (f->self->keep) Py_INCREF(object);
  else *place = NULL;
  return 0;
}

static int layout_fits(Frame *f, Handle h, int64_t rank, const int64_t *w) {
  int64_t dim, *sizes, *strides;
  if (api.get_dim(h, &dim) || dim != rank || api.get_sizes(h, &sizes) || api.get_strides(h, &strides)) return 0;
  for (int64_t k = 0; k < rank; k++)
    if (sizes[k] == 0) return 1;
  for (int64_t k = 0; k < rank; k++)
    if (sizes[k] != f->r[w[k]] || (sizes[k] > 1 && strides[k] != f->r[w[rank + k]])) return 0;
  return 1;
}

/* A tensor without memory as it is if it is empty, else written out: autograd's zeros have no memory. */
static PyObject *with_memory(Frame *f, PyObject *object) {
  int64_t dim, *sizes;
  if (api.get_dim(HANDLE_OF(object), &dim) || api.get_sizes(HANDLE_OF(object), &sizes)) {
    PyErr_SetString(PyExc_RuntimeError, "the sizes of a tensor can't be reached");
    return NULL;
  }
  for (int64_t k = 0; k < dim; k++)
    if (sizes[k] == 0) return Py_NewRef(object);
  PyObject *shape = PyObject_GetAttrString(object, "shape"), *made = NULL;
  PyObject *strides = shape ? PyObject_CallMethod(object, "stride", NULL) : NULL;
  if (strides) made = PyObject_CallFunctionObjArgs(f->self->conform, object, shape, strides, NULL);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  void *data;
  if (made && (api.get_data_ptr(HANDLE_OF(made), &data) || !data)) {
    Py_CLEAR(made);
    PyErr_SetString(PyExc_RuntimeError, "a compiled graph was given a tensor without memory");
  }
  return made;
}

static PyObject *registers_tuple(Frame *f, int64_t count, const int64_t *w) {
  PyObject *t = PyTuple_New(count);
  for (int64_t k = 0; t && k < count; k++) {
    PyObject *v = PyLong_FromLongLong(f->r[w[k]]);
    if (!v) Py_CLEAR(t);
    else PyTuple_SET_ITEM(t, k, v);
  }
  return t;
}

/* A result of an operator in the layout that the kernels after it were compiled for. */
static PyObject *conformed(Frame *f, PyObject *tensor, int64_t rank, const int64_t *w) {
  if (layout_fits(f, HANDLE_OF(tensor), rank, w)) return Py_NewRef(tensor);
  PyObject *sizes = registers_tuple(f, rank, w), *strides = registers_tuple(f, rank, w + rank), *made = NULL;
  if (sizes && strides) made = PyObject_CallFunctionObjArgs(f->self->conform, tensor, sizes, strides, NULL);
  Py_XDECREF(sizes);
  Py_XDECREF(strides);
  return made;
}

/* ---- operator calls ------------------------------------------------------------------------------------------------------
 * words: words to the next instruction, operator object, kind, words of the direct description,
 *        direct: tensors, (view or -1).., numbers, registers.., OUTPUTS (only when kind is not DIRECT_NONE),
 *        Python: positional, values.., keywords, (name object, value).., OUTPUTS
 * OUTPUTS: count, (slot or -1, dtype, rank, sizes.., strides..).. */

static double number(Frame *f, int64_t reg) {
  double d;
  memcpy(&d, &f->r[reg], 8);
  return d;
}

/* Give an output slot memory: its place in the arena or a tensor of its own. The handle in *h, *fresh if to delete. */
static Status output_handle(Frame *f, const int64_t *o, Handle *h, int *fresh) {
  Slot *s = &f->slots[o[0]];
  int64_t rank = o[2], sizes[64], strides[64];
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[o[3 + k]];
    strides[k] = f->r[o[3 + rank + k]];
  }
  *fresh = 0;
  if (s->handle) {
    *h = s->handle;
    return 0;
  }
  if (s->data) {
    *fresh = 1;
    return api.from_pool(f->arena, s->data - f->arena_data, DTYPE(o[1]), rank, sizes, strides, h);
  }
  Status status = api.empty_strided(rank, sizes, strides, DTYPE(o[1]), DEVICE_TYPE(o[1]), DEVICE_INDEX(o[1]), h);
  if (status) return status;
  s->handle = *h;
  s->owned = 1;
  return api.get_data_ptr(*h, (void **)&s->data);
}

/* Memory that the C ABI didn't get, asked for as eager asks: the exception is eager's, what was freed meanwhile is found. */
static PyObject *reserved(Frame *f, int64_t placed, PyObject *sizes, PyObject *strides) {
  PyObject *word = PyLong_FromLongLong(placed), *made = NULL;
  if (word && sizes && strides) made = PyObject_CallFunctionObjArgs(f->self->reserve, word, sizes, strides, NULL);
  Py_XDECREF(word);
  Py_XDECREF(sizes);
  Py_XDECREF(strides);
  return made;
}

static int reserve_slot(Frame *f, const int64_t *o) {
  hold(f);
  PyObject *made = reserved(f, o[1], registers_tuple(f, o[2], o + 3), registers_tuple(f, o[2], o + 3 + o[2]));
  int status = made ? fill_from_object(f, &f->slots[o[0]], made) : -1;
  Py_XDECREF(made);
  if (!status) let_go(f);
  return status;
}

static int reserve_arena(Frame *f, int64_t bytes, int64_t placed) {
  hold(f);
  PyObject *made = reserved(f, placed, Py_BuildValue("(L)", (long long)bytes), Py_BuildValue("(i)", 1));
  int status = !made || api.new_handle(HANDLE_OF(made), &f->arena) ||
               api.get_data_ptr(f->arena, (void **)&f->arena_data);
  Py_XDECREF(made);
  if (!status) let_go(f);
  else if (!PyErr_Occurred()) PyErr_NoMemory();
  return status;
}

static int adopt(Frame *f, const int64_t *o, Handle h) {
  if (o[0] < 0) {
    api.delete_handle(h);
    return 1;
  }
  Slot *s = &f->slots[o[0]];
  int workspace = DTYPE(o[1]) == byte_dtype && o[2] == 1 && !f->r[o[3]]; /* promised as none, as large as it is */
  int fits = workspace || layout_fits(f, h, o[2], o + 3);
  if (!fits || s->data || s->handle) { /* placed elsewhere or differently laid out: copy, which needs Python */
    hold(f);
    PyObject *wrapped = api.wrap(h), *made = wrapped ? conformed(f, wrapped, o[2], o + 3) : NULL;
    int ok = made && !fill_from_object(f, s, made);
    Py_XDECREF(wrapped);
    Py_XDECREF(made);
    api.delete_handle(h);
    if (!ok) PyErr_Clear();
    return ok;
  }
  s->handle = h;
  s->owned = 1;
  return !api.get_data_ptr(h, (void **)&s->data);
}

enum { LSTM_MODE = 2 }; /* the library's number */

/* One direction of one layer. Numbers: width of the state, reverse, keep what the backward needs: where gradients are on. */
static int run_lstm(Frame *f, Handle *t, const int64_t *n, const int64_t *o) {
  Handle made[4] = {0};
  int keep = f->r[n[2]] != 0, ok;
  bool before = api.grad_enabled();
  api.set_grad_enabled(keep);
  ok = !api.recurrent(t[0], t[1], t[2], t[3], t[4], t[5], t[6], f->r[n[1]] != 0, NULL, 0, LSTM_MODE, f->r[n[0]], 1, 1, 0, 0,
                      keep, &made[0], &made[1], &made[2], &made[3]);
  api.set_grad_enabled(before);
  if (!ok) return 0;
  for (int k = 0; k < 4; k++) {
    if (k == 3 && !keep && o[0] >= 0) { /* there is none: only Python can tell its reader */
      api.delete_handle(made[k]);
      ok = 0;
    } else {
      ok &= adopt(f, o, made[k]);
    }
    o += 3 + 2 * o[2];
  }
  return ok;
}

/* Returns 1 when the vendor function did the work, 0 when Python must. */
static int direct(Frame *f, int64_t kind, const int64_t *w) {
  int64_t count = *w++;
  Handle t[8] = {0};
  int fresh[8] = {0}, ok = 1, out_fresh = 0;
  Handle out = NULL;
  const int64_t *at = w;
  if (count > 8) return 0;
  for (int64_t k = 0; k < count; k++) {
    if (at[0] >= 0) {
      t[k] = view_handle(f, at, &fresh[k]);
      if (!t[k]) ok = 0;
    }
    at += at[0] < 0 ? 1 : VIEW_WORDS(at);
  }
  int64_t numbers = *at++;
  const int64_t *n = at;
  at += numbers;
  const int64_t *o = at + 1; /* first output; at[0] outputs */
  int on_gpu = DEVICE_TYPE(o[1]) != 0;
  if (ok) switch (kind) {
      case DIRECT_MM:
        ok = !output_handle(f, o, &out, &out_fresh) && !(on_gpu ? gpu.mm_out : api.mm_out)(out, t[0], t[1]);
        break;
      case DIRECT_BMM:
        ok = !output_handle(f, o, &out, &out_fresh) && !(on_gpu ? gpu.bmm_out : api.bmm_out)(out, t[0], t[1]);
        break;
      case DIRECT_ADDMM:
        ok = !output_handle(f, o, &out, &out_fresh) &&
             !(on_gpu ? gpu.addmm_out : api.addmm_out)(out, t[0], t[1], t[2], number(f, n[0]), number(f, n[1]));
        break;
      case DIRECT_BADDBMM:
        ok = !output_handle(f, o, &out, &out_fresh) &&
             !(on_gpu ? gpu.baddbmm_out : api.baddbmm_out)(out, t[0], t[1], t[2], number(f, n[0]), number(f, n[1]));
        break;
      case DIRECT_FLASH: { /* numbers: dropout, causal, has scale, scale */
        Handle a = NULL, b = NULL;
        double scale = number(f, n[3]);
        ok = !api.flash(t[0], t[1], t[2], number(f, n[0]), (int32_t)f->r[n[1]], t[3] ? &t[3] : NULL,
                        f->r[n[2]] ? &scale : NULL, &a, &b);
        if (ok) ok = adopt(f, o, a) & adopt(f, o + 3 + 2 * o[2], b);
        break;
      }
      case DIRECT_CONVOLUTION: { /* numbers: transposed, groups, dims, stride.., padding.., dilation.., output padding.. */
        int64_t d = f->r[n[2]], v[4][8];
        Handle a = NULL;
        for (int64_t k = 0; k < 4 * d; k++) v[k / d][k % d] = f->r[n[3 + k]];
        ok = !(on_gpu ? gpu.convolution : api.convolution)(t[0], t[1], t[2] ? &t[2] : NULL, v[0], d, v[1], d, v[2], d, (int32_t)f->r[n[0]], v[3], d,
                              f->r[n[1]], &a) &&
             adopt(f, o, a);
        break;
      }
      case DIRECT_LINEAR: {
        Handle a = NULL;
        const char *none = "", **algorithm = &none;
        ok = !api.linear(t[0], t[1], t[2] ? &t[2] : NULL, "none", NULL, 0, algorithm, &a) && adopt(f, o, a);
        break;
      }
      case DIRECT_LSTM: ok = run_lstm(f, t, n, o); break;
      default: ok = 0;
    }
  for (int64_t k = 0; k < count; k++)
    if (fresh[k]) api.delete_handle(t[k]);
  if (out_fresh) api.delete_handle(out);
  return ok;
}

static int store_outputs(Frame *f, PyObject *result, const int64_t *o, int64_t count) {
  int sequence = PyTuple_Check(result) || PyList_Check(result);
  for (int64_t k = 0; k < count; k++) {
    int64_t rank = o[2];
    if (o[0] >= 0) {
      PyObject *item = sequence && k < PySequence_Fast_GET_SIZE(result) ? PySequence_Fast_GET_ITEM(result, k) : result;
      if (!PyObject_TypeCheck(item, tensor_type)) {
        PyErr_SetString(PyExc_RuntimeError, "an operator returned something else than the tensors it promised");
        return -1;
      }
      PyObject *made = conformed(f, item, rank, o + 3);
      Slot *s = &f->slots[o[0]];
      int ok = made != NULL;
      if (ok && s->data) { /* it has a place: copy into it */
        Handle h;
        int fresh;
        ok = !output_handle(f, o, &h, &fresh);
        PyObject *target = ok ? api.wrap(h) : NULL;
        PyObject *done = target ? PyObject_CallMethod(target, "copy_", "O", made) : NULL;
        if (ok && fresh) api.delete_handle(h);
        ok = done != NULL;
        Py_XDECREF(target);
        Py_XDECREF(done);
      } else if (ok) {
        ok = !fill_from_object(f, s, made);
      }
      Py_XDECREF(made);
      if (!ok) return -1;
    }
    o += 3 + 2 * rank;
  }
  return 0;
}

static int call(Frame *f, const int64_t *w) {
  if (w[2] != DIRECT_NONE && direct(f, w[2], w + 4)) return 0;
  const int64_t *p = w + 4 + w[3];
  hold(f);
  int64_t positional = *p++, done = 0, ok = 1;
  PyObject *stack[64], *names = NULL, *result = NULL;
  PyObject *operator= PyTuple_GET_ITEM(f->self->objects, w[1]);
  for (; ok && done < positional; done++) {
    stack[done] = build_value(f, &p);
    if (!stack[done]) ok = 0, done--;
  }
  int64_t keywords = 0;
  if (ok) {
    keywords = *p++;
    names = PyTuple_New(keywords);
    for (int64_t k = 0; ok && k < keywords; k++) {
      PyTuple_SET_ITEM(names, k, Py_NewRef(PyTuple_GET_ITEM(f->self->objects, *p++)));
      stack[done] = build_value(f, &p);
      if (!stack[done]) ok = 0;
      else done++;
    }
  }
  if (ok) result = PyObject_Vectorcall(operator, stack, (size_t)positional, keywords ? names : NULL);
  for (int64_t k = 0; k < done; k++) Py_DECREF(stack[k]);
  Py_XDECREF(names);
  if (!result) return -1;
  int64_t outputs = *p++;
  int status = store_outputs(f, result, p, outputs);
  Py_DECREF(result);
  if (!status) let_go(f);
  return status;
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */
static PyObject *slot_object(Frame *f, const int64_t *w, int clone) {
  PyObject *object = tensor_object(f, w);
  if (!object || !clone) return object;
  PyObject *copy = PyObject_CallMethod(object, "clone", NULL);
  Py_DECREF(object);
  return copy;
}

static PyObject *results(Frame *f, const int64_t *w) {
  int64_t count = *w++;
  PyObject *tuple = PyTuple_New(count);
  for (int64_t k = 0; tuple && k < count; k++) {
    PyObject *item = NULL;
    int64_t kind = *w++;
    switch (kind) {
      case RESULT_NONE: item = Py_NewRef(Py_None); break;
      case RESULT_VIEW: item = slot_object(f, w, 0); w += VIEW_WORDS(w); break;
      case RESULT_CLONE: item = slot_object(f, w, 1); w += VIEW_WORDS(w); break;
      case RESULT_INTEGER: item = PyLong_FromLongLong(f->r[*w++]); break;
      case RESULT_FLOAT: item = PyFloat_FromDouble(number(f, *w++)); break;
      default: item = Py_NewRef(PyTuple_GET_ITEM(f->self->objects, *w)); w++;
    }
    if (!item) Py_CLEAR(tuple);
    else PyTuple_SET_ITEM(tuple, k, item);
  }
  return tuple;
}

/* ---- the loop over instructions ------------------------------------------------------------------------------------------ */
static int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static int run_kernel(Frame *f, const int64_t *w, const int64_t **next) {
  KernelFunction function = (KernelFunction)(intptr_t)w[0];
  int64_t work = f->r[w[1]], count = w[2];
  const int64_t *slots = w + 3;
  int64_t sizes = slots[count];
  const int64_t *registers = slots + count + 1;
  char *pointers[count + 1];
  int64_t values[sizes + 1];
  for (int64_t k = 0; k < count; k++) pointers[k] = f->slots[slots[k]].data;
  for (int64_t k = 0; k < sizes; k++) values[k] = f->r[registers[k]];
  *next = registers + sizes;
  int64_t threads = work / f->self->threshold + 1;
  return function(pointers, values, threads < f->threads ? threads : f->threads);
}

/* Start a kernel on the current stream: pointers, sizes and numbers in order, then two null scratch pointers. */
static int launch_on_gpu(Frame *f, const int64_t *w, const int64_t **next) {
  void *function = (void *)(intptr_t)w[0];
  int64_t grid = f->r[w[1]], count = w[4];
  const int64_t *slots = w + 5;
  int64_t numbers = slots[count];
  const int64_t *registers = slots + count + 1;
  *next = registers + numbers;
  if (grid == 0) return 0;
  if (!f->stream && gpu.current_stream(f->self->device, &f->stream)) {
    hold(f);
    PyErr_SetString(PyExc_RuntimeError, "the current CUDA stream can't be found");
    return -1;
  }
  void *pointers[count + 1], *scratch = NULL, *arguments[count + numbers + 2];
  for (int64_t k = 0; k < count; k++) {
    pointers[k] = f->slots[slots[k]].data;
    arguments[k] = &pointers[k];
  }
  /* little-endian: a 32-bit parameter reads the low half of its register */
  for (int64_t k = 0; k < numbers; k++) arguments[count + k] = &f->r[registers[k]];
  arguments[count + numbers] = &scratch;
  arguments[count + numbers + 1] = &scratch;
  int code = gpu.launch(function, (unsigned)grid, 1, 1, (unsigned)w[2], 1, 1, (unsigned)w[3], f->stream, arguments, NULL);
  if (!code) return 0;
  /* A thread of autograd that has not touched the card yet has no context; it takes the one that torch uses, for good. */
  void *context = NULL;
  if (code == NO_CONTEXT && !gpu.retain_context(&context, (int)f->self->device) && !gpu.make_current(context))
    code = gpu.launch(function, (unsigned)grid, 1, 1, (unsigned)w[2], 1, 1, (unsigned)w[3], f->stream, arguments, NULL);
  if (!code) return 0;
  hold(f);
  PyErr_Format(PyExc_RuntimeError, "the CUDA driver refused to launch a kernel (error %d)", code);
  return -1;
}

static PyObject *recover(Frame *f) {
  hold(f);
  PyObject *list = PyList_New(f->self->inputs);
  for (Py_ssize_t k = 0; list && k < f->self->inputs; k++) PyList_SET_ITEM(list, k, Py_NewRef(f->inputs[k]));
  PyObject *result = list ? PyObject_CallOneArg(f->self->recover, list) : NULL;
  Py_XDECREF(list);
  return result;
}

static PyObject *run(Frame *f) {
  const int64_t *w = f->self->code;
  int64_t *r = f->r;
  Slot *s = f->slots;
  for (;;) {
    switch (*w++) {
      case OP_SIZE_INPUT: {
        int64_t v = PyLong_AsLongLong(f->inputs[w[0]]);
        if (v == -1 && PyErr_Occurred()) return NULL;
        r[w[1]] = v;
        w += 2;
        break;
      }
      case OP_FLOAT_INPUT: {
        double d = PyFloat_AsDouble(f->inputs[w[0]]);
        if (d == -1.0 && PyErr_Occurred()) return NULL;
        memcpy(&r[w[1]], &d, 8);
        w += 2;
        break;
      }
      case OP_TENSOR_INPUT:
        if (fill_from_input(f, &s[w[1]], &f->inputs[w[0]])) return NULL;
        if (f->self->device >= 0 && ((uintptr_t)s[w[1]].data & 15)) { /* the kernels load 16 bytes at once */
          PyObject *copy = PyObject_CallMethod(s[w[1]].object, "clone", NULL);
          int failed = !copy || fill_from_object(f, &s[w[1]], copy);
          Py_XDECREF(copy);
          if (failed) return NULL;
        }
        w += 2;
        break;
      case OP_CONSTANT:
        if (fill_from_object(f, &s[w[1]], PyTuple_GET_ITEM(f->self->objects, w[0]))) return NULL;
        w += 2;
        break;
      case OP_ADD: r[w[0]] = r[w[1]] + r[w[2]]; w += 3; break;
      case OP_MULTIPLY: r[w[0]] = r[w[1]] * r[w[2]]; w += 3; break;
      case OP_FLOOR_DIVIDE: r[w[0]] = floor_divide(r[w[1]], r[w[2]]); w += 3; break;
      case OP_MODULO: r[w[0]] = r[w[1]] - floor_divide(r[w[1]], r[w[2]]) * r[w[2]]; w += 3; break;
      case OP_MAXIMUM: r[w[0]] = r[w[1]] > r[w[2]] ? r[w[1]] : r[w[2]]; w += 3; break;
      case OP_MINIMUM: r[w[0]] = r[w[1]] < r[w[2]] ? r[w[1]] : r[w[2]]; w += 3; break;
      case OP_BEGIN: let_go(f); break;
      case OP_ARENA: {
        int64_t one = 1, bytes = r[w[0]], placed = w[1];
        w += 2;
        if (api.empty_strided(1, &bytes, &one, byte_dtype, DEVICE_TYPE(placed), DEVICE_INDEX(placed), &f->arena) ||
            api.get_data_ptr(f->arena, (void **)&f->arena_data)) {
          if (reserve_arena(f, bytes, placed)) return NULL;
        }
        break;
      }
      case OP_PLACE: s[w[0]].data = f->arena_data + r[w[1]]; w += 2; break;
      case OP_SHARE:
        s[w[0]] = s[w[1]];
        memset(&s[w[1]], 0, sizeof(Slot));
        s[w[1]].data = s[w[0]].data;
        w += 2;
        break;
      case OP_ALLOCATE: {
        Handle h;
        int fresh;
        if (output_handle(f, w, &h, &fresh) && reserve_slot(f, w)) return NULL;
        w += 3 + 2 * w[2];
        break;
      }
      case OP_KERNEL:
        if (run_kernel(f, w, &w)) return recover(f);
        break;
      case OP_LAUNCH:
        if (launch_on_gpu(f, w, &w)) return NULL;
        break;
      case OP_CALL:
        if (call(f, w)) return NULL;
        w += w[0];
        break;
      case OP_RELEASE: {
        int64_t count = *w++;
        for (int64_t k = 0; k < count; k++) empty_slot(f, &s[*w++]);
        break;
      }
      case OP_SURE:
        hold(f);
        for (Py_ssize_t k = 0; k < f->self->inputs; k++) Py_CLEAR(f->inputs[k]);
        let_go(f);
        break;
      case OP_RETURN: hold(f); return results(f, w);
      default: hold(f); PyErr_SetString(PyExc_SystemError, "a damaged call program"); return NULL;
    }
  }
}

static PyObject *launch(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
  Launcher *self = (Launcher *)object;
  if (PyVectorcall_NARGS(flags) != 1 || (names && PyTuple_GET_SIZE(names)) || !PyList_CheckExact(args[0]) ||
      PyList_GET_SIZE(args[0]) != self->inputs) {
    PyErr_Format(PyExc_TypeError, "a compiled graph takes one list of %zd inputs", self->inputs);
    return NULL;
  }
  size_t bytes = self->slots * sizeof(Slot) + self->registers * 8 + (self->inputs + 1) * sizeof(PyObject *);
  char small[4096], *memory = bytes <= sizeof small ? small : malloc(bytes);
  if (!memory) return PyErr_NoMemory();
  Frame f = {.self = self, .slots = (Slot *)memory};
  f.r = (int64_t *)(memory + self->slots * sizeof(Slot));
  f.inputs = (PyObject **)(f.r + self->registers);
  memset(f.slots, 0, self->slots * sizeof(Slot));
  memcpy(f.r, self->initial, self->registers * 8);
  f.threads = serial_only ? 1 : api.max_threads();
  PyObject *list = args[0];
  /* The list's references become the frame's: as popping each of its items would do, without a loop. */
  if (self->inputs) memcpy(f.inputs, ((PyListObject *)list)->ob_item, self->inputs * sizeof(PyObject *));
  Py_SET_SIZE(list, 0);
  Py_INCREF(self);
  bool grad = api.grad_enabled();
  if (grad) api.set_grad_enabled(false);
  Handle guard = NULL;
  if (self->device >= 0 && gpu.new_guard(self->device, &guard)) guard = NULL;
  PyObject *result = run(&f);
  hold(&f);
  if (guard) gpu.delete_guard(guard);
  for (Py_ssize_t k = 0; k < self->slots; k++) {
    Slot *s = &f.slots[k];
    if (s->owned) api.delete_handle(s->handle);
    Py_XDECREF(s->object);
  }
  if (f.arena) api.delete_handle(f.arena);
  if (grad) api.set_grad_enabled(true);
  for (Py_ssize_t k = 0; k < self->inputs; k++) Py_XDECREF(f.inputs[k]);
  if (memory != small) free(memory);
  Py_DECREF(self);
  return result;
}

/* ---- the type ---------------------------------------------------------------------------------------------------------------- */
static int64_t *copy_words(PyObject *source, Py_ssize_t *count) {
  Py_buffer view;
  if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)) return NULL;
  int64_t *words = malloc(view.len + 8);
  if (words) memcpy(words, view.buf, view.len);
  else PyErr_NoMemory();
  *count = view.len / 8;
  PyBuffer_Release(&view);
  return words;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"code", "registers", "slots", "inputs", "objects", "recover", "conform", "reserve", "threshold", "keep", "device", NULL};
  PyObject *code, *registers, *objects, *recover_, *conform, *reserve;
  Py_ssize_t slots, inputs;
  long long threshold;
  int keep, device = -1;
  if (handle_offset < 0) {
    PyErr_SetString(PyExc_RuntimeError, "set_up() has not run");
    return NULL;
  }
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOnnO!OOOLp|i", names, &code, &registers, &slots, &inputs, &PyTuple_Type,
                                   &objects, &recover_, &conform, &reserve, &threshold, &keep, &device))
    return NULL;
  if (device >= 0 && !gpu.launch) {
    PyErr_SetString(PyExc_RuntimeError, "set_up_gpu() has not run");
    return NULL;
  }
  Launcher *self = (Launcher *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = launch;
  self->objects = Py_NewRef(objects);
  self->recover = Py_NewRef(recover_);
  self->conform = Py_NewRef(conform);
  self->reserve = Py_NewRef(reserve);
  self->slots = slots;
  self->inputs = inputs;
  self->keep = keep;
  self->device = device;
  self->threshold = threshold > 0 ? threshold : 1;
  if (!(self->code = copy_words(code, &self->words)) || !(self->initial = copy_words(registers, &self->registers))) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}
static int launcher_traverse(Launcher *self, visitproc visit, void *arg) {
  Py_VISIT(self->objects);
  Py_VISIT(self->recover);
  Py_VISIT(self->conform);
  Py_VISIT(self->reserve);
  Py_VISIT(self->dict);
  return 0;
}
static int launcher_clear(Launcher *self) {
  Py_CLEAR(self->objects);
  Py_CLEAR(self->recover);
  Py_CLEAR(self->conform);
  Py_CLEAR(self->reserve);
  Py_CLEAR(self->dict);
  return 0;
}
static void launcher_dealloc(Launcher *self) {
  PyObject_GC_UnTrack(self);
  launcher_clear(self);
  free(self->code);
  free(self->initial);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyGetSetDef launcher_fields[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {0}};
static PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "inductor.runtime._launch.Launcher",
    .tp_doc = "A call program; call it with one list of inputs, which it empties, for the tuple of outputs.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_dictoffset = offsetof(Launcher, dict),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_getset = launcher_fields,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
};

/* ---- set-up ----------------------------------------------------------------------------------------------------------------- */
static void *find(void *const *libraries, const char *name) {
  for (; *libraries; libraries++) {
    void *symbol = dlsym(*libraries, name);
    if (symbol) return symbol;
  }
  return NULL;
}

/* The one offset from `from` on at which a C++ object holds `wanted`; -1: none or several. */
static int only_place(const char *object, int from, int to, int64_t wanted) {
  int found = -1;
  for (int k = from; k < to; k += 8)
    if (*(const int64_t *)(object + k) == wanted) {
      if (found >= 0) return -1;
      found = k;
    }
  return found;
}

/* set_layout(parameter type, sample, storage's address, offset, memory): where memory is found, from a tensor of
 * known values that occur once in it. Without it, or where it does not fit, the C ABI is asked. */
static PyObject *set_layout(PyObject *module, PyObject *args) {
  PyObject *type, *sample;
  unsigned long long storage, memory;
  long long offset;
  if (!PyArg_ParseTuple(args, "O!OKLK", &PyType_Type, &type, &sample, &storage, &offset, &memory)) return NULL;
  layout.memory = -1;
  if (handle_offset < 0 || Py_TYPE(sample) != tensor_type) Py_RETURN_FALSE;
  const char *impl = *(char **)HANDLE_OF(sample);
  layout.storage = only_place(impl, 8, OBJECT_BYTES, (int64_t)storage);
  layout.offset = only_place(impl, 8, OBJECT_BYTES, offset);
  int found = only_place((char *)(uintptr_t)storage, 8, STORAGE_BYTES, (int64_t)memory);
  if (layout.storage < 0 || layout.offset < 0 || found < 0) Py_RETURN_FALSE;
  Py_XSETREF(parameter_type, (PyTypeObject *)Py_NewRef(type));
  layout.memory = found;
  Py_RETURN_TRUE;
}

/* memory(tensor): what memory_of() finds, 0 where it would ask the C ABI; for set-up to check. */
static PyObject *memory(PyObject *module, PyObject *tensor) {
  return PyLong_FromVoidPtr(memory_of(tensor));
}

static PyObject *forget_layout(PyObject *module, PyObject *ignored) {
  layout.memory = -1;
  Py_RETURN_NONE;
}

/* set_up(tensor, libtorch_cpu, libtorch_python): find the C ABI, calibrate where a Python tensor holds its handle. */
static PyObject *set_up(PyObject *module, PyObject *args) {
  PyObject *tensor;
  const char *cpu, *python;
  if (!PyArg_ParseTuple(args, "Oss", &tensor, &cpu, &python)) return NULL;
  void *libraries[3] = {dlopen(cpu, RTLD_NOW | RTLD_NOLOAD), dlopen(python, RTLD_NOW | RTLD_NOLOAD), NULL};
  if (!libraries[0] || !libraries[1]) {
    PyErr_SetString(PyExc_RuntimeError, "torch's libraries are not loaded");
    return NULL;
  }
#define REQUIRE(field, name)                                             \
  if (!(*(void **)&api.field = find(libraries, name))) {                 \
    PyErr_SetString(PyExc_RuntimeError, "torch does not export " name); \
    return NULL;                                                         \
  }
#define OPTIONAL(field, name) *(void **)&api.field = find(libraries, name)
  REQUIRE(get_data_ptr, "aoti_torch_get_data_ptr")
  REQUIRE(get_sizes, "aoti_torch_get_sizes")
  REQUIRE(get_strides, "aoti_torch_get_strides")
  REQUIRE(get_dim, "aoti_torch_get_dim")
  REQUIRE(get_dtype, "aoti_torch_get_dtype")
  OPTIONAL(view_dtype, "aoti_torch_cpu_view_dtype");
  REQUIRE(new_handle, "aoti_torch_new_tensor_handle")
  REQUIRE(delete_handle, "aoti_torch_delete_tensor_object")
  REQUIRE(empty_strided, "aoti_torch_empty_strided")
  REQUIRE(reinterpret, "aoti_torch__reinterpret_tensor")
  REQUIRE(from_pool, "aoti_torch__alloc_from_pool")
  REQUIRE(grad_enabled, "aoti_torch_grad_mode_is_enabled")
  REQUIRE(set_grad_enabled, "aoti_torch_grad_mode_set_enabled")
  REQUIRE(max_threads, "omp_get_max_threads")
  REQUIRE(wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE")
  OPTIONAL(mm_out, "aoti_torch_cpu_mm_out");
  OPTIONAL(bmm_out, "aoti_torch_cpu_bmm_out");
  OPTIONAL(addmm_out, "aoti_torch_cpu_addmm_out");
  OPTIONAL(baddbmm_out, "aoti_torch_cpu_baddbmm_out");
  OPTIONAL(flash, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu");
  OPTIONAL(convolution, "aoti_torch_cpu_convolution");
  OPTIONAL(linear, "aoti_torch_cpu__linear_pointwise");
  OPTIONAL(recurrent, "aoti_torch_cpu_mkldnn_rnn_layer");
  int32_t (*byte)(void) = (int32_t(*)(void))find(libraries, "aoti_torch_dtype_uint8");
  if (!byte) {
    PyErr_SetString(PyExc_RuntimeError, "torch does not export aoti_torch_dtype_uint8");
    return NULL;
  }
  byte_dtype = byte();
  PyObject *address = PyObject_GetAttrString(tensor, "_cdata");
  if (!address) return NULL;
  void *wanted = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  Py_ssize_t offset = -1;
  for (Py_ssize_t k = sizeof(PyObject); k < 64 && k + 8 <= Py_TYPE(tensor)->tp_basicsize; k += 8)
    if (*(void **)((char *)tensor + k) == wanted) {
      offset = k;
      break;
    }
  if (offset < 0) {
    PyErr_SetString(PyExc_RuntimeError, "the handle inside a Python tensor can't be found");
    return NULL;
  }
  handle_offset = offset;
  Py_XSETREF(tensor_type, (PyTypeObject *)Py_NewRef(Py_TYPE(tensor)));
  int available = (api.mm_out != NULL) << DIRECT_MM | (api.bmm_out != NULL) << DIRECT_BMM |
                  (api.addmm_out != NULL) << DIRECT_ADDMM | (api.baddbmm_out != NULL) << DIRECT_BADDBMM |
                  (api.flash != NULL) << DIRECT_FLASH | (api.convolution != NULL) << DIRECT_CONVOLUTION |
                  (api.linear != NULL) << DIRECT_LINEAR | (api.recurrent != NULL) << DIRECT_LSTM;
  return PyLong_FromLong(available);
}

/* set_up_gpu(libtorch_cuda, addresses of cuLaunchKernel, cuDevicePrimaryCtxRetain, cuCtxSetCurrent): find what programs on a GPU need; direct functions as bits. */
static PyObject *set_up_gpu(PyObject *module, PyObject *args) {
  const char *cuda;
  unsigned long long launch, retain, make_current;
  if (!PyArg_ParseTuple(args, "sKKK", &cuda, &launch, &retain, &make_current)) return NULL;
  void *libraries[2] = {dlopen(cuda, RTLD_NOW | RTLD_NOLOAD), NULL};
  if (!libraries[0]) {
    PyErr_SetString(PyExc_RuntimeError, "torch's CUDA library is not loaded");
    return NULL;
  }
  struct { void *field; const char *name; int required; } wanted[] = {
      {&gpu.current_stream, "aoti_torch_get_current_cuda_stream", 1},
      {&gpu.new_guard, "aoti_torch_create_cuda_guard", 1},
      {&gpu.delete_guard, "aoti_torch_delete_cuda_guard", 1},
      {&gpu.view_dtype, "aoti_torch_cuda_view_dtype", 0},
      {&gpu.mm_out, "aoti_torch_cuda_mm_out", 0},
      {&gpu.bmm_out, "aoti_torch_cuda_bmm_out", 0},
      {&gpu.addmm_out, "aoti_torch_cuda_addmm_out", 0},
      {&gpu.baddbmm_out, "aoti_torch_cuda_baddbmm_out", 0},
      {&gpu.convolution, "aoti_torch_cuda_convolution", 0},
  };
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
    void *symbol = find(libraries, wanted[k].name);
    if (!symbol && wanted[k].required) {
      PyErr_Format(PyExc_RuntimeError, "torch does not export %s", wanted[k].name);
      return NULL;
    }
    *(void **)wanted[k].field = symbol;
  }
  *(void **)&gpu.launch = (void *)(uintptr_t)launch;
  *(void **)&gpu.retain_context = (void *)(uintptr_t)retain;
  *(void **)&gpu.make_current = (void *)(uintptr_t)make_current;
  int available = (gpu.mm_out != NULL) << DIRECT_MM | (gpu.bmm_out != NULL) << DIRECT_BMM |
                  (gpu.addmm_out != NULL) << DIRECT_ADDMM | (gpu.baddbmm_out != NULL) << DIRECT_BADDBMM |
                  (gpu.convolution != NULL) << DIRECT_CONVOLUTION;
  return PyLong_FromLong(available);
}

static PyObject *set_serial(PyObject *module, PyObject *value) {
  serial_only = PyObject_IsTrue(value);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Find torch's C ABI; returns the set of direct vendor functions as bits."},
    {"set_up_gpu", set_up_gpu, METH_VARARGS, "Find what programs on a GPU need; returns direct functions as bits."},
    {"set_layout", set_layout, METH_VARARGS, "Find where tensors hold their memory; whether it was found."},
    {"forget_layout", forget_layout, METH_NOARGS, "Ask the C ABI for the memory of all tensors."},
    {"memory", memory, METH_O, "The address of a tensor's memory as inputs are read; 0: by the C ABI."},
    {"set_serial", set_serial, METH_O, "Whether kernels run on one thread only."},
    {0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "Runs call programs.", -1, methods};
PyMODINIT_FUNC PyInit__launch(void) {
  if (PyType_Ready(&LauncherType)) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && (PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType) ||
                 PyModule_AddIntConstant(module, "OPCODES", OP_SURE + 1) ||
                 PyModule_AddIntConstant(module, "FACE", 3))) /* launch.py refuses other numbers */
    Py_CLEAR(module);
  return module;
}
