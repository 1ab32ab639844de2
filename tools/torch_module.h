// TorchModule: what of the commands needs libtorch, in a shared object of its own.
//
// libtorch costs 110 MB and 0.2 s a process, so the program links none of it: help, mistakes, the
// launcher, configurations, data and checkpoints do without. keel_torch has copies of its own of
// all libraries that it shares with the program: what both are to see is passed to it.
#pragma once

#include "tools/doctor/doctor_report.h"
#include "tools/eval/eval_command.h"
#include "tools/inference/chat_command.h"
#include "tools/inference/generate_command.h"
#include "tools/inference/score_command.h"
#include "tools/serve/serve_command.h"
#include "tools/stop_signals.h"
#include "tools/train_command.h"

namespace keel::tools {

// Each throws keel::Error, as the functions of these names do.
class TorchModule {
 public:
  virtual ~TorchModule() = default;
  virtual int Train(const TrainArguments& arguments, const StopState& stop) = 0;
  virtual void Score(const ScoreArguments& arguments) = 0;
  virtual void Generate(const GenerateArguments& arguments) = 0;
  virtual void Evaluate(const EvalArguments& arguments) = 0;
  virtual void Chat(const ChatArguments& arguments) = 0;
  virtual void Serve(const ServeArguments& arguments) = 0;
  virtual void Examine(DoctorReport& report, bool measure) = 0;
};

// Loads keel_torch once a process; see OpenModule for where it is. Throws
// keel::Error(kUnavailable), also for a module of another build than the program's: the arguments
// above have the layout of one build, which the version does not tell.
TorchModule& LoadTorchModule();
// It has been loaded.
bool HasTorchModule();

}  // namespace keel::tools
