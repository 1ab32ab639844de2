#include "trainer/foreign/trl_import.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/trainer/foreign/trl_fixture.h"

namespace keel::trainer::foreign {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Half the batch, without a word, of a script that starts two processes.
TEST(TrlImport, SaysThatTheRanksWereNotSaid) {
  const std::string script =
      "accelerate launch --num_processes 2 -m trl.scripts.dpo --model_name_or_path m "
      "--dataset_name pairs.jsonl --per_device_train_batch_size 4\n";
  const auto one = ImportTrl("dpo.sh", script, std::nullopt, 0);
  ASSERT_TRUE(one.ok()) << one.status().ToString();
  EXPECT_THAT(one.value().report, HasSubstr("batches are those of one rank"));
  EXPECT_EQ(Loaded(one.value()).data.train_batch_size, 4);
  const auto two = ImportTrl("dpo.sh", script, std::nullopt, 2);
  ASSERT_TRUE(two.ok()) << two.status().ToString();
  EXPECT_THAT(two.value().report, Not(HasSubstr("batches are those of one rank")));
  EXPECT_EQ(Loaded(two.value(), 2).data.train_batch_size, 8);
}

TEST(TrlImport, TheLeastRateIsGivenItselfOrByItsShare) {
  const auto read = [](const std::string& more) {
    const auto made = ImportTrl("sft.yaml",
                                "model_name_or_path: models/SmolLM2\ndataset_name: chats.jsonl\n"
                                "learning_rate: 1.0e-4\n" +
                                    more,
                                TrlMethod::kSft, 1);
    ThrowIfError(made.status());
    return made.value();
  };
  const std::string schedule = "lr_scheduler_type: cosine_with_min_lr\n";
  for (const auto& [kwargs, rate] :
       {std::pair("{min_lr: 2.0e-6}", 2e-6), std::pair("{min_lr_rate: 0.1}", 1e-5)}) {
    const Imported made = read(schedule + "lr_scheduler_kwargs: " + kwargs + "\n");
    EXPECT_THAT(made.report, Not(HasSubstr("asked for"))) << made.report;
    const auto optim = Loaded(made, 1).actor_rollout_ref.actor.optim;
    EXPECT_EQ(optim.lr_decay_style, LrDecayStyle::kCosine);
    EXPECT_DOUBLE_EQ(optim.min_lr, rate);
  }
  // On a command line the map is JSON.
  const auto script = ImportTrl(
      "sft.sh",
      "trl sft --model_name_or_path m --dataset_name d.jsonl --lr_scheduler_type "
      "cosine_with_min_lr --lr_scheduler_kwargs '{\"min_lr\": 2e-6}' --model_init_kwargs '{}'\n",
      std::nullopt, 1);
  ASSERT_TRUE(script.ok()) << script.status().ToString();
  EXPECT_THAT(script->report, Not(HasSubstr("asked for")));
  EXPECT_DOUBLE_EQ(Loaded(*script, 1).actor_rollout_ref.actor.optim.min_lr, 2e-6);
  // As transformers, which knows none of them elsewhere, and needs one here.
  EXPECT_THAT(read("lr_scheduler_type: cosine\nlr_scheduler_kwargs: {min_lr: 1.0e-6}\n").report,
              HasSubstr("of lr_scheduler_type cosine_with_min_lr alone"));
  EXPECT_THAT(read(schedule).report, HasSubstr("one of min_lr and min_lr_rate"));
}

TEST(TrlImport, AFileOfSftIsValid) {
  const auto made = ImportTrl("sft.yaml",
                              "model_name_or_path: models/SmolLM2\ndataset_name: chats.jsonl\n"
                              "learning_rate: 1.0e-4\nper_device_train_batch_size: 4\n"
                              "gradient_accumulation_steps: 2\nmax_steps: 100\nwarmup_steps: 0.1\n"
                              "lr_scheduler_type: cosine\npacking: yes\nlogging_steps: 5\n"
                              "eval_strategy: no\nsave_steps: 50\nsave_total_limit: 2\n"
                              "report_to: wandb\noutput_dir: runs/sft\nmax_length: 2048\n",
                              TrlMethod::kSft, 2);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT(made.value().report, HasSubstr("16 of 16 keys are TRL 1.16's sft's"));
  EXPECT_THAT(made.value().report, Not(HasSubstr("asked for")));
  EXPECT_THAT(made.value().unresolved, IsEmpty());
  const Config c = Loaded(made.value(), 2);
  EXPECT_EQ(c.trainer.task, TaskKind::kSft);
  EXPECT_EQ(c.actor_rollout_ref.model.path, "models/SmolLM2");
  EXPECT_EQ(c.actor_rollout_ref.model.dtype, WeightDtype::kBfloat16);
  EXPECT_THAT(c.data.train_files, ElementsAre("chats.jsonl"));
  EXPECT_EQ(c.data.train_batch_size, 16);
  EXPECT_EQ(c.data.micro_batch_size_per_gpu, 4);
  EXPECT_EQ(c.trainer.total_training_steps, 100);
  EXPECT_FALSE(c.trainer.total_epochs);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr, 1e-4);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr_warmup_steps, 10);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr_decay_style, LrDecayStyle::kCosine);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.weight_decay, 0);
  EXPECT_EQ(c.data.packing, Packing::kBestFit);
  EXPECT_EQ(c.data.truncation, Truncation::kRight);
  EXPECT_EQ(c.trainer.save_freq, 50);
  EXPECT_EQ(c.trainer.max_ckpts_to_keep, 2);
  EXPECT_EQ(c.trainer.log_freq, 5);
  EXPECT_EQ(c.trainer.seed, 42);
}

