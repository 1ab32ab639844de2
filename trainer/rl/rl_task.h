// RL: the task that learns from rewards on its own responses (GRPO, PPO and their family).
#pragma once

#include <memory>

#include "trainer/run/job.h"
#include "trainer/run/run_course.h"
#include "trainer/run/task.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer::rl {

// All must outlive the task.
std::unique_ptr<Task> MakeRlTask(Job& job, RunCourse& course, const TrainerInputs& inputs);

}  // namespace keel::trainer::rl
