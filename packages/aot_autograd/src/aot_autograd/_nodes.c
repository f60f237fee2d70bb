/* What runs at each call of a compiled graph with several results, and at its backward, as nodes.py has it in Python.
 *
 * Comes in: what nodes.py decided once, as the arguments of Maker. Goes out: the fields of a call and of a backward, as
 * bases of the Python classes that do what is rare; and the functions of the nodes. Torch is reached through its Python
 * objects alone. Invariant: both forms do the same; nothing here lets another thread run between a look at a backward's
 * fields and a change of them, and while a compiled backward runs (`busy`) the Python form is called, which waits. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <structmember.h>

enum { MOST = 60 }; /* results and nodes, whose numbers are bits */

static struct {
  PyObject *close, *materialize, *number, *call, *detach, *is_view, *running, *retains, *sent, *arrive, *take, *let_go, *held, *hold, *acquire, *release, *free_with_the_last;
} names;

/* ---- the fields of a call ------------------------------------------------------------------------------------------------- */
typedef struct {
  PyObject_HEAD
  PyObject *nodes, *context, *owner, *tensors, *results, *hooks, *spent, *running;
  uint64_t hooked;
} CallFields;

static int fields_traverse(CallFields *self, visitproc visit, void *arg) {
  Py_VISIT(self->nodes);
  Py_VISIT(self->context);
  Py_VISIT(self->owner);
  Py_VISIT(self->tensors);
  Py_VISIT(self->results);
  Py_VISIT(self->hooks);
  Py_VISIT(self->spent);
  Py_VISIT(self->running);
  return 0;
}
static int fields_clear(CallFields *self) {
  Py_CLEAR(self->nodes);
  Py_CLEAR(self->context);
  Py_CLEAR(self->owner);
  Py_CLEAR(self->tensors);
  Py_CLEAR(self->results);
  Py_CLEAR(self->hooks);
  Py_CLEAR(self->spent);
  Py_CLEAR(self->running);
  return 0;
}
static void fields_dealloc(CallFields *self) {
  PyObject_GC_UnTrack(self);
  fields_clear(self);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
#define FIELD(type, name) {#name, T_OBJECT, offsetof(type, name), 0, NULL}
#define BITS(type, name) {#name, T_ULONGLONG, offsetof(type, name), 0, NULL}
static PyMemberDef fields_members[] = {
    FIELD(CallFields, nodes), FIELD(CallFields, context), FIELD(CallFields, owner), FIELD(CallFields, tensors),
    FIELD(CallFields, results), FIELD(CallFields, hooks), FIELD(CallFields, spent), FIELD(CallFields, running),
    BITS(CallFields, hooked), {0}};

static PyObject *nothing(Py_ssize_t count) {
  PyObject *list = PyList_New(count);
  for (Py_ssize_t k = 0; list && k < count; k++) PyList_SET_ITEM(list, k, Py_NewRef(Py_None));
  return list;
}

static PyObject *fields_made(PyTypeObject *type, PyObject *nodes, PyObject *context, PyObject *owner, Py_ssize_t results) {
  CallFields *self = (CallFields *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->nodes = Py_NewRef(nodes);
  self->context = Py_NewRef(context);
  self->owner = Py_NewRef(owner);
  self->tensors = nothing(results);
  self->results = nothing(results);
  self->running = PyTuple_New(0);
  if (!self->tensors || !self->results || !self->running) Py_CLEAR(self);
  return (PyObject *)self;
}
static PyObject *fields_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *nodes, *context, *owner;
  Py_ssize_t results;
  if (!PyArg_ParseTuple(args, "OOOn", &nodes, &context, &owner, &results)) return NULL;
  return fields_made(type, nodes, context, owner, results);
}
static PyTypeObject CallFieldsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.CallFields",
    .tp_doc = "What the nodes of one call share.",
    .tp_basicsize = sizeof(CallFields),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_new = fields_new,
    .tp_traverse = (traverseproc)fields_traverse,
    .tp_clear = (inquiry)fields_clear,
    .tp_dealloc = (destructor)fields_dealloc,
    .tp_members = fields_members,
};

/* ---- the fields of a backward ----------------------------------------------------------------------------------------------- */
typedef struct {
  PyObject_HEAD
  PyObject *call, *given, *gradients, *arriving, *lock, *weak;
  uint64_t arrived, fresh, ticketed;
  long long number;
  char busy;
} Running;

