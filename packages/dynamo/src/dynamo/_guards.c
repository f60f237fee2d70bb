/* The guard program: a flat array of steps over registers.
 *
 * A load step puts a value into the next register, a check step tests one, an integer step reads a
 * size into an integer register, a shape step evaluates a postfix expression over those. Registers
 * hold borrowed references as long as nothing but this file runs; before a step calls into Python
 * all of them become owned, so that nothing can be freed under them. A failing step ends the
 * program; an exception that a load raises means that the guard fails, as in the Python evaluator.
 * After a success _trace.c records what it rested on; the next call is answered from there if that is
 * all still so, and by the steps otherwise.
 */
#include "_guards.h"

static const char *const OP_NAMES[OP_COUNT] = {
    "LOAD_ARGUMENT", "LOAD_KEY", "LOAD_CLOSURE", "LOAD_FUNCTION", "LOAD_GLOBAL", "LOAD_NAMESPACE",
    "LOAD_CONSTANT", "LOAD_ATTRIBUTE", "LOAD_ITEM", "LOAD_ELEMENT",
    "LOAD_TYPE", "LOAD_LENGTH", "LOAD_SIZE", "LOAD_STRIDE", "LOAD_OFFSET", "INT_SIZE", "INT_STRIDE",
    "INT_OFFSET", "INT_VALUE", "REAL_VALUE", "CHECK_TYPE", "CHECK_IDENTITY", "CHECK_REFERENCE",
    "CHECK_EQUAL", "CHECK_TENSOR", "CHECK_LENGTH", "CHECK_KEYS", "CHECK_CONTAINS", "CHECK_LACKS",
    "CHECK_HAS_ATTRIBUTE", "CHECK_LACKS_ATTRIBUTE", "CHECK_LACKS_OWN_ATTRIBUTE",
    "CHECK_CLASS_ATTRIBUTE", "CHECK_CODE", "CHECK_NO_HOOKS", "CHECK_SAME_OBJECT", "CHECK_DISTINCT",
    "CHECK_STORAGES", "CHECK_STATE", "CHECK_EMPTY_TABLES", "CHECK_SHAPE", "CHECK_CALL", "CHECK_CALL_MANY",
};

/* Postfix operators of CHECK_SHAPE. */
typedef enum {
    X_CONSTANT, X_SIZE, X_ADD, X_SUBTRACT, X_MULTIPLY, X_FLOOR_DIVIDE, X_MODULO, X_MAXIMUM,
    X_MINIMUM, X_EQUAL, X_LESS, X_NOT, X_AND, X_OR,
    /* of doubles, given by their bits; they yield such bits, comparisons 0 or 1 */
    X_REAL_ADD, X_REAL_SUBTRACT, X_REAL_MULTIPLY, X_REAL_EQUAL, X_REAL_LESS, X_REAL_LESS_EQUAL,
    X_COUNT
} Postfix;

static const char *const POSTFIX_NAMES[X_COUNT] = {
    "CONSTANT", "SIZE", "ADD", "SUBTRACT", "MULTIPLY", "FLOOR_DIVIDE", "MODULO", "MAXIMUM",
    "MINIMUM", "EQUAL", "LESS", "NOT", "AND", "OR", "REAL_ADD", "REAL_SUBTRACT", "REAL_MULTIPLY",
    "REAL_EQUAL", "REAL_LESS", "REAL_LESS_EQUAL",
};

static PyObject *same_constant;      /* dynamo.guards.kinds.same_constant */
static PyObject *name_size, *name_stride, *name_offset, *name_code;
PyObject *name_builtins, *hook_tables[4];

/* ------------------------------------------------------------------------------ evaluation state */

void own_all(Registers *r) {
    if (r->live) {
        for (int32_t i = 0; i < r->base; i++) {
            Py_INCREF(r->values[i]);
            r->owned[i] = 1;
        }
        r->live = 0;
    }
    for (int32_t i = r->kept; i < r->loaded; i++)
        if (!r->owned[i]) {
            Py_INCREF(r->values[i]);
            r->owned[i] = 1;
        }
    r->kept = r->loaded;
    r->any_owned = 1;
}

