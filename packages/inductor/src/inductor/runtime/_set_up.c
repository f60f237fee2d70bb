/* The module: finds torch's C ABI and where its objects hold what, and tells which vendor functions there are.
 *
 * Comes in: sample tensors, paths of torch's libraries, addresses of the driver's functions. Goes out: `api`, `gpu` and
 * `layout`, filled. Invariant: what is not found is not used; Python code runs a program before it trusts any of it. */
#include "_launch.h"

struct Abi api;
struct Gpu gpu;
struct Layout layout = {-1, -1, -1};
PyTypeObject *tensor_type, *parameter_type;
Py_ssize_t handle_offset = -1;
int32_t byte_dtype;
int serial_only;

static void *find(void *const *libraries, const char *name) {
  for (; *libraries; libraries++) {
    void *symbol = dlsym(*libraries, name);
    if (symbol) return symbol;
  }
  return NULL;
}

/* The one offset from `from` on at which a C++ object holds `wanted`; -1: none or several. */
static int only_place(const char *object, int from, int to, int64_t wanted) {
  int found = -1;
  for (int k = from; k < to; k += 8)
    if (*(const int64_t *)(object + k) == wanted) {
      if (found >= 0) return -1;
      found = k;
    }
  return found;
}

/* set_layout(parameter type, sample, storage's address, offset, memory): where memory is found, from a tensor of
 * known values that occur once in it. Without it, or where it does not fit, the C ABI is asked. */
static PyObject *set_layout(PyObject *module, PyObject *args) {
  PyObject *type, *sample;
  unsigned long long storage, memory;
  long long offset;
  if (!PyArg_ParseTuple(args, "O!OKLK", &PyType_Type, &type, &sample, &storage, &offset, &memory)) return NULL;
  layout.memory = -1;
  if (handle_offset < 0 || Py_TYPE(sample) != tensor_type) Py_RETURN_FALSE;
  const char *impl = *(char **)HANDLE_OF(sample);
  layout.storage = only_place(impl, 8, OBJECT_BYTES, (int64_t)storage);
  layout.offset = only_place(impl, 8, OBJECT_BYTES, offset);
  int found = only_place((char *)(uintptr_t)storage, 8, STORAGE_BYTES, (int64_t)memory);
  if (layout.storage < 0 || layout.offset < 0 || found < 0) Py_RETURN_FALSE;
  Py_XSETREF(parameter_type, (PyTypeObject *)Py_NewRef(type));
  layout.memory = found;
  Py_RETURN_TRUE;
}

/* memory(tensor): what memory_of() finds, 0 where it would ask the C ABI; for set-up to check. */
static PyObject *memory(PyObject *module, PyObject *tensor) {
  return PyLong_FromVoidPtr(memory_of(tensor));
}

static PyObject *forget_layout(PyObject *module, PyObject *ignored) {
  layout.memory = -1;
  Py_RETURN_NONE;
}

