/* The frame evaluator of PEP 523, on only while a FrameHook calls something in this thread.
 *
 * A frame that is about to start is looked up by its code object (co_extra). Unknown code is asked
 * of the hook's callback once: it answers with a CodeCache or says that the code is of no interest.
 * When an entry matches, the frame is seated anew on the entry's code object, in place: at its start
 * only the argument slots are filled, and the entry's code has the same ones. CPython then runs and
 * clears the frame by its own rules. Where the data stack has no room for that, and for graphs, the
 * result is computed by a call and the frame returns it.
 *
 * Generators, coroutines, module and class bodies, and frames under a tracer or profiler run as they
 * are. An evaluator that was there before (a debugger's, torch's) runs every frame that we don't,
 * and is put back when the last thread is done.
 */
#define Py_BUILD_CORE 1
#include "_fast.h"

#include <stddef.h>

#if PY_VERSION_HEX >= 0x030c0000
#undef _PyGC_FINALIZED /* defined by both headers */
#endif
#include "internal/pycore_frame.h"

#if PY_VERSION_HEX >= 0x030d0000
#define FRAME_CODE(frame) ((PyCodeObject *)(frame)->f_executable)
#define SET_CODE(frame, code) ((frame)->f_executable = (PyObject *)(code))
#define REWIND(frame, code) ((frame)->instr_ptr = _PyCode_CODE(code))
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#elif PY_VERSION_HEX >= 0x030c0000
#define FRAME_CODE(frame) ((frame)->f_code)
#define SET_CODE(frame, code) ((frame)->f_code = (code))
#define REWIND(frame, code) ((frame)->prev_instr = _PyCode_CODE(code) - 1)
#define FRAME_FUNCTION(frame) ((frame)->f_funcobj)
#else
#define FRAME_CODE(frame) ((frame)->f_code)
#define SET_CODE(frame, code) ((frame)->f_code = (code))
#define REWIND(frame, code) ((frame)->prev_instr = _PyCode_CODE(code) - 1)
#define FRAME_FUNCTION(frame) ((PyObject *)(frame)->f_func)
#define PyUnstable_Eval_RequestCodeExtraIndex _PyEval_RequestCodeExtraIndex
#define PyUnstable_Code_SetExtra _PyCode_SetExtra
#endif

typedef struct _PyInterpreterFrame Frame;

/* ------------------------------------------------------------------- what is known of a code object */

typedef enum { NEVER = 1, SKIP, CACHED } Knowledge;

typedef struct {
    Knowledge knowledge; /* NEVER: our own code; SKIP: the callback was not interested */
    unsigned epoch;      /* of SKIP and CACHED: forgotten when the epoch moves on */
    long owner;          /* the FrameHook whose callback said so: another has its own answers */
    PyObject *cache;
} Known;

typedef struct { /* the layout of PyCodeObject.co_extra */
    Py_ssize_t size;
    void *extras[1];
} Extras;

static Py_ssize_t extra_index = -1;
static unsigned current_epoch = 1;
static _Thread_local long thread_owner; /* the number of the FrameHook that is on; 0: none */

static void free_known(void *pointer) {
    Known *known = pointer;
    if (known != NULL) {
        Py_XDECREF(known->cache);
        PyMem_Free(known);
    }
}

static inline Known *known_of(PyCodeObject *code) {
    Extras *extras = code->co_extra;
    if (extras == NULL || extras->size <= extra_index)
        return NULL;
    Known *known = extras->extras[extra_index];
    if (known == NULL || (known->knowledge != NEVER && known->epoch != current_epoch))
        return NULL;
    if (known->knowledge != NEVER && thread_owner != 0 && known->owner != thread_owner)
        return NULL;
    return known;
}

