/* Traces: what a success of a guard program rested on, as words of memory to compare.
 *
 * Most of what guards look at hangs below a module, a class or a namespace and hardly ever changes.
 * After a success the steps are gone through once more. What a step found is written down as words: the
 * type of an object, the place of its dict, the version of a dict (unique in the process while nothing
 * in it changes), an item of a list, the fields of a tensor's C++ object. While all words are as they
 * were, everything that the steps found is still there and the same: borrowed pointers are valid,
 * and the steps need not run. What hangs on this call's arguments stays as steps, few as a rule.
 *
 * An address that is found again may be another object's by now. So an address alone proves nothing
 * about the object: its type is compared with it, what else matters of it are words of its own, and of
 * constants, whose value is not compared, the trace holds a reference.
 *
 * Invariants. A word is only read after the words of what keeps its memory alive were compared, so
 * words are in the order from the outside in. No Python runs between the first word and the last.
 * A dict whose version changed is looked into again, name by name; only a difference among the
 * names that matter ends the trace, and then the steps decide. A trace says FAILS only where a step
 * failed that reads nothing remembered, or after all words were the same.
 */
#include "_guards.h"

#include <stddef.h>
#include <structmember.h>

/* ----------------------------------------------------------------------------------- dict versions */

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

static const uint64_t *version_of(PyObject *dict) { return &((PyDictObject *)dict)->ma_version_tag; }

/* On Python 3.13 a dict that shares its values with its instance does not learn of stores into it. */
static int shares_values(PyObject *dict) {
    return PY_VERSION_HEX >= 0x030d0000 && ((PyDictObject *)dict)->ma_values != NULL;
}

/* From now on every change of the dict changes its version; 0: that cannot be had. */
static int has_version(PyObject *dict) {
    if (!shares_values(dict))
        return 1;
    /* To take out the last item, and put it back, gives the dict values of its own for good. */
    PyObject *last = PyObject_CallMethod(dict, "popitem", NULL);
    if (last == NULL)
        return 0; /* it is empty */
    int status = PyDict_SetItem(dict, PyTuple_GET_ITEM(last, 0), PyTuple_GET_ITEM(last, 1));
    Py_DECREF(last);
    return status == 0 && !shares_values(dict);
}

/* ------------------------------------------------------------------------------------------ traces */

typedef struct { /* what the trace starts from, compared with this call's */
    enum { ROOT_SLOT, ROOT_CELL, ROOT_GLOBALS } kind;
    int32_t index;
    PyObject *value;
} Root;

typedef struct {
    const uint64_t *address;
    uint64_t expected;
} Word;

typedef struct { /* compared after all words */
    const char *address;
    uint32_t expected;
} Half;

typedef struct { /* a tensor, checked whole after all words: two words where its fields would be ten */
    PyObject *tensor;
    const TensorSpec *spec; /* of the program's step, or an equal one before it */
} Checked;

typedef struct { /* a dict and the names in it that matter */
    PyObject *dict;
    int32_t word;       /* the one that holds its version */
    int32_t first_pair; /* -1: none */
    int32_t exact;      /* any change matters */
} Group;

typedef struct {
    PyObject *key;
    PyObject *value; /* NULL: the dict lacks the key; ANY: it has it */
    PyTypeObject *type;
    int32_t next;
} Pair;
#define ANY ((PyObject *)1)

#define VECTOR(type, name) \
    struct {               \
        type *at;          \
        int32_t count;     \
        int32_t room;      \
    } name

struct Trace {
    Py_ssize_t holders; /* a step may run Python that replaces the trace */
    VECTOR(Root, roots);
    VECTOR(Word, words);
    VECTOR(Half, halves);
    VECTOR(Checked, tensors);
    VECTOR(Group, groups);
    VECTOR(Pair, pairs);
    VECTOR(PyObject *, values); /* of the first registers */
    VECTOR(PyObject *, held);   /* constants */
    VECTOR(Step, steps);        /* what is asked each time */
    int32_t first;              /* of the steps that read remembered registers */
    int32_t registers;
    int32_t *inputs;
};

static int grown(void **at, int32_t *room, size_t size) {
    int32_t more = *room ? 2 * *room : 32;
    void *made = PyMem_Realloc(*at, (size_t)more * size);
    if (made == NULL)
        return 0;
    *at = made;
    *room = more;
    return 1;
}

/* Appends a value; 0 where memory is short. */
#define PUSH(vector, ...)                                                                            \
    (((vector).count < (vector).room ||                                                              \
      grown((void **)&(vector).at, &(vector).room, sizeof *(vector).at))                             \
         ? ((vector).at[(vector).count++] = (__VA_ARGS__), 1)                                        \
         : 0)

