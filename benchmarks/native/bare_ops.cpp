// Ops that do nothing, under any schema: what a call costs before any op's own work.
#include <torch/library.h>

#include <memory>
#include <vector>

namespace {

void do_nothing(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  torch::jit::drop(*stack, op.schema().arguments().size());
}

}  // namespace

extern "C" void implement_bare(const char* name) {
  static std::vector<std::unique_ptr<torch::Library>> kept;
  kept.push_back(std::make_unique<torch::Library>(torch::Library::IMPL, "hisparse_bare",
                                                  c10::DispatchKey::CPU, __FILE__, __LINE__));
  kept.back()->impl(name, torch::CppFunction::makeFromBoxedFunction<&do_nothing>());
}