static int learn(PyCodeObject *code, Knowledge knowledge, PyObject *cache) {
    Known *known = PyMem_Calloc(1, sizeof *known);
    if (known == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    known->knowledge = knowledge;
    known->epoch = current_epoch;
    known->owner = thread_owner;
    known->cache = Py_XNewRef(cache);
    return PyUnstable_Code_SetExtra((PyObject *)code, extra_index, known); /* frees the old one */
}

int hook_never(PyCodeObject *code) { return learn(code, NEVER, NULL); }

/* ---------------------------------------------------------------------------------- on and off */

static _Thread_local PyObject *thread_callback; /* owned by the FrameHook that is on */
static _Thread_local int thread_on;
static _Thread_local int thread_alone; /* nobody else's evaluator sees a frame of this thread */
#define ALONE 2
static _Thread_local Frame *handed_on; /* a frame that the evaluator before us is given */
static int threads_on;
static _PyFrameEvalFunction before;
static PyCodeObject *return_none;

static PyObject *evaluate(PyThreadState *thread, Frame *frame, int throwing);

static void refresh(void) {
    PyInterpreterState *interpreter = PyInterpreterState_Get();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (threads_on > 0 && current != evaluate) {
        before = current;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    } else if (threads_on == 0 && current == evaluate) {
        _PyInterpreterState_SetEvalFrameFunc(interpreter, before);
        before = NULL;
    } /* else somebody put theirs over ours: it is theirs to remove */
}

static int set_thread(int on) { /* returns what it was */
    int was = thread_on;
    if (on != was) {
        thread_on = on;
        threads_on += on - was;
        if (threads_on <= 1)
            refresh();
    }
    return was;
}

/* While compiled code runs frames are none of ours: it says itself which calls it wants hooked. */
int hook_pause(void) {
    int was = thread_on;
    thread_on = 0;
    return was;
}
void hook_resume(int was) { thread_on = was; }

/* While this package captures, or runs what it made, its frames are not another compiler's either: that one
   would capture the capture. Ours lies over it meanwhile, for the other threads hands on to it. */
int hook_alone(void) {
    int was = hook_pause();
    _PyFrameEvalFunction current = _PyInterpreterState_GetEvalFrameFunc(PyInterpreterState_Get());
    if (LIKELY(current == _PyEval_EvalFrameDefault))
        return was;
    if (current == evaluate && (before == NULL || before == _PyEval_EvalFrameDefault))
        return was;
    thread_alone++;
    threads_on++;
    refresh();
    return was | ALONE;
}
void hook_shared(int was) {
    hook_resume(was & ~ALONE);
    if (UNLIKELY(was & ALONE)) {
        thread_alone--;
        threads_on--;
        refresh();
    }
}

/* Under a hook each frame enters the evaluator anew. CPython 3.12 counts that, twice, against the limit of C's
   recursion, which is reached long before the program's own, as long as that is an ordinary one. */
static inline PyObject *run_default(PyThreadState *thread, Frame *frame, int throwing) {
#if PY_VERSION_HEX >= 0x030c0000 && PY_VERSION_HEX < 0x030d0000
    int spared = thread->py_recursion_limit <= 4000 ? 2 : 0;
    thread->c_recursion_remaining += spared;
    PyObject *result = _PyEval_EvalFrameDefault(thread, frame, throwing);
    thread->c_recursion_remaining -= spared;
    return result;
#else
    return _PyEval_EvalFrameDefault(thread, frame, throwing);
#endif
}

static PyObject *run_as_it_is(PyThreadState *thread, Frame *frame, int throwing) {
    if (LIKELY(before == NULL || before == _PyEval_EvalFrameDefault || before == evaluate || thread_alone))
        return run_default(thread, frame, throwing);
    if (handed_on == frame) /* it came back to us: it chains to us, as we do to it */
        return _PyEval_EvalFrameDefault(thread, frame, throwing);
    Frame *outer = handed_on;
    handed_on = frame;
    PyObject *result = before(thread, frame, throwing);
    handed_on = outer;
    return result;
}

/* ---------------------------------------------------------------------------------- replacement */

static inline int frame_size(PyCodeObject *code) {
#if PY_VERSION_HEX >= 0x030c0000
    return code->co_framesize;
#else
    return code->co_nlocalsplus + code->co_stacksize + FRAME_SPECIALS_SIZE;
#endif
}

/* Seat a frame that has not started on other code: the first `kept` slots stay, the rest is empty. */
static int seat(PyThreadState *thread, Frame *frame, PyCodeObject *code, Py_ssize_t kept) {
    PyCodeObject *old = FRAME_CODE(frame);
    int had = frame_size(old), wants = frame_size(code);
    PyObject **end = (PyObject **)frame + had;
    if (wants > had) {
        if (end != thread->datastack_top || wants - had >= thread->datastack_limit - end)
            return 0;
        thread->datastack_top += wants - had;
    } else if (end == thread->datastack_top) {
        thread->datastack_top -= had - wants;
    }
    for (Py_ssize_t i = kept; i < code->co_nlocalsplus; i++)
        frame->localsplus[i] = NULL;
    Py_INCREF(code);
    SET_CODE(frame, code);
    REWIND(frame, code);
    frame->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
    return 1;
}

/* Let the frame return `result` (stolen; NULL is an exception) without running its code. */
static PyObject *return_from(PyThreadState *thread, Frame *frame, Py_ssize_t slots, PyObject *result) {
#if PY_VERSION_HEX >= 0x030c0000
    /* the evaluator has to clear the frame: let it, by running `return None` there */
    PyObject *type = NULL, *value = NULL, *traceback = NULL;
    if (result == NULL)
        PyErr_Fetch(&type, &value, &traceback);
    for (Py_ssize_t i = 0; i < slots; i++)
        Py_CLEAR(frame->localsplus[i]);
    if (!seat(thread, frame, return_none, 0))
        Py_FatalError("dynamo: the smallest code object does not fit a frame");
    PyObject *none = _PyEval_EvalFrameDefault(thread, frame, 0);
    if (result == NULL) {
        PyErr_Clear();
        PyErr_Restore(type, value, traceback);
    } else if (none == NULL) { /* a signal's handler raised meanwhile */
        Py_CLEAR(result);
    }
    Py_XDECREF(none);
#endif
    return result; /* 3.11: the caller clears the frame */
}

/* An exception is set before the frame has begun. */
static PyObject *fail(PyThreadState *thread, Frame *frame) {
#if PY_VERSION_HEX >= 0x030c0000
    return _PyEval_EvalFrameDefault(thread, frame, 1);
#else
    return NULL;
#endif
}

/* Ask the callback; 1: `cache` (new reference) is worth a look, 0: run the frame as it is, -1: error. */
static int ask(PyCodeObject *code, PyObject *function, Frame *frame, Py_ssize_t count,
               PyObject *known_cache, PyObject **cache) {
    PyObject *slots = PyTuple_New(count);
    if (slots == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(slots, i, Py_NewRef(frame->localsplus[i]));
    PyObject *callback = Py_NewRef(thread_callback);
    int was = hook_alone();
    PyObject *answer = PyObject_CallFunctionObjArgs(callback, function, slots,
                                                    known_cache ? known_cache : Py_None, NULL);
    hook_shared(was);
    Py_DECREF(callback);
    Py_DECREF(slots);
    if (answer == NULL)
        return -1;
    int status = -1;
    if (Py_TYPE(answer) == &CodeCacheType) {
        status = learn(code, CACHED, answer) < 0 ? -1 : 1;
        if (status > 0)
            *cache = Py_NewRef(answer);
    } else if (answer == Py_None) {
        status = learn(code, SKIP, NULL) < 0 ? -1 : 0;
    } else if (answer == Py_False) {
        status = 0; /* not this time */
    } else {
        PyErr_SetString(PyExc_TypeError, "the frame callback returns a CodeCache, None or False");
    }
    Py_DECREF(answer);
    return status;
}

static PyObject *run_entry(PyThreadState *thread, Frame *frame, PyObject *function, Py_ssize_t count,
                           PyObject *entry, PyObject *inputs) {
    PyCodeObject *code = entry_code(entry);
    PyObject *result;
    int was = hook_pause();
    if (code != NULL && code->co_nfreevars == FRAME_CODE(frame)->co_nfreevars &&
        seat(thread, frame, code, count)) {
        frame->localsplus[count] = inputs; /* stolen */
        Py_DECREF(entry);
        result = run_as_it_is(thread, frame, 0);
    } else {
        result = entry_run(entry, frame->localsplus, count, function, inputs);
        Py_DECREF(inputs);
        Py_DECREF(entry);
        result = return_from(thread, frame, count, result);
    }
    hook_resume(was);
    return result;
}

static PyObject *evaluate(PyThreadState *thread, Frame *frame, int throwing) {
    if (LIKELY(!thread_on || throwing))
        return run_as_it_is(thread, frame, throwing);
    PyCodeObject *code = FRAME_CODE(frame);
    Known *known = known_of(code);
    if (known != NULL && known->knowledge != CACHED)
        return run_as_it_is(thread, frame, 0);
    PyObject *function = FRAME_FUNCTION(frame);
    if (frame->owner == FRAME_OWNED_BY_GENERATOR || thread_callback == NULL ||
        (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR)) ||
        !(code->co_flags & CO_OPTIMIZED) || !PyFunction_Check(function) ||
        thread->c_tracefunc != NULL || thread->c_profilefunc != NULL)
        return run_as_it_is(thread, frame, 0);
    Py_ssize_t count = slot_count(code);
    PyObject *cache = known == NULL ? NULL : Py_NewRef(known->cache), *entry, *inputs;
    int status = 0, asked = 0;
    for (;;) {
        if (cache != NULL) {
            int was = hook_pause();
            status = cache_find(cache, frame->localsplus, count, function, &entry, &inputs);
            hook_resume(was);
            if (status > 0) {
                Py_DECREF(cache);
                return run_entry(thread, frame, function, count, entry, inputs);
            }
        }
        if (status == 0 && !asked) {
            PyObject *answered = NULL;
            asked = 1;
            status = ask(code, function, frame, count, cache, &answered);
            Py_XSETREF(cache, answered);
            if (status > 0) {
                status = 0;
                continue;
            }
        }
        break;
    }
    Py_XDECREF(cache);
    return status < 0 ? fail(thread, frame) : run_as_it_is(thread, frame, 0);
}

/* ------------------------------------------------------------------------------------ FrameHook */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *callback;
    PyObject *saved; /* a list of (callback or None, was on, owner), one per `with` */
    long number;
} FrameHook;