static int owns_data(const Step *step) {
    return step->data != NULL && (step->op == CHECK_DISTINCT || step->op == CHECK_STORAGES ||
                                  step->op == CHECK_CALL_MANY);
}

static void release(Trace *trace) {
    if (--trace->holders)
        return;
    for (int32_t i = 0; i < trace->held.count; i++)
        Py_DECREF(trace->held.at[i]); /* of a type whose deallocation runs no Python */
    PyMem_Free(trace->held.at);
    for (int32_t i = 0; i < trace->steps.count; i++)
        if (owns_data(&trace->steps.at[i]))
            PyMem_Free(trace->steps.at[i].data);
    PyMem_Free(trace->roots.at);
    PyMem_Free(trace->words.at);
    PyMem_Free(trace->halves.at);
    PyMem_Free(trace->tensors.at);
    PyMem_Free(trace->groups.at);
    PyMem_Free(trace->pairs.at);
    PyMem_Free(trace->values.at);
    PyMem_Free(trace->steps.at);
    PyMem_Free(trace->inputs);
    PyMem_Free(trace);
}

void trace_forget(Program *program) {
    while (program->trace_count)
        release(program->traces[--program->trace_count]);
}

/* ---------------------------------------------------------------------------------------- matching */

static inline int root_holds(const Root *root, PyObject *const *slots, Py_ssize_t count,
                             PyObject *function) {
    switch (root->kind) {
    case ROOT_SLOT: return root->index < count && slots[root->index] == root->value;
    case ROOT_GLOBALS: return function != NULL && PyFunction_GET_GLOBALS(function) == root->value;
    default: {
        PyObject *closure = function == NULL ? NULL : PyFunction_GET_CLOSURE(function);
        return closure != NULL && root->index < PyTuple_GET_SIZE(closure) &&
               PyCell_GET(PyTuple_GET_ITEM(closure, root->index)) == root->value;
    }
    }
}

/* The number of the first root that differs, or that of roots. */
static int32_t roots_that_hold(const Trace *trace, PyObject *const *slots, Py_ssize_t count,
                               PyObject *function) {
    int32_t i = 0;
    while (i < trace->roots.count && root_holds(&trace->roots.at[i], slots, count, function))
        i++;
    return i;
}

static int has_only_strings(PyObject *dict) {
    Py_ssize_t position = 0;
    PyObject *key;
    while (PyDict_Next(dict, &position, &key, NULL))
        if (!PyUnicode_CheckExact(key))
            return 0;
    return 1;
}

/* A dict changed: whether the names that matter still hold what they held. Runs no Python. */
static int look_again(Trace *trace, int32_t word) {
    int32_t low = 0, high = trace->groups.count - 1;
    while (low < high) { /* groups are in the order of their words */
        int32_t middle = (low + high) / 2;
        if (trace->groups.at[middle].word < word)
            low = middle + 1;
        else
            high = middle;
    }
    if (low > high || trace->groups.at[low].word != word)
        return 0;
    const Group *group = &trace->groups.at[low];
    if (group->exact || shares_values(group->dict) || !has_only_strings(group->dict))
        return 0;
    for (int32_t i = group->first_pair; i >= 0; i = trace->pairs.at[i].next) {
        const Pair *pair = &trace->pairs.at[i];
        PyObject *found = PyDict_GetItemWithError(group->dict, pair->key);
        if (pair->value == ANY ? found == NULL : found != pair->value)
            return 0;
        if (pair->type != NULL && Py_TYPE(found) != pair->type)
            return 0;
    }
    trace->words.at[word].expected = *trace->words.at[word].address;
    return 1;
}

static int words_hold(Trace *trace) {
    const Word *words = trace->words.at;
    for (int32_t i = 0, n = trace->words.count; i < n; i++)
        if (UNLIKELY(*words[i].address != words[i].expected) && !look_again(trace, i))
            return 0;
    const Half *halves = trace->halves.at;
    for (int32_t i = 0, n = trace->halves.count; i < n; i++) {
        uint32_t found;
        memcpy(&found, halves[i].address, sizeof found);
        if (UNLIKELY(found != halves[i].expected))
            return 0;
    }
    const Checked *tensors = trace->tensors.at;
    for (int32_t i = 0, n = trace->tensors.count; i < n; i++)
        if (UNLIKELY(!tensor_holds(tensors[i].spec, tensors[i].tensor)))
            return 0;
    return 1;
}

#define STACK_REGISTERS 512

