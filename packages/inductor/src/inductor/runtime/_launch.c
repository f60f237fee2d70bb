/* The call program's evaluator: runs a whole graph, own kernels and ATen operators, without Python in between.
 *
 * Comes in: a flat array of 64-bit words (written by inductor.codegen.program, whose opcodes are these), the initial
 * contents of the registers, and a tuple of Python objects. A launcher object is called with one list of inputs, which
 * it empties, and returns a tuple. Tensors are reached through torch's stable C ABI, found by dlsym: no torch header is
 * needed to build this file, and one binary serves every torch version that self_test() accepts.
 * Invariant: what fails, a vendor call or an allocation, is repeated through Python, so that the user sees eager's exception; a kernel that
 * refuses its data (an index out of bounds) hands the whole call to `recover`, which runs torch's own operators. */
#include "_launch.h"
#include "structmember.h"

/* An input's slot; takes over the reference in *place, unless inputs are kept. A call has hundreds of these. */
static inline int fill_from_input(Frame *f, Slot *s, PyObject **place) {
  PyObject *object = *place;
  char *data = memory_of(object);
  if (!data) {
    int status = fill_from_object(f, s, object);
    if (!status && !f->self->keep) Py_CLEAR(*place);
    return status;
  }
  s->data = data;
  s->handle = HANDLE_OF(object);
  s->object = object;
  if (f->self->keep) Py_INCREF(object);
  else *place = NULL;
  return 0;
}

/* ---- results ------------------------------------------------------------------------------------------------------------ */
static PyObject *slot_object(Frame *f, const int64_t *w, int clone) {
  PyObject *object = tensor_object(f, w);
  if (!object || !clone) return object;
  PyObject *copy = PyObject_CallMethod(object, "clone", NULL);
  Py_DECREF(object);
  return copy;
}

static PyObject *results(Frame *f, const int64_t *w) {
  int64_t count = *w++;
  PyObject *tuple = PyTuple_New(count);
  for (int64_t k = 0; tuple && k < count; k++) {
    PyObject *item = NULL;
    int64_t kind = *w++;
    switch (kind) {
      case RESULT_NONE: item = Py_NewRef(Py_None); break;
      case RESULT_VIEW: item = slot_object(f, w, 0); w += VIEW_WORDS(w); break;
      case RESULT_CLONE: item = slot_object(f, w, 1); w += VIEW_WORDS(w); break;
      case RESULT_INTEGER: item = PyLong_FromLongLong(f->r[*w++]); break;
      case RESULT_FLOAT: item = PyFloat_FromDouble(number(f, *w++)); break;
      default: item = Py_NewRef(PyTuple_GET_ITEM(f->self->objects, *w)); w++;
    }
    if (!item) Py_CLEAR(tuple);
    else PyTuple_SET_ITEM(tuple, k, item);
  }
  return tuple;
}

/* ---- the loop over instructions ------------------------------------------------------------------------------------------ */
static int64_t floor_divide(int64_t a, int64_t b) {
  if (b == 0) return 0;
  int64_t q = a / b;
  return q - ((a % b != 0) && ((a < 0) != (b < 0)));
}

static int run_kernel(Frame *f, const int64_t *w, const int64_t **next) {
  KernelFunction function = (KernelFunction)(intptr_t)w[0];
  int64_t work = f->r[w[1]], count = w[2];
  const int64_t *slots = w + 3;
  int64_t sizes = slots[count];
  const int64_t *registers = slots + count + 1;
  char *pointers[count + 1];
  int64_t values[sizes + 1];
  for (int64_t k = 0; k < count; k++) pointers[k] = f->slots[slots[k]].data;
  for (int64_t k = 0; k < sizes; k++) values[k] = f->r[registers[k]];
  *next = registers + sizes;
  int64_t threads = work / f->self->threshold + 1;
  return function(pointers, values, threads < f->threads ? threads : f->threads);
}