static PyObject *hooked_call(PyObject *callable, PyObject *const *args, size_t flags,
                             PyObject *keywords) {
    Py_ssize_t nargs = PyVectorcall_NARGS(flags);
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "the first argument is what to call");
        return NULL;
    }
    PyObject *callback = thread_callback;
    thread_callback = Py_NewRef(((FrameHook *)callable)->callback);
    long owner = thread_owner;
    thread_owner = ((FrameHook *)callable)->number;
    int was = set_thread(1);
    /* the slot before the arguments is args[0], ours to lend */
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(nargs - 1) |
                                           PY_VECTORCALL_ARGUMENTS_OFFSET, keywords);
    set_thread(was);
    thread_owner = owner;
    Py_XSETREF(thread_callback, callback);
    return result;
}

static PyObject *hook_enter(FrameHook *self, PyObject *ignored) {
    PyObject *pair = Py_BuildValue("(Oil)", thread_callback ? thread_callback : Py_None, thread_on,
                                   thread_owner);
    int status = pair == NULL ? -1 : PyList_Append(self->saved, pair);
    Py_XDECREF(pair);
    if (status < 0)
        return NULL;
    Py_XSETREF(thread_callback, Py_NewRef(self->callback));
    thread_owner = self->number;
    set_thread(1);
    return Py_NewRef((PyObject *)self);
}

