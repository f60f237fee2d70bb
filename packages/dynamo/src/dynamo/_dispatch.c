/* From a call of the user's function to the compiled entry that serves it.
 *
 * The same classes as dynamo.guards.dispatch, which is the reference for every answer given here.
 * CompiledFunction is called through vectorcall: positional calls that name every argument use the
 * caller's array as the argument slots, all others are bound as Python binds them. A call that
 * Python would refuse is passed on to the original function, which raises Python's own error.
 */
#include "_fast.h"

#include <stddef.h>

/* ---------------------------------------------------------------------------------------- Entry */

struct Entry {
    PyObject_HEAD
    PyObject *program; /* dynamo.guards.GuardProgram */
    PyObject *native;  /* its Program, or NULL: then program.match is called */
    PyObject *graph;
    PyObject *code;
    PyObject *function; /* the last one made from code */
    PyObject *weakrefs;
    Py_ssize_t pick; /* -1: the whole tuple */
    Py_ssize_t hits;
};

static PyTypeObject EntryType;
static PyObject *name_native, *name_code_attr, *name_match;
static PyObject *bind_in_python, *run_original;

Py_ssize_t slot_count(PyCodeObject *code) {
    return code->co_argcount + code->co_kwonlyargcount + !!(code->co_flags & CO_VARARGS) +
           !!(code->co_flags & CO_VARKEYWORDS);
}

static int entry_init(Entry *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"program", "graph", "pick", "code", NULL};
    PyObject *program, *graph = Py_None, *pick = Py_None, *code = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|$OOO", names, &program, &graph, &pick, &code))
        return -1;
    if ((graph == Py_None) == (code == Py_None)) {
        PyErr_SetString(PyExc_TypeError, "an entry has either a graph or a code object");
        return -1;
    }
    Py_ssize_t index = -1;
    if (pick != Py_None && (index = PyLong_AsSsize_t(pick)) < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "pick is an index from the front");
        return -1;
    }
    if (code != Py_None) {
        PyObject *root = PyObject_GetAttr(program, name_code_attr);
        if (root == NULL)
            return -1;
        int fits = PyCode_Check(code) && PyCode_Check(root) &&
                   ((PyCodeObject *)code)->co_argcount == slot_count((PyCodeObject *)root) + 1;
        Py_DECREF(root);
        if (!fits) {
            PyErr_SetString(PyExc_TypeError,
                            "the code object of an entry takes the argument slots and the inputs");
            return -1;
        }
    }
    if (code != Py_None && hook_never((PyCodeObject *)code) < 0)
        return -1;
    PyObject *native = PyObject_GetAttr(program, name_native);
    if (native == NULL)
        return -1;
    if (Py_TYPE(native) != &ProgramType)
        Py_CLEAR(native);
    Py_XSETREF(self->program, Py_NewRef(program));
    Py_XSETREF(self->native, native);
    Py_XSETREF(self->graph, graph == Py_None ? NULL : Py_NewRef(graph));
    Py_XSETREF(self->code, code == Py_None ? NULL : Py_NewRef(code));
    Py_CLEAR(self->function);
    self->pick = index;
    self->hits = 0;
    return 0;
}

static int entry_traverse(Entry *self, visitproc visit, void *arg) {
    Py_VISIT(self->program);
    Py_VISIT(self->native);
    Py_VISIT(self->graph);
    Py_VISIT(self->code);
    Py_VISIT(self->function);
    return 0;
}

static int entry_clear(Entry *self) {
    Py_CLEAR(self->program);
    Py_CLEAR(self->native);
    Py_CLEAR(self->graph);
    Py_CLEAR(self->code);
    Py_CLEAR(self->function);
    return 0;
}

static void entry_dealloc(Entry *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    entry_clear(self);
    Py_TYPE(self)->tp_free(self);
}

PyCodeObject *entry_code(PyObject *entry) { return (PyCodeObject *)((Entry *)entry)->code; }

