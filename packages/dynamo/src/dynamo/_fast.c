/* The extension module dynamo._fast: puts the parts together. Imported by dynamo._native only. */
#include "_fast.h"

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "dynamo._fast",
    .m_doc = "The fast parts of dynamo; every one has a form in Python with the same meaning.",
    .m_size = -1,
};

PyMODINIT_FUNC PyInit__fast(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL)
        return NULL;
    if (program_ready(module) < 0 || dispatch_ready(module) < 0 || hook_ready(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