/* Start a kernel on the current stream: pointers, sizes and numbers in order, then two null scratch pointers. */
static int launch_on_gpu(Frame *f, const int64_t *w, const int64_t **next) {
  void *function = (void *)(intptr_t)w[0];
  int64_t grid = f->r[w[1]], count = w[4];
  const int64_t *slots = w + 5;
  int64_t numbers = slots[count];
  const int64_t *registers = slots + count + 1;
  *next = registers + numbers;
  if (grid == 0) return 0;
  if (!f->stream && gpu.current_stream(f->self->device, &f->stream)) {
    hold(f);
    PyErr_SetString(PyExc_RuntimeError, "the current CUDA stream can't be found");
    return -1;
  }
  void *pointers[count + 1], *scratch = NULL, *arguments[count + numbers + 2];
  for (int64_t k = 0; k < count; k++) {
    pointers[k] = f->slots[slots[k]].data;
    arguments[k] = &pointers[k];
  }
  /* little-endian: a 32-bit parameter reads the low half of its register */
  for (int64_t k = 0; k < numbers; k++) arguments[count + k] = &f->r[registers[k]];
  arguments[count + numbers] = &scratch;
  arguments[count + numbers + 1] = &scratch;
  int code = gpu.launch(function, (unsigned)grid, 1, 1, (unsigned)w[2], 1, 1, (unsigned)w[3], f->stream, arguments, NULL);
  if (!code) return 0;
  /* A thread of autograd that has not touched the card yet has no context; it takes the one that torch uses, for good. */
  void *context = NULL;
  if (code == NO_CONTEXT && !gpu.retain_context(&context, (int)f->self->device) && !gpu.make_current(context))
    code = gpu.launch(function, (unsigned)grid, 1, 1, (unsigned)w[2], 1, 1, (unsigned)w[3], f->stream, arguments, NULL);
  if (!code) return 0;
  hold(f);
  PyErr_Format(PyExc_RuntimeError, "the CUDA driver refused to launch a kernel (error %d)", code);
  return -1;
}

/* The range of the next kernel, where a profiler looks; NULL elsewhere. */
static Handle begin_range(Frame *f) {
  Handle range = NULL;
  Py_ssize_t number = f->range++;
  if (number >= PyTuple_GET_SIZE(f->self->ranges)) return NULL;
  const char *name = PyBytes_AS_STRING(PyTuple_GET_ITEM(f->self->ranges, number));
  return api.begin_range(name, NULL, NULL, 0, &range) ? NULL : range;
}

static PyObject *recover(Frame *f) {
  hold(f);
  PyObject *list = PyList_New(f->self->inputs);
  for (Py_ssize_t k = 0; list && k < f->self->inputs; k++) PyList_SET_ITEM(list, k, Py_NewRef(f->inputs[k]));
  PyObject *result = list ? PyObject_CallOneArg(f->self->recover, list) : NULL;
  Py_XDECREF(list);
  return result;
}

/* An operator returned something else than its shape rule promised: a fault of ours, told once. Torch's operators run
 * this call, where its inputs are still there, and all further ones. */
static PyObject *take_over(Frame *f) {
  int whole = 1;
  for (Py_ssize_t k = 0; k < f->self->inputs; k++) whole = whole && f->inputs[k];
  PyObject *type, *error, *trace;
  PyErr_Fetch(&type, &error, &trace);
  PyObject *told = PyObject_CallMethod(f->self->recover, "take_over", "O", error ? error : Py_None);
  if (told) f->self->broken = 1;
  if (told && !whole) PyErr_Restore(type, error, trace);
  else {
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
  }
  Py_XDECREF(told);
  return told && whole ? recover(f) : NULL;
}