static int running_traverse(Running *self, visitproc visit, void *arg) {
  Py_VISIT(self->call);
  Py_VISIT(self->given);
  Py_VISIT(self->gradients);
  Py_VISIT(self->arriving);
  Py_VISIT(self->lock);
  return 0;
}
static int running_clear(Running *self) {
  Py_CLEAR(self->call);
  Py_CLEAR(self->given);
  Py_CLEAR(self->gradients);
  Py_CLEAR(self->arriving);
  Py_CLEAR(self->lock);
  return 0;
}
static void running_dealloc(Running *self) {
  PyObject_GC_UnTrack(self);
  if (self->weak) PyObject_ClearWeakRefs((PyObject *)self);
  running_clear(self);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyMemberDef running_members[] = {
    FIELD(Running, call), FIELD(Running, given), FIELD(Running, gradients), FIELD(Running, arriving), FIELD(Running, lock),
    BITS(Running, arrived), BITS(Running, fresh), BITS(Running, ticketed), {"number", T_LONGLONG, offsetof(Running, number), 0, NULL},
    {"busy", T_BOOL, offsetof(Running, busy), 0, NULL}, {0}};

static PyObject *running_made(PyTypeObject *type, PyObject *call, long long number, Py_ssize_t values, PyObject *lock) {
  Running *self = (Running *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->call = Py_NewRef(call);
  self->number = number;
  self->lock = Py_NewRef(lock);
  self->given = nothing(values);
  self->gradients = PyDict_New();
  self->arriving = PyDict_New();
  if (!self->given || !self->gradients || !self->arriving) Py_CLEAR(self);
  return (PyObject *)self;
}
static PyObject *running_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  PyObject *call, *lock;
  long long number;
  Py_ssize_t values;
  if (!PyArg_ParseTuple(args, "OLnO", &call, &number, &values, &lock)) return NULL;
  return running_made(type, call, number, values, lock);
}
static PyTypeObject RunningType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.RunningFields",
    .tp_doc = "What one backward has brought to the nodes of one call so far.",
    .tp_basicsize = sizeof(Running),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_weaklistoffset = offsetof(Running, weak),
    .tp_new = running_new,
    .tp_traverse = (traverseproc)running_traverse,
    .tp_clear = (inquiry)running_clear,
    .tp_dealloc = (destructor)running_dealloc,
    .tp_members = running_members,
};

/* ---- Maker: from the list of inputs to the results ------------------------------------------------------------------------------ */
typedef struct {
  PyObject_HEAD
  PyObject *nodes, *forward, *stowed, *call, *set_grad, *token, *anything, *edge, *current, *runs;
  PyObject *backward, *lock, *keeping, *freeing, *keeps, *grad_enabled, *own, *kept, *count;
  PyObject *inputs, *edges, *direct; /* tuples of tuples of numbers */
  PyObject *values, *order, *interior; /* tuples of numbers */
  PyObject *own_inputs;                /* places of the inputs of the first result's own node */
  uint64_t leading_to_first;           /* results, as bits */
  Py_ssize_t first;
  PyObject *of_inputs, *of_results;  /* what makes the nodes, once it is known */
} Maker;

#define ALL_FIELDS(X)                                                                                                         \
  X(nodes) X(forward) X(stowed) X(call) X(set_grad) X(token) X(anything) X(edge) X(current) X(runs) X(backward) X(lock)    \
  X(keeping) X(freeing) X(keeps) X(grad_enabled) X(own) X(kept) X(count) X(inputs) X(edges)        \
  X(direct) X(values) X(order) X(interior) X(own_inputs) X(of_inputs) X(of_results)

static inline Py_ssize_t at(PyObject *tuple, Py_ssize_t k) { return PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, k)); }

/* Whether these are numbers below a limit; other tuples are refused when a Maker is made. */
static int below(PyObject *tuple, Py_ssize_t limit) {
  if (!PyTuple_CheckExact(tuple)) return 0;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(tuple); k++) {
    PyObject *item = PyTuple_GET_ITEM(tuple, k);
    if (!PyLong_Check(item) || at(tuple, k) < 0 || at(tuple, k) >= limit) return PyErr_Clear(), 0;
  }
  return 1;
}
static int all_below(PyObject *tuples, Py_ssize_t count, Py_ssize_t limit) {
  if (!PyTuple_CheckExact(tuples) || PyTuple_GET_SIZE(tuples) != count) return 0;
  for (Py_ssize_t k = 0; k < count; k++)
    if (!below(PyTuple_GET_ITEM(tuples, k), limit)) return 0;
  return 1;
}

/* Set grad mode, whatever exception there is; 0, or -1 with one more. */
static int grad_mode(Maker *self, PyObject *value) {
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyObject *done = PyObject_CallOneArg(self->set_grad, value);
  Py_XDECREF(done);
  if (!done) {
    Py_XDECREF(type), Py_XDECREF(error), Py_XDECREF(trace);
    return -1;
  }
  return PyErr_Restore(type, error, trace), 0;
}

/* The values of the whole call as a list, which nobody else holds; what it saves is in `stowed`. */
static PyObject *values_of(Maker *self, PyObject *stowed, PyObject *list, PyObject *sizes) {
  PyObject *given[] = {stowed, list, sizes};
  if (grad_mode(self, Py_False)) return NULL;
  PyObject *outputs = PyObject_Vectorcall(self->forward, given, 3, NULL);
  if (grad_mode(self, Py_True)) Py_CLEAR(outputs);
  PyObject *values = outputs ? PySequence_List(outputs) : NULL;
  Py_XDECREF(outputs);
  PyObject *closed = values ? PyObject_CallMethodNoArgs(stowed, names.close) : NULL;
  if (!closed) Py_CLEAR(values);
  Py_XDECREF(closed);
  return values;
}

/* The token of an inputs' node. */
static PyObject *token_of(Maker *self, Py_ssize_t number, PyObject *const *inputs, Py_ssize_t count) {
  PyObject *places = PyTuple_GET_ITEM(self->inputs, number);
  Py_ssize_t length = PyTuple_GET_SIZE(places);
  PyObject *given = PyTuple_New(2 + length);
  if (!given) return NULL;
  PyTuple_SET_ITEM(given, 0, PyLong_FromSsize_t(number));
  PyTuple_SET_ITEM(given, 1, Py_NewRef(Py_None)); /* the Python form has its token here */
  for (Py_ssize_t k = 0; k < length; k++) PyTuple_SET_ITEM(given, 2 + k, Py_NewRef(inputs[at(places, k)]));
  PyObject *token = PyObject_Call(self->of_inputs, given, NULL);
  Py_DECREF(given);
  return token;
}

