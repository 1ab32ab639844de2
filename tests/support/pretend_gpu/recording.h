// What a pretend GPU is given to do while a thread records (CudaModule::Record), kept to be done
// again.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <vector>

#include "parallel/groups/cuda_module.h"

namespace keel::testing::pretend {

// Whether this thread records.
bool Recording();
// Keeps what does a piece of work again, if this thread records.
void Remember(std::function<void()> again);
// Does it, and remembers it.
void Perform(const std::function<void()>& work);
// Memory that tensors of a recording have: theirs for as long as it or one of them lives, so that
// nothing else is there when it is replayed.
class RecordedMemory {
 public:
  RecordedMemory() = default;
  ~RecordedMemory();
  RecordedMemory(const RecordedMemory&) = delete;
  RecordedMemory& operator=(const RecordedMemory&) = delete;
  void Add(void* memory) { all_.push_back(memory); }

 private:
  std::vector<void*> all_;
};
// Of the recording that this thread makes; null without one.
std::shared_ptr<RecordedMemory> MemoryOfRecording();
// What `t` holds has no value at the end of the recording: on a GPU nothing has been done then.
void HasNoValueYet(const at::Tensor& t);
// Throws, with what was asked for, if this thread records.
void NotWhileRecording(const char* what);

Result<std::unique_ptr<parallel::Recording>> Record(const std::function<void()>& work);

}  // namespace keel::testing::pretend
