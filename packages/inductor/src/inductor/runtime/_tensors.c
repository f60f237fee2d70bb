/* Tensors of a running program: views of slots as handles and Python objects, inputs and results taken over, memory.
 *
 * Comes in: the words of an argument or a result (see VIEW_WORDS, OP_ALLOCATE). Goes out: handles, objects, filled slots.
 * Invariant: an allocation that fails through the C ABI is repeated through Python, which raises eager's exception. */
#include "_launch.h"

static PyObject *with_memory(Frame *f, PyObject *object);

/* A handle for the view at `w`; *fresh says whether it must be deleted. NULL on failure. */
Handle view_handle(Frame *f, const int64_t *w, int *fresh) {
  Slot *s = &f->slots[w[0]];
  int64_t rank = w[4], sizes[64], strides[64], offset = f->r[w[5]];
  Handle made = NULL;
  *fresh = 0;
  if (w[1] && s->handle) return s->handle;
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[w[6 + k]];
    strides[k] = f->r[w[6 + rank + k]];
  }
  if (s->handle) {
    int32_t dtype;
    if (api.get_dtype(s->handle, &dtype)) return NULL;
    if (dtype != (int32_t)w[2]) { /* the same memory read as another type of equal width */
      Handle other;
      Status (*view)(Handle, int32_t, Handle *) = f->self->device >= 0 ? gpu.view_dtype : api.view_dtype;
      if (!view || view(s->handle, (int32_t)w[2], &other)) return NULL;
      Status status = api.reinterpret(other, rank, sizes, strides, offset, &made);
      api.delete_handle(other);
      if (status) return NULL;
    } else if (api.reinterpret(s->handle, rank, sizes, strides, offset, &made)) {
      return NULL; /* the offset counts from the tensor's own */
    }
  } else if (api.from_pool(f->arena, (s->data - f->arena_data) + offset * w[3], (int32_t)w[2], rank, sizes, strides, &made)) {
    return NULL;
  }
  *fresh = 1;
  return made;
}

PyObject *tensor_object(Frame *f, const int64_t *w) {
  Slot *s = &f->slots[w[0]];
  if (w[1] && s->object) return Py_NewRef(s->object);
  int fresh;
  Handle h = view_handle(f, w, &fresh);
  if (!h) {
    PyErr_SetString(PyExc_RuntimeError, "a tensor view could not be made");
    return NULL;
  }
  PyObject *object = api.wrap(h);
  if (fresh) api.delete_handle(h);
  return object;
}

/* One Python value described by the words at *w, which moves past it. */
PyObject *build_value(Frame *f, const int64_t **w) {
  const int64_t *at = *w;
  switch (at[0]) {
    case VALUE_OBJECT: *w = at + 2; return Py_NewRef(PyTuple_GET_ITEM(f->self->objects, at[1]));
    case VALUE_REGISTER: *w = at + 2; return PyLong_FromLongLong(f->r[at[1]]);
    case VALUE_FLOAT: {
      double d;
      memcpy(&d, &f->r[at[1]], 8);
      *w = at + 2;
      return PyFloat_FromDouble(d);
    }
    case VALUE_TENSOR: *w = at + 1 + VIEW_WORDS(at + 1); return tensor_object(f, at + 1);
    default: {
      Py_ssize_t count = at[1];
      PyObject *list = PyList_New(count);
      *w = at + 2;
      for (Py_ssize_t k = 0; list && k < count; k++) {
        PyObject *item = build_value(f, w);
        if (!item) Py_CLEAR(list);
        else PyList_SET_ITEM(list, k, item);
      }
      return list;
    }
  }
}

int fill_from_object(Frame *f, Slot *s, PyObject *object) {
  void *data;
  if (!PyObject_TypeCheck(object, tensor_type)) {
    PyErr_Format(PyExc_TypeError, "a compiled graph was given a %s where it takes a tensor", Py_TYPE(object)->tp_name);
    return -1;
  }
  if (api.get_data_ptr(HANDLE_OF(object), &data)) {
    PyErr_SetString(PyExc_RuntimeError, "the data of a tensor can't be reached");
    return -1;
  }
  if (!data) { /* empty, or zeros that were never written down */
    PyObject *made = with_memory(f, object);
    if (!made) return -1;
    if (made != object) {
      int status = fill_from_object(f, s, made);
      Py_DECREF(made);
      return status;
    }
    Py_DECREF(made);
  }
  empty_slot(f, s);
  s->object = Py_NewRef(object);
  s->handle = HANDLE_OF(object);
  s->data = data;
  return 0;
}

int layout_fits(Frame *f, Handle h, int64_t rank, const int64_t *w) {
  int64_t dim, *sizes, *strides;
  if (api.get_dim(h, &dim) || dim != rank || api.get_sizes(h, &sizes) || api.get_strides(h, &strides)) return 0;
  for (int64_t k = 0; k < rank; k++)
    if (sizes[k] == 0) return 1;
  for (int64_t k = 0; k < rank; k++)
    if (sizes[k] != f->r[w[k]] || (sizes[k] > 1 && strides[k] != f->r[w[rank + k]])) return 0;
  return 1;
}