static int replay(Program *program, Trace *trace, PyObject *const *slots, Py_ssize_t count,
                  PyObject *function, PyObject **inputs) {
    PyObject *few_values[STACK_REGISTERS];
    unsigned char few_owned[STACK_REGISTERS];
    int64_t few_integers[STACK_REGISTERS];
    int32_t base = trace->values.count;
    Registers r = {few_values, few_owned, few_integers, base, 0, base, base, 0};
    void *heap = NULL;
    if (UNLIKELY(trace->registers > STACK_REGISTERS || program->integers > STACK_REGISTERS)) {
        heap = PyMem_Malloc((size_t)trace->registers * (sizeof(PyObject *) + 1) +
                            (size_t)program->integers * sizeof(int64_t));
        if (heap == NULL)
            return UNKNOWN;
        r.integers = heap;
        r.values = (PyObject **)(r.integers + program->integers);
        r.owned = (unsigned char *)(r.values + trace->registers);
    }
    memset(r.owned, 0, (size_t)base);
    const Step *steps = trace->steps.at;
    trace->holders++;
    int answer = run_steps(&r, steps, steps + trace->first, slots, count, function);
    if (LIKELY(answer > 0)) {
        if (UNLIKELY(!words_hold(trace))) {
            answer = UNKNOWN;
        } else {
            memcpy(r.values, trace->values.at, (size_t)base * sizeof *r.values);
            r.live = 1;
            answer = run_steps(&r, steps + trace->first, steps + trace->steps.count, slots, count,
                               function);
        }
    }
    if (LIKELY(answer == MATCHES)) {
        *inputs = input_list(&r, trace->inputs, program->input_count);
        answer = *inputs == NULL ? -1 : MATCHES;
    }
    if (UNLIKELY(r.any_owned)) {
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        disown_all(&r);
        PyErr_Restore(type, value, traceback);
    }
    release(trace);
    PyMem_Free(heap);
    return answer;
}

int trace_match(Program *program, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                PyObject **inputs) {
    for (int32_t i = 0; i < program->trace_count; i++) {
        Trace *trace = program->traces[i];
        if (roots_that_hold(trace, slots, count, function) < trace->roots.count)
            continue;
        int answer = replay(program, trace, slots, count, function, inputs);
        if (LIKELY(answer == MATCHES)) {
            program->useful++;
            if (UNLIKELY(i > 0 && i < program->trace_count && program->traces[i] == trace)) {
                memmove(&program->traces[1], program->traces, (size_t)i * sizeof(Trace *));
                program->traces[0] = trace;
            }
        }
        return answer;
    }
    return UNKNOWN;
}

/* --------------------------------------------------------------------------------------- recording */

typedef struct {
    unsigned char remembered; /* the value is fixed by the words so far */
    unsigned char typed;      /* so is its type */
    int32_t own;              /* the groups of its own dict and of its items, or -1 */
    int32_t items;
    int32_t place;            /* its number in the trace, or -1 */
} Known;

typedef struct {
    const Program *program;
    Registers *r;
    PyObject *const *slots;
    Py_ssize_t count;
    PyObject *function;
    Trace *trace;
    Known *known; /* one a register */
    unsigned char *rooted; /* registers that are worth being a root */
    VECTOR(PyTypeObject *, types); /* whose version is among the halves; open addressing */
    VECTOR(int32_t, asked);        /* steps that stay steps */
} Recorder;

#define TRY(condition)     \
    do {                   \
        if (!(condition))  \
            return 0;      \
    } while (0)

static int push_word(Recorder *w, const void *address, uint64_t expected) {
    return *(const uint64_t *)address == expected && PUSH(w->trace->words, (Word){address, expected});
}

static int is_constant(PyObject *value) {
    return PyUnicode_CheckExact(value) || PyLong_CheckExact(value) || PyBool_Check(value) ||
           PyFloat_CheckExact(value) || value == Py_None;
}

static int has_fixed_type(PyObject *value) { /* no `__class__` can be stored */
    PyTypeObject *type = Py_TYPE(value);
    return is_constant(value) || type == &PyTuple_Type || type == &PyList_Type ||
           type == &PyDict_Type || type == &PyFunction_Type || type == &PyCode_Type;
}

static int push_type(Recorder *w, int32_t number) {
    Known *known = &w->known[number];
    PyObject *value = w->r->values[number];
    if (!known->typed)
        TRY(push_word(w, &value->ob_type, (uint64_t)(uintptr_t)Py_TYPE(value)));
    known->typed = 1;
    return 1;
}

/* All that is found along the bases of `type` is as it is now. */
static int push_class(Recorder *w, PyTypeObject *type) {
    _PyType_Lookup(type, name_builtins); /* gives it a version if that is possible */
    if (type->tp_version_tag == 0)
        return 0;
    for (int32_t i = 0; i < w->types.count; i++)
        if (w->types.at[i] == type)
            return 1;
    return PUSH(w->trace->halves, (Half){(const char *)&type->tp_version_tag, type->tp_version_tag}) &&
           PUSH(w->types, type);
}