static PyObject *run(Frame *f) {
  const int64_t *w = f->self->code;
  int64_t *r = f->r;
  Slot *s = f->slots;
  for (;;) {
    switch (*w++) {
      case OP_SIZE_INPUT: {
        int64_t v = PyLong_AsLongLong(f->inputs[w[0]]);
        if (v == -1 && PyErr_Occurred()) return NULL;
        r[w[1]] = v;
        w += 2;
        break;
      }
      case OP_FLOAT_INPUT: {
        double d = PyFloat_AsDouble(f->inputs[w[0]]);
        if (d == -1.0 && PyErr_Occurred()) return NULL;
        memcpy(&r[w[1]], &d, 8);
        w += 2;
        break;
      }
      case OP_TENSOR_INPUT:
        if (fill_from_input(f, &s[w[1]], &f->inputs[w[0]])) return NULL;
        if (f->self->device >= 0 && ((uintptr_t)s[w[1]].data & 15)) { /* the kernels load 16 bytes at once */
          PyObject *copy = PyObject_CallMethod(s[w[1]].object, "clone", NULL);
          int failed = !copy || fill_from_object(f, &s[w[1]], copy);
          Py_XDECREF(copy);
          if (failed) return NULL;
        }
        w += 2;
        break;
      case OP_CONSTANT:
        if (fill_from_object(f, &s[w[1]], PyTuple_GET_ITEM(f->self->objects, w[0]))) return NULL;
        w += 2;
        break;
      case OP_ADD: r[w[0]] = r[w[1]] + r[w[2]]; w += 3; break;
      case OP_MULTIPLY: r[w[0]] = r[w[1]] * r[w[2]]; w += 3; break;
      case OP_FLOOR_DIVIDE: r[w[0]] = floor_divide(r[w[1]], r[w[2]]); w += 3; break;
      case OP_MODULO: r[w[0]] = r[w[1]] - floor_divide(r[w[1]], r[w[2]]) * r[w[2]]; w += 3; break;
      case OP_MAXIMUM: r[w[0]] = r[w[1]] > r[w[2]] ? r[w[1]] : r[w[2]]; w += 3; break;
      case OP_MINIMUM: r[w[0]] = r[w[1]] < r[w[2]] ? r[w[1]] : r[w[2]]; w += 3; break;
      case OP_BEGIN: let_go(f); break;
      case OP_ARENA: {
        int64_t one = 1, bytes = r[w[0]], placed = w[1];
        w += 2;
        if (api.empty_strided(1, &bytes, &one, byte_dtype, DEVICE_TYPE(placed), DEVICE_INDEX(placed), &f->arena) ||
            api.get_data_ptr(f->arena, (void **)&f->arena_data)) {
          if (reserve_arena(f, bytes, placed)) return NULL;
        }
        break;
      }
      case OP_PLACE: s[w[0]].data = f->arena_data + r[w[1]]; w += 2; break;
      case OP_SHARE:
        s[w[0]] = s[w[1]];
        memset(&s[w[1]], 0, sizeof(Slot));
        s[w[1]].data = s[w[0]].data;
        w += 2;
        break;
      case OP_ALLOCATE: {
        Handle h;
        int fresh;
        if (output_handle(f, w, &h, &fresh) && reserve_slot(f, w)) return NULL;
        w += 3 + 2 * w[2];
        break;
      }
      case OP_KERNEL: {
        Handle range = f->range < 0 ? NULL : begin_range(f);
        int refused = run_kernel(f, w, &w);
        if (range) api.end_range(range);
        if (refused) return recover(f);
        break;
      }
      case OP_LAUNCH: {
        Handle range = f->range < 0 ? NULL : begin_range(f);
        int failed = launch_on_gpu(f, w, &w);
        if (range) api.end_range(range);
        if (failed) return NULL;
        break;
      }
      case OP_CALL: {
        int status = call(f, w);
        if (status) return status == BROKEN ? take_over(f) : NULL;
        w += w[0];
        break;
      }
      case OP_RELEASE: {
        int64_t count = *w++;
        for (int64_t k = 0; k < count; k++) empty_slot(f, &s[*w++]);
        break;
      }
      case OP_SURE:
        hold(f);
        for (Py_ssize_t k = 0; k < f->self->inputs; k++) Py_CLEAR(f->inputs[k]);
        let_go(f);
        break;
      case OP_CLOSE:
        api.delete_handle(f->arena);
        f->arena = NULL;
        break;
      case OP_INSIDE: {
        const int64_t *host = w + 3 + 2 * w[2];
        place_inside(f, w, &s[host[0]], r[host[1]]);
        w = host + 2;
        break;
      }
      case OP_RETURN: hold(f); return results(f, w);
      default: hold(f); PyErr_SetString(PyExc_SystemError, "a damaged call program"); return NULL;
    }
  }
}

static PyObject *launch(PyObject *object, PyObject *const *args, size_t flags, PyObject *names) {
  Launcher *self = (Launcher *)object;
  if (PyVectorcall_NARGS(flags) != 1 || (names && PyTuple_GET_SIZE(names)) || !PyList_CheckExact(args[0]) ||
      PyList_GET_SIZE(args[0]) != self->inputs) {
    PyErr_Format(PyExc_TypeError, "a compiled graph takes one list of %zd inputs", self->inputs);
    return NULL;
  }
  size_t bytes = self->slots * sizeof(Slot) + self->registers * 8 + (self->inputs + 1) * sizeof(PyObject *);
  char small[4096], *memory = bytes <= sizeof small ? small : malloc(bytes);
  if (!memory) return PyErr_NoMemory();
  Frame f = {.self = self, .slots = (Slot *)memory};
  f.r = (int64_t *)(memory + self->slots * sizeof(Slot));
  f.inputs = (PyObject **)(f.r + self->registers);
  memset(f.slots, 0, self->slots * sizeof(Slot));
  memcpy(f.r, self->initial, self->registers * 8);
  f.threads = serial_only ? 1 : api.max_threads();
  f.range = api.watched && api.watched() ? 0 : -1;
  PyObject *list = args[0];
  /* The list's references become the frame's: as popping each of its items would do, without a loop. */
  if (self->inputs) memcpy(f.inputs, ((PyListObject *)list)->ob_item, self->inputs * sizeof(PyObject *));
  Py_SET_SIZE(list, 0);
  Py_INCREF(self);
  bool grad = api.grad_enabled();
  if (grad) api.set_grad_enabled(false);
  Handle guard = NULL;
  if (self->device >= 0 && gpu.new_guard(self->device, &guard)) guard = NULL;
  PyObject *result = self->broken ? recover(&f) : run(&f);
  hold(&f);
  if (guard) gpu.delete_guard(guard);
  for (Py_ssize_t k = 0; k < self->slots; k++) {
    Slot *s = &f.slots[k];
    if (s->owned) api.delete_handle(s->handle);
    Py_XDECREF(s->object);
  }
  if (f.arena) api.delete_handle(f.arena);
  if (grad) api.set_grad_enabled(true);
  for (Py_ssize_t k = 0; k < self->inputs; k++) Py_XDECREF(f.inputs[k]);
  if (memory != small) free(memory);
  Py_DECREF(self);
  return result;
}

