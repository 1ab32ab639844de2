#include "tools/serve/run_watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/hash.h"

namespace keel::tools {

namespace {

constexpr std::string_view kModelFolder = "actor/huggingface/";

// Weights lie there too where a run exports them with each save.
bool IsOfTheModel(std::string_view path) {
  return path.starts_with(kModelFolder) && path.find(".safetensors") == std::string_view::npos;
}

std::string ModelOf(const checkpoint::Manifest& manifest) {
  std::string all;
  for (const checkpoint::ManifestFile& file : manifest.files)
    if (IsOfTheModel(file.path)) all += file.path + " " + file.digest.ToHex() + "\n";
  return Hash128(std::as_bytes(std::span(all))).ToHex();
}

}  // namespace

Result<std::unique_ptr<RunWatch>> RunWatch::Open(const std::string& run, bool may_come, Say say) {
  const auto files = OpenPosixFileSystem(run, false);
  if (!files.ok() && !(may_come && files.status().code() == StatusCode::kNotFound))
    return files.status().WithContext("--run");
  return std::unique_ptr<RunWatch>(new RunWatch(run, std::move(say)));
}

RunWatch::~RunWatch() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    stop_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void RunWatch::SayOnce(const std::string& text) {
  {
    const std::lock_guard lock(mutex_);
    if (!said_.insert(text).second) return;
  }
  say_(text);
}

bool RunWatch::JudgeUnread(const checkpoint::CatalogEntry& entry,
                           const std::optional<RunStep>& than) {
  if (entry.link) return false;
  if (checkpoint::IsUnread(entry)) {
    SayOnce(fmt::format("{} is passed over for now: {}", entry.directory, entry.status.ToString()));
    return true;
  }
  // A directory whose manifest is gone may be on its way out, as what is older than the served is.
  const bool older = than && entry.step <= than->step;
  if (older && entry.status.code() == StatusCode::kNotFound) return false;
  {
    const std::lock_guard lock(mutex_);
    const int times = ++found_unusable_[entry.directory];
    if (times < kReads) return true;
    if (times > kReads) return false;
    ++skipped_;
  }
  say_(fmt::format("{} is passed over: {}", entry.directory, entry.status.ToString()));
  return false;
}

// Another save may take such a directory's place, and be damaged, too.
void RunWatch::ForgetRead(const std::vector<checkpoint::CatalogEntry>& entries) {
  const std::lock_guard lock(mutex_);
  std::erase_if(found_unusable_, [&](const auto& unusable) {
    return std::none_of(entries.begin(), entries.end(), [&](const auto& entry) {
      return !entry.manifest && entry.directory == unusable.first;
    });
  });
}

std::optional<RunStep> RunWatch::StepOf(const FileSystem& files,
                                        const checkpoint::CatalogEntry& entry,
                                        const std::optional<RunStep>& than) {
  RunStep step{.path = files.Describe(entry.directory),
               .name = entry.directory,
               .step = entry.step,
               .sequence = entry.manifest->sequence,
               .digest = entry.manifest->own_digest,
               .model = ModelOf(*entry.manifest)};
  {
    const std::lock_guard lock(mutex_);
    if (refused_.contains(step.digest) || put_off_.contains(step.digest)) return {};
  }
  if (than && step.model != than->model) {
    Refuse(step, {StatusCode::kConfig,
                  "its configuration, tokenizer or chat template is not that of the model that is "
                  "served: start keel serve anew for it"});
    return {};
  }
  return step;
}

Result<std::optional<RunStep>> RunWatch::Look(const std::optional<RunStep>& than) {
  // Opened each time: another directory may have taken the name.
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(run_, false));
  std::vector<checkpoint::CatalogEntry> entries;
  {
    const std::lock_guard lock(looking_);
    KEEL_ASSIGN_OR_RETURN(entries, catalog_.List(*files));
  }
  ForgetRead(entries);
  bool doubt = false;
  for (const checkpoint::CatalogEntry& entry : entries)
    if (!entry.manifest && JudgeUnread(entry, than)) doubt = true;
  {
    const std::lock_guard lock(mutex_);
    in_doubt_ = doubt;
  }
  // Retention may have removed what is served where newer ones are passed over; but where all that
  // is there is older, or another commit with its number, the run has gone back.
  const bool there = !than || std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
    return entry.manifest && entry.manifest->own_digest == than->digest;
  });
  const bool went_back = !there && checkpoint::NewestSequence(entries) <= than->sequence;
  const int64_t above = than && !went_back ? than->sequence : -1;
  std::optional<RunStep> newest;
  for (const checkpoint::CatalogEntry& entry : entries) {
    if (!entry.manifest || entry.manifest->sequence <= above) continue;
    auto step = StepOf(*files, entry, than);
    if (!newest) newest = std::move(step);
  }
  return newest;
}