static int32_t make_group(Recorder *w, PyObject *dict) {
    if (!PyDict_Check(dict) || !has_version(dict))
        return -1;
    int32_t word = w->trace->words.count;
    return push_word(w, version_of(dict), *version_of(dict)) &&
                   PUSH(w->trace->groups, (Group){dict, word, -1, 0})
               ? w->trace->groups.count - 1
               : -1;
}

/* The group of an object's own dict; -1: it has none, or it cannot be told. */
static int32_t own_group(Recorder *w, int32_t number) {
    Known *known = &w->known[number];
    if (known->own < 0) {
        PyObject *value = w->r->values[number], *dict = own_dict(value);
        PyObject **place = dict == NULL ? NULL : _PyObject_GetDictPtr(value);
        if (place == NULL || !push_type(w, number) ||
            !push_word(w, place, (uint64_t)(uintptr_t)dict))
            return -1;
        known->own = make_group(w, dict);
    }
    return known->own;
}

/* The group of a dict's items; -1: it is no dict, or has a [] of its own. */
static int32_t item_group(Recorder *w, int32_t number) {
    Known *known = &w->known[number];
    if (known->items < 0) {
        PyObject *value = w->r->values[number];
        if (!PyDict_Check(value) || !push_type(w, number) ||
            (!PyDict_CheckExact(value) &&
             (Py_TYPE(value)->tp_as_mapping->mp_subscript != PyDict_Type.tp_as_mapping->mp_subscript ||
              !push_class(w, Py_TYPE(value)))))
            return -1;
        known->items = make_group(w, value);
    }
    return known->items;
}

static int push_pair(Recorder *w, int32_t number, PyObject *key, PyObject *value) {
    if (number < 0 || !PyUnicode_CheckExact(key))
        return 0;
    Group *group = &w->trace->groups.at[number];
    PyObject *found = PyDict_GetItemWithError(group->dict, key);
    if ((value == ANY ? found == NULL : found != value) || PyErr_Occurred())
        return 0;
    PyTypeObject *type = value == NULL || value == ANY ? NULL : Py_TYPE(value);
    TRY(PUSH(w->trace->pairs, (Pair){key, value, type, group->first_pair}));
    group->first_pair = w->trace->pairs.count - 1;
    return 1;
}

/* The pair of what a load found; with it goes the type, if it cannot be changed. */
static int push_found(Recorder *w, int32_t group, const Step *step) {
    PyObject *found = w->r->values[step->into];
    TRY(push_pair(w, group, step->operand, found));
    w->known[step->into].typed = (unsigned char)has_fixed_type(found);
    return 1;
}

static int push_exact(Recorder *w, int32_t group) {
    if (group < 0)
        return 0;
    w->trace->groups.at[group].exact = 1;
    return 1;
}

static int push_root(Recorder *w, int kind, int32_t index, PyObject *value) {
    return PUSH(w->trace->roots, (Root){kind, index, value});
}

/* Where an object holds what a descriptor of its class gives; NULL: not known. */
static const void *place_of_member(PyObject *from, PyObject *descriptor, PyObject *name) {
    if (Py_TYPE(descriptor) == &PyMemberDescr_Type) {
        const PyMemberDef *member = ((PyMemberDescrObject *)descriptor)->d_member;
        return member->type == T_OBJECT_EX || member->type == T_OBJECT
                   ? (char *)from + member->offset
                   : NULL;
    }
    if (PyCell_Check(from))
        return &((PyCellObject *)from)->ob_ref; /* a cell has this one attribute */
    if (PyFunction_Check(from)) {
        PyFunctionObject *function = (PyFunctionObject *)from;
        if (PyUnicode_CompareWithASCIIString(name, "__defaults__") == 0)
            return &function->func_defaults;
        if (PyUnicode_CompareWithASCIIString(name, "__kwdefaults__") == 0)
            return &function->func_kwdefaults;
    }
    return NULL;
}

static int remember_class_attribute(Recorder *w, const Step *step) {
    PyTypeObject *from = (PyTypeObject *)w->r->values[step->from];
    PyObject *in_meta = _PyType_Lookup(Py_TYPE(from), step->operand);
    PyObject *in_class = _PyType_Lookup(from, step->operand);
    return Py_TYPE(from)->tp_getattro == PyType_Type.tp_getattro &&
           (in_meta == NULL || Py_TYPE(in_meta)->tp_descr_set == NULL) && in_class != NULL &&
           in_class == w->r->values[step->into] && Py_TYPE(in_class)->tp_descr_get == NULL &&
           push_type(w, step->from) && push_class(w, Py_TYPE(from)) && push_class(w, from);
}