/* Put a result in the place of a value. */
static int finish(Maker *self, CallFields *call, Py_ssize_t tangent, PyObject *values, PyObject *const *tokens, PyObject *const *inputs) {
  PyObject *edges = PyTuple_GET_ITEM(self->edges, tangent), *direct = PyTuple_GET_ITEM(self->direct, tangent);
  Py_ssize_t place = at(self->values, tangent), first = 3, many = PyTuple_GET_SIZE(edges), others = PyTuple_GET_SIZE(direct);
  Py_ssize_t own = tangent == self->first ? PyTuple_GET_SIZE(self->own_inputs) : 0;
  PyObject *given = PyTuple_New(first + many + (others ? others + 1 : own)), *box = PyList_New(1);
  if (!given || !box) {
    Py_XDECREF(given);
    Py_XDECREF(box);
    return -1;
  }
  PyList_SET_ITEM(box, 0, PyList_GET_ITEM(values, place)); /* taken out of the list, so that it may be the only one */
  PyList_SET_ITEM(values, place, Py_NewRef(Py_None));
  PyTuple_SET_ITEM(given, 0, Py_NewRef((PyObject *)call));
  PyTuple_SET_ITEM(given, 1, PyLong_FromSsize_t(tangent));
  PyTuple_SET_ITEM(given, 2, box);
  for (Py_ssize_t k = 0; k < many; k++) PyTuple_SET_ITEM(given, first + k, Py_NewRef(tokens[at(edges, k)]));
  for (Py_ssize_t k = 0; k < others; k++)
    PyTuple_SET_ITEM(given, first + many + k, Py_NewRef(PyList_GET_ITEM(values, at(self->values, at(direct, k)))));
  if (others) PyTuple_SET_ITEM(given, first + many + others, Py_NewRef(self->anything));
  for (Py_ssize_t k = 0; k < own; k++) PyTuple_SET_ITEM(given, first + many + k, Py_NewRef(inputs[at(self->own_inputs, k)]));
  PyObject *result = PyObject_Call(self->of_results, given, NULL), *reference = NULL;
  Py_DECREF(given);
  if (!result || !(reference = PyWeakref_NewRef(result, NULL))) {
    Py_XDECREF(result);
    return -1;
  }
  PyList_SetItem(values, place, result);
  return PyList_SetItem(call->tensors, tangent, reference);
}

static PyObject *maker_run(Maker *self, PyObject *const *args, Py_ssize_t count) {
  PyObject *tokens[MOST] = {NULL}, *values = NULL, *call = NULL, *made = NULL;
  Py_ssize_t nodes = PyTuple_GET_SIZE(self->inputs), results = PyTuple_GET_SIZE(self->values), k;
  for (k = 0; k < nodes; k++)
    if (count < 2 || !below(PyTuple_GET_ITEM(self->inputs, k), count - 2)) break;
  if (k < nodes || !self->of_inputs || !below(self->own_inputs, count - 2)) return PyErr_SetString(PyExc_TypeError, "an input is missing"), NULL;
  PyObject *stowed = PyObject_CallNoArgs(self->stowed);
  if (stowed) values = values_of(self, stowed, args[0], args[1]);
  for (k = 0; values && k < results; k++)
    if (at(self->values, k) >= PyList_GET_SIZE(values)) {
      Py_CLEAR(values);
      PyErr_SetString(PyExc_SystemError, "a value is missing");
    }
  if (values) call = fields_made((PyTypeObject *)self->call, self->nodes, stowed, stowed, results);
  int failed = !call;
  for (k = 0; !failed && k < nodes; k++) failed = !(tokens[k] = token_of(self, k, args + 2, count - 2));
  for (k = 0; !failed && k < results; k++) failed = finish(self, (CallFields *)call, at(self->order, k), values, tokens, args + 2);
  if (!failed) made = PyList_AsTuple(values);
  for (k = 0; k < nodes; k++) Py_XDECREF(tokens[k]);
  Py_XDECREF(values);
  Py_XDECREF(call);
  Py_XDECREF(stowed);
  return made;
}

/* ---- the functions of the nodes ---------------------------------------------------------------------------------------------- */
/* (context, number, nothing, inputs..) -> a token */
static PyObject *inputs_forward(Maker *self, PyObject *const *args, Py_ssize_t count) {
  if (count < 2) return PyErr_SetString(PyExc_TypeError, "a context and a number"), NULL;
  if (PyObject_SetAttr(args[0], names.number, args[1])) return NULL; /* a ticket is never absent */
  return PyObject_CallMethodNoArgs(self->token, names.detach);
}

