// TaskRunner: the way that every task goes from its data to its last step: data, connections,
// models, run folder, resume, then step by step with validation, saves and preemption.
//
// Owns the job, its connection, the course and the run's folder, all of which the task may use as
// long as this lives. Made and used by one thread; collective over all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/inputs/adapter_files.h"
#include "trainer/run/job.h"
#include "trainer/run/job_connection.h"
#include "trainer/run/run_course.h"
#include "trainer/run/run_folder.h"
#include "trainer/run/run_state.h"
#include "trainer/run/run_trace.h"
#include "trainer/run/task.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer {

class TaskRunner {
 public:
  // Both must outlive this. Not collective. Throws Error(kUnavailable) when the device that
  // trainer.device demands is not there.
  TaskRunner(const TrainerInputs& inputs, Logger& log);

  Job& job() { return job_; }
  RunCourse& course() { return course_; }

  // From the data to the last step, once. Throws keel::Error.
  RunEnd Run(Task& task);

 private:
  RunEnd Main();
  void LoadData();
  void WarnOfData(const std::vector<std::string>& warnings);
  void SetValidation(const TaskData::Set& val);
  void CheckRoom();
  SharedFacts Facts() const;
  void CompareArithmetic();
  void OpenFolder();
  void DescribeAdapters();
  void CompareBase(const checkpoint::LoadRecord& record);
  void Resume();
  std::optional<checkpoint::LoadRecord> Load(checkpoint::LoadRequest request);
  int64_t OptimizerSteps(const checkpoint::LoadRecord& record);
  void SayWhatChanged(const Task::Documents& documents);
  void SayWhichContentsChanged(const Task::Documents& documents);
  RunEnd Loop();
  RunEnd Preempted();
  void Finish(bool settle);  // as in Checkpointer::Close
  bool WantsToStop() const;
  RunEnd StopWithin(int64_t step);
  bool SaveIsDue(bool last) const;
  void CheckReplicas(const std::string& when);
  void RunValidation();
  void SaveUnlessDiverging();
  void SaveLast(bool finished);
  void CheckSkips(const Task::StepEnd& end) const;
  checkpoint::SaveRequest Snapshot();
  void Phase(const char* phase) const { job_.Phase(phase, state_.step); }

  const TrainerInputs& inputs_;
  const Config& c_;
  JobConnection connection_;
  Job job_;
  RunCourse course_;
  const RunState& state_ = course_.state();
  Task* task_ = nullptr;
  const ModelDescription* model_ = nullptr;  // the task's
  RunTrace trace_;                           // the folder's saves are recorded to it
  std::unique_ptr<RunFolder> folder_;
  std::string room_ = "The run's state was not yet made";  // what takes memory, for messages
  DataIdentity identity_;
  std::optional<AdapterBase> base_;  // of a model with adapters
  SharedFacts facts_;                // of the data, for the comparison between ranks
  double validation_s_ = 0;          // the last one's
  std::optional<std::pair<int64_t, double>> validated_;  // step and value
  bool save_owed_ = false;  // one was due while updates were being skipped
};

}  // namespace keel::trainer