/* An attribute that is found without running Python: in the object, its dict or its class. */
static int remember_attribute(Recorder *w, const Step *step) {
    PyObject *from = w->r->values[step->from], *found = w->r->values[step->into];
    if (PyType_Check(from) && step->op == LOAD_ATTRIBUTE)
        return remember_class_attribute(w, step);
    if (step->op == LOAD_ATTRIBUTE && Py_TYPE(from)->tp_getattro != PyObject_GenericGetAttr &&
        !PyModule_CheckExact(from))
        return 0;
    PyObject *in_class = _PyType_Lookup(Py_TYPE(from), step->operand);
    TRY(push_type(w, step->from) && push_class(w, Py_TYPE(from)));
    if (in_class != NULL && Py_TYPE(in_class)->tp_descr_set != NULL) {
        const void *member = place_of_member(from, in_class, step->operand);
        if (member == NULL)
            return 0;
        int absent = found == Py_None && *(PyObject *const *)member == NULL;
        return push_word(w, member, absent ? 0 : (uint64_t)(uintptr_t)found);
    }
    PyObject *dict = own_dict(from);
    if (dict == NULL) /* and its type gives it none: the type is fixed */
        return _PyObject_GetDictPtr(from) == NULL && in_class == found &&
               Py_TYPE(found)->tp_descr_get == NULL;
    int32_t group = own_group(w, step->from);
    if (group < 0 || PyDict_GetItemWithError(dict, step->operand) != NULL)
        return push_found(w, group, step);
    return in_class == found && Py_TYPE(found)->tp_descr_get == NULL &&
           push_pair(w, group, step->operand, NULL);
}

static int remember_item(Recorder *w, const Step *step) {
    PyObject *from = w->r->values[step->from], *found = w->r->values[step->into];
    if (PyTuple_CheckExact(from) || PyList_CheckExact(from)) {
        if (step->op != LOAD_ITEM || step->second == NULL)
            return 0;
        Py_ssize_t n = Py_SIZE(from), i = step->number < 0 ? step->number + n : step->number;
        if (i < 0 || i >= n)
            return 0;
        TRY(push_type(w, step->from) && push_word(w, &((PyVarObject *)from)->ob_size, (uint64_t)n));
        if (PyTuple_CheckExact(from))
            return push_word(w, &((PyTupleObject *)from)->ob_item[i], (uint64_t)(uintptr_t)found);
        PyListObject *list = (PyListObject *)from;
        return push_word(w, &list->ob_item, (uint64_t)(uintptr_t)list->ob_item) &&
               push_word(w, &list->ob_item[i], (uint64_t)(uintptr_t)found);
    }
    int32_t group = item_group(w, step->from);
    if (group < 0 || PyUnicode_CheckExact(step->operand))
        return push_found(w, group, step);
    if (!PyLong_CheckExact(step->operand) && !PyBool_Check(step->operand))
        return 0; /* a key whose equality is anybody's */
    int same = PyDict_GetItemWithError(w->trace->groups.at[group].dict, step->operand) == found;
    return same && !PyErr_Occurred() && push_exact(w, group);
}

static int remember_global(Recorder *w, const Step *step) {
    PyObject *names = step->second;
    Trace *trace = w->trace;
    if (names == NULL) {
        if (w->function == NULL)
            return 0;
        names = PyFunction_GET_GLOBALS(w->function);
        int known = 0;
        for (int32_t i = 0; i < trace->roots.count; i++)
            known |= trace->roots.at[i].kind == ROOT_GLOBALS;
        TRY(known || push_root(w, ROOT_GLOBALS, 0, names));
    }
    int32_t group = -1, outer = -1;
    for (int32_t i = 0; i < trace->groups.count; i++)
        if (trace->groups.at[i].dict == names)
            group = i;
    TRY(group >= 0 || (group = make_group(w, names)) >= 0);
    PyObject *there = PyDict_GetItemWithError(names, step->operand);
    if (there != NULL)
        return push_found(w, group, step);
    PyObject *builtins = PyDict_GetItemWithError(names, name_builtins);
    if (builtins == NULL || PyErr_Occurred() || !push_pair(w, group, step->operand, NULL) ||
        !push_pair(w, group, name_builtins, builtins))
        return 0;
    PyObject *dict = PyModule_Check(builtins) ? PyModule_GetDict(builtins) : builtins;
    if (dict != PyEval_GetBuiltins()) /* those are there for good */
        return 0;
    for (int32_t i = 0; i < trace->groups.count; i++)
        if (trace->groups.at[i].dict == dict)
            outer = i;
    TRY(outer >= 0 || (outer = make_group(w, dict)) >= 0);
    return push_found(w, outer, step);
}

