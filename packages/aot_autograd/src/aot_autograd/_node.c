/* The three functions that run at each call of a compiled graph with a backward, as training.py has them in Python.
 *
 * Comes in: what training.py decided once (which inputs and outputs are saved, which layouts are promised) and the
 * Python function that does the same. Goes out: callables that do it without Python's interpreter. Torch is reached
 * through its Python objects, and to write out a tangent that repeats one number through its stable C ABI, found by
 * dlsym: no header of torch is needed, and one binary serves every version.
 * Invariant: whatever is not the ordinary case is left, before anything was changed or a saved tensor was asked for,
 * to the Python function. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int add_nodes(PyObject *module); /* of _nodes.c */

static struct {
  PyObject *version, *to_save, *kept, *materialize, *constant, *saved, *clear, *contiguous, *is_contiguous, *stride,
      *is_neg, *is_conj, *address, *data_ptr, *asked, *level;
} names;

/* ---- numbers that Python gave as a tuple ---------------------------------------------------------------------------- */
typedef struct {
  Py_ssize_t count;
  Py_ssize_t *at;
} Places;

static int places_of(PyObject *tuple, Places *p) {
  p->count = 0;
  p->at = NULL;
  if (!PyTuple_Check(tuple)) {
    PyErr_SetString(PyExc_TypeError, "places are a tuple");
    return -1;
  }
  Py_ssize_t count = PyTuple_GET_SIZE(tuple);
  if (!(p->at = PyMem_Malloc((count + 1) * sizeof *p->at))) return PyErr_NoMemory(), -1;
  for (; p->count < count; p->count++) {
    p->at[p->count] = PyLong_AsSsize_t(PyTuple_GET_ITEM(tuple, p->count));
    if (p->at[p->count] == -1 && PyErr_Occurred()) return -1;
  }
  return 0;
}

/* Whether every place is one of a sequence of `length`. */
static int within(const Places *p, Py_ssize_t length) {
  for (Py_ssize_t k = 0; k < p->count; k++)
    if (p->at[k] < 0 || p->at[k] >= length) return 0;
  return 1;
}

/* What a function without arguments says: 1, 0, or -1 with an exception. */
static int asked(PyObject *function) {
  PyObject *answer = PyObject_CallNoArgs(function);
  if (!answer) return -1;
  int truth = answer == Py_True ? 1 : answer == Py_False ? 0 : PyObject_IsTrue(answer);
  Py_DECREF(answer);
  return truth;
}

static int told(PyObject *tensor, PyObject *name) {
  PyObject *answer = PyObject_CallMethodNoArgs(tensor, name);
  if (!answer) return -1;
  int truth = answer == Py_True;
  Py_DECREF(answer);
  return truth;
}

/* ---- tensors in memory: found by set_up(), else Python is asked -------------------------------------------------------------- */
typedef void *Handle; /* of the C ABI: where a C++ tensor is, which is one pointer to what it refers to */
static struct {
  int32_t (*sizes)(Handle, int64_t **);
  int32_t (*strides)(Handle, int64_t **);
  int32_t (*dimensions)(Handle, int64_t *);
  int32_t (*dtype)(Handle, int32_t *);
  int32_t (*data)(Handle, void **);
  int32_t (*empty)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, Handle *);
  int32_t (*release)(Handle);
  PyObject *(*wrap)(Handle);
} api;
enum { MOST_DIMENSIONS = 16, ON_CPU = 0 };

static void repeat(char *to, const char *one, int64_t count, Py_ssize_t item) {
  uint64_t word;
  if (item == 8) {
    memcpy(&word, one, 8);
    for (int64_t k = 0; k < count; k++) memcpy(to + 8 * k, &word, 8);
  } else if (item == 4) {
    uint32_t half;
    memcpy(&half, one, 4);
    for (int64_t k = 0; k < count; k++) memcpy(to + 4 * k, &half, 4);
  } else if (item == 2) {
    uint16_t quarter;
    memcpy(&quarter, one, 2);
    for (int64_t k = 0; k < count; k++) memcpy(to + 2 * k, &quarter, 2);
  } else {
    for (int64_t k = 0; k < count; k++) memcpy(to + item * k, one, item);
  }
}

/* The address that a Python number is, and which it takes; NULL also with an exception. */
static void *pointer_of(PyObject *number) {
  void *pointer = number ? PyLong_AsVoidPtr(number) : NULL;
  Py_XDECREF(number);
  return pointer;
}

/* Whether a tensor has memory of its own: one of a transform, which stands for many, and a sparse one have none. */
static struct {
  _Bool (*has_storage)(const void *); /* a C++ method of what a Python tensor refers to, which is at this offset */
  Py_ssize_t offset;
} held;

static int has_memory(PyObject *tensor) {
  if (held.has_storage) return held.has_storage(*(void **)((char *)tensor + held.offset));
  PyObject *address = PyObject_CallMethodNoArgs(tensor, names.data_ptr); /* refuses */
  if (!address) PyErr_Clear();
  Py_XDECREF(address);
  return address != NULL;
}

/* Whether derivatives are carried forward, in dual tensors: known from the namespace of torch.autograd.forward_ad. */
static PyObject *forward_ad;

static int carries_forward(void) {
  PyObject *level = forward_ad ? PyDict_GetItemWithError(forward_ad, names.level) : NULL;
  return !level || !PyLong_CheckExact(level) || PyLong_AsLong(level) >= 0;
}

static PyObject *has_memory_of(PyObject *module, PyObject *tensor) { return PyBool_FromLong(has_memory(tensor)); }

