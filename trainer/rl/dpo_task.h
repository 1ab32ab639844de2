// Direct preference optimization: the task that learns from pairs of answers, beside a frozen copy
// of the model it began with.
#pragma once

#include <memory>

#include "trainer/config/config.h"
#include "trainer/run/job.h"
#include "trainer/run/run_course.h"
#include "trainer/run/task.h"

namespace keel::trainer::rl {

// The reference is actor_rollout_ref.model as it is loaded or drawn at the start of every run; it
// is in no checkpoint, so a resumed run takes it from the same place. With ref.sync_ref_model it
// begins like that, follows the policy, and is the role "ref" of each checkpoint. All must outlive
// the task.
std::unique_ptr<Task> MakeDpoTask(Job& job, RunCourse& course, const Config& config);

}  // namespace keel::trainer::rl