static int entry_match(Entry *self, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                       PyObject **inputs) {
    if (LIKELY(self->native != NULL))
        return program_match(self->native, slots, count, function, inputs);
    PyObject *tuple = PyTuple_New(count);
    if (tuple == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(slots[i]));
    PyObject *found = PyObject_CallMethodObjArgs(self->program, name_match, tuple,
                                                 function ? function : Py_None, NULL);
    Py_DECREF(tuple);
    if (found == NULL)
        return -1;
    if (found == Py_None) {
        Py_DECREF(found);
        return 0;
    }
    *inputs = found;
    return 1;
}

/* The entry's code object with the globals and closure of `function`; a new reference. */
static PyObject *function_for(Entry *self, PyObject *function) {
    PyObject *globals = PyFunction_GET_GLOBALS(function);
    PyCodeObject *code = (PyCodeObject *)self->code;
    PyObject *closure = code->co_nfreevars ? PyFunction_GET_CLOSURE(function) : NULL;
    PyObject *made = self->function;
    if (LIKELY(made != NULL && PyFunction_GET_GLOBALS(made) == globals &&
               PyFunction_GET_CLOSURE(made) == closure))
        return Py_NewRef(made);
    made = PyFunction_New(self->code, globals);
    if (made == NULL)
        return NULL;
    if (closure != NULL && PyFunction_SetClosure(made, closure) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    Py_XSETREF(self->function, Py_NewRef(made));
    return made;
}

PyObject *entry_run(PyObject *entry, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                    PyObject *inputs) {
    Entry *self = (Entry *)entry;
    if (self->graph != NULL) {
        PyObject *result = PyObject_CallOneArg(self->graph, inputs);
        if (result == NULL || self->pick < 0)
            return result;
        PyObject *item;
        if (LIKELY(PyTuple_CheckExact(result) && self->pick < PyTuple_GET_SIZE(result)))
            item = Py_NewRef(PyTuple_GET_ITEM(result, self->pick));
        else
            item = PySequence_GetItem(result, self->pick);
        Py_DECREF(result);
        return item;
    }
    PyObject *made = function_for(self, function);
    if (made == NULL)
        return NULL;
    PyObject *few[16], **all = few;
    if (count + 2 > 16 && (all = PyMem_Malloc((size_t)(count + 2) * sizeof *all)) == NULL) {
        Py_DECREF(made);
        return PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; i < count; i++)
        all[i + 1] = slots[i];
    all[count + 1] = inputs;
    PyObject *result = PyObject_Vectorcall(made, all + 1, (size_t)(count + 1) |
                                           PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
    if (all != few)
        PyMem_Free(all);
    Py_DECREF(made);
    return result;
}

static int slots_argument(PyObject *function, PyObject *slots) {
    if (!PyFunction_Check(function) || !PyTuple_Check(slots)) {
        PyErr_SetString(PyExc_TypeError, "a Python function and the tuple of its argument slots");
        return -1;
    }
    return 0;
}

static PyObject *entry_py_run(PyObject *self, PyObject *args) {
    PyObject *function, *slots, *inputs;
    if (!PyArg_ParseTuple(args, "OOO!", &function, &slots, &PyList_Type, &inputs) ||
        slots_argument(function, slots) < 0)
        return NULL;
    return entry_run(self, &PyTuple_GET_ITEM(slots, 0), PyTuple_GET_SIZE(slots), function, inputs);
}

static PyObject *entry_py_function_for(PyObject *self, PyObject *function) {
    if (!PyFunction_Check(function) || ((Entry *)self)->code == NULL) {
        PyErr_SetString(PyExc_TypeError, "an entry of code, and a Python function");
        return NULL;
    }
    return function_for((Entry *)self, function);
}

static PyObject *or_none(PyObject *found) { return Py_NewRef(found == NULL ? Py_None : found); }
static PyObject *entry_get_program(Entry *self, void *c) { return or_none(self->program); }
static PyObject *entry_get_graph(Entry *self, void *c) { return or_none(self->graph); }
static PyObject *entry_get_code(Entry *self, void *c) { return or_none(self->code); }
static PyObject *entry_get_pick(Entry *self, void *c) {
    return self->pick < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(self->pick);
}
static PyObject *entry_get_hits(Entry *self, void *c) { return PyLong_FromSsize_t(self->hits); }

static PyGetSetDef entry_getset[] = {
    {"program", (getter)entry_get_program, NULL, NULL, NULL},
    {"graph", (getter)entry_get_graph, NULL, NULL, NULL},
    {"code", (getter)entry_get_code, NULL, NULL, NULL},
    {"pick", (getter)entry_get_pick, NULL, NULL, NULL},
    {"hits", (getter)entry_get_hits, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef entry_methods[] = {
    {"run", entry_py_run, METH_VARARGS, "run(function, slots, inputs) -> the call's result"},
    {"function_for", entry_py_function_for, METH_O, "The code with a function's globals and closure."},
    {NULL, NULL, 0, NULL},
};
static PyTypeObject EntryType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo._fast.Entry",
    .tp_doc = "One compiled version; see dynamo.guards.dispatch.Entry.",
    .tp_basicsize = sizeof(Entry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)entry_init,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_weaklistoffset = offsetof(Entry, weakrefs),
    .tp_methods = entry_methods,
    .tp_getset = entry_getset,
};

/* ------------------------------------------------------------------------------------ CodeCache */

typedef struct {
    PyObject_HEAD
    PyObject *code;
    PyObject *miss;    /* NULL: run the function itself */
    PyObject *entries; /* a tuple, replaced and never changed */
    PyObject *weakrefs;
} CodeCache;

static int code_cache_init(CodeCache *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"code", "miss", NULL};
    PyObject *code, *miss = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|O", names, &PyCode_Type, &code, &miss))
        return -1;
    PyObject *entries = PyTuple_New(0);
    if (entries == NULL)
        return -1;
    Py_XSETREF(self->entries, entries);
    Py_XSETREF(self->code, Py_NewRef(code));
    Py_XSETREF(self->miss, miss == Py_None ? NULL : Py_NewRef(miss));
    return 0;
}

static int code_cache_traverse(CodeCache *self, visitproc visit, void *arg) {
    Py_VISIT(self->code);
    Py_VISIT(self->miss);
    Py_VISIT(self->entries);
    return 0;
}

static int code_cache_clear(CodeCache *self) {
    Py_CLEAR(self->code);
    Py_CLEAR(self->miss);
    Py_CLEAR(self->entries);
    return 0;
}

static void code_cache_dealloc(CodeCache *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    code_cache_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* The entries with the one at `index` left out and `first` (may be NULL) put before them. */
static PyObject *rearranged(PyObject *entries, Py_ssize_t index, PyObject *first) {
    Py_ssize_t n = PyTuple_GET_SIZE(entries), left_out = index >= 0, at = 0;
    PyObject *made = PyTuple_New(n - left_out + (first != NULL));
    if (made == NULL)
        return NULL;
    if (first != NULL)
        PyTuple_SET_ITEM(made, at++, Py_NewRef(first));
    for (Py_ssize_t i = 0; i < n; i++)
        if (i != index)
            PyTuple_SET_ITEM(made, at++, Py_NewRef(PyTuple_GET_ITEM(entries, i)));
    return made;
}

int cache_find(PyObject *cache, PyObject *const *slots, Py_ssize_t count, PyObject *function,
               PyObject **entry, PyObject **inputs) {
    CodeCache *self = (CodeCache *)cache;
    PyObject *entries = self->entries;
    Py_ssize_t n = PyTuple_GET_SIZE(entries);
    if (n == 0)
        return 0;
    Py_INCREF(entries); /* a guard may run Python that changes the cache */
    int status = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        Entry *tried = (Entry *)PyTuple_GET_ITEM(entries, i);
        status = entry_match(tried, slots, count, function, inputs);
        if (status == 0)
            continue;
        if (status > 0) {
            tried->hits++;
            *entry = Py_NewRef((PyObject *)tried);
            if (i > 0 && self->entries == entries) {
                PyObject *moved = rearranged(entries, i, (PyObject *)tried);
                if (moved == NULL)
                    PyErr_Clear(); /* only an order was lost */
                else
                    Py_SETREF(self->entries, moved);
            }
        }
        break;
    }
    Py_DECREF(entries);
    return status;
}

static PyObject *cache_call(CodeCache *self, PyObject *function, PyObject *const *slots,
                            Py_ssize_t count) {
    PyObject *entry, *inputs, *result = NULL;
    int was = hook_alone(); /* compiled code says itself which of its calls are hooked */
    int status = cache_find((PyObject *)self, slots, count, function, &entry, &inputs);
    if (LIKELY(status > 0)) {
        result = entry_run(entry, slots, count, function, inputs);
        Py_DECREF(inputs);
        Py_DECREF(entry);
        goto done;
    }
    if (status < 0) {
        result = NULL;
        goto done;
    }
    PyObject *tuple = PyTuple_New(count);
    if (tuple == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(slots[i]));
    PyObject *miss = Py_XNewRef(self->miss);
    if (miss == NULL)
        result = PyObject_CallFunctionObjArgs(run_original, function, tuple, NULL);
    else
        result = PyObject_CallFunctionObjArgs(miss, (PyObject *)self, function, tuple, NULL);
    Py_XDECREF(miss);
    Py_DECREF(tuple);
done:
    hook_shared(was);
    return result;
}

static PyObject *code_cache_add(CodeCache *self, PyObject *entry) {
    if (Py_TYPE(entry) != &EntryType) {
        PyErr_SetString(PyExc_TypeError, "an Entry is wanted");
        return NULL;
    }
    PyObject *made = rearranged(self->entries, -1, entry);
    if (made == NULL)
        return NULL;
    Py_SETREF(self->entries, made);
    Py_RETURN_NONE;
}

static PyObject *code_cache_remove(CodeCache *self, PyObject *entry) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->entries); i++)
        if (PyTuple_GET_ITEM(self->entries, i) == entry) {
            PyObject *made = rearranged(self->entries, i, NULL);
            if (made == NULL)
                return NULL;
            Py_SETREF(self->entries, made);
            break;
        }
    Py_RETURN_NONE;
}