// YAML 1.1 has more numbers than JSON, and argparse makes them of texts.
TEST(TrlImport, ANumberIsOneHoweverItIsWritten) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\n";
  const auto made = ImportTrl(
      "f.yaml",
      file +
          "gradient_accumulation_steps: \"8\"\nsave_steps: 1_000\nadam_beta2: \"0.95\"\n"
          "warmup_steps: \"20\"\neval_strategy: steps\neval_steps: \"+50\"\npacking: \"Yes\"\n",
      TrlMethod::kSft, 1);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  for (const char* line : {"train_batch_size: 64 ", "save_freq: 1000 ", "betas: [0.9, 0.95]",
                           "lr_warmup_steps: 20 ", "test_freq: 50 ", "packing: best_fit"})
    EXPECT_THAT(made.value().yaml, HasSubstr(line));
  for (const char* wrong : {"save_steps: often\n", "packing: maybe\n", "adam_beta2: [0.9]\n"}) {
    const auto refused = ImportTrl("f.yaml", file + wrong, TrlMethod::kSft, 1);
    const std::string said = refused.ok() ? refused.value().report : refused.status().ToString();
    EXPECT_THAT(said, HasSubstr(": expected ")) << wrong;
    if (refused.ok()) {
      EXPECT_FALSE(refused.value().unresolved.empty()) << wrong;
    }
  }
}

// What TRL does where nothing is said is said where it is not what is done here.
TEST(TrlImport, WhatIsLearntOfMessagesIsSaid) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\n";
  const auto report = [&](const std::string& more) {
    const auto made = ImportTrl("f.yaml", file + more, TrlMethod::kSft, 1);
    return made.ok() ? made.value().report : made.status().ToString();
  };
  EXPECT_THAT(report(""), HasSubstr("TRL learns all tokens, the user's too"));
  EXPECT_THAT(report("assistant_only_loss: true\n"), Not(HasSubstr("the user's too")));
  for (const char* more : {"", "assistant_only_loss: true\n"})
    EXPECT_THAT(report(more), HasSubstr("white space behind an answer's end")) << more;
  EXPECT_THAT(
      report("report_to: [wandb, tensorboard]\n"),
      AllOf(HasSubstr("nothing goes to wandb during the run"), Not(HasSubstr("to tensorboard"))));
  EXPECT_THAT(report(""), HasSubstr("trainer.task: pretrain learns all tokens\n"));
  EXPECT_THAT(report("chat_template_path: HuggingFaceTB/SmolLM3-3B\n"),
              HasSubstr("give the file of its template"));
  EXPECT_THAT(report("chat_template_path: t/chat_template.jinja\n"), Not(HasSubstr("asked for")));
}