/* ---- the type ---------------------------------------------------------------------------------------------------------------- */
static int64_t *copy_words(PyObject *source, Py_ssize_t *count) {
  Py_buffer view;
  if (PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)) return NULL;
  int64_t *words = malloc(view.len + 8);
  if (words) memcpy(words, view.buf, view.len);
  else PyErr_NoMemory();
  *count = view.len / 8;
  PyBuffer_Release(&view);
  return words;
}

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
  static char *names[] = {"code", "registers", "slots", "inputs", "objects", "recover", "conform", "reserve", "threshold", "keep", "device", "ranges", NULL};
  PyObject *code, *registers, *objects, *recover_, *conform, *reserve, *ranges = NULL;
  Py_ssize_t slots, inputs;
  long long threshold;
  int keep, device = -1;
  if (handle_offset < 0) {
    PyErr_SetString(PyExc_RuntimeError, "set_up() has not run");
    return NULL;
  }
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OOnnO!OOOLp|iO!", names, &code, &registers, &slots, &inputs, &PyTuple_Type,
                                   &objects, &recover_, &conform, &reserve, &threshold, &keep, &device, &PyTuple_Type, &ranges))
    return NULL;
  for (Py_ssize_t k = 0; ranges && k < PyTuple_GET_SIZE(ranges); k++)
    if (!PyBytes_Check(PyTuple_GET_ITEM(ranges, k))) {
      PyErr_SetString(PyExc_TypeError, "names of kernels are bytes");
      return NULL;
    }
  if (device >= 0 && !gpu.launch) {
    PyErr_SetString(PyExc_RuntimeError, "set_up_gpu() has not run");
    return NULL;
  }
  Launcher *self = (Launcher *)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = launch;
  self->objects = Py_NewRef(objects);
  self->recover = Py_NewRef(recover_);
  self->conform = Py_NewRef(conform);
  self->reserve = Py_NewRef(reserve);
  self->ranges = ranges ? Py_NewRef(ranges) : PyTuple_New(0);
  self->slots = slots;
  self->inputs = inputs;
  self->keep = keep;
  self->device = device;
  self->threshold = threshold > 0 ? threshold : 1;
  if (!self->ranges || !(self->code = copy_words(code, &self->words)) || !(self->initial = copy_words(registers, &self->registers))) {
    Py_DECREF(self);
    return NULL;
  }
  return (PyObject *)self;
}
static int launcher_traverse(Launcher *self, visitproc visit, void *arg) {
  Py_VISIT(self->objects);
  Py_VISIT(self->recover);
  Py_VISIT(self->conform);
  Py_VISIT(self->reserve);
  Py_VISIT(self->ranges);
  Py_VISIT(self->dict);
  return 0;
}
static int launcher_clear(Launcher *self) {
  Py_CLEAR(self->objects);
  Py_CLEAR(self->recover);
  Py_CLEAR(self->conform);
  Py_CLEAR(self->reserve);
  Py_CLEAR(self->ranges);
  Py_CLEAR(self->dict);
  return 0;
}
static void launcher_dealloc(Launcher *self) {
  PyObject_GC_UnTrack(self);
  launcher_clear(self);
  free(self->code);
  free(self->initial);
  Py_TYPE(self)->tp_free((PyObject *)self);
}
static PyGetSetDef launcher_fields[] = {{"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, NULL, NULL}, {0}};
PyTypeObject LauncherType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "inductor.runtime._launch.Launcher",
    .tp_doc = "A call program; call it with one list of inputs, which it empties, for the tuple of outputs.",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_dictoffset = offsetof(Launcher, dict),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_traverse = (traverseproc)launcher_traverse,
    .tp_clear = (inquiry)launcher_clear,
    .tp_dealloc = (destructor)launcher_dealloc,
    .tp_getset = launcher_fields,
    .tp_getattro = PyObject_GenericGetAttr,
    .tp_setattro = PyObject_GenericSetAttr,
};