Result<checkpoint::Lease> RunWatch::Hold(const RunStep& step) const {
  KEEL_ASSIGN_OR_RETURN(const auto files, OpenPosixFileSystem(run_, false));
  return checkpoint::LeaseForReading(*files, step.name);
}

void RunWatch::Serve(const RunStep& step) {
  const std::lock_guard lock(mutex_);
  served_ = step;
  found_.reset();
  put_off_.clear();
}

// Of what is not found, retention may have been faster than the reader.
bool RunWatch::MayPass(const Status& why) {
  switch (why.code()) {
    case StatusCode::kNotFound:
    case StatusCode::kIo:
    case StatusCode::kExhausted:
    case StatusCode::kUnavailable:
    case StatusCode::kDeadlineExceeded:
      return true;
    default:
      return false;
  }
}

bool RunWatch::MayCome(const RunStep& step, const Status& why) {
  if (MayPass(why)) return true;
  const bool damaged =
      why.code() == StatusCode::kDataLoss || why.code() == StatusCode::kInvalidData;
  return damaged && ++found_damaged_[step.digest] < kReads;
}

void RunWatch::Refuse(const RunStep& step, const Status& why) {
  bool may_come = false;
  {
    const std::lock_guard lock(mutex_);
    may_come = MayCome(step, why);
    if (!may_come && refused_.insert(step.digest).second) ++skipped_;
    found_.reset();
  }
  SayOnce(fmt::format("{} is passed over{}: {}", step.name, may_come ? " for now" : "",
                      why.ToString()));
}

void RunWatch::PutOff(const RunStep& step) {
  const std::lock_guard lock(mutex_);
  put_off_.insert(step.digest);
}

void RunWatch::CallBack() {
  const std::lock_guard lock(mutex_);
  put_off_.clear();
}

bool RunWatch::in_doubt() const {
  const std::lock_guard lock(mutex_);
  return in_doubt_;
}

int64_t RunWatch::skipped() const {
  const std::lock_guard lock(mutex_);
  return skipped_;
}

void RunWatch::Start(std::chrono::milliseconds interval) {
  thread_ = std::thread([this, interval] { Run(interval); });
}

void RunWatch::Run(std::chrono::milliseconds interval) {
  std::unique_lock lock(mutex_);
  while (!stop_.wait_for(lock, interval, [&] { return stopping_; })) {
    const std::optional<RunStep> served = served_;
    lock.unlock();
    auto found = Look(served);
    if (!found.ok()) SayOnce(found.status().ToString());
    lock.lock();
    // What was served or refused meanwhile counts.
    if (!found.ok() || !*found || refused_.contains((*found)->digest)) continue;
    if (served_ && served_->digest != (served ? served->digest : "")) continue;
    found_ = *std::move(found);
  }
}

std::optional<RunStep> RunWatch::Found() const {
  const std::lock_guard lock(mutex_);
  return found_;
}

}  // namespace keel::tools