TEST(TrlImport, APackingThatIsNotKnownIsNone) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\npacking: true\n";
  const auto old = ImportTrl("f.yaml", file + "packing_strategy: ffd\n", TrlMethod::kSft, 1);
  ASSERT_TRUE(old.ok()) << old.status().ToString();
  EXPECT_EQ(Loaded(old.value()).data.packing, Packing::kBestFit);
  const auto over_ends =
      ImportTrl("f.yaml", file + "packing_strategy: wrapped\n", TrlMethod::kSft, 1);
  ASSERT_TRUE(over_ends.ok()) << over_ends.status().ToString();
  EXPECT_EQ(Loaded(over_ends.value()).data.packing, Packing::kStream)
      << "TRL's attention goes over them";
  // Its chunks are of max_length tokens, which a sample here has as many inputs as.
  const auto cut = [&](const std::string& more) {
    const auto made = ImportTrl("f.yaml", file + more, TrlMethod::kSft, 1);
    ThrowIfError(made.status());
    return made.value();
  };
  const Imported wrapped = cut("packing_strategy: wrapped\nmax_length: 200\n");
  EXPECT_EQ(Loaded(wrapped).data.max_length, 200);
  EXPECT_THAT(wrapped.report, HasSubstr("the token behind its last one"));
  EXPECT_THAT(wrapped.report, Not(HasSubstr("one fewer of than tokens")));
  const Imported bins = cut("packing_strategy: bfd\nmax_length: 200\n");
  EXPECT_EQ(Loaded(bins).data.max_length, 199);
  EXPECT_EQ(Loaded(cut("truncation_mode: keep_end\n")).data.truncation, Truncation::kRight);
  EXPECT_THAT(bins.report, HasSubstr("bins hold max_length tokens"));
  const auto none = ImportTrl("f.yaml", file + "packing_strategy: other\n", TrlMethod::kSft, 1);
  ASSERT_TRUE(none.ok()) << none.status().ToString();
  EXPECT_THAT(none.value().report, HasSubstr("rows are not packed"));
  EXPECT_FALSE(Loaded(none.value()).data.packing);
}

TEST(TrlImport, ARateThatIsHeldAndFalls) {
  const auto made = ImportTrl(
      "f.yaml",
      "model_name_or_path: m\ndataset_name: d.jsonl\nlearning_rate: 1.0e-3\nmax_steps: 1000\n"
      "lr_scheduler_type: warmup_stable_decay\n"
      "lr_scheduler_kwargs: {num_decay_steps: 400, min_lr_ratio: 0.1}\n",
      TrlMethod::kSft, 1);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const auto optim = Loaded(made.value()).actor_rollout_ref.actor.optim;
  EXPECT_EQ(optim.lr_decay_style, LrDecayStyle::kWsd);
  EXPECT_EQ(optim.lr_wsd_decay_steps, 400);
  EXPECT_DOUBLE_EQ(optim.min_lr, 1e-4);
  EXPECT_THAT(made.value().report, HasSubstr("falls along a cosine in transformers"));
}

TEST(TrlImport, ACommandOfDpoIsValid) {
  const auto made =
      ImportTrl("dpo.sh",
                "#!/bin/bash\nMODEL=${MODEL:-m}\n"
                "accelerate launch trl/scripts/dpo.py --model_name_or_path $MODEL \\\n"
                "  --dataset_name pairs.jsonl --beta=0.2 --loss_type ipo \\\n"
                "  --no_gradient_checkpointing --num_train_epochs 1 \\\n"
                "  --max_length 512 --max_prompt_length 300 --bf16 False\n");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Config c = Loaded(made.value());
  EXPECT_EQ(c.trainer.task, TaskKind::kDpo);
  EXPECT_EQ(c.actor_rollout_ref.model.path, "m");
  EXPECT_EQ(c.dpo.beta, 0.2);
  EXPECT_EQ(c.dpo.loss_type, std::vector{rl::DpoLossType::kIpo});
  EXPECT_FALSE(c.actor_rollout_ref.model.enable_gradient_checkpointing);
  EXPECT_EQ(c.actor_rollout_ref.model.dtype, WeightDtype::kFloat32);
  EXPECT_EQ(c.data.max_prompt_length, 300);
  EXPECT_EQ(c.data.max_response_length, 512);
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr, 1e-6);
  EXPECT_EQ(c.trainer.total_epochs, 1);
}