static PyObject *hook_exit(FrameHook *self, PyObject *ignored) {
    Py_ssize_t n = PyList_GET_SIZE(self->saved);
    if (n == 0) {
        PyErr_SetString(PyExc_RuntimeError, "the hook was not entered");
        return NULL;
    }
    PyObject *pair = Py_NewRef(PyList_GET_ITEM(self->saved, n - 1));
    PyList_SetSlice(self->saved, n - 1, n, NULL);
    PyObject *callback = PyTuple_GET_ITEM(pair, 0);
    set_thread((int)PyLong_AsLong(PyTuple_GET_ITEM(pair, 1)));
    thread_owner = PyLong_AsLong(PyTuple_GET_ITEM(pair, 2));
    Py_XSETREF(thread_callback, callback == Py_None ? NULL : Py_NewRef(callback));
    Py_DECREF(pair);
    Py_RETURN_NONE;
}

static PyObject *hook_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"callback", NULL};
    PyObject *callback;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O", names, &callback))
        return NULL;
    if (!PyCallable_Check(callback)) {
        PyErr_SetString(PyExc_TypeError, "the callback is called with (function, slots, cache)");
        return NULL;
    }
    FrameHook *self = (FrameHook *)type->tp_alloc(type, 0);
    if (self == NULL || (self->saved = PyList_New(0)) == NULL) {
        Py_XDECREF(self);
        return NULL;
    }
    static long hooks; /* numbers are never used again, addresses are */
    self->number = ++hooks;
    self->vectorcall = hooked_call;
    self->callback = Py_NewRef(callback);
    return (PyObject *)self;
}