/* Find has_storage() in libc10, and where a tensor refers to its C++ part; without both a method is called. */
static void find_memory(const char *c10, PyObject *sample) {
  void *library = dlopen(c10, RTLD_NOW | RTLD_NOLOAD), *inside = pointer_of(PyObject_GetAttr(sample, names.address));
  held.has_storage = NULL;
  for (Py_ssize_t k = sizeof(PyObject); inside && library && k + 8 <= Py_TYPE(sample)->tp_basicsize; k += 8)
    if (*(void **)((char *)sample + k) == inside) {
      held.offset = k;
      *(void **)&held.has_storage = dlsym(library, "_ZNK3c1010TensorImpl11has_storageEv");
      break;
    }
  PyErr_Clear();
}

/* A new contiguous tensor with the values of one on the CPU whose elements all lie in the same place; NULL without an
 * exception where it is another kind of tensor. */
static PyObject *spread(PyObject *tensor, Py_ssize_t item) {
  if (!api.wrap) return NULL;
  /* Asked first: what has no memory of its own, sparse tensors or those of a transform, refuses. */
  void *one = pointer_of(PyObject_CallMethodNoArgs(tensor, names.data_ptr));
  void *inside = one ? pointer_of(PyObject_GetAttr(tensor, names.address)) : NULL, *memory;
  if (!inside) {
    PyErr_Clear();
    return NULL;
  }
  PyObject *made = NULL;
  Handle handle = &inside, fresh;
  int64_t rank, *sizes, *strides, dense[MOST_DIMENSIONS + 1], count = 1;
  int32_t dtype;
  if (api.dimensions(handle, &rank) || rank > MOST_DIMENSIONS || api.sizes(handle, &sizes) || api.strides(handle, &strides))
    return NULL;
  for (int64_t k = rank - 1; k >= 0; k--) {
    if (sizes[k] > 1 && strides[k]) return NULL;
    dense[k] = count;
    count *= sizes[k];
  }
  if (!count || api.dtype(handle, &dtype) || api.empty(rank, sizes, dense, dtype, ON_CPU, 0, &fresh)) return NULL;
  if (!api.data(fresh, &memory)) {
    repeat(memory, one, count, item);
    made = api.wrap(fresh);
  }
  api.release(fresh);
  return made;
}

/* set_up(libtorch_cpu, libtorch_python, libc10, any tensor, namespace of torch.autograd.forward_ad): whether spread()
 * works from now on. */
static PyObject *set_up(PyObject *module, PyObject *args) {
  const char *cpu, *python, *c10;
  PyObject *sample, *levels;
  if (!PyArg_ParseTuple(args, "sssOO!", &cpu, &python, &c10, &sample, &PyDict_Type, &levels)) return NULL;
  Py_XSETREF(forward_ad, Py_NewRef(levels));
  find_memory(c10, sample);
  void *libraries[2] = {dlopen(cpu, RTLD_NOW | RTLD_NOLOAD), dlopen(python, RTLD_NOW | RTLD_NOLOAD)};
  struct { void *field; int library; const char *name; } wanted[] = {
      {&api.sizes, 0, "aoti_torch_get_sizes"}, {&api.strides, 0, "aoti_torch_get_strides"},
      {&api.dimensions, 0, "aoti_torch_get_dim"}, {&api.dtype, 0, "aoti_torch_get_dtype"},
      {&api.data, 0, "aoti_torch_get_data_ptr"}, {&api.empty, 0, "aoti_torch_empty_strided"},
      {&api.release, 0, "aoti_torch_delete_tensor_object"},
      {&api.wrap, 1, "_Z16THPVariable_WrapRKN2at10TensorBaseE"}, /* last: it says that the others are there */
  };
  api.wrap = NULL;
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
    void *library = libraries[wanted[k].library], *symbol = library ? dlsym(library, wanted[k].name) : NULL;
    if (!symbol) Py_RETURN_FALSE;
    *(void **)wanted[k].field = symbol;
  }
  Py_RETURN_TRUE;
}

static PyObject *forget(PyObject *module, PyObject *ignored) {
  api.wrap = NULL;
  held.has_storage = NULL;
  Py_RETURN_NONE;
}

/* spread(tensor, bytes of an element): as above, None where it is another kind of tensor; for set-up to check. */
static PyObject *spread_of(PyObject *module, PyObject *args) {
  PyObject *tensor;
  Py_ssize_t item;
  if (!PyArg_ParseTuple(args, "On", &tensor, &item)) return NULL;
  PyObject *made = spread(tensor, item);
  return made || PyErr_Occurred() ? made : Py_NewRef(Py_None);
}

/* ---- Call: from the list of inputs to the autograd function ------------------------------------------------------------- */
typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *apply, *python, *grad_mode, *transforms, *hooks, *dict, *weak;
  Places differentiable;
} Call;