TEST(TrlImport, HowAnEpochEndsIsSaid) {
  const auto report = [](const std::string& more, TrlMethod method) {
    const auto made =
        ImportTrl("f.yaml", "model_name_or_path: m\ndataset_name: d.jsonl\n" + more, method, 1);
    return made.ok() ? made.value().report : made.status().ToString();
  };
  EXPECT_THAT(report("", TrlMethod::kSft), HasSubstr("epochs times (rows / data.train_batch_size, "
                                                     "rounded up)"));
  EXPECT_THAT(report("dataloader_drop_last: true\n", TrlMethod::kDpo), HasSubstr("rounded down)"));
  EXPECT_THAT(report("", TrlMethod::kGrpo), HasSubstr("epochs times (prompts / "
                                                      "data.train_batch_size, rounded down)"));
  EXPECT_THAT(report("max_steps: 10\n", TrlMethod::kSft),
              AllOf(HasSubstr("runs on into the next epoch"), Not(HasSubstr("epochs times"))));
}

TEST(TrlImport, OneWeightOfALossAndWeightsInBf16AreTaken) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\n";
  const auto dpo = [&](const std::string& more) {
    const auto made = ImportTrl("f.yaml", file + more, TrlMethod::kDpo, 1);
    ThrowIfError(made.status());
    return made.value();
  };
  EXPECT_EQ(Loaded(dpo("loss_weights: 0.5\n")).dpo.loss_weights, std::vector{0.5});
  EXPECT_THAT(dpo("loss_weights: half\n").report, HasSubstr("a number or a list of them"));
  const auto dtype = [&](const std::string& more) {
    return Loaded(dpo(more)).actor_rollout_ref.model.dtype;
  };
  EXPECT_EQ(dtype("bf16: false\ndtype: bfloat16\n"), WeightDtype::kBfloat16);
  EXPECT_EQ(dtype("bf16: false\n"), WeightDtype::kFloat32);
  EXPECT_EQ(dtype("bf16: false\ndtype: float32\n"), WeightDtype::kFloat32);
  EXPECT_EQ(dtype("dtype: float32\n"), WeightDtype::kBfloat16);
}

TEST(TrlImport, WhatIsNotSupportedIsSaid) {
  const auto made = ImportTrl("sft.yaml",
                              "model_name_or_path: m\ndataset_name: d.jsonl\nuse_peft: true\n"
                              "use_dora: true\noptim: adafactor\nsave_strategy: epoch\n"
                              "packing: true\npacking_strategy: bfd_split\nload_in_4bit: true\n"
                              "lr_scheduler_type: polynomial\nno_such: 1\n",
                              TrlMethod::kSft);
  ASSERT_TRUE(made.ok());
  for (const char* key :
       {"use_dora: true", "optim: adafactor", "save_strategy: epoch", "packing_strategy: bfd_split",
        "load_in_4bit: true", "lr_scheduler_type: polynomial", "no_such: 1"})
    EXPECT_THAT(made.value().yaml, HasSubstr(std::string("# NOT TAKEN: ") + key));
}