/* A tensor without memory as it is if it is empty, else written out: autograd's zeros have no memory. */
static PyObject *with_memory(Frame *f, PyObject *object) {
  int64_t dim, *sizes;
  if (api.get_dim(HANDLE_OF(object), &dim) || api.get_sizes(HANDLE_OF(object), &sizes)) {
    PyErr_SetString(PyExc_RuntimeError, "the sizes of a tensor can't be reached");
    return NULL;
  }
  for (int64_t k = 0; k < dim; k++)
    if (sizes[k] == 0) return Py_NewRef(object);
  PyObject *shape = PyObject_GetAttrString(object, "shape"), *made = NULL;
  PyObject *strides = shape ? PyObject_CallMethod(object, "stride", NULL) : NULL;
  if (strides) made = PyObject_CallFunctionObjArgs(f->self->conform, object, shape, strides, NULL);
  Py_XDECREF(shape);
  Py_XDECREF(strides);
  void *data;
  if (made && (api.get_data_ptr(HANDLE_OF(made), &data) || !data)) {
    Py_CLEAR(made);
    PyErr_SetString(PyExc_RuntimeError, "a compiled graph was given a tensor without memory");
  }
  return made;
}

static PyObject *registers_tuple(Frame *f, int64_t count, const int64_t *w) {
  PyObject *t = PyTuple_New(count);
  for (int64_t k = 0; t && k < count; k++) {
    PyObject *v = PyLong_FromLongLong(f->r[w[k]]);
    if (!v) Py_CLEAR(t);
    else PyTuple_SET_ITEM(t, k, v);
  }
  return t;
}

/* A result of an operator in the layout that the kernels after it were compiled for. */
PyObject *conformed(Frame *f, PyObject *tensor, int64_t rank, const int64_t *w) {
  if (layout_fits(f, HANDLE_OF(tensor), rank, w)) return Py_NewRef(tensor);
  PyObject *sizes = registers_tuple(f, rank, w), *strides = registers_tuple(f, rank, w + rank), *made = NULL;
  if (sizes && strides) made = PyObject_CallFunctionObjArgs(f->self->conform, tensor, sizes, strides, NULL);
  Py_XDECREF(sizes);
  Py_XDECREF(strides);
  return made;
}

/* Give an output slot memory: its place in the arena or a tensor of its own. The handle in *h, *fresh if to delete. */
Status output_handle(Frame *f, const int64_t *o, Handle *h, int *fresh) {
  Slot *s = &f->slots[o[0]];
  int64_t rank = o[2], sizes[64], strides[64];
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[o[3 + k]];
    strides[k] = f->r[o[3 + rank + k]];
  }
  *fresh = 0;
  if (s->handle) {
    *h = s->handle;
    return 0;
  }
  if (s->data) {
    *fresh = 1;
    return api.from_pool(f->arena, s->data - f->arena_data, DTYPE(o[1]), rank, sizes, strides, h);
  }
  Status status = api.empty_strided(rank, sizes, strides, DTYPE(o[1]), DEVICE_TYPE(o[1]), DEVICE_INDEX(o[1]), h);
  if (status) return status;
  s->handle = *h;
  s->owned = 1;
  return api.get_data_ptr(*h, (void **)&s->data);
}

/* The same memory for an operator that writes to it, which counts a version: of a handle that nobody sees, so that a
 * result is as new as eager's. */
Status written_handle(Frame *f, const int64_t *o, Handle *h, int *fresh) {
  Handle own;
  Status status = output_handle(f, o, &own, fresh);
  if (status || *fresh) {
    *h = own;
    return status;
  }
  int64_t rank = o[2], sizes[64], strides[64];
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[o[3 + k]];
    strides[k] = f->r[o[3 + rank + k]];
  }
  *fresh = 1;
  return api.reinterpret(own, rank, sizes, strides, 0, h);
}

/* A tensor in a part of another one's memory, for an operator to write; where that fails, the operator makes its own. */
void place_inside(Frame *f, const int64_t *o, const Slot *host, int64_t offset) {
  Slot *s = &f->slots[o[0]];
  int64_t rank = o[2], sizes[64], strides[64];
  for (int64_t k = 0; k < rank; k++) {
    sizes[k] = f->r[o[3 + k]];
    strides[k] = f->r[o[3 + rank + k]];
  }
  Handle made = NULL;
  if (!host->handle || api.from_pool(host->handle, offset, DTYPE(o[1]), rank, sizes, strides, &made)) return;
  s->handle = made;
  s->owned = 1;
  s->data = host->data + offset;
}

/* Memory that the C ABI didn't get, asked for as eager asks: the exception is eager's, what was freed meanwhile is found. */
static PyObject *reserved(Frame *f, int64_t placed, PyObject *sizes, PyObject *strides) {
  PyObject *word = PyLong_FromLongLong(placed), *made = NULL;
  if (word && sizes && strides) made = PyObject_CallFunctionObjArgs(f->self->reserve, word, sizes, strides, NULL);
  Py_XDECREF(word);
  Py_XDECREF(sizes);
  Py_XDECREF(strides);
  return made;
}

int reserve_slot(Frame *f, const int64_t *o) {
  hold(f);
  PyObject *made = reserved(f, o[1], registers_tuple(f, o[2], o + 3), registers_tuple(f, o[2], o + 3 + o[2]));
  int status = made ? fill_from_object(f, &f->slots[o[0]], made) : -1;
  Py_XDECREF(made);
  if (!status) let_go(f);
  return status;
}

int reserve_arena(Frame *f, int64_t bytes, int64_t placed) {
  hold(f);
  PyObject *made = reserved(f, placed, Py_BuildValue("(L)", (long long)bytes), Py_BuildValue("(i)", 1));
  int status = !made || api.new_handle(HANDLE_OF(made), &f->arena) ||
               api.get_data_ptr(f->arena, (void **)&f->arena_data);
  Py_XDECREF(made);
  if (!status) let_go(f);
  else if (!PyErr_Occurred()) PyErr_NoMemory();
  return status;
}