static PyObject *call_run(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords) {
  Call *self = (Call *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  if (count < 1 || count > 2 || keywords || !PyList_CheckExact(args[0]) ||
      !within(&self->differentiable, PyList_GET_SIZE(args[0]))) {
    PyErr_SetString(PyExc_TypeError, "a compiled graph takes one list of its inputs");
    return NULL;
  }
  int general = asked(self->transforms);
  if (!general) general = asked(self->grad_mode) ^ 1;
  if (!general) {
    PyObject *hooks = PyObject_CallOneArg(self->hooks, Py_False);
    general = hooks != Py_None;
    Py_XDECREF(hooks);
  }
  if (PyErr_Occurred()) return NULL;
  PyObject *sizes = count == 2 ? args[1] : Py_None;
  if (general) return PyObject_CallFunctionObjArgs(self->python, args[0], sizes, NULL);
  const Places *p = &self->differentiable;
  PyObject *given = PyTuple_New(2 + p->count);
  if (!given) return NULL;
  PyTuple_SET_ITEM(given, 0, Py_NewRef(args[0]));
  PyTuple_SET_ITEM(given, 1, Py_NewRef(sizes));
  for (Py_ssize_t k = 0; k < p->count; k++)
    PyTuple_SET_ITEM(given, 2 + k, Py_NewRef(PyList_GET_ITEM(args[0], p->at[k])));
  PyObject *result = PyObject_Call(self->apply, given, NULL);
  Py_DECREF(given);
  return result;
}

static PyObject *call_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"apply", "python", "grad_mode", "transforms", "hooks", "differentiable", NULL};
  PyObject *apply, *python, *grad_mode, *transforms, *hooks, *differentiable;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOO", words, &apply, &python, &grad_mode, &transforms, &hooks,
                                   &differentiable))
    return NULL;
  Call *self = (Call *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = call_run;
  self->apply = Py_NewRef(apply);
  self->python = Py_NewRef(python);
  self->grad_mode = Py_NewRef(grad_mode);
  self->transforms = Py_NewRef(transforms);
  self->hooks = Py_NewRef(hooks);
  if (places_of(differentiable, &self->differentiable)) Py_CLEAR(self);
  return (PyObject *)self;
}
static int call_traverse(Call *self, visitproc visit, void *arg) {
  Py_VISIT(self->apply);
  Py_VISIT(self->python);
  Py_VISIT(self->grad_mode);
  Py_VISIT(self->transforms);
  Py_VISIT(self->hooks);
  Py_VISIT(self->dict);
  return 0;
}
static int call_clear(Call *self) {
  Py_CLEAR(self->apply);
  Py_CLEAR(self->python);
  Py_CLEAR(self->grad_mode);
  Py_CLEAR(self->transforms);
  Py_CLEAR(self->hooks);
  Py_CLEAR(self->dict);
  return 0;
}
static void call_dealloc(Call *self) {
  PyObject_GC_UnTrack(self);
  if (self->weak) PyObject_ClearWeakRefs((PyObject *)self);
  call_clear(self);
  PyMem_Free(self->differentiable.at);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
/* A copy of a function is the function. */
static PyObject *call_copy(PyObject *self, PyObject *ignored) { return Py_NewRef(self); }
static PyMethodDef call_methods[] = {
    {"__copy__", call_copy, METH_NOARGS, NULL}, {"__deepcopy__", call_copy, METH_O, NULL}, {0}};
static PyGetSetDef call_fields[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {0}};
static PyTypeObject CallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.Call",
    .tp_doc = "A compiled graph with a backward; call it with the list of its inputs and, where there are any, the sizes.",
    .tp_basicsize = sizeof(Call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Call, vectorcall),
    .tp_dictoffset = offsetof(Call, dict),
    .tp_weaklistoffset = offsetof(Call, weak),
    .tp_methods = call_methods,
    .tp_call = PyVectorcall_Call,
    .tp_new = call_new,
    .tp_traverse = (traverseproc)call_traverse,
    .tp_clear = (inquiry)call_clear,
    .tp_dealloc = (destructor)call_dealloc,
    .tp_getset = call_fields,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
};

/* ---- Forward: (context, list of inputs, sizes, differentiable inputs..) -> outputs --------------------------------------- */
typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *run, *python, *before, *check, *tensor; /* `before` looks at the list of inputs that is kept, or is None */
  Places inputs, outputs; /* which are saved */
  Places numbers;         /* saved numbers: an input's place, or an output's, as -1 - place */
  Places tensors;         /* inputs that are tensors, known from the first call on */
  Places constant;        /* outputs without a gradient */
  Places tracked;         /* outputs with a gradient: the list of inputs that is kept ends with weak references to them */
  Places outside;         /* saved tensors whose versions are kept: the caller can change them, and not all backwards read them */
  Py_ssize_t total, visible;
  int keep, begun;
} Forward;

/* The version counters of tensors in a list or a tuple, or NULL with an exception. */
static PyObject *versions_of(const Places *p, PyObject *tensors) {
  PyObject *versions = PyList_New(p->count);
  for (Py_ssize_t k = 0; versions && k < p->count; k++) {
    PyObject *version = PyObject_GetAttr(PySequence_Fast_GET_ITEM(tensors, p->at[k]), names.version);
    if (!version) Py_CLEAR(versions);
    else PyList_SET_ITEM(versions, k, version);
  }
  return versions;
}

static PyObject *numbers_of(const Places *p, PyObject *primals, PyObject *outputs) {
  PyObject *numbers = PyTuple_New(p->count);
  for (Py_ssize_t k = 0; numbers && k < p->count; k++) {
    Py_ssize_t at = p->at[k];
    PyTuple_SET_ITEM(numbers, k, Py_NewRef(at >= 0 ? PyList_GET_ITEM(primals, at) : PyTuple_GET_ITEM(outputs, -1 - at)));
  }
  return numbers;
}

/* The outputs that have no gradient, as the context takes them. */
static PyObject *constants_of(Forward *self, PyObject *outputs) {
  PyObject *list = PyList_New(0);
  for (Py_ssize_t k = 0; list && k < self->constant.count; k++) {
    PyObject *output = PyTuple_GET_ITEM(outputs, self->constant.at[k]);
    int tensor = PyObject_IsInstance(output, self->tensor);
    if (tensor < 0 || (tensor && PyList_Append(list, output))) Py_CLEAR(list);
  }
  PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
  Py_XDECREF(list);
  return tuple;
}