static PyObject *code_cache_forget(CodeCache *self, PyObject *ignored) {
    PyObject *made = PyTuple_New(0);
    if (made == NULL)
        return NULL;
    Py_SETREF(self->entries, made);
    Py_RETURN_NONE;
}

static PyObject *code_cache_lookup(PyObject *self, PyObject *args) {
    PyObject *function, *slots, *entry, *inputs;
    if (!PyArg_ParseTuple(args, "OO", &function, &slots) || slots_argument(function, slots) < 0)
        return NULL;
    int status = cache_find(self, &PyTuple_GET_ITEM(slots, 0), PyTuple_GET_SIZE(slots), function,
                            &entry, &inputs);
    if (status <= 0)
        return status < 0 ? NULL : Py_NewRef(Py_None);
    PyObject *pair = PyTuple_Pack(2, entry, inputs);
    Py_DECREF(entry);
    Py_DECREF(inputs);
    return pair;
}

static PyObject *code_cache_py_call(PyObject *self, PyObject *args) {
    PyObject *function, *slots;
    if (!PyArg_ParseTuple(args, "OO", &function, &slots) || slots_argument(function, slots) < 0)
        return NULL;
    return cache_call((CodeCache *)self, function, &PyTuple_GET_ITEM(slots, 0),
                      PyTuple_GET_SIZE(slots));
}