void disown_all(Registers *r) {
    if (!r->any_owned)
        return;
    for (int32_t i = 0; i < r->loaded; i++)
        if (r->owned[i])
            Py_DECREF(r->values[i]);
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

int equal_constant(Registers *r, PyObject *left, PyObject *right) {
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

PyObject *own_dict(PyObject *value) {
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

static inline double real_of(int64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline int64_t bits_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
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
        case X_REAL_ADD: c = bits_of(real_of(a) + real_of(b)); break;
        case X_REAL_SUBTRACT: c = bits_of(real_of(a) - real_of(b)); break;
        case X_REAL_MULTIPLY: c = bits_of(real_of(a) * real_of(b)); break;
        case X_REAL_EQUAL: c = real_of(a) == real_of(b); break;
        case X_REAL_LESS: c = real_of(a) < real_of(b); break;
        case X_REAL_LESS_EQUAL: c = real_of(a) <= real_of(b); break;
        default: return 0;
        }
        stack[--top] = c;
    }
    return top == 0 && stack[0] != 0;
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

/* ---------------------------------------------------------------------------------------- steps */

static inline int has_plain_items(PyObject *value) { /* a dict whose [] is dict's */
    return PyDict_CheckExact(value) ||
           (PyDict_Check(value) &&
            Py_TYPE(value)->tp_as_mapping->mp_subscript == PyDict_Type.tp_as_mapping->mp_subscript);
}

/* An attribute of an instance as object.__getattribute__ finds it, or an item. 1, 0 or -1. */
static int load_key(Registers *r, const Step *step) {
    PyObject *from = r->values[step->from], *found;
    if (step->number) {
        PyObject *in_class = _PyType_Lookup(Py_TYPE(from), step->operand);
        if (in_class == NULL || Py_TYPE(in_class)->tp_descr_set == NULL) {
            PyObject *dict = own_dict(from);
            found = dict == NULL ? NULL : PyDict_GetItemWithError(dict, step->operand);
            if (LIKELY(found != NULL)) {
                put_borrowed(r, step->into, found);
                return 1;
            }
            if (PyErr_Occurred())
                return -1;
        }
        own_all(r);
        found = PyObject_GenericGetAttr(from, step->operand);
    } else if (has_plain_items(from)) {
        found = PyDict_GetItemWithError(from, step->operand);
        if (found == NULL)
            return PyErr_Occurred() ? -1 : 0;
        put_borrowed(r, step->into, found);
        return 1;
    } else {
        own_all(r);
        found = PyObject_GetItem(from, step->operand);
    }
    if (found == NULL)
        return -1;
    put_owned(r, step->into, found);
    return 1;
}

static int hooks_absent(Registers *r, PyObject *value) {
    PyObject *dict = own_dict(value);
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
        dict = own_dict(value);
    }
    return PyErr_Occurred() ? -1 : 1;
}

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
    case REAL_VALUE:
        if (!PyFloat_Check(from))
            return 0;
        r->integers[step->into] = bits_of(PyFloat_AS_DOUBLE(from));
        return 1;
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
static int check(Registers *r, const Step *step) {
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
    case CHECK_NO_HOOKS: return hooks_absent(r, value);
    case CHECK_SAME_OBJECT: return value == r->values[step->into];
    case CHECK_DISTINCT:
        return distinct(r->values, (int32_t *)step->data + 1, *(int32_t *)step->data);
    case CHECK_STORAGES: return storages_hold(r, step);
    case CHECK_STATE:
        if (LIKELY(step->data != NULL && state_is_readable()))
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

int run_steps(Registers *r, const Step *step, const Step *end, PyObject *const *slots,
              Py_ssize_t count, PyObject *function) {
    for (; step < end; step++) {
        int status;
        switch (step->op) {
        case LOAD_KEY: status = load_key(r, step); break;
        case CHECK_TENSOR:
            if (LIKELY(layout.ready && step->data != NULL && ((TensorSpec *)step->data)->leaf < 0)) {
                status = tensor_holds(step->data, r->values[step->from]);
                break;
            } /* fall through */
        default:
            status = step->op < CHECK_TYPE ? load(r, step, slots, count, function) : check(r, step);
        }
        if (UNLIKELY(status <= 0)) {
            if (status < 0 && PyErr_ExceptionMatches(PyExc_Exception)) {
                PyErr_Clear(); /* what cannot be loaded does not match */
                return 0;
            }
            return status;
        }
    }
    return 1;
}

PyObject *input_list(const Registers *r, const int32_t *inputs, int32_t count) {
    PyObject *list = PyList_New(count);
    for (int32_t i = 0; list != NULL && i < count; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(r->values[inputs[i]]));
    return list;
}

#define STACK_REGISTERS 256

int program_match(PyObject *program, PyObject *const *slots, Py_ssize_t count, PyObject *function,
                  PyObject **inputs) {
    Program *self = (Program *)program;
    if (LIKELY(self->trace_count)) {
        int answer = trace_match(self, slots, count, function, inputs);
        if (LIKELY(answer != UNKNOWN))
            return answer;
    }
    PyObject *few_values[STACK_REGISTERS];
    unsigned char few_owned[STACK_REGISTERS];
    int64_t few_integers[STACK_REGISTERS];
    Registers r = {few_values, few_owned, few_integers, 0, 0, 0, 0, 0};
    void *heap = NULL;
    if (self->registers > STACK_REGISTERS || self->integers > STACK_REGISTERS) {
        heap = PyMem_Malloc((size_t)self->registers * (sizeof(PyObject *) + 1) +
                            (size_t)self->integers * sizeof(int64_t));
        if (heap == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        r.integers = heap;
        r.values = (PyObject **)(r.integers + self->integers);
        r.owned = (unsigned char *)(r.values + self->registers);
    }
    int status = run_steps(&r, self->steps, self->steps + self->step_count, slots, count, function);
    if (status > 0) {
        *inputs = input_list(&r, self->inputs, self->input_count);
        status = *inputs == NULL ? -1 : 1;
    }
    if (status > 0)
        trace_record(self, &r, slots, count, function);
    if (r.any_owned) {
        PyObject *type = NULL, *value = NULL, *traceback = NULL;
        if (UNLIKELY(status < 0))
            PyErr_Fetch(&type, &value, &traceback);
        disown_all(&r);
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

/* Fill one step from (op, from, into, number, operand, second, data). */
static int fill(Step *step, PyObject *fields) {
    PyObject *operand, *second, *data;
    if (!PyArg_ParseTuple(fields, "iiiiOOO", &step->op, &step->from, &step->into, &step->number,
                          &operand, &second, &data))
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
    trace_forget(self);
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
    Py_TYPE(self)->tp_free(self);
}

static PyObject *program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *steps, *inputs;
    int registers, integers;
    if (!PyArg_ParseTuple(args, "O!iiO!", &PyList_Type, &steps, &registers, &integers, &PyTuple_Type,
                          &inputs))
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
    if (!which || !self->inputs || !self->steps) {
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

static PyObject *program_py_remembered(PyObject *self, PyObject *ignored) {
    return trace_sizes((Program *)self);
}

static PyMethodDef program_methods[] = {
    {"match", program_py_match, METH_VARARGS, "match(slots, function=None) -> list | None"},
    {"remembered", program_py_remembered, METH_NOARGS, "Sizes of the last trace, None without one."},
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

static PyObject *set_same_constant(PyObject *module, PyObject *function) {
    Py_XSETREF(same_constant, Py_NewRef(function));
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
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
    if (PyModule_AddFunctions(module, functions) < 0 || layout_ready(module) < 0 || PyModule_AddType(module, &ProgramType) < 0)
        return -1;
    if (add_names(module, "STEPS", OP_NAMES, OP_COUNT) < 0)
        return -1;
    return add_names(module, "POSTFIX", POSTFIX_NAMES, X_COUNT);
}