/* Tell the context what is kept until the backward; 0, or -1 with an exception. */
static int keep_all(Forward *self, PyObject *context, PyObject *saved, PyObject *primals, PyObject *versions,
                    PyObject *outputs, PyObject *sizes) {
  PyObject *numbers = numbers_of(&self->numbers, primals, outputs);
  PyObject *counted = self->outside.count ? versions_of(&self->outside, saved) : Py_NewRef(Py_None);
  PyObject *kept = numbers && counted ? PyTuple_Pack(5, primals, versions, numbers, sizes, counted) : NULL;
  int failed = !kept || PyObject_SetAttr(context, names.to_save, saved) || PyObject_SetAttr(context, names.kept, kept) ||
               PyObject_SetAttr(context, names.materialize, Py_False);
  Py_XDECREF(numbers);
  Py_XDECREF(counted);
  Py_XDECREF(kept);
  if (!failed && self->constant.count) {
    PyObject *constant = constants_of(self, outputs);
    failed = !constant || PyObject_SetAttr(context, names.constant, constant);
    Py_XDECREF(constant);
  }
  return failed ? -1 : 0;
}

/* The outputs of the compiled graph as a tuple of the promised length. */
static PyObject *outputs_of(PyObject *run, PyObject *list, PyObject *check, Py_ssize_t expected, const char *what) {
  PyObject *outputs = PyObject_CallOneArg(run, list);
  if (!outputs) return NULL;
  int sequence = PyTuple_Check(outputs) || PyList_Check(outputs); /* a tensor can be iterated too */
  if (sequence && !PyTuple_CheckExact(outputs)) Py_SETREF(outputs, PySequence_Tuple(outputs));
  if (!outputs || (sequence && PyTuple_GET_SIZE(outputs) == expected)) return outputs;
  PyObject *checked = PyObject_CallFunction(check, "Ons", outputs, expected, what); /* raises */
  Py_DECREF(outputs);
  if (checked) PyErr_SetString(PyExc_SystemError, "a result of the wrong length was taken for right");
  Py_XDECREF(checked);
  return NULL;
}

/* Append weak references to the outputs with a gradient; 0, or -1 with an exception. */
static int refer_to(Forward *self, PyObject *outputs, PyObject *list) {
  for (Py_ssize_t k = 0; k < self->tracked.count; k++) {
    PyObject *reference = PyWeakref_NewRef(PyTuple_GET_ITEM(outputs, self->tracked.at[k]), NULL);
    int failed = !reference || PyList_Append(list, reference);
    Py_XDECREF(reference);
    if (failed) return -1;
  }
  return 0;
}

