#include "_fast.h"
int hook_ready(PyObject *module) { return 0; }