/* Whether the value that a load put into its register is fixed; writes down why. */
static int remember_load(Recorder *w, const Step *step) {
    PyObject *from = step->from >= 0 ? w->r->values[step->from] : NULL;
    PyObject *found = w->r->values[step->into];
    if (step->from >= 0 && !w->known[step->from].remembered)
        return 0;
    switch ((Op)step->op) {
    case LOAD_CONSTANT: return 1;
    case LOAD_ARGUMENT:
        return step->number < 64 && !(w->program->loose >> step->number & 1) &&
               w->rooted[step->into] && !is_plain_tensor(found) &&
               push_root(w, ROOT_SLOT, step->number, found);
    case LOAD_CLOSURE: return push_root(w, ROOT_CELL, step->number, found);
    case LOAD_GLOBAL:
    case LOAD_NAMESPACE: return remember_global(w, step);
    case LOAD_KEY: return step->number ? remember_attribute(w, step) : remember_item(w, step);
    case LOAD_ITEM: return remember_item(w, step);
    case LOAD_ATTRIBUTE: return remember_attribute(w, step);
    case LOAD_ELEMENT: {
        if (!PyDict_CheckExact(from))
            return 0;
        Py_ssize_t position = 0;
        PyObject *key = NULL;
        for (int32_t i = 0; i <= step->number; i++)
            if (!PyDict_Next(from, &position, &key, NULL))
                return 0;
        return key == found && push_exact(w, item_group(w, step->from));
    }
    case LOAD_TYPE: return found == (PyObject *)Py_TYPE(from) && push_type(w, step->from);
    default: return 0;
    }
}

/* A spec that says the same, among the last few: parameters of one shape then share what is read. */
static const TensorSpec *shared_spec(const Recorder *w, const TensorSpec *spec) {
    const Checked *tensors = w->trace->tensors.at;
    size_t size = sizeof *spec + 2 * (size_t)spec->dims * sizeof *spec->sizes;
    for (int32_t i = w->trace->tensors.count, last = i > 8 ? i - 8 : 0; i > last; i--)
        if (tensors[i - 1].spec->dims == spec->dims && memcmp(tensors[i - 1].spec, spec, size) == 0)
            return tensors[i - 1].spec;
    return spec;
}

static int remember_tensor(Recorder *w, const Step *step) {
    const TensorSpec *spec = step->data;
    PyObject *value = w->r->values[step->from];
    if (spec == NULL || !layout.ready || spec->leaf >= 0 || !tensor_holds(spec, value))
        return 0;
    spec = shared_spec(w, spec);
    return PUSH(w->trace->tensors, (Checked){value, spec});
}

static int remember_no_hooks(Recorder *w, const Step *step) {
    int32_t group = own_group(w, step->from);
    if (group < 0)
        return 0;
    for (int i = 0; i < 4; i++) {
        PyObject *hooks = PyDict_GetItemWithError(w->trace->groups.at[group].dict, hook_tables[i]);
        if (!push_pair(w, group, hook_tables[i], hooks))
            return 0;
        if (hooks != NULL)
            TRY(PyDict_Check(hooks) && push_word(w, &((PyDictObject *)hooks)->ma_used, 0));
    }
    return 1;
}

static int remember_keys(Recorder *w, const Step *step) {
    PyObject *value = w->r->values[step->from], *key;
    Py_ssize_t position = 0, i = 0, n = PyTuple_GET_SIZE(step->operand);
    if (!PyDict_CheckExact(value) || PyDict_GET_SIZE(value) != n)
        return 0;
    while (PyDict_Next(value, &position, &key, NULL)) {
        PyObject *want = i < n ? PyTuple_GET_ITEM(step->operand, i++) : NULL;
        if (want == NULL || !PyUnicode_CheckExact(want) || !PyUnicode_CheckExact(key) ||
            PyUnicode_Compare(key, want) != 0)
            return 0;
    }
    return i == n && push_exact(w, item_group(w, step->from));
}

static int remember_length(Recorder *w, const Step *step) {
    PyObject *value = w->r->values[step->from];
    TRY(push_type(w, step->from));
    if (PyTuple_CheckExact(value) || PyList_CheckExact(value))
        return push_word(w, &((PyVarObject *)value)->ob_size, (uint64_t)step->number);
    return PyDict_CheckExact(value) &&
           push_word(w, &((PyDictObject *)value)->ma_used, (uint64_t)step->number);
}

