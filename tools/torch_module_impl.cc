// keel_torch: the implementation of TorchModule; see torch_module.h.

#include <variant>

#include "tools/doctor/doctor_gpu.h"
#include "tools/doctor/doctor_torch.h"
#include "tools/torch_module.h"

namespace keel::tools {

namespace {

class Module final : public TorchModule {
 public:
  int Train(const TrainArguments& arguments, const StopState& stop) override {
    return tools::Train(arguments, stop);
  }
  void Score(const ScoreArguments& arguments) override { tools::Score(arguments); }
  void Generate(const GenerateArguments& arguments) override { tools::Generate(arguments); }
  void Evaluate(const EvalArguments& arguments) override { tools::Evaluate(arguments); }
  void Chat(const ChatArguments& arguments) override { tools::Chat(arguments); }
  void Serve(const ServeArguments& arguments) override { tools::Serve(arguments); }
  void Examine(DoctorReport& report, bool measure) override {
    ExamineTorch(report);
    ExamineGpus(report, measure);
  }
};

}  // namespace

}  // namespace keel::tools

extern "C" __attribute__((visibility("default"))) keel::tools::TorchModule* keel_torch_module() {
  static keel::tools::Module module;
  return &module;
}
