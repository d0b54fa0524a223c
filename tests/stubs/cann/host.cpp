// Does what the framework does with an op: reads the definition, tiles, infers, and launches the kernel with
// every operand at the position that the definition gives it.
#include "host.h"

#include <algorithm>
#include <sstream>

#include "register/op_def_registry.h"

// Of the kernel's translation unit: how many pointers the entry takes, and the launch of one block.
[[gnu::weak]] size_t hisparse_resolve_pointers();
[[gnu::weak]] void hisparse_resolve_block(void* const* pointers, uint32_t block, uint32_t blocks,
                                          uint32_t ub_bytes);

namespace stub {
namespace {

const ops::OpDef& the_op() { return ops::registered_ops().at(0); }

// Left to right: every input, every attribute; an output that is also an input has no place of its own.
std::string check(const std::vector<Argument>& arguments) {
  const ops::OpDef& op = the_op();
  if (arguments.size() != op.inputs.size() + op.attrs.size()) return "the number of arguments differs";
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    const Argument& a = arguments[i];
    if (!a.given && op.inputs[i].option == ops::REQUIRED) return op.inputs[i].name + " is required";
    if (a.given && a.type != op.inputs[i].types.at(0)) return op.inputs[i].name + " has another type";
  }
  return "";
}

std::vector<void*> pointers(const std::vector<Argument>& arguments, void* tiling) {
  const ops::OpDef& op = the_op();
  std::vector<void*> all;
  for (size_t i = 0; i < op.inputs.size(); ++i)
    all.push_back(arguments[i].given ? arguments[i].data : nullptr);
  for (const auto& output : op.outputs) {
    const auto at = std::find_if(op.inputs.begin(), op.inputs.end(),
                                 [&](const auto& input) { return input.name == output.name; });
    all.push_back(arguments[at - op.inputs.begin()].data);
  }
  all.push_back(nullptr);  // workspace
  all.push_back(tiling);
  return all;
}

}  // namespace

uint32_t vector_cores = 4;

std::string execute(const char* api, const std::vector<Argument>& arguments) {
  const ops::OpDef& op = the_op();
  if ("aclnn" + op.type != api) return std::string("no such call: ") + api;
  if (const std::string error = check(arguments); !error.empty()) return error;
  gert::TilingContext context;
  context.vector_cores = vector_cores;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    context.inputs.emplace_back(gert::Shape({arguments[i].elements}));
    context.given.push_back(arguments[i].given);
  }
  for (size_t i = 0; i < op.attrs.size(); ++i)
    context.attrs.lists.emplace_back(arguments[op.inputs.size() + i].list);
  if (op.core.tiling(&context) != ge::GRAPH_SUCCESS) return "tiling refused the call";
  const auto all = pointers(arguments, context.tiling_data.data());
  if (all.size() != hisparse_resolve_pointers()) return "the kernel entry takes another number of operands";
  for (uint32_t block = 0; block < context.block_dim; ++block)
    hisparse_resolve_block(all.data(), block, context.block_dim, context.ub_bytes);
  return "";
}

}  // namespace stub

namespace {

std::string text;

void describe(const char* kind, const std::deque<ops::OpParamDef>& params, std::ostream& out) {
  for (const auto& p : params)
    out << kind << ' ' << p.name << ' ' << (p.option == ops::REQUIRED ? "required" : "optional") << ' '
        << p.types.at(0) << '\n';
}

}  // namespace

// For ctypes. All else is hidden: one process may load the op of several trees.
#pragma GCC visibility push(default)
extern "C" {

void set_vector_cores(uint32_t cores) { stub::vector_cores = cores; }

// The definition, a line per operand.
const char* definition() {
  const ops::OpDef& op = stub::the_op();
  std::ostringstream out;
  out << "op " << op.type << '\n';
  describe("input", op.inputs, out);
  describe("output", op.outputs, out);
  for (const auto& attr : op.attrs) out << "attr " << attr.name << '\n';
  for (const auto& soc : op.core.socs) out << "soc " << soc << '\n';
  text = out.str();
  return text.c_str();
}

// Runs both inferences on inputs of sizes 1, 2, 3, ...; for every output the size and the type it is given.
uint32_t infer(int64_t* sizes, int32_t* types) {
  const ops::OpDef& op = stub::the_op();
  gert::InferShapeContext shapes;
  gert::InferDataTypeContext data_types;
  for (size_t i = 0; i < op.inputs.size(); ++i) {
    shapes.inputs.emplace_back(std::vector<int64_t>{static_cast<int64_t>(i) + 1});
    data_types.inputs.push_back(op.inputs[i].types.at(0));
  }
  shapes.outputs.resize(op.outputs.size());
  data_types.outputs.resize(op.outputs.size());
  if (op.infer_shape(&shapes) != ge::GRAPH_SUCCESS) return 1;
  if (op.infer_data_type(&data_types) != ge::GRAPH_SUCCESS) return 1;
  for (size_t i = 0; i < op.outputs.size(); ++i) {
    sizes[i] = shapes.outputs[i].GetShapeSize();
    types[i] = data_types.outputs[i];
  }
  return 0;
}

// Tiles a call whose inputs hold `elements` (-1: not given). 0 if it was accepted.
uint32_t tile(const int64_t* elements, const int64_t* sizes, int64_t num_sizes, const int64_t* strides,
              int64_t num_strides, uint32_t* block_dim, uint32_t* ub_bytes) {
  gert::TilingContext context;
  context.vector_cores = stub::vector_cores;
  for (size_t i = 0; i < stub::the_op().inputs.size(); ++i) {
    context.inputs.emplace_back(gert::Shape({elements[i]}));
    context.given.push_back(elements[i] >= 0);
  }
  context.attrs.lists.emplace_back(std::vector<int64_t>(sizes, sizes + num_sizes));
  context.attrs.lists.emplace_back(std::vector<int64_t>(strides, strides + num_strides));
  if (stub::the_op().core.tiling(&context) != ge::GRAPH_SUCCESS) return 1;
  *block_dim = context.block_dim;
  *ub_bytes = context.ub_bytes;
  return 0;
}
}
#pragma GCC visibility pop