/* (context, call, number, [value], edges..) -> the result: the value itself, if it is nobody's and no view. */
static PyObject *results_forward(Maker *self, PyObject *const *args, Py_ssize_t count) {
  if (count < 4 || !PyObject_TypeCheck(args[1], &CallFieldsType) || !PyLong_Check(args[2]) || !PyList_CheckExact(args[3]) ||
      PyList_GET_SIZE(args[3]) != 1)
    return PyErr_SetString(PyExc_TypeError, "a context, a call, a number and a value"), NULL;
  PyObject *value = PyList_GET_ITEM(args[3], 0), *reference = PyWeakref_NewRef(args[0], NULL);
  if (!reference || PyList_SetItem(((CallFields *)args[1])->results, PyLong_AsSsize_t(args[2]), reference) ||
      PyObject_SetAttr(args[0], names.materialize, Py_False) || PyObject_SetAttr(args[0], names.number, args[2]) ||
      PyObject_SetAttr(args[0], names.call, args[1]))
    return NULL;
  if (PyLong_AsSsize_t(args[2]) == self->first) {
    PyObject *held = PyDict_New();
    int failed = !held || PyObject_SetAttr(args[0], names.held, held);
    Py_XDECREF(held);
    if (failed) return NULL;
  }
  if (Py_REFCNT(value) == 1 && Py_TYPE(value) == Py_TYPE(self->token)) {
    PyObject *view = PyObject_CallMethodNoArgs(value, names.is_view);
    if (!view) return NULL;
    Py_DECREF(view);
    if (view == Py_False) return Py_NewRef(value);
  }
  return PyObject_CallMethodNoArgs(value, names.detach);
}

/* What a weak reference says, or NULL: nothing, or with an exception. */
static PyObject *referent(PyObject *reference) {
  PyObject *found = PyObject_CallNoArgs(reference);
  if (found == Py_None) Py_CLEAR(found);
  return found;
}

/* The backward of a number; NULL: none, or with an exception. */
static Running *found_of(CallFields *call, long long wanted) {
  PyObject *all = call->running;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(all); k++) {
    PyObject *found = referent(PyTuple_GET_ITEM(all, k));
    if (found && PyObject_TypeCheck(found, &RunningType) && ((Running *)found)->number == wanted) return (Running *)found;
    Py_XDECREF(found);
    if (!found && PyErr_Occurred()) return NULL;
  }
  return NULL;
}

/* Let a call know of a backward, and no more of those that are over; 0, or -1 with an exception. */
static int note(CallFields *call, PyObject *running) {
  PyObject *list = PyList_New(0), *reference = list ? PyWeakref_NewRef(running, NULL) : NULL, *tuple = NULL;
  int failed = !reference;
  for (Py_ssize_t k = 0; !failed && k < PyTuple_GET_SIZE(call->running); k++) {
    PyObject *alive = referent(PyTuple_GET_ITEM(call->running, k));
    failed = alive ? PyList_Append(list, PyTuple_GET_ITEM(call->running, k)) : PyErr_Occurred() != NULL;
    Py_XDECREF(alive);
  }
  if (!failed && !PyList_Append(list, reference)) tuple = PyList_AsTuple(list);
  Py_XDECREF(list);
  Py_XDECREF(reference);
  if (!tuple) return -1;
  Py_XSETREF(call->running, tuple);
  return 0;
}

/* The backward of this thread, which may have to be made. */
static Running *of_now(Maker *self, CallFields *call) {
  PyObject *number = PyObject_CallNoArgs(self->current);
  if (!number) return NULL;
  long long wanted = PyLong_AsLongLong(number);
  Py_DECREF(number);
  Running *found = found_of(call, wanted);
  if (found || PyErr_Occurred()) return found;
  PyObject *lock = PyObject_CallNoArgs(self->lock), *made;
  if (!lock) return NULL;
  made = running_made((PyTypeObject *)self->backward, (PyObject *)call, wanted, PyLong_AsSsize_t(self->count), lock);
  Py_DECREF(lock);
  if (!made) return NULL;
  found = found_of(call, wanted); /* of another thread, meanwhile */
  if (!found && !PyErr_Occurred() && !note(call, made)) return (Running *)made;
  Py_DECREF(made);
  return found;
}

/* Whether somebody may look at what arrives at a result that others are made of: 1, 0, or -1 with an exception. */
static int watched(Maker *self, CallFields *call) {
  if (call->hooked || (call->hooks && call->hooks != Py_None)) return 1;
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->interior); k++) {
    PyObject *tensor = PyObject_CallNoArgs(PyList_GET_ITEM(call->tensors, at(self->interior, k)));
    if (!tensor) return -1;
    PyObject *retains = tensor == Py_None ? Py_NewRef(Py_False) : PyObject_GetAttr(tensor, names.retains);
    Py_DECREF(tensor);
    Py_XDECREF(retains);
    if (retains != Py_False) return retains ? 1 : -1;
  }
  PyObject *all = PyObject_CallOneArg(self->runs, self->edge);
  Py_XDECREF(all);
  return all ? all != Py_True : -1;
}

/* A new ticket of a backward. */
static PyObject *ticket_of(Maker *self, Running *running) {
  PyObject *ticket = PyObject_CallMethodNoArgs(self->token, names.detach);
  if (ticket && PyObject_SetAttr(ticket, names.running, (PyObject *)running)) Py_CLEAR(ticket);
  return ticket;
}

/* What a result's node brings: tickets, what `sent` is, nothing for the other arguments of its forward; of the first
 * result with room for the gradients of its own inputs. */