static int hold(Recorder *w, PyObject *value) {
    TRY(PUSH(w->trace->held, value));
    Py_INCREF(value);
    return 1;
}

/* Whether a check needs not be made again; writes down why. Each is made once more here. */
static int remember_check(Recorder *w, const Step *step) {
    if (step->from < 0 || !w->known[step->from].remembered)
        return 0;
    PyObject *value = w->r->values[step->from], *operand = step->operand;
    switch ((Op)step->op) {
    case CHECK_TYPE: return (PyObject *)Py_TYPE(value) == operand && push_type(w, step->from);
    case CHECK_IDENTITY: return value == operand;
    case CHECK_REFERENCE:
        return value != Py_None && push_word(w, &((PyWeakReference *)operand)->wr_object,
                                             (uint64_t)(uintptr_t)value);
    case CHECK_EQUAL:
        return value == operand || (is_constant(value) && equal_constant(w->r, value, operand) == 1 &&
                                    hold(w, value));
    case CHECK_TENSOR: return remember_tensor(w, step);
    case CHECK_LENGTH: return remember_length(w, step);
    case CHECK_KEYS: return remember_keys(w, step);
    case CHECK_CONTAINS:
    case CHECK_LACKS:
        return PyDict_CheckExact(value) && PyUnicode_CheckExact(operand) &&
               push_pair(w, item_group(w, step->from), operand,
                         step->op == CHECK_CONTAINS ? ANY : NULL);
    case CHECK_LACKS_OWN_ATTRIBUTE:
        return PyUnicode_CheckExact(operand) && push_pair(w, own_group(w, step->from), operand, NULL);
    case CHECK_CLASS_ATTRIBUTE: {
        if (!PyType_Check(value) || !push_type(w, step->from) || !push_class(w, (PyTypeObject *)value))
            return 0;
        PyObject *found = _PyType_Lookup((PyTypeObject *)value, operand);
        return step->number ? found == (step->second != NULL ? step->second : Py_None) : found == NULL;
    }
    case CHECK_CODE:
        return PyFunction_Check(value) && push_type(w, step->from) &&
               push_word(w, &((PyFunctionObject *)value)->func_code, (uint64_t)(uintptr_t)operand);
    case CHECK_NO_HOOKS: return remember_no_hooks(w, step);
    case CHECK_SAME_OBJECT:
        return w->known[step->into].remembered && w->r->values[step->into] == value;
    default: return 0;
    }
}

/* The registers that a step reads besides `from`; their number. */
static int32_t others(const Step *step, int32_t **registers) {
    *registers = (int32_t *)step->data + 1;
    return owns_data(step) ? *(int32_t *)step->data : 0;
}

static int place(Recorder *w, int32_t number) {
    if (number < 0 || !w->known[number].remembered || w->known[number].place >= 0)
        return 1;
    w->known[number].place = w->trace->values.count;
    return PUSH(w->trace->values, w->r->values[number]);
}

static int32_t renumbered(Recorder *w, int32_t number) {
    return number < 0 ? number : w->known[number].place;
}

/* The steps that stay, over the registers of the trace: first what is remembered, then what is loaded. */
static int place_steps(Recorder *w) {
    Trace *trace = w->trace;
    int32_t *more;
    for (int32_t i = 0; i < w->program->input_count; i++)
        TRY(place(w, w->program->inputs[i]));
    for (int32_t i = 0; i < w->asked.count; i++) {
        const Step *step = &w->program->steps[w->asked.at[i]];
        TRY(place(w, step->from));
        if (step->op == CHECK_SAME_OBJECT)
            TRY(place(w, step->into));
        for (int32_t k = 0, n = others(step, &more); k < n; k++)
            TRY(place(w, more[k]));
    }
    trace->registers = trace->values.count;
    trace->first = -1;
    for (int32_t i = 0; i < w->asked.count; i++) {
        Step step = w->program->steps[w->asked.at[i]];
        int loads = step.op < INT_SIZE, reads = 0;
        if (loads)
            w->known[step.into].place = trace->registers++;
        step.from = renumbered(w, step.from);
        reads = step.from >= 0 && step.from < trace->values.count;
        if (loads || step.op == CHECK_SAME_OBJECT) {
            step.into = renumbered(w, step.into);
            reads |= step.into < trace->values.count;
        }
        int32_t n = others(&step, &more);
        if (owns_data(&step)) { /* of CHECK_STORAGES as many numbers follow */
            size_t size = (size_t)(1 + (step.op == CHECK_STORAGES ? 2 * n : n)) * sizeof *more;
            int32_t *copy = PyMem_Malloc(size);
            TRY(copy != NULL);
            memcpy(copy, step.data, size);
            for (int32_t k = 0; k < n; k++) {
                copy[1 + k] = renumbered(w, more[k]);
                reads |= copy[1 + k] < trace->values.count;
            }
            step.data = copy;
        }
        if (reads && trace->first < 0)
            trace->first = trace->steps.count;
        if (!PUSH(trace->steps, step)) {
            if (owns_data(&step))
                PyMem_Free(step.data);
            return 0;
        }
    }
    if (trace->first < 0)
        trace->first = trace->steps.count;
    trace->inputs = PyMem_Malloc(sizeof(int32_t) * (size_t)(w->program->input_count + 1));
    TRY(trace->inputs != NULL);
    for (int32_t i = 0; i < w->program->input_count; i++)
        trace->inputs[i] = renumbered(w, w->program->inputs[i]);
    return 1;
}

