/* The guard program: a flat array of steps over registers.
 *
 * A load step puts a value into the next register, a check step tests one, an integer step reads a
 * size into an integer register, a shape step evaluates a postfix expression over those. Registers
 * hold borrowed references as long as nothing but this file runs; before a step calls into Python
 * all of them become owned, so that nothing can be freed under them. A failing step ends the
 * program; an exception that a load raises means that the guard fails, as in the Python evaluator.
 */
#include "_fast.h"

#include <dlfcn.h>
#include <string.h>

typedef enum {
    /* loads: register `into` from register `from`; LOAD_DICT and LOAD_TABLE look at a dict */
    LOAD_ARGUMENT, LOAD_DICT, LOAD_TABLE, LOAD_KEY, LOAD_CLOSURE, LOAD_FUNCTION, LOAD_GLOBAL, LOAD_NAMESPACE, LOAD_CONSTANT,
    LOAD_ATTRIBUTE, LOAD_ITEM, LOAD_ELEMENT, LOAD_TYPE, LOAD_LENGTH,
    LOAD_SIZE, LOAD_STRIDE, LOAD_OFFSET,
    /* integer loads: integer register `into` from register `from` */
    INT_SIZE, INT_STRIDE, INT_OFFSET, INT_VALUE,
    /* checks of register `from` */
    CHECK_TYPE, CHECK_IDENTITY, CHECK_REFERENCE, CHECK_EQUAL, CHECK_TENSOR, CHECK_LENGTH,
    CHECK_KEYS, CHECK_CONTAINS, CHECK_LACKS, CHECK_HAS_ATTRIBUTE, CHECK_LACKS_ATTRIBUTE,
    CHECK_LACKS_OWN_ATTRIBUTE, CHECK_CLASS_ATTRIBUTE, CHECK_CODE, CHECK_NO_HOOKS, CHECK_SAME_OBJECT,
    CHECK_DISTINCT, CHECK_STORAGES, CHECK_STATE, CHECK_EMPTY_TABLES, CHECK_SHAPE, CHECK_CALL,
    CHECK_CALL_MANY,
    OP_COUNT
} Op;

static const char *const OP_NAMES[OP_COUNT] = {
    "LOAD_ARGUMENT", "LOAD_DICT", "LOAD_TABLE", "LOAD_KEY", "LOAD_CLOSURE", "LOAD_FUNCTION", "LOAD_GLOBAL", "LOAD_NAMESPACE",
    "LOAD_CONSTANT", "LOAD_ATTRIBUTE", "LOAD_ITEM", "LOAD_ELEMENT",
    "LOAD_TYPE", "LOAD_LENGTH", "LOAD_SIZE", "LOAD_STRIDE", "LOAD_OFFSET", "INT_SIZE", "INT_STRIDE",
    "INT_OFFSET", "INT_VALUE", "CHECK_TYPE", "CHECK_IDENTITY", "CHECK_REFERENCE", "CHECK_EQUAL",
    "CHECK_TENSOR", "CHECK_LENGTH", "CHECK_KEYS", "CHECK_CONTAINS", "CHECK_LACKS",
    "CHECK_HAS_ATTRIBUTE", "CHECK_LACKS_ATTRIBUTE", "CHECK_LACKS_OWN_ATTRIBUTE",
    "CHECK_CLASS_ATTRIBUTE", "CHECK_CODE", "CHECK_NO_HOOKS", "CHECK_SAME_OBJECT", "CHECK_DISTINCT",
    "CHECK_STORAGES", "CHECK_STATE", "CHECK_EMPTY_TABLES", "CHECK_SHAPE", "CHECK_CALL", "CHECK_CALL_MANY",
};

/* Postfix operators of CHECK_SHAPE. */
typedef enum {
    X_CONSTANT, X_SIZE, X_ADD, X_SUBTRACT, X_MULTIPLY, X_FLOOR_DIVIDE, X_MODULO, X_MAXIMUM,
    X_MINIMUM, X_EQUAL, X_LESS, X_NOT, X_AND, X_OR, X_COUNT
} Postfix;

static const char *const POSTFIX_NAMES[X_COUNT] = {
    "CONSTANT", "SIZE", "ADD", "SUBTRACT", "MULTIPLY", "FLOOR_DIVIDE", "MODULO", "MAXIMUM",
    "MINIMUM", "EQUAL", "LESS", "NOT", "AND", "OR",
};

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
    int32_t into; /* register or integer register written; for checks a number of the operation */
    int32_t number;
    PyObject *operand;
    PyObject *second;
    void *data; /* TensorSpec, postfix code, register numbers, expected state; PyMem */
    int32_t table;        /* number of the dict that the step looks into, or -1 */
    PyObject *remembered; /* what LOAD_KEY found there, borrowed from the dict */
} Step;

/* A dict that steps look into. While its version is the one at the last success, all that was found
 * there is still there: no look-up is needed. Versions are unique in the process. */
typedef struct {
    int32_t from;          /* the register looked at */
    int32_t own;           /* its own dict, else the value is the dict */
    uint64_t version;      /* 0: unknown */
    unsigned type_version; /* of the type of the object whose own dict it is; 0 for other dicts */
    PyObject *hooks[4];    /* what CHECK_NO_HOOKS found, borrowed; NULL where absent */
} Table;

typedef struct {
    PyObject_VAR_HEAD
    Step *steps;
    int32_t step_count;
    int32_t registers;
    int32_t integers;
    int32_t input_count;
    int32_t table_count;
    int32_t *inputs;
    Table *tables;
} Program;

/* ------------------------------------------------------------------ what calibration found out */

static struct {
    int ready;
    int handle, keys, dtype, device_index, dims, sizes, strides, inline_dims, offset, storage;
    int autograd; /* -1: unknown, always ask */
    int (*requires_grad)(const void *);
    PyTypeObject *tensor, *parameter;
} layout;

/* Functions of torch that tell the state of thread and process, in the order of state_names. */
typedef enum {
    S_GRAD, S_INFERENCE, S_AUTOCAST_CPU, S_AUTOCAST_CUDA, S_DTYPE_CPU, S_DTYPE_CUDA, S_CACHE,
    S_DEFAULT_DTYPE, S_DETERMINISTIC, S_WARN_ONLY, S_FILL, S_PRECISION, S_THREADS,
    S_LAYERS, S_OVERRIDES, S_FUNCTION_MODES, S_DISPATCH_MODES, S_COUNT
} StateField;