static PyObject *code_cache_get_code(CodeCache *self, void *c) { return or_none(self->code); }
static PyObject *code_cache_get_miss(CodeCache *self, void *c) { return or_none(self->miss); }
static PyObject *code_cache_get_entries(CodeCache *self, void *c) { return or_none(self->entries); }
static int code_cache_set_miss(CodeCache *self, PyObject *value, void *c) {
    Py_XSETREF(self->miss, value == NULL || value == Py_None ? NULL : Py_NewRef(value));
    return 0;
}

static PyGetSetDef code_cache_getset[] = {
    {"code", (getter)code_cache_get_code, NULL, NULL, NULL},
    {"miss", (getter)code_cache_get_miss, (setter)code_cache_set_miss, NULL, NULL},
    {"entries", (getter)code_cache_get_entries, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyMethodDef code_cache_methods[] = {
    {"add", (PyCFunction)code_cache_add, METH_O, "Try an entry from now on, before all others."},
    {"remove", (PyCFunction)code_cache_remove, METH_O, "Forget an entry."},
    {"clear", (PyCFunction)code_cache_forget, METH_NOARGS, "Forget all entries."},
    {"lookup", code_cache_lookup, METH_VARARGS, "lookup(function, slots) -> (entry, inputs) | None"},
    {"call", code_cache_py_call, METH_VARARGS, "call(function, slots) -> the call's result"},
    {NULL, NULL, 0, NULL},
};
HIDDEN PyTypeObject CodeCacheType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo._fast.CodeCache",
    .tp_doc = "The entries of one code object; see dynamo.guards.dispatch.CodeCache.",
    .tp_basicsize = sizeof(CodeCache),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = (initproc)code_cache_init,
    .tp_dealloc = (destructor)code_cache_dealloc,
    .tp_traverse = (traverseproc)code_cache_traverse,
    .tp_clear = (inquiry)code_cache_clear,
    .tp_weaklistoffset = offsetof(CodeCache, weakrefs),
    .tp_methods = code_cache_methods,
    .tp_getset = code_cache_getset,
};

/* ----------------------------------------------------------------------------- CompiledFunction */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;
    CodeCache *cache;
    PyObject *dict;
    PyObject *weakrefs;
} CompiledFunction;