static int record(Recorder *w) {
    const Program *program = w->program;
    for (int32_t i = 0; i < program->registers; i++)
        w->known[i] = (Known){0, 0, -1, -1, -1};
    for (int32_t i = 0; i < program->step_count; i++) {
        const Step *step = &program->steps[i];
        if ((step->op == LOAD_KEY && step->number) || step->op == CHECK_LACKS_OWN_ATTRIBUTE ||
            step->op == CHECK_NO_HOOKS)
            w->rooted[step->from] = 1;
    }
    for (int32_t i = 0; i < program->step_count; i++) {
        const Step *step = &program->steps[i];
        int fixed;
        if (step->op < INT_SIZE)
            fixed = w->known[step->into].remembered = (unsigned char)remember_load(w, step);
        else
            fixed = remember_check(w, step);
        PyErr_Clear();
        if (!fixed)
            TRY(PUSH(w->asked, i));
    }
    return place_steps(w);
}

/* Another object in a slot than in all traces: from now on the slot is no root. */
static void loosen(Program *program, const Recorder *w) {
    const Trace *last = program->traces[0];
    for (int32_t i = 0; i < last->roots.count; i++) {
        const Root *root = &last->roots.at[i];
        if (root->kind == ROOT_SLOT && !root_holds(root, w->slots, w->count, w->function))
            program->loose |= (uint64_t)1 << root->index;
    }
    trace_forget(program);
}

/* Puts a trace before the others, in the place of one with the same roots or of the oldest. */
static void keep(Program *program, Recorder *w) {
    int32_t at = 0;
    while (at < program->trace_count &&
           roots_that_hold(program->traces[at], w->slots, w->count, w->function) <
               program->traces[at]->roots.count)
        at++;
    if (at == TRACES) {
        loosen(program, w);
        release(w->trace);
        return;
    }
    if (at < program->trace_count)
        release(program->traces[at]);
    else
        program->trace_count++;
    memmove(&program->traces[1], program->traces, (size_t)at * sizeof(Trace *));
    program->traces[0] = w->trace;
}

/* How much of each sort the trace that matched last consists of, for tests and reports. */
PyObject *trace_sizes(const Program *program) {
    if (program->trace_count == 0)
        Py_RETURN_NONE;
    const Trace *trace = program->traces[0];
    return Py_BuildValue("{si si si si si si si}", "traces", program->trace_count, "roots",
                         trace->roots.count, "words", trace->words.count, "halves",
                         trace->halves.count, "tensors", trace->tensors.count, "dicts",
                         trace->groups.count, "steps", trace->steps.count);
}

void trace_record(Program *program, Registers *r, PyObject *const *slots, Py_ssize_t count,
                  PyObject *function) {
    if (program->wait) {
        program->wait--;
        return;
    }
    program->backoff = program->trace_count == 0 || program->useful >= 8 ? 0
                       : program->backoff < 1024                        ? 2 * program->backoff + 1
                                                                        : program->backoff;
    program->wait = program->trace_count == TRACES || program->backoff > TRACES ? program->backoff : 0;
    program->useful = 0;
    own_all(r); /* a look-up may run a key's equality */
    size_t registers = (size_t)program->registers + 1;
    Recorder w = {program, r, slots, count, function};
    w.trace = PyMem_Calloc(1, sizeof *w.trace);
    w.known = PyMem_Malloc(registers * sizeof *w.known);
    w.rooted = PyMem_Calloc(registers, 1);
    if (w.trace != NULL)
        w.trace->holders = 1;
    if (w.trace != NULL && w.known != NULL && w.rooted != NULL && record(&w))
        keep(program, &w);
    else if (w.trace != NULL)
        release(w.trace);
    PyMem_Free(w.known);
    PyMem_Free(w.rooted);
    PyMem_Free(w.types.at);
    PyMem_Free(w.asked.at);
    PyErr_Clear();
}