static PyObject *forward_run(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords) {
  Forward *self = (Forward *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  Py_ssize_t length = count >= 3 && PyList_CheckExact(args[1]) ? PyList_GET_SIZE(args[1]) : -1;
  if (!self->begun || length < 0 || !within(&self->inputs, length) || !within(&self->tensors, length))
    return PyObject_Vectorcall(self->python, args, count, keywords);
  PyObject *list = args[1], *versions, *primals, *outputs = NULL, *result = NULL;
  if (self->keep) {
    primals = PyList_GetSlice(list, 0, length);
    PyObject *done = !primals ? NULL : self->before == Py_None ? Py_NewRef(Py_None) : PyObject_CallOneArg(self->before, primals);
    if (!done) {
      Py_XDECREF(primals);
      return NULL;
    }
    Py_DECREF(done);
    if (!(versions = versions_of(&self->tensors, primals))) { /* a tensor that counts nothing */
      PyErr_Clear();
      Py_DECREF(primals);
      return PyObject_Vectorcall(self->python, args, count, keywords);
    }
  } else {
    versions = Py_NewRef(Py_None);
    primals = Py_NewRef(Py_None);
  }
  Py_ssize_t inputs = self->inputs.count;
  PyObject *saved = PyTuple_New(inputs + self->outputs.count);
  for (Py_ssize_t k = 0; saved && k < inputs; k++)
    PyTuple_SET_ITEM(saved, k, Py_NewRef(PyList_GET_ITEM(list, self->inputs.at[k])));
  if (saved) outputs = outputs_of(self->run, list, self->check, self->total, "forward");
  if (outputs && self->keep && refer_to(self, outputs, primals)) Py_CLEAR(outputs);
  if (outputs) {
    for (Py_ssize_t k = 0; k < self->outputs.count; k++)
      PyTuple_SET_ITEM(saved, inputs + k, Py_NewRef(PyTuple_GET_ITEM(outputs, self->outputs.at[k])));
    if (!keep_all(self, args[0], saved, primals, versions, outputs, args[2]))
      result = self->visible == self->total ? Py_NewRef(outputs) : PyTuple_GetSlice(outputs, 0, self->visible);
  }
  Py_XDECREF(saved);
  Py_DECREF(primals);
  Py_DECREF(versions);
  Py_XDECREF(outputs);
  return result;
}

static PyObject *forward_begin(Forward *self, PyObject *tensors) {
  Places places;
  if (self->begun) Py_RETURN_NONE;
  if (places_of(tensors, &places)) {
    PyMem_Free(places.at);
    return NULL;
  }
  self->tensors = places;
  self->begun = 1;
  Py_RETURN_NONE;
}

static PyObject *forward_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"run", "python", "before", "check", "tensor", "inputs", "outputs", "numbers", "constant", "tracked", "outside", "total", "visible", "keep", NULL};
  PyObject *run, *python, *before, *check, *tensor, *inputs, *outputs, *numbers, *constant, *tracked, *outside;
  Py_ssize_t total, visible;
  int keep;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOOOOnnp", words, &run, &python, &before, &check, &tensor, &inputs, &outputs,
                                   &numbers, &constant, &tracked, &outside, &total, &visible, &keep))
    return NULL;
  Forward *self = (Forward *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = forward_run;
  self->run = Py_NewRef(run);
  self->python = Py_NewRef(python);
  self->before = Py_NewRef(before);
  self->check = Py_NewRef(check);
  self->tensor = Py_NewRef(tensor);
  self->total = total;
  self->visible = visible;
  self->keep = keep;
  if (places_of(inputs, &self->inputs) || places_of(outputs, &self->outputs) || places_of(numbers, &self->numbers) ||
      places_of(constant, &self->constant) || places_of(tracked, &self->tracked) || places_of(outside, &self->outside)) {
    Py_DECREF(self);
    return NULL;
  }
  int right = visible <= total && within(&self->outputs, total) && within(&self->constant, visible) && within(&self->tracked, visible) &&
              within(&self->outside, self->inputs.count + self->outputs.count);
  for (Py_ssize_t k = 0; k < self->numbers.count; k++) right &= self->numbers.at[k] >= 0 ? keep : -1 - self->numbers.at[k] < total;
  if (right) return (PyObject *)self;
  Py_DECREF(self);
  PyErr_SetString(PyExc_ValueError, "a place is none of the graph's outputs or saved tensors");
  return NULL;
}
static int forward_traverse(Forward *self, visitproc visit, void *arg) {
  Py_VISIT(self->run);
  Py_VISIT(self->python);
  Py_VISIT(self->before);
  Py_VISIT(self->check);
  Py_VISIT(self->tensor);
  return 0;
}
static int forward_clear(Forward *self) {
  Py_CLEAR(self->run);
  Py_CLEAR(self->python);
  Py_CLEAR(self->before);
  Py_CLEAR(self->check);
  Py_CLEAR(self->tensor);
  return 0;
}
static void forward_dealloc(Forward *self) {
  PyObject_GC_UnTrack(self);
  forward_clear(self);
  Places *all[] = {&self->inputs, &self->outputs, &self->numbers, &self->tensors, &self->constant, &self->tracked, &self->outside};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++) PyMem_Free(all[k]->at);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyMethodDef forward_methods[] = {
    {"begin", (PyCFunction)forward_begin, METH_O, "Which inputs are tensors: from now on calls run here."}, {0}};
static PyTypeObject ForwardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.Forward",
    .tp_doc = "The forward of an autograd function.",
    .tp_basicsize = sizeof(Forward),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Forward, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = forward_new,
    .tp_traverse = (traverseproc)forward_traverse,
    .tp_clear = (inquiry)forward_clear,
    .tp_dealloc = (destructor)forward_dealloc,
    .tp_methods = forward_methods,
};

/* ---- Backward: (context, gradients..) -> (None, None, gradients..) -------------------------------------------------------- */
typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  PyObject *python, *resolve, *check, *spared, *grad_mode, *keeps_graph, *transforms, *modes, *tensor;
  PyObject *passing; /* puts gradients that flow in where they are gradients that go out; or None */
  PyObject *known;   /* absent tangents, as bits -> what `resolve` said: (run, kept or None, unreached) */
  PyObject *layouts; /* of each tangent the strides, or None for contiguous ones */
  Places items;      /* of each tangent on the CPU the bytes of an element, else 0 */
  Places wanted;     /* which gradients are tangents; the others belong to outputs without a gradient */
  Places order;      /* of numbers and saved tensors, as the backward takes them; empty: as they are */
  Py_ssize_t results;
  int saves;   /* whether tensors are saved */
  int complex; /* whether a tangent is: only those may be conjugated without having been written out */
} Backward;

/* A tangent as the backward was promised it. NULL, perhaps with an exception: Python must look at it. */
static PyObject *tangent_of(PyObject *gradient, PyObject *layout, Py_ssize_t item, Backward *self) {
  if ((PyObject *)Py_TYPE(gradient) != self->tensor || !has_memory(gradient) || told(gradient, names.is_neg) ||
      (self->complex && told(gradient, names.is_conj)))
    return NULL;
  if (layout == Py_None) {
    int contiguous = told(gradient, names.is_contiguous);
    if (contiguous) return contiguous < 0 ? NULL : Py_NewRef(gradient);
    PyObject *made = item ? spread(gradient, item) : NULL; /* what the sum of an output hands back */
    return made || PyErr_Occurred() ? made : PyObject_CallMethodNoArgs(gradient, names.contiguous);
  }
  PyObject *strides = PyObject_CallMethodNoArgs(gradient, names.stride);
  int equal = strides ? PyObject_RichCompareBool(strides, layout, Py_EQ) : 0;
  Py_XDECREF(strides);
  return equal == 1 ? Py_NewRef(gradient) : NULL;
}