TEST(TrlImport, AdaptersAreTakenWithTrlsDefaults) {
  const std::string file = "model_name_or_path: m\ndataset_name: d.jsonl\n";
  const auto made = [&](const std::string& more) {
    return ValueOrThrow(ImportTrl("f.yaml", file + more, TrlMethod::kDpo, 1));
  };
  const auto model = [&](const std::string& more) {
    return Loaded(made(more)).actor_rollout_ref.model;
  };
  EXPECT_FALSE(model("lora_r: 8\n").HasAdapters());
  EXPECT_EQ(model("use_peft: true\n").lora_rank, 16);
  EXPECT_EQ(model("use_peft: true\n").lora_alpha, 32);
  EXPECT_EQ(model("use_peft: true\n").target_modules,
            (std::vector<std::string>{"q_proj", "v_proj"}));
  const auto own = model(
      "use_peft: true\nlora_r: 8\nlora_alpha: 4\nuse_rslora: true\n"
      "lora_target_modules: all-linear\n");
  EXPECT_EQ(own.lora_rank, 8);
  EXPECT_EQ(own.lora_alpha, 4);
  EXPECT_TRUE(own.lora_rank_stabilized);
  EXPECT_EQ(own.target_modules, std::vector<std::string>{"all-linear"});
  EXPECT_THAT(made("use_peft: true\n").report, HasSubstr("no dropout"));
  EXPECT_THAT(made("use_peft: true\nlora_dropout: 0\n").report, Not(HasSubstr("no dropout")));
  EXPECT_THAT(made("use_peft: true\nlora_modules_to_save: [lm_head]\n").yaml,
              HasSubstr("NOT TAKEN: lora_modules_to_save"));
}