static PyObject *brought(Maker *self, Running *running, Py_ssize_t tangent, PyObject *sent) {
  Py_ssize_t own = tangent == self->first ? PyTuple_GET_SIZE(self->own_inputs) : 0;
  PyObject *edges = PyTuple_GET_ITEM(self->edges, tangent), *ticket = NULL;
  Py_ssize_t first = 3, many = PyTuple_GET_SIZE(edges), others = PyTuple_GET_SIZE(PyTuple_GET_ITEM(self->direct, tangent));
  PyObject *all = PyTuple_New(first + many + (others ? others + 1 : own));
  for (Py_ssize_t k = 0; all && k < PyTuple_GET_SIZE(all); k++) {
    PyObject *one = Py_None;
    if (k >= first && k < first + many) {
      uint64_t bit = (uint64_t)1 << at(edges, k - first);
      if (!(running->ticketed & bit)) {
        running->ticketed |= bit;
        if (!ticket && !(ticket = ticket_of(self, running))) {
          Py_DECREF(all);
          return NULL;
        }
        one = ticket;
      }
    } else if (sent && k >= first + many && k - first - many < PyList_GET_SIZE(sent)) {
      one = PyList_GET_ITEM(sent, k - first - many);
    }
    PyTuple_SET_ITEM(all, k, Py_NewRef(one));
  }
  Py_XDECREF(ticket);
  return all;
}

/* What all these results free, of tuples of bits; as a number. */
static PyObject *together(PyObject *masks, uint64_t results) {
  PyObject *sum = PyLong_FromLong(0);
  for (Py_ssize_t k = 0; sum && k < PyTuple_GET_SIZE(masks); k++)
    if (results >> k & 1) Py_SETREF(sum, PyNumber_Or(sum, PyTuple_GET_ITEM(masks, k)));
  return sum;
}

/* Whether another node of the call may still run its backward, as nodes.py has it: 1, 0, or -1 with an exception. */
static int more_may_come(Maker *self, CallFields *call, Running *running, PyObject *spent) {
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(self->values); k++) {
    PyObject *node = referent(PyList_GET_ITEM(call->results, k)), *own = PyTuple_GET_ITEM(self->own, k);
    if (!node && PyErr_Occurred()) return -1;
    if (!node) continue;
    PyObject *runs = running->arrived >> k & 1 ? Py_NewRef(Py_False) : PyObject_CallOneArg(self->runs, node);
    Py_DECREF(node);
    Py_XDECREF(runs);
    if (runs != Py_False) return runs ? 1 : -1;
    PyObject *clash = PyNumber_And(own, spent);
    if (!clash) return -1;
    int none = !PyObject_IsTrue(clash);
    Py_DECREF(clash);
    if (none && PyObject_IsTrue(own)) return 1;
  }
  return 0;
}

/* Whether the compiled backward that runs now frees what is saved, and note what is spent: 1, 0 if the graph is retained or
 * another backward may come, which may be none if its result dies; -1 with an exception. */
static int frees(Maker *self, CallFields *call, Running *running, uint64_t fresh) {
  PyObject *keep = PyObject_CallNoArgs(self->keeps);
  Py_XDECREF(keep);
  if (keep != Py_False) return keep ? 0 : -1;
  PyObject *spent = together(self->kept, fresh), *all = spent ? PyDict_New() : NULL, *number;
  int more = -1;
  if (all && (number = PyLong_FromLongLong(running->number))) {
    if (!PyDict_SetItem(all, number, spent)) more = more_may_come(self, call, running, spent);
    Py_DECREF(number);
  }
  if (more >= 0) Py_XSETREF(call->spent, Py_NewRef(all));
  Py_XDECREF(all);
  Py_XDECREF(spent);
  if (more > 0) {
    PyObject *done = PyObject_CallMethodNoArgs((PyObject *)call, names.free_with_the_last);
    Py_XDECREF(done);
    if (!done) return -1;
  }
  return more < 0 ? -1 : !more;
}

/* Put the gradients of a first compiled backward where the inputs' nodes take them; 0, or -1 with an exception. */
static int leave(Running *running, PyObject *gradients) {
  if (!PyTuple_CheckExact(gradients)) return PyErr_SetString(PyExc_SystemError, "gradients are a tuple"), -1;
  for (Py_ssize_t k = 2; k < PyTuple_GET_SIZE(gradients); k++) {
    if (PyTuple_GET_ITEM(gradients, k) == Py_None) continue;
    PyObject *place = PyLong_FromSsize_t(k - 2);
    int failed = !place || PyDict_SetItem(running->gradients, place, PyTuple_GET_ITEM(gradients, k));
    Py_XDECREF(place);
    if (failed) return -1;
  }
  return 0;
}

/* Whether the next compiled backward is the ordinary one: the first of its call, of all tensors, without derivatives of
 * derivatives. */
static int ordinary(Maker *self, CallFields *call, Running *running) {
  if (running->busy || !running->fresh || PyDict_GET_SIZE(running->gradients) || (call->spent && call->spent != Py_None)) return 0;
  PyObject *second = PyObject_CallNoArgs(self->grad_enabled);
  Py_XDECREF(second);
  if (second != Py_False || self->edge == Py_None) return second ? second == Py_False : -1;
  PyObject *all = PyObject_CallOneArg(self->runs, self->edge); /* of some tensors it frees what is on their way */
  Py_XDECREF(all);
  return all ? all == Py_True : -1;
}