/* The tangents that are there, the bits of the others in *absent. NULL without an exception: Python must look at them. */
static PyObject *tangents_of(Backward *self, PyObject *const *gradients, uint64_t *absent, int *changed) {
  PyObject *tangents = PyList_New(0);
  *absent = 0;
  for (Py_ssize_t k = 0; tangents && k < self->wanted.count; k++) {
    PyObject *gradient = gradients[self->wanted.at[k]];
    if (gradient == Py_None) {
      *absent |= (uint64_t)1 << k;
      continue;
    }
    PyObject *tangent = tangent_of(gradient, PyTuple_GET_ITEM(self->layouts, k), self->items.at[k], self);
    *changed |= tangent != gradient;
    if (!tangent || PyList_Append(tangents, tangent)) Py_CLEAR(tangents);
    Py_XDECREF(tangent);
  }
  if (!tangents) PyErr_Clear();
  return tangents;
}

/* What runs for these absent tangents; borrowed. NULL without an exception: Python must. */
static PyObject *resolved(Backward *self, uint64_t absent) {
  PyObject *bits = PyLong_FromUnsignedLongLong(absent), *found = NULL;
  if (!bits) return NULL;
  found = PyDict_GetItemWithError(self->known, bits);
  if (!found && !PyErr_Occurred()) {
    PyObject *made = PyObject_CallOneArg(self->resolve, bits);
    if (made && made != Py_None && !PyDict_SetItem(self->known, bits, made)) found = made; /* the dict holds it */
    Py_XDECREF(made);
  }
  Py_DECREF(bits);
  return found;
}

/* The list that the compiled backward is called with. */
static PyObject *values_of(Backward *self, PyObject *numbers, PyObject *saved, PyObject *kept, PyObject *tangents) {
  Py_ssize_t first = PyTuple_GET_SIZE(numbers), all = first + PyTuple_GET_SIZE(saved);
  Py_ssize_t ordered = self->order.count ? self->order.count : all;
  Py_ssize_t count = kept == Py_None ? ordered : PyTuple_GET_SIZE(kept), present = PyList_GET_SIZE(tangents);
  PyObject *values = PyList_New(count + present);
  for (Py_ssize_t k = 0; values && k < count + present; k++) {
    if (k >= count) {
      PyList_SET_ITEM(values, k, Py_NewRef(PyList_GET_ITEM(tangents, k - count)));
      continue;
    }
    Py_ssize_t at = kept == Py_None ? k : PyLong_AsSsize_t(PyTuple_GET_ITEM(kept, k));
    if (at >= 0 && at < ordered && self->order.count) at = self->order.at[at];
    if (at < 0 || at >= all) {
      Py_CLEAR(values);
      PyErr_SetString(PyExc_SystemError, "a backward takes a value that was not saved");
      break;
    }
    PyList_SET_ITEM(values, k, Py_NewRef(at < first ? PyTuple_GET_ITEM(numbers, at) : PyTuple_GET_ITEM(saved, at - first)));
  }
  return values;
}

/* Unless the graph is retained, let go of what is saved, so that the compiled backward frees it as it goes. Numbers stay:
 * where nothing else is saved, eager allows a second backward. */
static int let_go(Backward *self, PyObject *context, PyObject *kept) {
  int keep = asked(self->keeps_graph);
  if (keep) return keep < 0 ? -1 : 0;
  PyObject *done = PyObject_CallMethodNoArgs(context, names.clear), *rest = NULL;
  if (!done) return -1;
  Py_DECREF(done);
  if (kept == Py_None || !PyObject_Size(PyTuple_GET_ITEM(kept, 2))) return PyObject_SetAttr(context, names.kept, Py_None);
  rest = PyTuple_Pack(5, Py_None, Py_None, PyTuple_GET_ITEM(kept, 2), PyTuple_GET_ITEM(kept, 3), Py_None);
  int failed = !rest || PyObject_SetAttr(context, names.kept, rest);
  Py_XDECREF(rest);
  return failed ? -1 : 0;
}

static PyObject *finished(Backward *self, PyObject *outputs, PyObject *unreached) {
  PyObject *results = PyTuple_New(2 + self->results);
  if (!results) return NULL;
  PyTuple_SET_ITEM(results, 0, Py_NewRef(Py_None));
  PyTuple_SET_ITEM(results, 1, Py_NewRef(Py_None));
  for (Py_ssize_t k = 0; k < self->results; k++) PyTuple_SET_ITEM(results, 2 + k, Py_NewRef(PyTuple_GET_ITEM(outputs, k)));
  for (Py_ssize_t k = 0; k < PyTuple_GET_SIZE(unreached); k++) {
    Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(unreached, k));
    if (at < 0 || at >= self->results) continue;
    PyObject *gradient = PyTuple_GET_ITEM(results, 2 + at);
    PyTuple_SET_ITEM(results, 2 + at, Py_NewRef(Py_None));
    Py_DECREF(gradient);
  }
  return results;
}

/* The saved tensors that the backward takes, if only others were changed: autograd refused all. NULL with its exception. */
static PyObject *spared_of(Backward *self, PyObject *context, PyObject *slots) {
  if (slots == Py_None || !PyErr_ExceptionMatches(PyExc_RuntimeError)) return NULL;
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyObject *kept = PyObject_GetAttr(context, names.kept), *saved = NULL;
  if (kept && PyTuple_CheckExact(kept) && PyTuple_GET_SIZE(kept) > 4)
    saved = PyObject_CallFunctionObjArgs(self->spared, context, PyTuple_GET_ITEM(kept, 4), slots, NULL);
  Py_XDECREF(kept);
  if (saved && saved != Py_None) {
    Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    return saved;
  }
  Py_XDECREF(saved);
  return PyErr_Restore(type, value, trace), NULL; /* also in the place of another exception */
}