static int hook_traverse(FrameHook *self, visitproc visit, void *arg) {
    Py_VISIT(self->callback);
    Py_VISIT(self->saved);
    return 0;
}

static void hook_dealloc(FrameHook *self) {
    PyObject_GC_UnTrack(self);
    Py_CLEAR(self->callback);
    Py_CLEAR(self->saved);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef hook_methods[] = {
    {"__enter__", (PyCFunction)hook_enter, METH_NOARGS, "On in this thread."},
    {"__exit__", (PyCFunction)hook_exit, METH_VARARGS, "As it was before."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject FrameHookType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "dynamo._fast.FrameHook",
    .tp_doc = "FrameHook(callback)(f, *args, **kwargs) calls f with its Python frames hooked.",
    .tp_basicsize = sizeof(FrameHook),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = hook_new,
    .tp_dealloc = (destructor)hook_dealloc,
    .tp_traverse = (traverseproc)hook_traverse,
    .tp_call = PyVectorcall_Call,
    .tp_vectorcall_offset = offsetof(FrameHook, vectorcall),
    .tp_methods = hook_methods,
};

/* ------------------------------------------------------------------------------------- functions */

static PyObject *unhooked(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                          PyObject *keywords) {
    if (nargs < 1) {
        PyErr_SetString(PyExc_TypeError, "the first argument is what to call");
        return NULL;
    }
    int was = hook_pause();
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)(nargs - 1), keywords);
    hook_resume(was);
    return result;
}

static int code_argument(PyObject *code) {
    if (PyCode_Check(code))
        return 0;
    PyErr_SetString(PyExc_TypeError, "a code object is wanted");
    return -1;
}

static PyObject *never_code(PyObject *module, PyObject *code) {
    if (code_argument(code) < 0 || hook_never((PyCodeObject *)code) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *code_cache_of(PyObject *module, PyObject *code) {
    if (code_argument(code) < 0)
        return NULL;
    Known *known = known_of((PyCodeObject *)code);
    if (known == NULL)
        Py_RETURN_NONE;
    return Py_NewRef(known->knowledge == CACHED ? known->cache : Py_False);
}

static PyObject *forget_codes(PyObject *module, PyObject *ignored) {
    current_epoch++;
    Py_RETURN_NONE;
}

static PyObject *is_hooked(PyObject *module, PyObject *ignored) { return PyBool_FromLong(thread_on); }

static PyMethodDef functions[] = {
    {"unhooked", (PyCFunction)(void (*)(void))unhooked, METH_FASTCALL | METH_KEYWORDS,
     "unhooked(f, *args, **kwargs) calls f with the hook off in this thread"},
    {"never_hook", never_code, METH_O, "Run frames of this code as they are, for good."},
    {"hooked_cache", code_cache_of, METH_O, "What is known of a code: its cache, False, or None."},
    {"forget_codes", forget_codes, METH_NOARGS, "Ask the callback about every code object again."},
    {"is_hooked", is_hooked, METH_NOARGS, "Whether the hook is on in this thread."},
    {NULL, NULL, 0, NULL},
};

int hook_ready(PyObject *module) {
    extra_index = PyUnstable_Eval_RequestCodeExtraIndex(free_known);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "no room for more data in code objects");
        return -1;
    }
    PyObject *names = PyDict_New(), *ran = NULL;
    if (names != NULL)
        ran = PyRun_String("code = (lambda: None).__code__", Py_file_input, names, names);
    PyObject *code = ran == NULL ? NULL : PyDict_GetItemString(names, "code");
    return_none = (PyCodeObject *)Py_XNewRef(code);
    Py_XDECREF(names);
    Py_XDECREF(ran);
    if (return_none == NULL)
        return -1;
    if (PyModule_AddFunctions(module, functions) < 0)
        return -1;
    return PyModule_AddType(module, &FrameHookType);
}