static struct {
    int ready;
    int (*plain_bool[2])(void);      /* grad mode, inference mode: return bool in al */
    int (*autocast)(int8_t);
    int8_t (*autocast_dtype)(int8_t);
    int (*cache)(void);
    int8_t (*default_dtype)(void);
    void *context;
    int (*context_bool[3])(void *);
    int (*precision)(void *);
    int (*threads)(void);
    void *const *(*layers)(void);    /* a std::vector: begin, end */
    int (*overrides)(void);
    int64_t (*function_modes)(void);
    int64_t (*dispatch_modes)(void);
} state;

static PyObject *same_constant;      /* dynamo.guards.kinds.same_constant */
static PyObject *name_size, *name_stride, *name_offset, *name_code, *name_builtins;
static PyObject *hook_tables[4];

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
    if (layout.autograd >= 0 && FIELD(impl, void *, layout.autograd) == NULL)
        return 0;
    return layout.requires_grad(impl) & 0xff;
}

static int tensor_holds(const TensorSpec *spec, PyObject *value) {
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

/* ------------------------------------------------------------------------------ evaluation state */

typedef struct { /* a Table in this evaluation */
    PyObject *dict; /* NULL: the object has none */
    uint64_t version;
    unsigned type_version;
    unsigned stamp; /* `python_runs` when it was looked at */
    int clean;      /* as it was at the last success */
    int unsteady;   /* it changed during this evaluation */
} Look;

typedef struct {
    PyObject **values;
    unsigned char *owned;
    int64_t *integers;
    Look *looks;
    int dirty;
    int32_t loaded;
    int any_owned;
    int32_t kept; /* registers below are owned */
    unsigned python_runs; /* how often Python may have run: dicts may have changed */
} Registers;

/* From here on Python may run: nothing that a register holds may be freed. */
static void own_all(Registers *r) {
    r->python_runs++;
    for (int32_t i = r->kept; i < r->loaded; i++)
        if (!r->owned[i]) {
            Py_INCREF(r->values[i]);
            r->owned[i] = 1;
        }
    r->kept = r->loaded;
    r->any_owned = 1;
}

static inline void put_borrowed(Registers *r, int32_t into, PyObject *value) {
    r->values[into] = value;
    r->owned[into] = 0;
    r->loaded = into + 1;
}

static inline void put_owned(Registers *r, int32_t into, PyObject *value) {
    r->values[into] = value;
    r->owned[into] = 1;
    r->any_owned = 1;
    r->loaded = into + 1;
}

static inline int truth(PyObject *result) { /* of a new reference; -1 with an exception */
    if (result == NULL)
        return -1;
    if (LIKELY(result == Py_True || result == Py_False)) {
        int is_true = result == Py_True;
        Py_DECREF(result);
        return is_true;
    }
    int is_true = PyObject_IsTrue(result);
    Py_DECREF(result);
    return is_true;
}

static int equal_constant(Registers *r, PyObject *left, PyObject *right) {
    if (left == right)
        return 1;
    PyTypeObject *type = Py_TYPE(right);
    if (Py_TYPE(left) != type)
        return 0;
    if (type == &PyUnicode_Type)
        return PyUnicode_GET_LENGTH(left) == PyUnicode_GET_LENGTH(right) &&
               PyUnicode_Compare(left, right) == 0;
    if (type == &PyLong_Type)
        return PyObject_RichCompareBool(left, right, Py_EQ);
    if (type == &PyFloat_Type) {
        double a = PyFloat_AS_DOUBLE(left), b = PyFloat_AS_DOUBLE(right);
        /* all NaNs are one constant, as their text is */
        return memcmp(&a, &b, sizeof a) == 0 || (a != a && b != b);
    }
    if (type == &PyBool_Type || right == Py_None)
        return 0;
    own_all(r);
    return truth(PyObject_CallFunctionObjArgs(same_constant, left, right, NULL));
}

/* A list's, tuple's or dict's length without a call, else len(). */
static Py_ssize_t length_of(Registers *r, PyObject *value) {
    if (PyList_CheckExact(value) || PyTuple_CheckExact(value))
        return Py_SIZE(value);
    if (PyDict_CheckExact(value))
        return PyDict_GET_SIZE(value);
    own_all(r);
    return PyObject_Size(value);
}

/* The instance's dict if it has one, borrowed; NULL (no exception) otherwise. */
static inline PyObject *own_dict(PyObject *value) {
    PyObject **found = _PyObject_GetDictPtr(value);
    PyObject *dict = found == NULL ? NULL : *found;
    return dict != NULL && PyDict_Check(dict) ? dict : NULL;
}

static int integer_of(PyObject *value, int64_t *into) {
    if (!PyLong_Check(value))
        return 0;
    int overflow;
    *into = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0;
}

/* A size, stride or offset of any tensor. */
static int tensor_integer(Registers *r, int kind, PyObject *tensor, int32_t dimension, int64_t *into) {
    if (LIKELY(is_plain_tensor(tensor))) {
        char *impl = impl_of(tensor);
        if (kind == 2) {
            *into = FIELD(impl, int64_t, layout.offset);
            return 1;
        }
        int64_t n;
        const int64_t *sizes, *strides;
        geometry(impl, &n, &sizes, &strides);
        int64_t i = dimension < 0 ? dimension + n : dimension;
        if (i < 0 || i >= n)
            return 0;
        *into = (kind ? strides : sizes)[i];
        return 1;
    }
    own_all(r);
    PyObject *found;
    if (kind == 2) {
        found = PyObject_CallMethodNoArgs(tensor, name_offset);
    } else {
        PyObject *number = PyLong_FromLong(dimension);
        if (number == NULL)
            return -1;
        found = PyObject_CallMethodOneArg(tensor, kind ? name_stride : name_size, number);
        Py_DECREF(number);
    }
    if (found == NULL)
        return -1;
    int fits = integer_of(found, into);
    Py_DECREF(found);
    return fits;
}

/* --------------------------------------------------------------------------------------- shapes */

static inline int64_t floor_divide(int64_t a, int64_t b) {
    int64_t q = a / b;
    return (a % b != 0 && (a < 0) != (b < 0)) ? q - 1 : q;
}

/* Evaluates postfix code; 0 also where a step overflows or divides by zero: no guard holds there. */
static int shape_holds(const int64_t *code, int32_t length, const int64_t *sizes, int64_t *stack) {
    int top = -1;
    for (int32_t i = 0; i < length; i++) {
        int64_t b = top >= 0 ? stack[top] : 0, a = top >= 1 ? stack[top - 1] : 0, c;
        switch ((Postfix)code[i]) {
        case X_CONSTANT: stack[++top] = code[++i]; continue;
        case X_SIZE: stack[++top] = sizes[code[++i]]; continue;
        case X_NOT: stack[top] = !b; continue;
        case X_ADD: if (__builtin_add_overflow(a, b, &c)) return 0; break;
        case X_SUBTRACT: if (__builtin_sub_overflow(a, b, &c)) return 0; break;
        case X_MULTIPLY: if (__builtin_mul_overflow(a, b, &c)) return 0; break;
        case X_FLOOR_DIVIDE:
            if (b == 0 || (b == -1 && a == INT64_MIN)) return 0;
            c = floor_divide(a, b);
            break;
        case X_MODULO:
            if (b == 0 || b == -1) { if (b == 0) return 0; c = 0; break; }
            c = a - b * floor_divide(a, b);
            break;
        case X_MAXIMUM: c = a > b ? a : b; break;
        case X_MINIMUM: c = a < b ? a : b; break;
        case X_EQUAL: c = a == b; break;
        case X_LESS: c = a < b; break;
        case X_AND: c = a && b; break;
        case X_OR: c = a || b; break;
        default: return 0;
        }
        stack[--top] = c;
    }
    return top == 0 && stack[0] != 0;
}

/* ---------------------------------------------------------------------------------------- state */

static void read_state(int64_t *now) {
    now[S_GRAD] = state.plain_bool[0]() & 0xff;
    now[S_INFERENCE] = state.plain_bool[1]() & 0xff;
    for (int device = 0; device < 2; device++) {
        int on = state.autocast((int8_t)device) & 0xff;
        now[S_AUTOCAST_CPU + device] = on;
        now[S_DTYPE_CPU + device] = on ? state.autocast_dtype((int8_t)device) : 0;
    }
    now[S_CACHE] = state.cache() & 0xff;
    now[S_DEFAULT_DTYPE] = state.default_dtype();
    for (int i = 0; i < 3; i++)
        now[S_DETERMINISTIC + i] = state.context_bool[i](state.context) & 0xff;
    now[S_PRECISION] = state.precision(state.context) & 0xff;
    now[S_THREADS] = state.threads();
    void *const *layers = state.layers();
    now[S_LAYERS] = (char *)layers[1] - (char *)layers[0];
    now[S_OVERRIDES] = state.overrides() & 0xff;
    now[S_FUNCTION_MODES] = state.function_modes();
    now[S_DISPATCH_MODES] = state.dispatch_modes();
}

static inline int state_holds(const int64_t *want) {
    int64_t now[S_COUNT];
    read_state(now);
    return memcmp(now, want, sizeof now) == 0;
}

/* ------------------------------------------------------------------------------- several objects */

/* Whether `count` pointers are pairwise different. -1 with an exception. */
static int all_different(void *const *pointers, int32_t count) {
    if (count <= 12) {
        for (int32_t i = 1; i < count; i++)
            for (int32_t j = 0; j < i; j++)
                if (pointers[i] == pointers[j])
                    return 0;
        return 1;
    }
    size_t size = 32;
    while (size < 2 * (size_t)count)
        size *= 2;
    void **table = PyMem_Calloc(size, sizeof *table);
    if (table == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int all = 1;
    for (int32_t i = 0; i < count && all; i++) {
        size_t at = ((uintptr_t)pointers[i] >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (size - 1);
        while (table[at] != NULL && table[at] != pointers[i])
            at = (at + 1) & (size - 1);
        all = table[at] == NULL;
        table[at] = pointers[i];
    }
    PyMem_Free(table);
    return all;
}

static int distinct(PyObject **values, const int32_t *which, int32_t count) {
    void **pointers = PyMem_Malloc((size_t)count * sizeof *pointers);
    if (pointers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t i = 0; i < count; i++)
        pointers[i] = values[which[i]];
    int all = all_different(pointers, count);
    PyMem_Free(pointers);
    return all;
}

/* operand([values of count registers]) */
static int call_with(Registers *r, PyObject *operand, const int32_t *which, int32_t count) {
    own_all(r);
    PyObject *values = PyList_New(count);
    if (values == NULL)
        return -1;
    for (int32_t i = 0; i < count; i++)
        PyList_SET_ITEM(values, i, Py_NewRef(r->values[which[i]]));
    int holds = truth(PyObject_CallOneArg(operand, values));
    Py_DECREF(values);
    return holds;
}

/* data: count, then registers, then for each the index of the first that shares its storage */
static int storages_hold(Registers *r, const Step *step) {
    const int32_t *data = step->data;
    int32_t count = data[0];
    for (int32_t i = 0; i < count; i++)
        if (!is_plain_tensor(r->values[data[1 + i]]))
            return call_with(r, step->operand, data + 1, count);
    void **firsts = PyMem_Malloc((size_t)count * sizeof *firsts);
    if (firsts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    int holds = 1;
    int32_t different = 0;
#define STORAGE(i) FIELD(impl_of(r->values[data[1 + (i)]]), void *, layout.storage)
    for (int32_t i = 0; i < count && holds; i++) {
        int32_t first = data[1 + count + i];
        if (first == i)
            firsts[different++] = STORAGE(i);
        else
            holds = STORAGE(i) == STORAGE(first);
    }
#undef STORAGE
    if (holds)
        holds = all_different(firsts, different);
    PyMem_Free(firsts);
    return holds;
}

/* --------------------------------------------------------------------------------------- tables */

#if PY_VERSION_HEX < 0x030d0000
#define VERSION(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define VERSION(dict) 0 /* stores into an instance no longer change it */
#endif
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static inline int has_plain_items(PyObject *value) { /* a dict whose [] is dict's */
    return PyDict_CheckExact(value) ||
           (PyDict_Check(value) &&
            Py_TYPE(value)->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript);
}

static void look(Registers *r, const Table *tables, int32_t number) {
    Look *at = &r->looks[number];
    const Table *table = &tables[number];
    PyObject *from = r->values[table->from];
    if (table->own) {
        at->dict = own_dict(from);
        at->type_version = Py_TYPE(from)->tp_version_tag;
    } else {
        at->dict = has_plain_items(from) ? from : NULL;
        at->type_version = 0;
    }
    at->version = at->dict == NULL ? 0 : VERSION(at->dict);
    at->clean = at->version != 0 && at->version == table->version &&
                at->type_version == table->type_version;
    at->stamp = r->python_runs;
    r->dirty |= !at->clean;
}

static void look_again(Registers *r, const Table *tables, int32_t number) {
    Look before = r->looks[number];
    look(r, tables, number);
    const Look *now = &r->looks[number];
    r->looks[number].unsteady = before.unsteady || now->dict != before.dict ||
                                now->version != before.version ||
                                now->type_version != before.type_version;
}

/* Whether what is remembered of the step's dict holds. Python that ran meanwhile may have changed the
 * dict, and another thread may have run the same program and remembered other things. */
static inline int clean(Registers *r, const Table *tables, const Step *step) {
    if (UNLIKELY(r->looks[step->table].stamp != r->python_runs))
        look_again(r, tables, step->table);
    return r->looks[step->table].clean;
}

/* An attribute or item by name, by the full rules. 1, 0 or -1. */
static int load_key(Registers *r, const Step *step) {
    PyObject *from = r->values[step->from], *found;
    if (step->number) { /* an attribute of the instance */
        found = PyObject_GenericGetAttr(from, step->operand);
        if (found == NULL)
            return -1;
        put_owned(r, step->into, found);
        return 1;
    }
    if (r->looks[step->table].dict == NULL) {
        own_all(r);
        found = PyObject_GetItem(from, step->operand);
        if (found == NULL)
            return -1;
        put_owned(r, step->into, found);
        return 1;
    }
    found = PyDict_GetItemWithError(r->looks[step->table].dict, step->operand);
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    put_borrowed(r, step->into, found);
    return 1;
}

static int hooks_absent(Registers *r, const Step *step) {
    PyObject *value = r->values[step->from], *dict = own_dict(value);
    for (int i = 0; dict != NULL && i < 4; i++) {
        PyObject *table = PyDict_GetItemWithError(dict, hook_tables[i]);
        if (table == NULL)
            continue;
        if (LIKELY(PyDict_Check(table))) {
            if (PyDict_GET_SIZE(table))
                return 0;
            continue;
        }
        own_all(r);
        int full = PyObject_IsTrue(table);
        if (full)
            return full < 0 ? -1 : 0;
    }
    return PyErr_Occurred() ? -1 : 1;
}

static inline int remembered_hooks_absent(const Table *table) {
    for (int i = 0; i < 4; i++)
        if (table->hooks[i] != NULL && PyDict_GET_SIZE(table->hooks[i]))
            return 0;
    return 1;
}

/* After a success: remember what was found in the dicts that are not as they were. */
static void remember(Program *self, Registers *r) {
    for (int32_t i = 0; i < self->table_count; i++) {
        Look *at = &r->looks[i];
        if (at->stamp != r->python_runs)
            look_again(r, self->tables, i);
        if (!at->clean) {
            self->tables[i].version = at->dict == NULL || at->unsteady ? 0 : at->version;
            self->tables[i].type_version = at->type_version;
        }
    }
    for (Step *step = self->steps, *end = step + self->step_count; step < end; step++) {
        const Look *at = step->table < 0 ? NULL : &r->looks[step->table];
        if (at == NULL || at->clean || at->dict == NULL || at->unsteady)
            continue;
        Table *table = &self->tables[step->table];
        if (step->op == LOAD_KEY) {
            PyObject *value = r->values[step->into];
            int there = PyDict_GetItemWithError(at->dict, step->operand) == value;
            PyErr_Clear();
            if (there && step->number) { /* the class may hold a property of that name */
                PyObject *found = _PyType_Lookup(Py_TYPE(r->values[step->from]), step->operand);
                there = found == NULL || Py_TYPE(found)->tp_descr_set == NULL;
            }
            step->remembered = there ? value : NULL;
        } else if (step->op == CHECK_NO_HOOKS) {
            for (int k = 0; k < 4; k++) {
                PyObject *hooks = PyDict_GetItemWithError(at->dict, hook_tables[k]);
                PyErr_Clear();
                if (hooks != NULL && !PyDict_Check(hooks))
                    table->version = 0; /* nothing to look at without Python */
                table->hooks[k] = hooks;
            }
        }
        if (at->type_version == 0 && step->op == LOAD_KEY && step->number)
            table->version = 0; /* a class without a version may change unseen */
    }
}

/* ---------------------------------------------------------------------------------------- steps */

/* What a class holds under a name runs no Python when it is got from an instance or the class. */
static int is_plain_descriptor(PyObject *found) {
    if (found == NULL)
        return 1;
    PyTypeObject *type = Py_TYPE(found);
    return type->tp_descr_get == NULL || type == &PyFunction_Type || type == &PyMemberDescr_Type ||
           type == &PyGetSetDescr_Type || type == &PyMethodDescr_Type ||
           type == &PyWrapperDescr_Type || type == &PyStaticMethod_Type;
}

/* Whether getting an attribute certainly runs no Python code. */
static int is_plain_attribute(PyObject *from, PyObject *name) {
    PyTypeObject *type = Py_TYPE(from);
    if (type->tp_getattro == PyObject_GenericGetAttr)
        return !(type->tp_flags & Py_TPFLAGS_HEAPTYPE) || is_plain_descriptor(_PyType_Lookup(type, name));
    if (type->tp_getattro == PyType_Type.tp_getattro)
        return is_plain_descriptor(_PyType_Lookup(type, name)) &&
               is_plain_descriptor(_PyType_Lookup((PyTypeObject *)from, name));
    if (PyModule_CheckExact(from)) {
        PyObject *dict = PyModule_GetDict(from);
        return dict != NULL && PyDict_Contains(dict, name) == 1;
    }
    return 0;
}

/* Loads: 1 loaded, 0 nothing there, -1 exception. */
static int load(Registers *r, const Step *step, PyObject *const *slots, Py_ssize_t count,
                PyObject *function) {
    PyObject *found;
    int64_t integer;
    int status;
    PyObject *from = step->from >= 0 ? r->values[step->from] : NULL;
    switch ((Op)step->op) {
    case LOAD_ARGUMENT:
        if (step->number >= count || slots[step->number] == NULL)
            return 0;
        put_borrowed(r, step->into, slots[step->number]);
        return 1;
    case LOAD_CLOSURE: {
        if (function == NULL)
            return 0;
        PyObject *closure = PyFunction_GET_CLOSURE(function);
        if (closure == NULL || step->number >= PyTuple_GET_SIZE(closure))
            return 0;
        found = PyCell_GET(PyTuple_GET_ITEM(closure, step->number));
        break;
    }
    case LOAD_FUNCTION: found = function; break;
    case LOAD_GLOBAL:
    case LOAD_NAMESPACE: {
        PyObject *names = step->second;
        if (names == NULL) {
            if (function == NULL)
                return 0;
            names = PyFunction_GET_GLOBALS(function);
        }
        found = PyDict_GetItemWithError(names, step->operand);
        if (found == NULL && !PyErr_Occurred()) {
            PyObject *builtins = PyDict_GetItemWithError(names, name_builtins);
            if (builtins == NULL && !PyErr_Occurred())
                builtins = PyEval_GetBuiltins();
            if (builtins != NULL && PyModule_Check(builtins))
                builtins = PyModule_GetDict(builtins);
            if (builtins != NULL && PyDict_Check(builtins))
                found = PyDict_GetItemWithError(builtins, step->operand);
        }
        break;
    }
    case LOAD_CONSTANT: found = step->operand; break;
    case LOAD_ATTRIBUTE:
        if (!is_plain_attribute(from, step->operand))
            own_all(r);
        found = PyObject_GetAttr(from, step->operand);
        goto owned;
    case LOAD_ITEM:
        if (has_plain_items(from)) {
            if (!PyUnicode_CheckExact(step->operand))
                own_all(r); /* the key's own equality may run */
            found = PyDict_GetItemWithError(from, step->operand);
            break;
        }
        if (step->second != NULL && (PyList_CheckExact(from) || PyTuple_CheckExact(from))) {
            Py_ssize_t n = Py_SIZE(from), i = step->number < 0 ? step->number + n : step->number;
            if (i < 0 || i >= n)
                return 0;
            found = PyList_CheckExact(from) ? PyList_GET_ITEM(from, i) : PyTuple_GET_ITEM(from, i);
            break;
        }
        own_all(r);
        found = PyObject_GetItem(from, step->operand);
        goto owned;
    case LOAD_ELEMENT:
        if (PyDict_CheckExact(from)) {
            Py_ssize_t position = 0;
            int32_t i = 0;
            PyObject *key;
            for (found = NULL; PyDict_Next(from, &position, &key, NULL); i++)
                if (i == step->number) {
                    found = key;
                    break;
                }
            break;
        }
        own_all(r);
        found = PyObject_CallFunction(step->operand, "Oi", from, step->number);
        goto owned;
    case LOAD_TYPE: found = (PyObject *)Py_TYPE(from); break;
    case LOAD_LENGTH:
        integer = length_of(r, from);
        if (integer < 0)
            return -1;
        found = PyLong_FromLongLong(integer);
        goto owned;
    case LOAD_SIZE:
    case LOAD_STRIDE:
    case LOAD_OFFSET:
        status = tensor_integer(r, step->op - LOAD_SIZE, from, step->number, &integer);
        if (status <= 0)
            return status;
        found = PyLong_FromLongLong(integer);
        goto owned;
    case INT_SIZE:
    case INT_STRIDE:
    case INT_OFFSET:
        return tensor_integer(r, step->op - INT_SIZE, from, step->number, &r->integers[step->into]);
    case INT_VALUE: return integer_of(from, &r->integers[step->into]);
    default: Py_UNREACHABLE();
    }
    if (found == NULL)
        return PyErr_Occurred() ? -1 : 0;
    put_borrowed(r, step->into, found);
    return 1;
owned:
    if (found == NULL)
        return -1;
    put_owned(r, step->into, found);
    return 1;
}

/* Checks: 1 holds, 0 fails, -1 exception. */
static int check(Registers *r, const Table *tables, const Step *step) {
    PyObject *value = step->from >= 0 ? r->values[step->from] : NULL;
    PyObject *operand = step->operand, *found;
    switch ((Op)step->op) {
    case CHECK_TYPE: return (PyObject *)Py_TYPE(value) == operand;
    case CHECK_IDENTITY: return value == operand;
    case CHECK_REFERENCE:
        return value != Py_None && ((PyWeakReference *)operand)->wr_object == value;
    case CHECK_EQUAL: return equal_constant(r, value, operand);
    case CHECK_TENSOR: {
        const TensorSpec *spec = step->data;
        if (LIKELY(spec != NULL && layout.ready)) {
            int holds = tensor_holds(spec, value);
            if (!holds || spec->leaf < 0)
                return holds;
        }
        own_all(r);
        return truth(PyObject_CallOneArg(operand, value));
    }
    case CHECK_LENGTH: {
        Py_ssize_t length = length_of(r, value);
        return length < 0 ? -1 : length == step->number;
    }
    case CHECK_KEYS: {
        Py_ssize_t position = 0, i = 0, n = PyTuple_GET_SIZE(operand);
        if (!PyDict_CheckExact(value)) {
            own_all(r);
            return truth(PyObject_CallFunctionObjArgs(step->second, value, operand, NULL));
        }
        if (PyDict_GET_SIZE(value) != n)
            return 0;
        while (PyDict_Next(value, &position, &found, NULL)) {
            int same = i < n && equal_constant(r, found, PyTuple_GET_ITEM(operand, i));
            if (same <= 0)
                return same;
            i++;
        }
        return i == n;
    }
    case CHECK_CONTAINS:
    case CHECK_LACKS: {
        if (!PyUnicode_CheckExact(operand) || !PyDict_CheckExact(value))
            own_all(r);
        int has = PyDict_CheckExact(value) ? PyDict_Contains(value, operand)
                                           : PySequence_Contains(value, operand);
        return has < 0 ? -1 : has == (step->op == CHECK_CONTAINS);
    }
    case CHECK_HAS_ATTRIBUTE:
    case CHECK_LACKS_ATTRIBUTE:
        if (!is_plain_attribute(value, operand))
            own_all(r);
        found = PyObject_GetAttr(value, operand);
        if (found == NULL) {
            if (!PyErr_ExceptionMatches(PyExc_AttributeError))
                return -1;
            PyErr_Clear();
        }
        Py_XDECREF(found);
        return (found != NULL) == (step->op == CHECK_HAS_ATTRIBUTE);
    case CHECK_LACKS_OWN_ATTRIBUTE: {
        if (clean(r, tables, step))
            return 1;
        PyObject *dict = own_dict(value);
        if (dict == NULL)
            return 1;
        int has = PyDict_Contains(dict, operand);
        return has < 0 ? -1 : !has;
    }
    case CHECK_CLASS_ATTRIBUTE:
        if (!PyType_Check(value))
            return 0;
        found = _PyType_Lookup((PyTypeObject *)value, operand);
        if (step->number) /* the class has it; a `second` of None is kept as NULL */
            return found == (step->second != NULL ? step->second : Py_None);
        return found == NULL;
    case CHECK_CODE:
        if (PyFunction_Check(value))
            return PyFunction_GET_CODE(value) == operand;
        own_all(r);
        found = PyObject_GetAttr(value, name_code);
        Py_XDECREF(found);
        return found == NULL ? -1 : found == operand;
    case CHECK_NO_HOOKS:
        return clean(r, tables, step) ? remembered_hooks_absent(&tables[step->table])
                                      : hooks_absent(r, step);
    case CHECK_SAME_OBJECT: return value == r->values[step->into];
    case CHECK_DISTINCT:
        return distinct(r->values, (int32_t *)step->data + 1, *(int32_t *)step->data);
    case CHECK_STORAGES: return storages_hold(r, step);
    case CHECK_STATE:
        if (LIKELY(step->data != NULL && state.ready))
            return state_holds(step->data);
        own_all(r);
        return truth(PyObject_CallNoArgs(operand));
    case CHECK_EMPTY_TABLES:
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(operand); i++)
            if (PyDict_GET_SIZE(PyTuple_GET_ITEM(operand, i)))
                return 0;
        return 1;
    case CHECK_SHAPE: {
        const int64_t *code = step->data;
        int64_t stack[64];
        return shape_holds(code, step->number, r->integers, stack);
    }
    case CHECK_CALL:
        own_all(r);
        return truth(value == NULL ? PyObject_CallNoArgs(operand) : PyObject_CallOneArg(operand, value));
    case CHECK_CALL_MANY:
        return call_with(r, operand, (int32_t *)step->data + 1, *(int32_t *)step->data);
    default: Py_UNREACHABLE();
    }
}

static int run(Program *self, Registers *r, PyObject *const *slots, Py_ssize_t count,
               PyObject *function, PyObject **inputs) {
    const Step *step = self->steps, *end = step + self->step_count;
    for (; step < end; step++) {
        int status;
        switch (step->op) {
        case LOAD_DICT:
        case LOAD_TABLE:
            look(r, self->tables, step->table);
            r->looks[step->table].unsteady = 0;
            continue;
        case LOAD_KEY:
            if (LIKELY(clean(r, self->tables, step) && step->remembered != NULL)) {
                put_borrowed(r, step->into, step->remembered);
                continue;
            }
            status = load_key(r, step);
            break;
        case CHECK_TENSOR:
            if (LIKELY(layout.ready && step->data != NULL && ((TensorSpec *)step->data)->leaf < 0)) {
                status = tensor_holds(step->data, r->values[step->from]);
                break;
            } /* fall through */
        default:
            status = step->op < CHECK_TYPE ? load(r, step, slots, count, function)
                                           : check(r, self->tables, step);
        }
        if (UNLIKELY(status <= 0))
            return status;
    }
    if (UNLIKELY(r->dirty))
        remember(self, r);
    PyObject *list = PyList_New(self->input_count);
    if (list == NULL)
        return -1;
    for (int32_t i = 0; i < self->input_count; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(r->values[self->inputs[i]]));
    *inputs = list;
    return 1;
}

#define STACK_REGISTERS 256

int program_match(PyObject *program, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                  PyObject **inputs) {
    Program *self = (Program *)program;
    PyObject *few_values[STACK_REGISTERS];
    unsigned char few_owned[STACK_REGISTERS];
    int64_t few_integers[STACK_REGISTERS];
    Look few_looks[STACK_REGISTERS];
    Registers r = {few_values, few_owned, few_integers, few_looks, 0, 0, 0, 0, 0};
    void *heap = NULL;
    if (self->registers > STACK_REGISTERS || self->integers > STACK_REGISTERS ||
        self->table_count > STACK_REGISTERS) {
        heap = PyMem_Malloc((size_t)self->registers * (sizeof(PyObject *) + 1) +
                            (size_t)self->integers * sizeof(int64_t) +
                            (size_t)self->table_count * sizeof(Look));
        if (heap == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        r.looks = heap;
        r.integers = (int64_t *)(r.looks + self->table_count);
        r.values = (PyObject **)(r.integers + self->integers);
        r.owned = (unsigned char *)(r.values + self->registers);
    }
    int status = run(self, &r, slots, count, function, inputs);
    if (UNLIKELY(status < 0 && PyErr_ExceptionMatches(PyExc_Exception))) {
        PyErr_Clear(); /* what cannot be loaded does not match */
        status = 0;
    }
    if (r.any_owned) {
        PyObject *type = NULL, *value = NULL, *traceback = NULL;
        if (UNLIKELY(status < 0))
            PyErr_Fetch(&type, &value, &traceback);
        for (int32_t i = 0; i < r.loaded; i++)
            if (r.owned[i])
                Py_DECREF(r.values[i]);
        if (UNLIKELY(status < 0))
            PyErr_Restore(type, value, traceback);
    }
    PyMem_Free(heap);
    return status;
}

/* --------------------------------------------------------------------------------- construction */

static TensorSpec *tensor_spec(PyObject *fields) {
    /* (type, keys, dtype code, device index, requires_grad, leaf or -1, shape, strides or None) */
    PyObject *type, *shape, *strides;
    unsigned long long keys;
    int dtype, index, grad, leaf;
    if (!PyArg_ParseTuple(fields, "O!KiiiiO!O", &PyType_Type, &type, &keys, &dtype, &index, &grad,
                          &leaf, &PyTuple_Type, &shape, &strides))
        return NULL;
    Py_ssize_t n = PyTuple_GET_SIZE(shape);
    TensorSpec *spec = PyMem_Calloc(1, sizeof *spec + (size_t)(2 * n) * sizeof(int64_t));
    if (spec == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    spec->type = (PyTypeObject *)type; /* kept alive by the step's `second` */
    spec->keys = keys;
    spec->dtype = (uint16_t)dtype;
    spec->device_index = (int8_t)index;
    spec->requires_grad = (int8_t)grad;
    spec->leaf = (int8_t)leaf;
    spec->dims = (int32_t)n;
    spec->has_strides = strides != Py_None;
    for (Py_ssize_t i = 0; i < (spec->has_strides ? 2 * n : n); i++) {
        PyObject *size = i < n ? PyTuple_GET_ITEM(shape, i) : PyTuple_GetItem(strides, i - n);
        if (size == NULL || (size != Py_None && (spec->sizes[i] = PyLong_AsLongLong(size)) == -1 &&
                             PyErr_Occurred())) {
            PyMem_Free(spec);
            return NULL;
        }
        if (size == Py_None)
            spec->sizes[i] = OPEN;
    }
    return spec;
}

/* A tuple of ints as an array of int32, preceded by its length if `counted`. */
static int32_t *numbers(PyObject *tuple, Py_ssize_t count) {
    Py_ssize_t n = PyTuple_Check(tuple) ? PyTuple_GET_SIZE(tuple) : -1;
    int32_t *made = n < 0 ? NULL : PyMem_Malloc((size_t)(n + 1) * sizeof *made);
    if (made == NULL) {
        PyErr_SetString(PyExc_TypeError, "a tuple of register numbers is wanted");
        return NULL;
    }
    made[0] = (int32_t)count;
    for (Py_ssize_t i = 0; i < n; i++) {
        made[i + 1] = (int32_t)PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (made[i + 1] == -1 && PyErr_Occurred()) {
            PyMem_Free(made);
            return NULL;
        }
    }
    return made;
}

static int64_t *wide_numbers(PyObject *tuple) {
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a tuple of numbers is wanted");
        return NULL;
    }
    Py_ssize_t n = PyTuple_GET_SIZE(tuple);
    int64_t *made = PyMem_Malloc((size_t)(n + 1) * sizeof *made);
    for (Py_ssize_t i = 0; made != NULL && i < n; i++) {
        made[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (made[i] == -1 && PyErr_Occurred()) {
            PyMem_Free(made);
            return NULL;
        }
    }
    return made;
}

/* Fill one step from (op, from, into, number, operand, second, data, table). */
static int fill(Step *step, PyObject *fields) {
    PyObject *operand, *second, *data;
    if (!PyArg_ParseTuple(fields, "iiiiOOOi", &step->op, &step->from, &step->into, &step->number,
                          &operand, &second, &data, &step->table))
        return -1;
    if (step->op < 0 || step->op >= OP_COUNT) {
        PyErr_SetString(PyExc_ValueError, "no such step");
        return -1;
    }
    step->operand = Py_NewRef(operand);
    step->second = second == Py_None ? NULL : Py_NewRef(second);
    if (data == Py_None)
        return 0;
    switch ((Op)step->op) {
    case CHECK_TENSOR: step->data = tensor_spec(data); break;
    case CHECK_CALL_MANY:
    case CHECK_DISTINCT: step->data = numbers(data, PyTuple_GET_SIZE(data)); break;
    case CHECK_STORAGES: step->data = numbers(data, PyTuple_GET_SIZE(data) / 2); break;
    case CHECK_SHAPE:
    case CHECK_STATE: step->data = wide_numbers(data); break;
    default: PyErr_SetString(PyExc_ValueError, "this step has no data"); break;
    }
    return step->data == NULL ? -1 : 0;
}

static int program_clear(Program *self) {
    Step *steps = self->steps;
    int32_t n = self->step_count;
    self->steps = NULL;
    self->step_count = 0;
    for (int32_t i = 0; i < n; i++) {
        Py_XDECREF(steps[i].operand);
        Py_XDECREF(steps[i].second);
        PyMem_Free(steps[i].data);
    }
    PyMem_Free(steps);
    return 0;
}

static int program_traverse(Program *self, visitproc visit, void *arg) {
    for (int32_t i = 0; i < self->step_count; i++) {
        Py_VISIT(self->steps[i].operand);
        Py_VISIT(self->steps[i].second);
    }
    return 0;
}

static void program_dealloc(Program *self) {
    PyObject_GC_UnTrack(self);
    program_clear(self);
    PyMem_Free(self->inputs);
    PyMem_Free(self->tables);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *steps, *inputs;
    int registers, integers, tables;
    if (!PyArg_ParseTuple(args, "O!iiiO!", &PyList_Type, &steps, &registers, &integers, &tables,
                          &PyTuple_Type, &inputs))
        return NULL;
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    Py_ssize_t n = PyList_GET_SIZE(steps);
    self->registers = registers;
    self->integers = integers;
    self->input_count = (int32_t)PyTuple_GET_SIZE(inputs);
    int32_t *which = numbers(inputs, 0);
    self->inputs = PyMem_Malloc(sizeof(int32_t) * (size_t)(self->input_count + 1));
    self->steps = PyMem_Calloc((size_t)n + 1, sizeof(Step));
    self->tables = PyMem_Calloc((size_t)tables + 1, sizeof(Table));
    self->table_count = tables;
    if (!which || !self->inputs || !self->steps || !self->tables) {
        PyMem_Free(which);
        Py_DECREF(self);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    memcpy(self->inputs, which + 1, sizeof(int32_t) * (size_t)self->input_count);
    PyMem_Free(which);
    for (Py_ssize_t i = 0; i < n; i++) {
        Step *step = &self->steps[i];
        self->step_count = (int32_t)i + 1;
        if (fill(step, PyList_GET_ITEM(steps, i)) < 0) {
            Py_DECREF(self);
            return NULL;
        }
        if (step->op == LOAD_DICT || step->op == LOAD_TABLE) {
            self->tables[step->table].from = step->from;
            self->tables[step->table].own = step->op == LOAD_DICT;
        }
    }
    return (PyObject *)self;
}

static PyObject *program_py_match(PyObject *self, PyObject *args) {
    PyObject *slots, *function = Py_None, *inputs;
    if (!PyArg_ParseTuple(args, "O!|O", &PyTuple_Type, &slots, &function))
        return NULL;
    if (function != Py_None && !PyFunction_Check(function)) {
        PyErr_SetString(PyExc_TypeError, "the root is a Python function");
        return NULL;
    }
    int status = program_match(self, &PyTuple_GET_ITEM(slots, 0), PyTuple_GET_SIZE(slots),
                               function == Py_None ? NULL : function, &inputs);
    if (status < 0)
        return NULL;
    return status ? inputs : Py_NewRef(Py_None);
}

/* Time `repeats` evaluations; nanoseconds each. For tests of the promised cost. */
static PyObject *program_py_time(PyObject *self, PyObject *args) {
    PyObject *slots, *function;
    long repeats;
    if (!PyArg_ParseTuple(args, "O!Ol", &PyTuple_Type, &slots, &function, &repeats))
        return NULL;
    struct timespec start, end;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &start);
    for (long i = 0; i < repeats; i++) {
        PyObject *inputs;
        int status = program_match(self, &PyTuple_GET_ITEM(slots, 0), PyTuple_GET_SIZE(slots),
                                   function == Py_None ? NULL : function, &inputs);
        if (status <= 0)
            return status < 0 ? NULL : Py_NewRef(Py_None);
        Py_DECREF(inputs);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
    double spent = (double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec);
    return PyFloat_FromDouble(spent / (double)repeats);
}

static PyMethodDef program_methods[] = {
    {"match", program_py_match, METH_VARARGS, "match(slots, function=None) -> list | None"},
    {"time", program_py_time, METH_VARARGS, "time(slots, function, repeats) -> nanoseconds each"},
    {NULL, NULL, 0, NULL},
};

HIDDEN PyTypeObject ProgramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo._fast.Program",
    .tp_basicsize = sizeof(Program),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_methods = program_methods,
};

/* ---------------------------------------------------------------------------------- calibration */

static PyObject *symbol(PyObject *module, PyObject *args) {
    const char *library, *name;
    if (!PyArg_ParseTuple(args, "ss", &library, &name))
        return NULL;
    void *handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    void *found = handle == NULL ? NULL : dlsym(handle, name);
    if (handle != NULL)
        dlclose(handle); /* the library stays loaded: torch itself holds it */
    return PyLong_FromVoidPtr(found);
}

static PyObject *set_layout(PyObject *module, PyObject *args) {
    PyObject *tensor, *parameter;
    unsigned long long grad;
    layout.ready = 0;
    if (!PyArg_ParseTuple(args, "iiiiiiiiiiiKO!O!", &layout.handle, &layout.keys, &layout.dtype,
                          &layout.device_index, &layout.dims, &layout.sizes, &layout.strides,
                          &layout.inline_dims, &layout.offset, &layout.storage, &layout.autograd,
                          &grad, &PyType_Type, &tensor, &PyType_Type, &parameter))
        return NULL;
    *(void **)&layout.requires_grad = (void *)(uintptr_t)grad;
    Py_XSETREF(layout.tensor, (PyTypeObject *)Py_NewRef(tensor));
    Py_XSETREF(layout.parameter, (PyTypeObject *)Py_NewRef(parameter));
    layout.ready = grad != 0;
    Py_RETURN_NONE;
}

static PyObject *clear_calibration(PyObject *module, PyObject *ignored) {
    layout.ready = state.ready = 0;
    Py_RETURN_NONE;
}

static PyObject *set_state(PyObject *module, PyObject *args) {
    unsigned long long f[16];
    state.ready = 0;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKKKKKKKK", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7,
                          f + 8, f + 9, f + 10, f + 11, f + 12, f + 13, f + 14, f + 15))
        return NULL;
    void **targets[16] = {
        (void **)&state.plain_bool[0], (void **)&state.plain_bool[1], (void **)&state.autocast,
        (void **)&state.autocast_dtype, (void **)&state.cache, (void **)&state.default_dtype,
        &state.context, (void **)&state.context_bool[0], (void **)&state.context_bool[1],
        (void **)&state.context_bool[2], (void **)&state.precision, (void **)&state.threads,
        (void **)&state.layers, (void **)&state.overrides, (void **)&state.function_modes,
        (void **)&state.dispatch_modes,
    };
    int all = 1;
    for (int i = 0; i < 16; i++) {
        *targets[i] = (void *)(uintptr_t)f[i];
        all &= f[i] != 0;
    }
    if (all) /* the context is what a function returns a reference to */
        state.context = ((void *(*)(void))state.context)();
    state.ready = all;
    return PyBool_FromLong(all);
}

static PyObject *current_state(PyObject *module, PyObject *ignored) {
    if (!state.ready)
        Py_RETURN_NONE;
    int64_t now[S_COUNT];
    read_state(now);
    PyObject *tuple = PyTuple_New(S_COUNT);
    for (int i = 0; tuple != NULL && i < S_COUNT; i++) {
        PyObject *number = PyLong_FromLongLong(now[i]);
        if (number == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, number);
    }
    return tuple;
}

static PyObject *set_same_constant(PyObject *module, PyObject *function) {
    Py_XSETREF(same_constant, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"symbol", symbol, METH_VARARGS, "symbol(library, name) -> address or 0"},
    {"set_layout", set_layout, METH_VARARGS, "Where a tensor keeps what; see guards.calibrate."},
    {"set_state", set_state, METH_VARARGS, "Addresses of torch's state functions."},
    {"current_state", current_state, METH_NOARGS, "The state as numbers, None if uncalibrated."},
    {"clear_calibration", clear_calibration, METH_NOARGS, "Ask Python for everything again."},
    {"set_same_constant", set_same_constant, METH_O, "The equality of constants."},
    {NULL, NULL, 0, NULL},
};

static int add_names(PyObject *module, const char *attribute, const char *const *names, int count) {
    PyObject *dict = PyDict_New();
    for (int i = 0; dict != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLong(i);
        if (number == NULL || PyDict_SetItemString(dict, names[i], number) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(number);
    }
    int status = dict == NULL ? -1 : PyModule_AddObjectRef(module, attribute, dict);
    Py_XDECREF(dict);
    return status;
}

int program_ready(PyObject *module) {
    static const char *const tables[4] = {"_forward_hooks", "_forward_pre_hooks", "_backward_hooks",
                                          "_backward_pre_hooks"};
    for (int i = 0; i < 4; i++)
        if ((hook_tables[i] = PyUnicode_InternFromString(tables[i])) == NULL)
            return -1;
    name_size = PyUnicode_InternFromString("size");
    name_stride = PyUnicode_InternFromString("stride");
    name_offset = PyUnicode_InternFromString("storage_offset");
    name_code = PyUnicode_InternFromString("__code__");
    name_builtins = PyUnicode_InternFromString("__builtins__");
    if (!name_size || !name_stride || !name_offset || !name_code || !name_builtins)
        return -1;
    if (PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &ProgramType) < 0)
        return -1;
    if (add_names(module, "STEPS", OP_NAMES, OP_COUNT) < 0)
        return -1;
    return add_names(module, "POSTFIX", POSTFIX_NAMES, X_COUNT);
}