/* set_up(tensor, libtorch_cpu, libtorch_python): find the C ABI, calibrate where a Python tensor holds its handle. */
static PyObject *set_up(PyObject *module, PyObject *args) {
  PyObject *tensor;
  const char *cpu, *python;
  if (!PyArg_ParseTuple(args, "Oss", &tensor, &cpu, &python)) return NULL;
  void *libraries[3] = {dlopen(cpu, RTLD_NOW | RTLD_NOLOAD), dlopen(python, RTLD_NOW | RTLD_NOLOAD), NULL};
  if (!libraries[0] || !libraries[1]) {
    PyErr_SetString(PyExc_RuntimeError, "torch's libraries are not loaded");
    return NULL;
  }
#define REQUIRE(field, name)                                             \
  if (!(*(void **)&api.field = find(libraries, name))) {                 \
    PyErr_SetString(PyExc_RuntimeError, "torch does not export " name); \
    return NULL;                                                         \
  }
#define OPTIONAL(field, name) *(void **)&api.field = find(libraries, name)
  REQUIRE(get_data_ptr, "aoti_torch_get_data_ptr")
  REQUIRE(get_sizes, "aoti_torch_get_sizes")
  REQUIRE(get_strides, "aoti_torch_get_strides")
  REQUIRE(get_dim, "aoti_torch_get_dim")
  REQUIRE(get_dtype, "aoti_torch_get_dtype")
  OPTIONAL(view_dtype, "aoti_torch_cpu_view_dtype");
  REQUIRE(new_handle, "aoti_torch_new_tensor_handle")
  REQUIRE(delete_handle, "aoti_torch_delete_tensor_object")
  REQUIRE(empty_strided, "aoti_torch_empty_strided")
  REQUIRE(reinterpret, "aoti_torch__reinterpret_tensor")
  REQUIRE(from_pool, "aoti_torch__alloc_from_pool")
  REQUIRE(grad_enabled, "aoti_torch_grad_mode_is_enabled")
  REQUIRE(set_grad_enabled, "aoti_torch_grad_mode_set_enabled")
  REQUIRE(max_threads, "omp_get_max_threads")
  REQUIRE(wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE")
  OPTIONAL(watched, "_ZN2at12hasCallbacksEv");
  OPTIONAL(begin_range, "aoti_record_function_start");
  OPTIONAL(end_range, "aoti_record_function_end");
  if (!api.begin_range || !api.end_range) api.watched = NULL;
  OPTIONAL(mm_out, "aoti_torch_cpu_mm_out");
  OPTIONAL(bmm_out, "aoti_torch_cpu_bmm_out");
  OPTIONAL(addmm_out, "aoti_torch_cpu_addmm_out");
  OPTIONAL(baddbmm_out, "aoti_torch_cpu_baddbmm_out");
  OPTIONAL(flash, "aoti_torch_cpu__scaled_dot_product_flash_attention_for_cpu");
  OPTIONAL(convolution, "aoti_torch_cpu_convolution");
  OPTIONAL(linear, "aoti_torch_cpu__linear_pointwise");
  OPTIONAL(recurrent, "aoti_torch_cpu_mkldnn_rnn_layer");
  int32_t (*byte)(void) = (int32_t(*)(void))find(libraries, "aoti_torch_dtype_uint8");
  if (!byte) {
    PyErr_SetString(PyExc_RuntimeError, "torch does not export aoti_torch_dtype_uint8");
    return NULL;
  }
  byte_dtype = byte();
  PyObject *address = PyObject_GetAttrString(tensor, "_cdata");
  if (!address) return NULL;
  void *wanted = PyLong_AsVoidPtr(address);
  Py_DECREF(address);
  Py_ssize_t offset = -1;
  for (Py_ssize_t k = sizeof(PyObject); k < 64 && k + 8 <= Py_TYPE(tensor)->tp_basicsize; k += 8)
    if (*(void **)((char *)tensor + k) == wanted) {
      offset = k;
      break;
    }
  if (offset < 0) {
    PyErr_SetString(PyExc_RuntimeError, "the handle inside a Python tensor can't be found");
    return NULL;
  }
  handle_offset = offset;
  Py_XSETREF(tensor_type, (PyTypeObject *)Py_NewRef(Py_TYPE(tensor)));
  int available = (api.mm_out != NULL) << DIRECT_MM | (api.bmm_out != NULL) << DIRECT_BMM |
                  (api.addmm_out != NULL) << DIRECT_ADDMM | (api.baddbmm_out != NULL) << DIRECT_BADDBMM |
                  (api.flash != NULL) << DIRECT_FLASH | (api.convolution != NULL) << DIRECT_CONVOLUTION |
                  (api.linear != NULL) << DIRECT_LINEAR | (api.recurrent != NULL) << DIRECT_LSTM;
  return PyLong_FromLong(available);
}

/* set_up_gpu(libtorch_cuda, addresses of cuLaunchKernel, cuDevicePrimaryCtxRetain, cuCtxSetCurrent): find what programs on a GPU need; direct functions as bits. */
static PyObject *set_up_gpu(PyObject *module, PyObject *args) {
  const char *cuda;
  unsigned long long launch, retain, make_current;
  if (!PyArg_ParseTuple(args, "sKKK", &cuda, &launch, &retain, &make_current)) return NULL;
  void *libraries[2] = {dlopen(cuda, RTLD_NOW | RTLD_NOLOAD), NULL};
  if (!libraries[0]) {
    PyErr_SetString(PyExc_RuntimeError, "torch's CUDA library is not loaded");
    return NULL;
  }
  struct { void *field; const char *name; int required; } wanted[] = {
      {&gpu.current_stream, "aoti_torch_get_current_cuda_stream", 1},
      {&gpu.new_guard, "aoti_torch_create_cuda_guard", 1},
      {&gpu.delete_guard, "aoti_torch_delete_cuda_guard", 1},
      {&gpu.view_dtype, "aoti_torch_cuda_view_dtype", 0},
      {&gpu.mm_out, "aoti_torch_cuda_mm_out", 0},
      {&gpu.bmm_out, "aoti_torch_cuda_bmm_out", 0},
      {&gpu.addmm_out, "aoti_torch_cuda_addmm_out", 0},
      {&gpu.baddbmm_out, "aoti_torch_cuda_baddbmm_out", 0},
      {&gpu.convolution, "aoti_torch_cuda_convolution", 0},
  };
  for (size_t k = 0; k < sizeof wanted / sizeof *wanted; k++) {
    void *symbol = find(libraries, wanted[k].name);
    if (!symbol && wanted[k].required) {
      PyErr_Format(PyExc_RuntimeError, "torch does not export %s", wanted[k].name);
      return NULL;
    }
    *(void **)wanted[k].field = symbol;
  }
  *(void **)&gpu.launch = (void *)(uintptr_t)launch;
  *(void **)&gpu.retain_context = (void *)(uintptr_t)retain;
  *(void **)&gpu.make_current = (void *)(uintptr_t)make_current;
  int available = (gpu.mm_out != NULL) << DIRECT_MM | (gpu.bmm_out != NULL) << DIRECT_BMM |
                  (gpu.addmm_out != NULL) << DIRECT_ADDMM | (gpu.baddbmm_out != NULL) << DIRECT_BADDBMM |
                  (gpu.convolution != NULL) << DIRECT_CONVOLUTION;
  return PyLong_FromLong(available);
}

static PyObject *set_serial(PyObject *module, PyObject *value) {
  serial_only = PyObject_IsTrue(value);
  Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"set_up", set_up, METH_VARARGS, "Find torch's C ABI; returns the set of direct vendor functions as bits."},
    {"set_up_gpu", set_up_gpu, METH_VARARGS, "Find what programs on a GPU need; returns direct functions as bits."},
    {"set_layout", set_layout, METH_VARARGS, "Find where tensors hold their memory; whether it was found."},
    {"forget_layout", forget_layout, METH_NOARGS, "Ask the C ABI for the memory of all tensors."},
    {"memory", memory, METH_O, "The address of a tensor's memory as inputs are read; 0: by the C ABI."},
    {"set_serial", set_serial, METH_O, "Whether kernels run on one thread only."},
    {0},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_launch", "Runs call programs.", -1, methods};
PyMODINIT_FUNC PyInit__launch(void) {
  if (PyType_Ready(&LauncherType)) return NULL;
  PyObject *module = PyModule_Create(&definition);
  if (module && (PyModule_AddObjectRef(module, "Launcher", (PyObject *)&LauncherType) ||
                 PyModule_AddIntConstant(module, "OPCODES", OP_INSIDE + 1) ||
                 PyModule_AddIntConstant(module, "FACE", 5))) /* launch.py refuses other numbers */
    Py_CLEAR(module);
  return module;
}