/* Run the compiled backward with what has arrived; the lock is held. */
static int advance(Maker *self, CallFields *call, Running *running) {
  uint64_t fresh = running->fresh;
  PyObject *rest = nothing(PyList_GET_SIZE(running->given)), *given = running->given, *done, *gradients = NULL;
  if (!rest) return -1;
  running->given = rest;
  running->fresh = 0;
  running->busy = 1;
  PyObject *context = Py_NewRef(call->context), *owner = Py_NewRef(call->owner);
  int freeing = frees(self, call, running, fresh);
  if (freeing > 0) {
    done = PyObject_CallMethodNoArgs((PyObject *)call, names.let_go);
    Py_XDECREF(done);
    if (!done) freeing = -1;
  }
  Py_ssize_t count = PyList_GET_SIZE(given);
  PyObject **all = freeing < 0 ? NULL : PyMem_Malloc((count + 2) * sizeof *all);
  if (all) {
    all[0] = context;
    for (Py_ssize_t k = 0; k < count; k++) all[k + 1] = PyList_GET_ITEM(given, k);
    all[count + 1] = (PyObject *)call; /* whose nodes ask for what the backward gives */
    gradients = PyObject_Vectorcall(freeing ? self->freeing : self->keeping, all, count + 2, NULL);
    PyMem_Free(all);
  } else if (freeing >= 0) {
    PyErr_NoMemory();
  }
  Py_DECREF(given);
  Py_DECREF(context);
  Py_DECREF(owner);
  int failed = !gradients || leave(running, gradients);
  Py_XDECREF(gradients);
  running->busy = 0;
  return failed ? -1 : 0;
}

/* The same in the ordinary case: 1 if it was one, 0, or -1 with an exception. */
static int advanced(Maker *self, CallFields *call, Running *running) {
  int done = ordinary(self, call, running);
  if (done <= 0) return done;
  PyObject *held = PyObject_CallMethodNoArgs(running->lock, names.acquire);
  if (!held) return -1;
  Py_DECREF(held);
  done = ordinary(self, call, running); /* another thread may have had the lock */
  if (done > 0 && advance(self, call, running)) done = -1;
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyObject *released = PyObject_CallMethodNoArgs(running->lock, names.release);
  Py_XDECREF(released);
  if (released) PyErr_Restore(type, error, trace);
  return released ? done : -1;
}

/* Put the gradients of inputs, whose node runs now, into a tuple from a place on; 0, or -1 with an exception. */
static int take(Maker *self, Running *running, PyObject *places, PyObject *tuple, Py_ssize_t first) {
  Py_ssize_t length = PyTuple_GET_SIZE(places);
  PyObject *taken = NULL;
  if (running->call && PyObject_TypeCheck(running->call, &CallFieldsType) &&
      advanced(self, (CallFields *)running->call, running) < 0)
    return -1;
  if (running->busy || running->fresh) {
    if (!(taken = PyObject_CallMethodOneArg((PyObject *)running, names.take, places))) return -1;
    if (!PyList_CheckExact(taken) || PyList_GET_SIZE(taken) != length) {
      Py_DECREF(taken);
      return PyErr_SetString(PyExc_SystemError, "what is taken is a list"), -1;
    }
  }
  int failed = 0;
  for (Py_ssize_t k = 0; k < length; k++) {
    PyObject *place = PyTuple_GET_ITEM(places, k);
    PyObject *found = taken ? PyList_GET_ITEM(taken, k) : PyDict_GetItemWithError(running->gradients, place);
    PyObject *before = PyTuple_GET_ITEM(tuple, first + k);
    PyTuple_SET_ITEM(tuple, first + k, Py_NewRef(found ? found : Py_None));
    Py_XDECREF(before);
    if (found && !taken) failed |= PyDict_DelItem(running->gradients, place);
  }
  Py_XDECREF(taken);
  return failed || PyErr_Occurred() ? -1 : 0;
}

/* Let the first result's node, which will run, hold a backward until it does; 0, or -1 with an exception. */
static int hold(Maker *self, CallFields *call, Running *running) {
  PyObject *node = referent(PyList_GET_ITEM(call->results, self->first));
  if (!node) return PyErr_Occurred() ? -1 : 0;
  PyObject *held = PyObject_GetAttr(node, names.held), *number = held ? PyLong_FromLongLong(running->number) : NULL;
  int failed = !number || PyDict_SetItem(held, number, (PyObject *)running);
  Py_XDECREF(number);
  Py_XDECREF(held);
  Py_DECREF(node);
  return failed ? -1 : 0;
}

/* The first result's node runs: it holds a backward no longer. */
static int unhold(PyObject *context, Running *running) {
  PyObject *held = PyObject_GetAttr(context, names.held), *number = held ? PyLong_FromLongLong(running->number) : NULL;
  int there = number ? PyDict_Contains(held, number) : -1;
  if (there > 0) there = PyDict_DelItem(held, number);
  Py_XDECREF(number);
  Py_XDECREF(held);
  return there < 0 ? -1 : 0;
}