/* All that is not `f(a, b, ..)` with every argument given by position. */
static PyObject *call_bound(CompiledFunction *self, PyObject *const *args, Py_ssize_t nargs,
                            PyObject *keywords) {
    PyObject *function = self->function, *defaults = PyFunction_GET_DEFAULTS(function);
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(function);
    Py_ssize_t positional = code->co_argcount, missing = positional - nargs;
    if (keywords == NULL && missing >= 0 && positional <= 32 && !code->co_kwonlyargcount &&
        !(code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) && defaults != NULL &&
        missing <= PyTuple_GET_SIZE(defaults)) { /* only defaults are missing */
        PyObject *slots[32];
        Py_ssize_t first = PyTuple_GET_SIZE(defaults) - missing;
        for (Py_ssize_t i = 0; i < nargs; i++)
            slots[i] = args[i];
        for (Py_ssize_t i = 0; i < missing; i++)
            slots[nargs + i] = PyTuple_GET_ITEM(defaults, first + i);
        Py_INCREF(defaults);
        PyObject *result = cache_call(self->cache, function, slots, positional);
        Py_DECREF(defaults);
        return result;
    }
    Py_ssize_t named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (!(code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) && nargs <= positional &&
        positional + code->co_kwonlyargcount <= 32) {
        /* keywords without *args and **kwargs: by interned names, else let Python decide */
        Py_ssize_t count = positional + code->co_kwonlyargcount;
        PyObject *slots[32] = {NULL}, *keyword_defaults = PyFunction_GET_KW_DEFAULTS(function);
        for (Py_ssize_t i = 0; i < nargs; i++)
            slots[i] = args[i];
        int known = 1;
        for (Py_ssize_t k = 0; k < named && known; k++) {
            PyObject *name = PyTuple_GET_ITEM(keywords, k);
            known = 0;
            for (Py_ssize_t i = code->co_posonlyargcount; i < count; i++)
                if (PyTuple_GET_ITEM(code->co_localsplusnames, i) == name) {
                    known = slots[i] == NULL;
                    slots[i] = args[nargs + k];
                    break;
                }
        }
        Py_ssize_t n_defaults = defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults);
        for (Py_ssize_t i = 0; i < count && known; i++) {
            if (slots[i] != NULL)
                continue;
            if (i < positional) {
                Py_ssize_t from_end = i - positional + n_defaults;
                if ((known = from_end >= 0))
                    slots[i] = PyTuple_GET_ITEM(defaults, from_end);
            } else {
                PyObject *name = PyTuple_GET_ITEM(code->co_localsplusnames, i);
                slots[i] = keyword_defaults == NULL ? NULL
                                                    : PyDict_GetItemWithError(keyword_defaults, name);
                known = slots[i] != NULL;
            }
        }
        if (known) {
            for (Py_ssize_t i = 0; i < count; i++)
                Py_INCREF(slots[i]); /* defaults may be replaced meanwhile */
            PyObject *result = cache_call(self->cache, function, slots, count);
            for (Py_ssize_t i = 0; i < count; i++)
                Py_DECREF(slots[i]);
            return result;
        }
        PyErr_Clear();
    }
    PyObject *tuple = PyTuple_New(nargs), *dict = PyDict_New(), *slots = NULL, *result = NULL;
    if (tuple == NULL || dict == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < nargs; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(args[i]));
    for (Py_ssize_t k = 0; k < named; k++)
        if (PyDict_SetItem(dict, PyTuple_GET_ITEM(keywords, k), args[nargs + k]) < 0)
            goto done;
    slots = PyObject_CallFunctionObjArgs(bind_in_python, function, tuple, dict, NULL);
    if (slots == NULL)
        goto done;
    if (slots == Py_None) /* Python refuses it too, with its own words */
        result = PyObject_Call(function, tuple, dict);
    else
        result = cache_call(self->cache, function, &PyTuple_GET_ITEM(slots, 0),
                            PyTuple_GET_SIZE(slots));
