/* What the files of the guard program share: steps, programs, registers, and how a tensor is read.
 *
 * _guards.c    builds programs, and evaluates all steps of one
 * _trace.c     what a success leaves behind, so that the next call compares words instead
 * _layout.c    where torch keeps a tensor's metadata and the thread's state
 */
#ifndef DYNAMO_GUARDS_H
#define DYNAMO_GUARDS_H

#include "_fast.h"

#include <string.h>

typedef enum {
    /* loads: register `into` from register `from`; LOAD_KEY is an instance's attribute or an item */
    LOAD_ARGUMENT, LOAD_KEY, LOAD_CLOSURE, LOAD_FUNCTION, LOAD_GLOBAL, LOAD_NAMESPACE, LOAD_CONSTANT,
    LOAD_ATTRIBUTE, LOAD_ITEM, LOAD_ELEMENT, LOAD_TYPE, LOAD_LENGTH,
    LOAD_SIZE, LOAD_STRIDE, LOAD_OFFSET,
    /* integer loads: integer register `into` from register `from`; a float by the bits of its double */
    INT_SIZE, INT_STRIDE, INT_OFFSET, INT_VALUE, REAL_VALUE,
    /* checks of register `from` */
    CHECK_TYPE, CHECK_IDENTITY, CHECK_REFERENCE, CHECK_EQUAL, CHECK_TENSOR, CHECK_LENGTH,
    CHECK_KEYS, CHECK_CONTAINS, CHECK_LACKS, CHECK_HAS_ATTRIBUTE, CHECK_LACKS_ATTRIBUTE,
    CHECK_LACKS_OWN_ATTRIBUTE, CHECK_CLASS_ATTRIBUTE, CHECK_CODE, CHECK_NO_HOOKS, CHECK_SAME_OBJECT,
    CHECK_DISTINCT, CHECK_STORAGES, CHECK_STATE, CHECK_EMPTY_TABLES, CHECK_SHAPE, CHECK_CALL,
    CHECK_CALL_MANY,
    OP_COUNT
} Op;

#define OPEN INT64_MIN /* a size or stride that a tensor check leaves open */

typedef struct {
    PyTypeObject *type;
    uint64_t keys;
    uint16_t dtype;
    int8_t device_index;
    int8_t requires_grad;
    int8_t leaf; /* -1: not looked at */
    int8_t has_strides;
    int32_t dims;
    int64_t sizes[]; /* then strides */
} TensorSpec;

typedef struct {
    int32_t op;
    int32_t from; /* register read; for roots unused */
    int32_t into; /* register or integer register written; for CHECK_SAME_OBJECT the other one */
    int32_t number;
    PyObject *operand;
    PyObject *second;
    void *data; /* TensorSpec, postfix code, register numbers, expected state; PyMem */
} Step;

typedef struct Trace Trace;
#define TRACES 8 /* of one program: for so many instances in turn */

typedef struct {
    PyObject_VAR_HEAD
    Step *steps;
    int32_t step_count;
    int32_t registers;
    int32_t integers;
    int32_t input_count;
    int32_t *inputs;
    Trace *traces[TRACES]; /* the one that matched last first */
    int32_t trace_count;
    uint32_t wait;    /* successes that are not recorded, because records were of no use */
    uint32_t backoff;
    uint32_t useful;  /* matches by traces since the last record */
    uint64_t loose;   /* argument slots that hold another object each time */
} Program;

typedef struct {
    PyObject **values;
    unsigned char *owned;
    int64_t *integers;
    int32_t loaded;
    int any_owned;
    int32_t kept; /* registers from `base` to here are owned, where they can be */
    int32_t base; /* registers below hold what a trace remembers */
    int live;     /* the registers below `base` are known to be valid, and not owned yet */
} Registers;

/* _guards.c */
HIDDEN extern PyObject *hook_tables[4], *name_builtins;
HIDDEN void own_all(Registers *r); /* from here on Python may run */
HIDDEN int equal_constant(Registers *r, PyObject *left, PyObject *right);
HIDDEN PyObject *own_dict(PyObject *value); /* borrowed; NULL (no exception): it has none */
/* 1: all hold; 0: one fails; -1: an exception is set */
HIDDEN int run_steps(Registers *r, const Step *step, const Step *end, PyObject *const *slots,
                     Py_ssize_t count, PyObject *function);