/* (context, gradient) -> a ticket for each inputs' node that has none yet, and gradients of results on the way. */
static PyObject *results_backward(Maker *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) return PyErr_SetString(PyExc_TypeError, "a context and a gradient"), NULL;
  PyObject *object = PyObject_GetAttr(args[0], names.call), *number = PyObject_GetAttr(args[0], names.number);
  PyObject *made = NULL, *sent = NULL, *done;
  Running *running = NULL;
  if (!object || !number) goto end;
  CallFields *call = (CallFields *)object;
  Py_ssize_t tangent = PyLong_AsSsize_t(number);
  if (!PyObject_TypeCheck(object, &CallFieldsType) || tangent < 0 || tangent >= PyTuple_GET_SIZE(self->values)) {
    PyErr_SetString(PyExc_TypeError, "no call");
    goto end;
  }
  if (!(running = of_now(self, call))) goto end;
  int rare = running->busy || PyDict_GET_SIZE(running->arriving) || (call->spent && call->spent != Py_None);
  if (!rare && PyTuple_GET_SIZE(PyTuple_GET_ITEM(self->direct, tangent))) rare = watched(self, call);
  if (rare < 0) goto end;
  if (!rare) {
    running->arrived |= (uint64_t)1 << tangent;
    if (args[1] != Py_None) {
      running->fresh |= (uint64_t)1 << tangent;
      if (PyList_SetItem(running->given, at(self->values, tangent), Py_NewRef(args[1]))) goto end;
    }
  } else {
    if (!(done = PyObject_CallMethodObjArgs((PyObject *)running, names.arrive, number, args[1], NULL))) goto end;
    Py_DECREF(done);
    if (!(sent = PyObject_CallMethodOneArg((PyObject *)running, names.sent, number))) goto end;
    if (!PyList_CheckExact(sent)) {
      PyErr_SetString(PyExc_SystemError, "what is sent is a list");
      goto end;
    }
  }
  if (self->leading_to_first >> tangent & 1) {
    if (!rare && hold(self, call, running)) goto end;
    if (rare && !(done = PyObject_CallMethodNoArgs((PyObject *)running, names.hold))) goto end;
    if (rare) Py_DECREF(done);
  }
  made = brought(self, running, tangent, sent);
  if (made && tangent == self->first) {
    Py_ssize_t own = PyTuple_GET_SIZE(self->own_inputs);
    if (unhold(args[0], running) || (own && take(self, running, self->own_inputs, made, PyTuple_GET_SIZE(made) - own))) Py_CLEAR(made);
  }
end:
  Py_XDECREF(sent);
  Py_XDECREF(running);
  Py_XDECREF(number);
  Py_XDECREF(object);
  return made;
}

/* (context, ticket) -> the gradients of the node's inputs. */
static PyObject *inputs_backward(Maker *self, PyObject *const *args, Py_ssize_t count) {
  if (count != 2) return PyErr_SetString(PyExc_TypeError, "a context and a ticket"), NULL;
  PyObject *object = PyObject_GetAttr(args[1], names.running), *number = PyObject_GetAttr(args[0], names.number), *made = NULL;
  if (!object || !number) goto end;
  Py_ssize_t node = PyLong_AsSsize_t(number);
  if (!PyObject_TypeCheck(object, &RunningType) || node < 0 || node >= PyTuple_GET_SIZE(self->inputs)) {
    PyErr_SetString(PyExc_TypeError, "no backward");
    goto end;
  }
  PyObject *places = PyTuple_GET_ITEM(self->inputs, node);
  made = PyTuple_New(2 + PyTuple_GET_SIZE(places));
  for (Py_ssize_t k = 0; made && k < PyTuple_GET_SIZE(made); k++) PyTuple_SET_ITEM(made, k, Py_NewRef(Py_None));
  if (made && take(self, (Running *)object, places, made, 2)) Py_CLEAR(made);
end:
  Py_XDECREF(number);
  Py_XDECREF(object);
  return made;
}

/* ---- Step: one of these functions, as an attribute of a context's class a method ---------------------------------------------- */
typedef PyObject *(*StepFunction)(Maker *, PyObject *const *, Py_ssize_t);
typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *maker;
  StepFunction function;
} Step;

static PyObject *step_run(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords) {
  Step *self = (Step *)object;
  if (keywords) return PyErr_SetString(PyExc_TypeError, "no keywords"), NULL;
  return self->function((Maker *)self->maker, args, PyVectorcall_NARGS(flags));
}
static PyObject *step_bound(PyObject *self, PyObject *context, PyObject *type) {
  return context && context != Py_None ? PyMethod_New(self, context) : Py_NewRef(self);
}
static int step_traverse(Step *self, visitproc visit, void *arg) {
  Py_VISIT(self->maker);
  return 0;
}
static int step_clear(Step *self) {
  Py_CLEAR(self->maker);
  return 0;
}
static void step_dealloc(Step *self) {
  PyObject_GC_UnTrack(self);
  step_clear(self);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyTypeObject StepType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.Step",
    .tp_doc = "The forward or the backward of a node of a call with several results.",
    .tp_basicsize = sizeof(Step),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Step, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = step_bound,
    .tp_traverse = (traverseproc)step_traverse,
    .tp_clear = (inquiry)step_clear,
    .tp_dealloc = (destructor)step_dealloc,
};

static PyObject *step_of(PyObject *maker, void *function) {
  Step *self = (Step *)StepType.tp_alloc(&StepType, 0);
  if (!self) return NULL;
  self->vectorcall = step_run;
  self->maker = Py_NewRef(maker);
  self->function = (StepFunction)function;
  return (PyObject *)self;
}