// TRL's scripts save the model when the training is over, whatever save_strategy says.
TEST(TrlImport, WithoutSaveStepsTheEndIsSaved) {
  for (const char* strategy : {"save_strategy: \"no\"", "save_strategy: no", "save_strategy: epoch",
                               "save_strategy: best", "save_steps: 0.5"}) {
    const auto made = ImportTrl(
        "sft.yaml", "model_name_or_path: m\ndataset_name: d.jsonl\n" + std::string(strategy) + "\n",
        TrlMethod::kSft);
    ASSERT_TRUE(made.ok()) << made.status().message();
    EXPECT_EQ(Loaded(made.value()).trainer.save_freq, 1'000'000'000) << strategy;
    const bool told =
        std::string_view(strategy).ends_with("no") || std::string_view(strategy).ends_with("\"");
    EXPECT_EQ(made.value().yaml.find("NOT TAKEN: save_") == std::string::npos, told) << strategy;
  }
}

TEST(TrlImport, WhatCannotBeCountedIsRefused) {
  EXPECT_THAT(
      ImportTrl("g.yaml", "per_device_train_batch_size: 6\n", TrlMethod::kGrpo).status().message(),
      HasSubstr("multiple of num_generations 8"));
  EXPECT_THAT(ImportTrl("g.yaml", "num_generations: 1\n", TrlMethod::kGrpo).status().message(),
              HasSubstr("num_generations 1"));
  EXPECT_THAT(
      ImportTrl("g.yaml", "steps_per_generation: 2\ngeneration_batch_size: 16\n", TrlMethod::kGrpo)
          .status()
          .message(),
      HasSubstr("one of them alone"));
  EXPECT_THAT(ImportTrl("a.yaml", "beta: 1\n").status().message(), HasSubstr("--method"));
  EXPECT_THAT(ImportTrl("a.sh", "trl sft --beta 1\n", TrlMethod::kDpo).status().message(),
              HasSubstr("launches trl sft, --method says dpo"));
  // A loss and a folder may be called as a method is.
  EXPECT_THAT(
      ImportTrl("a.sh", "python mpo.py --loss_type sigmoid sft --beta 1\n").status().message(),
      HasSubstr("no command in it is trl sft"));
  EXPECT_THAT(ImportTrl("a.sh", "rm -r sft\ntrl dpo --loss_type sigmoid sft\n").value().yaml,
              HasSubstr("task: dpo"));
  EXPECT_THAT(ImportTrl("a.sh", "trl sft --config c.yaml\n").value().unresolved,
              ElementsAre(HasSubstr("--config c.yaml")));
}

// A curriculum's rows came in a random order.
TEST(TrlImport, RowsStayInTheOrderThatEachTrainerReads) {
  const auto shuffle = [](const char* command, const char* more) {
    const auto made = ImportTrl(
        "run.sh",
        fmt::format("trl {} --model_name_or_path m --dataset_name d.jsonl {}\n", command, more));
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() && Loaded(made.value()).data.shuffle;
  };
  EXPECT_TRUE(shuffle("grpo", ""));
  EXPECT_FALSE(shuffle("grpo", "--shuffle_dataset False"));
  EXPECT_FALSE(shuffle("grpo", "--no_shuffle_dataset"));
  EXPECT_TRUE(shuffle("grpo", "--train_sampling_strategy sequential"));
  EXPECT_FALSE(shuffle("dpo", "--train_sampling_strategy sequential"));
  EXPECT_FALSE(shuffle("sft", "--train_sampling_strategy sequential"));
  EXPECT_TRUE(shuffle("sft", "--shuffle_dataset False"));
}

const std::string kSftFile = "model_name_or_path: m\ndataset_name: d.jsonl\n";

// TRL's own example says in a comment how it is launched, and was looked through for that command.
TEST(TrlImport, AFileThatSpeaksOfTheCommandIsAFile) {
  const auto made =
      ImportTrl("example_config.yaml",
                "# use it like that: `trl sft --config config.yaml`\n" + kSftFile, TrlMethod::kSft);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(Loaded(made.value()).actor_rollout_ref.model.path, "m");
}

// They were left out without a word, beside a file of YAML.
TEST(TrlImport, ArgumentsBehindAFileGoBeforeIt) {
  const auto made = ImportTrl("sft.yaml", kSftFile + "learning_rate: 1.0e-4\n", TrlMethod::kSft, 1,
                              {"--learning_rate", "3e-5", "--max_length=64"});
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  const Config c = Loaded(made.value());
  EXPECT_EQ(c.actor_rollout_ref.actor.optim.lr, 3e-5);
  EXPECT_EQ(c.data.max_length, 63);  // inputs
  const auto wrong = ImportTrl("sft.yaml", kSftFile, TrlMethod::kSft, 1, {"seed=3"});
  ASSERT_TRUE(wrong.ok());
  EXPECT_THAT(wrong->unresolved, ElementsAre("seed=3 is no --name"));
}

// 3 % of the steps were warmed up to a rate that transformers holds from the first.
TEST(TrlImport, OnlyConstantWithWarmupHasAWarmUp) {
  const auto steps = [](const std::string& schedule, const std::string& warmup) {
    const auto made = ImportTrl(
        "sft.yaml", kSftFile + "max_steps: 100\nlr_scheduler_type: " + schedule + "\n" + warmup,
        TrlMethod::kSft);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    EXPECT_THAT(made->report, Not(HasSubstr("asked for")));
    return Loaded(made.value()).actor_rollout_ref.actor.optim.lr_warmup_steps;
  };
  EXPECT_EQ(steps("constant", "warmup_ratio: 0.03\n"), 0);
  EXPECT_EQ(steps("constant", "warmup_steps: 10\n"), 0);
  EXPECT_EQ(steps("constant_with_warmup", "warmup_ratio: 0.03\n"), 3);
  EXPECT_EQ(steps("linear", "warmup_steps: 10\n"), 10);
}

TEST(TrlImport, EarlierNamesAreThoseOfToday) {
  const auto made =
      ImportTrl("sft.yaml",
                kSftFile +
                    "max_seq_length: 2048\ntorch_dtype: bfloat16\nevaluation_strategy: steps\n"
                    "eval_steps: 7\n",
                TrlMethod::kSft);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT(made->report, HasSubstr("max_seq_length is called max_length by TRL 1.16"));
  EXPECT_THAT(made->report, Not(HasSubstr("no keys of")));
  const Config c = Loaded(made.value());
  EXPECT_EQ(c.data.max_length, 2047);
  EXPECT_EQ(c.trainer.test_freq, 7);
  // By both names: neither is taken for the other.
  const auto both =
      ImportTrl("sft.yaml", kSftFile + "max_seq_length: 64\nmax_length: 128\n", TrlMethod::kSft);
  ASSERT_TRUE(both.ok());
  EXPECT_THAT(both->yaml, HasSubstr("# NOT TAKEN: max_seq_length: 64"));
  EXPECT_EQ(Loaded(both.value()).data.max_length, 127);
  const auto least = ImportTrl("sft.yaml", kSftFile + "max_length: 2\n", TrlMethod::kSft);
  EXPECT_THAT(least.ok() ? least->report : least.status().message(), HasSubstr("give 3 or more"));
}

// Values that transformers takes for "none" made a file that was refused, or clipped at 1.
TEST(TrlImport, WhatSaysNothingInTransformersSaysNothing) {
  const auto loaded = [](const std::string& more) {
    const auto made = ImportTrl("sft.yaml", kSftFile + more, TrlMethod::kSft);
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    EXPECT_THAT(made->report, Not(HasSubstr("asked for")));
    return Loaded(made.value());
  };
  EXPECT_FALSE(loaded("save_total_limit: 0\n").trainer.max_ckpts_to_keep);
  EXPECT_EQ(loaded("max_grad_norm: null\n").actor_rollout_ref.actor.optim.clip_grad, 0);
  EXPECT_EQ(loaded("max_steps: 300\nlogging_steps: 0.1\n").trainer.log_freq, 30);
  EXPECT_EQ(loaded("logging_steps: 0.1\n").trainer.log_freq, 1);
}

TEST(TrlImport, OfSeveralCommandsTheMethodChooses) {
  const std::string script =
      "trl sft --model_name_or_path m --dataset_name d.jsonl\n"
      "trl dpo --model_name_or_path n --dataset_name p.jsonl\n";
  const auto made = ImportTrl("both.sh", script, TrlMethod::kDpo);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(Loaded(made.value()).actor_rollout_ref.model.path, "n");
  EXPECT_THAT(ImportTrl("both.sh", script).status().message(), HasSubstr("several commands"));
}

TEST(TrlImport, AProgramOfOnesOwnNeedsTheMethod) {
  const std::string script =
      "python prepare.py --out d.jsonl\naccelerate launch --config_file z.yaml scripts/run_sft.py "
      "--model_name_or_path m --dataset_name d.jsonl --seed 3\n";
  const auto made = ImportTrl("run.sh", script, TrlMethod::kSft);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(Loaded(made.value()).trainer.seed, 3);
  EXPECT_THAT(ImportTrl("run.sh", script).status().message(), HasSubstr("--method says what"));
  EXPECT_THAT(ImportTrl("run.sh", script, TrlMethod::kGrpo).status().message(),
              HasSubstr("or a program named after grpo"));
}

TEST(TrlImport, TheBeginningOfANameStandsForIt) {
  const auto made = ImportTrl(
      "sft.sh", "trl sft --model_name m --dataset_name d.jsonl --dataset x --no_such 1\n");
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_EQ(Loaded(made.value()).actor_rollout_ref.model.path, "m");
  EXPECT_THAT(made->report, HasSubstr("no keys of TRL 1.16's sft:\n  dataset: x\n  no_such: 1\n"));
}

// trl hands them to accelerate.
TEST(TrlImport, WhatStartsTheProcessesIsNoUnknownKey) {
  const auto made = ImportTrl("sft.yaml",
                              kSftFile +
                                  "num_processes: 4\naccelerate_config: zero2\n"
                                  "env: {WANDB_PROJECT: x}\noverwrite_output_dir: true\n",
                              TrlMethod::kSft, 0);
  ASSERT_TRUE(made.ok()) << made.status().ToString();
  EXPECT_THAT(made->report, Not(HasSubstr("no keys of")));
  EXPECT_THAT(made->report, Not(HasSubstr("batches are those of one rank")));
  EXPECT_EQ(made->world, 4);
  EXPECT_EQ(Loaded(made.value(), 4).data.train_batch_size, 32);
}

}  // namespace
}  // namespace keel::trainer::foreign
