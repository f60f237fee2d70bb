/* What the C files of dynamo._fast share.
 *
 * _guards.c    the guard program: loads values, checks them, hands over the entry's inputs
 * _dispatch.c  CodeCache, Entry, CompiledFunction: from a call to the entry that serves it
 * _hook.c      the frame evaluator (PEP 523), on only while asked
 *
 * Only CPython's own headers are used. Everything about torch's layout in memory is found out by
 * dynamo.guards.calibrate at run time and handed over as numbers.
 */
#ifndef DYNAMO_FAST_H
#define DYNAMO_FAST_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

#define LIKELY(x) __builtin_expect(!!(x), 1)
#define UNLIKELY(x) __builtin_expect(!!(x), 0)
#define HIDDEN __attribute__((visibility("hidden")))

/* _guards.c */
extern HIDDEN PyTypeObject ProgramType;
HIDDEN int program_ready(PyObject *module);
/* 1: all guards hold, *inputs is a new list; 0: some guard fails; -1: an exception is set.
 * `slots` are the root frame's `count` argument slots, borrowed; `function` may be NULL. */
HIDDEN int program_match(PyObject *program, PyObject *const *slots, Py_ssize_t count,
                         PyObject *function, PyObject **inputs);

/* _dispatch.c */
extern HIDDEN PyTypeObject CodeCacheType;
typedef struct Entry Entry;
HIDDEN int dispatch_ready(PyObject *module);
/* 1: *entry (new reference) matches and *inputs (new reference) are loaded; 0: none; -1: error. */
HIDDEN int cache_find(PyObject *cache, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                      PyObject **entry, PyObject **inputs);
HIDDEN PyCodeObject *entry_code(PyObject *entry);     /* borrowed; NULL for a graph */
HIDDEN PyObject *entry_run(PyObject *entry, PyObject *const *slots, Py_ssize_t count,
                           PyObject *function, PyObject *inputs);
HIDDEN Py_ssize_t slot_count(PyCodeObject *code);

/* _hook.c */
HIDDEN int hook_never(PyCodeObject *code); /* its frames run as they are */
HIDDEN int hook_pause(void);               /* off in this thread; returns what it was */
HIDDEN void hook_resume(int was);
HIDDEN int hook_alone(void); /* other evaluators too */
HIDDEN void hook_shared(int was);
HIDDEN int hook_ready(PyObject *module);

#endif