/* The call's list of values, after which the context and this call hold none of them; NULL with an exception. */
static PyObject *taken(Backward *self, PyObject *context, PyObject *entry, PyObject *tangents) {
  /* Raises if they were freed or changed; where there are none, eager allows a second backward. */
  PyObject *saved = self->saves ? PyObject_GetAttr(context, names.saved) : PyTuple_New(0);
  if (!saved) saved = spared_of(self, context, PyTuple_GET_ITEM(entry, 1));
  if (!saved) return NULL;
  PyObject *kept = PyObject_GetAttr(context, names.kept), *values = NULL;
  if (kept && PyTuple_CheckExact(saved)) {
    PyObject *numbers = kept == Py_None ? PyTuple_New(0) : PySequence_Tuple(PyTuple_GET_ITEM(kept, 2));
    if (numbers) values = values_of(self, numbers, saved, PyTuple_GET_ITEM(entry, 1), tangents);
    Py_XDECREF(numbers);
  }
  Py_DECREF(saved);
  if (values && let_go(self, context, kept)) Py_CLEAR(values);
  Py_XDECREF(kept);
  if (!values && !PyErr_Occurred()) PyErr_SetString(PyExc_SystemError, "saved tensors are a tuple");
  return values;
}

/* The results, where a gradient that was laid out for the backward goes on as it came. Takes `results` over. */
static PyObject *passed(Backward *self, PyObject *results, PyObject *const *gradients, Py_ssize_t count) {
  PyObject *given = PyTuple_New(count), *made = NULL;
  for (Py_ssize_t k = 0; given && k < count; k++) PyTuple_SET_ITEM(given, k, Py_NewRef(gradients[k]));
  if (given) made = PyObject_CallFunctionObjArgs(self->passing, results, given, NULL);
  Py_XDECREF(given);
  Py_DECREF(results);
  return made;
}

static PyObject *backward_run(PyObject *object, PyObject *const *args, size_t flags, PyObject *keywords) {
  Backward *self = (Backward *)object;
  Py_ssize_t count = PyVectorcall_NARGS(flags);
  uint64_t absent;
  PyObject *tangents = NULL, *entry = NULL;
  int changed = 0, general = asked(self->grad_mode);
  if (!general) general = asked(self->transforms);
  if (!general) general = asked(self->modes);
  if (general < 0) return NULL;
  if (!general && !carries_forward() && within(&self->wanted, count - 1)) {
    tangents = tangents_of(self, args + 1, &absent, &changed);
    if (tangents) entry = resolved(self, absent);
  }
  if (!entry) {
    Py_XDECREF(tangents);
    return PyErr_Occurred() ? NULL : PyObject_Vectorcall(self->python, args, count, keywords);
  }
  Py_INCREF(entry);
  PyObject *values = taken(self, args[0], entry, tangents), *outputs = NULL, *results = NULL;
  Py_DECREF(tangents);
  if (values) outputs = outputs_of(PyTuple_GET_ITEM(entry, 0), values, self->check, self->results, "backward");
  Py_XDECREF(values);
  if (outputs) results = finished(self, outputs, PyTuple_GET_ITEM(entry, 2));
  if (results && changed && self->passing != Py_None) results = passed(self, results, args + 1, count - 1);
  Py_XDECREF(outputs);
  Py_DECREF(entry);
  return results;
}

static PyObject *backward_bound(PyObject *self, PyObject *context, PyObject *type) {
  return context && context != Py_None ? PyMethod_New(self, context) : Py_NewRef(self);
}

