// Values of other trainers as Keel writes them; see Conversion in key_table.h.
#pragma once

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer::foreign {

// A text alone is a list of it; null says nothing.
Result<Json> AsList(const Json& value);
// DAPO's names of the score itself.
Result<Json> AsFilterMetric(const Json& value);
// "fp32", "torch.bfloat16" as the names of WeightDtype.
Result<Json> AsDtype(const Json& value);
// The learning rate's course by its names in Megatron, verl and transformers.
Result<Json> AsDecayStyle(const Json& value);
Result<Json> AsTransformersDecayStyle(const Json& value);
// Where metrics go: what this build has, and jsonl for the services that read such files.
Result<Json> AsLoggers(const Json& value);
// Of the same value, what Keel's runs do not write to, as a sentence for people; "" where that is
// nothing.
std::string LoggersLeftOut(const Json& value);
// The loop that a response runs in, by its name: whether it has tools.
Result<Json> AsToolLoop(const Json& value);
// Negative numbers, and null, say nothing; of the second zero and shares, too.
Result<Json> UnlessNegative(const Json& value);
Result<Json> FromOneOn(const Json& value);
// A number of steps whose last is not one of Keel's.
Result<Json> OneLess(const Json& value);
// The importer works the value out, of this key and others.
Result<Json> Worked(const Json& value);

// Of TRL's and transformers' arguments.
Result<Json> Bf16AsDtype(const Json& value);      // null: yes
Result<Json> RandomAsShuffle(const Json& value);  // of train_sampling_strategy
Result<Json> AsTruncation(const Json& value);     // of truncation_mode
Result<Json> OneOfList(const Json& value);        // a list of one is that one
Result<Json> ZeroAsAll(const Json& value);        // top_k
Result<Json> NothingAsZero(const Json& value);    // of max_grad_norm: it does not clip
Result<Json> GroupAsTrue(const Json& value);      // of scale_rewards
Result<Json> CpuAsDevice(const Json& value);      // of use_cpu
Result<Json> PathOrNothing(const Json& value);
// A number is a list of one.
Result<Json> NumbersOrNothing(const Json& value);
Result<Json> MapOrNothing(const Json& value);

}  // namespace keel::trainer::foreign
