// The module keel_arrow: TableRows of Parquet files, by Arrow.
#include <arrow/io/file.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/table.h>
#include <fmt/format.h>
#include <parquet/arrow/reader.h>
#include <parquet/exception.h>
#include <parquet/properties.h>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/text.h"
#include "trainer/data/arrow/arrow_values.h"
#include "trainer/data/files/table_rows.h"

namespace keel::trainer {

namespace {

constexpr int64_t kBatchRows = 1024;

class ParquetRows final : public TableRows {
 public:
  explicit ParquetRows(const std::string& path)
      : path_(path), name_("data file " + Printable(path)) {}

  Status Open() {
    return Guarded([&]() -> arrow::Status {
      ARROW_ASSIGN_OR_RAISE(auto file, arrow::io::ReadableFile::Open(path_, &pool_));
      parquet::ReaderProperties reading(&pool_);
      // Pages as they are needed, not a row group at once.
      reading.enable_buffered_stream();
      // Those that pages have, as Spark writes them.
      reading.set_page_checksum_verification(true);
      parquet::ArrowReaderProperties properties(/*use_threads=*/false);
      properties.set_batch_size(kBatchRows);
      properties.set_pre_buffer(false);
      parquet::arrow::FileReaderBuilder builder;
      ARROW_RETURN_NOT_OK(builder.Open(std::move(file), reading));
      ARROW_ASSIGN_OR_RAISE(reader_, builder.memory_pool(&pool_)->properties(properties)->Build());
      return arrow::Status::OK();
    });
  }

  Result<bool> Next(Json* row) override {
    while (batch_ == nullptr || at_ == batch_->num_rows()) {
      if (batches_ == nullptr && group_ == reader_->num_row_groups()) return false;
      KEEL_RETURN_IF_ERROR(Guarded([&] { return ReadBatch(); }));
      at_ = 0;
    }
    *row = Json::object();
    for (int c = 0; c < batch_->num_columns(); ++c) {
      const std::string& column = batch_->column_name(c);
      if (row->contains(column)) return At(column, "two columns have this name");
      Result<Json> value = ValueAt(*batch_->column(c), at_);
      if (!value.ok()) return At(column, value.status().message());
      (*row)[column] = std::move(value).value();
    }
    ++at_;
    ++given_;
    return true;
  }

 private:
  // Null where a row group has ended: over two of them Arrow reads no nested column that has a
  // dictionary in each.
  arrow::Status ReadBatch() {
    if (batches_ == nullptr) {
      ARROW_ASSIGN_OR_RAISE(batches_, reader_->GetRecordBatchReader(std::vector<int>{group_++}));
    }
    ARROW_RETURN_NOT_OK(batches_->ReadNext(&batch_));
    if (batch_ == nullptr) {
      batches_.reset();
      return arrow::Status::OK();
    }
    // Offsets within the file's own pages were checked; those between its levels are now.
    return batch_->Validate();
  }

  Status At(const std::string& column, const std::string& what) const {
    return Status(StatusCode::kInvalidData, fmt::format("{}: row {}: column {}: {}", name_,
                                                        given_ + 1, Printable(column, 60), what));
  }

  // What Arrow refuses, by a status or an exception, as ours.
  template <typename Work>
  Status Guarded(const Work& work) {
    arrow::Status status;
    try {
      status = work();
    } catch (const parquet::ParquetException& error) {
      status = arrow::Status::Invalid(error.what());
    } catch (const std::bad_alloc&) {
      status = arrow::Status::OutOfMemory("no memory");
    }
    if (status.ok()) return Status::Ok();
    if (status.IsOutOfMemory()) {
      return Status(
          StatusCode::kExhausted, StatusCause::kMemory,
          fmt::format("{}: {} rows at row {} take more than {} bytes: {}", name_, kBatchRows,
                      given_ + 1, kMostTableBytes, Printable(status.message())));
    }
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: is no Parquet file that can be read, or is damaged, at "
                              "row {}: {}",
                              name_, given_ + 1, Printable(status.message(), 400)));
  }

  std::string path_;
  std::string name_;
  arrow::CappedMemoryPool pool_{arrow::system_memory_pool(), kMostTableBytes};
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;  // of one row group
  std::shared_ptr<arrow::RecordBatch> batch_;
  int group_ = 0;   // the next
  int64_t at_ = 0;  // in batch_
  int64_t given_ = 0;
};

Result<std::unique_ptr<TableRows>> Open(const std::string& path) {
  auto rows = std::make_unique<ParquetRows>(path);
  KEEL_RETURN_IF_ERROR(rows->Open());
  return std::unique_ptr<TableRows>(std::move(rows));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void KeelArrowOpenTable(
    const std::string& path, Result<std::unique_ptr<TableRows>>* opened) {
  *opened = Open(path);
}

extern "C" __attribute__((visibility("default"))) const char KeelArrowVersion[] = KEEL_VERSION;

}  // namespace keel::trainer