static PyObject *backward_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *words[] = {"python", "resolve", "check", "spared", "grad_mode", "keeps_graph", "transforms", "modes", "passing", "tensor", "layouts", "items", "wanted", "order", "results", "saves", "complex", NULL};
  PyObject *python, *resolve, *check, *spared, *grad_mode, *keeps_graph, *transforms, *modes, *passing, *tensor, *layouts, *items, *wanted, *order;
  Py_ssize_t results;
  int saves, complex;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOOOOOOOOOO!OOOnpp", words, &python, &resolve, &check, &spared, &grad_mode, &keeps_graph,
                                   &transforms, &modes, &passing, &tensor, &PyTuple_Type, &layouts, &items, &wanted, &order, &results, &saves, &complex))
    return NULL;
  Backward *self = (Backward *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = backward_run;
  self->python = Py_NewRef(python);
  self->resolve = Py_NewRef(resolve);
  self->check = Py_NewRef(check);
  self->spared = Py_NewRef(spared);
  self->grad_mode = Py_NewRef(grad_mode);
  self->keeps_graph = Py_NewRef(keeps_graph);
  self->transforms = Py_NewRef(transforms);
  self->modes = Py_NewRef(modes);
  self->passing = Py_NewRef(passing);
  self->tensor = Py_NewRef(tensor);
  self->layouts = Py_NewRef(layouts);
  self->results = results;
  self->saves = saves;
  self->complex = complex;
  if (!(self->known = PyDict_New()) || places_of(items, &self->items) || places_of(wanted, &self->wanted) ||
      places_of(order, &self->order)) {
    Py_DECREF(self);
    return NULL;
  }
  if (self->wanted.count <= 64 && PyTuple_GET_SIZE(layouts) == self->wanted.count &&
      self->items.count == self->wanted.count)
    return (PyObject *)self;
  Py_DECREF(self);
  PyErr_SetString(PyExc_ValueError, "at most 64 tangents, with a layout each");
  return NULL;
}
static int backward_traverse(Backward *self, visitproc visit, void *arg) {
  Py_VISIT(self->python);
  Py_VISIT(self->resolve);
  Py_VISIT(self->check);
  Py_VISIT(self->spared);
  Py_VISIT(self->grad_mode);
  Py_VISIT(self->keeps_graph);
  Py_VISIT(self->transforms);
  Py_VISIT(self->modes);
  Py_VISIT(self->passing);
  Py_VISIT(self->tensor);
  Py_VISIT(self->known);
  Py_VISIT(self->layouts);
  return 0;
}
static int backward_clear(Backward *self) {
  Py_CLEAR(self->python);
  Py_CLEAR(self->resolve);
  Py_CLEAR(self->check);
  Py_CLEAR(self->spared);
  Py_CLEAR(self->grad_mode);
  Py_CLEAR(self->keeps_graph);
  Py_CLEAR(self->transforms);
  Py_CLEAR(self->modes);
  Py_CLEAR(self->passing);
  Py_CLEAR(self->tensor);
  Py_CLEAR(self->known);
  Py_CLEAR(self->layouts);
  return 0;
}
static void backward_dealloc(Backward *self) {
  PyObject_GC_UnTrack(self);
  backward_clear(self);
  PyMem_Free(self->items.at);
  PyMem_Free(self->wanted.at);
  PyMem_Free(self->order.at);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyTypeObject BackwardType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "aot_autograd._node.Backward",
    .tp_doc = "The backward of an autograd function; as an attribute of a context's class a method.",
    .tp_basicsize = sizeof(Backward),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_vectorcall_offset = offsetof(Backward, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = backward_bound,
    .tp_new = backward_new,
    .tp_traverse = (traverseproc)backward_traverse,
    .tp_clear = (inquiry)backward_clear,
    .tp_dealloc = (destructor)backward_dealloc,
};

/* ---- the class of autograd functions: torch asks for the same attributes at each call, by new strings ----------------- */
static PyObject *class_attribute(PyObject *self, PyObject *name) {
  PyObject *members = ((PyTypeObject *)self)->tp_dict;
  PyObject *table = members ? PyDict_GetItemWithError(members, names.asked) : NULL;
  PyObject *found = table && PyDict_CheckExact(table) ? PyDict_GetItemWithError(table, name) : NULL;
  if (found) return Py_NewRef(found);
  return PyErr_Occurred() ? NULL : PyType_Type.tp_getattro(self, name);
}

/* function_class(metaclass): a metaclass whose classes answer first from their dict `_asked`. */
static PyObject *function_class(PyObject *module, PyObject *metaclass) {
  static PyType_Slot slots[] = {
      {Py_tp_doc, "The class of an autograd function; what torch asks it for is found at once."},
      {Py_tp_getattro, class_attribute},
      {0, NULL},
  };
  static PyType_Spec spec = {"aot_autograd._node.FunctionClass", 0, 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, slots};
  if (!PyType_Check(metaclass) || !PyType_IsSubtype((PyTypeObject *)metaclass, &PyType_Type) ||
      ((PyTypeObject *)metaclass)->tp_getattro != PyType_Type.tp_getattro) {
    PyErr_SetString(PyExc_TypeError, "a metaclass with attributes of its own");
    return NULL;
  }
  PyObject *bases = PyTuple_Pack(1, metaclass);
  PyObject *made = bases ? PyType_FromSpecWithBases(&spec, bases) : NULL;
  Py_XDECREF(bases);
  return made;
}

static PyMethodDef methods[] = {
    {"function_class", function_class, METH_O, "A metaclass whose classes answer first from their dict `_asked`."},
    {"set_up", set_up, METH_VARARGS, "Find torch's C ABI; whether it is there."},
    {"forget", forget, METH_NOARGS, "Do without the C ABI."},
    {"has_memory", has_memory_of, METH_O, "Whether a tensor has memory of its own."},
    {"spread", spread_of, METH_VARARGS, "A tensor of one repeated number, written out; None for another."},
    {0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_node", "What runs at each call of a graph with a backward.", -1,
                                        methods};
PyMODINIT_FUNC PyInit__node(void) {
  struct { PyObject **name; const char *text; } wanted[] = {
      {&names.version, "_version"}, {&names.to_save, "to_save"}, {&names.kept, "kept"},
      {&names.materialize, "materialize_grads"}, {&names.constant, "non_differentiable"}, {&names.saved, "saved_tensors"},
      {&names.clear, "maybe_clear_saved_tensors"}, {&names.contiguous, "contiguous"},
      {&names.is_contiguous, "is_contiguous"}, {&names.stride, "stride"}, {&names.address, "_cdata"}, {&names.data_ptr, "data_ptr"}, {&names.is_neg, "is_neg"}, {&names.is_conj, "is_conj"}, {&names.asked, "_asked"}, {&names.level, "_current_level"},
  };
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++)
    if (!*wanted[k].name && !(*wanted[k].name = PyUnicode_InternFromString(wanted[k].text))) return NULL;
  if (PyType_Ready(&CallType) || PyType_Ready(&ForwardType) || PyType_Ready(&BackwardType)) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && (PyModule_AddObjectRef(module, "Call", (PyObject *)&CallType) ||
                 PyModule_AddObjectRef(module, "Forward", (PyObject *)&ForwardType) ||
                 PyModule_AddObjectRef(module, "Backward", (PyObject *)&BackwardType) ||
                 add_nodes(module) || PyModule_AddIntConstant(module, "FACE", 13))) /* _native.py refuses other numbers */
    Py_CLEAR(module);
  return module;
}
