/* Where torch keeps a tensor's metadata and the state of thread and process.
 *
 * dynamo.guards.calibrate finds out offsets and addresses and sets them here; without them nothing is
 * read in place and the guards ask Python.
 */
#include "_guards.h"

#include <dlfcn.h>

Layout layout;

/* Functions of torch that tell the state of thread and process, in the order of state_names. */
typedef enum {
    S_GRAD, S_INFERENCE, S_AUTOCAST_CPU, S_AUTOCAST_CUDA, S_DTYPE_CPU, S_DTYPE_CUDA, S_CACHE,
    S_DEFAULT_DTYPE, S_DETERMINISTIC, S_WARN_ONLY, S_FILL, S_PRECISION, S_THREADS,
    S_LAYERS, S_OVERRIDES, S_FUNCTION_MODES, S_DISPATCH_MODES, S_FORWARD_LEVEL, S_COUNT
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
    PyObject *forward_ad;            /* the namespace of torch.autograd.forward_ad */
} state;

static PyObject *name_level;

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
    PyObject *level = PyDict_GetItemWithError(state.forward_ad, name_level); /* -1 outside of all */
    now[S_FORWARD_LEVEL] = level == NULL || !PyLong_CheckExact(level) ? 1 : PyLong_AsLong(level) + 1;
}

int state_holds(const int64_t *want) {
    int64_t now[S_COUNT];
    read_state(now);
    return memcmp(now, want, sizeof now) == 0;
}

int state_is_readable(void) { return state.ready; }

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
    if (!PyArg_ParseTuple(args, "iiiiiiiiiiiiKO!O!", &layout.handle, &layout.keys, &layout.dtype,
                          &layout.device_index, &layout.dims, &layout.sizes, &layout.strides,
                          &layout.inline_dims, &layout.offset, &layout.storage, &layout.autograd,
                          &layout.required, &grad, &PyType_Type, &tensor, &PyType_Type, &parameter))
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
    unsigned long long f[17];
    state.ready = 0;
    if (!PyArg_ParseTuple(args, "KKKKKKKKKKKKKKKKK", f, f + 1, f + 2, f + 3, f + 4, f + 5, f + 6, f + 7,
                          f + 8, f + 9, f + 10, f + 11, f + 12, f + 13, f + 14, f + 15, f + 16))
        return NULL;
    if (name_level == NULL && (name_level = PyUnicode_InternFromString("_current_level")) == NULL)
        return NULL;
    void **targets[17] = {
        (void **)&state.plain_bool[0], (void **)&state.plain_bool[1], (void **)&state.autocast,
        (void **)&state.autocast_dtype, (void **)&state.cache, (void **)&state.default_dtype,
        &state.context, (void **)&state.context_bool[0], (void **)&state.context_bool[1],
        (void **)&state.context_bool[2], (void **)&state.precision, (void **)&state.threads,
        (void **)&state.layers, (void **)&state.overrides, (void **)&state.function_modes,
        (void **)&state.dispatch_modes, (void **)&state.forward_ad,
    };
    int all = 1;
    for (int i = 0; i < 17; i++) {
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

static PyMethodDef functions[] = {
    {"symbol", symbol, METH_VARARGS, "symbol(library, name) -> address or 0"},
    {"set_layout", set_layout, METH_VARARGS, "Where a tensor keeps what; see guards.calibrate."},
    {"set_state", set_state, METH_VARARGS, "Addresses of torch's state functions."},
    {"current_state", current_state, METH_NOARGS, "The state as numbers, None if uncalibrated."},
    {"clear_calibration", clear_calibration, METH_NOARGS, "Ask Python for everything again."},
    {NULL, NULL, 0, NULL},
};

int layout_ready(PyObject *module) { return PyModule_AddFunctions(module, functions); }
