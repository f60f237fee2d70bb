/* Operators that a running program calls: through the C ABI where it has them, else through Python.
 *
 * Words: words to the next instruction, operator object, kind, words of the direct description,
 *        direct: tensors, (view or -1).., numbers, registers.., OUTPUTS (only when kind is not DIRECT_NONE),
 *        Python: positional, values.., keywords, (name object, value).., OUTPUTS
 * OUTPUTS: count, (slot or -1, dtype, rank, sizes.., strides..)..
 * Invariant: what fails through the C ABI is repeated through Python, so that the user sees eager's exception. */
#include "_launch.h"

/* Promised as no bytes, and as large as its kernel wants. */
static int is_workspace(Frame *f, const int64_t *o) {
  return DTYPE(o[1]) == byte_dtype && o[2] == 1 && !f->r[o[3]];
}

static int dtype_fits(Handle h, const int64_t *o) {
  int32_t dtype;
  return !api.get_dtype(h, &dtype) && dtype == DTYPE(o[1]);
}

/* The same memory as a tensor that was never written and is no view: a vendor function may have made it from another. */
static Handle as_new(Handle h) {
  int64_t dim, *sizes, *strides;
  Handle made = NULL;
  if (api.get_dim(h, &dim) || api.get_sizes(h, &sizes) || api.get_strides(h, &strides) ||
      api.reinterpret(h, dim, sizes, strides, 0, &made))
    return h;
  api.delete_handle(h);
  return made;
}

static int adopt(Frame *f, const int64_t *o, Handle h) {
  if (o[0] < 0) {
    api.delete_handle(h);
    return 1;
  }
  Slot *s = &f->slots[o[0]];
  if (!dtype_fits(h, o)) {
    api.delete_handle(h);
    return 0;
  }
  int fits = is_workspace(f, o) || layout_fits(f, h, o[2], o + 3);
  if (!fits || s->data || s->handle) { /* placed elsewhere or differently laid out: copy, which needs Python */
    hold(f);
    PyObject *wrapped = api.wrap(h), *made = wrapped ? conformed(f, wrapped, o[2], o + 3) : NULL;
    int ok = made && !fill_from_object(f, s, made);
    Py_XDECREF(wrapped);
    Py_XDECREF(made);
    api.delete_handle(h);
    if (!ok) PyErr_Clear();
    return ok;
  }
  s->handle = as_new(h);
  s->owned = 1;
  return !api.get_data_ptr(s->handle, (void **)&s->data);
}

enum { LSTM_MODE = 2 }; /* the library's number */

/* One direction of one layer. Numbers: width of the state, reverse, keep what the backward needs: where gradients are on. */
static int run_lstm(Frame *f, Handle *t, const int64_t *n, const int64_t *o) {
  Handle made[4] = {0};
  int keep = f->r[n[2]] != 0, ok;
  bool before = api.grad_enabled();
  api.set_grad_enabled(keep);
  ok = !api.recurrent(t[0], t[1], t[2], t[3], t[4], t[5], t[6], f->r[n[1]] != 0, NULL, 0, LSTM_MODE, f->r[n[0]], 1, 1, 0, 0,
                      keep, &made[0], &made[1], &made[2], &made[3]);
  api.set_grad_enabled(before);
  if (!ok) return 0;
  for (int k = 0; k < 4; k++) {
    if (k == 3 && !keep && o[0] >= 0) { /* there is none: only Python can tell its reader */
      api.delete_handle(made[k]);
      ok = 0;
    } else {
      ok &= adopt(f, o, made[k]);
    }
    o += 3 + 2 * o[2];
  }
  return ok;
}