done:
    Py_XDECREF(tuple);
    Py_XDECREF(dict);
    Py_XDECREF(slots);
    return result;
}

static PyObject *compiled_vectorcall(PyObject *callable, PyObject *const *args, size_t flags,
                                     PyObject *keywords) {
    CompiledFunction *self = (CompiledFunction *)callable;
    PyCodeObject *code = (PyCodeObject *)PyFunction_GET_CODE(self->function);
    if (UNLIKELY((PyObject *)code != self->cache->code)) /* the user replaced it */
        return PyObject_Vectorcall(self->function, args, flags, keywords);
    Py_ssize_t nargs = PyVectorcall_NARGS(flags);
    if (LIKELY(nargs == code->co_argcount && !code->co_kwonlyargcount &&
               !(code->co_flags & (CO_VARARGS | CO_VARKEYWORDS)) &&
               (keywords == NULL || PyTuple_GET_SIZE(keywords) == 0)))
        return cache_call(self->cache, self->function, args, nargs);
    return call_bound(self, args, nargs, keywords);
}

static PyObject *compiled_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "cache", NULL};
    PyObject *function, *cache;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!", names, &PyFunction_Type, &function,
                                     &CodeCacheType, &cache))
        return NULL;
    if (PyFunction_GET_CODE(function) != ((CodeCache *)cache)->code) {
        PyErr_SetString(PyExc_TypeError, "the cache belongs to another code object");
        return NULL;
    }
    CompiledFunction *self = (CompiledFunction *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = compiled_vectorcall;
    self->function = Py_NewRef(function);
    self->cache = (CodeCache *)Py_NewRef(cache);
    return (PyObject *)self;
}

