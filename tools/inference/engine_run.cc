#include "tools/inference/engine_run.h"

namespace keel::tools {

void RunRows(const EngineRun& run, const Prompts& prompts, const Progress::Options& options,
             const std::function<void(const rollout::Completion&)>& take, RowOutput* out) {
  run.model.relay().Send(prompts);
  run.add(prompts);
  Progress bar(options);
  while (!run.engine.idle()) {
    for (const rollout::Completion& completion : run.engine.Step()) {
      take(completion);
      bar.Add();
    }
    bar.Add(0);  // time goes on
  }
  bar.Done();
  run.model.relay().SendEnd();
  run.model.Leave();
  ThrowIfError(out->Finish());
}

void FollowRows(const EngineRun& run) {
  while (const auto prompts = run.model.relay().Receive()) {
    run.add(*prompts);
    while (!run.engine.idle()) run.engine.Step();
  }
  run.model.Leave();
}

}  // namespace keel::tools