/* ---- the type of Maker ------------------------------------------------------------------------------------------------------------ */
static PyObject *maker_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"nodes", "forward", "stowed", "call", "set_grad", "token", "anything", "edge", "current", "runs", "backward", "lock",
                          "keeping", "freeing", "keeps", "grad_enabled", "own", "kept", "count", "own_inputs", "leading_to_first", "inputs", "edges", "direct", "values", "order", "interior", NULL};
  Maker given = {0};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOO!OOOOOOO!OOOOOO!O!O!O!KO!OOO!OO", words, &given.nodes, &given.forward, &given.stowed,
                                   &PyType_Type, &given.call, &given.set_grad, &given.token, &given.anything, &given.edge,
                                   &given.current, &given.runs, &PyType_Type, &given.backward, &given.lock, &given.keeping,
                                   &given.freeing, &given.keeps, &given.grad_enabled, &PyTuple_Type, &given.own, &PyTuple_Type,
                                   &given.kept, &PyLong_Type, &given.count, &PyTuple_Type, &given.own_inputs,
                                   &given.leading_to_first, &PyTuple_Type, &given.inputs, &given.edges, &given.direct,
                                   &PyTuple_Type, &given.values, &given.order, &given.interior))
    return NULL;
  Py_ssize_t results = PyTuple_GET_SIZE(given.values), nodes = PyTuple_GET_SIZE(given.inputs);
  if (!results || results > MOST || nodes > MOST || !PyType_IsSubtype((PyTypeObject *)given.call, &CallFieldsType) ||
      !PyType_IsSubtype((PyTypeObject *)given.backward, &RunningType) || PyTuple_GET_SIZE(given.own) != results ||
      PyTuple_GET_SIZE(given.kept) != results || !below(given.values, PyLong_AsSsize_t(given.count)) ||
      !all_below(given.inputs, nodes, PY_SSIZE_T_MAX) || !all_below(given.edges, results, nodes) ||
      !all_below(given.direct, results, results) || !below(given.order, results) ||
      PyTuple_GET_SIZE(given.order) != results || !below(given.interior, results) ||
      !below(given.own_inputs, PY_SSIZE_T_MAX))
    return PyErr_SetString(PyExc_ValueError, "at most 60 results and nodes, each number one of them"), NULL;
  Maker *self = (Maker *)type->tp_alloc(type, 0);
  if (!self) return NULL;
#define TAKE(name) self->name = Py_XNewRef(given.name);
  ALL_FIELDS(TAKE)
  self->leading_to_first = given.leading_to_first;
  self->first = at(given.order, 0);
  return (PyObject *)self;
}
static int maker_traverse(Maker *self, visitproc visit, void *arg) {
#define VISIT(name) Py_VISIT(self->name);
  ALL_FIELDS(VISIT)
  return 0;
}
static int maker_clear(Maker *self) {
#define CLEAR(name) Py_CLEAR(self->name);
  ALL_FIELDS(CLEAR)
  return 0;
}
static void maker_dealloc(Maker *self) {
  PyObject_GC_UnTrack(self);
  maker_clear(self);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
/* begin(of_inputs, of_results): what makes the nodes, which have their functions from here. */
static PyObject *maker_begin(Maker *self, PyObject *args) {
  PyObject *of_inputs, *of_results;
  if (!PyArg_ParseTuple(args, "OO", &of_inputs, &of_results)) return NULL;
  Py_XSETREF(self->of_inputs, Py_NewRef(of_inputs));
  Py_XSETREF(self->of_results, Py_NewRef(of_results));
  Py_RETURN_NONE;
}
static PyMethodDef maker_methods[] = {
    {"begin", (PyCFunction)maker_begin, METH_VARARGS, "Tell it what makes the nodes."},
    {"run", (PyCFunction)(void (*)(void))maker_run, METH_FASTCALL, "(list of inputs, sizes, differentiable inputs..) -> results"},
    {0}};
static PyGetSetDef maker_steps[] = {
    {"inputs_forward", (getter)step_of, NULL, NULL, inputs_forward},
    {"inputs_backward", (getter)step_of, NULL, NULL, inputs_backward},
    {"results_forward", (getter)step_of, NULL, NULL, results_forward},
    {"results_backward", (getter)step_of, NULL, NULL, results_backward},
    {0}};
static PyTypeObject MakerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.Maker",
    .tp_doc = "What makes the nodes of a call with several results, and their functions.",
    .tp_basicsize = sizeof(Maker),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = maker_new,
    .tp_traverse = (traverseproc)maker_traverse,
    .tp_clear = (inquiry)maker_clear,
    .tp_dealloc = (destructor)maker_dealloc,
    .tp_methods = maker_methods,
    .tp_getset = maker_steps,
};

/* Put the types into the module of _node.c; 0, or -1 with an exception. */
int add_nodes(PyObject *module) {
  struct { PyObject **name; const char *text; } wanted[] = {
      {&names.close, "close"}, {&names.materialize, "materialize_grads"}, {&names.number, "number"}, {&names.call, "call"},
      {&names.detach, "detach"}, {&names.is_view, "_is_view"}, {&names.running, "running"}, {&names.retains, "retains_grad"},
      {&names.sent, "sent"}, {&names.arrive, "arrive"}, {&names.take, "take"},
      {&names.let_go, "let_go"}, {&names.held, "held"}, {&names.hold, "hold"}, {&names.acquire, "acquire"}, {&names.release, "release"},
      {&names.free_with_the_last, "free_with_the_last"},
  };
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
    if (!*wanted[k].name && !(*wanted[k].name = PyUnicode_InternFromString(wanted[k].text))) return -1;
  if (PyType_Ready(&CallFieldsType) || PyType_Ready(&RunningType) || PyType_Ready(&StepType) || PyType_Ready(&MakerType)) return -1;
  return PyModule_AddObjectRef(module, "CallFields", (PyObject *)&CallFieldsType) ||
                 PyModule_AddObjectRef(module, "RunningFields", (PyObject *)&RunningType) ||
                 PyModule_AddObjectRef(module, "Maker", (PyObject *)&MakerType)
             ? -1
             : 0;
}