static int compiled_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    PyObject *functools = PyImport_ImportModule("functools");
    if (functools == NULL)
        return -1;
    PyObject *done = PyObject_CallMethod(functools, "update_wrapper", "OO", self,
                                         ((CompiledFunction *)self)->function);
    Py_DECREF(functools);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

static int compiled_traverse(CompiledFunction *self, visitproc visit, void *arg) {
    Py_VISIT(self->function);
    Py_VISIT(self->cache);
    Py_VISIT(self->dict);
    return 0;
}

static int compiled_clear(CompiledFunction *self) {
    /* function and cache stay: a call during collection must find them; the cycle is broken by
     * the dict, the function's own and the cache's fields */
    Py_CLEAR(self->dict);
    return 0;
}

static void compiled_dealloc(CompiledFunction *self) {
    PyObject_GC_UnTrack(self);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs((PyObject *)self);
    Py_CLEAR(self->dict);
    Py_CLEAR(self->function);
    Py_CLEAR(self->cache);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *compiled_bind(PyObject *self, PyObject *instance, PyObject *owner) {
    if (instance == NULL || instance == Py_None)
        return Py_NewRef(self);
    return PyMethod_New(self, instance);
}

static PyObject *compiled_repr(CompiledFunction *self) {
    return PyUnicode_FromFormat("<compiled %R>", self->function);
}

static PyObject *compiled_get_cache(CompiledFunction *self, void *c) {
    return Py_NewRef((PyObject *)self->cache);
}

static PyObject *compiled_copy(PyObject *self, PyObject *memo) { return Py_NewRef(self); }

/* By name, as a function: what is found under the name when it is loaded. */
static PyObject *compiled_reduce(CompiledFunction *self, PyObject *ignored) {
    return PyObject_GetAttrString(self->function, "__qualname__");
}

static PyMethodDef compiled_methods[] = {
    {"__copy__", compiled_copy, METH_NOARGS, "Itself, as of a function."},
    {"__deepcopy__", compiled_copy, METH_O, "Itself, as of a function."},
    {"__reduce__", (PyCFunction)compiled_reduce, METH_NOARGS, "By name, as a function."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef compiled_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL},
    {"cache", (getter)compiled_get_cache, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyTypeObject CompiledFunctionType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo._fast.CompiledFunction",
    .tp_basicsize = sizeof(CompiledFunction),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_BASETYPE | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = compiled_new,
    .tp_init = compiled_init,
    .tp_dealloc = (destructor)compiled_dealloc,
    .tp_traverse = (traverseproc)compiled_traverse,
    .tp_clear = (inquiry)compiled_clear,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(CompiledFunction, vectorcall),
    .tp_descr_get = compiled_bind,
    .tp_repr = (reprfunc)compiled_repr,
    .tp_dictoffset = offsetof(CompiledFunction, dict),
    .tp_weaklistoffset = offsetof(CompiledFunction, weakrefs),
    .tp_methods = compiled_methods,
    .tp_getset = compiled_getset,
};

static PyObject *set_binding(PyObject *module, PyObject *args) {
    PyObject *bind, *original;
    if (!PyArg_ParseTuple(args, "OO", &bind, &original))
        return NULL;
    Py_XSETREF(bind_in_python, Py_NewRef(bind));
    Py_XSETREF(run_original, Py_NewRef(original));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_binding", set_binding, METH_VARARGS, "The Python forms of bind and run_original."},
    {NULL, NULL, 0, NULL},
};

int dispatch_ready(PyObject *module) {
    name_native = PyUnicode_InternFromString("native");
    name_code_attr = PyUnicode_InternFromString("code");
    name_match = PyUnicode_InternFromString("match");
    if (!name_native || !name_code_attr || !name_match)
        return -1;
    if (PyModule_AddFunctions(module, functions) < 0 || PyModule_AddType(module, &EntryType) < 0 ||
        PyModule_AddType(module, &CodeCacheType) < 0)
        return -1;
    return PyModule_AddType(module, &CompiledFunctionType);
}
