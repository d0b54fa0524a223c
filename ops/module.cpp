// The extension module: importing it runs the registrations of every ops/*/*_cpu.cpp, and it answers
// which CPU instruction sets can be used. It defines no op itself.
#include <Python.h>

#include "common/isa.h"

namespace {

using hisparse::Isa;

PyObject* cpu_isas(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  if (names == nullptr) return nullptr;
  for (Isa isa : hisparse::kAllIsas) {
    if (!hisparse::isa_supported(isa)) continue;
    PyObject* name = PyUnicode_FromString(hisparse::isa_name(isa));
    if (name == nullptr || PyList_Append(names, name) != 0) {
      Py_XDECREF(name);
      Py_DECREF(names);
      return nullptr;
    }
    Py_DECREF(name);
  }
  return names;
}

PyObject* cpu_isa(PyObject*, PyObject*) {
  return PyUnicode_FromString(hisparse::isa_name(hisparse::current_isa()));
}

PyObject* set_cpu_isa(PyObject*, PyObject* arg) {
  PyObject* utf8 = PyUnicode_AsUTF8String(arg);
  if (utf8 == nullptr) return nullptr;
  const char* name = PyBytes_AsString(utf8);
  const bool ok = name != nullptr && hisparse::set_isa(name);
  if (!ok) PyErr_Format(PyExc_ValueError, "%R", arg);  // worded by hisparse_ops.set_cpu_isa
  Py_DECREF(utf8);
  if (!ok) return nullptr;
  Py_RETURN_NONE;
}

PyObject* version(PyObject*, PyObject*) { return PyUnicode_FromString(HISPARSE_VERSION); }

PyMethodDef methods[] = {
    {"cpu_isas", cpu_isas, METH_NOARGS, "Instruction sets this machine can run, slowest first."},
    {"cpu_isa", cpu_isa, METH_NOARGS, "Instruction set the CPU kernels use now."},
    {"set_cpu_isa", set_cpu_isa, METH_O, "Make the CPU kernels use one instruction set."},
    {"version", version, METH_NOARGS, "Version this library was built from."},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    "hisparse_ops._C",
    "CPU kernels of hisparse",
    -1,
    methods,
    nullptr,
    nullptr,
    nullptr,
    nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__C(void) { return PyModule_Create(&module); }