/* Returns 1 when the vendor function did the work, 0 when Python must. */
static int direct(Frame *f, int64_t kind, const int64_t *w) {
  int64_t count = *w++;
  Handle t[8] = {0};
  int fresh[8] = {0}, ok = 1, out_fresh = 0;
  Handle out = NULL;
  const int64_t *at = w;
  if (count > 8) return 0;
  for (int64_t k = 0; k < count; k++) {
    if (at[0] >= 0) {
      t[k] = view_handle(f, at, &fresh[k]);
      if (!t[k]) ok = 0;
    }
    at += at[0] < 0 ? 1 : VIEW_WORDS(at);
  }
  int64_t numbers = *at++;
  const int64_t *n = at;
  at += numbers;
  const int64_t *o = at + 1; /* first output; at[0] outputs */
  int on_gpu = DEVICE_TYPE(o[1]) != 0;
  if (ok) switch (kind) {
      case DIRECT_MM:
        ok = !written_handle(f, o, &out, &out_fresh) && !(on_gpu ? gpu.mm_out : api.mm_out)(out, t[0], t[1]);
        break;
      case DIRECT_BMM:
        ok = !written_handle(f, o, &out, &out_fresh) && !(on_gpu ? gpu.bmm_out : api.bmm_out)(out, t[0], t[1]);
        break;
      case DIRECT_ADDMM:
        ok = !written_handle(f, o, &out, &out_fresh) &&
             !(on_gpu ? gpu.addmm_out : api.addmm_out)(out, t[0], t[1], t[2], number(f, n[0]), number(f, n[1]));
        break;
      case DIRECT_BADDBMM:
        ok = !written_handle(f, o, &out, &out_fresh) &&
             !(on_gpu ? gpu.baddbmm_out : api.baddbmm_out)(out, t[0], t[1], t[2], number(f, n[0]), number(f, n[1]));
        break;
      case DIRECT_FLASH: { /* numbers: dropout, causal, has scale, scale */
        Handle a = NULL, b = NULL;
        double scale = number(f, n[3]);
        ok = !api.flash(t[0], t[1], t[2], number(f, n[0]), (int32_t)f->r[n[1]], t[3] ? &t[3] : NULL,
                        f->r[n[2]] ? &scale : NULL, &a, &b);
        if (ok) ok = adopt(f, o, a) & adopt(f, o + 3 + 2 * o[2], b);
        break;
      }
      case DIRECT_CONVOLUTION: { /* numbers: transposed, groups, dims, stride.., padding.., dilation.., output padding.. */
        int64_t d = f->r[n[2]], v[4][8];
        Handle a = NULL;
        for (int64_t k = 0; k < 4 * d; k++) v[k / d][k % d] = f->r[n[3 + k]];
        ok = !(on_gpu ? gpu.convolution : api.convolution)(t[0], t[1], t[2] ? &t[2] : NULL, v[0], d, v[1], d, v[2], d, (int32_t)f->r[n[0]], v[3], d,
                              f->r[n[1]], &a) &&
             adopt(f, o, a);
        break;
      }
      case DIRECT_LINEAR: {
        Handle a = NULL;
        const char *none = "", **algorithm = &none;
        ok = !api.linear(t[0], t[1], t[2] ? &t[2] : NULL, "none", NULL, 0, algorithm, &a) && adopt(f, o, a);
        break;
      }
      case DIRECT_LSTM: ok = run_lstm(f, t, n, o); break;
      default: ok = 0;
    }
  for (int64_t k = 0; k < count; k++)
    if (fresh[k]) api.delete_handle(t[k]);
  if (out_fresh) api.delete_handle(out);
  return ok;
}

/* Lists among an operator's results, as its schema has them, are told apart no further: outputs are numbered through. */
static int flatten(PyObject *value, PyObject *into) {
  if (!PyTuple_Check(value) && !PyList_Check(value)) return PyList_Append(into, value);
  int status = 0;
  for (Py_ssize_t k = 0; !status && k < PySequence_Fast_GET_SIZE(value); k++)
    status = flatten(PySequence_Fast_GET_ITEM(value, k), into);
  return status;
}

static int has_lists(PyObject *result) {
  if (!PyTuple_Check(result) && !PyList_Check(result)) return 0;
  for (Py_ssize_t k = 0; k < PySequence_Fast_GET_SIZE(result); k++) {
    PyObject *item = PySequence_Fast_GET_ITEM(result, k);
    if (PyTuple_Check(item) || PyList_Check(item)) return 1;
  }
  return 0;
}

/* Whether a result has the dtype and the sizes that the steps after it were compiled for; strides are made to fit. */
static int as_promised(Frame *f, Handle h, const int64_t *o) {
  int64_t dim, *sizes;
  if (!dtype_fits(h, o)) return 0;
  if (is_workspace(f, o)) return 1;
  if (api.get_dim(h, &dim) || dim != o[2] || api.get_sizes(h, &sizes)) return 0;
  for (int64_t k = 0; k < dim; k++)
    if (sizes[k] != f->r[o[3 + k]]) return 0;
  return 1;
}