HIDDEN PyObject *input_list(const Registers *r, const int32_t *inputs, int32_t count);
HIDDEN void disown_all(Registers *r);

/* _trace.c */
typedef enum { FAILS = 0, MATCHES = 1, UNKNOWN = 2 } Answer; /* or -1 with an exception */
HIDDEN int trace_match(Program *program, PyObject *const *slots, Py_ssize_t count,
                       PyObject *function, PyObject **inputs);
HIDDEN void trace_record(Program *program, Registers *r, PyObject *const *slots, Py_ssize_t count,
                         PyObject *function);
HIDDEN void trace_forget(Program *program);
HIDDEN PyObject *trace_sizes(const Program *program);

/* _layout.c */
HIDDEN int layout_ready(PyObject *module);
HIDDEN int state_holds(const int64_t *want);

/* ------------------------------------------------------------------ what calibration found out */

typedef struct {
    int ready;
    int handle, keys, dtype, device_index, dims, sizes, strides, inline_dims, offset, storage;
    int autograd; /* -1: unknown, always ask */
    int required; /* in the autograd metadata: 1 where a leaf requires a gradient; -1: unknown */
    int (*requires_grad)(const void *);
    PyTypeObject *tensor, *parameter;
} Layout;
HIDDEN extern Layout layout;
HIDDEN int state_is_readable(void);

static inline char *impl_of(PyObject *tensor) {
    return *(char **)((char *)tensor + layout.handle);
}
#define FIELD(impl, type, offset) (*(type *)((impl) + (offset)))

static inline int is_plain_tensor(PyObject *value) {
    return layout.ready && (Py_TYPE(value) == layout.tensor || Py_TYPE(value) == layout.parameter);
}

static inline void geometry(char *impl, int64_t *dims, const int64_t **sizes, const int64_t **strides) {
    int64_t n = FIELD(impl, int64_t, layout.dims);
    *dims = n;
    if (LIKELY(n <= layout.inline_dims)) {
        *sizes = &FIELD(impl, int64_t, layout.sizes);
        *strides = &FIELD(impl, int64_t, layout.strides);
    } else {
        *sizes = FIELD(impl, int64_t *, layout.sizes);
        *strides = *sizes + n;
    }
}

static inline int requires_grad(char *impl) {
    if (LIKELY(layout.autograd >= 0)) {
        char *metadata = FIELD(impl, char *, layout.autograd);
        if (metadata == NULL)
            return 0;
        if (layout.required >= 0 && FIELD(metadata, uint8_t, layout.required) == 1)
            return 1; /* a 0 is not the whole answer: results have a history instead */
    }
    return layout.requires_grad(impl) & 0xff;
}

static inline int tensor_holds(const TensorSpec *spec, PyObject *value) {
    if (UNLIKELY(Py_TYPE(value) != spec->type))
        return 0;
    char *impl = impl_of(value);
    if (UNLIKELY(impl == NULL))
        return 0;
    if (FIELD(impl, uint64_t, layout.keys) != spec->keys ||
        FIELD(impl, uint16_t, layout.dtype) != spec->dtype ||
        FIELD(impl, int8_t, layout.device_index) != spec->device_index)
        return 0;
    int64_t n;
    const int64_t *sizes, *strides;
    geometry(impl, &n, &sizes, &strides);
    if (n != spec->dims)
        return 0;
    const int64_t *want = spec->sizes;
    for (int64_t i = 0; i < n; i++)
        if (sizes[i] != want[i] && want[i] != OPEN)
            return 0;
    if (spec->has_strides) {
        want += n;
        for (int64_t i = 0; i < n; i++)
            if (strides[i] != want[i] && want[i] != OPEN)
                return 0;
    }
    return requires_grad(impl) == spec->requires_grad;
}

#endif
