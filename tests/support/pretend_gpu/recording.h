// What a pretend GPU is given to do while a thread records (CudaModule::Record), kept to be done
// again.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>

#include "parallel/groups/cuda_module.h"

namespace keel::testing::pretend {

// Whether this thread records.
bool Recording();
// Keeps what does a piece of work again, if this thread records.
void Remember(std::function<void()> again);
// Does it, and remembers it.
void Perform(const std::function<void()>& work);
// What `t` holds has no value at the end of the recording: on a GPU nothing has been done then.
void HasNoValueYet(const at::Tensor& t);
// Throws, with what was asked for, if this thread records.
void NotWhileRecording(const char* what);

Result<std::unique_ptr<parallel::Recording>> Record(const std::function<void()>& work);

}  // namespace keel::testing::pretend