/* 0; -1 with an exception; BROKEN with one where the results are not those that were promised. */
static int store_outputs(Frame *f, PyObject *result, const int64_t *o, int64_t count, PyObject *operator) {
  int sequence = PyTuple_Check(result) || PyList_Check(result);
  if (count && (sequence ? PySequence_Fast_GET_SIZE(result) : 1) != count) {
    PyErr_Format(PyExc_RuntimeError, "%S returned %zd results where %lld were promised", operator,
                 sequence ? PySequence_Fast_GET_SIZE(result) : (Py_ssize_t)1, (long long)count);
    return BROKEN;
  }
  for (int64_t k = 0; k < count; k++) {
    int64_t rank = o[2];
    if (o[0] >= 0) {
      PyObject *item = sequence ? PySequence_Fast_GET_ITEM(result, k) : result;
      if (!PyObject_TypeCheck(item, tensor_type) || !as_promised(f, HANDLE_OF(item), o)) {
        PyErr_Format(PyExc_RuntimeError, "result %lld of %S has another dtype or other sizes than were promised",
                     (long long)k, operator);
        return BROKEN;
      }
      PyObject *made = conformed(f, item, rank, o + 3);
      Slot *s = &f->slots[o[0]];
      int ok = made != NULL;
      if (ok && s->data) { /* it has a place: copy into it */
        Handle h;
        int fresh;
        ok = !written_handle(f, o, &h, &fresh);
        PyObject *target = ok ? api.wrap(h) : NULL;
        PyObject *done = target ? PyObject_CallMethod(target, "copy_", "O", made) : NULL;
        if (ok && fresh) api.delete_handle(h);
        ok = done != NULL;
        Py_XDECREF(target);
        Py_XDECREF(done);
      } else if (ok) {
        ok = !fill_from_object(f, s, made);
      }
      Py_XDECREF(made);
      if (!ok) return -1;
    }
    o += 3 + 2 * rank;
  }
  return 0;
}

static int is_tensor_or_has_one(PyObject *value) {
  if (!PyList_Check(value)) return PyObject_TypeCheck(value, tensor_type);
  for (Py_ssize_t k = 0; k < PyList_GET_SIZE(value); k++)
    if (is_tensor_or_has_one(PyList_GET_ITEM(value, k))) return 1;
  return 0;
}

int call(Frame *f, const int64_t *w) {
  if (w[2] != DIRECT_NONE && direct(f, w[2], w + 4)) return 0;
  const int64_t *p = w + 4 + w[3];
  hold(f);
  int64_t positional = *p++, done = 0, ok = 1;
  PyObject *stack[64], *names = NULL, *result = NULL;
  PyObject *operator= PyTuple_GET_ITEM(f->self->objects, w[1]);
  for (; ok && done < positional; done++) {
    stack[done] = build_value(f, &p);
    if (!stack[done]) ok = 0, done--;
  }
  int64_t keywords = 0;
  if (ok) {
    keywords = *p++;
    names = PyTuple_New(keywords);
    for (int64_t k = 0; ok && k < keywords; k++) {
      PyTuple_SET_ITEM(names, k, Py_NewRef(PyTuple_GET_ITEM(f->self->objects, *p++)));
      stack[done] = build_value(f, &p);
      if (!stack[done]) ok = 0;
      else done++;
    }
  }
  if (ok) result = PyObject_Vectorcall(operator, stack, (size_t)positional, keywords ? names : NULL);
  int makes = 1; /* a tensor of none: autograd's kernels count how it is filled, eager's binding goes below them */
  for (int64_t k = 0; k < done; k++) {
    makes &= !is_tensor_or_has_one(stack[k]);
    Py_DECREF(stack[k]);
  }
  Py_XDECREF(names);
  if (result && makes && PyObject_TypeCheck(result, tensor_type)) Py_SETREF(result, PyObject_GetAttrString(result, "data"));
  if (!result) return -1;
  if (has_lists(result)) {
    PyObject *flat = PyList_New(0);
    int status = flat ? flatten(result, flat) : -1;
    Py_SETREF(result, flat);
    if (status) {
      Py_XDECREF(result);
      return -1;
    }
  }
  int64_t outputs = *p++;
  int status = store_outputs(f, result, p, outputs, operator);
  Py_DECREF(result);
  if (!status) let_go(f);
  return status;
}
